"""Random requests, cancels, disconnects, restarts and kills of `headwater serve`, for so many seconds.

    stress.py SECONDS [SEED]

Every answer to a prompt is the answer that the prompt had first: greedy, with --cache-exact, whatever the cache holds and whoever
else asks. A server that is asked to end ends with status 0; one that is killed leaves whole entries. Exit status 1: something was
otherwise."""

import concurrent.futures
import http.client
import json
import pathlib
import random
import sys
import tempfile
import time

from running import TEXT, TIMEOUT, Server

CLIENTS = 6
PARTS = [TEXT[at:at + 700] for at in range(0, 7000, 700)]
FLAGS = ("--cache-exact", "--parallel", "3", "--queue", "4", "--cache-ram", "10", "--cache-disk", "30", "--grace", "20", "--quiet",
         "-ub", "256", "-c", "4096", "--timeout", "10")


class Client:
    def __init__(self, server, known, seed):
        self.server, self.known, self.random = server, known, random.Random(seed)

    def prompt(self):
        """Few beginnings, so that they meet; what follows differs."""
        first = self.random.randrange(3)
        return "".join(PARTS[(first + i) % len(PARTS)] for i in range(self.random.randrange(1, 5))) + f"# {self.random.randrange(4)}\n"

    def whole(self):
        prompt, n, dense = self.prompt(), self.random.choice((1, 4, 30)), self.random.random() < 0.2
        status, answer = self.server.ask("/v1/completions", {"prompt": prompt, "max_tokens": n, "temperature": 0,
                                                             "headwater": {"dense": dense}})
        if status == 429:
            return
        if status != 200:
            raise AssertionError(answer)
        if not answer["headwater"]["exact"]:
            raise AssertionError("an answer that is not exact, with --cache-exact")
        text = answer["choices"][0]["text"]
        first = self.known.setdefault((prompt, n, dense), text)
        if first != text:
            raise AssertionError(f"{first!r}, then {text!r}, of {answer['headwater']}")

    def left(self):
        """A stream that is left at any place, or a body that ends early."""
        connection = self.server.connect()
        body = json.dumps({"prompt": self.prompt(), "max_tokens": 200, "stream": True, "return_progress": True})
        try:
            connection.request("POST", "/v1/completions", body)
            if self.random.random() < 0.7:
                response = connection.getresponse()
                for _ in range(self.random.randrange(12)):
                    response.fp.readline()
        finally:
            connection.close()

    def nonsense(self):
        path = self.random.choice(("/v1/completions", "/slots/1?action=erase", "/slots/0?action=save", "/slots/0?action=restore", "/tokenize"))
        body = self.random.choice(("{}", "[", '{"prompt": 5}', '{"filename": "a"}', "x" * 1000))
        status, _ = self.server.ask(path, body)
        if status >= 500 and status != 503:
            raise AssertionError(f"{path} {body[:20]}: {status}")

    def work(self, until):
        count = 0
        while time.monotonic() < until:
            self.random.choices((self.whole, self.left, self.nonsense), (6, 3, 1))[0]()
            count += 1
        return count


def life(folder, known, seconds, seed, kill):
    """A server from its start to its end; requests."""
    server = Server(*FLAGS, "--cache-dir", folder)
    until = time.monotonic() + seconds
    count = 0
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        for work in [pool.submit(Client(server, known, seed + i).work, until) for i in range(CLIENTS)]:
            count += work.result(TIMEOUT)
    deadline = time.monotonic() + TIMEOUT
    while server.metric("slots_busy") + server.metric("requests_queued") > 0:
        if time.monotonic() > deadline:
            raise AssertionError("clients have gone, and work goes on")
        time.sleep(0.05)
    for name in ("requests_failed_total", "cache_damaged_total"):
        if server.metric(name) != 0:
            raise AssertionError(f"{name} is {server.metric(name)}")
    if kill:
        server.process.terminate()
        time.sleep(kill)
        server.process.kill()
        server.process.wait()
        server.process.stdout.close()
        server.reader.join()
        server.process.stderr.close()
    else:
        server.__exit__(None)
    return count


def main(seconds, seed=None):
    seed = int(time.time()) if seed is None else int(seed)
    print(f"seed {seed}", flush=True)
    draw = random.Random(seed)
    until = time.monotonic() + float(seconds)
    known, count, lives = {}, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < until or lives < 3:
            kill = draw.random() * 0.05 if lives % 3 == 1 else 0
            count += life(folder, known, min(20, float(seconds) / 4), draw.randrange(1 << 30), kill)
            lives += 1
        left = sorted(p.name for p in pathlib.Path(folder).iterdir() if not p.name.endswith((".rows", ".ids")))
        if [name for name in left if name != "lock" and not name.startswith("slot-")]:
            raise AssertionError(f"left in the cache's directory: {left}")
    print(f"{count} requests, {len(known)} prompts, {lives} servers: as they should be")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (AssertionError, RuntimeError, OSError, http.client.HTTPException) as error:
        sys.exit(f"stress: {type(error).__name__}: {error}")
