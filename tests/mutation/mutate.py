#!/usr/bin/env python3
"""Plants random one-line faults in reference/ and optimized/ and lists those that no test finds.

    mutate.py [COUNT] [--seed 1] [--path PREFIX]... [--only N]... [--quick] [--again] [--list] [--record] [--moved]

Works on a copy of the tree in build/mutate/tree, never on the tree itself. A mutant's place in the order is a hash of the
seed, its file, its line and its change: a sample stays the same where the tree changes elsewhere. A mutant is judged in
stages, cheapest first (judges.py): its own object is compiled, the unit tests of its folder run, then the conformance kit
on the engine that it belongs to, the laws, the golden vectors, the program's tests; the first failure ends it. Each stage
builds only what it runs. A stage that takes ten times the processor time that the tree without a fault took (at least 8 s) is
stopped, and counts as a failure. --path draws from those files only, which may also lie in bindings/, cli/, conformance/
or runtime/, or be tests/model/transformer_oracle.

Verdicts: killed (by which stage); SURVIVED; open (with --quick, which leaves out the stages that take minutes: a run
without it judges these to the end); equivalent (the compiler made the same object code); refused (the compiler,
with -Werror, does not take it). COUNT (default 20) is the number of mutants that were killed, survived or are open.
build/mutate/results.json keeps every verdict, and judged.json (below) those of earlier clones; a mutant whose line has not
changed since is not judged again, so a run that was stopped goes on where it was. --again judges survivors and open ones
anew (after a test was added).
--record writes what is known of the sample (COUNT, --seed, --path) to judged.json beside this file, which git keeps:
the commit, the verdicts, and each mutant that survived, with its explanation, which is written there by hand. --moved
says for each sample, and for docs/plan-metrics.md, how many of its source lines have changed since, and warns above a
tenth.
Exit status 0: all found; 1: survivors; 2: the copy without a fault fails.
Faults (faults.py): changed operators, bounds and constants, swapped arguments, dropped statements.
"""

import argparse
import functools
import hashlib
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import time

from faults import candidates
from judges import LONG_STAGES, runs_here, stages_of
import record

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutate"
TREE = WORK / "tree"
OUT = TREE / "build" / "release"  # as deep as a build of the tree itself: the compiler's cache then knows its objects
RESULTS = WORK / "results.json"
SOUND = WORK / "sound.json"  # what the stages took in the tree without a fault, as long as it stays the same

FOLDERS = ("reference", "optimized/core", "optimized/cpu", "optimized/cuda")
OTHERS = ("bindings", "cli", "conformance", "runtime", "tests/model")  # only where --path asks for them
LEAST_LIMIT = 8  # seconds of the processor that any stage may take
LONGEST_WAIT = 600  # seconds of the clock: only what waits for ever reaches it
# Waiting OpenMP threads sleep: a spinning one takes the core from its partner when something else runs beside.
ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
MEMORY = 24 << 30  # data of a test (a browser reserves far more addresses): a loop without end must not take the machine


def sources(prefixes):
    files = []
    asked = tuple(folder for folder in OTHERS if any(prefix.startswith(folder) for prefix in prefixes or ()))
    for folder in FOLDERS + asked:
        for path in sorted((ROOT / folder).rglob("*")):
            name = str(path.relative_to(ROOT))
            if path.suffix in (".cpp", ".hpp") and (not prefixes or any(name.startswith(p) for p in prefixes)) \
                    and runs_here(name):
                files.append(path)
    return files


@functools.cache
def text_of(path):
    return (ROOT / path).read_text()


class Mutant:
    def __init__(self, path, index, name, line):
        self.path, self.index, self.name, self.line = path, index, name, line
        self.text = text_of(path)
        self.before = self.text.split("\n")[index]
        # The same line of the same file with the same change is the same mutant, wherever the line stands by now.
        same = self.text.split("\n")[:index].count(self.before)
        key = f"{path}\0{self.before}\0{line}\0{same}"
        self.key = hashlib.sha256(key.encode()).hexdigest()[:16]

    def mutated(self):
        lines = self.text.split("\n")
        lines[self.index] = self.line
        return "\n".join(lines)

    def judged(self, verdict, by, seconds):
        """What results.json keeps of it."""
        return {"key": self.key, "path": str(self.path), "line": self.index + 1, "fault": self.name,
                "before": self.before.strip(), "after": self.line.strip(), "verdict": verdict, "by": by,
                "seconds": round(seconds, 1)}

    def where(self):
        return f"{self.path}:{self.index + 1}: {self.name}"


