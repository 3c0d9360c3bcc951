"""The kit as the plug-in tests run it: where the programs are comes from the environment (tests/plugin/CMakeLists.txt)."""

import json
import os
import subprocess
import tempfile
import unittest

KIT = os.environ["HEADWATER_KIT"]
PLUGINS = os.environ["HEADWATER_PLUGINS"]
SANITIZED = os.environ.get("HEADWATER_SANITIZED", "") != ""


def plugin(name):
    return os.path.join(PLUGINS, f"lib{name}.so")


def kit(*arguments, fault=None, **variables):
    """Runs the kit. `fault` is what the broken plug-in does wrong."""
    environment = dict(os.environ, **variables)
    if fault is not None:
        environment["NAIVE_FAULT"] = fault
    return subprocess.run([KIT, *map(str, arguments)], capture_output=True, text=True, check=False, env=environment,
                          timeout=600)


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def report(self, *arguments, status, fault=None, **variables):
        """Runs the kit with --report; its exit status must be `status`. Returns report.json and report.html."""
        done = kit(*arguments, "--report", self.path("report"), fault=fault, **variables)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        with open(self.path("report/report.json"), encoding="utf-8") as file:
            document = json.load(file)
        with open(self.path("report/report.html"), encoding="utf-8") as file:
            page = file.read()
        self.assertEqual(sorted(os.listdir(self.path("report"))), ["report.html", "report.json"])
        return document, page
