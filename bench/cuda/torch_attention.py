"""Times PyTorch's causal attention by CUDA events: torch_attention.py [--probe]

Prints JSON: "milliseconds" {case: median} for cuDNN's and FlashAttention's kernels where this PyTorch has them, on the shapes
of headwater-cuda-bench: 32 heads, 8 key-value heads, 128 elements, BF16; "left_out" {case: reason}. --probe: exit status 0
if it could.
"""

import json
import statistics
import sys

HEADS, HEADS_KV, WIDTH = 32, 8, 128
# (sequences, tokens): chunks of 1024 side by side, and dense prompts.
CASES = ((16, 1024), (1, 4096), (1, 16384), (1, 131072))
WARM, TIMED = 2, 7


def load():
    try:
        import torch
        from torch.nn.attention import SDPBackend
    except ImportError as error:
        sys.exit(f"PyTorch is not there: {error}")
    if not torch.cuda.is_available():
        sys.exit("PyTorch sees no CUDA device")
    return torch, {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def milliseconds(torch, call):
    for _ in range(WARM):
        call()
    times = []
    for _ in range(TIMED):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def main():
    torch, backends = load()
    if "--probe" in sys.argv[1:]:
        return
    attention = torch.nn.functional.scaled_dot_product_attention
    results, left_out = {}, {}
    for sequences, tokens in CASES:
        for name, backend in backends.items():
            case = f"{name} {sequences} x {tokens}"
            try:
                q, k, v = (torch.randn((sequences, heads, tokens, WIDTH), device="cuda", dtype=torch.bfloat16)
                           for heads in (HEADS, HEADS_KV, HEADS_KV))
                with torch.nn.attention.sdpa_kernel(backend):
                    results[case] = milliseconds(torch, lambda: attention(q, k, v, is_causal=True, enable_gqa=True))
            except RuntimeError as error:  # no such kernel, or no memory for it
                left_out[case] = (str(error).splitlines() or ["no reason given"])[0]
    print(json.dumps({"milliseconds": results, "left_out": left_out}))


main()
