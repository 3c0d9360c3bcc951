"""The program as a process: JSON, full disks, signals, terminals, and the other commands."""

import fcntl
import json
import os
import pty
import resource
import select
import shutil
import signal
import struct
import subprocess
import termios
import time
import unittest

from support import PROGRAM, SANITIZED, TIMEOUT, ProgramTest, Tensor, problem


def slow_problem(n=9000):
    """Zeros: minutes of work for the scalar reference when dense, and no time to generate."""
    return {"q": Tensor("BF16", [n, 8, 64], data=bytes(2 * n * 8 * 64)),
            "k": Tensor("BF16", [n, 1, 64], data=bytes(2 * n * 64)),
            "v": Tensor("BF16", [n, 1, 64], data=bytes(2 * n * 64))}


SLOW = ("--engine", "reference", "--dense", "--repeat", "1000")


class Json(ProgramTest):
    def attend_json(self, *arguments, **sizes):
        done = self.run_program("attend", self.put(problem(**sizes)), "-o", self.path("out"), "--json", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout), done.stderr.decode()

    def test_keys(self):
        report, error = self.attend_json("-ub", "16", "--h2o-local", "4", "--h2o-heavy", "5", "-t", "2", n=40)
        self.assertEqual((report["engine"], report["threads"]), ("cpu", 2))
        self.assertEqual({key: report["effective"][key] for key in ("batch", "chunk", "local", "heavy")},
                         {"batch": 4096, "chunk": 16, "local": 4, "heavy": 5})
        self.assertEqual(report["pairs"], 16 * 17 // 2 * 2 + 16 * 9 + 8 * 9 // 2 + 8 * 9)
        self.assertEqual(report["pairs_dense"], 40 * 41 // 2)
        self.assertEqual(report["chunks"], 3)
        self.assertEqual(report["seconds"]["repeats"], 1)
        self.assertEqual(report["seconds"]["min"], report["seconds"]["median"])
        self.assertGreater(report["seconds"]["min"], 0)
        self.assertEqual(report["memory_bytes"], sum(report["memory"].values()))
        self.assertEqual(report["warnings"], [])
        self.assertEqual(error, "")

    def test_rule(self):
        sizes = ("-ub", "16", "--h2o-local", "4", "--h2o-heavy", "8")
        for flags, wanted in (
                ((), {"local": 4, "heavy": 8, "select": "h2o"}),
                (("--select", "window"), {"local": 12, "heavy": 0, "select": "window"}),
                (("--select", "blocks", "--query-block", "16"),
                 {"local": 4, "heavy": 8, "select": "blocks", "key_block": 8, "query_block": 16, "pool": 4, "refine": 2}),
                (("--select", "blocks", "--key-block", "4", "--query-block", "8", "--pool", "2", "--refine", "1"),
                 {"local": 4, "heavy": 8, "select": "blocks", "key_block": 4, "query_block": 8, "pool": 2, "refine": 1}),
                (("--select", "sketches", "--query-block", "8", "--least-weight", "0.25", "--engine", "reference"),
                 {"local": 4, "heavy": 8, "select": "sketches", "query_block": 8, "least_weight": 0.25})):
            report, _ = self.attend_json(*sizes, *flags, n=40)
            of_rule = ("local", "heavy", "select", "key_block", "query_block", "pool", "refine", "least_weight")
            self.assertEqual({key: value for key, value in report["effective"].items() if key in of_rule}, wanted)
        done = self.run_program("attend", self.put(problem(n=40)), "-o", self.path("out"), *sizes, "--select", "blocks",
                                "--query-block", "16")
        self.assertIn("local 4, heavy 8, select blocks (key_block 8, query_block 16, pool 4, refine 2)",
                      done.stdout.decode())
        done = self.run_program("attend", self.put(problem(n=40)), "-o", self.path("out"), *sizes, "--select", "sketches",
                                "--query-block", "16", "--engine", "reference")
        self.assertIn("select sketches (query_block 16, least_weight 0.0005)", done.stdout.decode())

    def test_pinned_and_dense(self):
        sizes = ("-ub", "16", "--h2o-local", "4", "--h2o-heavy", "8")
        names = ("local", "heavy", "select", "pinned", "dense_below", "dense_layers")
        for flags, wanted in (
                ((), (4, 8, "h2o", 0, 0, [])),
                (("--pinned", "5", "--dense-below", "7"), (4, 8, "h2o", 5, 7, [])),
                (("--select", "blocks", "--query-block", "16", "--pinned", "8"), (4, 8, "blocks", 8, 0, [])),
                (("--select", "window", "--pinned", "3"), (9, 3, "window", 3, 0, [])),
                (("--select", "window", "--pinned", "12"), (0, 12, "window", 12, 0, [])),
                (("--select", "window", "--pinned", "3", "-ub", "8"), (4, 3, "window", 3, 0, [])),  # clamped (CFG-3)
                (("--select", "window", "--pinned", "12", "-ub", "8"), (0, 7, "window", 7, 0, [])),
                (("--pinned", "8", "-ub", "8"), (4, 3, "h2o", 3, 0, [])),
                (("--dense-layers", "0", "--pinned", "1"), (4, 8, "h2o", 1, 0, [0])),
                (("--dense", "--pinned", "1"), (0, 0, "h2o", 0, 0, []))):
            report, _ = self.attend_json(*sizes, *flags, n=40)
            self.assertEqual(tuple(report["effective"][name] for name in names), wanted, flags)
            self.assertEqual(len(report["warnings"]), 1 if "-ub" in flags else 0, flags)
        done = self.run_program("attend", self.put(problem(n=40)), "-o", self.path("out"), *sizes, "--pinned", "5",
                                "--dense-below", "7", "--dense-layers", "0")
        self.assertIn("select h2o, pinned 5, dense below 7, dense layers 0\n", done.stdout.decode())

    def test_pairs_of_blocks(self):
        # Chunks at 0, 16, 32: Local from 0, 12, 28 (SEL-2); sets of 0, 4 + 8 and 4 + 8.
        report, _ = self.attend_json("-ub", "16", "--h2o-local", "5", "--h2o-heavy", "8", "--select", "blocks", "--key-block",
                                     "4", "--query-block", "8", n=40)
        self.assertEqual(report["pairs"], 136 + (136 + 16 * 12) + (36 + 8 * 12))

    def test_pairs_of_steps(self):
        flags = ("-b", "8", "-ub", "8", "--h2o-local", "3", "--h2o-heavy", "2")
        report, _ = self.attend_json(*flags, "--steps", "p19,d2,p5,d1,p13", n=40)
        sparse = 36 + (36 + 8 * 5) + (6 + 3 * 5)
        later = (36 + 8 * 5) + (15 + 5 * 5)
        dense = (3 + 2 * 19) + (15 + 5 * 21) + (1 + 26)
        self.assertEqual(report["pairs"], sparse + dense + later)
        report, _ = self.attend_json("--dense", n=40)
        self.assertEqual(report["pairs"], report["pairs_dense"])

    def test_repeat(self):
        report, _ = self.attend_json("--repeat", "4", n=40)
        self.assertEqual(report["seconds"]["repeats"], 4)
        self.assertLessEqual(report["seconds"]["min"], report["seconds"]["median"])

    def test_warnings(self):
        report, error = self.attend_json("-b", "24", "-ub", "16", n=40, x=Tensor("F32", [1], [0.0]))
        self.assertEqual(len(report["warnings"]), 3)
        self.assertEqual(error.splitlines(), [f"warning: {warning}" for warning in report["warnings"]])

    def test_without_json_a_summary(self):
        done = self.run_program("attend", self.put(problem()), "-o", self.path("out"))
        self.assertIn(b"of dense attention", done.stdout)


class Resources(ProgramTest):
    def test_file_size_limit(self):
        path = self.put(problem(n=400))
        for limit in (0, 1, 100, 20_000):
            self.refuse(path, "output", "File too large",
                        preexec_fn=lambda limit=limit: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))

    def test_full_disk_keeps_the_old_output(self):
        path = self.put(problem(n=400))
        with open(self.path("out.safetensors"), "wb") as file:
            file.write(b"old")
        self.refuse(path, "File too large",
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000)))

    @unittest.skipIf(SANITIZED, "sanitizers reserve terabytes of addresses")
    def test_memory_limit(self):
        # 4 MB of input ask for 2 GiB of output rows; the process may take 1 GiB of addresses.
        n = 2048
        wide = {"q": Tensor("F16", [n, 512, 1], data=bytes(2 * n * 512)),
                "k": Tensor("F16", [n, 1, 1], data=bytes(2 * n)),
                "v": Tensor("F16", [n, 1, 512], data=bytes(2 * n * 512))}
        limit = 1 << 30
        self.refuse(wide, "memory", arguments=["-t", "1"],
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))

    @unittest.skipIf(SANITIZED, "sanitizers need memory of their own")
    def test_memory_is_far_below_the_input(self):
        # 128 MB of q, K and V in F32; the stored K and V rows take 64 MB, the rest little.
        n, row = 32768, 4 * 512
        header = {name: {"dtype": "F32", "shape": [n, heads, 64],
                         "data_offsets": [begin * n * 256, (begin + heads) * n * 256]}
                  for name, heads, begin in (("q", 8, 0), ("k", 4, 8), ("v", 4, 12))}
        text = json.dumps(header).encode()
        path = self.put(len(text).to_bytes(8, "little") + text)
        size = os.path.getsize(path) + 2 * n * row
        os.truncate(path, size)
        process = subprocess.Popen([PROGRAM, "attend", path, "-o", self.path("out"), "-b", "1024", "-ub", "256",
                                    "--h2o-local", "16", "--h2o-heavy", "16"], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0)
        self.assertLess(usage.ru_maxrss * 1024, size)


