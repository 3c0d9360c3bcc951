"""The report: measures at tiny sizes, and fills pages; the same measurement gives the same bytes twice."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = os.environ["HEADWATER_BUILD"]
SUBJECTS = ("engines", "chunks", "lengths", "threads", "stages")
PAGE = "# Figures\n\nBefore.\n\n" + "\n".join(
    f"## {name}\n\n<!-- measured {name} -->\nold {name}\n<!-- end -->\n"
    for name in ("machine", *SUBJECTS[:-1], "growth")) + "\nAfter.\n"
NOTES = f"# Notes\n\n<!-- measured {SUBJECTS[-1]} -->\nold {SUBJECTS[-1]}\n<!-- end -->\n"


class Report(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.page = self.folder / "page.md"
        self.page.write_text(PAGE)
        self.notes = self.folder / "notes" / "measured.md"
        self.notes.parent.mkdir()
        self.notes.write_text(NOTES)

    def report(self, *arguments):
        return subprocess.run([sys.executable, "-B", str(ROOT / "bench" / "report" / "report.py"), "--build", BUILD,
                               "--results", str(self.folder / "results"), "--page", str(self.page), "--page", str(self.notes),
                               "--plots", str(self.folder / "plots"), *arguments],
                              capture_output=True, text=True, check=False)

    def test_measures_draws_and_fills(self):
        done = self.report("--tiny", "--only", ",".join(SUBJECTS))
        self.assertEqual(done.returncode, 0, done.stderr)
        page, notes = self.page.read_text(), self.notes.read_text()
        self.assertTrue(page.startswith("# Figures\n\nBefore.\n\n## machine\n\n<!-- measured machine -->\n"))
        self.assertTrue(page.endswith("<!-- measured growth -->\nold growth\n<!-- end -->\n\nAfter.\n"))
        for name in ("machine", *SUBJECTS):
            self.assertNotIn(f"old {name}\n", page + notes)
        self.assertRegex(page, r"cores; \d{4}-\d\d-\d\d; build (unknown|[0-9a-f]{10}\+?); load before: ")
        self.assertIn("| `cpu-portable` | F32 | 16 | SSE multiply and add |", page)
        self.assertIn("](plots/share-of-peak.svg)", page)
        self.assertIn("selection/candidates:1280", notes)
        self.assertNotIn("selection/candidates:1280", page)
        self.assertIn("](../plots/stages.svg)", notes)
        plots = {path.name: path.read_bytes() for path in (self.folder / "plots").iterdir()}
        self.assertEqual(sorted(plots), sorted(f"{name}.svg" for name in
                                               ("share-of-peak", "sparse-against-dense", "threads", "stages")))
        for name, content in plots.items():
            self.assertTrue(content.startswith(b"<?xml"), name)
            self.assertGreater(len(content), 5000)

        again = self.report("--no-measure")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual((self.page.read_text(), self.notes.read_text()), (page, notes))
        self.assertEqual({path.name: path.read_bytes() for path in (self.folder / "plots").iterdir()}, plots)

    def test_refused(self):
        done = self.report("--only", "engines,speed")
        self.assertEqual(done.returncode, 2)
        self.assertIn("'speed' is not known", done.stderr)
        done = self.report("--no-measure")
        self.assertEqual((done.returncode, done.stderr), (1, f"report: nothing was measured yet in {self.folder}/results\n"))
        self.assertEqual(self.page.read_text(), PAGE)

    def test_a_page_without_the_section_is_left_alone(self):
        self.page.write_text("# Other\n")
        done = self.report("--tiny", "--only", "lengths")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no page has a section for: machine, lengths", done.stderr)
        self.assertEqual(self.notes.read_text(), NOTES)
        self.assertEqual(self.page.read_text(), "# Other\n")

    def test_the_real_pages_have_every_section(self):
        pages = "".join((ROOT / "docs" / name).read_text() for name in ("performance.md", "notes/measured.md"))
        for name in (*SUBJECTS, "growth", "decode", "sweeps", "peers"):
            self.assertEqual(pages.count(f"<!-- measured {name} -->"), 1, name)
        self.assertEqual(pages.count("<!-- measured machine -->"), 2)


if __name__ == "__main__":
    unittest.main()
