"""What only a GPU can show: python3 tools/gpu.py [--build DIR] [--call N | --step NAME] [--out DIR] [--seconds N]

    check             headwater-cuda-bench --check: kernels of sm_90a, of mma.sync and engine cpu at the size that people run,
                      each against double; a process for each type and width
    conformance       the kit on engine cuda without the kernels of sm_90a (HEADWATER_CUDA_SM90=off), a process for each lane
    sm90-conformance  the same with them for chunks of every length (HEADWATER_CUDA_SM90=1), on compute capability 9.0
    reruns            the same input in several processes, outputs bit by bit
    sm90-reruns       the same with the kernels of sm_90a
    benchmark         a layer, replayed and stage by stage, by CUDA events, without and, where they run, with the kernels of
                      sm_90a, in turns with PyTorch's attention where PyTorch is there; against the targets
    memcheck          compute-sanitizer's memcheck over a few cases
    sm90-memcheck     the same with the kernels of sm_90a
    racecheck         its racecheck over the same

in this order; --call 1, 2 or 3 takes the part of them that ends in one sitting (docs/cuda.md). Standard library and prebuilt programs
only: headwater-conformance, headwater-cuda-bench and the libraries in gpu-libraries, as the target headwater_gpu leaves them in a
build folder; the machine itself needs a driver. Nothing is fetched or installed: what is not there or does not work is skipped
with the reason. Two reports in the folder --out (.json and .md, called for the step or the call) are written again after every step,
and name the step that is under way; what a program of a step says is there as it says it. Exit status 0: nothing failed; 1: a step failed; 77: nothing
ran (no GPU), with the reason.
"""

import argparse
import collections
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

import gpu_targets

ROOT = pathlib.Path(__file__).resolve().parent.parent
SKIPPED = 77
NO_END = -1000  # no exit status
MOST_SECONDS = 540
ENGINE = "cuda"
BENCH = "headwater-cuda-bench"
KIT = "headwater-conformance"
OWN, OWN_SM90 = "headwater", "headwater, sm_90a"
SANITIZED = ("bound.plain_f32", "bound.head_sizes", "replay.random")  # every stage, on small inputs
# As --check names what it runs, and the kit its lanes.
CHECKS = ("BF16 128/128", "BF16 64/64", "BF16 192/128", "BF16 256/256", "F16 128/128", "F16 64/64", "F16 192/128", "F16 256/256")
LANES = ("exact", "bound", "replay", "law", "adversarial", "bias", "state", "hostile", "determinism", "shape")
RERUNS = 5
ROUNDS = 5  # of the benchmark; fewer where the time ends before
LANE_SECONDS = 120
SM90 = "compute capability 9.0"
SWITCH = "HEADWATER_CUDA_SM90"
WITHOUT_SM90, AS_INSTALLED, ALL_CHUNKS = {SWITCH: "off"}, {SWITCH: ""}, {SWITCH: "1"}
SANITIZER_SECONDS = 90

Result = collections.namedtuple("Result", "status note data")
# `group` is the name for --step, `call` the sitting that it is part of, `run` takes the machine.
Step = collections.namedtuple("Step", "name group call run")


def passed(note, data=None):
    return Result("PASS", note, data)


def failed(note, data=None):
    return Result("FAIL", note, data)


def skipped(note):
    return Result("SKIP", note, None)


