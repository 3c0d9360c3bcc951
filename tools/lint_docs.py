"""Checks documents and comments against the tree: python3 tools/lint_docs.py

- Lines of Markdown have at most 120 columns. Tables and lines that are one word or link are excepted.
- Links in Markdown files resolve, and each picture below docs/ is shown by one. Examples that
  name a file of the tests (`<!-- same as FILE -->`, or `FILE [PART]`) are what it holds.
- Files and folders that documents and comments name exist. A name is right where a path of the tree ends with it:
  while there is an `optimized/cpu/dispatch.cpp`, so are `cpu/dispatch.cpp` and `dispatch.cpp`. `*`, `?` and `{a,b}`
  mean what they mean in a shell. Not looked up: placeholders (`<isa>/kernels.cpp`, `DIR/report.md`), what a build or an
  installation writes (OUTSIDE), and the dated records of docs/notes/, which name files as they were called then.
- The map of docs/architecture.md and the folders of the tree are the same.

The lint proves itself first: it plants faults of each kind into a scratch tree and expects to see exactly those.
"""

import fnmatch
import pathlib
import re
import sys
import tempfile
import textwrap

import tree

COLUMNS = 120
MAP = "docs/architecture.md"
RECORDS = "docs/notes"

# Folders of the machine, what builds and installations write, and another project whose name looks like a file's.
OUTSIDE = re.compile(r"(build|usr|opt|dev|proc|sys|etc|tmp|vendor|include/headwater-runtime)/|"
                     r"headwaterConfig\.cmake$|llama\.cpp$")
WORDS = r"[\w.*?<>{},-]"
SOURCE = r"(?:cpp|hpp|cuh|cu|py|md|cmake)"
START = r"(?<![\w/.:*?<>{}$~-])(?<!\]\()"
PATH = re.compile(rf"{START}((?:{WORDS}+/)+{WORDS}*\.(?:{SOURCE}|h|c|in|js|json|txt|gguf|safetensors))(?![\w/(-])")
BARE = re.compile(rf"{START}({WORDS}+\.{SOURCE})(?![\w/(-])")
FOLDER = re.compile(rf"({WORDS}+/)+")

SLASHES = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
HASHES = re.compile(r"#[^\n]*|^\s*\"\"\".*?\"\"\"", re.DOTALL | re.MULTILINE)
COMMENTS = {suffix: SLASHES for suffix in (".cpp", ".hpp", ".c", ".h", ".cu", ".cuh", ".js")}
COMMENTS |= {suffix: HASHES for suffix in (".py", ".cmake", ".sh")}

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)|<img[^>]+src=\"([^\"]+)\"")


def text_of(root, path):
    return (root / path).read_text(encoding="utf-8", errors="replace")


# ---- lines and links ---------------------------------------------------------------------------------------

def lines(root, path):
    """Lines that are too long."""
    for number, line in enumerate(text_of(root, path).splitlines(), 1):
        words = re.sub(r"\[[^\]]*\]\([^)]*\)", "link", line.strip().lstrip("-*!> ")).split()
        if len(line) > COLUMNS and len(words) > 1 and not line.lstrip().startswith("|"):
            yield f"{path}:{number}: {len(line)} columns; allowed: {COLUMNS}"


