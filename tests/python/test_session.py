"""Session: its steps, what it keeps, and what it refuses."""

import copy
import os
import pickle
import tempfile
import threading
import unittest

import numpy

import support
from support import headwater, rows, session, step


class Steps(unittest.TestCase):
    def test_a_conversation(self):
        q, k, v = rows(400)
        own = session()
        self.assertEqual((own.tokens, own.state, own.failed, own.chunks), (0, "empty", False, []))
        step(own, q, k, v, 0, 130)
        self.assertEqual((own.tokens, own.state), (130, "prefilling"))
        out = step(own, q, k, v, 130, 1, "decode")
        self.assertLess(numpy.abs(out - support.dense(q[130:131], k[:131], v[:131])).max(), 1e-5)
        self.assertEqual((own.tokens, own.state), (131, "decoding"))
        self.assertEqual([chunk[:3] for chunk in own.chunks],
                         [(0, 40, "sparse"), (40, 80, "sparse"), (80, 120, "sparse"), (120, 130, "sparse"),
                          (130, 131, "decode")])
        self.assertEqual(own.memory(0, 5)[-8:], list(range(112, 120)))
        self.assertEqual(len(own.scores(0, 3)), 131)
        self.assertTrue(any(own.scores(0, 3)))
        numpy.testing.assert_array_equal(own.key(0, 1, 77), k[77, 1])
        numpy.testing.assert_array_equal(own.value(0, 1, 77), v[77, 1])
        self.assertGreater(own.memory_bytes["kv"], 131 * 2 * 28 * 4)
        self.assertEqual(own.options["chunk"], 40)
        self.assertEqual((own.options["select"], own.options["sparse"], own.options["kv_owner"]), ("h2o", True, "session"))
        own.reset()
        self.assertEqual((own.tokens, own.state), (0, "empty"))

    def test_estimate_says_what_memory_bytes_will(self):
        sizes = dict(layers=2, heads=4, kv_heads=2, head_dim=16, value_dim=12, capacity=600, page=256)
        opened, full = headwater.Session.estimate(**sizes)
        own = headwater.Session(**sizes)
        self.assertEqual(own.memory_bytes, opened)
        own.begin_decode(600)
        self.assertEqual(own.memory_bytes, full)
        self.assertGreater(full["kv"], 600 * 2 * 28 * 4)
        with self.assertRaisesRegex(ValueError, "capacity is 4611686018427387904"):
            headwater.Session.estimate(**{**sizes, "capacity": 2**62})
        with self.assertRaisesRegex(NotImplementedError, "estimate\\(\\) is not offered by engine reference"):
            headwater.Session.estimate(**sizes, engine="reference")

    def test_log_sum_exps(self):
        q, k, v = rows(50)
        own = session(dense=True)
        own.begin_prefill(50)
        lse = numpy.zeros((50, 6), numpy.float32)
        own.attend(0, q, k, v, lse=lse)
        own.end()
        logits = q[49, 5].astype(float) @ k[:, 1].T / 4
        self.assertAlmostEqual(float(lse[49, 5]), float(numpy.log(numpy.exp(logits).sum())), places=5)
        own.begin_prefill(50)
        for bad in (lse[:49], lse.astype(numpy.float16), lse[:, :, None]):
            with self.assertRaisesRegex(ValueError, r"lse is .*; allowed: float32 \[50, 6\]"):
                own.attend(0, q, k, v, lse=bad)
        self.assertFalse(own.failed)

    def test_a_prefix_without_queries(self):
        q, k, v = rows(400)
        for select in ("h2o", "blocks"):
            own, plain = session(select=select), session(select=select)
            step(plain, q, k, v, 0, 300, "decode")
            own.begin_decode(300)
            self.assertIsNone(own.attend(0, None, k[:300], v[:300]))
            own.end()
            numpy.testing.assert_array_equal(step(own, q, k, v, 300, 60), step(plain, q, k, v, 300, 60))
        own.begin_prefill(10)
        with self.assertRaisesRegex(ValueError, "q.data is null"):
            own.attend(0, None, k[:10], v[:10])
        self.assertFalse(own.failed)

    def test_truncated_and_forked_sessions_have_the_bits_of_others(self):
        q, k, v = rows(400)
        own = session(select="blocks")
        step(own, q, k, v, 0, 300)
        fork = own.fork()
        wanted = step(own, q, k, v, 300, 60)
        own.truncate(300)
        numpy.testing.assert_array_equal(step(own, q, k, v, 300, 60), wanted)
        del own
        numpy.testing.assert_array_equal(step(fork, q, k, v, 300, 60), wanted)

    def test_saved_and_loaded(self):
        q, k, v = rows(400)
        own = session()
        step(own, q, k, v, 0, 300)
        options = {"capacity": 400, "chunk": 40, "batch": 80, "local": 8, "heavy": 16, "threads": 2}
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "session.safetensors")
            own.save(path, fingerprint="a model")
            loaded = headwater.Session.load(path, **support.SIZES, **options, fingerprint="a model")
            with self.assertRaisesRegex(ValueError, "fingerprint"):
                headwater.Session.load(path, **support.SIZES, **options, fingerprint="another")
            with self.assertRaisesRegex(ValueError, "local"):
                headwater.Session.load(path, **support.SIZES, **{**options, "local": 9}, fingerprint="a model")
            with self.assertRaisesRegex(ValueError, "none"):
                headwater.Session.load(os.path.join(folder, "none"), **support.SIZES, **options)
            self.assertEqual(os.listdir(folder), ["session.safetensors"])
        numpy.testing.assert_array_equal(step(loaded, q, k, v, 300, 60), step(own, q, k, v, 300, 60))

    def test_rows_in_8_bits(self):
        """STATE-13: a session of these rows is one of the rows that they are restored to."""
        def restored(rows):
            groups = rows.reshape(-1, 32)
            step = numpy.abs(groups).max(axis=1, keepdims=True) / numpy.float32(127)
            whole = numpy.rint(groups * (numpy.float32(1) / step))
            return (step.astype(numpy.float16).astype(numpy.float32) * whole).reshape(rows.shape)
        sizes = {"layers": 1, "heads": 6, "kv_heads": 2, "head_dim": 32, "value_dim": 64}
        options = {"capacity": 400, "chunk": 40, "local": 8, "heavy": 16, "threads": 2}
        q, k, v = rows(400, width=32, value_width=64)
        own, plain = headwater.Session(**sizes, **options, kv_bits=8), headwater.Session(**sizes, **options)
        self.assertEqual((own.options["kv_bits"], plain.options["kv_bits"]), (8, 0))
        numpy.testing.assert_array_equal(step(own, q, k, v, 0, 300), step(plain, q, restored(k), restored(v), 0, 300))
        numpy.testing.assert_array_equal(own.key(0, 1, 299), restored(k)[299, 1])
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "session")
            own.save(path)
            loaded = headwater.Session.load(path, **sizes, **options, kv_bits=8)
            with self.assertRaisesRegex(ValueError, "options.kv_bits is '8' in the file; allowed: '0'"):
                headwater.Session.load(path, **sizes, **options)
        numpy.testing.assert_array_equal(step(loaded, q, k, v, 300, 60), step(own, q, k, v, 300, 60))
        with self.assertRaisesRegex(ValueError, "d_value is 48"):
            headwater.Session(**{**sizes, "value_dim": 48}, **options, kv_bits=8)
        with self.assertRaisesRegex(ValueError, "kv_bits is 8; allowed: 0"):
            headwater.attention(q, k, v, kv_bits=8)

    def test_layers_of_their_own(self):
        q, k, v = rows(200)
        own = session(layers=2, dense=True, layer_options=[None, {"window": 30}])
        own.begin_prefill(200)
        whole = own.attend(0, q, k, v)
        window = own.attend(1, q, k, v)
        own.end()
        self.assertLess(numpy.abs(whole - support.dense(q, k, v)).max(), 1e-5)
        self.assertLess(numpy.abs(window - support.dense(q, k, v, window=30)).max(), 1e-5)

    def test_layers_of_their_own_widths(self):
        q, k, v = rows(200)
        wide = [numpy.concatenate([part, part], axis=2) for part in (q, k, v)]
        own = session(layers=2, dense=True, layer_options=[{"head_dim": 2 * q.shape[2], "value_dim": 2 * v.shape[2]}, None])
        for there in (own, own.fork()):
            there.begin_prefill(200)
            self.assertLess(numpy.abs(there.attend(0, *wide) - support.dense(*wide)).max(), 1e-5)
            self.assertLess(numpy.abs(there.attend(1, q, k, v) - support.dense(q, k, v)).max(), 1e-5)
            there.end()
            self.assertEqual(there.key(0, 0, 7), wide[1][7, 0].tolist())
            self.assertEqual(there.value(1, 0, 7), v[7, 0].tolist())
        own.begin_decode(1)
        with self.assertRaisesRegex(ValueError, "k has 16 elements of a row; allowed: 32"):
            own.attend(0, q[:1], k[:1], v[:1])

    def test_dtypes_by_any_name(self):
        for dtype in ("float16", "f16", numpy.float16, numpy.dtype("float16"),
                      *([support.torch.float16] if support.torch else [])):
            with self.subTest(dtype):
                self.assertEqual(session(dtype=dtype)._shape.kv_type, 1)


