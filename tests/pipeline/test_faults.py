"""Every rank ends, with a line that says why, whatever happens to one of them."""

import os
import pathlib
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest
from functools import partial

import ranks
from gguf_files import make_model

# Long enough to be met at work: minutes of decoding.
LONG = ("generate", "-m", ranks.MODEL, "-f", str(ranks.MODELS / "eval-16k.txt"), "-n", "100000", "-c", "200000", "-t", "1",
        "--rank-timeout", "5")
SHORT = ("generate", "-m", ranks.MODEL, "-p", "Once", "-n", "4", "-t", "1")


class Refusals(unittest.TestCase):
    def refused(self, result, names, code=2):
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stdout, b"")
        lines = ranks.own_lines(result.stderr)
        self.assertEqual(len(lines), 1, result.stderr.decode())
        for name in names if isinstance(names, tuple) else (names,):
            self.assertIn(name, lines[0])

    def all_refused(self, *runs):
        """Each is what its line names, and the ranks and arguments of a run."""
        for (names, *arguments), result in zip(runs, ranks.side_by_side(*(partial(ranks.run, *one[1:]) for one in runs))):
            with self.subTest(arguments=arguments):
                self.refused(result, names)

    def test_more_ranks_than_layers(self):
        self.refused(ranks.run(9, *SHORT), ("9 ranks", "1 .. 8"))

    def test_layers_that_do_not_add_up(self):
        self.all_refused(
            *((("--layers", "8 in all"), 2, *SHORT, "--layers", split) for split in ("4,5", "4,3", "8", "2,3,3", "4,4,1")),
            *(("--layers", 2, *SHORT, "--layers", split)
              for split in ("4,x", "0,8", "4,", "-1,9", "4,99999999999999999999", "")))

    def test_layers_without_ranks(self):
        self.refused(ranks.run(None, *SHORT, "--layers", "8"), ("--layers", "mpirun"))

    def test_timeouts_that_are_none(self):
        self.all_refused(*(("--rank-timeout", 2, *SHORT, "--rank-timeout", value)
                           for value in ("0", "0.5", "-1", "nan", "inf", "1e9", "x", "")))

    def test_bad_input_is_said_once(self):
        self.all_refused(("prompt is missing", 3, "generate", "-m", ranks.MODEL),
                         ("nowhere.gguf", 3, "generate", "-m", "nowhere.gguf", "-p", "hi"),
                         ("nowhere.txt", 3, "perplexity", "-m", ranks.MODEL, "-f", "nowhere.txt"),
                         ("context", 2, "generate", "-m", ranks.MODEL, "-p", "one and two", "-c", "1"))

    def test_what_sees_one_process_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            path = str(pathlib.Path(folder) / "dump.safetensors")
            self.refused(ranks.run(2, *SHORT, "--dump-qkv", "1", path), "--dump-qkv")

    @unittest.skipUnless(ranks.has_benchmarks(), "this build has no benchmarks")
    def test_bench_of_one_process_alone(self):
        self.refused(ranks.run(2, "bench", "--random", "qwen3-0.6b"), "--random")

    def test_help_is_printed_once(self):
        result = ranks.run(3, "generate", "--help")
        self.assertEqual(result.returncode, 0)
        self.assertEqual(result.stdout, ranks.run(None, "generate", "--help").stdout)

    def mixed(self, first, second):
        launch = ranks.launch(1)
        return subprocess.run([*launch, *first, ":", *launch[-2:], *second], capture_output=True, timeout=ranks.TIMEOUT,
                              env=ranks.ENVIRONMENT)

    def test_other_options_on_a_rank(self):
        self.refused(self.mixed([ranks.PROGRAM, *SHORT], [ranks.PROGRAM, *SHORT, "--dense"]),
                     ("rank 1", "command line", "--dense"))

    def test_long_options_that_end_otherwise(self):
        first, second = ([ranks.PROGRAM, *SHORT, "--dense-layers", f"{'0' * 300}{layer}"] for layer in "12")
        self.refused(self.mixed(first, second), ("rank 1", "command line", "--dense-layers"))

    def test_another_build_on_a_rank(self):
        with tempfile.TemporaryDirectory() as folder:
            other = pathlib.Path(folder) / "headwater"
            shutil.copy(ranks.PROGRAM, other)
            shutil.copy(pathlib.Path(ranks.PROGRAM).with_name("libheadwater-mpi.so"), folder)
            with other.open("ab") as file:
                file.write(b"x")
            self.refused(self.mixed([ranks.PROGRAM, *SHORT], [str(other), *SHORT]), ("rank 1", "build"))

    def test_a_model_file_that_differs(self):
        """The same path in another folder each, as on machines with disks of their own."""
        with tempfile.TemporaryDirectory() as folder:
            for name in ("a", "b", "c", "d"):
                (pathlib.Path(folder) / name).mkdir()
            data = pathlib.Path(ranks.MODEL).read_bytes()
            (pathlib.Path(folder) / "a/m.gguf").write_bytes(data)
            # One token of the vocabulary is another one; the token that ends a text is, behind 100 KB of metadata.
            at = data.index(b"tokenizer.ggml.tokens")
            early = data.index(b"\x03\0\0\0\0\0\0\0", at + 40) + 8
            late = data.index(b"tokenizer.ggml.eos_token_id") + len(b"tokenizer.ggml.eos_token_id") + 4
            self.assertGreater(late, 1 << 16)
            for name, place in (("b", early), ("d", late)):
                changed = bytearray(data)
                changed[place] = changed[place] ^ 1
                (pathlib.Path(folder) / name / "m.gguf").write_bytes(changed)
            arguments = ("generate", "-m", "m.gguf", "-p", "hi", "-n", "2", "-t", "1")

            def start(second):
                return ranks.run_in_shells([f'cd {folder}/{name} && exec "$@"' for name in ("a", second)], *arguments)

            same, early, late, missing = ranks.side_by_side(*(partial(start, name) for name in "abdc"))
            self.assertEqual(same.returncode, 0)
            for result in (early, late):
                self.refused(result, ("rank 1", "model file", "hash"))
            self.refused(missing, ("rank 1", "m.gguf", "No such file"))

    def test_a_model_file_that_differs_on_the_last_of_ten_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, layers in (("a", 12), ("b", 13)):
                (pathlib.Path(folder) / name).mkdir()
                make_model(f"{folder}/{name}/m.gguf", layers)
            result = ranks.run_in_shells([f'cd {folder}/{name} && exec "$@"' for name in "aaaaaaaaab"], "generate", "-m",
                                         "m.gguf", "-p", "hi", "-n", "2", "-t", "1")
            self.refused(result, ("rank 9", "model file", "hash"))

    def test_a_build_without_mpi(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(ranks.PROGRAM, folder)
            result = subprocess.run([*ranks.launch(2), f"{folder}/headwater", *SHORT], capture_output=True,
                                    timeout=ranks.TIMEOUT, env=ranks.ENVIRONMENT)
            self.refused(result, "no MPI", 3)

    def test_standard_input_of_another_rank(self):
        result = ranks.run_in_shells(('exec "$@"', f'exec "$@" <"{ranks.MODELS}/eval-4k.txt"'), "generate", "-m", ranks.MODEL,
                                     "-f", "-", "-t", "1")
        self.refused(result, ("rank 1", "standard input"))

    def test_a_prompt_from_standard_input(self):
        arguments = ("generate", "-m", ranks.MODEL, "-f", "-", "-n", "5", "-t", "1", "--quiet")
        alone = ranks.run(None, *arguments, input=b"Once upon a time")
        self.assertEqual(alone.returncode, 0)
        self.assertEqual(ranks.run(2, *arguments, input=b"Once upon a time").stdout, alone.stdout)


    def test_mpi_without_threads(self):
        """An MPI that gives less than was asked for, as one built without threads does."""
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "single.cpp"
            source.write_text("""#include <mpi.h>
                extern "C" int MPI_Init_thread(int* argc, char*** argv, int, int* provided) {
                  const int error = PMPI_Init_thread(argc, argv, MPI_THREAD_SINGLE, provided);
                  *provided = MPI_THREAD_SINGLE;
                  return error;
                }""")
            shim = f"{folder}/single.so"
            ranks.build_shared(source, shim)
            result = subprocess.run([*ranks.launch(3), "env", f"LD_PRELOAD={shim}", ranks.PROGRAM, *SHORT],
                                    capture_output=True, timeout=ranks.TIMEOUT, env=ranks.ENVIRONMENT)
            self.refused(result, ("no support of threads", "MPI_THREAD_FUNNELED"))


class FullDisks(unittest.TestCase):
    """All that a rank writes are its standard streams: no file is opened for writing."""

    def run_with(self, redirections, *arguments):
        """A rank for each redirection, which a shell makes, since the launcher's own streams are pipes."""
        return ranks.run_in_shells([f'exec "$@" {redirection}' for redirection in redirections], *arguments)

    def test_output_of_rank_0(self):
        forms = (SHORT, (*SHORT, "--json"), (*SHORT, "--quiet"))
        results = ranks.side_by_side(*(partial(self.run_with, (">/dev/full", ""), *arguments) for arguments in forms))
        for arguments, result in zip(forms, results):
            with self.subTest(arguments=arguments):
                self.assertEqual(result.returncode, 2, result.stderr)
                lines = ranks.own_lines(result.stderr)
                self.assertEqual(len(lines), 1, result.stderr.decode())
                self.assertIn("standard output cannot be written: No space left", lines[0])

    def test_streams_that_carry_no_result(self):
        expected = ranks.run(None, *SHORT).stdout
        for redirections in (("2>/dev/full", ""), ("", ">/dev/full 2>/dev/full"), ("", "<&- >&- 2>&-")):
            with self.subTest(redirections):
                result = self.run_with(redirections, *SHORT)
                self.assertEqual((result.returncode, result.stdout), (0, expected), result.stderr)

    def test_a_last_line_that_cannot_be_written(self):
        """Both end all the same."""
        result = self.run_with(("2>/dev/full", "2>/dev/full"), "generate", "-m", "nowhere.gguf", "-p", "hi")
        self.assertEqual((result.returncode, ranks.own_lines(result.stderr)), (2, []))


class Deaths(unittest.TestCase):
    def start(self, count):
        launcher = subprocess.Popen(ranks.command(count, *LONG), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                    stdin=subprocess.DEVNULL, env=ranks.ENVIRONMENT)
        self.addCleanup(self.end, launcher)
        # At work: the first token is out.
        if launcher.stdout.read(1) == b"":
            self.fail(f"no token came: {launcher.communicate()[1].decode()}")
        own = sorted(self.ranks_below(launcher.pid))
        self.assertEqual([rank for rank, _ in own], list(range(count)))
        return launcher, [process for _, process in own]

    @staticmethod
    def end(launcher):
        if launcher.poll() is None:
            launcher.kill()
        launcher.communicate()

    @staticmethod
    def ranks_below(launcher):
        """(rank, process) of the program's processes that this launcher started."""
        found = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                environment = dict(entry.split(b"=", 1) for entry in (folder / "environ").read_bytes().split(b"\0") if b"=" in entry)
                above = int(folder.name)
                for _ in range(3):  # MPICH has a proxy between
                    above = int((folder.parent / str(above) / "stat").read_text().rsplit(")", 1)[1].split()[1])
                    if above == launcher:
                        rank = environment.get(b"OMPI_COMM_WORLD_RANK", environment.get(b"PMI_RANK"))
                        if rank is not None:
                            found.append((int(rank), int(folder.name)))
                        break
            except (OSError, ValueError, IndexError):
                continue
        return found

    def ended(self, launcher, processes):
        """The lines of the ranks; all that was said is in self.said."""
        output, said = launcher.communicate(timeout=60)  # it does not hang
        self.said = (output + said).decode(errors="replace")  # MPICH's launcher speaks on standard output
        self.assertNotEqual(launcher.returncode, 0)
        deadline = time.monotonic() + 20
        for process in processes:
            while pathlib.Path(f"/proc/{process}").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            self.assertFalse(pathlib.Path(f"/proc/{process}").exists(), f"process {process} is still there")
        return ranks.own_lines(said)

    def test_a_rank_that_is_killed(self):
        for count, victim in ((2, 1), (3, 0), (3, 1)):
            with self.subTest(ranks=count, victim=victim):
                launcher, processes = self.start(count)
                os.kill(processes[victim], signal.SIGKILL)
                lines = self.ended(launcher, processes)
                if not ranks.OPEN_MPI:
                    # MPICH's launcher kills the others at once, and says it itself.
                    self.assertIn("Killed (signal 9)", self.said)
                    continue
                # Each of the others says who it was.
                self.assertEqual(len(lines), count - 1, lines)
                for line in lines:
                    self.assertIn(f": rank {victim} on ", line)
                    self.assertIn("was killed", line)

    def test_a_rank_that_is_stopped(self):
        for count, victim in ((2, 0), (3, 2)):
            with self.subTest(ranks=count, victim=victim):
                launcher, processes = self.start(count)
                os.kill(processes[victim], signal.SIGSTOP)
                lines = self.ended(launcher, processes)
                naming = [line for line in lines if f": rank {victim} on " in line and "was not heard for 5 s" in line]
                # The one that went on, by the signal that the launcher sends first, may say it of itself.
                self.assertEqual(len([line for line in naming if f"rank {victim} of" not in line]), count - 1, lines)

    def test_a_pause_that_is_shorter_than_the_timeout(self):
        launcher, processes = self.start(2)
        for process in processes:
            os.kill(process, signal.SIGSTOP)
            time.sleep(1)
            os.kill(process, signal.SIGCONT)
        time.sleep(6)
        self.assertIsNone(launcher.poll())

    def test_an_interrupt(self):
        """As in one process: the statistics of what was done, and status 130."""
        launcher, processes = self.start(3)
        os.kill(processes[0], signal.SIGINT)
        _, said = launcher.communicate(timeout=60)
        self.assertEqual(launcher.returncode, 130, said)
        self.assertIn(b"ended    by an interrupt", said)
        self.assertIn(b"rank 2", said)

    def test_an_interrupt_inside_a_prefill(self):
        """The turn is undone on all ranks, and the session goes on."""
        launcher = subprocess.Popen(ranks.command(2, "generate", "-m", ranks.MODEL, "--interactive", "-n", "1", "-t", "1", "-ub",
                                                  "64", "--h2o-local", "16", "--h2o-heavy", "16", "--quiet"),
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                    env=ranks.ENVIRONMENT)
        self.addCleanup(self.end, launcher)

        def say(text):
            launcher.stdin.write(text.encode() + b"\n")
            launcher.stdin.flush()

        say("Once upon a time")
        self.assertNotEqual(launcher.stdout.read(1), b"")
        rank_0 = dict(self.ranks_below(launcher.pid))[0]
        say((ranks.MODELS / "eval-16k.txt").read_text().replace("\n", " "))
        # At work on the long prompt, which takes it a second of processor time.
        deadline, before = time.monotonic() + 60, self.seconds_of(rank_0)
        while time.monotonic() < deadline and self.seconds_of(rank_0) < before + 0.2:
            self.assertIsNone(launcher.poll())
            time.sleep(0.01)
        os.kill(rank_0, signal.SIGINT)
        say("And then?")
        output, said = launcher.communicate(timeout=60)
        self.assertEqual(launcher.returncode, 0, said)
        self.assertIn(b"undone   by an interrupt", said)
        self.assertEqual(ranks.own_lines(said), [])
        self.assertNotEqual(output, b"")

    def test_an_interrupt_of_losses(self):
        """Nothing is left of them, and nothing hangs."""
        launcher = subprocess.Popen(ranks.command(2, "perplexity", "-m", ranks.MODEL, "-f", str(ranks.MODELS / "eval-16k.txt"),
                                                  "--window", "16000", "-b", "1024", "-t", "1"),
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ranks.ENVIRONMENT)
        self.addCleanup(self.end, launcher)
        deadline = time.monotonic() + 60
        own = {}
        # At work: both have used some of the processor.
        while time.monotonic() < deadline and (len(own) < 2 or min(map(self.seconds_of, own.values())) < 0.5):
            self.assertIsNone(launcher.poll())
            time.sleep(0.05)
            own = dict(self.ranks_below(launcher.pid))
        os.kill(own[0], signal.SIGINT)
        for line in self.ended(launcher, own.values()):
            self.assertIn("rank 0 on ", line)

    def test_an_interrupt_of_requests(self):
        """What is under way is waited for, whichever group of slots it belongs to: five slots are groups of two, two and one."""
        text = (ranks.MODELS / "eval-16k.txt").read_text()
        requests = [{"prompt": text[:200], "max_tokens": 1}]
        requests += [{"prompt": text[100 * i:100 * i + 300], "max_tokens": 3000} for i in range(9)]
        lines = "".join(ranks.json.dumps(request) + "\n" for request in requests).encode()
        for wait in (0, 0.05, 0.11, 0.2, 0.33):
            launcher = subprocess.Popen(ranks.command(3, "generate", "-m", ranks.MODEL, "--requests", "-", "--slots", "5", "-t",
                                                      "1"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, env=ranks.ENVIRONMENT, bufsize=0)
            self.addCleanup(self.end, launcher)
            launcher.stdin.write(lines)
            launcher.stdin.close()
            launcher.stdin = None
            self.assertEqual(ranks.json.loads(launcher.stdout.readline())["id"], 1)
            time.sleep(wait)
            os.kill(dict(self.ranks_below(launcher.pid))[0], signal.SIGINT)
            output, said = launcher.communicate(timeout=60)
            self.assertEqual(launcher.returncode, 130, said)
            self.assertEqual(output, b"")
            self.assertIn(b"requests 1 of 10", said)
            self.assertNotIn(b"headwater generate: ", said)

    @staticmethod
    def seconds_of(process):
        fields = pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def test_an_interrupt_of_the_launcher(self):
        launcher, processes = self.start(2)
        launcher.send_signal(signal.SIGTERM)
        for line in self.ended(launcher, processes):
            self.assertIn("SIGTERM", line)


if __name__ == "__main__":
    unittest.main()
