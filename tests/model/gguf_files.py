"""GGUF files written by hand, right and wrong, with the standard library alone."""

import array
import atexit
import functools
import pathlib
import random
import shutil
import struct
import tarfile
import tempfile

U8, I8, U16, I16, U32, I32, F32, BOOL, TEXT, ARRAY, U64, I64, F64 = range(13)
FORMATS = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<B", U64: "<Q", I64: "<q",
           F64: "<d"}
ALIGNMENT = 32


@functools.cache
def fixtures():
    """The folder of what make_fixtures.py wrote, unpacked until this process ends."""
    folder = pathlib.Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    with tarfile.open(pathlib.Path(__file__).parent / "fixtures" / "models.tar.xz") as archive:
        for member in archive:
            (folder / member.name).write_bytes(archive.extractfile(member).read())
    return folder


def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def packed(kind, value):
    if kind == TEXT:
        return text(value)
    if kind == ARRAY:
        element, values = value
        return struct.pack("<IQ", element, len(values)) + b"".join(packed(element, one) for one in values)
    return struct.pack(FORMATS[kind], value)


class File:
    """A llama model of one layer and 300 tokens of bytes; change metadata {key: (type, value)} and tensors
    {name: dims or (dims, type, offset)} before build()."""

    def __init__(self):
        self.magic, self.version = b"GGUF", 3
        self.metadata = {"general.architecture": (TEXT, "llama"), "llama.context_length": (U32, 4096),
                         "llama.block_count": (U32, 1), "llama.embedding_length": (U32, 16),
                         "llama.feed_forward_length": (U32, 24), "llama.attention.head_count": (U32, 2),
                         "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
                         "tokenizer.ggml.model": (TEXT, "llama"),
                         "tokenizer.ggml.tokens": (ARRAY, (TEXT, self.pieces())),
                         "tokenizer.ggml.scores": (ARRAY, (F32, [0.0] * 300)),
                         "tokenizer.ggml.token_type": (ARRAY, (I32, [2, 3, 3] + [6] * 256 + [1] * 41)),
                         "tokenizer.ggml.bos_token_id": (U32, 1), "tokenizer.ggml.eos_token_id": (U32, 2)}
        self.tensors = {"token_embd.weight": [16, 300], "output_norm.weight": [16]}
        for name, dims in {"attn_norm": [16], "ffn_norm": [16], "attn_q": [16, 16], "attn_k": [16, 16],
                           "attn_v": [16, 16], "attn_output": [16, 16], "ffn_gate": [16, 24], "ffn_up": [16, 24],
                           "ffn_down": [24, 16]}.items():
            self.tensors[f"blk.0.{name}.weight"] = dims
        self.filling = struct.pack("<f", 0.01)
        self.raw_metadata = b""  # one entry more, as bytes

    @staticmethod
    def pieces():
        return ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)] + [f"w{i}" for i in range(41)]

    def header(self):
        """(bytes up to the data, bytes of data)"""
        body, at = b"", 0
        for name, shape in self.tensors.items():
            dims, kind, offset = shape if isinstance(shape, tuple) else (shape, 0, None)
            body += text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
            body += struct.pack("<IQ", kind, at if offset is None else offset)
            size = 4
            for extent in dims:
                size *= extent
            at += min(-(-size // ALIGNMENT) * ALIGNMENT, 2**60)  # what is after an impossible tensor still has a place
        entries = b"".join(text(key) + struct.pack("<I", kind) + packed(kind, value)
                           for key, (kind, value) in self.metadata.items()) + self.raw_metadata
        count = len(self.metadata) + (1 if self.raw_metadata else 0)
        data = self.magic + struct.pack("<IQQ", self.version, len(self.tensors), count) + entries + body
        return data + b"\0" * (-len(data) % ALIGNMENT), at

    def build(self):
        header, size = self.header()
        return header + self.filling * (size // 4)


def make_model(path, layers, width=16, tokens=300, metadata=()):
    """Writes a llama model of two heads of 8 and random weights, which repeat after a prime number of them."""
    file = File()
    file.metadata["llama.block_count"] = (U32, layers)
    file.metadata["llama.embedding_length"] = (U32, width)
    for name in ("key", "value"):
        file.metadata[f"llama.attention.{name}_length"] = (U32, 8)
    pieces = File.pieces() + [f"v{i}" for i in range(tokens - 300)]
    file.metadata["tokenizer.ggml.tokens"] = (ARRAY, (TEXT, pieces))
    file.metadata["tokenizer.ggml.scores"] = (ARRAY, (F32, [0.0] * tokens))
    file.metadata["tokenizer.ggml.token_type"] = (ARRAY, (I32, [2, 3, 3] + [6] * 256 + [1] * (tokens - 259)))
    file.metadata.update(metadata)
    blocks = {"attn_norm": [width], "ffn_norm": [width], "attn_q": [width, 16], "attn_k": [width, 16], "attn_v": [width, 16],
              "attn_output": [16, width], "ffn_gate": [width, 24], "ffn_up": [width, 24], "ffn_down": [24, width]}
    file.tensors = {"token_embd.weight": [width, tokens], "output_norm.weight": [width]}
    for layer in range(layers):
        for name, dims in blocks.items():
            file.tensors[f"blk.{layer}.{name}.weight"] = dims
    header, size = file.header()
    numbers = random.Random(layers)
    values = array.array("f", [numbers.uniform(-1, 1) * (16 / width)**0.5 for _ in range(99_991)]).tobytes()
    pathlib.Path(path).write_bytes(header + (values * (size // len(values) + 1))[:size])
