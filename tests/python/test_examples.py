"""examples/attention_arrays.py runs and says what it shows."""

import os
import pathlib
import subprocess
import sys
import unittest

import support

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples/attention_arrays.py"


class Example(unittest.TestCase):
    def test_attention_arrays(self):
        where = pathlib.Path(support.headwater.__file__).parents[1]
        run = subprocess.run([sys.executable, "-W", "error", EXAMPLE], check=True, capture_output=True, text=True,
                             env={**os.environ, "PYTHONPATH": str(where)})
        lines = run.stdout.splitlines()
        self.assertEqual(len(lines), 5, run.stdout)
        self.assertRegex(lines[-1], "the last 64 tokens see every token: largest difference [0-9.e+-]+$")
        self.assertLess(float(lines[-1].split()[-1]), 1e-4)


if __name__ == "__main__":
    unittest.main()
