"""Headwater and llama.cpp on the same GGUF file, taking turns: VENV/bin/python model.py --help

Time to the first token (from the first token in to the logits after the last one; loading is not counted) and the rate
of tokens generated after the prompt, with the same tokens, the same threads and flash attention. llama.cpp comes
through llama-cpp-python, in this process; Headwater is `headwater bench -m`, a process for each turn. In every round
both run once at each length, in an order that turns; ratios are taken within a round, as medians; on one thread of
processor times, which other work on the machine does not move. Before anything is
timed the logits after a short prompt are compared, so that all are timed on the same work.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

TOKEN_STEP = 7919  # of the tokens that `headwater bench -m` takes: (step * i + seed) modulo the vocabulary
SEED = 1
CHECKED_TOKENS = 256
# Logits of random weights have a deviation near 1; a wrong rotation, norm or head moves them by as much. Both round
# activations, llama.cpp to eight bits.
TOLERANCE = 0.25


@contextlib.contextmanager
def silent():
    """Silences llama.cpp, which writes pages to standard error."""
    sys.stderr.flush()
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


class Llama:
    name = "llama.cpp"

    def __init__(self, module, path, threads, capacity):
        self.module = module
        self.clock = time.process_time if threads == 1 else time.perf_counter
        with silent():
            module.llama_backend_init()
            self.model = module.llama_model_load_from_file(str(path).encode(), module.llama_model_default_params())
            if not self.model:
                raise RuntimeError(f"llama.cpp does not load {path}")
            options = module.llama_context_default_params()
            options.n_ctx = capacity
            options.n_threads = options.n_threads_batch = threads
            if hasattr(options, "flash_attn_type"):
                options.flash_attn_type = module.LLAMA_FLASH_ATTN_TYPE_ENABLED
            else:
                options.flash_attn = True
            self.batch = options.n_batch
            self.context = module.llama_init_from_model(self.model, options)
        if not self.context:
            raise RuntimeError("llama.cpp opens no context")
        self.vocabulary = module.llama_vocab_n_tokens(module.llama_model_get_vocab(self.model))

    def decode(self, tokens):
        array = (self.module.llama_token * len(tokens))(*tokens)
        if self.module.llama_decode(self.context, self.module.llama_batch_get_one(array, len(tokens))) != 0:
            raise RuntimeError("llama_decode failed")

    def logit(self, token):
        return self.module.llama_get_logits_ith(self.context, -1)[token]

    def prompt(self, n):
        self.module.llama_memory_clear(self.module.llama_get_memory(self.context), True)
        ids = [(TOKEN_STEP * i + SEED) % self.vocabulary for i in range(n)]
        begin = self.clock()
        for first in range(0, n, self.batch):
            self.decode(ids[first:first + self.batch])
        self.logit(0)
        return self.clock() - begin

    def run(self, n, generate):
        """(seconds to the first token, tokens generated per second)"""
        first = self.prompt(n)
        begin = self.clock()
        for i in range(n, n + generate):
            self.decode([(TOKEN_STEP * i + SEED) % self.vocabulary])
            self.logit(0)
        return first, generate / (self.clock() - begin)


class Headwater:
    name = "headwater"

    def __init__(self, program, path, threads, flags):
        self.command = [str(program), "bench", "-m", str(path), "-t", str(threads), "--rounds", "1", "--seed", str(SEED),
                        "--no-dense", "--json", *flags]
        self.about = None

    def report(self, n, generate):
        done = subprocess.run([*self.command, "-n", str(n), "--decode", str(generate)], capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip())
        self.about = json.loads(done.stdout)
        return self.about["prompts"][0]

    def run(self, n, generate):
        prompt = self.report(n, generate)
        return prompt["first_token"]["seconds"], prompt["decode"]["tokens_per_second"]


def check(headwater, llama):
    best = headwater.report(CHECKED_TOKENS, 0)["best"]
    llama.prompt(CHECKED_TOKENS)
    theirs = llama.logit(best["token"])
    if not abs(theirs - best["logit"]) <= TOLERANCE:
        raise RuntimeError(f"the programs compute different things: after {CHECKED_TOKENS} tokens the logit of token "
                           f"{best['token']} is {best['logit']:.3f} here and {theirs:.3f} there")
    return best["logit"], theirs


def measure(contenders, lengths, rounds, generate):
    times = {contender.name: {n: [] for n in lengths} for contender in contenders}
    for number in range(rounds):
        for n in lengths:
            turn = number % len(contenders)
            for contender in contenders[turn:] + contenders[:turn]:
                times[contender.name][n].append(contender.run(n, generate))
                first, rate = times[contender.name][n][-1]
                print(f"round {number + 1}: {n:6} tokens, {contender.name:10} {first:8.2f} s to the first token, then "
                      f"{rate:6.1f} tokens/s", file=sys.stderr, flush=True)
    return times


def table(times, lengths):
    """Medians; ratios are medians of those of the rounds."""
    lines = ["| tokens | first token, llama.cpp | headwater | sooner | decode, llama.cpp | headwater | faster |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    for n in lengths:
        own, other = times["headwater"][n], times["llama.cpp"][n]
        sooner = statistics.median(b[0] / a[0] for a, b in zip(own, other))
        faster = statistics.median(a[1] / b[1] for a, b in zip(own, other))
        cells = [statistics.median(x[i] for x in side) for i in (0, 1) for side in (other, own)]
        lines.append(f"| {n} | {cells[0]:.2f} s | {cells[1]:.2f} s | **{sooner:.2f}** | {cells[2]:.1f} /s | "
                     f"{cells[3]:.1f} /s | **{faster:.2f}** |")
    return "\n".join(lines)


def lengths_of(text):
    values = [int(word) for word in text.split(",") if word.isdecimal()]
    if not values or len(values) != len(text.split(",")) or not all(1 <= value <= 1 << 20 for value in values):
        raise argparse.ArgumentTypeError(f"'{text}' is not allowed; use whole numbers from 1 to {1 << 20} with commas "
                                         "between")
    return values


def count(text):
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"'{text}' is not allowed; use a whole number from 1 to 1000")
    return int(text)


def parse(arguments):
    parser = argparse.ArgumentParser(description="Headwater and llama.cpp on the same model file, taking turns.")
    parser.add_argument("--headwater", type=pathlib.Path, required=True, help="the program `headwater`")
    parser.add_argument("--model", type=pathlib.Path, help="a GGUF file; else random weights of --random")
    parser.add_argument("--random", default="qwen3-0.6b", help="shape of the random weights (qwen3-0.6b)")
    parser.add_argument("--type", default="q8_0", help="of the random weights (q8_0)")
    parser.add_argument("-n", type=lengths_of, default=[512, 2048, 4096, 8192], help="lengths (512,2048,4096,8192)")
    parser.add_argument("--decode", type=count, default=32, help="tokens generated after each prompt (32)")
    parser.add_argument("--rounds", type=count, default=3, help="rounds (3)")
    parser.add_argument("-t", "--threads", type=count, default=len(os.sched_getaffinity(0)), help="threads (all cores)")
    parser.add_argument("--quick", action="store_true", help="512 and 2048 tokens, one round")
    parser.add_argument("--json", type=pathlib.Path, help="write all times to this file")
    found = parser.parse_args(arguments)
    if found.quick:
        found.n, found.rounds = [512, 2048], 1
    return found


def main(arguments):
    options = parse(arguments)
    try:
        import llama_cpp  # pylint: disable=import-outside-toplevel
    except ImportError as error:
        print(f"model: no llama-cpp-python: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        path = options.model
        if path is None:
            path = pathlib.Path(folder) / "random.gguf"
            subprocess.run([options.headwater, "bench", "--random", options.random, "--type", options.type, "--save", path],
                           check=True)
        headwater = Headwater(options.headwater, path, options.threads, [])
        llama = Llama(llama_cpp, path, options.threads, max(CHECKED_TOKENS, max(options.n) + options.decode))
        ours, theirs = check(headwater, llama)
        print(f"checked: after {CHECKED_TOKENS} tokens the best logit is {ours:.3f}, llama.cpp's {theirs:.3f}",
              file=sys.stderr)
        times = measure([headwater, llama], options.n, options.rounds, options.decode)
    about = headwater.about
    load = os.getloadavg()
    head = (f"{about['cpu']}; {about['model']}, {about['weights']}; {options.threads} threads; headwater: engine "
            f"`{about['engine']}` ({about['isa']}), projections {about['projections']}, cache {about['cache_type']}, "
            f"chunk {about['effective']['chunk']}, memory {about['effective']['local']} + {about['effective']['heavy']}; "
            f"llama-cpp-python {llama_cpp.__version__}, flash attention, cache F16; {options.rounds} rounds by {about['judged_by']}; load "
            f"{load[0]:.1f}.")
    print(f"{head}\n\n{table(times, options.n)}")
    if options.json:
        options.json.write_text(json.dumps({"head": head, "times": times}, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        print(f"model: {error}", file=sys.stderr)
        sys.exit(1)
