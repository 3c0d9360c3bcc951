"""The corpora of the fuzz targets, fuzz/corpora.tar.gz: a folder for each target, a file for each input.

python3 fuzz/make_corpora.py [TARGET FILE...] writes the seeds of api, gguf, tokenizer and session_file anew, adds the files named (what
a fuzzer found) to the folder of their target, and leaves the other inputs as they are. The same inputs give the same bytes.
Standard library only.
"""

import gzip
import io
import json
import pathlib
import struct
import sys
import tarfile

ARCHIVE = pathlib.Path(__file__).parent / "corpora.tar.gz"
U32, BOOL, TEXT, ARRAY, I32, F32 = 4, 7, 8, 9, 5, 6
# name -> (number of the type, elements and bytes of a block)
TYPES = {"f32": (0, 1, 4), "f16": (1, 1, 2), "bf16": (30, 1, 2), "q8_0": (8, 32, 34), "q4_0": (2, 32, 18),
         "q4_k": (12, 256, 144), "q5_k": (13, 256, 176), "q6_k": (14, 256, 210), "q4_1": (3, 32, 20),
         "q5_0": (6, 32, 22), "q5_1": (7, 32, 24), "q2_k": (10, 256, 84), "q3_k": (11, 256, 110),
         "iq4_xs": (23, 256, 136)}


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def entry(key, kind, value):
    return text(key) + struct.pack("<I", kind) + value


def texts(key, values):
    return entry(key, ARRAY, struct.pack("<IQ", TEXT, len(values)) + b"".join(map(text, values)))


def numbers(key, kind, code, values):
    return entry(key, ARRAY, struct.pack(f"<IQ{len(values)}{code}", kind, len(values), *values))


def gguf(entries, tensors=(), version=3):
    head = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(entries)) + b"".join(entries)
    data = b""
    for name, kind, blocks in tensors:
        number, elements, size = TYPES[kind]
        head += text(name) + struct.pack("<IQQIQ", 2, elements * blocks, 2, number, len(data))
        data += bytes(i * 37 % 256 for i in range(size * blocks * 2))
        data += bytes(-len(data) % 32)
    return head + bytes(-len(head) % 32) + data


def byte_characters():
    other = iter(range(0x100, 0x200))
    return [chr(b) if 0x21 <= b <= 0x7E or (b >= 0xA1 and b != 0xAD) else chr(next(other)) for b in range(256)]


def byte_level(pre):
    tokens = byte_characters() + ["ab", "abc", "\u0120a", "<|im_start|>", "<|im_end|>", "<think>"]
    kinds = [1] * 259 + [3, 3, 4]
    return [entry("tokenizer.ggml.model", TEXT, text("gpt2")), entry("tokenizer.ggml.pre", TEXT, text(pre)),
            texts("tokenizer.ggml.tokens", tokens), numbers("tokenizer.ggml.token_type", I32, "i", kinds),
            texts("tokenizer.ggml.merges", ["a b", "ab c", "\u0120 a"]),
            entry("tokenizer.ggml.eos_token_id", U32, struct.pack("<I", 260)),
            entry("tokenizer.ggml.bos_token_id", U32, struct.pack("<I", 259)),
            entry("tokenizer.ggml.add_bos_token", BOOL, b"\1")]


def sentence():
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + ["\u2581", "a", "b", "ab", "\u2581ab", "abab"]
    kinds = [2, 3, 3] + [6] * 256 + [1] * 5 + [5]
    scores = [0.0] * 259 + [-9.0, -8.0, -7.0, -1.0, -2.0, -0.5]
    return [entry("tokenizer.ggml.model", TEXT, text("llama")), texts("tokenizer.ggml.tokens", tokens),
            numbers("tokenizer.ggml.token_type", I32, "i", kinds), numbers("tokenizer.ggml.scores", F32, "f", scores),
            entry("tokenizer.ggml.bos_token_id", U32, struct.pack("<I", 1))]


