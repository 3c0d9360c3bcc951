"""Standard streams that are closed, full, or no longer read: no result may turn into a crash, whatever the command."""

import json
import os
import signal
import subprocess
import unittest

from support import PROGRAM, TIMEOUT, ProgramTest, Tensor, problem
from test_process import SLOW, slow_problem

MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "models")
MODEL = ("-m", os.path.normpath(os.path.join(MODELS, "headwater-tiny-f16.gguf")))
READER_GONE = 141
WARNS = ("-b", "24", "-ub", "16")  # a batch that is no multiple of the chunk


class StreamsTest(ProgramTest):
    def commands(self):
        """Every command, with what it exits with: each writes to both streams where it can."""
        self.attend(problem(), out="trace")
        parts = json.loads(self.run_program("info", "--json").stdout)["parts"]
        have = {part["name"] for part in parts if part["available"]}
        found = {
            "attend": (0, "attend", self.path("in.safetensors"), "-o", self.path("out"), *WARNS),
            "attend, refused": (2, "attend", self.path("nowhere"), "-o", self.path("out")),
            "atlas": (0, "atlas", self.path("trace"), "-o", self.path("page.html")),
            "atlas, refused": (2, "atlas", self.path("trace"), "-o", self.path("page.html"), "--head", "99"),
            "info": (0, "info"),
            "info, refused": (2, "info", "--nothing"),
            "no command": (2,),
            "wrong command": (2, "frobnicate"),
            "--version": (0, "--version"),
            "--help": (0, "--help"),
            "attend --help": (0, "attend", "--help"),
        }
        if "bench" in have:
            small = ("-n", "70", "--heads", "2", "--kv-heads", "1", "-d", "8", "--rounds", "1", *WARNS)
            found["bench"] = (0, "bench", *small)
            found["bench, refused"] = (2, "bench", "-n", "0")
        if "runtime" in have:
            small = (*MODEL, "-b", "48", "-ub", "32", "-c", "64", "-t", "1")
            text = self.path("text")
            with open(text, "w", encoding="utf-8") as file:
                file.write("A line of text that is long enough to be cut into windows.\n" * 20)
            found["generate"] = (0, "generate", *small, "-p", "once upon", "-n", "4")
            found["generate --json"] = (0, "generate", *small, "-p", "once upon", "-n", "4", "--json")
            found["generate, refused"] = (2, "generate", *small, "-p", "")
            found["perplexity"] = (0, "perplexity", *small, "-f", text, "--window", "64", "--decode", "8")
            found["retrieval"] = (0, "retrieval", *small, "-c", "100", "-f", text, "--depths", "50", "--prompts", "2")
            found["atlas -m"] = (0, "atlas", *small, "-f", text, "-o", self.path("page.html"))
        return found

    def start(self, arguments, **options):
        return subprocess.Popen([PROGRAM, *arguments], cwd=self.directory, **options)


class StandardError(StreamsTest):
    def unwritable(self):
        """Standard error in every state in which writing to it fails."""
        yield "full", {"stderr": os.open("/dev/full", os.O_WRONLY)}
        yield "closed", {"preexec_fn": lambda: os.close(2)}
        reader, writer = os.pipe()
        os.close(reader)
        yield "nobody reads", {"stderr": writer}

    def test_every_command_ends_as_if_it_could_be_written(self):
        for name, (status, *arguments) in self.commands().items():
            for how, options in self.unwritable():
                with self.subTest(command=name, stderr=how):
                    process = self.start(arguments, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, **options)
                    output, _ = process.communicate(timeout=TIMEOUT)
                    self.assertEqual(process.returncode, status)
                    self.assertEqual(output == b"", status != 0)
                if "stderr" in options:
                    os.close(options["stderr"])


