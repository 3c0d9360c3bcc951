"""Measures published rules of sparse prefill at equal pairs: peer_rules.py MODEL.gguf TOKENS TEXT.txt TRIAL.json ...

The divergence of SmolLM2 (`./dev model smollm2` prints the path) from dense attention, in PyTorch and F32. A pair is a query
and a key that it attends to. All rules get as many pairs in the whole prefill, on average over layers and heads, as
Headwater's has with chunks of 1024 and sets of 512: a row attends to its chunk up to itself and to 512 tokens before that.
A line for each trial: the mean KL in nats over every third position after the first 1024, the share of positions with the
same likeliest token, pairs as a share of the causal triangle and of the target, the budget that gives as many. Needs the
PyPI packages torch, transformers and gguf. A trial of 8192 tokens takes a few minutes on one core.

TRIAL.json, an object: "rule", a key of RULES below, and what differs from that rule's settings there; "everything": true
gives a budget without a bound, where the KL has to be 0.

From what the papers say, details from memory, no code of theirs: MInference (arXiv 2407.02490), FlexPrefill (2502.20766),
XAttention (2503.16428), QUOKA (2602.08722).
"""

import json
import math
import sys
import time

import torch
import transformers
from rule_trial import compared, hidden, means, object_in, opened

CHUNK, SET = 1024, 512  # of Headwater's rule, for the target
NEAR = .03  # how far from the target the pairs of a trial may be
used = {}   # the trial


def triangle(tokens):
    return tokens * (tokens + 1) // 2


