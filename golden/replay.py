"""Replays the golden vectors through `headwater attend`.

    replay.py PROGRAM [--engine NAME ...] [--vector NAME ...] [--manifest FILE] [--library FILE]

Checks the hash of every vector, runs the program on its inputs with every engine of this machine and compares: memory
sets, scores and chunk starts exactly, the rest within the bound stored beside each value. Sets of rules `blocks` and
`sketches` are also recomputed from the votes that the engine reports (SEL-11, SKE-9), exactly. Engines that round weights to BF16 where all rows are
BF16 get there what docs/verification.md grants for it, engines other than the reference what SEL-11 grants for summaries
in 16 bits; engines that say that they have no such rule, or pin no tokens, are counted. Vectors of several layers, which
the program does not attend, are sessions of the shared library, where it is named. Exit status 1: a value is wrong; 2: a
vector or the manifest is damaged.
"""

import argparse
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import oracle
import session
import tensors

INPUTS = ("q", "k", "v", "sinks", "alibi")
FIELDS = {"file", "sha256", "flags", "catches"}
UNIT_BF16 = 2.0**-8
EXP_BF16 = 2.0**-17
REFUSALS = {"--select": "; allowed: 0 (h2o)", "--pinned": "pins no tokens"}  # flag: what an engine without it says


class Damaged(Exception):
    """A golden file is not what the manifest says."""


def entries_of(path):
    """The list of a manifest."""
    try:
        entries = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(f"{path}: {str(error).splitlines()[0]}") from None
    sound = isinstance(entries, list) and entries and all(isinstance(e, dict) and set(e) == FIELDS for e in entries)
    if not sound or any(not isinstance(value, str) for entry in entries for value in entry.values()):
        raise Damaged(f"{path}: allowed: a list of objects with {', '.join(sorted(FIELDS))}, all texts")
    listed = [entry["file"] for entry in entries]
    there = {file.relative_to(path.parent).as_posix() for file in (path.parent / "vectors").glob("*")}
    unlisted = sorted(there - set(listed))
    if unlisted or len(set(listed)) < len(listed):
        what = f"lacks {unlisted[0]}" if unlisted else "names a vector twice"
        raise Damaged(f"{path}: {what}; allowed: every file in vectors/ once")
    return entries


def load(path):
    """(entry, tensors, types) of every vector of a manifest."""
    for entry in entries_of(path):
        file = path.parent / entry["file"]
        try:
            data = file.read_bytes()
        except (OSError, ValueError) as error:  # a ValueError: no name of a file
            raise Damaged(f"{file}: {error}; allowed: the file that the manifest names") from None
        digest = hashlib.sha256(data).hexdigest()
        if digest != entry["sha256"]:
            raise Damaged(f"{file}: sha256 is {digest[:16]}...; allowed: {entry['sha256'][:16]}... (manifest)")
        try:
            values, types, _ = tensors.read(file)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise Damaged(f"{file}: {str(error).splitlines()[0]}; allowed: a safetensors file") from None
        wanted = {"q", "k", "v"} | {f"bound.{name[5:]}" for name in values if name.startswith("want.")}
        missing = sorted(wanted - set(values))
        if missing or not any(name.startswith("want.") for name in values):
            raise Damaged(f"{file}: lacks {', '.join(missing) or 'values to compare with'}")
        yield entry, values, types


def engines(program):
    """{name: does it round weights to BF16 where all rows are BF16?} of the engines that run here."""
    done = subprocess.run([program, "info", "--json"], capture_output=True, text=True, check=True)
    return {engine["name"]: "BF16" in engine["isa"] for engine in json.loads(done.stdout)["engines"] if engine["available"]}


