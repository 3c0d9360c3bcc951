#!/usr/bin/env python3
"""Plants random one-line faults in reference/ and optimized/ and lists those that no test finds.

    mutate.py [COUNT] [--seed 1] [--path PREFIX]... [--only N]... [--quick] [--again] [--list]

Works on a copy of the tree in build/mutate/tree, never on the tree itself. A mutant is judged in stages, cheapest first:
its own object is compiled, the unit tests of its folder run, then the conformance kit on the engine that it belongs to,
the laws, the golden vectors, the program's tests; the first failure ends it. Each stage builds only what it runs. A
stage that takes ten times the processor time that the sound tree took (at least 8 s) is stopped, and counts as a failure.

Verdicts: killed (by which stage); SURVIVED; open (with --quick, which leaves out the stages that take minutes: a run
without it judges these to the end); equivalent (the compiler made the same object code); refused (the compiler,
with -Werror, does not take it). COUNT (default 20) is the number of mutants that were killed, survived or are open.
build/mutate/results.json keeps every verdict; a mutant whose line has not changed since is not judged again, so a run
that was stopped goes on where it was. --again judges survivors anew (after a test was added).
Exit status 0: all found; 1: survivors; 2: the sound copy fails.
Faults: changed operators, bounds and constants, swapped arguments, dropped statements (standard library only).
"""

import argparse
import hashlib
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutate"
TREE = WORK / "tree"
OUT = TREE / "build" / "release"  # as deep as a build of the tree itself: the compiler's cache then knows its objects
RESULTS = WORK / "results.json"
SOUND = WORK / "sound.json"  # what the stages took in the sound tree, as long as it stays the same

FOLDERS = ("reference", "optimized/core", "optimized/cpu")
LEAST_LIMIT = 8  # seconds of the processor that any stage may take
LONGEST_WAIT = 3600  # seconds of the clock: only what waits for ever reaches it
# Waiting OpenMP threads sleep: a spinning one takes the core from its partner when something else runs beside.
ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
MEMORY = 24 << 30  # address space of a test: a loop without end must not take the machine with it


def kit(*arguments):
    return ["./headwater-conformance", "--no-ratchet", "--fail-fast", *arguments]


def ctest(pattern):
    return ["ctest", "--output-on-failure", "--stop-on-failure", "--no-tests=error", "-R", pattern]


def golden(*engines):
    """The golden vectors on these engines; on all without."""
    arguments = [argument for engine in engines for argument in ("--engine", engine)]
    return ["/usr/bin/python3", "-B", "../../golden/replay.py", "./headwater", *arguments]


# Folder -> stages: (name, targets that it needs, command in the build folder), cheapest and most telling first.
def program_stages(*engines):
    return [
        ("laws", ["fuzz_laws"], ["fuzz/fuzz_laws", "--gtest_brief=1"]),
        ("golden", ["headwater_cli"], golden(*engines)),
        ("api", ["headwater_api_test"], ["tests/api/headwater_api_test", "--gtest_brief=1"]),
    ]


LAST_STAGES = [
    ("fuzz corpora", ["replay_ops"], ctest("^fuzz[.]replay_ops$")),
    ("C ABI", ["headwater_c_abi_test"], ["tests/c_abi/headwater_c_abi_test"]),
    ("program", ["headwater_cli"], ctest("^(cli_output|cli_bad_flags)$")),
]
LONG_STAGES = ("kit", "kit, all", "emulated AMX")
STAGES = {
    "reference/": [
        ("unit tests", ["reference_tests"], ["tests/reference/reference_tests", "--gtest_brief=1"]),
        ("stages", ["headwater-conformance"], kit("--engine", "none")),
        ("kit, quick", ["headwater-conformance"], kit("--engine", "reference", "--quick")),
        *program_stages("reference"),
        ("kit", ["headwater-conformance"], kit("--engine", "reference")),
        *LAST_STAGES,
    ],
    "optimized/": [
        ("unit tests", ["test_optimized"], ["tests/optimized/test_optimized", "--gtest_brief=1"]),
        ("stages", ["headwater-conformance"], kit("--engine", "none")),
        ("kit, quick", ["headwater-conformance"], kit("--engine", "cpu-portable", "--quick")),
        *program_stages("cpu-portable"),
        ("kit", ["headwater-conformance"], kit("--engine", "cpu-portable")),
        *LAST_STAGES,
    ],
}
# What only some code runs: the wide kernels by another engine.
CPU_INFO = pathlib.Path("/proc/cpuinfo")
# Engine -> the flags of the processor that it needs.
ENGINES = {"cpu-portable": "", "cpu-avx2": "avx2", "cpu-avx512": "avx512f avx512bw avx512dq avx512vl",
           "cpu-avx512bf16": "avx512_bf16", "cpu-amx": "amx_bf16"}


