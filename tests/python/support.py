"""What the tests of the Python package share."""

import os
import pathlib
import sys

import numpy

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "python"
if "HEADWATER_LIBRARY" in os.environ:  # of the tree that is built; else what is installed
    sys.path.insert(0, str(PACKAGE))

import headwater  # noqa: E402

try:
    import torch
except ImportError:
    if os.environ.get("HEADWATER_REQUIRE_TORCH"):  # where no test may be left out for its lack
        raise
    torch = None
try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

SIZES = {"layers": 1, "heads": 6, "kv_heads": 2, "head_dim": 16, "value_dim": 12}


def rows(n, heads=6, kv_heads=2, width=16, value_width=12, seed=1, dtype=numpy.float32):
    """q, k, v as token-major arrays."""
    random = numpy.random.default_rng(seed)
    return tuple(random.standard_normal((n, count, size), dtype=numpy.float32).astype(dtype)
                 for count, size in ((heads, width), (kv_heads, width), (kv_heads, value_width)))


def dense(q, k, v, window=None, scale=None, softcap=None, sinks=None):
    """Causal attention in double; what the last q tokens see."""
    q, k, v = (array.astype(numpy.float64) for array in (q, k, v))
    n, total = q.shape[0], k.shape[0]
    out = numpy.empty((n, q.shape[1], v.shape[2]))
    position = numpy.arange(total - n, total)[:, None]
    key = numpy.arange(total)[None, :]
    hidden = key > position
    if window:
        hidden |= position - key >= window
    for head in range(q.shape[1]):
        group = head * k.shape[1] // q.shape[1]
        logits = q[:, head] @ k[:, group].T * (scale or q.shape[2] ** -0.5)
        if softcap:
            logits = softcap * numpy.tanh(logits / softcap)
        logits[hidden] = -numpy.inf
        most = logits.max(axis=1, keepdims=True)
        weights = numpy.exp(logits - most)
        sink = 0 if sinks is None else numpy.exp(float(sinks[head]) - most)
        out[:, head] = weights @ v[:, group] / (weights.sum(axis=1, keepdims=True) + sink)
    return out


class OnlyDLPack:
    """An array that speaks nothing else."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **_):
        return self._array.__dlpack__()

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


class OnlyVersioned(OnlyDLPack):
    """One whose producer gives versioned capsules alone, as NumPy does for what is read-only."""

    def __dlpack__(self, max_version=None, **_):
        if max_version is None:
            raise BufferError("only versioned capsules")
        return self._array.__dlpack__(max_version=max_version)


class OnDevice(OnlyDLPack):
    """An array that says it is on a device of DLPack; its capsule must not be asked for."""

    def __init__(self, array, device):
        super().__init__(array)
        self._device = device

    def __dlpack__(self, **_):
        raise AssertionError("rows of a device were asked for")

    def __dlpack_device__(self):
        return self._device


def session(capacity=400, **options):
    return headwater.Session(**{**SIZES, "capacity": capacity, "chunk": 40, "batch": 80, "local": 8, "heavy": 16,
                                "threads": 2, **options})


def step(own, q, k, v, first, n, kind="prefill"):
    """One step with the rows [first, first + n)."""
    if kind == "prefill":
        own.begin_prefill(n)
    else:
        own.begin_decode(n)
    part = slice(first, first + n)
    out = None
    for layer in range(own._shape.n_layer):
        out = own.attend(layer, q[part], k[part], v[part])
    own.end()
    return out
