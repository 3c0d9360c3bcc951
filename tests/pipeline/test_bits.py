"""Several ranks give the bits of one process, however the layers are shared out."""

import pathlib
import tempfile
import unittest

import ranks
from gguf_files import make_model

TEXT = (ranks.MODELS / "eval-4k.txt").read_text()[:4500]  # of about 1400 tokens

# Chunks of 128: several a batch, a batch that ends within one, tails on both sides of a chunk and of a batch.
SMALL = ("-ub", "128", "--h2o-local", "16", "--h2o-heavy", "48", "--key-block", "16", "--query-block", "16")
H2O = ("-ub", "128", "--h2o-local", "16", "--h2o-heavy", "48", "--select", "h2o")
GENERATE = {
    "blocks": (*SMALL, "--select", "blocks", "--compare", "--temp", "1", "--seed", "7"),
    "h2o": (*H2O, "--compare", "--temp", "1", "--seed", "7"),
    "dense": (*H2O, "--dense"),
    "some dense layers": (*H2O, "--dense-layers", "1,3,6"),
    "a batch that is no multiple of the chunk": (*H2O, "-b", "300"),
    "a tail of a chunk and a token": (*H2O, "-b", "256", "--dense-tail", "129"),
    "a tail of a batch and a token": (*H2O, "-b", "256", "--dense-tail", "257"),
    "no tail": (*SMALL, "--select", "blocks", "--dense-tail", "0"),
    "another rotation": (*H2O, "--rope-scaling", "yarn", "--rope-scale", "4", "--yarn-orig-ctx", "512"),
    "16 bits that are rounded": (*H2O, "--cache-type", "f32", "--projections", "f32"),
}
PERPLEXITY = {
    "blocks": (*SMALL, "--select", "blocks"),
    "h2o": (*H2O, "-b", "384"),
    "some dense layers": (*H2O, "--dense-layers", "0,7"),
    "many windows of several steps": (*SMALL, "--select", "blocks", "-b", "64", "-ub", "64", "--window", "150"),
    "windows of two tokens": (*H2O, "--window", "2", "--decode", "0"),
}


