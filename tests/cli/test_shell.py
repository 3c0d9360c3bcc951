"""Help, completion and manual pages: all from the flags that the commands declare."""

import re
import shutil
import subprocess
import unittest

from support import TIMEOUT, ProgramTest

OTHERS = ("completion", "help", "man")


class ShellTest(ProgramTest):
    def printed(self, *arguments):
        done = self.run_program(*arguments)
        self.assertEqual((done.returncode, done.stderr), (0, b""), arguments)
        return done.stdout.decode()

    def commands(self):
        """Those that can run here; bench and conform are programs of their own."""
        listed = re.findall(r"^  (\w+) +\S", self.printed("--help").split("Commands:")[1].split("\n\n")[0], re.MULTILINE)
        self.assertIn("attend", listed)
        return [name for name in listed if self.run_program(name, "--help").returncode == 0]

    def help_flags(self, command):
        """Every flag that some --help of the command shows."""
        text = self.printed(command, "--help")
        if command in ("atlas", "bench"):
            text += self.run_program(command, "-m", "x", "--help").stdout.decode()
        flags = set()
        for line in text.splitlines():
            if re.match(r"  -", line):
                flags.update(re.findall(r"(?:^|,)(--?[\w-]+)", line.split()[0]))
        self.assertIn("--help", flags)
        return flags


class Help(ShellTest):
    def test_a_command(self):
        for command in self.commands():
            if command != "help":
                self.assertEqual(self.printed("help", command), self.printed(command, "--help"))
        self.assertEqual(self.printed("help"), self.printed("--help"))
        self.assert_refused(self.run_program("help", "atend"), "'atend'", "attend")
        self.assert_refused(self.run_program("help", "attend", "atlas"), "'atlas'")


class Completion(ShellTest):
    def complete(self, *words):
        """What bash offers for the last of these words."""
        script = self.path("completion.bash")
        with open(script, "w", encoding="utf-8") as file:
            file.write(self.printed("completion", "bash"))
        quoted = " ".join(f"'{word}'" for word in words)
        done = subprocess.run(["bash", "-c", f"source '{script}'; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; "
                               "_headwater; printf '%s\\n' \"${COMPREPLY[@]}\""],
                              capture_output=True, check=True, timeout=TIMEOUT, cwd=self.directory)
        self.assertEqual(done.stderr, b"")
        return done.stdout.decode().split()

    def test_bash(self):
        subprocess.run(["bash", "-n"], input=self.printed("completion", "bash").encode(), check=True)
        self.assertEqual(self.complete("headwater", "att"), ["attend"])
        self.assertEqual(sorted(self.complete("headwater", "attend", "--h2o")),
                         ["--h2o-heavy", "--h2o-local", "--h2o-no-clamp"])
        self.assertEqual(self.complete("headwater", "completion", "z"), ["zsh"])
        self.assertEqual(self.complete("headwater", "help", "inf"), ["info"])
        self.put(b"", "name of a file")
        self.assertEqual(self.complete("headwater", "attend", "name"), ["name", "of", "a", "file"])
        if self.run_program("generate", "--help").returncode == 0:
            self.assertIn("--layers", self.complete("headwater", "atlas", "--l"))
            self.assertEqual(self.complete("headwater", "gen"), ["generate"])
            self.assertEqual(sorted(self.complete("headwater", "generate", "--h2o")),
                             ["--h2o-heavy", "--h2o-local", "--h2o-no-clamp"])

    def test_zsh(self):
        text = self.printed("completion", "zsh")
        self.assertTrue(text.startswith("#compdef headwater\n"))
        if shutil.which("zsh"):
            subprocess.run(["zsh", "-n"], input=text.encode(), check=True)

    def test_every_flag_of_every_help(self):
        zsh = self.printed("completion", "zsh")
        for command in self.commands():
            if command in OTHERS:
                continue
            flags = self.help_flags(command)
            self.assertEqual(flags - set(self.complete("headwater", command, "-")), set(), command)
            part = zsh.split(f"    {command}) flags=(\n")[1].split("    ) ;;")[0]
            self.assertEqual(flags - set(re.findall(r"^      '(--?[\w-]+):", part, re.MULTILINE)), set(), command)

    def test_refused(self):
        self.assert_refused(self.run_program("completion", "fish"), "'fish'", "bash or zsh")
        self.assert_refused(self.run_program("completion"), "SHELL")


class Manual(ShellTest):
    def check(self, page, name):
        self.assertTrue(page.startswith(f".TH {name} 1 "), page[:80])
        for section in (".SH NAME", ".SH SYNOPSIS"):
            self.assertIn(f"\n{section}\n", page)
        for line in page.splitlines():
            if line.startswith((".", "'")):
                self.assertRegex(line, r"^\.(TH|SH|TP|PP|br|nf|fi|B|BR)( |$)")
        for command in (["mandoc", "-T", "lint", "-W", "error"], ["groff", "-man", "-Tutf8", "-ww", "-z"]):
            if shutil.which(command[0]):
                done = subprocess.run(command, input=page.encode(), capture_output=True, check=False, timeout=TIMEOUT)
                self.assertEqual((done.returncode, done.stderr), (0, b""))

    def test_every_command_and_flag(self):
        self.check(self.printed("man"), "headwater")
        for command in self.commands():
            if command == "help":
                continue
            page = self.printed("man", command)
            self.check(page, f"headwater\\-{command}")
            bold = {name.replace("\\-", "-") for name in re.findall(r"\\fB(.*?)\\fR", page)}
            self.assertEqual(self.help_flags(command) - bold, set(), command)
        self.assert_refused(self.run_program("man", "atend"), "'atend'")

    def test_all_as_files(self):
        self.printed("man", "--write", self.directory)
        for command in self.commands():
            if command == "help":
                continue
            with open(self.path(f"headwater-{command}.1"), encoding="utf-8") as file:
                self.assertEqual(file.read(), self.printed("man", command))
        with open(self.path("headwater.1"), encoding="utf-8") as file:
            self.assertEqual(file.read(), self.printed("man"))
        self.assert_refused(self.run_program("man", "--write", self.path("nowhere")), "nowhere")

    def test_the_table_is_no_flag_of_the_help(self):
        self.assertNotIn("--flag-table", self.printed("attend", "--help"))


if __name__ == "__main__":
    unittest.main()
