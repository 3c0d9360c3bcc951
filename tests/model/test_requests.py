"""`headwater generate --requests`: many prompts at a time, each answered as alone."""

import json
import pathlib
import signal
import subprocess
import tempfile
import unittest

from running import MODEL, PROGRAM, TEXT, TIMEOUT, Refusals, run

WORDS = pathlib.Path(TEXT).read_text(encoding="utf-8")
SMALL = ("-ub", "128", "--h2o-local", "16", "--h2o-heavy", "48")
DRAWS = ("--temp", "0.8", "--top-k", "30")


def lines_of(requests):
    return "".join(json.dumps(request) + "\n" for request in requests).encode()


def answers(requests, *flags, code=0):
    done = run("generate", "-m", MODEL, "--requests", "-", "-t", "1", "--quiet", *SMALL, *flags, input=lines_of(requests))
    if done.returncode != code:
        raise AssertionError(done.stderr.decode())
    return [json.loads(line) for line in done.stdout.decode().splitlines()]


class Requests(unittest.TestCase):
    def test_each_has_the_answer_that_it_has_alone(self):
        """Prompts of one token to several chunks, lengths, seeds and questions; slots of 1, 3, 16 and more than requests."""
        requests = [{"prompt": WORDS[200 * i:200 * i + size], "max_tokens": most} for i, (size, most) in enumerate(
            ((1, 5), (2000, 17), (300, 1), (900, 30), (40, 0), (1500, 9), (60, 33), (700, 12), (5, 2), (2500, 4),
             (80, 21), (90, 3), (100, 8), (110, 13), (120, 6), (130, 40), (140, 7), (150, 10)))]
        requests[3]["question"] = "\n# What does it return?\n"
        requests[5]["seed"] = 7
        requests[7]["id"], requests[8]["id"] = "seven", 2**63 - 1
        got = {slots: answers(requests, "--slots", slots, *DRAWS, "--seed", "3") for slots in ("1", "3", "16")}
        self.assertEqual(got["3"], got["1"])
        self.assertEqual(got["16"], got["1"])
        self.assertEqual([one["id"] for one in got["1"]], [*range(1, 8), "seven", 2**63 - 1, *range(10, 19)])
        for request, answer in zip(requests, got["1"]):
            with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as file:
                # An editor's line end, which a file loses where no question follows.
                file.write(request["prompt"] + ("" if "question" in request else "\n"))
                file.flush()
                alone = ["-f", file.name, *SMALL, *DRAWS, "--seed", str(request.get("seed", 3))]
                if "question" in request:
                    alone += ["-p", request["question"]]
                done = run("generate", "-m", MODEL, "-t", "1", "-n", str(request["max_tokens"]), "--json", *alone)
                self.assertEqual(done.returncode, 0, done.stderr)
                wanted = json.loads(done.stdout)
                self.assertEqual({key: answer[key] for key in ("text", "prompt_tokens", "generated_tokens")},
                                 {key: wanted[key] for key in ("text", "prompt_tokens", "generated_tokens")}, request)

    def test_three_hundred(self):
        """The longest last, which decides how much is stored; each has the answer that it has in another order."""
        requests = [{"prompt": WORDS[3 * i:3 * i + 1 + i % 7], "max_tokens": 1 + i % 3, "seed": i} for i in range(1, 301)]
        requests[-1]["prompt"] = WORDS[:1500]
        flags = ("--slots", "16", "--temp", "2")
        got = answers(requests, *flags)
        self.assertEqual([one["id"] for one in got], list(range(1, 301)))
        self.assertGreater(got[-1]["prompt_tokens"], 400)
        self.assertGreater(len({one["text"] for one in got}), 100)
        backwards = [{"id": i + 1, **request} for i, request in enumerate(requests)][::-1]
        self.assertEqual(answers(backwards, *flags), got[::-1])

    def test_seeds_beyond_32_bits(self):
        requests = [{"prompt": "def f(", "max_tokens": 20, "seed": seed} for seed in (5, 5 + 2**32, 5 + 2**33, 5)]
        texts = [one["text"] for one in answers(requests, "--temp", "2")]
        self.assertEqual(texts[0], texts[3])
        self.assertEqual(len(set(texts)), 3)

    def test_how_they_end(self):
        """By the number of tokens, and by a full context, which is that of each and not that of the longest."""
        long, short = {"prompt": WORDS[:1200], "max_tokens": -1}, {"prompt": WORDS[:300], "max_tokens": 4}
        got = answers([long, short], "-c", "400")
        self.assertEqual([one["end"] for one in got], ["context", "max_tokens"])
        self.assertEqual(got[0]["prompt_tokens"] + got[0]["generated_tokens"] - 1, 400)
        self.assertEqual(got[1]["generated_tokens"], 4)

    def test_defaults_blank_lines_and_a_last_line_without_an_end(self):
        text = b'\n{"prompt": "def f("}\r\n   \n{"prompt": "caf\\u00e9 \\ud83d\\ude00"}'
        done = run("generate", "-m", MODEL, "--requests", "-", "-n", "3", "-t", "1", input=text)
        self.assertEqual(done.returncode, 0, done.stderr)
        got = [json.loads(line) for line in done.stdout.decode().splitlines()]
        self.assertEqual([(one["id"], one["generated_tokens"]) for one in got], [(2, 3), (4, 3)])
        self.assertIn("requests 2 of 2, 2 at a time", done.stderr.decode())

    def test_a_chat(self):
        chat = ("--chat", "--system", "You are brief.")
        got, = answers([{"prompt": "Hi", "max_tokens": 5}], *chat)
        done = run("generate", "-m", MODEL, "-p", "Hi", "-n", "5", "-t", "1", "--json", *SMALL, *chat)
        self.assertEqual(got["text"], json.loads(done.stdout)["text"])
        self.assertEqual(got["prompt_tokens"], json.loads(done.stdout)["prompt_tokens"])
        self.assertGreater(got["prompt_tokens"], 10)

    def test_an_interrupt_ends_it_with_what_was_done(self):
        requests = [{"prompt": WORDS[:200], "max_tokens": 2}] + [{"prompt": WORDS, "max_tokens": 400}] * 3
        with tempfile.NamedTemporaryFile("wb") as file:
            file.write(lines_of(requests))
            file.flush()
            process = subprocess.Popen([PROGRAM, "generate", "-m", MODEL, "--requests", file.name, "-t", "1", "--slots", "2"],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
            first = process.stdout.readline()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=TIMEOUT)
        self.assertEqual(json.loads(first)["id"], 1)
        self.assertEqual(process.returncode, 130, err)
        self.assertEqual(out, b"")
        self.assertIn("requests 1 of 4", err.decode())


