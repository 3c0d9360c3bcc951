"""Rows in the memory of CUDA devices: sessions, attention(), and what is refused, on the emulation of a test build.

HEADWATER_LIBRARY is the testing twin with the helpers of device_memory.cpp. PyTorch's tensors are played by a stand-in: no
GPU is needed, and none has run this.
"""

import ctypes
import itertools
import os
import sys
import tempfile
import types
import unittest
import unittest.mock

import numpy

import support
from support import headwater

from headwater import _arrays, _attention, _native
from headwater._native import BF16, F16, F32, library

ENGINE = "cuda-emulated"
MISSING = {engine["name"]: engine["unavailable_because"] for engine in headwater.engines()}
HEADS, KV_HEADS = 4, 2
OPTIONS = {"chunk": 32, "batch": 64, "local": 4, "heavy": 5, "engine": ENGINE}
TYPES = (F32, F16, BF16)
STORAGE = {F32: numpy.float32, F16: numpy.float16, BF16: numpy.uint16}
NO_RULE = r"select is 2 \(sketches\); allowed: 0 \(h2o\), 1 \(blocks\): engine cuda-emulated has no other rule$"
CLOSE = {F32: 1e-5, F16: 4e-3, BF16: 4e-2}


def setUpModule():
    missing = MISSING.get(ENGINE, "the library has none")
    if missing:
        raise unittest.SkipTest(f"no tests of device rows: engine {ENGINE}: {missing}")
    library.test_allocate.argtypes, library.test_allocate.restype = [ctypes.c_void_p, ctypes.c_int64], ctypes.c_void_p
    library.test_copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32]
    library.test_device.argtypes = [ctypes.c_void_p]
    library.test_host_waits.argtypes, library.test_host_waits.restype = [ctypes.c_void_p], ctypes.c_int64


