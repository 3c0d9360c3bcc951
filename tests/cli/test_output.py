"""What `attend` writes: the format, its meaning on small inputs by a softmax written here, and bit-identity."""

import json
import math
import os
import struct
import unittest

from support import SIZES, ProgramTest, Tensor, bf16_bits, bf16_value, problem

ENGINES = ("reference", "cpu-portable")
SPARSE = ("-b", "32", "-ub", "8", "--h2o-local", "3", "--h2o-heavy", "2")
F32_OUTPUT_BOUND = 1e-5  # SPEC 13: intra output against plain attention
F32_COLSUM_BOUND = 1e-4  # SPEC 13: column sums


def attention(tensors, h, i, keys, scale, softcap=0.0, sink=True):
    """One softmax over `keys`: (output row, log-sum-exp, weights). LOGIT-1..4."""
    (n, heads, d), heads_kv, dv = tensors["q"].shape, tensors["k"].shape[1], tensors["v"].shape[2]
    del n
    g = h * heads_kv // heads
    q, k, v = (tensors[name].values_cached for name in "qkv")
    logits = []
    for j in keys:
        dot = sum(q[(i * heads + h) * d + x] * k[(j * heads_kv + g) * d + x] for x in range(d)) * scale
        if softcap:
            dot = softcap * math.tanh(dot / softcap)
        if "alibi" in tensors:
            dot -= tensors["alibi"].values[h] * (i - j)
        logits.append(dot)
    z = tensors["sinks"].values[h] if sink and "sinks" in tensors else -math.inf
    m = max([*logits, z])
    total = sum(math.exp(s - m) for s in logits) + math.exp(z - m)
    weights = [math.exp(s - m) / total for s in logits]
    row = [sum(w * v[(j * heads_kv + g) * dv + x] for w, j in zip(weights, keys)) for x in range(dv)]
    return row, m + math.log(total), weights


class OutputTest(ProgramTest):
    def check_meaning(self, tensors, out, steps=(), scale=None, softcap=0.0):
        """Outputs, lse and column sums under the file's own memory sets; scores replayed bit for bit (SCORE-6).
        steps: which chunks are dense, by index."""
        for tensor in tensors.values():
            tensor.values_cached = tensor.values
        n, heads, d = tensors["q"].shape
        dv = tensors["v"].shape[2]
        scale = 1 / math.sqrt(d) if scale is None else scale
        start = out["chunk_start"].values
        chunks, _, m = out["memory"].shape
        self.assertEqual((start[0], start[-1], len(start)), (0, n, chunks + 1))
        # Rows that are all BF16 may be multiplied as such: weights rounded to 8 bits, in outputs also their sum.
        unit = 2.0 ** -8 if all(tensors[name].dtype == "BF16" for name in "qkv") else 0.0
        out_bound = F32_OUTPUT_BOUND + 2.0 * unit * max(abs(x) for x in tensors["v"].values)
        memory, inter = out["memory"].values, out["colsum_inter"].values
        intra, rows, lse = out["colsum_intra"].values, out["out"].values, out["lse"].values
        scores = [[0.0] * n for _ in range(heads)]
        for c in range(chunks):
            begin, end = start[c], start[c + 1]
            for h in range(heads):
                at = (c * heads + h) * m
                entries = memory[at:at + m]
                keys = [j for j in entries if j >= 0]
                self.assertEqual(entries, sorted(set(keys)) + [-1] * (m - len(keys)))
                self.assertTrue(all(j < begin for j in keys))
                dense = c in steps
                self.assertEqual(len(keys), 0 if dense else min(m, begin))
                self.assertTrue(all(value == 0 for value in inter[at + len(keys):at + m]))
                sums, before = [0.0] * (end - begin), [0.0] * len(keys)
                for i in range(begin, end):
                    own = list(range(0 if dense else begin, i + 1))
                    row, log_sum, _ = attention(tensors, h, i, keys + own, scale, softcap)
                    for x in range(dv):
                        self.assertAlmostEqual(rows[(i * heads + h) * dv + x], row[x], delta=out_bound)
                    self.assertAlmostEqual(lse[i * heads + h], log_sum, delta=F32_OUTPUT_BOUND)
                    if not dense:
                        for j, w in zip(own, attention(tensors, h, i, own, scale, softcap)[2]):
                            sums[j - begin] += w
                        if keys:
                            for e, w in enumerate(attention(tensors, h, i, keys, scale, softcap, sink=False)[2]):
                                before[e] += w
                for j in range(begin, end):
                    self.assertAlmostEqual(intra[h * n + j], sums[j - begin],
                                           delta=F32_COLSUM_BOUND + unit * sums[j - begin])
                    scores[h][j] = bf16_value(bf16_bits(intra[h * n + j]))
                for e, j in enumerate(keys):
                    self.assertAlmostEqual(inter[at + e], before[e], delta=F32_COLSUM_BOUND + unit * before[e])
                    total = struct.unpack("<f", struct.pack("<f", scores[h][j] + inter[at + e]))[0]
                    scores[h][j] = bf16_value(bf16_bits(total))
        self.assertEqual(out["scores"].values, [value for row in scores for value in row])


