"""models/plot_memory.py: a picture of every kind of output, one line for every other file."""

import os
import pathlib
import struct
import subprocess
import sys
import unittest

import numpy as np
from matplotlib.image import imread
from support import TIMEOUT, ProgramTest, Tensor, file_of, problem, safetensors

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "models" / "plot_memory.py"


class Plot(ProgramTest):
    def plot(self, path):
        environment = dict(os.environ, MPLCONFIGDIR=self.directory)
        return subprocess.run([sys.executable, SCRIPT, path, "-o", self.path("memory.png")], capture_output=True,
                              timeout=TIMEOUT, check=False, env=environment)

    def draw(self, tensors, *flags, name="out.safetensors"):
        self.attend(tensors, *flags, out=name)
        done = self.plot(self.path(name))
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        with open(self.path("memory.png"), "rb") as file:
            data = file.read()
        self.assertEqual(data[:8], b"\x89PNG\r\n\x1a\n")
        return struct.unpack(">II", data[16:24])

    def test_pictures(self):
        flags = ("-b", "32", "-ub", "8", "--h2o-local", "3", "--h2o-heavy", "2")
        four = self.draw(problem(n=100), *flags)
        one = self.draw(problem(n=100, heads=1, heads_kv=1), *flags)
        self.assertEqual(four[0], one[0])
        self.assertGreater(four[1], one[1])  # a panel for each head
        self.draw(problem(n=100), *flags, "--steps", "p50,d1,d2,p5,p42")
        self.draw(problem(n=9, heads=20), "--dense", name="a$b^{$,c.safetensors")
        self.draw(problem(n=1))

    def test_legend_has_what_is_there(self):
        """The colours of local windows and heavy hitters stand in the picture where a chunk read such tokens, and only there."""
        for flags, local, heavy in ((("-ub", "8", "--h2o-local", "3", "--h2o-heavy", "2"), True, True),
                                    (("-ub", "8", "--h2o-local", "3", "--h2o-heavy", "0"), True, False), (("--dense",), False, False)):
            self.draw(problem(n=100), *flags)
            picture = np.rint(imread(self.path("memory.png"))[..., :3] * 255).astype(int)
            for colour, there in (((86, 180, 233), local), ((213, 94, 0), heavy)):
                self.assertEqual(bool(np.all(picture == colour, axis=-1).any()), there, f"{flags}, {colour}")

    def refused(self, data, word):
        path = data if isinstance(data, str) else self.put(data, "bad")
        done = self.plot(path)
        error = done.stderr.decode()
        self.assertEqual(done.returncode, 2, error)
        self.assertEqual(len(error.splitlines()), 1, error)
        self.assertTrue(error.startswith("plot_memory.py: "), error)
        self.assertIn(word, error)
        self.assertFalse(os.path.exists(self.path("memory.png")))

    def test_other_files(self):
        self.refused(self.path("missing"), "No such file")
        self.refused(self.directory, "directory")
        for data in (b"", b"abc", bytes(100), struct.pack("<Q", 2**60) + b"{}"):
            self.refused(data, "safetensors")
        for text in (b"[]", b"{}", b"{x}", b"[" * 100_000, b'{"__metadata__":{}}', b'{"__metadata__":{"local":"x"}}'):
            self.refused(file_of(text, b""), "header")
        self.refused(problem(), "header")

    def test_outputs_that_are_no_outputs(self):
        def output(start, memory, shape, local="1"):
            pack = lambda values: struct.pack(f"<{len(values)}i", *values)  # noqa: E731: three letters of use
            return safetensors({"chunk_start": Tensor("I32", [len(start)], data=pack(start)),
                                "memory": Tensor("I32", shape, data=pack(memory))}, {"local": local})

        self.refused(output([0, 2, 4], [0], [1, 1, 1]), "fit together")
        self.refused(output([1, 2], [-1], [1, 1, 1]), "ascend")
        self.refused(output([0, 2, 2], [-1, 0], [2, 1, 1]), "ascend")
        self.refused(output([0, 2, 4], [-1, 2], [2, 1, 1]), "outside")
        self.refused(output([0, 2, 4], [-1, -2], [2, 1, 1]), "outside")
        self.refused(output([0, 2, 4], [-1, 0], [2, 1, 1], "-5"), "outside")
        self.refused(output([0], [], [0, 1, 1]), "ascend")
        data = output([0, 2, 4], [-1, 0], [2, 1, 1])
        self.refused(data[:-1], "within the file")
        self.refused(data.replace(b"[2, 1, 1]", b"[2,-1, 1]"), "described")
        self.refused(data.replace(b"[2, 1, 1]", b"[2, 1e00]"), "described")
        self.attend(problem(), "--no-trace")
        self.refused(self.path("out.safetensors"), "--no-trace")
        self.attend(problem(), "--select", "window")
        self.refused(self.path("out.safetensors"), "--select h2o")

    def test_place_that_cannot_be_written(self):
        self.attend(problem())
        done = subprocess.run([sys.executable, SCRIPT, self.path("out.safetensors"), "-o", self.path("no/x.png")],
                              capture_output=True, timeout=TIMEOUT, check=False,
                              env=dict(os.environ, MPLCONFIGDIR=self.directory))
        self.assertEqual(done.returncode, 2)
        self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertIn(b"no/x.png", done.stderr)


if __name__ == "__main__":
    unittest.main()
