"""attention(): chunked sparse causal attention of one layer over whole arrays, keys and values read where they lie."""

import ctypes
import sys
import threading
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeVar, overload

from . import _arrays, _native, _options, _session

if sys.version_info >= (3, 11):
    from typing import Unpack
elif TYPE_CHECKING:
    from typing_extensions import Unpack

_library, _check = _native.library, _native.check
_byref = ctypes.byref
_AXES = {"nhd": (0, 1, 2), "hnd": (1, 0, 2)}
_PLAIN = frozenset({bool, float, int, str, type(None)})
# Sessions that a thread keeps: the layers of a model may each have one of their own (sinks), for a prompt and for a token.
_ALWAYS_KEPT, _MOST_KEPT = 8, 128
_MOST_BYTES = 2**31  # of all; 36 layers of 64 heads on 32 threads have less
_Array = TypeVar("_Array", bound=_arrays.Array)
_Out = TypeVar("_Out", bound=_arrays.Array)
_kept = threading.local()  # .sessions: of the latest calls of a thread, the newest last, by what they were opened for


class _OverArrays(_session.Session):
    """A session of one layer whose K and V rows are the caller's (ROWS-1). Its structures are filled anew by each call."""

    def __init__(self, shape, options, engine):
        if options.native.kv_bits != 0:
            raise ValueError(f"kv_bits is {options.native.kv_bits}; allowed: 0, as keys and values are read where they lie")
        options.native.kv_owner = _native.OF_CALLER
        self._open_new(shape, options, engine, None)
        self._q, self._out = _native.Rows(), _native.Rows()
        self._rows = _native.StoredRows(struct_size=ctypes.sizeof(_native.StoredRows))
        self._addresses = _byref(self._q), _byref(self._rows), _byref(self._out)

    def run(self, q, k, v, out, dense_tail):
        """Views [n, heads, width], those of k and v of stored + n tokens."""
        session, rows, n, total = self._session, self._rows, q.shape[0], k.shape[0]
        rows.keys, rows.values, rows.rows = k.address, v.address, total
        rows.key_row_stride, rows.key_head_stride, _ = k.strides
        rows.value_row_stride, rows.value_head_stride, _ = v.strides
        try:
            if total > n:
                _check(_library.headwater_begin_decode(session, total - n))
                _check(_library.headwater_attend_stored(session, 0, None, self._addresses[1], None, None))  # DEC-2
                _check(_library.headwater_end(session))
            if n > dense_tail:
                _check(_library.headwater_begin_prefill(session, n - dense_tail, 0))
                self._step_of(session, q, out, 0, n - dense_tail)
            if dense_tail > 0:
                _check(_library.headwater_begin_decode(session, dense_tail))
                self._step_of(session, q, out, n - dense_tail, dense_tail)
        finally:
            _check(_library.headwater_reset(session))

    def _step_of(self, session, q, out, first, n):
        for rows, view in ((self._q, q), (self._out, out)):
            rows.row_stride, rows.head_stride, _ = view.strides
            rows.data, rows.type = view.address + first * rows.row_stride * _arrays.SIZES[view.type], view.type
        q_rows, stored, out_rows = self._addresses
        self._call(session, n, _library.headwater_attend_stored, (session, 0, q_rows, stored, out_rows, None))
        _check(_library.headwater_end(session))


class _OnDevice(_session.Session):
    """A session of one layer on a CUDA device, which keeps K and V rows of its own: engine cuda reads no others."""

    def __init__(self, shape, options, engine, place):
        self._open_new(shape, options, engine, place)

    def run(self, q, k, v, out, dense_tail):
        """Views [n, heads, width], k and v [N, ..]."""
        n, before = q.shape[0], k.shape[0] - q.shape[0]
        self.reset()  # here, not at the end: while the stream is captured it is refused, and the call with it
        if before > 0:
            self.begin_decode(before)
            self.attend(0, None, k.tokens(0, before), v.tokens(0, before))
            self.end()
        for begin, first, rows in ((self.begin_prefill, 0, n - dense_tail), (self.begin_decode, n - dense_tail, dense_tail)):
            if rows > 0:
                begin(rows)
                self.attend(0, q.tokens(first, rows), k.tokens(before + first, rows), v.tokens(before + first, rows),
                            out.tokens(first, rows))
                self.end()


