// The canvases. Each paints its content once for a view and keeps it; the cursor is drawn over it.

const LEFT = 66, RIGHT = 14, AXIS = 20;  // pixels: labels of the rows, margin, labels of the positions
const FAINTEST = 0.55;                   // a single token among many of a pixel must still be seen
const DECADES = 3;                       // of the survival curves, from 100 % down

function colours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["paper", "ink", "faint", "line", "panel", "own", "local", "heavy", "dense", "cursor"];
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
  axis(context, colour, y) {
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
    this.axis(context, colour, row * model.heads);
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
    for (let c = state.row0; c < end; c += every) context.fillText(`chunk ${c}`, LEFT - 8, (c - state.row0 + 0.5) * row);
    this.axis(context, colour, this.rows() * row);
  }
  #paintChunk(context, colour, c, y, height) {
    const {model, state} = this.view;
    const span = (from, to, fill) => {
      const a = Math.max(LEFT, this.x(from)), b = Math.min(LEFT + this.plot, this.x(to));
      context.fillStyle = fill;
      if (b > a) context.fillRect(a, y, Math.max(1, b - a), height);
    };
    if (model.isDense(state.head, c)) span(0, model.chunkStart[c], colour.dense);
    span(model.chunkStart[c], model.chunkStart[c + 1], colour.own);
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
  paint(context, colour) {
    const {model, state} = this.view, {scores, largest, smallest} = model.head(state.head), height = 96;
    context.fillStyle = colour.panel;
    context.fillRect(LEFT, 0, this.plot, height);
    this.axis(context, colour, height);
    if (largest <= 0) return;
    const low = Math.floor(Math.log10(Math.max(smallest, largest / 1e8)) - 1e-9);
    const high = Math.max(low + 1, Math.ceil(Math.log10(largest) + 1e-9));
    const up = (score) => Math.max(1, (Math.log10(score) - low) / (high - low) * height);
    const [from, to] = model.setRange(state.head, state.chunk), border = model.localBegin(state.chunk);
    let e = from;
    this.columns((x, wide, first, last) => {
      let most = 0, role = colour.faint;
      for (let t = first; t < last; ++t) if (scores[t] > most) most = scores[t];
      while (e < to && model.positions[e] < first) ++e;
      if (e < to && model.positions[e] < last) role = model.positions[e] >= border ? colour.local : colour.heavy;
      if (most <= 0) return;
      context.globalAlpha = role === colour.faint ? 0.55 : 1;
      context.fillStyle = role;
      context.fillRect(x, height - up(most), wide, up(most));
    });
    context.globalAlpha = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const step = Math.ceil((high - low) / 4);
    for (let power = low; power <= high; power += step) {
      const y = height - (power - low) / (high - low) * height;
      context.fillStyle = colour.line;
      context.fillRect(LEFT, y, this.plot, 1);
      context.fillStyle = colour.faint;
      context.fillText(number(10 ** power), LEFT - 8, Math.max(7, Math.min(height - 5, y)));
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
    this.axis(context, colour, height);
  }
  overlay(context, colour) { this.cursorLine(context, colour, 64); }
}

class Survival extends Panel {
  height() { return 240 + AXIS; }
  key() { return `${this.view.state.head}`; }
  sets() { return this.view.model.head(this.view.state.head).survival.length; }
  paint(context, colour) {
    const {model, state} = this.view, height = 240, sets = this.sets();
    context.fillStyle = colour.panel;
    context.fillRect(LEFT, 0, this.plot, height);
    context.textAlign = "right";
    context.textBaseline = "middle";
    // Logarithmic: what survives for long is a per cent or less.
    const level = (share) => Math.min(1, Math.max(0, -Math.log10(share) / DECADES)) * (height - 1);
    for (let decade = 0; decade <= DECADES; ++decade) {
      const y = decade / DECADES * (height - 1);
      context.fillStyle = colour.line;
      context.fillRect(LEFT, y, this.plot, 1);
      context.fillStyle = colour.faint;
      context.fillText(percent(10 ** -decade), LEFT - 8, Math.max(7, Math.min(height - 5, y)));
    }
    if (sets === 0) {
      context.textAlign = "left";
      context.fillText("no chunk read a memory set", LEFT + 12, 20);
      return;
    }
    const line = (head, stroke, width) => {
      context.beginPath();
      context.moveTo(LEFT, 0);
      model.head(head).survival.forEach((share, k) =>
        context.lineTo(LEFT + (k + 1) / sets * this.plot, level(share)));
      context.strokeStyle = stroke;
      context.lineWidth = width;
      context.stroke();
    };
    for (let h = 0; h < model.heads; ++h) if (h !== state.head) line(h, colour.own, 1);
    line(state.head, colour.heavy, 2.5);
    context.textAlign = "center";
    context.textBaseline = "top";
    const step = Math.ceil(sets / Math.floor(this.plot / 60));
    for (let k = 0; k <= sets; k += step) {
      context.fillStyle = colour.faint;
      context.fillText(String(k), Math.min(LEFT + k / sets * this.plot, this.width - 14), height + 6);
    }
  }
  overlay() {}
}
