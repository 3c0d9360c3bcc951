"""What the CMake files must say: python3 tools/lint_cmake.py

Every C, C++ and CUDA source is in the list of a target, and every CMakeLists.txt is reached, so that no file is lost
without a word. Nothing in them reaches into a project that embeds this one: options stand in the root file and in the
table of docs/HACKING.md, flags belong to targets, and paths start from PROJECT_SOURCE_DIR. The lint proves itself first:
it plants violations into a scratch tree and expects to see exactly those.
"""

import pathlib
import re
import sys
import tempfile

import tree

SOURCES = (".cpp", ".c", ".cc", ".cu")
# Commands that give sources to a target, besides the project's own functions.
TAKES_SOURCES = {"add_library", "add_executable", "target_sources"}
# Takes objects of conformance/ by their names there.
NOT_OWN_SOURCES = {"headwater_kit_objects"}
OF_THE_DIRECTORY = {"add_compile_options", "add_compile_definitions", "add_definitions", "add_link_options",
                    "include_directories", "link_directories", "link_libraries"}

TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|#[^\n]*|[()]|[^\s()"#]+')
VARIABLE = re.compile(r"\$\{(\w+)\}")


def commands(text):
    """(name, arguments) of every command, comments and quotes left out."""
    tokens = [token for token in TOKEN.findall(text) if not token.startswith("#")]
    at = 0
    while at + 1 < len(tokens):
        name, at, depth, arguments = tokens[at].lower(), at + 2, 1, []
        while depth and at < len(tokens):
            depth += {"(": 1, ")": -1}.get(tokens[at], 0)
            if tokens[at] not in "()":
                arguments.append(tokens[at].strip('"'))
            at += 1
        yield name, arguments


def replayed(text):
    """The commands, with the body of a function of this file in the place of each of its calls."""
    functions, open_name, body = {}, None, []
    for name, arguments in commands(text):
        if name == "function":
            open_name, body = arguments[0].lower(), []
            functions[open_name] = (arguments[1:], body)
        elif name == "endfunction":
            open_name = None
        elif open_name:
            body.append((name, arguments))
        else:
            yield name, arguments
            if name in functions:
                parameters, inner = functions[name]
                values = dict(zip(parameters, arguments))
                for inner_name, inner_arguments in inner:
                    yield inner_name, [VARIABLE.sub(lambda m: values.get(m.group(1), m.group()), word)
                                       for word in inner_arguments]


class List:
    """One CMakeLists.txt: the files and folders that it names."""

    def __init__(self, root, path, paths):
        self.root, self.path, self.folder, self.paths = root, path, path.parent, paths
        self.values = {}  # of variables: all that any command gives them
        self.sources, self.folders, self.problems = set(), set(), []
        everything = list(replayed((root / path).read_text(encoding="utf-8")))
        self.is_own_project = any(name == "project" for name, _ in everything) and self.folder.parts != ()
        for name, arguments in everything:
            self.assign(name, arguments)
        for name, arguments in everything:
            if name in TAKES_SOURCES or (name.startswith("headwater_") and name not in NOT_OWN_SOURCES):
                self.sources |= self.named(arguments)
            elif name == "add_subdirectory":
                self.folders |= {self.resolved(word) for word in self.expanded(arguments[:1])}

    def assign(self, name, arguments):
        if name == "file" and arguments[0].startswith("GLOB"):
            self.problems.append(f"{self.path}: names files by a pattern (file GLOB); list them")
        elif name == "set":
            self.values.setdefault(arguments[0], []).extend(arguments[1:])
        elif name == "list" and arguments[0] in ("APPEND", "PREPEND"):
            self.values.setdefault(arguments[1], []).extend(arguments[2:])
        elif name == "foreach":
            lists = [f"${{{word}}}" for word in arguments[2:]] if "LISTS" in arguments else arguments[1:]
            self.values.setdefault(arguments[0], []).extend(lists)

    def expanded(self, words, depth=5):
        for word in words:
            whole = VARIABLE.fullmatch(word)
            if whole and depth:
                yield from self.expanded(self.values.get(whole.group(1), []), depth - 1)
            else:
                yield word

    def resolved(self, word):
        word = word.replace("${CMAKE_CURRENT_SOURCE_DIR}/", "")
        base = self.folder
        if word.startswith("${PROJECT_SOURCE_DIR}/"):
            base, word = pathlib.PurePosixPath(), word.removeprefix("${PROJECT_SOURCE_DIR}/")
        parts = []
        for part in (base / word).parts:
            if part == ".." and parts:
                parts.pop()
            else:
                parts.append(part)
        return pathlib.PurePosixPath(*parts)

    def named(self, words):
        return {self.resolved(word) for word in self.expanded(words) if word.endswith(SOURCES)}


def options_of(text):
    """Names of the options and of the settings in the cache that a file declares."""
    for name, arguments in commands(text):
        if name == "option":
            yield arguments[0]
        elif name == "set" and "CACHE" in arguments and "INTERNAL" not in arguments:
            yield arguments[0]


