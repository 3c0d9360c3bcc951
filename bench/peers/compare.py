"""Headwater, PyTorch and llama.cpp on the same rows in one process, taking turns: VENV/bin/python compare.py --help

One layer, causal, random rows. A round runs every contender once, in an order that turns; what is compared are ratios
within a round, as medians; on one thread ratios of processor times, which other work on the machine does not move. Each
contender's output is compared with attention in float64 on sampled rows first (the
sparse run under its own memory sets), so that all are timed on the same work; the conformance kit checks rounding.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import sys
import time

import numpy as np

import headwater

HEADS, HEADS_KV = 16, 8
SAMPLES = 6
# Relative to sum w |v|: an error that a wrong mask, scale or head would exceed by far.
TOLERANCE = {"f32": 2.0**-16, "bf16": 2.0**-5}


def bf16_bits(values):
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def bf16_values(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


class Problem:
    """Rows [tokens, heads, width] as float32 values that the type holds exactly, and as stored."""

    def __init__(self, tokens, width, dtype, seed=1):
        random = np.random.default_rng(seed)
        self.tokens, self.width, self.dtype = tokens, width, dtype
        self.values, self.stored = {}, {}
        for name, heads, deviation in (("q", HEADS, 2.0), ("k", HEADS_KV, 1.0), ("v", HEADS_KV, 1.0)):
            rows = random.standard_normal((tokens, heads, width), dtype=np.float32) * np.float32(deviation)
            stored = rows if dtype == "f32" else bf16_bits(rows)
            self.stored[name] = stored
            self.values[name] = rows if dtype == "f32" else bf16_values(stored)

    def row(self, token, head, keys):
        """(output row, sum w |v|) in float64 over these keys."""
        q, k, v = (self.values[name] for name in "qkv")
        group = head * HEADS_KV // HEADS
        logits = k[keys, group].astype(np.float64) @ q[token, head].astype(np.float64) / np.sqrt(self.width)
        weights = np.exp(logits - logits.max())
        weights /= weights.sum()
        chosen = v[keys, group].astype(np.float64)
        return weights @ chosen, weights @ np.abs(chosen)

    def require(self, name, out, keys_of, tolerance):
        """Compares sampled rows of out [tokens, heads, width]."""
        random = np.random.default_rng(7)
        samples = [(self.tokens - 1, HEADS - 1), (0, 0)]
        samples += [(int(random.integers(self.tokens)), int(random.integers(HEADS))) for _ in range(SAMPLES)]
        for token, head in samples:
            wanted, size = self.row(token, head, keys_of(token, head))
            error = np.abs(out[token, head].astype(np.float64) - wanted)
            if not (error <= tolerance * size).all():
                raise RuntimeError(f"{name}: token {token} head {head} is wrong by {error.max():.3g}")


class Headwater:
    def __init__(self, library, engine, problem, threads, dense):
        self.name = "headwater dense" if dense else "headwater sparse"
        self.problem = problem
        kind = headwater.F32 if problem.dtype == "f32" else headwater.BF16
        self.session = headwater.Session(library, engine, problem.tokens, HEADS, HEADS_KV, problem.width, kind, threads,
                                         dense)
        self.out = np.empty_like(problem.stored["q"])
        self.addresses = [problem.stored[name].ctypes.data for name in "qkv"] + [self.out.ctypes.data]

    def check(self):
        chunks = self.session.observed_prefill(*self.addresses)

        def keys_of(token, head):
            begin, _, dense, sets = next(chunk for chunk in chunks if chunk[0] <= token < chunk[1])
            own = np.arange(0 if dense else begin, token + 1)
            return own if dense else np.concatenate([np.array(sets[head], dtype=np.int64), own])

        out = self.out if self.problem.dtype == "f32" else bf16_values(self.out)
        self.problem.require(self.name, out, keys_of, TOLERANCE[self.problem.dtype])

    def run(self):
        self.session.prefill(*self.addresses)

    def close(self):
        self.session.close()


class Torch:
    """scaled_dot_product_attention, causal, in the fastest of the layouts that a caller could have."""

    LAYOUTS = ("head-major", "token-major", "head-major, K and V repeated")

    def __init__(self, torch, problem, threads, layout):
        self.torch, self.problem, self.layout, self.name = torch, problem, layout, "PyTorch"
        torch.set_num_threads(threads)
        self.threads = threads
        kind = torch.float32 if problem.dtype == "f32" else torch.bfloat16
        rows = [torch.from_numpy(problem.values[name]).to(kind)[None].transpose(1, 2) for name in "qkv"]  # [1, H, N, d]
        if layout != "token-major":
            rows = [x.contiguous() for x in rows]
        self.gqa = "repeated" not in layout
        if not self.gqa:
            rows = [rows[0]] + [x.repeat_interleave(HEADS // HEADS_KV, dim=1) for x in rows[1:]]
        self.rows, self.out = rows, None

    def run(self):
        with self.torch.inference_mode():
            self.out = self.torch.nn.functional.scaled_dot_product_attention(*self.rows, is_causal=True,
                                                                             enable_gqa=self.gqa)

    def check(self):
        self.run()
        out = self.out[0].transpose(0, 1).float().numpy()
        self.problem.require(self.name, out, lambda token, _: np.arange(token + 1), TOLERANCE[self.problem.dtype])

    def close(self):
        self.rows, self.out = None, None


class Ggml:
    def __init__(self, module, library, problem, threads):
        self.problem, self.name = problem, "llama.cpp F16"
        self.attention = module.Attention(library, *(problem.values[name] for name in "qkv"), threads)

    def check(self):
        self.run()
        # K, V and sums of F16: judged as 16-bit arithmetic whatever the type of the rows.
        self.problem.require(self.name, self.attention.output(), lambda token, _: np.arange(token + 1),
                             TOLERANCE["bf16"])

    def run(self):
        self.attention.run()

    def close(self):
        self.attention.close()


def seconds(contender):
    """(by the wall, of processor time)"""
    begin, cpu = time.perf_counter(), time.process_time()
    contender.run()
    return time.perf_counter() - begin, time.process_time() - cpu


def best_layout(torch, dtype, width, threads):
    problem = Problem(1024, width, dtype)
    times = {}
    for layout in Torch.LAYOUTS:
        contender = Torch(torch, problem, threads, layout)
        contender.check()
        times[layout] = min(seconds(contender)[1] for _ in range(3))
    return min(times, key=times.get)


def measure(contenders, rounds, budget):
    """{name: [(wall, processor) seconds of each round]}; ends early, after a whole round, where the budget of seconds is spent."""
    times = {contender.name: [] for contender in contenders}
    begin = time.perf_counter()
    for number in range(rounds):
        turn = number % len(contenders)
        for contender in contenders[turn:] + contenders[:turn]:
            times[contender.name].append(seconds(contender))
        if time.perf_counter() - begin > budget:
            break
    return times


def numbers(allowed_low, allowed_high):
    def parse(text):
        try:
            values = [int(word) for word in text.split(",")]
        except ValueError:
            values = []
        if not values or not all(allowed_low <= value <= allowed_high for value in values):
            raise argparse.ArgumentTypeError(f"'{text}' is not allowed; use whole numbers from {allowed_low} to "
                                             f"{allowed_high} with commas between")
        return values
    return parse


def number(low, high):
    def parse(text):
        values = numbers(low, high)(text)
        if len(values) != 1:
            raise argparse.ArgumentTypeError(f"'{text}' is not allowed; use one whole number")
        return values[0]
    return parse


def types(text):
    values = text.split(",")
    if not values or not set(values) <= set(TOLERANCE):
        raise argparse.ArgumentTypeError(f"'{text}' is not allowed; use f32, bf16 or f32,bf16")
    return values


def arguments():
    parser = argparse.ArgumentParser(prog="./dev bench peers", description=__doc__.split("\n\n", 1)[1],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=numbers(1, 131072), default=[2048, 4096, 8192, 16384], metavar="N,N",
                        help="lengths of the prompt (2048,4096,8192,16384)")
    parser.add_argument("--widths", type=numbers(1, 1024), default=[128, 64], metavar="D,D", help="head sizes (128,64)")
    parser.add_argument("--threads", type=numbers(1, 512), default=[1, 2], metavar="T,T", help="(1,2)")
    parser.add_argument("--dtypes", type=types, default=["f32", "bf16"], metavar="TYPES", help="(f32,bf16)")
    parser.add_argument("--rounds", type=number(1, 1000), default=5, help="(5)")
    parser.add_argument("--budget", type=number(0, 86400), default=60, metavar="SECONDS",
                        help="of a case; no further round begins after it (60)")
    parser.add_argument("--engine", default="cpu", help="Headwater's (cpu)")
    parser.add_argument("--quick", action="store_true", help="2048 and 4096 tokens, d = 128, three rounds")
    parser.add_argument("--library", required=True, type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--peers", required=True, type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write everything there")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.tokens, chosen.widths, chosen.rounds, chosen.budget = [2048, 4096], [128], 3, 10
    return parser, chosen


def load_torch():
    try:
        import torch  # pylint: disable=import-outside-toplevel
        return torch, f"PyTorch {torch.__version__}"
    except (ImportError, OSError) as error:
        return None, f"PyTorch could not be loaded: {str(error).splitlines()[0]}"


def load_ggml(folder):
    import ggml  # pylint: disable=import-outside-toplevel
    try:
        return ggml, ggml.Library(folder / "ggml-build"), "llama.cpp's ggml, flash_attn_ext, K and V in F16"
    except (KeyError, OSError, AttributeError) as error:
        return ggml, None, f"llama.cpp could not be loaded: {type(error).__name__} {error}"


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def table(cases):
    lines = ["| type | d | threads | tokens | rounds | sparse | dense | PyTorch | llama.cpp F16 | PyTorch / sparse | "
             "PyTorch / dense | llama.cpp / sparse | llama.cpp / dense |",
             "| --- " * 13 + "|"]
    for case in cases:
        clock = 1 if case["threads"] == 1 else 0
        times = {name: [pair[clock] for pair in pairs] for name, pairs in case["seconds"].items()}

        def cell(name, times=times):
            return f"{1e3 * statistics.median(times[name]):.1f} ms" if name in times else "-"

        def ratio(peer, own, times=times):
            if peer not in times:
                return "-"
            return f"{statistics.median(a / b for a, b in zip(times[peer], times[own])):.2f}"

        lines.append(" | ".join(
            ["| " + case["dtype"].upper(), str(case["width"]), str(case["threads"]), str(case["tokens"]),
             str(len(times["headwater sparse"])), cell("headwater sparse"), cell("headwater dense"), cell("PyTorch"),
             cell("llama.cpp F16")]
            + [ratio(peer, own) for peer in ("PyTorch", "llama.cpp F16") for own in ("headwater sparse", "headwater dense")]
        ) + " |")
    return "\n".join(lines)


def main():
    parser, chosen = arguments()
    torch, torch_note = load_torch()  # first: all share its OpenMP runtime, and so one pool of threads
    library = headwater.Library(chosen.library)
    engines = library.engines()
    if chosen.engine not in engines:
        parser.exit(3, f"peers: engine '{chosen.engine}' does not run here; available: {', '.join(engines)}\n")
    ggml, ggml_library, ggml_note = load_ggml(chosen.peers)
    print(f"{processor()}; headwater {library.abi.headwater_version().decode()} {chosen.engine} "
          f"({engines[chosen.engine]}); {torch_note}; {ggml_note}", file=sys.stderr)
    cases, layouts = [], {}
    for dtype in chosen.dtypes:
        for width in chosen.widths:
            for threads in chosen.threads:
                layout = best_layout(torch, dtype, width, threads) if torch else None
                layouts[f"{dtype} d={width} threads={threads}"] = layout
                for tokens in chosen.tokens:
                    problem = Problem(tokens, width, dtype)
                    contenders = [Headwater(library, chosen.engine, problem, threads, dense) for dense in (False, True)]
                    if torch:
                        contenders.append(Torch(torch, problem, threads, layout))
                    if ggml_library:
                        contenders.append(Ggml(ggml, ggml_library, problem, threads))
                    for contender in contenders:
                        contender.check()
                    times = measure(contenders, chosen.rounds, chosen.budget)
                    for contender in contenders:
                        contender.close()
                    cases.append({"dtype": dtype, "width": width, "threads": threads, "tokens": tokens, "seconds": times})
                    print(f"{dtype} d={width} threads={threads} tokens={tokens}: " + ", ".join(
                        f"{name} {statistics.median(wall for wall, _ in pairs):.4f} s" for name, pairs in times.items()),
                        file=sys.stderr, flush=True)
    print(f"{HEADS} query heads, {HEADS_KV} key/value heads, causal; {torch_note}; {ggml_note}.\n")
    print(table(cases))
    if chosen.json:
        report = {"processor": processor(), "engine": chosen.engine, "isa": engines[chosen.engine], "heads": HEADS,
                  "heads_kv": HEADS_KV, "torch": torch_note, "ggml": ggml_note, "layouts": layouts, "cases": cases,
                  "load": os.getloadavg()}
        temporary = chosen.json.with_name(chosen.json.name + ".tmp")
        temporary.write_text(json.dumps(report, indent=1), encoding="utf-8")
        temporary.replace(chosen.json)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, OSError, MemoryError) as failure:
        print(f"peers: {failure}", file=sys.stderr)
        sys.exit(1)
