"""Plug-ins that cannot be loaded: one line, exit 2 (3 where the machine lacks something), a report that says so."""

import os
import unittest

import kit

REFUSED = {
    "null_table": "returned NULL",
    "version": "abi_version of its table is 7; allowed: 1",
    "size": "struct_size of its table is",
    "size_0": "struct_size of its table is 0",
    "reserved": "reserved of its table is 1",
    "claims": "claims of its table are 0x10000000000",
    "null_name": "name of its table is NULL",
    "empty_name": "name of its table is ''",
    "bad_name": "<script>?",
    "long_name": "name of its table is '0123456789",
    "own_name": "which is an engine of the library",
    "isa_lines": "isa of its table is 'two?lines'",
    "null_description": "description of its table is NULL",
    "null_open": "function open of its table is NULL",
    "null_last_error": "function last_error of its table is NULL",
    "null_set_observer": "function set_observer of its table is NULL",
    "null_session_failed": "function session_failed of its table is NULL",
    "claim_without_function": "its table makes a claim and has no function truncate for it",
    "claim_behind_its_end": "its table makes a claim and has no function attend_lse for it",
    "rounding": "loading it changes how its caller computes",
    "exit": "ended its process with status 0",
}


class Loader(kit.Case):
    def refused(self, path, text, *arguments, status=2, **variables):
        done = kit.kit("--engine-plugin", path, "--report", self.path("report"), *arguments, **variables)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(text, done.stderr)
        self.assertIn(os.path.basename(path), done.stderr)
        document, page = self.report("--engine-plugin", path, *arguments, status=status, **variables)
        self.assertEqual(document["verdict"], "FAIL")
        self.assertIn(text, document["not_loaded"])
        self.assertEqual(document["results"], [])
        self.assertIn("<h2>Not judged</h2>", page)
        self.assertNotIn("<script>", page)

    def test_wrong_tables(self):
        for fault, text in REFUSED.items():
            with self.subTest(fault=fault):
                self.refused(kit.plugin("loader_plugin"), text, LOADER_FAULT=fault)

    def test_crash_and_hang(self):
        self.refused(kit.plugin("loader_plugin"), "killed by signal 11", LOADER_FAULT="crash")
        self.refused(kit.plugin("loader_plugin"), "no result within 1 s", "--time-limit", "1", LOADER_FAULT="hang")

    def test_unavailable_is_exit_3(self):
        self.refused(kit.plugin("loader_plugin"), "needs a device that nobody has", status=3, LOADER_FAULT="unavailable")

    def test_no_plugin_at_all(self):
        self.refused(kit.plugin("loader_undefined_plugin"), "a_function_that_no_library_has", LOADER_FAULT="none")
        self.refused(self.path("missing.so"), "No such file")
        text = self.path("text.so")
        with open(text, "w", encoding="utf-8") as file:
            file.write("no shared object\n")
        self.refused(text, "cannot be loaded")
        empty = self.path("empty.so")
        with open(empty, "w", encoding="utf-8"):
            pass
        self.refused(empty, "cannot be loaded")
        self.refused(self.folder, "no file that can be read")
        self.refused("/dev/null", "no file that can be read")
        with open(kit.plugin("naive_plugin"), "rb") as file:
            blob = file.read()
        cut = self.path("cut.so")
        with open(cut, "wb") as file:
            file.write(blob[:1000])
        self.refused(cut, "loaded")  # by an error of the dynamic loader, or by its death

    def test_a_library_without_the_symbol(self):
        self.refused(os.environ["HEADWATER_NO_PLUGIN"], "exports no headwater_plugin_v1")


if __name__ == "__main__":
    unittest.main()
