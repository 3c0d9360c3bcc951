"""Session: the stored K and V rows of all layers of one conversation, and its steps."""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from . import _arrays, _native, _options

if sys.version_info >= (3, 11):
    from typing import Unpack
elif TYPE_CHECKING:
    from typing_extensions import Unpack

_library, _check = _native.library, _native.check
_byref = ctypes.byref
_Array = TypeVar("_Array", bound=_arrays.Array)
_Out = TypeVar("_Out", bound=_arrays.Array)
_STATES = ("empty", "prefilling", "decoding")
_MODES = ("sparse", "dense", "decode")


class _Interrupt:
    """Ctrl-C during a call: the handler is put off, the call asks for it and stops, and then the handler runs.

    A handler that raised inside the call's question would be lost: ctypes has nobody to hand the exception to.
    """

    _set = _library.headwater_set_interrupt

    def __init__(self):
        self._seen = []
        self._callback = _native.Interrupt(lambda _: 1 if self._seen else 0)
        self.address = ctypes.cast(self._callback, ctypes.c_void_p)

    @contextlib.contextmanager
    def put_off(self, *sessions):
        """While a long call of these sessions runs. Python runs handlers on the main thread alone."""
        handler = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(handler):
            yield
            return
        self._seen.clear()
        signal.signal(signal.SIGINT, lambda *what: self._seen.append(what))
        asked = [session for session in sessions if self._set(session, self.address, None) == 0]
        try:
            yield
        finally:
            for session in asked:
                self._set(session, None, None)
            signal.signal(signal.SIGINT, handler)
            if self._seen:
                handler(*self._seen[0])