def stored(numbers, code):
    """float32 numbers as elements of a type; those of BF16 as their bits."""
    if code != BF16:
        return numbers.astype(STORAGE[code])
    bits = numpy.ascontiguousarray(numbers).view(numpy.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(numpy.uint16)


def numbers(array, code):
    return array.astype(numpy.float32) if code != BF16 else (array.astype(numpy.uint32) << 16).view(numpy.float32)


def rows(n, code=F32, width=64, value_width=64, seed=1):
    """q, k, v [n, heads, width] as elements of a type."""
    return [stored(array, code) for array in support.rows(n, HEADS, KV_HEADS, width, value_width, seed)]


def on_host(array, code):
    """Host rows of any type, which NumPy has not got for BF16."""
    size = array.itemsize
    return _arrays.View(array.ctypes.data, code, array.shape, tuple(stride // size for stride in array.strides), array)


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.argtypes, _new_capsule.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p], ctypes.py_object


class DeviceRows:
    """A copy of an array in the memory of a session's device, with its strides, as DLPack shows it. Without a session the
    array itself, which only says that it is on a device."""

    def __init__(self, array, code, session=None, device=None):
        self.array, self.code, self.device, self.streams = array, code, device, []
        self.whole = array if array.base is None else array.base
        self.offset = array.ctypes.data - self.whole.ctypes.data
        self.session = session
        if session is None:
            self.start = self.whole.ctypes.data
            return
        self.device = session._place.device if device is None else device
        self.start = library.test_allocate(session._session, self.whole.nbytes)
        _native.check(library.test_copy(session._session, self.start, self.whole.ctypes.data, self.whole.nbytes, 1))

    @property
    def address(self):
        return self.start + self.offset

    @property
    def shape(self):
        return self.array.shape

    def strides(self):
        return tuple(stride // self.array.itemsize for stride in self.array.strides)

    def read(self):
        """What is there now; the host waits."""
        whole = numpy.empty_like(self.whole)
        _native.check(library.test_copy(self.session._session, whole.ctypes.data, self.start, whole.nbytes, 0))
        self.around = whole
        return numpy.ndarray(self.array.shape, self.array.dtype, whole, self.offset, self.array.strides)

    def __dlpack_device__(self):
        return 2, self.device

    def __dlpack__(self, *, stream=None, **_):
        self.streams.append(stream)
        self.sizes = (ctypes.c_int64 * self.array.ndim)(*self.shape)
        self.steps = (ctypes.c_int64 * self.array.ndim)(*self.strides())
        self.managed = _arrays._Managed()
        tensor = self.managed.tensor
        tensor.data, tensor.byte_offset = self.start, self.offset
        tensor.device.type, tensor.device.id, tensor.ndim = 2, self.device, self.array.ndim
        tensor.dtype.code, tensor.dtype.lanes = 4 if self.code == BF16 else 2, 1
        tensor.dtype.bits = 8 * self.array.itemsize
        tensor.shape, tensor.strides = self.sizes, self.steps
        return _new_capsule(ctypes.addressof(self.managed), b"dltensor", None)


def session(code=F32, width=64, value_width=64, **options):
    sizes = {"layers": 1, "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": width, "value_dim": value_width, "capacity": 200}
    return headwater.Session(**{**sizes, "dtype": _arrays.TYPE_NAMES[code], **OPTIONS, **options})


def computed(own, arrays, code, steps):
    """Outputs of the steps (kind, n) of one layer, whose rows are where the session has them."""
    outs, first = [], 0
    for kind, n in steps:
        (own.begin_prefill if kind == "prefill" else own.begin_decode)(n)
        q, k, v = (numpy.ascontiguousarray(array[first:first + n]) for array in arrays)
        out = numpy.full((n, HEADS, v.shape[2]), 7, STORAGE[code])
        if own._place is None:
            own.attend(0, *(on_host(array, code) for array in (q, k, v, out)))
            outs.append(out)
        else:
            given = [DeviceRows(array, code, own) for array in (q, k, v, out)]
            own.attend(0, *given)
            outs.append(given[3].read())
        own.end()
        first += n
    return outs


def by_host_rows(arrays, code, dense_tail=0, **options):
    """attention() by a session of the same engine with host rows."""
    n = arrays[0].shape[0]
    own = session(code, arrays[0].shape[2], arrays[2].shape[2], **options)
    steps = [("prefill", n - dense_tail)] * (n > dense_tail) + [("decode", dense_tail)] * (dense_tail > 0)
    return numpy.concatenate(computed(own, arrays, code, steps))


class Sessions(unittest.TestCase):
    def test_have_the_bits_of_host_rows(self):
        steps = [("prefill", 129), ("prefill", 20), ("decode", 1), ("decode", 3)]
        for engine, code, width, value_width in ((ENGINE, F32, 64, 64), (ENGINE, F16, 128, 64), (ENGINE, BF16, 64, 128),
                                                 ("cuda-emulated-sm90", BF16, 64, 64)):
            with self.subTest(engine=engine, code=code, width=width):
                arrays = rows(153, code, width, value_width)
                own = session(code, width, value_width, engine=engine, device="cuda:0")
                wanted = computed(session(code, width, value_width, engine=engine), arrays, code, steps)
                for got, out in zip(computed(own, arrays, code, steps), wanted):
                    numpy.testing.assert_array_equal(got, out)
                self.assertEqual((own.tokens, own.state), (153, "decoding"))
                exact = support.dense(*(numbers(array, code) for array in arrays))
                self.assertLess(numpy.abs(numbers(got, code) - exact[150:]).max(), CLOSE[code])
                self.assertGreater(numpy.abs(numbers(wanted[0], code) - exact[:129]).max(), 0.1, "nothing was sparse")
                numpy.testing.assert_array_equal(own.key(0, 1, 130), numbers(arrays[1], code)[130, 1])

    def test_are_dense_attention_across_borders_of_tiles(self):
        for n in (1, 31, 33, 129):
            for code, width in itertools.product(TYPES, (64, 128)):
                arrays = rows(n, code, width)
                (got,) = computed(session(code, width, dense=True, device=0), arrays, code, [("prefill", n)])
                exact = support.dense(*(numbers(array, code) for array in arrays))
                self.assertLess(numpy.abs(numbers(got, code) - exact).max(), CLOSE[code], (n, code, width))

    def test_the_host_waits_for_nothing_and_producers_come_first(self):
        own = session(device="cuda:0")
        given = [DeviceRows(array, F32, own) for array in (*rows(70), numpy.zeros((70, HEADS, 64), numpy.float32))]
        waits = library.test_host_waits(own._session)
        own.begin_prefill(70)
        own.attend(0, *given)
        own.end()
        own.reset()
        self.assertEqual(library.test_host_waits(own._session), waits)
        self.assertTrue(given[3].read().any())
        self.assertGreater(library.test_host_waits(own._session), waits)
        self.assertEqual([one.streams for one in given], [[1]] * 4)  # the default stream, as DLPack counts

    def test_each_on_its_device(self):
        arrays = rows(40)
        wanted = computed(session(), arrays, F32, [("prefill", 40)])
        of_torch = support.torch.device("cuda", 1) if support.torch else "cuda:1"
        for device in ("cuda:1", 1, numpy.int64(1), of_torch):
            own = session(device=device)
            self.assertEqual((own._place, library.test_device(own._session)), ((1, 0), 1))
            numpy.testing.assert_array_equal(computed(own, arrays, F32, [("prefill", 40)]), wanted)
        self.assertEqual(session(device="cuda")._place, (0, 0))
        self.assertIsNone(session(device="cpu")._place)


class Attention(unittest.TestCase):
    def setUp(self):
        self.kept = _attention._kept.__dict__.setdefault("sessions", {})
        self.kept.clear()
        self.addCleanup(self.kept.clear)

    def opened(self, arrays, code=F32, device=0, **options):
        """The session that attention() keeps for such a call: host rows that say otherwise open it, and are refused."""
        before = set(self.kept)
        out = numpy.empty((*arrays[0].shape[:-1], arrays[2].shape[-1]), STORAGE[code])
        given = [DeviceRows(array, code, device=device) for array in (*arrays, out)]
        with self.assertRaisesRegex(ValueError, r"^q\.data is host memory; allowed: device memory"):
            headwater.attention(*given[:3], out=given[3], **{**OPTIONS, **options})
        (key,) = set(self.kept) - before
        return self.kept[key]

    def computed(self, own, arrays, code, out=None, **options):
        q, _, v = arrays
        if out is None:
            out = numpy.full((*q.shape[:-1], v.shape[-1]), 7, STORAGE[code])
        *given, into = (DeviceRows(array, code, own) for array in (*arrays, out))
        self.assertIs(headwater.attention(*given, out=into, **{**OPTIONS, **options}), into)
        self.assertEqual([one.streams for one in (*given, into)], [[1]] * 4)
        got = into.read()
        self.around = into.around
        return got

    def test_has_the_bits_of_host_rows(self):
        for code in TYPES:
            own = self.opened(rows(9, code), code)
            for n, tail in ((1, 0), (31, 0), (33, 33), (129, 0), (129, 20), (40, 1)):
                with self.subTest(code=code, n=n, tail=tail):
                    arrays = rows(n, code)
                    wanted = by_host_rows(arrays, code, tail)
                    numpy.testing.assert_array_equal(self.computed(own, arrays, code, dense_tail=tail), wanted)
        self.assertEqual(len(self.kept), len(TYPES))

    def test_more_keys_than_queries(self):
        """Finds keys of the cache that are stored at the wrong place, or have no summaries, and slices of chosen rows that are
        wider than any kernel's."""
        blocks = {"select": "blocks", "heavy": 8, "key_block": 4, "query_block": 16}
        for options, widths in (({**blocks, "dense_tail": 3}, (64, 64)), (blocks, (300, 520)), ({"dense": True}, (64, 64)),
                                ({"dense_tail": 40}, (64, 64))):
            with self.subTest(widths, **options):
                q, k, v = rows(129, F32, *widths)
                own = self.opened((q[:40], k[:40], v[:40]), **options)
                wanted = numpy.empty((40, HEADS, widths[1]), numpy.float32)
                headwater.attention(q[89:], k, v, out=wanted, **{**OPTIONS, **options, "engine": "reference"})
                got = self.computed(own, [q[89:], k, v], F32, **options)
                numpy.testing.assert_allclose(got, wanted, atol=CLOSE[F32])

    def test_strides_layouts_and_a_batch(self):
        arrays = rows(70)
        wanted = by_host_rows(arrays, F32)
        own = self.opened(arrays)
        wide = numpy.full((70, 7, 80), numpy.nan, numpy.float32)
        wide[:, 2:6, 3:67] = arrays[0]
        into = numpy.full((70, 5, 66), 7, numpy.float32)
        got = self.computed(own, [wide[:, 2:6, 3:67], *arrays[1:]], F32, out=into[:, 1:, 1:65])
        numpy.testing.assert_array_equal(got, wanted)
        around = self.around
        around[:, 1:, 1:65] = 7
        self.assertTrue((around == 7).all())
        heads_first = [numpy.ascontiguousarray(array.transpose(1, 0, 2)) for array in arrays]
        got = self.computed(own, heads_first, F32, layout="hnd")
        numpy.testing.assert_array_equal(got.transpose(1, 0, 2), wanted)
        many = [rows(50, seed=seed) for seed in range(3)]
        got = self.computed(own, [numpy.stack(one) for one in zip(*many)], F32)
        for index, one in enumerate(many):
            numpy.testing.assert_array_equal(got[index], by_host_rows(one, F32))
        self.assertEqual(len(self.kept), 1)

    def test_keeps_a_session_for_each_device(self):
        arrays = rows(40)
        wanted = by_host_rows(arrays, F32)
        first, second = self.opened(arrays, device=0), self.opened(arrays, device=1)
        for own in (first, second, first):
            given = [DeviceRows(array, F32, own) for array in (*arrays, numpy.zeros_like(arrays[0]))]
            waits = library.test_host_waits(own._session)
            headwater.attention(*given[:3], out=given[3], **OPTIONS)
            self.assertEqual(library.test_host_waits(own._session), waits)
            numpy.testing.assert_array_equal(given[3].read(), wanted)
        self.assertEqual([own._place for own in self.kept.values()], [(1, 0), (0, 0)])

    def test_a_call_that_was_refused_keeps_a_session_that_works(self):
        arrays = rows(40)
        own = self.opened(arrays)
        with self.assertRaisesRegex(ValueError, r"^v\.data is host memory"):
            headwater.attention(*(DeviceRows(array, F32, own) for array in arrays[:2]), DeviceRows(arrays[2], F32, device=0),
                                out=DeviceRows(arrays[0], F32, own), **OPTIONS)
        numpy.testing.assert_array_equal(self.computed(own, arrays, F32), by_host_rows(arrays, F32))
        self.assertEqual(len(self.kept), 1)

    def test_memory_that_there_is_not(self):
        """Sizes alone: nothing is read."""
        class Long(DeviceRows):
            shape = property(lambda self: (2**24, *self.array.shape[1:]))
        given = [Long(array, F32, device=0) for array in (*rows(1), rows(1)[0])]
        given[3].start += 2**40  # memory of its own
        with self.assertRaisesRegex(MemoryError, "memory"):
            headwater.attention(*given[:3], out=given[3], **OPTIONS)
        with self.assertRaisesRegex(MemoryError, "memory"):
            session(capacity=2**24, device="cuda:1")
        self.assertEqual(len(self.kept), 0)


class Torch(types.ModuleType):
    """What the package asks of PyTorch, with CUDA in use."""

    strided = "strided"

    class Tensor:
        is_cpu, is_cuda, layout, requires_grad = False, True, "strided", False

        def __init__(self, rows):
            self.rows, self.shape, self.stride = rows, rows.shape, rows.strides
            self.device = types.SimpleNamespace(type="cuda", index=rows.device)
            self.dtype = "torch." + _arrays.TYPE_NAMES[rows.code]

        def data_ptr(self):
            return self.rows.address

        def is_neg(self):
            return False

        def new_empty(self, shape):
            return type(self)(DeviceRows(numpy.full(shape, 7, self.rows.array.dtype), self.rows.code, self.rows.session))

    def __init__(self, device=0, streams=(0, 0)):
        super().__init__("torch")
        self.is_grad_enabled = lambda: True
        self.cuda = types.SimpleNamespace(
            is_initialized=lambda: True, device_count=lambda: len(streams), current_device=lambda: device,
            current_stream=lambda index: types.SimpleNamespace(cuda_stream=streams[index]))


class Tensors(unittest.TestCase):
    def setUp(self):
        self.kept = _attention._kept.__dict__.setdefault("sessions", {})
        self.kept.clear()
        self.addCleanup(self.kept.clear)

    def with_torch(self, **how):
        torch = Torch(**how)
        patch = unittest.mock.patch.dict(sys.modules, torch=torch)
        patch.start()
        self.addCleanup(patch.stop)
        return torch

    def test_of_sessions_and_attention(self):
        torch = self.with_torch(device=1)
        arrays = rows(40, BF16)
        wanted = by_host_rows(arrays, BF16)
        own = session(BF16, device="cuda")
        self.assertEqual(own._place, (1, 0))
        own.begin_prefill(40)
        out = own.attend(0, *(torch.Tensor(DeviceRows(array, BF16, own)) for array in arrays))
        self.assertIsInstance(out, torch.Tensor)
        numpy.testing.assert_array_equal(out.rows.read(), wanted)
        refused = [torch.Tensor(DeviceRows(array, BF16, device=1)) for array in arrays]
        spare = torch.Tensor(DeviceRows(arrays[0].copy(), BF16, device=1))
        for tensor in refused:
            tensor.new_empty = lambda shape: spare
        with self.assertRaisesRegex(ValueError, r"^q\.data is host memory"):
            headwater.attention(*refused, **OPTIONS)
        (own,) = self.kept.values()
        heads_first = [DeviceRows(numpy.ascontiguousarray(array.transpose(1, 0, 2)).transpose(1, 0, 2), BF16, own)
                       for array in arrays]
        out = headwater.attention(*map(torch.Tensor, heads_first), **OPTIONS)
        numpy.testing.assert_array_equal(out.rows.read(), wanted)
        self.assertEqual(len(self.kept), 1)

    def test_on_the_stream_that_is_current(self):
        """One of another device: the refusal shows that it was handed on."""
        self.with_torch(streams=(2, 1))
        says = "^cuda: stream is one of another device; allowed: a stream of device {}, "
        for device in (0, 1):
            with self.assertRaisesRegex(ValueError, says.format(device)):
                session(device=device)
            session(device=device, stream=0)
            given = [DeviceRows(array, F32, device=device) for array in (*rows(9), rows(9)[0])]
            with self.assertRaisesRegex(ValueError, says.format(device)):
                headwater.attention(*given[:3], out=given[3], **OPTIONS)
            self.assertEqual([one.streams for one in given], [[2 - device]] * 4)
        with self.assertRaisesRegex(ValueError, "^device is 7; allowed: 0 .. 1$"):
            session(device="cuda:7")

    def test_a_stream_has_a_session_of_its_own(self):
        arrays = rows(9)
        given = [DeviceRows(array, F32, device=0) for array in (*arrays, arrays[0].copy())]
        host = r"^q\.data is host memory"
        for streams, says in (((0, 0), host), ((2, 2), "^cuda: stream is one of another device"), ((0, 0), host)):
            self.with_torch(streams=streams)
            with self.assertRaisesRegex(ValueError, says):
                headwater.attention(*given[:3], out=given[3], **OPTIONS)
        self.assertEqual(len(self.kept), 1)

    def test_that_are_refused(self):
        torch = self.with_torch()
        arrays = rows(9)
        q, k, v = (torch.Tensor(DeviceRows(array, F32, device=0)) for array in arrays)
        elsewhere = torch.Tensor(DeviceRows(arrays[2], F32, device=1))
        for given, says in (((q, arrays[1], v), "k is on cpu; allowed: cuda:0"),
                            ((q, k, elsewhere), "v is on cuda:1; allowed: cuda:0"),
                            ((arrays[0], k, v), "k is on cuda:0; allowed: cpu")):
            with self.assertRaisesRegex(ValueError, f"^{says}$"):
                headwater.attention(*given, **OPTIONS)
        q.requires_grad = True
        with self.assertRaisesRegex(ValueError, "^q requires a gradient"):
            headwater.attention(q, k, v, **OPTIONS)


class Refused(unittest.TestCase):
    def refuses(self, kind, says, call):
        with self.subTest(says), self.assertRaisesRegex(kind, f"^{says}") as caught:
            call()
        self.assertNotIn("\n", str(caught.exception))

    def test_rows_of_a_session(self):
        own = session(device="cuda:0")
        arrays = (*rows(10), numpy.zeros((10, HEADS, 64), numpy.float32))
        q, k, v, out = (DeviceRows(array, F32, own) for array in arrays)
        on_other = DeviceRows(arrays[1], F32, own, device=1)
        odd = DeviceRows(arrays[0], F32, own)
        odd.offset += 2
        own.begin_prefill(10)
        for given, kind, says in (
                ((q, arrays[1], v, out), ValueError, "k is on cpu; allowed: cuda:0$"),
                ((arrays[0], k, v, out), ValueError, "q is on cpu; allowed: cuda:0$"),
                ((q, k, arrays[2], out), ValueError, "v is on cpu; allowed: cuda:0$"),
                ((q, support.OnlyDLPack(arrays[1]), v, out), ValueError, "k is on cpu; allowed: cuda:0$"),
                ((q, on_other, v, out), ValueError, "k is on cuda:1; allowed: cuda:0$"),
                ((q, support.OnDevice(arrays[1], (10, 0)), v, out), ValueError, "k is on DLPack device 10; allowed: cuda:0"),
                ((q, k, v, arrays[3]), ValueError, "out is on cpu; allowed: cuda:0$"),
                ((q, k, v, support.OnlyDLPack(arrays[3])), ValueError, "out is on cpu; allowed: cuda:0$"),
                ((q, k, v, None), ValueError, "q is on cuda:0 and is no PyTorch tensor, so there is no out; allowed: out="),
                ((q, k, v, DeviceRows(arrays[3], F32, device=0)), ValueError, r"out\.data is host memory; allowed: device"),
                ((odd, k, v, out), ValueError, r"q\.data is no multiple of 4; allowed: ")):
            self.refuses(kind, says, lambda: own.attend(0, *given))
            self.assertFalse(own.failed)
        self.assertEqual(on_other.streams, [], "rows of another device were asked for")
        lse = numpy.zeros((10, HEADS), numpy.float32)
        self.refuses(ValueError, "lse is on cpu; allowed: cuda:0$", lambda: own.attend(0, q, k, v, out, lse=lse))
        self.refuses(NotImplementedError, "lse is not offered by this engine",
                     lambda: own.attend(0, q, k, v, out, lse=DeviceRows(lse, F32, own)))
        own.attend(0, q, k, v, out)
        own.end()
        numpy.testing.assert_array_equal(out.read(), by_host_rows(arrays[:3], F32))
        own.begin_decode(10)
        own.attend(0, q, k, v, out)
        own.end()
        self.refuses(NotImplementedError, ".*fork", own.fork)
        with tempfile.TemporaryDirectory() as folder:
            self.refuses(NotImplementedError, ".*save", lambda: own.save(os.path.join(folder, "session")))

    def test_rows_of_a_device_for_a_session_of_the_host(self):
        own = session()
        arrays = rows(10)
        q = DeviceRows(arrays[0], F32, device=0)
        own.begin_prefill(10)
        self.refuses(ValueError, "q is on cuda:0; allowed: cpu$", lambda: own.attend(0, q, *arrays[1:]))
        self.assertEqual(q.streams, [])
        self.refuses(ValueError, "out is on cuda:0; allowed: cpu$", lambda: own.attend(0, *arrays, q))
        self.refuses(ValueError, "out is only read by DLPack on the cpu; allowed: a NumPy array or a PyTorch tensor$",
                     lambda: own.attend(0, *arrays, support.OnlyDLPack(arrays[0])))

    def test_opening(self):
        no_device = r"row_memory is 1 \(device\); allowed: 0 \(host\): engine cpu has no device$"
        for given, kind, says in (
                ({"device": "cuda:7"}, ValueError, "device is 7; allowed: 0 .. 1$"),
                ({"device": -1}, ValueError, "device is -1; allowed: None, 'cpu', 'cuda', 'cuda:N', a torch.device, or "),
                ({"device": "mps"}, ValueError, "device is 'mps'; allowed: "),
                *([({"device": support.torch.device("meta")}, ValueError, r"device is device\(type='meta'\); allowed: ")]
                  if support.torch else []),
                ({"device": "cuda:"}, ValueError, "device is 'cuda:'; allowed: "),
                ({"device": 10**12}, ValueError, "device is 1000000000000; allowed: "),
                ({"device": "cuda:1\n"}, ValueError, "device is "),
                ({"device": 0, "engine": "cpu"}, ValueError, no_device),
                ({"device": 0, "engine": "none"}, RuntimeError, "rows on cuda:0 have no engine: engine 'none' is not know"),
                ({"device": 0, "stream": 2}, ValueError, "cuda: stream is one of another device; allowed: a stream of device 0"),
                ({"device": 1, "stream": 1}, ValueError, "cuda: stream is one of another device; allowed: a stream of device 1"),
                ({"device": 0, "stream": -1}, ValueError, "stream is -1; allowed: the address of a cudaStream_t, or None$"),
                ({"device": 0, "stream": "1"}, TypeError, "stream is '1'; allowed: an integer$"),
                ({"stream": 1}, ValueError, "stream is 1; allowed: None where device is cpu$"),
                ({"device": "cpu", "stream": 0}, ValueError, "stream is 0; allowed: None where device is cpu$"),
                ({"device": 0, "select": "sketches"}, ValueError, NO_RULE)):
            self.refuses(kind, says, lambda: session(**given))

    def test_attention(self):
        q, k, v = (DeviceRows(array, F32, device=0) for array in rows(20))
        few = DeviceRows(rows(9)[0], F32, device=0)
        no_device = r"row_memory is 1 \(device\); allowed: 0 \(host\): engine cpu has no device$"
        no_scores = "k has 20 tokens and q 9: rule 'h2o' needs the scores of the first 11; allowed: 9 tokens, select='blocks'"
        for given, options, kind, says in (
                ((few, k, v), {}, ValueError, no_scores),
                ((q, k, v), {"window": 9}, ValueError, "window is 9; allowed: 0 on cuda:0$"),
                ((q, k, v), {"select": "sketches"}, ValueError, NO_RULE),
                ((q, k, v), {"layers": [{"scale": 1.0}]}, NotImplementedError, "layers has 1 entries; allowed: none"),
                ((q, k, v), {"device": 0}, TypeError, "option 'device' is not known"),
                ((q, k, v), {"engine": "cpu"}, ValueError, no_device),
                ((q, support.OnDevice(k.array, (2, 1)), v), {}, ValueError, "k is on cuda:1; allowed: cuda:0$"),
                ((q, k, v.array), {}, ValueError, "v is on cpu; allowed: cuda:0$"),
                ((q.array, k, v), {}, ValueError, "k is on cuda:0; allowed: cpu$")):
            out = DeviceRows(rows(given[0].shape[0])[0], F32, device=0)
            self.refuses(kind, says, lambda: headwater.attention(*given, out=out, **{**OPTIONS, **options}))
        self.refuses(ValueError, "q is on DLPack device 3; allowed: cpu, cuda$",
                     lambda: headwater.attention(support.OnDevice(q.array, (3, 0)), k, v, **OPTIONS))
        self.refuses(ValueError, "out is on cpu; allowed: cuda:0$",
                     lambda: headwater.attention(q, k, v, out=q.array, **OPTIONS))
        self.refuses(ValueError, "q is on cuda:0 and is no PyTorch tensor, so there is no out; allowed: out=, an array th",
                     lambda: headwater.attention(q, k, v, **OPTIONS))

    @unittest.skipIf(MISSING.get("cuda") == "", "engine cuda is here")
    def test_without_engine_cuda(self):
        says = "rows on cuda:0 have no engine: engine 'cuda' is not (known|available here: .*); available: reference, cpu"
        self.refuses(RuntimeError, says, lambda: session(engine=None, device="cuda"))
        q, k, v = (DeviceRows(array, F32, device=0) for array in rows(20))
        with unittest.mock.patch.dict(os.environ, HEADWATER_ENGINE="cpu"):
            self.refuses(RuntimeError, says, lambda: headwater.attention(q, k, v, out=DeviceRows(rows(20)[0], F32, device=0)))


if __name__ == "__main__":
    unittest.main()
