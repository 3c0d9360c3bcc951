"""Reuse beyond the prefix, a trial: reuse.py run MODEL.gguf OUT.jsonl NAME=TEXT[:SKIP] ..., then reuse.py report OUT.jsonl

A document is edited, or two documents change places, and the keys and values of the old prompt are used again behind the
change: keys rotated by the difference of positions, values as they are. What does that cost, and what when a share of these
rows is computed anew? `run` writes a line for each text, change and choice of rows: the KL divergence of the next token
from that of a cold run in nats, and the share of equal likeliest tokens, over the 128 tokens that go on with the text; and
the same over the four digits of a code that the new paragraph (or the document that now comes first) says and a question
at the end asks for. `report` prints means and standard errors over the texts. The second document of a swap is the next
text. Attention is dense, in F32. Texts are plain or .gz, and SKIP characters are left out at their beginning.

Needs the PyPI packages torch, transformers, gguf and accelerate and a model of the Llama architecture (`./dev model
smollm2`). A text takes two minutes of one core. docs/notes/reuse.md has what `--choices first values oracle` printed.
"""

import argparse
import collections
import gzip
import hashlib
import json
import pathlib
import statistics
import sys

import torch
import torch.nn.functional as F
import transformers

TOKENS, TAIL = 3072, 128        # of the edited text, and behind it
SWAPPED = 1000                  # tokens of each document that changes places
REPLACED, REPLACING = 100, 140  # tokens of the paragraph that goes and of the one that comes
BLOCK = 512                     # queries at a time
FACT = "The access code of the Marlow laboratory is {}.\n"
QUESTION = "\n\nQuestion: What is the access code of the Marlow laboratory?\nAnswer: " + FACT
CODE = "7260"


class Model:
    def __init__(self, path):
        path = pathlib.Path(path).resolve()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        self.whole = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
        self.layers, config = self.whole.model.layers, self.whole.config
        self.heads, self.heads_kv = config.num_attention_heads, config.num_key_value_heads
        self.d = self.whole.model.embed_tokens.weight.shape[1] // self.heads
        self.frequencies = self.whole.model.rotary_emb.inv_freq.double()

    def ids(self, text):
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def rotate(self, x, by):
        """x [..., n, d] by `by` positions [n]."""
        angles = by[:, None].double() * self.frequencies
        cosine, sine = angles.cos().float(), angles.sin().float()
        a, b = x.chunk(2, -1)
        return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)

    def empty(self, n):
        """Rows of keys and values: [2, layers, heads, n, d]."""
        return torch.zeros(2, len(self.layers), self.heads_kv, n, self.d)

    def run(self, ids, at, rows):
        """The outputs of ids at the ascending positions `at`; their keys and values go into rows, which they see up to
        themselves, layer by layer: what is not among them stays as it is."""
        x, at = self.whole.model.embed_tokens(torch.tensor(ids)), torch.as_tensor(at)
        for index, layer in enumerate(self.layers):
            h, own = layer.input_layernorm(x), layer.self_attn
            q, k, v = (part(h).view(len(ids), -1, self.d).transpose(0, 1) for part in (own.q_proj, own.k_proj, own.v_proj))
            q, k = self.rotate(q, at), self.rotate(k, at)
            rows[0, index, :, at], rows[1, index, :, at] = k, v
            seen = []
            for first in range(0, len(ids), BLOCK):
                where = at[first:first + BLOCK]
                end = int(where[-1]) + 1
                keys, values = (part[None, index, :, :end] for part in rows)
                seen.append(F.scaled_dot_product_attention(
                    q[None, :, first:first + BLOCK], keys, values, attn_mask=torch.arange(end) <= where[:, None],
                    enable_gqa=True)[0])
            x = x + own.o_proj(torch.cat(seen, 1).transpose(0, 1).reshape(len(ids), -1))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.whole.model.norm(x)

    def after(self, ids, rows):
        """Log-probabilities after each of ids, which come behind all rows."""
        n = rows.shape[3]
        rows = torch.cat([rows, self.empty(len(ids))], 3)
        return self.whole.lm_head(self.run(ids, range(n, n + len(ids)), rows)).double().log_softmax(-1)


