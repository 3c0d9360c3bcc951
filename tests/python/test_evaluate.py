"""headwater.evaluate: prompts, scores, the journal, what the command refuses, and a run on the bundled model."""

import contextlib
import io
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

import support
from support import headwater
from headwater.evaluate import __main__ as command
from headwater.evaluate import backends, journal, report, rules, tasks

import scripted_model

HERE = pathlib.Path(__file__).resolve().parent
MODELS = HERE.parents[1] / "models"
MODEL = MODELS / "headwater-tiny-f16.gguf"
QUICK = ("--lengths", "1024", "--samples", "2", "--chunk", "256", "--memory", "64", "--decode", "64")


def prompt(task, length, sample=0, seed=0, tokenize=scripted_model.Scripted().tokenize, **setting):
    return tasks.prompt(tasks.TASKS[task], tasks.Setting(seed, **setting), sample, length, tokenize)


def missing(what):
    """Why a backend cannot be tested here, or None; what is required must not be missing."""
    try:
        if what == "runtime":
            headwater.Model  # noqa: B018
        else:
            import transformers  # noqa: F401
            from headwater import hf  # noqa: F401
    except (ImportError, AttributeError) as error:
        required = "HEADWATER_RUNTIME_LIBRARY" in os.environ if what == "runtime" else (
            os.environ.get("HEADWATER_REQUIRE_TORCH") == "1")
        if required:
            raise
        return str(error)
    return None


class Prompts(unittest.TestCase):
    def test_lengths_are_exact(self):
        for task in tasks.TASKS:
            for length in (1024, 4096, 16384):
                found = prompt(task, length, sample=3)
                self.assertEqual(found.tokens + found.room, length, task)
                self.assertEqual(scripted_model.Scripted().count(found.text), found.tokens, task)

    def test_lengths_with_a_vocabulary_that_joins_dots(self):
        def tokenize(text):  # three characters a token: no dot is a token of its own
            return [text[begin:begin + 3] for begin in range(0, len(text), 3)]
        for task in tasks.TASKS:
            found = prompt(task, 4096, tokenize=tokenize)
            self.assertLessEqual(found.tokens + found.room, 4096, task)
            self.assertGreaterEqual(found.tokens + found.room, 4095, task)
            self.assertEqual(len(tokenize(found.text)), found.tokens)

    def test_a_space_that_is_a_token_belongs_to_the_prompt(self):
        for joined, wanted in ((r" ?\w+|\W", " is"), (r"\w+|\W", " is ")):
            found = prompt("niah_single", 1024, tokenize=lambda text, joined=joined: re.findall(joined, text))
            self.assertEqual(found.text[-len(wanted):], wanted)
            self.assertEqual(found.tokens, len(re.findall(joined, found.text)))

    def test_equal_seeds_give_equal_prompts_and_others_do_not(self):
        for task in tasks.TASKS:
            first, again = prompt(task, 1024), prompt(task, 1024)
            self.assertEqual((first.text, first.answers), (again.text, again.answers))
            self.assertNotEqual(first.answers, prompt(task, 1024, seed=1).answers)
            self.assertNotEqual(first.answers, prompt(task, 1024, sample=1).answers)

    def test_needles_are_spread_over_the_text(self):
        for task, haystack in (("niah_single", None), ("niah_uuid", None), ("niah_single", "one two three. four five? six\n")):
            depths = []
            for sample in range(20):
                found = prompt(task, 1024, sample, haystack=tasks.Haystack(haystack))
                self.assertEqual(found.text.count(found.answers[0]), 1)
                depths.append(found.text.index(found.answers[0]) / len(found.text))
            for low in (0.0, 0.2, 0.4, 0.6, 0.8):
                self.assertTrue(any(low <= depth < low + 0.2 for depth in depths), (task, sorted(depths)))

    def test_needles_stand_between_sentences(self):
        text = prompt("niah_multikey", 1024).text
        lines = text.split("\n")[1:-1]
        self.assertEqual(sum(line.startswith("The secret code of") for line in lines), 4)
        for before, after in zip(lines, lines[1:]):
            if after.startswith("The secret code of"):
                self.assertRegex(before, r"\.$")

    def test_a_length_that_is_too_short_says_what_is_enough(self):
        for task in tasks.TASKS:
            with self.assertRaisesRegex(ValueError, f"length 64 is too short for task {task}, sample 0; allowed: ") as raised:
                prompt(task, 64)
            enough = int(str(raised.exception).split()[-3])
            if task != "common_words":  # which has more words where the length is larger
                self.assertEqual(prompt(task, enough).answers, prompt(task, 1024).answers)

    def test_wordings(self):
        found = prompt("niah_single", 1024, needle="# CODE {name} {code}", question="# ASK {name}", digits=5)
        self.assertRegex(found.answers[0], r"^[1-9][0-9]{4}$")
        self.assertIn(f" {found.answers[0]}\n", found.text)
        self.assertRegex(found.text, r"\n# ASK \w+-\w+$")
        for bad, what in (({"needle": "{name}"}, "needle"), ({"question": "who?"}, "question")):
            with self.assertRaisesRegex(ValueError, f"the {what} is .*; allowed: a text with {{name}}"):
                tasks.Setting(0, **bad)
        with self.assertRaisesRegex(ValueError, "the haystack has no word"):
            tasks.Haystack(" \n")


