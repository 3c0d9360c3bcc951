"""The comparison with the peers, where none is installed: Headwater's side of it, its own checks, its table."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEERS = ROOT / "bench" / "peers"
LIBRARY = os.environ["HEADWATER_LIBRARY"]
sys.path.insert(0, str(PEERS))

import compare  # noqa: E402
import headwater  # noqa: E402
import model  # noqa: E402


def run(*arguments):
    return subprocess.run([sys.executable, "-B", str(PEERS / "compare.py"), "--library", LIBRARY, "--peers", "/nowhere",
                           *arguments], capture_output=True, text=True, check=False)


class Comparison(unittest.TestCase):
    def test_without_peers(self):
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "peers.json"
            done = run("--tokens", "40,1100", "--widths", "16", "--threads", "1,2", "--rounds", "2", "--json", str(report))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("llama.cpp could not be loaded", done.stdout)
            cases = json.loads(report.read_text())["cases"]
            self.assertEqual(sorted(os.listdir(folder)), ["peers.json"])
        self.assertEqual(len(cases), 8)  # two types, two numbers of threads, two lengths
        for case in cases:
            self.assertEqual(sorted(case["seconds"])[:2], ["headwater dense", "headwater sparse"])
            for pairs in case["seconds"].values():
                self.assertEqual(len(pairs), 2)
                self.assertTrue(all(wall > 0 and cpu >= 0 for wall, cpu in pairs))

    def test_refused(self):
        for arguments, word in ((("--tokens", "x"), "'x'"), (("--tokens", "0"), "from 1"), (("--widths", "16,"), "'16,'"),
                                (("--dtypes", "f64"), "f32, bf16"), (("--rounds", "1,2"), "one whole number")):
            done = run(*arguments)
            self.assertEqual(done.returncode, 2)
            self.assertIn(word, done.stderr.splitlines()[-1])
        done = run("--engine", "warp")
        self.assertEqual(done.returncode, 3)
        self.assertIn("'warp'", done.stderr)

    def test_ratios_are_taken_round_by_round(self):
        seconds = {"headwater sparse": [[9, 1.0], [9, 2.0]], "headwater dense": [[9, 2.0], [9, 4.0]],
                   "PyTorch": [[9, 3.0], [9, 10.0]]}
        row = compare.table([{"dtype": "f32", "width": 64, "threads": 1, "tokens": 9, "seconds": seconds}]).splitlines()[2]
        self.assertEqual([cell.strip() for cell in row.split("|")[1:-1]],
                         ["F32", "64", "1", "9", "2", "1500.0 ms", "3000.0 ms", "6500.0 ms", "-", "4.00", "2.00", "-", "-"])


class Checks(unittest.TestCase):
    def test_bf16_rounds_to_nearest_even(self):
        values = np.array([1.0, 1.00390625, 1.01171875, -2.5, 0.0], dtype=np.float32)
        self.assertEqual(compare.bf16_values(compare.bf16_bits(values)).tolist(), [1.0, 1.0, 1.015625, -2.5, 0.0])

    def test_wrong_outputs_are_found(self):
        library = headwater.Library(LIBRARY)
        for dtype in ("f32", "bf16"):
            problem = compare.Problem(1500, 16, dtype)
            for dense in (False, True):
                contender = compare.Headwater(library, "cpu", problem, 1, dense)
                contender.check()
                right = contender.out.copy()
                for spoil in (lambda out: out[:, ::-1], lambda out: np.roll(out, 1, axis=0)):
                    contender.session.observed_prefill = lambda *_, own=contender, spoil=spoil: (
                        own.out.__setitem__(slice(None), spoil(right)) or [(0, 1500, True, [])])
                    with self.assertRaises(RuntimeError):
                        contender.check()
                contender.close()


class Turns:
    def __init__(self, name, log, seconds):
        self.name, self.log, self.seconds = name, log, seconds

    def run(self, n, generate):
        self.log.append((self.name, n, generate))
        return next(self.seconds)


class Models(unittest.TestCase):
    def test_contenders_take_turns_and_ratios_are_of_rounds(self):
        log = []
        first = (99.0, 1.0)  # of a turn, which does not count
        own = Turns("headwater", log, iter([first, (1.0, 10.0), first, (2.0, 20.0), first, (4.0, 5.0)]))
        other = Turns("llama.cpp", log, iter([first, (3.0, 5.0), first, (4.0, 5.0), first, (20.0, 5.0)]))
        times = model.measure([own, other], [7], 3, 2)
        turns = ["headwater", "llama.cpp", "llama.cpp", "headwater", "headwater", "llama.cpp"]
        self.assertEqual([name for name, *_ in log], [name for name in turns for _ in range(2)])
        self.assertTrue(all(entry[1:] == (7, 2) for entry in log))
        lines = model.table(times, [7]).splitlines()
        rows = [[cell.strip() for cell in lines[i].split("|")[1:-1]] for i in (2, 6)]
        self.assertEqual(rows, [["7", "2.00 s", "4.00 s (3.00)"], ["7", "10.00 /s", "5.00 /s (0.50)"]])

    def test_another_result_ends_the_run(self):
        class Theirs(model.Llama):
            """The last token has these logits, one for each prompt; the others make a deviation of 1."""

            def __init__(self, *of_the_last):
                self.of_the_last = iter(of_the_last)

            def prompt(self, n):
                self.asked = n

            def logits(self):
                return [-1.0, 1.0] * 500 + [next(self.of_the_last)]

        class Others(model.OpenVINO):
            def __init__(self, *tokens):
                self.name, self.sparse, self.tokens = "OpenVINO", False, iter(tokens)

            def _ask(self, n, tokens):
                return [next(self.tokens)], 0.0, 0.0

        bests = [{"token": 1000, "logit": 1.0}] * len(model.CHECKED)
        Theirs(1.1, 1, 1, 1.2, .8).check(bests, False)
        Theirs(1.1, 3, 1, -1, .8).check(bests, True)  # experts: most are the same
        Others(1000, 4, 1000, 4, 1000).check(bests, False)
        for wrong, experts in ((Theirs(1, 1, 1, 1, .74), False), (Theirs(*[float("nan")] * 5), True),
                               (Theirs(1, 3, 3, 3, 1), True), (Others(1000, 4, 4, 4, 1000), True)):
            with self.assertRaises(RuntimeError):
                wrong.check(bests, experts)

    def test_without_peers(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(model.peers_of(pathlib.Path(folder) / "none.gguf", 1, 512), [])
        self.assertEqual([line.split(":")[1] for line in said.getvalue().splitlines()],
                         [" no llama.cpp", " no OpenVINO, dense", " no OpenVINO, XAttention"])

    def test_bad_flags(self):
        for words in (["-n", "0"], ["-n", "1,,2"], ["-n", ""], ["--rounds", "x"], ["-t", "0"]):
            with self.assertRaises(SystemExit), open(os.devnull, "w", encoding="utf-8") as null:
                with contextlib.redirect_stderr(null):
                    model.parse(["--headwater", "h", *words])


if __name__ == "__main__":
    unittest.main()
