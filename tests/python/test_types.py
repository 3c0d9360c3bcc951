"""What a type checker knows of the package, and what its objects say of themselves."""

import importlib.util
import inspect
import os
import pathlib
import re
import subprocess
import sys
import threading
import typing
import unittest

import support
from support import headwater

from headwater import _options

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parents[1] / "models" / "headwater-tiny-f16.gguf"
HAS_RUNTIME = "Model" in headwater.__all__
if os.environ.get("HEADWATER_RUNTIME_LIBRARY") and not HAS_RUNTIME:
    raise RuntimeError("HEADWATER_RUNTIME_LIBRARY is set, and headwater.__all__ has no Model")


def mypy():
    """A Python that has mypy: HEADWATER_MYPY, else this one; None: neither has."""
    if os.environ.get("HEADWATER_MYPY"):
        return os.environ["HEADWATER_MYPY"]
    return sys.executable if importlib.util.find_spec("mypy") is not None else None


class Checked(unittest.TestCase):
    @unittest.skipUnless(mypy(), "mypy is not here: ./dev wheel --test has it")
    def test_good_calls_pass_and_bad_ones_do_not(self):
        package = pathlib.Path(headwater.__file__).parents[1]
        own = {**os.environ, "MYPYPATH": "" if "site-packages" in package.parts else str(package)}
        done = subprocess.run(
            [mypy(), "-m", "mypy", "--strict", "--python-executable", sys.executable, "--cache-dir", os.devnull,
             "--follow-imports", "silent", "--hide-error-codes", "--no-error-summary", "--no-pretty", "typed_use.py"],
            cwd=HERE, env=own, capture_output=True, text=True, check=False)
        self.assertEqual(done.stderr, "")
        found, wanted = {}, {}
        for line in done.stdout.splitlines():
            place = re.match(r"typed_use\.py:(\d+): error: (.*)", line)
            if place:
                found.setdefault(int(place[1]), []).append(place[2])
        for number, line in enumerate((HERE / "typed_use.py").read_text(encoding="utf-8").splitlines(), 1):
            if "  # E: " in line:
                wanted[number] = line.partition("  # E: ")[2]
        self.assertGreater(len(wanted), 15)
        self.assertEqual(found.keys(), wanted.keys(), done.stdout)
        for number, text in wanted.items():
            self.assertTrue(any(text in message for message in found[number]), (number, found[number]))


class Hints(unittest.TestCase):
    def public(self):
        found = [getattr(headwater, name) for name in headwater.__all__]
        found.append(importlib.import_module("headwater.export").export)
        if support.torch is not None:
            found += [getattr(importlib.import_module(f"headwater.{module}"), name) for module, name in (
                ("torch", "attention"), ("hf", "configure"), ("hf", "configuration"))]
        return found

    def test_every_parameter_of_what_is_public_has_a_type(self):
        public = self.public()
        functions = [one for one in public if inspect.isfunction(one)]
        for one in filter(inspect.isclass, public):
            functions += [getattr(member, "fget", None) or getattr(member, "__func__", member)
                          for name, member in vars(one).items()
                          if inspect.isroutine(member) or isinstance(member, property)
                          if not name.startswith("_") or name in ("__init__", "__enter__", "__exit__")]
        self.assertGreater(len(functions), 20)
        for function in functions:
            signature = inspect.signature(function)
            bare = [name for name, parameter in signature.parameters.items()
                    if name not in ("self", "cls") and parameter.annotation is parameter.empty]
            with self.subTest(function.__qualname__):
                self.assertEqual(bare, [])
                self.assertIsNot(signature.return_annotation, signature.empty)
                if sys.version_info >= (3, 11):  # which has Unpack
                    typing.get_type_hints(function)

    def test_options_with_a_type_are_the_options_that_there_are(self):
        hinted = set(typing.get_type_hints(_options.SessionOptions))
        self.assertEqual(hinted, set(_options.NAMES) - {"layers"})  # `layer_options` of Session
        self.assertEqual(set(typing.get_type_hints(_options.ConversationOptions)),
                         hinted - {"scale", "softcap", "sinks", "alibi"} | {"dense_tail", "engine", "cache_type", "quality"})
        if support.torch is not None:
            from headwater import hf, torch
            self.assertEqual(set(typing.get_type_hints(_options.ConfigureOptions)), {*hf._DEFAULTS, *hf._MORE})
            self.assertEqual(set(typing.get_type_hints(_options.TorchOptions)), {*torch._ARGUMENTS, "dense_layers"})
        for name, choices in _options.CHOICES.items():
            kind = typing.get_type_hints(_options.RuleOptions)[name]
            self.assertEqual({text for part in typing.get_args(kind) for text in typing.get_args(part)}, set(choices))

    def test_all_is_what_there_is(self):
        names = {}
        exec("from headwater import *", names)  # noqa: S102
        self.assertLessEqual(set(headwater.__all__), set(names))
        self.assertLessEqual({"Session", "attention", "engines", "info"}, set(names))
        self.assertLessEqual(set(headwater.__all__), set(dir(headwater)))


class Reprs(unittest.TestCase):
    def test_a_session_says_what_it_is_and_holds(self):
        own = headwater.Session(layers=2, heads=6, kv_heads=2, head_dim=16, value_dim=12, capacity=64, dtype="float16")
        head = "<headwater.Session: layers 2, heads 6 over 2 of 16 and 12, float16, "
        self.assertEqual(repr(own), head + "0 of 64 tokens>")
        q, k, v = support.rows(5)
        own.begin_prefill(5)
        for layer in range(2):
            own.attend(layer, q, k, v)
        own.end()
        self.assertEqual(repr(own), head + "5 of 64 tokens>")
        others = []
        with own._used():
            worker = threading.Thread(target=lambda: others.append(repr(own)))
            worker.start()
            worker.join()
        self.assertEqual(others, [head + "in use by another thread>"])
        own.close()
        self.assertEqual(repr(own), head + "closed>")
        self.assertEqual(repr(headwater.Session.__new__(headwater.Session)), "<headwater.Session, not open>")

    @unittest.skipUnless(HAS_RUNTIME, "the library has no model runtime")
    def test_a_model_and_what_is_over_it(self):
        model = headwater.Model(MODEL)
        self.assertEqual(repr(model), f"<headwater.Model {model.name!r}: {model.architecture}, layers {model.layers}, heads "
                         f"{model.heads} over {model.kv_heads} of {model.head_dim}, vocabulary {model.vocabulary}, context "
                         f"{model.context}>")
        talk = model.conversation(capacity=32)
        talk.feed([1, 2, 3])
        self.assertEqual(repr(talk), f"<headwater.Conversation with {model.name!r}: 3 of 32 tokens>")
        chat = model.chat(capacity=32) if model._turn_end is not None else None
        if chat is not None:
            self.assertEqual(repr(chat), f"<headwater.Chat with {model.name!r}: 0 of 32 tokens>")
        talk.close()
        self.assertEqual(repr(talk), f"<headwater.Conversation with {model.name!r}: closed>")
        for kind in (headwater.Model, headwater.Conversation, headwater.Chat):
            self.assertEqual(repr(kind.__new__(kind)), f"<headwater.{kind.__name__}, not open>")


if __name__ == "__main__":
    unittest.main()
