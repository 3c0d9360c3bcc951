"""What the tests of the model commands share: runs of the program on the bundled model."""

import json
import os
import pathlib
import struct
import subprocess
import unittest

PROGRAM = os.environ["HEADWATER_PROGRAM"]
MODELS = pathlib.Path(os.environ["HEADWATER_MODELS"])
MODEL = str(MODELS / "headwater-tiny-f16.gguf")
TEXT = str(MODELS / "eval-4k.txt")
TIMEOUT = 240  # seconds; only a hang takes that long


def run(*arguments, **more):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, timeout=TIMEOUT, **more)


def tensors(path):
    data = pathlib.Path(path).read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    return {name: (info, data[8 + length + info["data_offsets"][0]:8 + length + info["data_offsets"][1]])
            for name, info in header.items()}


class Refusals(unittest.TestCase):
    def refused(self, *arguments, names, program="generate", code=2, **more):
        result = run(program, *arguments, **more)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stdout, b"")
        lines = result.stderr.decode().splitlines()
        self.assertEqual(len(lines), 1, lines)
        self.assertIn(names, lines[0])
