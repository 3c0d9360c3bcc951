"""Headwater and OpenVINO GenAI on the same GGUF file and texts, taking turns: VENV/bin/python xattention.py --help

Of the first N tokens of each text: the seconds to the first token, and how far sparse prefill is from dense attention of
the same program. OpenVINO's sparse prefill is XAttention with the settings that it begins with, Headwater's the default of
`headwater generate`. The distance is half the mean square of the differences of the log-probabilities of the text's own
tokens, which is about the KL divergence in nats, beside the change of the mean loss; over the tokens after the first chunk
and before the last 100, which XAttention sees densely. Distances are measured in F32, times as both programs run by default
(BF16 where the processor multiplies it), one after another in every round, without a prefix cache.

Needs the PyPI packages openvino-genai and numpy, and `headwater` (or PYTHONPATH=python and HEADWATER_LIBRARY,
HEADWATER_RUNTIME_LIBRARY).
"""

import argparse
import os
import pathlib
import statistics
import sys
import time

import numpy
import openvino
import openvino_genai as genai

import headwater

FIRST, LAST = 1024, 100  # tokens at both ends that are not compared
ATTENTION = ("dense", "sparse")


class OpenVINO:
    name = "OpenVINO"

    def __init__(self, path, threads, exact, length):
        self.pipelines = {}
        for attention in ATTENTION:
            scheduler = genai.SchedulerConfig()
            scheduler.enable_prefix_caching = False
            scheduler.cache_size = 2  # GB
            scheduler.max_num_batched_tokens = length + 1
            if attention == "sparse":
                scheduler.use_sparse_attention = True
                scheduler.sparse_attention_config = genai.SparseAttentionConfig(mode=genai.SparseAttentionMode.XATTENTION)
            hints = {"INFERENCE_NUM_THREADS": threads, **({"INFERENCE_PRECISION_HINT": "f32"} if exact else {})}
            self.pipelines[attention] = genai.ContinuousBatchingPipeline(str(path), scheduler, "CPU", hints)

    def _run(self, attention, ids, **settings):
        config = genai.GenerationConfig(max_new_tokens=1, apply_chat_template=False, **settings)
        pipeline = self.pipelines[attention]
        handle = pipeline.add_request(0, openvino.Tensor(numpy.array([ids])), config)
        while pipeline.has_non_finished_requests():
            pipeline.step()
        return handle.read_all()[0]

    def first_token(self, attention, ids):
        begin = time.perf_counter()
        self._run(attention, ids)
        return time.perf_counter() - begin

    def losses(self, attention, ids):
        """Of ids[1:]."""
        return -numpy.array(self._run(attention, ids, logprobs=1, echo=True).generated_log_probs[1:len(ids)])


class Headwater:
    name = "Headwater"

    def __init__(self, path, threads, exact, length):
        self.model = headwater.Model(path, **({"projections": "f32"} if exact else {}))
        self.options = {"capacity": length, "threads": threads, **({"cache_type": "f32"} if exact else {})}

    def _conversation(self, attention):
        return self.model.conversation(quality={"dense": "exact", "sparse": "balanced"}[attention], **self.options)

    def first_token(self, attention, ids):
        with self._conversation(attention) as talk:
            begin = time.perf_counter()
            talk.feed(ids)
            talk.logits.argmax()
            return time.perf_counter() - begin

    def losses(self, attention, ids):
        with self._conversation(attention) as talk:
            return numpy.array(talk.losses(ids, decode=0))


def tokens_of(model, texts, length):
    """The first `length` tokens of each text that has as many."""
    for text in texts:
        ids = model.tokenize(text.read_text(encoding="utf-8"), add_special=False)[:length]
        if len(ids) == length:
            yield text.stem, ids
        else:
            print(f"xattention: {text}: {len(ids)} tokens; allowed: {length} and more", file=sys.stderr)


def print_distances(contenders, texts):
    print("| text | tokens | program | loss, dense | half the mean square | change of the loss |")
    print("| --- " * 6 + "|")
    for name, ids in texts:
        for contender in contenders:
            dense, sparse = (contender.losses(attention, ids)[FIRST:len(ids) - LAST] for attention in ATTENTION)
            print(f"| {name} | {len(ids)} | {contender.name} | {dense.mean():.3f} | {((sparse - dense) ** 2).mean() / 2:.4f} | "
                  f"{(sparse - dense).mean():+.4f} |", flush=True)


def print_times(contenders, texts, rounds):
    print("| text | tokens | " + " | ".join(f"{one.name}, {attention}" for one in contenders for attention in ATTENTION) + " |")
    print("| --- " * (2 + 2 * len(contenders)) + "|")
    for name, ids in texts:
        seconds = {}
        for number in range(rounds):
            turn = number % len(contenders)
            for contender in contenders[turn:] + contenders[:turn]:
                for attention in ATTENTION:
                    seconds.setdefault((contender, attention), []).append(contender.first_token(attention, ids))
        cells = (f"{statistics.median(seconds[one, attention]):.2f} s" for one in contenders for attention in ATTENTION)
        print(f"| {name} | {len(ids)} | " + " | ".join(cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description="Headwater and OpenVINO GenAI on the same model and texts, taking turns.")
    parser.add_argument("--model", type=pathlib.Path, required=True, help="a GGUF file that both read (F16, Q8_0 or Q4_0)")
    parser.add_argument("-n", type=int, default=4096, help="tokens of each text, more than 1124 (4096)")
    parser.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads (all cores)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of times (3)")
    parser.add_argument("--measure", choices=("times", "distances"), default="times")
    parser.add_argument("texts", type=pathlib.Path, nargs="+")
    options = parser.parse_args()
    if options.n <= FIRST + LAST or options.rounds < 1 or options.threads < 1:
        parser.error(f"allowed: -n {FIRST + LAST + 1} and more, --rounds and --threads 1 and more")
    exact = options.measure == "distances"
    try:
        own = Headwater(options.model, options.threads, exact, options.n)
        texts = list(tokens_of(own.model, options.texts, options.n))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if not texts:
        return 2
    contenders = [OpenVINO(options.model, options.threads, exact, options.n), own]
    print(f"OpenVINO GenAI {genai.__version__}, Headwater {headwater.__version__}, {options.threads} threads\n")
    if exact:
        print_distances(contenders, texts)
    else:
        print_times(contenders, texts, options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
