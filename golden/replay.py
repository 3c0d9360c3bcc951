"""Replays the golden vectors through `headwater attend`.

    replay.py PROGRAM [--engine NAME ...] [--vector NAME ...] [--manifest FILE]

Checks the hash of every vector, runs the program on its inputs and compares: memory sets, scores and chunk starts
exactly, the rest within the bound stored beside each value. Exit status 1: a value is wrong; 2: a vector or the
manifest is damaged.
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


class Damaged(Exception):
    """A golden file is not what the manifest says."""


def load(path):
    """(entry, tensors, types) of every vector of a manifest."""
    try:
        entries = json.loads(path.read_text())
        fields = {"file", "sha256", "flags", "catches"}
        if not isinstance(entries, list) or any(not isinstance(e, dict) or set(e) != fields for e in entries):
            raise ValueError(f"allowed: a list of objects with {', '.join(sorted(fields))}")
    except (OSError, ValueError) as error:
        raise Damaged(f"{path}: {str(error).splitlines()[0]}") from None
    for entry in entries:
        file = path.parent / entry["file"]
        try:
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
        except OSError as error:
            raise Damaged(f"{file}: {error.strerror}; allowed: the file that the manifest names") from None
        if digest != entry["sha256"]:
            raise Damaged(f"{file}: sha256 is {digest[:16]}...; allowed: {entry['sha256'][:16]}... (manifest)")
        values, types, _ = tensors.read(file)
        yield entry, values, types


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
    try:
        with tempfile.TemporaryDirectory() as folder:
            source, target = (pathlib.Path(folder) / name for name in ("in.safetensors", "out.safetensors"))
            for entry, values, types in load(arguments.manifest):
                if arguments.vector and pathlib.Path(entry["file"]).stem not in arguments.vector:
                    continue
                tensors.write(source, {name: (types[name], values[name]) for name in INPUTS if name in values})
                for engine in arguments.engine or ["reference", "cpu-portable"]:
                    run += 1
                    command = [arguments.program, "attend", str(source), "-o", str(target), "--engine", engine]
                    done = subprocess.run(command + entry["flags"].split(), capture_output=True, text=True)
                    if done.returncode != 0:
                        wrong = [f"exit {done.returncode}: {done.stderr.strip()}"]
                    else:
                        wrong = compare(values, tensors.read(target)[0])
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
