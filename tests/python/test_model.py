"""Model: what it says is what the program says; conversations, chats, what is refused."""

import codecs
import copy
import json
import os
import pathlib
import pickle
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import warnings

import numpy

import structures
from support import headwater

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "model"))
from gguf_files import U32, fixtures, make_model  # noqa: E402

from headwater import _model, _runtime

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = str(ROOT / "models/headwater-tiny-f16.gguf")
TEXT = ROOT / "models/eval-4k.txt"
FIXTURES = fixtures()
PROMPT = "def mean(values):\n    return"
SMALL = {"chunk": 64, "batch": 128, "local": 16, "heavy": 16, "threads": 2}
FLAGS = ["-ub", "64", "-b", "128", "--h2o-local", "16", "--h2o-heavy", "16", "-t", "2"]


def program(command, *arguments):
    """What `headwater COMMAND ... --json` says."""
    done = subprocess.run([os.environ["HEADWATER_PROGRAM"], command, *arguments, "--json"], capture_output=True, check=True)
    return json.loads(done.stdout)


def quantised(path):
    """A copy of a GGUF file with its F16 matrices as Q8_0: blocks of 32 elements, a scale of 16 bits and 32 bytes each."""
    formats = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}
    data = pathlib.Path(path).read_bytes()
    at = 24

    def number(form):
        nonlocal at
        value, = struct.unpack_from(form, data, at)
        at += struct.calcsize(form)
        return value

    def text():
        nonlocal at
        size = number("<Q")
        at += size
        return data[at - size:at]

    def skip(kind):
        if kind == 8:
            text()
        elif kind == 9:
            element, count = number("<I"), number("<Q")
            for _ in range(count):
                skip(element)
        else:
            number(formats[kind])
    _, version, tensors, entries = struct.unpack_from("<4sIQQ", data)
    for _ in range(entries):
        text()
        skip(number("<I"))
    head, described = data[:at], []
    for _ in range(tensors):
        name = text()
        dims = [number("<Q") for _ in range(number("<I"))]
        described.append((name, dims, number("<I"), number("<Q")))
    begin = -(-at // 32) * 32
    table, body = b"", b""
    for name, dims, kind, offset in described:
        count = int(numpy.prod(dims))
        raw = data[begin + offset:begin + offset + count * {0: 4, 1: 2}[kind]]
        if kind == 1:
            blocks = numpy.frombuffer(raw, "<f2").astype(numpy.float32).reshape(-1, 32)
            scale = (numpy.abs(blocks).max(axis=1) / 127).astype("<f2")
            inverse = numpy.divide(1, scale, where=scale > 0, out=numpy.zeros(len(scale), numpy.float32))
            codes = numpy.rint(blocks * inverse[:, None]).clip(-127, 127).astype(numpy.int8)
            raw = b"".join(one.tobytes() + many.tobytes() for one, many in zip(scale, codes))
            kind = 8
        table += struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, len(body))
        body += raw + b"\0" * (-len(raw) % 32)
    head += table
    return head + b"\0" * (-len(head) % 32) + body


class Tests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = headwater.Model(TINY)
        cls.text = TEXT.read_text(encoding="utf-8").removesuffix("\n")  # as the program reads it
        cls.ids = cls.model.tokenize(cls.text)


