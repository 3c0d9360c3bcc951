"""The sample engine in C passes the full kit with everything claimed; the reports say what was tested."""

import html.parser
import unittest

import kit


class Outline(html.parser.HTMLParser):
    """Headings, and whether every element is closed in order; anything that would load something else is refused."""

    VOID = {"meta", "br"}

    def __init__(self):
        super().__init__()
        self.open = []
        self.headings = []
        self.problems = []

    def handle_starttag(self, tag, attrs):
        if tag in ("script", "link", "img", "iframe", "object") or any(name in ("src", "href") for name, _ in attrs):
            self.problems.append(f"<{tag}> loads something")
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "h2":
            self.headings.append("")

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing")

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.headings[-1] += data


# Every lane but `shape`, whose sizes take a naive engine on one thread too long.
LANES = {"exact", "bound", "adversarial", "bias", "replay", "determinism", "law", "hostile", "state"}

# Claims that the sample does not make: those of hardware and of hosts, and these.
LEFT_OUT = {"estimate", "host_memory", "host_threads", "kv_bits", "save"}


class Sample(kit.Case):
    def test_passes_the_kit(self):
        quick = ["--quick"] if kit.SANITIZED else []
        document, page = self.report("--engine-plugin", kit.plugin("naive_plugin"), "--lane", ",".join(sorted(LANES)),
                                     *quick, "--time-limit", "600", status=0)
        self.assertEqual(document["verdict"], "PASS")
        self.assertEqual(document["totals"]["FAIL"] + document["totals"]["MISTRUSTED"], 0)
        lanes = {result["lane"] for result in document["results"]}
        self.assertEqual(lanes, LANES)
        self.assertGreater(len(document["results"]), 90)
        skipped = [r["case"] for r in document["results"] if r["status"] == "SKIP" and not any(
            words in r["message"] for words in (*(f"(Claims::{name})" for name in LEFT_OUT), "no rule sketches: "))]
        if not kit.SANITIZED:
            self.assertEqual(skipped, [])
        (engine,) = document["engines"]
        self.assertEqual(engine["name"], "naive-c")
        self.assertEqual({name for name, made in engine["claims"].items() if not made},
                         {"bf16_weights", "device_memory", "f16_weights"} | LEFT_OUT)
        # Errors were measured, and are errors of double arithmetic.
        for key in ("out F32", "lse F32", "colsum_intra F32", "colsum_inter F32"):
            self.assertGreater(engine["worst"][key]["err_over_bound"], 0.0)
            self.assertLessEqual(engine["worst"][key]["err_over_bound"], 1.0)
        outline = Outline()
        outline.feed(page)
        self.assertEqual(outline.problems + outline.open, [])
        for heading in ("Tested", "Lanes", "Worst error over bound", "Determinism", "All cases"):
            self.assertIn(heading, outline.headings)
        self.assertNotIn("Failed", outline.headings)

    def test_the_c_abi_passes_as_a_third_party(self):
        document, _ = self.report("--engine-plugin", kit.plugin("wrapped_plugin"), "--quick", status=0)
        self.assertEqual(document["engines"][0]["name"], "c-abi")
        self.assertGreater(document["totals"]["PASS"], 180)
        self.assertEqual(document["totals"]["WAIVED"], 0)
        (engine,) = document["engines"]
        self.assertEqual({name for name, made in engine["claims"].items() if not made},
                         {"bf16_weights", "device_memory", "double_arithmetic", "f16_weights"})
        self.assertEqual([r["case"] for r in document["results"] if "does not claim" in r["message"]],
                         ["bound.double_arithmetic"])

    @unittest.skipIf(kit.SANITIZED, "large sizes run in the release build")
    def test_the_c_abi_at_the_sizes_people_run(self):
        document, _ = self.report("--engine-plugin", kit.plugin("wrapped_plugin"), "--case",
                                  "shape.heads_32_over_8,shape.batches,shape.wide_rows", status=0)
        self.assertEqual(document["totals"]["PASS"], 3)

    def test_says_what_is_skipped_and_why(self):
        document, page = self.report("--engine-plugin", kit.plugin("naive_plugin"), "--quick", "--case",
                                     "bound.large_chunks", status=0)
        self.assertEqual(document["results"][0]["status"], "SKIP")
        self.assertIn("thousands of tokens", document["results"][0]["message"])
        self.assertIn("<h2>Skipped</h2>", page)

    def test_marks_of_its_own(self):
        """The library's baselines are not a plug-in's; it may record its own and is held to them."""
        arguments = ("--engine-plugin", kit.plugin("naive_plugin"), "--case", "bound.scale")
        baselines = self.path("baselines.json")
        done = kit.kit(*arguments, "--update-ratchet", baselines)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(kit.kit(*arguments, "--ratchet", baselines).returncode, 0)
        with open(baselines, encoding="utf-8") as file:
            text = file.read()
        self.assertIn("naive-c/scalar", text)
        with open(baselines, "w", encoding="utf-8") as file:
            file.write(text.replace("naive-c/scalar", "someone-else/scalar"))
        done = kit.kit(*arguments, "--ratchet", baselines)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no baselines for naive-c/scalar", done.stdout)

    def test_bad_usage(self):
        sample = kit.plugin("naive_plugin")
        for arguments in (["--engine", "reference", "--engine-plugin", sample], ["--time-limit", "3"],
                          ["--engine-plugin", sample, "--time-limit", "0"],
                          ["--engine-plugin", sample, "--time-limit", "nan"],
                          ["--engine-plugin", sample, "--must-pass"], ["--engine-plugin", sample, "--self-test"],
                          ["--engine-plugin", sample, "--case", "stage.bf16_rounding"],
                          ["--engine-plugin", sample, "--report", "/nonexistent/folder"],
                          ["--engine-plugin", sample, "--report", "/dev/null"],
                          ["--engine-plugin", sample, "--html", "/nonexistent/page.html"]):
            with self.subTest(arguments=arguments):
                done = kit.kit(*arguments)
                self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
                self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    unittest.main()
