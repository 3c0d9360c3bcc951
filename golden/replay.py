"""Replays the golden vectors through `headwater attend`.

    replay.py PROGRAM [--engine NAME ...] [--vector NAME ...] [--manifest FILE]

Checks the hash of every vector, runs the program on its inputs with every engine of this machine and compares: memory
sets, scores and chunk starts exactly, the rest within the bound stored beside each value. Engines that round weights to
BF16 where all rows are BF16 get there what docs/verification.md grants for it. Exit status 1: a value is wrong; 2: a
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
import tensors

INPUTS = ("q", "k", "v", "sinks", "alibi")
FIELDS = {"file", "sha256", "flags", "catches"}
UNIT_BF16 = 2.0**-8
EXP_BF16 = 2.0**-17


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
        wider[f"bound.{name}"] = values[f"bound.{name}"] + (UNIT_BF16 + 2 * EXP_BF16) * values[f"want.{name}"]
    if "exact.scores" in values:  # BF16 roundings of sums of these: one in each chunk
        scores = wider.pop("exact.scores")
        wider["want.scores"] = scores
        wider["bound.scores"] = 2 * len(values["exact.chunk_start"]) * UNIT_BF16 * scores
    return wider


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
        error = np.abs(result[name].astype(np.float64) - want)
        allowed = values[f"bound.{name}"] + 2 * oracle.UNIT * np.abs(want) + 1e-37
        if not (error <= allowed).all():
            wrong.append(f"{name} is off by {np.nanmax(error / allowed):.3g} bounds")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--engine", action="append")
    parser.add_argument("--vector", action="append", help="only the vector of this name")
    parser.add_argument("--manifest", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent / "manifest.json")
    arguments = parser.parse_args()
    failed = run = 0
    available = engines(arguments.program)
    try:
        with tempfile.TemporaryDirectory() as folder:
            source, target = (pathlib.Path(folder) / name for name in ("in.safetensors", "out.safetensors"))
            for entry, values, types in load(arguments.manifest):
                if arguments.vector and pathlib.Path(entry["file"]).stem not in arguments.vector:
                    continue
                tensors.write(source, {name: (types[name], values[name]) for name in INPUTS if name in values})
                all_bf16 = all(types[name] == "BF16" for name in "qkv")
                for engine in arguments.engine or available:
                    run += 1
                    command = [arguments.program, "attend", str(source), "-o", str(target), "--engine", engine]
                    done = subprocess.run(command + entry["flags"].split(), capture_output=True, text=True)
                    if done.returncode != 0:
                        wrong = [f"exit {done.returncode}: {done.stderr.strip()}"]
                    else:
                        rounded = all_bf16 and available.get(engine, False)
                        wrong = compare(with_bf16_weights(values) if rounded else values, tensors.read(target)[0])
                    if wrong:
                        failed += 1
                        print(f"FAIL {entry['file']} engine {engine}: {'; '.join(wrong)}")
                        print(f"     it catches: {entry['catches']}")
    except Damaged as damage:
        print(f"replay.py: {damage}", file=sys.stderr)
        return 2
    print(f"{run} runs, {failed} failed")
    return 1 if failed or run == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
