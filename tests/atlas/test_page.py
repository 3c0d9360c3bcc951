"""The page of `headwater atlas` in a headless Chromium: no script error, no request, the right pixels, keys, mouse."""

import os
import pathlib
import struct
import sys
import unittest

import browser
import numpy as np
from model import HEAVY, LOCAL, OWN, PANEL, Trace, count, pixels
from support import ProgramTest, Tensor, problem, safetensors

SPARSE = ("-b", "64", "-ub", "16", "--h2o-local", "4", "--h2o-heavy", "5")
LEFT, RIGHT = 66, 14  # of cli/commands/atlas/page/draw.js
NO_BROWSER = 77       # SKIP_RETURN_CODE of the ctest entry


def address(path):
    return pathlib.Path(path).as_uri()


class Page(ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.browser = browser.Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()

    def show(self, tensors, *flags, atlas=(), name="out.safetensors"):
        written, metadata, _ = self.attend(tensors, *flags, out=name)
        self.show_file(self.path(name), *atlas)
        return Trace(written, metadata)

    def show_file(self, path, *flags):
        done = self.run_program("atlas", path, "-o", self.path("page.html"), *flags)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.browser.open(address(self.path("page.html")))
        self.assertEqual(self.browser.requests, [address(self.path("page.html"))])

    def tearDown(self):
        self.assertEqual(self.browser.problems, [])

    def state(self, *keys):
        found = self.browser.state()
        return tuple(found[key] for key in keys)

    def screenshot(self, identifier):
        left, top, width, height = (round(x) for x in self.browser.box(identifier))
        return pixels(self.browser.picture())[top:top + height, left:left + width]

    def test_data_arrive_as_they_were(self):
        trace = self.show(problem(n=150), *SPARSE)
        value = self.browser.evaluate
        self.assertEqual(value("view.model.meta.chunk_start"), trace.start)
        self.assertEqual(value("Array.from(view.model.scores)"), trace.scores.reshape(-1).tolist())
        for c in range(trace.chunks):
            for h in range(trace.heads):
                script = f"Array.from(view.model.positions.subarray(...view.model.setRange({h}, {c})))"
                self.assertEqual(value(script), trace.sets[c][h])
        for h in range(trace.heads):
            pairs = value(f"view.model.head({h}).pairs")
            self.assertEqual(tuple(pairs[k] for k in ("own", "local", "heavy", "dense")), trace.pairs(h))
            shares, at_risk = trace.survival(h)
            np.testing.assert_allclose(value(f"view.model.head({h}).survival.share"), shares, rtol=1e-12)
            self.assertEqual(value(f"view.model.head({h}).survival.atRisk"), at_risk)
            self.assertEqual(value(f"Array.from(view.model.head({h}).heavyReads)"), trace.heavy_reads(h))

    def test_attention_of_entries(self):
        tensors, _, _ = self.attend(problem(n=150), *SPARSE)
        self.show_file(self.path("out.safetensors"))
        chunks, heads, width = tensors["memory"].shape
        memory = np.array(tensors["memory"].values).reshape(chunks, heads, width)
        sums = np.array(tensors["colsum_inter"].values).reshape(chunks, heads, width)
        lengths = np.diff(tensors["chunk_start"].values)
        for c in range(1, chunks):
            for h in range(heads):
                script = ("((from, to) => Array.from({length: to - from}, (_, i) => view.model.share(from + i)))"
                          f"(...view.model.setRange({h}, {c}))")
                shares = (sums[c, h] / lengths[c])[memory[c, h] >= 0]
                np.testing.assert_allclose(self.browser.evaluate(script), shares, rtol=2**(1 / 16) - 1 + 1e-6)

    def test_every_canvas_is_drawn(self):
        self.show(problem(n=150), *SPARSE)
        for name, colours in (("overview", [HEAVY]), ("map", [OWN, LOCAL, HEAVY]), ("scores", [HEAVY, LOCAL]),
                              ("reads", [HEAVY, LOCAL]), ("survival", [HEAVY])):
            picture = self.screenshot(name)
            self.assertGreater(count(picture, PANEL), 1000, name)
            for colour in colours:
                self.assertGreater(count(picture, colour, tolerance=6), 20, f"{name} has no {colour}")
        self.assertGreater(self.browser.evaluate("document.querySelectorAll('#top tbody tr').length"), 3)

    def test_pairs_are_said_once(self):
        """The headline has the share, the bar its parts to scale, the legend what is there and no more."""
        words = {"own": "its own chunk", "local": "local window (newest 4)", "heavy": "heavy hitters",
                 "dense": "everything before (dense)", "none": "not computed"}
        for flags in (SPARSE, ("--dense",), (*SPARSE, "--steps", "p70,d1,p79")):
            trace = self.show(problem(n=150), *flags)
            all_pairs = 150 * 151 / 2 * trace.heads
            parts = dict(zip(words, np.sum([trace.pairs(h) for h in range(trace.heads)], axis=0) / all_pairs))
            share = sum(parts.values())
            parts["none"] = 1 - share
            parts = {kind: part for kind, part in parts.items() if part > 1e-9}
            self.assertIn(f"{100 * share:.1f} % of the query-key pairs", self.browser.evaluate("document.body.innerText"))
            legend = self.browser.evaluate("[...document.querySelectorAll('#legend span')].map((e) => e.textContent)")
            self.assertEqual(legend, [f"{words[kind]}: {100 * part:.1f} %" for kind, part in parts.items()])
            widths = self.browser.evaluate("[...document.querySelectorAll('#pairs i')].map((e) => [e.className, parseFloat(e.style.width)])")
            self.assertEqual([kind for kind, _ in widths], list(parts))
            np.testing.assert_allclose([width for _, width in widths], [100 * part for part in parts.values()], atol=1e-3)
            text = self.browser.evaluate("document.querySelector('header').innerText + document.querySelector('main').innerText")
            self.assertEqual(text.count(f"{100 * share:.1f} %"), 1, text)

    def test_curves_have_names(self):
        """The names at the ends: all of a few heads; else the median, the longest and the shortest."""
        trace = self.show(problem(n=150, heads=6, heads_kv=2), *SPARSE)
        ages = [sum(trace.survival(h)[0]) for h in range(trace.heads)]
        order = sorted(range(trace.heads), key=lambda h: ages[h])
        named = self.browser.evaluate("view.model.namedHeads()")
        self.assertEqual([one["head"] for one in named], [order[3], order[-1], order[0]])
        for one, role in zip(named, ("median", "longest", "shortest")):
            age = float(f"{ages[one['head']]:.3g}")
            self.assertEqual(one["name"], f"head {one['head']}, {role} mean age {age:g}")
        self.show(problem(n=150), *SPARSE)
        self.assertEqual([one["head"] for one in self.browser.evaluate("view.model.namedHeads()")], [0, 1, 2, 3])

    def test_pixels_of_the_map_are_the_sets(self):
        trace = self.show(problem(n=150, heads=2, heads_kv=1), *SPARSE)
        # The cursor out of the way: at the last token of the last chunk.
        self.browser.evaluate(f"view.change({{head: 1, chunk: {trace.chunks - 1}, token: {trace.n - 1}}})")
        self.browser.settle()
        picture = self.screenshot("map")
        plot, row = picture.shape[1] - LEFT - RIGHT, self.browser.evaluate("view.map.row()")
        for c in range(trace.chunks - 1):
            for token in range(trace.n - 1):
                colour = PANEL
                if trace.start[c] <= token < trace.start[c + 1]:
                    colour = OWN
                elif token in trace.heavy(c, 1):
                    colour = HEAVY
                elif token in trace.window(c, 1):
                    colour = LOCAL
                x, y = LEFT + int((token + 0.5) / trace.n * plot), int((c + 0.5) * row)
                np.testing.assert_allclose(picture[y, x], colour, atol=2, err_msg=f"chunk {c}, token {token}")

    def test_keyboard(self):
        trace = self.show(problem(n=150), *SPARSE)
        press = self.browser.press
        self.assertEqual(self.state("head", "chunk", "token", "x0", "x1"), (0, trace.chunks - 1, 0, 0, 150))
        press("ArrowRight")
        self.assertEqual(self.state("token"), (1,))
        press("ArrowRight", shift=True)
        self.assertGreater(self.state("token")[0], 10)
        press("Home")
        press("ArrowLeft")
        self.assertEqual(self.state("token"), (0,))
        press("ArrowUp")
        press("ArrowUp")
        press("ArrowDown")
        self.assertEqual(self.state("chunk"), (trace.chunks - 2,))
        for key, head in (("]", 1), ("PageDown", 2), ("[", 1), ("PageUp", 0), ("PageUp", 0)):
            press(key)
            self.assertEqual(self.state("head"), (head,), key)
        self.assertIn("head 0", self.browser.evaluate("document.querySelector('.head-name').textContent"))
        heavy = trace.heavy(trace.chunks - 2, 0)
        press("Home")
        for token in [p for p in heavy if p > 0]:
            press("n")
            self.assertEqual(self.state("token"), (token,))
        press("n")
        self.assertEqual(self.state("token"), (heavy[-1],))  # what follows is local
        press("p")
        self.assertEqual(self.state("token"), (heavy[-2],))
        press("+")
        self.assertEqual(self.state("x0", "x1")[1] - self.state("x0", "x1")[0], 75)
        press("-")
        self.assertEqual(self.state("x0", "x1"), (0, 150))
        press("+")
        press("0")
        self.assertEqual(self.state("x0", "x1"), (0, 150))
        press("End")
        self.assertEqual(self.state("token"), (149,))
        press("w")
        self.assertEqual(self.state("shade"), ("true",))
        press("?")
        self.assertTrue(self.browser.evaluate("document.getElementById('help').open"))
        press("ArrowLeft")
        self.assertEqual(self.state("token"), (149,))  # keys are the dialog's now
        press("?")
        self.assertFalse(self.browser.evaluate("document.getElementById('help').open"))

    def test_dark(self):
        self.show(problem(n=150), *SPARSE)
        light = self.screenshot("map")
        self.browser.press("t")
        dark = self.screenshot("map")
        self.assertEqual(self.state("theme"), ("dark",))
        self.assertGreater(light.mean(), 180)
        self.assertLess(dark.mean(), 90)
        self.assertGreater(count(dark, LOCAL, tolerance=6), 20)
        self.assertGreater(count(dark, (240, 127, 42), tolerance=6), 20)

    def test_mouse(self):
        trace = self.show(problem(n=150), *SPARSE)
        left, top, width, _ = self.browser.box("map")
        row, plot = self.browser.evaluate("view.map.row()"), width - LEFT - RIGHT
        chunk, token = 5, trace.heavy(5, 0)[1]

        def at(chunk, token):
            return left + LEFT + (token + 0.5) / trace.n * plot, top + (chunk + 0.5) * row

        self.browser.mouse("mouseMoved", *at(chunk, token))
        self.assertEqual(self.state("chunk", "token"), (chunk, token))
        tip = self.browser.evaluate("document.getElementById('tip').textContent")
        self.assertFalse(self.browser.evaluate("document.getElementById('tip').hidden"))
        score = trace.scores[0, token]
        rank = 1 + int((trace.scores[0] > score).sum())
        self.assertIn(f"token {token} of chunk {token // 16}, score {float(f'{score:.4g}'):g} (rank {rank} of 150)", tip)
        self.assertIn("chunk 5: heavy hitter, with about", tip)
        self.assertIn(f"by {trace.heavy_reads(0)[token]} as a heavy hitter", tip)
        self.assertIn("heavy hitter", self.browser.evaluate("document.getElementById('status').textContent"))
        # A pinned cursor stays; Escape frees it.
        self.browser.click(*at(chunk, token))
        self.browser.mouse("mouseMoved", *at(7, 3))
        self.assertEqual(self.state("chunk", "token", "pinned"), (chunk, token, "true"))
        self.browser.press("Escape")
        self.browser.mouse("mouseMoved", *at(7, 3))
        self.assertEqual(self.state("chunk", "token"), (7, 3))
        # The overview describes the head under the mouse; the head that is shown stays.
        x, y, _, _ = self.browser.box("overview")
        self.browser.mouse("mouseMoved", x + 200, y + 3.5 * self.browser.evaluate("view.overview.row()"))
        self.assertIn("head 3, chunk", self.browser.evaluate("document.getElementById('tip').textContent"))
        self.assertEqual(self.state("head"), (0,))
        # Zooming keeps the token under the cursor where it is.
        self.browser.evaluate("view.change({token: 30})")
        self.browser.press("+")
        self.assertEqual(self.state("x0", "x1"), (15, 90))
        self.browser.press("0")
        # A click on the overview chooses a head; dragging pans; leaving hides the text.
        x, y, _, _ = self.browser.box("overview")
        self.browser.click(x + 200, y + 2.5 * self.browser.evaluate("view.overview.row()"))
        self.assertEqual(self.state("head"), (2,))
        self.browser.press("+")
        before = self.state("x0")[0]
        start = at(2, 75)
        self.browser.mouse("mousePressed", *start, button="left", clickCount=1)
        self.browser.mouse("mouseMoved", start[0] - 200, start[1], button="left", buttons=1)
        self.browser.mouse("mouseReleased", start[0] - 200, start[1], button="left", clickCount=1)
        self.assertGreater(self.state("x0")[0], before)
        self.browser.mouse("mouseMoved", 3, 3)
        self.assertTrue(self.browser.evaluate("document.getElementById('tip').hidden"))

    def test_all_kinds_of_runs(self):
        trace = self.show(problem(n=100), *SPARSE, "--steps", "p50,d1,d2,p5,p42")
        self.assertGreater(trace.pairs(0)[3], 0)
        self.show(problem(n=9, heads=20), "--dense")
        self.show(problem(n=1))
        self.show(problem(n=90), *SPARSE, "--score-type", "f32")
        trace = self.show(problem(n=150, heads=6), *SPARSE, atlas=("--head", "1,4-5"))
        self.assertEqual(self.browser.evaluate("view.model.meta.heads"), [1, 4, 5])
        for c in range(trace.chunks):
            for shown, h in enumerate((1, 4, 5)):
                script = f"Array.from(view.model.positions.subarray(...view.model.setRange({shown}, {c})))"
                self.assertEqual(self.browser.evaluate(script), trace.sets[c][h])

    def test_names_are_no_markup(self):
        name = "<img src=x onerror=alert(1)><!--SCRIPT--><script>"
        self.show(problem(n=40), *SPARSE, name=name)
        self.assertIn(name, self.browser.evaluate("document.title"))
        self.assertEqual(self.browser.evaluate("document.images.length"), 0)

    def large(self, n, heads, chunk, local, heavy):
        """Shows an output of these sizes with random sets and scores, and makes its picture: (memory sets, bytes of the page)."""
        chunks = n // chunk
        source = np.random.default_rng(7)
        memory = np.full((chunks, heads, local + heavy), -1, dtype="<i4")
        for c in range(1, chunks):
            for h in range(heads):
                chosen = source.choice(c * chunk - local, heavy, replace=False)
                memory[c, h] = np.concatenate([np.sort(chosen), np.arange(c * chunk - local, c * chunk)])
        sums = (memory >= 0).astype("<f4")
        scores = (source.gamma(1, 4, (heads, n)).astype("<f4").view("<u4") >> 16).astype("<u2")
        tensors = {"chunk_start": Tensor("I32", [chunks + 1], data=struct.pack(f"<{chunks + 1}i", *range(0, n + 1, chunk))),
                   "memory": Tensor("I32", memory.shape, data=memory.tobytes()),
                   "colsum_inter": Tensor("F32", sums.shape, data=sums.tobytes()),
                   "scores": Tensor("BF16", scores.shape, data=scores.tobytes())}
        metadata = {"format": "headwater-attend-1", "local": str(local), "heavy": str(heavy)}
        path = self.put(safetensors(tensors, metadata), "large.safetensors")
        self.show_file(path, "--png", self.path("large.png"))
        return memory, os.path.getsize(self.path("page.html"))

    def look_around(self, memory, n, chunk, local):
        """The mouse and the keys find what the file says, at the scale of the whole text."""
        chunks, heads, _ = memory.shape
        left, top, width, _ = self.browser.box("map")
        row, plot = self.browser.evaluate("view.map.row()"), width - LEFT - RIGHT
        self.assertGreaterEqual(row, 4, "rows of chunks are too thin to point at")
        for c, token in ((chunks - 2, n // 3), (chunks // 2, 0), (1, chunk + chunk // 2)):
            self.browser.mouse("mouseMoved", left + LEFT + (token + 0.5) / n * plot, top + (c + 0.5) * row)
            found_chunk, found = map(int, self.state("chunk", "token"))
            self.assertEqual(found_chunk, c)
            self.assertLessEqual(abs(found - token), n / plot + 1)  # a pixel holds several tokens
            tip = self.browser.evaluate("document.getElementById('tip').textContent")
            self.assertIn(f"token {found} of chunk {found // chunk},", tip)
            self.assertIn(f"chunk {c}: ", tip)
        last = heads - 1
        for _ in range(heads + 1):
            self.browser.press("]")
        self.assertEqual(self.state("head"), (last,))
        self.browser.press("Home")
        chunk_now = int(self.state("chunk")[0])
        kept = [int(p) for p in memory[chunk_now, last] if 0 < p < chunk_now * chunk - local]
        for token in kept[:5]:
            self.browser.press("n")
            self.assertEqual(self.state("token"), (token,))

    def test_4096_tokens_of_16_heads(self):
        n, heads, chunk, local = 4096, 16, 512, 64
        memory, _ = self.large(n, heads, chunk, local, 64)
        self.assertGreater(count(self.screenshot("map"), LOCAL, tolerance=6), 500)
        self.look_around(memory, n, chunk, local)

    def test_32768_tokens_of_32_heads(self):
        n, heads, chunk, local = 32768, 32, 1024, 256
        memory, size = self.large(n, heads, chunk, local, 256)
        # As --help says: 1.4 bytes for each 2 of scores... and 3 for an entry.
        self.assertLess(size, 1.4 * 2 * heads * n + 3 * memory.size + 200_000)
        self.assertGreater(count(self.screenshot("map"), LOCAL, tolerance=6), 500)
        self.look_around(memory, n, chunk, local)
        before = self.screenshot("map")
        self.browser.press("0")
        self.browser.press("Home")
        for _ in range(8):
            self.browser.press("+")
        self.assertEqual(self.state("x0", "x1"), (0, 128))
        self.assertGreater(np.abs(self.screenshot("map") - before).mean(), 1)
        with open(self.path("large.png"), "rb") as file:
            self.assertGreater(count(pixels(file.read()), LOCAL), 5000)


if __name__ == "__main__":
    if browser.find() is None:
        print(f"SKIP: none of {', '.join(browser.NAMES)} is installed; the page of the atlas was not looked at")
        sys.exit(NO_BROWSER)
    unittest.main()