class Session(_native.Owner):
    """One conversation. A step is `begin_prefill(n)` or `begin_decode(n)`, `attend()` once for each layer, `end()`.

    layers, heads, kv_heads, head_dim, capacity: sizes; value_dim: head_dim where it is None. dtype: of the stored rows,
    "float32", "float16" or "bfloat16". engine: a name of headwater.engines(), or None for HEADWATER_ENGINE or "cpu".
    options: by keyword, as docs/spec.md names them (batch, chunk, local, heavy, select, threads, scale, ...); a value of
    None is the default.

    device: memory of the rows that attend() is given. None or "cpu": the host's, with every engine. "cuda:1", a torch.device
    or an ordinal: that CUDA device's; "cuda": PyTorch's current one where its CUDA is in use, else the first. engine None
    means "cuda" then. stream: the address of a cudaStream_t of the device, which must outlive the session; None: PyTorch's
    current one of the device where its CUDA is in use, else the default stream. It is chosen once, when the session opens.

    layer_options: None or, for each layer, None or a dict of what it has of its own (`layers` of the spec, LAYER-1): window,
    scale, softcap, sinks, head_dim, value_dim.

    A session is used by one thread at a time: a second one gets RuntimeError. Errors: ValueError (the field, its value and
    what is allowed), TypeError, MemoryError, RuntimeError (the protocol), NotImplementedError (not by this engine).
    """

    _instead = "fork(), a second session that shares what is stored, or save() and load()"

    def __init__(self, *, layers: int, heads: int, kv_heads: int | None = None, head_dim: int, value_dim: int | None = None,
                 capacity: int, dtype: Any = "float32", engine: str | None = None, device: Any = None,
                 stream: int | None = None, layer_options: Sequence[dict[str, Any] | None] | None = None, **options: "Unpack[_options.SessionOptions]") -> None:
        shape = _options.shape(layers, heads, heads if kv_heads is None else kv_heads, head_dim,
                               head_dim if value_dim is None else value_dim, capacity, dtype)
        own = _options.Options({**options, "layers": layer_options}, shape.n_head, shape.n_layer, Session)
        self._open_new(shape, own, engine, _options.place(device, stream))

    def _open_new(self, shape, options, engine, place):
        native = options.native
        if place is not None:
            engine = "cuda" if engine is None else engine
            native.row_memory, native.device_plus_1, native.stream = _native.DEVICE_MEMORY, place.device + 1, place.stream

        def opens(session):
            status = _library.headwater_open(_name(engine), _byref(shape), _byref(native), session)
            if status == _native.ENGINE_UNAVAILABLE and place is not None:
                raise RuntimeError(f"rows on cuda:{place.device} have no engine: {_native.error(status)}")
            return status
        self._open(shape, options.widths, opens)
        self._place = place

    def _open(self, shape, widths, opens):
        self._session = ctypes.c_void_p()
        self._lock = threading.Lock()
        self._process = os.getpid()
        _check(opens(_byref(self._session)))
        self._shape = shape
        self._widths = widths
        self._place = None
        self._step = 0
        self._interrupt = _Interrupt()

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, layers: int, heads: int, kv_heads: int | None = None, head_dim: int,
             value_dim: int | None = None, capacity: int, dtype: Any = "float32", engine: str | None = None,
             layer_options: Sequence[dict[str, Any] | None] | None = None, fingerprint: str = "", **options: "Unpack[_options.SessionOptions]") -> "Session":
        """A session with the state of a file that save() wrote (STATE-12). What it asks for must be what was saved.
        Errors: as of Session(); ValueError where the file is damaged, foreign, or of other options."""
        shape = _options.shape(layers, heads, heads if kv_heads is None else kv_heads, head_dim,
                               head_dim if value_dim is None else value_dim, capacity, dtype)
        own = _options.Options({**options, "layers": layer_options}, shape.n_head, shape.n_layer, Session.load)
        self = cls.__new__(cls)
        self._open(shape, own.widths, lambda session: _library.headwater_load(
            _name(engine), _byref(shape), _byref(own.native), os.fsencode(path), _options.text(fingerprint, "fingerprint"),
            session))
        return self

    @staticmethod
    def estimate(*, layers: int, heads: int, kv_heads: int | None = None, head_dim: int, value_dim: int | None = None,
                 capacity: int, dtype: Any = "float32", engine: str | None = None,
                 layer_options: Sequence[dict[str, Any] | None] | None = None, **options: "Unpack[_options.SessionOptions]") -> tuple[dict[str, int], dict[str, int]]:
        """Bytes that Session() with these arguments will hold, once open and once full: memory_bytes of both, without taking
        them (NUM-5). Errors: as of Session(); MemoryError where 64 bits cannot count them."""
        shape = _options.shape(layers, heads, heads if kv_heads is None else kv_heads, head_dim,
                               head_dim if value_dim is None else value_dim, capacity, dtype)
        own = _options.Options({**options, "layers": layer_options}, shape.n_head, shape.n_layer, Session.estimate)
        opened, full = _native.MemoryBytes(), _native.MemoryBytes()
        _check(_library.headwater_estimate(_name(engine), _byref(shape), _byref(own.native), _byref(opened), _byref(full),
                                           ctypes.sizeof(opened)))
        return opened.numbers(), full.numbers()

    def __repr__(self) -> str:
        shape = getattr(self, "_shape", None)
        if shape is None:
            return f"<headwater.{type(self).__name__}, not open>"
        widths = f"{shape.d_head}" if shape.d_head == shape.d_value else f"{shape.d_head} and {shape.d_value}"
        return (f"<headwater.{type(self).__name__}: layers {shape.n_layer}, heads {shape.n_head} over {shape.n_head_kv} of "
                f"{widths}, {_arrays.TYPE_NAMES[shape.kv_type]}, {self._held()}>")

    def _held(self):
        """How full it is, in words, whatever its state and whoever uses it."""
        if not self.usable():
            return "closed"
        try:
            return f"{self.tokens} of {self._shape.capacity} tokens"
        except RuntimeError:
            return "in use by another thread"

    def __del__(self):
        # In a child of fork() the memory goes with the process.
        if getattr(self, "_session", None) and self.usable():
            _library.headwater_close(self._session)

    def usable(self) -> bool:
        """Whether it is open and of this process: a child of fork() has no threads of the engine."""
        return bool(self._session) and self._process == os.getpid()

    def close(self) -> None:
        """Gives the memory back. Calls after it are RuntimeError."""
        with self._used() as session:
            self._session = None
            _library.headwater_close(session)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        if self._session:
            self.close()

    @contextlib.contextmanager
    def _used(self):
        """The session for one call of this thread."""
        if not self._lock.acquire(blocking=False):
            raise RuntimeError("the session is in use by another thread; allowed: one at a time")
        try:
            if not self.usable():
                raise RuntimeError("the session is closed, or another process opened it; allowed: an open one")
            yield self._session
        finally:
            self._lock.release()

    # ---- steps ----

    def begin_prefill(self, n: int, turn_length: int = 0) -> None:
        """Opens a prefill call of n tokens; turn_length: tokens of the whole turn that it opens, 0 for n (STATE-3)."""
        n = _options.integer(n, "n")
        with self._used() as session:
            _check(_library.headwater_begin_prefill(session, n, _options.integer(turn_length, "turn_length")))
            self._step = n

    def begin_decode(self, n: int = 1) -> None:
        """Opens a dense step of n tokens (DEC-1)."""
        n = _options.integer(n, "n")
        with self._used() as session:
            _check(_library.headwater_begin_decode(session, n))
            self._step = n

    @overload
    def attend(self, layer: int, q: None, k: _arrays.Array, v: _arrays.Array, out: None = None, *,
               lse: None = None) -> None: ...

    @overload
    def attend(self, layer: int, q: _Array, k: _arrays.Array, v: _arrays.Array, out: None = None, *,
               lse: _arrays.Array | None = None) -> _Array: ...

    @overload
    def attend(self, layer: int, q: _arrays.Array, k: _arrays.Array, v: _arrays.Array, out: _Out, *,
               lse: _arrays.Array | None = None) -> _Out: ...

    def attend(self, layer: int, q: Any, k: Any, v: Any, out: Any = None, *, lse: Any = None) -> Any:
        """Attention of one layer of the open step of n tokens.

        q: [n, heads, head_dim], k: [n, kv_heads, head_dim], v: [n, kv_heads, value_dim], rotated already, float32, float16
        or bfloat16, any strides between rows. out: [n, heads, value_dim], written and returned, in memory of its own; None makes
        one like q.
        q may be None in a decode step: k and v are stored and nothing is computed (DEC-2), so that a prefix from elsewhere
        becomes part of the session. lse: None, or float32 [n, heads] for the log-sum-exps (LSE-1). Ctrl-C stops a prefill
        within a chunk: the step has failed then, and abort() takes it back.

        All of them lie where the session's device says. On a CUDA device the call returns when its work is enqueued on the
        session's stream: out is there, and q, k and v must stay as they are, until the stream has got so far. Only PyTorch
        makes an out there; else out is needed, any object with __dlpack__, which must be one that may be written.
        Errors: ValueError (what, where, and what is allowed), TypeError, RuntimeError (no step is open).
        """
        shape, n, place = self._shape, self._step, self._place
        if n == 0:
            with self._used():
                raise RuntimeError("attend() without an open step; allowed: after begin_prefill(n) or begin_decode(n)")
        layer = _options.integer(layer, "layer")
        head_dim, value_dim = self._widths_of(layer)
        k_rows, k_view = _arrays.rows(k, "k", n, shape.n_head_kv, head_dim, place=place)
        v_rows, v_view = _arrays.rows(v, "v", n, shape.n_head_kv, value_dim, place=place)
        if q is None and out is None and lse is None:
            with self._used() as session:
                _check(_library.headwater_attend(session, layer, None, _byref(k_rows), _byref(v_rows), None))
            return None
        q_rows, q_view = _arrays.rows(q, "q", n, shape.n_head, head_dim, place=place)
        own = out is None
        if own:
            out = _arrays.empty_like(q, q_view, (n, shape.n_head, value_dim))
        out_rows, out_view = _arrays.rows(out, "out", n, shape.n_head, value_dim, writes=True, place=place)
        lse_view = None if lse is None else _lse_view(lse, n, shape.n_head, place)
        if not own or lse is not None:
            _arrays.check_apart([("out", out_view), ("lse", lse_view)], [("q", q_view), ("k", k_view), ("v", v_view)])
        with self._used() as session:
            if lse is None:
                call = _library.headwater_attend
                arguments = (session, layer, _byref(q_rows), _byref(k_rows), _byref(v_rows), _byref(out_rows))
            else:
                call = _library.headwater_attend_lse
                arguments = (session, layer, _byref(q_rows), _byref(k_rows), _byref(v_rows), _byref(out_rows),
                             _byref(_native.LseOutput(lse_view.address, *lse_view.strides)))
            self._call(session, n, call, arguments)
        return out

    def _call(self, session, n, call, arguments):
        if n <= 16:  # as short as a question whether to stop
            _check(call(*arguments))
            return
        with self._interrupt.put_off(session):
            status = call(*arguments)
            error = None if status == 0 else _native.error(status)
        if error is not None:
            raise error

    def end(self) -> None:
        """Closes the step; every layer must have been attended."""
        with self._used() as session:
            _check(_library.headwater_end(session))
            self._step = 0

    def abort(self) -> None:
        """Drops the open step, failed or not (STATE-8)."""
        with self._used() as session:
            _check(_library.headwater_abort(session))
            self._step = 0

    def reset(self) -> None:
        """Back to an empty session."""
        with self._used() as session:
            _check(_library.headwater_reset(session))
            self._step = 0

    def truncate(self, n: int) -> None:
        """Keeps the first n tokens (STATE-9; with select "h2o" not every n, STATE-10)."""
        with self._used() as session:
            _check(_library.headwater_truncate(session, _options.integer(n, "n")))

    def fork(self) -> "Session":
        """A second session that shares what is stored and goes on by itself (STATE-11)."""
        with self._used() as session:
            other = type(self).__new__(type(self))
            other._open(self._shape, self._widths, lambda forked: _library.headwater_fork(session, forked))
            return other

    def save(self, path: str | os.PathLike[str], fingerprint: str = "") -> None:
        """Writes the session to a safetensors file; fingerprint: a text that says of which model the rows are (STATE-12)."""
        with self._used() as session:
            _check(_library.headwater_save(session, os.fsencode(path), _options.text(fingerprint, "fingerprint")))

    # ---- what it holds ----

    def _number(self, function, kind=ctypes.c_int64):
        value = kind()
        with self._used() as session:
            _check(function(session, _byref(value)))
        return value.value

    @property
    def tokens(self) -> int:
        """Tokens stored, those of the open step not counted."""
        return self._number(_library.headwater_session_tokens)

    @property
    def state(self) -> str:
        """"empty", "prefilling" or "decoding" (STATE-1)."""
        return _STATES[self._number(_library.headwater_session_state, ctypes.c_int32)]

    @property
    def failed(self) -> bool:
        """Whether the open step has failed, so that only abort() and reset() are allowed (STATE-5)."""
        return bool(self._number(_library.headwater_session_failed, ctypes.c_int32))

    @property
    def options(self) -> dict[str, Any]:
        """The options that are used, as a dict (CFG-2, CFG-3, CFG-4)."""
        native = _native.EffectiveOptions()
        with self._used() as session:
            _check(_library.headwater_session_options(session, _byref(native), ctypes.sizeof(native)))
        values = {name: getattr(native, name) for name, _ in native._fields_ if not name.startswith("reserved")}
        for name, choices in (("select", _native.SELECT), ("score_type", _native.SCORE_TYPES),
                              ("schedule", _native.SCHEDULES)):
            values[name] = {code: text for text, code in choices.items()}[values[name]]
        values["sparse"] = bool(values["sparse"])
        values["kv_owner"] = ("session", "caller")[values["kv_owner"]]
        return values

    @property
    def warnings(self) -> list[str]:
        """What the options were changed to and why, a line each."""
        texts = []
        for index in range(self._number(_library.headwater_warning_count)):
            text = ctypes.c_char_p()
            with self._used() as session:
                _check(_library.headwater_warning(session, index, _byref(text)))
            texts.append(text.value.decode())
        return texts

    def _warn_of_clamp(self, asked, level):
        """Says that memory sets are smaller than the structure `asked` has it (CFG-3), where nobody can ask this session, to the
        caller `level` calls above this one's."""
        used = self.options
        if not asked.dense and (used["local"], used["heavy"]) != (asked.local, asked.heavy):
            for text in self.warnings:
                warnings.warn(text, stacklevel=level + 2)

    @property
    def memory_bytes(self) -> dict[str, int]:
        """Bytes held: a dict of "kv", "scores", "memory_sets", "workspace"."""
        native = _native.MemoryBytes()
        with self._used() as session:
            _check(_library.headwater_session_memory_bytes(session, _byref(native), ctypes.sizeof(native)))
        return native.numbers()

    @property
    def chunks(self) -> list[tuple[int, int, str, int]]:
        """All chunks so far: (begin, end, mode, entries of the memory set), mode "sparse", "dense" or "decode"."""
        chunks = []
        for index in range(self._number(_library.headwater_session_chunk_count)):
            chunk, count = _native.Chunk(), ctypes.c_int64()
            with self._used() as session:
                _check(_library.headwater_session_chunk(session, index, _byref(chunk), _byref(count)))
            chunks.append((chunk.begin, chunk.end, _MODES[chunk.mode], count.value))
        return chunks

    def scores(self, layer: int, head: int) -> list[float]:
        """The scores of all stored tokens for a query head, a list of floats (SCORE)."""
        n = self.tokens
        values = (ctypes.c_float * n)()
        with self._used() as session:
            _check(_library.headwater_copy_scores(session, _options.integer(layer, "layer"),
                                                  _options.integer(head, "head"), 0, n, values))
        return list(values)

    def memory(self, layer: int, head: int) -> list[int]:
        """Positions of the memory set that was built last in a layer for a query head, ascending (MEM-4)."""
        native = _native.MemoryView()
        head = _options.integer(head, "head")
        if not 0 <= head < self._shape.n_head:
            raise ValueError(f"head is {head}; allowed: 0 .. {self._shape.n_head - 1}")
        with self._used() as session:
            _check(_library.headwater_memory(session, _options.integer(layer, "layer"), _byref(native)))
            return [native.data[head * native.head_stride + i] for i in range(native.count)]

    def key(self, layer: int, kv_head: int, position: int) -> list[float]:
        """A stored key row as a list of floats."""
        return self._row(_library.headwater_read_key, 0, layer, kv_head, position)

    def value(self, layer: int, kv_head: int, position: int) -> list[float]:
        """A stored value row as a list of floats."""
        return self._row(_library.headwater_read_value, 1, layer, kv_head, position)

    def _row(self, function, which, layer, kv_head, position):
        layer = _options.integer(layer, "layer")
        width = self._widths_of(layer)[which]
        row = (ctypes.c_float * width)()
        with self._used() as session:
            _check(function(session, layer, _options.integer(kv_head, "kv_head"),
                            _options.integer(position, "position"), row, width))
        return list(row)

    def _widths_of(self, layer):
        """head_dim and value_dim of a layer (LAYER-1)."""
        head_dim, value_dim = self._widths.get(layer, (0, 0))
        return head_dim or self._shape.d_head, value_dim or self._shape.d_value


def _name(engine):
    return None if engine is None else str(engine).encode()


def _lse_view(lse, n, heads, place):
    seen = _arrays.view(lse, "lse", writes=True, place=place)
    if seen.type != _native.F32 or tuple(seen.shape) != (n, heads):
        raise ValueError(f"lse is {_arrays.TYPE_NAMES[seen.type]} {list(seen.shape)}; allowed: float32 [{n}, {heads}]")
    return seen
