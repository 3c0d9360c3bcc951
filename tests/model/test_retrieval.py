"""`headwater retrieval`, as a user runs it on the bundled model."""

import json
import os
import pathlib
import tempfile
import unittest

from running import MODEL, TEXT, Refusals, run

# The question is in another chunk than most codes, and the memory set is too small to hold them.
SMALL = ["--window", "700", "-ub", "64", "--h2o-local", "16", "--h2o-heavy", "16"]
MODES = ("dense", "sparse", "sparse_dense_tail")


def retrieval(*arguments):
    result = run("retrieval", "-m", MODEL, "-f", TEXT, "--json", *arguments)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


class Retrieval(unittest.TestCase):
    def test_sparse_prefill_loses_codes_and_a_dense_tail_finds_them(self):
        for more in (["--trials", "4"], ["--trials", "2", "--single"]):
            got = retrieval(*SMALL, "--depths", "0,30,60", *more)
            self.assertGreaterEqual(got["dense"]["rate"], 0.8)
            self.assertLessEqual(got["sparse"]["rate"], 0.3)
            self.assertAlmostEqual(got["sparse_dense_tail"]["rate"], got["dense"]["rate"], delta=0.1)
            self.assertAlmostEqual(got["difference"]["sparse"]["rate"], got["sparse"]["rate"] - got["dense"]["rate"])
            self.assertEqual([entry["depth"] for entry in got["depths"]], [0, 30, 60])
            for mode in MODES:
                rates = [entry[mode]["rate"] for entry in got["depths"]]
                self.assertAlmostEqual(got[mode]["rate"], sum(rates) / 3)
                self.assertLessEqual(got[mode]["low"], got[mode]["rate"])
                self.assertGreaterEqual(got[mode]["high"], got[mode]["rate"])
            self.assertLessEqual(got["prompt_tokens"], 700)
            self.assertGreater(got["prompt_tokens"], 600)

    def test_one_chunk_is_dense(self):
        got = retrieval("--window", "500", "--depths", "0,50", "--trials", "3")
        for mode in MODES[1:]:
            self.assertEqual(got[mode], got["dense"])

    def test_a_dense_tail_of_given_length(self):
        # One token is not enough to see the question: as good as none.
        got = retrieval(*SMALL, "--depths", "0,30", "--trials", "2", "--dense-tail", "1")
        self.assertEqual(got["effective"]["dense_tail"], 1)
        self.assertLessEqual(got["sparse_dense_tail"]["rate"], 0.5)

    def test_results_depend_on_the_seed_and_not_on_threads(self):
        flags = [*SMALL, "--depths", "0,90", "--trials", "2"]
        first = retrieval(*flags, "-t", "1")
        self.assertEqual(retrieval(*flags, "-t", "3"), first)
        self.assertNotEqual(retrieval(*flags, "--seed", "9")["prompt_tokens"], None)

    def test_text_and_help(self):
        result = run("retrieval", "-m", MODEL, "-f", TEXT, *SMALL, "--depths", "12.5,100", "--trials", "2",
                     "--needle", "The secret code of {name} is {code}.", "--question", "The secret code of {name} is")
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.decode().splitlines()
        self.assertTrue(lines[0].startswith("prompts  2 of "), lines)
        self.assertEqual([line.split()[0] for line in lines[-3:]], ["12.5%", "100%", "all"])
        self.assertIn(b"Example", run("retrieval", "--help").stdout)

    def test_a_short_text_is_repeated_and_said(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "short.txt"
            path.write_text("a = 1\nb = 2\n", encoding="utf-8")
            result = run("retrieval", "-m", MODEL, "-f", path, "--window", "200", "--depths", "50", "--trials", "1")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(b"warning: ", result.stderr)
            self.assertIn(b"repeated", result.stderr)


class Refuses(Refusals):
    def refuse(self, *arguments, names, **more):
        self.refused("-m", MODEL, *arguments, names=names, program="retrieval", **more)

    def test_bad_input(self):
        self.refuse("-f", TEXT, "--window", "100", names="--window: 100")
        self.refuse("-f", TEXT, "--window", "40000", names="32768 tokens")
        self.refuse("-f", TEXT, "--depths", "0,101", names="--depths: 101")
        self.refuse("-f", TEXT, "--depths", "5,5", names="twice")
        self.refuse("-f", TEXT, "--depths", "", names="--depths")
        self.refuse("-f", TEXT, "--depths", "nan", names="--depths")
        self.refuse("-f", TEXT, "--depths", ",".join(str(i) for i in range(100)), names="at most")
        self.refuse("-f", TEXT, "--trials", "0", names="--trials")
        self.refuse("-f", TEXT, "--trials", "99999999999999999999", names="--trials")
        self.refuse("-f", TEXT, "--dense-tail", "0", names="--dense-tail")
        self.refuse("-f", TEXT, "--needle", "nothing", names="--needle")
        self.refuse("-f", TEXT, "--question", "{name} has {code}", names="--question")
        self.refuse("-f", "-", names="fewer than 2 lines", input=b"")
        self.refuse("-f", "/", names="directory")
        self.refuse("-f", f"{TEXT}.none", names=".none")
        self.refuse(names="--file")
        self.refuse("-f", TEXT, "--engine", "nope", names="nope")
        self.refused("-m", os.path.dirname(MODEL), "-f", TEXT, names="regular file", program="retrieval")


if __name__ == "__main__":
    unittest.main()
