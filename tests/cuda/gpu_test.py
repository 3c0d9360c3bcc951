"""tools/gpu.py passes, fails and skips as it says: gpu_test.py TOOL. Its programs are small scripts here."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(sys.argv.pop())
sys.path.insert(0, str(TOOL.parent))
import gpu  # noqa: E402

BENCH = """#!/bin/sh
case $1 in
  --device) %s ;;
  --digest) %s ;;
  --json) %s ;;
  *) exit 2 ;;
esac
"""
DEVICE = "echo 'NVIDIA A100, compute capability 8.0'"
HOPPER = "echo 'NVIDIA H200, compute capability 9.0'"
SAME_BITS = "echo same"
OTHER_BITS = 'date +%N; echo "$$"'
TIMES = "echo '%s'" % json.dumps({"milliseconds": {"forward": 1.5}, "kernels": {"forward": "forward_128"}, "left_out": {}})


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

    def write_bench(self, device=DEVICE, bits=SAME_BITS, times=TIMES):
        self.write("headwater-cuda-bench", BENCH % (device, bits, times))

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

    def test_no_program_is_a_skip(self):
        (self.build / "headwater-cuda-bench").unlink()
        self.expect(77, "holds no headwater-cuda-bench: the build had no CUDA toolkit")

    def test_conformance(self):
        self.expect(0, "PASS conformance: conformance: 3 PASS", "--step", "conformance")
        self.write("headwater-conformance", "#!/bin/sh\necho '1 FAIL'\nexit 1\n")
        self.expect(1, "FAIL conformance: exit status 1: 1 FAIL", "--step", "conformance")
        (self.build / "headwater-conformance").unlink()
        self.expect(1, "FAIL conformance", "--step", "conformance")

    def test_a_program_that_does_not_end_fails(self):
        self.write("headwater-conformance", "#!/bin/sh\nexec sleep 100\n")
        self.expect(1, "did not end within the time left", "--step", "conformance", "--seconds", "1.5")

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
                                      "left_out": {"sparse 131072": "no memory for rows"}})
        self.assertEqual(data["contenders"]["headwater"]["forward"]["median_ms"], 1.5)
        self.assertEqual(data["kernels"], {"headwater": {"forward": "forward_128"}})
        self.assertEqual(data["left_out"], {"headwater, sparse 131072": "no memory for rows"})
        self.assertIn("| headwater | forward | 1.5000 |", table)
        self.assertIn("left out: headwater, sparse 131072: no memory for rows", table)

    def rounds_within(self, left):
        """The note of a benchmark that sees these seconds left after its rounds."""
        times = json.dumps({"milliseconds": {"forward": 1.5}, "left_out": {}})

        class Clocked(gpu.Machine):
            def left(self):
                return left.pop(0)

            def run(self, arguments, most=None, more=None):
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
            "sparse 16384: intra column sums": 0.2}, "left_out": {}})
        verdicts = {name: row["verdict"] for name, row in data["targets"]["headwater"].items()}
        self.assertEqual(verdicts["throughput at 131072 / at 16384"], "met")
        self.assertEqual(verdicts["column sums / intra forward"], "NOT MET")
        self.assertEqual(verdicts["time of all stages that the pipeline hides / selection and gather"], "met")
        self.assertEqual(verdicts["intra forward against cuDNN at the same chunk length"],
                         "not measured: no time of cudnn 16 x 1024")
        # 127 chunks x 32 heads x 512 entries x 512 bytes, read and written, in half a millisecond.
        self.assertAlmostEqual(data["targets"]["headwater"]["bandwidth of gather / 4.3 TB/s"]["measured"],
                               127 * 32 * 512 * 512 * 2 / 0.5e-3 / 4.3e12, places=6)
        self.assertIn("| column sums / intra forward | <= 0.3 | 0.5 | NOT MET |", table)

    def test_kernels_of_sm_90a_are_switched_on_where_they_run(self):
        tools = self.sanitizer("shift 4; exec \"$@\"\n")
        steps = ("sm90-conformance", "sm90-reruns", "sm90-memcheck")
        for step in steps:
            self.expect(77, f"SKIP {step}: kernels of sm_90a: they need compute capability 9.0, here is NVIDIA A100",
                        "--step", step, path=tools)
        says = 'echo "{\\"milliseconds\\": {\\"$HEADWATER_CUDA_SM90\\": 1.5}, \\"left_out\\": {}}"'
        self.write_bench(HOPPER, 'test "$HEADWATER_CUDA_SM90" = unproven && echo same', says)
        self.write("headwater-conformance", "#!/bin/sh\necho \"switch: $HEADWATER_CUDA_SM90\"\n")
        self.expect(0, "PASS sm90-conformance: switch: unproven", "--step", "sm90-conformance")
        self.expect(0, "PASS conformance: switch:\n", "--step", "conformance")
        self.expect(0, "PASS sm90-reruns", "--step", "sm90-reruns")
        self.expect(1, "FAIL reruns", "--step", "reruns")
        self.expect(0, "PASS sm90-memcheck: switch: unproven", "--step", "sm90-memcheck", path=tools)
        self.expect(0, "rounds of headwater, headwater, sm_90a", "--step", "benchmark")
        table = (self.build / "out/benchmark.md").read_text(encoding="utf-8")
        self.assertIn("| headwater |  | 1.5000 |", table)
        self.assertIn("| headwater, sm_90a | unproven | 1.5000 |", table)
        self.assertIn("Targets, headwater, sm_90a:", table)

    def test_a_sanitizer_that_does_not_end_is_a_skip(self):
        self.expect(77, "SKIP memcheck: compute-sanitizer did not end within", "--step", "memcheck", "--seconds", "2",
                    path=self.sanitizer("exec sleep 100\n"))

    def test_one_failure_fails_the_whole(self):
        self.expect(0, "PASS reruns", path=self.sanitizer("exit 0\n"))
        self.write("headwater-conformance", "#!/bin/sh\nexit 1\n")
        self.expect(1, "PASS reruns", path=self.sanitizer("exit 0\n"))


unittest.main()