def embedding(root, paths, own_projects):
    """What would reach into a project that embeds this one."""
    for path in paths:
        if path.name != "CMakeLists.txt" and path.suffix != ".cmake":
            continue
        if any(path.is_relative_to(folder) for folder in own_projects):
            continue
        text = (root / path).read_text(encoding="utf-8")
        for name, arguments in commands(text):
            if name in OF_THE_DIRECTORY:
                yield f"{path}: {name} is for all targets of a folder; use target_{name.removeprefix('add_')}"
            for word in arguments:
                if match := re.search(r"CMAKE_(SOURCE|BINARY)_DIR", word):
                    yield f"{path}: {match.group()} is another's folder in a project that embeds this one; " \
                          f"write PROJECT_{match.group(1)}_DIR"
        if path.as_posix() != "CMakeLists.txt":
            for option in options_of(text):
                yield f"{path}: declares the option {option}; options stand in the root CMakeLists.txt"
    declared = set(options_of((root / "CMakeLists.txt").read_text(encoding="utf-8")))
    table = set(re.findall(r"^\| `(HEADWATER_\w+)` \|", (root / "docs/HACKING.md").read_text(encoding="utf-8"), re.MULTILINE))
    for option in sorted(declared ^ table):
        where, lacks = ("CMakeLists.txt", "docs/HACKING.md") if option in declared else ("docs/HACKING.md", "CMakeLists.txt")
        yield f"{where}: option {option} is not in {lacks}"


def violations(root, paths):
    lists = [List(root, path, paths) for path in paths if path.name == "CMakeLists.txt"]
    own_projects = [one.folder for one in lists if one.is_own_project]
    found = [problem for one in lists for problem in one.problems]
    listed = set().union(*(one.sources for one in lists))
    found += [f"{path}: is in no list of a CMakeLists.txt" for path in paths
              if path.suffix in SOURCES and path not in listed]
    reached = set().union(*(one.folders for one in lists))
    found += [f"{one.path}: no add_subdirectory reaches it" for one in lists
              if one.folder.parts != () and not one.is_own_project and one.folder not in reached]
    return found + list(dict.fromkeys(embedding(root, paths, own_projects)))


# A tree without fault.
CLEAN = {
    "CMakeLists.txt": "project(x)\noption(HEADWATER_A \"a\" ON)\nforeach(d IN ITEMS one two)\nadd_subdirectory(${d})\nendforeach()\n"
                      "",
    "docs/HACKING.md": "| `HEADWATER_A` | ON | a |\n",
    "one/CMakeLists.txt": "set(more b.cpp)\nlist(APPEND more \"${CMAKE_CURRENT_SOURCE_DIR}/sub/c.cu\")\n"
                          "headwater_part(one SOURCES a.cpp ${more})\n",
    "one/a.cpp": "", "one/b.cpp": "", "one/sub/c.cu": "",
    "two/CMakeLists.txt": "function(fuzzer what)\nadd_executable(${what} target_${what}.cpp)\nendfunction()\nfuzzer(a)\n",
    "two/target_a.cpp": "",
    "two/project/CMakeLists.txt": "project(y)\nadd_compile_options(-g)\nadd_executable(z ../z.c)\n",
    "two/z.c": "",
}
# (file, what is appended to it or its text, what the lint says of it)
PLANTED = [
    ("one/lost.cpp", "", "one/lost.cpp: is in no list"),
    ("one/sub/a.cpp", "", "one/sub/a.cpp: is in no list"),
    ("two/target_b.cpp", "", "two/target_b.cpp: is in no list"),
    ("one/e.cpp", "", "one/e.cpp: is in no list"),
    ("one/CMakeLists.txt", "# e.cpp\nset(unused e.cpp)\nset_source_files_properties(e.cpp PROPERTIES X 1)\n", None),
    ("one/CMakeLists.txt", "file(GLOB s *.cpp)\n", "one/CMakeLists.txt: names files by a pattern"),
    ("three/CMakeLists.txt", "", "three/CMakeLists.txt: no add_subdirectory"),
    ("one/CMakeLists.txt", "add_link_options(--coverage)\n", "one/CMakeLists.txt: add_link_options is for all"),
    ("one/CMakeLists.txt", "set(x \"${CMAKE_SOURCE_DIR}/y\")\n", "one/CMakeLists.txt: CMAKE_SOURCE_DIR is another's"),
    ("one/CMakeLists.txt", "option(HEADWATER_B \"b\" ON)\n", "one/CMakeLists.txt: declares the option HEADWATER_B"),
    ("CMakeLists.txt", "set(HEADWATER_C x CACHE STRING \"c\")\n", "CMakeLists.txt: option HEADWATER_C is not in"),
    ("docs/HACKING.md", "| `HEADWATER_D` | ON | d |\n", "docs/HACKING.md: option HEADWATER_D is not in"),
]


def self_test():
    """Problems of the lint itself: planted violations that it misses, a clean tree that it refuses."""
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch)
        names = dict(CLEAN)

        def judged():
            for name, text in names.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text, encoding="utf-8")
            return violations(root, [pathlib.PurePosixPath(name) for name in sorted(names)])

        problems = [f"self-test: refused without reason: {found}" for found in judged()]
        wanted = []
        for name, text, says in PLANTED:
            names[name] = names.get(name, "") + text
            wanted += [says] if says else []
        seen = judged()
        problems += [f"self-test: missed: {says}" for says in wanted if sum(one.startswith(says) for one in seen) != 1]
        problems += [f"self-test: refused without reason: {one}" for one in seen if not one.startswith(tuple(wanted))]
        return problems


if __name__ == "__main__":
    sys.exit(tree.report("cmake", self_test() + violations(tree.ROOT, tree.files())))
