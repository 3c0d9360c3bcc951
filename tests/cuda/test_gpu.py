"""tools/gpu.py passes, fails and skips as it says: test_gpu.py TOOL. Its programs are small scripts here."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(sys.argv.pop()).resolve()
sys.path.insert(0, str(TOOL.parent))
import gpu  # noqa: E402

BENCH = """#!/bin/sh
case $1 in
  --device) %s ;;
  --digest) %s ;;
  --json) %s ;;
  --check) %s ;;
  *) exit 2 ;;
esac
"""
DEVICE = "echo 'NVIDIA A100, compute capability 8.0'"
SM90 = "echo 'NVIDIA H200, compute capability 9.0'"
SAME_BITS = "echo same"
OTHER_BITS = 'date +%N; echo "$$"'
TIMES = "echo '%s'" % json.dumps({"milliseconds": {"forward": 1.5}, "kernels": {"forward": "forward_128"}, "left_out": {},
                                "copy_rate": 4e12})
CHECKED = 'echo "the device"; echo "PASS $2: sm_90a out 0.1"'


class Gpu(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.build = pathlib.Path(self.folder.name)
        self.write_bench()
        self.write("headwater-conformance", "#!/bin/sh\necho 'conformance: 3 PASS'\n")

    def tearDown(self):
        self.folder.cleanup()

    def write(self, name, text, folder=None):
        path = (folder or self.build) / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def write_bench(self, device=DEVICE, bits=SAME_BITS, times=TIMES, checked=CHECKED):
        self.write("headwater-cuda-bench", BENCH % (device, bits, times, checked))

    def run_tool(self, *arguments, path=None):
        environment = dict(os.environ, **({"PATH": f"{path}:{os.environ['PATH']}"} if path else {}))
        return subprocess.run([sys.executable, "-B", str(TOOL), "--build", str(self.build), "--out",
                               str(self.build / "out"), *arguments], capture_output=True, text=True, check=False,
                              env=environment)

    def expect(self, status, part, *arguments, **more):
        run = self.run_tool(*arguments, **more)
        self.assertEqual(run.returncode, status, run.stdout + run.stderr)
        self.assertIn(part, run.stdout)

    def sanitizer(self, text):
        folder = self.build / "tools"
        folder.mkdir(exist_ok=True)
        self.write("compute-sanitizer", "#!/bin/sh\n" + text, folder)
        return folder

    def test_no_device_is_a_skip_with_the_reason(self):
        self.write_bench("echo 'headwater-cuda-bench: no NVIDIA driver is installed' >&2; exit 3")
        self.expect(77, "SKIP: nothing ran on a GPU: no NVIDIA driver is installed")

    def test_what_is_missing_is_a_skip_of_one_line(self):
        for names in (["headwater-cuda-bench"], ["headwater-conformance"], ["headwater-cuda-bench", "headwater-conformance"]):
            for name in names:
                (self.build / name).rename(self.build / f"no-{name}")
            run = self.run_tool()
            for name in names:
                (self.build / f"no-{name}").rename(self.build / name)
            self.assertEqual((run.returncode, run.stdout.count("\n"), run.stderr), (77, 1, ""))
            self.assertIn(f"holds no {' and no '.join(names)}: the build had no CUDA toolkit", run.stdout)

    def test_prebuilt_calls_nothing_that_fetches(self):
        """`./dev gpu --prebuilt` on a machine on which everything that could fetch or install leaves a trace."""
        tools, trace = self.build / "fetchers", self.build / "fetched"
        tools.mkdir()
        for name in ("apt-get", "apt-cache", "apt", "dpkg-query", "sudo", "pip", "pip3", "curl", "wget", "git", "cmake", "ninja"):
            self.write(name, f"#!/bin/sh\necho {name} >>{trace}\nexit 1\n", tools)
        environment = dict(os.environ, PATH=f"{tools}:{os.environ['PATH']}")
        out = self.build / "elsewhere"
        for lacking in (False, True):
            if lacking:
                (self.build / "headwater-cuda-bench").unlink()
            run = subprocess.run([TOOL.parent.parent / "dev", "gpu", "--prebuilt", "--build", self.build, "--out", out, "--step",
                                  "reruns"], capture_output=True, text=True, check=False, env=environment)
            self.assertEqual((run.returncode, run.stderr), (0, ""), run)
            self.assertFalse(trace.exists(), trace.exists() and trace.read_text(encoding="utf-8"))
            if lacking:
                self.assertEqual(run.stdout.count("\n"), 1)
                self.assertIn("SKIP: nothing ran on a GPU", run.stdout)
            else:
                self.assertIn("PASS reruns", run.stdout)
                self.assertTrue((out / "reruns.json").is_file())

    def test_steps_begin_with_check_and_conformance_and_fill_three_calls(self):
        groups = list(dict.fromkeys(step.group for step in gpu.STEPS))
        self.assertEqual(groups[:3], ["check", "conformance", "sm90-conformance"])
        self.assertEqual([step.call for step in gpu.STEPS], sorted(step.call for step in gpu.STEPS))
        self.assertEqual({step.call for step in gpu.STEPS}, {1, 2, 3})
        lanes = re.findall(r'case Lane::\w+: return "(\w+)"',
                           (TOOL.parent.parent / "conformance/case.cpp").read_text(encoding="utf-8"))
        self.assertEqual(sorted(gpu.LANES), sorted(lanes))
        ran = []
        for call in (1, 2, 3):
            run = self.run_tool("--call", str(call), path=self.sanitizer("exit 0\n"))
            self.assertEqual(run.returncode, 0, run.stdout)
            ran += json.loads((self.build / f"out/call-{call}.json").read_text(encoding="utf-8"))["steps"]
        self.assertEqual(ran, [step.name for step in gpu.STEPS])

    def test_a_call_has_at_most_540_seconds(self):
        run = self.run_tool("--seconds", "541")
        self.assertEqual(run.returncode, 2)
        self.assertIn("--seconds is 541; allowed: more than 0, at most 540", run.stderr)

    def test_check(self):
        self.expect(0, "PASS check F16 192/128: sm_90a out 0.1\n", "--step", "check")
        self.assertEqual((self.build / "out/check-BF16-64-64.txt").read_text(encoding="utf-8"),
                         "the device\nPASS BF16 64/64: sm_90a out 0.1\n")
        self.write_bench(checked='echo "FAIL $2: sm_90a: head 3"; exit 1')
        self.expect(1, "FAIL check BF16 128/128: FAIL BF16 128/128: sm_90a: head 3\n", "--step", "check")
        self.write_bench(checked='echo "Segmentation fault"; exit 139')
        self.expect(1, "FAIL check BF16 128/128: exit status 139: Segmentation fault\n", "--step", "check")
        # Another case, or none, is not this one.
        self.write_bench(checked='echo "PASS BF16 64/64: sm_90a out 0.1"')
        self.expect(1, "FAIL check BF16 128/128: exit status 0: PASS BF16 64/64", "--step", "check")
        self.write_bench(checked="true")
        self.expect(1, "FAIL check BF16 64/64: exit status 0: no output\n", "--step", "check")

    def test_conformance_is_a_process_a_lane(self):
        self.write("headwater-conformance", f"#!/bin/sh\necho \"$@\" >>{self.build}/calls\necho 'conformance: 3 PASS'\n")
        self.expect(0, "PASS conformance bound: conformance: 3 PASS", "--step", "conformance")
        calls = (self.build / "calls").read_text(encoding="utf-8").splitlines()
        self.assertEqual([re.search(r"--lane (\S+)", call).group(1) for call in calls], list(gpu.LANES))
        for call in calls:
            self.assertIn("--engine cuda ", call)
        # One lane that ends with its process is one failure.
        self.write("headwater-conformance", "#!/bin/sh\ncase \"$*\" in *law*) echo '1 FAIL'; kill -9 $$ ;; esac\necho fine\n")
        self.expect(1, "FAIL conformance law: exit status -9: 1 FAIL", "--step", "conformance")
        self.expect(1, "PASS conformance determinism: fine", "--step", "conformance")

    def test_a_program_that_does_not_end_fails(self):
        self.write("headwater-conformance", "#!/bin/sh\nexec sleep 100\n")
        self.expect(1, "did not end within the time left", "--step", "conformance", "--seconds", "1.5")
        self.expect(1, "FAIL conformance determinism: not begun: the time of this call is over\n", "--step", "conformance",
                    "--seconds", "1.5")

    def test_reports_are_written_as_steps_end(self):
        """The tool is killed in the middle: what had ended is in the report, what was under way is named, its output is there."""
        self.write("headwater-conformance",
                   "#!/bin/sh\ncase \"$*\" in *replay*) echo half; kill -9 $PPID; exec sleep 1 ;; esac\necho fine\n")
        self.assertEqual(self.run_tool("--call", "1").returncode, -9)
        report = json.loads((self.build / "out/call-1.json").read_text(encoding="utf-8"))
        self.assertEqual(list(report["steps"]), [f"check {case}" for case in gpu.CHECKS] + ["conformance exact", "conformance bound"])
        self.assertEqual(report["steps"]["conformance bound"]["note"], "fine")
        self.assertEqual(report["under_way"], "conformance replay")
        text = (self.build / "out/call-1.md").read_text(encoding="utf-8")
        self.assertIn("| conformance bound | PASS | fine |", text)
        self.assertIn("| conformance replay | under way | |", text)
        self.assertEqual((self.build / "out/conformance-replay.txt").read_text(encoding="utf-8"), "half\n")

    def test_reruns(self):
        self.expect(0, "PASS reruns", "--step", "reruns")
        self.write_bench(bits=OTHER_BITS)
        self.expect(1, "different results in 5 runs", "--step", "reruns")
        self.write_bench(bits="echo broken >&2; exit 2")
        self.expect(1, "exit status 2: broken", "--step", "reruns")

    def test_sanitizers(self):
        for tool in ("memcheck", "racecheck"):
            clean = self.sanitizer("echo '========= ERROR SUMMARY: 0 errors'\n")
            self.expect(0, f"PASS {tool}", "--step", tool, path=clean)
            found = self.sanitizer("echo '========= ERROR SUMMARY: 2 errors'\nexit 99\n")
            self.expect(1, f"FAIL {tool}: {tool} found errors", "--step", tool, path=found)
            broken = self.sanitizer("echo 'Target application returned an error' >&2\nexit 1\n")
            self.expect(77, "does not work here", "--step", tool, path=broken)

    def test_a_case_that_fails_by_itself_is_no_skip(self):
        self.write("headwater-conformance", "#!/bin/sh\nexit 1\n")
        self.expect(1, "fail without it", "--step", "memcheck", path=self.sanitizer("exit 0\n"))

    def benchmark(self, report, *arguments):
        """Data of the step whose program prints this report, and the table."""
        self.write_bench(times=f"echo '{json.dumps(report)}'")
        self.expect(0, "PASS benchmark", "--step", "benchmark", *arguments)
        steps = json.loads((self.build / "out/benchmark.json").read_text(encoding="utf-8"))["steps"]
        return steps["benchmark"]["data"], (self.build / "out/benchmark.md").read_text(encoding="utf-8")

    def test_benchmark(self):
        self.expect(0, "PASS benchmark: 5 of 5 rounds of headwater", "--step", "benchmark")
        self.write_bench(times="echo no device >&2; exit 3")
        self.expect(1, "FAIL benchmark: headwater: exit status 3: no device", "--step", "benchmark")

    def test_benchmark_reports_times_and_what_it_left_out(self):
        data, table = self.benchmark({"milliseconds": {"forward": 1.5}, "kernels": {"forward": "forward_128"},
                                      "left_out": {"sparse 131072": "no memory for rows"}, "copy_rate": 4e12})
        self.assertEqual(data["contenders"]["headwater"]["forward"]["median_ms"], 1.5)
        self.assertEqual(data["kernels"], {"headwater": {"forward": "forward_128"}})
        self.assertEqual(data["left_out"], {"headwater, sparse 131072": "no memory for rows"})
        self.assertIn("| headwater | forward | 1.5000 |", table)
        self.assertIn("left out: headwater, sparse 131072: no memory for rows", table)

    def rounds_within(self, left):
        """The note of a benchmark that sees these seconds left after its rounds."""
        times = json.dumps({"milliseconds": {"forward": 1.5}, "left_out": {}, "copy_rate": 4e12})

        class Clocked(gpu.Machine):
            def left(self):
                return left.pop(0)

            def run(self, arguments, most=None, more=None, log=None):
                return (1, "", "no PyTorch") if "--probe" in arguments else (0, times, times)

        return gpu.benchmark(Clocked(self.build, self.build, 1.0)).note

    def test_benchmark_ends_with_the_time(self):
        self.assertIn("5 of 5 rounds", self.rounds_within([100.0] * 4))
        self.assertIn("3 of 5 rounds", self.rounds_within([100.0, 100.0, 0.0]))
        self.assertIn("1 of 5 rounds", self.rounds_within([0.0]))

    def test_benchmark_is_held_against_the_targets(self):
        data, table = self.benchmark({"milliseconds": {
            "sparse 16384: pipeline": 1.0, "sparse 131072: pipeline": 8.4, "sparse 131072: all stages": 9.4,
            "sparse 131072: selection": 0.5, "sparse 131072: gather": 0.5, "sparse 16384: intra forward": 0.4,
            "sparse 16384: intra column sums": 0.2}, "left_out": {}, "copy_rate": 2e12})
        verdicts = {name: row["verdict"] for name, row in data["targets"]["headwater"].items()}
        self.assertEqual(verdicts["throughput at 131072 / at 16384"], "met")
        self.assertEqual(verdicts["column sums / intra forward"], "NOT MET")
        self.assertEqual(verdicts["time of all stages that the pipeline hides / selection and gather"], "met")
        self.assertEqual(verdicts["intra forward against cuDNN at the same chunk length"],
                         "not measured: no time of cudnn 16 x 1024")
        # 127 chunks x 32 heads x 512 entries x 512 bytes, read and written, in half a millisecond, where copies move 2 TB/s.
        gather = data["targets"]["headwater"]["bandwidth of gather / the device's own copy rate"]
        self.assertAlmostEqual(gather["measured"], 127 * 32 * 512 * 512 * 2 / 0.5e-3 / 2e12, places=6)
        self.assertIn("reads and writes 2 TB/s", table)
        self.assertIn("| column sums / intra forward | <= 0.3 | 0.5 | NOT MET |", table)

    def test_steps_run_without_and_with_kernels_of_sm_90a(self):
        tools = self.sanitizer("shift 4; exec \"$@\"\n")
        steps = ("sm90-conformance", "sm90-reruns", "sm90-memcheck")
        for step in steps:
            self.expect(77, ": kernels of sm_90a: they need compute capability 9.0, here is NVIDIA A100", "--step", step, path=tools)
        says = ('echo "{\\"milliseconds\\": {\\"$HEADWATER_CUDA_SM90\\": 1.5}, \\"left_out\\": {}, \\"copy_rate\\": 4e12}"')
        self.write_bench(SM90, 'test -z "$HEADWATER_CUDA_SM90" && echo same', says)
        self.write("headwater-conformance", "#!/bin/sh\necho \"switch: $HEADWATER_CUDA_SM90\"\n")
        # Small cases reach them, too.
        self.expect(0, "PASS sm90-conformance exact: switch: 1\n", "--step", "sm90-conformance")
        self.expect(0, "PASS conformance exact: switch: off\n", "--step", "conformance")
        self.expect(0, "PASS sm90-reruns", "--step", "sm90-reruns")
        self.expect(1, "FAIL reruns", "--step", "reruns")
        self.expect(0, "PASS sm90-memcheck: switch: 1\n", "--step", "sm90-memcheck", path=tools)
        self.expect(0, "rounds of headwater, headwater, sm_90a", "--step", "benchmark")
        table = (self.build / "out/benchmark.md").read_text(encoding="utf-8")
        self.assertIn("| headwater | off | 1.5000 |", table)
        self.assertIn("| headwater, sm_90a |  | 1.5000 |", table)
        self.assertIn("Targets, headwater, sm_90a:", table)

    def test_a_sanitizer_that_does_not_end_is_a_skip(self):
        self.expect(77, "SKIP memcheck: compute-sanitizer did not end within", "--step", "memcheck", "--seconds", "2",
                    path=self.sanitizer("exec sleep 100\n"))

    def test_one_failure_fails_the_whole(self):
        self.expect(0, "PASS reruns", path=self.sanitizer("exit 0\n"))
        self.write("headwater-conformance", "#!/bin/sh\nexit 1\n")
        self.expect(1, "PASS reruns", path=self.sanitizer("exit 0\n"))


unittest.main()
