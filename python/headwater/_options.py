"""Options of a session, by keyword: the names and meanings of docs/spec.md (CFG-1), docs/python.md has a table."""

import ctypes
import math
import re
from collections.abc import Iterable
from typing import Literal, SupportsFloat, SupportsIndex, TypedDict

from . import _arrays, _native

NUMBERS = ("batch", "chunk", "local", "heavy", "threads", "key_block", "query_block", "pool", "refine", "pinned",
            "dense_below", "checkpoints", "page")
FLAGS = ("clamp", "dense")
PER_HEAD = ("sinks", "alibi")
CHOICES = {"select": _native.SELECT, "score_type": _native.SCORE_TYPES, "schedule": _native.SCHEDULES}
_LAYER = ("window", "scale", "softcap", "sinks", "head_dim", "value_dim")
_MOST = 2**63 - 1
NAMES = (*NUMBERS, *FLAGS, *PER_HEAD, *CHOICES, "scale", "softcap", "dense_layers", "layers")


# What a type checker knows of `**options`: None is the default. Annotations that use them are texts, so that Python 3.10,
# which has no typing.Unpack, never reads them.


class RuleOptions(TypedDict, total=False):
    """How tokens are attended, and by how many threads."""
    batch: SupportsIndex | None
    chunk: SupportsIndex | None
    local: SupportsIndex | None
    heavy: SupportsIndex | None
    select: Literal["h2o", "blocks"] | None
    pinned: SupportsIndex | None
    key_block: SupportsIndex | None
    query_block: SupportsIndex | None
    pool: SupportsIndex | None
    refine: SupportsIndex | None
    dense: bool | None
    dense_layers: Iterable[SupportsIndex] | None
    dense_below: SupportsIndex | None
    clamp: bool | None
    score_type: Literal["bf16", "f32"] | None
    schedule: Literal["layer_major", "chunk_major"] | None
    threads: SupportsIndex | None


class StoreOptions(RuleOptions, total=False):
    """And how a session keeps its tokens."""
    checkpoints: SupportsIndex | None
    page: SupportsIndex | None


class SessionOptions(StoreOptions, total=False):
    """And what a model would decide: of Session and attention()."""
    scale: SupportsFloat | None
    softcap: SupportsFloat | None
    sinks: Iterable[SupportsFloat] | None
    alibi: Iterable[SupportsFloat] | None


class TorchOptions(SessionOptions, total=False):
    """Of headwater.torch.attention()."""
    layout: Literal["nhd", "hnd"] | None
    dense_tail: int | None
    window: int | None
    engine: str | None


class ConfigureOptions(RuleOptions, total=False):
    """Of headwater.hf.configure()."""
    dense_tail: SupportsIndex | None
    engine: str | None


class ConversationOptions(StoreOptions, total=False):
    """Of a conversation whose capacity is known."""
    dense_tail: SupportsIndex
    engine: str | None
    cache_type: Literal["auto", "f32", "f16", "bf16"]


class ChatOptions(ConversationOptions, total=False):
    """Of Model.chat()."""
    capacity: SupportsIndex | None


def integer(value, name):
    """An int of 64 bits. Errors: TypeError, ValueError."""
    try:
        number = value.__index__()
    except AttributeError:
        raise TypeError(f"{name} is {value!r}; allowed: an integer") from None
    if not -_MOST - 1 <= number <= _MOST:
        raise ValueError(f"{name} is {number}; allowed: integers of 64 bits")
    return number


def number(value, name):
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {value!r}; allowed: a number") from None


