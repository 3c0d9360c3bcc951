#!/usr/bin/env python3
"""Plants random one-line faults in reference/ and optimized/ and lists those that the test suite does not find.

    mutate.py [--count 20] [--seed 1] [--jobs 2] [--timeout 300] [--only N] [--list] [--path PREFIX]

Works on a copy of the tree below build/mutate, never on the tree itself. Every mutant is built incrementally and
the suite runs until its first failure. Exit status 0: all found; 1: survivors; 2: the unmutated copy fails.
Faults: changed operators, bounds and constants, swapped arguments, dropped statements (standard library only).
"""

import argparse
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutate"
COPIED = ["CMakeLists.txt", "CMakePresets.json", "cmake", "include", "reference", "optimized", "bindings", "cli",
          "conformance", "fuzz", "tests", "bench", "golden", "models", "docs", "dev", "README.md", "LICENSE"]

# (what it is called, pattern, replacement); each match of a line is one candidate.
REPLACEMENTS = [
    ("< to <=", r"(?<=[\w\)\]] )<(?= [\w\(\-])", "<="),
    ("<= to <", r"(?<= )<=(?= )", "<"),
    ("> to >=", r"(?<=[\w\)\]] )>(?= [\w\(\-])", ">="),
    (">= to >", r"(?<= )>=(?= )", ">"),
    ("== to !=", r"(?<= )==(?= )", "!="),
    ("!= to ==", r"(?<= )!=(?= )", "=="),
    ("+ to -", r"(?<=[\w\)\]] )\+(?= [\w\(])", "-"),
    ("- to +", r"(?<=[\w\)\]] )-(?= [\w\(])", "+"),
    ("* to +", r"(?<=[\w\)\]] )\*(?= [\w\(])", "+"),
    ("/ to *", r"(?<=[\w\)\]] )/(?= [\w\(])", "*"),
    ("% to /", r"(?<=[\w\)\]] )%(?= [\w\(])", "/"),
    ("+= to -=", r"(?<= )\+=(?= )", "-="),
    ("+= to =", r"(?<= )\+=(?= )", "="),
    ("&& to ||", r"(?<= )&&(?= )", "||"),
    ("|| to &&", r"(?<= )\|\|(?= )", "&&"),
    ("min to max", r"std::min\b", "std::max"),
    ("max to min", r"std::max\b", "std::min"),
    ("0 to 1", r"(?<=[ \(\[])0(?=[;,\) \]])", "1"),
    ("1 to 0", r"(?<=[ \(\[])1(?=[;,\) \]])", "0"),
    ("1 to 2", r"(?<=[ \(\[])1(?=[;,\) \]])", "2"),
    ("begin to end", r"\bbegin\b(?!\()", "end"),
    ("end to begin", r"\bend\b(?!\()", "begin"),
    ("true to false", r"\btrue\b", "false"),
    ("false to true", r"\bfalse\b", "true"),
    ("drop !", r"(?<=[\( ])!(?=\w)", ""),
    ("exp to exp2", r"std::exp\(", "std::exp2("),
    ("swapped arguments", r"\((\w+), (\w+)\)", r"(\2, \1)"),
    ("constant * 1.01", r"(?<![\w.])(\d+\.\d+)(f?)(?![\w.])", None),
]
SKIPPED_LINE = re.compile(r"^\s*(//|#|\*|namespace|using|template|static_assert|class|struct|\[\[)|HEADWATER_SABOTAGE|"
                          r"HEADWATER_MARK|std::to_string|\"")
STATEMENT = re.compile(r"^\s+[\w:\.\->\[\]\(\)\*]+(\(.*\)| [-+*/|&]?= .*);$")


def candidates(text):
    """(line index, name, new line) of every fault that a file offers."""
    found = []
    for index, line in enumerate(text.split("\n")):
        if SKIPPED_LINE.search(line):
            continue
        code, _, tail = line.partition(" //")
        tail = f" //{tail}" if tail else ""
        for name, pattern, replacement in REPLACEMENTS:
            for match in re.finditer(pattern, code):
                if replacement is None:
                    new = f"{float(match.group(1)) * 1.01 + (match.group(1).strip('0.') == '') * 0.01:.9g}"
                    new += ("" if "." in new or "e" in new else ".0") + match.group(2)
                else:
                    new = match.expand(replacement)
                changed = code[: match.start()] + new + code[match.end() :]
                if changed != code:
                    found.append((index, name, changed + tail))
        if STATEMENT.match(code) and not code.strip().startswith(("return", "throw", "delete")):
            found.append((index, "dropped statement", re.match(r"\s*", code).group() + ";" + tail))
    return found


