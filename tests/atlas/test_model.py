"""`headwater atlas -m`: what the page says is what attention did, and its tokens are the text; in Chromium, if there is one."""

import base64
import json
import os
import pathlib
import re
import unittest

import browser
import numpy as np
from model import DENSE, HEAVY, LOCAL, OWN, PANEL, count, pixels
from support import ProgramTest, parse_safetensors

MODELS = pathlib.Path(os.environ["HEADWATER_MODELS"])
MODEL, TEXT = str(MODELS / "headwater-tiny-f16.gguf"), str(MODELS / "eval-4k.txt")
SMALL = ("-ub", "128", "--h2o-local", "32", "--h2o-heavy", "32")
BLOCKS = ("--select", "blocks")
LEFT, RIGHT = 66, 14  # of cli/commands/atlas/page/draw.js
TOKENS, HEADS, LAYERS = 900, 4, 8


def data(page, name):
    return re.search(rf'id="data-{name}">([^<]*)</script>', page).group(1)


def unpacked_sets(raw, sets):
    """LEB128: the number of entries, then the tokens skipped before each."""
    values, value, shift = [], 0, 0
    for byte in raw:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            values.append(value)
            value, shift = 0, 0
    found, at = [], 0
    for _ in range(sets):
        gaps = values[at + 1:at + 1 + values[at]]
        at += 1 + values[at]
        found.append([int(p) for p in np.cumsum(np.array(gaps, dtype=int) + 1) - 1])
    assert at == len(values)
    return found