class Meaning(OutputTest):
    def test_sparse(self):
        for engine in ENGINES:
            tensors = problem(n=37)
            out, _, _ = self.attend(tensors, *SPARSE, "--engine", engine)
            self.assertEqual(out["chunk_start"].values, [0, 8, 16, 24, 32, 37])
            self.check_meaning(tensors, out)

    def test_batch_that_is_no_multiple(self):
        tensors = problem(n=30)
        out, _, error = self.attend(tensors, "-b", "12", "-ub", "8", "--h2o-local", "3", "--h2o-heavy", "2")
        self.assertEqual(out["chunk_start"].values, [0, 8, 12, 20, 24, 30])
        self.assertIn("warning: batch 12", error)
        self.check_meaning(tensors, out)

    def test_many_small_batches_in_one_call(self):
        # More batches than are handed over at a time, the last one short.
        n = 4096 + 13
        tensors = {name: Tensor("BF16", [n, 1, 1], data=bytes(2 * n)) for name in "qkv"}
        out, _, _ = self.attend(tensors, "-b", "6", "-ub", "4", "--h2o-local", "1", "--h2o-heavy", "1")
        starts = [at for batch in range(0, n, 6) for at in range(batch, min(batch + 6, n), 4)] + [n]
        self.assertEqual(out["chunk_start"].values, starts)

    def test_types_and_unaligned_data(self):
        for dtype, q_dtype in (("F16", "F16"), ("BF16", "BF16"), ("F16", "F32"), ("F32", "BF16"), ("BF16", "F16")):
            tensors = problem(n=20, dtype=dtype, q_dtype=q_dtype)
            shifted = {"a": Tensor("U8", [3], data=b"abc"), **tensors}  # every tensor stands at an odd address
            out, _, _ = self.attend(shifted, *SPARSE)
            self.check_meaning(tensors, out)
            aligned, _, _ = self.attend(tensors, *SPARSE)
            self.assertEqual(out["out"].data, aligned["out"].data)

    def test_sinks_alibi_scale_and_cap(self):
        tensors = problem(n=26, sinks=Tensor("F32", [4], [0.5, -math.inf, 2.0, -1.0]),
                          alibi=Tensor("F32", [4], [0.5, 0.25, 0.0, -0.01]))
        out, metadata, _ = self.attend(tensors, *SPARSE, "--scale", "0.7", "--softcap", "1.5")
        self.assertEqual((float(metadata["scale"]), float(metadata["softcap"])), (0.7, 1.5))
        self.check_meaning(tensors, out, scale=0.7, softcap=1.5)

    def test_turns_and_decode(self):
        # A sparse turn, two decode steps, a short (dense) turn of 5 <= S, decode, a sparse turn in two calls.
        tensors = problem(n=60)
        out, _, _ = self.attend(tensors, *SPARSE, "--steps", "p19,d1,d2,p5,d1,p8:17,p9,d15")
        self.assertEqual(out["chunk_start"].values, [0, 8, 16, 19, 20, 22, 27, 28, 36, 44, 45, 60])
        self.check_meaning(tensors, out, steps={3, 4, 5, 6, 10})

    def test_decode_first(self):
        # The turn after it is not the first of an empty session (STATE-1, STATE-3): 8 tokens run dense, 9 sparse.
        tensors = problem(n=17)
        out, _, _ = self.attend(tensors, *SPARSE, "--steps", "d9,p8")
        self.check_meaning(tensors, out, steps={0, 1})
        out, _, _ = self.attend(tensors, *SPARSE, "--steps", "d8,p9")
        self.assertEqual(out["chunk_start"].values, [0, 8, 16, 17])
        self.check_meaning(tensors, out, steps={0})

    def test_dense(self):
        for flags in (("--dense",), ("--h2o-local", "0", "--h2o-heavy", "0"), ("-ub", "1")):
            tensors = problem(n=12)
            out, metadata, _ = self.attend(tensors, *flags)
            self.assertEqual((metadata["local"], metadata["heavy"]), ("0", "0"))
            self.assertEqual(out["memory"].shape, [1, 4, 0])
            self.assertEqual(set(out["scores"].values) | set(out["colsum_intra"].values), {0.0})
            self.check_meaning(tensors, out, steps={0})

    def test_memory_larger_than_the_input(self):
        tensors = problem(n=12)
        out, metadata, _ = self.attend(tensors, "-b", "4", "-ub", "4", "--h2o-no-clamp", "--h2o-local", "20",
                                       "--h2o-heavy", "30")
        self.assertEqual(metadata["clamp"], "false")
        self.assertEqual(out["memory"].shape, [3, 4, 50])
        self.check_meaning(tensors, out)


