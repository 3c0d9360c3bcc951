"""Tries a rule of memory sets before it is built: rule_trial.py MODEL.gguf TOKENS TEXT.txt TRIAL.json ...

The divergence of SmolLM2 (`./dev model smollm2` prints the path) from dense attention, in PyTorch and F32, with sets that
single queries choose: the rules at the end of docs/notes/selection.md. A line for each trial: the mean KL in nats over every
third position after the first chunk, that of the first half of them, the share of positions with the same likeliest token,
tokens of a set, Local included. Needs the PyPI packages torch, transformers and gguf. A trial of 8192 tokens takes about a minute on two cores.

TRIAL.json: an object; what it does not say is as in DEFAULTS below.
"""

import json
import math
import pathlib
import sys

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "python"))
from make_real_golden import best, means  # noqa: E402

DEFAULTS = {
    "chunk": 1024, "local": 32, "pinned": 8, "query_block": 32,
    "key_block": 8,
    "pool": 16,       # rows of a pool that votes on key blocks
    "blocks_against": "voted",  # as "against", for key blocks; "own" is then the mean over a pool's rows
    "blocks": 240,    # key blocks whose tokens are voted on
    "voters": 1,      # rows of a pool that votes on tokens
    "columns": 32,    # that votes on tokens are formed of, those with the largest (sum of |k|) (sum of |q|)
    "weight": 0.002,  # of a token that a set takes; 0: as many as it can hold
    "most": 960,      # tokens of a set beside Local
    "against": "both",  # a weight is relative to "own" (Local and the row's own chunk), to the largest "voted" token, or the larger
    "few": 0,         # not 0: in place of key blocks single rows choose as many tokens, by so many columns of single keys
    "sketch": 0,      # not 0: single rows choose tokens at once, by so many columns in 8 bits; "own" has pinned tokens, too
}
GROUP = 8  # columns that share a variance (SEL-3)
used = {}   # the trial
sizes = []  # of its sets


def relative(logits, own, against):
    """Votes of logits [heads][rows][voted]: how far the nearest is to what they are relative to."""
    voted = logits.amax(2)
    top = {"own": own, "voted": voted, "both": torch.maximum(own, voted)}[against]
    return (logits - top[:, :, None]).amax((0, 1))


