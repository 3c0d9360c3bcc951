// What follows from the trace. Heads count from 0 here; trace.meta.heads has their numbers in the file, or, of a model,
// layer * heads_in_layer + head.

const AROUND = 8;  // tokens of text on either side of one

const ROLES = {own: "its own chunk", local: "local window", heavy: "heavy hitter", dense: "dense: reads everything before",
  none: "not read", later: "a later chunk"};
const PARTS = {own: "its own chunk", local: "local window", heavy: "heavy hitters", dense: "everything before (dense)",
  none: "not computed"};

class Model {
  constructor(trace) {
    Object.assign(this, trace);
    this.heavyReads = this.#countHeavyReads();
    this.mostReads = this.heavyReads.reduce((most, count) => Math.max(most, count), 1);
    this.heads_ = new Map();
    this.pairs = {own: 0, local: 0, heavy: 0, dense: 0};
    this.sets = 0;  // of the longest survival curve
    for (let h = 0; h < this.heads; ++h) {
      const {pairs, survival} = this.head(h);
      for (const kind of Object.keys(this.pairs)) this.pairs[kind] += pairs[kind];
      this.sets = Math.max(this.sets, survival.share.length);
    }
  }

  // "3", or "2.3": head 3 of layer 2.
  headName(head) {
    const number = this.meta.heads[head], each = this.meta.heads_in_layer;
    return each > 0 ? `${Math.floor(number / each)}.${number % each}` : String(number);
  }
  headTitle(head) {
    const [first, second] = this.headName(head).split(".");
    const kind = this.byBlocks ? "key/value head" : "head";
    const dense = this.inDenseLayer(head) ? " (dense)" : "";
    return second === undefined ? `${kind} ${first}` : `layer ${first}${dense}, ${kind} ${second}`;
  }
  // The token in its text, white space made visible; nothing where the text is not known.
  words(token) {
    if (this.tokens.length === 0) return [];
    const shown = (from, to) => this.tokens.slice(Math.max(0, from), to).join("")
      .replaceAll("\n", "\u23ce").replaceAll("\t", "\u21e5").replaceAll("\r", "\u240d");
    return [`\u2026${shown(token - AROUND, token)}\u27e6${shown(token, token + 1)}\u27e7${shown(token + 1, token + 1 + AROUND)}\u2026`];
  }

