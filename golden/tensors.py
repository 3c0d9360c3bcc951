"""Safetensors files in numpy: only what the golden vectors need (BF16 is kept as float32 values)."""

import json
import struct

import numpy as np

DTYPES = {"F32": np.float32, "F16": np.float16, "F64": np.float64, "I32": np.int32}


def to_bf16_bits(values):
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return (((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)).tobytes()


def from_bf16_bits(data):
    return (np.frombuffer(data, dtype=np.uint16).astype(np.uint32) << 16).view(np.float32)


def write(path, tensors, metadata=None):
    """tensors: {name: (dtype name, array)}."""
    header, blobs, offset = {}, [], 0
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, array) in tensors.items():
        blob = to_bf16_bits(array) if dtype == "BF16" else np.ascontiguousarray(array, DTYPES[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def read(path):
    """({name: array}, {name: dtype name}, metadata)."""
    with open(path, "rb") as file:
        data = file.read()
    if len(data) < 8 or struct.unpack("<Q", data[:8])[0] > len(data) - 8:
        raise ValueError(f"{path}: truncated header; allowed: a safetensors file")
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    tensors, dtypes = {}, {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        blob = data[8 + length + begin : 8 + length + end]
        if entry["dtype"] == "BF16":
            array = from_bf16_bits(blob)
        else:
            array = np.frombuffer(blob, dtype=DTYPES[entry["dtype"]])
        tensors[name] = array.reshape(entry["shape"])
        dtypes[name] = entry["dtype"]
    return tensors, dtypes, metadata
