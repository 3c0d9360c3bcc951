"""Writes tests/model/fixtures/models.tar.xz: small random models as GGUF files, with their logits by a forward pass of its own.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install gguf==0.19.0
    /tmp/venv/bin/python tests/model/make_fixtures.py

The forward pass is written in numpy from the papers and from the definitions that models are published with (queries and
keys rotated by split halves, weights as published); the files hold the same weights as llama.cpp's converter would write
them (the rows of llama's query and key matrices in the order of adjacent pairs; Llama 3's scaling as a tensor of divisors).
So a mistake in the reading of either convention shows. golden.json: for each model the ids of a text, what greedy
generation adds after them, and how far the same forward pass in float32 is from the one in float64; NAME.logits in
golden.safetensors: logits of the last positions. perplexity.json: what `headwater perplexity` must say of the same text, cut
into windows. The archive is committed, and unpacked when the build is configured; nothing in the build runs this.
"""

import json
import math
import pathlib
import struct
import tarfile
import tempfile

import gguf
import numpy as np

ARCHIVE = pathlib.Path(__file__).parent / "fixtures" / "models.tar.xz"
OUT = pathlib.Path(tempfile.mkdtemp())
WIDTH, HEADS, HEADS_KV, D, HIDDEN, LAYERS = 48, 4, 2, 16, 80, 2
TOKENS, LOGIT_ROWS, GENERATED = 96, 16, 8
CONTEXT = 256
WINDOW, DECODE = 20, 6
TEXT = "The quick brown fox jumps over the lazy dog; 12 wizards boxed 345 jugs.\n\tReturn to the river, \u00e9t\u00e9 \u2713"

# name: architecture, and what is special about it
MODELS = {
    "llama-linear": {"arch": "llama", "theta": 10000.0, "linear": 4.0, "own_head": True, "tokenizer": "llama"},
    "llama3": {"arch": "llama", "theta": 500000.0, "llama3": (8.0, 1.0, 4.0, 64), "own_head": False,
               "tokenizer": "llama-bpe"},
    "mistral-yarn": {"arch": "llama", "theta": 10000.0, "yarn": (4.0, 64), "own_head": True, "output_bias": True,
                     "window": CONTEXT, "tokenizer": "llama"},
    "qwen2-yarn": {"arch": "qwen2", "theta": 1000000.0, "yarn": (2.0, 32), "own_head": False, "biases": True,
                   "tokenizer": "qwen2"},
    "qwen2-linear": {"arch": "qwen2", "theta": 10000.0, "linear": 2.0, "own_head": True, "biases": True,
                     "tokenizer": "qwen2"},
    "qwen3-plain": {"arch": "qwen3", "theta": 100000.0, "own_head": True, "norms": True, "tokenizer": "qwen2"},
    # What llama.cpp's loader makes of these keys: a factor without a type is linear; the old key is read where the new
    # one is missing; a magnitude of its own is multiplied with YaRN's, and stands alone without YaRN.
    "untyped-factor": {"arch": "llama", "theta": 10000.0, "linear": 4.0, "untyped": True, "own_head": False,
                       "tokenizer": "llama"},
    "old-factor": {"arch": "llama", "theta": 10000.0, "linear": 4.0, "old_key": True, "magnitude": 1.5, "own_head": False,
                   "tokenizer": "llama"},
    "yarn-magnitude": {"arch": "llama", "theta": 10000.0, "yarn": (4.0, 64), "magnitude": 0.75, "own_head": False,
                       "tokenizer": "llama"},
    # Type none: whatever factor stands beside it. The magnitude is multiplied all the same.
    "none-with-factors": {"arch": "llama", "theta": 10000.0, "none_beside": 4.0, "magnitude": 1.25, "own_head": False,
                          "tokenizer": "llama"},
}


# ---- vocabularies

