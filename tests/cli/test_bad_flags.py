"""Bad usage: each is one line on standard error that names the flag, its value and what is allowed."""

import json
import math
import os
import stat
import unittest

from support import ProgramTest, problem

INTEGERS = {"--batch": (1, 2147483647), "-b": (1, 2147483647), "--batch-size": (1, 2147483647),
            "--chunk": (1, 2147483647), "-ub": (1, 2147483647), "--ubatch-size": (1, 2147483647),
            "--h2o-local": (0, 2147483647), "--h2o-heavy": (0, 2147483647),
            "--pinned": (0, 2147483647), "--dense-below": (0, 2147483647), "--kv-bits": (0, 8),
            "--key-block": (1, 256), "--query-block": (1, 2147483647), "--pool": (1, 2147483647), "--refine": (1, 16),
            "-t": (0, 512), "--threads": (0, 512), "--repeat": (1, 1000)}
SPOKEN = {flag: spoken for spoken, flags in {
    "-b (--batch)": ("-b", "--batch", "--batch-size"), "-ub (--chunk)": ("-ub", "--chunk", "--ubatch-size"),
    "-t (--threads)": ("-t", "--threads")}.items() for flag in flags}


class Numbers(ProgramTest):
    def setUp(self):
        super().setUp()
        self.input = self.put(problem(n=4))

    def test_integers(self):
        for flag, (low, high) in INTEGERS.items():
            for text in ("", "-5", "-1", "12x", "x", "1e9", "1.0", " 1", "1 ", "+1", "0x10", "nan", "inf", "1,0",
                         str(low - 1), str(high + 1), "99999999999", "9" * 30, "--json"):
                with self.subTest(flag=flag, text=text):
                    self.refuse(self.input, SPOKEN.get(flag, flag) + ": ", f"'{text}'", f"from {low} to {high}",
                                arguments=[flag, text])

    def test_bits_of_rows(self):
        self.refuse(self.input, "--kv-bits: 4 ", "0 or 8", arguments=["--kv-bits", "4"])
        self.refuse(self.input, "kv_bits is 8", "d_head is 8", "32", arguments=["--kv-bits", "8"])

    def test_attached_values(self):
        self.refuse(self.input, "--chunk", "''", arguments=["--chunk="])
        self.refuse(self.input, "--chunk", "'0'", arguments=["-ub=0"])
        self.refuse(self.input, "--chunk", "'0'", arguments=["-ub0"])
        self.refuse(self.input, "--batch", "'0'", arguments=["-b0"])
        self.refuse(self.input, "--scale", "''", arguments=["--scale="])

    def test_sum_of_local_and_heavy(self):
        huge = ["--h2o-local", "2147483647", "--h2o-heavy", "1"]
        self.refuse(self.input, "--h2o-local", "--h2o-heavy", "2147483648", arguments=["--h2o-no-clamp", *huge])
        self.attend(self.input, *huge)  # clamped, never rejected (CFG-3)

    def test_reals(self):
        for flag in ("--scale", "--softcap"):
            for text in ("", "nan", "inf", "-inf", "1e400", "x", "1.0x", "1,5", " 1", "0x10"):
                with self.subTest(flag=flag, text=text):
                    self.refuse(self.input, flag, f"'{text}'", "finite", arguments=[flag, text])
        self.refuse(self.input, "--softcap", "'-1'", ">= 0", arguments=["--softcap", "-1"])

    def test_choices(self):
        for flag, allowed in (("--schedule", "chunk-major"), ("--score-type", "bf16"),
                              ("--select", "h2o, blocks, sketches or window")):
            for text in ("", "f16", "LAYER", "layers", "Blocks", "block", "1"):
                self.refuse(self.input, flag, f"'{text}'", allowed, arguments=[flag, text])

    def test_huge_memory_without_clamp(self):
        self.refuse(self.input, "trace", "--no-trace", "2147483646",
                    arguments=["--h2o-no-clamp", "-ub", "1", "--h2o-local", "2000000000", "--h2o-heavy", "147483646"])

    def test_huge_values_that_are_legal(self):
        self.attend(self.input, "-b", "2147483647", "-ub", "2147483647", "--h2o-local", "9", "--h2o-heavy", "9")
        self.attend(self.input, "--h2o-no-clamp", "-ub", "1", "--h2o-local", "2000000000", "--h2o-heavy", "0",
                    "--no-trace")


