"""Writes golden/smollm2.json for test_real.py: make_real_golden.py MODEL.gguf

What transformers says of SmolLM2 (`./dev model smollm2`): tokens of prompts, greedy continuations, and the highest logits
after each prompt. Needs the PyPI packages torch, transformers and gguf; their versions go into the file. transformers reads
the weights as F32.
"""

import json
import pathlib
import sys

import torch
import transformers

FILE = pathlib.Path(__file__).parent / "golden" / "smollm2.json"
PROMPTS = ("The capital of France is", "def fibonacci(n):\n    ", "In 1969, the first man walked on the moon. His name was",
           "Ein Café in Zürich: naïve façade, 12345 € 😀")
TOKENS = 24
HIGHEST = 8


def main():
    path = pathlib.Path(sys.argv[1]).resolve()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    found = {"made_with": {"torch": torch.__version__.partition("+")[0], "transformers": transformers.__version__},
             "prompts": []}
    for prompt in PROMPTS:
        ids = tokenizer(prompt, add_special_tokens=False).input_ids
        entry = {"prompt": prompt, "ids": ids, "greedy": [], "margins": []}
        with torch.inference_mode():
            first = model(torch.tensor([ids])).logits[0, -1].double()
            best = first.topk(HIGHEST)
            entry["highest"] = [[int(i), round(float(v), 4)] for i, v in zip(best.indices, best.values)]
            for _ in range(TOKENS):
                logits = model(torch.tensor([ids + entry["greedy"]])).logits[0, -1]
                (one, other), (token, _) = logits.topk(2)
                entry["greedy"].append(int(token))
                entry["margins"].append(round(float(one - other), 4))
        print(repr(tokenizer.decode(entry["greedy"])), min(entry["margins"]))
        found["prompts"].append(entry)
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
