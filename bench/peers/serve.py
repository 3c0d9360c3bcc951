"""A long prompt once, again with another question, after a restart, and four clients at a time:

    VENV/bin/python bench/peers/serve.py MODEL.gguf TEXT --program build/release/headwater [--rounds 3] [--threads 2]

Headwater's server, and beside it, where the Python that runs this has them, OpenVINO GenAI (`openvino-genai`, its prefix cache on)
and llama.cpp's server (`xllamacpp`). Each round asks every one of them once, cold and then warm, in turn; what is printed are
medians of seconds, and ratios within a round. The tokens of a document and a question are the same for all: greedy, one token."""

import argparse
import concurrent.futures
import http.client
import json
import pathlib
import re
import signal
import statistics
import subprocess
import tempfile
import time

# Its number comes first, so that two questions have nothing in common.
QUESTION = ("\n{} is the number of this question. What is the name that stands in the middle of this text, and which of its parts says "
            "what is to be done about it? Answer with one word, and if there is none, with the word none. Say nothing else before it, and "
            "nothing after it.\n")


class Headwater:
    name = "headwater"

    def __init__(self, flags):
        self.flags, self.folder = flags, tempfile.TemporaryDirectory()
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [self.flags.program, "serve", "-m", self.flags.model, "--port", "0", "-t", str(self.flags.threads), "-c", str(self.flags.context),
             "--cache-dir", self.folder.name, "--quiet"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.port = int(re.search(rb":(\d+)/", self.process.stdout.readline())[1])

    def ask(self, prompt, tokens=1, **more):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        begin = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": tokens, "temperature": 0, **more}))
        answer = json.loads(connection.getresponse().read())
        seconds = time.perf_counter() - begin
        connection.close()
        return seconds, answer

    def cold(self, prompt):
        return self.ask(prompt, headwater={"cache": False})[0]

    def warm(self, prompt):
        return self.ask(prompt)[0]

    def memory(self):
        return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{self.process.pid}/status").read_text())[1]) / 1024

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        self.process.stdout.close()


class OpenVino:
    name = "openvino-genai"

    def __init__(self, flags):
        import openvino_genai

        cache = openvino_genai.SchedulerConfig()
        cache.enable_prefix_caching, cache.cache_size = True, 4
        self.config = openvino_genai.GenerationConfig(max_new_tokens=1, do_sample=False, apply_chat_template=False)
        self.pipe = openvino_genai.LLMPipeline(flags.model, "CPU", INFERENCE_PRECISION_HINT="bf16", INFERENCE_NUM_THREADS=flags.threads,
                                               scheduler_config=cache)
        self.number = 0

    def warm(self, prompt):
        begin = time.perf_counter()
        self.pipe.generate(prompt, self.config)
        return time.perf_counter() - begin

    def cold(self, prompt):
        self.number += 1
        return self.warm(f"{self.number} " + prompt)  # begins otherwise

    def stop(self):
        pass


class LlamaCpp:
    name = "llama.cpp (xllamacpp)"

    def __init__(self, flags):
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path, params.n_ctx, params.n_parallel, params.port = flags.model, flags.context, 1, 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = flags.threads
        self.server = xllamacpp.Server(params)
        self.address = re.search(r"([^/]+:\d+)", self.server.listening_address)[1]

    def post(self, prompt, keep):
        connection = http.client.HTTPConnection(self.address)
        begin = time.perf_counter()
        connection.request("POST", "/completion", json.dumps({"prompt": prompt, "n_predict": 1, "temperature": 0, "cache_prompt": keep}))
        connection.getresponse().read()
        connection.close()
        return time.perf_counter() - begin

    def cold(self, prompt):
        return self.post(prompt, False)

    def warm(self, prompt):
        return self.post(prompt, True)

    def stop(self):
        pass


def peers(flags):
    found = [Headwater(flags)]
    for peer in (OpenVino, LlamaCpp):
        try:
            found.append(peer(flags))
        except (ImportError, RuntimeError) as error:
            print(f"without {peer.name}: {str(error).splitlines()[0]}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--program", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=8192)
    flags = parser.parse_args()
    document = flags.text.read_text(encoding="utf-8")
    contenders = peers(flags)
    own = contenders[0]
    seconds = {one.name: {"cold": [], "warm": []} for one in contenders}
    for one in contenders:
        one.warm(document + QUESTION.format(0))
    for number in range(1, flags.rounds + 1):
        for one in contenders[::1 if number % 2 else -1]:
            seconds[one.name]["cold"].append(one.cold(document + QUESTION.format(number)))
            seconds[one.name]["warm"].append(one.warm(document + QUESTION.format(1000 + number)))  # llama.cpp's slot has the one before
    for name, found in seconds.items():
        share = statistics.median(warm / cold for warm, cold in zip(found["warm"], found["cold"]))
        print(f"{name}: cold {statistics.median(found['cold']):.3f} s, warm {statistics.median(found['warm']):.3f} s ({100 * share:.2f} %)")
    usage = own.ask(document + QUESTION.format(99))[1]["usage"]
    print(f"tokens of a prompt: {usage['prompt_tokens']}, of them known: {usage['prompt_tokens_details']['cached_tokens']}")
    for name in ("cold", "warm"):
        for other in contenders[1:]:
            ratio = statistics.median(b / a for a, b in zip(seconds[own.name][name], seconds[other.name][name]))
            print(f"{other.name} / headwater, {name}: {ratio:.2f}")
    before = own.memory()
    for number in range(4):
        own.warm(document + QUESTION.format(100 + number))
    print(f"four questions more take {own.memory() - before:.0f} MiB of {before:.0f}")
    for length, prompt in (("short", "Once"), ("long", document)):
        alone = [own.ask(prompt, 64, ignore_eos=True)[1]["timings"]["predicted_per_second"] for _ in range(3)]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            four = [one[1]["timings"]["predicted_per_second"] for one in pool.map(lambda i: own.ask(prompt + f" {i}", 64, ignore_eos=True), range(4))]
        print(f"four clients, {length} prompts: {sum(four) / statistics.median(alone):.2f} times the tokens a second of one")
    own.stop()
    own.start()
    restarted = own.warm(document + QUESTION.format(200))
    print(f"after a restart: {restarted:.3f} s ({100 * restarted / statistics.median(seconds[own.name]['cold']):.2f} %)")
    own.stop()


if __name__ == "__main__":
    main()
