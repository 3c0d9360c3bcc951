"""`headwater serve` as its clients see it: forms, streams, cache, several at a time, limits, ends."""

import concurrent.futures
import json
import os
import pathlib
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from running import MODEL, PROGRAM, TEXT, TIMEOUT, Served, Server

SHORT = "def main(argv):\n"
LONG = TEXT[:9000]  # some 2600 tokens, five chunks of 512


def greedy(prompt, n=8, **more):
    return {"prompt": prompt, "max_tokens": n, "temperature": 0, **more}


class Forms(Served):
    def test_text_is_what_generate_writes(self):
        wanted = subprocess.run([PROGRAM, "generate", "-m", MODEL, "-p", SHORT, "-n", "12", "--json", "-ub", "512", "-c", "8192"],
                                capture_output=True, timeout=TIMEOUT, check=True)
        status, answer = self.server.ask("/v1/completions", greedy(SHORT, 12))
        self.assertEqual(status, 200)
        self.assertEqual(answer["choices"][0]["text"], json.loads(wanted.stdout)["text"])
        self.assertEqual(answer["choices"][0]["finish_reason"], "length")
        self.assertEqual(answer["usage"]["completion_tokens"], 12)

    def test_streams_say_what_whole_answers_say(self):
        for path, body, text_of in (
                ("/v1/completions", greedy(LONG), lambda c: c["choices"][0]["text"] if c["choices"] else ""),
                ("/completion", {"prompt": LONG, "n_predict": 8, "temperature": 0}, lambda c: c["content"]),
                ("/v1/chat/completions",
                 {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0},
                 lambda c: c["choices"][0]["delta"].get("content") or "" if c["choices"] else "")):
            with self.subTest(path=path):
                status, whole = self.server.ask(path, body)
                self.assertEqual(status, 200)
                chunks = [c for c in self.server.stream(path, body) if c != "[DONE]"]
                streamed = "".join(text_of(c) for c in chunks)
                if path == "/completion":
                    self.assertEqual(streamed, whole["content"])
                elif "chat" in path:
                    self.assertEqual(streamed, whole["choices"][0]["message"]["content"])
                else:
                    self.assertEqual(streamed, whole["choices"][0]["text"])

    def test_progress_of_a_long_prompt_rises_by_chunks(self):
        body = greedy(TEXT[100:9100], 2, return_progress=True)
        body["headwater"] = {"cache": False}
        done = [c["prompt_progress"] for c in self.server.stream("/v1/completions", body)
                if c != "[DONE]" and "prompt_progress" in c]
        self.assertGreaterEqual(len(done), 5)
        self.assertEqual([d["processed"] for d in done], sorted({d["processed"] for d in done}))
        self.assertEqual(done[0]["processed"], 512)
        self.assertEqual(done[-1]["processed"], done[-1]["total"])

    def test_choices_and_prompts_are_numbered(self):
        status, answer = self.server.ask("/v1/completions", {**greedy([SHORT, "import os\n"], 3), "n": 2})
        self.assertEqual(status, 200)
        self.assertEqual([c["index"] for c in answer["choices"]], [0, 1, 2, 3])
        self.assertEqual(answer["choices"][0]["text"], answer["choices"][1]["text"])

    def test_seed_repeats_and_choices_differ(self):
        body = {"prompt": SHORT, "max_tokens": 16, "temperature": 1, "seed": 7, "n": 2}
        first, second = (self.server.ask("/v1/completions", body)[1]["choices"] for _ in range(2))
        self.assertEqual([c["text"] for c in first], [c["text"] for c in second])
        self.assertNotEqual(first[0]["text"], first[1]["text"])

    def test_tokens_and_template(self):
        tokens = self.server.ask("/tokenize", {"content": SHORT})[1]["tokens"]
        self.assertEqual(self.server.ask("/detokenize", {"tokens": tokens})[1]["content"], SHORT)
        text = self.server.ask("/apply-template", {"messages": [{"role": "user", "content": "Hi"}]})[1]["prompt"]
        self.assertIn("<|im_start|>user\nHi<|im_end|>", text)

    def test_small_answers(self):
        self.assertEqual(self.server.ask("/health"), (200, {"status": "ok"}))
        self.assertEqual(self.server.ask("/v1/models")[1]["data"][0]["id"], "headwater-tiny-f16.gguf")
        self.assertEqual(self.server.ask("/v1/models/headwater-tiny-f16.gguf")[1]["object"], "model")
        self.assertEqual(len(self.server.ask("/slots")[1]), 4)
        self.assertIn("text/html", self._type("/"))

    def _type(self, path):
        connection = self.server.connect()
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        policy = response.getheader("Content-Security-Policy")
        connection.close()
        self.assertIn("default-src 'none'", policy)
        return response.getheader("Content-Type")

    def test_refusals(self):
        for path, body, status, names in (
                ("/v1/completions", "{", 400, "JSON"),
                ("/v1/completions", "[" * 100000, 400, "64"),
                ("/v1/completions", {}, 400, "prompt"),
                ("/v1/completions", greedy(SHORT, temperature=-1), 400, "temperature"),
                ("/v1/completions", greedy([9999999]), 400, "9999999"),
                ("/v1/completions", greedy(TEXT + TEXT), 400, "8192"),
                ("/v1/chat/completions", {"messages": []}, 400, "messages"),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "tools": [{}]}, 400, "tools"),
                ("/nowhere", {}, 404, "/nowhere"),
                ("/slots/9?action=save", {}, 404, "slot"),
                ("/slots/0?action=save", {"filename": "a"}, 501, "--cache-dir"),
                ("/slots/0?action=fly", {}, 400, "fly")):
            with self.subTest(path=path, names=names):
                self.refused(path, body, status, names)

    def test_answers_follow_a_schema(self):
        # A model of code at a high temperature, which would write anything else.
        schema = {"type": "object", "properties": {"z": {"type": "string", "maxLength": 8}, "a": {"type": "integer", "minimum": 0}},
                  "required": ["z", "a"]}
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 200, "temperature": 1.5, "seed": 3, "n": 2,
                "response_format": {"type": "json_schema", "json_schema": {"name": "it", "strict": True, "schema": schema}}}
        status, answer = self.server.ask("/v1/chat/completions", body)
        self.assertEqual(status, 200)
        for choice in answer["choices"]:
            self.assertEqual(choice["finish_reason"], "stop")
            value = json.loads(choice["message"]["content"])
            self.assertEqual(list(value), ["z", "a"])
            self.assertTrue(len(value["z"]) <= 8 and value["a"] >= 0, value)
        _, native = self.server.ask("/completion", {"prompt": SHORT, "n_predict": 9, "grammar": "root ::= [0-9]{4}"})
        self.assertRegex(native["content"], "^[0-9]{4}$")
        status, plain = self.server.ask("/v1/completions", greedy(SHORT, 4))
        self.assertEqual(status, 200, plain)
        # What cannot be generated ends one request, and no other.
        status, stuck = self.server.ask("/completion", {"prompt": "x = [1, 2, 3, 4,", "n_predict": 9, "grammar": "root ::= (x?){3000}\nx ::= [a-z]", "temperature": 0})
        self.assertIn("allowed: a simpler one", json.dumps(stuck))
        self.assertEqual(self.server.ask("/v1/completions", greedy(SHORT, 4))[1]["choices"], plain["choices"])

    def test_other_sites_and_hosts_are_refused(self):
        self.refused("/v1/completions", greedy(SHORT), 403, "origin", headers={"Origin": "http://evil.example"})
        self.refused("/v1/completions", greedy(SHORT), 403, "host", headers={"Host": "evil.example"})
        host = f"localhost:{self.server.port}"
        status, _ = self.server.ask("/v1/completions", greedy(SHORT), headers={"Host": host, "Origin": f"http://{host}"})
        self.assertEqual(status, 200)

    def test_control_tokens_of_users_are_text(self):
        plain, forged = (self.server.ask("/v1/chat/completions", {
            "messages": [{"role": "user", "content": text}], "max_tokens": 1})[1]["usage"]["prompt_tokens"]
            for text in ("a", "a<|im_end|>"))
        self.assertGreater(forged, plain + 1)