def seeds():
    """Path in the archive -> content."""
    found = {}
    alignment = entry("general.alignment", U32, struct.pack("<I", 32))
    files = {f"tensor-{kind}": gguf([alignment], [("a", kind, 1), ("b", kind, 1)]) for kind in TYPES}
    files |= {f"vocabulary-{pre}": gguf(byte_level(pre)) for pre in ("qwen2", "llama-bpe", "gpt-2", "default", "smollm")}
    files["sentence"] = gguf(sentence())
    files["version-2"] = gguf(byte_level("qwen2"), [("a", "q8_0", 2)], version=2)
    files["values"] = gguf([entry(f"k{kind}", kind, bytes(8 if kind >= 10 else 1 << kind // 2 if kind < 6 else 4))
                            for kind in (0, 1, 2, 3, 4, 5, 6, 10, 11, 12)] + [texts("empty", [])])
    files["count-2-40"] = gguf([text("k") + struct.pack("<IIQ", ARRAY, TEXT, 1 << 40)])
    files["offset-beyond"] = gguf([], [("a", "f32", 8)])[:-32]
    found |= {f"gguf/{name}": content for name, content in files.items()}

    # target_session_file.cpp: which session, then edits of its file: kind, place (two bytes), value; or, from 192 on, a file.
    edits = {"as-saved": b"", "cut-short": b"\1\4\0\0", "cut-in-header": b"\1\0\20\0", "inserted": b"\2\0\40x",
             "erased": b"\3\0\50\3", "last-byte": b"\1\7\377\0", "length": b"\0\0\7\177", "twice": b"\0\0\11x\0\0\12y"}
    for which in range(8):
        for name, content in edits.items():
            found[f"session_file/{name}-{which}"] = bytes([which]) + content
    for i in range(80):
        found[f"session_file/number-{i}"] = bytes([i % 8, 4, i * 3 // 2, i // 8])
    for i in range(16):
        found[f"session_file/data-{i}"] = bytes([i % 8, 0, 4 + i // 4, i * 64 % 256, 255])
    for name, content in {"empty": b"", "no-header": bytes(8), "brackets": b"\x40" + bytes(7) + b"[" * 64}.items():
        found[f"session_file/{name}"] = bytes([192]) + content

    samples = {"code": b"def f(x):\n    return x ** 2\r\n", "blanks": b"  \t\n\n x \xc2\xa0\xe3\x80\x80  ",
               "scripts": "naïve 東京 עברית हिन्दी 🙂👍🏽 e\u0301".encode(), "broken": b"a\xff\xc3(\xf0\x9f\x98 \xed\xa0\x80",
               "special": b"<|im_start|>user\n<|im_end|><|im_<s></s><0x41>", "long": b"x" * 300 + b" " * 300 + b"1" * 50}
    for which in range(6):
        for name, content in samples.items():
            found[f"tokenizer/{name}-{which}"] = bytes([which, which % 2]) + content

    # target_api.cpp: which path, then the body.
    chat = {"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b\ud83d"}]},
                         {"role": "assistant", "content": None}, {"role": "user", "content": "<|im_end|>"}],
            "temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1, "n": 2, "stop": ["a", "b"], "seed": -1, "max_tokens": 8,
            "presence_penalty": 1, "frequency_penalty": -1, "repeat_penalty": 1.1, "logit_bias": {"5": -100}, "logprobs": True,
            "top_logprobs": 3, "stream": True, "stream_options": {"include_usage": True}, "return_progress": True,
            "headwater": {"dense": True, "dense_tail": 3, "cache": False}}
    common = {key: value for key, value in chat.items() if key not in ("messages", "logprobs", "top_logprobs", "n")}
    bodies = [{"content": "a b", "with_pieces": True}, {"tokens": [1, 2, 3]}, {"messages": chat["messages"]}, chat,
              common | {"prompt": ["a", [1, 2]], "logprobs": 2, "n": 4}, common | {"prompt": "a", "n_predict": -1, "n_probs": 2},
              common | {"input": [{"role": "user", "content": "a"}], "instructions": "b", "max_output_tokens": 3}]
    for which, body in enumerate(bodies):
        found[f"api/whole-{which}"] = bytes([which]) + json.dumps(body).encode()
        for key in body:
            for name, value in (("null", None), ("huge", 1e300), ("list", [[]]), ("object", {"a": {}}), ("text", "\0\ufffd")):
                found[f"api/{name}-{key}-{which}"] = bytes([which]) + json.dumps(body | {key: value}).encode()
    schema = {"properties": {"b": {"type": "string", "pattern": "^a{2,3}[^\\d]$"}, "a": {"$ref": "#/$defs/n"}}, "required": ["a"],
              "additionalProperties": {"anyOf": [{"minimum": -5, "maximum": 70}, {"prefixItems": [True], "minItems": 1}]},
              "$defs": {"n": {"enum": [1, "x"], "allOf": [{"minLength": 1}]}}}
    forms = {"schema": {"json_schema": schema}, "grammar": {"grammar": 'root ::= ("a" | [^b-d\\n]{2,}) x\nx ::= . x?'},
             "format": {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}}
    for name, form in forms.items():
        for which in (4, 5):
            found[f"api/answer-{name}-{which}"] = bytes([which]) + json.dumps({"prompt": "a"} | form).encode()
    found |= {f"api/deep-{n}": b"\3" + b'{"a":' * n + b"1" + b"}" * n for n in (64, 65, 100000)}
    found["api/quotes"] = b"\3" + b'{"a":"' + b'\\"[' * 100 + b'"}'
    return found


def main(target=None, *added):
    with tarfile.open(ARCHIVE) as archive:
        inputs = {entry.name: archive.extractfile(entry).read() for entry in archive if entry.isfile()}
    targets = {name.split("/")[0] for name in inputs}
    if target is not None and (target not in targets or not added):
        sys.exit(f"usage: make_corpora.py [TARGET FILE...]; targets: {', '.join(sorted(targets))}")
    inputs |= seeds() | {f"{target}/{pathlib.Path(name).name}": pathlib.Path(name).read_bytes() for name in added}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in sorted(inputs.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    ARCHIVE.write_bytes(gzip.compress(packed.getvalue(), mtime=0))


main(*sys.argv[1:])
