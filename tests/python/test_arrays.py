"""attention() on arrays: what is computed, from which arrays, and what is refused."""

import os
import signal
import sys
import threading
import time
import unittest
import unittest.mock
import warnings

import numpy

import support
from support import headwater, rows

from headwater import _arrays, _attention, _native

OPTIONS = {"chunk": 64, "local": 8, "heavy": 8, "threads": 2}


VERSIONED = unittest.skipIf(numpy.lib.NumpyVersion(numpy.__version__) < "2.1.0", "this NumPy has no versioned capsules")


class NewerDLPack(support.OnlyDLPack):
    """Capsules of a version that is not known."""

    def __dlpack__(self, **_):
        capsule = self._array.__dlpack__(max_version=(1, 0))
        _arrays._Versioned.from_address(_arrays._get_pointer(capsule, b"dltensor_versioned")).major = 2
        return capsule


class NoCapsule(support.OnlyDLPack):
    def __dlpack__(self, **_):
        return self


class Attention(unittest.TestCase):
    def test_dense_is_causal_attention(self):
        for n in (1, 2, 63, 64, 65, 700):
            q, k, v = rows(n)
            out = headwater.attention(q, k, v, dense=True)
            self.assertEqual((out.shape, out.dtype), ((n, 6, 12), numpy.float32))
            self.assertLess(numpy.abs(out - support.dense(q, k, v)).max(), 1e-5)

    def test_sparse_is_what_a_session_computes(self):
        for select in ("h2o", "blocks"):
            for n in (1, 64, 65, 5000):
                q, k, v = rows(n)
                options = {**OPTIONS, "select": select}
                own = headwater.Session(**support.SIZES, capacity=n, **options)
                wanted = support.step(own, q, k, v, 0, n)
                numpy.testing.assert_array_equal(headwater.attention(q, k, v, **options), wanted)
        exact = support.dense(q[-100:], k, v)
        self.assertGreater(numpy.abs(wanted[-100:] - exact).max(), 1e-3, "nothing was sparse")

    def test_dense_tail_sees_every_token(self):
        q, k, v = rows(900)
        out = headwater.attention(q, k, v, dense_tail=50, **OPTIONS)
        self.assertLess(numpy.abs(out - support.dense(q, k, v))[-50:].max(), 1e-5)
        self.assertGreater(numpy.abs(out - support.dense(q, k, v))[:-50].max(), 1e-3)

    def test_queries_of_the_last_tokens_of_a_cache(self):
        for total, n in ((1, 1), (700, 1), (700, 3), (701, 64), (5000, 1), (5000, 700)):
            q, k, v = rows(total)
            exact = support.dense(q[-n:], k, v)
            for options in ({"dense": True}, {"dense_tail": n, **OPTIONS}):
                out = headwater.attention(q[-n:], k, v, **options)
                self.assertEqual(out.shape, (n, 6, 12))
                self.assertLess(numpy.abs(out - exact).max(), 1e-5)

    def test_a_second_turn_of_rule_blocks_on_a_cache(self):
        options = {**OPTIONS, "select": "blocks"}
        for first, n in ((8, 65), (1000, 64), (4095, 300), (17000, 300)):
            q, k, v = rows(first + n)
            own = headwater.Session(**support.SIZES, capacity=first + n, **options)
            support.step(own, q, k, v, 0, first, "decode" if first < 5000 else "prefill")
            wanted = support.step(own, q, k, v, first, n)
            if first < 5000:  # else the turn is one with the first
                numpy.testing.assert_array_equal(headwater.attention(q[first:], k, v, **options), wanted)
            cut = headwater.attention(q[first:], k, v, **options)
            whole = numpy.full((2 * (first + n), 2, 16), numpy.nan, numpy.float32)
            whole[:first + n] = k  # a cache with room after the last token
            numpy.testing.assert_array_equal(headwater.attention(q[first:], whole[:first + n], v, **options), cut)

    def test_rule_sketches(self):
        options = {**OPTIONS, "select": "sketches", "least_weight": 0.3, "pinned": 3, "query_block": 16, "engine": "reference"}
        q, k, v = rows(260)
        own = headwater.Session(**support.SIZES, capacity=260, **options)
        self.assertEqual({name: own.options[name] for name in ("select", "least_weight", "query_block", "pool")},
                         {"select": "sketches", "least_weight": 0.3, "query_block": 16, "pool": 0})
        support.step(own, q, k, v, 0, 130)
        support.step(own, q, k, v, 130, 1, "decode")
        wanted = support.step(own, q, k, v, 131, 129)
        numpy.testing.assert_array_equal(headwater.attention(q[131:], k, v, **options), wanted)
        every = headwater.attention(q[131:], k, v, **{**options, "least_weight": 0})
        self.assertGreater(numpy.abs(every - wanted).max(), 1e-3, "least_weight was not read")

    def test_a_cache_that_grows_token_by_token(self):
        q, k, v = rows(4200)
        for total in (*range(4090, 4102), 4200):
            out = headwater.attention(q[total - 1:total], k[:total], v[:total], dense=True)
            self.assertLess(numpy.abs(out - support.dense(q[total - 1:total], k[:total], v[:total])).max(), 1e-5)

    def test_windows(self):
        for n, window in ((40, 1), (700, 64), (700, 700), (700, 9000), (5000, 512)):
            q, k, v = rows(n)
            for part in (n, 1, min(n, 30)):
                out = headwater.attention(q[-part:], k, v, window=window, select="blocks")
                self.assertLess(numpy.abs(out - support.dense(q[-part:], k, v, window)).max(), 1e-5)

    def test_strides_and_layouts(self):
        q, k, v = rows(300)
        wanted = headwater.attention(q, k, v, **OPTIONS)
        wide = numpy.full((300, 9, 40), numpy.nan, numpy.float32)
        wide[:, 1:7, 5:21] = q
        numpy.testing.assert_array_equal(headwater.attention(wide[:, 1:7, 5:21], k, v, **OPTIONS), wanted)
        heads_first = [numpy.ascontiguousarray(array.transpose(1, 0, 2)) for array in (q, k, v)]
        out = headwater.attention(*heads_first, layout="hnd", **OPTIONS)
        numpy.testing.assert_array_equal(out.transpose(1, 0, 2), wanted)
        backwards = [array[::-1].copy()[::-1] for array in (q, k, v)]
        numpy.testing.assert_array_equal(headwater.attention(*backwards, **OPTIONS), wanted)
        into = numpy.full((300, 8, 20), 7.0, numpy.float32)
        part = into[:, 1:7, 3:15]
        self.assertIs(headwater.attention(q, k, v, out=part, **OPTIONS), part)
        numpy.testing.assert_array_equal(part, wanted)
        self.assertTrue((into[:, 0] == 7).all() and (into[:, :, 15:] == 7).all())

    def test_a_batch(self):
        many = [rows(150, seed=seed) for seed in range(3)]
        stacked = [numpy.stack(arrays) for arrays in zip(*many)]
        out = headwater.attention(*stacked, **OPTIONS)
        for index, one in enumerate(many):
            numpy.testing.assert_array_equal(out[index], headwater.attention(*one, **OPTIONS))

    def test_types(self):
        q, k, v = rows(200, dtype=numpy.float16)
        out = headwater.attention(q, k, v, dense=True)
        self.assertEqual(out.dtype, numpy.float16)
        self.assertLess(numpy.abs(out - support.dense(q, k, v)).max(), 4e-3)
        mixed = headwater.attention(q.astype(numpy.float32), k, v, dense=True)
        self.assertEqual(mixed.dtype, numpy.float32)

    def test_dlpack(self):
        q, k, v = rows(100)
        wanted = headwater.attention(q, k, v, **OPTIONS)
        got = headwater.attention(*map(support.OnlyDLPack, (q, k, v)), **OPTIONS)
        numpy.testing.assert_array_equal(got, wanted)
        strided = [support.OnlyDLPack(array.transpose(1, 0, 2)) for array in (q, k, v)]
        numpy.testing.assert_array_equal(headwater.attention(*strided, layout="hnd", **OPTIONS).transpose(1, 0, 2), wanted)

    @VERSIONED
    def test_dlpack_of_read_only_arrays(self):
        q, k, v = rows(100)
        wanted = headwater.attention(q, k, v, **OPTIONS)
        for array in (q, k, v):
            array.flags.writeable = False
        got = headwater.attention(*map(support.OnlyVersioned, (q, k, v)), **OPTIONS)
        numpy.testing.assert_array_equal(got, wanted)
        count = sys.getrefcount(k)
        for _ in range(5):
            headwater.attention(*map(support.OnlyVersioned, (q, k, v)), **OPTIONS)
        self.assertEqual(sys.getrefcount(k), count, "capsules keep their arrays")
        for refused, says in ((support.OnlyDLPack(k), "k: __dlpack__() says BufferError: .*; allowed: an array"),
                              (NewerDLPack(k), r"k has DLPack version 2.0; allowed: 1.x"),
                              (NoCapsule(k), "k: __dlpack__() gave no capsule 'dltensor' or 'dltensor_versioned'")):
            with self.subTest(says), self.assertRaisesRegex(ValueError, says.replace("()", r"\(\)")) as caught:
                headwater.attention(q, refused, v)
            self.assertNotIn("\n", str(caught.exception))

    @VERSIONED
    def test_dlpack_on_a_device_writes_nothing_that_is_read_only(self):
        """A versioned capsule says so; the view is not used, and the array lies on the host."""
        class Emulated(support.OnlyVersioned):
            def __dlpack_device__(self):
                return (2, 0)
        read_only = numpy.zeros((5, 2, 4), numpy.float32)
        place = _arrays.Place(0, 0)
        self.assertEqual(_arrays.view(Emulated(read_only), "out", writes=True, place=place).shape, (5, 2, 4))
        read_only.flags.writeable = False
        self.assertEqual(_arrays.view(Emulated(read_only), "q", place=place).shape, (5, 2, 4))
        with self.assertRaisesRegex(ValueError, "^out is read-only; allowed: an array that can be written$"):
            _arrays.view(Emulated(read_only), "out", writes=True, place=place)

    def test_out_in_memory_of_an_input(self):
        q, k, v = rows(200, value_width=16)
        wanted = headwater.attention(q, k, v, **OPTIONS)
        packed = numpy.empty((200, 16, 16), numpy.float32)  # q, k, v and out of a token side by side
        q_part, k_part, v_part, out = packed[:, :6], packed[:, 6:8], packed[:, 8:10], packed[:, 10:]
        heads_first = numpy.empty((16, 200, 16), numpy.float32)
        for parts in ((q_part, k_part, v_part, out),
                      [array.transpose(1, 0, 2) for array in (heads_first[10:], heads_first[:2], heads_first[2:4],
                                                              heads_first[4:10])]):
            for part, array in zip(parts, (q, k, v)):
                part[:] = array
            self.assertIs(headwater.attention(*parts[:3], out=parts[3], **OPTIONS), parts[3])
            numpy.testing.assert_array_equal(parts[3], wanted)
        batch = [numpy.stack([array, array]) for array in (q, k, v)]
        both = numpy.concatenate([batch[0], batch[0]], 1)
        for arrays, out, name in (((q, k, v), q, "q"), ((q[1:], k[1:], v[1:]), q[:-1], "q"), ((q[::-1], k, v), q, "q"),
                                  ((q, packed[:, 3:5], v), packed[:, 4:10], "k"), ((q, k, packed[:, 9:11]), packed[:, 10:], "v"),
                                  ((q_part, k, v), packed.reshape(-1)[16:16 + 200 * 96].reshape(200, 6, 16), "q"),
                                  (batch, batch[0][::-1], "q"), ((both[:, :200], *batch[1:]), both[:, 199:399], "q")):
            for own in (out, support.torch.from_numpy(out) if support.torch and min(out.strides) > 0 else out):
                before = out.copy()
                with self.subTest(name), self.assertRaisesRegex(
                        ValueError, f"^out overlaps {name} in memory; allowed: memory of its own$"):
                    headwater.attention(*arrays, out=own, **OPTIONS)
                numpy.testing.assert_array_equal(out, before)

    def test_views_apart(self):
        """Against NumPy's exact answer: never apart where they share an element, and apart where bounds or steps say so."""
        random, apart = numpy.random.default_rng(5), 0
        for _ in range(3000):
            memory = numpy.empty(int(random.integers(60, 4000)), numpy.float32)
            shape = tuple(int(size) for size in random.integers(2, 6, 3))
            pair = []
            for _ in range(2):
                steps = sorted((int(step) for step in random.integers(1, 40, 2)), reverse=True)
                steps = (*steps, 1)[:3] if random.random() < 0.7 else (steps[1], steps[0], 1)
                reach = sum((size - 1) * step for size, step in zip(shape, steps))
                if reach >= len(memory):
                    break
                first = int(random.integers(0, len(memory) - reach))
                own = numpy.lib.stride_tricks.as_strided(memory[first:], shape, [4 * step for step in steps])
                pair.append(own[::-1] if random.random() < 0.2 else own)
            if len(pair) == 2 and _arrays._apart(*(_arrays.view(own, "x") for own in pair)):
                apart += 1
                self.assertFalse(numpy.shares_memory(*pair), [(own.shape, own.strides) for own in pair])
        self.assertGreater(apart, 300)

    def test_clamped_memory_is_told(self):
        q, k, v = rows(300)
        for options, says in (({"chunk": 64}, "local 63, heavy 0"),
                              ({"chunk": 64, "local": 32, "heavy": 96, "select": "blocks"}, "local 32, heavy 24"),
                              ({"chunk": 1}, "local 0, heavy 0")):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                _attention._kept.__dict__.pop("sessions", None)
                headwater.attention(q, k, v, **options)
                headwater.attention(q, k, v, dense=True, **options)
                headwater.attention(q, k, v, window=9, **options)
            self.assertEqual(len(caught), 1, [str(entry.message) for entry in caught])
            self.assertRegex(str(caught[0].message), f"is not below chunk .* and is clamped to {says}$")
            self.assertEqual(caught[0].filename, __file__)

    @unittest.skipIf(support.torch is None, "PyTorch is not here")
    def test_tensors(self):
        torch = support.torch
        q, k, v = (torch.from_numpy(array) for array in rows(200))
        out = headwater.attention(q, k, v, **OPTIONS)
        self.assertIsInstance(out, torch.Tensor)
        numpy.testing.assert_array_equal(out.numpy(), headwater.attention(q.numpy(), k.numpy(), v.numpy(), **OPTIONS))
        half = headwater.attention(*(tensor.bfloat16() for tensor in (q, k, v)), dense=True)
        self.assertEqual(half.dtype, torch.bfloat16)
        self.assertLess(numpy.abs(half.float().numpy() - support.dense(q.numpy(), k.numpy(), v.numpy())).max(), 0.05)
        with self.assertRaisesRegex(ValueError, "q requires a gradient"):
            headwater.attention(q.clone().requires_grad_(), k, v)
        for arrays, out, says in (((q.to("meta"), k, v), None, "q is on meta; allowed: cpu, cuda"),
                                  ((q, k.to("meta"), v), None, "k is on meta; allowed: cpu"),
                                  ((q, k, v), q.to("meta"), "out is on meta; allowed: cpu")):
            with self.assertRaisesRegex(ValueError, f"^{says}$"):
                headwater.attention(*arrays, out=out)
        complex_rows = torch.complex(k, k).conj()
        self.assertTrue(complex_rows.imag.is_neg())
        with self.assertRaisesRegex(ValueError, "k has the negative bit: .*; allowed: tensor.resolve_neg"):
            headwater.attention(q, complex_rows.imag[..., ::2], v)
        with self.assertRaisesRegex(ValueError, "null|stride"):
            headwater.attention(q, torch._efficientzerotensor(k.shape), v)
        with self.assertRaisesRegex(ValueError, "k has layout torch.sparse_coo; allowed: torch.strided"):
            headwater.attention(q, k.to_sparse(), v)

    @unittest.skipIf(support.ml_dtypes is None, "ml_dtypes is not here")
    def test_bfloat16_of_numpy(self):
        q, k, v = rows(100, dtype=support.ml_dtypes.bfloat16)
        out = headwater.attention(q, k, v, dense=True)
        self.assertEqual(out.dtype, support.ml_dtypes.bfloat16)
        self.assertLess(numpy.abs(out.astype(float) - support.dense(q, k, v)).max(), 0.05)

    def test_what_is_refused(self):
        q, k, v = rows(20)
        read_only = numpy.zeros((20, 6, 12), numpy.float32)
        read_only.flags.writeable = False
        refused = [
            ((q[0], k, v), {}, ValueError, "q, k and v have 2, 3, 3 dimensions; allowed: 3"),
            ((q[:, :, None], k[:, :, None], v[:, :, None]), {}, ValueError, "contiguous|elements|heads|allowed"),
            ((q.astype(float), k, v), {}, ValueError, "q has dtype float64; allowed: float32, float16, bfloat16"),
            ((q.astype(">f4"), k, v), {}, ValueError, "q has bytes in another order"),
            ((q.tolist(), k, v), {}, TypeError, "q is a list; allowed: a NumPy array"),
            ((q, k[:19], v), {}, ValueError, "v has 20 tokens; allowed: 19"),
            ((q, k[:19], v[:19]), {}, ValueError, "k has 19 tokens and q 20; allowed: 20 or more"),
            ((q[:9], k, v), {}, ValueError, "k has 20 tokens and q 9: rule 'h2o' needs the scores of the first 11; allowed: 9"),
            ((q[:9], k, v), {"select": None}, ValueError, "rule 'h2o' needs the scores of the first 11"),
            ((q, k, v), {"window": -1}, ValueError, "window"),
            ((q, k, v), {"window": 2.5}, TypeError, "window"),
            ((q, k, v[:, :1]), {}, ValueError, "v has 1 heads; allowed: 2"),
            ((q, k[:, :, :15], v), {}, ValueError, "k has 15 elements of a row; allowed: 16"),
            ((q[:, :5], k, v), {}, ValueError, "divisor of n_head = 5"),
            ((q[:0], k[:0], v[:0]), {}, ValueError, "q has 0 tokens; allowed: 1 or more"),
            ((q[:, :, ::2], k[:, :, ::2], v), {}, ValueError, "q has rows with a stride of 2 elements; allowed: 1"),
            ((q, k, v.astype(numpy.float16)), {}, ValueError, "k is float32 and v is float16; allowed: both of one type"),
            ((q[:, :0], k[:, :0], v[:, :0]), {}, ValueError, "q has 0 heads; allowed: 1 or more"),
            ((q, k[:, :0], v[:, :0]), {}, ValueError, "k has 0 heads; allowed: 1 or more"),
            ((q[:, :, :0], k[:, :, :0], v), {}, ValueError, "q has 0 elements of a row; allowed: 1 or more"),
            ((q, k, v[:, :, :0]), {}, ValueError, "v has 0 elements of a row; allowed: 1 or more"),
            ((q, k[:0], v[:0]), {}, ValueError, "k has 0 tokens; allowed: 1 or more"),
            ((q[None][:0], k[None][:0], v[None][:0]), {}, ValueError, "batches of 0, 0, 0, 0; allowed: the same, 1 or more"),
            ((support.OnDevice(q, (3, 0)), k, v), {}, ValueError, "q is on DLPack device 3; allowed: cpu, cuda$"),
            ((q, support.OnDevice(k, (2, 0)), v), {}, ValueError, "k is on cuda:0; allowed: cpu$"),
            ((q, k, support.OnDevice(v, (10, 1))), {}, ValueError, "v is on DLPack device 10; allowed: cpu$"),
            ((q, k, v), {"out": read_only}, ValueError, "out is read-only"),
            ((q, k, v), {"out": support.OnlyDLPack(read_only)}, ValueError, "out is only read by DLPack on the cpu"),
            ((q, k, v), {"out": support.OnDevice(q, (2, 0))}, ValueError, "out is on cuda:0; allowed: cpu$"),
            ((q, k, v), {"out": numpy.zeros((20, 6, 11), numpy.float32)}, ValueError, "out has 11 elements of a row"),
            ((q, k, v), {"out": numpy.broadcast_to(numpy.float32(0), (20, 6, 12))}, ValueError, "out"),
            ((q, k, v), {"layout": "dhn"}, ValueError, "layout is 'dhn'; allowed: 'nhd', 'hnd'"),
            ((q, k, v), {"dense_tail": 21}, ValueError, "dense_tail is 21; allowed: 0 .. 20"),
            ((q, k, v), {"dense_tail": -1}, ValueError, "dense_tail is -1"),
            ((q, k, v), {"dense_tail": "all"}, TypeError, "dense_tail is 'all'; allowed: an integer"),
            ((q, k, v), {"chunk": 0}, ValueError, "chunk"),
            ((q, k, v), {"chunk": 2**70}, ValueError, "chunk is 1180591620717411303424; allowed: integers of 64 bits"),
            ((q, k, v), {"chunk": 1.5}, TypeError, "chunk is 1.5; allowed: an integer"),
            ((q, k, v), {"threads": 2**40}, ValueError, "threads"),
            ((q, k, v), {"select": "most"}, ValueError, "select is 'most'; allowed: 'h2o', 'blocks'"),
            ((q, k, v), {"sinks": [0.0]}, ValueError, "sinks has 1 numbers; allowed: 6"),
            ((q, k, v), {"sinks": 0.5}, TypeError, "sinks is a float that holds no numbers; allowed: a sequence of numbers"),
            ((q, k, v), {"sinks": ["x"] * 6}, TypeError, "sinks is a list that holds no numbers"),
            ((q, k, v), {"sizes": [4]}, TypeError, "option 'sizes' is not known; allowed: batch"),
            ((q, k, v), {"sizes": [4]}, TypeError, "option 'sizes' .*, out, layout, dense_tail, window, engine$"),
            ((q, k, v), {"sinks": [True] * 6}, TypeError, "sinks is a list that holds no numbers"),
            ((q, k, v), {"sinks": "123456"}, TypeError, "sinks is a str that holds no numbers"),
            ((q, k, v), {"sinks": [10**400] * 6}, ValueError, "sinks is 1000.*; allowed: numbers of 64 bits"),
            ((q, k, v), {"scale": "big"}, TypeError, "scale is 'big'; allowed: a number"),
            ((q, k, v), {"scale": "0.5"}, TypeError, "scale is '0.5'; allowed: a number"),
            ((q, k, v), {"scale": True}, TypeError, "scale is True; allowed: a number"),
            ((q, k, v), {"scale": float("nan")}, ValueError, "scale is NaN; allowed: a number"),
            ((q, k, v), {"scale": numpy.float32("nan")}, ValueError, "scale is NaN; allowed: a number"),
            ((q, k, v), {"scale": float("inf")}, ValueError, "scale is inf; allowed: a finite number"),
            ((q, k, v), {"least_weight": "0.1"}, TypeError, "least_weight is '0.1'; allowed: a number"),
            ((q, k, v), {"softcap": float("nan")}, ValueError, "softcap is NaN; allowed: a number"),
            ((q, k, v), {"layers": [{"scale": float("nan")}]}, ValueError, r"layers\[0\]\['scale'\] is NaN; allowed: a number"),
            ((q, k, v), {"layers": 1}, TypeError, "layers is 1; allowed: a sequence of dicts"),
            ((q, k, v), {"layers": [1]}, TypeError, r"layers\[0\] is 1; allowed: a dict, None"),
            ((q, k, v), {"dense": "no"}, TypeError, "dense is 'no'; allowed: True, False"),
            ((q, k, v), {"dense": 0}, TypeError, "dense is 0; allowed: True, False"),
            ((q, k, v), {"dense": numpy.ones(2, bool)}, TypeError, "dense is .*; allowed: True, False"),
            ((q, k, v), {"clamp": 1.0}, TypeError, "clamp is 1.0; allowed: True, False"),
            ((q, k, v), {"chunk": True}, TypeError, "chunk is True; allowed: an integer"),
            ((q, k, v), {"chunk": numpy.bool_(True)}, TypeError, "chunk is .*True.*; allowed: an integer"),
            ((q, k, v), {"chunk": numpy.ones(2, int)}, TypeError, "chunk is .*; allowed: an integer"),
            ((q, k, v), {"window": True}, TypeError, "window is True; allowed: an integer"),
            ((q, k, v), {"select": ["blocks"]}, ValueError, r"select is \['blocks'\]; allowed: 'h2o', 'blocks'"),
            ((q, k, v), {"dense_layers": 1}, TypeError, "dense_layers is 1; allowed: a sequence of integers"),
            ((q, k, v), {"dense_layers": "0"}, TypeError, "dense_layers is '0'; allowed: a sequence of integers"),
            ((q, k, v), {"dense_layers": [False]}, TypeError, r"dense_layers\[0\] is False; allowed: an integer"),
            ((q, numpy.ma.array(k, mask=k > 0), v), {}, ValueError, "k is a masked array, and masks are not read; allowed: "),
            ((q, k, v), {"out": numpy.ma.zeros((20, 6, 12), numpy.float32)}, ValueError, "out is a masked array"),
            ((q, k, v), {"size": 4}, TypeError, "option 'size' is not known; allowed: batch"),
            ((q, k, v), {"engine": "gpu"}, RuntimeError, "gpu"),
            ((numpy.stack([q]), numpy.stack([k, k]), numpy.stack([v])), {}, ValueError, "batches of 1, 2, 1"),
        ]
        for arrays, options, kind, says in refused:
            with self.subTest(says), self.assertRaisesRegex(kind, says) as caught:
                headwater.attention(*arrays, **options)
            self.assertNotIn("\n", str(caught.exception))
        self.assertTrue(numpy.isfinite(headwater.attention(q, k, v)).all())
        for options in ({"dense": numpy.bool_(True)}, {"chunk": numpy.int16(600), "clamp": False}, {"scale": numpy.float16(0.5)},
                        {"scale": 1, "softcap": 30}, {"dense_layers": numpy.array([0])}, {"sinks": range(6)}):
            self.assertTrue(numpy.isfinite(headwater.attention(q, k, v, **options)).all())

    def test_inputs_may_be_read_only(self):
        q, k, v = rows(20)
        for array in (q, k, v):
            array.flags.writeable = False
        self.assertTrue(numpy.isfinite(headwater.attention(q, k, v)).all())

    def test_threads_of_python_work_at_once(self):
        q, k, v = rows(400)
        wanted = headwater.attention(q, k, v, **OPTIONS)
        wrong = []

        def work():
            for _ in range(5):
                if not (headwater.attention(q, k, v, **OPTIONS) == wanted).all():
                    wrong.append(threading.current_thread().name)
        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        self.assertEqual(wrong, [])

    def test_a_child_of_fork_computes(self):
        q, k, v = rows(300)
        wanted = headwater.attention(q, k, v, **OPTIONS)
        child = os.fork()
        if child == 0:
            same = False
            try:
                same = bool((headwater.attention(q, k, v, **OPTIONS) == wanted).all())
            finally:
                os._exit(0 if same else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)