class Format(OutputTest):
    def test_tensors(self):
        out, metadata, error = self.attend(problem(n=37), *SPARSE)
        self.assertEqual(error, "")
        self.assertEqual({name: (tensor.dtype, tensor.shape) for name, tensor in out.items()}, {
            "out": ("F32", [37, 4, 6]), "lse": ("F32", [37, 4]), "scores": ("BF16", [4, 37]),
            "chunk_start": ("I32", [6]), "memory": ("I32", [5, 4, 5]), "colsum_intra": ("F32", [4, 37]),
            "colsum_inter": ("F32", [5, 4, 5])})
        self.assertEqual(metadata, {
            "format": "headwater-attend-1", "version": metadata["version"], "engine": metadata["engine"],
            "isa": metadata["isa"], "batch": "32", "chunk": "8", "local": "3", "heavy": "2",
            "scale": f"{1 / math.sqrt(8):.17g}", "softcap": "0", "score_type": "bf16", "clamp": "true"})

    def test_effective_options(self):
        _, metadata, error = self.attend(problem(n=9), "-b", "2", "-ub", "4", "--h2o-local", "2", "--h2o-heavy", "9")
        self.assertEqual([metadata[key] for key in ("batch", "chunk", "local", "heavy")], ["4", "4", "2", "1"])
        self.assertEqual(len(error.splitlines()), 2, error)
        self.assertTrue(all(line.startswith("warning: ") for line in error.splitlines()), error)

    def test_f32_scores(self):
        out, metadata, _ = self.attend(problem(n=37), *SPARSE, "--score-type", "f32")
        self.assertEqual((out["scores"].dtype, metadata["score_type"]), ("F32", "f32"))
        last = range(32, 37)  # no later chunk reads the last one
        intra = out["colsum_intra"].values
        self.assertEqual([out["scores"].values[j] for j in last], [intra[j] for j in last])

    def test_no_trace(self):
        full, _, _ = self.attend(problem(n=37), *SPARSE)
        out, _, _ = self.attend(problem(n=37), *SPARSE, "--no-trace")
        self.assertEqual(full.keys() - out.keys(), {"memory", "colsum_inter"})
        for name, tensor in out.items():
            self.assertEqual(tensor.data, full[name].data, name)

    def test_trace_that_is_written_in_pieces(self):
        """More than 2^18 entries, which the program gathers before it writes them."""
        local, heavy, n = 40, 24, 2200
        out, _, _ = self.attend(problem(n=n), "-ub", "2", "--h2o-no-clamp", "--h2o-local", str(local), "--h2o-heavy", str(heavy))
        chunks, heads, m = out["memory"].shape
        self.assertGreater(chunks * heads * m, 1 << 18)
        memory, sums = out["memory"].values, out["colsum_inter"].values
        for c, begin in enumerate(out["chunk_start"].values[:-1]):
            count = min(begin, m)
            newest = list(range(max(0, begin - local), begin))
            for at in range(c * heads * m, (c + 1) * heads * m, m):
                entries = memory[at:at + m]
                self.assertEqual(entries[:count], sorted(set(entries[:count])), c)
                self.assertEqual(entries[count - len(newest):count], newest, c)
                self.assertEqual(entries[count:], [-1] * (m - count))
                self.assertAlmostEqual(sum(sums[at:at + m]), 2 if count else 0, delta=2 * F32_COLSUM_BOUND)  # 2 queries

    def test_size_of_elements(self):
        out, _, _ = self.attend(problem(n=37), *SPARSE)
        for tensor in out.values():
            self.assertEqual(len(tensor.data), SIZES[tensor.dtype] * math.prod(tensor.shape))


