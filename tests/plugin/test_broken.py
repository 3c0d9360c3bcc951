"""Copies of the sample with one fault each: every fault fails in the lane that it belongs to, and only that lane runs;
the kit goes on whatever the plug-in does to its process.

The value of a fault: the cases that must find it, with a part of their messages."""

import os
import select
import unittest

import kit

CRASH = "killed by signal 11"

FAULTS = {
    # The algorithm.
    "sees_next_key": {"law.causality": "changed the output of token"},
    "ignores_sinks": {"bound.sinks": "above the bound"},
    "column_sum_misses_a_query": {"exact.powers_of_two": "colsum_intra", "law.partition_of_unity": "add up to"},
    "truncates": {"bias.signed_mean_error": "mean signed error"},
    "ties_by_higher_position": {"replay.ties": "memory set", "blocks.replay_ties": "replay gives"},
    "stale_score": {"replay.random": "replay gives"},
    "stale_set": {"replay.random": "memory set"},
    "batch_ignored": {"replay.random": "PLAN-1"},
    "short_pool_by_whole_size": {"blocks.sizes": "above the bound"},
    "set_of_first_block": {"blocks.bound_f32": "above the bound"},
    "pinned_once": {"options.pinned_replay": "memory set"},
    "pinned_tokens_by_votes": {"blocks.pinned_replay": "SEL-11: set"},
    "dense_layer_forgotten": {"options.dense_layers_bound": "reported as", "blocks.dense_layers_bound": "reported as"},
    "turn_by_its_first_call": {"options.dense_below_turns": "PLAN-1", "blocks.dense_below_turns": "PLAN-1"},
    "rule_refused_unnamed": {"blocks.replay": "select is 1; allowed: 0"},
    # Claims that do not hold.
    "float_inside": {"bound.double_arithmetic": "above the bound"},
    "differs_by_threads": {"determinism.threads": "threads 1 and 3"},
    "differs_by_run": {"determinism.runs": "two runs"},
    "differs_by_schedule": {"determinism.schedule_outputs": "layer-major and chunk-major"},
    "allocates": {"allocation.none_after_open": "allocations in the step"},
    "allocates_aligned": {"allocation.none_after_open": "allocations in the step"},
    # Memory of others.
    "writes_behind_rows": {"hostile.strided": "out: byte"},
    "writes_far_behind_rows": {"hostile.guarded": CRASH},
    "writes_input": {"hostile.strided": "q: byte"},
    "writes_sinks": {"bound.sinks": "open: sinks: byte"},
    "skips_last_row": {"hostile.strided": "was never written"},
    "key_row_too_long": {"state.stored_rows": "read_key: byte"},
    "key_row_too_early": {"state.stored_rows": "read_key: byte -"},
    "state_too_long": {"state.protocol": "session_state: byte 4"},
    "options_too_long": {"config.effective": "session_options: byte 160"},
    "keeps_sinks_pointer": {"bound.sinks": "never written"},  # what it computes with is NaN poison
    # The pointers that it returns are invalid.
    "scores_nowhere": {"replay.random": "scores: data is NULL"},
    "set_beyond_its_width": {"replay.random": "count 1099511627776"},
    "record_of_no_chunk": {"replay.random": "a chunk record of layer 0, chunk [0, 4611686018427387904)"},
    "record_of_no_layer": {"replay.random": "a chunk record of layer -1"},
    # Its own memory.
    "malloc_unchecked": {"allocation.open_without_memory": CRASH},
    "malloc_leaks": {"allocation.open_without_memory": "1 allocations were not given back"},
    "bytes_too_small": {"allocation.bytes_are_taken": "memory_bytes() says"},
    # How its caller computes: the oracles would flush and round as it does.
    "flushes_subnormals": {"bound.alibi": "attend() left other floating-point controls"},
    "rounds_upwards": {"bound.alibi": "attend() left other floating-point controls"},
    # The protocol.
    "layer_twice_allowed": {"state.protocol": "success, not wrong_state"},
    "failure_hidden": {"state.failed_steps": "failed() is false"},
    "abort_keeps_scores": {"abort.points": "aborted at token"},
    "truncate_keeps_sets": {"truncate.every_length": "truncated to"},
    "settles_early": {"truncate.every_length": "inside a sparse chunk"},
    "interrupt_ignored": {"interrupt.every_question": "0 questions in"},
    "interrupt_leaves_step": {"interrupt.every_question": "failed() after a stop"},
    "interrupt_after_attend": {"interrupt.going_on": "outside of attend()"},
    "lse_in_base_2": {"lse.observed": "the observer saw"},
    # Layers.
    "window_off_by_one": {"options.layers_bound": "above the bound"},
    "layer_width_cut": {"options.layers_bound": "was never written"},
    "layer_scale_forgotten": {"options.layers_bound": "above the bound", "options.layers_law": "its own options"},
    "layer_cap_forgotten": {"options.layers_bound": "above the bound", "options.layers_law": "its own options"},
    "layer_sinks_forgotten": {"options.layers_bound": "above the bound", "options.layers_law": "its own options"},
    "layer_size_ignored": {"options.layers_law": "layers[1].window is"},
    "keeps_layers_pointer": {"options.layers_bound": "above the bound", "options.window_unread": "reach an output"},
    "writes_layers": {"options.layers_bound": "open: layers: byte 0"},
    # Rows of the caller, and rows alone.
    "stored_table_ignored": {"sequences.stored_rows": "outputs over rows of the caller are others"},
    "stored_strides_mixed": {"sequences.stored_rows": "was never written", "sequences.rows_alone": "was never written"},
    "stored_table_unchecked": {"sequences.stored_rows_refused": "no pages: success"},
    "writes_table": {"sequences.stored_rows": "attend_stored: table: byte 0"},
    "rows_alone_not_stored": {"sequences.rows_alone": "without queries"},
    "rows_alone_observed": {"sequences.rows_alone": "a call without queries was observed"},
    "rows_alone_in_prefill": {"sequences.rows_alone": "a prefill call without queries: success"},
    # Forks.
    "fork_shares_scores": {"sequences.forks": "forked after"},
    "fork_forgets_newest": {"sequences.forks": "forked after"},
    "fork_keeps_observer": {"sequences.forks": "the observer was called outside of attend()"},
    "fork_in_open_step": {"sequences.forks": "a fork in an open step: success"},
    "fork_without_session": {"sequences.forks": "fork() succeeded with *session NULL"},
    "fork_writes_behind": {"sequences.forks": "fork: session: byte 8"},
    "fork_is_itself": {"sequences.forks": "fork() gave the session itself"},
    "fork_unchecked": {"allocation.fork_without_memory": CRASH},
    "fork_leaks": {"allocation.fork_without_memory": "were not given back"},
    "reset_keeps_scores": {"determinism.after_reset": "a run after reset"},
    "status_99": {"state.protocol": "status 99"},
    "error_without_text": {"state.protocol": "last_error() is NULL"},
    "error_of_two_lines": {"state.protocol": "more than one line"},
    "record_too_small": {"replay.random": "struct_size of a chunk record"},
    "observer_from_thread": {"replay.random": "another thread"},
    "open_without_session": {"replay.random": "*session NULL"},
}
# The same of saved sessions, in libheadwater behind the table (saved_faults.c).
SAVED_FAULTS = {
    "old_file_kept": {"sequences.files": "has a header of"},
    "file_emptied_first": {"sequences.files": "a refused save() changed its file"},
    "other_file_left": {"sequences.files": "save() left another file than its own"},
    "open_step_saved": {"sequences.files": "save() in an open step"},
    "fingerprint_ignored": {"sequences.files": "a load was not refused; another fingerprint"},
    "damage_believed": {"sequences.files": "a load was not refused"},
    "errors_unnamed": {"sequences.files": "does not name fingerprint"},
    "session_after_error": {"sequences.files": "a failed load() did not set *session to NULL"},
    "nothing_loaded": {"sequences.saves": "saved after", "sequences.files": "saved after"},
    "scores_forgotten": {"sequences.saves": "saved after"},
    "newest_forgotten": {"sequences.saves": "saved after", "sequences.files": "saved after"},
    "chunks_forgotten": {"sequences.saves": "of all steps so far"},
    "chunks_without_end": {"sequences.saves": "session_chunk_count() gives 1099511627776"},
    "memory_count_of_another": {"sequences.saves": "allowed: 0 (MEM-4)"},
    "chunk_written_behind": {"sequences.saves": "session_chunk: memory_count: byte 8"},
}
# Where a sanitizer owns malloc, and where it would stop the process before the kit can see what was written.
NOT_SANITIZED = {"allocates", "allocates_aligned", "malloc_unchecked", "malloc_leaks", "bytes_too_small",
                 "writes_far_behind_rows", "fork_leaks", "fork_shares_scores", "fork_unchecked", "stored_strides_mixed",
                 "state_too_long", "options_too_long", "key_row_too_long", "key_row_too_early", "writes_sinks",
                 "writes_behind_rows"}


