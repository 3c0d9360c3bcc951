"""What the tests of `headwater serve` share: a server on a free port over the bundled model, and requests to it."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import unittest

PROGRAM = os.environ["HEADWATER_PROGRAM"]
MODELS = pathlib.Path(__file__).resolve().parents[2] / "models"
MODEL = str(MODELS / "headwater-tiny-f16.gguf")
TEXT = (MODELS / "eval-4k.txt").read_text(encoding="utf-8")
TIMEOUT = 120  # seconds; only a hang takes that long


class Server:
    """A running server; as a context it ends by SIGTERM, with exit status 0."""

    def __init__(self, *flags, env=None, before=()):
        self.process = subprocess.Popen(
            [*before, PROGRAM, "serve", "-m", MODEL, "--port", "0", "-c", "8192", "-ub", "512", "--chat-template", "chatml", *flags],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **(env or {})})
        self.line = self.process.stdout.readline().decode()
        found = re.search(r"http://([^/]+):(\d+)/", self.line)
        if not found:
            raise RuntimeError(f"no server: {self.process.communicate()}")
        self.host, self.port = found[1], int(found[2])
        self.said = b""
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        self.said = self.process.stderr.read()

    def __enter__(self):
        return self

    def __exit__(self, kind, *rest):
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self.reader.join(TIMEOUT)
        self.process.stdout.close()
        self.process.stderr.close()
        if kind is None and status != 0:
            raise AssertionError(f"status {status}: {self.said.decode()}")

    def connect(self):
        return http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT)

    def ask(self, path, body=None, method=None, headers=None):
        """Status and answer, read as JSON where it is."""
        connection = self.connect()
        text = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        # A body may be refused before all of it is sent; the answer is there then.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request(method or ("GET" if body is None else "POST"), path, text, headers or {})
        response = connection.getresponse()
        data = response.read()
        connection.close()
        if response.getheader("Content-Type", "").startswith("application/json"):
            return response.status, json.loads(data)
        return response.status, data.decode()

    def stream(self, path, body):
        """The chunks of a streamed answer; the last is the text [DONE] where it comes."""
        connection = self.connect()
        connection.request("POST", path, json.dumps({**body, "stream": True}))
        response = connection.getresponse()
        if response.status != 200:
            raise AssertionError(response.read())
        with contextlib.closing(connection):
            for line in response:
                if line.startswith(b"data: "):
                    text = line[6:].decode().strip()
                    yield text if text == "[DONE]" else json.loads(text)

    def metric(self, name):
        found = re.search(rf"^headwater_{name} (\S+)$", self.ask("/metrics")[1], re.MULTILINE)
        return float(found[1])


class Served(unittest.TestCase):
    """Tests of one server."""
    FLAGS = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.FLAGS)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__(None)

    def refused(self, path, body, status, names, **more):
        got, answer = self.server.ask(path, body, **more)
        self.assertEqual(got, status, answer)
        self.assertIn(names, answer["error"]["message"])
        self.assertNotIn("\n", answer["error"]["message"])