class Scores(unittest.TestCase):
    def test_each_task_is_solved_by_who_reads_the_prompt(self):
        for task in tasks.TASKS:
            for sample in range(4):
                for length in (1024, 4096):
                    found = prompt(task, length, sample)
                    self.assertEqual(tasks.match_all(scripted_model.solve(found.text), found.answers), 1.0,
                                     (task, found.answers, scripted_model.solve(found.text)))

    def test_wrong_and_half_right_answers(self):
        for task in tasks.TASKS:
            wanted = prompt(task, 1024).answers
            for wrong in ("", "no", prompt(task, 1024, seed=9).answers[0]):
                self.assertEqual((tasks.match_all(wrong, wanted), tasks.match_part(wrong, wanted)), (0.0, 0.0))
            one = f"it is {wanted[-1].upper()}, I think"
            self.assertEqual((tasks.match_all(one, wanted), tasks.match_part(one, wanted)), (1 / len(wanted), 1.0))

    def test_intervals(self):
        low, high = report.wilson(0.5, 100)
        self.assertAlmostEqual(low, 0.4038, places=4)
        self.assertAlmostEqual(high, 0.5962, places=4)
        self.assertEqual(report.wilson(0.0, 10)[0], 0.0)
        self.assertEqual(report.wilson(1.0, 10)[1], 1.0)

    def test_ends_of_query_blocks(self):
        self.assertEqual(rules.block_ends(200, 64), [95, 127, 159, 191, 199])
        self.assertEqual(rules.block_ends(64, 64), [])
        self.assertEqual(rules.block_ends(200, 64, 64), [127, 191, 199])
        self.assertEqual(rules.block_ends(4160, 3072), [*range(3103, 4096, 32), 4127, 4159])  # chunks begin anew at 4096

    def test_rules_are_options_of_sessions(self):
        for name in rules.NAMES:
            rule = rules.Rule(name, 64, 32)
            own = headwater.Session(layers=1, heads=2, kv_heads=1, head_dim=16, capacity=256, dtype="float32", engine="reference",
                                    **rule.options)
            self.assertEqual(own.warnings, [])
            self.assertEqual(own.options["sparse"], name != "dense")
            if name != "dense":
                self.assertEqual((own.options["local"] + own.options["heavy"], own.options["chunk"]), (32, 64))
                self.assertEqual(own.options["pinned"], 0 if name == "h2o" else 8)
        for key_block, pinned in ((4, 8), (16, 16)):
            self.assertEqual(rules.Rule("blocks", 64, 32, key_block=key_block).options["pinned"], pinned)
        sizes = {"pinned": 16, "key_block": 4, "query_block": 16, "pool": 2, "refine": 4}
        for name, wanted in (("h2o", {"pinned": 16, "local": 16, "heavy": 16}), ("window", {"pinned": 16, "local": 16}),
                             ("blocks", sizes),
                             ("sketches", {"pinned": 16, "query_block": 16, "pool": 0, "least_weight": 0.25})):
            own = headwater.Session(layers=1, heads=2, kv_heads=1, head_dim=16, capacity=256, engine="reference",
                                    **rules.Rule(name, 64, 32, **sizes, least_weight=0.25).options)
            self.assertEqual(own.warnings, [])
            self.assertLessEqual(wanted.items(), own.options.items())
            self.assertEqual(own.options["local"] + own.options["heavy"], 32)
        for more in ({"pinned": 4}, {"pinned": 24}, {"query_block": 128}, {"key_block": 3}, {"pool": 5}):
            with self.assertRaisesRegex(ValueError, "allowed: "):
                rules.Rule("blocks", 64, 32, **more)
        for bad in (("best", 64, 32), ("h2o", 16, 8), ("h2o", 65, 32), ("h2o", 64, 64), ("blocks", 64, 20), ("blocks", 64, 8)):
            with self.assertRaisesRegex(ValueError, "allowed: "):
                rules.Rule(*bad)


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.model = self.folder / "model.gguf"
        self.model.write_bytes(b"GGUF and no more")
        self.text = self.folder / "text.txt"
        self.text.write_text("".join(f"line {number} of a text\n" for number in range(700)), encoding="utf-8")

    def run_main(self, *arguments):
        """The command with the scripted model in this process: (status, output, what it says)."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = command.main([*map(str, arguments)], scripted_model.Scripted)
        return status, out.getvalue(), err.getvalue()

    def start(self, *arguments, delay=0.0, **more):
        return subprocess.Popen([sys.executable, "-B", HERE / "scripted_model.py", *map(str, arguments)],
                                stderr=subprocess.PIPE, text=True, env={**os.environ, "SCRIPTED_DELAY": str(delay)},
                                **{"stdout": subprocess.PIPE, **more})

    def flags(self, out, *more):
        return ("--model", self.model, "--texts", self.text, "--out", self.folder / out, *QUICK, *more)

    def journal(self, out):
        return self.folder / out / "journal.jsonl"

    def cells(self, out):
        """The lines of a journal, without the numbers of runs."""
        lines = [json.loads(line) for line in self.journal(out).read_text(encoding="utf-8").splitlines()]
        for line in lines[1:]:
            self.assertGreaterEqual(line["result"].pop("run"), 1)
        return lines

    def refused(self, status, out, err, wanted):
        self.assertEqual((status, out), (2, ""), err)
        self.assertRegex(err, wanted)
        self.assertEqual(err.count("\n"), 1, err)


class Runs(Folder):
    def test_a_run_and_its_files(self):
        status, out, err = self.run_main(*self.flags("out"))
        self.assertEqual(status, 0, err)
        self.assertEqual((self.folder / "out" / "table.md").read_text(encoding="utf-8"), out)
        found = json.loads((self.folder / "out" / "results.json").read_text(encoding="utf-8"))
        self.assertEqual(len(found["answers"]), len(tasks.TASKS) * len(rules.DEFAULTS))
        for entry in found["answers"]:
            self.assertEqual((entry["score"], entry["any"], entry["samples"], entry["high"]), (1.0, 1.0, 2, 1.0), entry)
        self.assertEqual([(entry["rule"], entry["of_dense"]) for entry in found["first_token"]],
                         [("dense", 1.0), ("h2o", 0.25), ("window", 0.25), ("sketches", 0.25)])
        by_rule = {entry["rule"]: entry for entry in found["losses"]}
        for rule, worse in (("h2o", 0.03), ("window", 0.02), ("sketches", 0.01)):
            self.assertAlmostEqual(by_rule[rule]["prefill"]["difference"], worse)
            self.assertAlmostEqual(by_rule[rule]["decoded"]["difference"], 0.0)
            self.assertEqual(by_rule[rule]["windows"], 2)
        self.assertEqual(found["versions"]["headwater"], headwater.__version__)
        self.assertEqual(found["configuration"]["isa"], headwater.info()["isa"])
        self.assertIn("| `niah_single` | `sketches` | 100 (34 to 100) |", out)
        self.assertRegex(out, r"\| `text.txt` \| `h2o` \| \+3\.05 \(0\.00\) % \|")
        files = {path.name for path in (self.folder / "out").iterdir()}
        self.assertLessEqual({"journal.jsonl", "results.json", "table.md"}, files)
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            self.assertIn("matplotlib is not installed", err)
        else:
            self.assertIn("plot.svg", files)
            self.assertIn("<svg", (self.folder / "out" / "plot.svg").read_text(encoding="utf-8"))
        self.assertEqual([name for name in files if name.startswith(".")], [])

    def test_names_of_files_do_not_break_the_table(self):
        odd = self.folder / "a|b`c\nd\udcff.txt"
        self.text.rename(odd)
        model = self.folder / "m|<b>\n.gguf"
        self.model.rename(model)
        status, out, err = self.run_main("--model", model, "--texts", odd, "--tasks", "none", "--out", self.folder / "out",
                                         *QUICK)
        self.assertEqual(status, 0, err)
        self.assertIn("| `a?b?c?d?.txt` | `h2o` |", out)
        self.assertIn("\n- m??b>?.gguf (kind scripted", out)

    def test_wrong_answers_score_nothing(self):
        with unittest.mock.patch.dict(os.environ, SCRIPTED_WRONG="1"):
            status, _, err = self.run_main(*self.flags("out"))
        self.assertEqual(status, 0, err)
        found = json.loads((self.folder / "out" / "results.json").read_text(encoding="utf-8"))
        for entry in found["answers"]:
            self.assertEqual((entry["score"], entry["low"]), (0.0, 0.0), entry)

    def test_answers_are_judged_whole_or_to_their_first_line(self):
        def cell(answer):
            return {("dense", 64, "niah_single", 0): {"answer": answer, "wanted": ["12"], "seconds": 1.0}}
        for answer, whole, first in (("12\n", 1.0, 1.0), ("13\nno, 12", 1.0, 0.0), ("\n 12", 1.0, 1.0), ("", 0.0, 0.0)):
            for first_line, wanted in ((False, whole), (True, first)):
                found = report.summarize(cell(answer), list(rules.NAMES), first_line)["answers"][0]
                self.assertEqual((found["score"], found["any"]), (wanted, wanted), answer)

    def test_more_is_added_and_nothing_is_run_twice(self):
        self.assertEqual(self.run_main(*self.flags("out", "--tasks", "niah_single"))[0], 0)
        first = self.journal("out").read_text(encoding="utf-8")
        self.assertEqual(self.run_main(*self.flags("out", "--tasks", "niah_single,common_words", "--samples", "3"))[0], 0)
        both = self.journal("out").read_text(encoding="utf-8")
        self.assertTrue(both.startswith(first))
        self.assertEqual(both.count("\n") - first.count("\n"), 4 * (1 + 3 + 1))  # the text has a third window, too
        cells = [json.dumps(json.loads(line)["cell"]) for line in both.splitlines()[1:]]
        self.assertEqual(len(cells), len(set(cells)))

    def test_killed_and_resumed(self):
        for how in (signal.SIGKILL, signal.SIGINT):
            out = f"stopped-{how}"
            run = self.start(*self.flags(out), delay=0.03)
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                if self.journal(out).exists() and self.journal(out).read_bytes().count(b"\n") > 5:
                    break
                time.sleep(0.01)
            run.send_signal(how)
            _, err = run.communicate(timeout=60)
            if how == signal.SIGINT:
                self.assertEqual(run.returncode, 130, err)
                self.assertIn("stopped; the same command goes on from here", err)
            else:
                self.assertEqual(run.returncode, -signal.SIGKILL)
            self.assertFalse((self.folder / out / "results.json").exists())
            done = self.journal(out).read_bytes()
            self.assertLess(done.count(b"\n"), 70)
            status, table, err = self.run_main(*self.flags(out))
            self.assertEqual(status, 0, err)
            self.assertTrue(self.journal(out).read_bytes().startswith(done))
            self.run_main(*self.flags("whole"))
            self.assertEqual(self.cells(out), self.cells("whole"))
            first, whole = (json.loads((self.folder / name / "results.json").read_text(encoding="utf-8"))
                            for name in (out, "whole"))
            times, all_times = first.pop("first_token"), whole.pop("first_token")
            self.assertEqual(first, whole)
            # The prompt at which it was stopped was not timed by one run.
            stopped = len(tasks.TASKS) * 2
            self.assertEqual({entry["samples"] for entry in all_times}, {stopped})
            self.assertLessEqual({entry["samples"] for entry in times}, {stopped, stopped - 1})

    def test_times_are_of_one_run(self):
        few = ("--tasks", "niah_single", "--texts", self.text)
        self.assertEqual(self.run_main(*self.flags("out", *few, "--rules", "dense,h2o"))[0], 0)
        status, out, err = self.run_main(*self.flags("out", *few))
        self.assertEqual(status, 0)
        self.assertIn("no times at 1024 tokens: no run has answered one prompt with every rule", err)
        self.assertNotIn("Time to the first token", out)
        status, out, err = self.run_main(*self.flags("out", *few, "--samples", "5"))
        self.assertNotIn("no times", err)
        found = json.loads((self.folder / "out" / "results.json").read_text(encoding="utf-8"))
        self.assertEqual([(entry["rule"], entry["samples"], entry["of_dense"]) for entry in found["first_token"]],
                         [("dense", 3, 1.0), ("h2o", 3, 0.25), ("window", 3, 0.25), ("sketches", 3, 0.25)])
        self.assertEqual({entry["samples"] for entry in found["answers"]}, {5})

    def test_a_chat(self):
        status, out, err = self.run_main(*self.flags("out", "--chat"))
        self.assertEqual(status, 0, err)
        found = json.loads((self.folder / "out" / "results.json").read_text(encoding="utf-8"))
        self.assertEqual({entry["score"] for entry in found["answers"]}, {1.0})
        self.assertIn("around needles, chat format", out)
        self.assertTrue(found["configuration"]["chat"])
        model = scripted_model.Scripted()
        for task in tasks.TASKS:  # to the token, the chat's own among them
            def encode(text):
                asked, answer = tasks.split(text)
                self.assertRegex(asked, r"[?.]$")
                self.assertRegex(answer, r"^the .* (is|are) ?$")
                return model.chat(asked, answer)
            made = tasks.prompt(tasks.TASKS[task], tasks.Setting(), 0, 1024, model.tokenize, encode)
            self.assertEqual(made.tokens + made.room, 1024, task)
            self.assertEqual(len(encode(made.text)), made.tokens)
        self.assertEqual(tasks.split("a Answer: b\nwho?"), ("a Answer: b\nwho?", ""))

    def test_sizes(self):
        sizes = ("--pinned", "8", "--key-block", "4", "--query-block", "64", "--pool", "2", "--refine", "4", "--rules",
                 "dense,blocks")
        status, out, err = self.run_main(*self.flags("out", *sizes))
        self.assertEqual(status, 0, err)
        self.assertIn("64 tokens of a text decoded, pinned 8, key block 4, query block 64, pool 2, refine 4\n", out)
        self.refused(*self.run_main(*self.flags("out")), "is of another configuration: key_block is 4 there and None here")

    def test_progress_without_a_terminal(self):
        with unittest.mock.patch.object(command, "SILENCE", -1):
            status, _, err = self.run_main(*self.flags("out", "--tasks", "niah_single"))
        self.assertEqual(status, 0, err)
        said = re.findall(r"(?m)^headwater.evaluate: cell (\d+) of 16, \d+ s: 1024 tokens, ", err)
        self.assertEqual(said, [str(number) for number in range(1, 17)])

    def test_one_length_is_drawn_in_bars(self):
        try:
            import matplotlib
        except ImportError as error:
            self.skipTest(f"matplotlib: {error}")
        matplotlib.use("Agg")
        import matplotlib.pyplot
        for lengths, bars, lines in (((64,), 5, 0), ((64, 128), 0, 5)):
            figure, panel = matplotlib.pyplot.subplots()
            entries = [{"rule": rule, "length": length, "value": length + 1.0} for rule in rules.NAMES for length in lengths]
            report._lines(panel, entries, lambda entry: entry["value"], "value")
            self.assertEqual((len(panel.patches), len(panel.lines)), (bars, lines))
            if bars:
                self.assertEqual([tick.get_text() for tick in panel.get_xticklabels()], list(rules.NAMES))
                self.assertEqual([bar.get_height() for bar in panel.patches], [65.0] * 5)
                self.assertEqual(panel.get_xlabel(), "rule, at 64 tokens")
            matplotlib.pyplot.close(figure)

    def test_two_processes_do_not_share_a_folder(self):
        kept = journal.Journal(self.make("out") / "journal.jsonl", {})
        self.addCleanup(kept.close)
        self.refused(*self.run_main(*self.flags("out")), "journal.jsonl is in use by another process; allowed: one at a time")

    def make(self, name):
        folder = self.folder / name
        folder.mkdir()
        return folder

    def test_a_full_disk(self):
        """A limit on the size of files stands for it: the error comes from write(), as ENOSPC does."""
        run = self.start(*self.flags("out"), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000)))
        out, err = run.communicate(timeout=120)
        self.assertEqual((run.returncode, out), (2, ""))
        self.assertRegex(err.splitlines()[-1], "^headwater.evaluate: File too large$")
        status, _, err = self.run_main(*self.flags("out"))  # there is room again
        self.assertEqual(status, 0, err)
        self.run_main(*self.flags("whole"))
        self.assertEqual(self.cells("out"), self.cells("whole"))

    def test_standard_output(self):
        few = self.flags("out", "--tasks", "niah_single")
        with open("/dev/full", "w", encoding="utf-8") as full:
            run = self.start(*few, stdout=full)
            self.assertIn("headwater.evaluate: No space left on device\n", run.communicate(timeout=120)[1])
            self.assertEqual(run.returncode, 2)
        self.assertTrue((self.folder / "out" / "table.md").exists())  # nothing but the copy is lost
        reads, writes = os.pipe()
        os.close(reads)
        run = self.start(*few, stdout=writes)
        os.close(writes)
        self.assertNotIn("Error", run.communicate(timeout=120)[1])
        self.assertEqual(run.returncode, 141)
        run = self.start(*self.flags("closed"), preexec_fn=lambda: os.close(1))
        self.assertEqual(run.communicate(timeout=120)[1], "headwater.evaluate: standard output is closed; allowed: a file or a "
                         "pipe\n")
        self.assertEqual(run.returncode, 2)
        self.assertFalse((self.folder / "closed").exists())


class Journals(Folder):
    def damaged(self, change, wanted):
        self.run_main(*self.flags("out", "--tasks", "niah_single"))
        path = self.journal("out")
        lines = path.read_text(encoding="utf-8").splitlines()
        change(lines)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        before = path.read_bytes()
        self.refused(*self.run_main(*self.flags("out", "--tasks", "niah_single")), wanted)
        self.assertEqual(path.read_bytes(), before)

    def test_a_last_line_that_was_cut_off_is_run_again(self):
        self.run_main(*self.flags("out", "--tasks", "niah_single"))
        whole = self.journal("out").read_bytes()
        first = whole.index(b"\n") + 1
        for kept in (len(whole) - 1, len(whole) - 40, first + 3, first, first - 1, 10, 0):
            self.journal("out").write_bytes(whole[:kept])
            status, _, err = self.run_main(*self.flags("out", "--tasks", "niah_single"))
            self.assertEqual(status, 0, err)
            lines = [json.loads(line) for line in whole.splitlines()]
            self.assertEqual(self.cells("out"), [lines[0], *({**line, "result": {
                name: value for name, value in line["result"].items() if name != "run"}} for line in lines[1:])], kept)

    def test_damage_elsewhere_is_refused_by_line(self):
        for line, text in ((3, "{"), (2, "[]"), (4, '{"cell": 1, "result": {}}'), (2, '{"cell": [], "result": 0}'),
                           (5, "\\x00"), (2, "[" * 100_000), (1, "{}"), (1, '{"headwater_evaluate": 1, "hash": "", '
                                                              '"configuration": {}}')):
            with self.subTest(line=line, text=text[:20]):
                def change(lines, line=line, text=text):
                    lines[line - 1] = text
                self.damaged(change, rf"journal.jsonl, line {line}: damaged; allowed: what headwater.evaluate wrote there")
                self.journal("out").unlink()

    def test_a_file_that_is_no_journal(self):
        out = self.folder / "out"
        out.mkdir()
        self.journal("out").write_text("my notes", encoding="utf-8")
        self.refused(*self.run_main(*self.flags("out")), "journal.jsonl is no journal of headwater.evaluate")
        self.assertEqual(self.journal("out").read_text(encoding="utf-8"), "my notes")
        self.journal("out").unlink()
        os.symlink("/dev/zero", self.journal("out"))
        self.refused(*self.run_main(*self.flags("out")), "journal.jsonl is no regular file")

    def test_another_configuration_is_refused_by_name(self):
        self.run_main(*self.flags("out", "--tasks", "niah_single"))
        for more, wanted in ((("--chunk", "512"), "chunk is 256 there and 512 here"),
                             (("--memory", "128"), "memory is 64 there and 128 here"),
                             (("--pinned", "8"), "pinned is None there and 8 here"),
                             (("--chat",), "chat is None there and True here"),
                             (("--dense-tail", "8"), "dense_tail is 0 there and 8 here"),
                             (("--seed", "8"), "seed is 0 there and 8 here"),
                             (("--digits", "8"), "digits is 7 there and 8 here"),
                             (("--decode", "65"), "decode is 64 there and 65 here"),
                             (("--threads", "1"), "threads is 0 there and 1 here"),
                             (("--engine", "reference"), "engine is 'cpu' there and 'reference' here"),
                             (("--haystack", self.text), "haystack is None there and '"),
                             (("--needle", "{name}: {code}"), "needle is 'The secret")):
            self.refused(*self.run_main(*self.flags("out", *more)),
                         f"is of another configuration: {wanted}.*; allowed: the same")
        self.model.write_bytes(b"GGUF, another")
        self.refused(*self.run_main(*self.flags("out")), "is of another configuration: fingerprint is")


class Flags(Folder):
    def test_bad_flags(self):
        folder = self.folder
        binary = folder / "binary"
        binary.write_bytes(b"abc\xff\xfe")
        short = folder / "short.txt"
        short.write_text("a few words", encoding="utf-8")
        (folder / "empty").mkdir()
        (folder / "same").mkdir()
        (folder / "same" / "text.txt").write_text("x", encoding="utf-8")
        base = ["--model", self.model, "--out", folder / "out", *QUICK]
        table = [
            ([], "one of the arguments --model --gguf is required"),
            (["--model", self.model, "--gguf", self.model], "not allowed with argument"),
            (["--model", ""], "'' is not allowed; use a name"),
            (["--model", folder / "none"], "none: No such file or directory"),
            (["--gguf", folder], "is a folder; allowed: a GGUF file"),
            ([*base, "--best"], "unrecognized arguments: --best"),
            ([*base, "extra"], "unrecognized arguments: extra"),
            ([*base, "--rules", "dense,best"], "--rules: 'best' is not allowed; use some of dense, h2o, window, blocks"),
            ([*base, "--rules", ""], "--rules: '' is not allowed"),
            ([*base, "--rules", "h2o,h2o"], "--rules: h2o is given twice; allowed is once"),
            ([*base, "--lengths", "63"], "--lengths: '63' is not allowed; use an integer, 64 to"),
            ([*base, "--lengths", "4096,"], "--lengths: '' is not allowed"),
            ([*base, "--lengths", "4e3"], "--lengths: '4e3' is not allowed"),
            ([*base, "--lengths", "٤٠٩٦"], "is not allowed; use an integer"),
            ([*base, "--lengths", "9" * 5000], "is not allowed; use an integer"),
            ([*base, "--lengths", "20001"], "--lengths: 20001 is not allowed; the model's context has 20000 tokens"),
            ([*base, "--lengths", "128"], "length 128 is too short for task niah_single, sample 0; allowed: "),
            ([*base, "--tasks", "qa"], "--tasks: 'qa' is not allowed; use some of niah_single"),
            ([*base, "--tasks", "none"], "--tasks: none is not allowed"),
            ([*base, "--tasks", "none,niah_single", "--texts", self.text], "--tasks: none is not allowed beside"),
            ([*base, "--digits", "2"], "--digits: '2' is not allowed; use an integer, 3 to 18"),
            ([*base, "--samples", "0"], "--samples: '0' is not allowed"),
            ([*base, "--seed", "-1"], "--seed: '-1' is not allowed"),
            ([*base, "--chunk", "0"], "--chunk: '0' is not allowed"),
            ([*base, "--chunk", "100"], "the chunk is 100; allowed: a multiple of 8"),
            ([*base, "--memory", "256"], "the memory is 256; allowed: a multiple of 8, 16 or more and below the chunk, 256"),
            ([*base, "--pinned", "40"], "pinned is 40; allowed: 0 .. 32, half of the memory, a multiple of 8"),
            ([*base, "--pool", "4"], "--pool: no rule of --rules has such a size; allowed: without it, or --rules with blocks"),
            ([*base, "--rules", "blocks", "--least-weight", "0.1"], "--least-weight: no rule of --rules has such a size"),
            ([*base, "--rules", "blocks", "--pool", "3"], "the pool is 3; allowed: what divides the query block, 32"),
            ([*base, "--refine", "17"], "--refine: '17' is not allowed; use an integer, 1 to 16"),
            ([*base, "--dense-tail", "1000"], "--dense-tail: 1000 is not allowed; use less than"),
            ([*base, "--texts", self.text, "--decode", "1024"], "--decode: 1024 is not allowed; use less than the shortest"),
            ([*base, "--texts"], "--texts: expected at least one argument"),
            ([*base, "--texts", folder / "none"], "none: No such file or directory"),
            ([*base, "--texts", folder], "is no regular file; allowed: a text in UTF-8"),
            ([*base, "--texts", "/dev/zero"], "is no regular file"),
            ([*base, "--texts", binary], "is no UTF-8 at byte 3; allowed: a text in UTF-8"),
            ([*base, "--texts", short], r"short.txt has \d+ tokens; allowed: 1024 or more"),
            ([*base, "--texts", self.text, folder / "same" / "text.txt"], "--texts: two files have one name"),
            ([*base, "--haystack", binary], "is no UTF-8 at byte 3"),
            ([*base, "--haystack", "/dev/null"], "is no regular file"),
            ([*base, "--needle", "{name}"], "the needle is '{name}'; allowed: a text with {name} and {code}"),
            ([*base, "--question", "what?"], "the question is 'what\\?'; allowed: a text with {name}"),
            ([*base, "--threads", "513"], "--threads: '513' is not allowed"),
            ([*base, "--out", self.text], "text.txt: File exists"),
            ([*base, "--out", "/dev/full"], "/dev/full: File exists"),
            ([*base, "--out", "/proc/none"], "/proc/none: No such file or directory"),
        ]
        for arguments, wanted in table:
            with self.subTest(arguments=[str(argument)[:40] for argument in arguments[-2:]]):
                self.refused(*self.run_main(*arguments), wanted)
                self.assertFalse((folder / "out").exists())

    def test_the_status_of_the_process(self):
        """Of the command as people run it, also where nobody can read what it says."""
        command_line = [sys.executable, "-B", "-m", "headwater.evaluate"]
        path = os.pathsep.join(filter(None, map(str, sys.path)))
        table = [(["--lengths", "x"], "headwater.evaluate: argument --lengths: 'x' is not allowed; use an integer, 64 to"),
                 ([], "headwater.evaluate: one of the arguments --model --gguf is required"),
                 (["--model", "none", "--best"], "headwater.evaluate: unrecognized arguments: --best"),
                 (["--model", "none"], "headwater.evaluate: none: No such file or directory"),
                 (["--gguf", str(self.text)], "is no GGUF file")]
        for arguments, wanted in table:
            with self.subTest(arguments=arguments):
                said = self.folder / "said"
                with said.open("w", encoding="utf-8") as err, open("/dev/full", "w", encoding="utf-8") as full:
                    for stream in (err, full):
                        done = subprocess.run([*command_line, *arguments], cwd=self.folder, stdout=subprocess.DEVNULL,
                                              stderr=stream, env={**os.environ, "PYTHONPATH": path})
                        self.assertEqual(done.returncode, 2)
                self.assertIn(wanted, said.read_text(encoding="utf-8"))
                self.assertEqual(said.read_text(encoding="utf-8").count("\n"), 1)
                self.assertFalse((self.folder / "evaluation").exists())

    def test_models_that_are_none(self):
        with self.assertRaisesRegex(ValueError, "has no config.json; allowed: a folder of Hugging Face"):
            backends.open_model(self.folder)
        with self.assertRaisesRegex(ValueError, "is no GGUF file; allowed: one, or a folder"):
            backends.open_model(self.text)
        os.mkfifo(self.folder / "pipe")
        with self.assertRaisesRegex(ValueError, "is no regular file; allowed: a GGUF file"):
            backends.open_model(self.folder / "pipe")
        with self.assertRaises(FileNotFoundError):
            backends.open_model(self.folder / "none")

    def test_help_names_every_task(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), self.assertRaises(SystemExit) as ended:
            command.main(["--help"], scripted_model.Scripted)
        self.assertEqual(ended.exception.code, 0)
        for task in tasks.TASKS:
            self.assertIn(task, out.getvalue())


@unittest.skipIf(missing("runtime"), f"the runtime library: {missing('runtime')}")
class Bundled(Folder):
    """The bundled model by headwater.Model."""

    WORDING = ("--needle", "# REGISTRY: the code of {name} is {code}", "--question", "# QUERY: the code of {name} is",
               "--digits", "5", "--first-line", "--haystack", MODELS / "eval-16k.txt", "--threads", "2")

    def run_model(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = command.main(["--model", str(MODEL), *map(str, arguments)])
        return status, out.getvalue(), err.getvalue()

    def test_lengths_are_exact(self):
        model = backends.open_model(MODEL)
        for task in tasks.TASKS:
            for length in (512, 4096, 16384):
                found = prompt(task, length, tokenize=model.tokenize)
                self.assertEqual((found.tokens + found.room, len(model.tokenize(found.text))), (length, found.tokens), task)

    def test_a_chat_is_the_first_turn_of_one(self):
        backend = backends.open_model(MODEL, threads=1)
        chat = headwater.Model(MODEL).chat(capacity=200, threads=1)
        next(chat.say("What is it?", max_tokens=1), None)
        self.assertEqual(backend.chat("What is it?", ""), chat._history)
        self.assertEqual(backend.chat("What is it?", "it is"), chat._history + backend.tokenize("it is"))

    def test_losses_are_those_of_the_model(self):
        text = MODELS / "eval-4k.txt"
        flags = ("--texts", text, "--tasks", "none", "--lengths", "2048", "--decode", "100", "--samples", "2", "--chunk", "256",
                 "--memory", "64", "--threads", "2", "--out", self.folder / "out")
        status, _, err = self.run_model(*flags)
        self.assertEqual(status, 0, err)
        found = {entry["rule"]: entry for entry in
                 json.loads((self.folder / "out" / "results.json").read_text(encoding="utf-8"))["losses"]}
        model = headwater.Model(MODEL)
        for rule, options in (("h2o", {"select": "h2o", "local": 32, "heavy": 32}),
                              ("sketches", {"select": "sketches", "local": 32, "heavy": 32})):
            wanted = model.perplexity(text.read_text(encoding="utf-8"), window=2048, decode=100, chunk=256, threads=2,
                                      **options)
            self.assertEqual(wanted["windows"], 2)
            self.assertAlmostEqual(found[rule]["decoded"]["nll"], wanted["sparse"]["decoded"]["nll"], places=9)
            self.assertAlmostEqual(found["dense"]["decoded"]["nll"], wanted["dense"]["decoded"]["nll"], places=9)
            if rule == "h2o":
                self.assertAlmostEqual(found[rule]["prefill"]["nll"], wanted["sparse"]["prefill"]["nll"], places=9)
                self.assertAlmostEqual(found["dense"]["prefill"]["nll"], wanted["dense"]["prefill"]["nll"], places=9)
        self.assertGreater(found["h2o"]["prefill"]["difference"], 0.0)

    @unittest.skipUnless("HEADWATER_PROGRAM" in os.environ, "HEADWATER_PROGRAM names no headwater")
    def test_losses_after_query_blocks_are_those_of_the_program(self):
        text = MODELS / "eval-4k.txt"
        status, _, err = self.run_model("--texts", text, "--tasks", "none", "--rules", "dense,blocks", "--lengths", "2000",
                                        "--decode", "100", "--chunk", "256", "--memory", "64", "--out", self.folder / "out")
        self.assertEqual(status, 0, err)
        losses = json.loads((self.folder / "out" / "results.json").read_text(encoding="utf-8"))["losses"]
        found = next(entry["prefill"] for entry in losses if entry["rule"] == "blocks")
        said = json.loads(subprocess.run(
            [os.environ["HEADWATER_PROGRAM"], "perplexity", "-m", MODEL, "-f", text, "--window", "2000", "--decode", "100",
             "-ub", "256", "--h2o-local", "32", "--h2o-heavy", "32", "--select", "blocks", "--pinned", "8", "--json"],
            check=True, capture_output=True, text=True).stdout)
        self.assertEqual(said["windows"], 2)
        self.assertAlmostEqual(found["nll"], said["sparse"]["ends"]["nll"], places=9)
        self.assertAlmostEqual(found["difference"], said["difference"]["ends"]["nll"], places=9)

    def test_codes_are_found(self):
        """What it was trained for. Windows of eight layers reach over a third of the text."""
        flags = ("--tasks", "niah_single", "--lengths", "2048", "--samples", "6", "--chunk", "64", "--memory", "32",
                 "--rules", "dense,window,blocks", "--out", self.folder / "out", *self.WORDING)
        status, _, err = self.run_model(*flags)
        self.assertEqual(status, 0, err)
        document = json.loads((self.folder / "out" / "results.json").read_text(encoding="utf-8"))
        found = {entry["rule"]: entry["score"] for entry in document["answers"]}
        self.assertGreater(found["dense"], 0.5)
        self.assertLess(found["window"], found["dense"])
        self.assertGreater(found["blocks"], found["window"])
        self.assertEqual(document["model"]["kind"], "gguf")
        self.assertTrue(all(entry["median"] > 0 for entry in document["first_token"]))

    def test_what_is_refused(self):
        out = self.folder / "out"
        for arguments, wanted in (
                (("--out", out, "--lengths", "40000"), "--lengths: 40000 is not allowed; the model's context has 32768 tokens"),
                (("--out", out, "--engine", "fast", *QUICK, "--tasks", "niah_single"), "engine.*fast")):
            self.refused_last(*self.run_model(*arguments), wanted)
        broken = self.folder / "broken.gguf"
        broken.write_bytes(MODEL.read_bytes()[:100_000])
        with contextlib.redirect_stderr(io.StringIO()) as err:
            self.assertEqual(command.main(["--gguf", str(broken), "--out", str(out), *QUICK]), 2)
        self.assertRegex(err.getvalue(), "^headwater.evaluate: .*broken.gguf.*\n$")

    def refused_last(self, status, out, err, wanted):
        self.assertEqual((status, out), (2, ""), err)
        self.assertRegex(err.splitlines()[-1], wanted)


@unittest.skipIf(missing("transformers"), f"PyTorch and transformers: {missing('transformers')}")
class HuggingFace(Folder):
    """A small Llama with random weights, in a folder as save_pretrained() writes it."""

    def setUp(self):
        super().setUp()
        import tokenizers
        import transformers
        letters = {letter: index for index, letter in enumerate(map(chr, range(32, 127)))}
        words = tokenizers.Tokenizer(tokenizers.models.BPE(letters | {"<s>": 95, "</s>": 96, "?": letters["?"]}, [],
                                                           unk_token="?"))
        words.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 95)])
        words.decoder = tokenizers.decoders.Fuse()
        support.torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=2048, bos_token_id=95, eos_token_id=96)
        self.model_folder = self.folder / "llama"
        transformers.LlamaForCausalLM(config).save_pretrained(self.model_folder)
        transformers.PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>").save_pretrained(
            self.model_folder)
        self.eager = transformers.AutoModelForCausalLM.from_pretrained(self.model_folder, attn_implementation="eager")
        self.backend = backends.open_model(self.model_folder, threads=2)
        self.ids = self.backend.tokenize("A text of letters. " * 20)

    def test_tokens(self):
        self.assertEqual(self.backend.tokenize(""), [95])
        self.assertEqual((len(self.backend.tokenize("abc")), self.backend.context), (4, 2048))

    def test_dense_losses_and_answers_are_those_of_eager_attention(self):
        torch = support.torch
        rule = rules.Rule("dense", 64, 32)
        with torch.inference_mode():
            logits = self.eager(torch.tensor([self.ids])).logits[0]
            wanted = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(self.ids[1:]), reduction="none")
            written = self.eager.generate(torch.tensor([self.ids]), max_new_tokens=8, do_sample=False)[0, len(self.ids):]
        torch.testing.assert_close(torch.tensor(self.backend.losses(self.ids, 50, rule)), wanted, atol=1e-4, rtol=1e-4)
        answer, seconds = self.backend.answer(self.ids, 8, rule, 0)
        self.assertEqual(answer, self.backend._tokenizer.decode(written))
        self.assertGreater(seconds, 0)

    def test_sparse_losses_are_dense_in_the_first_chunk_alone(self):
        dense = self.backend.losses(self.ids, 50, rules.Rule("dense", 64, 16))
        for name in ("h2o", "window", "blocks", "sketches"):
            sparse = self.backend.losses(self.ids, 50, rules.Rule(name, 64, 16))
            differences = [abs(one - other) for one, other in zip(sparse, dense)]
            self.assertLess(max(differences[:60]), 1e-4, name)
            self.assertGreater(max(differences[64:-50]), 1e-3, name)

    def test_a_chat(self):
        with self.assertRaisesRegex(ValueError, "llama: the tokenizer has no chat template; allowed: "):
            self.backend.chat("a", "b")
        self.backend._tokenizer.chat_template = (
            "{% for m in messages %}({{ m['role'] }}){{ m['content'] }}{% endfor %}{% if add_generation_prompt %}(model){% endif %}")
        self.assertEqual(self.backend._tokenizer.decode(self.backend.chat("a?", "it is")), "(user)a?(model)it is")

    def test_the_cache_is_said(self):
        """transformers makes none of its own, and has nothing to warn of."""
        import transformers
        seen = []
        forward = self.backend._model.forward
        with unittest.mock.patch.object(self.backend._model, "forward", side_effect=lambda *given, **named: (
                seen.append(named.get("cache", named.get("past_key_values"))), forward(*given, **named))[1]), self.assertNoLogs("transformers"):
            self.backend.answer(self.ids, 3, rules.Rule("blocks", 64, 32), 0)
            self.backend.losses(self.ids, 50, rules.Rule("blocks", 64, 32))
        self.assertGreaterEqual(len(seen), 2)
        self.assertTrue(all(isinstance(cache, transformers.DynamicCache) for cache in seen))

    def test_folders_that_are_damaged(self):
        for name, data in (("config.json", b"{"), ("config.json", b'{"model_type": "none"}'), ("tokenizer.json", b"[]"),
                           ("model.safetensors", b"\xff" * 64)):
            path = self.model_folder / name
            whole = path.read_bytes()
            path.write_bytes(data)
            err = io.StringIO()
            with self.subTest(name=name, data=data[:20]), contextlib.redirect_stderr(err):
                status = command.main(["--model", str(self.model_folder), "--out", str(self.folder / "out"), *QUICK])
                self.assertEqual(status, 2)
                self.assertRegex(err.getvalue().splitlines()[-1], "^headwater.evaluate: .*llama: .*; allowed: a folder of a ")
            path.write_bytes(whole)

    def test_a_run(self):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = command.main(["--model", str(self.model_folder), "--texts", str(self.text), "--out",
                                   str(self.folder / "out"), *QUICK, "--tasks", "niah_uuid,variable_tracking"])
        self.assertEqual(status, 0, err.getvalue())
        document = json.loads((self.folder / "out" / "results.json").read_text(encoding="utf-8"))
        self.assertEqual((document["model"]["kind"], document["model"]["name"]), ("hugging face", "llama"))
        self.assertEqual(len(document["answers"]) + len(document["losses"]), 12)

    def test_logits_that_change_after_the_output_layer(self):
        import transformers
        rule = rules.Rule("dense", 64, 32)
        torch = support.torch
        config = transformers.Gemma2Config(
            vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, head_dim=16,
            num_key_value_heads=2, final_logit_softcapping=0.5, bos_token_id=95, eos_token_id=96)
        transformers.Gemma2ForCausalLM(config).save_pretrained(self.model_folder)
        capped = backends.open_model(self.model_folder, threads=2)
        eager = transformers.AutoModelForCausalLM.from_pretrained(self.model_folder, attn_implementation="eager")
        with torch.inference_mode():
            logits = eager(torch.tensor([self.ids])).logits[0]
        self.assertLess(logits.abs().max(), 0.5)
        wanted = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(self.ids[1:]), reduction="none")
        torch.testing.assert_close(torch.tensor(capped.losses(self.ids, 50, rule)), wanted, atol=1e-4, rtol=1e-4)
        forward = capped._model.forward

        def scaled(*arguments, **named):
            found = forward(*arguments, **named)
            found.logits = found.logits * 2
            return found
        capped._model.forward = scaled
        with self.assertRaisesRegex(NotImplementedError, "losses of gemma2: it changes logits after its output layer"):
            capped.losses(self.ids, 50, rule)


if __name__ == "__main__":
    unittest.main()
