"""The conformance program from outside: exit codes, JSON, JUnit, reproduction, and `verify` on right and damaged files.

usage: test_program.py HEADWATER_CONFORMANCE HEADWATER
"""

import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

KIT = ""
PROGRAM = ""


def kit(*arguments):
    return subprocess.run([KIT, *map(str, arguments)], capture_output=True, text=True, check=False)


def write_tensors(path, tensors, metadata=None):
    """tensors: name -> (dtype, shape, bytes)."""
    header = {} if metadata is None else {"__metadata__": metadata}
    data = b""
    for name, (dtype, shape, blob) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(blob)]}
        data += blob
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def write_bytes(path, blob):
    with open(path, "wb") as file:
        file.write(blob)


def read_tensors(path):
    with open(path, "rb") as file:
        blob = file.read()
    size = struct.unpack("<Q", blob[:8])[0]
    header = json.loads(blob[8 : 8 + size])
    metadata = header.pop("__metadata__")
    base = 8 + size
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = (entry["dtype"], entry["shape"], bytearray(blob[base + begin : base + end]))
    return tensors, metadata


class Verify(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.input = self.path("in.safetensors")
        self.output = self.path("out.safetensors")

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def attend(self, tokens, *flags, heads=4, heads_kv=2, d=8, dv=5, extras=False, bf16=False):
        draw = random.Random(tokens)

        def rows(width, count):
            values = [draw.gauss(0.0, 1.0) for _ in range(tokens * count * width)]
            if not bf16:
                return ("F32", [tokens, count, width], struct.pack(f"<{len(values)}f", *values))
            halves = [struct.unpack("<I", struct.pack("<f", x))[0] >> 16 for x in values]
            return ("BF16", [tokens, count, width], struct.pack(f"<{len(halves)}H", *halves))

        tensors = {"q": rows(d, heads), "k": rows(d, heads_kv), "v": rows(dv, heads_kv)}
        if extras:
            tensors["sinks"] = ("F32", [heads], struct.pack(f"<{heads}f", 0.5, float("-inf"), -1.0, 2.0))
            tensors["alibi"] = ("F32", [heads], struct.pack(f"<{heads}f", 0.5, 0.25, 0.125, 0.0625))
        write_tensors(self.input, tensors)
        done = subprocess.run([PROGRAM, "attend", self.input, "-o", self.output, *flags], capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def verify(self, *flags):
        return kit("verify", self.input, self.output, *flags)

    def test_sound_outputs_pass(self):
        runs = [
            ("-ub", "16", "-b", "32", "--h2o-local", "4", "--h2o-heavy", "4"),
            ("-ub", "16", "-b", "40", "--h2o-local", "0", "--h2o-heavy", "7", "--score-type", "f32"),
            ("-ub", "8", "--h2o-local", "30", "--h2o-heavy", "90", "--h2o-no-clamp", "--softcap", "5"),
            ("--dense",),
            ("-ub", "16", "--h2o-local", "3", "--h2o-heavy", "3", "--steps", "p40,d1,d2,p9,d1,p47", "--scale", "0.7"),
            ("-ub", "16", "--h2o-local", "3", "--h2o-heavy", "3", "--engine", "reference"),
        ]
        for index, flags in enumerate(runs):
            with self.subTest(flags=flags):
                self.attend(100, *flags, extras=index % 2 == 1, bf16=index % 3 == 1)
                done = self.verify("--json")
                self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
                report = json.loads(done.stdout)
                self.assertEqual(report["status"], "PASS")
                self.assertTrue(report["replay"]["exact"])
                self.assertEqual(report["rows_not_judged"], 0)
                for tensor in ("out", "lse", "colsum_intra", "colsum_inter"):
                    self.assertLessEqual(report["tensors"][tensor]["max_error_over_bound"], 1.0)

    BLOCKS = ("-ub", "16", "--h2o-local", "4", "--h2o-heavy", "8", "--select", "blocks", "--key-block", "4",
              "--query-block", "6", "--pool", "3")

    def test_sound_outputs_of_rule_blocks_pass(self):
        runs = [
            self.BLOCKS,
            (*self.BLOCKS, "--refine", "1"),
            (*self.BLOCKS, "--steps", "p40,d1,d2,p9,d1,p47", "--scale", "0.7"),
            (*self.BLOCKS, "--engine", "reference", "--softcap", "5"),
            ("-ub", "16", "--h2o-local", "4", "--h2o-heavy", "4", "--select", "window"),
        ]
        for index, flags in enumerate(runs):
            with self.subTest(flags=flags):
                self.attend(100, *flags, extras=index % 2 == 1, bf16=index % 3 == 1)
                done = self.verify("--json")
                self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
                report = json.loads(done.stdout)
                self.assertEqual((report["status"], report["replay"]["exact"]), ("PASS", True))
                self.assertGreater(report["replay"]["memory_sets"], 0)
                self.assertEqual(set(report["tensors"]), {"out", "lse", "block_votes", "token_votes"})
                for worst in report["tensors"].values():
                    self.assertLessEqual(worst["max_error_over_bound"], 1.0)

    def test_votes_on_more_than_2048_candidates_pass(self):
        """SEL-12: only some regions are searched; the votes on all others are -infinity."""
        flags = ("-ub", "64", "--h2o-local", "4", "--h2o-heavy", "8", "--select", "blocks", "--key-block", "1", "--query-block",
                 "64", "--pool", "64", "--pinned", "2")
        self.attend(2500, *flags, heads=2, heads_kv=1, d=4, dv=3)
        report = json.loads(self.verify("--json").stdout)
        self.assertEqual((report["status"], report["replay"]["exact"]), ("PASS", True))
        self.assertLessEqual(report["tensors"]["block_votes"]["max_error_over_bound"], 1.0)

    def test_every_spoiled_tensor_of_rule_blocks_fails(self):
        def scale_first_vote(blob):
            # The first vote that is a number other than 0.
            for at in range(0, len(blob), 4):
                (value,) = struct.unpack_from("<f", blob, at)
                if value == value and value != 0.0:
                    struct.pack_into("<f", blob, at, value * 1.01)
                    return

        def exchange_sets(blob):
            # The sets of the last two query blocks (4 of 1 rows and 16 before them) change places.
            size = 2 * 12 * 4
            blob[-2 * size :] = blob[-size:] + blob[-2 * size : -size]

        spoilers = {
            "out": (lambda blob: struct.pack_into("<f", blob, 4 * 77, 9.0), 1, "out: 1 elements beyond the bound"),
            "lse": (lambda blob: struct.pack_into("<f", blob, 4 * 55, 9.0), 1, "lse: 1 elements beyond the bound"),
            "block_votes": (scale_first_vote, 1, "block_votes: 1 elements beyond the bound"),
            "token_votes": (scale_first_vote, 1, "token_votes: 1 elements beyond the bound"),
            "block_sets": (exchange_sets, 1, "replay: chunk"),
            "scores": (lambda blob: blob.__setitem__(40, 1), 1, "replay: final scores"),
            "colsum_intra": (lambda blob: struct.pack_into("<f", blob, 0, 1.0), 2, "not 0 under rule blocks"),
            "query_blocks": (lambda blob: struct.pack_into("<i", blob, 4, 5), 2, "query block 0 is [0, 5)"),
        }
        for name, (change, status, message) in spoilers.items():
            with self.subTest(tensor=name):
                self.attend(90, *self.BLOCKS)
                self.spoil(name, change)
                done = self.verify()
                self.assertEqual(done.returncode, status, f"{name}: {done.stdout}{done.stderr}")
                self.assertIn(message, done.stdout + done.stderr)

    def test_bad_sizes_of_rule_blocks_are_refused(self):
        self.attend(90, *self.BLOCKS)
        tensors, metadata = read_tensors(self.output)
        for key, value in (("select", "votes"), ("key_block", "0"), ("key_block", "3"), ("key_block", "17"), ("query_block", "17"),
                           ("query_block", "-6"), ("pool", "4"), ("pool", "0"), ("refine", "17"), ("refine", "many"),
                           ("pool", None), ("query_block", "3")):
            with self.subTest(key=key, value=value):
                changed = {k: v for k, v in {**metadata, key: value}.items() if v is not None}
                write_tensors(self.output, tensors, changed)
                done = self.verify()
                self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)

    def test_pinned_tokens_and_dense_layers_and_turns(self):
        h2o = ("-ub", "16", "--h2o-local", "4", "--h2o-heavy", "8")
        for rule in (h2o, self.BLOCKS):
            for flags in (("--pinned", "8"), ("--dense-below", "91"), ("--dense-layers", "0")):
                with self.subTest(rule=rule, flags=flags):
                    self.attend(90, *rule, *flags)
                    self.assertEqual(self.verify().returncode, 0)
        # A file that says what its sets do not hold, and what no file may say.
        for rule, key, value, status in ((h2o, "pinned", "8", 1), (h2o, "dense_layers", "0", 1), (h2o, "pinned", "-1", 2),
                                         (h2o, "pinned", "9", 2), (h2o, "pinned", "many", 2), (h2o, "dense_below", "-1", 2),
                                         (h2o, "dense_layers", "1", 2), (self.BLOCKS, "pinned", "1", 2),
                                         (self.BLOCKS, "pinned", "8", 1), (self.BLOCKS, "dense_layers", "0", 1)):
            with self.subTest(rule=rule, key=key, value=value):
                self.attend(90, *rule)
                tensors, metadata = read_tensors(self.output)
                write_tensors(self.output, tensors, {**metadata, key: value})
                done = self.verify()
                self.assertEqual(done.returncode, status, done.stdout + done.stderr)

    def test_rows_in_8_bits(self):
        h2o = ("-ub", "16", "--h2o-local", "4", "--h2o-heavy", "8")
        for rule in (h2o, self.BLOCKS):
            self.attend(90, *rule, "--kv-bits", "8", d=64, dv=32)
            tensors, metadata = read_tensors(self.output)
            # The outputs are not those of the rows as they were given.
            for value, status in (("8", 0), (None, 1), ("4", 2), ("0", 2), ("many", 2)):
                with self.subTest(rule=rule, value=value):
                    changed = {k: v for k, v in {**metadata, "kv_bits": value}.items() if v is not None}
                    write_tensors(self.output, tensors, changed)
                    done = self.verify()
                    self.assertEqual(done.returncode, status, done.stdout + done.stderr)

    def spoil(self, name, change):
        tensors, metadata = read_tensors(self.output)
        dtype, shape, blob = tensors[name]
        change(blob)
        write_tensors(self.output, tensors, metadata)

    def test_every_spoiled_tensor_fails(self):
        def scale(position, factor):
            def change(blob):
                (value,) = struct.unpack_from("<f", blob, 4 * position)
                struct.pack_into("<f", blob, 4 * position, value * factor + 1e-30)

            return change

        def next_set_entry(blob):
            # The first entry of the last chunk's set of head 0 becomes the position after it.
            at = len(blob) - 4 * 4 * 8
            (value,) = struct.unpack_from("<i", blob, at)
            struct.pack_into("<i", blob, at, value + 1)

        spoilers = {
            "out": scale(77, 1.001),
            "lse": scale(55, 1.001),
            "colsum_intra": scale(20, 1.001),
            "colsum_inter": scale(-1, 1.0),
            "memory": next_set_entry,
            "scores": lambda blob: blob.__setitem__(40, blob[40] ^ 1),
        }
        for name, change in spoilers.items():
            with self.subTest(tensor=name):
                self.attend(90, "-ub", "16", "--h2o-local", "4", "--h2o-heavy", "4")
                if name == "colsum_inter":
                    change = lambda blob: struct.pack_into("<f", blob, len(blob) - 4, 3.25)
                self.spoil(name, change)
                done = self.verify()
                self.assertEqual(done.returncode, 1, f"{name}: {done.stdout}{done.stderr}")
                self.assertIn("FAIL", done.stdout)

    def test_every_row_of_dense_and_decode_chunks_is_judged(self):
        # Rows of a dense chunk are judged in runs of 256.
        for flags, rows in ((("--dense",), (0, 255, 256, 299)),
                            (("-ub", "16", "--h2o-local", "3", "--h2o-heavy", "3", "--steps", "p40,d1,d2,p257"), (40, 42, 43, 299))):
            self.attend(300, *flags)
            sound = read_tensors(self.output)
            for row in rows:
                for name, width in (("out", 4 * 5), ("lse", 4)):
                    with self.subTest(flags=flags, row=row, tensor=name):
                        tensors = {key: (dtype, shape, bytearray(blob)) for key, (dtype, shape, blob) in sound[0].items()}
                        at = 4 * ((row + 1) * width - 1)  # the last element of the row
                        (value,) = struct.unpack_from("<f", tensors[name][2], at)
                        struct.pack_into("<f", tensors[name][2], at, value * 1.01 + 0.01)
                        write_tensors(self.output, tensors, sound[1])
                        done = self.verify()
                        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
                        self.assertIn(f"{name}: 1 elements beyond the bound, first token {row} head 3", done.stdout)

    def test_scores_of_a_single_chunk_are_replayed(self):
        self.attend(30, "-ub", "32", "--h2o-local", "4", "--h2o-heavy", "4")
        self.spoil("scores", lambda blob: blob.__setitem__(40, blob[40] ^ 1))
        done = self.verify()
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("replay: final scores", done.stdout)

    def test_a_nan_is_the_largest_error(self):
        self.attend(64, "-ub", "16", "--h2o-local", "4", "--h2o-heavy", "4")
        sound = self.path("sound.safetensors")
        with open(self.output, "rb") as source, open(sound, "wb") as copy:
            copy.write(source.read())
        self.spoil("out", lambda blob: struct.pack_into("<f", blob, 40, float("nan")))
        done = self.verify("--against", sound, "--json")
        self.assertEqual(done.returncode, 1, done.stderr)
        report = json.loads(done.stdout)
        self.assertIn("out", report["problems"][0] if "problems" in report else done.stdout)
        self.assertIsNone(report["tensors"]["out"]["max_error"])
        self.assertIsNone(report["tensors"]["out"]["max_error_over_bound"])
        self.assertEqual(report["tensors"]["out"]["beyond_bound"], 1)
        self.assertIsNone(report["against"]["max_difference"])

    def test_against_another_output(self):
        self.attend(64, "-ub", "16", "--h2o-local", "4", "--h2o-heavy", "4")
        sparse = self.output
        self.output = self.path("dense.safetensors")
        self.attend(64, "--dense")
        dense, self.output = self.output, sparse
        report = json.loads(self.verify("--against", dense, "--json").stdout)
        self.assertGreater(report["against"]["max_difference"], 1e-3)
        self.assertGreater(report["against"]["rms_difference"], 0.0)
        self.assertLess(report["against"]["rms_difference"], report["against"]["max_difference"])
        report = json.loads(self.verify("--against", sparse, "--json").stdout)
        self.assertEqual(report["against"]["max_difference"], 0.0)

    def test_bad_files_are_refused_in_one_line(self):
        self.attend(40, "-ub", "16", "--h2o-local", "4", "--h2o-heavy", "4")
        with open(self.output, "rb") as file:
            sound = file.read()
        tensors, metadata = read_tensors(self.output)

        def changed(name, dtype=None, shape=None, blob=None):
            spoiled = dict(tensors)
            old = spoiled[name]
            spoiled[name] = (dtype or old[0], shape or old[1], old[2] if blob is None else blob)
            return spoiled

        def without(key):
            return {name: value for name, value in metadata.items() if name != key}

        path = self.path("bad.safetensors")
        writers = {
            "empty": lambda: write_bytes(path, b""),
            "cut": lambda: write_bytes(path, sound[: len(sound) // 2]),
            "huge header": lambda: write_bytes(path, struct.pack("<Q", 1 << 60) + sound[8:]),
            "no JSON": lambda: write_bytes(path, struct.pack("<Q", 4) + b"nope"),
            "an array": lambda: write_bytes(path, struct.pack("<Q", 2) + b"[]"),
            "deep": lambda: write_bytes(path, struct.pack("<Q", 200000) + b"[" * 200000),
            "no metadata": lambda: write_tensors(path, tensors),
            "no scale": lambda: write_tensors(path, tensors, without("scale")),
            "words": lambda: write_tensors(path, tensors, dict(metadata, chunk="many")),
            "negative": lambda: write_tensors(path, tensors, dict(metadata, local="-1")),
            "no out": lambda: write_tensors(path, {k: v for k, v in tensors.items() if k != "out"}, metadata),
            "no memory": lambda: write_tensors(path, {k: v for k, v in tensors.items() if k != "memory"}, metadata),
            "sets of query blocks": lambda: write_tensors(path, {**tensors, "block_sets": tensors["memory"]}, metadata),
            "wrong shape": lambda: write_tensors(path, changed("lse", shape=[4, 40]), metadata),
            "wrong type": lambda: write_tensors(path, changed("lse", dtype="I32"), metadata),
            "starts": lambda: write_tensors(path, changed("chunk_start", blob=struct.pack("<4i", 0, 30, 20, 40)), metadata),
            "beyond": lambda: write_tensors(path, changed("memory", blob=struct.pack("<96i", *([39] * 96))), metadata),
        }
        for name, write in writers.items():
            with self.subTest(file=name):
                write()
                done = kit("verify", self.input, path)
                self.assertEqual(done.returncode, 2, f"{name}: {done.stdout}{done.stderr}")
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
                self.assertIn("bad.safetensors", done.stderr)
        done = kit("verify", self.path("missing"), self.output)
        self.assertEqual(done.returncode, 2)

    def test_nan_rows_are_said_not_judged(self):
        self.attend(40, "-ub", "16", "--h2o-local", "4", "--h2o-heavy", "4")
        tensors = {}
        with open(self.input, "rb") as file:
            blob = file.read()
        size = struct.unpack("<Q", blob[:8])[0]
        header = json.loads(blob[8 : 8 + size])
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            tensors[name] = (entry["dtype"], entry["shape"], bytearray(blob[8 + size + begin : 8 + size + end]))
        struct.pack_into("<f", tensors["v"][2], len(tensors["v"][2]) - 4, float("nan"))
        write_tensors(self.input, tensors)
        done = subprocess.run([PROGRAM, "attend", self.input, "-o", self.output, "-ub", "16", "--h2o-local", "4",
                               "--h2o-heavy", "4"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(self.verify("--json").stdout)
        self.assertEqual(report["status"], "PASS")
        self.assertEqual(report["rows_not_judged"], 2 * 8)  # the last chunk of the two heads that read it


class Program(unittest.TestCase):
    def test_list_names_clauses(self):
        done = kit("--list", "--json")
        self.assertEqual(done.returncode, 0)
        cases = json.loads(done.stdout)["cases"]
        self.assertGreater(len(cases), 60)
        self.assertTrue(all(case["clauses"] and case["lane"] and case["stage"] for case in cases))
        self.assertEqual(len({case["name"] for case in cases}), len(cases))
        human = kit("--list")
        self.assertEqual(len(human.stdout.splitlines()), len(cases))

    def test_filters_and_outputs(self):
        with tempfile.TemporaryDirectory() as folder:
            junit = os.path.join(folder, "junit.xml")
            results = os.path.join(folder, "results.json")
            done = kit("--engine", "reference", "--lane", "exact", "--quick", "--no-ratchet", "--json", results, "--junit", junit)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            with open(results, encoding="utf-8") as file:
                report = json.load(file)
            self.assertTrue(all(r["lane"] == "exact" and r["engine"] == "reference" for r in report["results"]))
            self.assertEqual(report["totals"]["PASS"], len(report["results"]))
            suites = xml.etree.ElementTree.parse(junit).getroot()
            self.assertEqual(sum(int(suite.get("tests")) for suite in suites), len(report["results"]))
        done = kit("--clause", "SCORE-4", "--engine", "none", "--json", "-")
        names = [result["case"] for result in json.loads(done.stdout)["results"]]
        self.assertIn("stage.bf16_rounding", names)
        self.assertTrue(all("SCORE-4" in result["clauses"] for result in json.loads(done.stdout)["results"]))

    def test_a_failure_prints_how_to_repeat_it(self):
        with tempfile.TemporaryDirectory() as folder:
            baselines = os.path.join(folder, "baselines.json")
            with open(baselines, "w", encoding="utf-8") as file:
                json.dump({}, file)
            done = kit("--engine", "reference", "--case", "bound.scale", "--ratchet", baselines)
            self.assertEqual(done.returncode, 1)
            self.assertIn("ratchet: no baselines for reference/scalar", done.stdout)
            self.assertIn(f"--engine reference --case bound.scale --seed 1 --ratchet '{baselines}'", done.stdout)

    def test_cpu_has_the_marks_of_the_engine_that_it_stands_for(self):
        for strictly in ([], ["--ratchet"]):
            done = kit("--engine", "cpu", "--case", "bound.plain_f32,bound.scale", *strictly)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertNotIn("no baselines", done.stdout)
        with tempfile.TemporaryDirectory() as folder:
            baselines = os.path.join(folder, "baselines.json")
            done = kit("--engine", "cpu", "--case", "bound.scale", "--update-ratchet", baselines)
            self.assertEqual(done.returncode, 0, done.stdout)
            with open(baselines, encoding="utf-8") as file:
                self.assertNotIn("cpu", {name.partition("/")[0] for name in json.load(file)})

    def test_ratchet_catches_twice_the_mark(self):
        with tempfile.TemporaryDirectory() as folder:
            baselines = os.path.join(folder, "baselines.json")
            done = kit("--engine", "reference", "--case", "bound.scale", "--update-ratchet", baselines)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(kit("--engine", "reference", "--case", "bound.scale", "--ratchet", baselines).returncode, 0)
            with open(baselines, encoding="utf-8") as file:
                table = json.load(file)
            for cases in table.values():
                for stage in cases.get("bound.scale", {}):
                    cases["bound.scale"][stage] /= 3.0
            with open(baselines, "w", encoding="utf-8") as file:
                json.dump(table, file)
            done = kit("--engine", "reference", "--case", "bound.scale", "--ratchet", baselines)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn("more than 2 times", done.stdout)

    def test_bad_usage(self):
        for arguments in (["--nope"], ["--lane", "nope"], ["--case", "nope"], ["--seed", "x"], ["--threads", "0"],
                          ["--list", "--clauses"], ["verify"], ["--ratchet", "/nonexistent"], ["--saboteurs"],
                          ["--update-ratchet", "x.json", "--seed", "3"], ["--engine", "none", "--case", "bound.scale"]):
            with self.subTest(arguments=arguments):
                done = kit(*arguments)
                self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
                self.assertEqual(done.stdout, "")
        done = kit("--engine", "cpu-p*,reference", "--case", "exact.one_key", "--must-pass", "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([r["engine"] for r in json.loads(done.stdout)["results"]], ["cpu-portable", "reference"])
        done = kit("--engine", "x*")
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertIn("--engine x*: no engine of this machine matches", done.stderr)
        done = kit("--engine", "abacus")
        self.assertEqual(done.returncode, 2)
        self.assertIn("reference", done.stderr)
        self.assertEqual(kit("--help").returncode, 0)


if __name__ == "__main__":
    KIT, PROGRAM = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1])
