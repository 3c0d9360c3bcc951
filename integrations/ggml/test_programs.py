"""llama.cpp's own programs, alone and with the plug-in: test_programs.py PROGRAMS PLUGIN OTHER_VERSION_PLUGIN SMOLLM2 GEMMA3

PROGRAMS is the folder of llama-server, llama-cli, llama-completion and llama-perplexity (`./dev test-ggml` builds all of it).
With dense=1 a greedy text is llama.cpp's own, to a near tie of its own probabilities, which is printed. Counters show which
nodes were ours. Most tests use the small model of the tree: it has F16 weights. With quantised weights llama.cpp rounds its
activations to 8 bits, and two attentions that differ in the last bit give logits that differ by a tenth and more; there the
perplexity is compared with that of llama.cpp's F32 attention.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

PROGRAMS, PLUGIN, OTHER_VERSION, SMOLLM2, GEMMA3 = (pathlib.Path(a) for a in sys.argv[1:6])
MODELS = pathlib.Path(__file__).resolve().parents[2] / "models"
TINY = MODELS / "headwater-tiny-f16.gguf"
TEXT_FILE = MODELS / "decisions.txt"
TEXT = TEXT_FILE.read_text(encoding="utf-8")  # some 3600 tokens of SmolLM2, more of the small model
LONG, SHORT = TEXT[:6000], TEXT[7000:9600]
TIMEOUT = 900
# What logarithms of probabilities may differ by, and the gap of a near tie: sums of F16 and of F32, F16 weights.
NEAR = 0.02


def environment(settings):
    """None: llama.cpp alone."""
    names = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWATER_", "GGML_", "LLAMA_"))}
    if settings is not None:
        names |= {"GGML_BACKEND_PATH": str(PLUGIN), "HEADWATER_GGML": settings}
    return names


def counters(log):
    """{'sparse': 1, 'dense': 2, 'few rows': 3, ...} of the last line of counters."""
    lines = re.findall(r"ggml-headwater: nodes: (.*)", log)
    found = re.findall(r"(\d+) (sparse|dense)", lines[-1]) if lines else []
    found += [(n, name) for name, n in re.findall(r"([a-z][a-z ]*[a-z]) (\d+)", lines[-1])] if lines else []
    return {name.strip(): int(n) for n, name in found}


def program(name, *arguments, settings=None, plugin=PLUGIN):
    names = environment(settings)
    if settings is not None:
        names["GGML_BACKEND_PATH"] = str(plugin)
    done = subprocess.run([PROGRAMS / name, "-t", "2", *map(str, arguments)], env=names, stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=TIMEOUT, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{name}: exit status {done.returncode}: {done.stderr.decode()[-2000:]}")
    return done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


class Server:
    def __init__(self, model, settings, *arguments):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = tempfile.NamedTemporaryFile()  # pylint: disable=consider-using-with
        self.process = subprocess.Popen(  # pylint: disable=consider-using-with
            [PROGRAMS / "llama-server", "-m", model, "--port", str(self.port), "-t", "2", "--no-warmup", *arguments],
            env=environment(settings), stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def __enter__(self):
        for _ in range(TIMEOUT * 5):
            try:
                if self.process.poll() is not None:
                    raise AssertionError(self.text()[-2000:])
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=TIMEOUT):
                    return self
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.2)
        raise AssertionError("llama-server does not answer")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(TIMEOUT)
        self.counters = counters(self.text())
        self.log.close()

    def text(self):
        return pathlib.Path(self.log.name).read_text(encoding="utf-8", errors="replace")

    def post(self, path, **body):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return json.load(answer)

    def complete(self, prompt, n=24, **more):
        return self.post("/completion", prompt=prompt, n_predict=n, temperature=0, n_probs=3, ignore_eos=True, **more)


class Programs(unittest.TestCase):
    maxDiff = None

    def same(self, plain, ours, near=NEAR):
        """Answers of llama-server: the same tokens, and logarithms of their probabilities that are near. Their difference."""
        worst = 0.0
        for place, (a, b) in enumerate(zip(plain["completion_probabilities"], ours["completion_probabilities"], strict=True)):
            if a["id"] != b["id"]:
                of = {entry["id"]: entry["logprob"] for entry in a["top_logprobs"]}
                gap = a["logprob"] - of.get(b["id"], -99)
                self.assertLess(gap, near, f"token {place}: {a['token']!r} and {b['token']!r}")
                print(f"  {self.id()}: near tie at token {place}: {a['token']!r}, {b['token']!r}, {gap:.4f} apart")
                break
            worst = max(worst, abs(a["logprob"] - b["logprob"]))
        else:
            self.assertEqual(plain["content"], ours["content"])
        print(f"  {self.id()}: {place + 1} tokens, logarithms of probabilities differ by {worst:.4f}", flush=True)
        self.assertLess(worst, near)
        return worst

    def compare(self, scenario, *arguments, near=NEAR):
        """A scenario, a function of a server that gives a list of answers, on llama.cpp alone and with the plug-in."""
        answers = []
        for settings in (None, "dense=1"):
            with Server(TINY, settings, "-fa", "on", *arguments) as server:
                answers.append(scenario(server))
        for plain, ours in zip(*answers, strict=True):
            self.same(plain, ours, near)
        print(f"  {self.id()}: {server.counters}", flush=True)
        return server.counters

    def test_text(self):
        # ggml rounds queries to the type of the cache, or to 8 bits where it is quantised; our kernels do not.
        for cache, near in (("f16", NEAR), ("bf16", 0.05), ("q8_0", 0.05), ("q4_0", 0.15)):
            with self.subTest(cache):
                counts = self.compare(lambda s: [s.complete(LONG, 48)], "-c", "4096", "-ub", "512", "-ctk", cache, "-ctv", cache,
                                      near=near)
                self.assertGreater(counts["dense"], 0, counts)

    def test_flash_attention_auto_stays_on(self):
        with Server(TINY, "dense=1", "-c", "2048", "-ub", "512") as server:
            server.complete(SHORT, 1)
        self.assertGreater(server.counters["dense"], 0, server.counters)

    def test_cache_is_used_again(self):
        def scenario(server):
            answers = [server.complete(LONG), server.complete(LONG + SHORT), server.complete(LONG)]
            self.assertGreater(answers[1]["timings"]["cache_n"], 1000)
            return answers
        self.assertGreater(self.compare(scenario, "-c", "4096", "-ub", "512", "-np", "1")["dense"], 0)

    def test_pieces_of_the_cache_move(self):
        # The middle is taken out: what comes after it is shifted, and new rows go into the gap.
        def scenario(server):
            answers = [server.complete(LONG[:2000] + LONG[3000:]), server.complete(LONG[:2000] + LONG[4000:] + SHORT)]
            self.assertGreater(answers[1]["timings"]["cache_n"], 700)
            return answers
        counts = self.compare(scenario, "-c", "4096", "-ub", "512", "-np", "1", "--cache-reuse", "64")
        self.assertGreater(counts["mask not causal"], 0, counts)

    def test_slots_are_saved_and_restored(self):
        with tempfile.TemporaryDirectory() as folder:
            def scenario(server):
                answers = [server.complete(LONG)]
                server.post("/slots/0?action=save", filename="slot")
                server.complete(SHORT, 1)
                server.post("/slots/0?action=restore", filename="slot")
                answers.append(server.complete(LONG + SHORT))
                self.assertGreater(answers[1]["timings"]["cache_n"], 1000)
                return answers
            counts = self.compare(scenario, "-c", "4096", "-ub", "512", "-np", "1", "--cache-ram", "0", "--slot-save-path", folder)
        self.assertGreater(counts["dense"], 0)

    def test_context_shifts(self):
        def scenario(server):
            # One word over and over, so that both servers hold the same tokens.
            word = server.post("/tokenize", content="\n")["tokens"][-1]
            prompt = server.post("/tokenize", content=SHORT, add_special=True)["tokens"]
            first = server.complete(prompt, 1290 - len(prompt), n_discard=300, logit_bias=[[word, 1000]])
            self.assertIn("context shift", server.text())
            more = server.post("/tokenize", content=LONG[:1200])["tokens"]
            first_word = len(server.post("/tokenize", content="", add_special=True)["tokens"])  # it stays
            second = server.complete(prompt[:first_word] + prompt[first_word + 300:] + [word] * 100 + more, 24)
            self.assertGreater(second["timings"]["cache_n"], 400)
            return [first, second]
        counts = self.compare(scenario, "-c", "1280", "-ub", "512", "-np", "1", "--context-shift")
        self.assertGreater(counts["dense"], 0, counts)

    def test_several_at_once(self):
        for unified, reason in (("-kvu", "mask not causal"), ("-no-kvu", "streams")):
            with self.subTest(unified):
                counts = self.compare(lambda s: s.post("/completion", prompt=[SHORT, LONG[:2000], TEXT[9000:11500]], n_predict=16,
                                                       temperature=0, n_probs=3, ignore_eos=True),
                                      "-c", "8192", "-ub", "1024", "-np", "4", unified)
                self.assertGreater(counts[reason], 0, counts)

    def test_requests_from_several_clients(self):
        with Server(TINY, "dense=1", "-fa", "on", "-c", "8192", "-ub", "512", "-np", "4") as server, \
                concurrent.futures.ThreadPoolExecutor(4) as pool:
            prompts = [TEXT[i * 1500:i * 1500 + 2500] for i in range(4)]
            together = list(pool.map(server.complete, prompts))
            for prompt, answer in zip(prompts, together, strict=True):
                self.same(server.complete(prompt, cache_prompt=False), answer)

    def test_draft_model(self):
        def scenario(server):
            answer = server.complete(LONG, 200)
            self.assertGreater(answer["timings"]["draft_n"], 0)
            return [answer]
        counts = self.compare(scenario, "-c", "4096", "-ub", "512", "-np", "1", "-md", str(TINY), "--spec-type",
                              "draft-simple", "--spec-draft-n-max", "80", "--spec-draft-p-min", "0")
        self.assertGreater(counts["dense"], 0)

    def test_sparse(self):
        with Server(TINY, "", "-fa", "on", "-c", "8192", "-ub", "1024", "-np", "1") as server:
            answer = server.complete(TEXT[:13000])
            self.assertGreater(answer["timings"]["prompt_n"], 2500)
            self.assertEqual(len(answer["completion_probabilities"]), 24)
        self.assertGreater(server.counters["sparse"], 0, server.counters)

    def perplexity(self, model, settings, *arguments):
        out, log = program("llama-perplexity", "-m", model, *arguments, settings=settings)
        found = float(re.search(r"Final estimate: PPL = ([\d.]+)", out + log)[1])
        print(f"  {self.id()}: {model.name}, {settings}, {' '.join(map(str, arguments[2:]))}: {found} {counters(log)}", flush=True)
        return found, counters(log)

    def test_perplexity(self):
        arguments = ("-f", MODELS / "eval-16k.txt", "-fa", "on", "-c", 4096, "-b", 1024, "-ub", 1024, "--chunks", 2)
        alone, _ = self.perplexity(TINY, None, *arguments)
        dense, _ = self.perplexity(TINY, "dense=1", *arguments)
        sparse, counts = self.perplexity(TINY, "", *arguments)
        self.assertLess(abs(dense / alone - 1), 2e-4)
        self.assertLess(sparse / alone - 1, 0.03)
        self.assertGreater(counts["sparse"], 0)

    def test_perplexity_of_real_models(self):
        # With quantised weights llama.cpp's own ways differ by some thousandths, by -fa and by -ub.
        for model in (SMOLLM2, GEMMA3):
            with self.subTest(model.name):
                arguments = ("-f", TEXT_FILE, "-c", 1024, "-b", 512, "-ub", 512, "--chunks", 2)
                exact, _ = self.perplexity(model, None, *arguments, "-fa", "off", "-ctk", "f32", "-ctv", "f32")
                alone, _ = self.perplexity(model, None, *arguments, "-fa", "on")
                ours, counts = self.perplexity(model, "dense=1", *arguments, "-fa", "on")
                self.assertLess(abs(alone / exact - 1), 0.01)
                self.assertLess(abs(ours / exact - 1), 0.01)
                self.assertGreater(counts["dense"], 0, counts)
                if model == GEMMA3:
                    self.assertGreater(counts["mask not causal"], 0, counts)  # beyond the width of a window

    def test_command_line(self):
        for name, more in (("llama-completion", ("-no-cnv",)), ("llama-cli", ("-st", "--no-show-timings", "--simple-io"))):
            with self.subTest(name), tempfile.NamedTemporaryFile("w") as prompt:
                prompt.write(LONG)
                prompt.flush()
                arguments = ("-m", TINY, "-f", prompt.name, "-n", 24, "--temp", 0, "-c", 4096, "-fa", "on", *more)
                plain, _ = program(name, *arguments)
                ours, log = program(name, *arguments, settings="dense=1")
                self.assertEqual(plain, ours)
                self.assertGreater(counters(log)["dense"], 0)

    def test_what_is_refused_is_one_line(self):
        arguments = ("-m", TINY, "-p", SHORT, "-n", 4, "--temp", 0, "-no-cnv", "-fa", "on")
        plain, _ = program("llama-completion", *arguments)
        for settings, plugin, line in (("memory=1", PLUGIN, "takes nothing: HEADWATER_GGML: 'memory=1'; allowed: 64 .. 1048576"),
                                       ("", OTHER_VERSION, "not used: the host has ggml ")):
            out, log = program("llama-completion", *arguments, settings=settings, plugin=plugin)
            lines = [entry for entry in log.splitlines() if "ggml-headwater: " in entry]
            self.assertEqual(out, plain)
            self.assertEqual(len(lines), 1, lines)
            self.assertIn(line, lines[0])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[6:]], verbosity=2)
