"""How many threads the program starts with, and how they wait."""

import json
import os
import pathlib
import shutil
import subprocess
import time
import unittest

from support import PROGRAM, SANITIZED, TIMEOUT, ProgramTest, problem
from test_process import SLOW, slow_problem

VARIABLES = ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", "GOMP_SPINCOUNT")
CORES = len(os.sched_getaffinity(0))


def environment(**settings):
    return {**{key: value for key, value in os.environ.items() if key not in VARIABLES}, **settings}


def variables(block):
    """Those that were set, of NUL-terminated NAME=VALUE."""
    pairs = (entry.split("=", 1) for entry in block.split("\0") if "=" in entry)
    return {key: value for key, value in pairs if key in VARIABLES}


class Start(ProgramTest):
    def attend(self, *before, **settings):
        done = subprocess.run([*before, PROGRAM, "attend", self.put(problem(n=40)), "-o", self.path("out"), "--json"],
                              env=environment(**settings), capture_output=True, timeout=TIMEOUT, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["threads"]

    def test_the_running_program_waits_passively(self):
        name = self.put(slow_problem())
        command = ["another name", "attend", name, "-o", self.path("out"), *SLOW]
        with subprocess.Popen(command, executable=PROGRAM, env=environment(), stderr=subprocess.DEVNULL) as process:
            try:
                folder, deadline = pathlib.Path(f"/proc/{process.pid}"), time.monotonic() + TIMEOUT
                found = {}
                while len(found) < 2 and time.monotonic() < deadline:
                    found = variables((folder / "environ").read_text(encoding="utf-8", errors="replace"))
                    time.sleep(0.01)
                self.assertEqual(found.get("OMP_WAIT_POLICY"), "passive")
                self.assertLessEqual(int(found["OMP_NUM_THREADS"]), CORES)
                arguments = (folder / "cmdline").read_bytes().split(b"\0")
                self.assertEqual(arguments[0], b"another name")
                self.assertEqual((folder / "comm").read_text(encoding="utf-8").strip(), "headwater")
            finally:
                process.kill()

    def test_the_library_uses_what_affinity_leaves(self):
        self.assertEqual(self.attend("taskset", "-c", str(min(os.sched_getaffinity(0)))), 1)

    def test_what_the_environment_says_stays(self):
        self.assertEqual(self.attend(OMP_NUM_THREADS="3"), 3)
        self.assertEqual(self.attend(OMP_NUM_THREADS="3", GOMP_SPINCOUNT="10"), 3)

    def companion(self, **settings):
        """The variables that reach the program that `headwater conform` becomes."""
        program = pathlib.Path(self.path("bin")) / "headwater"
        if not program.exists():
            program.parent.mkdir()
            shutil.copy2(PROGRAM, program)
            script = program.with_name("headwater-conformance")
            script.write_text("#!/bin/sh\nexec cat /proc/self/environ\n", encoding="utf-8")
            script.chmod(0o755)
        done = subprocess.run([program, "conform"], env=environment(**settings), capture_output=True, timeout=TIMEOUT,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return variables(done.stdout.decode(errors="replace"))

    def test_companions_inherit(self):
        found = self.companion()
        self.assertEqual(found.pop("OMP_WAIT_POLICY"), "passive")
        self.assertIn(int(found.pop("OMP_NUM_THREADS")), range(1, CORES + 1))
        self.assertEqual(found, {})
        self.assertEqual(self.companion(OMP_WAIT_POLICY="active", OMP_NUM_THREADS="1"),
                         {"OMP_WAIT_POLICY": "active", "OMP_NUM_THREADS": "1"})
        found = self.companion(GOMP_SPINCOUNT="7")
        self.assertEqual((found.get("GOMP_SPINCOUNT"), found.get("OMP_WAIT_POLICY")), ("7", None))

    def test_closed_streams_stay_closed(self):
        done = subprocess.run(["sh", "-c", '"$0" --version <&- 2>&-; echo $?', PROGRAM], env=environment(),
                              capture_output=True, timeout=TIMEOUT, check=False)
        self.assertEqual(done.stdout.split()[-1], b"0")

    # The dynamic loader is then the program of the process; starting that anew would take the command for a program.
    @unittest.skipIf(SANITIZED, "a sanitizer wants to be loaded as ever")
    def test_started_by_the_loader(self):
        loader = "/lib64/ld-linux-x86-64.so.2"
        if not os.path.exists(loader):
            self.skipTest(f"no {loader}")
        done = subprocess.run([loader, PROGRAM, "--version"], env=environment(), capture_output=True, timeout=TIMEOUT,
                              check=False)
        self.assertEqual((done.returncode, done.stdout.split()[:1]), (0, [b"headwater"]), done.stderr)


if __name__ == "__main__":
    unittest.main()
