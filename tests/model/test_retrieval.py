"""`headwater retrieval`, as a user runs it on the bundled model."""

import json
import os
import pathlib
import re
import tempfile
import unittest

from running import MODEL, TEXT, Refusals, run

# The question is in another chunk than most codes, and the memory set is too small to hold them.
SMALL = ["--window", "700", "-ub", "64", "--h2o-local", "16", "--h2o-heavy", "16"]
SOURCE = pathlib.Path(__file__).parents[2] / "cli" / "commands" / "retrieval" / "haystack.cpp"  # the names that codes get
RATES = ("first", "answer")


def retrieval(*arguments):
    result = run("retrieval", "-m", MODEL, "-f", TEXT, "--json", *arguments)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def count_tokens(text):
    result = run("tokenize", "-m", MODEL, "-f", "-", "--no-parse-special", "--json", input=text.encode())
    assert result.returncode == 0, result.stderr
    return len(json.loads(result.stdout)["ids"])


class Words:
    """C++'s std::mt19937_64 after a std::seed_seq of 32-bit words, by their definitions in the standard."""

    def __init__(self, words):
        state = self.spread([word & 0xFFFFFFFF for word in words], 624)
        self.state = [state[2 * i] | state[2 * i + 1] << 32 for i in range(312)]
        self.at = 312

    @staticmethod
    def spread(words, n):
        mask, s = 0xFFFFFFFF, len(words)
        t = 11 if n >= 623 else 7
        p = (n - t) // 2
        q, m = p + t, max(s + 1, n)
        out = [0x8B8B8B8B] * n

        def mixed(x):
            return x ^ x >> 27

        for k in range(m):
            r = 1664525 * mixed(out[k % n] ^ out[(k + p) % n] ^ out[(k - 1) % n]) & mask
            add = s if k == 0 else k % n + (words[k - 1] if k <= s else 0)
            out[(k + p) % n] = out[(k + p) % n] + r & mask
            out[(k + q) % n] = out[(k + q) % n] + r + add & mask
            out[k % n] = r + add & mask
        for k in range(m, m + n):
            r = 1566083941 * mixed(out[k % n] + out[(k + p) % n] + out[(k - 1) % n] & mask) & mask
            out[(k + p) % n] ^= r
            out[(k + q) % n] ^= r - k % n & mask
            out[k % n] = r - k % n & mask
        return out

    def word(self):
        if self.at == 312:
            for i in range(312):
                y = self.state[i] & 0xFFFFFFFF80000000 | self.state[(i + 1) % 312] & 0x7FFFFFFF
                self.state[i] = self.state[(i + 156) % 312] ^ y >> 1 ^ (0xB5026F5AA96619E9 if y & 1 else 0)
            self.at = 0
        y = self.state[self.at]
        self.at += 1
        y ^= y >> 29 & 0x5555555555555555
        y ^= y << 17 & 0x71D67FFFEDA60000
        y ^= y << 37 & 0xFFF7EEE000000000
        return y ^ y >> 43

    def below(self, n):
        most = 2**64 - 1 - (2**64 - 1) % n
        while (value := self.word()) >= most:
            pass
        return value % n

    def shuffled(self, n):
        order = list(range(n))
        for i in range(n - 1):
            j = i + self.below(n - i)
            order[i], order[j] = order[j], order[i]
        return order


def prompt_text(lines, seed, depths, count, needle="# REGISTRY: the code of {name} is {code}"):
    """The first prompt with `count` lines, and its code; its codes stand before the lines or after."""
    names = re.search(r"kNames = \{([^}]*)\}", SOURCE.read_text(encoding="utf-8")).group(1)
    names = re.findall(r'"(\w+)"', names)
    words = Words([seed, seed >> 32, 0])
    order = words.shuffled(len(names))
    needles = [(names[order[i]], str(10_000 + words.below(90_000))) for i in range(len(depths))]
    first = words.word() % len(lines)
    codes = [needle.format(name=name, code=code) + "\n" for name, code in needles]
    text = "".join(code for code, depth in zip(codes, depths) if depth == "0")
    text += "".join(lines[(first + i) % len(lines)] for i in range(count))
    text += "".join(code for code, depth in zip(codes, depths) if depth == "100")
    return text + f"# QUERY: the code of {needles[0][0]} is ", needles[0][1]


