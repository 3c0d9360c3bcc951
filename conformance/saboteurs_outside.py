"""Tests faults that the kit cannot switch on, or must not test alone.

    saboteurs_outside.py --program HEADWATER --tests NAME=PROGRAM ... [--golden FOLDER] [--list FILE] [--only PATTERN]
                         [--record]

The programs are test builds; the environment variable HEADWATER_SABOTAGE switches one fault on in them.
- A fault of conformance/saboteurs.json that names a `program` must make that GoogleTest program fail in its `case`. Where
  the build has no such program (the runtime needs packages) or all tests of the case are skipped (kernels need a
  processor), the fault is skipped, which is said and is no kill.
- A fault of the reference must be found by something that shares no code with it. `second` says by what: `eigen` (its
  case holds the reference against the Eigen oracle), `golden NAME` (a vector of golden/, replayed here through the test
  build of `headwater`), or `definition` (what neither of them computes: rotation, the protocol, entries after a set;
  its case has the definition of the spec written out).
- Every fault planted in the sources is listed, and nothing else is.

Exit status 1: a survivor, or a list that is wrong. --record fills in `second` from what is observed.
"""

import argparse
import fnmatch
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PLANTED = re.compile(r'HEADWATER_SABOTAGE\(\s*"([^"]+)"\s*\)')
FOLDERS = ("optimized", "bindings", "cli", "conformance", "runtime")
PROGRAMS = ("cli", "api", "runtime")  # test builds of the GoogleTest programs
TIMEOUT = 600  # seconds; only a hang takes that long


def planted(faults):
    """Names of the faults in the sources, and of those that the build plants (plant_faults.py)."""
    names = {fault["name"] for fault in faults if "file" in fault}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".cpp", ".hpp", ".cu", ".cuh"):
                names |= set(PLANTED.findall(path.read_text()))
    return names


def run(command, fault):
    environment = {**os.environ, "HEADWATER_SABOTAGE": fault, "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
    return subprocess.run(command, env=environment, capture_output=True, timeout=TIMEOUT, check=False)


def ran_and_skipped(command):
    """How many tests this GoogleTest program runs, and how many of them it skips."""
    out = run(command, "").stdout.decode()
    counts = [re.search(pattern, out) for pattern in (r"\] (\d+) tests? from .* ran", r"\[  SKIPPED \] (\d+) tests?[.,]")]
    return [int(count[1]) if count else 0 for count in counts]


def fails(command, fault):
    """Exit status 1, or death by a signal, with the fault switched on; a bad call (2 and more) is no kill."""
    try:
        done = run(command, fault)
    except subprocess.TimeoutExpired:
        return True
    if done.returncode >= 2:
        raise SystemExit(f"{' '.join(map(str, command))}: exit {done.returncode}: {done.stderr.decode()[-500:]}")
    return done.returncode != 0


class Lanes:
    def __init__(self, arguments):
        self.programs = dict(entry.split("=", 1) for entry in arguments.tests)
        self.program = arguments.program
        self.golden = arguments.golden

    def test(self, program, case):
        # The first failed assertion ends the program, as death by a signal: one is enough.
        return [self.programs[program], f"--gtest_filter={case}", "--gtest_brief=1", "--gtest_throw_on_failure=1"]

    def golden_replay(self, *vectors):
        command = [sys.executable, "-B", str(self.golden / "replay.py"), self.program, "--engine", "reference"]
        for vector in vectors:
            command += ["--vector", vector]
        return command

    def second_of(self, fault):
        """What beside the named case finds a fault of the reference."""
        if fault["case"].startswith("oracles."):
            return "eigen"
        if fails(self.golden_replay(), fault["name"]):
            for vector in sorted(path.stem for path in (self.golden / "vectors").glob("*.safetensors")):
                if fails(self.golden_replay(vector), fault["name"]):
                    return f"golden {vector}"
        return "definition"


def judge(fault, lanes):
    """(whether it was judged here, what is wrong or nothing)."""
    if "program" in fault:
        if fault["program"] not in PROGRAMS:
            return True, f"program {fault['program']} is not known; allowed: {', '.join(PROGRAMS)}"
        if fault["program"] not in lanes.programs:
            return False, ""
        command = lanes.test(fault["program"], fault["case"])
        if fails(command, fault["name"]):
            return True, ""
        ran, skipped = ran_and_skipped(command)
        if ran == 0:
            return True, f"no test is called {fault['case']}"
        return (False, "") if ran == skipped else (True, "SURVIVED")
    if not fault["name"].startswith("ref."):
        return False, ""
    second = fault.get("second", "")
    if second == "eigen":
        fine = fault["case"].startswith("oracles.")
        return True, "" if fine else f"{fault['case']} does not compare with the Eigen oracle"
    if second.startswith("golden "):
        return True, "" if fails(lanes.golden_replay(second[7:]), fault["name"]) else f"SURVIVED {second}"
    if second == "definition":
        return False, ""
    return True, f"second is {second!r}; allowed: eigen, golden NAME, definition"


def list_problems(faults):
    names = [fault["name"] for fault in faults]
    for name in sorted(planted(faults) - set(names)):
        yield f"{name} is planted, but not listed"
    for name in sorted(set(names) - planted(faults)):
        yield f"{name} is listed, but not planted"
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{name} is listed twice"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--tests", action="append", default=[], metavar="NAME=PROGRAM", help=", ".join(PROGRAMS))
    parser.add_argument("--golden", type=pathlib.Path, default=ROOT / "golden")
    parser.add_argument("--list", type=pathlib.Path, default=ROOT / "conformance" / "saboteurs.json")
    parser.add_argument("--only", default="*")
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    whole = json.loads(arguments.list.read_text())
    faults = whole["saboteurs"]
    lanes = Lanes(arguments)
    wrong = 0
    for problem in list_problems(faults):
        print(f"FAIL     {problem}")
        wrong += 1
    # Without a fault the programs pass; otherwise every fault would count as killed.
    chosen = [fault for fault in faults if fnmatch.fnmatch(fault["name"], arguments.only)]
    sound = [lanes.golden_replay()]
    for program in lanes.programs:
        cases = {fault["case"] for fault in chosen if fault.get("program") == program}
        if cases:
            sound.append(lanes.test(program, ":".join(sorted(cases))))
    for command in sound:
        if fails(command, ""):
            print(f"FAIL     without any fault: {' '.join(map(str, command))}")
            return 1

    judged = 0
    for fault in chosen:
        if arguments.record and fault["name"].startswith("ref."):
            fault["second"] = lanes.second_of(fault)
            print(f"         {fault['name']}: {fault['second']}", flush=True)
            continue
        done, message = judge(fault, lanes)
        judged += done
        if message:
            wrong += 1
            print(f"FAIL     {fault['name']}: {message}")
        elif "program" in fault and not done:
            print(f"SKIPPED  {fault['name']}: {fault['program']} is not built, or skips {fault['case']}")
        elif done:
            print(f"KILLED   {fault['name']} by {fault.get('second') or fault['case']}")
    if arguments.record:
        arguments.list.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
    print(f"{judged} of {len(faults)} faults judged outside the kit: {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    # Programs that die leave their files.
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = folder
        sys.exit(main())
