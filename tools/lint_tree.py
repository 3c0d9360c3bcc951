"""Small rules over the whole tree: python3 tools/lint_tree.py

Links in Markdown files resolve; README shows the consumers that tests/package builds; saboteurs in the sources and
in conformance/saboteurs.json are the same; nothing is left unfinished; no file outgrows a screen's worth of
subjects; the repository stays small.
"""

import json
import re
import sys

import tree

sys.path.insert(0, str(tree.ROOT / "conformance"))
import plant_faults

LARGEST_REPOSITORY = 40 * 2**20  # bytes, models and traces included
LONGEST_SOURCE = 500             # lines

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)|<img[^>]+src=\"([^\"]+)\"")
SABOTAGE = re.compile(r"HEADWATER_SABOTAGE\(\s*\"([^\"]+)\"\s*\)")
SHIPPED = ("include/headwater/", "reference/", "optimized/", "bindings/", "cli/", "runtime/")
CODE = {".cpp", ".hpp", ".c", ".h", ".py", ".sh", ".cmake"}


def text_of(path):
    return (tree.ROOT / path).read_text(encoding="utf-8", errors="replace")


def headings(markdown):
    """Anchors as GitHub makes them."""
    anchors = set()
    for line in re.findall(r"^#+\s+(.*)$", markdown, re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", line.strip().lower())
        anchors.add(plain.replace(" ", "-"))
    return anchors


def links(path):
    text = re.sub(r"```.*?```", "", text_of(path), flags=re.DOTALL)
    for match in LINK.finditer(text):
        target = match.group(1) or match.group(2)
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (tree.ROOT / path).parent / name if name else tree.ROOT / path
        if not file.exists():
            yield f"{path}: link to {target}: no such file"
        elif anchor and file.suffix == ".md" and anchor not in headings(file.read_text(encoding="utf-8")):
            yield f"{path}: link to {target}: no such heading"


def readme_snippets():
    """Every example in README that names a file of the tests is that file, without its leading comment."""
    readme = text_of("README.md")
    shown = re.findall(r"<!-- same as (\S+) -->\n```\w*\n(.*?)```", readme, flags=re.DOTALL)
    if not shown:
        yield "README.md: shows no example that is tested (<!-- same as FILE --> before its code block)"
    for name, snippet in shown:
        if not (tree.ROOT / name).is_file():
            yield f"README.md: example of {name}: no such file"
        elif snippet != text_of(name):
            yield f"README.md: example differs from {name}, which is what the tests build"


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
        if path.suffix == ".md":
            problems += links(path)
        if path.suffix in CODE or path.name in ("dev", "CMakeLists.txt"):
            text = text_of(path)
            if UNFINISHED.search(text) and path.name != "lint_tree.py":
                problems.append(f"{path}: says {UNFINISHED.search(text).group()}; finish it or write an issue")
            lines = text.count("\n")
            if lines > LONGEST_SOURCE:
                problems.append(f"{path}: {lines} lines; allowed: {LONGEST_SOURCE}, one subject a file")
    problems += readme_snippets()
    problems += saboteurs(paths)
    size = sum((tree.ROOT / path).stat().st_size for path in paths)
    if size > LARGEST_REPOSITORY:
        problems.append(f"the files add up to {size} bytes; allowed: {LARGEST_REPOSITORY}")
    return tree.report("tree", problems)


sys.exit(main())
