"""Chunked sparse prefill attention in numpy, written from docs/spec.md alone: the third oracle.

It shares no code with the reference or the engines, and imports nothing of the project. Everything is float64;
column sums are rounded once to float32, scores once to bfloat16 (or kept as float32).
"""

from dataclasses import dataclass, field, replace

import numpy as np


@dataclass
class Options:
    batch: int = 4096
    chunk: int = 1024
    local: int = 256
    heavy: int = 256
    clamp: bool = True
    dense: bool = False
    scale: float | None = None
    softcap: float = 0.0
    score_type: str = "bf16"
    sinks: np.ndarray | None = None
    alibi: np.ndarray | None = None
    select: str = "h2o"
    key_block: int = 8
    query_block: int = 32
    pool: int = 4
    refine: int = 2
    pinned: int = 0
    dense_below: int = 0
    least_weight: float = 0.0005

    def window(self):
        """The program's `--select window`: the newest of L + H tokens, and as many heavy ones as are pinned."""
        sizes = {"key_block": 1, "query_block": self.chunk, "pool": self.chunk, "refine": 1}
        every = self.local + self.heavy
        if self.clamp and every >= self.chunk:
            every = self.chunk - 1
        pinned = min(self.pinned, every)
        return replace(self, select="blocks", local=every - pinned, heavy=pinned, pinned=pinned, **sizes)

    def effective(self):
        """CFG-2..4, SEL-1: (batch, chunk, local, heavy)."""
        batch = max(self.batch, self.chunk)
        local, heavy = (0, 0) if self.dense else (self.local, self.heavy)
        if self.clamp and local + heavy >= self.chunk:
            local = min(local, self.chunk - 1)
            heavy = min(heavy, self.chunk - 1 - local)
            heavy -= heavy % self.key_block if self.select == "blocks" else 0
        return batch, self.chunk, local, heavy

    def effective_pinned(self):
        """CFG-5: A'."""
        return min(self.pinned, self.effective()[3])


@dataclass
class Result:
    out: np.ndarray
    lse: np.ndarray
    scores: np.ndarray  # float32 values
    chunk_start: list = field(default_factory=list)
    memory: list = field(default_factory=list)  # per chunk: [heads, M] int32
    colsum_intra: np.ndarray | None = None
    colsum_inter: list = field(default_factory=list)  # per chunk: [heads, M] float32
    margin: float = np.inf  # smallest relative distance of any decision from another result
    vote_margin: float = np.inf  # the same of votes, in bounds
    bound_out: np.ndarray | None = None  # SPEC 13, next to each value: what an engine in float32 may be off by
    bound_lse: np.ndarray | None = None
    bound_intra: np.ndarray | None = None
    bound_inter: list = field(default_factory=list)
    mismatches: list = field(default_factory=list)  # teacher forcing: sets that the given scores do not select
    # Rules `blocks` and `sketches`, one entry for each query block; the bounds stand next to the votes.
    query_blocks: list = field(default_factory=list)  # (first row, end)
    block_sets: list = field(default_factory=list)  # [kv heads, M] int32
    block_votes: list = field(default_factory=list)  # [kv heads, candidates] float32
    token_votes: list = field(default_factory=list)  # [kv heads, voted tokens] float32
    bound_block_votes: list = field(default_factory=list)
    bound_token_votes: list = field(default_factory=list)


@dataclass
class Given:
    """What an engine reported, for teacher forcing (SPEC 13)."""

    memory: np.ndarray | None = None  # [chunks, heads, M]
    colsum_intra: np.ndarray | None = None  # [heads, n] float32
    colsum_inter: np.ndarray | None = None  # [chunks, heads, M] float32
    # Rules `blocks` and `sketches`: [query blocks, kv heads, ...], NaN after the last vote.
    block_sets: np.ndarray | None = None
    block_votes: np.ndarray | None = None
    token_votes: np.ndarray | None = None