class Machine:
    def __init__(self, build, out, seconds):
        self.build, self.out, self.end = build, out, time.monotonic() + seconds

    def time_left(self):
        return time.monotonic() < self.end

    def left(self):
        return max(self.end - time.monotonic(), 1.0)

    def write(self, name, text):
        """A file of the folder of reports, whole at every moment."""
        unfinished = self.out / f".{name}"
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(self.out / name)

    def program(self, name):
        path = self.build / name
        return path if path.is_file() and os.access(path, os.X_OK) else None

    def run(self, arguments, most=None, more=None, log=None):
        """(exit status, standard output, last line of both); NO_END for a program that outlasts the time left, or `most`
        seconds. `more`: environment variables beside those of this process. `log`: a file of the folder of reports that gets
        both outputs as they come."""
        seconds = min(self.left(), most or self.left())
        command = [str(a) for a in arguments]
        environment = os.environ | (more or {})
        try:
            if log is None:
                run = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds, check=False,
                                     env=environment)
                status, output, said = run.returncode, run.stdout, run.stdout + run.stderr
            else:
                path = self.out / log
                with path.open("wb") as to:
                    status = subprocess.run(command, stdout=to, stderr=subprocess.STDOUT, timeout=seconds, check=False,
                                            env=environment).returncode
                output = said = path.read_text(encoding="utf-8", errors="replace")
        except subprocess.TimeoutExpired:
            within = f"{most} s" if seconds == most else "the time left"
            return NO_END, "", f"{pathlib.Path(arguments[0]).name} did not end within {within}"
        lines = said.strip().splitlines()
        return status, output, lines[-1] if lines else "no output"

    def why_no_engine(self):
        """Why engine cuda cannot run here, or None."""
        lacks = [name for name in (BENCH, KIT) if self.program(name) is None]
        if lacks:
            return (f"{self.build} holds no {' and no '.join(lacks)}: the build had no CUDA toolkit, or was not made (./dev build; where "
                    f"is none, copy what the target headwater_gpu makes: build/release/{{{KIT},{BENCH},gpu-libraries}})")
        status, _, last = self.run([self.program(BENCH), "--device"])
        return None if status == 0 else last.removeprefix(f"{BENCH}: ")

    def why_no_sm90(self):
        """Why the kernels of sm_90a cannot run here, or None."""
        _, _, device = self.run([self.program(BENCH), "--device"])
        return None if device.endswith(SM90) else f"they need {SM90}, here is {device}"


def with_sm90(step, more):
    """A step with the kernels of sm_90a."""
    def switched(machine):
        reason = machine.why_no_sm90()
        return skipped(f"kernels of sm_90a: {reason}") if reason else step(machine, more, "sm90-")

    return switched


def device_name():
    if shutil.which("nvidia-smi") is None:
        return "unknown device"
    run = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                         capture_output=True, text=True, check=False)
    return run.stdout.strip().splitlines()[0] if run.returncode == 0 and run.stdout.strip() else "unknown device"


def check(case):
    def step(machine):
        name = "check-" + case.replace(" ", "-").replace("/", "-")
        status, _, last = machine.run([machine.program(BENCH), "--check", case], None, None, f"{name}.txt")
        if status == 0 and last.startswith(f"PASS {case}: "):
            return passed(last.removeprefix(f"PASS {case}: "))
        return failed(last if status in (NO_END, 1) else f"exit status {status}: {last}")

    return step


def conformance(lane):
    def step(machine, more=WITHOUT_SM90, prefix=""):
        stem = f"{prefix}conformance-{lane}"
        status, _, last = machine.run([machine.program(KIT), "--engine", ENGINE, "--no-ratchet", "--lane", lane, "--json",
                                       machine.out / f"{stem}.json"], LANE_SECONDS, more, f"{stem}.txt")
        if status == NO_END:
            return failed(last)
        return passed(last) if status == 0 else failed(f"exit status {status}: {last}")

    return step


def sanitizer(tool):
    def step(machine, more=WITHOUT_SM90, prefix=""):
        program = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
        if program is None:
            return skipped("no compute-sanitizer on PATH or in /usr/local/cuda/bin")
        plain = [machine.program(KIT), "--engine", ENGINE, "--no-ratchet", "--quick", "--case", ",".join(SANITIZED)]
        status, _, last = machine.run(plain, None, more)
        if status != 0:
            return failed(f"the cases fail without it: {last}")
        status, output, last = machine.run([program, "--tool", tool, "--error-exitcode", "99", *plain],
                                           SANITIZER_SECONDS, more, f"{prefix}{tool}.txt")
        if status == NO_END:
            return skipped(last)
        if status == 0:
            return passed(last)
        if status == 99 or "ERROR SUMMARY" in output:
            return failed(f"{tool} found errors: {last}")
        return skipped(f"compute-sanitizer does not work here: exit status {status}: {last}")

    return step


