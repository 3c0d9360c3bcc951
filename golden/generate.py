"""Makes the golden vectors: run by hand, output committed. `python3 generate.py` rewrites vectors/ and manifest.json.

Every vector is one small problem with what the numpy oracle says about it and, next to each toleranced value, the
error that SPEC 13 grants an engine in float32. Seeds are searched until no decision (rounding of a score, order of
two candidates) is closer than MARGIN to another result, so that scores and memory sets can be compared exactly.
"""

import hashlib
import json
import pathlib
from dataclasses import replace

import numpy as np

import oracle
import tensors

HERE = pathlib.Path(__file__).resolve().parent
UNIT_BF16 = 2.0**-8
MARGIN = 4e-6  # float32 column sums of these sizes err by less than a tenth of this
VOTE_MARGIN = 1.0  # of the errors that are granted to two votes next to a decision together


def problem(rng, n, heads, kv_heads, d, dv, spread=1.0):
    q = (rng.normal(size=(n, heads, d)) * spread).astype(np.float32)
    k = rng.normal(size=(n, kv_heads, d)).astype(np.float32)
    v = rng.normal(size=(n, kv_heads, dv)).astype(np.float32)
    return q, k, v


def ramp(low, high, heads):
    return np.linspace(low, high, heads).astype(np.float32)


BLOCKS = {"select": "blocks", "key_block": 4, "query_block": 8, "pool": 4, "refine": 2}

