"""Options of a session, by keyword: the names and meanings of docs/spec.md (CFG-1); docs/python.md has a table. What a value of
each kind may be is said here alone, for all calls of the package."""

import ctypes
import math
import re
from collections.abc import Iterable
from typing import Literal, SupportsFloat, SupportsIndex, TypedDict

from . import _arrays, _native

_FIELDS = _native.Options._fields_
NUMBERS = tuple(name for name, kind in _FIELDS if name == "threads" or kind is ctypes.c_int64 and not name.endswith("_count"))
REALS = sorted(name for name, kind in _FIELDS if kind is ctypes.c_double)
FLAGS = ("clamp", "dense")
PER_HEAD = ("sinks", "alibi")
CHOICES = {"select": _native.SELECT, "score_type": _native.SCORE_TYPES, "schedule": _native.SCHEDULES}
_LAYER = ("window", "scale", "softcap", "sinks", "head_dim", "value_dim")
_MOST = 2**63 - 1
NAMES = (*NUMBERS, *FLAGS, *PER_HEAD, *CHOICES, *REALS, "dense_layers", "layers")


# What a type checker knows of `**options`: None is the default. Annotations that use them are texts, so that Python 3.10,
# which has no typing.Unpack, never reads them.


class RuleOptions(TypedDict, total=False):
    """How tokens are attended, and by how many threads."""
    batch: SupportsIndex | None
    chunk: SupportsIndex | None
    local: SupportsIndex | None
    heavy: SupportsIndex | None
    select: Literal["h2o", "blocks", "sketches"] | None
    pinned: SupportsIndex | None
    key_block: SupportsIndex | None
    query_block: SupportsIndex | None
    pool: SupportsIndex | None
    refine: SupportsIndex | None
    least_weight: SupportsFloat | None
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
    kv_bits: SupportsIndex | None


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
    quality: Literal["fast", "balanced", "exact"]
    dense_tail: SupportsIndex
    engine: str | None
    cache_type: Literal["auto", "f32", "f16", "bf16", "q8_0"]


class ChatOptions(ConversationOptions, total=False):
    """Of Model.chat()."""
    capacity: SupportsIndex | None


# ---- Kinds of values ----

_INTEGER, _NUMBER, _FLAG = "an integer", "a number", "True, False"


def _refuse(value, name, allowed):
    raise TypeError(f"{name} is {value!r}; allowed: {allowed}")


def _is_flag(value):
    return isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")  # of NumPy, of PyTorch


def flag(value, name):
    """A bool. Errors: TypeError."""
    if _is_flag(value):
        try:
            return bool(value)
        except (ValueError, RuntimeError):  # of several
            pass
    _refuse(value, name, _FLAG)


def integer(value, name):
    """An int of 64 bits. Errors: TypeError, ValueError."""
    if type(value) is int:
        number = value
    elif _is_flag(value):
        _refuse(value, name, _INTEGER)
    else:
        try:
            number = value.__index__()
        except (AttributeError, TypeError, RuntimeError):  # of an array, of a tensor
            raise TypeError(f"{name} is {value!r}; allowed: {_INTEGER}") from None
    if not -_MOST - 1 <= number <= _MOST:
        raise ValueError(f"{name} is {number}; allowed: integers of 64 bits")
    return number


def _real(value, name):
    if type(value) is float:
        return value
    if not _is_flag(value) and not isinstance(value, (str, bytes, bytearray)):
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{name} is {value!r}; allowed: numbers of 64 bits") from None
        except (TypeError, ValueError, RuntimeError):
            pass
    _refuse(value, name, _NUMBER)


def number(value, name):
    """A float that is not NaN, by which the library means its default. Errors: TypeError, ValueError."""
    real = _real(value, name)
    if real != real:
        raise ValueError(f"{name} is NaN; allowed: {_NUMBER}")
    return real


def several(values, name, what):
    """A list of the entries of a sequence, of what `what` says. Errors: TypeError."""
    if not isinstance(values, (str, bytes, bytearray)):
        try:
            return list(values)
        except TypeError:  # not iterable, an array of no dimensions
            pass
    raise TypeError(f"{name} is {values!r}; allowed: a sequence of {what}")


def integers(values, name):
    """A list of int. Errors: as of integer()."""
    return [integer(value, f"{name}[{index}]") for index, value in enumerate(several(values, name, "integers"))]


def floats(values, name):
    """An array of floats for a sequence of numbers. Errors: TypeError, ValueError (NaN)."""
    try:
        numbers = [_real(value, name) for value in several(values, name, "numbers")]
    except TypeError:
        raise TypeError(f"{name} is a {type(values).__name__} that holds no numbers; allowed: a sequence of numbers") from None
    if any(real != real for real in numbers):
        raise ValueError(f"{name} holds NaN; allowed: numbers")
    return (ctypes.c_float * len(numbers))(*numbers)