def byte_letters():
    """GPT-2's alphabet: printable bytes stand for themselves, the others for letters from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def vocabulary(kind):
    """(pieces, scores or None, types, merges or None, specials by text)"""
    normal, control, unknown, byte = 1, 3, 2, 6
    if kind == "llama":
        pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
        types = [unknown, control, control] + [byte] * 256
        words = ["\u2581", *"abcdefghijklmnopqrstuvwxyz", "\u2581t", "he", "\u2581the", "qu", "\u2581qu", "ck", "ow", "jum"]
        return (pieces + words, [0.0] * len(pieces) + [-float(i + 1) for i in range(len(words))],
                types + [normal] * len(words), None)
    letters = byte_letters()
    space = letters[ord(" ")]
    merges = [("t", "h"), ("th", "e"), (space, "the"), ("q", "u"), (space, "qu"), ("o", "w"), ("e", "r"), ("o", "x")]
    specials = (["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
                if kind == "llama-bpe" else ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    pieces = letters + [a + b for a, b in merges] + specials
    return pieces, None, [normal] * (len(letters) + len(merges)) + [control] * len(specials), merges


# ---- weights, as published

def weights(rng, model, vocabulary_size):
    def matrix(rows, columns, gain=1.0):
        # Rounded to F16, so that the file holds them exactly.
        return (rng.standard_normal((rows, columns)) * gain / math.sqrt(columns)).astype(np.float16).astype(np.float64)

    def vector(n, middle, spread):
        return (middle + spread * rng.standard_normal(n)).astype(np.float32).astype(np.float64)

    layers = []
    for _ in range(LAYERS):
        layer = {"attn_norm": vector(WIDTH, 1, 0.1), "ffn_norm": vector(WIDTH, 1, 0.1),
                 "attn_q": matrix(HEADS * D, WIDTH, 1.7), "attn_k": matrix(HEADS_KV * D, WIDTH, 1.7),
                 "attn_v": matrix(HEADS_KV * D, WIDTH), "attn_output": matrix(WIDTH, HEADS * D, 2.0),
                 "ffn_gate": matrix(HIDDEN, WIDTH), "ffn_up": matrix(HIDDEN, WIDTH), "ffn_down": matrix(WIDTH, HIDDEN)}
        if model.get("biases"):
            for name, rows in (("attn_q", HEADS * D), ("attn_k", HEADS_KV * D), ("attn_v", HEADS_KV * D)):
                layer[f"{name}.bias"] = vector(rows, 0, 0.5)
        if model.get("output_bias"):
            layer["attn_output.bias"] = vector(WIDTH, 0, 0.5)
        if model.get("norms"):
            layer["attn_q_norm"], layer["attn_k_norm"] = vector(D, 1.5, 0.2), vector(D, 1.5, 0.2)
        layers.append(layer)
    embedding = matrix(vocabulary_size, WIDTH, math.sqrt(WIDTH))
    head = matrix(vocabulary_size, WIDTH, 3.0) if model["own_head"] else embedding
    return {"embedding": embedding, "head": head, "norm": vector(WIDTH, 1, 0.1), "layers": layers}


# ---- forward pass

def llama3_divisors(model):
    """Llama 3.1: long waves are slowed down by `factor`, short ones stay, those in between are blended."""
    factor, low, high, original = model["llama3"]
    waves = 2 * np.pi * model["theta"] ** (np.arange(0, D, 2) / D)
    blend = (original / waves - low) / (high - low)
    slow = 1 / ((1 - blend) / factor + blend)
    return np.where(waves < original / high, 1.0, np.where(waves > original / low, factor, slow))


def frequencies(model):
    """(angles for one position, magnitude of the rotated rows)"""
    angles, magnitude = scaled_frequencies(model)
    return angles, magnitude * model.get("magnitude", 1.0)


def scaled_frequencies(model):
    theta = model["theta"]
    plain = theta ** (-np.arange(0, D, 2) / D)
    if "linear" in model:
        return plain / model["linear"], 1.0
    if "llama3" in model:
        return plain / llama3_divisors(model).astype(np.float32).astype(np.float64), 1.0
    if "yarn" in model:
        # Peng et al., 2023: pairs that turn more than 32 times in the original context stay, those that turn less than
        # once are interpolated, linearly in between; attention is sharpened by 0.1 ln s + 1.
        factor, original = model["yarn"]

        def pair(turns):
            return D * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low, high = max(math.floor(pair(32)), 0), min(math.ceil(pair(1)), D - 1)
        ramp = np.clip((np.arange(D // 2) - low) / max(high - low, 0.001), 0, 1)
        return plain / factor * ramp + plain * (1 - ramp), 0.1 * math.log(factor) + 1
    return plain, 1.0


def rms_norm(x, weight, epsilon, real):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True, dtype=real) + real(epsilon)) * weight


def rotate(x, positions, angles, magnitude, real):
    """Split halves: (a, b) -> (a cos - b sin, b cos + a sin)."""
    turn = positions[:, None].astype(np.float64) * angles
    cosine, sine = ((magnitude * f(turn)).astype(real)[:, None, :] for f in (np.cos, np.sin))
    a, b = x[..., :D // 2], x[..., D // 2:]
    return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], axis=-1)


def forward(model, all_weights, ids, real=np.float64, scaling=True):
    """Logits of all tokens."""
    cast = lambda x: x.astype(real)  # noqa: E731
    n, epsilon = len(ids), model.get("epsilon", 1e-5)
    angles, magnitude = frequencies(model if scaling else {"theta": model["theta"]})
    x = cast(all_weights["embedding"])[ids]
    positions = np.arange(n)
    masked = positions[None, :] > positions[:, None]
    for layer in all_weights["layers"]:
        h = rms_norm(x, cast(layer["attn_norm"]), epsilon, real)
        rows = []
        for name, heads in (("attn_q", HEADS), ("attn_k", HEADS_KV), ("attn_v", HEADS_KV)):
            y = h @ cast(layer[name]).T
            if f"{name}.bias" in layer:
                y = y + cast(layer[f"{name}.bias"])
            y = y.reshape(n, heads, D)
            if f"{name}_norm" in layer:
                y = rms_norm(y, cast(layer[f"{name}_norm"]), epsilon, real)
            rows.append(y if name == "attn_v" else rotate(y, positions, angles, magnitude, real))
        q, k, v = rows
        k, v = (np.repeat(y, HEADS // HEADS_KV, axis=1) for y in (k, v))
        s = np.einsum("ihd,jhd->hij", q, k) / real(math.sqrt(D))
        s = np.where(masked, real(-np.inf), s)
        p = np.exp(s - s.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        x = x + np.einsum("hij,jhd->ihd", p, v).reshape(n, -1) @ cast(layer["attn_output"]).T
        if "attn_output.bias" in layer:
            x = x + cast(layer["attn_output.bias"])
        h = rms_norm(x, cast(layer["ffn_norm"]), epsilon, real)
        gate = h @ cast(layer["ffn_gate"]).T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ cast(layer["ffn_up"]).T)) @ cast(layer["ffn_down"]).T
    return rms_norm(x, cast(all_weights["norm"]), epsilon, real) @ cast(all_weights["head"]).T


# ---- files

def adjacent(rows, heads):
    """Rows of split halves in the order of adjacent pairs: what llama.cpp's converter does to llama's queries and keys."""
    return rows.reshape(heads, 2, D // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def write_vocabulary(writer, kind, words):
    pieces, scores, types, merges = words
    writer.add_tokenizer_model("llama" if kind == "llama" else "gpt2")
    if kind != "llama":
        writer.add_tokenizer_pre(kind)
        writer.add_token_merges([" ".join(pair) for pair in merges])
    else:
        writer.add_token_scores(scores)
    writer.add_token_list(pieces)
    writer.add_token_types(types)
    ends = {"llama": ("<s>", "</s>"), "llama-bpe": ("<|begin_of_text|>", "<|end_of_text|>"),
            "qwen2": ("<|endoftext|>", "<|im_end|>")}[kind]
    writer.add_bos_token_id(pieces.index(ends[0]))
    writer.add_eos_token_id(pieces.index(ends[1]))
    writer.add_add_bos_token(kind != "qwen2")


def write_gguf(name, model, all_weights, words):
    arch = model["arch"]
    writer = gguf.GGUFWriter(OUT / f"{name}.gguf", arch)
    writer.add_name(name)
    writer.add_context_length(CONTEXT)
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS_KV)
    writer.add_key_length(D)
    writer.add_value_length(D)
    writer.add_layer_norm_rms_eps(model.get("epsilon", 1e-5))
    writer.add_rope_freq_base(model["theta"])
    writer.add_rope_dimension_count(D)
    if "linear" in model:
        if not model.get("untyped"):
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        if model.get("old_key"):
            writer.add_float32(f"{arch}.rope.scale_linear", model["linear"])
        else:
            writer.add_rope_scaling_factor(model["linear"])
    if "none_beside" in model:
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_rope_scaling_factor(model["none_beside"])
        writer.add_float32(f"{arch}.rope.scale_linear", model["none_beside"])
    if "magnitude" in model:
        writer.add_rope_scaling_attn_factors(model["magnitude"])
    if "yarn" in model:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(model["yarn"][0])
        writer.add_rope_scaling_orig_ctx_len(model["yarn"][1])
    if "window" in model:
        writer.add_sliding_window(model["window"])
    write_vocabulary(writer, model["tokenizer"], words)

    def half(tensor, values):
        writer.add_tensor(tensor, values.astype(np.float16))

    def single(tensor, values):
        writer.add_tensor(tensor, values.astype(np.float32))

    half("token_embd.weight", all_weights["embedding"])
    single("output_norm.weight", all_weights["norm"])
    if model["own_head"]:
        half("output.weight", all_weights["head"])
    if "llama3" in model:
        single("rope_freqs.weight", llama3_divisors(model))
    for i, layer in enumerate(all_weights["layers"]):
        for part, values in layer.items():
            if arch == "llama" and part.split(".")[0] in ("attn_q", "attn_k"):
                values = adjacent(values, HEADS if part.startswith("attn_q") else HEADS_KV)
            tensor = f"blk.{i}.{part}" + ("" if part.endswith(".bias") else ".weight")
            (half if values.ndim == 2 else single)(tensor, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def encode(model, words, text):
    """Greedy merges by rank or score; the text has no place where a pre-tokeniser matters for these merges."""
    pieces, scores, _, merges = words
    if model["tokenizer"] == "llama":
        text = "\u2581" + text.replace(" ", "\u2581")
        symbols = list(text)
        rank = {piece: -scores[i] for i, piece in enumerate(pieces) if i >= 259}
        best = lambda a, b: rank.get(a + b, math.inf)  # noqa: E731
    else:
        letters = byte_letters()
        symbols = [letters[byte] for byte in text.encode()]
        order = {pair: i for i, pair in enumerate(merges)}
        best = lambda a, b: order.get((a, b), math.inf)  # noqa: E731
    while len(symbols) > 1:
        ranks = [best(a, b) for a, b in zip(symbols, symbols[1:])]
        at = int(np.argmin(ranks))
        if ranks[at] == math.inf:
            break
        symbols[at:at + 2] = ["".join(symbols[at:at + 2])]
    ids = []
    for symbol in symbols:
        if symbol in pieces:
            ids.append(pieces.index(symbol))
        else:
            ids += [3 + byte for byte in symbol.encode()]
    bos = {"llama": ["<s>"], "llama-bpe": ["<|begin_of_text|>"], "qwen2": []}[model["tokenizer"]]
    return [pieces.index(word) for word in bos] + ids


def losses(model, all_weights, ids, begin):
    """Nats a token inside the prefill and decoded after it, over windows of the text. begin: the token that each window
    begins with, in place of its own; None leaves it."""
    prefill, decoded = [], []
    for at in range(0, len(ids) - WINDOW + 1, WINDOW):
        window = list(ids[at:at + WINDOW])
        if begin is not None:
            window[0] = begin
        rows = forward(model, all_weights, window)
        for i, row in enumerate(rows[:-1]):
            most = row.max()
            loss = most + math.log(np.exp(row - most).sum()) - row[window[i + 1]]
            (prefill if i + 1 < WINDOW - DECODE else decoded).append(loss)
    return {"prefill": float(np.mean(prefill)), "decoded": float(np.mean(decoded))}


def safetensors(tensors):
    header, data = {}, b""
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [len(data), len(data) + values.nbytes]}
        data += values.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def pack(folder, path):
    """The files of a folder, the same bytes whoever packs them."""
    with tarfile.open(path, "w:xz", preset=9) as archive:
        for one in sorted(folder.iterdir()):
            entry = archive.gettarinfo(one, one.name)
            entry.mtime, entry.mode, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0o644, 0, 0, "", ""
            with one.open("rb") as data:
                archive.addfile(entry, data)


def main():
    golden, logits, perplexity = {}, {}, {}
    for number, (name, model) in enumerate(MODELS.items()):
        for attempt in range(100):
            rng = np.random.default_rng([20241, number, attempt])
            words = vocabulary(model["tokenizer"])
            all_weights = weights(rng, model, len(words[0]))
            ids = encode(model, words, TEXT)[:TOKENS]
            exact = forward(model, all_weights, ids)
            # Greedy generation must not hang on a rounding, and must not end early.
            more, margin = list(ids), math.inf
            for _ in range(GENERATED):
                row = np.sort(forward(model, all_weights, more)[-1])
                margin = min(margin, row[-1] - row[-2])
                more.append(int(np.argmax(forward(model, all_weights, more)[-1])))
            if margin > 0.02 and all(words[2][i] in (1, 6) for i in more[len(ids):]):
                break
        else:
            raise SystemExit(f"{name}: no good weights")
        rounding = np.abs(forward(model, all_weights, ids, np.float32) - exact).max()
        unscaled = np.abs(forward(model, all_weights, ids, scaling=False) - exact)[-LOGIT_ROWS:].max()
        assert name == "qwen3-plain" or unscaled > 1e4 * rounding, (name, unscaled, rounding)
        write_gguf(name, model, all_weights, words)
        golden[name] = {"text": TEXT, "ids": ids, "generated": more[len(ids):], "rounding": float(rounding),
                        "unscaled": float(unscaled)}
        bos = None if model["tokenizer"] == "qwen2" else ids[0]
        perplexity[name] = losses(model, all_weights, ids, bos)
        logits[f"{name}.logits"] = exact[-LOGIT_ROWS:].astype(np.float32)
        print(name, len(ids), f"rounding {rounding:.2g}, without scaling {unscaled:.2g}, margin {margin:.3f}")
    (OUT / "golden.json").write_text(json.dumps(golden) + "\n", encoding="utf-8")
    (OUT / "perplexity.json").write_text(json.dumps({"window": WINDOW, "decode": DECODE, "models": perplexity}) + "\n",
                                         encoding="utf-8")
    (OUT / "golden.safetensors").write_bytes(safetensors(logits))
    pack(OUT, ARCHIVE)


if __name__ == "__main__":
    main()
