"""A chat with a model in a GGUF file: python3 examples/gguf_chat.py [MODEL.gguf [QUESTION ...]]

Without questions it reads them from standard input, a line each. The conversation is kept: what was said is not read again. A
document in front of a question is prefilled sparsely, the question itself sees everything. (The bundled model was trained on
source code alone, and talks like that.)
"""

import pathlib
import sys

import headwater

BUNDLED = pathlib.Path(__file__).resolve().parents[1] / "models" / "headwater-tiny-f16.gguf"


def main(path=BUNDLED, *questions):
    model = headwater.Model(path)
    chat = model.chat("You are a helpful assistant.", capacity=min(model.context, 32768))
    for question in questions or (line.strip() for line in sys.stdin):
        if question:
            print(f"> {question}")
            for piece in chat.say(question, max_tokens=64):
                print(piece, end="", flush=True)
            print(f"\n({chat.conversation.tokens} tokens)")


if __name__ == "__main__":
    main(*sys.argv[1:])
