"""A real model, SmolLM2 (`./dev model smollm2`), against what transformers says of it (make_real_golden.py)."""

import json
import pathlib
import subprocess
import unittest
import warnings

from support import headwater

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = json.loads((pathlib.Path(__file__).parent / "golden/smollm2.json").read_text(encoding="utf-8"))
# Stored keys and values are F16, 2^-11 of a logit of 17 in each; transformers has them in F32. Found: .007.
LOGIT = 2**-11 * 17 * 4


class SmolLM2(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        found = subprocess.run([ROOT / "dev", "model", "smollm2", "--cached"], stdin=subprocess.DEVNULL, capture_output=True,
                               text=True, check=False)
        if found.returncode != 0:
            raise unittest.SkipTest(f"SKIP: {found.stderr.strip()}")
        cls.model = headwater.Model(found.stdout.strip(), projections="f32")

    def test_tokens_logits_and_greedy_text_are_those_of_transformers(self):
        for entry in GOLDEN["prompts"]:
            with self.subTest(entry["prompt"]):
                ids = self.model.tokenize(entry["prompt"], add_special=False)
                self.assertEqual(ids, entry["ids"])
                with self.model.conversation(capacity=len(ids) + 32, threads=2) as talk:
                    talk.feed(ids)
                    logits = talk.logits
                    for token, value in entry["highest"]:
                        self.assertLess(abs(float(logits[token]) - value), LOGIT, token)
                    for token, margin in zip(entry["greedy"], entry["margins"]):
                        best = int(talk.logits.argmax())
                        if margin >= 2 * LOGIT:
                            self.assertEqual(best, token)
                        talk.append(token)

    def test_characters_without_a_token_are_said(self):
        asked = {"tokenize": lambda text: self.model.tokenize(text),
                 "generate": lambda text: list(self.model.generate(text, max_tokens=1, threads=2)),
                 "chat": lambda text: list(self.model.chat(threads=2, capacity=256).say(text, max_tokens=1))}
        for name, ask in asked.items():
            with self.subTest(name), self.assertWarnsRegex(UserWarning, r"text\[5\]: the character has no token"):
                ask("Gr\u00fc\u00dfe\x04")
            with self.subTest(name), warnings.catch_warnings():
                warnings.simplefilter("error")
                ask("Gr\u00fc\u00dfe")


if __name__ == "__main__":
    unittest.main()
