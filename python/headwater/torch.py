"""attention() as an operator of PyTorch, `headwater::attention`: torch.compile takes it as one node, without a graph break.

    from headwater.torch import attention
    out = attention(q, k, v, chunk=1024, local=256, heavy=256)
"""

import sys
from typing import TYPE_CHECKING

from . import _extras

_extras.need("headwater.torch", "torch", "torch")

import torch  # noqa: E402

from . import _options  # noqa: E402
from ._attention import attention as _attention  # noqa: E402

if sys.version_info >= (3, 11):
    from typing import Unpack
elif TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["attention"]

# Of the schema, of a value, and in words. A bool is no number here, as in _options.
_KINDS = {"int": (int, "an integer"), "bool": (bool, "True, False"), "float": ((int, float), "a number"),
          "str": (str, "a string"), "float[]": ((list, tuple), "a list of numbers")}
_ARGUMENTS = {"layout": "str", "dense_tail": "int", "engine": "str", "window": "int",
              **dict.fromkeys(_options.REALS, "float"), **dict.fromkeys(_options.NUMBERS, "int"),
              **dict.fromkeys(_options.FLAGS, "bool"), **dict.fromkeys(_options.PER_HEAD, "float[]"), **dict.fromkeys(_options.CHOICES, "str")}


def _compute(q, k, v, **options):
    return _attention(q, k, v, **{name: value for name, value in options.items() if value is not None}).contiguous()


def _fake(q, k, v, **_):
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


_SCHEMA = ", ".join(f"{kind}? {name}=None" for name, kind in _ARGUMENTS.items())
_operator = torch.library.custom_op("headwater::attention", _compute, mutates_args=(),
                                    schema=f"(Tensor q, Tensor k, Tensor v, *, {_SCHEMA}) -> Tensor")
_operator.register_fake(_fake)


def _refuse_gradient(ctx, inputs, keyword_only_inputs, output):
    raise ValueError("q, k or v requires a gradient, and there is none; allowed: tensor.detach(), or torch.no_grad()")


_operator.register_autograd(lambda ctx, gradient: (None, None, None), setup_context=_refuse_gradient)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: "Unpack[_options.TorchOptions]") -> torch.Tensor:
    """headwater.attention() of tensors, on the CPU or a CUDA device, as the operator torch.ops.headwater.attention.

    q, k, v, shapes, dtypes and options: those of headwater.attention(), `out` excepted; options are plain integers,
    numbers, strings and lists, and None is the default. Returns a new contiguous tensor of q's dtype. There is no gradient:
    a tensor that requires one is refused. Errors: as of headwater.attention().
    """
    for name, value in (("q", q), ("k", k), ("v", v)):
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} is a {type(value).__name__}; allowed: a PyTorch tensor")
    for name, value in options.items():
        if name not in _ARGUMENTS:
            raise TypeError(f"option {name!r} is not known; allowed: {', '.join(_ARGUMENTS)}")
        kind, allowed = _KINDS[_ARGUMENTS[name]]
        if value is None:
            continue
        if not isinstance(value, kind) or isinstance(value, bool) and kind is not bool:
            raise TypeError(f"{name} is {value!r}; allowed: {allowed}")
        if kind is int:
            _options.integer(value, name)
        elif kind == (list, tuple) and not all(isinstance(number, (int, float)) for number in value):
            raise TypeError(f"{name} is {value!r}; allowed: {allowed}")
    return _operator(q, k, v, **options)
