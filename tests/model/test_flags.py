"""Flags that several commands take: each of them computes with all of them, and answers of requests with those of prompts."""

import array
import base64
import json
import pathlib
import random
import re
import struct
import tempfile
import unittest

from gguf_files import F32, TEXT as TEXT_KIND, U32, File, make_model
from running import MODEL, TEXT, Refusals, run, tensors

WORDS = pathlib.Path(TEXT).read_text(encoding="utf-8")
PROMPT = WORDS[:1500]
TOKENS = 300

RULES = (
    (("-b", "300", "-ub", "60", "--h2o-local", "7", "--h2o-heavy", "16", "--pinned", "8", "--dense-below", "70",
      "--dense-layers", "1,3-4", "--select", "blocks", "--key-block", "4", "--query-block", "20", "--pool", "5",
      "--refine", "3"),
     {"batch": 300, "chunk": 60, "local": 7, "heavy": 16, "select": "blocks", "key_block": 4, "query_block": 20, "pool": 5,
      "refine": 3, "pinned": 8, "dense_below": 70, "dense_layers": [1, 3, 4]}),
    (("-b", "300", "-ub", "60", "--h2o-local", "7", "--h2o-heavy", "16", "--pinned", "3", "--select", "sketches", "--query-block",
      "20", "--least-weight", "0.01", "--kv-bits", "8"),
     {"batch": 300, "chunk": 60, "local": 7, "heavy": 16, "select": "sketches", "query_block": 20, "least_weight": 0.01,
      "pinned": 3, "dense_below": 0, "kv_bits": 8, "dense_layers": []}),
    (("-b", "96", "-ub", "48", "--h2o-no-clamp", "--h2o-local", "40", "--h2o-heavy", "30", "--pinned", "3", "--select",
      "h2o"),
     {"batch": 96, "chunk": 48, "local": 40, "heavy": 30, "select": "h2o", "pinned": 3, "dense_below": 0,
      "dense_layers": []}),
    (("--batch-size", "128", "--chunk", "64", "--h2o-local", "10", "--h2o-heavy", "20", "--pinned", "6", "--select",
      "window"),
     {"batch": 128, "chunk": 64, "local": 24, "heavy": 6, "select": "window", "pinned": 6, "dense_below": 0,
      "dense_layers": []}))


class OfCommands(Refusals):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.text = f"{folder.name}/text.txt"
        pathlib.Path(self.text).write_text(PROMPT, encoding="utf-8")
        self.page = f"{folder.name}/page.html"
        self.commands = {
            "generate": ("-f", self.text, "-n", "1", "--json"),
            "perplexity": ("-f", self.text, "--window", str(TOKENS), "--decode", "20", "--json"),
            "retrieval": ("-f", self.text, "--window", str(TOKENS), "--prompts", "1", "--depths", "50", "--json"),
            "bench": ("-n", str(TOKENS), "--decode", "1", "--rounds", "1", "--json"),
            "atlas": ("-f", self.text, "--window", str(TOKENS), "-o", self.page, "--json")}
        if b"this build has no benchmarks" in run("bench", "--help").stderr:
            del self.commands["bench"]

    def said(self, command, *flags):
        done = run(command, "-m", MODEL, *self.commands[command], "-t", "2", *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)