def _exact(value):
    """A copy in Python's own types: its repr() says all of it, and what is kept by it does not change with its owner."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "keys"):
        return {name: _exact(value[name]) for name in value.keys()}
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        return value
    return [_exact(entry) for entry in value]


def _key_of(options):
    """What equal options have alone, by value and type: 64.0 is no chunk where 64 is. Values that are no plain ones are
    replaced by copies."""
    plain = True
    for name, value in options.items():
        if type(value) in _PLAIN:
            continue
        if name in _options.PER_HEAD:
            options[name] = tuple(_options.floats(value, name))
        else:
            options[name], plain = _exact(value), False
    return (*options.items(), *map(type, options.values())) if plain else repr(options)


def _drop_old(sessions):
    """Drops those of the parent of a fork(), and what was used longest ago of more than a thread keeps. It asks each, but
    only after one was opened."""
    held = {}
    for key, session in list(sessions.items()):
        if session.usable():
            held[key] = sum(session.memory_bytes.values())
        else:
            sessions.pop(key, None)
    total = sum(held.values())
    for index, key in enumerate(list(held)[:-_ALWAYS_KEPT]):
        if total <= _MOST_BYTES and len(held) - index <= _MOST_KEPT:
            break
        total -= held[key]
        sessions.pop(key, None)


def _one(q, k, v, out, engine, dense_tail, window, options, key_of_options):
    """Of Views [n, heads, width]."""
    _arrays.check_rows(q, "q", None, None, None)
    n, heads, width = q.shape
    _arrays.check_rows(k, "k", None, None, width)
    total, kv_heads, _ = k.shape
    _arrays.check_rows(v, "v", total, kv_heads, None)
    value_width = v.shape[2]
    if k.type != v.type:
        names = _arrays.TYPE_NAMES
        raise ValueError(f"k is {names[k.type]} and v is {names[v.type]}; allowed: both of one type")
    if total < n:
        raise ValueError(f"k has {total} tokens and q {n}; allowed: {n} or more")
    place = q.place
    if place is not None:
        if window:
            raise ValueError(f"window is {window}; allowed: 0 on cuda:{place.device}")
    if total > n > dense_tail and options.get("select") in (None, "h2o") and not options.get("dense"):
        raise ValueError(f"k has {total} tokens and q {n}: rule 'h2o' needs the scores of the first {total - n}; allowed: "
                         f"{n} tokens, select='blocks' or 'sketches', dense=True, or a Session")
    if not 0 <= dense_tail <= n:
        raise ValueError(f"dense_tail is {dense_tail}; allowed: 0 .. {n}")
    _arrays.check_rows(out, "out", n, heads, value_width, writes=True)
    try:
        sessions = _kept.sessions
    except AttributeError:
        sessions = _kept.sessions = {}
    key = (heads, kv_heads, width, value_width, k.type, engine, window, place, key_of_options)
    # Out of those that are kept while it works: a handler of a signal that calls attention() gets another one.
    session = sessions.pop(key, None)
    fits = session is not None and session._shape.capacity >= total and session.usable()
    if not fits:
        session = None  # before another one takes memory
        # A cache grows token by token; the capacity is a limit, and no memory is taken for it but on a device.
        capacity = max(4096, 1 << (total - 1).bit_length()) if total <= 2**30 else total
        shape = _native.Shape(1, heads, kv_heads, width, value_width, capacity, k.type, 0)
        own = {**options, "layers": [{"window": window}]} if window else options
        own = _options.Options(own, heads, 1, attention)
        session = _OverArrays(shape, own, engine) if place is None else _OnDevice(shape, own, engine, place)
        if not window:
            session._warn_of_clamp(own.native, 2)
    try:
        session.run(q, k, v, out, dense_tail)
    finally:
        sessions[key] = session
        if not fits:
            _drop_old(sessions)


@overload
def attention(q: _Array, k: _arrays.Array, v: _arrays.Array, *, out: None = None, layout: Literal["nhd", "hnd"] = "nhd",
              dense_tail: SupportsIndex = 0, window: SupportsIndex = 0, engine: str | None = None,
              **options: "Unpack[_options.SessionOptions]") -> _Array: ...


@overload
def attention(q: _arrays.Array, k: _arrays.Array, v: _arrays.Array, *, out: _Out, layout: Literal["nhd", "hnd"] = "nhd",
              dense_tail: SupportsIndex = 0, window: SupportsIndex = 0, engine: str | None = None,
              **options: "Unpack[_options.SessionOptions]") -> _Out: ...


def attention(q: Any, k: Any, v: Any, *, out: Any = None, layout: str = "nhd", dense_tail: SupportsIndex = 0,
              window: SupportsIndex = 0, engine: str | None = None,
              **options: "Unpack[_options.SessionOptions]") -> Any:
    """Causal attention of n queries to N keys: full inside chunks, and a memory set of earlier tokens (docs/spec.md).

    The queries are those of the last n of N tokens. N > n needs select="blocks" or "sketches", dense=True or dense_tail=n: rule "h2o"
    would have to know the scores of the tokens before.

    q: [n, heads, d], k: [N, kv_heads, d], v: [N, kv_heads, dv], or with layout="hnd" [heads, n, d] and so on; a dimension in
    front is a batch. float32, float16 or bfloat16, k and v of one type; NumPy arrays, PyTorch tensors, or objects with
    __dlpack__; rows contiguous, any other strides; read where they lie. Rotations are applied already.
    out: [.., heads, dv] in the same layout and memory of its own, or None for a new array like q. dense_tail: so many tokens
    at the end see all before them. window: keys that a token sees, itself among them; such attention is exact, never sparse
    (MASK-2); 0: all. options: of Session (chunk, local, heavy, select, dense, scale, threads, ...). Memory sets that do not
    fit into a chunk are clamped, with a warning (CFG-3).
    On a CUDA device: all four lie there, engine None means "cuda", window is 0, and the rule "h2o" or "blocks". The call
    returns when its work is enqueued on PyTorch's current stream of the device (the default stream where PyTorch does not use
    CUDA), which must live as long as the thread. out is there, and q, k and v must stay as they are, until the stream has got
    so far. If q is no tensor of PyTorch, out is needed: any object with __dlpack__ there that may be written.
    Returns out. Ctrl-C stops within a chunk. Errors: ValueError (what, where, and what is allowed), TypeError, MemoryError,
    RuntimeError.
    """
    if layout not in _AXES:
        raise ValueError(f"layout is {layout!r}; allowed: 'nhd', 'hnd'")
    dense_tail = _options.integer(dense_tail, "dense_tail")
    window = _options.integer(window, "window")
    q_view = _arrays.view(q, "q", place=_arrays.ANYWHERE)
    place = q_view.place
    k_view, v_view = _arrays.view(k, "k", place=place), _arrays.view(v, "v", place=place)
    dimensions = len(q_view.shape)
    if dimensions not in (3, 4) or len(k_view.shape) != dimensions or len(v_view.shape) != dimensions:
        raise ValueError(f"q, k and v have {', '.join(str(len(view.shape)) for view in (q_view, k_view, v_view))} dimensions; "
                         "allowed: 3 each, or 4 with a batch in front")
    own = out is None
    if own:
        out = _arrays.empty_like(q, q_view, (*q_view.shape[:-1], v_view.shape[-1]))
    out_view = _arrays.view(out, "out", writes=True, place=place)
    if len(out_view.shape) != dimensions:
        raise ValueError(f"out has {len(out_view.shape)} dimensions; allowed: {dimensions}")
    if not own:
        _arrays.check_apart([("out", out_view)], [("q", q_view), ("k", k_view), ("v", v_view)])
    rest = (engine, dense_tail, window, options, _key_of(options))
    if dimensions == 3 and layout == "nhd":
        _one(q_view, k_view, v_view, out_view, *rest)
        return out
    views, batch = (q_view, k_view, v_view, out_view), q_view.shape[0] if dimensions == 4 else 1
    if dimensions == 4 and any(view.shape[0] != batch for view in views) or batch < 1:
        raise ValueError(f"q, k, v and out have batches of {', '.join(str(view.shape[0]) for view in views)}; allowed: the "
                         "same, 1 or more")
    for index in range(batch):
        _one(*(view.ordered(index if dimensions == 4 else None, _AXES[layout]) for view in views), *rest)
    return out
