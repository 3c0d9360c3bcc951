"""`headwater bench`: what it says adds up, and bad flags are refused in one line. No time is asserted."""

import json
import unittest

from support import ProgramTest

SMALL = ("-n", "70", "--heads", "4", "--kv-heads", "2", "-d", "12", "--d-value", "7", "-b", "32", "-ub", "16",
         "--h2o-local", "3", "--h2o-heavy", "4", "--rounds", "3")
# PLAN-1: batches of 32 in chunks of 16; chunks after the first see 7 entries. 70 tokens densely.
PAIRS = 4 * 16 * 17 // 2 + 6 * 7 // 2 + 7 * (3 * 16 + 6)
PAIRS_DENSE = 70 * 71 // 2
INTEGERS = {"-n": (1, 2147483647), "--heads": (1, 65536), "--kv-heads": (1, 65536), "-d": (1, 65536),
            "--d-value": (1, 65536), "-b": (1, 2147483647), "-ub": (1, 2147483647), "--h2o-local": (0, 2147483647),
            "--h2o-heavy": (0, 2147483647), "--pinned": (0, 2147483647), "--dense-below": (0, 2147483647),
            "--kv-bits": (0, 8), "-t": (0, 512), "--rounds": (1, 1000), "--seed": (0, 2147483647)}


