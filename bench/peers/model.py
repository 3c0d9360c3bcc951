"""Headwater, llama.cpp and OpenVINO GenAI on the same GGUF file, taking turns: VENV/bin/python model.py --help

Time to the first token (from the first token in to the logits after the last one; loading is not counted) and the rate
of tokens generated after the prompt, with the same tokens and threads. llama.cpp (llama-cpp-python, flash attention) and
OpenVINO GenAI (dense, and by its own sparse prefill, XAttention) run in this process; Headwater, by the rule that `headwater
generate` begins with and densely, is `headwater bench -m`, a process for each run. In every round all take a turn at each
length, in an order that changes, and run twice: the second run counts, since the first after an idle time is slower by
what the machine has taken back, pages of memory above all. Ratios are taken within a round, as medians; on one thread of
processor times, which other work on the machine does not move. Before anything is timed the results after a short prompt
are compared, so that all are timed on the same work. A peer that is not there, or does not read the file, is left out with
a line that says why.
"""

import argparse
import contextlib
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

TOKEN_STEP = 7919  # of the tokens that `headwater bench -m` takes: (step * i + seed) modulo the vocabulary
SEED = 1
CHECKED = (256, 240, 224, 208, 192)  # tokens of the prompts that are compared
# Logits of random weights have a deviation near 1; a wrong rotation, norm or head moves them by as much. Both round
# activations, llama.cpp to eight bits.
TOLERANCE = 0.25
EXPERTS = ("qwen3moe", "qwen2moe", "gpt-oss", "granitemoe", "deepseek2")


def deviation(values):
    """NaN where one is, at which statistics.pstdev() fails."""
    mean = statistics.fmean(values)
    return math.sqrt(statistics.fmean((value - mean) ** 2 for value in values))


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


# The default of `headwater generate` (bindings/preset.cpp).
DEFAULT_RULE = ("--select", "sketches", "--h2o-local", "32", "--h2o-heavy", "480", "--pinned", "8")


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
        self.about = f"llama-cpp-python {module.__version__}, flash attention, cache F16"

    def check(self, bests, experts):
        """bests: what headwater finds likeliest after each of CHECKED. In a model of experts a rounding can choose another one,
        by which llama.cpp's own answers with and without flash attention differ, too: there most must be the same, and their
        deviation, 1.23 in gpt-oss, is the measure."""
        wrong = []
        for n, best in zip(CHECKED, bests):
            self.prompt(n)
            logits = self.logits()
            theirs = logits[best["token"]]
            if not abs(theirs - best["logit"]) <= TOLERANCE * (deviation(logits) if experts else 1):
                wrong.append(f"after {n} tokens the logit of token {best['token']} is {best['logit']:.3f} here and {theirs:.3f} in llama.cpp")
        if 2 * len(wrong) >= len(CHECKED) if experts else wrong:
            raise RuntimeError(f"the programs compute different things: {wrong[0]}")

    def decode(self, tokens):
        array = (self.module.llama_token * len(tokens))(*tokens)
        if self.module.llama_decode(self.context, self.module.llama_batch_get_one(array, len(tokens))) != 0:
            raise RuntimeError("llama_decode failed")

    def logits(self):
        return self.module.llama_get_logits_ith(self.context, -1)[:self.vocabulary]

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


class OpenVINO:
    def __init__(self, genai, path, threads, capacity, sparse):
        import numpy  # pylint: disable=import-outside-toplevel
        import openvino  # pylint: disable=import-outside-toplevel
        self.name = "OpenVINO, XAttention" if sparse else "OpenVINO, dense"
        self.about = f"OpenVINO GenAI {genai.__version__}, no prefix cache"
        self.tensor = lambda ids: openvino.Tensor(numpy.array([ids]))
        self.genai, self.sparse = genai, sparse
        self.clock = time.process_time if threads == 1 else time.perf_counter
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.cache_size = 2  # GB
        scheduler.max_num_batched_tokens = capacity + 1  # a prompt is one step
        if sparse:
            scheduler.use_sparse_attention = True
            scheduler.sparse_attention_config = genai.SparseAttentionConfig(mode=genai.SparseAttentionMode.XATTENTION)
        self.pipeline = genai.ContinuousBatchingPipeline(str(path), scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})
        self.vocabulary = len(self.pipeline.get_tokenizer().get_vocab())
        self._ask(max(CHECKED), 1)  # the first call of all compiles

    def _ask(self, n, tokens):
        """(the tokens, seconds to the first one, seconds of the others)"""
        config = self.genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True, apply_chat_template=False)
        ids = [(TOKEN_STEP * i + SEED) % self.vocabulary for i in range(n)]
        begin = self.clock()
        handle = self.pipeline.add_request(0, self.tensor(ids), config)
        self.pipeline.step()
        first = self.clock()
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
        return handle.read_all()[0].generated_ids, first - begin, self.clock() - first

    def check(self, bests, _experts):
        """It tells the likeliest token alone, which rounding decides where two are as likely: most must be the same. XAttention
        answers differently by itself."""
        if self.sparse:
            return
        here = [best["token"] for best in bests]
        theirs = [self._ask(n, 1)[0][0] for n in CHECKED]
        if 2 * sum(a == b for a, b in zip(here, theirs)) < len(CHECKED):
            raise RuntimeError(f"the programs compute different things: after {CHECKED} tokens the likeliest are {here} here "
                               f"and {theirs} in {self.name}")

    def run(self, n, generate):
        _, first, others = self._ask(n, generate + 1)
        return first, generate / others


