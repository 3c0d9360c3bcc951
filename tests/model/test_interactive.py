"""`headwater generate --interactive` at a terminal and behind a pipe: what Ctrl-C ends, and what a line may be."""

import os
import pty
import re
import select
import signal
import subprocess
import time
import unittest

from gguf_files import fixtures
from running import MODEL, PROGRAM, TEXT, TIMEOUT, run


class Talk:
    """The program on a terminal of its own; with `typed` false its input is a pipe."""

    def __init__(self, *arguments, typed=True):
        self.screen, theirs = pty.openpty()

        def take_terminal():
            os.setsid()
            if typed:
                os.close(os.open(os.ttyname(theirs), os.O_RDWR))  # the first one that a new session opens is its own

        self.process = subprocess.Popen([PROGRAM, "generate", "-m", MODEL, "--interactive", *arguments], stdout=theirs,
                                        stderr=theirs, stdin=theirs if typed else subprocess.PIPE,
                                        preexec_fn=take_terminal)
        os.close(theirs)
        self.typed = typed
        self.seen = b""

    def write(self, text):
        if self.typed:
            os.write(self.screen, text)
            return
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def interrupt(self):
        if self.typed:
            os.write(self.screen, b"\x03")
        else:
            self.process.send_signal(signal.SIGINT)

    def read_part(self, deadline):
        ready, _, _ = select.select([self.screen], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise AssertionError(f"nothing more came after {self.seen[-300:]}")
        try:
            return os.read(self.screen, 65536)
        except OSError:  # the other side has been closed
            return b""

    def wait_for(self, pattern):
        """The match, and what is after it is still to be seen."""
        deadline = time.monotonic() + TIMEOUT
        while not (match := re.search(pattern, self.seen, re.DOTALL)):
            part = self.read_part(deadline)
            if not part:
                raise AssertionError(f"{pattern} did not come: {self.seen[-500:]}")
            self.seen += part
        self.seen = self.seen[match.end():]
        return match

    def end(self):
        """(exit status, the rest of what was shown)"""
        deadline = time.monotonic() + TIMEOUT
        while part := self.read_part(deadline):
            self.seen += part
        return self.process.wait(TIMEOUT), self.seen

    def close(self):
        self.process.kill()
        self.process.wait(TIMEOUT)
        if not self.typed:
            self.process.stdin.close()
        os.close(self.screen)


class Interrupts(unittest.TestCase):
    def talk(self, *arguments, **more):
        talk = Talk(*arguments, **more)
        self.addCleanup(talk.close)
        return talk

    def test_the_answer_ends_and_not_the_session(self):
        talk = self.talk("-p", "x = [", "-n", "-1", "-c", "20000")
        talk.wait_for(rb".{20}")  # an answer without an end
        talk.interrupt()
        talk.wait_for(rb"turn +\d+ tokens in [^\n]*\n> ")
        talk.write(b"y = [\n")
        talk.wait_for(rb"y = \[\r\n.{20}")
        talk.interrupt()
        talk.wait_for(rb"turn +\d+ tokens in [^\n]*\n> ")
        talk.write(b"\x04")
        status, rest = talk.end()
        self.assertEqual(status, 0, rest)
        self.assertIn(b"turns    2, of ", rest)

    def test_at_the_prompt_it_ends_the_session(self):
        talk = self.talk("-p", "import os", "-n", "2", "-c", "100")
        talk.wait_for(rb"turn +\d+ tokens in [^\n]*\n> ")
        talk.interrupt()
        status, rest = talk.end()
        self.assertEqual(status, 130, rest)
        self.assertIn(b"turns    1, of ", rest)

    def test_a_prompt_that_is_being_read_is_undone(self):
        talk = self.talk("-f", TEXT.replace("4k", "16k"), "--dense", "--projections", "f32", "-t", "1", "-n", "2", "-c", "20000")
        talk.wait_for(rb"prefill ")
        talk.interrupt()
        talk.wait_for(rb"undone +by an interrupt; nothing is stored\r\n> ")
        talk.write(b"import os\n")
        stored = talk.wait_for(rb"import os\r\n(.*)\r\nturn +(\d+) tokens in [^\n]* stored\r\n> ")
        plain = run("generate", "-m", MODEL, "-p", "import os", "-n", "2", "--projections", "f32", "--dense")
        self.assertEqual(stored[1].replace(b"\r", b"") + b"\n", plain.stdout)
        talk.write(b"\x04")
        self.assertEqual(talk.end()[0], 0)

    def test_a_line_that_is_being_read_is_undone_and_nothing_before_it(self):
        talk = self.talk("-p", "import os\nimport re\n", "-n", "3", "-c", "30000", "--dense", "--projections", "f32", "-t", "1",
                    typed=False)
        stored = int(talk.wait_for(rb"turn +[^\n]* (\d+) of 30000 stored\r\n")[1])
        line = len(run("tokenize", "-m", MODEL, "-p", "import sys", "--no-bos").stdout.splitlines())
        for _ in range(3):
            talk.write(b"x = [1, 2, 3]; " * 2000 + b"\n")
            talk.wait_for(rb"prefill ")
            talk.interrupt()
            talk.wait_for(rb"undone +by an interrupt; what was said before is read again with the next line\r\n")
            talk.write(b"import sys\n")
            again = talk.wait_for(rb"turn +(\d+) tokens [^\n]*, (\d+) generated [^\n]* (\d+) of 30000 stored\r\n")
            self.assertEqual(int(again[1]), stored + 1 + line)  # 1: the token that was generated last
            stored = int(again[3])
            self.assertEqual(stored, int(again[1]) + int(again[2]) - 1)
        talk.process.stdin.close()
        self.assertEqual(talk.end()[0], 0)


class Lines(unittest.TestCase):
    def test_a_line_that_does_not_fit_is_left_out(self):
        flags = ["-m", MODEL, "-p", "import os\n", "-n", "3", "--interactive", "-c", "60"]
        wanted = run("generate", *flags, input=b"import re\n")
        got = run("generate", *flags, input=b"x = 1; " * 100 + b"\nimport re\n")
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertEqual(got.stdout, wanted.stdout)
        refusals = [line for line in got.stderr.decode().splitlines() if "left out" in line]
        self.assertEqual(len(refusals), 1, got.stderr)
        self.assertRegex(refusals[0], r"^headwater generate: this line is left out: with it \d+ tokens would be "
                                      r"stored; allowed: 60$")
        self.assertIn(b"turns    2, of ", got.stderr)

    def test_hundreds_of_lines_and_lines_longer_than_one_read(self):
        """Each turn is its line, behind the token that was generated last."""
        kinds = ["x = 1", "import re  # again", "y = [1, 2, 3]; " * 600]
        sizes = [len(run("tokenize", "-m", MODEL, "-p", line, "--no-bos").stdout.splitlines()) for line in kinds]
        order = [(7 * i + i // 9) % 2 for i in range(270)]
        order[100] = order[260] = 2
        got = run("generate", "-m", MODEL, "-n", "1", "--interactive", "-t", "1", "-ub", "256", "--h2o-local", "16", "--h2o-heavy",
                  "16", input="".join(kinds[kind] + "\n" for kind in order).encode())
        self.assertEqual(got.returncode, 0, got.stderr)
        pattern = rb"(?m)^turn +(\d+) tokens? in [^,]*, (\d+) generated in [^,]*, (\d+) of 32768 stored$"
        turns = [tuple(map(int, turn)) for turn in re.findall(pattern, got.stderr)]
        self.assertEqual(len(turns), len(order))
        last = stored = 0
        for kind, (tokens, generated, all_stored) in zip(order, turns):
            self.assertEqual(tokens, sizes[kind] + last)
            stored += tokens
            self.assertEqual(all_stored, stored)
            last = generated
        self.assertIn(f"turns    {len(order)}, of {stored} tokens".encode(), got.stderr)

    def test_a_first_line_that_does_not_fit_is_left_out(self):
        got = run("generate", "-m", MODEL, "-n", "2", "--interactive", "-c", "20", input=b"x = 1; " * 100 + b"\nimport os\n")
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertEqual(got.stdout, run("generate", "-m", MODEL, "-n", "2", "-p", "import os").stdout)

    def test_a_system_message_stands_before_the_first_line_alone(self):
        flags = ["-m", str(fixtures() / "llama3.gguf"), "-n", "3", "--chat", "--system", "be kind"]
        first = run("generate", *flags, "-p", "the quick")
        got = run("generate", *flags, "--interactive", "-c", "256", input=b"the quick\n fox\n")
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertTrue(got.stdout.startswith(first.stdout), (got.stdout, first.stdout))
        turns = [int(line.split()[1]) for line in got.stderr.splitlines() if line.startswith(b"turn ")]
        # The first token of the second turn was generated last, and its answer is closed.
        line = run("tokenize", "-m", flags[1], "--no-bos", "-p", "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nfox<|eot_id|>"
                   "<|start_header_id|>assistant<|end_header_id|>\n\n").stdout.splitlines()
        self.assertEqual(turns[1], 1 + len(line))

    def test_line_ends_of_other_systems(self):
        flags = ("generate", "-m", MODEL, "-n", "3", "--interactive", "-c", "60", "--quiet")
        self.assertEqual(run(*flags, input=b"import os\r\nimport re\r\n").stdout, run(*flags, input=b"import os\nimport re\n").stdout)

    def test_a_line_that_is_not_utf8_is_warned_of(self):
        got = run("generate", "-m", MODEL, "-n", "2", "--interactive", "-c", "60", input=b"x\xff\nimport os\n")
        self.assertEqual(got.returncode, 0, got.stderr)
        warnings = [line for line in got.stderr.splitlines() if line.startswith(b"warning: ")]
        self.assertEqual(warnings, [b"warning: this line: byte 1 is not UTF-8; it, and what else is not, is read as U+FFFD"])


if __name__ == "__main__":
    unittest.main()
