"""Prints the report at the end of `./dev demo`: demo_report.py FOLDER

FOLDER holds the results of the demo: sparse.json and dense.json (`headwater attend --json`), verify-sparse.json and
verify-dense.json (`headwater-conformance verify --json`), the outputs and the picture. Standard library only.
"""

import json
import pathlib
import sys


def load(folder, name):
    return json.loads((folder / name).read_text(encoding="utf-8"))


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = pathlib.Path(sys.argv[1])
    runs = {kind: load(folder, f"{kind}.json") for kind in ("sparse", "dense")}
    checks = {kind: load(folder, f"verify-{kind}.json") for kind in runs}
    sparse, dense = runs["sparse"], runs["dense"]

    def seconds(run):
        return run["seconds"]["min"]

    def row(label, left, right):
        print(f"  {label:<44}{left:>16}{right:>16}")

    print(f"\n{sparse['tokens']} tokens, {sparse['heads']} query heads, engine {sparse['engine']} "
          f"({sparse['isa']}), {sparse['threads']} threads\n")
    row("", "sparse", "dense")
    row("query-key pairs of a head", f"{sparse['pairs']:,}", f"{dense['pairs']:,}")
    row(f"seconds (best of {sparse['seconds']['repeats']})", f"{seconds(sparse):.4f}", f"{seconds(dense):.4f}")
    row("check against the oracle", checks["sparse"]["status"], checks["dense"]["status"])
    row("largest output difference from the oracle", f"{checks['sparse']['max_abs_difference']:.2e}",
        f"{checks['dense']['max_abs_difference']:.2e}")
    row("  of what the bound allows",
        f"{checks['sparse']['tensors']['out']['max_error_over_bound']:.1%}",
        f"{checks['dense']['tensors']['out']['max_error_over_bound']:.1%}")
    replay = checks["sparse"]["replay"]
    row("memory sets and scores replay bit for bit", "yes" if replay["exact"] else "NO", "-")
    print(f"\n  saved: {1 - sparse['pairs'] / dense['pairs']:.1%} of the pairs, "
          f"{1 - seconds(sparse) / seconds(dense):.1%} of the time; {replay['memory_sets']} memory sets checked")
    against = checks["sparse"]["against"]
    print(f"  sparse and dense outputs differ by at most {against['max_difference']:.3g} "
          f"(root mean square {against['rms_difference']:.2g}): what the tokens outside the memory sets said")
    print(f"\n  picture   {folder / 'memory.png'} (which tokens each chunk read)")
    print(f"  outputs   {folder / 'sparse.safetensors'}, {folder / 'dense.safetensors'}")
    print(f"  reports   {folder}/*.json")
    return 0


sys.exit(main())
