"""clang-tidy over what is shipped: run_tidy.py BUILD/compile_commands.json [--all]

Files of one language and processor are looked at together, as one file that includes them, with the macros of all: nearly
all of the time goes into the headers. Those that do not compile beside the others make groups of their own later. Two groups
at a time on two cores; --all adds conformance, fuzz, tests and bench, whose template-heavy headers (GoogleTest, rapidcheck, Eigen) cost
several times as much as they find.
A group that passed is not looked at again until a file in it, a header of this repository that one includes, the command or
the checks change (build/tidy/).
"""

import collections
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import lint_includes
import tree

PROGRAMS = ("clang-tidy-14", "clang-tidy")
SHIPPED = ("reference/", "optimized/", "bindings/", "cli/", "runtime/")
LARGEST = 32  # files of a group
CACHE = tree.ROOT / "build" / "tidy"
# Flags that g++ knows and clang does not.
UNKNOWN_TO_CLANG = re.compile(r"^(-fopenmp|-fno-semantic-interposition|-fno-thread-jumps|-Wno-psabi)$")
# Warnings that stand for checks of clang-tidy's (.clang-tidy).
WARNINGS = ("-Wno-unknown-warning-option", "-Wreserved-identifier", "-Wnonnull")
# Flags that files of one group share. The others say where headers are, what has been found, and how code is optimised.
SHARED = re.compile(r"^-(m|std=)")


def commands(database, everything):
    """One (source, arguments) for each file: the shipped variant, not its testing twin."""
    chosen = {}
    for entry in json.loads(pathlib.Path(database).read_text(encoding="utf-8")):
        source = pathlib.Path(entry["file"])
        if not source.is_relative_to(tree.ROOT):
            continue
        name = source.relative_to(tree.ROOT).as_posix()
        if name.startswith("build/") or not (everything or name.startswith(SHIPPED)):
            continue
        words = shlex.split(entry["command"]) if "command" in entry else entry["arguments"]
        kept, skip = [], False
        for word in words:
            if skip or word in ("-c", str(source)):
                skip = False
            elif word in ("-o", "-MF", "-MT", "-include"):  # the last is g++'s precompiled header
                skip = True
            elif word not in ("-MD", "-Werror", "-Winvalid-pch") and not UNKNOWN_TO_CLANG.match(word):
                kept.append(word)
        first = next(i for i, word in enumerate(kept) if word.startswith("-"))  # after ccache and compiler
        arguments = kept[first:]
        if name not in chosen or "-DHEADWATER_TESTING" not in arguments:
            chosen[name] = (source, arguments, source.suffix == ".c")
    return chosen


def closure(source, seen):
    """The repository's files that source consists of."""
    path = pathlib.PurePosixPath(source.relative_to(tree.ROOT).as_posix())
    if path in seen:
        return
    seen.add(path)
    text = source.read_text(encoding="utf-8", errors="replace")
    for _, name in lint_includes.INCLUDE.findall(text):
        target, _ = lint_includes.resolve(tree.ROOT, path, name)
        if target is not None:
            closure(tree.ROOT / target, seen)


def key(sources, arguments, version):
    seen = set()
    for source in sources:
        closure(source, seen)
    digest = hashlib.sha256(version + "\0".join([*map(str, sources), *arguments]).encode())
    for path in [pathlib.PurePosixPath(".clang-tidy"), *sorted(seen)]:
        digest.update(str(path).encode() + b"\0" + (tree.ROOT / path).read_bytes())
    return digest.hexdigest()


def kind(arguments, is_c):
    """What files of one group have in common."""
    return ("-xc" if is_c else "-xc++", *sorted({word for word in arguments if SHARED.match(word)}))


def groups(language, files):
    """(sources, arguments) with LARGEST sources at most."""
    files = sorted(files)
    for begin in range(0, len(files), LARGEST):
        part = files[begin:begin + LARGEST]
        joined = [language]
        for _, arguments in part:
            for flag in re.findall(r"-isystem \S+|\S+", " ".join(arguments)):
                joined += [] if flag in joined else [flag]
        yield [source for source, _ in part], " ".join(joined).split()


