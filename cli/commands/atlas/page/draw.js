// The canvases. Each paints its content once for a view and keeps it; the cursor is drawn over it.

const LEFT = 66, RIGHT = 14, AXIS = 38;  // pixels: labels of the rows, margin, labels and title of the axis below
const FAINTEST = 0.55;                   // a single token among many of a pixel must still be seen
const MOST_DECADES = 4;                  // of the survival curves, from 100 % down; what is less stands on the lower edge
const DASHES = [[], [12, 6], [5, 8], [2, 6]];  // each leaves gaps in which the curves before it are seen

function colours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["paper", "ink", "faint", "line", "panel", "own", "local", "heavy", "dense", "cursor",
    "line0", "line1", "line2", "line3"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

class Panel {
  constructor(id, view) {
    this.canvas = document.getElementById(id);
    this.view = view;
    this.cache = document.createElement("canvas");
    this.painted = "";
  }
  get width() { return this.canvas.clientWidth; }
  get plot() { return this.width - LEFT - RIGHT; }
  x(token) { const {x0, x1} = this.view.state; return LEFT + (token - x0) / (x1 - x0) * this.plot; }
  token(x) {
    const {x0, x1} = this.view.state;
    return Math.floor(x0 + (x - LEFT) / this.plot * (x1 - x0));
  }
  // Calls use(column, columns wide, first token, behind the last) for every column of pixels with tokens in it.
  columns(use) {
    const {x0, x1} = this.view.state, tokens = (x1 - x0) / this.plot;
    if (tokens <= 1) {
      for (let t = Math.floor(x0); t < Math.min(Math.ceil(x1), this.view.model.n); ++t) {
        const from = Math.max(this.x(t), LEFT), to = Math.min(this.x(t + 1), LEFT + this.plot);
        use(from, Math.max(1, to - from - (1 / tokens > 5 ? 1 : 0)), t, t + 1);
      }
      return;
    }
    for (let c = 0; c < this.plot; ++c) {
      const from = Math.floor(x0 + c * tokens), to = Math.min(this.view.model.n, Math.floor(x0 + (c + 1) * tokens));
      if (to > from) use(LEFT + c, 1, from, to);
    }
  }
  // The titles of both axes stand below the plot: of the rows to the left, of the columns in the middle.
  titles(context, colour, y, rows, columns, plot = this.plot) {
    context.fillStyle = colour.ink;
    context.textBaseline = "top";
    context.textAlign = "right";
    context.fillText(rows, LEFT - 8, y + 6);
    context.textAlign = "center";
    context.fillText(columns, LEFT + plot / 2, y + 22);
  }
  axis(context, colour, y, rows) {
    const {x0, x1} = this.view.state;
    let step = 1;
    while ((x1 - x0) / step > this.plot / 90) step *= 2;
    context.fillStyle = colour.faint;
    context.textBaseline = "top";
    context.textAlign = "center";
    for (let t = Math.ceil(x0 / step) * step; t <= x1; t += step) {
      context.fillRect(this.x(t), y, 1, 4);
      context.fillText(String(t), Math.min(this.x(t), this.width - 22), y + 6);
    }
    this.titles(context, colour, y, rows, "position of the token");
  }
  draw() {
    const ratio = window.devicePixelRatio || 1, height = this.height(), width = this.width;
    if (width < LEFT + RIGHT + 10) return;
    const colour = colours();
    const key = [width, height, ratio, this.view.state.theme, this.key()].join();
    for (const canvas of [this.canvas, this.cache]) {
      if (canvas.width === Math.round(width * ratio) && canvas.height === Math.round(height * ratio)) continue;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      this.painted = "";
    }
    this.canvas.style.height = `${height}px`;
    if (key !== this.painted) {
      const context = this.#context(this.cache, ratio);
      context.fillStyle = colour.paper;
      context.fillRect(0, 0, width, height);
      this.paint(context, colour);
      this.painted = key;
    }
    const context = this.#context(this.canvas, ratio);
    context.drawImage(this.cache, 0, 0, width, height);
    this.overlay(context, colour);
  }
  #context(canvas, ratio) {
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = "12px system-ui, 'DejaVu Sans', sans-serif";
    return context;
  }
  // A line through all panels where the cursor's token is.
  cursorLine(context, colour, height) {
    const {token, x0, x1} = this.view.state;
    if (token < x0 || token >= x1) return;
    const x = this.x(token), wide = Math.max(1, this.x(token + 1) - x);
    context.globalAlpha = wide > 3 ? 0.25 : 0.7;
    context.fillStyle = colour.cursor;
    context.fillRect(x, 0, wide, height);
    context.globalAlpha = 1;
  }
  viewKey() { const {x0, x1} = this.view.state; return `${x0},${x1}`; }
}