# name, what a bug it catches would be, shape (n, heads, kv heads, d, dv), element types (q, kv), options, steps
CASES = [
    ("one-chunk", "a chunk without memory is not plain causal attention", (20, 2, 1, 8, 8), ("F32", "F32"),
     dict(chunk=32, local=4, heavy=4), None),
    ("three-chunks", "memory read too early, too late or not at all", (48, 2, 2, 8, 8), ("F32", "F32"),
     dict(chunk=16, local=4, heavy=5), None),
    ("one-token-chunk", "a prompt of kS+1 tokens ends in a decode step (STATE-2)", (33, 2, 1, 8, 4), ("F32", "F32"),
     dict(chunk=16, local=3, heavy=3), None),
    ("ragged-batches", "chunks not restarted at each batch (PLAN-2)", (50, 1, 1, 6, 6), ("F32", "F32"),
     dict(batch=21, chunk=8, local=3, heavy=2), None),
    ("grouped-heads", "query head h reads the wrong key/value head (LOGIT-1)", (40, 6, 2, 8, 8), ("F32", "F32"),
     dict(chunk=16, local=2, heavy=4), None),
    ("bf16-rows", "rows rounded twice or read in the wrong type", (40, 2, 1, 16, 16), ("BF16", "BF16"),
     dict(chunk=16, local=4, heavy=4), None),
    ("mixed-types", "Q read in the type of K (STATE-6)", (40, 2, 1, 16, 8), ("F16", "BF16"),
     dict(chunk=16, local=4, heavy=4), None),
    ("soft-cap", "cap applied before scale or to the sink (LOGIT-2)", (36, 2, 1, 8, 8), ("F32", "F32"),
     dict(chunk=16, local=3, heavy=3, softcap=1.5, scale=0.9), None),
    ("alibi", "bias by local instead of global positions (LOGIT-3)", (40, 3, 1, 8, 8), ("F32", "F32"),
     dict(chunk=16, local=2, heavy=4, alibi=(0.01, 0.2)), None),
    ("sinks", "sink missing, twice, or in the inter pass (LOGIT-4)", (40, 3, 1, 8, 8), ("F32", "F32"),
     dict(chunk=16, local=2, heavy=4, sinks=(-1.0, 3.0)), None),
    ("local-only", "heavy tokens although H = 0", (40, 2, 1, 8, 8), ("F32", "F32"),
     dict(chunk=8, local=5, heavy=0), None),
    ("heavy-only", "local tokens although L = 0", (40, 2, 1, 8, 8), ("F32", "F32"),
     dict(chunk=8, local=0, heavy=5), None),
    ("no-clamp", "M >= S clamped although it must not be (CFG-3)", (40, 2, 1, 8, 8), ("F32", "F32"),
     dict(chunk=4, local=6, heavy=7, clamp=False), None),
    ("clamped", "clamp takes from L before H, or leaves M = S (CFG-3)", (40, 2, 1, 8, 8), ("F32", "F32"),
     dict(chunk=8, local=5, heavy=20), None),
    ("f32-scores", "scores rounded to BF16 although F32 was asked for (SCORE-5)", (48, 2, 1, 8, 8), ("F32", "F32"),
     dict(chunk=8, local=2, heavy=4, score_type="f32"), None),
    ("turns", "second turn: mode by its own length, decoded tokens as candidates (STATE-3, MEM-5)",
     (70, 2, 1, 8, 8), ("F32", "F32"), dict(chunk=12, local=3, heavy=4),
     [("p", 24, 26), ("p", 2, None), ("d", 1), ("d", 3), ("p", 12, None), ("d", 1), ("p", 27, None)]),
    ("decode-first", "a prefill after decoded tokens is no first turn (STATE-3)", (40, 2, 1, 8, 8), ("F32", "F32"),
     dict(chunk=12, local=3, heavy=4), [("d", 2), ("p", 12, None), ("d", 1), ("p", 25, None)]),
    ("dense", "column sums or scores kept by a dense prefill (CFG-2)", (30, 2, 1, 8, 8), ("F32", "F32"),
     dict(chunk=8, dense=True), None),
    ("survivor", "the previous set is no candidate: an early heavy token is lost (MEM-2)", (64, 1, 1, 8, 8),
     ("F32", "F32"), dict(chunk=8, local=1, heavy=2), None),
    ("blocks-one-stage", "tokens voted on although R = 1, or another order of blocks (SEL-6, SEL-7)", (48, 2, 1, 8, 8),
     ("F32", "F32"), BLOCKS | dict(chunk=16, local=4, heavy=8, refine=1), None),
    ("blocks-two-stages", "tokens kept by other than the largest weight of a pool, or from other blocks (SEL-7)",
     (64, 2, 1, 8, 8), ("F32", "F32"), BLOCKS | dict(chunk=16, local=5, heavy=8, pool=2), None),
    ("blocks-grouped-heads", "a set of other than the key/value head's query heads, or a sink among the votes (SEL-4)",
     (48, 6, 2, 12, 4), ("F32", "F32"), BLOCKS | dict(chunk=16, local=6, heavy=8, sinks=(-1.0, 3.0)), None),
    ("blocks-odd-sizes", "a short pool, query block or chunk, or blocks that do not end with a chunk (SEL-2, SEL-4)",
     (61, 2, 1, 6, 6), ("F32", "F32"),
     dict(select="blocks", batch=29, chunk=13, local=5, heavy=6, key_block=3, query_block=10, pool=5, refine=3), None),
    ("blocks-cap-and-slopes", "cap or slope left out of votes, or at another row or key than the last (SEL-5)",
     (48, 3, 1, 8, 8), ("F32", "F32"),
     BLOCKS | dict(chunk=16, local=4, heavy=8, softcap=1.5, scale=0.9, alibi=(0.01, 0.2)), None),
    ("blocks-turns", "later turns: summaries not kept up, decoded rows or those of dense turns no candidates (SEL-9)",
     (70, 2, 1, 8, 8), ("F32", "F32"), BLOCKS | dict(chunk=12, local=3, heavy=8),
     [("p", 24, 26), ("p", 2, None), ("d", 1), ("d", 3), ("p", 12, None), ("d", 1), ("p", 27, None)]),
    ("blocks-clamped", "H' is not rounded down to whole key blocks (SEL-1)", (40, 2, 1, 8, 8), ("F32", "F32"),
     BLOCKS | dict(chunk=16, local=5, heavy=20), None),
    ("blocks-no-heavy", "candidates although H = 0 (SEL-2)", (40, 2, 1, 8, 8), ("F32", "F32"),
     BLOCKS | dict(chunk=8, local=6, heavy=0), None),
    ("blocks-bf16-rows", "votes by rows of another type than the stored ones", (44, 2, 1, 16, 16), ("BF16", "BF16"),
     BLOCKS | dict(chunk=16, local=4, heavy=8, query_block=16, pool=16, refine=1), None),
    ("blocks-f16-rows", "Q read in the type of K by votes", (44, 2, 1, 16, 8), ("F32", "F16"),
     BLOCKS | dict(chunk=16, local=4, heavy=8, refine=1), None),
    ("blocks-levels", "all of more than 2048 candidates estimated, or others than those of the best regions (SEL-12)",
     (2059, 1, 1, 2, 1), ("F32", "F32"),
     dict(select="blocks", chunk=2056, local=2, heavy=4, key_block=1, query_block=2056, pool=2, refine=2), None),
    ("window", "a window that is not the newest L + H tokens", (40, 2, 1, 8, 8), ("F32", "F32"),
     dict(select="window", chunk=8, local=3, heavy=2), None),
    ("pinned", "a pinned token that is dropped, at once or by a later set, or one too few or too many (MEM-7)",
     (64, 2, 1, 8, 8), ("F32", "F32"), dict(chunk=8, local=2, heavy=5, pinned=3), None),
    ("pinned-all", "a token chosen by its score although A = H (MEM-7)", (56, 3, 1, 8, 8), ("F32", "F32"),
     dict(chunk=8, local=0, heavy=4, pinned=4, score_type="f32"), None),
    ("pinned-in-local", "a pinned token that takes a place among the heavy ones while it is in Local (MEM-7)",
     (36, 2, 1, 8, 8), ("F32", "F32"), dict(chunk=4, local=6, heavy=4, pinned=3, clamp=False), None),
    ("pinned-clamped", "A above the clamped H (CFG-5)", (40, 2, 1, 8, 8), ("F32", "F32"),
     dict(chunk=8, local=5, heavy=20, pinned=20), None),
    ("pinned-turns", "pinned tokens forgotten by dense turns, decode steps or a later turn (MEM-7, MEM-5)",
     (70, 2, 1, 8, 8), ("F32", "F32"), dict(chunk=12, local=3, heavy=4, pinned=2),
     [("p", 24, 26), ("p", 2, None), ("d", 1), ("d", 3), ("p", 12, None), ("d", 1), ("p", 27, None)]),
    ("blocks-pinned-one-stage", "pinned blocks by their votes (SEL-6, MEM-7)", (64, 2, 1, 8, 8), ("F32", "F32"),
     BLOCKS | dict(chunk=16, local=4, heavy=12, pinned=8, refine=1), None),
    ("blocks-pinned", "pinned blocks kept by the first stage, their tokens dropped by the second (SEL-7, MEM-7)",
     (70, 4, 2, 8, 8), ("F32", "F32"), BLOCKS | dict(chunk=16, local=5, heavy=8, pinned=4, pool=2),
     [("p", 33, None), ("d", 1), ("p", 36, None)]),
    ("blocks-pinned-levels", "a pinned block of a region that is not searched is not kept (SEL-12, MEM-7)",
     (2059, 1, 1, 2, 1), ("F32", "F32"),
     dict(select="blocks", chunk=2056, local=2, heavy=6, key_block=1, query_block=2056, pool=2, refine=2, pinned=3),
     None),
    ("window-pinned", "pinned tokens beside the window instead of in its place", (40, 2, 1, 8, 8), ("F32", "F32"),
     dict(select="window", chunk=8, local=3, heavy=2, pinned=2), None),
    ("dense-below", "turns of D tokens dense, shorter ones sparse, or another length than the turn's (STATE-3)",
     (90, 2, 1, 8, 8), ("F32", "F32"), dict(chunk=8, local=2, heavy=4, dense_below=17),
     [("p", 16, None), ("d", 1), ("p", 17, None), ("d", 1), ("p", 9, 18), ("p", 9, None), ("d", 1), ("p", 12, 16),
      ("p", 24, None)]),
    ("dense-below-first-turn", "a first turn that is sparse although it is short (STATE-3)", (40, 2, 1, 8, 8),
     ("F32", "F32"), BLOCKS | dict(chunk=12, local=3, heavy=8, dense_below=13),
     [("p", 12, None), ("d", 1), ("p", 27, None)]),
    ("dense-layer", "a dense layer whose calls are cut, or scored (STATE-7)", (60, 2, 1, 8, 8), ("F32", "F32"),
     dict(chunk=12, local=3, heavy=4, dense_layers=(0,)),
     [("p", 24, 26), ("p", 2, None), ("d", 2), ("p", 5, None), ("d", 1), ("p", 26, None)]),
    ("dense-layers", "a dense layer with chunks, scores or sets; another layer that is not what it is alone (STATE-7)",
     (60, 2, 1, 8, 8), ("F32", "F32"), dict(chunk=12, local=3, heavy=4, layers=2, dense_layers=(1,)),
     [("p", 24, 26), ("p", 2, None), ("d", 2), ("p", 5, None), ("d", 1), ("p", 26, None)]),
    ("blocks-dense-layers", "the same with rule blocks, and pinned tokens (STATE-7)", (60, 4, 2, 8, 6), ("F32", "F32"),
     BLOCKS | dict(chunk=12, local=3, heavy=8, pinned=4, layers=3, dense_layers=(0, 2)),
     [("p", 24, 26), ("p", 2, None), ("d", 2), ("p", 5, None), ("d", 1), ("p", 26, None)]),
    ("sketches", "other columns than the 32 largest, tokens below W, or a vote of another head's queries (SKE-3, SKE-6)",
     (32, 4, 2, 34, 1), ("F32", "F32"),
     dict(select="sketches", chunk=11, local=4, heavy=6, query_block=5, least_weight=0.4), None),
    ("sketches-bent", "cap, slope or sink left out of votes or of D, or other rows than F32 (SKE-4 to SKE-6)",
     (44, 3, 1, 8, 4), ("F32", "F16"),
     dict(select="sketches", chunk=16, local=3, heavy=6, query_block=7, least_weight=0.25, softcap=1.5, scale=0.9,
          sinks=(-1.0, 2.0), alibi=(0.01, 0.1)), None),
    ("sketches-turns", "W = 0 is a bound, pinned tokens by votes, or decoded rows and dense turns no candidates (SKE-2, SKE-7)",
     (70, 2, 1, 6, 3), ("F32", "F32"),
     dict(select="sketches", chunk=12, local=3, heavy=7, pinned=2, query_block=5, least_weight=0.0),
     [("p", 24, 26), ("p", 2, None), ("d", 1), ("d", 3), ("p", 12, None), ("d", 1), ("p", 27, None)]),
]


