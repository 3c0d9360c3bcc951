"""Random problems through `headwater attend`, teacher-forced against the numpy oracle.

    differential.py PROGRAM [--cases 40] [--seed 1] [--engine NAME ...] [--only CASE]

Every problem draws shapes, types, options and a step sequence; one, `long`, is always the same and has the size of real
prompts. The file goes through the program like a user's. Memory sets and scores must replay exactly, outputs,
log-sum-exps, column sums and votes lie within the derived bound (docs/spec.md 13, SEL-11). A failure prints the command
that repeats it.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
from dataclasses import replace

import numpy as np

import oracle
import replay
import tensors


def draw_steps(rng, n, sparse_chunk):
    """A random sequence of turns and decode steps that adds up to n; also as --steps text."""
    steps, text, left = [], [], n
    in_turn = False
    while left > 0:
        size = int(min(left, rng.integers(1, max(2, n // 2))))
        if rng.random() < 0.3:
            size = min(size, 3)
            steps.append(("d", size))
            text.append(f"d{size}")
            in_turn = False
        else:
            length = None
            if not in_turn and rng.random() < 0.5:
                length = size + int(rng.integers(0, 2 * sparse_chunk))
            steps.append(("p", size, length))
            text.append(f"p{size}" if length is None else f"p{size}:{length}")
            in_turn = True
        left -= size
    return steps, ",".join(text)


def draw_blocks(rng, options):
    """Sizes that SEL-1 allows; the heavy budget is rounded to whole key blocks."""
    options.select = "blocks"
    options.key_block = int(rng.choice([size for size in (1, 2, 3, 4, 7, 8, 16) if size <= options.chunk]))
    options.heavy -= options.heavy % options.key_block
    options.pool = int(rng.choice([size for size in (1, 2, 3, 4, 8) if size <= options.chunk]))
    most = options.chunk // options.pool
    options.query_block = options.pool * int(rng.choice([1, min(2, most), min(8, most), most]))
    options.refine = int(rng.choice([1, 2, 2, 3, 16]))


def draw_sketches(rng, options):
    """Sizes that SKE-1 allows."""
    options.select = "sketches"
    options.query_block = int(rng.integers(1, min(options.chunk, 64) + 1))
    options.least_weight = float(rng.choice([0.0, 0.002, 0.002, 0.1, 0.9]))


def draw(rng):
    """One problem: (tensors for the file, oracle options, steps, flags)."""
    n = int(rng.choice([1, 2, 7, 33, 64, 97, 150, 260, 400]))
    group = int(rng.choice([1, 1, 2, 3, 4]))
    kv_heads = int(rng.choice([1, 2, 3]))
    d = int(rng.choice([1, 3, 8, 16, 20, 33, 64, 80]))
    dv = int(rng.choice([d, d, 1, 5, 16, 40]))
    large = rng.random() < 0.04  # longer than any tile, segment or group of the engines
    if large:
        n, group, kv_heads, d, dv = int(rng.integers(1025, 2300)), 1, 1, min(d, 8), min(dv, 8)
    types = ["F32", "F16", "BF16"]
    kv_type = str(rng.choice(types))
    q_type = str(rng.choice([kv_type, kv_type, str(rng.choice(types))]))
    spread = float(rng.choice([0.1, 1.0, 1.0, 4.0]))
    q = rng.normal(size=(n, group * kv_heads, d)) * spread
    k = rng.normal(size=(n, kv_heads, d))
    v = rng.normal(size=(n, kv_heads, dv))
    if rng.random() < 0.3:  # attention sinks and repeated keys: ties and spikes
        k[:: max(1, n // 5)] *= 3
        k[n // 2 :] = k[: n - n // 2]
    heads = group * kv_heads
    file = {"q": (q_type, q), "k": (kv_type, k), "v": (kv_type, v)}
    options = oracle.Options()
    options.chunk = int(rng.choice([1, 2, 5, 16, 32, 48, 64, 100, 512]))
    options.batch = int(rng.choice([options.chunk, 2 * options.chunk, 3 * options.chunk + 1, 1, 4096]))
    options.local = int(rng.choice([0, 1, 3, 8, 20, 64]))
    options.heavy = int(rng.choice([0, 1, 4, 9, 30, 64]))
    options.clamp = bool(rng.random() < 0.6)
    if large:
        options.chunk = int(rng.choice([150, 1030, 1500, 4096]))
        options.local, options.heavy = int(rng.choice([0, 20, 700])), int(rng.choice([5, 700]))
    options.dense = bool(rng.random() < 0.08)
    options.score_type = str(rng.choice(["bf16", "bf16", "f32"]))
    rule = str(rng.choice(["h2o", "h2o", "h2o", "blocks", "blocks", "window", "sketches"]))
    if rule == "blocks":
        draw_blocks(rng, options)
    if rule == "sketches":
        draw_sketches(rng, options)
    if rng.random() < 0.3:
        options.scale = float(rng.choice([0.05, 0.5, 1.0, -0.3]))
    if rng.random() < 0.3:
        options.softcap = float(rng.choice([0.5, 5.0, 30.0]))
    if rng.random() < 0.3:
        options.sinks = rng.normal(size=heads).astype(np.float32) * 3
        options.sinks[rng.random(heads) < 0.2] = -np.inf
        file["sinks"] = ("F32", options.sinks)
    if rng.random() < 0.3:
        options.alibi = (rng.random(heads) * float(rng.choice([0.01, 0.3]))).astype(np.float32)
        file["alibi"] = ("F32", options.alibi)
    steps, text = draw_steps(rng, n, options.chunk)
    flags = ["-b", options.batch, "-ub", options.chunk, "--h2o-local", options.local]
    flags += ["--h2o-heavy", options.heavy, "--score-type", options.score_type]
    flags += [] if options.clamp else ["--h2o-no-clamp"]
    flags += ["--dense"] if options.dense else []
    flags += [] if options.scale is None else ["--scale", repr(options.scale)]
    flags += [] if options.softcap == 0 else ["--softcap", repr(options.softcap)]
    flags += [] if rule == "h2o" else ["--select", rule]
    if rule == "blocks":
        flags += ["--key-block", options.key_block, "--query-block", options.query_block]
        flags += ["--pool", options.pool, "--refine", options.refine]
    if rule == "sketches":
        flags += ["--query-block", options.query_block, "--least-weight", options.least_weight]
    if rng.random() < 0.4:
        most = options.heavy + (options.local if rule == "window" else 0)
        unit = options.key_block if rule == "blocks" else 1
        options.pinned = unit * int(rng.choice([0, most // unit, rng.integers(0, most // unit + 1)]))
        flags += ["--pinned", options.pinned]
    if rng.random() < 0.3:
        options.dense_below = int(rng.choice([0, 1, n, n + 1, rng.integers(1, n + 1)]))
        flags += ["--dense-below", options.dense_below]
    if rule == "window":
        options = options.window()
    flags += ["--schedule", str(rng.choice(["layer-major", "chunk-major"])), "-t", int(rng.integers(1, 4))]
    if len(steps) == 1 and steps[0] == ("p", n, None) and rng.random() < 0.5:
        return file, options, steps, [str(f) for f in flags]
    return file, options, steps, [str(f) for f in flags + ["--steps", text]]


def long_problem():
    """Like draw(): eight chunks of the default size by two query heads over one, and three decoded tokens. Every 30th key
    is so large that it enters the memory sets; else the first chunk's tokens alone would stay in them."""
    rng = np.random.default_rng(0)
    n, decoded, d = 8192, 3, 64
    file = {name: (dtype, rng.normal(size=(n + decoded, heads, d)))
            for name, dtype, heads in (("q", "F32", 2), ("k", "F16", 1), ("v", "F16", 1))}
    file["k"][1][::30] *= 3
    options = oracle.Options(local=200, heavy=312)
    flags = ["-b", options.batch, "-ub", options.chunk, "--h2o-local", options.local, "--h2o-heavy", options.heavy]
    flags += ["-t", 2, "--steps", f"p{n},d{decoded}"]
    return file, options, [("p", n, None), ("d", decoded)], [str(f) for f in flags]