class Commands(OfCommands):
    def atlas_data(self, name):
        page = pathlib.Path(self.page).read_text(encoding="utf-8")
        return re.search(rf'id="data-{name}">([^<]*)</script>', page).group(1)

    def test_rules(self):
        for flags, wanted in RULES:
            pairs = {}
            for command in self.commands:
                got = self.said(command, *flags)
                if command == "atlas":
                    facts = json.loads(self.atlas_data("meta"))["facts"]
                    for key, value in wanted.items():
                        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
                        # What is off is not said.
                        self.assertEqual(facts.get(key, {"select": "h2o", "dense_layers": ""}.get(key, "0")), text, key)
                    continue
                self.assertEqual({key: got["effective"][key] for key in wanted}, wanted, command)
                if command == "bench":
                    pairs["bench"] = got["prompts"][0]["pairs"]
            if "bench" not in pairs:
                continue
            # As many tokens of another prompt.
            generated = self.said("generate", *flags)
            self.commands["bench"] = ("-n", str(generated["prompt_tokens"]), *self.commands["bench"][2:])
            bench = self.said("bench", *flags)["prompts"]
            self.assertEqual([(one["pairs"], one["pairs_dense"]) for one in bench],
                             [(generated["pairs"], generated["pairs_dense"])] + [(generated["pairs_dense"],) * 2])

    def test_engines_types_and_threads(self):
        engines = json.loads(run("info", "--json").stdout)["engines"]
        missing = ({"cuda"} | {one["name"] for one in engines}) - {one["name"] for one in engines if one["available"]}
        for command in self.commands:
            with self.subTest(command):
                self.refused("-m", MODEL, *self.commands[command], "--engine", "nope", names="'nope' is not known", program=command)
                # 3: a build or a machine without it.
                for engine in missing:
                    self.refused("-m", MODEL, *self.commands[command], "--engine", engine, names=engine, program=command, code=3)
                for flag in ("--cache-type", "--projections", "--select"):
                    self.refused("-m", MODEL, *self.commands[command], flag, "nope", names=flag, program=command)
                for threads in ("1", "3"):
                    got = self.said(command, "-t", threads)
                    self.assertEqual(got.get("threads", int(threads)), int(threads))
        for command in ("generate", "retrieval", "bench"):
            if command in self.commands:
                got = self.said(command, "--engine", "cpu-portable", "--projections", "f32")
                self.assertEqual((got["engine"], got["projections"][:3]), ("cpu-portable", "F32"))
        self.said("atlas", "--engine", "cpu-portable", "--projections", "f32")
        facts = json.loads(self.atlas_data("meta"))["facts"]
        self.assertEqual((facts["engine"], facts["projections"]), ("cpu-portable", "F32"))

    def test_types_change_what_is_computed(self):
        found = {command: [] for command in self.commands if command != "retrieval"}
        for cache, size in (("f32", 4), ("f16", 2), ("bf16", 2), ("q8_0", 34 / 32)):
            flags = ("-ub", "64", "--h2o-local", "8", "--h2o-heavy", "8", "--select", "h2o", "--projections", "f32",
                     "--cache-type", cache)
            for command, results in found.items():
                got = self.said(command, *flags)
                if command == "atlas":
                    results.append(base64.b64decode(self.atlas_data("scores")))
                elif command == "perplexity":
                    results.append((got["dense"]["prefill"]["nll"], got["sparse"]["prefill"]["nll"]))
                elif command == "bench":
                    self.assertEqual(got["cache_type"].lower(), cache)
                    results.append([prompt["best"]["logit"] for prompt in got["prompts"]])
                    # 8 layers; the sparse session, when it is full.
                    self.assertEqual(got["memory"]["kv"] % (8 * (TOKENS + 1) * size), 0)
                else:
                    self.assertEqual(got["cache_type"].lower(), cache)
                    results.append(got["memory"]["kv"] / size)
        for command, results in found.items():
            if command == "generate":
                self.assertEqual(len(set(results)), 1, results)
            elif command == "atlas":
                self.assertEqual(len(set(results)), 4)
            else:
                for of_one in zip(*results):  # the dense one, too
                    self.assertEqual(len(set(of_one)), 4, command)

    def test_rounds_of_several_slots(self):
        """Slots are filled once and decode in every round: there is room for all of them, in each slot."""
        if "bench" not in self.commands:
            return
        for slots, rounds, steps in ((1, 5, 1), (2, 1, 2), (3, 2, 2), (3, 5, 5)):
            done = run("bench", "-m", MODEL, "-n", "40", "--decode", "3", "--rounds", str(rounds), "--slots", str(slots), "-t", "1",
                       "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            one = json.loads(done.stdout)["memory"]["kv"]
            tokens = 40 + 3 * steps
            self.assertEqual(one % tokens, 0, (slots, rounds))

    def test_contexts(self):
        """-c is the whole of it for each command, smaller and larger than the text."""
        refusals = {"generate": "the context 100 (-c)", "perplexity": "the context has 100 tokens",
                    "retrieval": "the context has 100 tokens", "bench": "the context has 100", "atlas": "the context has 100 tokens"}
        for command in self.commands:
            self.refused("-m", MODEL, *self.commands[command], "-c", "100", names=refusals[command], program=command)
            self.said(command, "-c", "1000")
        self.commands["perplexity"] = ("-f", self.text, "--decode", "20", "--json")
        self.assertEqual(self.said("perplexity", "-c", "150")["window"], 150)
        self.commands["atlas"] = ("-f", self.text, "-o", self.page, "--json")
        self.said("atlas", "-c", "120")
        self.assertEqual(json.loads(self.atlas_data("meta"))["tokens"], 120)


# A value that each flag of the rotation takes alone beside YaRN by 4, and what it refuses.
YARN = ("--rope-scaling", "yarn", "--rope-scale", "4")
NO_NUMBERS = ("", "x", "1x", "nan", "inf", "1e309", "-1", "0x4", " 4")
ROTATION = {"--rope-scale": ("8", ("0", "0.999", "1e39")), "--rope-freq-scale": ("0.125", ("0", "1.001", "1e-39")),
            "--rope-freq-base": ("50000", ("0", "0.999", "1e39")), "--yarn-orig-ctx": ("512", ("0", "1.5", "2147483648")),
            "--yarn-ext-factor": ("1", ("0", "0.5", "2")), "--yarn-attn-factor": ("1.1", ("0", "1e-50", "1e39")),
            "--yarn-beta-slow": ("2.5", ("0", "1e-50", "1e39")), "--yarn-beta-fast": ("20", ("0", "1e-50", "1e39"))}


class Rotation(OfCommands):
    """The flags that stand in place of what a file says of its rotary embedding."""

    def losses(self, *flags, model=MODEL):
        done = run("perplexity", "-m", model, "-f", self.text, "--window", "300", "--decode", "20", "--json", "-t", "2",
                   "--projections", "f32", *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        got = json.loads(done.stdout)
        return got["dense"], got["sparse"]

    def test_each_is_that_of_a_file_with_the_key(self):
        """Bit for bit, of a model whose file says nothing of it; and each of them changes something. Finds: a flag under
        another key, one that is not handed on, one that is rounded otherwise than in a file."""
        keys = {"--rope-scaling": ("scaling.type", TEXT_KIND), "--rope-scale": ("scaling.factor", F32),
                "--rope-freq-base": ("freq_base", F32), "--yarn-orig-ctx": ("scaling.original_context_length", U32),
                "--yarn-attn-factor": ("scaling.attn_factor", F32), "--yarn-beta-slow": ("scaling.yarn_beta_slow", F32),
                "--yarn-beta-fast": ("scaling.yarn_beta_fast", F32)}
        found = {}
        for given in ({}, {"--rope-freq-base": "77000.7"}, {"--rope-scaling": "none"}, {"--rope-scale": "3.3"},
                      {"--rope-scaling": "linear", "--rope-scale": "4"}, {"--rope-scaling": "yarn", "--rope-scale": "4"},
                      *({"--rope-scaling": "yarn", "--rope-scale": "4", name: value} for name, value in
                        (("--yarn-orig-ctx", "50"), ("--yarn-attn-factor", "1.1"), ("--yarn-beta-slow", "2.5"),
                         ("--yarn-beta-fast", "3.3"), ("--rope-freq-base", "20000")))):
            with self.subTest(given):
                metadata = {"llama.context_length": (U32, 1024)}
                for name, value in given.items():
                    key, kind = keys[name]
                    metadata["llama.rope." + key] = (kind, value if kind == TEXT_KIND else int(value) if kind == U32 else float(value))
                plain, written = f"{self.folder}/plain.gguf", f"{self.folder}/written.gguf"
                make_model(plain, layers=2, metadata={"llama.context_length": (U32, 1024)})
                make_model(written, layers=2, metadata=metadata)
                got = self.losses(*(part for pair in given.items() for part in pair), model=plain)
                self.assertEqual(got, self.losses(model=written))
                found[tuple(given.items())] = json.dumps(got)
        nothing, none = found[()], found[(("--rope-scaling", "none"),)]
        self.assertEqual(nothing, none)
        self.assertEqual(len(set(found.values())), len(found) - 1)

    def test_one_over_the_scale_is_the_scale(self):
        self.assertEqual(self.losses("--rope-freq-scale", "0.25"), self.losses("--rope-scale", "4"))
        self.assertEqual(self.losses(*YARN, "--yarn-ext-factor", "1.0"), self.losses(*YARN))
        self.assertEqual(self.losses("--rope-scale", "1"), self.losses())

    def test_every_command_takes_them(self):
        """Finds: a command that opens its model without them."""
        missing = " is 3, and the scaling is none; allowed: with yarn"
        for command in self.commands:
            with self.subTest(command):
                self.said(command, *YARN, *(part for name, (value, _) in ROTATION.items() if name not in ("--rope-scale", "--rope-freq-scale")
                                            for part in (name, value)))
                self.refused("-m", MODEL, *self.commands[command], "--yarn-beta-fast", "3", names="--yarn-beta-fast" + missing,
                             program=command)
        self.refused("-m", MODEL, "--yarn-beta-fast", "3", names="--yarn-beta-fast" + missing, program="info")
        self.refused("-m", MODEL, "--port", "0", "--yarn-beta-fast", "3", names="--yarn-beta-fast" + missing, program="serve")
        self.refused("--rope-scale", "3", names="--rope-scale is of a model; give -m FILE with it", program="info")
        if "bench" in self.commands:
            self.refused("--random", "qwen3-0.6b", "--rope-scale", "3", names="--rope-scale is of a file", program="bench")

    def test_info_says_which_rotation(self):
        for flags, said, scaling in (((), "base 100000", ("none", 1, None)),
                                     (("--rope-freq-base", "5e5", "--rope-scale", "2.5"), "base 500000, linear, 2.5 times", ("linear", 2.5, None)),
                                     ((*YARN, "--yarn-orig-ctx", "64"), "base 100000, yarn, 4 times 64 tokens", ("yarn", 4, 64))):
            self.assertIn(f"rotation {said}\n", run("info", "-m", MODEL, *flags).stdout.decode())
            rotation, = json.loads(run("info", "-m", MODEL, *flags, "--json").stdout)["rotations"]
            self.assertEqual((rotation["scaling"], rotation["factor"], rotation["original_context"]), scaling)

    def test_what_is_refused(self):
        """One line each that names flag and value. Finds: a limit that is not one, a number read as far as it goes."""
        for name, (_, bad) in ROTATION.items():
            beside = () if name in ("--rope-freq-base", "--rope-scale", "--rope-freq-scale") else YARN
            for value in (*NO_NUMBERS, *bad):
                with self.subTest(flag=name, value=value):
                    self.refused("-m", MODEL, *beside, f"{name}={value}", names=name, program="info")
                    line = run("info", "-m", MODEL, *beside, f"{name}={value}").stderr.decode()
                    self.assertRegex(line, "allowed: |; use ")
                    self.assertIn("0" if value == "1e-50" else value, line)
        for value in ("", "YARN", "longrope", "llama3", "0"):
            self.refused("-m", MODEL, f"--rope-scaling={value}", names=f"--rope-scaling: '{value}' is not allowed; use none, linear or yarn",
                         program="info")
        for flags, says in ((("--rope-scale", "4", "--rope-freq-scale", "0.25"), "--rope-scale 4 and --rope-freq-scale 0.25 are both given; allowed is one of them"),
                            (("--rope-scaling", "yarn"), "--rope-scaling is yarn, and qwen3.rope.scaling.factor is missing"),
                            (("--rope-scaling", "linear"), "--rope-scaling is linear, and qwen3.rope.scaling.factor is missing"),
                            (("--rope-scaling", "none", "--rope-scale", "4"), "--rope-scale is 4, and the scaling is none"),
                            (("--rope-scaling", "none", "--rope-freq-scale", "0.5"), "1 / --rope-freq-scale is 2, and the scaling is none"),
                            ((*YARN, "--rope-freq-base", "1"), "--rope-freq-base is 1; allowed: above 1 with YaRN")):
            self.refused("-m", MODEL, *flags, names=says, program="info")
        for name in (name for name in ROTATION if name.startswith("--yarn")):
            for flags, kind in (((), "none"), (("--rope-scale", "4"), "linear"), (("--rope-scaling", "none"), "none")):
                self.refused("-m", MODEL, *flags, name, ROTATION[name][0], program="info",
                             names=f"{name} is {ROTATION[name][0]}, and the scaling is {kind}; allowed: with yarn")

    def test_the_context_is_the_files_and_may_be_more(self):
        """32768 tokens, four times as many by the flags: without them, and beyond them, there is a warning."""
        for flags, most, how in (((), 32768, "made for"), (("--rope-freq-base", "2e6"), 32768, "made for"),
                                 (("--rope-scale", "4"), 131072, "stretched to"), (YARN, 131072, "stretched to"),
                                 ((*YARN, "--yarn-orig-ctx", "16384"), 65536, "stretched to"),
                                 ((*YARN, "--yarn-orig-ctx", "1000"), 32768, "made for")):
            done = run("info", "-m", MODEL, "--json", *flags)
            got = json.loads(done.stdout)
            self.assertEqual((got["context"], got["memory"]["tokens"], done.stderr), (32768, 32768, b""))
            self.assertEqual(run("info", "-m", MODEL, *flags, "-c", str(most)).stderr, b"")
            self.assertIn(f"-c {most + 1} is more than the {most} tokens that the model was {how}",
                          run("info", "-m", MODEL, *flags, "-c", str(most + 1)).stderr.decode())


class Requests(unittest.TestCase):
    SMALL = ("-ub", "64", "--h2o-local", "8", "--h2o-heavy", "8", "--temp", "2")
    REQUESTS = ({"prompt": WORDS[:900], "max_tokens": 24}, {"prompt": WORDS[900:1000], "max_tokens": 30},
                {"prompt": WORDS[1000:1700], "question": "\n# What does it return?\n", "max_tokens": 20})

    def test_flags_are_those_of_a_prompt_alone(self):
        found = set()
        for flags in ((), ("--dense",), ("--dense-tail", "0"), ("--dense-tail", "150"), ("--temp", "0"), ("--top-p", "0.4"),
                      ("--top-k", "5"), ("--min-p", "0.3"), ("--seed", "3"), ("--select", "h2o"), ("--select", "window"),
                      ("--dense-layers", "0-3"), ("--dense-below", "250"), ("--pinned", "8"), ("--projections", "f32"),
                      ("--chat",), ("--chat", "--system", "Be brief.", "--dense-tail", "5")):
            with self.subTest(flags):
                lines = "".join(json.dumps(request) + "\n" for request in self.REQUESTS).encode()
                done = run("generate", "-m", MODEL, "--requests", "-", "-t", "1", "--slots", "2", *self.SMALL, *flags, input=lines)
                self.assertEqual(done.returncode, 0, done.stderr)
                answers = [json.loads(line) for line in done.stdout.decode().splitlines()]
                self.assertEqual(len(answers), len(self.REQUESTS))
                found.add(tuple(answer["text"] for answer in answers))
                for request, answer in zip(self.REQUESTS, answers):
                    question = ("-p", request["question"]) if "question" in request else ()
                    # A file loses a line end where no question follows.
                    text = request["prompt"] + ("" if question else "\n")
                    alone = run("generate", "-m", MODEL, "-f", "-", *question, "-n", str(request["max_tokens"]), "--json", "-t", "1",
                                *self.SMALL, *flags, input=text.encode())
                    self.assertEqual(alone.returncode, 0, alone.stderr)
                    wanted = json.loads(alone.stdout)
                    self.assertEqual({key: answer[key] for key in ("text", "prompt_tokens", "generated_tokens")},
                                     {key: wanted[key] for key in ("text", "prompt_tokens", "generated_tokens")})
        self.assertGreater(len(found), 12, "hardly any flag changed an answer")

    def test_answers_that_end_inside_a_character(self):
        """Of a model whose tokens are bytes, at a temperature at which any may come."""
        with tempfile.TemporaryDirectory() as folder:
            model = f"{folder}/m.gguf"
            make_model(model, layers=1)
            flags = ("-m", model, "--temp", "50", "-t", "1")
            lines = "".join(json.dumps({"prompt": "ab", "max_tokens": 3, "seed": seed}) + "\n" for seed in range(24)).encode()
            done = run("generate", *flags, "--requests", "-", "--slots", "3", input=lines)
            self.assertEqual(done.returncode, 0, done.stderr)
            cut = 0
            for seed, line in enumerate(done.stdout.decode().splitlines()):
                alone = run("generate", *flags, "-p", "ab", "-n", "3", "--seed", str(seed), "--json")
                self.assertEqual(alone.returncode, 0, alone.stderr)
                alone = json.loads(alone.stdout)
                self.assertEqual(json.loads(line)["text"], alone["text"])
                # Bytes stand for themselves from the fourth token on.
                if alone["ids"] and 0xC2 <= alone["ids"][-1] - 3 <= 0xF4:
                    cut += 1
                    self.assertEqual(alone["text"][-1], "\ufffd")
            self.assertEqual(seed, 23)
            self.assertGreater(cut, 0)


def bytes_text(size):
    """As the program shows a number of bytes, from a KiB on."""
    units = iter(("KiB", "MiB", "GiB", "TiB", "PiB"))
    while size >= 1024:
        size, unit = size / 1024, next(units)
    return f"{size:.1f} {unit}"


def floats(kind, data):
    """Elements of a tensor of a dump."""
    if kind == "F32":
        return array.array("f", data)
    if kind == "F16":
        return struct.unpack(f"<{len(data) // 2}e", data)
    return struct.unpack(f"<{len(data) // 2}f", b"".join(b"\0\0" + data[at:at + 2] for at in range(0, len(data), 2)))


class Widths(Refusals):
    def first_values(self, file, values, ids):
        """Rows of values of layer 0, by the definition."""
        places, at = {}, 0
        for name, dims in file.tensors.items():
            places[name] = at
            at += dims[0] * (dims[1] if len(dims) > 1 else 1)
        embedding, norm, matrix = (places[name] for name in ("token_embd.weight", "blk.0.attn_norm.weight",
                                                             "blk.0.attn_v.weight"))
        rows = []
        for token in ids:
            row = values[embedding + 16 * token:embedding + 16 * (token + 1)]
            factor = (sum(x * x for x in row) / 16 + 1e-5)**-0.5
            row = [x * factor * weight for x, weight in zip(row, values[norm:norm + 16])]
            rows += [sum(x * values[matrix + 16 * r + c] for c, x in enumerate(row)) for r in range(24)]
        return rows

    def test_the_memory_that_is_asked_for(self):
        """Rows of the keys' and of the values' own widths of each key/value head, and two bytes for each query head, of
        every token, layer and conversation."""
        file = File()
        file.metadata |= {"llama.attention.head_count": (U32, 4), "llama.attention.head_count_kv": (U32, 2),
                          "llama.attention.key_length": (U32, 80), "llama.attention.value_length": (U32, 120)}
        file.tensors |= {"blk.0.attn_q.weight": [16, 320], "blk.0.attn_k.weight": [16, 160],
                         "blk.0.attn_v.weight": [16, 240], "blk.0.attn_output.weight": [480, 16]}
        tokens = 2_000_000_000
        with tempfile.TemporaryDirectory() as folder:
            model = f"{folder}/m.gguf"
            pathlib.Path(model).write_bytes(file.build())
            self.refused("-m", model, "-p", "x", "--cache-type", "q8_0", names="--cache-type q8_0 (--kv-bits 8): the model has heads of 80")
            for cache, size in (("f32", 4), ("f16", 2), ("bf16", 2)):
                one = tokens * (2 * (80 + 120) * size + 2 * 4)
                flags = ("-m", model, "-c", str(tokens), "--cache-type", cache)
                self.refused(*flags, "--interactive", names=f" {bytes_text(one)} of cache for {tokens} tokens")
                lines = b'{"prompt": "x", "max_tokens": -1}\n' * 5
                self.refused(*flags, "--requests", "-", "--slots", "3", input=lines,
                             names=f" {bytes_text(3 * one)} of cache for 3 times {tokens} tokens")
                self.refused(*flags, "--requests", "-", input=lines,
                             names=f" {bytes_text(5 * one)} of cache for 5 times {tokens} tokens")

    def test_dumps_of_values_wider_than_keys(self):
        """Four query heads over two, keys of 8 and values of 12: what is dumped in several steps is what attention got."""
        file = File()
        file.metadata |= {"llama.attention.head_count": (U32, 4), "llama.attention.head_count_kv": (U32, 2),
                          "llama.attention.key_length": (U32, 8), "llama.attention.value_length": (U32, 12),
                          "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5), "llama.block_count": (U32, 2)}
        for layer in range(2):
            for name, dims in {"attn_norm": [16], "ffn_norm": [16], "attn_q": [16, 32], "attn_k": [16, 16], "attn_v": [16, 24],
                               "attn_output": [48, 16], "ffn_gate": [16, 24], "ffn_up": [16, 24], "ffn_down": [24, 16]}.items():
                file.tensors[f"blk.{layer}.{name}.weight"] = dims
        header, size = file.header()
        numbers = random.Random(4)
        values = array.array("f", [numbers.uniform(-0.5, 0.5) for _ in range(size // 4)])
        text = "".join(chr(numbers.randrange(33, 127)) for _ in range(300))
        flags = ("-b", "96", "-ub", "32", "--h2o-local", "8", "--h2o-heavy", "8")
        with tempfile.TemporaryDirectory() as folder:
            model, dump, out = (f"{folder}/{name}" for name in ("m.gguf", "qkv", "out"))
            pathlib.Path(model).write_bytes(header + values.tobytes())
            for cache in ("f32", "f16", "bf16"):
                for layer in ("0", "1"):
                    done = run("generate", "-m", model, "-p", text, "-n", "0", *flags, "--select", "h2o", "--dense-tail", "40",
                               "--cache-type", cache, "--projections", "f32", "--json", "--dump-qkv", layer, dump)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    said = json.loads(done.stdout)
                    n = said["prompt_tokens"]
                    own = tensors(dump)
                    self.assertEqual({name: own[name][0]["shape"] for name in "qkv"},
                                     {"q": [n, 4, 8], "k": [n, 2, 8], "v": [n, 2, 12]})
                    self.assertEqual({own[name][0]["dtype"] for name in "kv"}, {cache.upper()})
                    replay = run("attend", dump, "-o", out, *flags, "--steps", said["steps"], "--json")
                    self.assertEqual(replay.returncode, 0, replay.stderr)
                    again = tensors(out)
                    self.assertEqual(again["out"][0]["shape"], [n, 4, 12])
                    self.assertEqual(own["scores"][1], again["scores"][1])
                    if layer == "1":
                        continue
                    wanted = self.first_values(file, values, said["prompt_ids"])
                    got = floats(cache.upper(), own["v"][1])
                    self.assertEqual(len(got), len(wanted))
                    self.assertLess(max(abs(x - y) for x, y in zip(got, wanted)), 0.01 * max(map(abs, wanted)))


if __name__ == "__main__":
    unittest.main()