def reruns(machine, more=WITHOUT_SM90, _=""):
    digests = set()
    for _ in range(RERUNS):
        status, output, last = machine.run([machine.program(BENCH), "--digest"], None, more)
        if status != 0:
            return failed(f"{BENCH} --digest: exit status {status}: {last}")
        digests.add(output)
    if len(digests) != 1:
        return failed(f"{len(digests)} different results in {RERUNS} runs")
    return passed(f"{RERUNS} processes: the same bits in outputs, scores and memory sets")


def merged(rounds):
    """[{case: milliseconds}] -> {case: {median, least, greatest}} over the rounds that have it."""
    table = {}
    for case in {case: None for one in rounds for case in one}:
        times = [one[case] for one in rounds if case in one]
        table[case] = {"median_ms": statistics.median(times), "least_ms": min(times), "greatest_ms": max(times)}
    return table


def benchmark(machine):
    peer = ROOT / "bench/cuda/torch_attention.py"
    status, _, why_no_peer = machine.run([sys.executable, "-B", peer, "--probe"])
    contenders = {OWN: ([machine.program(BENCH), "--json"], WITHOUT_SM90)}
    if machine.why_no_sm90() is None:
        contenders[OWN_SM90] = ([machine.program(BENCH), "--json"], AS_INSTALLED)
    if status == 0:
        contenders["pytorch"] = ([sys.executable, "-B", peer], None)
        why_no_peer = ""
    rounds = collections.defaultdict(list)
    kernels, left_out, copy_rates = {}, {}, []
    done, longest = 0, 0.0
    # In turns, as often as the time allows.
    while done < ROUNDS and (done == 0 or machine.left() > 1.5 * longest):
        begun = time.monotonic()
        names = list(contenders)
        for name in names if done % 2 == 0 else reversed(names):
            arguments, more = contenders[name]
            status, output, last = machine.run(arguments, None, more)
            if status != 0:
                return failed(f"{name}: {last}" if status == NO_END else f"{name}: exit status {status}: {last}")
            report = json.loads(output)
            rounds[name].append(report["milliseconds"])
            copy_rates += [report["copy_rate"]] if "copy_rate" in report else []
            kernels.setdefault(name, {}).update(report.get("kernels", {}))
            left_out.update({f"{name}, {case}": reason for case, reason in report["left_out"].items()})
        machine.write("benchmark-rounds.json", json.dumps(rounds, indent=2) + "\n")
        done += 1
        longest = max(longest, time.monotonic() - begun)
    times = {name: merged(of) for name, of in rounds.items()}
    copy_rate = statistics.median(copy_rates)
    data = {"device": device_name(), "rounds": done, "no_pytorch_because": why_no_peer, "kernels": kernels,
            "left_out": left_out, "contenders": times, "copy_rate": copy_rate,
            "targets": {own: {target.name: {"measured": target.measured, "bound": target.bound,
                                            "verdict": gpu_targets.verdict(target)}
                              for target in gpu_targets.against_targets(times, own, copy_rate)}
                        for own in (OWN, OWN_SM90) if own in contenders}}
    note = f"{done} of {ROUNDS} rounds of {', '.join(contenders)}"
    for case, reason in left_out.items():
        note += f"; left out: {case}: {reason}"
    return passed(note + (f"; PyTorch left out: {why_no_peer}" if why_no_peer else ""), data)