  setRange(head, chunk) {
    const set = chunk * this.heads + head;
    return [this.start[set], this.start[set + 1]];
  }
  localBegin(chunk) {
    return this.byBlocks ? this.meta.rows.local[chunk] : Math.max(0, this.chunkStart[chunk] - this.local);
  }
  isDense(head, chunk) {
    if (this.ownStart[chunk] === 0) return false;
    if (this.byBlocks) return this.meta.rows.dense[chunk] || this.inDenseLayer(head);
    const [from, to] = this.setRange(head, chunk);
    return from === to;
  }
  inDenseLayer(head) { return this.meta.dense_heads !== undefined && this.meta.dense_heads[head]; }
  // First place in [from, to) of the sorted positions that is not below `position`.
  lowerBound(from, to, position) {
    while (from < to) {
      const middle = (from + to) >> 1;
      if (this.positions[middle] < position) from = middle + 1; else to = middle;
    }
    return from;
  }
  // Where the set of a chunk holds a token, or -1.
  entryOf(head, chunk, token) {
    const [from, to] = this.setRange(head, chunk);
    const at = this.lowerBound(from, to, token);
    return at < to && this.positions[at] === token ? at : -1;
  }
  chunkOf(token) {
    let low = 0, high = this.chunks - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.chunkStart[middle] <= token) low = middle; else high = middle - 1;
    }
    return low;
  }
  role(head, chunk, token) {
    if (token >= this.chunkStart[chunk + 1]) return "later";
    if (token >= this.ownStart[chunk]) return "own";
    if (this.isDense(head, chunk)) return "dense";
    if (this.entryOf(head, chunk, token) < 0) return "none";
    return token >= this.localBegin(chunk) ? "local" : "heavy";
  }
  // Share of a query's attention to the memory set, on average: steps of an eighth of an octave.
  share(entry) { return this.weights[entry] === 0 ? 0 : 2 ** ((this.weights[entry] - 255) / 8); }
  score(head, token) { return this.scores[head * this.n + token]; }

  // Everything about one head, computed once.
  head(head) {
    if (!this.heads_.has(head)) this.heads_.set(head, this.#describeHead(head));
    return this.heads_.get(head);
  }

  #countHeavyReads() {
    const reads = new Uint16Array(this.heads * this.n);
    for (let c = 0; c < this.chunks; ++c) {
      const border = this.localBegin(c);
      for (let h = 0; h < this.heads; ++h) {
        const [from, to] = this.setRange(h, c);
        for (let e = from; e < to && this.positions[e] < border; ++e) {
          const at = h * this.n + this.positions[e];
          if (reads[at] < 65535) ++reads[at];
        }
      }
    }
    return reads;
  }

  #describeHead(head) {
    const localReads = new Uint16Array(this.n);
    const pairs = {own: 0, local: 0, heavy: 0, dense: 0};
    for (let c = 0; c < this.chunks; ++c) {
      const begin = this.chunkStart[c], length = this.chunkStart[c + 1] - begin;
      const [from, to] = this.setRange(head, c);
      const border = this.lowerBound(from, to, this.localBegin(c));
      for (let e = border; e < to; ++e) ++localReads[this.positions[e]];
      pairs.own += length * (length + 1) / 2 + length * (begin - this.ownStart[c]);
      pairs.heavy += length * (border - from);
      pairs.local += length * (to - border);
      if (this.isDense(head, c)) pairs.dense += length * this.ownStart[c];
    }
    const scores = this.byBlocks ? new Float32Array(this.n) : this.scores.subarray(head * this.n, (head + 1) * this.n);
    return {localReads, pairs, scores, survival: this.#survival(head),
      heavyReads: this.heavyReads.subarray(head * this.n, (head + 1) * this.n)};
  }

  // Kaplan and Meier's estimate (1958). A token's age is the number of memory sets since its own chunk; it survives while
  // each of them holds it. atRisk[k - 1]: tokens that survived k - 1 sets and have a k-th; share[k - 1]: the product, up to
  // k, of the shares of them that the set holds. Both end with the last age at which a token was at risk.
  #survival(head) {
    if (this.byBlocks) return {share: [], atRisk: []};  // every query block chooses anew
    const atRisk = [], kept = [];
    let survivors = [], next = 0, sets = 0;  // survivors: [token, first set behind its chunk], ascending
    for (let c = 0; c < this.chunks; ++c) {
      let [entry, to] = this.setRange(head, c);
      if (entry === to) continue;
      for (; next < this.chunkStart[c]; ++next) survivors.push([next, sets]);
      atRisk.push(0);
      kept.push(0);
      survivors = survivors.filter(([token, first]) => {
        const age = sets - first;
        ++atRisk[age];
        while (entry < to && this.positions[entry] < token) ++entry;
        const held = entry < to && this.positions[entry] === token;
        if (held) ++kept[age];
        return held;
      });
      ++sets;
    }
    let product = 1;
    const end = atRisk.indexOf(0) < 0 ? atRisk.length : atRisk.indexOf(0);
    const share = atRisk.slice(0, end).map((count, k) => product *= kept[k] / count);
    return {share, atRisk: atRisk.slice(0, end)};
  }

  // Heads whose curves have a name: all of a few; else those whose tokens live longest, shortest and in the middle, by the
  // mean age that they reach: the sum of the shares. The median comes first.
  namedHeads() {
    const order = this.meta.heads.map((_, h) => h).filter((h) => this.head(h).survival.share.length > 0);
    const named = (h, role = "") => ({head: h, name: this.curveName(h, role)});
    if (order.length <= 4) return order.map((h) => named(h));
    order.sort((a, b) => this.meanAge(a) - this.meanAge(b));
    return [named(order[order.length >> 1], "median "), named(order.at(-1), "longest "), named(order[0], "shortest ")];
  }
  meanAge(head) { return this.head(head).survival.share.reduce((a, b) => a + b, 0); }
  curveName(head, role = "") { return `head ${this.headName(head)}, ${role}mean age ${number(this.meanAge(head), 3)}`; }

  densePairs() { return this.n * (this.n + 1) / 2; }
  computed(pairs) { return pairs.own + pairs.local + pairs.heavy + pairs.dense; }

  // Tokens that most chunks read, by heavy reads, then score.
  top(head, count) {
    const {heavyReads, localReads, scores} = this.head(head);
    const tokens = [];
    for (let t = 0; t < this.n; ++t) if (heavyReads[t] > 0) tokens.push(t);
    tokens.sort((a, b) => heavyReads[b] - heavyReads[a] || scores[b] - scores[a] || a - b);
    return tokens.slice(0, count).map((t) => ({token: t, score: scores[t], heavy: heavyReads[t],
      reads: heavyReads[t] + localReads[t]}));
  }

  // The next token in direction +1 or -1 that the chunk reads as a heavy hitter, or null.
  neighbour(head, chunk, token, direction) {
    const [from, to] = this.setRange(head, chunk);
    const end = this.lowerBound(from, to, this.localBegin(chunk));
    const at = direction > 0 ? this.lowerBound(from, end, token + 1) : this.lowerBound(from, end, token) - 1;
    return at >= from && at < end ? this.positions[at] : null;
  }

  // The rows of a query block in their text.
  asks(block) {
    if (this.tokens.length === 0) return [];
    const text = this.tokens.slice(this.chunkStart[block], this.chunkStart[block + 1]).join("");
    return [`asked by ${JSON.stringify(text.slice(0, 100))}`];
  }
  describeBlock(head, block, token) {
    const {localReads, heavyReads} = this.head(head), role = this.role(head, block, token);
    const size = this.meta.facts.key_block, keys = size === undefined ? "" : ` in key block ${Math.floor(token / size)}`;
    const rows = `rows ${this.chunkStart[block]} to ${this.chunkStart[block + 1] - 1}`;
    return [...this.words(token), `token ${token}${keys}, of query block ${this.chunkOf(token)}`,
      `${this.headTitle(head)}, query block ${block} (${rows}): ${role === "heavy" ? "chosen by its queries" : ROLES[role]}`,
      ...this.asks(block),
      `read by ${heavyReads[token] + localReads[token]} query blocks of later chunks, chosen by ${heavyReads[token]}`];
  }

  describe(head, chunk, token) {
    if (this.byBlocks) return this.describeBlock(head, chunk, token);
    const {localReads, heavyReads, scores} = this.head(head);
    const own = this.chunkOf(token);
    let rank = 1;
    for (const score of scores) if (score > scores[token]) ++rank;
    const role = this.role(head, chunk, token);
    const entry = this.entryOf(head, chunk, token);
    const attention = entry < 0 ? "" :
      `, with about ${percent(this.share(entry))} of what a query gives to the memory set`;
    return [...this.words(token), `token ${token} of chunk ${own}, score ${number(scores[token])} (rank ${rank} of ${this.n})`,
      `${this.headTitle(head)}, chunk ${chunk}: ${ROLES[role]}${attention}`,
      `read by ${heavyReads[token] + localReads[token]} later chunks, by ${heavyReads[token]} as a heavy hitter`];
  }
}

function number(value, digits = 4) {
  if (value === 0) return "0";
  return value >= 1e5 || value < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(digits)));
}
function counted(count, noun) { return `${count} ${noun}${count === 1 ? "" : "s"}`; }
function percent(share) { return `${Number((100 * share).toPrecision(share < 0.001 ? 1 : 3))} %`; }