class Overview extends Panel {
  row() { return Math.max(3, Math.min(14, Math.floor(360 / this.view.model.heads))); }
  height() { return this.row() * this.view.model.heads + AXIS; }
  key() { return this.viewKey(); }
  headAt(y) { const h = Math.floor(y / this.row()); return h < this.view.model.heads ? h : -1; }
  paint(context, colour) {
    const {model} = this.view, row = this.row(), every = Math.ceil(15 / row);
    const each = model.meta.heads_in_layer, layer = (h) => Math.floor(model.meta.heads[h] / each);
    context.fillStyle = colour.panel;
    context.fillRect(LEFT, 0, this.plot, row * model.heads);
    for (let h = 0; h < model.heads; ++h) {
      const y = h * row, reads = model.head(h).heavyReads;
      if (model.inDenseLayer(h)) {
        context.fillStyle = colour.dense;
        context.fillRect(LEFT, y, this.plot, Math.max(1, row - 1));
      }
      context.fillStyle = colour.heavy;
      this.columns((x, wide, from, to) => {
        let most = 0;
        for (let t = from; t < to; ++t) if (reads[t] > most) most = reads[t];
        if (most === 0) return;
        context.globalAlpha = 0.15 + 0.85 * Math.sqrt(most / model.mostReads);
        context.fillRect(x, y, wide, Math.max(1, row - 1));
      });
      context.globalAlpha = 1;
      if (each > 0 && h > 0 && layer(h) !== layer(h - 1)) {
        context.fillStyle = colour.line;
        context.fillRect(LEFT, y - 1, this.plot, 1);
      }
      if (h % every !== 0) continue;
      context.fillStyle = colour.faint;
      context.textAlign = "right";
      context.textBaseline = "middle";
      context.fillText(model.headName(h), LEFT - 10, y + row / 2);
    }
    this.axis(context, colour, row * model.heads, "head");
  }
  overlay(context, colour) {
    const row = this.row(), y = this.view.state.head * row;
    this.cursorLine(context, colour, row * this.view.model.heads);
    context.strokeStyle = colour.cursor;
    context.lineWidth = 1.5;
    context.strokeRect(LEFT - 5, y - 1, this.plot + 8, row + 1);
  }
}

class ReadMap extends Panel {
  row() { return Math.max(8, Math.min(26, Math.floor(420 / this.view.model.chunks))); }
  rows() { return Math.min(this.view.model.chunks, Math.floor(420 / this.row())); }
  height() { return this.rows() * this.row() + AXIS; }
  key() { const {head, row0, shade} = this.view.state; return `${this.viewKey()},${head},${row0},${shade}`; }
  chunkAt(y) {
    const c = Math.floor(y / this.row());
    return c < this.rows() ? this.view.state.row0 + c : -1;
  }
  paint(context, colour) {
    const {model, state} = this.view, row = this.row(), end = Math.min(model.chunks, state.row0 + this.rows());
    context.fillStyle = colour.panel;
    context.fillRect(LEFT, 0, this.plot, this.rows() * row);
    for (let c = state.row0; c < end; ++c) this.#paintChunk(context, colour, c, (c - state.row0) * row, row - 1);
    const every = Math.ceil(15 / row);
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillStyle = colour.faint;
    for (let c = state.row0; c < end; c += every) context.fillText(`${model.byBlocks ? "block" : "chunk"} ${c}`, LEFT - 8, (c - state.row0 + 0.5) * row);
    this.axis(context, colour, this.rows() * row, model.byBlocks ? "block" : "chunk");
  }
  #paintChunk(context, colour, c, y, height) {
    const {model, state} = this.view;
    const span = (from, to, fill) => {
      const a = Math.max(LEFT, this.x(from)), b = Math.min(LEFT + this.plot, this.x(to));
      context.fillStyle = fill;
      if (b > a) context.fillRect(a, y, Math.max(1, b - a), height);
    };
    if (model.isDense(state.head, c)) span(0, model.ownStart[c], colour.dense);
    span(model.ownStart[c], model.chunkStart[c + 1], colour.own);
    const [from, to] = model.setRange(state.head, c), border = model.localBegin(c);
    let e = model.lowerBound(from, to, state.x0);
    this.columns((x, wide, first, last) => {
      while (e < to && model.positions[e] < first) ++e;
      let local = 0, heavy = 0, most = 0;
      for (; e < to && model.positions[e] < last; ++e) {
        if (model.positions[e] >= border) ++local; else ++heavy;
        most = Math.max(most, model.weights[e]);
      }
      // The rarer kind goes on top: a heavy hitter beside the window must be seen.
      const paint = (count, fill) => {
        if (count === 0) return;
        const cover = state.shade ? Math.max(0.12, (most - 95) / 160) : FAINTEST + (1 - FAINTEST) * count / (last - first);
        context.globalAlpha = Math.min(1, cover);
        context.fillStyle = fill;
        context.fillRect(x, y, wide, height);
      };
      paint(local, colour.local);
      paint(heavy, colour.heavy);
    });
    context.globalAlpha = 1;
  }
  overlay(context, colour) {
    const {model, state} = this.view, row = this.row();
    this.cursorLine(context, colour, this.rows() * row);
    context.strokeStyle = colour.cursor;
    context.lineWidth = 1.5;
    if (state.chunk >= state.row0 && state.chunk < state.row0 + this.rows()) {
      context.strokeRect(LEFT - 1, (state.chunk - state.row0) * row - 1, this.plot + 2, row + 1);
    }
    // A dot in every row that reads the token.
    const x = this.x(state.token + 0.5);
    if (x < LEFT || x > LEFT + this.plot) return;
    for (let c = state.row0; c < Math.min(model.chunks, state.row0 + this.rows()); ++c) {
      if (model.entryOf(state.head, c, state.token) < 0) continue;
      context.beginPath();
      context.arc(x, (c - state.row0 + 0.5) * row, 3.5, 0, 7);
      context.fillStyle = colour.paper;
      context.fill();
      context.stroke();
    }
  }
}

