"""generate() of a Llama with random weights: attn_implementation="headwater" beside "sdpa" in one run, on the CPU.

    HEADWATER_LIBRARY=... PYTHONPATH=python python3 bench/python/compare.py [--tokens 8192] [--threads 2] ...

Prints the time to the first token and its parts (attention, masks, everything else), processor time of attention, which
other programs disturb less, the mean time of a decoded token, and what a Python call of attention() takes
beside its calls of the C ABI. The implementations take turns; medians.
"""

import argparse
import statistics
import time

import torch
import transformers
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import headwater.hf


class Clock:
    """Seconds spent in functions of an interface of transformers, and processor seconds of all threads in them."""

    def __init__(self, interface, names):
        self.seconds = self.processor = 0.0
        for name in names:
            interface.register(name, self._timed(interface[name]))

    def _timed(self, function):
        def timed(*arguments, **keywords):
            begin, processor = time.perf_counter(), time.process_time()
            result = function(*arguments, **keywords)
            self.seconds += time.perf_counter() - begin
            self.processor += time.process_time() - processor
            return result
        return timed

    def reset(self):
        self.seconds = self.processor = 0.0


def llama(arguments):
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=32000, hidden_size=arguments.width, intermediate_size=arguments.width * 11 // 4,
        num_hidden_layers=arguments.layers, num_attention_heads=arguments.heads, num_key_value_heads=arguments.kv_heads,
        head_dim=arguments.head_dim, max_position_embeddings=arguments.tokens + arguments.new)
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()


class Times:
    """A streamer of generate(): when each token came, and what the clocks said at the first one."""

    def __init__(self, *clocks):
        self.clocks, self.parts, self.times = clocks, None, []

    def put(self, _):
        self.times.append(time.perf_counter())
        if len(self.times) == 2:  # the first call hands over the prompt
            self.parts = [*(clock.seconds for clock in self.clocks), self.clocks[0].processor]

    def end(self):
        pass


def measure(model, implementation, prompt, new, attention, masks):
    """(seconds to the first token, of these attention, of these masks, processor seconds of attention, seconds of a later
    token)"""
    model.set_attn_implementation(implementation)
    attention.reset()
    masks.reset()
    times = Times(attention, masks)
    begin = time.perf_counter()
    model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=1 + new, streamer=times,
                   eos_token_id=None, pad_token_id=0)
    first, *later = times.times[1:]
    return first - begin, *times.parts, (later[-1] - first) / len(later) if later else 0.0


def overhead(of_tensor, calls=2000):
    """Microseconds of attention() for one token after 15, and of its calls of the C ABI alone, by ctypes. of_tensor: makes
    the kind of arrays that it is called with."""
    from headwater import _attention
    q, k, v, out = (of_tensor(torch.randn(sizes)) for sizes in ((1, 4, 64), (16, 2, 64), (16, 2, 64), (1, 4, 64)))
    inner = []

    class Timed:
        """The library, whose functions say how long they take."""

        def __getattr__(self, name):
            function = getattr(library, name)

            def timed(*arguments):
                begin = time.perf_counter()
                result = function(*arguments)
                inner.append(time.perf_counter() - begin)
                return result
            setattr(self, name, timed)
            return timed

    def microseconds():
        times = []
        for _ in range(calls):
            begin = time.perf_counter()
            headwater.attention(q, k, v, out=out, dense=True, threads=1)
            times.append(time.perf_counter() - begin)
        return 1e6 * statistics.median(times)

    microseconds()
    whole = microseconds()
    library, _attention._library = _attention._library, Timed()
    try:
        microseconds()
        inner.clear()
        microseconds()
    finally:
        _attention._library = library
    return whole, 1e6 * sum(sorted(inner)[:int(0.98 * len(inner))]) / (0.98 * calls)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, value in (("tokens", 8192), ("new", 8), ("width", 1024), ("layers", 8), ("heads", 8), ("kv-heads", 4),
                        ("head-dim", 128), ("threads", 2), ("runs", 3), ("chunk", 1024), ("memory", 512)):
        parser.add_argument(f"--{name}", type=int, default=value, help=f"({value})")
    parser.add_argument("--select", choices=("blocks", "h2o"), default="blocks")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers.logging.set_verbosity_error()
    model = llama(arguments)
    model.set_attn_implementation("headwater")
    headwater.hf.configure(model, select=arguments.select, chunk=arguments.chunk, memory=arguments.memory,
                           threads=arguments.threads)
    names = ("sdpa", "headwater")
    attention, masks = Clock(ALL_ATTENTION_FUNCTIONS, names), Clock(ALL_MASK_ATTENTION_FUNCTIONS, names)
    prompt = torch.randint(0, 32000, (1, arguments.tokens))
    print(f"Llama, width {arguments.width}, {arguments.layers} layers, {arguments.heads} heads and {arguments.kv_heads} "
          f"key/value heads of {arguments.head_dim}, bfloat16, {arguments.tokens} tokens, {arguments.threads} threads, "
          f"{headwater.hf.configuration(model)}")
    for name in names:
        measure(model, name, prompt[:, :256], 0, attention, masks)
    runs = {name: [] for name in names}
    for _ in range(arguments.runs):
        for name in names:
            runs[name].append(measure(model, name, prompt, arguments.new, attention, masks))
    print(f"{'':<12}{'first token':>12}{'attention':>11}{'masks':>9}{'rest':>10}{'attention, processor':>22}{'a later token':>15}")
    times = {name: [statistics.median(values) for values in zip(*runs[name])] for name in names}
    for name, (first, share, mask, processor, later) in times.items():
        print(f"{name:<12}{first:>10.2f} s{share:>9.2f} s{mask:>7.3f} s{first - share - mask:>8.2f} s{processor:>20.2f} s"
              f"{1e3 * later:>12.1f} ms")
    print("attention: {:.1f} times less, in processor time {:.1f} times".format(
        *(times["sdpa"][index] / times["headwater"][index] for index in (1, 3))))
    for name, of_tensor in (("tensors", torch.Tensor.contiguous), ("NumPy's arrays", torch.Tensor.numpy)):
        whole, alone = overhead(of_tensor)
        print(f"attention() of one token after 15, {name}: {whole:.1f} us, its calls of the C ABI {alone:.1f} us")


if __name__ == "__main__":
    main()