class ModelAtlas(ProgramTest):
    def atlas(self, *arguments, text=TEXT, tokens=TOKENS):
        done = self.run_program("atlas", "-m", MODEL, "-f", text, "--window", str(tokens), "-o", self.path("page.html"),
                                *SMALL, *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        return pathlib.Path(self.path("page.html")).read_text(encoding="utf-8"), done.stdout


class Page(ModelAtlas):
    def test_sets_and_scores_are_those_of_attention(self):
        page, report = self.atlas("--layers", "6", "--json", "-t", "1")
        # The same 900 tokens through `generate`, whose dumped attention inputs `attend` replays.
        tokens = json.loads(data(page, "tokens"))
        self.put("".join(tokens).encode(), "prompt.txt")
        run = self.run_program("generate", "-m", MODEL, "-f", self.path("prompt.txt"), "-n", "0", *SMALL, "--select",
                               "h2o", "--json", "--dump-qkv", "6", self.path("qkv.safetensors"))
        self.assertEqual(run.returncode, 0, run.stderr)
        steps = json.loads(run.stdout)["steps"]
        wanted, _, _ = self.attend(self.path("qkv.safetensors"), *SMALL, "--steps", steps)
        meta = json.loads(data(page, "meta"))
        self.assertEqual((meta["tokens"], meta["heads"], meta["heads_in_layer"], meta["heads_in_file"]),
                         (TOKENS, [24, 25, 26, 27], HEADS, HEADS * LAYERS))
        self.assertEqual(meta["chunk_start"], wanted["chunk_start"].values)
        memory = np.array(wanted["memory"].values, dtype=int).reshape(wanted["memory"].shape)
        sets = unpacked_sets(base64.b64decode(data(page, "sets")), memory.shape[0] * HEADS)
        self.assertEqual(sets, [[int(p) for p in row if p >= 0] for chunk in memory for row in chunk])
        self.assertEqual(base64.b64decode(data(page, "scores")), wanted["scores"].data)
        heads = json.loads(report)["heads"]
        self.assertEqual([(head["layer"], head["head"]) for head in heads], [(6, h) for h in range(HEADS)])

    def test_sets_of_rule_blocks(self):
        for rule in (BLOCKS, ("--select", "window")):
            page, report = self.atlas("--layers", "6", "--json", "-t", "1", *rule)
            tokens = json.loads(data(page, "tokens"))
            self.put("".join(tokens).encode(), "prompt.txt")
            run = self.run_program("generate", "-m", MODEL, "-f", self.path("prompt.txt"), "-n", "0", *SMALL, *rule, "--json",
                                   "--pinned", "0", "--dump-qkv", "6", self.path("qkv.safetensors"))
            self.assertEqual(run.returncode, 0, run.stderr)
            steps = json.loads(run.stdout)["steps"]
            done = self.run_program("attend", self.path("qkv.safetensors"), "-o", self.path("out.safetensors"), *SMALL, *rule,
                                    "--steps", steps, "--json")
            with open(self.path("out.safetensors"), "rb") as file:
                wanted, _ = parse_safetensors(file.read())
            meta, heads = json.loads(data(page, "meta")), json.loads(report)["heads"]
            blocks = np.array(wanted["query_blocks"].values).reshape(-1, 2)
            # The last row is the dense tail of 64 tokens, which has no sets.
            self.assertEqual(meta["chunk_start"], [*(int(first) for first, _ in blocks), TOKENS - 64, TOKENS])
            chunks = wanted["chunk_start"].values
            own = [max(start for start in chunks if start <= first) for first, _ in blocks]
            self.assertEqual(meta["rows"]["own"], [*own, TOKENS - 64])
            self.assertEqual(meta["rows"]["dense"], [False] * len(blocks) + [True])
            key_block, local = (8, 32) if rule is BLOCKS else (1, 64)
            self.assertEqual(meta["rows"]["local"][:-1], [min(b, -(-max(0, b - local) // key_block) * key_block) for b in own])
            sets = np.array(wanted["block_sets"].values).reshape(wanted["block_sets"].shape)
            self.assertEqual((meta["heads"], meta["heads_in_layer"]), ([12, 13], 2))
            self.assertEqual(unpacked_sets(base64.b64decode(data(page, "sets")), 2 * (len(blocks) + 1)),
                             [[int(p) for p in row if p >= 0] for block in sets for row in block] + [[], []])
            self.assertEqual([head["pairs"] for head in heads], [json.loads(done.stdout)["pairs"]] * 2)
            # The file of `attend` says the same.
            done = self.run_program("atlas", self.path("out.safetensors"), "-o", self.path("file.html"), "--json", "--png",
                                    self.path("file.png"))
            self.assertEqual((done.returncode, done.stderr), (0, b""))
            for key in ("pairs_own", "pairs_local", "pairs_heavy", "pairs_before_dense", "survival"):
                self.assertEqual([head[key] for head in json.loads(done.stdout)["heads"]], [head[key] for head in heads])
            page = pathlib.Path(self.path("file.html")).read_text(encoding="utf-8")
            self.assertEqual(json.loads(data(page, "meta"))["rows"], meta["rows"])
            with open(self.path("file.png"), "rb") as file:
                self.assertEqual(count(pixels(file.read()), HEAVY) > 500, rule is BLOCKS)

    def test_dense_layers(self):
        """They have the rows of the others, and read everything before."""
        for rule in ((), BLOCKS, ("--select", "window")):
            for layers, dense in (("5,6", "0,6"), ("0,5", "0,6")):
                flags = ("--layers", layers, "--json", "-b", "256", *rule)
                plain, plain_report = self.atlas(*flags)
                page, report = self.atlas(*flags, "--dense-layers", dense, "--png", self.path("page.png"))
                meta, before = json.loads(data(page, "meta")), json.loads(data(plain, "meta"))
                self.assertEqual(meta["facts"]["dense_layers"], dense)
                self.assertNotIn("dense_heads", before)
                self.assertEqual((meta["chunk_start"], meta.get("rows")), (before["chunk_start"], before.get("rows")))
                each = HEADS // 2 if rule else HEADS
                marks = [layer in dense.split(",") for layer in layers.split(",") for _ in range(each)]
                self.assertEqual(meta["dense_heads"], marks)
                rows = len(meta["chunk_start"]) - 1
                sets = unpacked_sets(base64.b64decode(data(page, "sets")), rows * len(marks))
                heads, others = json.loads(report)["heads"], json.loads(plain_report)["heads"]
                for h, mark in enumerate(marks):
                    of_head = sets[h::len(marks)]
                    self.assertEqual(any(of_head), not mark)
                    own, pairs = heads[h]["pairs_own"], heads[h]["pairs"]
                    self.assertEqual(own, others[h]["pairs_own"])
                    if mark:
                        self.assertEqual(pairs, TOKENS * (TOKENS + 1) // 2)
                        self.assertEqual(heads[h]["pairs_before_dense"], pairs - own)
                    else:
                        self.assertEqual(pairs, others[h]["pairs"])
                with open(self.path("page.png"), "rb") as file:
                    picture = pixels(file.read())
                rows = min(max(420 // len(marks), 3), 14)  # of picture.cpp, and where its overview begins
                overview = picture[232:232 + rows * len(marks)]
                self.assertGreater(count(overview, DENSE), 100 * rows * sum(marks))
                self.assertGreater(count(picture, DENSE) - count(overview, DENSE), 10000)

    def test_all_layers(self):
        page, report = self.atlas("--png", self.path("page.png"))
        self.assertEqual(json.loads(data(page, "meta"))["heads"], list(range(HEADS * LAYERS)))
        self.assertIn(b"32 of 32 query heads", report)
        with open(self.path("page.png"), "rb") as file:
            self.assertGreater(count(pixels(file.read()), HEAVY), 500)
        for word in ("http:", "https:", "src=", "@import", "url("):
            self.assertNotIn(word, page.replace(data(page, "tokens"), ""))

    def test_refusals(self):
        before = self.listing()

        def refuse(*arguments, words, code=2):
            done = self.run_program("atlas", *arguments)
            self.assert_refused(done, *words, code=code)

        out = ("-o", self.path("page.html"))
        refuse("-m", MODEL, *out, words=["the text is missing"])
        refuse("-m", MODEL, "-p", "x", "-f", TEXT, *out, words=["-p and -f"])
        refuse("-m", MODEL, "-p", "", *out, words=["empty"])
        refuse("-m", MODEL, "-f", self.directory, *out, words=["directory"])
        refuse("-m", MODEL, "-p", "x", words=["--output"])
        refuse("-m", MODEL, "-p", "x", *out, "--layers", "8", words=["--layer: 8", "0 to 7"])
        refuse("-m", MODEL, "-p", "x", *out, "--layers", "3-1", words=["backwards"])
        refuse("-m", MODEL, "-p", "x", *out, "--window", "99999", words=["--window", "32768"])
        refuse("-m", MODEL, "-p", "x", "-o", MODEL, words=["is the input"])
        refuse("-m", MODEL, "-p", "x", *out, "--engine", "nope", words=["nope"])
        refuse("-m", MODEL, "-p", "x", *out, "--select", "blocks", "--pool", "7", words=["--pool: 7"])
        refuse("-m", self.directory, "-p", "x", *out, words=["regular file"])
        refuse("-m", f"{self.directory}/none.gguf", "-p", "x", *out, words=["none.gguf"])
        self.assertEqual(self.listing(), before)
        text = self.put(b"import os\n", "own.txt")
        refuse("-m", MODEL, "-f", text, "-o", text, words=["is the text"])
        self.assertEqual(pathlib.Path(text).read_bytes(), b"import os\n")


@unittest.skipIf(browser.find() is None, f"none of {', '.join(browser.NAMES)} is installed")
class InChromium(ModelAtlas):
    @classmethod
    def setUpClass(cls):
        cls.browser = browser.Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()

    def open(self, *arguments, **more):
        page, _ = self.atlas(*arguments, **more)
        self.browser.open(pathlib.Path(self.path("page.html")).as_uri())
        self.assertEqual(self.browser.requests, [pathlib.Path(self.path("page.html")).as_uri()])
        return page

    def tearDown(self):
        self.assertEqual(self.browser.problems, [])

    def tip(self):
        self.assertFalse(self.browser.evaluate("document.getElementById('tip').hidden"))
        return self.browser.evaluate("document.getElementById('tip').textContent")

    def test_hover_shows_the_token_in_its_text(self):
        page = self.open("--layers", "1,6")
        tokens = json.loads(data(page, "tokens"))
        left, top, width, _ = self.browser.box("map")
        row, plot = self.browser.evaluate("view.map.row()"), width - LEFT - RIGHT
        word = next(t for t in range(300, 600) if tokens[t].strip().isalpha() and len(tokens[t]) > 3)
        self.browser.mouse("mouseMoved", left + LEFT + (word + 0.5) / TOKENS * plot, top + 5.5 * row)
        token = int(self.browser.state()["token"])
        shown = "".join(tokens[token - 8:token] + ["\u27e6", tokens[token], "\u27e7"] + tokens[token + 1:token + 9])
        self.assertLessEqual(abs(token - word), 1)
        self.assertIn(shown.replace("\n", "\u23ce").replace("\t", "\u21e5"), self.tip())
        self.assertIn("layer 1, head 0, chunk 5", self.tip())
        # Another head of another layer, by the list.
        self.browser.evaluate("view.change({head: 6})")
        self.browser.settle()
        self.assertIn("layer 6, head 2", self.browser.evaluate("document.querySelector('.head-name').textContent"))
        self.assertEqual(self.browser.evaluate("[...document.getElementById('head').options].map((o) => o.text)"),
                         [f"{layer}.{head}" for layer in (1, 6) for head in range(HEADS)])
        # The list of tokens that most chunks read names them.
        first = self.browser.evaluate("document.querySelector('#top tbody td').textContent")
        self.assertEqual(json.loads(first.split(" ", 1)[1]), tokens[int(first.split()[0])])
        self.assertIn("\u27e6", self.browser.evaluate("document.getElementById('status').textContent"))

    def test_hover_over_a_query_block_shows_key_and_queries(self):
        page = self.open("--layers", "6", *BLOCKS)
        tokens, meta = json.loads(data(page, "tokens")), json.loads(data(page, "meta"))
        evaluate = self.browser.evaluate
        self.assertIn("Which tokens each query block reads", evaluate("document.getElementById('headline').textContent"))
        self.assertIn("select blocks", evaluate("document.getElementById('facts').textContent"))
        for name in ("scores", "survival"):
            self.assertEqual(evaluate(f"document.getElementById('{name}').clientHeight"), 0)
        self.assertIn("what each query block reads", evaluate("document.querySelectorAll('h2')[1].textContent"))
        # A key that the first query block of the third chunk chose.
        block = meta["rows"]["own"].index(256)
        key = evaluate(f"view.model.positions[view.model.setRange(0, {block})[0]]")
        evaluate(f"view.change({{chunk: {block}, row0: {block}, x0: {key} - 4, x1: {key} + 4}})")
        self.browser.settle()
        left, top, width, _ = self.browser.box("map")
        x0, x1 = self.browser.state()["x0"], self.browser.state()["x1"]
        row = evaluate("view.map.row()") * (block - evaluate("view.state.row0") + 0.5)
        self.browser.mouse("mouseMoved", left + LEFT + (key + 0.5 - x0) / (x1 - x0) * (width - LEFT - RIGHT), top + row)
        tip = self.tip()
        self.assertIn(f"token {key} in key block {key // 8}", tip)
        self.assertIn(f"layer 6, key/value head 0, query block {block} (rows 256 to 287): chosen by its queries", tip)
        self.assertIn(json.dumps("".join(tokens[256:288])[:100], ensure_ascii=False), tip)
        self.assertIn("\u27e6", tip)
        reads = sum(key in tokens_of for tokens_of in self.chosen(page, 0))
        self.assertIn(f"chosen by {reads}", tip)
        left, top, width, height = (round(x) for x in self.browser.box("map"))
        evaluate("view.change({x0: 0, x1: view.model.n})")
        self.browser.settle()
        picture = pixels(self.browser.picture())[top:top + height, left:left + width]
        for colour in (OWN, LOCAL, HEAVY):
            self.assertGreater(count(picture, colour, tolerance=6), 20, colour)

    def test_hover_over_a_dense_layer_says_so(self):
        for rule, row in ((BLOCKS, 20), ((), 3)):
            self.open("--layers", "5,6", "--dense-layers", "6", *rule)
            evaluate = self.browser.evaluate
            evaluate(f"view.change({{head: {2 if rule else 4}, chunk: {row}, row0: 0, x0: 0, x1: view.model.n}})")
            self.browser.settle()
            self.assertIn("layer 6 (dense)", evaluate("document.querySelector('.head-name').textContent"))
            self.assertIn("dense_layers 6", evaluate("document.getElementById('facts').textContent"))
            self.assertIn("everything before (dense)", evaluate("document.getElementById('legend').textContent"))
            left, top, width, height = (round(x) for x in self.browser.box("map"))
            y = top + (row - evaluate("view.state.row0") + 0.5) * evaluate("view.map.row()")
            self.browser.mouse("mouseMoved", left + LEFT + 10, y)
            self.assertIn("layer 6 (dense)", self.tip())
            self.assertIn("dense: reads everything before", self.tip())
            picture = pixels(self.browser.picture())
            for name in ("map", "overview"):
                left, top, width, height = (round(x) for x in self.browser.box(name))
                self.assertGreater(count(picture[top:top + height, left:left + width], DENSE, tolerance=6), 1000, name)

    def chosen(self, page, head):
        meta = json.loads(data(page, "meta"))
        rows, heads = len(meta["chunk_start"]) - 1, len(meta["heads"])
        sets = unpacked_sets(base64.b64decode(data(page, "sets")), rows * heads)
        return [{p for p in sets[row * heads + head] if p < meta["rows"]["local"][row]} for row in range(rows)]

    def test_every_canvas_is_drawn(self):
        self.open()
        # The last chunk is the dense tail, which has no memory set to colour scores by.
        self.browser.evaluate("view.change({chunk: 5})")
        self.browser.settle()
        for name, colours in (("overview", [HEAVY]), ("map", [OWN, LOCAL, HEAVY]), ("scores", [HEAVY, LOCAL]),
                              ("reads", [HEAVY, LOCAL]), ("survival", [HEAVY])):
            left, top, width, height = (round(x) for x in self.browser.box(name))
            picture = pixels(self.browser.picture())[top:top + height, left:left + width]
            self.assertGreater(count(picture, PANEL), 1000, name)
            for colour in colours:
                self.assertGreater(count(picture, colour, tolerance=6), 20, f"{name} has no {colour}")

    def test_text_is_no_markup(self):
        text = "</script><script>alert(1)</script><img src=x onerror=alert(2)><!-- \u2028 \U0001f600 \xff\n" * 8
        path = self.put(text.encode(), "evil.txt")
        self.open("--layers", "0", text=path, tokens=150)
        self.assertEqual(self.browser.evaluate("document.images.length"), 0)
        self.assertTrue(text.startswith(self.browser.evaluate("view.model.tokens.slice(0, 20).join('')")))


if __name__ == "__main__":
    unittest.main()
