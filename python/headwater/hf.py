"""Hugging Face: attn_implementation="headwater" for causal language models of transformers.

    import headwater.hf
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="headwater")
    headwater.hf.configure(model, chunk=1024, memory=512)

A prompt longer than one chunk is prefilled sparsely, its last tokens (dense_tail) and single tokens are dense; layers with a
sliding window are exact. Keys and values are read where transformers' cache has them, so there is no state of its own:
turns, crop(), beam search and assisted generation work as with any other attention.

On a CUDA device, engine cuda reads prompts, sparse or dense, and by rule blocks long turns after others in the cache. Other
tokens after the first ones and layers with a window are exact there, by PyTorch's own attention. The engine has no rule
sketches: where none is chosen, the rule is blocks (quality "fast").
"""

import re
import sys
import warnings
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

from . import _extras

_extras.need("headwater.hf", "hf", "torch", "transformers")

import torch  # noqa: E402
import transformers  # noqa: E402

from . import _exact, _options  # noqa: E402
from ._attention import attention as _attention  # noqa: E402
from ._session import Session as _Session  # noqa: E402

if sys.version_info >= (3, 11):
    from typing import Unpack
elif TYPE_CHECKING:
    from typing_extensions import Unpack

_OLDEST = (4, 56)
if tuple(map(int, re.findall(r"\d+", transformers.__version__)[:2])) < _OLDEST:
    raise ImportError(f"transformers is {transformers.__version__}; allowed: {'.'.join(map(str, _OLDEST))} or newer, "
                      "which has AttentionMaskInterface")

from transformers import AttentionInterface, AttentionMaskInterface  # noqa: E402
from transformers.masking_utils import causal_mask_function  # noqa: E402

__all__ = ["configuration", "configure"]

# Those of `headwater generate`; the reference has every rule.
_DEFAULTS = {**_options.preset("balanced", b"reference"), "dense": False, "dense_layers": (), "dense_tail": 64,
             "dense_below": 0, "threads": 0, "engine": None}
_DEVICE_DEFAULTS = {**_DEFAULTS, **_options.preset("fast", b"reference")}  # engine cuda has no rule sketches
_NEWEST = _DEFAULTS["local"]  # of `memory` with other rules than h2o
_MORE = ("batch", "clamp", "score_type", "schedule")
_ATTRIBUTE = "headwater_options"  # of every module of a configured model
_PARTS = "headwater_parts"  # of a layer's module: how it was given its latest sequence
# What models hand on to a layer's attention, and what changes nothing there.
_READ_ELSEWHERE = frozenset({
    "cache", "cache_position", "deterministic", "labels", "layer_idx", "logits_to_keep", "num_items_in_batch", "output_hidden_states",
    "output_router_logits", "past_key_value", "past_key_values", "position_embeddings", "position_ids", "return_dict",
    "shift_labels", "use_cache"})
_warned = set()  # kinds of warnings that were given


class _Visible(torch.Tensor):
    """What takes the place of a mask: int64 [batch, 1, 1, 4], for each sequence the key row of its first query, its first key
    row, the row after its last one, and the window (0: none). Of four dimensions, like any mask that is made already. On the
    host, where every layer reads it without waiting for a device."""

    @staticmethod
    def of(rows):
        """rows: int64 [batch, 4]"""
        return rows[:, None, None].as_subclass(_Visible)


def _described(mask_function):
    """(whether it is causal attention with or without a sliding window, the window or 0, a name)"""
    name = getattr(mask_function, "__qualname__", repr(mask_function)).partition(".")[0]
    cells = dict(zip(getattr(getattr(mask_function, "__code__", None), "co_freevars", ()),
                     getattr(mask_function, "__closure__", None) or ()))
    if mask_function is causal_mask_function:
        return True, 0, name
    if getattr(mask_function, "__module__", "") != causal_mask_function.__module__:
        return None, 0, name
    if name == "sliding_window_overlay" and "sliding_window" in cells:
        return False, cells["sliding_window"].cell_contents, name
    if name != "and_masks" or "mask_functions" not in cells:
        return None, 0, name
    parts = [_described(part) for part in cells["mask_functions"].cell_contents]
    unknown = [part for part in parts if part[0] is None]
    windows = [window for _, window, _ in parts if window]
    if unknown or len(windows) > 1:
        return None, 0, " and ".join(part[2] for part in unknown or parts)
    return any(causal for causal, _, _ in parts), sum(windows), name


