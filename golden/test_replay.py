"""The replay can fail: damaged files, manifests and values are told apart. `test_replay.py PROGRAM`."""

import hashlib
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import tensors

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = sys.argv.pop(1) if len(sys.argv) > 1 else "headwater"


class Replay(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        self.entries = json.loads((HERE / "manifest.json").read_text())[:2]
        (self.root / "vectors").mkdir()
        for entry in self.entries:
            shutil.copy(HERE / entry["file"], self.root / entry["file"])

    def replay(self):
        (self.root / "manifest.json").write_text(json.dumps(self.entries))
        return self.run_script()

    def run_script(self):
        command = [sys.executable, str(HERE / "replay.py"), PROGRAM, "--engine", "reference", "--manifest"]
        return subprocess.run(command + [str(self.root / "manifest.json")], capture_output=True, text=True)

    def expect_damage(self, done, *words):
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_sound(self):
        self.assertEqual(self.replay().returncode, 0)

    def test_flipped_byte(self):
        path = self.root / self.entries[0]["file"]
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        self.expect_damage(self.replay(), self.entries[0]["file"], "sha256")

    def test_missing_file(self):
        (self.root / self.entries[1]["file"]).unlink()
        self.expect_damage(self.replay(), self.entries[1]["file"])

    def test_manifest_that_lost_or_repeats_a_vector(self):
        lost = self.entries.pop()
        self.expect_damage(self.replay(), "manifest.json", f"lacks {lost['file']}")
        self.entries += [lost, lost]
        self.expect_damage(self.replay(), "manifest.json", "twice")

    def test_damaged_manifest(self):
        nothing = '{"file": "x", "sha256": "", "flags": "", "catches": %s}'
        for text in ("", "{", "{}", "[]", '[{"file": "x"}]', "[1]", "[" * 5000, f"[{nothing % 1}]", "\udcff"):
            (self.root / "manifest.json").write_text(text, errors="surrogateescape")
            self.expect_damage(self.run_script(), "manifest.json")
        (self.root / self.entries[1]["file"]).unlink()
        self.entries[1]["file"] = "vectors/no\0name"
        self.expect_damage(self.replay(), "vectors/no")

    def test_damaged_vector_with_the_right_hash(self):
        path = self.root / self.entries[1]["file"]
        sound = path.read_bytes()
        values, types, _ = tensors.read(path)
        for damage in (b"", b"\xff" * 8 + sound[8:], sound[:8] + b"[" + sound[9:], sound[:-4], sound[:9] + sound[10:]):
            path.write_bytes(damage)
            self.entries[1]["sha256"] = hashlib.sha256(damage).hexdigest()
            self.expect_damage(self.replay(), path.name)
        for gone in ("q", "bound.out"):
            tensors.write(path, {key: (types[key], values[key]) for key in values if key != gone})
            self.entries[1]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
            self.expect_damage(self.replay(), path.name, gone)

    def test_wrong_values_fail(self):
        for name, shift in (("want.out", 1e-4), ("want.lse", 1e-4), ("exact.scores", 0.5), ("want.colsum_intra", 1e-3),
                            ("exact.memory", 1), ("exact.chunk_start", 1), ("want.colsum_inter", 1e-3)):
            path = self.root / self.entries[1]["file"]
            shutil.copy(HERE / self.entries[1]["file"], path)
            values, types, _ = tensors.read(path)
            changed = values[name].copy()
            changed.flat[changed.size // 2] += shift
            values[name] = changed
            tensors.write(path, {key: (types[key], values[key]) for key in values})
            self.entries[1]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
            done = self.replay()
            self.assertEqual(done.returncode, 1, name)
            self.assertIn(name.split(".")[1], done.stdout)


if __name__ == "__main__":
    unittest.main()