class Rule(ProgramTest):
    """SEL-1, SKE-1: sizes of rules `blocks` and `sketches`."""

    BLOCKS = ("--select", "blocks", "-ub", "64")

    def setUp(self):
        super().setUp()
        self.input = self.put(problem(n=100))

    def test_sizes_without_their_rule(self):
        for rule, arguments in (("h2o", ()), ("h2o", ("--select", "h2o")), ("window", ("--select", "window")),
                                ("h2o", ("--select", "blocks", "--select", "h2o"))):
            for flag in ("--key-block", "--query-block", "--pool", "--refine"):
                self.refuse(self.input, f"{flag} is a size of --select blocks", f"the rule is {rule}",
                            arguments=[*arguments, flag, "4"])

    def test_sizes_of_sketches(self):
        sketches = ("--select", "sketches", "-ub", "64")
        for flag in ("--key-block", "--pool", "--refine"):
            self.refuse(self.input, f"{flag} is a size of --select blocks", "the rule is sketches",
                        arguments=[*sketches, flag, "4"])
        for rule in ("h2o", "blocks", "window"):
            self.refuse(self.input, "--least-weight is a size of --select sketches", f"the rule is {rule}",
                        arguments=["--select", rule, "-ub", "64", "--least-weight", "0"])
        for arguments, words in (
                (["--query-block", "65"], ("--query-block: 65 ", "up to 64", "-ub")),
                (["--pinned", "9", "--h2o-heavy", "8"], ("--pinned: 9 ", "up to --h2o-heavy 8")),
                (["--least-weight", "1"], ("--least-weight: 1 ", "below 1")),
                (["--least-weight", "-0.1"], ("--least-weight", "'-0.1'", ">= 0")),
                (["--least-weight", "nan"], ("--least-weight", "'nan'", "finite"))):
            self.refuse(self.input, *words, arguments=[*sketches, *arguments])
        for arguments in (["--query-block", "64"], ["--query-block", "1", "--h2o-heavy", "5", "--pinned", "3"],
                          ["--least-weight", "0"], ["--least-weight", "0.999999"]):
            self.attend(self.input, *sketches, *arguments, "--engine", "reference")

    def test_sizes_that_do_not_fit(self):
        for arguments, words in (
                (["-ub", "7"], ("--key-block: 8 ", "up to 7", "-ub")),
                (["--key-block", "65"], ("--key-block: 65 ", "up to 64", "-ub")),
                (["-ub", "31"], ("--query-block: 32 ", "up to 31", "-ub")),
                (["--query-block", "65"], ("--query-block: 65 ", "up to 64", "-ub")),
                (["--pool", "3"], ("--pool: 3 ", "a divisor of --query-block 32")),
                (["--pool", "64"], ("--pool: 64 ", "a divisor of --query-block 32")),
                (["--query-block", "30"], ("--pool: 4 ", "a divisor of --query-block 30")),
                (["--h2o-heavy", "12"], ("--h2o-heavy: 12 ", "a multiple of --key-block 8")),
                (["--key-block", "3"], ("--h2o-heavy: 256 ", "a multiple of --key-block 3")),
                (["--h2o-no-clamp", "--h2o-local", "2147483647", "--h2o-heavy", "8"], ("--h2o-local", "2147483655")),
                (["--dense", "--pool", "3"], ("--pool: 3 ", "a divisor of --query-block 32"))):
            self.refuse(self.input, *words, arguments=[*self.BLOCKS, *arguments])

    def test_sizes_at_their_limits(self):
        for arguments in (["--key-block", "64", "--h2o-heavy", "64"], ["--query-block", "64", "--pool", "64"],
                          ["--query-block", "1", "--pool", "1"], ["--key-block", "1", "--refine", "16"],
                          ["-ub", "300", "--key-block", "256"], ["--h2o-heavy", "0", "--key-block", "7"]):
            self.attend(self.input, *self.BLOCKS, *arguments, "--engine", "reference")

    def test_window_of_all_that_fits(self):
        flags = ("--select", "window", "-ub", "16", "--h2o-local", "2147483647", "--h2o-heavy", "2147483647")
        _, metadata, error = self.attend(self.input, *flags, "--engine", "reference")
        self.assertEqual((metadata["local"], metadata["heavy"]), ("15", "0"))
        self.assertIn("warning: ", error)

    def test_engines_refuse_a_rule_that_they_lack_by_name(self):
        engines = json.loads(self.run_program("info", "--json").stdout)["engines"]
        for engine in (one["name"] for one in engines if one["available"]):
            done = self.run_program("attend", self.input, "-o", self.path("x"), *self.BLOCKS, "--engine", engine)
            if done.returncode != 0:
                self.assert_refused(done, "select is 1", f"engine {engine} has no other rule")

    def test_trace_that_does_not_fit(self):
        self.refuse(self.input, "trace", "--no-trace", "query block",
                    arguments=["--h2o-no-clamp", "--select", "window", "-ub", "1", "--h2o-local", "2147483646",
                               "--h2o-heavy", "0", "--engine", "reference"])