def engines_here():
    """The CPU engines that this machine runs, the widest first."""
    flags = set(re.search(r"^flags\s*:(.*)$", CPU_INFO.read_text(), re.MULTILINE).group(1).split())
    return [name for name in reversed(ENGINES) if set(ENGINES[name].split()) <= flags]


def cpu_stages(*own):
    """Judges of code of the CPU engines, in particular of `own`."""
    here = engines_here()
    first = [name for name in own or here[:1] if name in here]
    rest = [name for name in here if name not in first]
    quick = [(f"kit, quick, {'own' if group is first else 'other'} engines", ["headwater-conformance"],
              kit("--engine", ",".join(group), "--quick")) for group in (first, rest) if group]
    return [STAGES["optimized/"][0], *quick, *program_stages(*here), ("kit, all", ["headwater-conformance"], kit()),
            *LAST_STAGES]


STAGES["optimized/cpu/"] = cpu_stages()
for folder in ("portable", "avx2", "avx512", "avx512bf16"):
    STAGES[f"optimized/cpu/kernels/{folder}/"] = cpu_stages(f"cpu-{folder}")
STAGES["optimized/cpu/kernels/wide/"] = cpu_stages("cpu-avx2", "cpu-avx512")
# AMX without AMX: the same kernels over tiles in software, which the test build alone has.
EMULATED = ["./headwater-conformance-testing", "--no-ratchet", "--fail-fast", "--engine", "cpu-amx-emulated"]
STAGES["optimized/cpu/kernels/amx_emulated/"] = [
    ("emulated AMX, quick", ["headwater-conformance-testing"], [*EMULATED, "--quick"]),
    ("emulated AMX", ["headwater-conformance-testing"], EMULATED),
]
STAGES["optimized/cpu/kernels/amx/unit."] = STAGES["optimized/cpu/kernels/amx_emulated/"]
STAGES["optimized/cpu/kernels/bf16/"] = [
    *STAGES["optimized/cpu/"][: -len(LAST_STAGES)],
    STAGES["optimized/cpu/kernels/amx_emulated/"][1],
    *LAST_STAGES,
]
# No engine uses the reference's transformer: its unit tests and those of the model runtime do.
STAGES["reference/transformer."] = [
    STAGES["reference/"][0],
    ("model tests", ["runtime_model"], ["tests/model/runtime_model", "--gtest_brief=1", "--gtest_filter=*Reference*"]),
]


def runs_here(name):
    """Whether this machine runs the code at all: real tiles need AMX. The way they are used has a twin in software."""
    real = name.startswith("optimized/cpu/kernels/amx/") and not name.startswith("optimized/cpu/kernels/amx/unit.")
    return not real or " amx_tile" in CPU_INFO.read_text()


def stages_of(path):
    return max(((prefix, stages) for prefix, stages in STAGES.items() if str(path).startswith(prefix)),
               key=lambda entry: len(entry[0]))[1]


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
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            name = str(path.relative_to(ROOT))
            if path.suffix in (".cpp", ".hpp") and (not prefixes or any(name.startswith(p) for p in prefixes)) \
                    and runs_here(name):
                files.append(path)
    return files


class Mutant:
    def __init__(self, number, path, index, name, line):
        self.number, self.path, self.index, self.name, self.line = number, path, index, name, line
        self.text = (ROOT / path).read_text()
        self.before = self.text.split("\n")[index]
        # The same line of the same file with the same change is the same mutant, wherever the line stands by now.
        same = self.text.split("\n")[:index].count(self.before)
        key = f"{path}\0{self.before}\0{line}\0{same}"
        self.key = hashlib.sha256(key.encode()).hexdigest()[:16]

    def mutated(self):
        lines = self.text.split("\n")
        lines[self.index] = self.line
        return "\n".join(lines)

    def where(self):
        return f"{self.path}:{self.index + 1}: {self.name}"


