"""Helpers of the program's tests: safetensors by the standard library alone, and runs that must be refused."""

import array
import json
import math
import os
import random
import shutil
import struct
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["HEADWATER_PROGRAM"]
SANITIZED = os.environ.get("HEADWATER_SANITIZED", "") != ""
TIMEOUT = 120  # seconds; only a hang takes that long

SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
         "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8}


def bf16_bits(value):
    """Round to nearest even (SCORE-4) of a float that is no NaN."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 & 0xFFFF


def bf16_value(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def encode(dtype, values):
    if dtype == "F32":
        return array.array("f", values).tobytes()
    if dtype == "F16":
        return struct.pack(f"<{len(values)}e", *values)
    if dtype == "BF16":
        return struct.pack(f"<{len(values)}H", *[bf16_bits(value) for value in values])
    raise ValueError(dtype)


def decode(dtype, data):
    if dtype in ("F32", "I32"):
        result = array.array("f" if dtype == "F32" else "i")
        result.frombytes(data)
        return list(result)
    if dtype == "F16":
        return list(struct.unpack(f"<{len(data) // 2}e", data))
    if dtype == "BF16":
        return [bf16_value(bits) for bits in struct.unpack(f"<{len(data) // 2}H", data)]
    raise ValueError(dtype)


class Tensor:
    def __init__(self, dtype, shape, values=None, data=None):
        self.dtype, self.shape = dtype, list(shape)
        self.data = encode(dtype, values) if data is None else data

    @property
    def values(self):
        return decode(self.dtype, self.data)


def header_of(tensors):
    header, at = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [at, at + len(tensor.data)]}
        at += len(tensor.data)
    return header


def file_of(header, data, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def safetensors(tensors, metadata=None):
    header = header_of(tensors)
    if metadata is not None:
        header["__metadata__"] = metadata
    return file_of(header, b"".join(tensor.data for tensor in tensors.values()))


def parse_safetensors(data):
    """Strict reader of what the program wrote: (tensors, metadata)."""
    length = struct.unpack("<Q", data[:8])[0]
    assert length % 8 == 0, "header not padded to 8 bytes"
    header = json.loads(data[8:8 + length])
    metadata = header.pop("__metadata__")
    body = data[8 + length:]
    tensors, at = {}, 0
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        size = SIZES[entry["dtype"]]
        assert begin == at and begin % size == 0, f"{name} begins at {begin}, not aligned after {at}"
        assert end - begin == size * math.prod(entry["shape"]), f"{name} has the wrong length"
        tensors[name] = Tensor(entry["dtype"], entry["shape"], data=body[begin:end])
        at = end
    assert at == len(body), "data after the last tensor"
    return tensors, metadata


def problem(n=40, heads=4, heads_kv=2, d=8, dv=6, dtype="F32", q_dtype=None, seed=1, **extra):
    """Random q, k and v; extra tensors as they are."""
    source = random.Random(seed)

    def normal(count):
        return [source.gauss(0.0, 1.0) for _ in range(count)]

    tensors = {"q": Tensor(q_dtype or dtype, [n, heads, d], normal(n * heads * d)),
               "k": Tensor(dtype, [n, heads_kv, d], normal(n * heads_kv * d)),
               "v": Tensor(dtype, [n, heads_kv, dv], normal(n * heads_kv * dv))}
    tensors.update(extra)
    return tensors


class ProgramTest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="headwater-test-")
        self.addCleanup(shutil.rmtree, self.directory)

    def path(self, name):
        return os.path.join(self.directory, name)

    def put(self, data, name="in.safetensors"):
        """Writes a file: bytes, or tensors by name."""
        with open(self.path(name), "wb") as file:
            file.write(data if isinstance(data, bytes) else safetensors(data))
        return self.path(name)

    def run_program(self, *arguments, env=None, **options):
        environment = {key: value for key, value in os.environ.items() if key != "HEADWATER_ENGINE"}
        environment.update(env or {})
        return subprocess.run([PROGRAM, *arguments], capture_output=True, timeout=TIMEOUT, env=environment,
                              cwd=self.directory, check=False, **options)

    def attend(self, data, *arguments, out="out.safetensors", **options):
        """Runs `attend`, which must succeed; returns (tensors, metadata, stderr)."""
        path = data if isinstance(data, str) else self.put(data)
        done = self.run_program("attend", path, "-o", self.path(out), *arguments, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.path(out), "rb") as file:
            tensors, metadata = parse_safetensors(file.read())
        return tensors, metadata, done.stderr.decode()

    def output_bytes(self, data, *arguments, **options):
        self.attend(data, *arguments, **options)
        with open(self.path("out.safetensors"), "rb") as file:
            return file.read()

    def assert_refused(self, done, *words, code=2):
        """One line on standard error with all the words in it, nothing on standard output."""
        error = done.stderr.decode()
        self.assertEqual(done.returncode, code, error)
        self.assertEqual(len(error.splitlines()), 1, error)
        self.assertTrue(error.endswith("\n"), error)
        self.assertRegex(error, r"^headwater( \w+)?: ")
        self.assertEqual(done.stdout, b"")
        for word in words:
            self.assertIn(word, error)

    def refuse(self, data, *words, arguments=(), code=2, out="out.safetensors", **options):
        """`attend` on these bytes or tensors is refused and leaves the directory as it was."""
        path = data if isinstance(data, str) else self.put(data)
        before = self.listing()
        done = self.run_program("attend", path, "-o", self.path(out), *arguments, **options)
        self.assert_refused(done, *words, code=code)
        self.assertEqual(self.listing(), before)

    def listing(self):
        """Names, sizes and contents of everything here."""
        found = {}
        for root, directories, names in os.walk(self.directory):
            for name in directories:
                found[os.path.join(root, name)] = None
            for name in names:
                path = os.path.join(root, name)
                if os.path.isfile(path):
                    with open(path, "rb") as file:
                        found[path] = file.read()
                else:
                    found[path] = None
        return found