class Kept(unittest.TestCase):
    """Sessions that a thread keeps between calls."""

    def setUp(self):
        self.kept = _attention._kept.__dict__.setdefault("sessions", {})
        self.kept.clear()
        self.opened = []
        real = _attention._OverArrays

        class Counted(real):
            def __init__(own, shape, options, engine):
                super().__init__(shape, options, engine)
                self.opened.append(shape)
        _attention._OverArrays = Counted
        self.addCleanup(setattr, _attention, "_OverArrays", real)

    def opens(self, call):
        before = len(self.opened)
        call()
        return len(self.opened) - before

    def test_equal_calls_share_one(self):
        q, k, v = rows(300)
        for _ in range(3):
            headwater.attention(q, k, v, **OPTIONS)
        self.assertEqual(len(self.opened), 1)
        self.assertEqual(self.opens(lambda: headwater.attention(q[:50], k[:50], v[:50], **OPTIONS)), 0)
        self.assertEqual(self.opens(lambda: headwater.attention(q, k, v, **{**OPTIONS, "chunk": 65})), 1)
        self.assertEqual(self.opens(lambda: headwater.attention(q, k, v, window=9)), 1)
        self.assertEqual(self.opens(lambda: headwater.attention(q, k, v, window=10)), 1)
        self.assertEqual(self.opens(lambda: headwater.attention(q, k, v, engine="cpu-portable", **OPTIONS)), 1)

    def test_each_size_of_the_rows_has_one(self):
        q, k, v = rows(100)
        wanted = headwater.attention(q, k, v, dense=True)
        for values in (v[:, :, :5], v, numpy.concatenate((v, v), axis=2)):
            out = headwater.attention(q, k, numpy.ascontiguousarray(values), dense=True)
            numpy.testing.assert_array_equal(out[:, :, :5], wanted[:, :, :5])
            self.assertEqual(out.shape, (100, 6, values.shape[2]))
            self.assertTrue(numpy.isfinite(out).all() and out.all())
        self.assertEqual(len(self.opened), 3)
        for own in ((q[:, :4], k, v), (q[:, :3], k[:, :1], v[:, :1]), (q[:, :, :8], k[:, :, :8], v)):
            call = lambda own=own: headwater.attention(*map(numpy.ascontiguousarray, own), dense=True)  # noqa: E731
            self.assertEqual((self.opens(call), self.opens(call)), (1, 0))

    def test_another_type_is_judged_anew(self):
        q, k, v = rows(300)
        headwater.attention(q, k, v, **OPTIONS)
        headwater.attention(q, k, v, dense_layers=[0], **OPTIONS)
        for options in ({"chunk": 64.0}, {"chunk": 64.0, "dense_layers": [0]}, {"chunk": 64, "dense_layers": [0.0]}):
            with self.assertRaisesRegex(TypeError, "allowed: an integer"):
                headwater.attention(q, k, v, **{**OPTIONS, **options})

    def test_numbers_for_each_head_count_to_the_last_bit(self):
        """Also those of arrays, whose repr() rounds and leaves out; also after their owner has changed them."""
        q, k, v = rows(30, heads=1100, kv_heads=1)
        sinks = numpy.linspace(-1, 1, 1100, dtype=numpy.float32)
        kinds = [numpy.asarray, list, tuple, iter]
        if support.torch:
            kinds.append(support.torch.from_numpy)
        for kind in kinds:
            with self.subTest(kind):
                self.kept.clear()
                own = sinks.copy()
                first = headwater.attention(q, k, v, dense=True, sinks=kind(own))
                own[550] = numpy.nextafter(own[550], numpy.float32(9))
                self.assertEqual(self.opens(lambda: headwater.attention(q, k, v, dense=True, sinks=kind(own))), 1)
                own[550] = 20
                second = headwater.attention(q, k, v, dense=True, sinks=kind(own))
                numpy.testing.assert_array_equal(numpy.delete(first, 550, 1), numpy.delete(second, 550, 1))
                self.assertLess(numpy.abs(second[:, 550]).max(), 1e-3)
                self.assertEqual(self.opens(lambda: headwater.attention(q, k, v, dense=True, sinks=kind(own))), 0)

    def test_layers_of_a_list_count_to_the_last_bit(self):
        q, k, v = rows(30)
        for sinks in ([0.25] * 6, [0.25] * 5 + [0.25 + 2**-20]):
            layers = [{"sinks": numpy.array(sinks, numpy.float32)}]
            self.assertEqual(self.opens(lambda: headwater.attention(q, k, v, dense=True, layers=layers)), 1)
            self.assertEqual(self.opens(lambda: headwater.attention(q, k, v, dense=True, layers=layers)), 0)

    def test_a_number_in_an_array_counts_to_the_last_bit(self):
        q, k, v = rows(30)
        for kind in (numpy.float32, numpy.array, *([support.torch.tensor] if support.torch else [])):
            with self.subTest(kind):
                self.kept.clear()
                for scale in (0.25, 0.25 + 2**-20):
                    call = lambda: headwater.attention(q, k, v, dense=True, scale=kind(scale))  # noqa: E731
                    self.assertEqual(self.opens(call), 1)
                    self.assertEqual(self.opens(call), 0)

    def test_a_model_of_many_layers_keeps_one_for_each(self):
        q, k, v = rows(200)
        sinks = [[float(layer)] * 6 for layer in range(64)]

        def step():
            for own in sinks:
                headwater.attention(q, k, v, sinks=own, **OPTIONS)
                headwater.attention(q[-1:], k, v, dense=True, sinks=own)
        self.assertEqual(self.opens(step), 128)
        self.assertEqual(self.opens(step), 0)
        self.assertEqual(self.opens(lambda: headwater.attention(q, k, v, **OPTIONS)), 1)
        self.assertEqual(len(self.kept), 128)
        self.assertEqual(self.opens(lambda: headwater.attention(q[-1:], k, v, dense=True, sinks=sinks[0])), 0)
        self.assertEqual(self.opens(lambda: headwater.attention(q, k, v, sinks=sinks[0], **OPTIONS)), 1)

    def test_the_memory_of_those_that_are_kept_is_bounded(self):
        q, k, v = rows(200)
        headwater.attention(q, k, v, **OPTIONS)
        each = sum(next(iter(self.kept.values())).memory_bytes.values())
        most, always = _attention._MOST_BYTES, _attention._ALWAYS_KEPT
        self.addCleanup(setattr, _attention, "_MOST_BYTES", most)
        for bytes_, wanted in ((20 * each, 20), (20 * each - 1, 19), ((always + 1) * each, always + 1),
                               ((always + 1) * each - 1, always), (0, always)):
            with self.subTest(bytes_):
                _attention._MOST_BYTES = bytes_
                for number in range(30):
                    headwater.attention(q, k, v, scale=1 / (1 + number), **OPTIONS)
                self.assertEqual(len(self.kept), wanted)
                newest = [1 / (1 + number) for number in range(30 - wanted, 30)]
                self.assertEqual(self.opens(lambda: [headwater.attention(q, k, v, scale=scale, **OPTIONS)
                                                     for scale in newest]), 0)

    def test_a_handler_that_calls_attention_gets_a_session_of_its_own(self):
        q, k, v = rows(300)
        wanted = headwater.attention(q, k, v, **OPTIONS)
        real, inner = _native.library.headwater_attend_stored, []

        class Library:
            def __getattr__(self, name):
                return getattr(_native.library, name)

            def headwater_attend_stored(self, *arguments):  # where the step is open
                if not inner:
                    inner.append(None)  # before the call below begins
                    inner[0] = headwater.attention(q, k, v, **OPTIONS)
                return real(*arguments)
        self.addCleanup(setattr, _attention, "_library", _attention._library)
        _attention._library = Library()
        numpy.testing.assert_array_equal(headwater.attention(q, k, v, **OPTIONS), wanted)
        numpy.testing.assert_array_equal(inner[0], wanted)

    def test_a_call_that_was_refused_keeps_a_session_that_works(self):
        q, k, v = rows(300)
        wanted = headwater.attention(q, k, v, **OPTIONS)
        (session,) = self.kept.values()
        failing = unittest.mock.Mock(side_effect=RuntimeError("no step"))
        with unittest.mock.patch.object(session, "_step_of", failing), self.assertRaisesRegex(RuntimeError, "no step"):
            headwater.attention(q, k, v, **OPTIONS)
        self.assertEqual((session.tokens, session.state), (0, "empty"))
        numpy.testing.assert_array_equal(headwater.attention(q, k, v, **OPTIONS), wanted)
        self.assertEqual(len(self.opened), 1)