@torch.compiler.disable
def _mask(batch_size, kv_length, q_length=None, q_offset=0, kv_offset=0, mask_function=causal_mask_function,
          attention_mask=None, cache_position=None, device="cpu", **_):
    """The mask function of transformers' AttentionMaskInterface: a _Visible, or None where nothing is hidden but the future.

    attention_mask: bool [batch, tokens], where there is padding. Errors: NotImplementedError (another pattern than causal
    attention with a sliding window and padding), ValueError (padding between tokens).
    """
    if cache_position is not None:  # transformers 4
        q_length, q_offset = cache_position.shape[0], cache_position[0]
    causal, window, name = _described(mask_function)
    if not causal:
        raise NotImplementedError(f"the mask is {name}; allowed with attn_implementation='headwater': causal attention, with "
                                  "padding and a sliding window")
    first = int(q_offset) - int(kv_offset)
    rows = first + q_length
    if attention_mask is None:
        if rows == kv_length and not window:
            return None
        return _Visible.of(torch.tensor([[first, 0, rows, window]] * batch_size))
    if attention_mask.shape[1] < kv_offset + rows:
        raise ValueError(f"attention_mask has {attention_mask.shape[1]} tokens; allowed: {kv_offset + rows}, those of the "
                         "cache and the new ones")
    seen = attention_mask[:, kv_offset:kv_offset + rows].bool().cpu()
    if rows == kv_length and not window and seen.all():
        return None
    counts = seen.sum(1)
    starts = seen.int().argmax(1)
    ends = torch.where(counts > 0, rows - seen.flip(1).int().argmax(1), starts)
    for index in (ends - starts != counts).nonzero().flatten().tolist():
        raise ValueError(f"attention_mask has padding between tokens of sequence {index}; allowed: before and after them")
    each = torch.stack([torch.full_like(starts, first), starts, ends, torch.full_like(starts, window)], 1)
    return _Visible.of(each)


def _warn_once(kind, text):
    if kind not in _warned:
        _warned.add(kind)
        warnings.warn(text, stacklevel=2)


def _reads_sparse(n, options):
    return not options["dense"] and n > options["chunk"] and n >= options["dense_below"]


