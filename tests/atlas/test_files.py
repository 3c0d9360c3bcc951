"""The files of `headwater atlas`: the picture's pixels, and one line for every input that is no output of attend."""

import json
import math
import os
import signal
import struct
import subprocess
import time
import unittest

import numpy as np
from model import DENSE, HEAVY, LOCAL, NAMED, OWN, PANEL, Trace, count, pixels
from support import PROGRAM, ProgramTest, Tensor, file_of, problem, safetensors

SPARSE = ("-b", "64", "-ub", "16", "--h2o-local", "4", "--h2o-heavy", "5")
MARGIN, WIDTH, BAR = 40, 1800, 106  # of cli/commands/atlas/picture.cpp: pixels, and a row of the bar of pairs
GAP, LABELS, SCORES, PANEL_WIDTH = 24, 56, 60, 356  # of its panels, four in a row
LEGEND, TITLE = 136, 24  # a row of the legend; pixels of the title of an axis
CURVES_LEFT, CURVES_RIGHT, CURVES_HEIGHT, CURVES_FOOT = 62, 290, 240, 330 - 240 + 24  # of the survival curves


def panel_rows(trace):
    """Pixels from one chunk of a panel to the next."""
    return min(16, max(1, 150 // trace.chunks))


def panel_height(trace):
    """Of many chunks only some are drawn, one a row of pixels."""
    return min(150, panel_rows(trace) * trace.chunks)


def panel_corner(trace, head):
    """(x, y) of a head's panel, where its first chunk is drawn."""
    overview = trace.heads * min(14, max(3, 420 // trace.heads))
    row = 24 + panel_height(trace) + 4 + SCORES + 34
    left = MARGIN + LABELS + head % 4 * (LABELS + PANEL_WIDTH + GAP)
    return left, 168 + 64 + overview + 24 + TITLE + 64 + head // 4 * row + 24


def legend(picture):
    """Colours of the legend, from left to right: squares of 16 pixels on white."""
    row = [tuple(pixel) for pixel in picture[LEGEND]]
    return [row[x] for x in range(MARGIN, WIDTH - MARGIN - 16)
            if len(set(row[x:x + 16])) == 1 and row[x - 1] == row[x + 16] == (255, 255, 255) != row[x]]


class Atlas(ProgramTest):
    def written(self, tensors=None, *flags):
        """(tensors, metadata) of an attend output."""
        found, metadata, _ = self.attend(tensors or problem(n=150), *(flags or SPARSE))
        return found, metadata

    def atlas(self, *arguments, path=None):
        return self.run_program("atlas", path or self.path("out.safetensors"), "-o", self.path("page.html"), *arguments)

    def refuse_atlas(self, data, *words, arguments=()):
        path = data if isinstance(data, str) else self.put(data, "bad.safetensors")
        before = self.listing()
        done = self.atlas("--png", self.path("page.png"), *arguments, path=path)
        self.assert_refused(done, *words)
        self.assertEqual(self.listing(), before)


class Results(Atlas):
    def test_picture(self):
        trace = Trace(*self.written())
        done = self.atlas("--png", self.path("page.png"))
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        with open(self.path("page.png"), "rb") as file:
            picture = pixels(file.read())
        self.assertEqual(picture.shape[1], WIDTH)
        for colour in (OWN, LOCAL, HEAVY):
            self.assertGreater(count(picture, colour), 500)
        # The bar of pairs is to scale.
        bar, pairs = picture[BAR:BAR + 1], trace.pairs(0)
        for colour, part in zip((OWN, LOCAL, HEAVY), pairs):
            wanted = part / (150 * 151 / 2) * (WIDTH - 2 * MARGIN)
            self.assertAlmostEqual(count(bar, colour), wanted, delta=1.01)

    def picture(self, tensors, *flags):
        trace = Trace(*self.written(tensors, *flags))
        done = self.atlas("--png", self.path("page.png"))
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        with open(self.path("page.png"), "rb") as file:
            return trace, pixels(file.read())

    def test_legend_has_what_is_there(self):
        for flags, colours in ((SPARSE, [OWN, LOCAL, HEAVY, PANEL]), (("--dense",), [OWN]),
                               ((*SPARSE, "--steps", "p70,d1,p79"), [OWN, LOCAL, HEAVY, DENSE, PANEL]),
                               (("--steps", "p140,d10"), [OWN, DENSE]),
                               (("-ub", "16", "--h2o-local", "4", "--h2o-heavy", "0"), [OWN, LOCAL, PANEL]),
                               (("-ub", "16", "--h2o-local", "0", "--h2o-heavy", "4"), [OWN, HEAVY, PANEL])):
            with self.subTest(flags=flags):
                _, picture = self.picture(problem(n=150), *flags)
                self.assertEqual(legend(picture), colours)

    def test_curves(self):
        """Each age of a head's curve at its height, and nothing rises."""
        trace, _ = self.picture(problem(n=150), *SPARSE)
        self.assertEqual(self.atlas("--png", self.path("page.png"), "--head", "0").returncode, 0)
        with open(self.path("page.png"), "rb") as file:
            picture = pixels(file.read())
        lives, _ = trace.survival(0)
        least = min(share for share in lives if share > 0)
        decades = min(4, max(1, math.ceil(-math.log10(least))))
        left, right = MARGIN + CURVES_LEFT, WIDTH - MARGIN - CURVES_RIGHT
        plot = picture[-CURVES_FOOT - CURVES_HEIGHT:-CURVES_FOOT, left:right]
        for age, share in enumerate([1.0, *lives]):
            down = min(1, -math.log10(share) / decades) if share > 0 else 1
            column = plot[:, age * (plot.shape[1] - 1) // len(lives)]
            rows = np.flatnonzero(np.all(column == NAMED[0], axis=-1))
            self.assertTrue(len(rows), f"age {age}")
            # As steep as the curve may be there, its pixels stand around the age's height.
            self.assertLessEqual(rows[0] - 2, down * (CURVES_HEIGHT - 1), f"age {age}")
            self.assertGreaterEqual(rows[-1] + 2, down * (CURVES_HEIGHT - 1), f"age {age}")
        heights = [np.mean(np.flatnonzero(np.all(column == NAMED[0], axis=-1))) for column in plot.swapaxes(0, 1)]
        self.assertTrue(all(b >= a - 1 for a, b in zip(heights, heights[1:])))

    def test_curves_of_many_heads(self):
        """Few heads have a colour each, of many the median, the longest and the shortest; a dense run has no curve at all."""
        for heads, flags, named in ((4, SPARSE, NAMED), (6, SPARSE, NAMED[:3]), (6, ("--dense",), ())):
            _, picture = self.picture(problem(n=150, heads=heads, heads_kv=2), *flags)
            plot = picture[-CURVES_FOOT - CURVES_HEIGHT:-CURVES_FOOT, MARGIN + CURVES_LEFT:WIDTH - MARGIN - CURVES_RIGHT]
            for colour in NAMED:
                self.assertEqual(count(plot, colour) > 50, colour in named, colour)

    def test_panels(self):
        """Every token of every chunk of every head in its colour, and every score at its height."""
        tensors = problem(n=150, heads=6, heads_kv=2)
        for flags in (SPARSE, (*SPARSE, "--steps", "p70,d1,p79")):
            trace, picture = self.picture(tensors, *flags)
            for head in range(trace.heads):
                with self.subTest(flags=flags, head=head):
                    self.assert_panel(trace, head, picture)

    def assert_panel(self, trace, head, picture):
        x, y = panel_corner(trace, head)
        columns = [x + t * PANEL_WIDTH // trace.n for t in range(trace.n)]
        for chunk in range(trace.chunks):
            begin, end = trace.start[chunk], trace.start[chunk + 1]
            wanted = [PANEL if trace.sets[chunk][head] else DENSE] * begin + [OWN] * (end - begin) + [PANEL] * (trace.n - end)
            for position in trace.window(chunk, head):
                wanted[position] = LOCAL
            for position in trace.heavy(chunk, head):
                wanted[position] = HEAVY
            line = picture[y + chunk * panel_rows(trace)]
            self.assertEqual([tuple(line[column]) for column in columns], wanted, f"chunk {chunk}")
        self.assert_scores(trace, head, picture)

    def assert_scores(self, trace, head, picture):
        """Every column's highest score, logarithmic from their 5th percentile, in the colour of what was read."""
        x, y = panel_corner(trace, head)
        bottom = y + panel_height(trace) + 4
        columns = {}
        for token, score in enumerate(trace.scores[head]):
            columns.setdefault(token * PANEL_WIDTH // trace.n, []).append((-score, token))
        highest = {column: min(tokens) for column, tokens in columns.items()}
        heights = sorted(-score for score, _ in highest.values() if score < 0)
        low, high = heights[len(heights) // 20], heights[-1]
        reads = trace.heavy_reads(head)
        for column, (score, token) in highest.items():
            bar = picture[bottom:bottom + SCORES, x + column:x + column + 1]
            height = 1 + max(0, math.log(-score / low) / math.log(high / low)) * (SCORES - 1) if score < 0 else 0
            self.assertAlmostEqual(count(bar, HEAVY if reads[token] else OWN), height, delta=0.51)
            self.assertAlmostEqual(count(bar, PANEL), SCORES - height, delta=0.51)

    def test_scores_of_columns_with_several_tokens(self):
        for n, chunk, heads in ((900, 100, 4), (70_000, 500, 2)):
            with self.subTest(n=n):
                trace, picture = self.picture(problem(n=n, heads=heads, d=2, dv=2), "-ub", str(chunk), "--h2o-local", "4",
                                              "--h2o-heavy", "5")
                for head in range(trace.heads):
                    self.assert_scores(trace, head, picture)

    def test_picture_depends_on_the_file_alone(self):
        self.written()
        pictures = []
        for _ in range(2):
            self.assertEqual(self.atlas("--png", self.path("page.png")).returncode, 0)
            with open(self.path("page.png"), "rb") as file:
                pictures.append(file.read())
        self.assertEqual(pictures[0], pictures[1])
        self.written(problem(n=150, seed=2))
        self.assertEqual(self.atlas("--png", self.path("page.png")).returncode, 0)
        with open(self.path("page.png"), "rb") as file:
            self.assertNotEqual(file.read(), pictures[0])

    def test_pictures_of_extremes(self):
        for tensors, flags in ((problem(n=1), ()), (problem(n=3, heads=70, heads_kv=1), ()), (problem(n=60), ("--dense",)),
                               (problem(n=300), ("-ub", "1", "--h2o-no-clamp", "--h2o-local", "2", "--h2o-heavy", "3")),
                               (problem(n=100), (*SPARSE, "--steps", "p50,d1,d2,p5,p42"))):
            self.attend(tensors, *flags)
            done = self.atlas("--png", self.path("page.png"))
            self.assertEqual((done.returncode, done.stderr), (0, b""))

    def test_json(self):
        trace = Trace(*self.written(problem(n=100), *SPARSE, "--steps", "p50,d1,d2,p5,p42"))
        done = self.atlas("--json")
        report = json.loads(done.stdout)
        self.assertEqual(done.stderr, b"")
        self.assertEqual((report["tokens"], report["chunks"], report["png"]), (100, trace.chunks, None))
        self.assertEqual(report["page_bytes"], os.path.getsize(self.path("page.html")))
        for h, head in enumerate(report["heads"]):
            parts = (head["pairs_own"], head["pairs_local"], head["pairs_heavy"], head["pairs_before_dense"])
            self.assertEqual(parts, trace.pairs(h))
            self.assertEqual(head["pairs"], sum(parts))
            shares, at_risk = trace.survival(h)
            self.assertEqual(head["survival_at_risk"], at_risk)
            self.assertEqual(len(head["survival"]), len(shares))
            for got, wanted in zip(head["survival"], shares):
                self.assertAlmostEqual(got, wanted, delta=1e-12)
            self.assertEqual(head["survival"], sorted(head["survival"], reverse=True))

    def test_page_needs_nothing(self):
        self.written()
        self.assertEqual(self.atlas().returncode, 0)
        with open(self.path("page.html"), encoding="utf-8") as file:
            text = file.read()
        for word in ("http:", "https:", "src=", "@import", "url("):
            self.assertNotIn(word, text)
        self.assertIn("default-src 'none'", text)

    def test_help(self):
        done = self.run_program("atlas", "--help")
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertIn(b"Example", done.stdout)
        self.assertIn(b"64 MiB", done.stdout)


class Flags(Atlas):
    def test_heads(self):
        self.written()
        good = self.path("out.safetensors")
        for text, word in (("4", "0 to 3"), ("0-4", "0 to 3"), ("", "''"), ("1,", "''"), ("2-1", "backwards"), ("x", "'x'"),
                           ("-1", "'-1'"), ("0-99999999999", "99999999999"), ("1-2-3", "'2-3'")):
            self.refuse_atlas(good, "--head", word, arguments=("--head=" + text,))

    def test_names(self):
        self.written()
        good = self.path("out.safetensors")
        before = self.listing()
        for arguments, word in ((("-o", good), "is the input"), (("-o", self.path("no/page.html")), "no/page.html"),
                                (("-o", self.directory), "not a regular file"), (("-o", ""), "''"),
                                (("-o", self.path("p"), "--png", good), "is the input"),
                                (("-o", self.path("p"), "--png", self.path("no/p.png")), "no/p.png"),
                                (("-o", self.path("p"), "--png", ""), "''"),
                                (("-o", self.path("p"), "--png", self.path("./p")), "one file"),
                                ((), "output"), (("-o", self.path("p"), "--nonsense"), "--nonsense")):
            self.assert_refused(self.run_program("atlas", good, *arguments), word)
            self.assertEqual(self.listing(), before)

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full")
    def test_a_picture_that_cannot_be_written_leaves_the_page(self):
        self.written()
        for page, picture, left in (("page.html", "/dev/full", "page.html"), ("/dev/full", "page.png", "page.png")):
            with open(self.path(left), "w", encoding="ascii") as old:
                old.write("old")
            before = self.listing()
            self.assert_refused(self.run_program("atlas", self.path("out.safetensors"), "-o", self.path(page), "--png",
                                                 self.path(picture)), "No space left")
            self.assertEqual(self.listing(), before)
            with open(self.path(left), encoding="ascii") as old:
                self.assertEqual(old.read(), "old")

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full")
    def test_standard_output_that_is_full(self):
        self.written()
        with open("/dev/full", "wb") as full:
            done = subprocess.run([PROGRAM, "atlas", self.path("out.safetensors"), "-o", self.path("page.html")],
                                  stdout=full, stderr=subprocess.PIPE, check=False, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn(b"standard output", done.stderr)

    def test_signals_leave_nothing(self):
        self.attend(problem(n=3000, heads=16, heads_kv=1, d=2, dv=2), "-ub", "64", "--h2o-local", "16", "--h2o-heavy", "16")
        names = sorted(os.listdir(self.directory))
        for delay in (0.0, 0.01, 0.03, 0.08):
            process = subprocess.Popen([PROGRAM, "atlas", self.path("out.safetensors"), "-o", self.path("p.html"), "--png",
                                        self.path("p.png")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(delay)
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            left = [name for name in sorted(os.listdir(self.directory)) if name not in ("p.html", "p.png")]
            self.assertEqual(left, names)


class Hostile(Atlas):
    def changed(self, **tensors):
        """The good output with other tensors; None removes one."""
        found, metadata = self.good
        found = {**found, **{name: tensor for name, tensor in tensors.items() if tensor is not None}}
        return safetensors({name: t for name, t in found.items() if name not in tensors or tensors[name] is not None},
                           metadata)

    def setUp(self):
        super().setUp()
        self.good = self.written()
        with open(self.path("out.safetensors"), "rb") as file:
            self.data = file.read()

    def with_value(self, name, index, kind, value):
        tensor = self.good[0][name]
        data = bytearray(tensor.data)
        struct.pack_into(kind, data, index * struct.calcsize(kind), value)
        return self.changed(**{name: Tensor(tensor.dtype, tensor.shape, data=bytes(data))})

    def test_no_such_file(self):
        self.refuse_atlas(self.path("missing"), "missing")
        self.refuse_atlas(self.directory, "regular file")

    def test_truncated(self):
        for length in (0, 1, 7, 8, 9, 100, len(self.data) // 2, len(self.data) - 1):
            self.refuse_atlas(self.data[:length], "bad.safetensors")
        self.refuse_atlas(self.data + b"x", "bad.safetensors")

    def test_other_files(self):
        self.refuse_atlas(problem(), "headwater attend")
        self.refuse_atlas(file_of(b"[" * 10_000, b""), "bad.safetensors")
        self.refuse_atlas(file_of(b"{}", b""), "headwater attend")
        self.refuse_atlas(safetensors({}, {"format": "headwater-attend-2"}), "headwater-attend-2", "headwater-attend-1")

    def test_metadata(self):
        found, metadata = self.good
        for value in ("", "x", "-1", "1e9", "99999999999999999999"):
            self.refuse_atlas(safetensors(found, {**metadata, "local": value}), "local", "0 to")
        self.refuse_atlas(safetensors(found, {k: v for k, v in metadata.items() if k != "local"}), "'local'")

    def test_rule_blocks(self):
        """Query blocks that leave gaps or overlap, sets out of order, sizes that do not fit."""
        found, metadata, _ = self.attend(problem(n=60), "-ub", "16", "--h2o-local", "4", "--h2o-heavy", "8", "--select",
                                         "blocks", "--key-block", "4", "--query-block", "8", "--steps", "p40,d3,p17")

        def changed(name, index, value):
            tensor = found[name]
            data = bytearray(tensor.data)
            struct.pack_into("<i", data, 4 * index, value)
            return safetensors({**found, name: Tensor("I32", tensor.shape, data=bytes(data))}, metadata)

        count, _, width = found["block_sets"].shape
        for index, value in ((0, 1), (1, 7), (1, 17), (1, 0), (2, 9), (3, -1), (2 * count - 1, 59), (2 * count - 2, 44)):
            self.refuse_atlas(changed("query_blocks", index, value), "'query_blocks'", "without gaps")
        at = 2 * 2 * width  # the first set of the second chunk's first query block
        for index, value in ((at, 16), (at, -2), (at + 1, 0), (0, 0), (at + width - 1, 2**31 - 1)):
            self.refuse_atlas(changed("block_sets", index, value), "'block_sets'", "ascend below")
        self.refuse_atlas(safetensors(found, {**metadata, "select": "other"}), "'other'", "blocks, sketches and window")
        self.refuse_atlas(safetensors(found, {**metadata, "key_block": "0"}), "key_block")
        self.refuse_atlas(safetensors(found, {k: v for k, v in metadata.items() if k != "key_block"}), "'key_block'")
        for name, words in (("query_blocks", ["'query_blocks'", "--no-trace"]), ("block_sets", ["'block_sets'", "--no-trace"])):
            self.refuse_atlas(safetensors({k: v for k, v in found.items() if k != name}, metadata), *words)
        for heads in (0, 3, 8, 65536):
            sets = Tensor("I32", [count, heads, 0], data=b"")
            self.refuse_atlas(safetensors({**found, "block_sets": sets}, metadata), "'block_sets'", "a divisor of Hq = 4")
        short = Tensor("I32", [count - 1, 2], data=found["query_blocks"].data[8:])
        self.refuse_atlas(safetensors({**found, "query_blocks": short}, metadata), f"[{count}, 2]")
        self.attend(problem(n=60), "--select", "window", "--no-trace", "-ub", "16")
        self.refuse_atlas(self.path("out.safetensors"), "--no-trace")

    def test_missing_tensors(self):
        for name in ("scores", "chunk_start", "memory", "colsum_inter"):
            self.refuse_atlas(self.changed(**{name: None}), f"'{name}'")
        self.attend(problem(n=150), *SPARSE, "--no-trace")
        self.refuse_atlas(self.path("out.safetensors"), "--no-trace")

    def test_types(self):
        for name, dtype in (("scores", "I32"), ("chunk_start", "F32"), ("memory", "F32"), ("colsum_inter", "I32")):
            tensor = self.good[0][name]
            size = 4 * math.prod(tensor.shape)
            self.refuse_atlas(self.changed(**{name: Tensor(dtype, tensor.shape, data=bytes(size))}), f"'{name}'", dtype)

    def test_shapes(self):
        chunks, heads, width = self.good[0]["memory"].shape
        n = self.good[0]["scores"].shape[1]
        shapes = (("memory", [chunks * heads, width], "2 dimensions"), ("memory", [chunks - 1, heads, width], f"[{chunks}, "),
                  ("memory", [chunks, heads + 1, width], f"{heads}"), ("memory", [chunks, heads, width - 1], "that of 'memory'"),
                  ("colsum_inter", [chunks, heads, width + 1], "that of 'memory'"), ("scores", [heads * n], "1 dimensions"),
                  ("scores", [0, n], "1 to"), ("scores", [heads, 0], "1 to"), ("chunk_start", [1], "2 to"),
                  ("chunk_start", [0], "2 to"), ("chunk_start", [chunks + 1, 1], "2 dimensions"),
                  ("scores", [heads, n + 1], "chunk_start"))
        for name, shape, word in shapes:
            dtype = self.good[0][name].dtype
            data = bytes(math.prod(shape) * (2 if dtype == "BF16" else 4))
            self.refuse_atlas(self.changed(**{name: Tensor(dtype, shape, data=data)}), word)

    def test_more_chunks_than_tokens(self):
        n = self.good[0]["scores"].shape[1]
        self.refuse_atlas(self.changed(chunk_start=Tensor("I32", [n + 2], data=bytes(4 * (n + 2)))), "2 to n + 1")

    def test_chunk_starts(self):
        for index, value in ((0, 1), (0, -1), (1, 0), (2, 16), (2, -5), (1, 2**31 - 1), (-1, 149), (-1, 151)):
            index %= len(self.good[0]["chunk_start"].values)
            self.refuse_atlas(self.with_value("chunk_start", index, "<i", value), "'chunk_start'", f"entry {index} is {value}")

    def test_memory_sets(self):
        width, heads = self.good[0]["memory"].shape[2], 4
        row = 3 * heads * width  # chunk 3, head 0: a full set
        first = self.good[0]["memory"].values[row]
        for index, value in ((row, -2), (row, 48), (row, 2**31 - 1), (row + 1, first), (row + width - 1, 0), (row + 1, -1)):
            self.refuse_atlas(self.with_value("memory", index, "<i", value), "'memory'", "chunk 3, head 0", "ascend")

    def test_scores_that_are_no_numbers(self):
        for bits, word in ((0x7FC0, "nan"), (0x7F80, "inf"), (0xBF80, "-1")):
            self.refuse_atlas(self.with_value("scores", 150 + 7, "<H", bits), "head 1, token 7", word, "finite")
        for value, word in ((math.nan, "nan"), (math.inf, "inf"), (-1.0, "-1")):
            index = 3 * 4 * self.good[0]["memory"].shape[2]
            self.refuse_atlas(self.with_value("colsum_inter", index, "<f", value), "'colsum_inter'", word, "finite")

    def test_page_that_would_be_too_large(self):
        # Scores that lie in a hole of the file: 40 heads of a million tokens in one chunk, 80 MB.
        n, heads = 1_000_000, 40
        tensors = {"chunk_start": ("I32", [2], 8), "memory": ("I32", [1, heads, 0], 0),
                   "colsum_inter": ("F32", [1, heads, 0], 0), "scores": ("BF16", [heads, n], 2 * heads * n)}
        header, at = {"__metadata__": {"format": "headwater-attend-1", "local": "1"}}, 0
        for name, (dtype, shape, size) in tensors.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
            at += size
        path = self.put(file_of(header, struct.pack("<2i", 0, n)), "large.safetensors")
        os.truncate(path, os.path.getsize(path) + 2 * heads * n)
        done = self.atlas(path=path)
        self.assert_refused(done, "40 heads", "64.0 MiB", "--head")
        self.assertEqual(sorted(os.listdir(self.directory)), ["in.safetensors", "large.safetensors", "out.safetensors"])


if __name__ == "__main__":
    unittest.main()
