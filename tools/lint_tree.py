"""Checks small rules over the whole tree: python3 tools/lint_tree.py

Saboteurs in the sources and in conformance/saboteurs.json are the same; nothing is left unfinished; the repository
stays small.
"""

import json
import re
import sys

import tree

sys.path.insert(0, str(tree.ROOT / "conformance"))
import plant_faults

LARGEST_REPOSITORY = 40 * 2**20  # bytes, models and traces included

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
SABOTAGE = re.compile(r"HEADWATER_SABOTAGE\(\s*\"([^\"]+)\"\s*\)")
SHIPPED = ("include/headwater/", "reference/", "optimized/", "bindings/", "cli/", "runtime/")
CODE = {".cpp", ".hpp", ".c", ".h", ".py", ".sh", ".cmake"}


def text_of(path):
    return (tree.ROOT / path).read_text(encoding="utf-8", errors="replace")


def saboteurs(paths):
    planted = {}
    for path in paths:
        if path.suffix in CODE and path.as_posix().startswith(SHIPPED) and "testing" not in path.parts:
            for name in SABOTAGE.findall(text_of(path)):
                planted.setdefault(name, path)
    listing = tree.ROOT / "conformance/saboteurs.json"
    if not listing.is_file():
        yield "conformance/saboteurs.json: missing"
        return
    document = json.loads(listing.read_text(encoding="utf-8"))
    entries = document["saboteurs"] if isinstance(document, dict) else document
    listed = {entry["name"] for entry in entries}
    for path in planted.values():
        if path.parts[0] == "reference":
            yield f"{path}: has a fault in it; those of the reference are planted by conformance/saboteurs.json alone"
    for file, faults in plant_faults.faults_by_file(listing).items():
        planted.update(dict.fromkeys((fault["name"] for fault in faults), file))
        try:
            plant_faults.planted(text_of(file), faults)
        except (plant_faults.Misfit, OSError) as error:
            yield f"conformance/saboteurs.json: {error}"
    for name in sorted(planted.keys() - listed):
        yield f"{planted[name]}: saboteur {name} is not in conformance/saboteurs.json"
    for name in sorted(listed - planted.keys()):
        yield f"conformance/saboteurs.json: saboteur {name} is nowhere in the sources"


def main():
    paths = tree.files()
    problems = []
    for path in paths:
        if path.suffix in CODE or path.name in ("dev", "CMakeLists.txt"):
            text = text_of(path)
            if UNFINISHED.search(text) and path.name != "lint_tree.py":
                problems.append(f"{path}: says {UNFINISHED.search(text).group()}; finish it or write an issue")
    problems += saboteurs(paths)
    size = sum((tree.ROOT / path).stat().st_size for path in paths)
    if size > LARGEST_REPOSITORY:
        problems.append(f"the files add up to {size} bytes; allowed: {LARGEST_REPOSITORY}")
    return tree.report("tree", problems)


sys.exit(main())
