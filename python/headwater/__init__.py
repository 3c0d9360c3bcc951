"""Headwater: chunked sparse prefill attention, dense decode.

    import headwater
    out = headwater.attention(q, k, v, chunk=1024, local=256, heavy=256)
    print("".join(headwater.Model("model.gguf").generate("Once upon a time")))
"""

from typing import TYPE_CHECKING, Any

from . import _native
from ._attention import attention
from ._session import Session

if TYPE_CHECKING:
    from ._model import Chat, Conversation, Model

__all__ = ["Chat", "Conversation", "Model", "Session", "attention", "engines", "info"]
__version__: str = _native.library.headwater_version().decode()

_OF_THE_RUNTIME = ("Chat", "Conversation", "Model")  # whose library is loaded when one of them is asked for
if _native.runtime_path() is None:  # a build without the model runtime: `from headwater import *` works there, too
    __all__ = [name for name in __all__ if name not in _OF_THE_RUNTIME]

if not TYPE_CHECKING:  # it would make any name of the module a good one
    def __getattr__(name):
        if name in _OF_THE_RUNTIME:
            from . import _model
            return getattr(_model, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return [*globals(), *_OF_THE_RUNTIME]


def engines() -> list[dict[str, str]]:
    """A dict for each engine: name, isa, description, and why this machine cannot run it ("" where it can)."""
    library = _native.library
    texts = {"name": library.headwater_engine_name, "isa": library.headwater_engine_isa,
             "description": library.headwater_engine_description,
             "unavailable_because": library.headwater_engine_unavailable_because}
    return [{key: text(index).decode() for key, text in texts.items()} for index in range(library.headwater_engine_count())]


def info() -> dict[str, Any]:
    """Version of the library, the engine that is used where none is named, its ISA, and all engines."""
    import os
    all_engines = engines()
    chosen = os.environ.get("HEADWATER_ENGINE") or "cpu"
    isa = next((engine["isa"] for engine in all_engines if engine["name"] == chosen), "")
    return {"version": __version__, "engine": chosen, "isa": isa, "library": _native.library._name, "engines": all_engines}