class PinnedAndDense(OutputTest):
    FLAGS = ("-b", "32", "-ub", "16", "--h2o-local", "5", "--h2o-heavy", "8")

    def test_pinned(self):
        tensors = problem(n=75)
        plain, metadata, _ = self.attend(tensors, *self.FLAGS)
        self.assertFalse({"pinned", "dense_below", "dense_layers"} & metadata.keys())
        out, metadata, _ = self.attend(tensors, *self.FLAGS, "--pinned", "6")
        self.assertEqual(metadata["pinned"], "6")
        self.assertNotEqual(out["memory"].values, plain["memory"].values)
        for chunk in range(1, 5):
            for head in range(4):
                at = (chunk * 4 + head) * 13
                self.assertEqual(out["memory"].values[at:at + 6], list(range(6)))
        self.check_meaning(tensors, out)

    def test_dense_layer_and_dense_below_are_dense(self):
        tensors = problem(n=75)
        for rule in ((), ("--select", "blocks", "--key-block", "4", "--query-block", "8"), ("--select", "window")):
            dense, _, _ = self.attend(tensors, *self.FLAGS, *rule, "--dense")
            for flags, key, value in ((("--dense-layers", "0"), "dense_layers", "0"),
                                      (("--dense-below", "76"), "dense_below", "76")):
                out, metadata, _ = self.attend(tensors, *self.FLAGS, *rule, *flags)
                self.assertEqual((metadata[key], out["chunk_start"].values), (value, [0, 75]))
                for name in ("out", "lse", "colsum_intra", "scores"):
                    self.assertEqual(out[name].data, dense[name].data, name)
                for name in {"memory", "block_sets"} & out.keys():
                    self.assertEqual(set(out[name].values) - {-1}, set(), name)
            sparse, _, _ = self.attend(tensors, *self.FLAGS, *rule)
            equal, _, _ = self.attend(tensors, *self.FLAGS, *rule, "--dense-below", "75")
            self.assertEqual(equal["out"].data, sparse["out"].data)

    def test_rows_in_8_bits(self):
        tensors = problem(n=75, d=32, dv=32)
        plain, metadata, _ = self.attend(tensors, "--dense")
        self.assertNotIn("kv_bits", metadata)
        out, metadata, _ = self.attend(tensors, "--dense", "--kv-bits", "8")
        self.assertEqual(metadata["kv_bits"], "8")
        worst = max(abs(a - b) for a, b in zip(out["out"].values, plain["out"].values))
        self.assertGreater(worst, 0)
        self.assertLess(worst, 0.1)

    def test_turns_of_a_dense_layer(self):
        tensors = problem(n=75)
        out, _, _ = self.attend(tensors, *self.FLAGS, "--dense-layers", "0", "--steps", "p19,d2,p20:54,p34")
        self.assertEqual(out["chunk_start"].values, [0, 19, 21, 41, 75])
        self.check_meaning(tensors, out, steps=range(4))
        out, _, _ = self.attend(tensors, *self.FLAGS, "--dense-below", "30", "--steps", "p19,d2,p20:54,p34")
        self.assertEqual(out["chunk_start"].values, [0, 19, 21, 37, 41, 57, 73, 75])
        self.check_meaning(tensors, out, steps={0, 1})