Change = collections.namedtuple("Change", "old new kept tail")  # ids, ids, [(first in old, first in new, tokens)], ids


def changes(model, ids, other):
    """(name, Change) of a text, and of it and another."""
    def line(tokens, first):
        return next(i for i in range(first, len(tokens)) if "\n" in model.tokenizer.decode(tokens[i - 1:i]))

    fact = model.ids("\n" + FACT.format(CODE))
    first = line(ids, TOKENS + 400)
    coming = ids[first:line(ids, first + REPLACING)] + fact
    for name, share in (("at 10 %", .1), ("at 50 %", .5)):
        start = line(ids, int(share * TOKENS))
        end = line(ids, start + REPLACED)
        yield name, Change(ids[:TOKENS], ids[:start] + coming + ids[end:TOKENS],
                           [(end, start + len(coming), TOKENS - end)], ids[TOKENS:TOKENS + TAIL])
    head, half = model.ids("Two documents follow.\n"), SWAPPED // 2
    a, n = model.ids("\nDocument A\n\n") + ids[:SWAPPED], len(head)
    b = model.ids("\nDocument B\n\n") + other[:half] + fact + other[half:SWAPPED]
    yield "swap", Change(head + a + b, head + b + a, [(n + len(a), n, len(b)), (n, n + len(b), len(a))],
                         ids[SWAPPED:SWAPPED + TAIL])


def chosen(kind, share, kept, apart):
    """Positions in the new prompt that are computed anew, a share of the rows of each part that is kept."""
    found = []
    for _, first, n in kept:
        count = round(share * n)
        found += {"first": range(first, first + count), "last": range(first + n - count, first + n),
                  "uniform": [first + int(i / share) for i in range(count)]}.get(kind, [])
    if apart is not None:
        where = torch.cat([torch.arange(first, first + n) for _, first, n in kept])
        found = where[apart[where].topk(round(share * len(where))).indices].tolist()
    return sorted(found)