def draw(prefixes, seed):
    """All mutants in the order of this seed, numbered."""
    found = {}
    for path in sources(prefixes):
        name = path.relative_to(ROOT)
        for mutation in candidates(text_of(name)):
            mutant = Mutant(name, *mutation)
            found.setdefault(mutant.key, mutant)
    mutants = sorted(found.values(), key=lambda mutant: hashlib.sha256(f"{seed}:{mutant.key}".encode()).digest())
    for number, mutant in enumerate(mutants):
        mutant.number = number
    return mutants


def run(command, log, processor_seconds=None):
    """Exit status in OUT (or TREE before it exists); 124 where it took too long. With processor_seconds it is a test:
    limited in memory and in time of the processor, which does not depend on what else runs on this machine. What
    waits for ever is stopped by the clock. Takes its children along when it is stopped."""

    def limited():
        if processor_seconds is None:
            return
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
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


def kind_of(path, stages):
    """Which objects show what the compiler made of a mutant: (folder, CUDA's, the twin with test hooks)."""
    if str(path).startswith("optimized/cuda/"):
        return ("optimized", True, True)
    return (path.parent if path.parts[0] == "tests" else path.parts[0], False, stages[0][1] == ["headwater-conformance-testing"])


def objects(part, cuda, testing):
    """Object file -> its digest, of those that the judges of a kind (see kind_of) build, no others: they may still hold
    the mutant before."""
    folders = (OUT / "optimized" / "cuda", OUT / "tests" / "cuda") if cuda else (OUT / part,)
    found = {}
    for path in (path for folder in folders for path in folder.rglob("*.o")):
        target = next(name for name in path.parts if name.endswith(".dir"))
        emulation = target in ("headwater_cuda_emulation.dir", "headwater_cuda_device.dir") or (cuda and "tests" in path.parts)
        if (cuda and emulation) or (not emulation and target.endswith("_testing.dir") == testing):
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
    apart = {OUT.parent, TREE / "tests" / "mutation"}
    for path in sorted(TREE.rglob("*")):
        if path.is_file() and path.suffix != ".md" and apart.isdisjoint(path.parents):
            digest.update(f"{path.relative_to(TREE)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


class Unsound(Exception):
    """A stage fails without any fault."""


def limit_of(stage, command, targets, mutant, sound, jobs):
    """Seconds of the processor that a stage may take; the first mutant that comes to it has it run without a fault."""
    name = "\0".join([stage, *command])
    if name not in sound.limits:
        (TREE / mutant.path).write_text(mutant.text)
        before = processor_time() if build(targets, jobs) else None
        if before is None or run(command, "test.log", 3600) != 0:
            raise Unsound(f"stage '{stage}' fails: {' '.join(command)}")
        sound.limits[name] = max(LEAST_LIMIT, 10 * (processor_time() - before))
        sound.save()
        (TREE / mutant.path).write_text(mutant.mutated())
        build(targets, jobs)
    return sound.limits[name]


def judge(mutant, sound, jobs, quick):
    """(verdict, by what)."""
    stages = stages_of(mutant.path)
    left_out = False
    kind = kind_of(mutant.path, stages)
    for stage, targets, command in stages:
        if quick and stage in LONG_STAGES:
            left_out = True
            continue
        if not build(targets, jobs):
            return "refused", "compiler"
        if all(sound.objects.get(path) == digest for path, digest in objects(*kind).items()):
            return "equivalent", "same object code"
        status = run(command, "test.log", limit_of(stage, command, targets, mutant, sound, jobs))
        if status != 0:
            return "killed", stage if status != 124 else f"{stage}: time limit"
    return ("open", "the quick stages") if left_out else ("SURVIVED", "")


def save(results):
    text = json.dumps(sorted(results.values(), key=lambda r: (r["path"], r["line"], r["after"])), indent=1)
    temporary = RESULTS.with_suffix(".tmp")
    temporary.write_text(text + "\n")
    temporary.replace(RESULTS)


class Sound:
    """The copy without a fault: its object files, and what the stages take (kept as long as the tree is the same)."""

    def __init__(self, paths, jobs):
        copy_tree()
        configure = ["cmake", "--preset", "release", "-S", str(TREE), "-DHEADWATER_BENCH=OFF", "-DHEADWATER_CUDA=OFF"]
        if run(configure, "configure.log") != 0:
            raise Unsound("the copy cannot be configured")
        before = json.loads(SOUND.read_text()) if SOUND.exists() else {}
        self.tree = digest_of_tree()
        self.limits = before["limits"] if before.get("tree") == self.tree else {}
        if not build(sorted({target for path in paths for stage in stages_of(path) for target in stage[1]}), jobs):
            raise Unsound("the copy does not compile")
        self.objects = {}
        for kind in {kind_of(path, stages_of(path)) for path in paths}:
            self.objects |= objects(*kind)

    def save(self):
        SOUND.write_text(json.dumps({"tree": self.tree, "limits": self.limits}))


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
    parser.add_argument("--record", action="store_true", help="write the sample's entry in judged.json, test nothing")
    parser.add_argument("--moved", action="store_true", help="print what changed since judged.json, test nothing")
    arguments = parser.parse_args()
    if arguments.moved:
        record.print_moved()
        return 0

    mutants = draw(arguments.path, arguments.seed)
    candidate_count = len(mutants)
    if arguments.only:
        if max(arguments.only) >= len(mutants) or min(arguments.only) < 0:
            parser.error(f"--only: allowed are 0 .. {len(mutants) - 1}")
        mutants = [mutants[number] for number in arguments.only]
    if arguments.list:
        for mutant in mutants[: arguments.count] if not arguments.only else mutants:
            print(f"{mutant.number:4} {mutant.where()}: {mutant.line.strip()}")
        print(f"{candidate_count} candidates")
        return 0

    recorded = record.verdicts()
    results = {mutant.key: mutant.judged(*recorded[mutant.key], 0) for mutant in mutants if mutant.key in recorded}
    if RESULTS.exists():
        results |= {entry["key"]: entry for entry in json.loads(RESULTS.read_text())}
    if arguments.record:
        record.write(arguments.path or [f"{folder}/" for folder in FOLDERS], arguments.seed, arguments.count, mutants,
                     results)
        return 0

    # A run that is stopped puts the file back and takes the test along that it had started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    WORK.mkdir(parents=True, exist_ok=True)
    try:
        sound = Sound({mutant.path for mutant in mutants}, arguments.jobs)
        return judge_all(mutants, sound, results, arguments)
    except Unsound as reason:
        print(f"the sound copy fails: {reason}; see the logs in {WORK}", file=sys.stderr)
        return 2


def judge_all(mutants, sound, results, arguments):
    """Exit status; prints each verdict and keeps it."""
    counts = {"killed": 0, "SURVIVED": 0, "open": 0, "equivalent": 0, "refused": 0}
    for mutant in mutants:
        if counts["killed"] + counts["SURVIVED"] + counts["open"] >= arguments.count and not arguments.only:
            break
        known = results.get(mutant.key)
        verdict = known and known["verdict"]
        if not verdict or (verdict in ("SURVIVED", "open") and arguments.again) \
                or (verdict == "open" and not arguments.quick):
            begin = time.time()
            target = TREE / mutant.path
            try:
                target.write_text(mutant.mutated())
                verdict, by = judge(mutant, sound, arguments.jobs, arguments.quick)
            finally:
                target.write_text(mutant.text)
            results[mutant.key] = known = mutant.judged(verdict, by, time.time() - begin)
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