class Interrupted(unittest.TestCase):
    def setUp(self):
        # What runs in the background may have been started with the signal ignored.
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
        self.rows = rows(30000, heads=8, kv_heads=2, width=64, value_width=64)

    def interrupted(self, call):
        """The call takes much longer than until the signal comes."""
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        done = []
        try:
            with self.assertRaises(KeyboardInterrupt):
                call()
                done.append(True)
                time.sleep(30)
        finally:
            timer.join()
        self.assertEqual(done, [], "the call went on to its end")

    def test_attention(self):
        q, k, v = self.rows
        self.interrupted(lambda: headwater.attention(q, k, v, dense=True, threads=1))
        small = [array[:100] for array in self.rows]
        self.assertTrue(numpy.isfinite(headwater.attention(*small, dense=True)).all())

    def test_a_session_goes_on(self):
        q, k, v = self.rows
        own = headwater.Session(layers=1, heads=8, kv_heads=2, head_dim=64, capacity=30000, dense=True, threads=1)
        wanted = support.step(own, q, k, v, 0, 50)
        own.begin_prefill(29000)
        self.interrupted(lambda: own.attend(0, q[50:29050], k[50:29050], v[50:29050]))
        self.assertTrue(own.failed)
        own.abort()
        self.assertEqual(own.tokens, 50)
        again = support.step(own, q, k, v, 50, 10)
        own.truncate(0)
        numpy.testing.assert_array_equal(support.step(own, q, k, v, 0, 50), wanted)
        numpy.testing.assert_array_equal(support.step(own, q, k, v, 50, 10), again)

    def test_a_handler_of_the_program_is_called(self):
        q, k, v = self.rows
        seen = []
        before = signal.signal(signal.SIGINT, lambda *what: seen.append(what[0]))
        try:
            timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with self.assertRaisesRegex(RuntimeError, "interrupted"):
                headwater.attention(q, k, v, dense=True, threads=1)
            timer.join()
        finally:
            self.assertTrue(callable(signal.getsignal(signal.SIGINT)))
            signal.signal(signal.SIGINT, before)
        self.assertEqual(seen, [signal.SIGINT])


if __name__ == "__main__":
    unittest.main()