class Loading(unittest.TestCase):
    def test_the_package_loads_no_runtime_until_it_is_asked_for(self):
        says = ("import sys, headwater; first = [name for name in ('numpy', 'torch', 'headwater._runtime') if name in "
                "sys.modules]; headwater.Model; print(first, 'headwater._runtime' in sys.modules, 'numpy' in sys.modules, "
                "'Model' in dir(headwater))")
        package = str(pathlib.Path(headwater.__file__).parents[1])
        done = subprocess.run([sys.executable, "-B", "-W", "error", "-c", says], capture_output=True, text=True, check=True,
                              env={**os.environ, "PYTHONPATH": package})
        self.assertEqual(done.stdout, "[] True False True\n")

    def test_a_library_that_is_not_there(self):
        package = str(pathlib.Path(headwater.__file__).parents[1])
        for path, says in (("/nowhere/lib.so", "/nowhere/lib.so"), (headwater._native.library._name, "of this version")):
            done = subprocess.run([sys.executable, "-B", "-c", "import headwater; headwater.Model"], capture_output=True,
                                  text=True, env={**os.environ, "PYTHONPATH": package, "HEADWATER_RUNTIME_LIBRARY": path},
                                  check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertRegex(done.stderr.splitlines()[-1], f"ImportError: .*{says}")

    def test_an_unknown_name(self):
        with self.assertRaisesRegex(AttributeError, "Modell"):
            headwater.Modell  # noqa: B018


class Structures(unittest.TestCase):
    def test_fields_lie_where_the_header_says(self):
        structures.compare(self, "headwater/runtime.h", _runtime, {
            "Facts": "model_facts", "ModelOptions": "model_options", "Message": "chat_message", "ConversationOptions":
            "conversation_options", "Sampling": "sampling", "Comparison": "comparison"})

    def test_every_function_is_there(self):
        names = [*_runtime._CALLS, *_runtime._TEXTS, *_runtime._CLOSES]
        structures.declared(self, "headwater/runtime.h", names, _runtime.library)


class Tokens(Tests):
    def test_ids_are_those_of_the_program(self):
        for text in (PROMPT, "naïve – 𝄞 \0 <|im_end|>\r\t x", self.text[:2000]):
            for special in (False, True):
                flags = [] if special else ["--no-parse-special"]
                with tempfile.NamedTemporaryFile("w", newline="", encoding="utf-8") as file:
                    file.write(text + "\n")  # an editor's line end, which a file loses
                    file.flush()
                    said = program("tokenize", "-m", TINY, "-f", file.name, *flags)["ids"]
                self.assertEqual(self.model.tokenize(text, parse_special=special), said)
            self.assertEqual(self.model.detokenize(self.model.tokenize(text)), text)

    def test_special_tokens(self):
        llama = headwater.Model(FIXTURES / "llama-linear.gguf")
        ids = llama.tokenize("abc")
        self.assertTrue(llama.adds_bos)
        self.assertEqual((ids[0], ids[1:]), (llama.bos, llama.tokenize("abc", add_special=False)))
        self.assertEqual(llama.detokenize(ids), "abc")
        self.assertEqual(self.model.tokenize("<|im_end|>", parse_special=True), [self.model._turn_end])
        self.assertGreater(len(self.model.tokenize("<|im_end|>")), 1)
        self.assertEqual(self.model.piece(self.model._turn_end), b"<|im_end|>")
        self.assertEqual(self.model.tokenize("", add_special=False), [])
        self.assertEqual(self.model.detokenize(numpy.array([], numpy.int64)), "")

    def test_pieces_make_the_text(self):
        text = "naïve 𝄞 text"
        self.assertEqual(b"".join(map(self.model.piece, self.model.tokenize(text))), text.encode())

    def test_facts(self):
        model = self.model
        self.assertEqual((model.name, model.architecture, model.layers, model.vocabulary, model.context),
                         ("headwater-tiny", "qwen3", 8, 4096, 32768))
        self.assertEqual(model.heads % model.kv_heads, 0)
        self.assertEqual(model.bytes, os.path.getsize(TINY))
        self.assertEqual(headwater.Model(TINY, projections="f32").projections, "f32")
        for projections, needs in (("bf16", "AVX512_BF16 or AMX"), ("int8", "AVX512_VNNI")):
            try:
                self.assertEqual(headwater.Model(TINY, projections=projections).projections, projections)
            except ValueError as error:
                self.assertIn(f"{projections.upper()} needs a processor with {needs}, this one has", str(error))

    def test_a_rotation_in_place_of_the_files(self):
        """What the program's flags of these names compute. Finds: a keyword in another field, or in none."""
        yarn = {"rope_scaling": "yarn", "rope_scale": 4.0}
        text, found = TEXT.read_text(encoding="utf-8")[:2000], []
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = f"{folder.name}/text.txt"
        pathlib.Path(path).write_text(text, encoding="utf-8")
        for keywords in ({}, {"rope_scaling": "none"}, {"rope_scale": 4}, {"rope_scaling": "linear", "rope_scale": 3.3},
                         {"rope_freq_base": numpy.float32(20000)}, yarn, {**yarn, "yarn_orig_ctx": 512},
                         {**yarn, "yarn_attn_factor": 1.25}, {**yarn, "yarn_beta_fast": 200}, {**yarn, "yarn_beta_slow": 2.5}):
            with self.subTest(keywords):
                model = headwater.Model(TINY, projections="f32", **keywords)
                self.assertEqual(model.context, 32768)
                got = model.perplexity(text, window=400, decode=20, threads=2)
                flags = [part for name, value in keywords.items() for part in ("--" + name.replace("_", "-"), str(value))]
                said = program("perplexity", "-m", TINY, "-f", path, "--window", "400", "--decode", "20", "-t", "2",
                               "--projections", "f32", *flags)
                self.assertEqual([got[side][part]["nll"] for side in ("dense", "sparse") for part in ("prefill", "decoded")],
                                 [said[side][part]["nll"] for side in ("dense", "sparse") for part in ("prefill", "decoded")])
                found.append(got["dense"]["prefill"]["nll"])
        self.assertEqual(found[1], found[0])
        self.assertEqual(len(set(found)), len(found) - 1)
        talk = headwater.Model(TINY, **yarn).conversation(capacity=4 * 32768)
        self.assertEqual(talk.capacity, 4 * 32768)

    def test_refused_rotations(self):
        for keywords, kind, says in (
                ({"rope_scaling": "ntk"}, ValueError, "rope_scaling is 'ntk'; allowed: 'none', 'linear', 'yarn'"),
                ({"rope_scaling": "yarn"}, ValueError, "rope_scaling is yarn, and qwen3.rope.scaling.factor is missing"),
                ({"rope_scale": "4"}, TypeError, "rope_scale is '4'"), ({"rope_scale": 0.3}, ValueError, "rope_scale is 0.3; allowed: at least 1"),
                ({"yarn_orig_ctx": 1.5}, TypeError, "yarn_orig_ctx is 1.5"),
                ({"rope_scale": 4, "yarn_orig_ctx": 64}, ValueError, "yarn_orig_ctx is 64, and the scaling is linear"),
                *(({name: 0}, ValueError, f"{name} is 0; allowed: a number above 0, or None")
                  for name in ("rope_scale", "rope_freq_base", "yarn_orig_ctx", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow")),
                *(({"rope_scaling": "yarn", "rope_scale": 2, name: value}, ValueError, f"{name} (is|holds) {shown}")
                  for name in ("rope_freq_base", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow")
                  for value, shown in ((-1, "-1"), (float("nan"), "NaN"), (float("inf"), "inf"), (1e300, "inf")))):
            with self.subTest(keywords), self.assertRaisesRegex(kind, says) as caught:
                headwater.Model(TINY, **keywords)
            self.assertNotIn("\n", str(caught.exception))

    def test_facts_beyond_16_bits(self):
        with tempfile.TemporaryDirectory() as folder:
            make_model(f"{folder}/m.gguf", layers=300, width=272, tokens=70_000, metadata={
                "llama.context_length": (U32, 2**20), "tokenizer.ggml.bos_token_id": (U32, 69_998),
                "tokenizer.ggml.eos_token_id": (U32, 69_999)})
            model = headwater.Model(f"{folder}/m.gguf")
            self.assertEqual(model.bytes, os.path.getsize(f"{folder}/m.gguf"))
            self.assertEqual((model.layers, model.width, model.vocabulary, model.context, model.bos, model.eos),
                             (300, 272, 70_000, 2**20, 69_998, 69_999))
            self.assertEqual(model.piece(69_997), b"v69697")
            self.assertEqual(model.detokenize([69_997, 300]), "v69697v0")

    def test_refused(self):
        last = self.model.vocabulary - 1
        refused = [(lambda: self.model.tokenize(b"x"), TypeError, "text is a bytes; allowed: str"),
                   (lambda: self.model.tokenize("\ud800"), ValueError, "surrogates"),
                   (lambda: self.model.detokenize([1, last + 1]), ValueError, str(last + 1)),
                   (lambda: self.model.detokenize([1.5]), TypeError, r"ids\[0\] is 1.5"),
                   (lambda: self.model.detokenize("abc"), TypeError, "ids is a str"),
                   (lambda: self.model.piece(-1), ValueError, "token is -1"),
                   (lambda: self.model.piece(2**40), ValueError, "token is 1099511627776"),
                   (lambda: self.model.tokenize("x", add_special="no"), TypeError, "add_special is 'no'; allowed: True, False"),
                   (lambda: self.model.tokenize("x", parse_special=1), TypeError, "parse_special is 1; allowed: True, False"),
                   (lambda: headwater.Model(TINY, projections=["f32"]), ValueError, r"projections is \['f32'\]; allowed: 'auto'")]
        for call, kind, says in refused:
            with self.subTest(says), self.assertRaisesRegex(kind, says) as caught:
                call()
            self.assertNotIn("\n", str(caught.exception))


class Warned(Tests):
    def test_what_is_strange_in_a_file_is_said(self):
        key = b"tokenizer.ggml.padding_token_id"
        content = bytearray(pathlib.Path(TINY).read_bytes())
        place = content.index(key) + len(key) + 4  # after the type, 32 bits
        content[place:place + 4] = (2**31).to_bytes(4, "little")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "padding.gguf")
            path.write_bytes(content)
            with self.assertWarnsRegex(UserWarning, f"{key.decode()}' is 2147483648; .* it is taken for none") as caught:
                headwater.Model(path)
        self.assertEqual(caught.filename, __file__)


class Generated(Tests):
    def test_bos_twice_is_warned_of(self):
        model = headwater.Model(FIXTURES / "llama3.gguf")
        bos = model.piece(model.bos).decode()
        with self.assertWarnsRegex(UserWarning, "it is there twice"):
            list(model.generate(bos + "a", max_tokens=1))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            list(model.generate("a", max_tokens=1))
            list(model.generate(model.tokenize(bos + "a", add_special=False, parse_special=True), max_tokens=1))

    def test_greedy_text_is_that_of_the_program(self):
        said = program("generate", "-m", TINY, "-f", str(TEXT), "-n", "24", *FLAGS)
        pieces = list(self.model.generate(self.text, max_tokens=24, **SMALL))
        self.assertGreater(len(pieces), 5)
        self.assertEqual("".join(pieces), said["text"])
        self.assertEqual("".join(self.model.generate(self.ids, max_tokens=24, **SMALL)), said["text"])
        said = program("generate", "-m", TINY, "-f", str(TEXT), "-n", "24", "--select", "h2o", *FLAGS)
        self.assertEqual("".join(self.model.generate(self.text, max_tokens=24, select="h2o", **SMALL)), said["text"])

    def test_defaults_are_those_of_the_program(self):
        self.assertEqual("".join(self.model.generate(PROMPT)), program("generate", "-m", TINY, "-p", PROMPT, "-n", "128")["text"])
        for flags, options in (([], {}), (["-ub", "6"], {"chunk": 6}), (["--h2o-heavy", "20"], {"heavy": 20}),
                               (["--select", "h2o"], {"select": "h2o"}), (["--dense-below", "9"], {"dense_below": 9}),
                               (["--quality", "fast"], {"quality": "fast"}),
                               (["--quality", "fast", "--key-block", "16"], {"quality": "fast", "key_block": 16}),
                               (["-ub", "20", "--query-block", "7"], {"chunk": 20, "query_block": 7}),
                               (["--select", "blocks", "--h2o-heavy", "64"], {"select": "blocks", "heavy": 64})):
            said = program("generate", "-m", TINY, "-p", PROMPT, "-n", "0", *flags)["effective"]
            got = self.model.conversation(capacity=100, **options).options
            for name in ("chunk", "local", "heavy", "select", "pinned", "key_block", "query_block", "pool", "refine",
                         "dense_below"):
                with self.subTest(flags=flags, name=name):
                    self.assertEqual(got[name], said.get(name, 0))
        for name, value in (("key_block", 4), ("pool", 4), ("refine", 1)):
            with self.assertRaisesRegex(ValueError, f"^{name} is a size of rule blocks, and the rule is sketches; allowed: "):
                self.model.conversation(capacity=100, **{name: value})
        with self.assertRaisesRegex(ValueError, "^least_weight is a size of rule sketches, and the rule is blocks; allowed: "):
            self.model.conversation(capacity=100, quality="fast", least_weight=0)

    def test_sizes_can_be_said_wherever_heavy_can(self):
        sizes = {"pinned": 16, "key_block": 4, "query_block": 16, "pool": 2, "refine": 2}
        flags = [word for name, size in sizes.items() for word in ("--" + name.replace("_", "-"), str(size))]
        said = program("generate", "-m", TINY, "-f", str(TEXT), "-n", "8", "--select", "blocks", *FLAGS, *flags)
        self.assertEqual({name: said["effective"][name] for name in sizes}, sizes)
        options = {**SMALL, "select": "blocks", **sizes}
        self.assertEqual("".join(self.model.generate(self.text, max_tokens=8, **options)), said["text"])
        losses = self.model.perplexity(self.ids[:300], decode=20, **options)
        for used in (losses["effective"], self.model.chat(**options).conversation.options):
            self.assertEqual({name: used[name] for name in sizes}, sizes)

    def test_clamped_memory_is_told(self):
        """Where no warnings can be asked for."""
        said = "local 32, heavy 31$"
        for call in (lambda: self.model.generate(PROMPT, chunk=64), lambda: self.model.chat(chunk=64),
                     lambda: self.model.perplexity(self.ids[:80], decode=1, chunk=64)):
            with self.assertWarnsRegex(UserWarning, said) as caught:
                call()
            self.assertEqual(caught.filename, __file__)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            talk = self.model.conversation(capacity=100, chunk=64)
            self.model.generate(PROMPT, chunk=64, dense=True)
        self.assertEqual(caught, [])
        self.assertRegex(talk.warnings[-1], said)

    def test_draws_are_those_of_the_program(self):
        sampling = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "min_p": 0.01}
        flags = ["--temp", "0.9", "--top-k", "40", "--top-p", "0.95", "--min-p", "0.01"]
        texts = ["".join(self.model.generate(PROMPT, max_tokens=30, seed=seed, **sampling)) for seed in (1, 1, 2)]
        self.assertEqual(texts[0], texts[1])
        self.assertNotEqual(texts[0], texts[2])
        self.assertEqual(texts[0], program("generate", "-m", TINY, "-p", PROMPT, "-n", "30", "--seed", "1", *flags)["text"])

    def test_threads_sleep_while_they_wait(self):
        """On one processor, where a thread that spins keeps its partner from it, whatever OpenMP's are told to do: processor
        time, which other programs do not touch."""
        code = ("import os, sys, time, headwater\n"
                "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
                "model, took = headwater.Model(sys.argv[1]), []\n"
                "for threads in (1, 2, 1, 2):\n"
                "    begin = time.process_time()\n"
                "    ''.join(model.generate('def mean(values):', max_tokens=16, threads=threads))\n"
                "    took.append(time.process_time() - begin)\n"
                "print(took[2], took[3])\n")
        package = str(pathlib.Path(headwater.__file__).parents[1])
        done = subprocess.run([sys.executable, "-B", "-c", code, TINY], capture_output=True, text=True, check=True, timeout=300,
                              env={**os.environ, "PYTHONPATH": package, "OMP_WAIT_POLICY": "active"})
        one, two = map(float, done.stdout.split())
        self.assertLess(two, 3 * one + 0.05)

    def test_a_model_of_q8_0(self):
        with tempfile.TemporaryDirectory() as folder:
            path = str(pathlib.Path(folder, "tiny-q8_0.gguf"))
            pathlib.Path(path).write_bytes(quantised(TINY))
            model = headwater.Model(path)
            self.assertLess(model.bytes, self.model.bytes * 0.6)
            said = program("generate", "-m", path, "-f", str(TEXT), "-n", "16", *FLAGS)["text"]
            self.assertEqual("".join(model.generate(self.text, max_tokens=16, **SMALL)), said)
            own, other = (one.conversation(capacity=600).losses(self.ids[:600]) for one in (model, self.model))
            self.assertNotEqual(own, other)
            self.assertLess(abs(numpy.mean(own) - numpy.mean(other)), 0.05)

    def test_stop_strings(self):
        whole = "".join(self.model.generate(PROMPT, max_tokens=30))
        for begin in range(0, len(whole) - 3):
            stop = whole[begin:begin + 3]  # of every place, so also across tokens
            with self.subTest(stop):
                self.assertEqual("".join(self.model.generate(PROMPT, max_tokens=30, stop=stop)), whole[:whole.index(stop)])
        self.assertEqual("".join(self.model.generate(PROMPT, max_tokens=30, stop=["never said", whole[5:9], whole[9:12]])),
                         whole[:min(whole.index(whole[5:9]), whole.index(whole[9:12]))])
        # What could have become one is given back at the end.
        self.assertEqual("".join(self.model.generate(PROMPT, max_tokens=30, stop=whole[-4:] + "\x01")), whole)

    def test_text_is_held_back_up_to_a_stop_string(self):
        text = _model._StopText(["abac", "b!"])
        self.assertEqual([text.push(part) for part in ("xa", "b", "a", "ba", "q", "a", "b")],
                         ["x", "", "", "ab", "abaq", "", ""])
        self.assertFalse(text.found)
        self.assertEqual((text.push("!z"), text.found), ("a", True))
        long = "a string of characters of which none come twice in vain"
        text = _model._StopText([long])
        self.assertEqual("".join(map(text.push, "before it, " + long[:-1] + "!")), "before it, " + long[:-1] + "!")
        self.assertEqual(("".join(map(text.push, "z" + long)), text.found), ("z", True))

    def test_an_answer_follows_a_grammar(self):
        schema = {"properties": {"z": {"enum": ["é", 5]}, "a": {"type": "integer", "maximum": 9}}, "required": ["z", "a"],
                  "additionalProperties": False}
        for one in (schema, json.dumps(schema)):
            for sampling in ({}, {"temperature": 2.0, "seed": 3}):
                with self.subTest(schema=one, sampling=sampling):
                    said = json.loads("".join(self.model.generate(PROMPT, json_schema=one, max_tokens=None, capacity=100, **sampling)))
                    self.assertEqual(list(said), ["z", "a"])
                    self.assertIn(said["z"], ("é", 5))
                    self.assertLessEqual(said["a"], 9)
        self.assertEqual("".join(self.model.generate(PROMPT, json_schema=True, max_tokens=2)).lstrip()[0], "{")
        self.assertEqual("".join(self.model.generate(PROMPT, grammar='root ::= "a"{5} "é"')), "aaaaaé")

    def test_characters_are_whole(self):
        """Tokens of bytes: a model that draws bytes at random writes no half characters, but U+FFFD."""
        model = headwater.Model(FIXTURES / "llama-linear.gguf")
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        pieces = list(model.generate("ab", max_tokens=60, temperature=5.0, seed=3))
        said = program("generate", "-m", str(FIXTURES / "llama-linear.gguf"), "-p", "ab", "-n", "60", "--temp", "5", "--seed", "3")
        self.assertEqual("".join(pieces), said["text"])
        self.assertIn("\ufffd", said["text"])
        shown = [piece for piece, kind in map(model._piece, said["ids"]) if not kind & _runtime.CONTROL]
        expected = "".join(map(decoder.decode, shown)) + decoder.decode(b"", True)
        self.assertEqual(said["text"], expected)

    def test_refused(self):
        long = self.ids * 8
        refused = [({"max_tokens": -1}, ValueError, "max_tokens is -1"), ({"temperature": -1}, ValueError, "temperature is -1"),
                   ({"temperature": "hot"}, TypeError, "temperature is 'hot'"), ({"top_k": -1}, ValueError, "top_k is -1"),
                   ({"top_p": 2}, ValueError, "top_p is 2; allowed: 0 .. 1"), ({"seed": -1}, ValueError, "seed is -1"),
                   ({"stop": [""]}, ValueError, "stop has ''"), ({"stop": [3]}, TypeError, "stop has 3"),
                   ({"chunk": 0}, ValueError, "chunk is 0"), ({"speed": 1}, TypeError, "option 'speed' is not known"),
                   ({"scale": 1.0}, ValueError, "attention.scale is set"), ({"select": "best"}, ValueError, "select is 'best'"),
                   ({"cache_type": "f8"}, ValueError, "cache_type is 'f8'"), ({"dense_tail": -1}, ValueError, "dense_tail is -1"),
                   ({"capacity": 0}, ValueError, "capacity is 0"), ({"engine": "warp"}, RuntimeError, "warp"),
                   ({"prompt": long}, ValueError, f"prompt has {len(long)} tokens; allowed: 1 .. 32768"),
                   ({"prompt": ""}, ValueError, "prompt has no tokens"), ({"prompt": None}, TypeError, "NoneType"),
                   ({"prompt": 5}, TypeError, "prompt is a int; allowed: a sequence of integers"),
                   ({"prompt": [True]}, TypeError, r"prompt\[0\] is True; allowed: an integer"),
                   ({"stop": 5}, TypeError, "stop is 5; allowed: a sequence of texts"),
                   ({"max_tokens": True}, TypeError, "max_tokens is True"), ({"top_k": 1.5}, TypeError, "top_k is 1.5"),
                   ({"temperature": float("nan")}, ValueError, "temperature is NaN"),
                   ({"grammar": 'root ::= "a'}, ValueError, "grammar, line 1: "), ({"grammar": b"x"}, TypeError, "grammar is a bytes"),
                   ({"grammar": "x", "json_schema": True}, ValueError, "grammar and json_schema are given; allowed: one"),
                   ({"grammar": "root\0"}, ValueError, "no ::= stands behind 'root'"), ({"json_schema": "{"}, ValueError, "schema"),
                   ({"json_schema": False}, ValueError, "json_schema is False; allowed: a dict, .* True: any object"),
                   ({"json_schema": 1}, TypeError, "json_schema is 1; allowed: a dict"),
                   ({"json_schema": {"enum": {1}}}, TypeError, "json_schema is no JSON: .*set"),
                   ({"json_schema": {"maximum": float("nan")}}, ValueError, "json_schema is no JSON: "),
                   ({"temperature": "1"}, TypeError, "temperature is '1'"), ({"top_p": True}, TypeError, "top_p is True"),
                   ({"dense": "no"}, TypeError, "dense is 'no'"), ({"pinned": 481}, ValueError, "pinned is 481; allowed: 0 .. 480"),
                   ({"cache_type": ["f16"]}, ValueError, r"cache_type is \['f16'\]; allowed: 'auto'"),
                   ({"max_token": 5}, TypeError, "option 'max_token' is not known; allowed: .* max_tokens, .* cache_type, ")]
        for options, kind, says in refused:
            prompt = options.pop("prompt", PROMPT)
            with self.subTest(says), self.assertRaisesRegex(kind, says) as caught:
                self.model.generate(prompt, **options)
            self.assertNotIn("\n", str(caught.exception))
        with self.assertRaisesRegex(ValueError, "token|ids"):
            list(self.model.generate([5, self.model.vocabulary]))
        with self.assertRaisesRegex(ValueError, "allowed: 3 tokens in all"):
            list(self.model.generate([5, 6, 7, 8], capacity=3))


class Losses(Tests):
    def test_means_are_those_of_the_program(self):
        """Window and decode so that a turn ends inside a chunk, and inside a query block, and with nothing decoded."""
        for select, window, decode in (("h2o", 1100, 100), ("blocks", 1100, 100), ("blocks", 1000, 1), ("blocks", 700, 0)):
            with self.subTest(select=select, window=window):
                said = program("perplexity", "-m", TINY, "-f", str(TEXT), "--window", str(window), "--decode", str(decode),
                               "--select", select, "--pinned", "0" if select == "h2o" else "8", *FLAGS)
                got = self.model.perplexity(self.text, window=window, decode=decode, select=select, **SMALL)
                used = got.pop("effective")
                self.assertEqual(used, {**used, **{name: value for name, value in said.pop("effective").items()
                                                   if name != "dense_layers"}})
                del said["warnings"]
                self.assertEqual(got, said)
                self.assertEqual("ends" in got["sparse"], select == "blocks")
                self.assertNotEqual(got["dense"], got["sparse"])
                self.assertGreater(got["divergence"]["prefill"]["kl"], 0)
                self.assertLess(got["divergence"]["prefill"]["rank1"], 1)

    def test_dense_beside_dense_is_the_same(self):
        got = self.model.perplexity(self.ids[:300], window=300, decode=50, dense=True, **SMALL)
        self.assertEqual(got["dense"], got["sparse"])
        self.assertEqual((got["divergence"]["decoded"]["kl"], got["divergence"]["decoded"]["rank1"]), (0, 1))
        self.assertEqual(got["difference"]["decoded"], {"nll": 0, "stderr": 0, "tokens": 50})

    def test_windows_no_longer_than_a_chunk(self):
        """Nothing comes after the first chunk but what is decoded."""
        for window in (2, 64, 65):
            got = self.model.perplexity(self.ids[:300], window=window, decode=1, select="blocks", **SMALL)
            self.assertEqual(got["windows"], 300 // window)
            self.assertNotIn("ends", got["sparse"])
            self.assertEqual(got["divergence"]["prefill"],
                             {"kl": 0, "kl_stderr": 0, "rank1": 0, "rank1_stderr": 0, "tokens": 0})
            self.assertEqual(got["divergence"]["decoded"]["tokens"], 300 // window)

    def test_an_interrupt_stops_both(self):
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
        ids = self.model.tokenize((ROOT / "models/eval-16k.txt").read_text(encoding="utf-8"))
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            with self.assertRaises(KeyboardInterrupt):
                self.model.perplexity(ids, dense=False, select="blocks", threads=1)
                time.sleep(30)
        finally:
            timer.join()
        self.assertEqual(self.model.perplexity(self.ids[:100], decode=5)["windows"], 1)

    def test_conversations_of_two_kinds_are_refused(self):
        with self.model.conversation(capacity=100) as one, self.model.conversation(capacity=50) as other:
            with self.assertRaisesRegex(RuntimeError, "in use by another thread"):
                one._compared(one, self.ids[:20], 5)
            with self.assertRaisesRegex(ValueError, "a window of 60 tokens does not fit; allowed: 50"):
                one._compared(other, self.ids[:60], 5)
            with self.assertRaisesRegex(ValueError, r"ids\[1\] is 4096"):
                one._compared(other, [1, 4096], 1)

    def test_losses_of_a_window(self):
        ids = self.ids[:700]
        with self.model.conversation(capacity=1000, select="h2o", **SMALL) as talk:
            losses = talk.losses(ids, 100)
            self.assertEqual((len(losses), talk.tokens), (699, 0))
            talk.feed(ids[:50])
            self.assertEqual(talk.losses(ids, 100), losses)
            # The first decoded token is predicted by the end of the turn.
            talk._set_dense_tail(0)
            talk.feed(ids[:600])
            logits = talk.logits.astype(float)
            loss = numpy.log(numpy.exp(logits - logits.max()).sum()) + logits.max() - logits[ids[600]]
            self.assertAlmostEqual(losses[599], loss, delta=0.1)  # a row alone is F32, many may be BF16
            for bad, says in (((ids, 700), "decode is 700"), ((ids, -1), "decode is -1"), ((ids[:1],), "n is 1"),
                              ((self.ids[:1001],), "allowed: 1000")):
                with self.assertRaisesRegex(ValueError, says):
                    talk.losses(*bad)

    def test_refused(self):
        for options, says in (({"window": 1}, "window is 1; allowed: 2 .. 32768"), ({"window": 10**6}, "window is 1000000"),
                              ({"window": 200, "decode": 200}, "decode is 200 in a window of 200"),
                              ({"decode": -1}, "decode is -1")):
            with self.assertRaisesRegex(ValueError, says):
                self.model.perplexity(self.text, **options)
        with self.assertRaisesRegex(ValueError, "window of 1 tokens"):
            self.model.perplexity([5])


class Conversations(Tests):
    def talk(self, **options):
        return self.model.conversation(**{"capacity": 1000, **SMALL, **options})

    def test_weights_are_shared_and_options_are_not(self):
        dense, sparse = self.talk(dense=True), self.talk()
        for talk in (dense, sparse):
            talk.feed(self.ids[:500])
        self.assertFalse(dense.options["sparse"])
        self.assertEqual(sparse.options["chunk"], 64)
        self.assertEqual([chunk[2] for chunk in sparse.chunks], ["sparse"] * 7 + ["decode"])
        self.assertEqual((dense.logits.shape, dense.logits.dtype), ((4096,), numpy.float32))
        self.assertFalse((dense.logits == sparse.logits).all())
        self.assertGreater(sparse.memory_bytes["kv"], 0)
        self.assertEqual(sparse.warnings, [])

    def test_rows_in_8_bits(self):
        bytes_of, first = {}, set()
        for cache in ("bf16", "q8_0"):
            talk = self.talk(cache_type=cache)
            talk.feed(self.ids[:500])
            self.assertEqual(talk.options["kv_bits"], 8 if cache == "q8_0" else 0)
            bytes_of[cache] = talk.memory_bytes["kv"]
            first.add(int(talk.logits.argmax()))
        self.assertEqual(len(first), 1)
        self.assertLess(bytes_of["q8_0"], 0.6 * bytes_of["bf16"])

    def test_logits_are_a_copy(self):
        talk = self.talk()
        talk.feed(self.ids[:20])
        first = talk.logits
        kept = first.copy()
        talk.append(7)
        numpy.testing.assert_array_equal(first, kept)
        self.assertFalse((talk.logits == kept).all())
        talk.reset()
        self.assertEqual(talk.tokens, 0)
        with self.assertRaisesRegex(RuntimeError, "empty"):
            _ = talk.logits
        talk.feed(self.ids[:20])
        numpy.testing.assert_array_equal(talk.logits, kept)

    def test_tokens_one_by_one_are_a_turn(self):
        one, many = self.talk(dense=True, dense_tail=0), self.talk(dense=True)
        many.feed(self.ids[:30])
        one.feed(self.ids[:20])
        for token in self.ids[20:30]:
            one.append(token)
        self.assertEqual(one.tokens, 30)
        self.assertLess(numpy.abs(one.logits - many.logits).max(), 0.5)  # rows of BF16 against F32
        self.assertEqual(one.logits.argmax(), many.logits.argmax())

    def test_a_turn_goes_on(self):
        """Ids that come in parts, with nothing written between them, are a turn: of any length, and in its mode (STATE-3)."""
        one, parts = (self.talk(dense_tail=0, threads=1) for _ in range(2))
        one.feed(self.ids[:640])
        for begin, end in ((0, 64), (64, 128), (128, 640)):
            parts.feed(self.ids[begin:end])
        self.assertEqual([chunk[:3] for chunk in parts.chunks], [chunk[:3] for chunk in one.chunks])
        numpy.testing.assert_array_equal(parts.logits, one.logits)

    def test_refused(self):
        talk = self.talk(capacity=30)
        talk.feed(self.ids[:10])
        before = talk.logits
        refused = [(lambda: talk.feed([]), ValueError, "0 tokens"), (lambda: talk.feed([1, 4096]), ValueError, r"ids\[1\] is 4096"),
                   (lambda: talk.feed([-1]), ValueError, r"ids\[0\] is -1"), (lambda: talk.append(4096), ValueError, "4096"),
                   (lambda: talk.feed(self.ids[:21]), ValueError, "21 after 10|21 tokens after 10"),
                   (lambda: talk.append("x"), TypeError, "token is 'x'")]
        for call, kind, says in refused:
            with self.subTest(says), self.assertRaisesRegex(kind, says) as caught:
                call()
            self.assertNotIn("\n", str(caught.exception))
        self.assertEqual(talk.tokens, 10)
        numpy.testing.assert_array_equal(talk.logits, before)
        talk.feed(self.ids[:20])
        with self.assertRaisesRegex(ValueError, "30|capacity"):
            talk.append(1)
        self.assertEqual(talk.tokens, 30)

    def test_two_threads_on_one_conversation(self):
        talk = self.talk(capacity=4000, dense=True, threads=1)

        def feed():
            while True:
                try:
                    return talk.feed(self.ids[:3500])
                except RuntimeError:  # the other thread was first
                    pass
        worker = threading.Thread(target=feed)
        worker.start()
        refusals = 0
        while worker.is_alive():
            try:
                _ = talk.tokens
            except RuntimeError as error:
                self.assertIn("another thread", str(error))
                refusals += 1
        worker.join()
        self.assertGreater(refusals, 0)
        self.assertEqual(talk.tokens, 3500)

    def test_conversations_of_threads_work_at_once(self):
        wanted = "".join(self.model.generate(PROMPT, max_tokens=12))
        got = []
        workers = [threading.Thread(target=lambda: got.append("".join(self.model.generate(PROMPT, max_tokens=12))))
                   for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        self.assertEqual(got, [wanted] * 3)

    def test_closed(self):
        with self.talk() as talk:
            talk.feed(self.ids[:5])
        for call in (lambda: talk.feed([1]), talk.reset, talk.close, lambda: talk.tokens, lambda: talk.logits,
                     lambda: talk.options):
            with self.assertRaisesRegex(RuntimeError, "closed"):
                call()

    def test_a_child_of_fork(self):
        talk = self.talk()
        wanted = "".join(self.model.generate(PROMPT, max_tokens=5))
        child = os.fork()
        if child == 0:
            right = False
            try:
                try:
                    talk.feed([1])
                except RuntimeError:
                    right = "".join(self.model.generate(PROMPT, max_tokens=5)) == wanted
            finally:
                os._exit(0 if right else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        talk.feed([1])

    def test_copies(self):
        talk, chat, sampler = self.talk(), self.model.chat(), _model._Sampler(self.model, 0.0, 0, 1.0, 0.0, 0, None, None)
        talk.feed(self.ids[:20])
        for owner, allowed in ((self.model, r"the same one in other threads and after os\.fork\(\)"), (talk, r"fork\(\), a second conversation"),
                               (talk._below, "."), (chat, "a new one of Model"), (sampler, ".")):
            for copied in (copy.copy, copy.deepcopy, pickle.dumps, lambda it: pickle.dumps(it, 0)):
                with self.assertRaisesRegex(TypeError, f"^a {type(owner).__name__} cannot be copied or pickled; allowed: {allowed}"):
                    copied(owner)
        self.assertEqual(talk.tokens, 20)

    def test_forks_go_on_apart(self):
        wanted = []
        for text in (self.ids[500:570], self.ids[600:640]):
            whole = self.talk(select="h2o")
            whole.feed(self.ids[:300])
            whole.feed(text)
            wanted.append(whole.logits)
        talk = self.talk(select="h2o")
        talk.feed(self.ids[:300])
        fork = talk.fork()
        self.assertIsInstance(fork, headwater.Conversation)
        self.assertEqual((fork.model, fork.capacity, fork.tokens, fork.options), (self.model, 1000, 300, talk.options))
        self.assertEqual(repr(fork), repr(talk))
        numpy.testing.assert_array_equal(fork.logits, talk.logits)
        worker = threading.Thread(target=lambda: fork.feed(self.ids[500:570]))
        worker.start()
        talk.feed(self.ids[600:640])
        worker.join()
        numpy.testing.assert_array_equal(talk.logits, wanted[1])
        talk.close()
        numpy.testing.assert_array_equal(fork.logits, wanted[0])
        self.assertEqual(fork.fork().tokens, 370)
        with self.assertRaisesRegex(RuntimeError, "closed"):
            talk.fork()

    def test_truncated(self):
        talk = self.talk(select="sketches", dense_tail=0)
        talk.feed(self.ids[:300])
        whole = talk.logits
        talk.truncate(numpy.int64(300))
        numpy.testing.assert_array_equal(talk.logits, whole)
        talk.truncate(128)
        self.assertEqual((talk.tokens, talk.chunks[-1][:2]), (128, (64, 128)))
        with self.assertRaisesRegex(RuntimeError, "truncated"):
            _ = talk.logits
        talk.feed(self.ids[128:300])
        numpy.testing.assert_array_equal(talk.logits, whole)
        for n, kind, says in ((301, ValueError, "n = 301 tokens; allowed: 0 .. 300"), (-1, ValueError, "n = -1 tokens"),
                              ("5", TypeError, "n is '5'"), (5.0, TypeError, "n is 5.0")):
            with self.subTest(says), self.assertRaisesRegex(kind, says):
                talk.truncate(n)
        self.assertEqual(talk.tokens, 300)
        settled = self.talk(select="h2o")
        settled.feed(self.ids[:300])
        with self.assertRaisesRegex(ValueError, "allowed: 0, or"):
            settled.truncate(100)

    def test_a_model_that_nothing_names_is_kept(self):
        talk = headwater.Model(TINY).conversation(capacity=10)
        talk.feed([300, 301])
        self.assertEqual(talk.tokens, 2)


class Interrupted(Tests):
    def setUp(self):
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))

    def interrupted(self, call, after):
        """The call takes much longer than until the signal comes."""
        timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        done = []
        try:
            with self.assertRaises(KeyboardInterrupt):
                call()
                done.append(True)
                time.sleep(30)
        finally:
            timer.cancel()
            timer.join()
        self.assertEqual(done, [], "the call went on to its end")

    def test_a_conversation_is_what_it_was(self):
        ids = (self.ids * 8)[:32000]
        talk = self.model.conversation(capacity=32500, dense=True, threads=1)
        talk.feed(ids[:100])
        before = talk.logits
        begun = time.monotonic()
        self.interrupted(lambda: talk.feed(ids), 0.5)
        self.assertLess(time.monotonic() - begun, 5)
        self.assertEqual(talk.tokens, 100)
        numpy.testing.assert_array_equal(talk.logits, before)
        talk.feed(ids[100:200])
        other = self.model.conversation(capacity=32500, dense=True, threads=1)
        other.feed(ids[:100])
        other.feed(ids[100:200])
        numpy.testing.assert_array_equal(talk.logits, other.logits)

    def test_losses_and_generate(self):
        ids = (self.ids * 8)[:32000]
        talk = self.model.conversation(dense=True, threads=1)
        self.interrupted(lambda: talk.losses(ids), 0.5)
        self.assertEqual(talk.tokens, 0)
        self.interrupted(lambda: list(self.model.generate(ids, dense=True, threads=1)), 0.5)
        talk.feed(ids[:10])

    def test_a_chat_goes_on(self):
        chat = self.model.chat(dense=True, threads=1)
        list(chat.say("first", max_tokens=3))
        tokens = chat.conversation.tokens
        self.interrupted(lambda: list(chat.say(self.text * 6, max_tokens=3)), 0.5)
        self.assertEqual(chat.conversation.tokens, tokens)
        other = self.model.chat(dense=True, threads=1)
        list(other.say("first", max_tokens=3))
        self.assertEqual(list(chat.say("second", max_tokens=8)), list(other.say("second", max_tokens=8)))


class Chats(Tests):
    def test_the_first_turn_is_that_of_the_program(self):
        for model in (TINY, str(FIXTURES / "llama3.gguf")):
            own = headwater.Model(model)
            for question, flags in ((None, ["-p", "a document"]), ("why?", ["-f", "DOCUMENT", "-p", "why?"])):
                with self.subTest(model=model, question=question), tempfile.NamedTemporaryFile("w") as file:
                    file.write("a document")
                    file.flush()
                    flags = [file.name if flag == "DOCUMENT" else flag for flag in flags]
                    said = program("generate", "-m", model, "--chat", "--system", "be kind", *flags, "-n", "12")
                    chat = own.chat("be kind")
                    self.assertEqual("".join(chat.say("a document", question, max_tokens=12)), said["text"])
                    self.assertEqual(chat._history, said["prompt_ids"])

    def test_a_kept_session_is_one_long_conversation(self):
        """Turns, answers that are cut off and closed, and the question of each turn dense."""
        chat = self.model.chat("be kind", capacity=4000, **SMALL)
        answers = ["".join(chat.say(self.text[:3000], "What is it?", max_tokens=6)),
                   "".join(chat.say("And then?", max_tokens=6)), "".join(chat.say(self.text[3000:6000], max_tokens=6))]
        encode = self.model._chat_ids
        talk = self.model.conversation(capacity=4000, **SMALL)
        turns = [encode([("system", "be kind", None), ("user", self.text[:3000], "What is it?")], True),
                 *(encode([("user", "x", None), ("assistant", "x", None), ("user", said, None)], False)
                   for said in ("And then?", self.text[3000:6000]))]
        pending, expected = [], []
        for ids, question, anew in turns:
            self.assertEqual(anew, ids is turns[0][0])
            talk._set_dense_tail(question or 64)
            talk.feed(pending + ids)
            answer = []
            while len(answer) < 6:
                token = int(talk.logits.argmax())
                answer.append(token)
                if token in (self.model.eos, self.model._turn_end) or len(answer) == 6:
                    break
                talk.append(token)
            ended = answer[-1] in (self.model.eos, self.model._turn_end)
            expected.append(self.model.detokenize(answer))
            pending = [] if ended else [answer[-1]]  # the next turn begins with what ends an answer
        self.assertEqual(answers, expected)
        self.assertEqual(chat.conversation.tokens, talk.tokens)
        numpy.testing.assert_array_equal(chat.conversation.logits, talk.logits)
        self.assertIn("sparse", [chunk[2] for chunk in talk.chunks])

    def test_an_answer_that_is_left_is_closed(self):
        chat, other = self.model.chat(), self.model.chat()
        left = chat.say("hello", max_tokens=20)
        for _ in range(2):
            next(left)
        list(other.say("hello", max_tokens=2))
        self.assertEqual(list(chat.say("more", max_tokens=5)), list(other.say("more", max_tokens=5)))
        with self.assertRaisesRegex(RuntimeError, "a later turn has begun"):
            list(left)

    def test_ctrl_c_that_comes_late(self):
        """When a token has just been appended, or a turn just been read, it is said, once."""
        def late(call):
            def called(*arguments):
                call(*arguments)
                raise KeyboardInterrupt
            return called
        chat, other = self.model.chat(threads=1), self.model.chat(threads=1)
        talk = chat.conversation
        answer = chat.say("hello", max_tokens=20)
        first = next(answer)
        talk.append = late(talk.append)
        self.assertRaises(KeyboardInterrupt, list, answer)
        del talk.append
        self.assertEqual("".join(other.say("hello", max_tokens=1)), first)
        talk.feed = late(talk.feed)
        self.assertRaises(KeyboardInterrupt, list, chat.say("more"))
        del talk.feed
        list(other.say("more", max_tokens=0))
        for one in (chat, other):
            list(one.say("and more", max_tokens=1))
        self.assertEqual(chat._history, other._history)
        self.assertEqual(talk.tokens, len(chat._history))
        self.assertEqual(talk.tokens, other.conversation.tokens)

    def test_what_an_interrupt_emptied_is_read_again(self):
        chat, other = self.model.chat(), self.model.chat()
        for one in (chat, other):
            list(one.say("hello", max_tokens=4))
        def refuse(ids):
            raise MemoryError
        talk = chat.conversation
        talk.feed = refuse
        self.assertRaises(MemoryError, list, chat.say("a turn that is not said"))
        del talk.feed
        talk.reset()
        self.assertEqual(list(chat.say("more", max_tokens=6)), list(other.say("more", max_tokens=6)))
        self.assertEqual(chat.conversation.tokens, other.conversation.tokens)

    def test_another_template(self):
        """The text that it writes is fed; where it writes the past in another way, the conversation begins anew."""
        own = headwater.Model(TINY, chat_template="{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<a>")
        chat = own.chat("be kind", threads=1)
        answer = "".join(chat.say("hello", max_tokens=3))
        fed = own.tokenize("<system>be kind\n<user>hello\n<a>")
        self.assertEqual(chat._history, fed)
        list(chat.say("more", max_tokens=0))
        said = own.tokenize(f"<system>be kind\n<user>hello\n<assistant>{answer}\n<user>more\n<a>")
        self.assertEqual(chat._history, said)  # "<a>" is not how it writes what the assistant said
        self.assertEqual(chat.conversation.tokens, len(said))
        for template, says in (("", "chat_template is ''"), ("{% x %}", "line 1: statement 'x'"), ("llama3", "begin_of_text")):
            with self.subTest(template), self.assertRaisesRegex(ValueError, says):
                headwater.Model(TINY, chat_template=template)
        with self.assertRaisesRegex(ValueError, "no systems"):
            headwater.Model(TINY, chat_template="{% if messages[0].role == 'system' %}{{ raise_exception('no systems') }}"
                                                "{% endif %}x").chat("be kind")

    def test_a_turn_follows_a_grammar(self):
        chat = self.model.chat(threads=1)
        self.assertEqual("".join(chat.say("hello", grammar='root ::= "a"{5}')), "aaaaa")
        self.assertEqual("".join(chat.say("more", json_schema={"const": [1, None]})), "[1,null]")

    def test_the_context_ends_an_answer(self):
        chat = self.model.chat(capacity=40, threads=1)
        self.assertTrue(list(chat.say("hello", max_tokens=None)))
        self.assertLessEqual(chat.conversation.tokens, 40)
        with self.assertRaisesRegex(ValueError, "does not fit; allowed: 40 tokens in all"):
            list(chat.say("a turn of many words that the context has no place for, and none that is left over"))

    def test_refused(self):
        plain = headwater.Model(FIXTURES / "llama-linear.gguf")
        for call, kind, says in ((plain.chat, ValueError, "neither ChatML nor Llama 3"),
                                 (lambda: self.model.chat(""), ValueError, "system is ''"),
                                 (lambda: self.model.chat(3), TypeError, "system is a int"),
                                 (lambda: self.model.chat(speed=1), TypeError, "'speed' is not known; allowed: .* capacity, "),
                                 (lambda: self.model.chat().say(b"x"), TypeError, "text is a bytes"),
                                 (lambda: self.model.chat().say("x", question=1), TypeError, "question is a int"),
                                 (lambda: self.model.chat().say("x", max_tokens=-2), ValueError, "max_tokens is -2")):
            with self.subTest(says), self.assertRaisesRegex(kind, says):
                call()


class BadFiles(unittest.TestCase):
    def test_files_that_are_no_models(self):
        whole = pathlib.Path(TINY).read_bytes()
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "bad.gguf")
            for data, says in ((b"", "bad.gguf"), (b"GGUF", "bad.gguf"), (b"not a model" * 100, "GGUF"), (whole[:400], "bad.gguf"),
                               (whole[:len(whole) // 2], "bad.gguf"), (b"GGML" + whole[4:], "GGUF")):
                path.write_bytes(data)
                with self.subTest(says), self.assertRaisesRegex(ValueError, says) as caught:
                    headwater.Model(path)
                self.assertNotIn("\n", str(caught.exception))
            for other in (folder, pathlib.Path(folder, "none.gguf")):
                with self.assertRaisesRegex(ValueError, folder):
                    headwater.Model(other)
        with self.assertRaisesRegex(ValueError, "projections is 'f8'"):
            headwater.Model(TINY, projections="f8")
        with self.assertRaises(ValueError):
            headwater.Model("a\0b")
        with self.assertRaises(TypeError):
            headwater.Model(None)

    def test_weights_that_are_not_finite(self):
        data = bytearray(pathlib.Path(TINY).read_bytes())
        data[-4:] = b"\xff\xff\xff\xff"  # NaN at the end of the last tensor
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "nan.gguf")
            path.write_bytes(data)
            model = headwater.Model(path)
            self.assertTrue(model.tokenize("a text"))
            with self.assertRaisesRegex(ValueError, "finite|NaN"):
                model.conversation(capacity=10)


class Command(unittest.TestCase):
    """python -m headwater"""

    def run_it(self, *arguments):
        done = subprocess.run([sys.executable, "-W", "error", "-m", "headwater", *arguments], capture_output=True, check=False,
                              env={**os.environ, "PYTHONPATH": str(pathlib.Path(headwater.__file__).parents[1])})
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def test_it_says_what_the_package_says(self):
        status, out, error = self.run_it("info")
        self.assertEqual((status, json.loads(out), error), (0, headwater.info(), ""))
        wanted = "".join(headwater.Model(TINY).generate(PROMPT, max_tokens=8)) + "\n"
        self.assertEqual(self.run_it("generate", "-m", TINY, "-p", PROMPT, "-n", "8"), (0, wanted, ""))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "prompt")
            path.write_bytes(b"\xef\xbb\xbf" + PROMPT.replace("\n", "\r\n").encode() + b"\r\n")
            self.assertEqual(self.run_it("generate", "-m", TINY, "-f", str(path), "-n", "8"), (0, wanted, ""))
            path.write_bytes(b"a\xff")
            status, out, error = self.run_it("generate", "-m", TINY, "-f", str(path))
            self.assertEqual((status, out), (2, ""))
            self.assertRegex(error, r"no UTF-8 at byte 1; allowed: ")
        status, out, error = self.run_it("--help")
        self.assertEqual((status, error), (0, ""))
        for command in ("info", "generate", "evaluate", "export"):
            self.assertIn(f"\n  {command} ", out)
            self.assertEqual(self.run_it(command, "--help")[0], 0)

    def test_what_is_wrong_is_one_line(self):
        for arguments, says in (((), "no command; allowed: info, "), (("inform",), "'inform' is not known; allowed: info, "),
                                (("info", "more"), "info: unrecognized arguments: more"),
                                (("generate", "-p", "a"), "generate: .*-m/--model"),
                                (("generate", "-m", "none.gguf", "-p", "a"), "none.gguf"),
                                (("generate", "-m", TINY, "-f", "none.txt"), "none.txt: No such file"),
                                (("generate", "-m", TINY, "-p", "a", "-n", "-1"), "max_tokens is -1; allowed: ")):
            status, out, error = self.run_it(*arguments)
            with self.subTest(arguments):
                self.assertEqual((status, out, error.count("\n")), (2, "", 1), error)
                self.assertRegex(error, f"^python -m headwater: .*{says}")


if __name__ == "__main__":
    unittest.main()
