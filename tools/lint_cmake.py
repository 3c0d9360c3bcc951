"""Checks the CMake files: python3 tools/lint_cmake.py

Every C, C++ and CUDA source is in the list of a target, and every CMakeLists.txt is reached, so that no file is left
out by mistake. Nothing in them reaches into a project that embeds this one: options stand in the root file and in the
table of docs/HACKING.md, flags belong to targets, and paths start from PROJECT_SOURCE_DIR. Names of targets, ctest
entries, GoogleTest cases and Python files follow the patterns of docs/HACKING.md. The lint proves itself first: it plants
violations into a scratch tree and expects to see exactly those.
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

MAKES_TARGETS = {"add_library", "add_executable", "add_custom_target", "headwater_part", "headwater_cuda_objects"}
WORD = "[a-z0-9]+(?:_[a-z0-9]+)*"
TARGET = re.compile(rf"headwater(?:[_-]{WORD})*|(?:test|fuzz|replay)_{WORD}|{WORD}_plugin")
ENTRY = re.compile(rf"({WORD})(?:[.]{WORD})?")
GTEST = re.compile(r"^(?:TYPED_)?(?:TEST|RC_GTEST)\w*\(\s*(\w+),\s*(\w+)", re.MULTILINE)
GTEST_CASE = re.compile(r"(?:(?:[A-Z]+|P?\d+|and|to)_)*[A-Z][A-Za-z0-9]*")
PYTHON_TEST = re.compile(r"^ +def test_", re.MULTILINE)

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
        self.targets, self.entries = set(), set()
        everything = list(replayed((root / path).read_text(encoding="utf-8")))
        self.is_own_project = any(name == "project" for name, _ in everything) and self.folder.parts != ()
        for name, arguments in everything:
            self.assign(name, arguments)
        for name, arguments in everything:
            if name in TAKES_SOURCES or (name.startswith("headwater_") and name not in NOT_OWN_SOURCES):
                self.sources |= self.named(arguments)
            elif name == "add_subdirectory":
                self.folders |= {self.resolved(word) for word in self.expanded(arguments[:1])}
            if name in MAKES_TARGETS:
                self.targets.add(arguments[0])
            elif name in ("add_test", "headwater_unit_test"):
                self.entries.add(arguments[1 if name == "add_test" else 0])

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

    def misnamed(self):
        """Targets and ctest entries against the patterns; a variable stands for any word."""
        for target in sorted(self.targets):
            if not VARIABLE.fullmatch(target) and "::" not in target and not TARGET.fullmatch(VARIABLE.sub("x", target)):
                yield f"{self.path}: target {target}; allowed: headwater_PART, headwater-PROGRAM, test_ENTRY, fuzz_NAME, " \
                      "replay_NAME, NAME_plugin"
        for entry in sorted(self.entries):
            match = ENTRY.fullmatch(VARIABLE.sub("x", entry))
            if not match or not (entry.startswith("${") or match.group(1) in self.folder.parts):
                yield f"{self.path}: ctest entry {entry}; allowed: FOLDER or FOLDER.SUBJECT, where FOLDER is one of this file's"

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


def misnamed_files(root, paths):
    """Python files, and the GoogleTest cases of C++ files, against the patterns."""
    for path in paths:
        if path.suffix == ".py":
            if not re.fullmatch(f"_?{WORD}|__init__|__main__", path.stem):
                yield f"{path}: the name of a Python file is lower-case words with _ between them, and _ in front where a " \
                      "package keeps it to itself"
            is_test = PYTHON_TEST.search((root / path).read_text(encoding="utf-8"))
            if path.stem.endswith("_test") or (is_test and not path.stem.startswith("test_")):
                yield f"{path}: a Python file of tests is test_SUBJECT.py"
        elif path.suffix == ".cpp":
            for suite, case in GTEST.findall((root / path).read_text(encoding="utf-8")):
                if not re.fullmatch("[A-Z][A-Za-z0-9]*", suite) or not GTEST_CASE.fullmatch(case):
                    yield f"{path}: {suite}.{case}; allowed: UpperCamel.UpperCamel, with clause ids (MEM_3_) before the case"


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
    found += [problem for one in lists if not any(one.path.is_relative_to(own) for own in own_projects)
              for problem in one.misnamed()]
    found += misnamed_files(root, paths)
    return found + list(dict.fromkeys(embedding(root, paths, own_projects)))


# A tree without fault.
CLEAN = {
    "CMakeLists.txt": "project(x)\noption(HEADWATER_A \"a\" ON)\nforeach(d IN ITEMS one two)\nadd_subdirectory(${d})\nendforeach()\n"
                      "",
    "docs/HACKING.md": "| `HEADWATER_A` | ON | a |\n",
    "one/CMakeLists.txt": "set(more b.cpp)\nlist(APPEND more \"${CMAKE_CURRENT_SOURCE_DIR}/sub/c.cu\")\n"
                          "headwater_part(headwater_one SOURCES a.cpp ${more})\n"
                          "headwater_unit_test(one SOURCES a.cpp)\nadd_test(NAME one.sub_case COMMAND x)\n",
    "one/a.cpp": "TEST(Sets, MEM_3_to_5_AreAscending) {}\n", "one/test_a.py": "class A:\n    def test_b(self):\n", "one/b.cpp": "", "one/sub/c.cu": "",
    "two/CMakeLists.txt": "function(fuzzer what)\nadd_executable(fuzz_${what} target_${what}.cpp)\nadd_test(NAME two.${what} COMMAND x)\n"
                          "endfunction()\nfuzzer(a)\n",
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
    ("one/CMakeLists.txt", "add_library(parts OBJECT a.cpp)\n", "one/CMakeLists.txt: target parts"),
    ("one/CMakeLists.txt", "headwater_part(headwater_Two SOURCES a.cpp)\n", "one/CMakeLists.txt: target headwater_Two"),
    ("two/CMakeLists.txt", "add_test(NAME one.a COMMAND x)\n", "two/CMakeLists.txt: ctest entry one.a"),
    ("two/CMakeLists.txt", "add_test(NAME two_a COMMAND x)\n", "two/CMakeLists.txt: ctest entry two_a"),
    ("one/CMakeLists.txt", "headwater_unit_test(one.A SOURCES a.cpp)\n", "one/CMakeLists.txt: ctest entry one.A"),
    ("one/a.cpp", "TEST(Sets, are_ascending) {}\n", "one/a.cpp: Sets.are_ascending"),
    ("one/a.cpp", "TEST_P(sets, Ascend) {}\n", "one/a.cpp: sets.Ascend"),
    ("one/Names.py", "", "one/Names.py: the name of a Python file"),
    ("one/c_test.py", "", "one/c_test.py: a Python file of tests"),
    ("one/checks.py", "class A:\n    def test_b(self):\n", "one/checks.py: a Python file of tests"),
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