def headings(markdown):
    """Anchors as GitHub makes them."""
    anchors = set()
    for line in re.findall(r"^#+\s+(.*)$", markdown, re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", line.strip().lower())
        anchors.add(plain.replace(" ", "-"))
    return anchors


def links(root, path):
    text = re.sub(r"```.*?```", "", text_of(root, path), flags=re.DOTALL)
    for match in LINK.finditer(text):
        target = match.group(1) or match.group(2)
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (root / path).parent / name if name else root / path
        if not file.exists():
            yield f"{path}: link to {target}: no such file"
        elif anchor and file.suffix == ".md" and anchor not in headings(file.read_text(encoding="utf-8")):
            yield f"{path}: link to {target}: no such heading"


def unseen_pictures(root, paths):
    shown = {(root / path).parent.joinpath(match[1] or match[2]).resolve() for path in paths if path.suffix == ".md"
             for match in LINK.finditer(text_of(root, path))}
    yield from (f"{path}: no Markdown file shows it" for path in paths
                if path.parts[0] == "docs" and path.suffix in (".png", ".svg") and (root / path).resolve() not in shown)


def part_of(text, part):
    """What stands between the lines with [part] and [/part], without its indentation; all of a file without parts."""
    if not part:
        return text
    found = re.search(rf"^[ \t]*(?://|/\*) \[{part}\][^\n]*\n(.*?)^[^\n]*\[/{part}\]", text,
                      flags=re.DOTALL | re.MULTILINE)
    return textwrap.dedent(found[1]) if found else None


def snippets(root, path):
    """Every example that names a file of the tests, or a part of one, is that file or part."""
    shown = re.findall(r"<!-- same as (\S+?)(?: \[(\w+)\])? -->\n```\w*\n(.*?)```", text_of(root, path), flags=re.DOTALL)
    if not shown and path == pathlib.Path("README.md"):
        yield "README.md: shows no example that is tested (<!-- same as FILE --> before its code block)"
    for name, part, snippet in shown:
        if not (root / name).is_file():
            yield f"{path}: example of {name}: no such file"
        elif snippet != part_of(text_of(root, name), part):
            yield f"{path}: example differs from {' '.join(filter(None, (name, part)))}, which is what the tests build"


# ---- names -------------------------------------------------------------------------------------------------

def endings(paths):
    """Every ending of every file (`a/b.cpp`, `b.cpp`), and of every folder with a slash (`a/`)."""
    found = set()
    for path in paths:
        parts = path.parts
        for begin in range(len(parts)):
            for end in range(begin + 1, len(parts)):
                found.add("/".join(parts[begin:end]) + "/")
            found.add("/".join(parts[begin:]))
    return found


def spelled_out(name):
    """`a.{cpp,hpp}` is two names."""
    brace = re.search(r"\{([^{}]*)\}", name)
    if not brace:
        return [name]
    return [end for word in brace[1].split(",")
            for end in spelled_out(name[:brace.start()] + word + name[brace.end():])]


def is_there(name, known):
    name = re.sub(r"^(\.\.?/)+", "", name)
    placeholder = any(re.fullmatch(r"[A-Z][A-Z0-9_]*(\.\w+)?", part) and not part.endswith(".md")
                      for part in name.rstrip("/").split("/"))
    if OUTSIDE.match(name) or "<" in name or placeholder:
        return True
    return all(fnmatch.filter(known, end) if re.search(r"[*?]", end) else end in known for end in spelled_out(name))


def names(root, path):
    """(line, name) of what a document or the comments of a source name."""
    comments = HASHES if path.name in ("dev", "CMakeLists.txt") else COMMENTS.get(path.suffix)
    if path.suffix != ".md" and comments is None:
        return
    text = text_of(root, path)
    if path.suffix == ".md":
        spans = list(re.finditer(r"`([^`\n]+)`", text))
        pieces = [(0, text, PATH), *((span.start(1), span[1], BARE) for span in spans)]
        yield from ((text.count("\n", 0, span.start()) + 1, span[1]) for span in spans if FOLDER.fullmatch(span[1]))
    else:
        pieces = [(part.start(), part[0], rule) for part in comments.finditer(text) for rule in (PATH, BARE)]
    for start, piece, rule in pieces:
        for match in rule.finditer(piece):
            yield text.count("\n", 0, start + match.start()) + 1, match[1]


def missing_names(root, paths):
    known = endings(paths)
    for path in paths:
        planted = path.name.startswith("lint_")  # faults that the lint scripts plant
        if not planted and not path.is_relative_to(RECORDS):
            for line, name in sorted(set(names(root, path))):
                if not is_there(name, known):
                    yield f"{path}:{line}: names {name}: no file or folder of the tree ends so"


# ---- the map -----------------------------------------------------------------------------------------------

def map_problems(root, paths):
    """The map: its folders are in the tree; each folder of the tree is in it, or all that are below it."""
    table = re.search(r"^## The parts\n+((?:\|.*\n)+)", text_of(root, MAP), re.MULTILINE)
    if not table:
        yield f"{MAP}: has no table under the heading 'The parts'"
        return
    folders = {parent.as_posix() + "/" for path in paths for parent in path.parents if parent.parts}
    rows = {}
    for row in table[1].splitlines()[2:]:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        for name in re.findall(r"`([^`]+/)`", cells[0]):
            rows[name] = re.findall(r"`([\w.-]+/)`", cells[1])
    for name, parts in rows.items():
        if name not in folders:
            yield f"{MAP}: the map has {name}, which the tree lacks"
        else:
            yield from (f"{MAP}: the map has {part} below {name}, which the tree lacks" for part in parts
                        if not any(f.startswith(name) and f.endswith("/" + part) for f in folders))

    def mapped(folder):
        below = {f for f in folders if f.startswith(folder) and f.count("/") == folder.count("/") + 1}
        files = any(path.parent.as_posix() + "/" == folder and path.name != "CMakeLists.txt" for path in paths)
        return folder in rows or (bool(below) and not files and all(mapped(f) for f in below))

    yield from (f"{MAP}: the map lacks {folder}" for folder in sorted(folders)
                if folder.count("/") == 1 and not mapped(folder))


def problems_of(root):
    paths = tree.files(root)
    problems = []
    for path in paths:
        if path.suffix == ".md":
            problems += lines(root, path)
            problems += links(root, path)
            problems += snippets(root, path)
    problems += unseen_pictures(root, paths)
    problems += missing_names(root, paths)
    problems += map_problems(root, paths)
    return problems


# ---- the lint itself ---------------------------------------------------------------------------------------

SOUND = {
    "README.md": "# Name\n\n<!-- same as tests/a.c -->\n```c\nint a;\n```\n",
    "tests/a.c": "int a;\n",
    "src/core/plan.cpp": "// see plan.hpp and core/plan.hpp\n",
    "src/core/plan.hpp": "/* core/plan.{cpp,hpp}, c*/plan.* and the README.md */\n",
    "docs/architecture.md": "# A\n\n## The parts\n\n| folder | what |\n| --- | --- |\n"
                            "| `src/core/` | |\n| `tests/` | |\n| `docs/` | |\n",
    "tests/b.cpp": "int a;\n  // [part]\n  if (a)\n    b();\n  // [/part]\n",
    "docs/page.md": "[to A](architecture.md#a), `src/core/`, `core/plan.cpp`, `build/y.cpp`, `<isa>/z.cpp`, `X/z.c`\n"
                    "<!-- same as tests/b.cpp [part] -->\n```cpp\nif (a)\n  b();\n```\n",
}
# (file, what is added to it, words of each problem that the lint must name)
PLANTED = [
    ("docs/page.md", "word " * 25, ("125 columns",)),
    ("docs/page.md", "| " + "word " * 25 + "|", ()),
    ("docs/page.md", "```\n" + "word " * 25 + "\n```", ("125 columns",)),
    ("docs/page.md", "[gone](src/gone.md)", ("link to src/gone.md: no such file",)),
    ("docs/page.md", "[gone](architecture.md#gone)", ("no such heading",)),
    ("docs/unseen.svg", "", ("docs/unseen.svg: no Markdown file shows it",)),
    ("docs/page.md", "`gone.cpp`", ("names gone.cpp",)),
    ("docs/page.md", "see src/gone.py", ("names src/gone.py",)),
    ("docs/page.md", "`src/gone/`", ("names src/gone/",)),
    ("docs/page.md", "`core/*.py`", ("names core/*.py",)),
    ("docs/notes/x.md", "`gone.cpp`", ()),
    ("docs/page.md", "https://example.org/src/gone.py", ()),
    ("src/core/plan.cpp", "// like gone.hpp", ("names gone.hpp",)),
    ("src/core/plan.cpp", "/* like\n * core/gone.json */", ("names core/gone.json",)),
    ("src/core/plan.cpp", '#include "gone.hpp"', ()),
    ("src/core/plan.py", "# like DESIGN.md", ("names DESIGN.md",)),
    ("tests/a.c", "int b;", ("example differs from tests/a.c",)),
    ("tests/b.cpp", "int b;", ()),
    ("docs/page.md", "<!-- same as tests/b.cpp [part] -->\n```cpp\nif (a) b();\n```", ("tests/b.cpp part, which",)),
    ("docs/page.md", "<!-- same as tests/b.cpp [gone] -->\n```cpp\n```", ("tests/b.cpp gone, which",)),
    ("other/new.cpp", "", ("the map lacks other/",)),
    ("src/new/new.cpp", "", ("the map lacks src/",)),
    ("docs/architecture.md", "| `gone/` | |", ("names gone/", "the map has gone/")),
    ("docs/architecture.md", "| `docs/` | `gone/` |", ("names gone/", "the map has gone/ below docs/")),
]


def self_test():
    """Problems of the lint itself: planted faults that it misses, right lines that it refuses."""
    problems = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, (name, added, wanted) in enumerate([("docs/page.md", "", ()), *PLANTED]):
            root = pathlib.Path(scratch) / str(number)
            for file, text in {**SOUND, name: SOUND.get(name, "") + added + "\n"}.items():
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                (root / file).write_text(text, encoding="utf-8")
            said = problems_of(root)
            if len(said) != len(wanted) or not all(words in problem for words, problem in zip(wanted, said)):
                problems.append(f"self-test: {name}: {added.strip()!r}: said {said}")
    return problems


def main():
    return tree.report("docs", self_test() + problems_of(tree.ROOT))


if __name__ == "__main__":
    sys.exit(main())