def target(tokens):
    return sum(row % CHUNK + 1 + min(SET, row // CHUNK * CHUNK) for row in range(tokens))


def attention(q, k, rows, scale):
    """Attention weights of some rows [rows][columns before rows.stop], dense."""
    logits = scale * q[rows] @ k[:rows.stop].T
    return logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(rows.start + 1), -torch.inf).softmax(1)


def row_tiles(tokens, size):
    return [slice(first, min(first + size, tokens)) for first in range(0, tokens, size)]


# What a head attends to. All have `mask`, [rows][columns before rows.stop], which the caller makes causal, and `pairs`.

class Blocks:
    """Key blocks of each query block: kept [query blocks][key blocks]. The first and the own block are always kept."""

    def __init__(self, kept, size, tokens):
        kept[:, 0] = True
        self.kept, self.tile, self.tokens = (kept | torch.eye(len(kept), dtype=torch.bool)).tril(), size, tokens

    def mask(self, rows):
        of = torch.arange(rows.stop) // self.tile
        return self.kept[torch.arange(rows.start, rows.stop) // self.tile][:, of]

    def pairs(self):
        lengths = torch.tensor([rows.stop - rows.start for rows in row_tiles(self.tokens, self.tile)])
        off_diagonal = self.kept.tril(-1) * lengths[:, None] * lengths
        return int(off_diagonal.sum()) + sum(triangle(int(length)) for length in lengths)


class Lines:
    """Columns (verticals) and diagonals (slashes, by the distance of key and query): two lists of booleans."""
    tile = 128

    def __init__(self, columns, diagonals):
        self.columns, self.diagonals = columns.clone(), diagonals.clone()
        self.columns[0] = self.diagonals[0] = True

    def mask(self, rows):
        tokens = len(self.columns)
        distances = torch.nn.functional.pad(self.diagonals.flip(0), (0, rows.stop - rows.start)).unfold(0, rows.stop, 1)
        return self.columns[:rows.stop] | distances[tokens - rows.stop:tokens - rows.start].flip(0)

    def pairs(self):
        """Those of columns, and of diagonals; less the crossings, which both have."""
        rest = torch.arange(len(self.columns), 0, -1)
        crossings = self.diagonals.cumsum(0).flip(0)[self.columns].sum()
        return int(rest[self.columns].sum() + rest[self.diagonals].sum() - crossings)


class Tokens:
    """Tokens before each chunk, and the chunk itself: indices for each chunk."""

    def __init__(self, chosen, size, tokens):
        self.chosen, self.tile, self.tokens = chosen, size, tokens

    def mask(self, rows):
        out = torch.zeros(rows.stop - rows.start, rows.stop, dtype=torch.bool)
        out[:, self.chosen[rows.start // self.tile]] = True
        out[:, rows] = True
        return out

    def pairs(self):
        return sum(triangle(rows.stop - rows.start) + (rows.stop - rows.start) * len(tokens)
                   for rows, tokens in zip(row_tiles(self.tokens, self.tile), self.chosen))


def highest(weights, share, always=()):
    """Booleans of the fewest `weights` (of the last dimension, their sum 1) whose sum is at least `share`, `always` first."""
    order = weights.clone()
    for which in always:
        order[which] += 2
    order = order.sort(-1, descending=True).indices
    sorted_weights = weights.gather(-1, order)
    enough = sorted_weights.cumsum(-1) - sorted_weights < share
    return torch.zeros_like(weights, dtype=torch.bool).scatter(-1, order, enough)


def lines_of(weights):
    """Sums of attention weights [rows][tokens] of the last rows over columns and over diagonals."""
    count, tokens = weights.shape
    distance = torch.arange(tokens - count, tokens)[:, None] - torch.arange(tokens)
    diagonals = torch.zeros(tokens).scatter_add_(0, distance.clamp(min=0).flatten(), weights.flatten())
    return weights.sum(0), diagonals


# Rules. `look` gives what a rule needs of the queries [heads][tokens][d] and keys [tokens][d] of one key/value head, an
# entry for each query head; `choose` says for one entry and a budget what is attended to.

def look_lines(q, k, scale):
    """MInference: attention of the last rows to all keys."""
    rows = slice(max(0, len(k) - used["last"]), len(k))
    return [attention(head, k, rows, scale) for head in q]


def choose_lines(weights, budget):
    """The same number of pairs (`budget`) for every head. The columns with the largest sums get the share `columns` of them,
    the best diagonals what is left. A list of shares: for each head that which covers most of the last rows' attention."""
    by_column, by_diagonal = lines_of(weights)
    tokens, options = len(by_column), []
    by_column, by_diagonal = (part.argsort(descending=True) for part in (by_column, by_diagonal))

    def lines(columns, diagonals):
        out = torch.zeros(2, tokens, dtype=torch.bool)
        out[0, by_column[:columns]] = out[1, by_diagonal[:diagonals]] = True
        return Lines(*out)

    for share in used["columns"] if isinstance(used["columns"], list) else [used["columns"]]:
        columns = most(lambda number: lines(number, 0), share * budget, tokens)
        option = lines(columns, most(lambda number: lines(columns, number), budget, tokens))
        rows = slice(tokens - len(weights), tokens)
        options.append((float(weights[option.mask(rows)].sum()), len(options), option))
    return max(options)[2]


def most(lines, pairs, high):
    """The largest number up to `high` for which lines(number) has no more than `pairs`."""
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if lines(middle).pairs() <= pairs else (low, middle - 1)
    return low


def look_flex(q, k, scale):
    """FlexPrefill: of a head with a small divergence between the pooled estimate of the last block's attention and what it
    is, the pooled estimates of all blocks; of another head the sums of the last block's attention over lines."""
    size, found = used["block"], []
    keys = means(k[None], size)[0]
    rows = slice(max(0, len(k) - size), len(k))
    for head in q:
        weights = attention(head, k, rows, scale)
        right = torch.stack([part.sum(1) for part in weights.split(size, 1)], 1).mean(0)
        estimate = (scale * head[rows].mean(0) @ keys.T).softmax(0)
        middle = (right + estimate) / 2
        apart = sum(float((part * (part / middle).log()).nan_to_num(0).sum()) for part in (right, estimate)) / 2
        if math.sqrt(max(apart, 0)) < used["tau"]:
            found.append(attention(means(head[None], size)[0], keys, slice(0, len(keys)), scale))
        else:
            found.append(tuple(part / part.sum() for part in lines_of(weights)))
    return found


def choose_flex(found, budget):
    """Up to the share `budget` of the attention. Blocks by query block, or as in the paper of all query blocks at once."""
    if isinstance(found, tuple):
        return Lines(*(highest(part, budget) for part in found))
    kept = highest(found.flatten() / len(found), budget).view_as(found) if used["at_once"] else highest(found, budget)
    return Blocks(kept, used["block"], used["tokens"])


def look_antidiagonals(q, k, scale):
    """XAttention: a softmax over sums of logits along antidiagonals of squares of `stride` tokens, then sums over blocks."""
    size, stride = used["block"], used["stride"]
    pad = -len(k) % size
    q, k = (torch.nn.functional.pad(part, (0, 0, 0, pad)) for part in (q, k))
    keys = k.view(len(k) // stride, -1)
    count, of = len(k) // size, size // stride
    found = []
    for head in q:
        queries = head.view(len(keys), stride, -1).flip(1).flatten(1)
        weights = attention(queries, keys, slice(0, len(keys)), scale / stride)
        found.append(weights.view(count, of, count, of).sum((1, 3)) / of)
    return found


def look_exact(q, k, scale):
    """What no rule can know without dense attention: the sums of attention weights over blocks, mean over the rows."""
    size, found = used["block"], []
    for head in q:
        sums = torch.zeros(-(-len(k) // size), -(-len(k) // size))
        for number, rows in enumerate(row_tiles(len(k), size)):
            parts = attention(head, k, rows, scale).mean(0).split(size)
            sums[number, :number + 1] = torch.stack([part.sum() for part in parts])
        found.append(sums)
    return found


def choose_blocks(weights, budget):
    """Key blocks of each query block: up to the share `budget` of its attention, or as many as it says (the part of it
    behind the point: in so many query blocks one more), the first and the own block among them."""
    numbers = torch.arange(len(weights))
    if used["by"] == "share":
        return Blocks(highest(weights, budget, [(slice(None), 0), (numbers, numbers)]), used["block"], used["tokens"])
    order = weights.clone()
    order[:, 0] += 2
    order[numbers, numbers] += 2
    places = order.argsort(1, descending=True).argsort(1)
    return Blocks(places < (budget + numbers % 8 / 8).floor()[:, None], used["block"], used["tokens"])


def look_directions(q, k, _scale):
    """QUOKA: for each chunk the cosines of all keys before it with the queries that are the least like the mean query; their
    maximum over queries, mean over heads (`mean_first`: mean queries over heads, the maximum of those)."""
    found = []
    keys = torch.nn.functional.normalize(k, dim=1)
    for rows in row_tiles(len(k), used["block"]):
        part = q[:, rows]
        like = torch.nn.functional.cosine_similarity(part, part.mean(1, keepdim=True), dim=2)
        kept = like.topk(min(used["queries"], like.shape[1]), largest=False).indices
        queries = torch.nn.functional.normalize(part.gather(1, kept[:, :, None].expand(-1, -1, part.shape[2])), dim=2)
        if used["mean_first"]:
            queries = queries.mean(0, keepdim=True)
        found.append((queries @ keys[:rows.start].T).amax(1).mean(0))
    return [found] * len(q)


def choose_tokens(found, budget):
    return Tokens([votes.topk(int(min(budget, len(votes)))).indices for votes in found], used["block"], used["tokens"])


# A rule: look, choose, the largest budget (0: the number of pairs, or of what is chosen), settings.
RULES = {
    "vertical-slash": (look_lines, choose_lines, 0, {"last": 64, "columns": .5}),
    "flex": (look_flex, choose_flex, 1, {"block": 128, "tau": .1, "at_once": True}),
    "antidiagonals": (look_antidiagonals, choose_blocks, 1, {"block": 128, "stride": 8, "by": "share"}),
    "exact-blocks": (look_exact, choose_blocks, 1, {"block": 64, "by": "share"}),
    "directions": (look_directions, choose_tokens, 0, {"block": 128, "queries": 16, "mean_first": False}),
}
seen = []     # queries, keys and scale of each layer and key/value head, dense
counted = []  # pairs of each layer and query head
lines = []    # of each layer and query head: whether it has lines


def attention_seen(_module, query, key, value, _mask, scaling, **_):
    group = query.shape[1] // key.shape[1]
    seen.extend((q, k, scaling) for q, k in zip(query[0].split(group), key[0]))
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
    return out.transpose(1, 2), None


def head_out(q, k, v, scale, attended):
    out, pairs = torch.empty_like(q), 0
    for rows in row_tiles(len(k), attended.tile):
        mask = attended.mask(rows).tril(rows.start)
        pairs += int(mask.sum())
        columns = mask.any(0).nonzero()[:, 0]
        logits = scale * q[rows] @ k[columns].T
        out[rows] = logits.masked_fill_(~mask[:, columns], -torch.inf).softmax(1) @ v[columns]
    assert pairs == attended.pairs()
    counted.append(pairs)
    lines.append(isinstance(attended, Lines))
    return out


def attention_by_rule(_module, query, key, value, _mask, scaling, **_):
    look, choose = RULES[used["rule"]][:2]
    group, out = query.shape[1] // key.shape[1], []
    for q, k, v in zip(query[0].split(group), key[0], value[0]):
        out += [head_out(head, k, v, scaling, choose(found, used["budget"])) for head, found in zip(q, look(q, k, scaling))]
    return torch.stack(out, 1)[None], None


def budget_for(pairs, found, choose, high):
    """The budget that gives so many pairs to dense attention's queries and keys, on average over layers and heads."""
    low = 0
    for _ in range(14):
        middle = (low + high) / 2
        mean = sum(choose(one, middle).pairs() for one in found) / len(found)
        low, high = (middle, high) if mean <= pairs else (low, middle)
    return (low + high) / 2


def sparse_hidden(model, ids):
    """Outputs at a budget with which pairs are near the target. The keys and queries that a budget is searched with are dense
    attention's, so it is corrected where those of the rule differ much."""
    look, choose, high = RULES[used["rule"]][:3]
    goal = aim = target(len(ids))
    if high == 0 or used.get("by") == "number":  # the same pairs for every head
        high, found = len(ids), look(*seen[0])[:1]
    elif not used.get("everything"):
        found = [one for q_k_scale in seen for one in look(*q_k_scale)]
    for _ in range(4):
        used["budget"] = math.inf if used.get("everything") else aim if choose == choose_lines else \
            budget_for(aim, found, choose, high)
        counted.clear()
        lines.clear()
        out = hidden(model, ids)
        off = sum(counted) / len(counted) / goal
        if used.get("everything") or abs(off - 1) <= NEAR:
            break
        aim /= off
    return out


def read_trial(path):
    trial = object_in(path)
    if trial.get("rule") not in RULES:
        sys.exit(f"peer_rules: {path}: rule {trial.get('rule')!r} is not known; allowed: {', '.join(RULES)}")
    allowed = ["rule", "everything", *RULES[trial["rule"]][3]]
    unknown = sorted(set(trial) - set(allowed))
    if unknown:
        sys.exit(f"peer_rules: {path}: {unknown[0]!r} is not known; allowed: {', '.join(allowed)}")
    return trial


def main():
    trials, text, model, ids = opened(__doc__, read_trial, lambda trials: CHUNK + 3)
    transformers.AttentionInterface.register("seen", attention_seen)
    transformers.AttentionInterface.register("by_rule", attention_by_rule)
    with torch.inference_mode():
        model.set_attn_implementation("seen")
        dense = hidden(model, ids)
        model.set_attn_implementation("by_rule")
        for trial in trials:
            start = time.process_time()
            used.clear()
            used.update({**RULES[trial["rule"]][3], **trial, "tokens": len(ids)})
            apart, same = compared(model, dense, sparse_hidden(model, ids))
            pairs = sum(counted) / len(counted)
            print(f"{text.stem} {len(ids)} {json.dumps(trial)}: KL {apart.mean():.5f}, same {same:.4f}, pairs "
                  f"{pairs / triangle(len(ids)):.4f} of the triangle, {pairs / target(len(ids)):.3f} of the target, budget "
                  f"{used['budget']:.5g}, heads with lines {sum(lines) / len(lines):.2f}, {time.process_time() - start:.0f} s",
                  flush=True)


if __name__ == "__main__":
    main()
