"""Waivers: a failure is tolerated with a reason until a day; what expired, what nothing needs and what is malformed fails."""

import json
import unittest

import kit

ENTRY = {"case": "bound.sinks", "engine": "naive-c", "reason": "sinks come next month", "expires": "2999-12-31"}


class Waivers(kit.Case):
    def run_with(self, entries, *arguments, status, fault="ignores_sinks"):
        with open(self.path("waivers.json"), "w", encoding="utf-8") as file:
            json.dump({"waivers": entries}, file)
        return self.report("--engine-plugin", kit.plugin("naive_broken_plugin"), "--quick", "--case",
                           "bound.sinks,bound.scale", "--waivers", self.path("waivers.json"), *arguments,
                           status=status, fault=fault)

    def test_a_failure_is_borne_and_shown(self):
        document, page = self.run_with([ENTRY], status=0)
        self.assertEqual(document["verdict"], "PASS")
        statuses = {result["case"]: result["status"] for result in document["results"]}
        self.assertEqual(statuses, {"bound.sinks": "WAIVED", "bound.scale": "PASS"})
        result = next(r for r in document["results"] if r["case"] == "bound.sinks")
        self.assertEqual(result["waiver"], "sinks come next month (until 2999-12-31)")
        self.assertIn("above the bound", result["message"])
        self.assertEqual(document["totals"]["WAIVED"], 1)
        self.assertIn("<h2>Waived</h2>", page)
        self.assertIn("sinks come next month", page)

    def test_patterns(self):
        self.run_with([dict(ENTRY, case="bound.s*", engine="naive*")], status=0)

    def test_without_it_the_run_fails(self):
        self.run_with([], status=1)
        for entry in (dict(ENTRY, engine="another"), dict(ENTRY, case="bound.alibi")):
            document, _ = self.run_with([entry], status=1)
            self.assertEqual(document["problems"], [], "a waiver of what did not run is neither used nor unused")

    def test_expired(self):
        document, _ = self.run_with([dict(ENTRY, expires="2020-02-29")], status=1)
        self.assertIn("expired on 2020-02-29", document["problems"][0])
        statuses = {result["case"]: result["status"] for result in document["results"]}
        self.assertEqual(statuses["bound.sinks"], "FAIL")
        # Even where nothing fails: it must be deleted.
        document, _ = self.run_with([dict(ENTRY, expires="2020-02-29")], status=1, fault="none")
        self.assertIn("expired", document["problems"][0])

    def test_unused(self):
        document, page = self.run_with([ENTRY], status=1, fault="none")
        self.assertIn("is unused", document["problems"][0])
        self.assertIn("is unused", page)
        document, _ = self.run_with([ENTRY, dict(ENTRY, case="bound.scale")], status=1)
        self.assertEqual(len(document["problems"]), 1)
        self.assertIn("bound.scale", document["problems"][0])

    def test_two_that_bear_the_same(self):
        document, _ = self.run_with([ENTRY, dict(ENTRY, case="bound.sin*")], status=0)
        self.assertEqual(document["problems"], [])

    def test_no_such_case(self):
        document, _ = self.run_with([ENTRY, dict(ENTRY, case="bound.nothing")], status=1)
        self.assertIn("for no case that the kit has", document["problems"][0])

    def test_malformed(self):
        def without(key):
            return {name: value for name, value in ENTRY.items() if name != key}

        texts = ["", "{", "[]", "null", "{}", '{"waivers": {}}', '{"waivers": [], "more": 1}', '{"waivers": [1]}',
                 "\x00", "[" * 100000, '{"waivers": [' + "9" * 5000 + "]}"]
        entries = [without(key) for key in ENTRY]
        entries += [dict(ENTRY, more="x"), dict(ENTRY, case=1), dict(ENTRY, case=""), dict(ENTRY, reason="two\nlines"),
                    dict(ENTRY, reason=None)]
        for day in ("2026-02-30", "2026-13-01", "2026-1-1", "31.12.2999", "", "2999-12-311", "abcd-ef-gh", "-999-12-31"):
            entries.append(dict(ENTRY, expires=day))
        texts += [json.dumps({"waivers": [entry]}) for entry in entries]
        path = self.path("malformed.json")
        for text in texts:
            with self.subTest(text=text[:80]):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                done = kit.kit("--engine", "reference", "--case", "bound.scale", "--quick", "--waivers", path)
                self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
                self.assertEqual(done.stdout, "")
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
                self.assertIn("malformed.json", done.stderr)
                self.assertIn("allowed", done.stderr)
        for path in (self.path("missing.json"), self.folder, "/dev/zero"):
            done = kit.kit("--engine", "reference", "--case", "bound.scale", "--waivers", path)
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_the_built_in_list_is_sound(self):
        done = kit.kit("--engine", "none", "--case", "stage.bf16_rounding", "--quick")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