def with_bf16_weights(values):
    """The values of a vector, its bounds widened by the rounding of each weight (docs/verification.md, The bound)."""
    wider = dict(values)
    heads, kv_heads = values["q"].shape[1], values["v"].shape[1]
    largest = np.abs(values["v"]).max(axis=0).repeat(heads // kv_heads, axis=0)
    wider["bound.out"] = values["bound.out"] + 2 * (UNIT_BF16 + EXP_BF16) * largest
    wider["bound.lse"] = values["bound.lse"] + 2 * EXP_BF16
    for name in ("colsum_intra", "colsum_inter"):
        if f"want.{name}" not in values:
            continue
        wider[f"bound.{name}"] = values[f"bound.{name}"] + (UNIT_BF16 + 2 * EXP_BF16) * values[f"want.{name}"]
    if "want.token_votes" in values:
        wider["bound.token_votes"] = values["bound.token_votes"] + 2 * EXP_BF16 * values["want.token_votes"]
    elif "exact.scores" in values:  # BF16 roundings of sums of these: one in each chunk
        scores = wider.pop("exact.scores")
        wider["want.scores"] = scores
        wider["bound.scores"] = 2 * len(values["exact.chunk_start"]) * UNIT_BF16 * scores
    return wider


def with_narrow_summaries(values):
    """The values of a vector with the bounds of votes by summaries in 16 bits."""
    narrow = {name[7:]: bound for name, bound in values.items() if name.startswith("narrow_")}
    return {**values, **narrow}


def replayed(result, metadata):
    """SEL-11, SKE-9: what is wrong with the sets of a result, given its own votes."""
    sizes = {name: int(metadata[name]) for name in ("chunk", "local", "heavy")}
    pinned = int(metadata.get("pinned", 0))
    if metadata["select"] == "window":
        return replayed_window(result, sizes["local"], pinned)
    if metadata["select"] == "sketches":
        return replayed_sketches(result, oracle.Options(
            **sizes, pinned=pinned, clamp=False, select="sketches", least_weight=float(metadata["least_weight"])))
    sizes.update({name: int(metadata[name]) for name in ("key_block", "query_block", "pool", "refine")})
    options = oracle.Options(**sizes, pinned=pinned, clamp=False, select="blocks")  # the effective sizes are clamped
    wrong = []
    for block, (first, _) in enumerate(result["query_blocks"]):
        begin = int(max(start for start in result["chunk_start"] if start <= first))
        candidates = oracle.span(options, begin)[1]
        voted = options.key_block * len(oracle.kept_blocks(options, begin, np.zeros(candidates)))
        voted = voted if oracle.has_second_stage(options, begin) else 0
        for head, reported in enumerate(result["block_sets"][block]):
            votes, tokens = result["block_votes"][block, head], result["token_votes"][block, head]
            if np.isnan(votes[:candidates]).any() or np.isnan(tokens[:voted]).any():
                wrong.append(f"query block {block} head {head}: a vote is missing")
                continue
            if not (np.isnan(votes[candidates:]).all() and np.isnan(tokens[voted:]).all()):
                wrong.append(f"query block {block} head {head}: a vote too many")
            entries = oracle.set_of_votes(options, begin, votes[:candidates], tokens[:voted])
            if not np.array_equal(reported, with_empty(entries, len(reported))):
                wrong.append(f"query block {block} head {head}: the votes select another set")
    return wrong[:3]


def replayed_sketches(result, options):
    wrong = []
    for block, (first, _) in enumerate(result["query_blocks"]):
        begin = int(max(start for start in result["chunk_start"] if start <= first))
        count = len(oracle.sketched_past(options, begin)[1])
        for head, reported in enumerate(result["block_sets"][block]):
            votes = result["token_votes"][block, head]
            if np.isnan(votes[:count]).any() or not np.isnan(votes[count:]).all():
                wrong.append(f"query block {block} head {head}: a vote is missing, or one too many")
                continue
            entries = oracle.set_of_sketch_votes(options, begin, votes[:count])
            if not np.array_equal(reported, with_empty(entries, len(reported))):
                wrong.append(f"query block {block} head {head}: the votes select another set")
    return wrong[:3]


def replayed_window(result, local, pinned):
    wrong = []
    for block, (first, _) in enumerate(result["query_blocks"]):
        begin = int(max(start for start in result["chunk_start"] if start <= first))
        newest = max(0, begin - local)
        kept = np.concatenate([np.arange(min(pinned, newest)), np.arange(newest, begin)])
        entries = with_empty(kept, result["block_sets"].shape[2])
        if not all(np.array_equal(reported, entries) for reported in result["block_sets"][block]):
            wrong.append(f"query block {block}: the set is not the newest tokens")
    return wrong[:3]


def with_empty(entries, width):
    whole = np.full(width, -1)
    whole[: len(entries)] = entries
    return whole


def compare(values, result):
    wrong = []
    for name in (key[6:] for key in values if key.startswith("exact.")):
        if not np.array_equal(values[f"exact.{name}"], result[name]):
            wrong.append(f"{name} differs")
    for name in (key[5:] for key in values if key.startswith("want.")):
        want = values[f"want.{name}"]
        if result[name].shape != want.shape:
            wrong.append(f"{name} has shape {result[name].shape}, not {want.shape}")
            continue
        none, infinite = np.isnan(want), np.isinf(want)  # infinite: votes of candidates that are not searched (SEL-12)
        if not np.array_equal(np.isnan(result[name]), none):
            wrong.append(f"{name} has values where there are none, or none where there are")
            continue
        with np.errstate(invalid="ignore"):
            error = np.where(none | (result[name] == want), 0.0, np.abs(result[name].astype(np.float64) - want))
        granted = values[f"bound.{name}"] + 2 * oracle.UNIT * np.abs(want)
        allowed = np.where(none | infinite, 0.0, granted) + 1e-37
        if not (error <= allowed).all():
            wrong.append(f"{name} is off by {np.nanmax(error / allowed):.3g} bounds")
    return wrong


def refused(flags, text):
    """Whether an engine says that it does not have what the flags ask for."""
    return any(flag in flags.split() and words in text for flag, words in REFUSALS.items())


def granted(values, engine, all_bf16, bf16_weights):
    """The values of a vector with the bounds of an engine."""
    wider = values if engine == "reference" else with_narrow_summaries(values)
    return with_bf16_weights(wider) if all_bf16 and bf16_weights else wider


def run_program(program, engine, entry, values, types, bf16_weights):
    """What is wrong with the output of `headwater attend`, or None where the engine refuses what is asked for."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = (pathlib.Path(folder) / name for name in ("in.safetensors", "out.safetensors"))
        tensors.write(source, {name: (types[name], values[name]) for name in INPUTS if name in values})
        command = [program, "attend", str(source), "-o", str(target), "--engine", engine]
        done = subprocess.run(command + entry["flags"].split(), capture_output=True, text=True)
        if done.returncode == 2 and refused(entry["flags"], done.stderr):
            return None
        if done.returncode != 0:
            return [f"exit {done.returncode}: {done.stderr.strip()}"]
        result, _, metadata = tensors.read(target)
    all_bf16 = all(types[name] == "BF16" for name in "qkv")
    wrong = compare(granted(values, engine, all_bf16, bf16_weights), result)
    return wrong + (replayed(result, metadata) if "block_sets" in result else [])


def run_session(library, engine, entry, values):
    """The same of a session of several layers."""
    try:
        results = library.run(values, entry["flags"], engine)
    except session.Refused as refusal:
        return None if refused(entry["flags"], str(refusal)) else [str(refusal)]
    wrong = []
    for layer, result in enumerate(results):
        of_layer = {key[: -len(f".{layer}")]: value for key, value in values.items() if key.endswith(f".{layer}")}
        wrong += [f"layer {layer}: {what}" for what in compare(granted(of_layer, engine, False, False), result)]
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--engine", action="append")
    parser.add_argument("--vector", action="append", help="only the vector of this name")
    parser.add_argument("--library", help="the shared library, for vectors of several layers")
    parser.add_argument("--manifest", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent / "manifest.json")
    arguments = parser.parse_args()
    failed = run = without = left_out = 0
    available = engines(arguments.program)
    library = session.Library(arguments.library) if arguments.library else None
    try:
        for entry, values, types in load(arguments.manifest):
            if arguments.vector and pathlib.Path(entry["file"]).stem not in arguments.vector:
                continue
            layers = values["q"].ndim == 4
            if layers and library is None:
                left_out += 1
                continue
            for engine in arguments.engine or available:
                if layers:
                    wrong = run_session(library, engine, entry, values)
                else:
                    bf16_weights = available.get(engine, False)
                    wrong = run_program(arguments.program, engine, entry, values, types, bf16_weights)
                if wrong is None:
                    without += 1
                    continue
                run += 1
                if wrong:
                    failed += 1
                    print(f"FAIL {entry['file']} engine {engine}: {'; '.join(wrong)}")
                    print(f"     it catches: {entry['catches']}")
    except Damaged as damage:
        print(f"replay.py: {damage}", file=sys.stderr)
        return 2
    print(f"{run} runs, {failed} failed" + (f", {without} refused: no such rule or no pinned tokens" if without else "") +
          (f", {left_out} vectors of several layers left out: no --library" if left_out else ""))
    return 1 if failed or run + left_out == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
