"""The chat page of `headwater serve` in a headless Chromium, before a scripted server."""

import base64
import http.server
import json
import mimetypes
import pathlib
import sys
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/atlas"))
import browser
import running

POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
          "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
NO_BROWSER = 77  # SKIP_RETURN_CODE
FACTS = {"headwater": {"pairs": {"computed": 182, "dense": 1000}},
         "usage": {"prompt_tokens": 32000, "completion_tokens": 212, "prompt_tokens_details": {"cached_tokens": 2048}},
         "timings": {"prompt_ms": 3100, "predicted_ms": 8400, "predicted_per_second": 25.24}}
# Rows of 16 and 12 queries; of the 16 tokens of a column layer 1 reads all and a fifth, then none, all and a fifth.
ATLAS = {"layers": 2, "columns": 4, "column_tokens": 16, "rows": [[32, 48], [48, 60]],
         "shares": base64.b64encode(bytes([255, 51, 0, 0, 0, 0, 0, 0, 0, 255, 51, 0, 51, 51, 51, 0])).decode()}
NASTY = "Grüße 🙂 <img src=x onerror=alert(1)>\n\n```html\n </pre><script>\n````\n~~~\nb"
LAST = "#messages > li:last-child"


def chunk(data):
    return f"data: {json.dumps(data, ensure_ascii=False)}\r\n\r\n".encode()


def delta(text):
    return chunk({"choices": [{"delta": {"content": text}}]})


def fail(words):
    return chunk({"error": {"message": words}})


