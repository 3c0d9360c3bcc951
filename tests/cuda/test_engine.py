"""Engine `cuda` where there is no GPU for it: test_engine.py BUILT PROGRAM KIT LIBRARY READELF OLD_DRIVER

BUILT: 1 where the build has the engine, else 0. OLD_DRIVER: a folder with a libcuda.so.1 of CUDA 9.2. On a machine with a
GPU what needs one to be missing is skipped, with the reason.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

BUILT, PROGRAM, KIT, LIBRARY, READELF, OLD_DRIVER = sys.argv[1:]
BUILT = BUILT == "1"
del sys.argv[1:]
SMALL_PROBLEM = pathlib.Path(__file__).resolve().parents[2] / "tools/small_problem.py"
UNAVAILABLE = 3


def run(*arguments, **environment):
    inherited = {key: value for key, value in os.environ.items() if key != "HEADWATER_ENGINE"}
    return subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=120,
                          env={**inherited, **environment})


def cuda_of(done):
    found = [engine for engine in json.loads(done.stdout)["engines"] if engine["name"] == "cuda"]
    return found[0] if found else None


HERE = cuda_of(run(PROGRAM, "info", "--json"))
WITHOUT_GPU = unittest.skipIf(HERE is not None and HERE["available"], "this machine has a GPU that engine cuda runs on")


class Engine(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.source = os.path.join(self.folder.name, "in.safetensors")
        self.out = os.path.join(self.folder.name, "out.safetensors")
        subprocess.run([sys.executable, "-B", str(SMALL_PROBLEM), self.source], check=True)

    def tearDown(self):
        self.folder.cleanup()

    def attend(self, *arguments, **environment):
        return run(PROGRAM, "attend", self.source, "-o", self.out, *arguments, **environment)

    def expect_refused(self, done, *parts):
        self.assertEqual(done.returncode, UNAVAILABLE, done.stdout + done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, r"\A[^\n]+\n\Z")
        for part in ("engine 'cuda'", "available: reference, cpu-portable", *parts):
            self.assertIn(part, done.stderr)
        self.assertFalse(os.path.exists(self.out))

    def test_is_listed_where_it_is_built(self):
        self.assertEqual(HERE is not None, BUILT)
        if BUILT:
            self.assertEqual(HERE["available"], HERE["reason"] == "")
            text = run(PROGRAM, "info").stdout
            self.assertRegex(text, r"(?m)^  cuda +sm_80 +NVIDIA GPUs from compute capability 8\.0 on(; not available: .+)?$")

    @WITHOUT_GPU
    def test_refused_in_one_line(self):
        because = HERE["reason"] if BUILT else "is not known"
        self.expect_refused(self.attend("--engine", "cuda"), because)
        self.expect_refused(self.attend(HEADWATER_ENGINE="cuda"), because, "HEADWATER_ENGINE")

    @WITHOUT_GPU
    def test_the_kit_skips_it(self):
        done = run(KIT, "--engine", "cuda", "--no-ratchet", "--case", "bound.plain_f32")
        self.assertNotIn("PASS ", done.stdout.split("conformance:")[0])
        self.assertEqual(done.returncode, UNAVAILABLE, done.stdout + done.stderr)
        self.assertIn("'cuda'", done.stderr)

    @unittest.skipUnless(BUILT, "this build has no engine cuda")
    def test_refused_over_an_old_driver(self):
        old = "the NVIDIA driver is too old: it knows CUDA 9.2; needed: "
        reason = cuda_of(run(PROGRAM, "info", "--json", LD_LIBRARY_PATH=OLD_DRIVER))["reason"]
        self.assertRegex(reason, "^" + re.escape(old) + r"1\d\.0 or later$")
        self.expect_refused(self.attend("--engine", "cuda", LD_LIBRARY_PATH=OLD_DRIVER), old)

    def test_other_engines_do_not_care(self):
        for folder in ("", OLD_DRIVER):
            for engine in ("reference", "cpu"):
                done = self.attend("--engine", engine, LD_LIBRARY_PATH=folder)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertTrue(os.path.exists(self.out))

    def test_nothing_of_cuda_is_needed_to_load(self):
        for file in (PROGRAM, KIT, LIBRARY):
            needed = re.findall(r"\(NEEDED\).*\[(.+)\]", run(READELF, "-d", file).stdout)
            self.assertIn("libc.so.6", needed)
            self.assertEqual([name for name in needed if re.match(r"libcu|libnv", name)], [])


unittest.main()