STEPS = (*(Step(f"check {case}", "check", 1, check(case)) for case in CHECKS),
         *(Step(f"conformance {lane}", "conformance", 1, conformance(lane)) for lane in LANES),
         *(Step(f"sm90-conformance {lane}", "sm90-conformance", 2, with_sm90(conformance(lane), ALL_CHUNKS)) for lane in LANES),
         Step("reruns", "reruns", 2, reruns), Step("sm90-reruns", "sm90-reruns", 2, with_sm90(reruns, AS_INSTALLED)),
         Step("benchmark", "benchmark", 3, benchmark),
         Step("memcheck", "memcheck", 3, sanitizer("memcheck")),
         Step("sm90-memcheck", "sm90-memcheck", 3, with_sm90(sanitizer("memcheck"), ALL_CHUNKS)),
         Step("racecheck", "racecheck", 3, sanitizer("racecheck")))


def table(report):
    lines = [f"Device: {report['device']}. Date: {report['date']}.", "", "| step | result | |", "| --- | --- | --- |"]
    lines += [f"| {name} | {step['status']} | {step['note']} |" for name, step in report["steps"].items()]
    lines += [f"| {report['under_way']} | under way | |"] if report["under_way"] else []
    data = report["steps"].get("benchmark", {}).get("data")
    if data:
        for own in data["targets"]:
            lines += ["", f"Targets, {own}:", "", *gpu_targets.table(data["contenders"], own, data["copy_rate"])]
        lines += ["", f"A copy inside the device's memory reads and writes {data['copy_rate'] * 1e-12:.3g} TB/s."]
        lines += ["", "Milliseconds by CUDA events, medians of rounds in turns.", "", "| contender | case | median | least .. greatest |",
                  "| --- | --- | --- | --- |"]
        lines += [f"| {name} | {case} | {times['median_ms']:.4f} | {times['least_ms']:.4f} .. {times['greatest_ms']:.4f} |"
                  for name, cases in data["contenders"].items() for case, times in cases.items()]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/gpu", help="the folder of the reports (%(default)s)")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--call", type=int, choices=sorted({step.call for step in STEPS}), help="only the steps of this sitting")
    chosen.add_argument("--step", choices=list(dict.fromkeys(step.group for step in STEPS)), help="only these")
    parser.add_argument("--seconds", type=float, default=MOST_SECONDS, help="for all steps together (%(default)s)")
    arguments = parser.parse_args()
    if not 0 < arguments.seconds <= MOST_SECONDS:
        parser.error(f"--seconds is {arguments.seconds:g}; allowed: more than 0, at most {MOST_SECONDS}")
    machine = Machine(arguments.build.resolve(), arguments.out.resolve(), arguments.seconds)
    machine.out.mkdir(parents=True, exist_ok=True)
    if reason := machine.why_no_engine():
        print(f"SKIP: nothing ran on a GPU: {reason}")
        return SKIPPED
    report = {"device": device_name(), "date": time.strftime("%Y-%m-%d"), "steps": {}, "under_way": None}
    stem = arguments.step or (f"call-{arguments.call}" if arguments.call else "report")

    def write():
        machine.write(f"{stem}.json", json.dumps(report, indent=2) + "\n")
        machine.write(f"{stem}.md", table(report))

    for step in STEPS:
        if arguments.step not in (None, step.group) or arguments.call not in (None, step.call):
            continue
        report["under_way"] = step.name
        write()
        result = step.run(machine) if machine.time_left() else failed("not begun: the time of this call is over")
        report["steps"][step.name] = result._asdict()
        report["under_way"] = None
        write()
        print(f"{result.status} {step.name}: {result.note}", flush=True)
    print(f"{machine.out / stem}.json and .md")
    statuses = {step["status"] for step in report["steps"].values()}
    return 1 if "FAIL" in statuses else 0 if "PASS" in statuses else SKIPPED


if __name__ == "__main__":
    sys.exit(main())
