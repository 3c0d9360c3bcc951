"""`headwater bench -m` and `--random`: what they say adds up, bad flags are refused in one line. No time is asserted."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["HEADWATER_PROGRAM"]
MODELS = pathlib.Path(os.environ["HEADWATER_MODELS"])
MODEL = str(MODELS / "headwater-tiny-f16.gguf")


def run(*arguments):
    return subprocess.run([PROGRAM, "bench", *arguments], capture_output=True, text=True, timeout=600, check=False)


class ModelBench(unittest.TestCase):
    def refuse(self, *arguments, words=()):
        done = run(*arguments)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stdout, "")
        lines = done.stderr.splitlines()
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertTrue(lines[0].startswith("headwater bench: "), lines[0])
        for word in words:
            self.assertIn(word, lines[0])

    def test_the_numbers_add_up(self):
        done = run("-m", MODEL, "-n", "200,70", "-ub", "64", "-b", "128", "--h2o-local", "16", "--h2o-heavy", "16",
                   "--dense-tail", "10", "--decode", "3", "--rounds", "3", "-t", "2", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual([(p["tokens"], p["mode"]) for p in report["prompts"]],
                         [(200, "sparse"), (200, "dense"), (70, "sparse"), (70, "dense")])
        self.assertEqual(report["threads"], 2)
        for prompt in report["prompts"]:
            n = prompt["tokens"]
            self.assertEqual(prompt["pairs_dense"], n * (n + 1) // 2)
            first = prompt["first_token"]
            self.assertEqual(len(first["rounds"]), 3)
            self.assertEqual(first["seconds"], sorted(first["rounds"])[1])
            self.assertAlmostEqual(first["tokens_per_second"], n / first["seconds"])
            split = dict(first["split"])
            self.assertEqual(split.pop("seconds"), first["seconds"])
            self.assertAlmostEqual(sum(split.values()), first["seconds"])
            decode = prompt["decode"]
            self.assertAlmostEqual(decode["tokens_per_second"], 3 / sorted(decode["rounds"])[1])
            self.assertGreater(decode["share_of_reading"], 0)
        sparse, dense = report["prompts"][:2]
        self.assertEqual(dense["pairs"], dense["pairs_dense"])
        # PLAN-1: 190 tokens in batches of 128: chunks of 64, 64 and 62, the later ones over 32 more; then a tail of ten.
        self.assertEqual(sparse["pairs"], 2 * 64 * 65 // 2 + 62 * 63 // 2 + (64 + 62) * 32 + 10 * 190 + 55)
        ratios = sorted(d / s for s, d in zip(sparse["first_token"]["rounds"], dense["first_token"]["rounds"]))
        self.assertAlmostEqual(report["speed_up"][0], ratios[1])

    def test_the_table(self):
        done = run("-m", MODEL, "-n", "20", "--rounds", "1", "--no-dense", "--decode", "0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("first token", done.stdout)
        self.assertNotIn("dense prefill", done.stdout)

    def test_a_saved_random_model_is_a_model(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "random.gguf")
            done = run("--random", "qwen3-0.6b", "--type", "q4_0", "--save", path)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
            self.assertEqual(os.listdir(folder), ["random.gguf"])
            with open(path, "rb") as file:
                self.assertEqual(file.read(4), b"GGUF")
            self.assertGreater(os.path.getsize(path), 596e6 * 18 / 32)

    def test_bad_flags(self):
        self.refuse("--random", "qwen4", words=("--random", "'qwen4'", "qwen3-0.6b"))
        self.refuse("--random", "", words=("--random",))
        self.refuse("--random", "qwen3-0.6b", "-m", MODEL, words=("-m and --random",))
        self.refuse("-m", "", words=("-m (--model)",))
        self.refuse("-m", "/nowhere/model.gguf", words=("/nowhere/model.gguf",))
        self.refuse("-m", str(MODELS), words=(str(MODELS),))
        self.refuse("-m", MODEL, "--type", "q8_0", words=("--type",))
        self.refuse("-m", MODEL, "--save", "x.gguf", words=("--save",))
        self.refuse("--random", "qwen3-0.6b", "--type", "q9", words=("--type", "'q9'", "Q8_0"))
        self.refuse("--random", "qwen3-0.6b", "--save", "/nowhere/x.gguf", words=("/nowhere/x.gguf",))
        self.refuse("--random", "qwen3-0.6b", "--save", "", words=("--save",))
        for bad in ("0", "-1", "1,,2", "1,", "x", "2147483648", ",".join(["1"] * 33)):
            self.refuse("-m", MODEL, "-n", bad, words=("-n (--tokens)",))
        self.refuse("-m", MODEL, "--rounds", "0", words=("--rounds",))
        self.refuse("-m", MODEL, "--dense-layers", "0,5-8", words=("--dense-layers: 8 is not a layer; allowed are 0 to 7",))
        self.refuse("-m", MODEL, "--decode", "-1", words=("--decode",))
        self.refuse("-m", MODEL, "--heads", "3", words=("--heads",))
        self.refuse("-m", MODEL, "-n", "2147483647", "--decode", "2147483647", words=("2147483647",))

    def test_what_does_not_fit_is_refused_before_it_is_taken(self):
        self.refuse("--random", "llama-2-7b", "-n", "4096", words=("4112", "4096"))
        self.refuse("--random", "qwen3-0.6b", "-n", "1000000000", "-c", "1100000000", words=("--random qwen3-0.6b", "GiB"))
        self.refuse("-m", MODEL, "-n", "1000000000", "-c", "1100000000", words=(MODEL, "GiB"))


if __name__ == "__main__":
    unittest.main()