class Signals(ProgramTest):
    def start(self):
        process = subprocess.Popen([PROGRAM, "attend", self.put(slow_problem()), "-o", self.path("out"), *SLOW],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + TIMEOUT
        while len(os.listdir(self.directory)) < 2:  # until the temporary file is there
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        return process

    def test_interrupts(self):
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
            process = self.start()
            process.send_signal(number)
            output, error = process.communicate(timeout=TIMEOUT)
            self.assertEqual((process.returncode, output, error), (status, b"", b""))
            self.assertEqual(os.listdir(self.directory), ["in.safetensors"])

    def test_input_that_shrinks(self):
        # Every run reads the rows again; the first access after the new end is a SIGBUS.
        process = self.start()
        os.truncate(self.path("in.safetensors"), 4096)
        _, error = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 2)
        self.assertEqual(len(error.splitlines()), 1)
        self.assertIn(b"truncated", error)
        self.assertEqual(os.listdir(self.directory), ["in.safetensors"])


class Terminal(ProgramTest):
    def watch(self, arguments, seconds, columns=None):
        """What appears on a terminal that is standard error, until `seconds` after the start or the end."""
        try:
            leader, follower = pty.openpty()
        except OSError as error:  # a sandbox without /dev/pts
            self.skipTest(f"no pseudo-terminal here: {error}")
        if columns is not None:
            fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen([PROGRAM, *arguments], stdout=subprocess.DEVNULL, stderr=follower)
        os.close(follower)
        shown, end = b"", time.monotonic() + seconds
        while time.monotonic() < end:
            if not select.select([leader], [], [], 0.1)[0]:
                continue
            try:
                shown += os.read(leader, 4096)
            except OSError:  # the process ended and closed its side
                break
        process.send_signal(signal.SIGINT)
        process.wait(TIMEOUT)
        try:
            while select.select([leader], [], [], 0.1)[0]:
                shown += os.read(leader, 4096)
        except OSError:
            pass
        os.close(leader)
        return shown

    def test_progress_appears_after_a_second_and_leaves(self):
        arguments = ["attend", self.put(slow_problem()), "-o", self.path("out"), *SLOW]
        shown = self.watch(arguments, 2.5)
        self.assertIn(b"of the pairs", shown)
        self.assertTrue(shown.endswith(b"\r\x1b[K"), shown)
        self.assertEqual(os.listdir(self.directory), ["in.safetensors"])

    def test_the_line_fits_into_the_terminal(self):
        arguments = ["attend", self.put(slow_problem()), "-o", self.path("out"), *SLOW]
        for columns, words in ((200, b"of the pairs"), (40, b"of the pairs"), (30, b"attend"), (20, b"attend"), (8, b"%"),
                               (2, b"")):
            with self.subTest(columns=columns):
                lines = self.watch(arguments, 1.6, columns).split(b"\r\x1b[K")
                self.assertGreater(len(lines), 2)
                self.assertLess(max(len(line) for line in lines), columns)
                self.assertIn(words, lines[1])

    def test_quiet(self):
        arguments = ["attend", self.put(slow_problem()), "-o", self.path("out"), *SLOW]
        self.assertEqual(self.watch([*arguments, "--quiet"], 2.5), b"")
        done = self.run_program("attend", self.put({**problem(), "more": Tensor("F32", [1], [0.0])}), "-o", self.path("out"),
                                "--quiet")
        self.assertEqual((done.returncode, done.stdout), (0, b""))
        self.assertTrue(done.stderr.startswith(b"warning: "), done.stderr)

    def test_the_line_is_cleared_where_the_work_ends_by_itself(self):
        arguments = ["attend", self.put(slow_problem(n=300)), "-o", self.path("out"), "--engine", "reference"]
        seconds = json.loads(self.run_program(*arguments, "--json").stdout)["seconds"]["min"]
        repeat = str(min(1000, 2 + int(3 / seconds)))  # three seconds on this machine
        shown = self.watch([*arguments, "--repeat", repeat], TIMEOUT)
        self.assertIn(b"of the pairs", shown)
        self.assertTrue(shown.endswith(b"\r\x1b[K"), shown)
        self.assertEqual(sorted(os.listdir(self.directory)), ["in.safetensors", "out"])

    def test_short_work_shows_nothing(self):
        self.assertEqual(self.watch(["attend", self.put(problem()), "-o", self.path("out")], 30), b"")