def choice(value, name, choices):
    """What `choices` has for a text. Errors: ValueError."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} is {value!r}; allowed: {', '.join(map(repr, choices))}")
    return choices[value]


def text(value, name):
    """The bytes of a text. Errors: TypeError, ValueError (surrogates)."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is a {type(value).__name__}; allowed: str")
    return value.encode()


def known(given, *calls):
    """Refuses, by name, an option that none of these calls has, whose keywords may be said beside NAMES. Errors: TypeError."""
    unknown = [name for name in given if name not in NAMES]
    if not unknown:
        return
    import inspect
    own = [parameter.name for call in calls for parameter in inspect.signature(call).parameters.values()
           if parameter.kind is parameter.KEYWORD_ONLY]
    for name in unknown:
        if name not in own:
            raise TypeError(f"option {name!r} is not known; allowed: {', '.join(dict.fromkeys((*NAMES, *own)))}")


def preset(quality, engine=None):
    """What a quality says, {name: value}: the library's table of measured defaults. engine: a name as bytes, or None. Errors:
    ValueError, RuntimeError."""
    code = choice(quality, "quality", _native.QUALITIES)
    native = _native.preset(engine, code)
    if native.dense:
        return {"dense": True}
    rules = {code: name for name, code in _native.SELECT.items()}
    return {"select": rules[native.select], **{name: getattr(native, name) for name in (
        "chunk", "local", "heavy", *RULES_WITH, "pinned")}}


# Which rules a size belongs to.
RULES_WITH = {"key_block": ("blocks",), "query_block": ("blocks", "sketches"), "pool": ("blocks",), "refine": ("blocks",),
              "least_weight": ("sketches",)}


def check_sizes_of_rule(options, given):
    """Errors: ValueError (a size of a rule that nobody asked for, where `options` has another one)."""
    rule = options.get("select")
    for name, rules in RULES_WITH.items():
        if name in given and "select" not in given and rule not in (None, *rules):
            raise ValueError(f"{name} is a size of rule {' or '.join(rules)}, and the rule is {rule}; allowed: without it, "
                             f"or select={rules[0]!r}")


def fit_pinned(options, given):
    """Pinned tokens that nobody asked for: part of the heavy ones, with rule blocks in whole key blocks, and none with rule
    h2o, which is the plan's."""
    if "pinned" in given or "pinned" not in options:
        return
    if options["select"] == "h2o":
        options["pinned"] = 0
        return
    heavy = integer(options["heavy"], "heavy")
    block = max(1, integer(options["key_block"], "key_block")) if options["select"] == "blocks" else 1
    options["pinned"] = max(0, min(-(-options["pinned"] // block), heavy // block) * block)


def with_preset(given, engine):
    """The options of `headwater generate`: those of `quality` where no other is given. Where the rule was not asked for, its
    sizes fit a small chunk or memory set. Errors: TypeError, ValueError, RuntimeError."""
    given = {name: value for name, value in given.items() if value is not None}
    options = {**preset(given.pop("quality", "balanced"), engine), **given}
    check_sizes_of_rule(options, given)
    rule = options.get("select")
    if rule in ("blocks", "sketches") and "select" not in given:
        chunk, heavy = (integer(options[name], name) for name in ("chunk", "heavy"))
        if "query_block" not in given:
            options["query_block"] = max(1, min(options["query_block"], chunk))
        if "pool" not in given and rule == "blocks":
            options["pool"] = math.gcd(options["pool"], integer(options["query_block"], "query_block"))
        if "key_block" not in given and rule == "blocks":
            options["key_block"] = math.gcd(options["key_block"], heavy, integer(given.get("pinned", 0), "pinned"))
            while options["key_block"] > max(chunk, 1):
                options["key_block"] //= 2
    fit_pinned(options, given)
    return options


class Options:
    """_native.Options, `native`, and what its pointers point at. calls: as of known()."""

    def __init__(self, given, n_head, n_layer, *calls):
        known(given, *calls)
        self.native = _native.default_options()
        self.widths = {}  # of layers that have their own: layer -> (head_dim, value_dim), 0: that of the shape
        self._kept = []
        for name, value in given.items():
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
            setattr(native, name, int(flag(value, name)))
        elif name in CHOICES:
            setattr(native, name, choice(value, name, CHOICES[name]))
        elif name in PER_HEAD:
            setattr(native, name, self._per_head(value, name, n_head))
        elif name == "dense_layers":
            layers = integers(value, name)
            self._kept.append((ctypes.c_int64 * len(layers))(*layers))
            native.dense_layers, native.dense_layer_count = self._kept[-1], len(layers)
        elif name == "layers":
            self._set_layers(several(value, name, "dicts"), n_head, n_layer)
        else:
            setattr(native, name, number(value, name))

    def _per_head(self, values, name, n_head):
        own = floats(values, name)
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
            if layer is not None and not hasattr(layer, "keys"):
                _refuse(layer, f"layers[{index}]", "a dict, None")
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
