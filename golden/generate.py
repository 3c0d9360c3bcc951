"""Makes the golden vectors: run by hand, output committed. `python3 generate.py` rewrites vectors/ and manifest.json.

Every vector is one small problem with what the numpy oracle says about it and, next to each toleranced value, the
error that SPEC 13 grants an engine in float32. Seeds are searched until no decision (rounding of a score, order of
two candidates) is closer than MARGIN to another result, so that scores and memory sets can be compared exactly.
"""

import hashlib
import json
import pathlib

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
     (48, 6, 2, 8, 4), ("F32", "F32"), BLOCKS | dict(chunk=16, local=6, heavy=8, sinks=(-1.0, 3.0)), None),
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
]


def flags_of(options, steps):
    flags = ["-b", options.batch, "-ub", options.chunk, "--h2o-local", options.local]
    flags += ["--h2o-heavy", options.heavy, "--score-type", options.score_type]
    flags += ["--h2o-no-clamp"] if not options.clamp else []
    flags += ["--dense"] if options.dense else []
    flags += ["--select", options.select] if options.select != "h2o" else []
    if options.select == "blocks":
        flags += ["--key-block", options.key_block, "--query-block", options.query_block]
        flags += ["--pool", options.pool, "--refine", options.refine]
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


def make(name, shape, types, settings, steps):
    n, heads, kv_heads, d, dv = shape
    settings = dict(settings)
    sinks, alibi = settings.pop("sinks", None), settings.pop("alibi", None)
    for seed in range(1000):
        rng = np.random.default_rng([seed, len(name), n])
        q, k, v = problem(rng, n, heads, kv_heads, d, dv)
        if name == "survivor":
            k[3] *= 6  # a spike that gets a large weight from many later queries
            q += k[3, 0] / 8
        if name == "blocks-bf16-rows":  # votes far apart: BF16 summaries move them by a hundredth
            k += np.repeat(rng.normal(size=(n // 4, *k.shape[1:])) * 3, 4, axis=0).astype(np.float32)
        q, k, v = stored(types[0], q), stored(types[1], k), stored(types[1], v)
        options = oracle.Options(**settings)
        file = {"q": (types[0], q), "k": (types[1], k), "v": (types[1], v)}
        if sinks:
            options.sinks = ramp(*sinks, heads)
            file["sinks"] = ("F32", options.sinks)
        if alibi:
            options.alibi = ramp(*alibi, heads)
            file["alibi"] = ("F32", options.alibi)
        flags = flags_of(options, steps)
        if options.select == "window":
            options = options.window()
        result = oracle.attend(q, k, v, options, steps)
        narrow = narrowed(types)
        widest = oracle.attend(q, k, v, options, steps, kept=narrow) if options.select == "blocks" else result
        if result.margin > MARGIN and widest.vote_margin > VOTE_MARGIN:
            break
    else:
        raise SystemExit(f"{name}: no seed keeps every decision away from flipping")
    file["want.out"] = ("F64", result.out)
    file["want.lse"] = ("F64", result.lse)
    if options.select == "blocks":
        add_blocks(file, result, widest if any(narrow) else None)
        return file, flags
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
    return file, flags


def narrowed(types):
    """What an engine in float32 may narrow of summaries and pooled queries: to the width of the stored rows, and where all
    rows are BF16 (docs/verification.md)."""
    return 0.0 if types[1] == "F32" else UNIT_BF16, UNIT_BF16 if types == ("BF16", "BF16") else 0.0


def padded(arrays, filler):
    """[query blocks][kv heads] arrays of several lengths as one array."""
    width = max((len(array) for sets in arrays for array in sets), default=0)
    whole = np.full((len(arrays), len(arrays[0]), width), filler)
    for block, sets in enumerate(arrays):
        for head, array in enumerate(sets):
            whole[block, head, : len(array)] = array
    return whole


def add_blocks(file, result, widest):
    """Chapter 17; `narrow_bound.`: beside `bound.`, for engines that keep summaries in 16 bits."""
    file["bound.out"] = ("F32", result.bound_out)
    file["bound.lse"] = ("F32", result.bound_lse)
    for name in ("block_votes", "token_votes"):
        file[f"want.{name}"] = ("F64", padded(getattr(result, name), np.nan))
        file[f"bound.{name}"] = ("F32", padded(getattr(result, f"bound_{name}"), np.nan))
        if widest:
            file[f"narrow_bound.{name}"] = ("F32", padded(getattr(widest, f"bound_{name}"), np.nan))
    file["exact.scores"] = ("F32", result.scores)
    file["exact.colsum_intra"] = ("F32", result.colsum_intra)
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