def run(command, log, processor_seconds=None):
    """Exit status in OUT (or TREE before it exists); 124 where it took too long. With processor_seconds it is a test:
    limited in memory and in time of the processor, which does not depend on what else runs on this machine. What
    waits for ever is stopped by the clock. Takes its children along when it is stopped."""

    def limited():
        if processor_seconds is None:
            return
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (int(processor_seconds), int(processor_seconds) + 2))

    with open(WORK / log, "w") as output:
        process = subprocess.Popen(command, cwd=OUT if OUT.is_dir() else TREE, stdout=output,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
                                   env=ENVIRONMENT, preexec_fn=limited)
        try:
            status = process.wait(timeout=LONGEST_WAIT)
            return 124 if status in (-signal.SIGXCPU, -signal.SIGKILL) else status
        except subprocess.TimeoutExpired:
            return 124
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def build(targets, jobs):
    return run(["ninja", "-j", str(jobs), *targets], "build.log") == 0


def processor_time():
    """Seconds of the processor that all finished children took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def objects(testing=False):
    """What the compiler made of the mutated folders for the shipped library, or for the one with test hooks."""
    found = {}
    for part in ("reference", "optimized"):
        for path in (OUT / part).rglob("*.o"):
            if ("_testing.dir" in str(path)) == testing:
                found[str(path)] = hashlib.sha256(path.read_bytes()).digest()
    return found


def copy_tree():
    """The tracked files and the new ones that git does not ignore; keeps the time stamps of unchanged ones."""
    names = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                           check=True, capture_output=True).stdout.decode().split("\0")
    wanted = {name for name in names if name and (ROOT / name).is_file()}
    TREE.mkdir(parents=True, exist_ok=True)
    for path in TREE.rglob("*"):
        name = str(path.relative_to(TREE))
        if path.is_file() and not name.startswith("build/") and name not in wanted:
            path.unlink()
    for name in sorted(wanted):
        source, target = ROOT / name, TREE / name
        if target.exists() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        shutil.copymode(source, target)


def digest_of_tree():
    """Of everything that is built or run."""
    digest = hashlib.sha256()
    for path in sorted(TREE.rglob("*")):
        if path.is_file() and path.suffix != ".md" and OUT.parent not in path.parents:
            digest.update(f"{path.relative_to(TREE)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def judge(mutant, sound, limits, jobs, quick):
    """(verdict, by what)."""
    stages = stages_of(mutant.path)
    left_out = False
    testing = stages[0][1] == ["headwater-conformance-testing"]
    for stage, targets, command in stages:
        if quick and stage in LONG_STAGES:
            left_out = True
            continue
        if not build(targets, jobs):
            return "refused", "compiler"
        # Only the mutant's own part: the other may still hold the object of the mutant before.
        part = str(OUT / mutant.path.parts[0])
        if all(sound.get(path) == digest for path, digest in objects(testing).items() if path.startswith(part)):
            return "equivalent", "same object code"
        status = run(command, "test.log", limits[stage, tuple(command)])
        if status != 0:
            return "killed", stage if status != 124 else f"{stage}: time limit"
    return ("open", "the quick stages") if left_out else ("SURVIVED", "")


def save(results):
    text = json.dumps(sorted(results.values(), key=lambda r: (r["path"], r["line"], r["after"])), indent=1)
    temporary = RESULTS.with_suffix(".tmp")
    temporary.write_text(text + "\n")
    temporary.replace(RESULTS)


def prepare(chosen_paths, jobs, quick):
    """Builds the sound copy and runs its stages: (object digests, time limits), or None where something fails."""
    copy_tree()
    configure = ["cmake", "--preset", "release", "-S", str(TREE), "-DHEADWATER_BENCH=OFF"]
    if run(configure, "configure.log") != 0:
        return None
    before = json.loads(SOUND.read_text()) if SOUND.exists() else {}
    tree = digest_of_tree()
    known = before["limits"] if before.get("tree") == tree else {}
    limits = {}
    for path in sorted(chosen_paths):
        for stage, targets, command in stages_of(path):
            key = (stage, tuple(command))
            if key in limits or (quick and stage in LONG_STAGES):
                continue
            if not build(targets, jobs):
                return None
            name = "\0".join([stage, *command])
            if name not in known:
                before = processor_time()
                if run(command, "test.log", 600) != 0:
                    print(f"stage '{stage}' fails: {' '.join(command)}", file=sys.stderr)
                    return None
                known[name] = max(LEAST_LIMIT, 10 * (processor_time() - before))
                SOUND.write_text(json.dumps({"tree": tree, "limits": known}))
            limits[key] = known[name]
    return {**objects(), **objects(testing=True)}, limits


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, nargs="?", default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", type=int, action="append", help="only mutant number N of this seed")
    parser.add_argument("--path", action="append", help="only files whose path begins so")
    parser.add_argument("--quick", action="store_true", help="leave out the stages that take minutes")
    parser.add_argument("--again", action="store_true", help="judge those anew that survived before")
    parser.add_argument("--list", action="store_true", help="print the mutants, test nothing")
    arguments = parser.parse_args()

    pool = []
    for path in sources(arguments.path):
        for mutation in candidates(path.read_text()):
            pool.append((path.relative_to(ROOT), *mutation))
    random.Random(arguments.seed).shuffle(pool)
    mutants = [Mutant(number, *mutation) for number, mutation in enumerate(pool)]
    if arguments.only:
        if max(arguments.only) >= len(mutants) or min(arguments.only) < 0:
            parser.error(f"--only: allowed are 0 .. {len(mutants) - 1}")
        mutants = [mutants[number] for number in arguments.only]
    if arguments.list:
        for mutant in mutants[: arguments.count] if not arguments.only else mutants:
            print(f"{mutant.number:4} {mutant.where()}: {mutant.line.strip()}")
        print(f"{len(pool)} candidates")
        return 0

    # A run that is stopped puts the file back and takes the test along that it had started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    WORK.mkdir(parents=True, exist_ok=True)
    results = {entry["key"]: entry for entry in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}
    prepared = prepare({mutant.path for mutant in mutants[: 2 * arguments.count]}, arguments.jobs, arguments.quick)
    if prepared is None:
        print(f"the sound copy fails: see the logs in {WORK}", file=sys.stderr)
        return 2
    sound, limits = prepared

    counts = {"killed": 0, "SURVIVED": 0, "open": 0, "equivalent": 0, "refused": 0}
    for mutant in mutants:
        if counts["killed"] + counts["SURVIVED"] + counts["open"] >= arguments.count and not arguments.only:
            break
        known = results.get(mutant.key)
        verdict = known and known["verdict"]
        if not verdict or (verdict == "SURVIVED" and arguments.again) or (verdict == "open" and not arguments.quick):
            begin = time.time()
            target = TREE / mutant.path
            try:
                target.write_text(mutant.mutated())
                verdict, by = judge(mutant, sound, limits, arguments.jobs, arguments.quick)
            finally:
                target.write_text(mutant.text)
            known = {"key": mutant.key, "path": str(mutant.path), "line": mutant.index + 1, "fault": mutant.name,
                     "before": mutant.before.strip(), "after": mutant.line.strip(), "verdict": verdict, "by": by,
                     "seconds": round(time.time() - begin, 1)}
            results[mutant.key] = known
            save(results)
        counts[known["verdict"]] += 1
        print(f"{mutant.number:4} {known['verdict']:10} {known['seconds']:6.1f} s  {mutant.where()}  [{known['by']}]",
              flush=True)
        if known["verdict"] in ("SURVIVED", "open"):
            print(f"       - {known['before']}\n       + {known['after']}", flush=True)
    judged = counts["killed"] + counts["SURVIVED"] + counts["open"]
    print(f"{judged} mutants judged: {counts['killed']} killed, {counts['SURVIVED']} survived, {counts['open']} open; "
          f"beside them {counts['equivalent']} with the same object code, {counts['refused']} refused by the compiler")
    return 1 if counts["SURVIVED"] + counts["open"] else 0


if __name__ == "__main__":
    sys.exit(main())
