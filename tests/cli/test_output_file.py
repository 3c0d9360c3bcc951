"""Where -o writes: links, permissions and owners of what is replaced, standard output, devices and pipes."""

import json
import os
import shutil
import stat
import subprocess
import tempfile
import threading
import unittest

from support import PROGRAM, SANITIZED, TIMEOUT, ProgramTest, parse_safetensors, problem

SOMEBODY = 12345  # a user that this machine need not have
IS_ROOT = os.geteuid() == 0
NEEDS_ROOT = unittest.skipUnless(IS_ROOT, "SKIP: files of several users can be made by root alone")

# Counts the calls of fsync on a directory: one letter each, in the file that FSYNC_LOG names.
FSYNC_LOG = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
int fsync(int fd) {
  struct stat status;
  const int log = open(getenv("FSYNC_LOG"), O_WRONLY | O_APPEND | O_CREAT, 0600);
  if (fstat(fd, &status) == 0 && write(log, S_ISDIR(status.st_mode) ? "d" : "f", 1) != 1) abort();
  close(log);
  return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}
"""


class OutputFileTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.input = self.put(problem())
        self.expected = self.output_bytes(self.input, out="out.safetensors")
        os.unlink(self.path("out.safetensors"))

    def somebody(self):
        """Options of a run as an ordinary user, to whom the directory is open."""
        folder = os.path.dirname(os.path.abspath(PROGRAM))
        while folder != "/":
            if not os.stat(folder).st_mode & stat.S_IXOTH:
                self.skipTest(f"SKIP: {folder} is closed to other users, and the program lies in it")
            folder = os.path.dirname(folder)
        os.chmod(self.directory, 0o755)
        os.chmod(self.input, 0o644)
        return {"user": SOMEBODY, "group": SOMEBODY, "extra_groups": []}

    def content(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def old(self, name, mode=0o644, owner=None):
        with open(self.path(name), "wb") as file:
            file.write(b"old")
        if owner is not None:
            os.chown(self.path(name), owner, owner)
        os.chmod(self.path(name), mode)


class Replaced(OutputFileTest):
    def test_the_mode_is_kept(self):
        for mode in (0o600, 0o640, 0o666, 0o604, 0o700):
            self.old("out", mode)
            self.attend(self.input, out="out", preexec_fn=lambda: os.umask(0o022) and None)
            self.assertEqual(self.content("out"), self.expected)
            self.assertEqual(stat.S_IMODE(os.stat(self.path("out")).st_mode), mode)

    @NEEDS_ROOT
    def test_the_owner_is_kept(self):
        self.old("out", 0o640, SOMEBODY)
        self.attend(self.input, out="out")
        status = os.stat(self.path("out"))
        self.assertEqual((status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)), (SOMEBODY, SOMEBODY, 0o640))

    @NEEDS_ROOT
    def test_another_group_gets_no_more_than_everybody(self):
        options = self.somebody()
        os.chmod(self.directory, 0o777)
        self.old("out", 0o662, SOMEBODY + 1)
        self.attend(self.input, out="out", **options)
        status = os.stat(self.path("out"))
        self.assertEqual((status.st_uid, stat.S_IMODE(status.st_mode)), (SOMEBODY, 0o622))

    def test_the_temporary_file_is_never_more_open(self):
        self.old("out", 0o600)
        listing = "import os, sys; [print(oct(os.stat(n).st_mode & 0o777)) for n in os.listdir('.') if 'tmp' in n]"
        # The program waits for a reader of its second output; until then the first is there under its temporary name.
        os.mkfifo(self.path("fifo"))
        self.attend(self.input, out="trace")
        process = subprocess.Popen([PROGRAM, "atlas", self.path("trace"), "-o", self.path("out"), "--png", self.path("fifo")],
                                   stdout=subprocess.DEVNULL, preexec_fn=lambda: os.umask(0) and None)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        found = b""
        while not found:
            self.assertIsNone(process.poll())
            found = subprocess.run(["python3", "-c", listing], cwd=self.directory, capture_output=True, check=True).stdout
        self.assertEqual(found, b"0o600\n")
        with open(self.path("fifo"), "rb") as file:
            self.assertTrue(file.read().startswith(b"\x89PNG"))
        self.assertEqual(process.wait(TIMEOUT), 0)

    @unittest.skipIf(SANITIZED, "a sanitizer's library wants to be the first")
    @unittest.skipUnless(shutil.which("cc"), "SKIP: no compiler for the library that counts fsync")
    def test_the_directory_reaches_the_disk_too(self):
        with open(self.path("log.c"), "w", encoding="utf-8") as file:
            file.write(FSYNC_LOG)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", self.path("log.so"), self.path("log.c"), "-ldl"], check=True)
        self.attend(self.input, out="out", env={"LD_PRELOAD": self.path("log.so"), "FSYNC_LOG": self.path("log")})
        self.assertEqual(self.content("log"), b"fd")


class Links(OutputFileTest):
    def sticky(self, name="sticky"):
        os.mkdir(self.path(name))
        os.chmod(self.path(name), 0o1777)
        return name

    def link(self, target, name, owner=None):
        os.symlink(target, self.path(name))
        if owner is not None:
            os.lchown(self.path(name), owner, owner)
        return name

    @NEEDS_ROOT
    def test_of_somebody_else_in_a_sticky_directory(self):
        self.sticky()
        self.old("victim", 0o600)
        for target in (self.path("victim"), "../victim", self.path("new"), self.path("sticky/new"), "new"):
            link = self.link(target, "sticky/link", SOMEBODY)
            chain = self.link(self.path(link), "chain")
            for name in (link, chain):
                self.refuse(self.input, "sticky/link", "another user", out=name)
            os.unlink(self.path(chain))
            os.unlink(self.path(link))
        self.assertEqual(self.content("victim"), b"old")

    @NEEDS_ROOT
    def test_that_may_be_followed(self):
        self.sticky()
        os.mkdir(self.path("open"))
        os.chmod(self.path("open"), 0o777)
        self.old("victim", 0o600)
        self.link(self.path("victim"), "sticky/own", 0)      # it is ours
        self.link(self.path("victim"), "open/link", SOMEBODY)  # every user may replace what is there
        for name in ("sticky/own", "open/link"):
            self.old("victim", 0o600)
            self.attend(self.input, out=name)
            self.assertEqual(self.content("victim"), self.expected)
        # A link of the directory's owner, by an ordinary user.
        home = tempfile.mkdtemp(prefix="headwater-test-")
        self.addCleanup(shutil.rmtree, home)
        os.chmod(home, 0o1777)
        options = self.somebody()
        os.chmod(self.directory, 0o777)
        self.old("victim", 0o600, SOMEBODY)
        os.symlink(self.path("victim"), os.path.join(home, "link"))
        self.attend(self.input, out=os.path.join(home, "link"), **options)
        self.assertEqual(self.content("victim"), self.expected)

    @NEEDS_ROOT
    def test_an_ordinary_user_is_protected_from_another(self):
        options = self.somebody()
        self.sticky()
        self.old("victim", 0o600, SOMEBODY)
        self.link(self.path("victim"), "sticky/link", SOMEBODY + 1)
        self.refuse(self.input, "sticky/link", "another user", out="sticky/link", **options)
        self.assertEqual(self.content("victim"), b"old")

    def test_a_dangling_one_makes_its_target(self):
        os.mkdir(self.path("folder"))
        self.link("folder/new", "dangling")
        self.attend(self.input, out="dangling")
        self.assertEqual(self.content("folder/new"), self.expected)
        self.link("nowhere/new", "lost")
        self.refuse(self.input, "lost", "No such file", out="lost")


class Streams(OutputFileTest):
    def run_to(self, output, *arguments, **options):
        return self.run_program("attend", self.input, "-o", output, *arguments, **options)

    def test_standard_output(self):
        done = self.run_to("-")
        self.assertEqual((done.returncode, done.stdout), (0, self.expected), done.stderr)
        self.assertIn(b"of dense attention", done.stderr)
        parse_safetensors(done.stdout)
        done = self.run_to("-", "--quiet")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, self.expected, b""))
        self.assertEqual(os.listdir(self.directory), ["in.safetensors"])
        self.assert_refused(self.run_to("-", "--json"), "--json", "standard output")

    def test_atlas(self):
        self.attend(self.input, out="trace")
        self.run_program("atlas", self.path("trace"), "-o", self.path("page"), "--png", self.path("picture"))
        done = self.run_program("atlas", self.path("trace"), "-o", "-")
        self.assertEqual((done.returncode, done.stdout), (0, self.content("page")), done.stderr)
        done = self.run_program("atlas", self.path("trace"), "-o", "/dev/null", "--png", "-", "--quiet")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, self.content("picture"), b""))
        for outputs in (("-o", "-"), ("-o", self.path("page"), "--png", "-")):
            self.assert_refused(self.run_program("atlas", self.path("trace"), *outputs, "--json"), "standard output")

    def test_more_than_is_copied_at_once(self):
        path = self.put(problem(n=30_000, heads=4, d=2, dv=4), "long.safetensors")
        flags = ("-ub", "200", "--h2o-local", "4", "--h2o-heavy", "4", "--quiet")
        wanted = self.output_bytes(path, *flags)
        self.assertGreater(len(wanted), 2**21)
        self.assertEqual(self.run_program("attend", path, "-o", "-", *flags).stdout, wanted)

    def test_standard_output_that_fails(self):
        for output, words in (("/dev/full", b"standard output cannot be written"), (None, b"")):
            reader, writer = (None, os.open(output, os.O_WRONLY)) if output else os.pipe()
            if reader is not None:
                os.close(reader)
            done = subprocess.run([PROGRAM, "attend", self.input, "-o", "-"], stdout=writer, stderr=subprocess.PIPE,
                                  check=False, timeout=TIMEOUT)
            os.close(writer)
            self.assertEqual(done.returncode, 2 if output else 141)
            self.assertIn(words, done.stderr)
        self.assertEqual(os.listdir(self.directory), ["in.safetensors"])

    def test_devices_are_written_and_stay(self):
        before = os.stat("/dev/null")
        done = self.run_to("/dev/null", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["output_bytes"], len(self.expected))
        after = os.stat("/dev/null")
        self.assertTrue(stat.S_ISCHR(after.st_mode))
        self.assertEqual((after.st_ino, after.st_rdev), (before.st_ino, before.st_rdev))
        os.symlink("/dev/null", self.path("link"))
        self.assertEqual(self.run_to(self.path("link")).returncode, 0)
        self.assertTrue(os.path.islink(self.path("link")))

    def test_pipes(self):
        os.mkfifo(self.path("fifo"))
        got = []
        thread = threading.Thread(target=lambda: got.append(self.content("fifo")))
        thread.start()
        done = self.run_to(self.path("fifo"))
        thread.join()
        self.assertEqual((done.returncode, got), (0, [self.expected]), done.stderr)
        self.assertTrue(stat.S_ISFIFO(os.stat(self.path("fifo")).st_mode))
        done = self.run_to("/dev/stdout", "--quiet")  # the pipe that this test reads
        self.assertEqual((done.returncode, done.stdout), (0, self.expected), done.stderr)


if __name__ == "__main__":
    unittest.main()
