"""A model for the tests of headwater.evaluate that solves every task by reading the prompt, and the command with it.

python3 scripted_model.py FLAGS... runs the command; SCRIPTED_DELAY is the seconds that an answer takes, SCRIPTED_WRONG=1 makes
all answers wrong.
"""

import collections
import os
import re
import signal
import sys
import time

import support  # noqa: F401  (finds the package)
from headwater.evaluate import __main__ as command
from headwater.evaluate import backends

PIECE = re.compile(r"\s?[A-Za-z]{1,4}|\s?[0-9]{1,3}|\s?[^\sA-Za-z0-9]|\s")
UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def solve(text):
    """The answer to a prompt of tasks.py."""
    context, _, question = text.rpartition("\nQuestion: ")
    if asked := re.search(r"^what is the secret code of (.+?) in the text above", question):
        codes = [re.findall(rf"The secret code of {re.escape(name)} is ({UUID}|\d+)\.", context)
                 for name in asked[1].split(", ")]
        return ", ".join(code for found in codes for code in found)
    if asked := re.search(r"^which variables have the value (\d+)", question):
        values = {}
        for name, value in re.findall(r"VAR ([A-Z]+) = (VAR [A-Z]+|\d+)", context):
            values[name] = values.get(value[4:]) if value.startswith("VAR ") else value
        return ", ".join(name for name, value in values.items() if value == asked[1])
    words = re.findall(r"\b[a-z]{6}\b", context.partition("\n")[2])
    count = 10 if question.startswith("which ten words") else 3
    return ", ".join(word for word, _ in collections.Counter(words).most_common(count))


class Scripted(backends.Backend):
    """Tokens are short pieces of text; losses depend on the token and the rule."""

    context = 20_000

    def __init__(self, path="scripted", threads=0, engine=None):
        self._ids, self._pieces = {}, []
        self.facts = {"kind": "scripted", "name": os.path.basename(path)}
        self._delay = float(os.environ.get("SCRIPTED_DELAY", "0"))
        self._wrong = os.environ.get("SCRIPTED_WRONG") == "1"

    def tokenize(self, text):
        pieces = PIECE.findall(text)
        for piece in pieces:
            if piece not in self._ids:
                self._ids[piece] = len(self._pieces)
                self._pieces.append(piece)
        return [self._ids[piece] for piece in pieces]

    def chat(self, asked, answer):
        return self.tokenize(f"<user>{asked}<model>{answer}")

    def count(self, text):
        return len(self.tokenize(text))

    def text(self, ids):
        return "".join(self._pieces[index] for index in ids)

    def answer(self, ids, room, rule, dense_tail):
        time.sleep(self._delay)
        seconds = len(ids) * (1.0 if rule.name == "dense" else 0.25)
        if self._wrong:
            return "nothing of the kind", seconds
        answer = self.tokenize(" " + solve(self.text(ids)))
        if len(answer) > room:
            raise AssertionError(f"an answer of {len(answer)} tokens has room for {room}")
        return self.text(answer), seconds

    def losses(self, ids, decode, rule):
        worse = {"dense": 0.0, "h2o": 0.03, "window": 0.02, "blocks": 0.01, "sketches": 0.01}[rule.name]
        return [2.0 + len(self._pieces[index]) / 8 + (worse if at < len(ids) - decode - 1 else 0.0)
                for at, index in enumerate(ids[1:])]


if __name__ == "__main__":
    # A shell without job control starts what runs in the background with Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(command.main(sys.argv[1:], Scripted))
