"""Prints the table clause -> tests and fails where a clause has none: lint_clauses.py PATH/headwater-conformance

A clause of docs/spec.md is covered by the conformance cases that name it (`headwater-conformance --list --json`) and
by the unit tests and properties that name it in a file of tests/ or fuzz/.
"""

import json
import re
import subprocess
import sys

import tree

DEFINED = re.compile(r"\*\*([A-Z]+-\d+)\*\*")
NAMED = re.compile(r"\b([A-Z]+-\d+)\b")


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    clauses = DEFINED.findall((tree.ROOT / "docs/spec.md").read_text(encoding="utf-8"))
    tests = {clause: [] for clause in clauses}
    problems = [f"docs/spec.md: defines {clause} twice" for clause in tests if clauses.count(clause) > 1]
    if not tests:
        problems.append("docs/spec.md: defines no clause")

    listing = subprocess.run([sys.argv[1], "--list", "--json"], capture_output=True, text=True, check=True)
    document = json.loads(listing.stdout)
    for case in document["cases"]:
        for clause in case["clauses"]:
            if clause in tests:
                tests[clause].append(case["name"])
            else:
                problems.append(f"conformance case {case['name']} names {clause}, which docs/spec.md lacks")
    for path in tree.sources():
        if path.parts[0] not in ("tests", "fuzz"):
            continue
        for clause in sorted(set(NAMED.findall((tree.ROOT / path).read_text(encoding="utf-8")))):
            if clause in tests:
                tests[clause].append(path.as_posix())

    for clause, names in tests.items():
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        print(f"{clause:10} {len(names):4}  {shown or 'NOTHING'}")
        if not names:
            problems.append(f"{clause}: no test names it")
    return tree.report("clauses", problems)


sys.exit(main())
