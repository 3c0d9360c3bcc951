// State, keys, mouse. The state also stands in the attributes data-* of the root element and in the address.

class View {
  constructor(model) {
    this.model = model;
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    this.state = {head: 0, chunk: model.chunks - 1, token: 0, x0: 0, x1: model.n, row0: 0, pinned: false, shade: false,
      theme: dark ? "dark" : "light"};
    this.overview = new Overview("overview", this);
    this.map = new ReadMap("map", this);
    this.scores = new Scores("scores", this);
    this.reads = new Reads("reads", this);
    this.survival = new Survival("survival", this);
    this.panels = [this.overview, this.map, this.scores, this.reads, this.survival];
    this.shown = -1;
    this.waiting = false;
    this.readAddress();
  }

  readAddress() {
    const wanted = new URLSearchParams(location.hash.slice(1)), changes = {};
    for (const key of ["head", "chunk", "token", "x0", "x1"]) {
      const value = Number(wanted.get(key) ?? NaN);
      if (Number.isFinite(value)) changes[key] = value;
    }
    this.change(changes);
  }

  // Everything that changes the state comes through here, and leaves it valid.
  change(changes) {
    const {model, state} = this;
    Object.assign(state, changes);
    const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
    state.head = clamp(Math.round(state.head), 0, model.heads - 1);
    state.chunk = clamp(Math.round(state.chunk), 0, model.chunks - 1);
    state.token = clamp(Math.round(state.token), 0, model.n - 1);
    const span = clamp(state.x1 - state.x0, Math.min(8, model.n), model.n);
    state.x0 = clamp(Math.round(state.x0), 0, Math.max(0, model.n - Math.ceil(span)));
    state.x1 = Math.min(model.n, state.x0 + Math.ceil(span));
    const rows = this.map.rows();
    if (state.chunk < state.row0) state.row0 = state.chunk;
    if (state.chunk >= state.row0 + rows) state.row0 = state.chunk - rows + 1;
    this.later();
  }

  // One drawing for all changes before the next frame.
  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  draw() {
    const {model, state} = this, root = document.documentElement;
    for (const key of ["head", "chunk", "token", "x0", "x1", "pinned", "shade", "theme"]) root.dataset[key] = state[key];
    if (this.shown !== state.head) this.showHead();
    for (const panel of this.panels) panel.draw();
    document.getElementById("status").textContent =
      model.describe(state.head, state.chunk, state.token).join(" \u00b7 ") + (state.pinned ? " \u00b7 pinned" : "");
    document.getElementById("shade").setAttribute("aria-pressed", state.shade);
    const address = `#head=${state.head}&chunk=${state.chunk}&token=${state.token}&x0=${state.x0}&x1=${state.x1}`;
    try { history.replaceState(null, "", address); } catch { /* a sandboxed frame keeps no address */ }
    root.dataset.drawn = Number(root.dataset.drawn ?? 0) + 1;
  }

  showHead() {
    const {model, state} = this;
    this.shown = state.head;
    document.getElementById("head").value = state.head;
    for (const element of document.querySelectorAll(".head-name")) element.textContent = model.headTitle(state.head);
    const body = document.querySelector("#top tbody");
    body.replaceChildren(...model.top(state.head, 12).map((entry) => {
      const row = document.createElement("tr");
      const name = model.tokens.length > 0 ? `${entry.token} ${JSON.stringify(model.tokens[entry.token])}` : entry.token;
      const score = model.byBlocks ? "" : number(entry.score);
      for (const text of [name, score, entry.reads, entry.heavy]) row.insertCell().textContent = text;
      row.addEventListener("click", () => this.change({token: entry.token, pinned: true}));
      return row;
    }));
  }

  // ---- moves

  moveToken(steps) {
    const {state} = this, tokens = Math.max(1, Math.ceil((state.x1 - state.x0) / this.map.plot));
    this.goTo(state.token + steps * tokens);
  }
  goTo(token) {
    const {state, model} = this;
    token = Math.max(0, Math.min(model.n - 1, token));
    const span = state.x1 - state.x0;
    const x0 = token < state.x0 || token >= state.x1 ? token - span / 2 : state.x0;
    this.change({token, x0, x1: x0 + span});
  }
  zoom(factor, around = this.state.token + 0.5) {
    const {x0, x1} = this.state;
    if (around < x0 || around > x1) around = (x0 + x1) / 2;
    const span = Math.max(8, (x1 - x0) * factor);
    const from = around - (around - x0) / (x1 - x0) * span;
    this.change({x0: from, x1: from + span});
  }
  jump(direction) {
    const {state, model} = this, next = model.neighbour(state.head, state.chunk, state.token, direction);
    if (next !== null) this.goTo(next);
  }

