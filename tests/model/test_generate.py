"""`headwater generate` and `headwater perplexity` as a user runs them, on the bundled model."""

import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import tempfile
import unittest

from gguf_files import ARRAY, BOOL, F32, I32, TEXT as STRING, U32, File, fixtures, make_model
from running import MODEL, PROGRAM, TEXT, TIMEOUT, Refusals, run, tensors

SMALL = ["-ub", "512", "--h2o-local", "128", "--h2o-heavy", "128"]
FIXTURES = fixtures()


def generate(*arguments, **more):
    return run("generate", "-m", MODEL, *arguments, **more)


def generate_json(*arguments):
    result = generate(*arguments, "--json")
    if result.returncode != 0:
        raise AssertionError(result.stderr.decode())
    return json.loads(result.stdout)


class Generates(unittest.TestCase):
    def test_same_tokens_for_every_thread_count_and_batch(self):
        wanted = generate_json("-f", TEXT, "-n", "16", "-t", "2", *SMALL)
        self.assertEqual(wanted["generated_tokens"], 16)
        self.assertLess(wanted["pairs"], 0.5 * wanted["pairs_dense"])
        for flags in (["-t", "1"], ["-t", "3"], ["-b", "512"], ["-b", "1536"]):
            got = generate_json("-f", TEXT, "-n", "16", *SMALL, *flags)
            self.assertEqual(got["ids"], wanted["ids"], flags)
            self.assertEqual(got["text"], wanted["text"], flags)

    def test_rules(self):
        flags = ["-f", TEXT, "-n", "16", *SMALL]
        wanted = {"local": 128, "heavy": 128, "select": "blocks", "key_block": 8, "query_block": 64, "pool": 4, "refine": 1}
        sizes = ["--select", "blocks", "--query-block", "64", "--refine", "1"]
        blocks = generate_json(*flags, *sizes, "-t", "2")
        self.assertEqual({key: blocks["effective"][key] for key in wanted}, wanted)
        self.assertEqual(generate_json(*flags, *sizes, "-t", "1", "-b", "1536")["ids"], blocks["ids"])
        window = generate_json(*flags, "--select", "window")
        self.assertEqual([window["effective"][key] for key in ("select", "local", "pinned")], ["window", 248, 8])
        self.assertNotIn("pool", window["effective"])
        h2o = generate_json(*flags, "--select", "h2o")
        self.assertEqual((h2o["effective"]["select"], h2o["effective"].get("pinned", 0)), ("h2o", 0))
        default = generate_json(*flags)["effective"]
        self.assertEqual([default[key] for key in ("select", "local", "heavy", "query_block", "least_weight")],
                         ["sketches", 128, 128, 32, 0.0005])
        default = generate_json("-f", TEXT, "-n", "1")["effective"]
        self.assertEqual([default[key] for key in ("chunk", "local", "heavy", "pinned")], [1024, 32, 480, 8])
        # Sizes of a preset's rule that were not given fit: Q is at most S, A at most H; with rule blocks K divides H, P
        # divides Q, A is whole key blocks of H.
        for given, wanted in ((["-ub", "24"], [24, 0]), (["--h2o-heavy", "4"], [32, 4]), (["--h2o-heavy", "0"], [32, 0]),
                              (["-ub", "900", "--query-block", "24", "--pinned", "5"], [24, 5])):
            fitted = generate_json("-p", "def f(x):", "-n", "1", *given)["effective"]
            self.assertEqual([fitted["query_block"], fitted.get("pinned", 0)], wanted, given)
        for given, wanted in ((["-ub", "24"], [8, 24, 8, 0]), (["-ub", "6", "--h2o-heavy", "4"], [4, 6, 2, 0]),
                              (["-ub", "2", "--h2o-heavy", "8"], [2, 2, 2, 0]), (["--h2o-heavy", "27"], [1, 32, 8, 8]),
                              (["--h2o-heavy", "44", "--pinned", "2"], [2, 32, 8, 2]), (["--h2o-heavy", "44"], [4, 32, 8, 8]),
                              (["--h2o-heavy", "4"], [4, 32, 8, 4]), (["--key-block", "16"], [16, 32, 8, 16]),
                              (["--h2o-heavy", "0"], [8, 32, 8, 0])):
            fitted = generate_json("-p", "def f(x):", "-n", "1", "--quality", "fast", *given)["effective"]
            sizes_of = [fitted[key] for key in ("key_block", "query_block", "pool")]
            self.assertEqual([*sizes_of, fitted.get("pinned", 0)], wanted, given)
        fast = generate_json("-p", "x", "-n", "1", "--quality", "fast")["effective"]
        self.assertEqual([fast[key] for key in ("select", "local", "heavy", "pinned", "pool", "refine")],
                         ["blocks", 32, 480, 8, 8, 1])
        # What is said beside a preset holds, wherever it stands.
        fast = generate_json("-p", "x", "-n", "1", "--h2o-heavy", "64", "--quality", "fast", "--pool", "2")["effective"]
        self.assertEqual([fast[key] for key in ("heavy", "pool", "refine")], [64, 2, 1])
        exact = generate_json(*flags, "--quality", "exact")
        self.assertEqual(exact["pairs"], exact["pairs_dense"])
        self.assertEqual(window["pairs"], h2o["pairs"])  # the same budget
        self.assertLessEqual(blocks["pairs"], h2o["pairs"])
        text = generate("-f", TEXT, "-n", "1", *SMALL, *sizes).stderr.decode()
        self.assertIn("select blocks (key_block 8, query_block 64, pool 4, refine 1)", text)
        for bad, word in ((["--select", "none"], "--select"), (["--quality", "best"], "--quality: 'best'"), (["--select", "h2o", "--pool", "4"], "--pool"),
                          (["--pool", "5"], "--pool is a size of --select blocks, and the rule is sketches"),
                          (["--quality", "fast", "--pool", "5"], "--pool: 5"), (["-ub", "24", "--query-block", "25"], "--query-block: 25"),
                          (["--quality", "fast", "--key-block", "7"], "--key-block 7"),
                          (["--select", "blocks", "-ub", "24"], "--query-block: 32"), ([*sizes, "--pool", "7"], "--pool: 7")):
            done = generate("-p", "x", *bad)
            self.assertEqual(done.returncode, 2)
            self.assertEqual(len(done.stderr.splitlines()), 1)
            self.assertIn(word, done.stderr.decode())

    def test_rows_in_8_bits(self):
        flags = ["-f", TEXT, "-n", "8", *SMALL]
        wanted, got = generate_json(*flags), generate_json(*flags, "--cache-type", "q8_0")
        self.assertEqual((got["cache_type"], got["effective"]["kv_bits"], wanted["effective"]["kv_bits"]), ("Q8_0", 8, 0))
        self.assertEqual(got["memory"]["kv"] * 64, wanted["memory"]["kv"] * 34)
        self.assertEqual(got["ids"][0], wanted["ids"][0])
        for same in (["--kv-bits", "8"], ["--cache-type", "q8_0", "-t", "1", "--kv-bits", "8"]):
            self.assertEqual(generate_json(*flags, *same)["ids"], got["ids"])
        self.assertIn(", cache Q8_0 ", generate("-p", "x", "-n", "1", "--cache-type", "q8_0").stderr.decode())

    def test_more_cores_than_threads_are_allowed(self):
        """A default is clamped (512), a number that somebody gives is refused."""
        environment = {**os.environ, "OMP_NUM_THREADS": "600"}
        done = run("generate", "-m", MODEL, "-p", "def f(x):", "-n", "1", "--json", env=environment)
        self.assertEqual((done.returncode, json.loads(done.stdout)["threads"]), (0, 512), done.stderr)
        done = run("generate", "-m", MODEL, "-p", "x", "-t", "513")
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), done.stderr)

    def test_dense_layers_and_dense_below(self):
        flags = ["-f", TEXT, "-n", "8", "-t", "2", "--dense-tail", "0", *SMALL]
        dense, sparse = generate_json(*flags, "--dense"), generate_json(*flags)
        self.assertLess(sparse["pairs"], 0.5 * dense["pairs"])
        for rule in ([], ["--select", "blocks"], ["--select", "h2o"]):
            all_layers = generate_json(*flags, *rule, "--dense-layers", "0-7")
            self.assertEqual((all_layers["ids"], all_layers["pairs"]), (dense["ids"], dense["pairs"]))
        # Three of eight.
        some = generate_json(*flags, "--dense-layers", "0,5-6")
        self.assertEqual(some["effective"]["dense_layers"], [0, 5, 6])
        self.assertEqual(some["pairs"], (5 * sparse["pairs"] + 3 * dense["pairs"] + 4) // 8)
        n = sparse["prompt_tokens"]
        below = generate_json(*flags, "--dense-below", str(n + 1))
        self.assertEqual((below["ids"], below["pairs"]), (dense["ids"], dense["pairs"]))
        self.assertEqual(generate_json(*flags, "--dense-below", str(n))["ids"], sparse["ids"])
        # A dense prompt has no dense tail.
        below = generate_json("-f", TEXT, "-n", "1", *SMALL, "--dense-below", str(n + 1))
        self.assertEqual((below["effective"]["dense_tail"], below["pairs"]), (0, below["pairs_dense"]))
        self.assertNotIn("d", below["steps"])

    def test_perplexity_after_query_blocks(self):
        """SEL-10: one loss for each query block after the first chunk, none for rules whose queries choose nothing."""
        def measured(*more):
            done = run("perplexity", "-m", MODEL, "-f", TEXT, "--window", "1500", "--decode", "100", *SMALL, *more)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout.decode()

        for query_block in (32, 48, 100):
            sizes = ("--select", "blocks", "--query-block", str(query_block))
            report = json.loads(measured("--json", *sizes))
            # In each of two windows chunks of 512 up to 1400; the loss after its last position is that of a decoded token.
            self.assertEqual(report["windows"], 2)
            ends = 2 * (sum(-(-rows // query_block) for rows in (512, 376)) - 1)
            for part in ("dense", "sparse", "difference"):
                self.assertEqual(report[part]["ends"]["tokens"], ends)
                self.assertEqual(report[part]["prefill"]["tokens"], 2 * 1399)
            self.assertNotEqual(report["difference"]["ends"]["nll"], report["difference"]["prefill"]["nll"])
            self.assertIn(f"\nends     {ends} tokens: ", measured(*sizes))
        for rule in (("--select", "h2o"), ("--select", "window"), ("--select", "window", "--pinned", "8")):
            report = json.loads(measured("--json", *rule))
            self.assertNotIn("ends", report["sparse"])
            self.assertNotIn("\nends", measured(*rule))

    def test_perplexity_of_dense_layers(self):
        flags = ["perplexity", "-m", MODEL, "-f", TEXT, "--window", "1500", "--decode", "100", "--json", *SMALL]

        def measured(*more):
            done = run(*flags, *more)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)

        sparse, some, dense = measured(), measured("--dense-layers", "0-3"), measured("--dense-layers", "0-7")
        self.assertEqual(dense["effective"]["dense_layers"], list(range(8)))
        self.assertLess(dense["divergence"]["prefill"]["kl"], 1e-9)
        self.assertGreater(sparse["divergence"]["prefill"]["kl"], 1e-3)
        self.assertLess(some["divergence"]["prefill"]["kl"], sparse["divergence"]["prefill"]["kl"])
        below = measured("--dense-below", "1401")
        self.assertLess(below["divergence"]["prefill"]["kl"], 1e-9)
        self.assertEqual(measured("--dense-below", "1400")["sparse"], sparse["sparse"])

    def test_keys_and_times(self):
        got = generate_json("-p", "def main():\n", "-n", "4")
        for key in ("load", "prefill", "first_token", "decode"):
            self.assertGreaterEqual(got["seconds"][key], 0.0)
        self.assertAlmostEqual(got["seconds"]["first_token"], got["seconds"]["load"] + got["seconds"]["prefill"])
        self.assertEqual(got["generated_tokens"], 4)
        self.assertEqual(got["pairs"], got["pairs_dense"])

    def test_a_short_prompt_is_the_same_sparse_and_dense(self):
        got = generate_json("-p", "import os\nimport sys\n\ndef main(", "-n", "8", "--compare")
        self.assertEqual(got["ids"], got["dense"]["ids"])
        self.assertEqual(got["difference"]["equal_tokens"], 8)
        self.assertLess(got["difference"]["worst_logit"], 1e-3)

    def test_text_goes_to_standard_output_and_statistics_to_standard_error(self):
        got = generate("-f", "-", "-n", "5", input=b"class Reader:\n    def ")
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertTrue(got.stdout.endswith(b"\n"))
        self.assertNotIn(b"tokens/s", got.stdout)
        self.assertIn(b"tokens/s", got.stderr)
        self.assertIn(b"of dense attention", got.stderr)

    def test_a_prompt_of_invalid_utf8_is_read(self):
        got = generate("-f", "-", "-n", "2", "--json", input=b"x = '\xff\xfe\xc3'\n")
        self.assertEqual(got.returncode, 0, got.stderr)
        json.loads(got.stdout)

    def test_draws_repeat_with_their_seed(self):
        flags = ["-p", "def ", "-n", "12", "--temp", "1", "--top-k", "40"]
        first = generate_json(*flags, "--seed", "3")["ids"]
        self.assertEqual(generate_json(*flags, "--seed", "3")["ids"], first)
        others = [generate_json(*flags, "--seed", str(seed))["ids"] for seed in (4, 5, 6)]
        self.assertTrue(any(ids != first for ids in others))
        self.assertNotEqual(generate_json(*flags, "--seed", str(3 + 2**32))["ids"], first)

    def test_interactive_goes_on_with_the_session(self):
        got = generate("-p", "import os\n", "-n", "3", "--interactive", "-c", "200", input=b"import sys\nimport re\n")
        self.assertEqual(got.returncode, 0, got.stderr)
        turns = [line for line in got.stderr.decode().splitlines() if line.startswith("turn ")]
        self.assertEqual(len(turns), 3)
        self.assertIn("turns    3, of ", got.stderr.decode())
        self.assertRegex(got.stderr.decode(), r"answers  9 tokens in ")

    def test_each_answer_follows_the_grammar_from_its_beginning(self):
        flags = ("-n", "40", "-c", "400", "--temp", "1.5", "--seed", "7", "--quiet")
        got = generate("-p", "import os\n", *flags, "--interactive", "--grammar", 'root ::= "<" [a-f]{5} ">"', input=b"import sys\nimport re\n")
        self.assertRegex(got.stdout.decode(), r"^(<[a-f]{5}>\s*){3}$")
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "schema")
            pathlib.Path(file).write_text('{"properties": {"b": {"type": "integer"}, "a": {"const": "x"}}, "required": ["b", "a"]}', encoding="utf-8")
            got = generate("-p", "x = ", *flags, "--json-schema-file", file)
            self.assertEqual(list(json.loads(got.stdout)), ["b", "a"])
            requests = os.path.join(folder, "requests")
            pathlib.Path(requests).write_text('{"prompt": "x"}\n' * 9, encoding="utf-8")
            got = generate("--requests", requests, *flags, "-j", '{"enum": ["one", "two"]}')
            self.assertLessEqual({json.loads(line)["text"] for line in got.stdout.decode().splitlines()}, {'"one"', '"two"'})

    def test_interactive_without_a_prompt_begins_with_the_first_line(self):
        got = generate("-n", "2", "--interactive", "-c", "100", input=b"\nimport os\n")
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertIn("turns    1, of ", got.stderr.decode())
        # The same as a prompt of that line.
        self.assertEqual(got.stdout, generate("-n", "2", "-p", "import os").stdout)

    def test_interrupt_ends_with_the_statistics(self):
        process = subprocess.Popen([PROGRAM, "generate", "-m", MODEL, "-p", "x = [", "-n", "30000"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertNotEqual(process.stdout.read(1), b"")  # it has begun to write
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 130)
        self.assertIn(b"ended    by an interrupt", error)


class LargeVocabulary(unittest.TestCase):
    def test_ids_beyond_65536(self):
        """A head whose best row is one past 2^15, 2^16 or at the end of 70000; greedy and drawn, in ids and in text."""
        tokens = 70_000
        file = File()
        pieces = File.pieces() + [f"w{i}" for i in range(41, tokens - 259)]
        file.metadata["tokenizer.ggml.tokens"] = (ARRAY, (STRING, pieces))
        file.metadata["tokenizer.ggml.scores"] = (ARRAY, (F32, [0.0] * tokens))
        file.metadata["tokenizer.ggml.token_type"] = (ARRAY, (I32, [2, 3, 3] + [6] * 256 + [1] * (tokens - 259)))
        file.tensors["token_embd.weight"] = [16, tokens]
        file.tensors["output.weight"] = [16, tokens]  # the last of the file
        plain = file.build()
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/large.gguf"
            for best in (32_768, 65_536, tokens - 1):
                at = len(plain) - 64 * (tokens - best)
                pathlib.Path(path).write_bytes(plain[:at] + struct.pack("<16f", *[9000.0] * 16) + plain[at + 64:])
                for flags in ([], ["--temp", "0.5", "--top-p", "0.9"]):
                    done = run("generate", "-m", path, "-p", "hello", "-n", "3", "-c", "100", "--json", *flags)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    got = json.loads(done.stdout)
                    self.assertEqual(got["ids"], [best] * 3, flags)
                    self.assertEqual(got["text"], pieces[best] * 3)


class ManyLayers(unittest.TestCase):
    def test_three_hundred(self):
        """Dense ones by number and in a list of 299; rows of the last one and of the one whose lower eight bits it has."""
        flags = ["-ub", "64", "--h2o-local", "8", "--h2o-heavy", "8", "--select", "h2o"]
        with tempfile.TemporaryDirectory() as folder:
            make_model(f"{folder}/m.gguf", layers=300)

            def json_of(*more):
                done = run("generate", "-m", f"{folder}/m.gguf", "-p", "abcdefghijklm" * 20, "-n", "2", "-t", "1", "--json",
                           "--dense-tail", "0", *flags, *more)
                self.assertEqual(done.returncode, 0, done.stderr)
                return json.loads(done.stdout)

            sparse, dense = json_of(), json_of("--dense")
            some, every = json_of("--dense-layers", "0-298"), json_of("--dense-layers", "0-299")
            self.assertEqual(some["effective"]["dense_layers"], list(range(299)))
            self.assertEqual(some["pairs"], (sparse["pairs"] + 299 * dense["pairs"] + 150) // 300)
            self.assertEqual((every["ids"], every["pairs"]), (dense["ids"], dense["pairs"]))
            dumps = []
            for layer in ("43", "299"):
                steps = json_of("--dense-layers", "0-298" if layer == "299" else "0", "--dump-qkv", layer, f"{folder}/qkv")["steps"]
                replay = run("attend", f"{folder}/qkv", "-o", f"{folder}/out", *flags, "--steps", steps)
                self.assertEqual(replay.returncode, 0, replay.stderr)
                dumps.append(tensors(f"{folder}/qkv"))
                self.assertEqual(dumps[-1]["scores"][1], tensors(f"{folder}/out")["scores"][1])
            self.assertNotEqual(dumps[0]["k"][1], dumps[1]["k"][1])


class Replays(unittest.TestCase):
    def test_dumped_inputs_give_the_same_scores_and_memory_sets(self):
        with tempfile.TemporaryDirectory() as folder:
            dump, out = f"{folder}/qkv.safetensors", f"{folder}/out.safetensors"
            # auto: where products are BF16, so are the queries that the engine gets.
            for layer, cache in (("0", "auto"), ("6", "auto"), ("6", "f16")):
                steps = generate_json("-f", TEXT, "-n", "0", *SMALL, "--select", "h2o", "--cache-type", cache, "--dump-qkv", layer,
                                      dump)["steps"]
                replay = run("attend", dump, "-o", out, *SMALL, "--steps", steps, "--json")
                self.assertEqual(replay.returncode, 0, replay.stderr)
                own, again = tensors(dump), tensors(out)
                self.assertEqual(own["scores"][1], again["scores"][1])
                self.assertTrue(any(own["scores"][1]))
                # The last chunk with a set is the one before the dense tail.
                chunks, heads, width = again["memory"][0]["shape"]
                size = heads * width * 4
                self.assertEqual(own["last_memory"][0]["shape"], [heads, width])
                self.assertEqual(own["last_memory"][1], again["memory"][1][(chunks - 2) * size:(chunks - 1) * size])

    def test_a_dumped_set_that_is_smaller_than_its_budget(self):
        flags = ["-ub", "128", "--h2o-local", "64", "--h2o-heavy", "960", "--h2o-no-clamp"]
        with tempfile.TemporaryDirectory() as folder:
            dump, out = f"{folder}/qkv.safetensors", f"{folder}/out.safetensors"
            text = pathlib.Path(TEXT).read_text()[:1800]
            steps = generate_json("-p", text, "-n", "0", *flags, "--select", "h2o", "--dense-tail", "0", "--dump-qkv", "0",
                                  dump)["steps"]
            replay = run("attend", dump, "-o", out, *flags, "--steps", steps, "--json")
            self.assertEqual(replay.returncode, 0, replay.stderr)
            own, again = tensors(dump), tensors(out)
            sets = []
            for info, data in (own["last_memory"], again["memory"]):
                heads, width = info["shape"][-2:]
                entries = struct.unpack(f"<{heads * width}i", data[-4 * heads * width:])
                sets.append([[p for p in entries[h * width:(h + 1) * width] if p >= 0] for h in range(heads)])
            self.assertEqual(sets[0], sets[1])
            self.assertTrue(all(128 < len(one) < 1024 for one in sets[0]), [len(one) for one in sets[0]])

    def test_dumps_of_40000_tokens(self):
        """A tiny model and a long text: more than 2^16 scores, and rows of keys beyond 2^18 elements."""
        tokens = 40_000
        file = File()
        file.metadata["llama.context_length"] = (U32, tokens + 10)
        flags = ["-ub", "256", "--h2o-local", "16", "--h2o-heavy", "16"]
        with tempfile.TemporaryDirectory() as folder:
            model, text, dump, out = (f"{folder}/{name}" for name in ("m.gguf", "t.txt", "qkv", "out"))
            header, size = file.header()
            numbers = random.Random(1)
            values = [numbers.uniform(-0.3, 0.3) for _ in range(size // 4)]
            pathlib.Path(model).write_bytes(header + struct.pack(f"<{len(values)}f", *values))
            pathlib.Path(text).write_bytes(bytes(numbers.randrange(33, 127) for _ in range(tokens - 2)))
            done = run("generate", "-m", model, "-f", text, "-n", "0", *flags, "--select", "h2o", "--json", "--dump-qkv", "0",
                       dump)
            self.assertEqual(done.returncode, 0, done.stderr)
            steps = json.loads(done.stdout)["steps"]
            replay = run("attend", dump, "-o", out, *flags, "--steps", steps, "--json")
            self.assertEqual(replay.returncode, 0, replay.stderr)
            own, again = tensors(dump), tensors(out)
            heads, n = own["scores"][0]["shape"]
            self.assertGreater(heads * n, 2**16)
            self.assertEqual(own["scores"][1], again["scores"][1])
            rows = [own["k"][1][i * 16:(i + 1) * 16] for i in range(0, 2 * n, 997)]
            self.assertGreater(len(set(rows)), len(rows) // 2)


class Architectures(unittest.TestCase):
    """The small random models of make_fixtures.py, from text to text; their golden tokens are numpy's."""

    def run_model(self, name, *arguments):
        result = run("generate", "-m", str(FIXTURES / f"{name}.gguf"), "--json", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_text_gives_the_tokens_of_numpy(self):
        golden = json.loads((FIXTURES / "golden.json").read_text(encoding="utf-8"))
        self.assertGreater(len(golden), 5)
        for name, wanted in golden.items():
            for threads in ("1", "3"):
                got = self.run_model(name, "-p", wanted["text"], "-n", str(len(wanted["generated"])), "--projections", "f32",
                                     "-t", threads)
                self.assertEqual(got["prompt_tokens"], len(wanted["ids"]), name)
                self.assertEqual(got["ids"], wanted["generated"], name)

    def test_chat(self):
        # Tokens around "the quick": BOS, two headers with gaps, an end; ChatML's roles are words of bytes.
        plain = self.run_model("llama3", "-p", "the quick", "-n", "0")["prompt_tokens"]
        chat = self.run_model("llama3", "-p", " the quick\n", "--chat", "-n", "2")["prompt_tokens"]
        self.assertEqual(chat - plain, 2 * (2 + 2) + 1 + len("us") + 1 + len("assistant"))
        plain = self.run_model("qwen2-yarn", "-p", "the quick", "-n", "0")["prompt_tokens"]
        chat = self.run_model("qwen2-yarn", "-p", "the quick", "--chat", "-n", "2")["prompt_tokens"]
        self.assertEqual(chat - plain, 2 * 2 + 2 + len("us") + 1 + len("assistant"))

    def test_a_vocabulary_without_chat_tokens(self):
        result = run("generate", "-m", str(FIXTURES / "llama-linear.gguf"), "-p", "x", "--chat")
        self.assertEqual((result.returncode, result.stdout), (2, b""))
        self.assertIn(b"neither ChatML nor Llama 3", result.stderr)
        self.assertEqual(result.stderr.count(b"\n"), 1)


class Refuses(Refusals):
    def test_bad_files(self):
        with tempfile.TemporaryDirectory() as folder:
            cut = f"{folder}/cut.gguf"
            whole = pathlib.Path(MODEL).read_bytes()
            for length in (0, 3, 100, 50000, len(whole) - 1):
                pathlib.Path(cut).write_bytes(whole[:length])
                self.refused("-m", cut, "-p", "x", names="cut.gguf")
            no_layer = whole.replace(b"blk.3.ffn_up.weight", b"blk.3.ffn_xx.weight", 1)
            pathlib.Path(cut).write_bytes(no_layer)
            self.refused("-m", cut, "-p", "x", names="blk.3.ffn_up.weight")
            nan = bytearray(whole)
            nan[-4:] = b"\x00\x00\xc0\x7f"  # a NaN in F32 and in F16: the end of the last tensor
            pathlib.Path(cut).write_bytes(nan)
            self.refused("-m", cut, "-p", "x", names="NaN")
            self.refused("-m", folder, "-p", "x", names=folder)
            self.refused("-m", f"{folder}/none.gguf", "-p", "x", names="none.gguf")
            self.refused("-m", MODEL, "-f", folder, names="directory")
            self.refused("-m", MODEL, "-f", f"{folder}/none.txt", names="none.txt")
            out = f"{folder}/out.safetensors"
            self.refused("-m", MODEL, "-p", "x", "--dump-qkv", "8", out, names="LAYER")
            self.refused("-m", MODEL, "-p", "x", "--dump-qkv", "0", "-", names="standard output")
            self.assertEqual(os.listdir(folder), ["cut.gguf"])  # nothing half-written

    def test_bad_flags(self):
        self.refused("-p", "x", names="--model")
        self.refused("-m", MODEL, names="prompt")
        self.refused("-m", MODEL, "-p", "", names="empty")
        self.refused("-m", MODEL, "-f", "-", names="empty", input=b"")
        self.refused("-m", MODEL, "-p", "x", "-n", "-2", names="-n")
        self.refused("-m", MODEL, "-p", "x", "--temp", "nan", names="--temp")
        self.refused("-m", MODEL, "-p", "x", "--top-p", "1.5", names="--top-p")
        self.refused("-m", MODEL, "-p", "x", "--cache-type", "q8", names="--cache-type: 'q8' is not allowed; use auto, f16, bf16, f32 or q8_0")
        for flags in (["--cache-type", "q8_0", "--kv-bits", "0"], ["--kv-bits", "0", "--cache-type", "q8_0"]):
            self.refused("-m", MODEL, "-p", "x", *flags, names="--cache-type q8_0 and --kv-bits 0 contradict each other")
        self.refused("-m", MODEL, "-p", "x", "--kv-bits", "4", names="--kv-bits: 4 is not allowed; use 0 or 8")
        self.refused("-m", MODEL, "-p", "x", "--projections", "f64", names="--projections")
        self.refused("-m", MODEL, "-p", "x", "--compare", "--dense", names="--compare")
        self.refused("-m", MODEL, "-p", "x", "--dense-tail", "x", names="--dense-tail")
        self.refused("-m", MODEL, "-p", "x", "--grammar", "root ::= a", names="--grammar: grammar, line 1: rule 'a' is not defined")
        self.refused("-m", MODEL, "-p", "x", "-j", "{", names="-j (--json-schema): json schema: it is no JSON")
        self.refused("-m", MODEL, "-p", "x", "-j", "{}", "--grammar", 'root ::= "a"', names="another form of the answer is given")
        self.refused("-m", MODEL, "-p", "x", "--grammar-file", "/nowhere", names="--grammar-file")
        self.refused("-m", MODEL, "-f", TEXT, "-c", "1000", names="4278 tokens")
        self.refused("-m", MODEL, "-p", "x", "-c", "2000000000", "--interactive", names="the machine has")
        self.refused("-m", MODEL, "-p", "x", "--engine", "nope", names="nope")
        self.refused("-m", MODEL, "-f", TEXT, "--window", "1", names="--window", program="perplexity")
        self.refused("-m", MODEL, "-f", TEXT, "--window", "64", "--decode", "64", names="--decode",
                     program="perplexity")


class Perplexity(unittest.TestCase):
    # By bench/peers/torch_perplexity.py, the spec in PyTorch, in F32 on the F16 weights: eval-4k.txt, one window of 4096,
    # the last 256 tokens decoded.
    def test_agrees_with_pytorch(self):
        cases = [(["-ub", "1024"], (2.4282, 2.2534), (2.4828, 2.2541), (0.0515, 0.0016), (0.9322, 0.9922)),
                 (["-ub", "256", "--h2o-local", "64", "--h2o-heavy", "64"], (2.4282, 2.2534), (2.5419, 2.2549),
                  (0.1291, 0.0029), (0.8747, 0.9883))]
        for flags, dense, sparse, kl, rank1 in cases:
            result = run("perplexity", "-m", MODEL, "-f", TEXT, "--window", "4096", "--json", *flags)
            self.assertEqual(result.returncode, 0, result.stderr)
            got = json.loads(result.stdout)
            for kind, wanted in (("dense", dense), ("sparse", sparse)):
                for part, nll in zip(("prefill", "decoded"), wanted):
                    # perplexity is exp(nll): half a percent is 0.005 nats
                    self.assertAlmostEqual(got[kind][part]["nll"], nll, delta=0.005, msg=f"{flags} {kind} {part}")
            self.assertEqual(got["dense"]["prefill"]["tokens"], 4096 - 256 - 1)
            self.assertEqual(got["sparse"]["decoded"]["tokens"], 256)
            for part, tokens, wanted_kl, wanted_rank1 in zip(("prefill", "decoded"), (4096 - 256 - int(flags[1]), 256), kl,
                                                             rank1):
                found = got["divergence"][part]
                self.assertEqual(found["tokens"], tokens)
                self.assertAlmostEqual(found["kl"], wanted_kl, delta=0.05 * wanted_kl + 1e-4, msg=f"{flags} {part}")
                self.assertAlmostEqual(found["rank1"], wanted_rank1, delta=0.006, msg=f"{flags} {part}")

    def test_divergence_of_blocks(self):
        """What it was when another implementation of the clauses agreed on other texts (docs/quality.md), F32 throughout."""
        for local, heavy, stages, kl, rank1 in ((32, 480, 2, 0.0038185, 0.97692), (64, 448, 1, 0.0095947, 0.96662)):
            done = run("perplexity", "-m", MODEL, "-f", TEXT, "--window", "4096", "--json", "-ub", "1024", "--select", "blocks",
                       "--h2o-local", str(local), "--h2o-heavy", str(heavy), "--refine", str(stages), "--projections", "f32",
                       "--cache-type", "f32")
            self.assertEqual(done.returncode, 0, done.stderr)
            found = json.loads(done.stdout)["divergence"]["prefill"]
            self.assertAlmostEqual(found["kl"], kl, delta=1e-6)
            self.assertAlmostEqual(found["rank1"], rank1, delta=1e-5)

    def test_no_divergence_where_nothing_is_left_out(self):
        everything = ["-ub", "200", "--h2o-no-clamp", "--h2o-local", "300", "--h2o-heavy", "724", "--projections", "f32"]
        for flags, most in ((["-ub", "200", "--h2o-local", "0", "--h2o-heavy", "0"], 0.0), (everything, 1e-6)):
            result = run("perplexity", "-m", MODEL, "-f", TEXT, "--window", "1024", "--decode", "24", "--json", *flags)
            self.assertEqual(result.returncode, 0, result.stderr)
            for part, found in json.loads(result.stdout)["divergence"].items():
                self.assertLessEqual(abs(found["kl"]), most, (flags, part))
                self.assertAlmostEqual(found["rank1"], 1.0, delta=0.002, msg=f"{flags} {part}")  # a near tie may turn

    def test_a_window_of_one_chunk_diverges_in_decoded_tokens_alone(self):
        result = run("perplexity", "-m", MODEL, "-f", TEXT, "--window", "300", "--decode", "20")
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = [line.split(":")[0] for line in result.stdout.decode().splitlines() if "KL divergence" in line]
        self.assertEqual(lines, [f"decoded  {20 * (4278 // 300)} positions"])

    def test_three_hundred_equal_windows_are_like_one(self):
        """Tokens of a text with a period of nine; the ninth one is BOS in every window."""
        file = File()
        file.metadata["tokenizer.ggml.add_space_prefix"] = (BOOL, 0)
        header, size = file.header()
        numbers = random.Random(2)
        values = [numbers.uniform(-1, 1) for _ in range(size // 4)]
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/m.gguf"
            pathlib.Path(path).write_bytes(header + struct.pack(f"<{len(values)}f", *values))
            results = []
            for windows in (1, 300):
                text = b"abcdefghi" * windows
                done = run("perplexity", "-m", path, "-f", "-", "--window", "9", "--decode", "3", "--json", "-t", "1",
                           input=text[:-1])
                self.assertEqual(done.returncode, 0, done.stderr)
                results.append(json.loads(done.stdout))
        one, many = results
        self.assertEqual((one["windows"], many["windows"]), (1, 300))
        for kind in ("dense", "sparse"):
            for part, tokens in (("prefill", 5), ("decoded", 3)):
                self.assertEqual((one[kind][part]["tokens"], many[kind][part]["tokens"]), (tokens, 300 * tokens))
                self.assertAlmostEqual(one[kind][part]["nll"], many[kind][part]["nll"], delta=1e-9)

    def test_every_window_begins_as_the_model_wants_it(self):
        golden = json.loads((FIXTURES / "golden.json").read_text(encoding="utf-8"))
        wanted = json.loads((FIXTURES / "perplexity.json").read_text(encoding="utf-8"))
        window, decode = wanted["window"], wanted["decode"]
        for name, losses in wanted["models"].items():
            result = run("perplexity", "-m", str(FIXTURES / f"{name}.gguf"), "-f", "-", "--window", str(window), "--decode",
                         str(decode), "--projections", "f32", "--cache-type", "f32", "--json",
                         input=golden[name]["text"].encode())
            self.assertEqual(result.returncode, 0, result.stderr)
            got = json.loads(result.stdout)
            self.assertEqual(got["windows"], len(golden[name]["ids"]) // window)
            for part, tokens in (("prefill", window - decode - 1), ("decoded", decode)):
                self.assertEqual(got["dense"][part]["tokens"], tokens * got["windows"])
                # A loss moves at most twice as far as the logits, and those as far as architectures_test.cpp allows.
                self.assertAlmostEqual(got["dense"][part]["nll"], losses[part], msg=f"{name} {part}",
                                       delta=2 * 8 * golden[name]["rounding"])


if __name__ == "__main__":
    unittest.main()
