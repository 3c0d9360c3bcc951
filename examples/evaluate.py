"""What sparse prefill costs a model: python3 examples/evaluate.py [MODEL [FOLDER]]

MODEL is a GGUF file or a folder of Hugging Face, the bundled model by default. Perplexity on a held-out text and two of RULER's
tasks, few prompts at small lengths: a look, no measurement. Called once more with the same FOLDER it has nothing left to do.
"""

import pathlib
import sys
import tempfile

from headwater.evaluate.__main__ import main

MODELS = pathlib.Path(__file__).resolve().parents[1] / "models"
# Lines in the form that the bundled model was trained on; another model may know other ones better.
WORDING = ("--needle", "# REGISTRY: the code of {name} is {code}", "--question", "# QUERY: the code of {name} is",
           "--digits", "5", "--first-line")


def evaluate(model, folder):
    return main(["--model", model, "--out", folder, "--rules", "dense,h2o,window,blocks", "--lengths", "512,1024",
                 "--tasks", "niah_single,niah_multikey", "--samples", "2", "--texts", str(MODELS / "eval-4k.txt"),
                 "--haystack", str(MODELS / "eval-16k.txt"), "--chunk", "128", "--memory", "64", "--decode", "64", *WORDING])


if __name__ == "__main__":
    given = sys.argv[1:]
    used_model = given[0] if given else str(MODELS / "headwater-tiny-f16.gguf")
    if len(given) > 1:
        sys.exit(evaluate(used_model, given[1]))
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(evaluate(used_model, temporary))