def blocks_chosen(q, mean, variance, own, scale):
    """Key blocks whose tokens are voted on (SEL-5, SEL-6)."""
    pools = means(q, used["pool"])
    energy = (pools ** 2).view(*pools.shape[:2], -1, GROUP).sum(3)
    estimates = scale * pools @ mean.T + scale**2 / 2 * energy @ variance.T
    votes = relative(estimates, means(own[:, :, None], used["pool"])[:, :, 0], used["blocks_against"])
    return best(votes, -(-used["pinned"] // used["key_block"]), min(used["blocks"], len(mean)))


def rounded(rows):
    """8 bits with a scale for each row."""
    unit = rows.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
    return (rows / unit).round() * unit


def best_of(votes):
    enough = int((votes >= math.log(used["weight"])).sum()) if used["weight"] > 0 else len(votes)
    return best(votes, used["pinned"], max(min(enough, used["most"]), min(used["pinned"], len(votes))))


def few_chosen(q, k, own, scale):
    """Tokens that are voted on, by the columns with the most energy."""
    columns = ((k ** 2).mean(0) * (q ** 2).mean((0, 1))).topk(used["few"]).indices
    votes = relative(scale * q[:, :, columns] @ k[:, columns].T, own, used["blocks_against"])
    return best(votes, used["pinned"], min(used["blocks"] * used["key_block"], len(votes)))


def sketches_chosen(q, k, own, scale):
    columns = (k[:256] ** 2).sum(0).topk(min(used["sketch"], k.shape[1])).indices
    fixed = torch.logaddexp(own, (scale * q @ k[:used["pinned"]].T).logsumexp(2))
    return best_of((scale * rounded(q[:, :, columns]) @ rounded(k[:, columns]).T - fixed[:, :, None]).amax((0, 1)))


def tokens_chosen(q, keys, own, scale):
    """Indices of the keys [tokens][d] that rows q [heads][rows][d] take; own [heads][rows]: log-sum-exp of their own keys."""
    q, own = means(q, used["voters"]), torch.stack([part.amax(1) for part in own.split(used["voters"], 1)], 1)
    columns = (keys.abs().sum(0) * q.abs().sum((0, 1))).topk(min(used["columns"], q.shape[2])).indices
    logits = scale * q[:, :, columns] @ keys[:, columns].T
    return best_of(relative(logits, own, used["against"]))


def head_out(q, k, v, scale):
    """Outputs [heads][tokens][d] of the query heads of one key/value head."""
    size = used["key_block"]
    blocks = k[:len(k) // size * size].view(-1, size, k.shape[1])
    mean = blocks.mean(1)
    variance = ((blocks - mean[:, None]) ** 2).mean(1).view(len(mean), -1, GROUP).mean(2)
    out = torch.empty_like(q)
    for first in range(0, len(k), used["query_block"]):
        begin = first // used["chunk"] * used["chunk"]
        rows = slice(first, min(first + used["query_block"], begin + used["chunk"], len(k)))
        border = -(-max(0, begin - used["local"]) // size) * size
        logits = scale * q[:, rows] @ k[border:rows.stop].T
        later = torch.arange(border, rows.stop) > torch.arange(rows.start, rows.stop)[:, None]
        logits, values = logits.masked_fill(later, -torch.inf), v[border:rows.stop]
        if border > 0:
            count = border // size
            own = logits.logsumexp(2)
            if used["sketch"]:
                tokens = sketches_chosen(q[:, rows], k[:border], own, scale)
            else:
                if used["few"]:
                    tokens = few_chosen(q[:, rows], k[:border], own, scale)
                else:
                    kept = blocks_chosen(q[:, rows], mean[:count], variance[:count], own, scale)
                    tokens = (kept[:, None] * size + torch.arange(size)).flatten()
                tokens = tokens[tokens_chosen(q[:, rows], k[tokens], own, scale)]
            sizes.append(len(tokens) + begin - border)
            logits = torch.cat([logits, scale * q[:, rows] @ k[tokens].T], 2)
            values = torch.cat([values, v[tokens]])
        out[:, rows] = logits.softmax(2) @ values
    return out


def attention_by_sets(_module, query, key, value, _mask, scaling, **_):
    """Columns in the order of GGUF files, where the two of a rotation are neighbours: groups share a variance (SEL-3)."""
    query, key = (part.unflatten(3, (2, -1)).transpose(3, 4).flatten(3) for part in (query, key))
    group = query.shape[1] // key.shape[1]
    out = [head_out(q, k, v, scaling) for q, k, v in zip(query[0].split(group), key[0], value[0])]
    return torch.cat(out).transpose(0, 1)[None], None


def object_in(path):
    try:
        read = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        sys.exit(f"{pathlib.Path(sys.argv[0]).stem}: {path}: {error}; allowed: a file with a JSON object")
    if not isinstance(read, dict):
        sys.exit(f"{pathlib.Path(sys.argv[0]).stem}: {path}: allowed: a file with a JSON object")
    return read


def read_trial(path):
    changes = object_in(path)
    unknown = sorted(set(changes) - set(DEFAULTS))
    if unknown:
        sys.exit(f"rule_trial: {path}: {unknown[0]!r} is not known; allowed: {', '.join(DEFAULTS)}")
    return changes


def hidden(model, ids):
    return model.model(torch.tensor([ids])).last_hidden_state[0, DEFAULTS["chunk"]:-1:3]


def opened(usage, read, least):
    """Of the command line: the trials, the text's path, the model, the first tokens; at least least(trials) of them."""
    if len(sys.argv) < 5:
        sys.exit(usage.partition("\n")[0])
    trials = [read(trial) for trial in sys.argv[4:]]
    path, tokens, text = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]), pathlib.Path(sys.argv[3])
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    ids = tokenizer(text.read_text(encoding="utf-8"), add_special_tokens=False).input_ids[:tokens]
    if len(ids) < least(trials):
        sys.exit(f"{pathlib.Path(sys.argv[0]).stem}: {text}: {len(ids)} tokens; allowed: {least(trials)} and more")
    return trials, text, model, ids


def compared(model, dense, sparse):
    """KL of each of two outputs' rows in nats, and the share of rows with the same likeliest token."""
    apart, same = [], 0
    for right, got in zip(dense.split(128), sparse.split(128)):
        right, got = (model.lm_head(rows).double().log_softmax(1) for rows in (right, got))
        apart.append((right.exp() * (right - got)).sum(1))
        same += int((right.argmax(1) == got.argmax(1)).sum())
    apart = torch.cat(apart)
    return apart, same / len(apart)


def main():
    trials, text, model, ids = opened(__doc__, read_trial, lambda trials: max(
        {**DEFAULTS, **changes}["chunk"] for changes in trials) + 3)
    transformers.AttentionInterface.register("by_sets", attention_by_sets)
    with torch.inference_mode():
        dense = hidden(model, ids)
        model.set_attn_implementation("by_sets")
        for changes in trials:
            used.update({**DEFAULTS, **changes})
            sizes.clear()
            apart, same = compared(model, dense, hidden(model, ids))
            print(f"{text.stem} {len(ids)} {json.dumps(changes)}: KL {apart.mean():.5f}, first half "
                  f"{apart[:len(apart) // 2].mean():.5f}, same {same:.4f}, {sum(sizes) / len(sizes):.0f} tokens", flush=True)


if __name__ == "__main__":
    main()