class PinnedAndDense(ProgramTest):
    """CFG-5, STATE-7."""

    def setUp(self):
        super().setUp()
        self.input = self.put(problem(n=100))

    def test_layers(self):
        for text, *words in (("", "''", "from 0 to 65535"), ("x", "'x'", "from 0 to 65535"), ("-1", "'-1'"), ("0-", "''"),
                             ("0,", "''"), (",0", "''"), ("0,,0", "''"), ("0.0", "'0.0'"), (" 0", "' 0'"), ("65536", "'65536'"),
                             ("9" * 30, "9" * 30), ("0-" + "9" * 30, "9" * 30), ("7-5", "'7-5' runs backwards", "FIRST-LAST"),
                             ("0,0", "layer 0 is given twice", "once"), ("0-2,2", "layer 2 is given twice"),
                             ("5,3-6", "layer 5 is given twice"), ("0-65535,0-65535", "more than 65536"),
                             ("1", "1 is not a layer", "0 to 0"), ("0-3", "3 is not a layer"), ("65535", "65535 is not")):
            with self.subTest(text=text):
                self.refuse(self.input, "--dense-layers: ", *words, arguments=["--dense-layers", text])
        for text in ("0", "00", "0-0"):
            _, metadata, _ = self.attend(self.input, "--dense-layers", text)
            self.assertEqual(metadata["dense_layers"], "0")

    def test_pinned(self):
        blocks, window = ("--select", "blocks", "-ub", "64"), ("--select", "window", "-ub", "64")
        for arguments, *words in (
                (["--pinned", "257"], "--pinned: 257 ", "up to --h2o-heavy 256"),
                (["--h2o-heavy", "0", "--pinned", "1"], "--pinned: 1 ", "--h2o-heavy 0"),
                (["--dense", "--h2o-heavy", "3", "--pinned", "4"], "--pinned: 4 ", "--h2o-heavy 3"),
                ([*blocks, "--pinned", "264"], "--pinned: 264 ", "--h2o-heavy 256"),
                ([*blocks, "--key-block", "8", "--pinned", "4"], "--pinned: 4 ", "a multiple of --key-block 8"),
                ([*blocks, "--key-block", "4", "--pinned", "6"], "--pinned: 6 ", "a multiple of --key-block 4"),
                ([*window, "--h2o-local", "3", "--h2o-heavy", "4", "--pinned", "8"], "--pinned: 8 ", "up to 7", "together")):
            self.refuse(self.input, *words, arguments=arguments)
        for arguments in (["--pinned", "256"], [*blocks, "--pinned", "8"], [*blocks, "--key-block", "3", "--h2o-heavy", "6",
                          "--pinned", "6"], [*window, "--h2o-local", "0", "--h2o-heavy", "1", "--pinned", "1"]):
            self.attend(self.input, *arguments)