  key(event) {
    const {state, model} = this, big = Math.round(this.map.plot / 10);
    const actions = {
      ArrowLeft: () => this.moveToken(event.shiftKey ? -big : -1),
      ArrowRight: () => this.moveToken(event.shiftKey ? big : 1),
      ArrowUp: () => this.change({chunk: state.chunk - 1}),
      ArrowDown: () => this.change({chunk: state.chunk + 1}),
      PageUp: () => this.change({head: state.head - 1}),
      PageDown: () => this.change({head: state.head + 1}),
      Home: () => this.goTo(0),
      End: () => this.goTo(model.n - 1),
      "[": () => this.change({head: state.head - 1}),
      "]": () => this.change({head: state.head + 1}),
      "+": () => this.zoom(0.5),
      "=": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      0: () => this.change({x0: 0, x1: model.n}),
      n: () => this.jump(1),
      p: () => this.jump(-1),
      w: () => this.change({shade: !state.shade && !model.byBlocks}),
      t: () => this.change({theme: state.theme === "dark" ? "light" : "dark"}),
      Enter: () => this.change({pinned: !state.pinned}),
      Escape: () => this.change({pinned: false}),
      "?": () => document.getElementById("help").showModal(),
    };
    const help = document.getElementById("help"), plain = !event.ctrlKey && !event.metaKey && !event.altKey;
    if (help.open) {
      if (event.key === "?") help.close();
      return;
    }
    const inForm = ["SELECT", "BUTTON"].includes(event.target.tagName) && ["ArrowUp", "ArrowDown", "Enter"].includes(event.key);
    if (!plain || inForm || !Object.hasOwn(actions, event.key)) return;
    event.preventDefault();
    actions[event.key]();
  }

  // ---- mouse

  look(panel, event) {
    const box = panel.canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    if (panel === this.survival) return this.lookAtCurve(x, event);
    if (x < LEFT || x >= LEFT + panel.plot) return this.tip(null);
    const token = Math.max(0, Math.min(this.model.n - 1, panel.token(x)));
    const chunk = panel === this.map && panel.chunkAt(y) >= 0 ? panel.chunkAt(y) : this.state.chunk;
    const head = panel === this.overview && panel.headAt(y) >= 0 ? panel.headAt(y) : this.state.head;
    if (!this.state.pinned) this.change(panel === this.overview ? {token} : {token, chunk});
    this.tip(this.model.describe(head, chunk, token).join("\n"), event);
  }
  lookAtCurve(x, event) {
    const {model, state} = this, k = Math.round((x - LEFT) / this.survival.plot * model.sets);
    if (k < 1 || k > model.sets) return this.tip(null);
    const {share, atRisk} = model.head(state.head).survival;
    const own = k > share.length ? "no token seen at this age" : `${percent(share[k - 1])} held so long (${atRisk[k - 1]} tokens at risk)`;
    const all = model.meta.heads.map((_, h) => model.head(h).survival.share[k - 1]).filter((value) => value !== undefined);
    const [low, high] = [Math.min, Math.max].map((pick) => percent(all.reduce((a, b) => pick(a, b))));
    this.tip(`age ${k} memory sets\n${model.headTitle(state.head)}: ${own}\nall heads: ${low} to ${high}`, event);
  }
  tip(text, event) {
    const tip = document.getElementById("tip");
    tip.hidden = text === null;
    if (text === null) return;
    tip.textContent = text;
    const left = Math.min(event.clientX + 16, innerWidth - tip.offsetWidth - 8);
    const below = event.clientY + 18 + tip.offsetHeight < innerHeight;
    tip.style.left = `${left}px`;
    tip.style.top = `${below ? event.clientY + 18 : event.clientY - tip.offsetHeight - 12}px`;
  }