class Retrieval(unittest.TestCase):
    def check_sums(self, got, prompts, depths):
        self.assertEqual(got["prompts"], prompts)
        self.assertEqual([entry["depth"] for entry in got["depths"]], depths)
        counts = [entry["prompts"] for entry in got["depths"]]
        self.assertEqual(sum(counts), prompts)
        self.assertLessEqual(max(counts) - min(counts), 1)
        for mode in ("dense", "sparse"):
            for rate in RATES:
                found = got[mode][rate]
                of_depths = sum(entry[mode][rate]["rate"] * count for entry, count in zip(got["depths"], counts))
                self.assertAlmostEqual(found["rate"], of_depths / prompts)
                self.assertLessEqual(found["low"], found["rate"])
                self.assertGreaterEqual(found["high"], found["rate"])
            self.assertLessEqual(got[mode]["answer"]["rate"], got[mode]["first"]["rate"])
        for rate in RATES:
            self.assertAlmostEqual(got["difference"][rate]["rate"], got["sparse"][rate]["rate"] - got["dense"][rate]["rate"])

    def test_the_question_inside_the_sparse_prefill_or_after_it(self):
        flags = [*SMALL, "--depths", "0,30,60", "--prompts", "16"]
        inside = retrieval(*flags)
        self.check_sums(inside, 16, [0, 30, 60])
        self.assertEqual(inside["ask"], "prefill")
        self.assertGreaterEqual(inside["dense"]["answer"]["rate"], 0.8)
        self.assertLessEqual(inside["sparse"]["answer"]["rate"], 0.3)
        after = retrieval(*flags, "--ask", "tail")
        self.check_sums(after, 16, [0, 30, 60])
        self.assertEqual(after["ask"], "tail")
        for rate in RATES:
            self.assertAlmostEqual(after["sparse"][rate]["rate"], after["dense"][rate]["rate"], delta=0.1)
        self.assertEqual(after["dense"], inside["dense"])  # the same prompts
        for got in (inside, after):
            self.assertLessEqual(got["prompt_tokens"], 700)
            self.assertGreater(got["prompt_tokens"], 600)
            self.assertLess(got["question_tokens"], 20)

    def test_answers_are_those_of_generate(self):
        with open(TEXT, encoding="utf-8", newline="") as file:
            lines = [line + "\n" for line in file.read().removesuffix("\n").split("\n")]
        found = set()
        # Where the text says 1 before the code 11115, four tokens are right and the last is wrong: so says dense attention,
        # and on every processor a memory set that holds the code whole.
        wrong = "# REGISTRY: the code of {name} is 1{code}"
        self.assertEqual(prompt_text(lines, 19149, ["0"], 1)[1], "11115")
        h2o, blocks = ["--select", "h2o"], ["--select", "blocks", "--query-block", "16"]
        for seed, rule, needle in ((0, h2o, None), (1, ["--select", "window"], None), (2, h2o, None), (3, blocks, None),
                                   (19149, [*blocks, "--h2o-heavy", "64"], wrong)):
            texts = {} if needle is None else {"needle": needle}
            flags = [*SMALL[2:], *rule]
            got = retrieval("--window", "500", *flags, "--depths", "0", "--prompts", "1", "--seed", str(seed),
                            *([] if needle is None else ["--needle", needle]))
            low, high = 0, 500
            while high - low > 1:
                middle = (low + high) // 2
                more = count_tokens(prompt_text(lines, seed, ["0"], middle, **texts)[0]) > got["prompt_tokens"]
                low, high = (low, middle) if more else (middle, high)
            prompt, code = prompt_text(lines, seed, ["0"], low, **texts)
            said = run("generate", "-m", MODEL, "-f", "-", "-n", "5", "--dense-tail", "0", "--json", *flags,
                       input=prompt.encode())
            self.assertEqual(said.returncode, 0, said.stderr)
            text, sparse = json.loads(said.stdout)["text"], got["sparse"]
            rates = sparse["first"]["rate"], sparse["answer"]["rate"]
            self.assertEqual(rates, (float(text[:1] == code[0]), float(text == code)), (seed, rule, text, code))
            found.add(rates)
        self.assertEqual(found, {(0, 0), (1, 0), (1, 1)}, "not all kinds of answers were seen")

    def test_each_depth_is_asked_for(self):
        flags = ["--window", "700", "-ub", "128", "--h2o-local", "32", "--h2o-heavy", "16"]
        first, last = retrieval(*flags, "--depths", "0,100", "--prompts", "8", "--no-dense")["depths"]
        self.assertLessEqual(first["sparse"]["answer"]["rate"], 0.25)
        self.assertGreaterEqual(last["sparse"]["answer"]["rate"], 0.75)

    def test_rules(self):
        flags = [*SMALL, "--depths", "0,50", "--prompts", "4", "--no-dense"]
        for rule, name in ((["--pinned", "8"], "h2o"), (["--select", "window", "--pinned", "4"], "window"),
                           (["--select", "blocks", "--dense-layers", "0-7"], "blocks")):
            got = retrieval(*flags, *rule)
            self.assertEqual(got["effective"]["select"], name)
            self.assertNotIn("dense", got)
            self.assertNotIn("difference", got)
            self.assertNotIn("dense", got["depths"][0])
        # All layers dense: what dense prefill finds.
        dense = retrieval(*SMALL, "--depths", "0,50", "--prompts", "4")["dense"]
        self.assertEqual(got["sparse"], dense)

    def test_one_chunk_is_dense(self):
        got = retrieval("--window", "500", "--depths", "0,50", "--prompts", "6")
        self.assertEqual(got["sparse"], got["dense"])

    def test_fewer_prompts_than_depths(self):
        got = retrieval("--window", "300", "--depths", "0,50,100", "--prompts", "2")
        self.check_sums(got, 2, [0, 50])

    def test_results_depend_on_the_seed_and_not_on_threads(self):
        flags = [*SMALL, "--depths", "0,90", "--prompts", "6"]
        first = retrieval(*flags, "-t", "1")
        self.assertEqual(retrieval(*flags, "-t", "3"), first)
        # Other codes between other lines.
        self.assertNotEqual(retrieval(*flags, "--seed", "9"), first)

    def test_prompt_tokens_are_those_of_the_prompt(self):
        """The prompt put together here, and its tokens counted by `tokenize`. Lines are chosen by the tokens of each alone,
        which are more than those of all together: up to two lines less than would fit."""
        with open(TEXT, encoding="utf-8", newline="") as file:
            lines = [line + "\n" for line in file.read().removesuffix("\n").split("\n")]
        for seed, window, depths in ((0, 700, "0,100"), (9, 600, "100"), (2**40 + 5, 640, "0")):
            with self.subTest(seed=seed, window=window):
                got = retrieval("--window", str(window), "--depths", depths, "--prompts", "1", "--seed", str(seed))
                counts = {}

                def tokens(count):
                    if count not in counts:
                        text, code = prompt_text(lines, seed, depths.split(","), count)
                        counts[count] = count_tokens(text), count_tokens(text + code)
                    return counts[count]

                low, high = 0, window
                while high - low > 1:
                    middle = (low + high) // 2
                    low, high = (middle, high) if tokens(middle)[1] <= window else (low, middle)
                self.assertIn(got["prompt_tokens"], [tokens(low - less)[0] for less in range(3)])

    def test_text_and_help(self):
        result = run("retrieval", "-m", MODEL, "-f", TEXT, *SMALL, "--depths", "12.5,100", "--prompts", "2",
                     "--needle", "The secret code of {name} is {code}.", "--question", "The secret code of {name} is")
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.decode().splitlines()
        self.assertTrue(lines[0].startswith("prompts  2 of "), lines)
        self.assertEqual([line.split()[:2] for line in lines[-3:]], [["12.5%", "1"], ["100%", "1"], ["all", "2"]])
        self.assertIn("h2o: first", lines[-4])
        self.assertIn(b"Example", run("retrieval", "--help").stdout)

    def test_a_short_text_is_repeated_and_said(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "short.txt"
            path.write_text("a = 1\nb = 2\n", encoding="utf-8")
            result = run("retrieval", "-m", MODEL, "-f", path, "--window", "200", "--depths", "50", "--prompts", "1")
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
        self.refuse("-f", TEXT, "--prompts", "0", names="--prompts")
        self.refuse("-f", TEXT, "--prompts", "99999999999999999999", names="--prompts")
        self.refuse("-f", TEXT, "--ask", "after", names="--ask: 'after' is not allowed; use prefill or tail")
        self.refuse("-f", TEXT, "--needle", "nothing", names="--needle")
        self.refuse("-f", TEXT, "--question", "{name} has {code}", names="--question")
        self.refuse("-f", "-", names="fewer than 2 lines", input=b"")
        self.refuse("-f", "/", names="directory")
        self.refuse("-f", f"{TEXT}.none", names=".none")
        self.refuse(names="--file")
        self.refuse("-f", TEXT, "--engine", "nope", names="nope")
        for program, flags in (("retrieval", ["-f", TEXT]), ("generate", ["-p", "x"]), ("perplexity", ["-f", TEXT]),
                               ("atlas", ["-p", "x", "-o", "/dev/null"])):
            self.refused("-m", MODEL, *flags, "--dense-layers", "0,5-8", names="--dense-layers: 8 is not a layer; allowed are 0 to 7",
                         program=program)
        self.refused("-m", os.path.dirname(MODEL), "-f", TEXT, names="regular file", program="retrieval")


if __name__ == "__main__":
    unittest.main()
