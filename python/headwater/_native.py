"""The C ABI of libheadwater by ctypes: structures, functions, and the exception of each status.

ctypes releases the interpreter's lock around every call.
"""

import ctypes
import os
import pathlib

_DOUBLE, _FLOATS, _I32, _I64 = ctypes.c_double, ctypes.POINTER(ctypes.c_float), ctypes.c_int32, ctypes.c_int64
_INT64S, _POINTER, _SIZE, _TEXT = ctypes.POINTER(ctypes.c_int64), ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p

ABI_VERSION = 1
F32, F16, BF16 = 0, 1, 2
SELECT = {"h2o": 0, "blocks": 1, "sketches": 2}
QUALITIES = {"fast": 0, "balanced": 1, "exact": 2}
SCORE_TYPES = {"bf16": 0, "f32": 1}
SCHEDULES = {"layer_major": 0, "chunk_major": 1}
OF_SESSION, OF_CALLER = 0, 1
DEVICE_MEMORY = 1

Interrupt = ctypes.CFUNCTYPE(_I32, _POINTER)


def _structure(name, fields):
    return type(name, (ctypes.Structure,), {"_fields_": fields})


Shape = _structure("Shape", [
    ("n_layer", _I64), ("n_head", _I64), ("n_head_kv", _I64), ("d_head", _I64), ("d_value", _I64),
    ("capacity", _I64), ("kv_type", _I32), ("reserved", _I32)])
LayerOptions = _structure("LayerOptions", [
    ("window", _I64), ("scale", _DOUBLE), ("softcap", _DOUBLE), ("sinks", _FLOATS),
    ("d_head", _I64), ("d_value", _I64)])
# Numbers that options and effective options have side by side.
_PLAN = [(name, _I64) for name in ("batch", "chunk", "local", "heavy")]
_RULE = [(name, _I64) for name in ("key_block", "query_block", "pool", "refine", "pinned", "dense_below")]
Options = _structure("Options", [
    ("struct_size", _SIZE), *_PLAN, ("clamp", _I32), ("dense", _I32), ("scale", _DOUBLE), ("softcap", _DOUBLE),
    ("sinks", _FLOATS), ("alibi", _FLOATS), ("score_type", _I32), ("schedule", _I32), ("threads", _I32), ("reserved", _I32),
    ("row_memory", _I32), ("reserved2", _I32), ("stream", _POINTER), ("device_plus_1", _I32), ("reserved3", _I32),
    ("select", _I32), ("reserved4", _I32), *_RULE, ("dense_layers", _INT64S), ("dense_layer_count", _I64),
    ("checkpoints", _I64), ("parallel_for", _POINTER), ("parallel_context", _POINTER), ("kv_owner", _I32),
    ("reserved5", _I32), ("layers", ctypes.POINTER(LayerOptions)), ("layer_count", _I64), ("layer_size", _SIZE),
    ("page", _I64), ("allocate", _POINTER), ("release", _POINTER), ("allocator_context", _POINTER),
    ("least_weight", _DOUBLE), ("kv_bits", _I64)])
EffectiveOptions = _structure("EffectiveOptions", [
    *_PLAN, ("scale", _DOUBLE), ("softcap", _DOUBLE), ("sparse", _I32), ("score_type", _I32), ("schedule", _I32),
    ("threads", _I32), ("select", _I32), ("reserved", _I32), *_RULE, ("checkpoints", _I64), ("kv_owner", _I32),
    ("reserved2", _I32), ("page", _I64), ("least_weight", _DOUBLE), ("kv_bits", _I64)])
Rows = _structure("Rows", [
    ("data", _POINTER), ("row_stride", _I64), ("head_stride", _I64), ("type", _I32), ("reserved", _I32)])
LseOutput = _structure("LseOutput", [("data", _POINTER), ("row_stride", _I64), ("head_stride", _I64)])
StoredRows = _structure("StoredRows", [
    ("struct_size", _SIZE), ("keys", _POINTER), ("values", _POINTER), ("rows", _I64), ("key_row_stride", _I64),
    ("key_head_stride", _I64), ("value_row_stride", _I64), ("value_head_stride", _I64), ("table", _POINTER),
    ("table_size", _I64), ("page_rows", _I64), ("pages", _I64), ("key_page_stride", _I64),
    ("value_page_stride", _I64)])


class MemoryBytes(ctypes.Structure):
    _fields_ = [("kv", _I64), ("scores", _I64), ("memory_sets", _I64), ("workspace", _I64)]

    def numbers(self):
        return {name: getattr(self, name) for name, _ in self._fields_}


Chunk = _structure("Chunk", [("begin", _I64), ("end", _I64), ("mode", _I32), ("reserved", _I32)])
MemoryView = _structure("MemoryView", [
    ("data", ctypes.POINTER(_I32)), ("head_stride", _I64), ("width", _I64), ("count", _I64)])