def _warn_of_parts(module, n, total, options):
    """A prompt that is read in equal parts of at most a chunk, as prefill_chunk_size does it, has nothing sparse."""
    if not 1 < n <= options["chunk"] or options["dense"]:
        return
    part, so_far = module.__dict__.get(_PARTS, (0, 0))  # of a sequence that was read in such parts alone
    goes_on = so_far == total - n > 0 and (n == part or n < part <= so_far // 2)
    module.__dict__[_PARTS] = (n, total) if total == n else (part, total) if goes_on else (0, 0)
    if goes_on and _reads_sparse(total, options):
        _warn_once("parts", f"a prompt of {total} tokens or more is read in parts of {part}, at most the chunk of "
                            f"{options['chunk']}, so nothing of it is sparse; allowed: prefill_chunk_size above chunk, or none")


def _on_device(tensor):
    return tensor.is_cuda


def _device_of(model):
    """The first CUDA device that holds a parameter of a model, or None."""
    return next((parameter.device for parameter in model.parameters() if _on_device(parameter)), None)


def _autocast(query, key, value):
    """The three as torch.autocast has them, which casts the operands of eager's products and of SDPA."""
    kind = query.device.type
    if not torch.is_autocast_enabled(kind):
        return query, key, value
    dtype = torch.get_autocast_dtype(kind)
    return tuple(tensor if tensor.dtype == torch.float64 else tensor.to(dtype) for tensor in (query, key, value))


def _one(q, k, v, out, window, options, of_layer):
    """Attention of n tokens, the last of N: [.., n, heads, d], [.., N, kv_heads, d], [.., N, kv_heads, dv]."""
    n, total = q.shape[-3], k.shape[-3]
    sparse = not window and _reads_sparse(n, options)
    if sparse and n < total and options["select"] == "h2o":
        _warn_once("h2o", f"{n} tokens after {total - n} in the cache are attended dense: rule 'h2o' keeps scores that the cache "
                          "does not have; select='blocks' and select='sketches' are sparse here")
        sparse = False
    if _on_device(q) and not sparse and (n < total or 0 < window < total):
        _exact.attention(q, k, v, out, of_layer["scale"], of_layer["softcap"], of_layer.get("sinks"), window)
        return
    if "sinks" in of_layer:
        of_layer = {**of_layer, "sinks": of_layer["sinks"].float().tolist()}
    if 0 < window < total:
        # Of these rows, the first query sees the first ones.
        first = max(0, total - n - window + 1)
        k, v = k[..., first:, :, :], v[..., first:, :, :]
        exact = {"dense": True} if n == 1 else {"dense": True, "window": window}
        _attention(q, k, v, out=out, **exact, **of_layer)
        return
    if not sparse:
        _attention(q, k, v, out=out, dense=True, **of_layer)
        return
    sparse_options = {name: value for name, value in options.items() if name not in ("dense", "dense_layers", *of_layer)}
    _attention(q, k, v, out=out, **{**sparse_options, "dense_tail": min(options["dense_tail"], n - 1)}, **of_layer)


def _refuse(what, allowed, kind=NotImplementedError):
    raise kind(f"{what}; allowed with attn_implementation='headwater': {allowed}")


@torch.compiler.disable
def _forward(module, query, key, value, attention_mask, dropout=0.0, scaling=None, sliding_window=None, softcap=None,
             s_aux=None, is_causal=None, output_attentions=None, **others):
    """The attention function of transformers' AttentionInterface.

    query: [batch, heads, n, d], key and value: [batch, kv_heads, N, ..], rows of the cache included, float32, float16 or
    bfloat16, under torch.autocast cast to its type. Returns ([batch, n, heads, dv], None). Errors: NotImplementedError and ValueError by name.
    """
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        _refuse(f"{type(module).__name__} is not causal (is_causal is False)", "causal self-attention")
    if dropout:
        _refuse(f"dropout is {dropout}", "0, as in model.eval()", ValueError)
    if output_attentions or getattr(getattr(module, "config", None), "output_attentions", False):
        _refuse("output_attentions is True", "False; attn_implementation='eager' has the weights")
    for name, what in others.items():
        if what is not None and name not in _READ_ELSEWHERE:
            _refuse(f"{name} is an argument of this layer's attention that is not known", "layers without it")
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value)):
        _refuse("a gradient is asked for, and there is none", "torch.no_grad() or torch.inference_mode()", ValueError)
    query, key, value = _autocast(query, key, value)
    batch, heads, n, _ = query.shape
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    out = query.new_empty((batch, n, heads, value.shape[-1]))
    options = getattr(module, _ATTRIBUTE, _DEVICE_DEFAULTS if _on_device(query) else _DEFAULTS)
    if getattr(module, "layer_idx", None) in options["dense_layers"]:
        options = {**options, "dense": True}
    of_layer = {"scale": scaling, "softcap": softcap, "threads": options["threads"], "engine": options["engine"]}
    if s_aux is not None:
        of_layer["sinks"] = s_aux.detach()
    if attention_mask is None:
        if k.shape[1] < n:
            _refuse(f"{n} queries have {k.shape[1]} keys", "at least as many keys as queries", ValueError)
        if not sliding_window:
            _warn_of_parts(module, n, k.shape[1], options)
        _one(q, k, v, out, sliding_window or 0, options, of_layer)
        return out, None
    if not isinstance(attention_mask, _Visible):
        shape = list(attention_mask.shape) if isinstance(attention_mask, torch.Tensor) else type(attention_mask).__name__
        _refuse(f"the mask is one of its own, {shape}", "a 2-D attention_mask of the model, or none")
    visible = attention_mask[:, 0, 0].tolist()
    if not sliding_window and not visible[0][3]:
        _warn_of_parts(module, n, visible[0][0] + n, options)
    for index, (first, start, end, window) in enumerate(visible):
        if sliding_window and window and sliding_window != window:
            _refuse(f"the layer's window is {sliding_window} and its mask's {window}", "one window", ValueError)
        # Rows of queries that are no padding.
        low = max(start - first, 0)
        high = max(end - first, low)
        out[index, :low].zero_()
        out[index, high:].zero_()
        if low < high:
            _one(q[index, low:high], k[index, start:end], v[index, start:end], out[index, low:high],
                 window or sliding_window or 0, options, of_layer)
    return out, None


def _layers_of(model):
    config = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return getattr(text, "num_hidden_layers", None) or 1