def trials(model, change, before, cold, kinds, shares):
    """(choice, share, rows) of a change; cold are the exact rows, before those of the old prompt."""
    warm = cold.clone()  # rows before the change and of the new paragraph are exact
    for old, new, n in change.kept:
        warm[0, :, :, new:new + n] = model.rotate(before[0, :, :, old:old + n], torch.full((n,), new - old))
        warm[1, :, :, new:new + n] = before[1, :, :, old:old + n]
    # Keys and values of layer 0 are those of the words alone, so there the rotation is checked.
    assert (warm[:, 0] - cold[:, 0]).abs().max() < 1e-3 * cold[:, 0].abs().max()
    yield "none", 0., warm
    for layers in (len(model.layers) // 3, 2 * len(model.layers) // 3):
        rows = warm.clone()
        rows[:, :layers + 1] = cold[:, :layers + 1]  # a layer's output gives the next one's keys and values
        yield "layers", layers / len(model.layers), rows
    apart = {"values": (warm[1, 1] - cold[1, 1]).pow(2).sum((0, 2)),
             "oracle": ((warm - cold).pow(2).sum((2, 4)) / cold.pow(2).sum((2, 4))).sum((0, 1))}
    for kind in kinds:
        for share in shares:
            rows = warm.clone()
            if kind == "values":  # layer 0 has run for all, which gives the keys and values of layer 1
                rows[:, :2] = cold[:, :2]
            at = chosen(kind, share, change.kept, apart.get(kind))
            if kind == "first" and len(change.kept) == 1:
                rows[..., at, :] = cold[..., at, :]  # they see exact rows alone
            else:
                model.run([change.new[i] for i in at], at, rows)
            yield kind, share, rows


def run(options):
    torch.set_num_threads(options.threads)
    model, texts = Model(options.model), []
    with torch.inference_mode():
        for text in options.texts:
            name, _, path = text.partition("=")
            path, _, skip = path.partition(":")
            data = pathlib.Path(path).read_bytes()
            words = (gzip.decompress(data) if path.endswith(".gz") else data).decode("utf-8", "replace")[int(skip or 0):]
            ids = model.ids(words[:8 * (TOKENS + 800)])
            if len(ids) < TOKENS + 800:
                sys.exit(f"reuse: {path}: {len(ids)} tokens; {TOKENS + 800} are needed")
            texts.append((name, hashlib.sha256(data).hexdigest(), ids))
        ids = texts[0][2][:64]
        wanted = model.whole(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        assert (model.after(ids, model.empty(0)) - wanted).abs().max() < 1e-3, "transformers' logits are others"
        there = rows_of(options.out) if pathlib.Path(options.out).exists() else []
        done = {(row["text"], row["change"]) for row in there}
        for i, (name, digest, ids) in enumerate(texts):
            known = {}
            for kind, change in changes(model, ids, texts[(i + 1) % len(texts)][2]):
                if (name, kind) in done or kind not in options.changes:
                    continue
                found = list(measured(model, change, known, options.choices, options.shares))
                with open(options.out, "a", encoding="utf-8") as out:
                    for row in found:
                        out.write(json.dumps({"text": name, "sha256": digest, "change": kind, **row}) + "\n")
                print(f"{name}, {kind}", flush=True)


def measured(model, change, known, kinds, shares):
    """A row of figures for each trial; known: the rows of old prompts."""
    asked = model.ids(QUESTION.format(CODE))
    last = next(i for i in range(len(asked)) if model.tokenizer.decode(asked[i:]) == CODE + ".\n") + len(CODE)
    tails = (("text", change.tail, slice(None)), ("code", asked, slice(last - len(CODE) - 1, last - 1)))
    if tuple(change.old) not in known:
        known[tuple(change.old)] = model.empty(len(change.old))
        model.run(change.old, range(len(change.old)), known[tuple(change.old)])
    before, n = known[tuple(change.old)], len(change.new)
    same = next(i for i, pair in enumerate(zip(change.old, change.new)) if pair[0] != pair[1])
    cold = torch.cat([before[:, :, :, :same], model.empty(n - same)], 3)
    model.run(change.new[same:], range(same, n), cold)
    right = {name: model.after(ids, cold)[part] for name, ids, part in tails}
    for choice, share, rows in [("old prompt", 0., before), *trials(model, change, before, cold, kinds, shares)]:
        row = {"choice": choice, "share": share, "reused": sum(n for _, _, n in change.kept), "tokens": len(change.new)}
        for name, ids, part in tails:
            got = model.after(ids, rows)[part]
            row["kl " + name] = (right[name].exp() * (right[name] - got)).sum(1).mean().item()
            row["same " + name] = (right[name].argmax(1) == got.argmax(1)).double().mean().item()
            if name == "code":
                row["found"] = got.argmax(1).tolist() == ids[last - len(CODE):last]
        yield row


def rows_of(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def report(options):
    groups = collections.defaultdict(list)
    for row in rows_of(options.out):
        groups[row["change"], row["choice"], row["share"]].append(row)
    print("| change | computed anew | share | texts | KL (se) | same likeliest (se) | KL, code (se) | largest KL | code found |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for (change, choice, share), rows in groups.items():
        cells = []
        for name in ("kl text", "same text", "kl code"):
            values = [row[name] for row in rows]
            error = statistics.stdev(values) / len(values)**.5 if len(values) > 1 else float("nan")
            cells.append(f"{statistics.mean(values):.4f} ({error:.4f})")
        print(f"| {change} | {choice} | {share:.2f} | {len(rows)} | {' | '.join(cells)} | "
              f"{max(row['kl text'] for row in rows):.4f} | {sum(row['found'] for row in rows)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("run")
    command.set_defaults(do=run)
    command.add_argument("model")
    command.add_argument("out")
    command.add_argument("texts", nargs="+", metavar="NAME=TEXT[:SKIP]")
    command.add_argument("--threads", type=int, default=1)
    command.add_argument("--changes", nargs="*", default=["at 10 %", "at 50 %", "swap"])
    command.add_argument("--choices", nargs="*", default=["first", "values"],
                         help="of first, last, uniform, values, and oracle: the largest differences in all layers")
    command.add_argument("--shares", nargs="*", type=float, default=[.05, .1, .2, .4])
    command = commands.add_parser("report")
    command.set_defaults(do=report)
    command.add_argument("out")
    options = parser.parse_args()
    options.do(options)


if __name__ == "__main__":
    main()