class Headwater:
    def __init__(self, program, path, threads, flags, name="headwater"):
        self.name = name
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


def measure(contenders, lengths, rounds, generate):
    times = {contender.name: {n: [] for n in lengths} for contender in contenders}
    for number in range(rounds):
        for n in lengths:
            turn = number % len(contenders)
            for contender in contenders[turn:] + contenders[:turn]:
                contender.run(n, generate)
                times[contender.name][n].append(contender.run(n, generate))
                first, rate = times[contender.name][n][-1]
                print(f"round {number + 1}: {n:6} tokens, {contender.name:20} {first:8.2f} s to the first token, then "
                      f"{rate:6.1f} tokens/s", file=sys.stderr, flush=True)
    return times


def table(times, lengths):
    """Medians; in brackets how many times as long as the first contender, or as fast, medians of the rounds' ratios."""
    names = list(times)
    lines = []
    for title, part, unit in (("first token", 0, " s"), ("decode", 1, " /s")):
        lines += [f"| {title}, tokens | " + " | ".join(names) + " |", "| --- " * (1 + len(names)) + "|"]
        for n in lengths:
            cells = []
            for name in names:
                value = statistics.median(one[part] for one in times[name][n])
                ratio = statistics.median(one[part] / own[part] for one, own in zip(times[name][n], times[names[0]][n]))
                cells.append(f"{value:.2f}{unit}" + ("" if name == names[0] else f" ({ratio:.2f})"))
            lines.append(f"| {n} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def peers_of(path, threads, capacity):
    """Those that are there and read the file."""
    def llama():
        import llama_cpp  # pylint: disable=import-outside-toplevel
        return Llama(llama_cpp, path, threads, capacity)

    def openvino(sparse):
        import openvino_genai  # pylint: disable=import-outside-toplevel
        return OpenVINO(openvino_genai, path, threads, capacity, sparse)

    found = []
    for name, opens in (("llama.cpp", llama), ("OpenVINO, dense", lambda: openvino(False)),
                        ("OpenVINO, XAttention", lambda: openvino(True))):
        try:
            found.append(opens())
        except (ImportError, RuntimeError, IndexError) as error:
            print(f"model: no {name}: {str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__}",
                  file=sys.stderr)
    return found


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
    parser = argparse.ArgumentParser(description="Headwater, llama.cpp and OpenVINO GenAI on the same model file, taking turns.")
    parser.add_argument("--headwater", type=pathlib.Path, required=True, help="the program `headwater`")
    parser.add_argument("--model", type=pathlib.Path, help="a GGUF file; else random weights of --random")
    parser.add_argument("--random", default="qwen3-0.6b", help="shape of the random weights (qwen3-0.6b)")
    parser.add_argument("--type", default="q8_0", help="of the random weights (q8_0)")
    parser.add_argument("-n", type=lengths_of, default=[512, 2048, 4096, 8000], help="lengths (512,2048,4096,8000)")
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
    with tempfile.TemporaryDirectory() as folder:
        path = options.model
        if path is None:
            path = pathlib.Path(folder) / "random.gguf"
            subprocess.run([options.headwater, "bench", "--random", options.random, "--type", options.type, "--save", path],
                           check=True)
        own = Headwater(options.headwater, path, options.threads, DEFAULT_RULE)
        dense = Headwater(options.headwater, path, options.threads, ["--dense-below", str(1 << 30)], "headwater, dense")
        peers = peers_of(path, options.threads, max(*CHECKED, max(options.n) + options.decode))
        if not peers:
            return 2
        bests = [own.report(n, 0)["best"] for n in CHECKED]
        for peer in peers:
            peer.check(bests, own.about["architecture"] in EXPERTS)
        print(f"checked: after {CHECKED} tokens the programs agree", file=sys.stderr)
        times = measure([own, dense, *peers], options.n, options.rounds, options.decode)
    about = own.about
    load = os.getloadavg()
    head = (f"{about['cpu']}; {about['model']}, {about['weights']}; {options.threads} threads; headwater: engine "
            f"`{about['engine']}` ({about['isa']}), projections {about['projections']}, cache {about['cache_type']}, "
            f"chunk {about['effective']['chunk']}, `{' '.join(DEFAULT_RULE)}`; "
            f"{'; '.join(dict.fromkeys(peer.about for peer in peers))}; {options.rounds} rounds by {about['judged_by']}; load "
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