_ROWS, _OUT = ctypes.POINTER(Rows), ctypes.POINTER(_POINTER)
# Those that return a status. "Q" is an opaque session.
_CALLS = {
    "options_init": [ctypes.POINTER(Options), _SIZE],
    "options_preset": [_TEXT, _I32, ctypes.POINTER(Options), _SIZE],
    "open": [_TEXT, ctypes.POINTER(Shape), ctypes.POINTER(Options), _OUT],
    "estimate": [_TEXT, ctypes.POINTER(Shape), ctypes.POINTER(Options), ctypes.POINTER(MemoryBytes),
                 ctypes.POINTER(MemoryBytes), _SIZE],
    "begin_prefill": [_POINTER, _I64, _I64],
    "begin_decode": [_POINTER, _I64],
    "attend": [_POINTER, _I64, _ROWS, _ROWS, _ROWS, _ROWS],
    "attend_lse": [_POINTER, _I64, _ROWS, _ROWS, _ROWS, _ROWS, ctypes.POINTER(LseOutput)],
    "attend_stored": [_POINTER, _I64, _ROWS, ctypes.POINTER(StoredRows), _ROWS, ctypes.POINTER(LseOutput)],
    "end": [_POINTER],
    "reset": [_POINTER],
    "abort": [_POINTER],
    "truncate": [_POINTER, _I64],
    "fork": [_POINTER, _OUT],
    "save": [_POINTER, _TEXT, _TEXT],
    "load": [_TEXT, ctypes.POINTER(Shape), ctypes.POINTER(Options), _TEXT, _TEXT, _OUT],
    "session_state": [_POINTER, ctypes.POINTER(_I32)],
    "session_failed": [_POINTER, ctypes.POINTER(_I32)],
    "session_tokens": [_POINTER, _INT64S],
    "session_options": [_POINTER, ctypes.POINTER(EffectiveOptions), _SIZE],
    "warning_count": [_POINTER, _INT64S],
    "warning": [_POINTER, _I64, ctypes.POINTER(_TEXT)],
    "session_memory_bytes": [_POINTER, ctypes.POINTER(MemoryBytes), _SIZE],
    "session_chunk_count": [_POINTER, _INT64S],
    "session_chunk": [_POINTER, _I64, ctypes.POINTER(Chunk), _INT64S],
    "copy_scores": [_POINTER, _I64, _I64, _I64, _I64, _POINTER],
    "memory": [_POINTER, _I64, ctypes.POINTER(MemoryView)],
    "read_key": [_POINTER, _I64, _I64, _I64, _POINTER, _I64],
    "read_value": [_POINTER, _I64, _I64, _I64, _POINTER, _I64],
    "set_interrupt": [_POINTER, _POINTER, _POINTER],
}
_TEXTS = {"version": [], "last_error": [], "engine_name": [_I32], "engine_isa": [_I32], "engine_description": [_I32],
          "engine_unavailable_because": [_I32]}

ENGINE_UNAVAILABLE, INTERRUPTED = 4, 7
_ERRORS = {1: ValueError, 2: RuntimeError, 3: ValueError, 4: RuntimeError, 5: MemoryError, 6: RuntimeError,
           7: RuntimeError, 8: NotImplementedError}


def _path():
    """The library of the package, in lib/; HEADWATER_LIBRARY names another one."""
    named = os.environ.get("HEADWATER_LIBRARY")
    if named:
        return named
    folder = pathlib.Path(__file__).parent / "lib"
    found = sorted(folder.glob("libheadwater.so*"))
    if not found:
        raise ImportError(f"{folder}: no libheadwater.so; allowed: an installed wheel, or "
                          "HEADWATER_LIBRARY=PATH of a built one")
    return str(found[0])


def runtime_path():
    """The model runtime's library, beside the other one; HEADWATER_RUNTIME_LIBRARY names another. None: there is none."""
    named = os.environ.get("HEADWATER_RUNTIME_LIBRARY")
    if named:
        return named
    found = sorted(pathlib.Path(library._name).parent.glob("libheadwater-runtime.so*"))
    return str(found[0]) if found else None


def _load():
    path = _path()
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"{path}: {error}; allowed: a libheadwater.so of this machine") from None
    try:
        library.headwater_abi_version.restype = _I32
        version = library.headwater_abi_version()
        if version != ABI_VERSION:
            raise ImportError(f"{path}: ABI version {version}; allowed: {ABI_VERSION}")
        for name, arguments in _CALLS.items():
            function = getattr(library, "headwater_" + name)
            function.argtypes, function.restype = arguments, _I32
        for name, arguments in _TEXTS.items():
            function = getattr(library, "headwater_" + name)
            function.argtypes, function.restype = arguments, _TEXT
        library.headwater_close.argtypes, library.headwater_close.restype = [_POINTER], None
        library.headwater_engine_count.restype = _I32
    except AttributeError as error:
        raise ImportError(f"{path}: {error}; allowed: a libheadwater.so of this version") from None
    return library


library = _load()
_process = os.getpid()


def error(status):
    """The exception of a status, with the library's line."""
    return _ERRORS.get(status, RuntimeError)(library.headwater_last_error().decode())


def check(status):
    if status != 0:
        raise error(status)


def default_options():
    options = Options()
    check(library.headwater_options_init(ctypes.byref(options), ctypes.sizeof(options)))
    return options


class Owner:
    """What owns something of the library: a copy would use it after its owner gave it back."""

    _instead = "one"  # what is allowed in place of a copy

    def __reduce_ex__(self, protocol):  # of copy.copy(), copy.deepcopy() and pickle
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled; allowed: {self._instead}")


def preset(engine, quality):
    """The Options of a quality's code. engine: a name as bytes, or None for the default one."""
    options = Options()
    check(library.headwater_options_preset(engine, quality, ctypes.byref(options), ctypes.sizeof(options)))
    return options


def in_child():
    """Whether this process is a child that os.fork() made after the import: the library's threads are not in it."""
    return os.getpid() != _process