class Blocks(OutputTest):
    """Rule `blocks`: the tensors beside the others, and what they mean."""

    FLAGS = ("-b", "32", "-ub", "16", "--h2o-local", "5", "--h2o-heavy", "8", "--select", "blocks", "--key-block", "4",
             "--query-block", "6", "--pool", "3")

    def check_blocks(self, tensors, out, refine, dense=(), local=5, heavy=8, size=4, rows=6):
        """Sets by the votes of the file (SEL-11), outputs under these sets; chunks in `dense` have none."""
        for tensor in tensors.values():
            tensor.values_cached = tensor.values
        (n, heads, d), heads_kv, dv = tensors["q"].shape, tensors["k"].shape[1], tensors["v"].shape[2]
        starts = out["chunk_start"].values
        count, _, m = out["block_sets"].shape
        self.assertEqual((out["query_blocks"].shape, m), ([count, 2], local + heavy))
        found, block = out["query_blocks"].values, 0
        for c, (begin, end) in enumerate(zip(starts, starts[1:])):
            if c in dense:
                continue
            first = min(begin, -(-max(0, begin - local) // size) * size)  # SEL-2
            candidates = first // size if heavy > 0 else 0
            for a in range(begin, end, rows):
                self.assertEqual(found[2 * block:2 * block + 2], [a, min(a + rows, end)])
                for g in range(heads_kv):
                    keys = self.set_of(out, block, g, candidates, refine, heavy, size) + list(range(first, begin))
                    at = (block * heads_kv + g) * m
                    self.assertEqual(out["block_sets"].values[at:at + m], keys + [-1] * (m - len(keys)))
                    for h in range(g * heads // heads_kv, (g + 1) * heads // heads_kv):
                        for i in range(a, min(a + rows, end)):
                            row, log_sum, _ = attention(tensors, h, i, keys + list(range(begin, i + 1)), 1 / math.sqrt(d))
                            for x in range(dv):
                                self.assertAlmostEqual(out["out"].values[(i * heads + h) * dv + x], row[x],
                                                       delta=F32_OUTPUT_BOUND)
                            self.assertAlmostEqual(out["lse"].values[i * heads + h], log_sum, delta=F32_OUTPUT_BOUND)
                block += 1
        self.assertEqual(block, count)
        self.assertEqual(set(out["scores"].values) | set(out["colsum_intra"].values), {0.0})  # SEL-9
        self.assertEqual(out["memory"].shape, [len(starts) - 1, heads, 0])

    def set_of(self, out, block, g, candidates, refine, heavy, size):
        """SEL-6, SEL-7 from the file's votes: the kept tokens."""
        def votes(name, count):
            _, heads_kv, width = out[name].shape
            at = (block * heads_kv + g) * width
            row = out[name].values[at:at + width]
            self.assertTrue(all(math.isnan(vote) for vote in row[count:]))
            self.assertFalse(any(math.isnan(vote) for vote in row[:count]))
            return row[:count]

        def best(values, count):
            return sorted(sorted(range(len(values)), key=lambda i: (-values[i], i))[:count])

        of_blocks = votes("block_votes", candidates)
        self.assertTrue(all(vote <= 0 for vote in of_blocks))
        self.assertTrue(candidates == 0 or max(of_blocks) == 0)
        chosen = best(of_blocks, refine * heavy // size)
        tokens = [b * size + x for b in chosen for x in range(size)]
        if refine == 1 or len(tokens) <= heavy:
            votes("token_votes", 0)
            return tokens
        of_tokens = votes("token_votes", len(tokens))
        self.assertTrue(all(0 <= vote <= 1 for vote in of_tokens))
        return [tokens[i] for i in best(of_tokens, heavy)]

    def test_sets_votes_and_outputs(self):
        for engine in ENGINES:
            for refine in (1, 2, 3):
                tensors = problem(n=75)
                out, _, error = self.attend(tensors, *self.FLAGS, "--refine", str(refine), "--engine", engine)
                self.assertEqual(error, "")
                self.check_blocks(tensors, out, refine)

    def test_turns_and_decode(self):
        tensors = problem(n=75)
        out, _, _ = self.attend(tensors, *self.FLAGS, "--steps", "p19,d1,d2,p5,d1,p8:40,p32,d7")
        self.assertEqual(out["chunk_start"].values, [0, 16, 19, 20, 22, 27, 28, 36, 52, 68, 75])
        self.check_blocks(tensors, out, 2, dense={2, 3, 4, 5, 9})

    def test_tensors(self):
        out, metadata, _ = self.attend(problem(n=75), *self.FLAGS)
        # Chunks begin at 0, 16, 32, 48, 64: the last votes on 15 key blocks.
        self.assertEqual({name: (tensor.dtype, tensor.shape) for name, tensor in out.items()}, {
            "out": ("F32", [75, 4, 6]), "lse": ("F32", [75, 4]), "scores": ("BF16", [4, 75]),
            "chunk_start": ("I32", [6]), "memory": ("I32", [5, 4, 0]), "colsum_intra": ("F32", [4, 75]),
            "colsum_inter": ("F32", [5, 4, 0]), "query_blocks": ("I32", [14, 2]), "block_sets": ("I32", [14, 2, 13]),
            "block_votes": ("F32", [14, 2, 15]), "token_votes": ("F32", [14, 2, 16])})
        self.assertEqual({key: metadata[key] for key in ("select", "key_block", "query_block", "pool", "refine")},
                         {"select": "blocks", "key_block": "4", "query_block": "6", "pool": "3", "refine": "2"})
        short, _, _ = self.attend(problem(n=75), *self.FLAGS, "--no-trace")
        self.assertEqual(out.keys() - short.keys(), {"memory", "colsum_inter", "query_blocks", "block_sets", "block_votes",
                                                     "token_votes"})
        for name, tensor in short.items():
            self.assertEqual(tensor.data, out[name].data, name)

    def test_dense(self):
        tensors = problem(n=40)
        out, metadata, _ = self.attend(tensors, *self.FLAGS, "--dense")
        self.assertEqual((out["query_blocks"].shape, out["block_sets"].shape), ([0, 2], [0, 2, 0]))
        self.assertEqual((metadata["local"], metadata["heavy"]), ("0", "0"))
        self.check_meaning(tensors, out, steps={0})

    def test_clamp_keeps_whole_key_blocks(self):
        tensors = problem(n=60)
        out, metadata, error = self.attend(tensors, *self.FLAGS, "--h2o-heavy", "40")
        self.assertEqual((metadata["local"], metadata["heavy"]), ("5", "8"))
        self.assertIn("clamped to local 5, heavy 8", error)
        self.check_blocks(tensors, out, 2)

    def test_window(self):
        tensors = problem(n=60)
        flags = ("-b", "32", "-ub", "16", "--h2o-local", "5")
        out, metadata, _ = self.attend(tensors, *flags, "--h2o-heavy", "6", "--select", "window")
        self.assertEqual((metadata["select"], metadata["local"], metadata["heavy"]), ("window", "11", "0"))
        self.assertFalse({"key_block", "query_block", "pool", "refine"} & metadata.keys())
        self.assertEqual((out["block_votes"].shape, out["token_votes"].shape), ([4, 2, 0], [4, 2, 0]))
        self.check_blocks(tensors, out, 1, local=11, heavy=0, size=1, rows=16)
        h2o, _, _ = self.attend(tensors, *flags, "--h2o-local", "11", "--h2o-heavy", "0")
        for chunk in range(4):  # each head's set of h2o is that of the window
            self.assertEqual(h2o["memory"].values[chunk * 44:chunk * 44 + 11], out["block_sets"].values[chunk * 22:chunk * 22 + 11])

    def test_window_with_pinned_tokens(self):
        """Also with so many keys that not all are searched (SEL-12)."""
        for n, chunk, local, pinned in ((60, 16, 5, 4), (60, 16, 5, 11), (2900, 256, 60, 5)):
            tensors = problem(n=n, heads=2, heads_kv=1, d=4, dv=4)
            flags = ("-ub", str(chunk), "--h2o-local", str(local), "--h2o-heavy", "6", "--pinned", str(pinned))
            out, metadata, error = self.attend(tensors, *flags, "--select", "window")
            newest = local + 6 - pinned
            self.assertEqual((metadata["select"], metadata["local"], metadata["heavy"], metadata["pinned"], error),
                             ("window", str(newest), str(pinned), str(pinned), ""))
            self.assertFalse({"key_block", "query_block", "pool", "refine"} & metadata.keys())
            starts, m = out["chunk_start"].values, local + 6
            self.assertEqual(out["block_sets"].shape, [len(starts) - 1, 1, m])
            sets = out["block_sets"].values
            for c, begin in enumerate(starts[:-1]):
                first = max(0, begin - newest)
                keys = [*range(min(pinned, first)), *range(first, begin)]
                self.assertEqual(sets[c * m:(c + 1) * m], keys + [-1] * (m - len(keys)))
            # The heavy hitters of h2o are all pinned: the same sets, and the same softmax.
            h2o, _, _ = self.attend(tensors, "-ub", str(chunk), "--h2o-local", str(newest), "--h2o-heavy", str(pinned),
                                    "--pinned", str(pinned))
            for a, b in zip(out["out"].values, h2o["out"].values):
                self.assertAlmostEqual(a, b, delta=F32_OUTPUT_BOUND)

    def test_pinned(self):
        tensors = problem(n=75)
        plain, _, _ = self.attend(tensors, *self.FLAGS)
        out, metadata, _ = self.attend(tensors, *self.FLAGS, "--pinned", "4")
        self.assertEqual(metadata["pinned"], "4")
        self.assertNotEqual(out["block_sets"].values, plain["block_sets"].values)
        rows, m = out["query_blocks"].values[::2], 13
        for place in range(len(rows) * 2):
            if rows[place // 2] >= 16:  # Local of the second chunk begins after the pinned tokens
                self.assertEqual(out["block_sets"].values[place * m:place * m + 4], [0, 1, 2, 3])

    def test_trace_that_is_written_in_pieces(self):
        """More than 2^18 entries and votes, which the program gathers before it writes them."""
        n, local, heavy = 1500, 16, 48
        out, _, _ = self.attend(problem(n=n), "-ub", "64", "--h2o-local", str(local), "--h2o-heavy", "40", "--h2o-no-clamp",
                                "--h2o-heavy", str(heavy), "--select", "blocks", "--key-block", "2", "--query-block", "4")
        for name in ("block_sets", "block_votes"):
            self.assertGreater(len(out[name].values), 1 << 15)
        self.assertGreater(len(out["block_votes"].values), 1 << 18)
        starts = out["chunk_start"].values
        for block in range(0, len(out["query_blocks"].values) // 2, 16):
            begin = max(start for start in starts if start <= out["query_blocks"].values[2 * block])
            first = max(0, begin - local)
            for g in range(2):
                at = (block * 2 + g) * (local + heavy)
                keys = self.set_of(out, block, g, first // 2, 2, heavy, 2) + list(range(first, begin))
                self.assertEqual(out["block_sets"].values[at:at + local + heavy], keys + [-1] * (local + heavy - len(keys)))


class Sketches(OutputTest):
    """Rule `sketches`: the tensors beside the others. What they mean is replayed by golden/."""

    FLAGS = ("-b", "32", "-ub", "16", "--h2o-local", "5", "--h2o-heavy", "8", "--select", "sketches", "--query-block", "6",
             "--pinned", "3", "--least-weight", "0.5", "--engine", "reference")

    def test_tensors(self):
        source = self.put(problem(n=75))
        done = self.run_program("attend", source, "-o", self.path("o"), *self.FLAGS, "--json")
        out, metadata, _ = self.attend(source, *self.FLAGS)
        # Chunks begin at 0, 16, 32, 48, 64: the last votes on the tokens from 3 to 58.
        self.assertEqual({name: (tensor.dtype, tensor.shape) for name, tensor in out.items()}, {
            "out": ("F32", [75, 4, 6]), "lse": ("F32", [75, 4]), "scores": ("BF16", [4, 75]),
            "chunk_start": ("I32", [6]), "memory": ("I32", [5, 4, 0]), "colsum_intra": ("F32", [4, 75]),
            "colsum_inter": ("F32", [5, 4, 0]), "query_blocks": ("I32", [14, 2]), "block_sets": ("I32", [14, 2, 13]),
            "token_votes": ("F32", [14, 2, 56])})
        self.assertEqual({key: metadata.get(key) for key in ("select", "query_block", "least_weight", "pinned", "pool")},
                         {"select": "sketches", "query_block": "6", "least_weight": "0.5", "pinned": "3", "pool": None})
        # Pairs are those of the sets that there are, by the mean over the heads.
        rows, sets = out["query_blocks"].values, out["block_sets"].values
        counts = [sum(position >= 0 for position in sets[at:at + 13]) for at in range(0, len(sets), 13)]
        self.assertGreater(len(set(counts[-4:])), 1)  # of one chunk
        read = sum((rows[s | 1] - rows[s & ~1]) * count for s, count in enumerate(counts)) // 2
        self.assertEqual(json.loads(done.stdout)["pairs"], 4 * 136 + 66 + read)


class SameBytes(OutputTest):
    """NUM-3, SCHED-2, PLAN-2: the whole file is the same."""

    RULE = ()

    def setUp(self):
        super().setUp()
        self.input = self.put(problem(n=203, d=16, dv=16, dtype="BF16"))
        self.flags = ("-b", "64", "-ub", "16", "--h2o-local", "5", "--h2o-heavy", "6", *self.RULE)

    def test_threads_runs_and_schedules(self):
        for engine in ENGINES:
            flags = (*self.flags, "--engine", engine)
            expected = self.output_bytes(self.input, *flags, "-t", "1")
            for more in (("-t", "1"), ("-t", "2"), ("-t", "3"), ("-t", "7"), (), ("--schedule", "layer-major"),
                         ("--schedule", "chunk-major"), ("--schedule", "chunk", "-t", "3"),
                         ("--schedule", "layer", "-t", "2"), ("--repeat", "3"), ("--json",), ("--steps", "p203")):
                self.assertEqual(self.output_bytes(self.input, *flags, *more), expected, (engine, more))

    def test_call_cuts(self):
        for engine in ENGINES:
            flags = (*self.flags, "--engine", engine)
            expected = self.output_bytes(self.input, *flags)
            for steps in ("p16:203,p187", "p64:203,p139", "p32:203,p16,p80,p75", "p160:203,p43:203",
                          ",".join(["p16:203"] + ["p16"] * 11 + ["p11"])):
                self.assertEqual(self.output_bytes(self.input, *flags, "--steps", steps), expected, (engine, steps))

    def test_environment(self):
        expected = self.output_bytes(self.input, *self.flags)
        for env in ({"OMP_NUM_THREADS": "3"}, {"LC_ALL": "de_DE.UTF-8"}, {"TZ": "Asia/Tokyo"}):
            self.assertEqual(self.output_bytes(self.input, *self.flags, env=env), expected, env)

    def test_name_of_the_input(self):
        expected = self.output_bytes(self.input, *self.flags)
        with open(self.input, "rb") as file:
            other = self.put(file.read(), "other name")
        self.assertEqual(self.output_bytes(other, *self.flags), expected)
        os.symlink(other, self.path("link"))
        self.assertEqual(self.output_bytes(self.path("link"), *self.flags), expected)


class SameBytesOfBlocks(SameBytes):
    RULE = ("--select", "blocks", "--key-block", "2", "--query-block", "8")


class SameBytesOfWindow(SameBytes):
    RULE = ("--select", "window")


if __name__ == "__main__":
    unittest.main()