class StandardOutput(StreamsTest):
    def printing(self):
        return {name: arguments for name, (status, *arguments) in self.commands().items() if status == 0}

    def test_a_reader_that_has_gone_ends_the_command_quietly(self):
        for name, arguments in self.printing().items():
            with self.subTest(command=name):
                reader, writer = os.pipe()
                os.close(reader)
                process = self.start(arguments, stdout=writer, stderr=subprocess.PIPE)
                os.close(writer)
                _, error = process.communicate(timeout=TIMEOUT)
                self.assertEqual(process.returncode, READER_GONE, error)
                self.assertEqual([line for line in error.splitlines() if not line.startswith(b"warning: ")], [])

    def test_full_and_closed_are_errors(self):
        for name, arguments in self.printing().items():
            for how, options in (("full", {"stdout": os.open("/dev/full", os.O_WRONLY)}),
                                 ("closed", {"preexec_fn": lambda: os.close(1)})):
                with self.subTest(command=name, stdout=how):
                    process = self.start(arguments, stderr=subprocess.PIPE, **options)
                    _, error = process.communicate(timeout=TIMEOUT)
                    self.assertEqual(process.returncode, 2, error)
                    lines = [line for line in error.splitlines() if not line.startswith(b"warning: ")]
                    self.assertEqual(len(lines), 1, error)
                    self.assertIn(b"standard output cannot be written", lines[0])
                if "stdout" in options:
                    os.close(options["stdout"])

    def test_a_generation_ends_when_nobody_reads_it(self):
        if "generate" not in self.commands():
            self.skipTest("this build has no model runtime")
        # Far more text than a pipe holds: only a write that fails can end it before its last token.
        process = self.start(["generate", *MODEL, "-p", "def ", "-n", "30000", "-c", "31000", "-t", "1"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertEqual(len(process.stdout.read(8)), 8)
        process.stdout.close()
        self.assertEqual(process.wait(TIMEOUT), READER_GONE)
        self.assertNotIn(b"generated", process.stderr.read())

    def test_a_shell_sees_what_other_tools_give(self):
        done = subprocess.run(["bash", "-c", 'set -o pipefail; "$0" info | true; echo $?', PROGRAM], check=False,
                              capture_output=True, timeout=TIMEOUT)
        self.assertIn(done.stdout.split()[0], (b"0", b"141"))  # 0 where the pipe held it all
        self.assertEqual(done.stderr, b"")


class MissingDescriptors(StreamsTest):
    def test_no_file_becomes_a_standard_stream(self):
        def close():
            for number in (0, 1, 2):
                os.close(number)

        process = self.start(["attend", self.put(slow_problem()), "-o", self.path("out"), *SLOW], preexec_fn=close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        while len(os.listdir(self.directory)) < 2:  # until the temporary file is there
            self.assertIsNone(process.poll())
        for number in (0, 1, 2):
            target = os.readlink(f"/proc/{process.pid}/fd/{number}")
            self.assertFalse(target.startswith(self.directory), target)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(TIMEOUT), 143)

    def test_the_output_is_whole(self):
        expected = self.output_bytes(problem(x=problem(n=1)["q"]), *WARNS)
        for closed in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)):
            with self.subTest(closed=closed):
                process = self.start(["attend", self.path("in.safetensors"), "-o", self.path("again"), *WARNS],
                                     preexec_fn=lambda closed=closed: [os.close(number) for number in closed],
                                     stdout=None if 1 in closed else subprocess.DEVNULL,
                                     stderr=None if 2 in closed else subprocess.DEVNULL)
                self.assertEqual(process.wait(TIMEOUT), 2 if 1 in closed else 0)
                with open(self.path("again"), "rb") as file:
                    self.assertEqual(file.read(), expected)


class Warnings(StreamsTest):
    def test_they_come_before_the_work(self):
        process = self.start(["attend", self.put({**slow_problem(), "more": Tensor("F32", [1], [0.0])}), "-o",
                              self.path("out"), *SLOW], stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        # The work takes minutes; it is not waited for.
        self.assertTrue(process.stderr.readline().startswith(b"warning: "))
        self.assertIsNone(process.poll())

    def test_what_is_refused_has_none(self):
        path = self.put(problem(n=40, x=problem(n=1)["q"]))
        for arguments in (("--steps", "p20:40,p20:30"), ("--steps", "p39"), ("-ub", "0")):
            done = self.run_program("attend", path, "-o", self.path("out"), *WARNS, *arguments)
            self.assert_refused(done)


if __name__ == "__main__":
    unittest.main()
