"""attention(): chunked sparse causal attention of one layer over whole arrays, keys and values read where they lie."""

import ctypes
import threading
from typing import Any

from . import _arrays, _native, _options, _session

_library, _check = _native.library, _native.check
_byref = ctypes.byref
_AXES = {"nhd": (0, 1, 2), "hnd": (1, 0, 2)}
_MOST_KEPT = 8
_kept = threading.local()  # .sessions: of the latest calls of a thread, by what they were opened for


class _OverArrays(_session.Session):
    """A session of one layer whose K and V rows are the caller's (ROWS-1)."""

    def __init__(self, shape, options, engine):
        options.native.kv_owner = _native.OF_CALLER
        self._open(shape, lambda session: _library.headwater_open(
            _session._name(engine), _byref(shape), _byref(options.native), session))

    def run(self, q, rows, out, stored, n, dense_tail):
        """q and out: Rows of n tokens that follow `stored` ones."""
        with self._used() as session:
            try:
                if stored > 0:
                    _check(_library.headwater_begin_decode(session, stored))
                    _check(_library.headwater_attend_stored(session, 0, None, _byref(rows), None, None))  # DEC-2
                    _check(_library.headwater_end(session))
                if n > dense_tail:
                    self._step_of(session, q, rows, out, 0, n - dense_tail, _library.headwater_begin_prefill, (0,))
                if dense_tail > 0:
                    self._step_of(session, q, rows, out, n - dense_tail, dense_tail, _library.headwater_begin_decode, ())
            finally:
                _check(_library.headwater_reset(session))

    def _step_of(self, session, q, rows, out, first, n, begins, rest):
        def from_first(view):
            size = _arrays.SIZES[view.type]
            return _native.Rows((view.data or 0) + first * view.row_stride * size, view.row_stride, view.head_stride,
                                view.type, 0)
        own_q, own_out = from_first(q), from_first(out)
        _check(begins(session, n, *rest))
        self._call(session, n, _library.headwater_attend_stored,
                   (session, 0, _byref(own_q), _byref(rows), _byref(own_out), None))
        _check(_library.headwater_end(session))


def _session_for(shape, engine, options):
    """A session of this thread: one of its latest calls where it fits, else a new one in its place."""
    key = (shape.n_head, shape.n_head_kv, shape.d_head, shape.d_value, shape.kv_type, engine, repr(sorted(options.items())))
    sessions = getattr(_kept, "sessions", None)
    if sessions is None:
        sessions = _kept.sessions = {}
    kept = sessions.pop(key, None)
    if kept is None or kept._shape.capacity < shape.capacity or not kept.usable():
        # A cache grows token by token; the capacity is a limit, and no memory is taken for it.
        shape.capacity = max(4096, 1 << (shape.capacity - 1).bit_length()) if shape.capacity <= 2**30 else shape.capacity
        kept = _OverArrays(shape, _options.Options(options, shape.n_head, 1), engine)
    sessions[key] = kept
    if len(sessions) > _MOST_KEPT:
        del sessions[next(iter(sessions))]
    return kept


def _one(q, k, v, out, engine, dense_tail, options):
    q_rows, q_view = _arrays.rows(q, "q", None, None, None)
    n, heads, width = q_view.shape
    k_rows, k_view = _arrays.rows(k, "k", None, None, width)
    total, kv_heads, _ = k_view.shape
    v_rows, v_view = _arrays.rows(v, "v", total, kv_heads, None)
    if k_rows.type != v_rows.type:
        names = _arrays.TYPE_NAMES
        raise ValueError(f"k is {names[k_rows.type]} and v is {names[v_rows.type]}; allowed: both of one type")
    if total < n:
        raise ValueError(f"k has {total} tokens and q {n}; allowed: {n} or more")
    if total > n > dense_tail and options.get("select") in (None, "h2o") and not options.get("dense"):
        raise ValueError(f"k has {total} tokens and q {n}: rule 'h2o' needs the scores of the first {total - n}; allowed: "
                         f"{n} tokens, select='blocks', dense=True, or a Session")
    if not 0 <= dense_tail <= n:
        raise ValueError(f"dense_tail is {dense_tail}; allowed: 0 .. {n}")
    out_rows, _out = _arrays.rows(out, "out", n, heads, v_view.shape[2], writes=True)
    shape = _native.Shape(1, heads, kv_heads, width, v_view.shape[2], total, k_rows.type, 0)
    stored = _native.StoredRows(
        struct_size=ctypes.sizeof(_native.StoredRows), keys=k_rows.data, values=v_rows.data, rows=total,
        key_row_stride=k_rows.row_stride, key_head_stride=k_rows.head_stride, value_row_stride=v_rows.row_stride,
        value_head_stride=v_rows.head_stride)
    _session_for(shape, engine, options).run(q_rows, stored, out_rows, total - n, n, dense_tail)


def attention(q: Any, k: Any, v: Any, *, out: Any = None, layout: str = "nhd", dense_tail: int = 0, window: int = 0,
              engine: str | None = None, **options: Any) -> Any:
    """Causal attention of n queries to N keys: full inside chunks, and a memory set of earlier tokens (docs/spec.md).

    The queries are those of the last n of N tokens. N > n needs select="blocks", dense=True or dense_tail=n: rule "h2o"
    would have to know the scores of the tokens before.

    q: [n, heads, d], k: [N, kv_heads, d], v: [N, kv_heads, dv], or with layout="hnd" [heads, n, d] and so on; a dimension in
    front is a batch. float32, float16 or bfloat16, k and v of one type; NumPy arrays, PyTorch tensors on the CPU, or
    objects with __dlpack__; rows contiguous, any other strides; read where they lie. Rotations are applied already.
    out: [.., heads, dv] in the same layout, or None for a new array like q. dense_tail: so many tokens at the end see all
    before them. window: keys that a token sees, itself among them; such attention is exact, never sparse (MASK-2); 0: all.
    options: of Session (chunk, local, heavy, select, dense, scale, threads, ...).
    Returns out. Ctrl-C stops within a chunk. Errors: ValueError (what, where, and what is allowed), TypeError, MemoryError,
    RuntimeError.
    """
    if layout not in _AXES:
        raise ValueError(f"layout is {layout!r}; allowed: 'nhd', 'hnd'")
    dense_tail = _options.integer(dense_tail, "dense_tail")
    if window:
        options["layers"] = [{"window": window}]
    views = [_arrays.view(array, name) for array, name in ((q, "q"), (k, "k"), (v, "v"))]
    dimensions = len(views[0].shape)
    if dimensions not in (3, 4) or any(len(view.shape) != dimensions for view in views):
        raise ValueError(f"q, k and v have {', '.join(str(len(view.shape)) for view in views)} dimensions; allowed: 3 each, "
                         "or 4 with a batch in front")
    if out is None:
        sizes = (*views[0].shape[:-1], views[2].shape[-1])
        out = _arrays.empty_like(q, views[0].type, sizes)
    views.append(_arrays.view(out, "out", writes=True))
    if len(views[3].shape) != dimensions:
        raise ValueError(f"out has {len(views[3].shape)} dimensions; allowed: {dimensions}")
    batch = views[0].shape[0] if dimensions == 4 else 1
    if any(dimensions == 4 and view.shape[0] != batch for view in views) or batch < 1:
        raise ValueError(f"q, k, v and out have batches of {', '.join(str(view.shape[0]) for view in views)}; allowed: the "
                         "same, 1 or more")
    for index in range(batch):
        _one(*(view.ordered(index if dimensions == 4 else None, _AXES[layout]) for view in views), engine, dense_tail,
             options)
    return out
