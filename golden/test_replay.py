"""The replay can fail: damaged files, manifests and values are told apart. `test_replay.py PROGRAM LIBRARY`."""

import hashlib
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import numpy

import replay
import tensors

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = sys.argv.pop(1) if len(sys.argv) > 1 else "headwater"
LIBRARY = sys.argv.pop(1) if len(sys.argv) > 1 else "libheadwater.so"


class Replay(unittest.TestCase):
    names = ("vectors/one-chunk.safetensors", "vectors/three-chunks.safetensors")
    wrong = (("want.out", 1e-4), ("want.lse", 1e-4), ("exact.scores", 0.5), ("want.colsum_intra", 1e-3),
             ("exact.memory", 1), ("exact.chunk_start", 1), ("want.colsum_inter", 1e-3))

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        every = {entry["file"]: entry for entry in json.loads((HERE / "manifest.json").read_text())}
        self.entries = [every[name] for name in self.names]
        (self.root / "vectors").mkdir()
        for entry in self.entries:
            shutil.copy(HERE / entry["file"], self.root / entry["file"])

    def replay(self):
        (self.root / "manifest.json").write_text(json.dumps(self.entries))
        return self.run_script()

    def run_script(self):
        command = [sys.executable, str(HERE / "replay.py"), PROGRAM, "--engine", "reference", "--library", LIBRARY]
        return subprocess.run(command + ["--manifest", str(self.root / "manifest.json")], capture_output=True, text=True)

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
        for gone in ("q", next(name for name in values if name.startswith("bound.out"))):
            tensors.write(path, {key: (types[key], values[key]) for key in values if key != gone})
            self.entries[1]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
            self.expect_damage(self.replay(), path.name, gone)

    def test_wrong_values_fail(self):
        for name, shift in self.wrong:
            path = self.root / self.entries[1]["file"]
            shutil.copy(HERE / self.entries[1]["file"], path)
            values, types, _ = tensors.read(path)
            changed = values[name].copy()
            middle = numpy.flatnonzero(~numpy.isnan(changed))  # NaN: there is no vote
            changed.flat[middle[len(middle) // 2]] += shift
            values[name] = changed
            tensors.write(path, {key: (types[key], values[key]) for key in values})
            self.entries[1]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
            done = self.replay()
            self.assertEqual(done.returncode, 1, name)
            self.assertIn(name.split(".")[1], done.stdout)


class LayersReplay(Replay):
    """The same with a session of two layers as the second; and flags with another number are found."""

    names = ("vectors/one-chunk.safetensors", "vectors/dense-layers.safetensors")
    wrong = tuple((f"{name}.{layer}", shift) for layer in (0, 1)
                  for name, shift in (("want.out", 1e-4), ("want.lse", 1e-4), ("exact.scores", 0.5), ("exact.memory", 1),
                                      ("want.colsum_intra", 1e-3), ("exact.chunk_start", 1), ("want.colsum_inter", 1e-3)))

    def test_wrong_flags_fail(self):
        every = {entry["file"]: entry for entry in json.loads((HERE / "manifest.json").read_text())}
        shutil.rmtree(self.root / "vectors")
        (self.root / "vectors").mkdir()
        for vector, flag, number in (
                ("pinned", "--pinned 3", 2), ("pinned", "--pinned 3", 4), ("pinned-all", "--pinned 4", 3),
                ("pinned-in-local", "--pinned 3", 2), ("pinned-clamped", "--pinned 20", 1), ("pinned-turns", "--pinned 2", 1),
                ("blocks-pinned-one-stage", "--pinned 8", 4), ("blocks-pinned", "--pinned 4", 0),
                ("blocks-pinned-levels", "--pinned 3", 2), ("window-pinned", "--pinned 2", 1),
                ("sketches", "--least-weight 0.4", 0.7), ("sketches", "--query-block 5", 6),
                ("sketches-turns", "--pinned 2", 1), ("sketches-turns", "--least-weight 0.0", 0.5),
                ("dense-below", "--dense-below 17", 16), ("dense-below", "--dense-below 17", 18),
                ("dense-below-first-turn", "--dense-below 13", 12), ("dense-layers", "--dense-layers 1", 0),
                ("blocks-dense-layers", "--pinned 4", 0), ("blocks-dense-layers", "--dense-layers 0,2", 0)):
            with self.subTest(vector=vector, number=number):
                entry = dict(every[f"vectors/{vector}.safetensors"])
                self.assertIn(flag, entry["flags"])
                shutil.copy(HERE / entry["file"], self.root / entry["file"])
                self.entries = [entry]
                self.assertEqual(self.replay().returncode, 0)
                entry["flags"] = entry["flags"].replace(flag, f"{flag.split()[0]} {number}")
                done = self.replay()
                self.assertEqual(done.returncode, 1, done.stdout)
                self.assertNotIn("exit", done.stdout)
                (self.root / entry["file"]).unlink()


class BlocksReplay(Replay):
    """The same with a vector of rule `blocks` as the second."""

    names = ("vectors/one-chunk.safetensors", "vectors/blocks-two-stages.safetensors")
    wrong = (("want.out", 1e-4), ("want.block_votes", 1e-3), ("want.token_votes", 1e-3), ("exact.block_sets", 1),
             ("exact.query_blocks", 1), ("exact.scores", 0.5), ("exact.colsum_intra", 0.5))
    votes = (("block_votes", None, -1e9), ("token_votes", 0, 2.0), ("token_votes", 0, float("nan")), ("block_sets", 0, -1),
             ("block_sets", -1, 7))  # tensor, entry (None: the largest), value

    def test_sets_follow_from_the_votes_that_are_reported(self):
        source, target = self.root / "in.safetensors", self.root / "out.safetensors"
        entry = self.entries[1]
        values, types, _ = tensors.read(self.root / entry["file"])
        tensors.write(source, {name: (types[name], values[name]) for name in "qkv"})
        command = [PROGRAM, "attend", str(source), "-o", str(target), "--engine", "reference", *entry["flags"].split()]
        subprocess.run(command, check=True, capture_output=True)
        result, _, metadata = tensors.read(target)
        self.assertEqual(replay.replayed(result, metadata), [])
        last = len(result["query_blocks"]) - 1
        for name, index, value in self.votes:
            changed = {key: array.copy() for key, array in result.items()}
            changed[name][last, 0, result[name][last, 0].argmax() if index is None else index] = value
            self.assertNotEqual(replay.replayed(changed, metadata), [], (name, value))


class SketchesReplay(BlocksReplay):
    """The same with rule `sketches`, whose sets end where votes do."""

    names = ("vectors/one-chunk.safetensors", "vectors/sketches.safetensors")
    wrong = (("want.out", 1e-4), ("want.token_votes", 1e-3), ("exact.block_sets", 1), ("exact.scores", 0.5))
    votes = (("token_votes", None, -1e9), ("token_votes", 0, float("nan")), ("block_sets", 0, -1),
             ("block_sets", -1, 7))


if __name__ == "__main__":
    unittest.main()
