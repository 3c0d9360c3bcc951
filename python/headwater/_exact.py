"""Exact attention by PyTorch alone, where its tensors are: what engine cuda does not offer to headwater.hf."""

import torch

_ROWS = 1024  # most queries of a block
_WINDOW_ROWS = 128  # with a window as many as it has, or this: more would read most of their keys in vain
_MOST = 2**25  # most elements of a block's mask, of its logits, and of keys or values in float32: 128 MB


def attention(q, k, v, out, scale=None, softcap=None, sinks=None, window=0):
    """Causal attention of n queries, those of the last n of N tokens. The host waits for no device.

    q: [.., n, heads, d], k: [.., N, kv_heads, d], v: [.., N, kv_heads, dv], `..` a batch or nothing, of one type: float32,
    float16 or bfloat16, any strides. out: [.., n, heads, dv] of that type, written. scale: of the logits; None: 1 / sqrt(d).
    softcap: logits become softcap tanh(logit / softcap); None or 0: they stay. sinks: None, or a tensor [heads] of logits
    that take weight and give nothing. window: keys that a query sees, itself among them; 0: all.

    The queries of a KV head are rows of one product, so that its keys are copied for none of them. By
    scaled_dot_product_attention; with a cap or sinks, which that has not, by products in float32.
    """
    q, k, v, out = (one.transpose(-3, -2)[None] if one.dim() == 3 else one.transpose(-3, -2) for one in (q, k, v, out))
    batch, heads, n, width = q.shape
    kv_heads, total = k.shape[1:3]
    group = heads // kv_heads
    scale = width**-0.5 if scale is None else scale
    plain = bool(softcap) or sinks is not None
    most = min(_ROWS, max(_WINDOW_ROWS, window)) if window else _ROWS
    keys = min(total, window + most) if window else total
    most = max(1, min(most, _MOST // ((batch * heads if plain else group) * keys)))
    for begin in range(0, n, most):
        rows = min(most, n - begin)
        last = total - n + begin + rows  # keys before it, from `first` on, are seen by one of these rows
        first = max(0, last - rows + 1 - window) if window else 0
        seen = None
        if rows > 1:
            age = torch.arange(last - rows, last, device=q.device)[:, None] - torch.arange(first, last, device=q.device)
            seen = (age >= 0) & (age < window) if window else age >= 0
            seen = seen.repeat(group, 1)
        packed = q[:, :, begin:begin + rows].reshape(batch, kv_heads, group * rows, width)
        block = packed, k[:, :, first:last], v[:, :, first:last]
        if plain:
            sink = None if sinks is None else sinks.float().repeat_interleave(rows).view(kv_heads, group * rows, 1)
            with torch.autocast(q.device.type, enabled=False):
                part = _by_products(*block, seen, scale, softcap, sink)
        else:
            part = torch.nn.functional.scaled_dot_product_attention(*block, attn_mask=seen, scale=scale)
        out[:, :, begin:begin + rows] = part.view(batch, heads, rows, -1)


def _by_products(q, k, v, seen, scale, softcap, sink):
    """sum_j exp(x_j) v_j / (exp(sink) + sum_j exp(x_j)) over the keys j that a row sees, x_j its capped logits: in float32, to
    which a part of the keys is copied at a time."""
    q = q.float() * scale
    size = max(1, _MOST // (k[:, :, 0].numel()))
    x = torch.cat([q @ part.float().mT for part in k.split(size, 2)], 3)
    if softcap:
        x.div_(softcap).tanh_().mul_(softcap)
    if seen is not None:
        x.masked_fill_(~seen, -torch.inf)
    largest = x.amax(3, keepdim=True)
    below = x.sub_(largest).exp_().sum(3, keepdim=True)
    if sink is not None:
        below += (sink - largest).exp_()  # may be inf: all weight is the sink's
    parts = zip(x.split(size, 3), v.split(size, 2))
    return sum(weights @ part.float() for weights, part in parts) / below