def answer(text):
    return [delta(text), chunk(FACTS), b"data: [DONE]"]


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by the script: (status, steps) of each request. A step is sent or waits."""
    log_message = lambda *_: None

    def reply(self, kind, data=b"", status=200):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path == "/v1/models":
            return self.reply("application/json", json.dumps({"data": [{"id": NASTY * 5}]}).encode())
        name = self.path[1:] or "page.html"
        self.reply(mimetypes.guess_type(name)[0], (ROOT / "cli/commands/serve/page" / name).read_bytes())

    def do_POST(self):
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.keys.append(self.headers["Authorization"])
        status, steps = self.server.script.pop(0)
        self.reply("text/event-stream", status=status)
        try:
            for step in steps:
                time.sleep(0.002)  # each step is sent alone
                if callable(step):
                    step(browser.TIMEOUT)
                else:
                    self.wfile.write(step)
        except ConnectionError:
            self.server.gone.set()


class Browser(browser.Browser):
    def watch(self, method, event):
        if method != "Log.entryAdded" or event["entry"]["source"] != "network":  # a refused request is no fault
            super().watch(method, event)


class ChatTest(unittest.TestCase):
    """For any server: base_url() says where it is."""

    @classmethod
    def setUpClass(cls):
        cls.browser = Browser(900, 900)
        cls.addClassCleanup(cls.browser.close)
        cls.js, cls.wait, cls.call = cls.browser.evaluate, cls.browser.wait, cls.browser.call

    def setUp(self):
        url = self.base_url()
        self.open = lambda: self.browser.open(url)
        self.open()

    def tearDown(self):
        self.assertEqual(self.browser.problems, [])

    def key(self, key, shift=False):
        code = {"Tab": 9, "Enter": 13, "Escape": 27}[key]
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, text=chr(code), modifiers=8 * shift)

    def type(self, text, into="input"):
        self.js(f"at('{into}').focus()")
        self.call("Input.insertText", text=text)

    def say(self, text):
        self.type(text)
        self.key("Enter")

    def texts(self, selector):
        return self.js(f"[...document.querySelectorAll('{selector}')].map((e) => e.innerText)")

    def wait_text(self, text, selector=LAST):
        self.wait(f"document.querySelector('{selector}')?.innerText.includes({json.dumps(text)})")

    def idle(self):
        self.wait("!('running' in document.documentElement.dataset)")

    def push(self, selector):
        self.assertTrue(self.js(f"((e) => e.checkVisibility() && (e.click(), true))(document.querySelector('{selector}'))"))


class Page(ChatTest):
    def base_url(self):
        self.server = server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.script, server.bodies, server.keys, server.gone = [], [], [], threading.Event()
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        self.addCleanup(lambda: (server.shutdown(), server.server_close()))
        return f"http://127.0.0.1:{server.server_port}/"

    def ask(self, text, *steps):
        self.server.script.append((200, steps or answer("Yes.")))
        self.say(text)

    def chat(self, *what):
        self.ask(*what)
        self.idle()

    def sent(self):
        return [(one["role"], one["content"]) for one in self.server.bodies[-1]["messages"]]

    def test_an_answer(self):
        read = threading.Event()
        progress = chunk({"prompt_progress": {"total": 32000, "cache": 2048, "processed": 4096}})
        self.type("First")
        self.key("Enter", shift=True)
        self.ask("second", b": hello\r\n", progress, read.wait, delta("One\n"), *answer("two."))
        self.wait_text("read 4096 of 32000 tokens, 2048 from the cache")
        self.assertTrue(self.texts('[role=progressbar][aria-valuenow="4096"]'))
        read.set()
        self.wait_text("One\ntwo.", f"{LAST} [aria-live=polite]")
        self.idle()
        self.assertEqual(self.texts("#messages .facts span"), [
            "2048 of 32000 prompt tokens from the cache", "29952 computed in 3.10 s",
            "212 tokens written in 8.40 s, 25.2 tokens/s", "18.2 % of the attention pairs of dense prefill"])
        bar = '[aria-label="Of 32000 prompt tokens 2048 came from the cache, 29952 were computed"]'
        self.assertEqual(self.js(f"document.querySelector('{bar}').firstChild.style.width"), "6.4%")
        self.assertEqual(self.server.bodies, [{
            "messages": [{"role": "user", "content": "First\nsecond"}],
            "stream": True, "stream_options": {"include_usage": True}, "return_progress": True, "headwater": {"atlas": True, "dense": False}}])
        before = self.texts("ol")
        self.open()
        self.assertEqual(self.texts("ol"), before)

    def test_half_an_answer(self):
        """The server learns that nobody listens. What came stays, but does not come into a new chat."""
        for leave, kept in ((lambda: self.key("Escape"), 2), (lambda: self.push("#stop"), 4), (self.open, 6),
                            (lambda: self.push("#new"), 0)):
            self.server.gone.clear()
            self.ask("Talk", delta("Half"), *10000 * [b": still here\n\n"])
            self.wait_text("Half")
            leave()
            self.idle()
            self.assertTrue(self.server.gone.wait(browser.TIMEOUT))
            self.assertEqual(len(self.texts("li")), kept)
        self.assertEqual(self.sent(), (4 * [("user", "Talk"), ("assistant", "Half")])[:-1])
        self.open()
        self.assertEqual(self.texts("li"), [])

    def test_regenerate_and_edit(self):
        self.chat("One", *answer("A"))
        self.chat("Two", *answer("B"))
        self.server.script.append((200, answer("C")))
        self.push(f"{LAST} .again")
        self.wait_text("C")
        self.idle()
        self.assertEqual(self.sent(), [("user", "One"), ("assistant", "A"), ("user", "Two")])
        self.type("a draft")
        self.push(".edit")
        self.chat(" more")
        self.assertEqual(self.sent(), [("user", "One more")])
        self.assertEqual(self.js("input.value"), "a draft")

    def test_documents(self):
        drop = "document.body.dispatchEvent(new DragEvent('drop', {dataTransfer, bubbles: true, cancelable: true}))"
        choose = "at('file').files = dataTransfer.files; at('file').onchange()"
        for content, words, give in (("new Uint8Array([255])", "no UTF-8", drop), ("'x'.repeat(1500)", "attached", drop),
                                     ("new Uint8Array(8388609)", "over the limit", drop), ("'ä'", "attached", choose)):
            self.js(f"((dataTransfer) => {{ dataTransfer.items.add(new File([{content}], '<b>')); {give} }})(new DataTransfer())")
            self.wait_text(f"<b>: {words}", "#status")
        self.assertIn("<b>, 1.5 kB", self.texts("#chips li")[0])
        self.push("#chips button")
        self.chat("Sum up")
        self.assertEqual(self.sent(), [("user", "<b>:\n\nä\n\nSum up")])

    def test_errors(self):
        """Retry asks the same; a message without an answer joins the next."""
        self.server.script += [(400, [b'{"error": {"message": "Too long."}}']), (200, [delta("Ha"), fail(NASTY)]),
                               (200, [delta("Ha")]), (200, [fail("no")])]
        self.say("Try")
        for words in ("Too long. (HTTP 400)", "<img src=x onerror=alert(1)>", "connection ended"):
            self.wait_text(words, "[role=alert]")
            self.idle()
            self.push(".retry")
        self.idle()
        self.chat("Next")
        self.assertEqual(self.sent(), [("user", "Try\n\nNext")])

    def test_settings(self):
        """This tab alone keeps the key."""
        self.server.script += [(401, []), (200, answer("Open."))]
        self.say("Hi")
        self.wait("at('settings').open && document.activeElement.id === 'key'")
        for name, value in (("system", "Be short."), ("temperature", "0.5"), ("max_tokens", "64"), ("key", "secret")):
            self.type(value, name)
        self.push("#dense")
        self.key("Escape")
        self.wait("document.activeElement.className === 'retry'")
        self.key("Enter")
        self.wait_text("Open.")
        self.assertEqual(self.server.keys, [None, "Bearer secret"])
        self.assertNotIn("secret", self.js("JSON.stringify(localStorage)"))
        self.open()
        self.chat("Ho")
        self.assertLessEqual({"temperature": 0.5, "max_tokens": 64, "headwater": {"atlas": True, "dense": True}}.items(), self.server.bodies[-1].items())
        self.assertEqual(self.sent()[0], ("system", "Be short."))

    def test_atlas(self):
        """Each layer, and all; what is under the mouse. It lasts until a reload: the rest of the answer is what is kept."""
        self.chat("?", delta("Yes."), chunk({"headwater": {"steps": "p4", "atlas": ATLAS}}), b"data: [DONE]")
        self.push(f"{LAST} .map")
        words = "at('map-words').textContent"
        for layer, read in ((0, "All layers read 30.0 %"), (1, "Layer 1 reads 49.4 %"), (2, "Layer 2 reads 10.6 %")):
            self.js(f"at('layer').value = {layer}, at('layer').oninput()")
            self.assertEqual(self.js(words), f"{read} of the tokens before their chunk.")
        self.js("at('layer').value = 1, at('layer').oninput()")
        # In the middle of the sixteen cells: cached, read, a fifth (its root as alpha), nothing after the diagonal.
        alphas = [[self.js(f"at('map').getContext('2d').getImageData({4 * x + 1}, {4 * y + 2}, 1, 1).data[3]") for x in range(4)] for y in range(4)]
        self.assertEqual(alphas, [[255, 0, 0, 0], [255, 255, 0, 0], [255, 114, 255, 0], [0, 255, 114, 255]])
        colour = lambda y: self.js(f"[...at('map').getContext('2d').getImageData(1, {y}, 1, 1).data].join()")
        self.assertEqual((colour(6), colour(10)), ("0,114,178,255", "213,94,0,255"))
        move = "at('map').onpointermove(((w) => ({offsetX: w * %s, offsetY: w * %s}))(at('map').clientWidth))"
        for x, y, said in ((0.3, 0.8, "Tokens 48 to 59 read 100.0 % of tokens 16 to 31."), (0.6, 0.8, "Tokens 48 to 59 read 20.0 % of tokens 32 to 47."),
                           (0.9, 0.8, "20.0 %"), (0.3, 0.2, "20.0 %"), (0.3, 0.97, "20.0 %")):
            self.js(move % (x, y))
            self.assertIn(said, self.js(words))
        self.key("Escape")
        self.wait("!at('atlas').open")
        self.assertNotIn("shares", self.js("JSON.stringify(localStorage)"))
        self.assertIn("p4", self.js("JSON.stringify(localStorage)"))
        self.open()
        self.assertEqual(self.texts(".map"), [])

    def test_text(self):
        """Nothing becomes markup. The stream may be cut anywhere. Enter may belong to an input method."""
        self.js("input.value = 'x', input.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', isComposing: true}))")
        data = b"".join(map(delta, (NASTY[:3], NASTY[3:], "c")))
        self.chat(NASTY, *(data[i:i + 1] for i in range(len(data))), b"data:[DONE]")
        self.assertEqual(self.sent(), [("user", "x" + NASTY)])
        for _ in range(2):
            self.assertEqual(self.texts("img, body script"), [])
            self.assertEqual(self.texts(".assistant .text *"), ["Grüße 🙂 <img src=x onerror=alert(1)>", " </pre><script>", "bc"])
            self.open()

    def test_looks(self):
        """The keyboard reaches every control and shows where it is. A phone scrolls down only."""
        self.chat("?", *answer(f"{'y' * 200}\n```\n{'y' * 200}\n```"))
        reached = set()
        for _ in range(12):
            self.key("Tab")
            reached.add(self.js("[document.activeElement].map((e) => getComputedStyle(e).outlineStyle + (e.id || e.className))[0]"))
        self.assertLessEqual({f"solid{name}" for name in "new settings-button scroll edit again input attach send".split()}, reached)
        self.chat("z" * 200, fail("z" * 200))
        self.call("Emulation.setDeviceMetricsOverride", width=360, height=800, deviceScaleFactor=1, mobile=False)
        self.assertEqual(self.js("[...document.querySelectorAll('*')].filter((e) => e.getBoundingClientRect().right > 360).length"), 0)
        self.assertEqual(self.js("scroll.scrollWidth"), 360)
        light = self.browser.picture()
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        self.assertNotEqual(self.browser.picture(), light)


class Served(ChatTest):
    """Before the server itself."""

    def base_url(self):
        server = self.server = running.Server()
        self.addCleanup(server.__exit__, None)
        return f"http://127.0.0.1:{server.port}/"

    def test_a_long_message_twice_and_a_stop(self):
        """What the page reads is what the server writes: progress, text, costs, the cache; stop ends the work."""
        self.push("#settings-button")
        self.type("8", "max_tokens")
        self.key("Escape")
        for cached in ("0", "1"):
            self.say(running.TEXT[:3000] if cached == "0" else "And?")
            self.wait("document.querySelectorAll('.assistant').length > " + cached)
            self.idle()
            self.assertEqual(self.texts("[role=alert]"), [])
            self.wait_text("tokens")
        self.assertIn("cache", self.texts(LAST)[0])
        self.push(".map")
        self.assertRegex(self.js("at('map-words').textContent"), r"^All layers read \d+\.\d % of the tokens before their chunk\.$")
        self.key("Escape")
        self.push("#settings-button")
        self.js("at('max_tokens').value = ''")
        self.key("Escape")
        self.say("Go on.")
        self.wait("document.querySelectorAll('.assistant').length > 2")
        # The page shows its answer before the request is there, and a stop before the server knows of it.
        self.served(lambda ended, busy: busy > 0 or ended == 3)
        self.key("Escape")
        self.idle()
        self.served(lambda ended, busy: busy == 0 and ended == 3)

    def served(self, wanted):
        """Waits until the server says so of its requests that ended and of its busy slots."""
        deadline = time.monotonic() + running.TIMEOUT
        while not wanted(self.server.metric("requests_total"), self.server.metric("slots_busy")):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)


if __name__ == "__main__":
    if browser.find() is None:
        print(f"SKIP: none of {', '.join(browser.NAMES)} is installed; the page was not looked at")
        sys.exit(NO_BROWSER)
    unittest.main()