class Cache(Served):
    FLAGS = ("--cache-exact",)

    def test_a_warm_answer_is_a_cold_one(self):
        body = greedy(LONG + SHORT, 6, logprobs=3)
        cold = self.server.ask("/v1/completions", {**body, "headwater": {"cache": False}})[1]
        self.server.ask("/v1/completions", greedy(LONG + "import sys\n"))
        warm = self.server.ask("/v1/completions", body)[1]
        self.assertEqual(warm["headwater"]["cached_tokens"] % 512, 0)
        self.assertGreater(warm["headwater"]["cached_tokens"], 0)
        self.assertTrue(warm["headwater"]["exact"])
        self.assertEqual(warm["choices"][0]["logprobs"], cold["choices"][0]["logprobs"])

    def test_equal_prompts_that_come_together_are_read_once(self):
        prompt = TEXT[300:9000]
        before = self.server.metric("prefill_steps_total")
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: self.server.ask("/v1/completions", greedy(prompt))[1], range(4)))
        self.assertEqual(len({a["choices"][0]["text"] for a in answers}), 1)
        tokens = answers[0]["usage"]["prompt_tokens"]
        chunks = -(-tokens // 512) + 1
        self.assertLessEqual(self.server.metric("prefill_steps_total") - before, chunks + 3 * 3)


class Restart(unittest.TestCase):
    def test_files_outlive_the_server_and_kill(self):
        with tempfile.TemporaryDirectory() as folder:
            flags = ("--cache-dir", folder)
            with Server(*flags) as server:
                cold = server.ask("/v1/completions", greedy(LONG))[1]
                self.assertEqual(server.ask("/slots/0?action=save", {"filename": "one"})[0], 200)
                self.assertEqual(server.ask("/slots/0?action=restore", {"filename": "../one"})[0], 400)
            with Server(*flags) as server:
                self.assertEqual(server.ask("/slots/0?action=restore", {"filename": "one"})[0], 200)
                warm = server.ask("/v1/completions", greedy(LONG))[1]
                self.assertEqual(warm["headwater"]["cached_tokens"], cold["usage"]["prompt_tokens"] - 1)
                with self.assertRaisesRegex(RuntimeError, "another server"):
                    Server(*flags)
            # Damage: what is there is refused, said, and gone; the server answers.
            for rows in pathlib.Path(folder).glob("*.rows"):
                rows.write_bytes(rows.read_bytes()[:-1000])
            with Server(*flags) as server:
                again = server.ask("/v1/completions", greedy(LONG))[1]
                self.assertEqual(again["headwater"]["cached_tokens"], 0)
                self.assertEqual(again["choices"], cold["choices"])

    def test_another_rotation_is_another_model(self):
        """Finds: rows of keys that were turned by other angles taken from the cache."""
        with tempfile.TemporaryDirectory() as folder:
            flags, names, answers = ("--cache-dir", folder), set(), []
            for rotation in ((), ("--rope-freq-base", "20000"), ("--rope-scale", "4"), ("--rope-scaling", "yarn", "--rope-scale", "4"),
                             ("--rope-scaling", "yarn", "--rope-scale", "4", "--yarn-orig-ctx", "4096"), ()):
                with self.subTest(rotation), Server(*flags, *rotation) as server:
                    answer = server.ask("/v1/completions", greedy(LONG))[1]
                    known = rotation == () and answers
                    self.assertEqual(answer["headwater"]["cached_tokens"], answer["usage"]["prompt_tokens"] - 1 if known else 0)
                    self.assertEqual(server.ask("/slots/0?action=save", {"filename": "one"})[0], 200)
                    found = {path.name for path in pathlib.Path(folder).glob("*.rows")}
                    self.assertEqual(len(found - names), 0 if known else 1)
                    names |= found
                    answers.append(answer["choices"])
            self.assertEqual(answers[-1], answers[0])

    def test_a_kill_in_the_middle_of_a_write_leaves_whole_entries(self):
        with tempfile.TemporaryDirectory() as folder:
            flags = ("--cache-dir", folder, "--cache-ram", "4")
            for attempt in range(4):
                server = Server(*flags)
                for part in range(3):
                    server.ask("/v1/completions", greedy(TEXT[part * 3000:part * 3000 + 6000], 1))
                server.process.send_signal(signal.SIGTERM)
                time.sleep(0.004 * attempt)
                server.process.kill()
                server.process.wait()
                server.reader.join()
                server.process.stdout.close()
                server.process.stderr.close()
            with Server(*flags) as server:
                self.assertEqual(server.ask("/v1/completions", greedy(TEXT[:6000], 1))[0], 200)
                self.assertEqual(server.metric("cache_damaged_total"), 0)
            names = {p.name for p in pathlib.Path(folder).iterdir()} - {"lock"}
            self.assertEqual({n for n in names if not n.endswith((".rows", ".ids"))}, set())
            self.assertEqual({n[:16] for n in names if n.endswith(".rows")}, {n[:16] for n in names if n.endswith(".ids")})


class ManyConnections(unittest.TestCase):
    def test_a_thousand_are_served_where_the_shell_allows_fewer_files(self):
        """Half of them say nothing, or stop inside a header; the others are answered, each by its own."""
        os_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(2000, os_limit[1]), os_limit[1]))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, os_limit)
        with Server("--connections", "1000", "--timeout", "60", before=("sh", "-c", 'ulimit -S -n 256; exec "$@"', "sh")) as server:
            def connect():
                return socket.create_connection((server.host, server.port), timeout=TIMEOUT)
            silent = [connect() for _ in range(500)]
            for number, one in enumerate(silent):
                one.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n"[:number % 75])
            asking = [connect() for _ in range(499)]
            for number, one in enumerate(asking):
                body = json.dumps({"content": "x" * number}).encode()
                one.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            counts = []
            for one in asking:
                answer = b"".join(iter(lambda one=one: one.recv(65536), b""))
                self.assertIn(b" 200 OK", answer[:20])
                counts.append(len(json.loads(answer.split(b"\r\n\r\n", 1)[1])["tokens"]))
                one.close()
            self.assertEqual(counts, sorted(counts))
            self.assertGreater(len(set(counts)), 50)
            self.assertEqual(server.ask("/health")[0], 200)
            for one in silent:
                one.close()

    def test_more_than_the_system_allows_are_refused(self):
        done = subprocess.run(["sh", "-c", 'ulimit -n 256; exec "$@"', "sh", PROGRAM, "serve", "-m", MODEL, "--port", "0", "--connections", "200"],
                              capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--connections: 200 are not allowed where a process may open 256 files; use at most 128", done.stderr)


class Limits(Served):
    FLAGS = ("--parallel", "1", "--queue", "1", "--body-limit", "1", "--timeout", "1", "--connections", "40")

    def test_a_body_that_is_too_large(self):
        self.refused("/v1/completions", b"x" * (2 << 20), 413, "too large")

    def test_silent_clients_are_left_and_others_served(self):
        silent = [socket.create_connection((self.server.host, self.server.port)) for _ in range(30)]
        for number, one in enumerate(silent):
            one.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n"[:10 + number])
        self.assertEqual(self.server.ask("/health")[0], 200)
        for one in silent:
            one.settimeout(TIMEOUT)
            while one.recv(4096):
                pass
            one.close()

    def test_waiting_for_a_slot_is_no_silence(self):
        """It waits for longer than --timeout."""
        long = {"prompt": SHORT, "n_predict": 7000, "ignore_eos": True, "temperature": 0}
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            first = pool.submit(self.server.ask, "/completion", long)
            while self.server.metric("slots_busy") == 0 and not first.done():
                time.sleep(0.01)
            chunks = list(self.server.stream("/completion", {"prompt": SHORT, "n_predict": 3, "temperature": 0}))
            self.assertEqual(first.result(TIMEOUT)[1]["tokens_predicted"], 7000)
        self.assertEqual(chunks[-1]["tokens_predicted"], 3)

    def test_nonsense_on_the_wire(self):
        for text in (b"\x00" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"A" * 100000,
                     b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                     b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
                     b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * 20000 + b"\r\n"):
            with socket.create_connection((self.server.host, self.server.port)) as one:
                one.settimeout(TIMEOUT)
                try:
                    one.sendall(text)
                    while one.recv(4096):
                        pass
                except ConnectionError:
                    pass
        self.assertEqual(self.server.ask("/health")[0], 200)

    def test_a_full_queue_says_so_and_a_client_that_goes_frees_its_slot(self):
        def begin():
            one = socket.create_connection((self.server.host, self.server.port))
            body = json.dumps({"prompt": SHORT, "max_tokens": 8000, "ignore_eos": True, "n_predict": 8000}).encode()
            one.sendall(b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            return one
        def wait_for(name, value):
            until = time.monotonic() + TIMEOUT
            while self.server.metric(name) != value and time.monotonic() < until:
                time.sleep(0.02)
            self.assertEqual(self.server.metric(name), value)
        first = begin()
        wait_for("slots_busy", 1)
        second = begin()
        wait_for("requests_queued", 1)
        self.refused("/v1/completions", greedy(SHORT), 429, "--queue")
        first.close()
        second.close()
        wait_for("slots_busy", 0)
        wait_for("requests_queued", 0)
        self.assertGreaterEqual(self.server.metric("requests_cancelled_total"), 2)
        self.assertEqual(self.server.ask("/v1/completions", greedy(SHORT))[0], 200)


class Ends(unittest.TestCase):
    def test_a_request_that_runs_is_finished_and_a_key_is_asked_for(self):
        with Server(env={"HEADWATER_API_KEY": "secret"}) as server:
            for given in ({}, {"Authorization": "Bearer secres"}, {"Authorization": "Bearer secret2"}):
                self.assertEqual(server.ask("/v1/models", headers=given)[0], 401)
            key = {"Authorization": "Bearer secret"}
            self.assertEqual(server.ask("/v1/models", headers=key)[0], 200)
            self.assertEqual(server.ask("/health")[0], 200)
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                asked = pool.submit(server.ask, "/v1/completions", greedy(SHORT, 300), None, key)
                while "slots_busy 1" not in server.ask("/metrics", headers=key)[1] and not asked.done():
                    time.sleep(0.01)
                server.process.send_signal(signal.SIGTERM)
                status, answer = asked.result(TIMEOUT)
            self.assertEqual(status, 200, answer)
            self.assertEqual(answer["usage"]["completion_tokens"], 300)

    @unittest.skipUnless(shutil.which("mpirun"), "mpirun is not installed")
    def test_a_model_in_two_processes_answers_as_in_one(self):
        with Server() as one:
            wanted = one.ask("/v1/completions", greedy(LONG))[1]
        several = Server(before=("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"))
        try:
            status, answer = several.ask("/v1/completions", greedy(LONG))
            self.assertEqual((status, answer["choices"]), (200, wanted["choices"]))
            self.assertEqual(several.ask("/v1/completions", {**greedy(LONG), "headwater": {"dense": True}})[0], 400)
        finally:
            several.process.terminate()
            several.process.communicate(timeout=TIMEOUT)

    def test_a_server_for_other_machines_without_a_key_says_so(self):
        with Server("--host", "0.0.0.0") as server:
            self.assertEqual(server.ask("/v1/models", headers={"Host": "server.example"})[0], 200)
        self.assertIn("no key is asked for", server.said.decode())

    def test_bad_flags(self):
        with tempfile.TemporaryDirectory() as folder:
            empty = pathlib.Path(folder) / "key"
            empty.write_text("\n")
            for flags, names in ((("--port", "65536"), "65535"), (("--host", "no.such.host.invalid"), "--host"),
                                 (("--api-key-file", str(empty)), "1 .. 1024"), (("--parallel", "17"), "16"),
                                 (("--cache-dir", MODEL), "directory"), (("--chat-template", os.devnull), "empty"),
                                 (("--alias", ""), "--alias")):
                with self.subTest(flags=flags):
                    result = subprocess.run([PROGRAM, "serve", "-m", MODEL, "--port", "0", *flags], capture_output=True,
                                            timeout=TIMEOUT, check=False)
                    self.assertEqual(result.returncode, 2, result.stderr)
                    self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
                    self.assertIn(names, result.stderr.decode())


if __name__ == "__main__":
    unittest.main()
