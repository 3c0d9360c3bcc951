"""The examples of models, of the evaluation, and of an engine of one's own run and say what they show."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import support
from test_evaluate import missing

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(name, *arguments, **more):
    where = pathlib.Path(support.headwater.__file__).parents[1]
    return subprocess.run([sys.executable, "-B", "-W", "error", ROOT / "examples" / name, *map(str, arguments)], check=False,
                          capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(where)}, **more)


@unittest.skipIf(missing("runtime"), f"the runtime library: {missing('runtime')}")
class OfModels(unittest.TestCase):
    def test_evaluate(self):
        with tempfile.TemporaryDirectory() as folder:
            first = run("evaluate.py", ROOT / "models/headwater-tiny-f16.gguf", folder)
            self.assertEqual(first.returncode, 0, first.stderr)
            self.assertRegex(first.stdout, r"\| `niah_single` \| `dense` \| \d+ \(\d+ to \d+\) \| \d+ \(\d+ to \d+\) \|")
            again = run("evaluate.py", ROOT / "models/headwater-tiny-f16.gguf", folder)
            self.assertEqual((again.returncode, again.stdout), (0, first.stdout), again.stderr)
            self.assertNotIn("cell", again.stderr)  # nothing was left to do

    def test_chat(self):
        done = run("gguf_chat.py", input="def read(file):\n\nand then?\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual([line for line in lines if line.startswith("> ")], ["> def read(file):", "> and then?"])
        tokens = [int(line[1:].split()[0]) for line in lines if line.startswith("(") and line.endswith(" tokens)")]
        self.assertEqual(len(tokens), 2)
        self.assertGreater(tokens[1], tokens[0])
        one = run("gguf_chat.py", ROOT / "models/headwater-tiny-f16.gguf", "def read(file):")
        self.assertEqual(one.stdout, done.stdout[:len(one.stdout)])


@unittest.skipUnless("HEADWATER_KIT" in os.environ, "HEADWATER_KIT names no headwater-conformance")
class OwnEngine(unittest.TestCase):
    def test_the_sample_passes(self):
        done = run("own_engine.py", os.environ["HEADWATER_KIT"], "state.*", "exact.one_key")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        lines = done.stdout.splitlines()
        self.assertIn("PASS       exact.one_key", lines)
        self.assertRegex(lines[-1], r"^naive-c: PASS, (\d+) of \1 cases passed$")
        self.assertEqual(len(lines) - 1, int(lines[-1].split()[-5]))
        self.assertGreater(len(lines), 5)

    def test_a_kit_that_is_none(self):
        done = run("own_engine.py", "/bin/false")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, "^own_engine: the kit wrote no report")


if __name__ == "__main__":
    unittest.main()
