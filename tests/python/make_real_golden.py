"""Writes golden/NAME.json for test_real.py: make_real_golden.py NAME MODEL.gguf

What transformers says of the real model NAME (`./dev model NAME`: smollm2, gemma3): tokens of prompts, greedy continuations, and
the highest logits after each prompt; of the one that chats a chat; a question about a long document; losses of a text with its own dense attention, and with the sets
of rule `blocks`, here in PyTorch from the clauses of the specification (chapter 17), as one softmax over a mask. Needs the PyPI
packages torch, transformers and gguf; their versions go into the file. transformers reads the weights as F32.
"""

import json
import pathlib
import sys

import torch
import transformers
from real_prompts import QUESTION, TEXT, document

FOLDER = pathlib.Path(__file__).parent / "golden"
PROMPTS = ("The capital of France is", "def fibonacci(n):\n    ", "In 1969, the first man walked on the moon. His name was",
           "Ein Café in Zürich: naïve façade, 12345 € 😀")
TOKENS = 24
HIGHEST = 8
CHAT = [{"role": "system", "content": "You answer in one sentence."}, {"role": "user", "content": "What is the capital of France?"}]
# Tokens of the text, and the options of rule blocks.
LOSSES = {"tokens": 1200, "chunk": 256, "local": 32, "heavy": 96, "pinned": 8, "key_block": 8, "query_block": 32, "pool": 4,
          "refine": 2}


def means(rows, size):
    """Mean queries [heads][pools][d] of `size` consecutive rows each, the last of fewer (SEL-4)."""
    return torch.stack([part.mean(1) for part in rows.split(size, 1)], 1)


def best(votes, first, count):
    """The `count` highest, those before `first` ahead of all; of equals the lower one (MEM-3, MEM-7)."""
    votes = votes.clone()
    votes[:first] = torch.inf
    return votes.sort(descending=True, stable=True).indices[:count].sort().values


def chosen(q, k, begin, scale):
    """Tokens before `begin` that the rows q [heads][rows][d] of a query block read of keys k [tokens][d] (SEL-2 to SEL-8)."""
    size, heavy = LOSSES["key_block"], LOSSES["heavy"]
    border = min(begin, -(-max(0, begin - LOSSES["local"]) // size) * size)
    local, count = torch.arange(border, begin), border // size
    blocks = k[:count * size].view(count, size, -1)
    mean = blocks.mean(1)
    variance = ((blocks - mean[:, None]) ** 2).mean(1).view(count, -1, 8).mean(2)
    pools = means(q, LOSSES["pool"])
    energy = (pools ** 2).view(*pools.shape[:2], -1, 8).sum(3)
    estimates = scale * pools @ mean.T + scale**2 / 2 * energy @ variance.T
    votes = (estimates - estimates.amax(2, keepdim=True)).amax((0, 1))
    kept = best(votes, -(-LOSSES["pinned"] // size), min(LOSSES["refine"] * heavy // size, count))
    tokens = (kept[:, None] * size + torch.arange(size)).flatten()
    if len(tokens) > heavy:
        weights = (scale * means(q, -(-LOSSES["pool"] // 2)) @ k[tokens].T).softmax(2)
        tokens = tokens[best(weights.amax((0, 1)), int((tokens < LOSSES["pinned"]).sum()), heavy)]
    return torch.cat([tokens, local])


def attention_by_sets(module, query, key, value, attention_mask, scaling, **_):
    """One softmax over a row's chunk and its set (FUSE-2), in layers with a window over that alone (MASK-2). Columns in the order
    of GGUF files, where of Llama's the two of a rotation are neighbours: groups of columns share a variance (SEL-3)."""
    if module.config.model_type == "llama":
        query, key = (part.unflatten(3, (2, -1)).transpose(3, 4).flatten(3) for part in (query, key))
    window = getattr(module, "sliding_window", None)
    heads, n = query.shape[1:3]
    group = heads // key.shape[1]
    seen = torch.ones(n, n, dtype=torch.bool).tril().repeat(heads, 1, 1)
    if window is not None:
        seen = seen.triu(1 - window)
    for begin in range(LOSSES["chunk"], n, LOSSES["chunk"]) if window is None else ():
        end = min(begin + LOSSES["chunk"], n)
        seen[:, begin:end, :begin] = False
        for first in range(begin, end, LOSSES["query_block"]):
            rows = slice(first, min(first + LOSSES["query_block"], end))
            for head in range(key.shape[1]):
                of = slice(head * group, (head + 1) * group)
                seen[of, rows, chosen(query[0, of, rows], key[0, head], begin, scaling)] = True
    keys, values = (part.repeat_interleave(group, 1) for part in (key, value))
    out = torch.nn.functional.scaled_dot_product_attention(query, keys, values, seen[None], scale=scaling)
    return out.transpose(1, 2), None


def losses(model, ids):
    """Loss in nats of each of ids[1:]."""
    logits = model(torch.tensor([ids])).logits[0, :-1].double()
    return [round(float(loss), 5) for loss in torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")]


def main():
    name, path = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    found = {"made_with": {"torch": torch.__version__.partition("+")[0], "transformers": transformers.__version__},
             "prompts": []}
    for prompt in PROMPTS:
        ids = tokenizer(prompt).input_ids
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
    with torch.inference_mode():
        if tokenizer.chat_template is not None:
            ids = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
            said = model.generate(torch.tensor([ids]), max_new_tokens=TOKENS, do_sample=False)[0, len(ids):]
            found["chat"] = {"messages": CHAT, "ids": ids, "answer": tokenizer.decode(said, skip_special_tokens=True)}
        ids = tokenizer(document() + QUESTION).input_ids
        said = model.generate(torch.tensor([ids]), max_new_tokens=6, do_sample=False)[0, len(ids):]
        found["question"] = {"tokens": len(ids), "answer": tokenizer.decode(said)}
        ids = tokenizer(TEXT.read_text(encoding="utf-8")).input_ids[:LOSSES["tokens"]]
        found["losses"] = {"text": TEXT.name, **LOSSES, "dense": losses(model, ids)}
        transformers.AttentionInterface.register("by_sets", attention_by_sets)
        model.set_attn_implementation("by_sets")
        found["losses"]["sparse"] = losses(model, ids)
    FOLDER.mkdir(exist_ok=True)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.items())
    (FOLDER / f"{name}.json").write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