def compare(stored, result, options, steps, kept):
    """List of what is wrong. `kept`: what the engine narrows of summaries and pooled queries (oracle.Oracle)."""
    if options.select != "h2o":
        given = oracle.Given(**{name: result[name] for name in ("block_sets", *votes_of(options))})
    else:
        given = oracle.Given(result["memory"], result["colsum_intra"], result["colsum_inter"])
    inputs = [stored["q"], stored["k"], stored["v"]]
    if options.select != "h2o" and len(result["query_blocks"]) != count_of_query_blocks(options, len(stored["q"]), steps):
        return [f"{len(result['query_blocks'])} query blocks"]
    expected = oracle.attend(*inputs, options, steps, given, kept)
    wrong = [f"set {c} head {h}: not what scores or votes select" for c, h in expected.mismatches]
    if list(result["chunk_start"]) != expected.chunk_start:
        return [f"chunk_start is {list(result['chunk_start'])}, expected {expected.chunk_start}"]
    for chunk, entries in enumerate(expected.memory):
        if not np.array_equal(entries, result["memory"][chunk]):
            wrong.append(f"memory of chunk {chunk}")
    if not np.array_equal(expected.scores, result["scores"]):
        wrong.append("scores do not replay")

    def within(name, value, want, bound):
        infinite = np.isinf(want)  # votes of candidates that are not searched: exactly (SEL-12)
        with np.errstate(invalid="ignore"):
            error = np.where(value == want, 0.0, np.abs(value.astype(np.float64) - want))
        allowed = np.where(infinite, 0.0, bound + 2 * oracle.UNIT * np.abs(want)) + 1e-37
        if not (error <= allowed).all():
            worst = np.nanmax(error / allowed) if np.isfinite(error).any() else np.inf
            wrong.append(f"{name}: error {np.nanmax(error):.3g} is {worst:.3g} of the bound")

    if options.select != "h2o":
        compare_votes(result, expected, votes_of(options), within, wrong)
    within("out", result["out"], expected.out, expected.bound_out)
    within("lse", result["lse"], expected.lse, expected.bound_lse)
    within("colsum_intra", result["colsum_intra"], expected.colsum_intra, expected.bound_intra)
    if expected.memory and expected.memory[0].size:
        want = np.stack(expected.colsum_inter)
        within("colsum_inter", result["colsum_inter"], want, np.stack(expected.bound_inter))
    return wrong


