"""An independent model: ~/.cache/headwater-peers/venv/bin/python bench/peers/torch_perplexity.py MODEL.gguf TEXT [OPTION...]

The specification's chunked sparse prefill and dense decode around a Qwen3 forward pass, in PyTorch and from the text of
docs/spec.md alone: F32, the keys and values of a layer rounded to F16 where they are stored, scores in BF16. Prints the
losses and divergences that `headwater perplexity` prints, and with --program those of that program beside them, with the
difference of perplexity in per cent; exit status 1 where one is above half a per cent. Needs the PyPI packages torch, gguf and regex,
and takes minutes.
"""

import argparse
import json
import math
import subprocess
import sys

import gguf
import numpy as np
import regex
import torch
import torch.nn.functional as F

LIMIT = 0.5  # per cent of perplexity


class File:
    def __init__(self, path):
        self.reader = gguf.GGUFReader(path)
        self.tensors = {tensor.name: tensor for tensor in self.reader.tensors}

    def value(self, key):
        return self.reader.fields[key].contents()

    def tensor(self, name):
        stored = self.tensors[name]
        return torch.from_numpy(gguf.quants.dequantize(stored.data, stored.tensor_type).astype(np.float32))


def tokens(file, text):
    """Byte-level BPE by rank, on the words of Qwen2's pattern."""
    pattern = regex.compile(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
                            r"\s*[\r\n]+|\s+(?!\S)|\s+")
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    letters = [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
    ids = {piece: i for i, piece in enumerate(file.value("tokenizer.ggml.tokens"))}
    ranks = {tuple(pair.split(" ")): i for i, pair in enumerate(file.value("tokenizer.ggml.merges"))}
    found, known = [], {}
    for word in pattern.findall(text):
        if word not in known:
            symbols = [letters[byte] for byte in word.encode()]
            while len(symbols) > 1:
                best = min(range(len(symbols) - 1), key=lambda i: ranks.get((symbols[i], symbols[i + 1]), math.inf))
                if (symbols[best], symbols[best + 1]) not in ranks:
                    break
                symbols[best:best + 2] = [symbols[best] + symbols[best + 1]]
            known[word] = [ids[symbol] for symbol in symbols]
        found += known[word]
    return found


class Model:
    """Qwen3: RMSNorm, QK-norm, rotation by split halves, SwiGLU, tied or own head."""

    def __init__(self, file):
        value = lambda key: file.value(f"qwen3.{key}")  # noqa: E731
        if file.value("general.architecture") != "qwen3":
            sys.exit("torch_perplexity: only qwen3 is written here")
        self.layers, self.heads, self.heads_kv = (value(key) for key in ("block_count", "attention.head_count",
                                                                        "attention.head_count_kv"))
        self.d, self.epsilon = value("attention.key_length"), value("attention.layer_norm_rms_epsilon")
        self.frequencies = float(value("rope.freq_base")) ** (-torch.arange(0, self.d, 2, dtype=torch.float64) / self.d)
        self.weight = {name.removesuffix(".weight"): file.tensor(name) for name in file.tensors}
        self.head = self.weight.get("output", self.weight["token_embd"])

    def norm(self, x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon) * self.weight[name]

    def rotate(self, x, first):
        """x [n, heads, d] at global positions first, first + 1, ... (ROPE-1)."""
        angles = torch.arange(first, first + len(x), dtype=torch.float64)[:, None] * self.frequencies
        cosine, sine = (f(angles).float()[:, None] for f in (torch.cos, torch.sin))
        a, b = x.chunk(2, -1)
        return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)

    def run(self, ids, first, attend):
        """Logits of ids at positions first ...; attend(layer, q, k, v) -> rows [n, heads, d]."""
        x = self.weight["token_embd"][ids]
        for layer in range(self.layers):
            at, n = f"blk.{layer}.", len(ids)
            h = self.norm(x, at + "attn_norm")
            q, k, v = ((h @ self.weight[f"{at}attn_{part}"].T).view(n, -1, self.d) for part in "qkv")
            q = self.rotate(self.norm(q, at + "attn_q_norm"), first)
            k = self.rotate(self.norm(k, at + "attn_k_norm"), first)
            x = x + attend(layer, q, k, v).reshape(n, -1) @ self.weight[at + "attn_output"].T
            h = self.norm(x, at + "ffn_norm")
            x = x + (F.silu(h @ self.weight[at + "ffn_gate"].T) * (h @ self.weight[at + "ffn_up"].T)) @ \
                self.weight[at + "ffn_down"].T
        return self.norm(x, "output_norm") @ self.head.T


