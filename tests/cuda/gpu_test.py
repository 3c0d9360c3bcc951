"""tools/gpu.py passes, fails and skips as it says: gpu_test.py TOOL. Its programs are small scripts here."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(sys.argv.pop())

BENCH = """#!/bin/sh
case $1 in
  --device) %s ;;
  --digest) %s ;;
  --json) %s ;;
  *) exit 2 ;;
esac
"""
DEVICE = "echo 'NVIDIA H200'"
SAME_BITS = "echo same"
OTHER_BITS = 'date +%N; echo "$$"'
TIMES = "echo '{\"forward\": 1.5}'"


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

    def test_benchmark(self):
        self.expect(0, "PASS benchmark: 5 rounds of headwater", "--step", "benchmark")
        report = json.loads((self.build / "out/benchmark.json").read_text(encoding="utf-8"))
        self.assertEqual(report["steps"]["benchmark"]["data"]["contenders"]["headwater"]["forward"]["median_ms"], 1.5)
        self.assertIn("| headwater | forward | 1.5000 |", (self.build / "out/benchmark.md").read_text(encoding="utf-8"))
        self.write_bench(times="echo no device >&2; exit 3")
        self.expect(1, "FAIL benchmark: headwater: exit status 3: no device", "--step", "benchmark")

    def test_one_failure_fails_the_whole(self):
        self.expect(0, "PASS reruns", path=self.sanitizer("exit 0\n"))
        self.write("headwater-conformance", "#!/bin/sh\nexit 1\n")
        self.expect(1, "PASS reruns", path=self.sanitizer("exit 0\n"))


unittest.main()
