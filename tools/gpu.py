"""What only a GPU can show, in one command: python3 tools/gpu.py [--build DIR] [--step NAME] [--out DIR] [--seconds N]

    conformance       the whole kit on engine cuda
    reruns            the same input in several processes, outputs bit by bit
    sm90-conformance  both again with the kernels of sm_90a (HEADWATER_CUDA_SM90=unproven), on compute capability 9.0: what
    sm90-reruns       they have to pass before they are the default there
    memcheck          compute-sanitizer's memcheck over a few cases
    sm90-memcheck     the same with the kernels of sm_90a
    racecheck         its racecheck over the same
    benchmark         a layer, replayed and stage by stage, by CUDA events, in turns with the kernels of sm_90a where they run
                      and with PyTorch's attention where PyTorch is there; against the targets

Standard library and prebuilt programs only: headwater-conformance, headwater-cuda-bench and the libraries in
gpu-libraries, as the target headwater_gpu leaves them in a build folder; the machine itself needs a driver. What is not
there or does not work is skipped with the reason. Writes report.json and report.md. Exit status 0: nothing failed; 1: a step failed; 77: nothing ran (no GPU), with the reason.
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
ENGINE = "cuda"
BENCH = "headwater-cuda-bench"
OWN, OWN_SM90 = "headwater", "headwater, sm_90a"
SANITIZED = ("bound.plain_f32", "bound.head_sizes", "replay.random")  # every stage, on small inputs
RERUNS = 5
ROUNDS = 5  # of the benchmark; fewer where the time ends before
CONFORMANCE_SECONDS = 200
HOPPER = "compute capability 9.0"
UNPROVEN = {"HEADWATER_CUDA_SM90": "unproven"}
SANITIZER_SECONDS = 90

Result = collections.namedtuple("Result", "status note data")


def passed(note, data=None):
    return Result("PASS", note, data)


def failed(note, data=None):
    return Result("FAIL", note, data)


def skipped(note):
    return Result("SKIP", note, None)


class Machine:
    def __init__(self, build, out, seconds):
        self.build, self.out, self.end = build, out, time.monotonic() + seconds

    def left(self):
        return max(self.end - time.monotonic(), 1.0)

    def program(self, name):
        path = self.build / name
        return path if path.is_file() and os.access(path, os.X_OK) else None

    def run(self, arguments, most=None, more=None):
        """(exit status, standard output, last line of both); NO_END for a program that outlasts the time left, or `most`
        seconds. `more`: environment variables beside those of this process."""
        seconds = min(self.left(), most or self.left())
        try:
            run = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, errors="replace",
                                 timeout=seconds, check=False, env=os.environ | (more or {}))
        except subprocess.TimeoutExpired:
            within = f"{most} s" if seconds == most else "the time left"
            return NO_END, "", f"{pathlib.Path(arguments[0]).name} did not end within {within}"
        lines = (run.stdout + run.stderr).strip().splitlines()
        return run.returncode, run.stdout, lines[-1] if lines else "no output"

    def why_no_engine(self):
        """Why engine cuda cannot run here, or None."""
        program = self.program(BENCH)
        if program is None:
            return (f"{self.build} holds no {BENCH}: the build had no CUDA toolkit, or was not made (./dev build; where is "
                    "none, copy one: build/release/{headwater-conformance,headwater-cuda-bench,gpu-libraries})")
        status, _, last = self.run([program, "--device"])
        return None if status == 0 else last.removeprefix(f"{BENCH}: ")


    def why_no_sm90(self):
        """Why the kernels of sm_90a cannot run here, or None."""
        _, _, device = self.run([self.program(BENCH), "--device"])
        return None if device.endswith(HOPPER) else f"they need {HOPPER}, here is {device}"


def with_sm90(step):
    """A step with the kernels of sm_90a switched on."""
    def switched(machine):
        reason = machine.why_no_sm90()
        return skipped(f"kernels of sm_90a: {reason}") if reason else step(machine, UNPROVEN, "sm90-")

    return switched


def device_name():
    if shutil.which("nvidia-smi") is None:
        return "unknown device"
    run = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                         capture_output=True, text=True, check=False)
    return run.stdout.strip().splitlines()[0] if run.returncode == 0 and run.stdout.strip() else "unknown device"


def conformance(machine, more=None, prefix=""):
    kit = machine.program("headwater-conformance")
    if kit is None:
        return failed(f"{machine.build} holds no headwater-conformance")
    status, _, last = machine.run([kit, "--engine", ENGINE, "--no-ratchet", "--json", machine.out / f"{prefix}conformance.json"],
                                  CONFORMANCE_SECONDS, more)
    if status == NO_END:
        return failed(last)
    return passed(last) if status == 0 else failed(f"exit status {status}: {last}")


def sanitizer(tool):
    def step(machine, more=None, prefix=""):
        program = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
        if program is None:
            return skipped("no compute-sanitizer on PATH or in /usr/local/cuda/bin")
        kit = machine.program("headwater-conformance")
        if kit is None:
            return failed(f"{machine.build} holds no headwater-conformance")
        plain = [kit, "--engine", ENGINE, "--no-ratchet", "--quick", "--case", ",".join(SANITIZED)]
        status, _, last = machine.run(plain, None, more)
        if status != 0:
            return failed(f"the cases fail without it: {last}")
        status, output, last = machine.run([program, "--tool", tool, "--error-exitcode", "99", *plain],
                                           SANITIZER_SECONDS, more)
        if status == NO_END:
            return skipped(last)
        (machine.out / f"{prefix}{tool}.txt").write_text(output, encoding="utf-8")
        if status == 0:
            return passed(last)
        if status == 99 or "ERROR SUMMARY" in output:
            return failed(f"{tool} found errors: {last}")
        return skipped(f"compute-sanitizer does not work here: exit status {status}: {last}")

    return step


def reruns(machine, more=None, _=""):
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
    contenders = {OWN: ([machine.program(BENCH), "--json"], None)}
    if machine.why_no_sm90() is None:
        contenders[OWN_SM90] = ([machine.program(BENCH), "--json"], UNPROVEN)
    if status == 0:
        contenders["pytorch"] = ([sys.executable, "-B", peer], None)
        why_no_peer = ""
    rounds = collections.defaultdict(list)
    kernels, left_out = {}, {}
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
            kernels.setdefault(name, {}).update(report.get("kernels", {}))
            left_out.update({f"{name}, {case}": reason for case, reason in report["left_out"].items()})
        done += 1
        longest = max(longest, time.monotonic() - begun)
    times = {name: merged(of) for name, of in rounds.items()}
    data = {"device": device_name(), "rounds": done, "no_pytorch_because": why_no_peer, "kernels": kernels,
            "left_out": left_out, "contenders": times,
            "targets": {own: {target.name: {"measured": target.measured, "bound": target.bound,
                                            "verdict": gpu_targets.verdict(target)}
                              for target in gpu_targets.against_targets(times, own)}
                        for own in (OWN, OWN_SM90) if own in contenders}}
    note = f"{done} of {ROUNDS} rounds of {', '.join(contenders)}"
    for case, reason in left_out.items():
        note += f"; left out: {case}: {reason}"
    return passed(note + (f"; PyTorch left out: {why_no_peer}" if why_no_peer else ""), data)


STEPS = {"conformance": conformance, "reruns": reruns, "sm90-conformance": with_sm90(conformance),
         "sm90-reruns": with_sm90(reruns), "memcheck": sanitizer("memcheck"), "sm90-memcheck": with_sm90(sanitizer("memcheck")),
         "racecheck": sanitizer("racecheck"), "benchmark": benchmark}


def table(report):
    lines = [f"Device: {report['device']}. Date: {report['date']}.", "", "| step | result | |", "| --- | --- | --- |"]
    lines += [f"| {name} | {step['status']} | {step['note']} |" for name, step in report["steps"].items()]
    data = report["steps"].get("benchmark", {}).get("data")
    if data:
        for own in data["targets"]:
            lines += ["", f"Targets, {own}:", "", *gpu_targets.table(data["contenders"], own)]
        lines += ["", "Milliseconds by CUDA events, medians of rounds in turns.", "", "| contender | case | median | least .. greatest |",
                  "| --- | --- | --- | --- |"]
        lines += [f"| {name} | {case} | {times['median_ms']:.4f} | {times['least_ms']:.4f} .. {times['greatest_ms']:.4f} |"
                  for name, cases in data["contenders"].items() for case, times in cases.items()]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/gpu")
    parser.add_argument("--step", choices=STEPS, help="only this one")
    parser.add_argument("--seconds", type=float, default=540, help="for all steps together (%(default)s)")
    arguments = parser.parse_args()
    machine = Machine(arguments.build.resolve(), arguments.out.resolve(), arguments.seconds)
    machine.out.mkdir(parents=True, exist_ok=True)
    if reason := machine.why_no_engine():
        print(f"SKIP: nothing ran on a GPU: {reason}")
        return SKIPPED
    report = {"device": device_name(), "date": time.strftime("%Y-%m-%d"), "steps": {}}
    for name, step in STEPS.items():
        if arguments.step in (None, name):
            result = step(machine)
            report["steps"][name] = result._asdict()
            print(f"{result.status} {name}: {result.note}", flush=True)
    stem = arguments.step or "report"
    (machine.out / f"{stem}.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    (machine.out / f"{stem}.md").write_text(table(report), encoding="utf-8")
    print(f"{machine.out / stem}.json and .md")
    statuses = {step["status"] for step in report["steps"].values()}
    return 1 if "FAIL" in statuses else 0 if "PASS" in statuses else SKIPPED


if __name__ == "__main__":
    sys.exit(main())