class BadRequests(Refusals):
    def test_lines(self):
        good = b'{"prompt": "def f("}\n'
        deep = b"[" * 200000 + b"]" * 200000
        for line, names in ((b"hello", "line 2: it is no JSON object"), (b"[1]", "line 2: it is no JSON object"),
                            (b'{"prompt": "x"', "line 2: it is no JSON object"), (b'{"prompt": "\xff"}', "UTF-8"),
                            (b"[" * 100000, "line 2: it is no JSON object"), (b"{}", "'prompt' is missing"),
                            (b'{"prompt": ""}', "'prompt' is no text"), (b'{"prompt": 3}', "'prompt' is no text"),
                            (b'{"prompt": "x", "question": null}', "'question' is no text"),
                            (b'{"prompt": "x", "n": 3}', "'n' is not known"),
                            (b'{"prompt": "x", "max_tokens": -2}', "'max_tokens' is -2; allowed: integers, -1 .. 2147483647"),
                            (b'{"prompt": "x", "max_tokens": 2147483648}', "'max_tokens'"),
                            (b'{"prompt": "x", "max_tokens": 18446744073709551615}', "'max_tokens'"),
                            (b'{"prompt": "x", "max_tokens": 1e3}', "'max_tokens' is 1000.0"),
                            (b'{"prompt": "x", "max_tokens": "3"}', "'max_tokens' is of type string"),
                            (b'{"prompt": "x", "seed": %s}' % deep, "'seed' is of type array"),
                            (b'{"prompt": "x", "id": %s}' % deep, "'id' is no text and no integer"),
                            (b'{"prompt": "x", "other": %s}' % deep, "'other' is not known"),
                            (b'{"prompt": "x", "seed": -1}', "'seed'"), (b'{"prompt": "x", "seed": 4611686018427387905}', "'seed'"),
                            (b'{"prompt": "x", "id": [1]}', "'id' is no text and no integer"),
                            (json.dumps({"prompt": WORDS}).encode(), "line 2: the prompt has")):
            with self.subTest(line[:60]):
                more = ("-c", "100") if b"the prompt has" in names.encode() else ()
                self.refused("-m", MODEL, "--requests", "-", *more, names=names, input=b"\n" + line + b"\n")
                done = run("generate", "-m", MODEL, "--requests", "-", "-n", "1", *more, input=good + line + b"\n" + good)
                self.refused_some(done, names, [False, True, False])

    def refused_some(self, done, names, refused):
        """One line says which; every request has an answer, in the order of the file."""
        self.assertEqual(done.returncode, 2, done.stderr)
        lines = [line for line in done.stderr.decode().splitlines() if line.startswith("headwater")]
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertIn(names, lines[0])
        answers_of = [json.loads(line) for line in done.stdout.decode().splitlines()]
        self.assertEqual(["error" in answer for answer in answers_of], refused)
        self.assertEqual([answer["id"] for answer in answers_of], list(range(1, len(refused) + 1)))

    def test_the_first_and_the_last_line_of_many(self):
        good = b'{"prompt": "def f(", "max_tokens": 1}\n'
        done = run("generate", "-m", MODEL, "--requests", "-", "--quiet", input=good * 30 + b"[1]\n")
        self.refused_some(done, "line 31: it is no JSON object", [False] * 30 + [True])
        done = run("generate", "-m", MODEL, "--requests", "-", "--quiet", "--slots", "2", input=b"[1]\n" + good + b"[2]\n[3]\n" + good)
        self.refused_some(done, "line 1: it is no JSON object in UTF-8", [True, False, True, True, False])
        self.assertIn(b"and 2 more of 5 requests", done.stderr)

    def test_files_and_flags(self):
        self.refused("-m", MODEL, "--requests", "/nowhere/file", names="--requests")
        self.refused("-m", MODEL, "--requests", "-", names="no line holds a request", input=b"\n \n")
        for flags in (("-p", "x"), ("-f", TEXT), ("--interactive",), ("--json",), ("--compare",), ("--dump-qkv", "0", "/tmp/x")):
            self.refused("-m", MODEL, "--requests", "-", *flags, names="--requests does not go with", input=b"")
        self.refused("-m", MODEL, "-p", "x", "--slots", "2", names="--slots is given without --requests")
        for slots in ("0", "17", "-1", "two"):
            self.refused("-m", MODEL, "--requests", "-", "--slots", slots, names="--slots", input=b"")

    def test_memory_is_asked_for_all_slots(self):
        requests = lines_of([{"prompt": "x", "max_tokens": -1}] * 16)
        self.refused("-m", MODEL, "--requests", "-", "-c", "2000000000", "--slots", "16",
                     names="of cache for 16 times 2000000000 tokens", input=requests)

    def test_output_that_cannot_be_written(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([PROGRAM, "generate", "-m", MODEL, "--requests", "-", "-t", "1", "--quiet"], stdout=full,
                                  stderr=subprocess.PIPE, timeout=TIMEOUT, input=b'{"prompt": "x", "max_tokens": 1}\n', check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("standard output", done.stderr.decode())


if __name__ == "__main__":
    unittest.main()
