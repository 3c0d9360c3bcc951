"""The C ABI of libheadwater-runtime by ctypes: structures, functions, and the exception of each status."""

import ctypes
import pathlib

from . import _native

_I32, _I64, _POINTER, _SIZE, _TEXT = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
_DOUBLE, _INT64S, _OUT = ctypes.c_double, ctypes.POINTER(_I64), ctypes.POINTER(_POINTER)

ABI_VERSION = 1
PROJECTIONS = {"auto": 0, "f32": 1, "bf16": 2, "int8": 3}
CACHE_TYPES = {"auto": 0, "f32": 1, "f16": 2, "bf16": 3, "q8_0": 4}
ROPE_SCALINGS = {"none": 1, "linear": 2, "yarn": 3}
GBNF, JSON_SCHEMA, JSON_OBJECT = 0, 1, 2
CONTROL, END = 1, 2
AFTER_FIRST_CHUNK, ENDS_QUERY_BLOCK = 1, 2

Facts = _native._structure("Facts", [
    *((name, _I64) for name in ("layers", "width", "heads", "heads_kv", "d_head", "d_value", "feed_forward", "vocabulary",
                                "tokens", "context", "bytes")),
    *((name, _I32) for name in ("bos", "eos", "adds_bos", "turn_end", "projections", "reserved"))])
ModelOptions = _native._structure("ModelOptions", [
    ("struct_size", _SIZE), ("projections", _I32), ("rope_scaling", _I32),
    *((name, _DOUBLE) for name in ("rope_scale", "rope_freq_base", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow")),
    ("yarn_orig_ctx", _I64)])
Message = _native._structure("Message", [
    ("role", _TEXT), ("text", _TEXT), ("text_bytes", _I64), ("question", _TEXT), ("question_bytes", _I64)])
ConversationOptions = _native._structure("ConversationOptions", [
    ("struct_size", _SIZE), ("engine", _TEXT), ("attention", ctypes.POINTER(_native.Options)), ("capacity", _I64),
    ("dense_tail", _I64), ("cache_type", _I32), ("reserved", _I32)])
Sampling = _native._structure("Sampling", [
    ("struct_size", _SIZE), ("temperature", _DOUBLE), ("top_k", _I64), ("top_p", _DOUBLE), ("min_p", _DOUBLE),
    ("seed", ctypes.c_uint64)])
Comparison = _native._structure("Comparison", [
    ("loss", _DOUBLE), ("other_loss", _DOUBLE), ("divergence", _DOUBLE), ("same_likeliest", _I32), ("flags", _I32)])

# Those that return a status.
_CALLS = {
    "model_options_init": [ctypes.POINTER(ModelOptions), _SIZE],
    "model_open_with": [_TEXT, ctypes.POINTER(ModelOptions), _OUT],
    "model_describe": [_POINTER, ctypes.POINTER(Facts), _SIZE],
    "tokenize": [_POINTER, _TEXT, _I64, _I32, _I32, _POINTER, _I64, _INT64S],
    "text_losses": [_POINTER, _TEXT, _I64, _INT64S, _INT64S],
    "detokenize": [_POINTER, _POINTER, _I64, _POINTER, _I64, _INT64S],
    "token_piece": [_POINTER, _I32, _POINTER, _I64, _INT64S, ctypes.POINTER(_I32)],
    "chat_encode": [_POINTER, ctypes.POINTER(Message), _I64, _SIZE, _I32, _POINTER, _I64, _INT64S, _INT64S],
    "chat_continue": [_POINTER, ctypes.POINTER(Message), _I64, _SIZE, _POINTER, _I64, _INT64S, _INT64S, ctypes.POINTER(_I32)],
    "model_set_chat_template": [_POINTER, _TEXT, _I64],
    "conversation_options_init": [ctypes.POINTER(ConversationOptions), _SIZE],
    "conversation_open": [_POINTER, ctypes.POINTER(ConversationOptions), _OUT],
    "conversation_set_interrupt": [_POINTER, _POINTER, _POINTER],
    "conversation_set_dense_tail": [_POINTER, _I64],
    "conversation_feed": [_POINTER, _POINTER, _I64],
    "conversation_append": [_POINTER, _I32],
    "conversation_logits": [_POINTER, _OUT, _INT64S],
    "conversation_tokens": [_POINTER, _INT64S],
    "conversation_reset": [_POINTER],
    "conversation_fork": [_POINTER, _OUT],
    "conversation_truncate": [_POINTER, _I64],
    "conversation_session": [_POINTER, _OUT],
    "conversation_losses": [_POINTER, _POINTER, _I64, _I64, _POINTER],
    "conversation_compare": [_POINTER, _POINTER, _POINTER, _I64, _I64, ctypes.POINTER(Comparison)],
    "sampling_init": [ctypes.POINTER(Sampling), _SIZE],
    "sampler_open": [ctypes.POINTER(Sampling), _I64, _OUT],
    "sampler_restrict": [_POINTER, _POINTER, _I32, _TEXT, _I64],
    "sampler_draw": [_POINTER, _POINTER, _I64, ctypes.POINTER(_I32)],
    "sampler_accept": [_POINTER, _I32],
}
_TEXTS = {"runtime_last_error": [], "model_name": [_POINTER], "model_architecture": [_POINTER],
          "model_warnings": [_POINTER]}
_CLOSES = ("model_close", "conversation_close", "sampler_close")


def _load():
    path = _native.runtime_path()
    if path is None:
        raise ImportError(f"{pathlib.Path(_native.library._name).parent}: no libheadwater-runtime.so; allowed: a library that "
                          "was built with the model runtime, or HEADWATER_RUNTIME_LIBRARY=PATH")
    try:
        loaded = ctypes.CDLL(path)
    except OSError as problem:
        raise ImportError(f"{path}: {problem}; allowed: a libheadwater-runtime.so of this machine") from None
    try:
        loaded.headwater_runtime_abi_version.restype = _I32
        version = loaded.headwater_runtime_abi_version()
        if version != ABI_VERSION:
            raise ImportError(f"{path}: ABI version {version}; allowed: {ABI_VERSION}")
        for names, kind in ((_CALLS, _I32), (_TEXTS, _TEXT), (dict.fromkeys(_CLOSES, [_POINTER]), None)):
            for name, arguments in names.items():
                function = getattr(loaded, "headwater_" + name)
                function.argtypes, function.restype = arguments, kind
    except AttributeError as problem:
        raise ImportError(f"{path}: {problem}; allowed: a libheadwater-runtime.so of this version") from None
    return loaded


library = _load()


def error(status):
    """The exception of a status, with the library's line."""
    return _native._ERRORS.get(status, RuntimeError)(library.headwater_runtime_last_error().decode(errors="replace"))


def check(status):
    if status != 0:
        raise error(status)


def initialised(kind, init):
    """A structure with the library's defaults."""
    value = kind()
    check(init(ctypes.byref(value), ctypes.sizeof(value)))
    return value


def of_any_length(element, first, call):
    """What call(array, capacity, count) gives, a list, of characters bytes. `first`: elements that are likely enough."""
    count = _I64()
    while True:
        capacity = max(first, count.value)
        room = (element * capacity)()
        check(call(room, capacity, ctypes.byref(count)))
        if count.value <= capacity:
            return room[:count.value]