class Broken(kit.Case):
    def run_fault(self, fault, cases, *arguments, status=1, **variables):
        return self.report("--engine-plugin", kit.plugin("naive_broken_plugin"), "--quick", "--case", ",".join(cases),
                           *arguments, status=status, fault=fault, **variables)

    def test_every_fault_fails_in_its_lane(self):
        for fault, cases in FAULTS.items():
            if kit.SANITIZED and fault in NOT_SANITIZED:
                continue
            with self.subTest(fault=fault):
                document, page = self.run_fault(fault, cases)
                self.assertEqual(document["verdict"], "FAIL")
                self.assertEqual({r["case"] for r in document["results"]}, set(cases))
                for result in document["results"]:
                    self.assertEqual(result["status"], "FAIL", result)
                    self.assertIn(cases[result["case"]], result["message"])
                    self.assertIn("--engine-plugin", result["reproduce"])
                self.assertIn("<h2>Failed</h2>", page)

    def test_every_fault_of_saved_sessions_fails(self):
        for fault, cases in SAVED_FAULTS.items():
            with self.subTest(fault=fault):
                document, _ = self.report("--engine-plugin", kit.plugin("saved_broken_plugin"), "--quick", "--case",
                                          ",".join(cases), status=1, SAVED_FAULT=fault)
                self.assertEqual({r["case"] for r in document["results"]}, set(cases))
                for result in document["results"]:
                    self.assertEqual(result["status"], "FAIL", result)
                    self.assertIn(cases[result["case"]], result["message"])

    def test_the_copy_without_a_fault_passes_them(self):
        cases = {case for cases in FAULTS.values() for case in cases}
        document, _ = self.run_fault("none", cases, status=0)
        for result in document["results"]:
            wanted = {"PASS", "SKIP"} if kit.SANITIZED else {"PASS"}
            self.assertIn(result["status"], wanted, result)

    def test_a_rule_that_is_refused_by_name_is_skipped(self):
        document, _ = self.run_fault("no_rule_blocks", ["blocks.*", "replay.random"], status=0)
        for result in document["results"]:
            of_rule = result["case"].startswith("blocks.")
            self.assertEqual(result["status"], "SKIP" if of_rule else "PASS", result)
            if of_rule and result["lane"] != "shape":
                self.assertIn("has no other rule", result["message"])

    def test_pinned_tokens_that_are_refused_by_name_are_skipped(self):
        cases = ["options.*pinned*", "options.dense*", "options.no_allocation", "blocks.pinned*", "replay.random"]
        document, _ = self.run_fault("pins_no_tokens", cases, status=0)
        for result in document["results"]:
            if result["lane"] == "shape":
                continue
            refused = "pinned" in result["case"] or result["case"] == "options.no_allocation"
            self.assertEqual(result["status"], "SKIP" if refused else "PASS", result)
            if refused:
                self.assertIn("pins no tokens", result["message"])

    def test_a_table_of_the_first_header_is_judged_by_its_statuses(self):
        cases = ["state.protocol", "state.refused_calls", "state.failed_steps"]
        document, _ = self.run_fault("none", cases, status=0, NAIVE_FIRST_TABLE="1")
        self.assertEqual([result["status"] for result in document["results"]], ["PASS"] * len(cases))

    def process_fault(self, fault, *arguments):
        """A fault of the process in one case of three: that one fails, and the others are judged as ever."""
        document, _ = self.run_fault(fault, ["bound.head_sizes", "bound.alibi", "bound.scale"], *arguments)
        statuses = {result["case"]: result["status"] for result in document["results"]}
        self.assertEqual(statuses, {"bound.alibi": "PASS", "bound.head_sizes": "FAIL", "bound.scale": "PASS"})
        return next(r for r in document["results"] if r["case"] == "bound.head_sizes")

    def test_crash(self):
        self.assertIn(CRASH, self.process_fault("crashes")["message"])

    def test_hang(self):
        # Longer than any case takes on a busy machine; a hang takes longer.
        result = self.process_fault("hangs", "--time-limit", "10")
        self.assertIn("hangs: no result within 10 s", result["message"])
        self.assertIn("--time-limit 10", result["reproduce"])

    def test_claims_that_change_from_load_to_load(self):
        document, _ = self.run_fault("claims_change", ["bound.alibi", "determinism.threads"], LEFT_BEHIND=self.path("loaded"))
        for result in document["results"]:
            self.assertEqual(result["status"], "FAIL", result)
            self.assertIn("another thing than when it was first loaded", result["message"])

    def test_each_claim_is_held_and_shown_by_its_own_name(self):
        cases = {"bitwise_threads": "determinism.threads", "bitwise_runs": "determinism.runs",
                 "bitwise_schedules": "determinism.schedule_outputs", "no_allocation": "allocation.none_after_open",
                 "double_arithmetic": "bound.double_arithmetic"}
        bits = {**{name: 1 << bit for bit, name in enumerate(cases)}, "bf16_weights": 32, "device_memory": 64,
                "f16_weights": 128, "abort": 256, "truncate": 512, "interrupt": 1024, "lse": 2048,
                "host_threads": 4096, "fork": 1 << 15, "layers": 1 << 17, "stored_rows": 1 << 18,
                "rows_alone": 1 << 19}  # plugin.h
        for name, bit in bits.items():
            document, _ = self.run_fault("none", cases.values(), status=0, NAIVE_CLAIMS=str(bit))
            self.assertEqual([claim for claim, made in document["engines"][0]["claims"].items() if made], [name])
            judged = {result["case"] for result in document["results"] if result["status"] == "PASS"}
            wanted = {cases[name]} if name in cases else set()
            self.assertEqual(judged - {"allocation.none_after_open"} if kit.SANITIZED else judged,
                             wanted - {"allocation.none_after_open"} if kit.SANITIZED else wanted)

    def test_exit(self):
        self.assertIn("status 0 and gave no result", self.process_fault("exits")["message"])

    def test_what_it_writes_to_files_of_others_is_no_verdict(self):
        self.assertIn("status 0 and gave no result", self.process_fault("writes_to_every_file")["message"])

    def test_what_it_started_ends_with_its_case(self):
        note = self.path("left")
        self.report("--engine-plugin", kit.plugin("naive_broken_plugin"), "--quick", "--case", "bound.head_sizes",
                    status=0, fault="leaves_a_process", LEFT_BEHIND=note)
        with open(note, encoding="utf-8") as file:
            left = int(file.read())
        try:
            process = os.pidfd_open(left)
        except ProcessLookupError:
            return
        # It was killed; the kernel may take a while to remove it.
        ended, _, _ = select.select([process], [], [], 60)
        os.close(process)
        self.assertTrue(ended, f"process {left} lives on")

    def test_what_it_writes_is_shown_and_escaped(self):
        done = kit.kit("--engine-plugin", kit.plugin("naive_broken_plugin"), "--case", "config.limits", "--json", "-",
                       "--html", self.path("page.html"), fault="prints")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.startswith("{"), "its text must not get into the report on standard output")
        self.assertIn('"output": "<b>hello</b> from the plug-in', done.stdout)
        with open(self.path("page.html"), encoding="utf-8") as file:
            page = file.read()
        self.assertIn("&lt;b&gt;hello", page)
        self.assertNotIn("<b>hello", page)


if __name__ == "__main__":
    unittest.main()