  listenTo(panel) {
    const {canvas} = panel;
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (panel === this.survival) return;
      drag = {x: event.clientX, x0: this.state.x0, x1: this.state.x1, moved: false};
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (drag && Math.abs(event.clientX - drag.x) > 4) drag.moved = true;
      if (!drag?.moved) return this.look(panel, event);
      const shift = (drag.x - event.clientX) / panel.plot * (drag.x1 - drag.x0);
      const x0 = Math.max(0, Math.min(this.model.n - (drag.x1 - drag.x0), drag.x0 + shift));
      this.change({x0, x1: x0 + drag.x1 - drag.x0});
    });
    canvas.addEventListener("pointerup", (event) => {
      const click = drag && !drag.moved;
      drag = null;
      if (!click) return;
      const y = event.clientY - canvas.getBoundingClientRect().top;
      if (panel === this.overview && panel.headAt(y) >= 0) return this.change({head: panel.headAt(y)});
      this.change({pinned: !this.state.pinned});
      this.look(panel, event);
    });
    canvas.addEventListener("pointerleave", () => this.tip(null));
    canvas.addEventListener("dblclick", (event) => {
      const x = event.clientX - canvas.getBoundingClientRect().left;
      if (panel !== this.survival && x >= LEFT) this.zoom(0.25, panel.token(x));
    });
    canvas.addEventListener("wheel", (event) => {
      if (panel === this.survival || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, panel.token(event.clientX - canvas.getBoundingClientRect().left));
    }, {passive: false});
  }

  // ---- once

  writeHead() {
    const {model} = this, {meta} = model;
    const share = model.computed(model.pairs) / model.heads / model.densePairs();
    document.title = `${meta.title}: headwater atlas`;
    document.getElementById("headline").textContent =
      `Which tokens each ${model.unit} reads: ${(100 * share).toFixed(1)} % of the query-key pairs of dense attention`;
    const unsaid = ["version", "batch", "projections", "scale", "softcap", "least_weight"];
    const facts = Object.keys(meta.facts).filter((key) => !unsaid.includes(key)).map((key) => `${key} ${meta.facts[key]}`);
    const of = model.heads === meta.heads_in_file ? "" : `${model.heads} of `;
    document.getElementById("facts").textContent = [meta.title, counted(model.n, "token"), counted(model.chunks, model.unit),
      of + counted(meta.heads_in_file, model.byBlocks ? "key/value head" : "query head"), ...facts,
      ...(model.byBlocks ? [] : [`scores ${meta.score_type}`])].join(" \u00b7 ");
    const select = document.getElementById("head");
    select.replaceChildren(...meta.heads.map((_, h) => new Option(model.headName(h), h)));
    select.addEventListener("change", () => this.change({head: Number(select.value)}));
  }
  // Rule blocks: other words, and neither scores nor survival.
  writeRule() {
    if (!this.model.byBlocks) return;
    for (const element of document.querySelectorAll("[data-blocks]")) element.textContent = element.dataset.blocks;
    for (const element of document.querySelectorAll(".of-h2o")) element.hidden = true;
  }
  // The pairs of dense attention to scale, and what each colour means, if it is there.
  writePairs() {
    const {model} = this, all = model.densePairs() * model.heads;
    const counts = {...model.pairs, none: all - model.computed(model.pairs)};
    const parts = Object.keys(PARTS).filter((kind) => counts[kind] > 0);
    const made = (name, kind, text) => {
      const element = document.createElement(name);
      element.className = kind;
      element.textContent = text;
      return element;
    };
    document.getElementById("pairs").replaceChildren(...parts.map((kind) => {
      const part = made("i", kind, "");
      part.style.width = `${100 * counts[kind] / all}%`;
      return part;
    }));
    document.getElementById("legend").replaceChildren(...parts.map((kind) => {
      const entry = document.createElement("span"), newest = kind === "local" ? ` (newest ${model.local})` : "";
      const name = kind === "heavy" && model.byBlocks ? "chosen by the queries" : PARTS[kind];
      entry.append(made("i", kind, ""), `${name}${newest}: ${(100 * counts[kind] / all).toFixed(1)} %`);
      return entry;
    }));
  }
  start() {
    this.writeHead();
    this.writeRule();
    this.writePairs();
    for (const panel of this.panels) this.listenTo(panel);
    document.addEventListener("keydown", (event) => this.key(event));
    const click = (id, action) => document.getElementById(id).addEventListener("click", action);
    click("zoom-in", () => this.zoom(0.5));
    click("zoom-out", () => this.zoom(2));
    click("zoom-all", () => this.change({x0: 0, x1: this.model.n}));
    click("shade", () => this.change({shade: !this.state.shade}));
    click("theme", () => this.change({theme: this.state.theme === "dark" ? "light" : "dark"}));
    click("help-button", () => document.getElementById("help").showModal());
    click("help-close", () => document.getElementById("help").close());
    addEventListener("resize", () => this.later());
    addEventListener("hashchange", () => this.readAddress());
    this.later();
  }
}

const view = new View(new Model(loadTrace()));
view.start();