def configure(model: torch.nn.Module, *, quality: Literal["fast", "balanced", "exact"] | None = None,
              memory: SupportsIndex | None = None, **options: "Unpack[_options.ConfigureOptions]") -> dict[str, Any]:
    """How the layers of a model attend, instead of what was configured before; without options the defaults.

    quality: "fast", "balanced" (the default) or "exact", which is dense: what is not said otherwise (docs/quality.md). For a
    model on a CUDA device the default is "fast" where select is not said either: engine cuda has no rule sketches.
    options: select ("sketches"; "blocks" with quality "fast"; or "h2o"), chunk (1024), local (32) and heavy (480), or memory, both together: two
    halves with "h2o", else 32 newest and the rest; pinned (8: first tokens that every set keeps; 0 with "h2o");
    dense (False; True: exact attention everywhere), dense_layers (numbers of layers), dense_tail (64: so many tokens at the
    end of a sparse prompt see everything), dense_below (prompts of fewer tokens are dense), threads (0: all), engine, and
    batch, key_block, query_block, pool, refine, least_weight, clamp, score_type, schedule, as in headwater.Session. None is the default.
    They are kept on the model's modules, not in its config. They are checked for the device where the model is, and its
    defaults are taken: move a model first.
    Memory sets that do not fit into a chunk are clamped, with a warning (CFG-3); a model with another attention is one, too.
    Returns configuration(model). Errors: ValueError, TypeError and RuntimeError at once, as of headwater.Session.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; allowed: a model of transformers")
    for name in options:
        if name not in _DEFAULTS and name not in _MORE:
            raise TypeError(f"option {name!r} is not known; allowed: quality, memory, {', '.join((*_DEFAULTS, *_MORE))}")
    if getattr(getattr(model, "config", None), "_attn_implementation", "headwater") != "headwater":
        warnings.warn(f"the model's attention is {model.config._attn_implementation!r}, which reads none of these options; "
                      "allowed: attn_implementation='headwater', or model.set_attn_implementation('headwater')", stacklevel=2)
    given = {name: value for name, value in options.items() if value is not None}
    device = _device_of(model)
    if quality is None:
        quality = "balanced" if device is None or "select" in given else "fast"
    own = {**(_DEFAULTS if device is None else _DEVICE_DEFAULTS), **_options.preset(quality, b"reference"), **given}
    _options.check_sizes_of_rule(own, given)
    if memory is not None:
        if any(options.get(name) is not None for name in ("local", "heavy")):
            raise ValueError("memory is local and heavy together; allowed: memory, or local and heavy")
        memory = _options.integer(memory, "memory")
        own["local"] = memory // 2 if own["select"] == "h2o" else min(_NEWEST, memory)
        own["heavy"] = memory - own["local"]
        block = _options.integer(own["key_block"], "key_block")
        if own["select"] == "blocks" and block > 0 and own["heavy"] % block:
            least = memory - own["heavy"] % block
            raise ValueError(f"memory is {memory}, of which heavy has {own['heavy']}, no multiple of key_block {block}; "
                             f"allowed: {least}, {least + block} and other multiples above {own['local']}")
    _options.fit_pinned(own, given)
    own["dense_tail"] = _options.integer(own["dense_tail"], "dense_tail")
    if own["dense_tail"] < 0:
        raise ValueError(f"dense_tail is {own['dense_tail']}; allowed: 0 or more")
    own["dense_layers"] = tuple(sorted(_options.integers(own["dense_layers"], "dense_layers")))
    with _Session(layers=_layers_of(model), heads=1, head_dim=1, capacity=1, device=device,
                  **{name: value for name, value in own.items() if name != "dense_tail"}) as session:
        used = session.options
        if not own["dense"] and (used["local"], used["heavy"]) != (own["local"], own["heavy"]):
            for text in session.warnings:
                warnings.warn(text, stacklevel=2)
            own.update((name, used[name]) for name in ("local", "heavy", "pinned") if name in own)
    for module in model.modules():
        setattr(module, _ATTRIBUTE, own)
    return configuration(model)


def configuration(model: torch.nn.Module) -> dict[str, Any]:
    """The options of configure() that hold for a model, a dict."""
    return dict(getattr(model, _ATTRIBUTE, _DEFAULTS if _device_of(model) is None else _DEVICE_DEFAULTS))


AttentionInterface.register("headwater", _forward)
AttentionMaskInterface.register("headwater", _mask)