class Cache:
    """Stored rows, scores and memory sets of all layers (STATE-6, SCORE-1, MEM-4)."""

    def __init__(self, model, capacity, local, heavy):
        shape = (model.layers, model.heads, capacity)
        self.k = torch.zeros(model.layers, capacity, model.heads_kv, model.d)
        self.v = torch.zeros_like(self.k)
        self.scores = torch.zeros(shape, dtype=torch.bfloat16)
        self.sets = [torch.zeros(model.heads, 0, dtype=torch.int64) for _ in range(model.layers)]
        self.group, self.scale = model.heads // model.heads_kv, 1 / math.sqrt(model.d)
        self.local, self.heavy, self.built = local, heavy, [0] * model.layers

    def store(self, layer, first, k, v):
        self.k[layer, first:first + len(k)] = k.half().float()
        self.v[layer, first:first + len(v)] = v.half().float()

    def logits(self, layer, q, rows):
        """[heads, n, rows] (LOGIT-1); rows [heads, m] or a slice."""
        k = self.k[layer, rows] if isinstance(rows, slice) else None
        if k is not None:
            k = k.repeat_interleave(self.group, 1).permute(1, 0, 2)
        else:
            k = torch.stack([self.k[layer, rows[h], h // self.group] for h in range(len(rows))])
        return self.scale * q.permute(1, 0, 2) @ k.transpose(1, 2)

    def values(self, layer, rows):
        if isinstance(rows, slice):
            return self.v[layer, rows].repeat_interleave(self.group, 1).permute(1, 0, 2)
        return torch.stack([self.v[layer, rows[h], h // self.group] for h in range(len(rows))])

    def build(self, layer, end):
        """MEM-1..5, one head after the other."""
        local = torch.arange(max(0, end - self.local), end)
        sets = []
        for head in range(self.scores.shape[1]):
            candidates = torch.cat([self.sets[layer][head], torch.arange(self.built[layer], end)])
            candidates = candidates[candidates < end - len(local)].unique()
            # Higher score first, then the lower position: a stable sort of ascending positions.
            order = torch.sort(self.scores[layer, head, candidates].float(), descending=True, stable=True).indices
            kept = candidates[order[:self.heavy]]
            sets.append(torch.cat([kept.sort().values, local]))
        self.sets[layer], self.built[layer] = torch.stack(sets), end

    def dense(self, first, block=512):
        """Causal attention over everything (DEC-1, CFG-2)."""
        def attend(layer, q, k, v):
            self.store(layer, first, k, v)
            out = []
            for start in range(0, len(q), block):
                part = q[start:start + block]
                end = first + start + len(part)
                s = self.logits(layer, part, slice(0, end))
                seen = torch.arange(end)[None] <= torch.arange(first + start, end)[:, None]
                p = s.masked_fill(~seen, -math.inf).softmax(-1)
                out.append((p @ self.values(layer, slice(0, end))).permute(1, 0, 2))
            return torch.cat(out)
        return attend

    def chunk(self, first):
        """One sparse chunk: INTRA, MEM, INTER, SCORE, FUSE. One softmax over the union gives the output."""
        def attend(layer, q, k, v):
            self.store(layer, first, k, v)
            n = len(q)
            own = slice(first, first + n)
            intra = self.logits(layer, q, own).masked_fill(torch.triu(torch.ones(n, n, dtype=torch.bool), 1), -math.inf)
            memory = None
            if first > 0:
                self.build(layer, first)
                memory = self.sets[layer]
                inter = self.logits(layer, q, memory)
                # SCORE-3: the softmax over the memory set alone, one rounding for a chunk.
                sums = inter.double().softmax(-1).sum(1).float()
                old = self.scores[layer].gather(1, memory).float()
                self.scores[layer].scatter_(1, memory, (old + sums).bfloat16())
            # SCORE-2
            self.scores[layer, :, own] = intra.double().softmax(-1).sum(1).float().bfloat16()
            if memory is None:
                return (intra.softmax(-1) @ self.values(layer, own)).permute(1, 0, 2)
            p = torch.cat([intra, inter], -1).softmax(-1)
            values = torch.cat([self.values(layer, own), self.values(layer, memory)], 1)
            return (p @ values).permute(1, 0, 2)
        return attend


def predictions(model, ids, options, dense):
    """Log-probabilities [n, vocabulary] of the token after each position: a prefill turn, then one decode step."""
    ids = torch.tensor(ids)
    n, prefill = len(ids), len(ids) - options.decode
    cache = Cache(model, n, options.local, options.heavy)
    step = prefill if dense else options.chunk
    found = [model.run(ids[first:min(first + step, prefill)], first, cache.dense(first) if dense else cache.chunk(first))
             for first in range(0, prefill, step)]
    found.append(model.run(ids[prefill:], prefill, cache.dense(prefill)))
    return torch.cat(found).double().log_softmax(-1)


def figures(dense, sparse, ids, options):
    """(kind, part, name) -> value, as `headwater perplexity --json` has them."""
    prefill = len(ids) - options.decode
    found = {}
    for kind, rows in (("dense", dense), ("sparse", sparse)):
        losses = F.nll_loss(rows[:-1], torch.tensor(ids[1:]), reduction="none")
        found[kind, "prefill", "nll"] = losses[:prefill - 1].mean().item()
        found[kind, "decoded", "nll"] = losses[prefill - 1:].mean().item()
    kl = (dense.exp() * (dense - sparse)).sum(-1)
    same = (dense.argmax(-1) == sparse.argmax(-1)).double()
    for part, rows in (("prefill", slice(options.chunk, prefill)), ("decoded", slice(prefill, None))):
        found["divergence", part, "kl"] = kl[rows].mean().item()
        found["divergence", part, "rank1"] = same[rows].mean().item()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--window", type=int, default=4096)
    parser.add_argument("--decode", type=int, default=256)
    parser.add_argument("--chunk", type=int, default=1024)
    parser.add_argument("--local", type=int, default=256)
    parser.add_argument("--heavy", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--program", help="headwater, to compare with")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    file = File(options.model)
    with open(options.text, encoding="utf-8") as text:
        ids = tokens(file, text.read())[:options.window]
    model = Model(file)
    with torch.inference_mode():
        found = figures(*(predictions(model, ids, options, dense) for dense in (True, False)), ids, options)
    got = None
    if options.program:
        done = subprocess.run([options.program, "perplexity", "-m", options.model, "-f", options.text, "--json",
                               *(str(word) for pair in (("--window", options.window), ("--decode", options.decode),
                                                        ("-ub", options.chunk), ("--h2o-local", options.local),
                                                        ("--h2o-heavy", options.heavy), ("-t", options.threads))
                                 for word in pair)], capture_output=True, check=True)
        got = json.loads(done.stdout)
    worst = 0.0
    for (kind, part, name), value in found.items():
        line = f"{len(ids)} tokens, {kind} {part} {name}: {value:.4f}"
        if got:
            line += f", headwater {got[kind][part][name]:.4f}"
            if name == "nll":
                change = 100 * math.expm1(got[kind][part][name] - value)
                worst = max(worst, abs(change))
                line += f", perplexity {change:+.3f} %"
        print(line, flush=True)
    return 1 if worst > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
