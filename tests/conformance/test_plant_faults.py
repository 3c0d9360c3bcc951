"""Faults planted into copies of sources (conformance/plant_faults.py): what a copy says, and what is refused."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "conformance" / "plant_faults.py"
sys.path.insert(0, str(SCRIPT.parent))
import plant_faults  # noqa: E402

SOURCE = "for (int j = 0; j <= i; ++j) sum += f(j, 0);\n"


def fault(name, before, after, **more):
    return {"name": name, "file": "reference/dense.cpp", "before": before, "after": after, **more}


class Planted(unittest.TestCase):
    def test_nothing(self):
        self.assertEqual(plant_faults.planted(SOURCE, []), SOURCE)

    def test_an_expression_and_its_surroundings(self):
        faults = [fault("last", "j <= i", "j < i"), fault("first", "0", "1", **{"in": "int j = 0"})]
        self.assertEqual(plant_faults.planted(SOURCE, faults),
                         'for (int j = (HEADWATER_SABOTAGE("first") ? (1) : (0)); '
                         '(HEADWATER_SABOTAGE("last") ? (j < i) : (j <= i)); ++j) sum += f(j, 0);\n')

    def test_two_faults_of_one_expression(self):
        faults = [fault("a", "f(j, 0)", "1"), fault("b", "f(j, 0)", "2")]
        self.assertIn('(HEADWATER_SABOTAGE("b") ? (2) : (HEADWATER_SABOTAGE("a") ? (1) : (f(j, 0))))',
                      plant_faults.planted(SOURCE, faults))

    def test_misfits(self):
        for wrong, message in ((fault("a", "j < i", ""), '"before" occurs 0 times'),
                               (fault("a", "0", "1"), '"before" occurs 2 times'),
                               (fault("a", "0", "1", **{"in": "int k = 0"}), '"in" occurs 0 times'),
                               (fault("a", "j", "1", **{"in": "j <= i; ++j"}), '"before" occurs 2 times')):
            with self.assertRaisesRegex(plant_faults.Misfit, f"^fault a: {message} .*reference/dense.cpp.*$"):
                plant_faults.planted(SOURCE, [wrong])

    def test_overlaps(self):
        with self.assertRaisesRegex(plant_faults.Misfit, "^fault b: .* overlaps"):
            plant_faults.planted(SOURCE, [fault("a", "f(j, 0)", "1"), fault("b", "j, 0", "0, j")])


class Program(unittest.TestCase):
    """The whole program on sources of this tree."""

    def run_on(self, faults):
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            table = folder / "table.json"
            table.write_text(json.dumps({"saboteurs": faults}))
            source = ROOT / "reference" / "dense.cpp"
            done = subprocess.run([sys.executable, "-B", SCRIPT, "--table", table, "--out", folder, source],
                                  capture_output=True, text=True, check=False)
            copy = folder / source.name
            return done, copy.read_text() if copy.exists() else None, source

    def test_a_copy(self):
        done, copy, source = self.run_on([])
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue(copy.endswith(f'#line 1 "{source}"\n{source.read_text()}'))

    def test_refusals_name_the_fault_in_one_line(self):
        for wrong in (fault("a.b.c", "nowhere", ""), {**fault("a.b.c", "", ""), "file": "reference/other.cpp"}):
            done, copy, _ = self.run_on([wrong])
            self.assertEqual((done.returncode, copy), (1, None))
            self.assertRegex(done.stderr, r"^\S+table.json: fault a\.b\.c: [^\n]*\n$")


if __name__ == "__main__":
    unittest.main()