def bf16(values):
    """SCORE-4 for float32 arrays; returns float32 values that are bfloat16 numbers."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16
    rounded = np.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC00000, rounded)
    return rounded.astype(np.uint32).view(np.float32)


def plan(base, n, batch, chunk):
    """PLAN-1, PLAN-2."""
    chunks = []
    for batch_begin in range(base, base + n, batch):
        batch_end = min(batch_begin + batch, base + n)
        for begin in range(batch_begin, batch_end, chunk):
            chunks.append((begin, min(begin + chunk, batch_end)))
    return chunks


def softmax_parts(logits, visible, sink=None):
    """INTRA-1 for rows x columns: (m, l, weights relative to m)."""
    masked = np.where(visible, logits, -np.inf)
    m = masked.max(axis=1, initial=-np.inf)
    if sink is not None:
        m = np.maximum(m, sink)
    safe = np.where(np.isneginf(m), 0.0, m)
    weights = np.where(visible, np.exp(np.where(visible, logits, 0.0) - safe[:, None]), 0.0)
    l = weights.sum(axis=1)
    if sink is not None:
        l = l + np.exp(sink - safe)
    return safe, l, weights


def of_groups(values):
    """The mean of each column group, at every column of it (SEL-3)."""
    first = np.arange(0, values.shape[-1], GROUP)
    columns = np.diff(np.append(first, values.shape[-1]))
    return np.repeat(np.add.reduceat(values, first, axis=-1) / columns, columns, axis=-1)


def best(votes, count, pinned=0):
    """SEL-6, MEM-3, MEM-7: the numbers of the `count` highest votes, ascending; those below `pinned` first, equal votes:
    the lower number first."""
    numbers = np.arange(len(votes))
    order = np.lexsort((numbers, -votes.astype(np.float64), numbers >= pinned))
    return np.sort(order[:count])


def span(options, begin):
    """SEL-2: (first position of Local, number of candidates) of a chunk that begins at `begin`."""
    _, _, local, heavy = options.effective()
    size = options.key_block
    first = min(begin, -(-max(0, begin - local) // size) * size)
    return first, first // size if heavy > 0 else 0


def kept_blocks(options, begin, block_votes):
    """SEL-6: the first stage."""
    _, _, _, heavy = options.effective()
    count = min(options.refine * heavy // options.key_block, span(options, begin)[1])
    return best(block_votes, count, options.effective_pinned() // options.key_block)


def tokens_of(options, blocks):
    return (blocks[:, None] * options.key_block + np.arange(options.key_block)).ravel()


def has_second_stage(options, begin):
    """SEL-7."""
    _, _, _, heavy = options.effective()
    kept = min(options.refine * heavy // options.key_block, span(options, begin)[1])
    return options.refine > 1 and kept * options.key_block > heavy


GROUP = 8  # columns, SEL-3
MOST_ESTIMATED = 2048  # SEL-12
REGION = 32


def regions_searched(options):
    """SEL-12: G."""
    _, _, _, heavy = options.effective()
    return max(16, -(-options.refine * heavy // (8 * options.key_block)))


def set_of_votes(options, begin, block_votes, token_votes):
    """SEL-6 to SEL-8, SEL-11: the set that votes select, ascending positions without the -1 after them."""
    _, _, _, heavy = options.effective()
    tokens = tokens_of(options, kept_blocks(options, begin, block_votes))
    if has_second_stage(options, begin):
        tokens = tokens[best(token_votes, heavy, options.effective_pinned())]  # pinned blocks are the first of the kept
    return np.concatenate([tokens, np.arange(span(options, begin)[0], begin)]).astype(np.int64)


def sketched_past(options, begin):
    """SKE-2: (fixed part, candidates) of a chunk that begins at `begin`, ascending positions."""
    _, _, local, heavy = options.effective()
    first = max(0, begin - local)
    pinned = min(options.effective_pinned(), first)
    fixed = np.concatenate([np.arange(pinned), np.arange(first, begin)])
    return fixed, np.arange(pinned, first if heavy > 0 else pinned)


def least_vote(options):
    """SKE-7: w."""
    return np.float32(np.log(options.least_weight) if options.least_weight > 0 else -np.inf)


def set_of_sketch_votes(options, begin, votes):
    """SKE-7, SKE-8, SKE-9: the set that votes select, ascending positions without the -1 after them."""
    fixed, candidates = sketched_past(options, begin)
    allowed = votes >= least_vote(options)
    most = options.effective()[3] - options.effective_pinned()
    return np.sort(np.concatenate([fixed, candidates[allowed][best(votes[allowed], most)]])).astype(np.int64)


COLUMN_CHOOSERS = 256  # positions


def sketches(rows):
    """SKE-4 of rows of the columns X: (integers, units, whether there is a sketch)."""
    rows = rows.astype(np.float32)
    with np.errstate(all="ignore"):
        largest = np.abs(rows).max(axis=1)
        factor = np.float32(127) / largest
        integers = np.rint(rows * factor[:, None])
    exists = np.isfinite(rows).all(axis=1)
    integers[np.isinf(factor) | ~exists] = 0
    return integers.astype(np.int64), (largest / np.float32(127)).astype(np.float64), exists


UNIT = 2.0**-24


class Oracle:
    """One layer, fed step by step; a `dense` one is that of STATE-7. With `given`, memory sets and scores follow the
    engine's own column sums (SCORE-6), or its own votes (SEL-11). `kept` is what the bounds of votes grant (SEL-11): the
    round-off of the types in which an engine keeps summaries and pooled queries, 0 where it does not narrow them."""

    def __init__(self, q, k, v, options, given=None, kept=(0.0, 0.0), dense=False):
        self.given = given
        self.dense = dense
        self.summary_unit, self.query_unit = kept
        self.q, self.k, self.v = (np.asarray(x, dtype=np.float64) for x in (q, k, v))
        self.options = options
        self.batch, self.chunk, self.local, self.heavy = options.effective()
        self.pinned = options.effective_pinned()
        n, self.heads, d = self.q.shape
        self.group = self.heads // self.k.shape[1]
        self.scale = 1.0 / np.sqrt(d) if options.scale is None else options.scale
        self.tokens = 0
        self.turn_sparse = None  # None: no turn is open
        self.sets = None  # the memory set built last: list of sorted position arrays, one per head
        self.built_at = 0
        self.scores = np.zeros((self.heads, n), dtype=np.float32)
        self.result = Result(
            out=np.zeros((n, self.heads, self.v.shape[2])),
            lse=np.zeros((n, self.heads)),
            scores=self.scores,
            colsum_intra=np.zeros((self.heads, n), dtype=np.float32),
            bound_out=np.zeros((n, self.heads, self.v.shape[2])),
            bound_lse=np.zeros((n, self.heads)),
            bound_intra=np.zeros((self.heads, n)),
        )

    def logits(self, head, rows, columns):
        """LOGIT-1..3: rows and columns are position arrays."""
        keys = self.k[:, head // self.group]
        s = self.scale * (self.q[rows, head] @ keys[columns].T)
        if self.options.softcap > 0:
            s = self.options.softcap * np.tanh(s / self.options.softcap)
        if self.options.alibi is not None:
            s = s - float(self.options.alibi[head]) * (rows[:, None] - columns[None, :])
        return s

    def logit_error(self, head, rows, columns):
        """SPEC 13: ds, the largest rounding error of a row's logits in float32.

        d products and sums and the scale: (d + 4) roundings of the sum of magnitudes; cap and bias round values of
        at most the size of the logit before them and of the bias (the slope of the cap is at most 1). The cap's
        tanh may be off by a few units of its own."""
        keys = np.abs(self.k[:, head // self.group][columns])
        size = (np.abs(self.q[rows, head]) @ keys.T).max(axis=1, initial=0.0) * abs(self.scale)
        error = (self.q.shape[2] + 4) * UNIT * size
        if self.options.softcap > 0:
            error = error + 8 * UNIT * np.minimum(size, self.options.softcap)
        if self.options.alibi is not None:
            reach = (rows - columns.min(initial=0)) * abs(float(self.options.alibi[head]))
            error = error + 4 * UNIT * (reach + size)
        return error

    def relative_error(self, head, rows, columns):
        """c * u + 2 ds: weights, their sums (as long as there are keys) and the products with the values round."""
        return (len(columns) + 16) * UNIT + 2 * self.logit_error(head, rows, columns)

    def sink(self, head):
        if self.options.sinks is None or np.isneginf(self.options.sinks[head]):
            return None
        return float(self.options.sinks[head])

    def round_score(self, values):
        if self.options.score_type == "f32":
            return values
        ulp = np.spacing(np.abs(values).astype(np.float32)) * 65536.0
        halves = np.abs((values.astype(np.float64) / ulp) % 1.0 - 0.5)
        if halves.size:
            self.result.margin = min(self.result.margin, float(halves.min()) * 2.0**-8)
        return bf16(values)

    def prefill(self, n, turn_length=None):
        if self.turn_sparse is None:  # STATE-3
            length = n if turn_length is None else turn_length
            long_enough = length >= self.options.dense_below and (self.tokens == 0 or length > self.chunk)
            self.turn_sparse = self.local + self.heavy > 0 and long_enough
        if not self.turn_sparse or self.dense:
            self.dense_chunk(n)
            return
        for begin, end in plan(self.tokens, n, self.batch, self.chunk):
            if self.options.select != "h2o":
                self.blocks_chunk(begin, end)
            else:
                self.sparse_chunk(begin, end)
            self.tokens = end

    def decode(self, n):
        self.turn_sparse = None
        self.dense_chunk(n)

    def empty_memory(self, begin):
        width = self.local + self.heavy if self.options.select == "h2o" else 0
        self.result.chunk_start.append(begin)
        self.result.memory.append(np.full((self.heads, width), -1, dtype=np.int32))
        self.result.colsum_inter.append(np.zeros((self.heads, width), dtype=np.float32))
        self.result.bound_inter.append(np.zeros((self.heads, width)))

    def dense_chunk(self, n):
        """DEC-1 and dense prefill calls."""
        begin, end = self.tokens, self.tokens + n
        self.empty_memory(begin)
        rows, columns = np.arange(begin, end), np.arange(end)
        for head in range(self.heads):
            visible = columns[None, :] <= rows[:, None]
            m, l, w = softmax_parts(self.logits(head, rows, columns), visible, self.sink(head))
            self.result.out[rows, head] = w @ self.v[:end, head // self.group] / l[:, None]
            self.result.lse[rows, head] = m + np.log(l)
            error = self.relative_error(head, rows, columns)
            magnitude = w @ np.abs(self.v[:end, head // self.group]) / l[:, None]
            self.result.bound_out[rows, head] = error[:, None] * magnitude
            self.result.bound_lse[rows, head] = error + 2 * UNIT * np.abs(self.result.lse[rows, head])
        self.tokens = end

    def build_sets(self, end):
        """MEM-1..5, MEM-7."""
        local = np.arange(max(0, end - self.local), end)
        sets = []
        for head in range(self.heads):
            previous = np.array([], dtype=np.int64) if self.sets is None else self.sets[head]
            candidates = np.union1d(previous, np.arange(self.built_at, end))
            candidates = candidates[candidates < end - self.local].astype(np.int64)
            score = self.scores[head, candidates].astype(np.float64)
            rank = np.where(np.isnan(score), -np.inf, score)
            order = np.lexsort((candidates, -rank, np.isnan(score), candidates >= self.pinned))
            kept = candidates[order[: self.heavy]]
            by_score = self.heavy - (candidates < self.pinned).sum()
            if self.options.score_type == "f32" and 0 < by_score and self.heavy < len(order):
                worst, best = rank[order[self.heavy - 1]], rank[order[self.heavy]]
                if worst > 0:
                    self.result.margin = min(self.result.margin, (worst - best) / worst)
            sets.append(np.sort(np.concatenate([kept, local])).astype(np.int64))
        self.sets, self.built_at = sets, end
        return sets

    def force_sets(self, sets):
        """The engine's own sets, after a check that the scores select them (SCORE-6)."""
        chunk = len(self.result.memory) - 1
        for head in range(self.heads):
            entries = self.given.memory[chunk, head]
            valid = entries[entries >= 0].astype(np.int64)
            padded = np.full(entries.shape, -1)
            padded[: len(sets[head])] = sets[head]
            if not np.array_equal(padded, entries):
                self.result.mismatches.append((chunk, head))
            sets[head] = valid
        self.sets = sets
        return sets

    def sparse_chunk(self, begin, end):
        rows = np.arange(begin, end)
        self.empty_memory(begin)
        chunk = len(self.result.memory) - 1
        sets = self.build_sets(begin) if begin > 0 else None
        if sets is not None and self.given is not None:
            sets = self.force_sets(sets)
        for head in range(self.heads):
            values = self.v[:, head // self.group]
            visible = rows[None, :] <= rows[:, None]  # MASK-1
            m, l, w = softmax_parts(self.logits(head, rows, rows), visible, self.sink(head))
            colsum = (w / l[:, None]).sum(axis=0).astype(np.float32)  # INTRA-2
            error = self.relative_error(head, rows, rows)
            self.result.colsum_intra[head, rows] = colsum
            self.result.bound_intra[head, rows] = (w / l[:, None] * error[:, None]).sum(axis=0)
            source = colsum if self.given is None else self.given.colsum_intra[head, rows]
            self.scores[head, rows] = self.round_score(source)  # SCORE-2
            weighted = w @ values[rows]
            magnitude = w @ np.abs(values[rows])
            if sets is not None:
                entries = sets[head]
                every = np.ones((len(rows), len(entries)), dtype=bool)
                mi, li, wi = softmax_parts(self.logits(head, rows, entries), every)
                inter = (wi / li[:, None]).sum(axis=0).astype(np.float32)  # INTER-2
                far = self.relative_error(head, rows, entries)
                self.result.memory[-1][head, : len(entries)] = entries
                self.result.colsum_inter[-1][head, : len(entries)] = inter
                self.result.bound_inter[-1][head, : len(entries)] = (wi / li[:, None] * far[:, None]).sum(axis=0)
                if self.given is not None:
                    inter = self.given.colsum_inter[chunk, head, : len(entries)]
                total = self.scores[head, entries] + inter  # float32, SCORE-3
                self.scores[head, entries] = self.round_score(total)
                top = np.maximum(m, mi)  # FUSE-1
                a, b = np.exp(m - top), np.exp(mi - top)
                weighted = weighted * a[:, None] + wi @ values[entries] * b[:, None]
                magnitude = magnitude * a[:, None] + wi @ np.abs(values[entries]) * b[:, None]
                m, l = top, l * a + li * b
                error = np.maximum(error, far) + 8 * UNIT
            self.result.out[rows, head] = weighted / l[:, None]
            self.result.lse[rows, head] = m + np.log(l)
            self.result.bound_out[rows, head] = error[:, None] * magnitude / l[:, None]
            self.result.bound_lse[rows, head] = error + 2 * UNIT * np.abs(self.result.lse[rows, head])


    def bent(self, head, values, row, columns):
        """LOGIT-2 and LOGIT-3 of the scaled products of one row with `columns`."""
        if self.options.softcap > 0:
            values = self.options.softcap * np.tanh(values / self.options.softcap)
        if self.options.alibi is not None:
            values = values - float(self.options.alibi[head]) * (row - columns)
        return values

    def bent_error(self, head, error, size, row, columns):
        """What an error of the scaled products, of terms that add up to `size`, becomes: see logit_error."""
        if self.options.softcap > 0:
            error = error + 8 * UNIT * np.minimum(size, self.options.softcap)
        if self.options.alibi is not None:
            error = error + 4 * UNIT * ((row - columns) * abs(float(self.options.alibi[head])) + size)
        return error

    def pools(self, kv_head, begin, end, size):
        """SEL-4: (head, mean row of Q, mean of its magnitudes, last row) of each pool of `size` rows and query head."""
        for first in range(begin, end, size):
            last = min(first + size, end)
            for head in range(kv_head * self.group, (kv_head + 1) * self.group):
                rows = self.q[first:last, head]
                yield head, rows.mean(axis=0), np.abs(rows).mean(axis=0), last - 1

    def summaries(self, kv_head, count):
        """SEL-3 of the candidates: means, variances, mean magnitudes of the keys; then what the first two may be off by.
        A variance stands at every column of its group.

        A mean rounds its terms and the division, a variance three times for each term, and the mean's error enters it
        squared. The engine then keeps each in its own type."""
        size, kept = self.options.key_block, self.summary_unit
        keys = self.k[: count * size, kv_head].reshape(count, size, self.k.shape[2])
        means = keys.mean(axis=1)
        variances = of_groups(((keys - means[:, None]) ** 2).mean(axis=1))
        mean_size = np.abs(keys).mean(axis=1)
        mean_error = (size + 1) * UNIT * mean_size + kept * np.abs(means)
        terms = size * GROUP + 4
        variance_error = terms * UNIT * variances + of_groups(((size + 1) * UNIT * mean_size) ** 2) + kept * variances
        return means, variances, mean_size, mean_error, variance_error

    def region_summaries(self, blocks):
        """SEL-12: the same of whole regions. An error of a block's mean enters the variance with twice its distance from
        the region's mean, and squared."""
        whole = len(blocks[0]) // REGION
        means, variances, mean_size, mean_error, variance_error = (
            values[: whole * REGION].reshape(whole, REGION, -1) for values in blocks)
        of_region = means.mean(axis=1)
        apart = means - of_region[:, None]
        spread = (variances + of_groups(apart**2)).mean(axis=1)
        size = mean_size.mean(axis=1)
        error = mean_error.mean(axis=1) + (REGION + 1) * UNIT * size
        either = mean_error + error[:, None]
        inherited = variance_error + of_groups(2 * np.abs(apart) * either + either**2)
        spread_error = inherited.mean(axis=1) + (REGION * GROUP + 5) * UNIT * spread
        kept = self.summary_unit
        return of_region, spread, size, error + kept * np.abs(of_region), spread_error + kept * spread

    def searched(self, kv_head, begin, end, summaries, given):
        """SEL-12: which of the candidates are searched. With `given` votes of an engine those that it searched, after a
        check that votes on regions that lie within their bounds select them."""
        count = len(summaries[0])
        searched = np.ones(count, dtype=bool)
        if count <= MOST_ESTIMATED:
            return searched
        whole = count // REGION
        columns = (np.arange(whole) + 1) * REGION * self.options.key_block - 1
        votes, bound = self.vote(kv_head, begin, end, self.region_summaries(summaries), columns)
        most = min(regions_searched(self.options), whole)
        chosen = np.isin(np.arange(whole), best(votes, most))
        if given is None:
            self.decide(votes, bound, most)
        else:
            chosen = (given[: whole * REGION] > -np.inf).reshape(whole, REGION).any(axis=1)
            most_of_others = (votes - bound)[~chosen].max(initial=-np.inf)
            if chosen.sum() != most or ((votes + bound)[chosen] < most_of_others).any():
                self.result.mismatches.append((len(self.result.query_blocks) - 1, kv_head))
        searched[: whole * REGION] = chosen.repeat(REGION)
        return searched

    def vote_on_blocks(self, kv_head, begin, end, count, given=None):
        """SEL-3, SEL-5, SEL-6, SEL-12: (votes of the candidates, what an engine may be off by), with `given` votes those
        of what it searched."""
        summaries = self.summaries(kv_head, count)
        searched = self.searched(kv_head, begin, end, summaries, given)
        columns = (np.arange(count) + 1) * self.options.key_block - 1
        votes, bound = np.full(count, -np.inf, dtype=np.float32), np.zeros(count)
        of_searched = [values[searched] for values in summaries]
        votes[searched], bound[searched] = self.vote(kv_head, begin, end, of_searched, columns[searched])
        return votes, bound

    def vote(self, kv_head, begin, end, summaries, columns):
        """SEL-5, SEL-6: (votes on what the summaries are of, with the positions of the last keys, errors)."""
        s, d = self.scale, self.q.shape[2]
        means, variances, mean_size, mean_error, variance_error = summaries
        votes, bound = np.full(len(columns), -np.inf), np.zeros(len(columns))
        pooled = (self.options.pool + 1) * UNIT + self.query_unit  # a pooled query is a mean
        for head, q, q_size, row in self.pools(kv_head, begin, end, self.options.pool):
            e = self.bent(head, s * (means @ q) + s * s / 2 * (variances @ q**2), row, columns)
            e = np.where(np.isnan(e), -np.inf, e)
            top = e.max()
            votes = np.maximum(votes, np.where(e == top, 0.0, e - np.where(np.isfinite(top), top, np.inf)))
            linear, square = abs(s) * (mean_size @ q_size), s * s / 2 * (variances @ q_size**2)
            error = ((d + 4) * UNIT + pooled) * linear + abs(s) * (mean_error @ q_size)
            error += ((d + 5) * UNIT + 2 * pooled) * square + s * s / 2 * (variance_error @ q_size**2)
            error = self.bent_error(head, error, linear + square, row, columns)
            bound = np.maximum(bound, error + error.max())
        rounded = votes.astype(np.float32)
        return rounded, bound + 2 * UNIT * np.abs(np.where(np.isfinite(votes), votes, 0.0))

    def vote_on_tokens(self, kv_head, begin, end, tokens):
        """SEL-7: (votes of the tokens of the kept blocks, what an engine may be off by)."""
        d = self.q.shape[2]
        keys = self.k[tokens, kv_head]
        votes, bound = np.zeros(len(tokens)), np.zeros(len(tokens))
        half = -(-self.options.pool // 2)
        for head, q, q_size, row in self.pools(kv_head, begin, end, half):
            logits = self.bent(head, self.scale * (keys @ q), row, tokens)
            with np.errstate(invalid="ignore"):
                weights = np.exp(logits - logits.max())
            weights = weights / weights.sum()
            weights = np.where(np.isnan(weights), 0.0, weights)
            votes = np.maximum(votes, weights)
            size = abs(self.scale) * (np.abs(keys) @ q_size)
            error = ((d + 4 + half + 1) * UNIT + self.query_unit) * size
            error = self.bent_error(head, error, size, row, tokens).max()
            bound = np.maximum(bound, weights * ((len(tokens) + 16) * UNIT + 2 * error))
        return votes.astype(np.float32), bound

    def decide(self, votes, bounds, count, pinned=0):
        """The distance of a decision from another result, in bounds of the two votes that are next to it."""
        votes, bounds, count = votes[pinned:], bounds[pinned:], count - pinned  # pinned ones are no decision
        if not 0 < count < len(votes):
            return
        chosen = np.zeros(len(votes), dtype=bool)
        chosen[best(votes, count)] = True
        v = votes.astype(np.float64)
        apart = v[chosen][:, None] - v[~chosen][None, :]
        granted = bounds[chosen][:, None] + bounds[~chosen][None, :]
        with np.errstate(invalid="ignore"):
            ratio = apart / np.maximum(granted, 1e-300)
        self.result.vote_margin = min(self.result.vote_margin, float(np.nanmin(ratio)))

    def set_of_query_block(self, kv_head, begin, block_begin, block_end):
        """SEL-5 to SEL-8; with `given` a check that the given votes select the given set (SEL-11)."""
        result, options = self.result, self.options
        number = len(result.query_blocks) - 1
        count = span(options, begin)[1]
        votes = token_votes = np.zeros(0, dtype=np.float32)
        bound = token_bound = np.zeros(0)
        chosen_by = self.given
        given = None if chosen_by is None else chosen_by.block_votes[number, kv_head, :count]
        if count > 0:
            votes, bound = self.vote_on_blocks(kv_head, block_begin, block_end, count, given)
        by_blocks = votes if given is None else given
        kept = kept_blocks(options, begin, by_blocks)
        self.decide(votes, bound, len(kept), self.pinned // options.key_block)
        by_tokens = token_votes
        if has_second_stage(options, begin):
            tokens = tokens_of(options, kept)
            token_votes, token_bound = self.vote_on_tokens(kv_head, block_begin, block_end, tokens)
            by_tokens = token_votes if chosen_by is None else chosen_by.token_votes[number, kv_head, : len(tokens)]
            self.decide(token_votes, token_bound, self.heavy, self.pinned)
        entries = set_of_votes(options, begin, by_blocks, by_tokens)
        self.check_set(kv_head, entries)
        result.block_votes[-1].append(votes)
        result.token_votes[-1].append(token_votes)
        result.bound_block_votes[-1].append(bound)
        result.bound_token_votes[-1].append(token_bound)
        return entries

    def check_set(self, kv_head, entries):
        """SEL-11, SKE-9: that given votes of the last query block select its given set."""
        if self.given is None:
            return
        number = len(self.result.query_blocks) - 1
        padded = np.full(self.local + self.heavy, -1)
        padded[: len(entries)] = entries
        if not np.array_equal(padded, self.given.block_sets[number, kv_head]):
            self.result.mismatches.append((number, kv_head))

    def sketch_columns(self, kv_head, begin):
        """SKE-3: X."""
        sums = np.zeros(self.k.shape[2])
        for row in self.k[: min(begin, COLUMN_CHOOSERS), kv_head]:
            sums += row * row
        return best(np.where(np.isnan(sums), np.inf, sums), min(len(sums), 256, -(-len(sums) // 64) * 32))

    def vote_by_sketches(self, kv_head, begin, first, last):
        """SKE-4 to SKE-6: (votes of the candidates, what an engine may be off by)."""
        fixed, candidates = sketched_past(self.options, begin)
        columns = self.sketch_columns(kv_head, begin)
        keys, key_units, key_exists = sketches(self.k[candidates, kv_head][:, columns])
        rows, own = np.arange(first, last), np.concatenate([fixed, np.arange(begin, last)])
        votes, bound = np.full(len(candidates), -np.inf), np.zeros(len(candidates))
        for head in range(kv_head * self.group, (kv_head + 1) * self.group):
            m, l, _ = softmax_parts(self.logits(head, rows, own), own[None, :] <= rows[:, None], self.sink(head))
            with np.errstate(divide="ignore"):
                weight = m + np.log(l)  # SKE-5
            weight_error = self.relative_error(head, rows, own) + 2 * UNIT * np.abs(weight)
            queries, units, exists = sketches(self.q[rows, head][:, columns])
            for r, row in enumerate(rows):
                if not (exists[r] and np.isfinite(weight[r])):
                    continue
                size = self.scale * units[r] * key_units * (keys @ queries[r])
                vote = self.bent(head, size, row, candidates) - weight[r]
                vote = np.where(np.isnan(vote) | ~key_exists, -np.inf, vote)
                votes = np.maximum(votes, vote)
                error = self.bent_error(head, 4 * UNIT * np.abs(size), np.abs(size), row, candidates) + weight_error[r]
                error += 2 * UNIT * np.where(np.isfinite(vote), np.abs(vote), 0.0)
                bound = np.maximum(bound, error)
        return votes.astype(np.float32), bound

    def sketched_set(self, kv_head, begin, first, last):
        """SKE-2 to SKE-8; with `given` a check that the given votes select the given set (SKE-9)."""
        result, options = self.result, self.options
        votes, bound = self.vote_by_sketches(kv_head, begin, first, last)
        if np.isfinite(least_vote(options)) and len(votes) > 0:
            apart = np.abs(votes.astype(np.float64) - least_vote(options)) / bound
            result.vote_margin = min(result.vote_margin, float(apart.min()))
        allowed = votes >= least_vote(options)
        self.decide(votes[allowed], bound[allowed], self.heavy - self.pinned)
        by = votes
        if self.given is not None:
            by = self.given.token_votes[len(result.query_blocks) - 1, kv_head, : len(votes)]
        entries = set_of_sketch_votes(options, begin, by)
        self.check_set(kv_head, entries)
        result.block_votes[-1].append(np.zeros(0, dtype=np.float32))
        result.bound_block_votes[-1].append(np.zeros(0))
        result.token_votes[-1].append(votes)
        result.bound_token_votes[-1].append(bound)
        return entries

    def blocks_chunk(self, begin, end):
        """Chapters 17 and 18: a set for every query block and key/value head; no scores (SEL-9)."""
        self.empty_memory(begin)
        set_of = self.set_of_query_block if self.options.select == "blocks" else self.sketched_set
        for first in range(begin, end, self.options.query_block):
            last = min(first + self.options.query_block, end)
            self.result.query_blocks.append((first, last))
            for votes in ("block_votes", "token_votes", "bound_block_votes", "bound_token_votes"):
                getattr(self.result, votes).append([])
            sets = np.full((self.k.shape[1], self.local + self.heavy), -1, dtype=np.int32)
            for kv_head in range(self.k.shape[1]):
                entries = set_of(kv_head, begin, first, last)
                sets[kv_head, : len(entries)] = entries
                for head in range(kv_head * self.group, (kv_head + 1) * self.group):
                    self.attend_union(head, begin, first, last, entries)
            self.result.block_sets.append(sets)

    def attend_union(self, head, begin, first, last, entries):
        """FUSE-2: one softmax over the chunk so far and the set, and the sink."""
        rows, columns = np.arange(first, last), np.concatenate([entries, np.arange(begin, last)])
        values = self.v[columns, head // self.group]
        visible = columns[None, :] <= rows[:, None]  # a set lies before the chunk
        m, l, w = softmax_parts(self.logits(head, rows, columns), visible, self.sink(head))
        self.result.out[rows, head] = w @ values / l[:, None]
        self.result.lse[rows, head] = m + np.log(l)
        error = self.relative_error(head, rows, columns) + 8 * UNIT
        self.result.bound_out[rows, head] = error[:, None] * (w @ np.abs(values)) / l[:, None]
        self.result.bound_lse[rows, head] = error + 2 * UNIT * np.abs(self.result.lse[rows, head])


def attend(q, k, v, options, steps=None, given=None, kept=(0.0, 0.0), dense=False):
    """steps: [("p", n, T or None) or ("d", n)]; returns a Result."""
    oracle = Oracle(q, k, v, options, given, kept, dense)
    for step in steps or [("p", len(q), None)]:
        if step[0] == "p":
            oracle.prefill(step[1], step[2] if len(step) > 2 else None)
        else:
            oracle.decode(step[1])
    oracle.result.chunk_start.append(oracle.tokens)
    return oracle.result