def flags_of(options, steps, dense_layers=()):
    flags = ["-b", options.batch, "-ub", options.chunk, "--h2o-local", options.local]
    flags += ["--h2o-heavy", options.heavy, "--score-type", options.score_type]
    flags += ["--h2o-no-clamp"] if not options.clamp else []
    flags += ["--dense"] if options.dense else []
    flags += ["--select", options.select] if options.select != "h2o" else []
    if options.select == "sketches":
        flags += ["--query-block", options.query_block, "--least-weight", options.least_weight]
    if options.select == "blocks":
        flags += ["--key-block", options.key_block, "--query-block", options.query_block]
        flags += ["--pool", options.pool, "--refine", options.refine]
    flags += ["--pinned", options.pinned] if options.pinned else []
    flags += ["--dense-below", options.dense_below] if options.dense_below else []
    flags += ["--dense-layers", ",".join(str(layer) for layer in dense_layers)] if dense_layers else []
    flags += ["--scale", repr(options.scale)] if options.scale is not None else []
    flags += ["--softcap", repr(options.softcap)] if options.softcap else []
    if steps:
        texts = [f"{s[0]}{s[1]}" + (f":{s[2]}" if len(s) > 2 and s[2] else "") for s in steps]
        flags += ["--steps", ",".join(texts)]
    return " ".join(str(flag) for flag in flags)