class Refused(unittest.TestCase):
    def test_options_and_shapes(self):
        refused = [({"heads": 5}, ValueError, "divisor of n_head = 5"), ({"capacity": 0}, ValueError, "capacity"),
                   ({"head_dim": 2**40}, ValueError, "d_head"), ({"dtype": "float8"}, ValueError, "dtype is 'float8'"),
                   ({"layers": 2.5}, TypeError, "layers is 2.5; allowed: an integer"),
                   ({"layer_options": []}, ValueError, "layers has 0 entries; allowed: 1"),
                   ({"layer_options": [{"size": 1}]}, TypeError, r"layers\[0\] has 'size'; allowed: window"),
                   ({"layer_options": [{"head_dim": 65537}]}, ValueError, r"layers\[0\].d_head is 65537"),
                   ({"dense_layers": [7]}, ValueError, "dense_layers"), ({"schedule": 1}, ValueError, "schedule is 1"),
                   ({"alibi": [float("nan")] * 6}, ValueError, "alibi holds NaN"),
                   ({"capacity": 2**31 - 1, "layers": 60000, "head_dim": 60000}, MemoryError, "memory"),
                   ({"layers": True}, TypeError, "layers is True; allowed: an integer"),
                   ({"dense": "no"}, TypeError, "dense is 'no'; allowed: True, False"),
                   ({"scale": float("nan")}, ValueError, "scale is NaN; allowed: a number"),
                   ({"layer_options": 3}, TypeError, "layers is 3; allowed: a sequence of dicts"),
                   ({"speed": 1}, TypeError, "option 'speed' is not known; allowed: batch.* layer_options")]
        for options, kind, says in refused:
            with self.subTest(says), self.assertRaisesRegex(kind, says) as caught:
                session(**options)
            self.assertNotIn("\n", str(caught.exception))

    def test_the_protocol(self):
        q, k, v = rows(10)
        own = session(capacity=20)
        for call in (lambda: own.attend(0, q, k, v), lambda: own.attend(0, None, k, v), own.end, own.abort):
            with self.assertRaises(RuntimeError):
                call()
        with self.assertRaisesRegex(RuntimeError, r"^attend\(\) without an open step; allowed: after begin_prefill"):
            own.attend(0, q, k, v)
        with self.assertRaisesRegex(ValueError, "capacity|21"):
            own.begin_prefill(21)
        own.begin_prefill(10)
        with self.assertRaises(RuntimeError):
            own.truncate(0)
        with self.assertRaisesRegex(ValueError, "layer is 3"):
            own.attend(3, q, k, v)
        with self.assertRaisesRegex(ValueError, "q has 9 tokens; allowed: 10"):
            own.attend(0, q[:9], k, v)
        self.assertFalse(own.failed)
        own.attend(0, q, k, v)
        own.end()
        self.assertEqual(own.tokens, 10)
        with self.assertRaisesRegex(RuntimeError, "without an open step"):
            own.attend(0, q, k, v)
        with self.assertRaisesRegex(ValueError, "head is 6; allowed: 0 .. 5"):
            own.memory(0, 6)
        with self.assertRaises(ValueError):
            own.key(0, 2, 0)
        with self.assertRaises(ValueError):
            own.key(0, 0, 10)

    def test_arrays(self):
        """attend() refuses what attention() does, and the step goes on."""
        q, k, v = rows(10)
        own = session()
        own.begin_prefill(10)
        read_only = numpy.zeros((10, 6, 12), numpy.float32)
        read_only.flags.writeable = False
        for arrays, out, kind, says in (
                ((q[0], k, v), None, ValueError, "q has 2 dimensions; allowed: 3"),
                ((q, k[None], v), None, ValueError, "k has 4 dimensions; allowed: 3"),
                ((q.astype(float), k, v), None, ValueError, "q has dtype float64; allowed: float32, float16, bfloat16"),
                ((q, k, support.OnDevice(v, (2, 0))), None, ValueError, "v is on cuda:0; allowed: cpu$"),
                ((q.transpose(0, 2, 1).copy().transpose(0, 2, 1), k, v), None, ValueError, "q has rows with a stride of 6 elements"),
                ((q, k, v[:0]), None, ValueError, "v has 0 tokens; allowed: 10"),
                ((q, k[:, :1], v), None, ValueError, "k has 1 heads; allowed: 2"),
                ((q, k, v), read_only, ValueError, "out is read-only"),
                ((q, k, v), numpy.broadcast_to(numpy.float32(0), (10, 6, 12)), ValueError, "out"),
                ((q.tolist(), k, v), None, TypeError, "q is a list; allowed: a NumPy array")):
            with self.subTest(says), self.assertRaisesRegex(kind, says) as caught:
                own.attend(0, *arrays, out)
            self.assertNotIn("\n", str(caught.exception))
            self.assertFalse(own.failed)
        own.attend(0, q, k, v)
        own.end()

    def test_copies(self):
        q, k, v = rows(100)
        own = session()
        step(own, q, k, v, 0, 100)
        for copied in (copy.copy, copy.deepcopy, pickle.dumps, lambda it: pickle.dumps(it, 0), lambda it: copy.copy([it]) and
                       copy.deepcopy([it])):
            with self.assertRaisesRegex(TypeError, r"^a Session cannot be copied or pickled; allowed: fork\(\)"):
                copied(own)
        self.assertEqual(own.fork().tokens, 100)

    def test_out_in_memory_of_an_input(self):
        q, k, v = rows(10, width=12)
        own = session(head_dim=12)
        own.begin_prefill(10)
        lse = numpy.empty(6 * 10 * 12, numpy.float32)
        out = lse.reshape(10, 6, 12)
        for outputs, says in (((q, None), "out overlaps q"), ((None, q.reshape(10, -1)[:, :6]), "lse overlaps q"),
                              ((out, lse[-60:].reshape(10, 6)), "lse overlaps out"), ((v.repeat(3, 1)[:, :6], None), None)):
            if says is None:
                own.attend(0, q, k, v, outputs[0])
                continue
            with self.subTest(says), self.assertRaisesRegex(ValueError, f"^{says} in memory; allowed: memory of its own$"):
                own.attend(0, q, k, v, outputs[0], lse=outputs[1])
            self.assertFalse(own.failed)
        own.end()

    def test_two_threads_on_one_session(self):
        q, k, v = rows(6000)
        own = session(capacity=6000, dense=True, threads=1)
        own.begin_prefill(6000)
        worker = threading.Thread(target=own.attend, args=(0, q, k, v))
        worker.start()
        refusals = 0
        while worker.is_alive():
            try:
                _ = own.tokens
            except RuntimeError as error:
                self.assertIn("another thread", str(error))
                refusals += 1
        worker.join()
        self.assertGreater(refusals, 0)
        own.end()
        self.assertEqual(own.tokens, 6000)

    def test_a_closed_session(self):
        with session() as own:
            pass
        with self.assertRaisesRegex(RuntimeError, "closed"):
            own.reset()
        own = session()
        child = os.fork()
        if child == 0:
            refused = False
            try:
                own.reset()
            except RuntimeError:
                refused = True
            finally:
                os._exit(0 if refused else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        own.reset()


class Package(unittest.TestCase):
    def test_info(self):
        info = headwater.info()
        self.assertRegex(info["version"], r"^\d+\.\d+\.\d+$")
        self.assertIn("reference", [engine["name"] for engine in info["engines"]])
        self.assertTrue(info["isa"])

    def test_engines_agree(self):
        q, k, v = rows(150)
        results = [headwater.attention(q, k, v, chunk=32, local=4, heavy=4, engine=name)
                   for name in ("reference", "cpu-portable", "cpu")]
        for other in results[1:]:
            self.assertLess(numpy.abs(other - results[0]).max(), 1e-4)


if __name__ == "__main__":
    unittest.main()