class Options:
    """_native.Options, `native`, and what its pointers point at."""

    def __init__(self, given, n_head, n_layer):
        self.native = _native.default_options()
        self.widths = {}  # of layers that have their own: layer -> (head_dim, value_dim), 0: that of the shape
        self._kept = []
        for name, value in given.items():
            if name not in NAMES:
                raise TypeError(f"option {name!r} is not known; allowed: {', '.join(NAMES)}")
            if value is not None:
                self._set(name, value, n_head, n_layer)
        if _native.in_child():
            self.native.threads = 1  # the same bits (NUM-3)

    def _set(self, name, value, n_head, n_layer):
        native = self.native
        if name in NUMBERS:
            code = integer(value, name)
            if name == "threads" and not -2**31 <= code < 2**31:
                raise ValueError(f"threads is {code}; allowed: 0 .. 512")
            setattr(native, name, code)
        elif name in FLAGS:
            setattr(native, name, 1 if value else 0)
        elif name in CHOICES:
            if value not in CHOICES[name]:
                raise ValueError(f"{name} is {value!r}; allowed: {', '.join(map(repr, CHOICES[name]))}")
            setattr(native, name, CHOICES[name][value])
        elif name in PER_HEAD:
            setattr(native, name, self._per_head(value, name, n_head))
        elif name == "dense_layers":
            layers = [integer(layer, "dense_layers") for layer in value]
            self._kept.append((ctypes.c_int64 * len(layers))(*layers))
            native.dense_layers, native.dense_layer_count = self._kept[-1], len(layers)
        elif name == "layers":
            self._set_layers(list(value), n_head, n_layer)
        else:
            setattr(native, name, number(value, name))

    def _per_head(self, values, name, n_head):
        own = _native.floats(values, name)
        if len(own) != n_head:
            raise ValueError(f"{name} has {len(own)} numbers; allowed: {n_head}, one for each query head")
        self._kept.append(own)
        return ctypes.cast(own, ctypes.POINTER(ctypes.c_float))

    def _set_layers(self, layers, n_head, n_layer):
        if len(layers) != n_layer:
            raise ValueError(f"layers has {len(layers)} entries; allowed: {n_layer}, one for each layer")
        own = (_native.LayerOptions * len(layers))()
        for index, layer in enumerate(layers):
            entry = own[index]
            entry.scale = entry.softcap = math.nan
            for name, value in dict(layer or {}).items():
                if name not in _LAYER:
                    raise TypeError(f"layers[{index}] has {name!r}; allowed: {', '.join(_LAYER)}")
                if value is None:
                    continue
                what = f"layers[{index}][{name!r}]"
                if name == "window":
                    entry.window = integer(value, what)
                elif name == "head_dim":
                    entry.d_head = integer(value, what)
                elif name == "value_dim":
                    entry.d_value = integer(value, what)
                elif name == "sinks":
                    entry.sinks = self._per_head(value, what, n_head)
                else:
                    setattr(entry, name, number(value, what))
            if entry.d_head or entry.d_value:
                self.widths[index] = (entry.d_head, entry.d_value)
        self._kept.append(own)
        self.native.layers, self.native.layer_count = own, len(layers)
        self.native.layer_size = ctypes.sizeof(_native.LayerOptions)


def place(device, stream):
    """The _arrays.Place of Session's device and stream; None: the host. Errors: ValueError, TypeError."""
    if device is None or str(device) == "cpu":
        if stream is not None:
            raise ValueError(f"stream is {stream}; allowed: None where device is cpu")
        return None
    match = re.fullmatch("cuda|(?:cuda:)?([0-9]{1,9})", str(device))
    if match is None:
        raise ValueError(f"device is {device!r}; allowed: None, 'cpu', 'cuda', 'cuda:N', a torch.device, or an ordinal")
    ordinal = _arrays.current_device() if match[1] is None else int(match[1])
    if stream is None:
        return _arrays.Place(ordinal, _arrays.current_stream(ordinal))
    if integer(stream, "stream") < 0:
        raise ValueError(f"stream is {stream}; allowed: the address of a cudaStream_t, or None")
    return _arrays.Place(ordinal, integer(stream, "stream"))


def shape(layers, heads, kv_heads, head_dim, value_dim, capacity, dtype):
    """A _native.Shape. dtype: a name, or a dtype of NumPy or PyTorch."""
    names = {name: code for code, name in _arrays.TYPE_NAMES.items()} | {"f32": 0, "f16": 1, "bf16": 2}
    code = names.get(str(dtype).rpartition(".")[2] if not isinstance(dtype, type) else dtype.__name__)
    if code is None:
        raise ValueError(f"dtype is {dtype!r}; allowed: 'float32', 'float16', 'bfloat16'")
    sizes = [integer(value, name) for name, value in (
        ("layers", layers), ("heads", heads), ("kv_heads", kv_heads), ("head_dim", head_dim),
        ("value_dim", value_dim), ("capacity", capacity))]
    return _native.Shape(*sizes, code, 0)