def sources(prefixes):
    files = []
    for folder in ("reference", "optimized"):
        for path in sorted((ROOT / folder).rglob("*")):
            name = str(path.relative_to(ROOT))
            if path.suffix in (".cpp", ".hpp") and (not prefixes or any(name.startswith(p) for p in prefixes)):
                files.append(path)
    return files


def run(command, timeout, log):
    with open(log, "w") as output:
        try:
            return subprocess.run(command, cwd=WORK / "tree", stdout=output, stderr=subprocess.STDOUT,
                                  stdin=subprocess.DEVNULL, timeout=timeout).returncode
        except subprocess.TimeoutExpired:
            return 124


def build_and_test(jobs, timeout):
    """None if it does not compile, else True if the suite passes."""
    if run(["cmake", "--build", "out", "-j", str(jobs)], 1200, WORK / "build.log") != 0:
        return None
    command = ["ctest", "--test-dir", "out", "-j", str(jobs), "--stop-on-failure", "--timeout", str(timeout),
               "-LE", "exhaustive|package|lint|demo"]
    return run(command, 4 * timeout, WORK / "test.log") == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=int, default=300)
    parser.add_argument("--only", type=int, action="append", help="only mutant number N of this seed")
    parser.add_argument("--path", action="append", help="only files whose path begins so")
    parser.add_argument("--list", action="store_true", help="print the mutants, test nothing")
    arguments = parser.parse_args()

    pool = []
    for path in sources(arguments.path):
        text = path.read_text()
        pool += [(path.relative_to(ROOT), *mutation) for mutation in candidates(text)]
    random.Random(arguments.seed).shuffle(pool)
    chosen = list(enumerate(pool[: arguments.count]))
    if arguments.only:
        chosen = [(number, pool[number]) for number in arguments.only]
    if arguments.list:
        for number, (path, index, name, line) in chosen:
            print(f"{number:4} {path}:{index + 1}: {name}: {line.strip()}")
        print(f"{len(pool)} candidates")
        return 0

    tree = WORK / "tree"
    tree.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, dirs_exist_ok=True,
                            copy_function=copy_if_changed)
        elif (ROOT / name).exists():
            copy_if_changed(ROOT / name, tree / name)
    configure = ["cmake", "-S", ".", "-B", "out", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                 "-DHEADWATER_WERROR=OFF", "-DHEADWATER_BENCH=OFF"]
    if run(configure, 300, WORK / "configure.log") != 0 or build_and_test(arguments.jobs, arguments.timeout) is not True:
        print(f"the unmutated copy fails: see {WORK}", file=sys.stderr)
        return 2

    survivors = killed = broken = 0
    for number, (path, index, name, line) in chosen:
        target = tree / path
        original = target.read_text()
        lines = original.split("\n")
        before = lines[index]
        lines[index] = line
        begin = time.time()
        try:
            target.write_text("\n".join(lines))
            passed = build_and_test(arguments.jobs, arguments.timeout)
        finally:
            target.write_text(original)
        verdict = "does not compile" if passed is None else "SURVIVED" if passed else "killed"
        broken += passed is None
        survivors += passed is True
        killed += passed is False
        print(f"{number:4} {verdict:16} {time.time() - begin:5.0f} s  {path}:{index + 1}: {name}", flush=True)
        if passed:
            print(f"       - {before.strip()}\n       + {line.strip()}", flush=True)
    tried = survivors + killed
    print(f"{tried} mutants, {killed} killed, {survivors} survived, {broken} did not compile")
    return 1 if survivors else 0


def copy_if_changed(source, target):
    """Keeps time stamps of unchanged files, so that the next build is incremental."""
    source, target = pathlib.Path(source), pathlib.Path(target)
    if not target.exists() or target.read_bytes() != source.read_bytes():
        shutil.copyfile(source, target)
        shutil.copymode(source, target)
    return str(target)


if __name__ == "__main__":
    sys.exit(main())