class Bits(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.text, self.short = f"{folder.name}/text.txt", f"{folder.name}/short.txt"
        pathlib.Path(self.text).write_text(TEXT)
        pathlib.Path(self.short).write_text(TEXT[:900])  # 140 windows of two tokens

    def same(self, counts, *arguments):
        expected = ranks.result(None, *arguments)
        for count in counts:
            with self.subTest(ranks=count):
                self.assertEqual(ranks.result(count, *arguments), expected)

    def generate(self, *arguments):
        return ("generate", "-m", ranks.MODEL, "-f", self.text, "-n", "12", *arguments)

    def test_generate(self):
        for name, arguments in GENERATE.items():
            with self.subTest(name):
                self.same((2, 3), *self.generate(*arguments))

    def test_as_many_ranks_as_layers(self):
        for name in ("blocks", "h2o", "dense"):
            with self.subTest(name):
                self.same((1, 8), *self.generate(*GENERATE[name]))

    def test_every_split(self):
        expected = ranks.result(None, *self.generate(*GENERATE["h2o"]))
        for split in ("1,7", "7,1", "3,2,3", "1,1,6"):
            with self.subTest(split):
                arguments = (*self.generate(*GENERATE["h2o"]), "--layers", split)
                self.assertEqual(ranks.result(split.count(",") + 1, *arguments), expected)

    def test_second_turns(self):
        lines = "\n".join([TEXT[:1500].replace("\n", " "), "And then?", TEXT[2000:2900].replace("\n", " ")]) + "\n"
        arguments = ("generate", "-m", ranks.MODEL, "--interactive", "-n", "6", "-t", "1", *H2O)
        outputs = []
        for count in (None, 2, 3):
            done = ranks.run(count, *arguments, input=lines.encode())
            self.assertEqual(done.returncode, 0, done.stderr)
            outputs.append(done.stdout)
        self.assertGreater(len(outputs[0]), 20)
        self.assertEqual(outputs[1], outputs[0])
        self.assertEqual(outputs[2], outputs[0])

    def test_requests(self):
        """More prompts than slots, and fewer slots than ranks: groups of slots are under way at the same time."""
        requests = [{"prompt": TEXT[300 * i:300 * i + size], "max_tokens": most} for i, (size, most) in enumerate(
            ((1500, 9), (20, 14), (700, 0), (300, 3), (2000, 7), (40, 1), (900, 11)))]
        lines = "".join(ranks.json.dumps(request) + "\n" for request in requests).encode()
        outputs = {}
        for count, slots in ((None, "1"), (2, "1"), (2, "5"), (3, "2"), (3, "7")):
            done = ranks.run(count, "generate", "-m", ranks.MODEL, "--requests", "-", "--slots", slots, "-t", "1", *H2O,
                             input=lines)
            self.assertEqual(done.returncode, 0, done.stderr)
            outputs[count, slots] = done.stdout
            self.assertEqual(done.stdout, outputs[None, "1"], (count, slots))
        self.assertEqual(len(outputs[None, "1"].splitlines()), len(requests))

    def test_answers_larger_than_a_message(self):
        """Logits of eight slots, of a vocabulary of 600000 each, travel in two pieces."""
        lines = "".join(ranks.json.dumps({"prompt": "abcdefghijklmnopq"[i:], "max_tokens": 3}) + "\n" for i in range(16))
        with tempfile.TemporaryDirectory() as folder:
            make_model(f"{folder}/m.gguf", layers=2, tokens=600_000)
            outputs = []
            for count in (None, 2):
                done = ranks.run(count, "generate", "-m", f"{folder}/m.gguf", "--requests", "-", "--slots", "16", "-t", "1",
                                 "-c", "100", input=lines.encode())
                self.assertEqual(done.returncode, 0, done.stderr)
                outputs.append(done.stdout)
        self.assertGreater(len(set(outputs[0].splitlines())), 10)
        self.assertEqual(outputs[1], outputs[0])

    def test_steps_larger_than_64_mib(self):
        """2200 rows of 8192 floats."""
        with tempfile.TemporaryDirectory() as folder:
            make_model(f"{folder}/m.gguf", layers=2, width=8192)
            self.same((2,), "generate", "-m", f"{folder}/m.gguf", "-p", "abcdefghijk" * 200, "-n", "3", "-ub", "4096",
                      "--dense-tail", "0", "-c", "3000")

    def test_eighteen_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            make_model(f"{folder}/m.gguf", layers=20)
            self.same((18,), "generate", "-m", f"{folder}/m.gguf", "-p", TEXT[:1500], "-n", "3", *H2O)

    def test_three_hundred_layers(self):
        """Dense ones on both sides of the cut, which is past 2^8."""
        with tempfile.TemporaryDirectory() as folder:
            make_model(f"{folder}/m.gguf", layers=300)
            arguments = ("generate", "-m", f"{folder}/m.gguf", "-p", TEXT[:700], "-n", "3", *H2O, "--dense-layers", "0,259-280")
            expected = ranks.result(None, *arguments)
            self.assertEqual(ranks.result(2, *arguments, "--layers", "270,30"), expected)
            for split, cut in ((("--layers", "270,30"), 270), ((), 150)):
                done = ranks.run(2, *arguments, *split, "--json")
                self.assertEqual([one["layers"] for one in ranks.json.loads(done.stdout)["ranks"]], [[0, cut], [cut, 300]])

    def test_losses(self):
        for name, arguments in PERPLEXITY.items():
            with self.subTest(name):
                counts = (1, 2, 3, 8) if name == "blocks" else (2, 3)
                text = self.short if name == "windows of two tokens" else self.text
                self.same(counts, "perplexity", "-m", ranks.MODEL, "-f", text, "--window", "600", "--decode", "100", *arguments)

    def test_losses_do_not_send_logits(self):
        """A step of each cache and one question for every window: heads, rows of 256 floats, and ids of 4 bytes."""
        done = ranks.run(2, "perplexity", "-m", ranks.MODEL, "-f", self.text, "--window", "100", "--decode", "0", *H2O, "-t",
                         "1", "--json")
        whole = ranks.json.loads(done.stdout)
        first, last = whole["ranks"]
        # Two that open, and the request for this report; of each window two resets, two steps, one question.
        self.assertEqual(first["messages"], 3 + 5 * whole["windows"])
        heads = first["bytes"] - whole["windows"] * 100 * (2 * 256 * 4 + 4)
        self.assertEqual(heads % first["messages"], 0)
        self.assertLessEqual(heads // first["messages"], 256)
        self.assertEqual(last["messages"], 0)

    @unittest.skipUnless(ranks.has_benchmarks(), "this build has no benchmarks")
    def test_slots_of_bench(self):
        def logits(count):
            found = ranks.result(count, "bench", "-m", ranks.MODEL, "-n", "200", "--decode", "3", "--slots", "3", "--rounds",
                                 "1", *H2O)
            return [(prompt["best"]["token"], prompt["best"]["logit"]) for prompt in found["prompts"]]

        expected = logits(None)
        self.assertEqual(len(expected), 2)
        for count in (2, 3):
            self.assertEqual(logits(count), expected)

    def test_a_rank_has_its_share_alone(self):
        done = ranks.run(3, *self.generate(*GENERATE["dense"]), "--json", "--layers", "5,1,2")
        whole = ranks.json.loads(done.stdout)
        reports = whole["ranks"]
        self.assertEqual([one["layers"] for one in reports], [[0, 5], [5, 6], [6, 8]])

    def test_judging_counts_as_work_of_the_last_rank(self):
        """The head of 1 M multiplications and 4096 judged logits weigh as much as five of the layers of 0.8 M."""
        done = ranks.run(2, "perplexity", "-m", ranks.MODEL, "-f", self.text, "--window", "600", "--decode", "100",
                         *H2O, "--json")
        self.assertEqual([one["layers"] for one in ranks.json.loads(done.stdout)["ranks"]], [[0, 6], [6, 8]])
        done = ranks.run(2, *self.generate(*H2O), "--json")
        self.assertEqual([one["layers"] for one in ranks.json.loads(done.stdout)["ranks"]], [[0, 4], [4, 8]])

    def test_bytes_on_the_wire(self):
        """A message for each chunk and each generated token: a head, and a row of 256 floats for each of its tokens."""
        done = ranks.run(3, *self.generate(*H2O, "--dense-tail", "0"), "--json")
        whole = ranks.json.loads(done.stdout)
        rows = whole["prompt_tokens"] + len(whole["ids"]) - 1  # the last one is not stored
        chunks = -(-whole["prompt_tokens"] // 128)
        for one in whole["ranks"][:2]:
            # Besides: the opening, logits for each token, the request for this report.
            self.assertEqual(one["messages"], chunks + len(whole["ids"]) - 1 + 1 + len(whole["ids"]) + 1)
            heads = one["bytes"] - rows * 256 * 4
            self.assertEqual(heads % (one["messages"] * 64), 0)
            self.assertLessEqual(heads // one["messages"], 256)
        self.assertEqual(whole["ranks"][2]["messages"], 0)


if __name__ == "__main__":
    unittest.main()