class Scores extends Panel {
  height() { return 96 + AXIS; }
  key() { const {head, chunk} = this.view.state; return `${this.viewKey()},${head},${chunk}`; }
  // Logarithmic from the 5th percentile of what the columns show, where a line of one pixel stands, to the highest.
  paint(context, colour) {
    const {model, state} = this.view, {scores} = model.head(state.head), height = 96;
    context.fillStyle = colour.panel;
    context.fillRect(LEFT, 0, this.plot, height);
    this.axis(context, colour, height, "score");
    const bars = [];
    const [from, to] = model.setRange(state.head, state.chunk), border = model.localBegin(state.chunk);
    let e = from;
    this.columns((x, wide, first, last) => {
      let most = 0, role = colour.faint;
      for (let t = first; t < last; ++t) if (scores[t] > most) most = scores[t];
      while (e < to && model.positions[e] < first) ++e;
      if (e < to && model.positions[e] < last) role = model.positions[e] >= border ? colour.local : colour.heavy;
      if (most > 0) bars.push({x, wide, most, role});
    });
    if (bars.length === 0) return;
    const shown = bars.map((bar) => bar.most).sort((a, b) => a - b);
    const low = shown[Math.floor(shown.length / 20)], high = shown.at(-1);
    const up = (score) => high > low ? Math.max(0, Math.log(score / low) / Math.log(high / low)) : 1;
    for (const {x, wide, most, role} of bars) {
      const top = 1 + up(most) * (height - 1);
      context.globalAlpha = role === colour.faint ? 0.55 : 1;
      context.fillStyle = role;
      context.fillRect(x, height - top, wide, top);
    }
    context.globalAlpha = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillStyle = colour.faint;
    const levels = high > low ? [0, 1 / 3, 2 / 3, 1] : [1];
    for (const level of levels) {
      const y = height - 1 - level * (height - 1);
      context.fillText(number(low * (high / low) ** level, 3), LEFT - 8, Math.max(7, Math.min(height - 5, y)));
    }
  }
  overlay(context, colour) { this.cursorLine(context, colour, 96); }
}

class Reads extends Panel {
  height() { return 64 + AXIS; }
  key() { return `${this.viewKey()},${this.view.state.head}`; }
  paint(context, colour) {
    const {model, state} = this.view, {heavyReads, localReads} = model.head(state.head), height = 64;
    const most = model.mostReads + 1;
    context.fillStyle = colour.panel;
    context.fillRect(LEFT, 0, this.plot, height);
    this.columns((x, wide, first, last) => {
      let heavy = 0, local = 0;
      for (let t = first; t < last; ++t) {
        heavy = Math.max(heavy, heavyReads[t]);
        local = Math.max(local, localReads[t]);
      }
      const top = heavy / most * height;
      context.fillStyle = colour.heavy;
      context.fillRect(x, height - top, wide, top);
      context.fillStyle = colour.local;
      context.fillRect(x, height - top - Math.min(local, most - heavy) / most * height, wide,
        Math.min(local, most - heavy) / most * height);
    });
    context.fillStyle = colour.faint;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillText(String(most), LEFT - 8, 7);
    context.fillText("0", LEFT - 8, height - 5);
    this.axis(context, colour, height, model.byBlocks ? "blocks" : "chunks");
  }
  overlay(context, colour) { this.cursorLine(context, colour, 64); }
}

