"""Writes tests/gguf/fixtures.tar.xz with the PyPI package `gguf`, an implementation that shares nothing with this project.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install gguf==0.19.0
    /tmp/venv/bin/python tests/gguf/make_fixtures.py

types.gguf: for each type T a tensor `T` of stored rows and a tensor `T.values`, what the package makes of them; for a
quantised one `T.extremes` and `T.extremes.values` besides, of some types every 17th value.
split-0000i-of-00003.gguf: a small model in three files.
The results are committed; nothing in the build runs this.
"""

import pathlib
import tarfile
import tempfile

import gguf
import numpy as np

ARCHIVE = pathlib.Path(__file__).parent / "fixtures.tar.xz"
ROWS, COLUMNS = 3, 512
TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4",
         "Q2_K", "Q3_K", "IQ4_XS"]
# Where the 16-bit floats of a block stand; everything else of a block may be any byte.
HALVES = {"Q8_0": [0], "Q4_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "IQ4_NL": [0],
          "MXFP4": [], "Q2_K": [80, 82], "Q3_K": [108], "IQ4_XS": [0]}
# Of the extremes of these types every so many values are written, to keep the file small: one of each run of 16.
SAMPLED = {"Q2_K": 17, "Q3_K": 17, "IQ4_XS": 17}
# Of MXFP4 an exponent stands there: those of the smallest scales, of 1, and of the largest whose values are finite.
EXPONENTS = [0, 1, 2, 3, 127, 128, 129, 252]
# Bits of a scale and of a minimum: zeros of both signs, subnormal ones, the largest, infinity and NaN.
EXTREMES = [(0x0000, 0x0000), (0x0000, 0x8000), (0x8000, 0x0000), (0x8000, 0x8000), (0x3C00, 0x8000), (0xBC00, 0x3C00),
            (0x0001, 0x8001), (0x83FF, 0x03FF), (0x7BFF, 0xFBFF), (0xFBFF, 0xFBFF), (0x3C00, 0x7C00), (0x3C00, 0xFC00),
            (0x7C00, 0x3C00), (0xFC00, 0x7C00), (0x7E00, 0x3C00), (0x3C00, 0x7E00)]


def finite_halves(rng, count):
    """Normal, subnormal, zero, of both signs."""
    bits = rng.integers(0, 0x7C00, count, dtype=np.uint16)
    bits[::7] &= 0x03FF
    return bits | (rng.integers(0, 2, count, dtype=np.uint16) << np.uint16(15))


def stored_rows(rng, name):
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    if name == "F32":
        rows = rng.standard_normal((ROWS, COLUMNS), dtype=np.float32)
        return rows.view(np.uint8)
    if name == "F16":
        return finite_halves(rng, ROWS * COLUMNS).reshape(ROWS, COLUMNS).view(np.uint8)
    if name == "BF16":
        rows = rng.standard_normal((ROWS, COLUMNS), dtype=np.float32)
        return (rows.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    blocks = rng.integers(0, 256, (ROWS * COLUMNS // block, size), dtype=np.uint8)
    for at in HALVES[name]:
        blocks[:, at:at + 2] = finite_halves(rng, len(blocks)).view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":
        blocks[:, 0] = 112 + blocks[:, 0] % 32
    return blocks.reshape(ROWS, -1)


def extreme_rows(rng, name):
    """A block in a row; a quantised type's scale and minimum from EXTREMES."""
    _, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = rng.integers(0, 256, (len(EXTREMES), size), dtype=np.uint8)
    for block, halves in zip(blocks, EXTREMES):
        for at, half in zip(HALVES[name], halves):
            block[at:at + 2] = np.frombuffer(np.uint16(half).tobytes(), np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = np.resize(EXPONENTS, len(blocks))
    return blocks


def add_metadata(writer):
    writer.add_uint8("t.u8", 200)
    writer.add_int8("t.i8", -100)
    writer.add_uint16("t.u16", 60000)
    writer.add_int16("t.i16", -30000)
    writer.add_uint32("t.u32", 4000000000)
    writer.add_int32("t.i32", -2000000000)
    writer.add_uint64("t.u64", 2**63 - 1)
    writer.add_int64("t.i64", -2**63)
    writer.add_float32("t.f32", 0.5)
    writer.add_float64("t.f64", 1e300)
    writer.add_bool("t.bool", True)
    writer.add_string("t.text", "naïve ▁")
    writer.add_array("t.texts", ["a", "", "déjà"])
    writer.add_array("t.integers", [1, -2, 3])
    writer.add_array("t.numbers", [0.25, -4.0])


def write(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make(out):
    rng = np.random.default_rng(20240607)
    writer = gguf.GGUFWriter(out / "types.gguf", "test")
    add_metadata(writer)
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        stored = stored_rows(rng, name)
        values = gguf.quants.dequantize(stored, kind).astype(np.float32)
        assert values.shape == (ROWS, COLUMNS), (name, values.shape)
        writer.add_tensor(name, stored, raw_dtype=kind)
        writer.add_tensor(f"{name}.values", values)
    for name in HALVES:
        kind = gguf.GGMLQuantizationType[name]
        stored = extreme_rows(rng, name)
        writer.add_tensor(f"{name}.extremes", stored, raw_dtype=kind)
        with np.errstate(invalid="ignore"):  # infinity times zero
            values = gguf.quants.dequantize(stored, kind).astype(np.float32)
        writer.add_tensor(f"{name}.extremes.values", np.ascontiguousarray(values[:, ::SAMPLED.get(name, 1)]))
    write(writer)

    writer = gguf.GGUFWriter(out / "split.gguf", "test", split_max_tensors=2)
    writer.add_uint32("t.u32", 7)
    for i in range(5):
        writer.add_tensor(f"tensor.{i}", np.full((2, 4), i, dtype=np.float32))
    write(writer)


def main():
    with tempfile.TemporaryDirectory() as folder, tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        out = pathlib.Path(folder)
        make(out)
        for path in sorted(out.iterdir()):
            entry = archive.gettarinfo(path, path.name)
            entry.mtime, entry.mode, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0o644, 0, 0, "", ""
            with path.open("rb") as data:
                archive.addfile(entry, data)


main()