class BenchTest(ProgramTest):
    def bench(self, *arguments, **options):
        done = self.run_program("bench", *arguments, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def report(self, *arguments, **options):
        return json.loads(self.bench(*arguments, "--json", **options).stdout)

    def refuse(self, *arguments, words=(), code=2):
        done = self.run_program("bench", *arguments)
        self.assert_refused(done, "headwater bench: ", *words, code=code)


class Report(BenchTest):
    def check(self, report):
        self.assertEqual(report["sparse"]["pairs"], PAIRS)
        self.assertEqual(report["dense"]["pairs"], PAIRS_DENSE)
        self.assertAlmostEqual(report["pair_ratio"], PAIRS_DENSE / PAIRS)
        self.assertEqual(report["rounds"], 3)
        ratios = []
        for sparse, dense in zip(report["sparse"]["judged_seconds"], report["dense"]["judged_seconds"]):
            ratios.append(dense / sparse)
        self.assertAlmostEqual(report["speed_up"], sorted(ratios)[1])
        for name in ("sparse", "dense"):
            run = report[name]
            seconds = run["seconds"]
            self.assertEqual(len(seconds["rounds"]), 3)
            self.assertEqual(seconds["median"], sorted(seconds["rounds"])[1])
            self.assertEqual(seconds["p10"], min(seconds["rounds"]))
            self.assertGreater(seconds["p10"], 0)
            flops = 2 * (12 + 7) * 4 * run["pairs"]
            judged = sorted(run["judged_seconds"])[1]
            self.assertAlmostEqual(run["gflops"], 1e-9 * flops / judged)
            self.assertAlmostEqual(run["tokens_per_second"], 70 / judged, delta=1e-6 * 70 / judged)
            if report["judged_by"] == "wall time":
                self.assertEqual(run["judged_seconds"], seconds["rounds"])
            checked = run["checked"]
            self.assertEqual(checked["rows"], 24)
            self.assertLessEqual(checked["worst_row_error_over_bound"], 1)
            self.assertEqual(checked["heads_replayed"], 4 if name == "sparse" else 0)
            self.assertEqual(checked["column_sums"] > 0, name == "sparse")
        peak = report["peak"]
        self.assertEqual(peak["gflops"] is None, peak["missing"] != "")
        self.assertEqual(report["sparse"]["share_of_peak"] is None, peak["missing"] != "")

    def test_every_engine_and_type(self):
        for engine in json.loads(self.run_program("info", "--json").stdout)["engines"]:
            if not engine["available"]:
                continue
            for dtype in ("f32", "f16", "bf16"):
                with self.subTest(engine=engine["name"], dtype=dtype):
                    report = self.report(*SMALL, "--engine", engine["name"], "--dtype", dtype, "-t", "2")
                    self.assertEqual((report["engine"], report["isa"], report["dtype"]),
                                     (engine["name"], engine["isa"], dtype.upper()))
                    self.assertEqual(report["threads"], 1 if engine["name"] == "reference" else 2)
                    self.assertEqual(report["effective"], {"batch": 32, "chunk": 16, "local": 3, "heavy": 4,
                                                           "schedule": "layer-major", "select": "h2o", "pinned": 0,
                                                           "dense_below": 0, "kv_bits": 0, "dense_layers": []})
                    self.check(report)

    def test_rules(self):
        own = 4 * 136 + 21
        blocks = ("--select", "blocks", "--key-block", "4", "--query-block", "8")
        for engine in ("reference", "cpu-portable"):
            for flags, pairs in ((blocks, own + (16 * 3 + 6) * 4),  # Local ends where a key block begins: it is empty
                                 ((*blocks, "--refine", "1"), own + (16 * 3 + 6) * 4),
                                 (("--select", "window"), own + (16 * 3 + 6) * 7),
                                 (("--select", "sketches", "--query-block", "8"), own + (16 * 3 + 6) * 7)):  # at most
                report = self.report(*SMALL, *flags, "--engine", engine)
                self.assertEqual(report["effective"]["select"], flags[1])
                self.assertEqual(report["effective"].get("key_block"), 4 if flags[1] == "blocks" else None)
                self.assertEqual(report["sparse"]["pairs"], pairs)
                checked = report["sparse"]["checked"]
                self.assertEqual((checked["rows"], checked["heads_replayed"], checked["column_sums"]), (24, 4, 0))
                self.assertLessEqual(checked["worst_row_error_over_bound"], 1)

    def test_rows_in_8_bits(self):
        """What is judged is what the rows are restored to."""
        for engine in ("reference", "cpu-portable"):
            report = self.report(*SMALL, "-d", "32", "--d-value", "64", "--kv-bits", "8", "--engine", engine)
            self.assertEqual(report["effective"]["kv_bits"], 8)
            for name in ("sparse", "dense"):
                self.assertLessEqual(report[name]["checked"]["worst_row_error_over_bound"], 1)

    def test_pinned_and_dense(self):
        own = 4 * 136 + 21
        for engine in ("reference", "cpu-portable"):
            for flags, pairs in ((("--pinned", "2"), PAIRS), (("--select", "window", "--pinned", "2"), PAIRS),
                                 (("--select", "blocks", "--key-block", "4", "--query-block", "8", "--pinned", "4"),
                                  own + (16 * 3 + 6) * 4),
                                 (("--dense-layers", "0"), PAIRS_DENSE), (("--dense-below", "71"), PAIRS_DENSE),
                                 (("--dense-below", "70"), PAIRS)):
                report = self.report(*SMALL, *flags, "--engine", engine)
                self.assertEqual(report["sparse"]["pairs"], pairs)
                name = flags[-2].removeprefix("--").replace("-", "_")
                self.assertEqual(report["effective"][name], [0] if name == "dense_layers" else int(flags[-1]))
                self.assertLessEqual(report["sparse"]["checked"]["worst_row_error_over_bound"], 1)
        self.refuse(*SMALL, "--dense-layers", "1", words=["--dense-layers: 1 ", "0 to 0"])
        self.refuse(*SMALL, "--pinned", "5", words=["--pinned: 5 ", "--h2o-heavy 4"])

    def test_schedule_and_seed(self):
        report = self.report(*SMALL, "--schedule", "chunk-major", "--seed", "9")
        self.assertEqual((report["effective"]["schedule"], report["seed"]), ("chunk-major", 9))
        self.check(report)

    def test_without_dense(self):
        report = self.report(*SMALL, "--no-dense", "-t", "1")
        self.assertEqual(report["judged_by"], "processor time")
        self.assertNotIn("dense", report)
        self.assertNotIn("speed_up", report)
        self.assertGreater(report["sparse"]["gflops"], 0)

    def test_text(self):
        done = self.bench(*(argument if argument != "32" else "30" for argument in SMALL))
        text = done.stdout.decode()
        for word in ("engine ", "checked", "4 heads replayed bit for bit", "speed-up", "fewer pairs", "GFLOP/s"):
            self.assertIn(word, text)
        self.assertRegex(done.stderr.decode(), r"^warning: batch 30[^\n]*\n$")
        self.assertNotIn("dense", self.bench(*SMALL, "--no-dense").stdout.decode())

    def test_chunks_too_long_to_judge_a_column_sum_are_said(self):
        done = self.bench("-n", "3", "--heads", "1", "--kv-heads", "1", "-d", "2", "--rounds", "1", "-ub", "4096")
        self.assertNotIn("no column sum", done.stdout.decode())
        report = self.report("-n", "2100", "--heads", "1", "--kv-heads", "1", "-d", "2", "--rounds", "1", "-ub", "2100")
        self.assertEqual(report["sparse"]["checked"]["column_sums"], 0)

    def test_help(self):
        text = self.bench("--help").stdout.decode()
        for word in ("Example", "--rounds", "--h2o-local", "Exit status"):
            self.assertIn(word, text)


class Refused(BenchTest):
    def test_integers(self):
        for flag, (low, high) in INTEGERS.items():
            for text in ("", "-5", "x", "1e3", " 1", str(low - 1), str(high + 1), "9" * 30):
                with self.subTest(flag=flag, text=text):
                    self.refuse(flag, text, words=(flag, f"'{text}'", f"from {low} to {high}"))

    def test_choices(self):
        self.refuse("--dtype", "f64", words=("--dtype", "'f64'", "f32, f16 or bf16"))
        self.refuse("--schedule", "", words=("--schedule", "''", "chunk-major"))
        self.refuse("--engine", "", words=("--engine",))
        self.refuse("--engine", "warp", words=("'warp'", "cpu-portable"))

    def test_shapes(self):
        self.refuse("--heads", "5", "--kv-heads", "2", words=("n_head", "5"))
        self.refuse("--h2o-local", "0", "--h2o-heavy", "0", words=("--h2o-local 0", "--h2o-heavy 0"))
        self.refuse("-ub", "1", words=("chunks of 1",))
        self.refuse("--h2o-no-clamp", "--h2o-local", "2147483647", "--h2o-heavy", "1", words=("2147483648",))

    def test_more_than_the_machine_holds(self):
        self.refuse("-n", "2147483647", words=("-n 2147483647", "GiB"))
        self.refuse("-n", "2147483647", "--heads", "65536", "--kv-heads", "65536", "-d", "65536", words=("GiB",))

    def test_usage(self):
        self.refuse("--foo", words=("--foo", "see headwater bench --help"))
        self.refuse("extra", words=("extra",))
        self.refuse("-n", "5", "-n", "x", words=("-n", "'x'"))
        self.refuse("-n", words=("--tokens",))


if __name__ == "__main__":
    unittest.main()
