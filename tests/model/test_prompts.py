"""What is typed for `headwater generate`: documents with questions, chats, escapes, limits; and `headwater tokenize`."""

import json
import os
import pathlib
import pty
import re
import subprocess
import tempfile
import unittest

from gguf_files import fixtures
from running import MODEL, PROGRAM, TEXT, TIMEOUT, Refusals, run

FIXTURES = fixtures()
SMALL = ["-ub", "64", "--h2o-local", "16", "--h2o-heavy", "16"]


def fixture(name):
    return str(FIXTURES / f"{name}.gguf")


def said(model, *arguments, program="generate", **more):
    result = run(program, "-m", model, *arguments, "--json", **more)
    if result.returncode != 0:
        raise AssertionError(result.stderr.decode())
    return json.loads(result.stdout)


def ids(model, text, *arguments):
    return said(model, "-p", text, *arguments, program="tokenize")["ids"]


class DocumentAndQuestion(unittest.TestCase):
    QUESTION = "ing the river"  # would merge with a word in front of it

    def both(self, model, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            document = f"{folder}/document.txt"
            pathlib.Path(document).write_text("the quick brown fox\n" * 8 + " the return", encoding="utf-8")
            text = pathlib.Path(document).read_text(encoding="utf-8")
            return text, said(model, "-f", document, "-p", self.QUESTION, "-n", "1", *SMALL, *arguments)

    def test_the_question_is_the_dense_tail(self):
        text, got = self.both(fixture("llama3"))
        question = ids(fixture("llama3"), self.QUESTION, "--no-bos")
        self.assertEqual(got["prompt_ids"], ids(fixture("llama3"), text) + question)
        self.assertEqual(got["effective"]["dense_tail"], len(question))
        self.assertTrue(got["steps"].endswith(f",d{len(question)}"), got["steps"])
        self.assertEqual(self.both(fixture("llama3"), "--dense-tail", "3")[1]["effective"]["dense_tail"], 3)
        self.assertEqual(self.both(fixture("llama3"), "--dense-tail", "0")[1]["effective"]["dense_tail"], 0)

    def test_no_space_comes_between(self):
        # A SentencePiece-style vocabulary puts a space in front of a text, but of the document alone.
        text, got = self.both(fixture("llama-linear"))
        pieces = said(fixture("llama-linear"), "-p", text, program="tokenize")["pieces"]
        whole = said(fixture("llama-linear"), "-p", text + self.QUESTION, program="tokenize")["pieces"]
        self.assertEqual(got["prompt_ids"][:len(pieces)], ids(fixture("llama-linear"), text))
        self.assertEqual(got["effective"]["dense_tail"], len(got["prompt_ids"]) - len(pieces))
        self.assertEqual("".join(pieces) + self.QUESTION, "".join(whole))
        alone = ids(fixture("llama-linear"), self.QUESTION, "--no-bos")
        self.assertNotEqual(got["prompt_ids"][len(pieces):], alone)

    def test_in_a_chat_both_are_one_message(self):
        text, got = self.both(fixture("qwen2-yarn"), "--chat", "--system", "Be terse.", "-c", "2000")
        front = f"<|im_start|>system\nBe terse.<|im_end|>\n<|im_start|>user\n{text}"
        tail = ids(fixture("qwen2-yarn"), self.QUESTION + "<|im_end|>\n<|im_start|>assistant\n")
        self.assertEqual(got["prompt_ids"], ids(fixture("qwen2-yarn"), front) + tail)
        self.assertEqual(got["effective"]["dense_tail"], len(tail))

    def test_a_document_from_standard_input(self):
        got = said(MODEL, "-f", "-", "-p", "def ", "-n", "1", input=b"import os\n")
        self.assertEqual(got["prompt_ids"], ids(MODEL, "import os\n") + ids(MODEL, "def "))


class Typed(Refusals):
    def test_bos_twice_is_warned_of(self):
        model = fixture("llama3")
        bos = said(model, "-p", "", program="tokenize")["pieces"][0]
        for program, more in (("tokenize", ()), ("generate", ("-n", "0"))):
            with self.subTest(program):
                for text, twice in ((bos + "a", True), ("a", False), ("a" + bos, False)):
                    warnings = said(model, "-p", text, *more, program=program)["warnings"]
                    self.assertEqual(any("--no-bos" in warning for warning in warnings), twice, warnings)
                    warnings = said(model, "-p", text, "--no-bos", *more, program=program)["warnings"]
                    self.assertEqual(any("--no-bos" in warning for warning in warnings), False, warnings)
        with_it, without = (said(model, "-p", "a", "-n", "0", *more)["prompt_tokens"] for more in ((), ("--no-bos",)))
        self.assertEqual(with_it, without + 1)
        self.refused("-m", model, "-p", "x", "--chat", "--no-bos", names="--no-bos and --chat")

    def test_prompt_ids_are_those_of_tokenize(self):
        for model in (MODEL, fixture("llama-linear"), fixture("llama3")):
            got = said(model, "-p", "the quick\n fox", "-n", "0")
            self.assertEqual(got["prompt_ids"], ids(model, "the quick\n fox"))
            self.assertEqual(got["prompt_tokens"], len(got["prompt_ids"]))

    def test_a_system_message(self):
        got = said(fixture("llama3"), "-p", "hi", "--chat", "--system", " be kind ", "-n", "0")
        header = "<|start_header_id|>{}<|end_header_id|>\n\n"
        self.assertEqual(got["prompt_ids"], ids(fixture("llama3"), header.format("system") + "be kind<|eot_id|>" + header.format(
            "user") + "hi<|eot_id|>" + header.format("assistant")))

    def test_escapes(self):
        for typed, meant in ((r"a\nb\tc\\n\"\'\r", "a\nb\tc\\n\"'\r"), (r"\x41\xc3\xa9", "Aé"),
                             (r"\q\x4\xzz\x4", r"\q\x4\xzz\x4"), ("\\", "\\"), (r"end\x", r"end\x")):
            wanted = ids(MODEL, meant)
            self.assertEqual(ids(MODEL, typed, "-e"), wanted, typed)
            self.assertEqual(said(MODEL, "-p", typed, "-e", "-n", "0")["prompt_ids"], wanted, typed)
            self.assertEqual(said(MODEL, "-p", typed, "-n", "0")["prompt_ids"], ids(MODEL, typed), typed)
        chat = ["-p", "x", "--chat", "-n", "0", "--system"]
        self.assertEqual(said(fixture("llama3"), *chat, r"a\nb", "-e")["prompt_ids"],
                         said(fixture("llama3"), *chat, "a\nb")["prompt_ids"])

    def test_without_a_limit_the_context_is_filled(self):
        got = said(MODEL, "-p", "x = [", "-n", "-1", "-c", "40")
        self.assertEqual(got["prompt_tokens"] + got["generated_tokens"], 41)  # the last one need not be stored
        self.assertEqual(got["warnings"], [])
        self.assertEqual(said(MODEL, "-p", "x = [", "-n", "36", "-c", "40")["ids"], got["ids"][:36])

    def test_a_context_of_0_is_that_of_the_model(self):
        wanted = said(MODEL, "-p", "import", "-n", "3")
        got = said(MODEL, "-p", "import", "-n", "3", "-c", "0")
        self.assertEqual((got["ids"], got["warnings"]), (wanted["ids"], []))
        long = run("generate", "-m", fixture("llama3"), "-f", TEXT, "-c", "0")
        self.assertEqual(long.returncode, 2)
        self.assertIn(b"but the context 256 (of the model)", long.stderr)

    def test_what_asks_for_draws_gets_them(self):
        greedy = said(MODEL, "-p", "def ", "-n", "12")["ids"]
        for flags in (["--top-k", "40"], ["--top-p", "0.99"], ["--min-p", "0.001"], ["--seed", "1"]):
            drawn = said(MODEL, "-p", "def ", "-n", "12", *flags)["ids"]
            self.assertEqual(drawn, said(MODEL, "-p", "def ", "-n", "12", "--temp", "1", *flags)["ids"])
            self.assertNotEqual(drawn, greedy)
        got = said(MODEL, "-p", "def ", "-n", "12", "--temp", "0", "--top-k", "40")
        self.assertEqual(got["ids"], greedy)
        self.assertIn("--top-k", got["warnings"][0])
        self.assertEqual(said(MODEL, "-p", "def ", "-n", "12", "--temp", "0")["warnings"], [])


    def test_quiet_leaves_the_text_alone(self):
        for flags in (["-p", "import os\n"], ["-p", "import os\n", "--compare"], ["-p", "import os\n", "--interactive"]):
            loud = run("generate", "-m", MODEL, "-n", "4", "-c", "60", *flags, input=b"import re\n")
            got = run("generate", "-m", MODEL, "-n", "4", "-c", "60", *flags, "--quiet", input=b"import re\n")
            self.assertEqual((got.returncode, got.stdout, got.stderr), (0, loud.stdout, b""))
            self.assertIn(b"tokens", loud.stderr)
        got = run("generate", "-m", MODEL, "-n", "4", "-c", "60", "-p", b"import \xff\n", "--quiet")
        self.assertRegex(got.stderr, b"^warning: [^\n]*\n$")


class Warnings(unittest.TestCase):
    """They come before the work: on one stream with the result they stand in front of it."""

    def lines(self, program, *arguments, **more):
        result = subprocess.run([PROGRAM, program, "-m", MODEL, *arguments], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, timeout=TIMEOUT, **more)
        self.assertEqual(result.returncode, 0, result.stdout)
        lines = result.stdout.decode().splitlines()
        first = [line.startswith("warning: ") for line in lines]
        self.assertTrue(first[0], lines)
        self.assertNotIn(True, first[first.index(False):], lines)
        return lines[:first.index(False)]

    def test_every_command(self):
        clamped = ["-ub", "16", "--h2o-local", "16", "--h2o-heavy", "16"]
        bad = {"input": b"import os \xff\n" + b"import sys\n" * 40}
        self.assertIn("byte 10 is not UTF-8", self.lines("generate", "-f", "-", "-n", "2", *clamped, **bad)[0])
        self.lines("generate", "-f", "-", "-n", "2", "--compare", *clamped, **bad)
        self.assertEqual(len(self.lines("perplexity", "-f", "-", "--window", "50", "--decode", "5", *clamped, **bad)), 3)
        self.assertGreater(len(self.lines("retrieval", "-f", "-", "--prompts", "1", "--depths", "50", "--window", "200",
                                          *clamped, **bad)), 1)
        self.assertEqual(len(self.lines("tokenize", "-f", "-", **bad)), 1)
        with tempfile.TemporaryDirectory() as folder:
            self.assertGreater(len(self.lines("atlas", "-f", "-", "-o", f"{folder}/page.html", *clamped, **bad)), 1)

    def test_typed_texts(self):
        self.assertIn("-p (--prompt): byte 2 is not UTF-8", self.lines("generate", "-p", b"ab\xffc\xff", "-n", "1")[0])
        self.assertEqual(len(self.lines("generate", "-e", "-p", r"ab\xff\xff", "-n", "1")), 1)
        result = run("generate", "-m", fixture("llama3"), "--chat", "-p", "x", "--system", b"\x80", "-n", "1")
        self.assertIn(b"warning: --system: byte 0 is not UTF-8", result.stderr)


class Terminal(unittest.TestCase):
    def test_control_characters_do_not_reach_a_terminal(self):
        # Random weights, drawn at a high temperature: bytes of every kind.
        flags = ["-m", fixture("qwen2-yarn"), "-p", "the", "-n", "200", "--temp", "100", "--seed", "5"]
        raw = json.loads(run("generate", *flags, "--json").stdout)["text"]
        self.assertRegex(raw, "[\x00-\x08\x0b-\x1f\x7f]")
        self.assertEqual(run("generate", *flags).stdout.decode(), raw + "\n")
        ours, theirs = pty.openpty()
        process = subprocess.Popen([PROGRAM, "generate", *flags], stdout=theirs, stderr=subprocess.DEVNULL)
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other side has been closed
                break
            if not part:
                break
            shown += part
        os.close(ours)
        self.assertEqual(process.wait(TIMEOUT), 0)
        wanted = re.sub("[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda c: "".join(f"\\x{byte:02x}" for byte in c[0].encode()), raw)
        self.assertEqual(shown.decode().replace("\r\n", "\n"), wanted + "\n")


class Tokenize(unittest.TestCase):
    def test_ids_and_pieces(self):
        got = said(MODEL, "-p", "import os\n", program="tokenize")
        self.assertEqual("".join(got["pieces"]), "import os\n")
        self.assertEqual(got["tokens"], len(got["ids"]))
        shown = run("tokenize", "-m", MODEL, "-p", "import os\n").stdout.decode().splitlines()
        self.assertEqual([int(line.split("  '")[0]) for line in shown], got["ids"])
        self.assertTrue(shown[-1].endswith(r"\x0a'"), shown)
        read = run("tokenize", "-m", MODEL, "-f", "-", "--json", input=b"import os\n\n")
        self.assertEqual(json.loads(read.stdout), got)
        self.assertEqual(run("tokenize", "-m", MODEL, "-p", "").stdout, b"")

    def test_texts_on_each_side_of_what_one_read_takes(self):
        lines = "".join(f"value_{i} = {i * i}\n" for i in range(12_000)).encode()
        with tempfile.TemporaryDirectory() as folder:
            for size in (65_535, 65_536, 65_537, 200_001):
                path = pathlib.Path(folder) / "long.txt"
                path.write_bytes(lines[:size])
                for source, more in ((str(path), {}), ("-", {"input": lines[:size]})):
                    got = said(MODEL, "-f", source, program="tokenize", **more)
                    self.assertEqual("".join(got["pieces"]).encode(), lines[:size].removesuffix(b"\n"), (source, size))

    def test_files_as_editors_and_other_systems_write_them(self):
        for data, text in ((b"\xef\xbb\xbfdef f():\r\n  pass\r\n", "def f():\n  pass"), (b"a\n\n", "a\n"), (b"a\rb\r", "a\rb\r"),
                           (b"a\r\r\n", "a\r"), (b"x\xef\xbb\xbf\n", "x\ufeff"), (b"\r\n\r\na", "\n\na")):
            self.assertEqual(said(MODEL, "-f", "-", program="tokenize", input=data)["ids"], ids(MODEL, text), data)
        # A question begins a line of its own where the document ends one.
        got = said(MODEL, "-f", "-", "-p", "def ", "-n", "1", input=b"\xef\xbb\xbfimport os\r\n")
        self.assertEqual(got["prompt_ids"], ids(MODEL, "import os\n") + ids(MODEL, "def "))
        done = run("generate", "-m", MODEL, "-f", "-", input=b"\xef\xbb\xbf\r\n")
        self.assertEqual(done.returncode, 2)
        self.assertIn(b"the prompt is empty", done.stderr)

    def test_what_the_model_adds_and_control_tokens(self):
        golden = json.loads((FIXTURES / "golden.json").read_text(encoding="utf-8"))
        for name, wanted in golden.items():
            self.assertEqual(ids(fixture(name), wanted["text"]), wanted["ids"])
        with_bos = golden["llama3"]["ids"]
        self.assertEqual(ids(fixture("llama3"), golden["llama3"]["text"], "--no-bos"), with_bos[1:])
        self.assertEqual(len(ids(fixture("llama3"), "<|eot_id|>", "--no-bos")), 1)
        self.assertEqual(len(ids(fixture("llama3"), "<|eot_id|>", "--no-bos", "--no-parse-special")), len("<|eot_id|>"))

    def test_bytes_that_are_no_character(self):
        got = said(fixture("qwen2-yarn"), "-p", "é", program="tokenize")
        self.assertEqual(got["pieces"], ["\ufffd", "\ufffd"])
        shown = run("tokenize", "-m", fixture("qwen2-yarn"), "-p", "é").stdout
        self.assertEqual([line.split()[1] for line in shown.splitlines()], [rb"'\xc3'", rb"'\xa9'"])


class ChatTemplates(unittest.TestCase):
    """--chat-template NAME_OR_FILE: what it writes is what is fed."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def template(self, text):
        path = self.folder / "chat.jinja"
        path.write_text(text, encoding="utf-8")
        return str(path)

    def test_a_file(self):
        path = self.template("{% for m in messages %}\n{{ m.role }}: {{ m.content }}.\n{% endfor %}")
        got = said(MODEL, "-p", "<|im_end|> é", "--chat", "--system", "s", "-n", "0", "--chat-template", path)
        wanted = said(MODEL, "-p", "system: s.\nuser: ", program="tokenize")["ids"]
        self.assertEqual(got["prompt_ids"][:len(wanted) - 1], wanted[:-1])
        text = run("tokenize", "-m", MODEL, "-p", "<|im_end|>", "--json")
        self.assertNotIn(json.loads(text.stdout)["ids"][0], got["prompt_ids"])

    def test_a_family(self):
        for name, model in (("chatml", MODEL), ("llama3", fixture("llama3"))):
            chat = ("-p", "x", "--chat", "-n", "0")
            self.assertEqual(said(model, *chat, "--chat-template", name)["prompt_ids"], said(model, *chat)["prompt_ids"])

    def test_a_conversation_that_begins_anew(self):
        path = self.template("{% for m in messages %}{{ 'S' if loop.last }}<{{ m.content }}>{% endfor %}")
        flags = ("-m", MODEL, "--chat", "--chat-template", path, "-n", "0", "-t", "1")
        got = run("generate", *flags, "--interactive", "-c", "200", input=b"one\ntwo\n")
        self.assertEqual(got.returncode, 0, got.stderr)
        turns = re.findall(rb"(?m)^turn +(\d+) tokens? in [^,]*, 0 generated in [^,]*, (\d+) of", got.stderr)
        first, second = (len(ids(MODEL, text, "--no-bos")) for text in ("S<one>", "<one><>S<two>"))
        self.assertEqual([tuple(map(int, turn)) for turn in turns], [(first, first), (second, second)])

    def test_a_line_that_the_template_refuses_is_left_out(self):
        path = self.template("{{ raise_exception('too many') if messages|length > 1 }}{{ messages[0].content }}")
        got = run("generate", "-m", MODEL, "--chat", "--chat-template", path, "-n", "1", "--interactive", "-c", "200",
                  input=b"one\ntwo\n")
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertIn(b"this line is left out: chat template: line 1: the template refuses the conversation: 'too many'",
                      got.stderr)

    def test_refused(self):
        chat = ("generate", "-m", MODEL, "-p", "x", "--chat", "--chat-template")
        for value, says in ((self.template("a\n{% x %}"), "line 2: statement 'x' is not known"), ("llama3", "<|begin_of_text|>"),
                            (f"{self.folder}/none", "none"), (str(self.folder), "directory")):
            result = run(*chat, value)
            with self.subTest(value):
                self.assertEqual((result.returncode, result.stdout, result.stderr.count(b"\n")), (2, b"", 1), result.stderr)
                self.assertIn(says, result.stderr.decode())
        result = run(*chat, self.template(""))
        self.assertEqual((result.returncode, result.stderr.count(b"\n")), (2, 1))
        self.assertIn(b"the file is empty", result.stderr)
        result = run("generate", "-m", MODEL, "--chat", "--requests", "-", "--chat-template",
                     self.template("{{ 1 // (messages[0].content|length - 1) }}"), input=b'{"prompt": "xy"}\n{"prompt": "x"}\n')
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn(b"--requests '-', line 2: chat template: line 1: a division by 0", result.stderr)


class Refuses(Refusals):
    def test_prompts(self):
        with tempfile.TemporaryDirectory() as folder:
            empty = f"{folder}/empty.txt"
            pathlib.Path(empty).touch()
            self.refused("-m", MODEL, "-f", empty, "-p", "x", names="-f (--file): the prompt is empty")
            self.refused("-m", MODEL, "-f", TEXT, "-p", "", names="-p (--prompt): the prompt is empty")
            self.refused("-m", MODEL, "-f", folder, "-p", "x", names="directory")
        self.refused("-m", MODEL, "-f", "", "-p", "x", names="-f")
        self.refused("-m", MODEL, "-f", TEXT, "-p", "x", "-c", "4278", names="4279 tokens")

    def test_flags(self):
        for value in ("-2", "-1x", "--1", "1.5", "", "-0", "99999999999999999999"):
            self.refused("-m", MODEL, "-p", "x", f"--predict={value}", names="-n (--predict)")
        for value in ("-1", "", "x", "0x10", "99999999999"):
            self.refused("-m", MODEL, "-p", "x", f"--ctx-size={value}", names="-c (--ctx-size)")
        self.refused("-m", MODEL, "-p", "x", "--system", "y", names="--system is given without --chat")
        self.refused("-m", MODEL, "-p", "x", "--chat-template", "chatml", names="--chat-template is given without --chat")
        self.refused("-m", fixture("llama3"), "-p", "x", "--chat", "--system", "", names="--system")

    def test_tokenize(self):
        def refused(*arguments, names, **more):
            self.refused(*arguments, names=names, program="tokenize", **more)

        refused("-p", "x", names="--model")
        refused("-m", MODEL, names="text is missing")
        refused("-m", MODEL, "-p", "x", "-f", TEXT, names="-p and -f")
        refused("-m", "", "-p", "x", names="-m")
        refused("-m", MODEL, "-f", "", names="-f")
        refused("-m", MODEL, "-f", "/", names="directory")
        refused("-m", f"{MODEL}.none", "-p", "x", names=".none")
        refused("-m", TEXT, "-p", "x", names="eval-4k.txt")
        refused("-m", MODEL, "-p", "x", "--engine", "cpu", names="--engine")
        with tempfile.TemporaryDirectory() as folder:
            cut = f"{folder}/cut.gguf"
            whole = pathlib.Path(MODEL).read_bytes()
            for length in (0, 100, 50000):
                pathlib.Path(cut).write_bytes(whole[:length])
                refused("-m", cut, "-p", "x", names="cut.gguf")


if __name__ == "__main__":
    unittest.main()