def votes_of(options):
    return ("block_votes", "token_votes") if options.select == "blocks" else ("token_votes",)


def count_of_query_blocks(options, n, steps):
    """By a run without values: as many as the oracle's votes are asked for."""
    zeros = np.zeros((n, 1, 1))
    return len(oracle.attend(zeros, zeros, zeros, replace(options, sinks=None, alibi=None), steps).query_blocks)


def compare_votes(result, expected, names, within, wrong):
    if result["query_blocks"].tolist() != [list(rows) for rows in expected.query_blocks]:
        wrong.append("query_blocks")
    for name in names:
        reported = result[name]
        for block, votes in enumerate(getattr(expected, name)):
            for head, want in enumerate(votes):
                got = reported[block, head]
                if not np.isnan(got[len(want) :]).all():
                    wrong.append(f"{name} after the last one, query block {block} head {head}")
                bound = getattr(expected, f"bound_{name}")[block][head]
                within(f"{name} of query block {block} head {head}", got[: len(want)], want, bound)


def run_one(program, engine, file, options, steps, flags, folder):
    source, target = folder / "in.safetensors", folder / "out.safetensors"
    tensors.write(source, file)
    command = [program, "attend", str(source), "-o", str(target), "--engine", engine, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode == 2 and replay.refused(" ".join(flags), done.stderr):
        return None, command
    if done.returncode != 0:
        return [f"exit {done.returncode}: {done.stderr.strip()}"], command
    narrow = engine != "reference" and file["k"][0] != "F32"
    kept = (2.0**-8 if narrow else 0.0, 0.0)
    return compare(tensors.read(source)[0], tensors.read(target)[0], options, steps, kept), command


def case_of(text):
    return text if text == "long" else int(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", action="append")
    parser.add_argument("--only", type=case_of, metavar="CASE")
    arguments = parser.parse_args()
    failed = run = without = 0
    cases = ["long", *range(arguments.cases)] if arguments.only is None else [arguments.only]
    with tempfile.TemporaryDirectory() as name:
        for case in cases:
            problem = long_problem() if case == "long" else draw(np.random.default_rng([arguments.seed, case]))
            for engine in arguments.engine or ["reference", "cpu-portable"]:
                run += 1
                wrong, command = run_one(arguments.program, engine, *problem, pathlib.Path(name))
                without += wrong is None
                if wrong:
                    failed += 1
                    print(f"FAIL case {case} engine {engine}: {'; '.join(wrong[:4])}")
                    print(f"     {' '.join(command)}")
                    print(f"     repeat: {sys.argv[0]} {arguments.program} --seed {arguments.seed} "
                          f"--only {case} --engine {engine}")
    print(f"{run} runs, {failed} failed" + (f", {without} refused: no such rule" if without else ""))
    return 1 if failed or run == without else 0


if __name__ == "__main__":
    sys.exit(main())