def compiling_together(program, sources, arguments, file):
    """Those of the sources that compile as one file, which is written to `file`. Where two define a name, one of them gets
    another there; what still does not compile after the others is left out."""
    renamed = {source: [] for source in sources}
    while True:
        with open(file, "w", encoding="utf-8") as unit:
            for i, source in enumerate(sources):
                unit.writelines(f"#define {name} {name}{i}  // NOLINT\n" for name in renamed[source])
                unit.write(f'#include "{source}"\n')
                unit.writelines(f"#undef {name}\n" for name in renamed[source])
        if len(sources) == 1:
            return sources
        compiles = subprocess.run([program.replace("clang-tidy", "clang"), "-fsyntax-only", "-w", "-ferror-limit=0",
                                   *arguments, str(file)], capture_output=True, text=True, check=False)
        if compiles.returncode == 0:
            return sources
        # Of an error in a template it is the file that uses it.
        named = {where for where, _, _ in re.findall(
            r"^(/[^:]+):\d+:\d+: ((fatal )?error|note: in instantiation)", compiles.stderr, re.MULTILINE)}
        before = sum(map(len, renamed.values()))
        for where, name in re.findall(r"^(/[^:]+):\d+:\d+: error: redefinition of '(\w+)'", compiles.stderr, re.MULTILINE):
            source = pathlib.Path(where)
            if source in renamed and name not in renamed[source]:
                renamed[source].append(name)
                named.discard(where)
        left = [source for source in sources if str(source) not in named]
        nothing_new = len(left) == len(sources) and sum(map(len, renamed.values())) == before
        sources = sources[:len(sources) // 2] if nothing_new or not left else left


def tidy(program, sources, arguments, version):
    """The problems of those of the group that can be looked at together, each file's once; the other sources."""
    name = key(sources, arguments, version)
    if (CACHE / name).exists():
        return [], []
    file = CACHE / f"{name}.unit"
    together = compiling_together(program, sources, arguments, file)
    others = [source for source in sources if source not in together]
    passed = CACHE / key(together, arguments, version)
    if passed.exists():
        return [], others
    run = subprocess.run([program, "--quiet", "--checks=-bugprone-suspicious-include", str(file), "--", *arguments, *WARNINGS],
                         cwd=tree.ROOT, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        what = ", ".join(str(source.relative_to(tree.ROOT)) for source in together)
        return [f"{what}: clang-tidy:\n{run.stdout}{run.stderr}"], others
    passed.touch()
    return [], others


def main():
    arguments = [a for a in sys.argv[1:] if a != "--all"]
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    program = next((name for name in PROGRAMS if shutil.which(name)), None)
    if program is None:
        return tree.report("tidy", [f"none of {', '.join(PROGRAMS)} is installed"])
    version = subprocess.run([program, "--version"], capture_output=True, check=True).stdout
    CACHE.mkdir(parents=True, exist_ok=True)
    chosen = commands(arguments[0], "--all" in sys.argv[1:])
    if not chosen:
        return tree.report("tidy", [f"{arguments[0]}: names no source of this repository"])
    waiting = collections.defaultdict(list)  # by kind
    for source, arguments, is_c in chosen.values():
        waiting[kind(arguments, is_c)].append((source, arguments))
    flags_of = {source: arguments for source, arguments, _ in chosen.values()}
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        problems, running = [], {}
        while waiting or running:
            # The most files first. What did not compile beside others waits until all of its kind have been tried.
            for what in sorted(set(waiting) - set(running.values()), key=lambda what: -len(waiting[what])):
                for sources, flags in groups(what[0], waiting.pop(what)):
                    running[pool.submit(tidy, program, sources, flags, version)] = what
            ended, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for job in ended:
                found, others = job.result()
                problems += found
                what = running.pop(job)
                if others:
                    waiting[what] += [(source, flags_of[source]) for source in others]
    print(f"tidy: {len(chosen)} files")
    return tree.report("tidy", problems)


sys.exit(main())