class Usage(ProgramTest):
    def setUp(self):
        super().setUp()
        self.input = self.put(problem(n=4))

    def test_the_last_of_a_repeated_flag_counts(self):
        for arguments, key, value in ((["-ub", "2", "-b", "4", "-b", "8"], "batch", "8"),
                                      (["-ub", "2", "-b", "4", "--batch=8"], "batch", "8"),
                                      (["-ub4", "--chunk", "2"], "chunk", "2"), (["--chunk", "2", "-ub", "4"], "chunk", "4"),
                                      (["--dense", "--dense"], "local", "0"), (["--steps", "x", "--steps", "p4"], "scale", None)):
            _, metadata, _ = self.attend(self.input, *arguments)
            self.assertEqual(metadata[key], metadata[key] if value is None else value, arguments)
        done = self.run_program("attend", self.input, "-o", self.path("first"), "--output", self.path("last"), "--json",
                                "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(set(os.listdir(self.directory)) & {"first", "last"}), ["last"])
        # The last value counts: a wrong one before it is ignored, and a right one before it does not help.
        self.refuse(self.input, "--batch", "'x'", arguments=["-b", "4", "-b", "x"])
        self.attend(self.input, "-b", "x", "-b", "4")

    def test_flags_of_several_values(self):
        if self.run_program("generate", "--help").returncode != 0:
            self.skipTest("this build has no model runtime")
        model = ("-m", "nowhere", "-p", "x")
        for arguments, given in ((["--dump-qkv"], 0), (["--dump-qkv", "3"], 1), (["--dump-qkv=3"], 1),
                                 (["--dump-qkv", "3", "--json"], 1), (["--dump-qkv", "--json", "3"], 0),
                                 (["--dump-qkv", "3", "-x"], 1), (["--dump-qkv", "3", "--"], 1),
                                 (["--dump-qkv", "3", "--dump-qkv", "4", "y"], 1),
                                 (["--dump-qkv", "3", "y", "--dump-qkv", "4"], 1), (["--dump-qkv", "3", "-n", "4"], 1)):
            for command in (["generate", *model, *arguments], ["generate", *arguments, *model]):
                if command[-1] == "x" and arguments[-1] == "--":
                    continue  # what comes after -- is no flag
                done = self.run_program(*command)
                self.assert_refused(done, f"--dump-qkv takes 2 values, LAYER OUT; given: {given}; see headwater generate --help")
        self.assert_refused(self.run_program("generate", *model, "--dump-qkv", "3", "a", "b"), "unexpected argument: 'b'")
        self.assert_refused(self.run_program("generate", *model, "--dump-qkv", "x", "a"), "--dump-qkv LAYER", "'x'")
        # The right number, also twice and as values of other flags: only the model is missing.
        for arguments in (["--dump-qkv", "3", "a"], ["--dump-qkv=3", "a"], ["--dump-qkv", "x", "a", "--dump-qkv", "3", "b"],
                          ["-p", "--dump-qkv"]):
            self.assert_refused(self.run_program("generate", *model, *arguments), "nowhere")

    def test_unexpected_arguments_are_listed_in_their_order(self):
        done = self.run_program("attend", self.input, "one", "-o", "x", "--two", "three", "--four=5")
        self.assert_refused(done, "unexpected arguments: 'one', '--two', 'three', '--four=5'; see headwater attend --help")
        self.assert_refused(self.run_program("info", "one"), "unexpected argument: 'one'; see headwater info --help")

    def test_unknown(self):
        for argument in ("--foo", "-x", "--h2o", "--no-clamp", "extra.safetensors", "--json=1", "--batch-sizes=4"):
            self.refuse(self.input, argument.split("=")[0].lstrip("-"), "see headwater attend --help",
                        arguments=[argument])

    def test_missing(self):
        self.assert_refused(self.run_program("attend"), "required")
        self.assert_refused(self.run_program("attend", self.input), "--output", "required")
        self.assert_refused(self.run_program("attend", "-o", "x"), "IN", "required")
        self.assert_refused(self.run_program("attend", self.input, "-o"), "--output")
        self.assert_refused(self.run_program("attend", self.input, "-o", "x", "-b"), "--batch")
        self.assert_refused(self.run_program("attend", self.input, "-o", ""), "--output")
        self.assert_refused(self.run_program("attend", "", "-o", "x"), "IN")

    def test_commands(self):
        self.assert_refused(self.run_program(), "attend", "bench", "conform", "info")
        self.assert_refused(self.run_program("generat"), "'generat'", "attend", "bench", "conform", "info")
        self.assert_refused(self.run_program("at\ntend"), "attend", "bench", "conform", "info")
        self.assert_refused(self.run_program("--version", "x"), "'x'")
        self.assert_refused(self.run_program("info", "x"), "x")
        self.assert_refused(self.run_program("info", "--jsn"), "--jsn")

    def test_bench_may_be_left_out_of_a_build(self):
        parts = json.loads(self.run_program("info", "--json").stdout)["parts"]
        built = {part["name"]: part["available"] for part in parts}["bench"]
        done = self.run_program("bench", "--help")
        if built:
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(b"headwater bench", done.stdout)
        else:
            self.assertEqual((done.returncode, done.stdout, done.stderr.count(b"\n")), (3, b"", 1), done.stderr)
            self.assertIn(b"HEADWATER_BENCH", done.stderr)

    def test_a_file_may_be_named_like_a_command(self):
        self.attend(self.put(problem(), "info"))
        self.assertEqual(self.run_program("attend", "info", "-o", "conform").returncode, 0)
        self.put(problem(), "-x")
        self.assertEqual(self.run_program("attend", "-o", "y", "--", "-x").returncode, 0)

    def test_engine(self):
        self.refuse(self.input, "'warp'", "reference", "cpu-portable", arguments=["--engine", "warp"])
        self.refuse(self.input, "'warp'", "HEADWATER_ENGINE", "reference", env={"HEADWATER_ENGINE": "warp"})
        self.refuse(self.input, "--engine", arguments=["--engine", ""])

    def test_an_engine_that_this_build_or_machine_lacks(self):
        report = json.loads(self.run_program("info", "--json").stdout)
        lacking = [engine["name"] for engine in report["engines"] if not engine["available"]]
        if "cuda" not in [engine["name"] for engine in report["engines"]]:
            lacking.append("cuda")
        if not lacking:
            self.skipTest("every engine of the project runs here")
        for name in lacking:
            self.refuse(self.input, f"'{name}'", arguments=["--engine", name], code=3)
            self.refuse(self.input, f"'{name}'", env={"HEADWATER_ENGINE": name}, code=3)

    def test_engine_flag_wins_over_the_environment(self):
        _, metadata, _ = self.attend(self.input, "--engine", "reference", env={"HEADWATER_ENGINE": "warp"})
        self.assertEqual(metadata["engine"], "reference")
        _, metadata, _ = self.attend(self.input, env={"HEADWATER_ENGINE": "reference"})
        self.assertEqual(metadata["engine"], "reference")


class Steps(ProgramTest):
    def setUp(self):
        super().setUp()
        self.input = self.put(problem())

    def test_grammar(self):
        for text, item in (("", 1), ("p0", 1), ("x5", 1), ("p", 1), ("d", 1), ("d0", 1), ("p-5", 1), ("p+5", 1),
                           ("p 5", 1), (" p5", 1), ("P5", 1), ("5", 1), ("p5x", 1), ("p1e1", 1), ("p40:", 1),
                           ("p40:0", 1), ("p40:39", 1), ("p40:x", 1), ("p40:40:40", 1), ("d40:40", 1),
                           ("p20,", 2), (",p40", 1), ("p20,,p20", 2), ("p20;p20", 1), ("p2147483648", 1),
                           ("p99999999999999999999", 1), ("p40:2147483648", 1), ("p20,d\n", 2)):
            with self.subTest(text=text):
                self.refuse(self.input, "--steps", f"item {item} ", "pN:T", arguments=["--steps", text])

    def test_sum(self):
        self.refuse(self.input, "--steps", "39", "40", arguments=["--steps", "p39"])
        self.refuse(self.input, "--steps", "item 2", "'d1'", "41", "40", arguments=["--steps", "p40,d1"])
        self.refuse(self.input, "--steps", "item 2", arguments=["--steps", "p20,p2147483647"])
        self.refuse(self.input, "--steps", arguments=["--steps", ",".join(["p2147483647"] * 1000)])

    def test_turn_length_inside_a_turn(self):
        self.refuse(self.input, "--steps", "item 2", "'p20:30'", arguments=["--steps", "p20:40,p20:30"])
        self.attend(self.input, "--steps", "p20:40,p20:40")


class Files(ProgramTest):
    def setUp(self):
        super().setUp()
        self.input = self.put(problem())

    def test_input_that_cannot_be_read(self):
        self.refuse(self.path("missing"), "missing", "No such file")
        self.refuse(self.directory, "not a regular file")
        self.refuse("/dev/null", "/dev/null", "not a regular file")
        self.refuse("/dev/zero", "/dev/zero", "not a regular file")
        os.mkfifo(self.path("fifo"))
        self.refuse(self.path("fifo"), "fifo", "not a regular file")
        self.refuse(self.path("a\nb"), "a\\x0ab")

    def test_output_that_cannot_be_written(self):
        self.refuse(self.input, "no/such/place", out="no/such/place/out.safetensors")
        self.refuse(self.input, "in.safetensors/out", out="in.safetensors/out")
        self.refuse(self.input, "/proc/", out="/proc/out.safetensors")
        self.refuse(self.input, "no name of a file", out="out/")
        self.refuse(self.input, out="n" * 300)

    def test_output_that_is_no_regular_file(self):
        os.mkdir(self.path("folder"))
        self.refuse(self.input, "folder", "regular file", out="folder")
        self.refuse(self.input, "/dev/full", "No space left", out="/dev/full")
        os.symlink("folder", self.path("link"))
        self.refuse(self.input, "link", "regular file", out="link")
        os.symlink("circle", self.path("circle"))
        self.refuse(self.input, "circle", "symbolic links", out="circle")

    def test_output_over_input(self):
        self.refuse(self.input, "input file", out="in.safetensors")
        self.refuse(self.input, "input file", out="./in.safetensors")
        os.link(self.input, self.path("hard"))
        self.refuse(self.input, "input file", out="hard")
        os.symlink("in.safetensors", self.path("soft"))
        self.refuse(self.input, "input file", out="soft")
        self.refuse(self.path("soft"), "input file", out="in.safetensors")

    def test_links_are_followed(self):
        os.mkdir(self.path("folder"))
        os.symlink("folder/new", self.path("dangling"))
        self.attend(self.input, out="dangling")
        self.assertTrue(os.path.islink(self.path("dangling")))
        self.assertTrue(os.path.isfile(self.path("folder/new")))
        os.symlink(self.path("dangling"), self.path("chain"))
        with open(self.path("folder/new"), "wb") as file:
            file.write(b"old")
        self.attend(self.input, out="chain")
        self.assertEqual(sorted(os.listdir(self.directory)), ["chain", "dangling", "folder", "in.safetensors"])
        self.assertEqual(os.listdir(self.path("folder")), ["new"])

    def test_permissions_follow_the_umask(self):
        for mask, mode in ((0o022, 0o644), (0o077, 0o600), (0o002, 0o664)):
            self.attend(self.input, out=f"out{mask}", preexec_fn=lambda mask=mask: os.umask(mask) and None)
            self.assertEqual(stat.S_IMODE(os.stat(self.path(f"out{mask}")).st_mode), mode)

    def test_error_keeps_the_old_output(self):
        with open(self.path("out.safetensors"), "wb") as file:
            file.write(b"old")
        self.refuse(self.input, "--steps", arguments=["--steps", "p20:40,p20:30"])


class Finite(ProgramTest):
    def test_values_at_the_edge(self):
        for arguments in (["--scale", "0"], ["--scale", "-1.5"], ["--scale", "1e-3"], ["--softcap", "0"],
                          ["--softcap", "30.5"], ["-t", "0"], ["-t", "512"], ["--h2o-local", "0"],
                          ["--h2o-heavy", "0"], ["-ub", "1"], ["-ub=7"], ["-ub7"], ["-b7"], ["--chunk=7"]):
            tensors, metadata, _ = self.attend(problem(n=9), *arguments)
            self.assertTrue(all(math.isfinite(value) for value in tensors["out"].values), arguments)
            if arguments[0].startswith(("-ub", "--chunk")):
                self.assertEqual(metadata["chunk"], arguments[-1].lstrip("-ubchunk="))


if __name__ == "__main__":
    unittest.main()