class Survival extends Panel {
  // To the right the names of the curves.
  get plot() { return this.width - LEFT - Math.min(250, this.width / 2); }
  height() { return 240 + AXIS + 18; }
  key() { return `${this.view.state.head}`; }
  paint(context, colour) {
    const {model, state} = this.view, height = 240, {sets} = model;
    context.fillStyle = colour.panel;
    context.fillRect(LEFT, 0, this.plot, height);
    context.textBaseline = "middle";
    if (sets === 0) {
      context.textAlign = "left";
      context.fillStyle = colour.faint;
      context.fillText("no chunk read a memory set", LEFT + 12, 20);
      return;
    }
    let least = 1;
    for (let h = 0; h < model.heads; ++h) for (const share of model.head(h).survival.share) if (share > 0 && share < least) least = share;
    const decades = Math.min(MOST_DECADES, Math.max(1, Math.ceil(-Math.log10(least))));
    const level = (share) => Math.min(1, Math.max(0, -Math.log10(share) / decades)) * (height - 1);
    context.textAlign = "right";
    for (let decade = 0; decade <= decades; ++decade) {
      for (const part of [1, 0.5, 0.2]) {
        if (part < 1 && (decade === decades || decades === MOST_DECADES)) continue;  // no room for more
        const share = part * 10 ** -decade, y = level(share);
        context.fillStyle = colour.line;
        context.fillRect(LEFT, y, this.plot, 1);
        context.fillStyle = colour.faint;
        context.fillText(percent(share), LEFT - 8, Math.max(7, Math.min(height - 5, y)));
      }
    }
    const x = (age) => LEFT + age / sets * this.plot;
    const line = (head, stroke, width, dash) => {
      context.beginPath();
      context.moveTo(LEFT, 0);
      model.head(head).survival.share.forEach((share, k) => context.lineTo(x(k + 1), level(share)));
      context.strokeStyle = stroke;
      context.lineWidth = width;
      context.setLineDash(dash);
      context.stroke();
      context.setLineDash([]);
    };
    // Named curves, and over them the head that is shown, whose name comes first.
    const named = model.namedHeads().map((curve, i) => ({...curve, stroke: colour[`line${i}`], dash: DASHES[i]}));
    for (let h = 0; h < model.heads; ++h) line(h, colour.own, 1, []);
    for (const {head, stroke, dash} of named) line(head, stroke, 2, dash);
    if (model.head(state.head).survival.share.length > 0) {
      line(state.head, colour.heavy, 2.5, []);
      if (!named.some(({head}) => head === state.head)) named.unshift({head: state.head, name: model.curveName(state.head)});
    }
    this.#names(context, colour, named.map((curve) => {
      const {share} = model.head(curve.head).survival;
      return {...curve, x: x(share.length), y: level(share.at(-1)),
        stroke: curve.head === state.head ? colour.heavy : curve.stroke};
    }));
    this.#ages(context, colour, height, x);
  }
  // At the ends of the curves, apart from each other.
  #names(context, colour, labels) {
    labels.sort((a, b) => a.y - b.y);
    let above = 0, below = 240 + 8;
    for (const label of labels) {
      label.at = Math.max(label.y, above + 8);
      above = label.at + 8;
    }
    for (const label of [...labels].reverse()) {
      label.at = Math.min(label.at, below - 8);
      below = label.at - 8;
    }
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.lineWidth = 1;
    for (const {x, y, at, name, stroke} of labels) {
      context.strokeStyle = stroke;
      context.beginPath();
      context.moveTo(x, y);
      context.lineTo(LEFT + this.plot + 18, at);
      context.stroke();
      context.fillStyle = colour.ink;
      context.fillText(name, LEFT + this.plot + 22, at);
    }
  }
  #ages(context, colour, height, x) {
    const {model, state} = this.view, {atRisk} = model.head(state.head).survival;
    const step = Math.ceil(model.sets / Math.floor(this.plot / 60));
    context.fillStyle = colour.faint;
    context.textAlign = "center";
    context.textBaseline = "top";
    for (let k = 0; k <= model.sets; k += step) {
      context.fillText(String(k), x(k), height + 6);
      if (k > 0 && k <= atRisk.length) context.fillText(String(atRisk[k - 1]), x(k), height + 22);
    }
    this.titles(context, colour, height, "age", "");
    this.titles(context, colour, height + 16, "at risk", "age of a token: memory sets since its own chunk");
  }
  overlay() {}
}