class OtherCommands(ProgramTest):
    def test_version(self):
        done = self.run_program("--version")
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout.decode(), r"^headwater \d+\.\d+\.\d+\n$")

    def test_help_has_an_example(self):
        for arguments in (["--help"], ["attend", "--help"], ["info", "-h"]):
            done = self.run_program(*arguments)
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            self.assertIn(b"Example:", done.stdout)
        attend = self.run_program("attend", "--help").stdout.decode()
        for flag in ("-b", "-ub", "--h2o-local", "--h2o-heavy", "--h2o-no-clamp", "-t", "--engine", "--dense",
                     "--scale", "--softcap", "--score-type", "--schedule", "--steps", "--repeat", "--no-trace", "--json",
                     "--select", "--key-block", "--query-block", "--pool", "--refine", "--pinned", "--dense-layers",
                     "--dense-below", "--kv-bits", "--least-weight"):
            self.assertIn(flag, attend)

    def test_info(self):
        done = self.run_program("info", "--json")
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        info = json.loads(done.stdout)
        self.assertEqual(f"headwater {info['version']}\n", self.run_program("--version").stdout.decode())
        self.assertGreaterEqual(info["cpu"]["cores"], 1)
        self.assertIn("sse4.2", info["cpu"]["features"])
        engines = {engine["name"]: engine for engine in info["engines"]}
        for name in ("reference", "cpu-portable", "cpu"):
            self.assertTrue(engines[name]["available"])
            self.assertEqual(engines[name]["reason"], "")
        self.assertIn(b"reference", self.run_program("info").stdout)

    def test_info_with_an_engine_that_is_not_there(self):
        done = self.run_program("info", "--json", env={"HEADWATER_ENGINE": "warp"})
        self.assertEqual(done.returncode, 0)
        self.assertIsNone(json.loads(done.stdout)["default_engine"])

    def test_conform_runs_its_sibling(self):
        program, kit = self.path("headwater"), self.path("headwater-conformance")
        shutil.copy(PROGRAM, program)
        with open(kit, "w", encoding="utf-8") as file:
            file.write('#!/bin/sh\nprintf "%s|" "$@"\nexit 1\n')
        os.chmod(kit, 0o755)
        done = subprocess.run([program, "conform", "--help", "a b", "", "--x=1"], capture_output=True, check=False,
                              timeout=TIMEOUT)
        self.assertEqual((done.returncode, done.stdout), (1, b"--help|a b||--x=1|"))
        os.mkdir(self.path("elsewhere"))
        shutil.move(kit, self.path("elsewhere"))
        environment = dict(os.environ, PATH=f"::/nowhere:{self.path('elsewhere')}")
        done = subprocess.run([program, "conform", "x"], capture_output=True, check=False, timeout=TIMEOUT,
                              env=environment)
        self.assertEqual((done.returncode, done.stdout), (1, b"x|"))

    def test_conform_without_the_kit(self):
        program = self.path("headwater")
        shutil.copy(PROGRAM, program)
        done = subprocess.run([program, "conform"], capture_output=True, check=False, timeout=TIMEOUT,
                              env=dict(os.environ, PATH="/nowhere"))
        self.assert_refused(done, "headwater-conformance", code=3)


if __name__ == "__main__":
    unittest.main()