def stored(dtype, values):
    """The values as the file stores them and an engine reads them."""
    if dtype == "BF16":
        return oracle.bf16(values)
    return values.astype(tensors.DTYPES[dtype]).astype(np.float32)


def score_bound(result):
    bound = result.bound_intra.copy()
    for entries, errors in zip(result.memory, result.bound_inter):
        for head, positions in enumerate(entries):
            valid = positions >= 0
            bound[head, positions[valid]] += errors[head, valid] + 2 * oracle.UNIT * result.scores[head, positions[valid]]
    return bound


def draw(name, rng, shape, types, pinned):
    """q, k, v of one layer, as they are stored."""
    n, heads, kv_heads, d, dv = shape
    q, k, v = problem(rng, n, heads, kv_heads, d, dv)
    if name == "survivor":
        k[3] *= 6  # a spike that gets a large weight from many later queries
        q += k[3, 0] / 8
    if name == "blocks-bf16-rows":  # votes far apart: BF16 summaries move them by a hundredth
        k += np.repeat(rng.normal(size=(n // 4, *k.shape[1:])) * 3, 4, axis=0).astype(np.float32)
    if pinned:  # no query would choose them
        q += np.float32(1.5 / np.sqrt(d))
        k[:pinned] -= np.float32(2.5 / np.sqrt(d))
    return stored(types[0], q), stored(types[1], k), stored(types[1], v)


def pinned_matter(rows, options, steps, result):
    """Whether every last set would be another one without pinned tokens."""
    without = oracle.attend(*rows, replace(options, pinned=0), steps)
    if options.select != "h2o":
        return all((a != b).any() for a, b in zip(result.block_sets[-1], without.block_sets[-1]))
    return all((a != b).any() for a, b in zip(result.memory[-1], without.memory[-1]))


def make(name, shape, types, settings, steps):
    n, heads = shape[:2]
    settings = dict(settings)
    sinks, alibi = settings.pop("sinks", None), settings.pop("alibi", None)
    layers, dense_layers = settings.pop("layers", 1), settings.pop("dense_layers", ())
    options = oracle.Options(**settings)
    file = {}
    if sinks:
        options.sinks = ramp(*sinks, heads)
    if alibi:
        options.alibi = ramp(*alibi, heads)
    flags = flags_of(options, steps, dense_layers)
    if options.select == "window":
        options = options.window()
    narrow = narrowed(types)
    for seed in range(1000):
        rng = np.random.default_rng([seed, len(name), n])
        rows = [draw(name, rng, shape, types, options.effective_pinned()) for _ in range(layers)]
        results, widest = [], []
        for layer, inputs in enumerate(rows):
            dense = layer in dense_layers
            results.append(oracle.attend(*inputs, options, steps, dense=dense))
            widest.append(results[-1])
            if options.select == "blocks":
                widest[-1] = oracle.attend(*inputs, options, steps, kept=narrow, dense=dense)
        clear = all(result.margin > MARGIN for result in results) and all(w.vote_margin > VOTE_MARGIN for w in widest)
        sparse = [layer for layer in range(layers) if layer not in dense_layers]
        if clear and (options.pinned == 0 or all(pinned_matter(rows[l], options, steps, results[l]) for l in sparse)):
            break
    else:
        raise SystemExit(f"{name}: no seed keeps every decision away from flipping")
    for which, (key, dtype) in enumerate(zip("qkv", (types[0], types[1], types[1]))):
        file[key] = (dtype, rows[0][which] if layers == 1 else np.stack([inputs[which] for inputs in rows]))
    if sinks:
        file["sinks"] = ("F32", options.sinks)
    if alibi:
        file["alibi"] = ("F32", options.alibi)
    for layer in range(layers):
        suffix = "" if layers == 1 else f".{layer}"  # a session of several layers: replay.py --library
        wider = widest[layer] if any(narrow) and options.select == "blocks" else None
        for key, tensor in expected(results[layer], wider, options).items():
            file[key + suffix] = tensor
    return file, flags


def expected(result, widest, options):
    """What the vector says of one layer."""
    file = {"want.out": ("F64", result.out), "want.lse": ("F64", result.lse)}
    if options.select != "h2o":
        add_blocks(file, result, widest, ("block_votes", "token_votes") if options.select == "blocks" else ("token_votes",))
        return file
    file["want.colsum_intra"] = ("F64", result.colsum_intra.astype(np.float64))
    file["want.colsum_inter"] = ("F64", np.stack(result.colsum_inter).astype(np.float64))
    file["bound.out"] = ("F32", result.bound_out)
    file["bound.lse"] = ("F32", result.bound_lse)
    file["bound.colsum_intra"] = ("F32", result.bound_intra)
    file["bound.colsum_inter"] = ("F32", np.stack(result.bound_inter))
    if options.score_type == "f32":  # as exact as the column sums that they add up
        file["want.scores"] = ("F64", result.scores.astype(np.float64))
        file["bound.scores"] = ("F32", score_bound(result))
    else:
        file["exact.scores"] = ("F32", result.scores)
    file["exact.memory"] = ("I32", np.stack(result.memory))
    file["exact.chunk_start"] = ("I32", np.array(result.chunk_start, dtype=np.int32))
    return file


def narrowed(types):
    """What an engine in float32 may narrow of summaries and pooled queries: to the width of the stored rows, and where all
    rows are BF16 (docs/verification.md)."""
    return 0.0 if types[1] == "F32" else UNIT_BF16, UNIT_BF16 if types == ("BF16", "BF16") else 0.0


def padded(arrays, filler):
    """[query blocks][kv heads] arrays of several lengths as one array."""
    width = max((len(array) for sets in arrays for array in sets), default=0)
    whole = np.full((len(arrays), len(arrays[0]) if arrays else 0, width), filler)
    for block, sets in enumerate(arrays):
        for head, array in enumerate(sets):
            whole[block, head, : len(array)] = array
    return whole


def add_blocks(file, result, widest, votes):
    """Chapters 17 and 18; `narrow_bound.`: beside `bound.`, for engines that keep summaries in 16 bits."""
    file["bound.out"] = ("F32", result.bound_out)
    file["bound.lse"] = ("F32", result.bound_lse)
    for name in votes:
        file[f"want.{name}"] = ("F64", padded(getattr(result, name), np.nan))
        file[f"bound.{name}"] = ("F32", padded(getattr(result, f"bound_{name}"), np.nan))
        if widest:
            file[f"narrow_bound.{name}"] = ("F32", padded(getattr(widest, f"bound_{name}"), np.nan))
    file["exact.scores"] = ("F32", result.scores)
    file["exact.colsum_intra"] = ("F32", result.colsum_intra)
    if result.query_blocks:  # none in a dense layer
        file["exact.query_blocks"] = ("I32", np.array(result.query_blocks))
        file["exact.block_sets"] = ("I32", np.stack(result.block_sets))
    file["exact.chunk_start"] = ("I32", np.array(result.chunk_start, dtype=np.int32))


def main():
    folder = HERE / "vectors"
    folder.mkdir(exist_ok=True)
    manifest = []
    for name, catches, shape, types, settings, steps in CASES:
        file, flags = make(name, shape, types, settings, steps)
        path = folder / f"{name}.safetensors"
        tensors.write(path, file)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        manifest.append({"file": f"vectors/{path.name}", "sha256": digest, "flags": flags, "catches": catches})
    (HERE / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    print(f"{len(manifest)} vectors")


if __name__ == "__main__":
    main()
