"""Drives a headless Chromium by its DevTools protocol over a pipe, with the standard library alone."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT = 60  # seconds; only a hang takes that long


def find():
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page of one browser. `problems` has the errors of the page's scripts and console, `requests` the addresses that
    it requested."""

    def __init__(self, width=1400, height=1700):
        self.profile = tempfile.mkdtemp(prefix="headwater-chromium-")
        to_browser, self.write_end = os.pipe()
        self.read_end, from_browser = os.pipe()

        def wire():
            # The browser reads commands from descriptor 3 and answers on 4. Both go through higher numbers, because
            # 3 or 4 may be one of the pipes themselves.
            source, sink = os.dup2(to_browser, 63), os.dup2(from_browser, 64)
            os.dup2(source, 3)
            os.dup2(sink, 4)

        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                 "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
                 "--remote-debugging-pipe", f"--user-data-dir={self.profile}", "about:blank"]
        self.process = subprocess.Popen([find(), *flags], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, preexec_fn=wire, close_fds=False)
        os.close(to_browser)
        os.close(from_browser)
        self.buffer, self.number, self.session = b"", 0, None
        self.problems, self.requests = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])

    def close(self):
        try:
            os.close(self.write_end)
            os.close(self.read_end)
            self.process.terminate()
            self.process.wait(TIMEOUT)
        finally:
            shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def receive(self):
        deadline = time.monotonic() + TIMEOUT
        while b"\0" not in self.buffer:
            if not select.select([self.read_end], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self.read_end, 1 << 20)
            if not data:
                raise RuntimeError("the browser ended")
            self.buffer += data
        text, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(text)
        self.watch(message.get("method"), message.get("params"))
        return message

    def watch(self, method, event):
        if method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning", "assert"):
            self.problems.append(str(event["args"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.problems.append(event["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])

    def evaluate(self, expression):
        """The value of a JavaScript expression, which must not throw."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def open(self, address):
        """Loads a page of the atlas and waits until it has drawn itself."""
        self.problems, self.requests = [], []
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=address)
        self.wait("document.documentElement?.dataset.drawn > 0")

    def wait(self, condition):
        deadline = time.monotonic() + TIMEOUT
        while not self.evaluate(condition):
            if self.problems or time.monotonic() > deadline:
                raise AssertionError(f"never: {condition}; {self.problems}")
            time.sleep(0.02)

    def settle(self):
        """Until what was changed is drawn."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")

    def press(self, key, shift=False):
        text = key if len(key) == 1 else ""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=text if kind == "keyDown" else "",
                      modifiers=8 if shift else 0)
        self.settle()

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)
        self.settle()

    def click(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def state(self):
        """The attributes data-* of the root element, numbers as numbers."""
        found = self.evaluate("({...document.documentElement.dataset})")
        return {key: float(value) if value.lstrip("-").isdigit() else value for key, value in found.items()}

    def box(self, identifier):
        """(left, top, width, height) of an element in the window."""
        box = self.evaluate(f"document.getElementById('{identifier}').getBoundingClientRect().toJSON()")
        return box["left"], box["top"], box["width"], box["height"]

    def picture(self):
        """A PNG of the window."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
