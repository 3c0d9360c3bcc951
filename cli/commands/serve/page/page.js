// A conversation with the server of this page. What a model or a person wrote becomes text nodes and nothing else.
"use strict";

const MOST_BYTES = 8 << 20;  // of an attached document
const CHAT = "headwater.chat", SETTINGS = "headwater.settings", KEY = "headwater.key";
const NEAR_END = 60;         // pixels: who has scrolled up further is left there

const at = (id) => document.getElementById(id);
const root = document.documentElement;

// An element with properties, and children that are elements or text.
function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}
const button = (text, className, onclick) => make("button", {className, onclick}, text);

// A browser may refuse storage altogether.
function load(storage, key, otherwise) {
  try { return JSON.parse(window[storage].getItem(key)) ?? otherwise; } catch { return otherwise; }
}
function store(storage, key, value) {
  try {
    window[storage].removeItem(key);  // what is too large must not leave what was there before
    window[storage].setItem(key, JSON.stringify(value));
    return true;
  } catch { return false; }
}

// ---- text

// [{code, text}]: fenced code blocks and what is between them. The last fence may still be open.
function blocksOf(text) {
  const blocks = [];
  let fence = null, lines = [];
  const end = (code) => {
    const text = lines.join("\n"), shown = code ? text : text.replace(/^\n+|\n+$/g, "");
    if (code || shown !== "") blocks.push({code, text: shown});
    lines = [];
  };
  for (const line of text.split("\n")) {
    const [, marks, info] = line.match(/^\s*(`{3,}|~{3,})(.*)$/) ?? [];
    if (fence !== null && marks?.startsWith(fence) && info.trim() === "") {
      end(true);
      fence = null;
    } else if (fence === null && marks && !info.includes("`")) {
      end(false);
      fence = marks;
    } else {
      lines.push(line);
    }
  }
  end(fence !== null);
  return blocks;
}

// What is new is appended to its node: a selection stays.
function showText(parent, text) {
  const blocks = blocksOf(text);
  blocks.forEach((block, i) => {
    let element = parent.children[i];
    if (element?.tagName !== (block.code ? "PRE" : "P")) {
      const fresh = block.code ? make("pre", {tabIndex: 0}, "") : make("p", {}, "");
      if (element) element.replaceWith(fresh); else parent.append(fresh);
      element = fresh;
    }
    const node = element.firstChild, shown = node.data;
    if (block.text.startsWith(shown)) node.appendData(block.text.slice(shown.length));
    else node.data = block.text;
  });
  while (parent.children.length > blocks.length) parent.lastChild.remove();
}

const seconds = (ms) => `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
const size = (bytes) => bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;

// Which part of the prompt is from the cache and which was computed.
function barOf(role, total, cached, done, label) {
  const cache = make("i"), computed = make("i", {className: "computed"});
  cache.style.width = `${100 * cached / total}%`;
  computed.style.width = `${100 * (done - cached) / total}%`;
  return make("div", {className: "bar", role, ariaLabel: label}, cache, computed);
}

// The bar and the quiet line of an answer; nothing where the server said nothing.
function factsOf({usage, timings, headwater, finish}) {
  const line = make("p", {className: "facts"}), parts = [];
  const say = (text, ...mark) => line.append(make("span", {}, ...mark, text));
  if (usage && timings) {
    const {prompt_tokens: prompt, completion_tokens: written} = usage;
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    parts.push(barOf("img", prompt, cached, prompt,
      `Of ${prompt} prompt tokens ${cached} came from the cache, ${prompt - cached} were computed`));
    say(`${cached} of ${prompt} prompt tokens from the cache`, make("i"));
    say(`${prompt - cached} computed in ${seconds(timings.prompt_ms)}`, make("i", {className: "computed"}));
    say(`${written} tokens written in ${seconds(timings.predicted_ms)}, ${(timings.predicted_per_second ?? 0).toFixed(1)} tokens/s`);
  }
  const {computed, dense} = headwater?.pairs ?? {};
  if (dense > 0) say(`${(100 * computed / dense).toFixed(1)} % of the attention pairs of dense prefill`);
  if (headwater?.exact === false) say("not bit for bit the answer of an empty cache");
  if (finish === "length") say("ended by the limit of tokens");
  return [...parts, line];
}

// ---- messages

// A message is {role, text}; a user's has documents [{name, size, text}], an answer stopped (until it is complete), error,
// finish, usage, timings, headwater. An entry is a message with its place in the page.
const entries = [];
const messages = at("messages"), scroll = at("scroll"), input = at("input");

class Entry {
  constructor(message) {
    this.message = message;
    this.text = make("div", {className: "text"});
    this.below = make("div");
    const user = message.role === "user";
    this.element = make("li", {className: message.role}, make("h2", {}, user ? "You" : "Answer"), this.text, this.below);
    if (user) {
      if (message.documents.length > 0) this.text.before(make("ul", {className: "chips"}, ...message.documents.map(chip)));
      this.text.append(make("p", {}, message.text));
      this.below.append(button("Edit", "edit", () => startEdit(entries.indexOf(this))));
    } else {
      this.text.setAttribute("aria-live", "polite");
      this.finish();
    }
  }
  // Once a frame, however fast the tokens come.
  paint() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => showText(this.text, this.message.text));
  }
  read({total, cache, processed}) {
    const words = `read ${processed} of ${total} tokens, ${cache} from the cache`;
    const bar = barOf("progressbar", total, cache, processed, "Reading the prompt");
    Object.assign(bar, {ariaValueMax: `${total}`, ariaValueNow: `${processed}`, ariaValueText: words});
    this.below.replaceChildren(bar, make("p", {className: "facts"}, words));
  }
  finish() {
    const {text, error, stopped} = this.message;
    showText(this.text, text);
    this.text.ariaBusy = "false";
    this.below.replaceChildren(...factsOf(this.message));
    if (error !== undefined) {
      this.below.append(make("div", {className: "alert", role: "alert"}, make("span", {}, error), button("Retry", "retry", askAgain)));
    } else {
      if (stopped) this.below.append(make("p", {className: "facts"}, "stopped"));
      this.below.append(button("Regenerate", "again", askAgain));
      if (this.atlas?.rows.length > 0) this.below.append(" ", button("Atlas", "map", () => openAtlas(this.atlas)));
    }
  }
}

// The end stays in view while text grows and the window shrinks, until one moves up. Text may come between a move and its event.
let atEnd = true, last = 0;
scroll.onscroll = () => {
  const top = scroll.scrollTop, near = scroll.scrollHeight - top - scroll.clientHeight < NEAR_END;
  atEnd = near || (atEnd && top >= last);
  last = top;
};
const toEnd = new ResizeObserver(() => { if (atEnd) scroll.scrollTop = scroll.scrollHeight; });
toEnd.observe(scroll);
toEnd.observe(messages);

function add(message) {
  const entry = new Entry(message);
  entries.push(entry);
  messages.append(entry.element);
  at("hello").hidden = true;
  atEnd = true;
  return entry;
}
function dropFrom(index) {
  for (const {element} of entries.splice(index)) element.remove();
  at("hello").hidden = entries.length > 0;
}

function say(text) { at("status").textContent = text; }
function save() {
  if (store("localStorage", CHAT, entries.map(({message}) => message))) return true;
  say("Too large for this browser's storage: a reload loses this conversation.");
}

// ---- the server

// What the server refuses becomes an error with its own words.
async function request(path, options) {
  const headers = {"Content-Type": "application/json"}, key = at("key").value.trim();
  if (key !== "") headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, {...options, headers});
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error(`The server cannot be reached (${error.message}).`);
  }
  if (response.ok) return response;
  if (response.status === 401) {
    openSettings("key");
    throw new Error("The server asks for an API key. Enter it in the settings, then retry.");
  }
  const body = await response.text();
  let words = body.slice(0, 500);
  try { words = JSON.parse(body).error.message ?? words; } catch { /* no JSON */ }
  throw new Error(`${words || response.statusText} (HTTP ${response.status})`);
}

async function showModel() {
  try {
    const {data} = await (await request("v1/models")).json();
    at("model").textContent = at("model").title = data[0].id;
  } catch (error) {
    say(error.message);
  }
}

// Documents stand before the text. Messages of one role in a row, which failed answers leave, become one.
function chatBody() {
  const sent = [];
  if (at("system").value.trim() !== "") sent.push({role: "system", content: at("system").value});
  for (const {message: {role, text, documents = []}} of entries) {
    const content = [...documents.map((one) => `${one.name}:\n\n${one.text}`), text].filter((part) => part !== "").join("\n\n");
    if (content === "") continue;
    if (sent.at(-1)?.role === role) sent.at(-1).content += `\n\n${content}`;
    else sent.push({role, content});
  }
  const body = {messages: sent, stream: true, stream_options: {include_usage: true}, return_progress: true};
  for (const name of ["temperature", "max_tokens"]) {
    const value = at(name).valueAsNumber;
    if (Number.isFinite(value)) body[name] = value;
  }
  return JSON.stringify({...body, headwater: {atlas: true, dense: at("dense").checked}});
}

// The data of server-sent events. A piece of the stream may end anywhere, in a character too.
async function* eventsOf(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {done, value} = await reader.read();
    const lines = (rest + (done ? "\n" : value)).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
    if (done) return;
  }
}

async function receive(entry, signal) {
  const response = await request("v1/chat/completions", {method: "POST", body: chatBody(), signal});
  const {message} = entry;
  for await (const data of eventsOf(response.body)) {
    if (data === "[DONE]") {
      message.stopped = false;
      return;
    }
    const {choices, prompt_progress, error, usage, timings, headwater} = JSON.parse(data);
    if (error) throw new Error(error.message ?? "The server failed.");
    if (prompt_progress) {
      say("Reading");
      entry.read(prompt_progress);
    }
    if (headwater) {  // too large to be kept
      entry.atlas = headwater.atlas;
      delete headwater.atlas;
    }
    for (const [name, value] of Object.entries({usage, timings, headwater})) if (value) message[name] = value;
    const {delta, finish_reason} = choices?.[0] ?? {};
    if (finish_reason) message.finish = finish_reason;
    if (delta?.content) {
      if (message.text === "") {
        say("Answering");
        entry.below.replaceChildren();
      }
      message.text += delta.content;
      entry.paint();
    }
  }
  throw new Error("The connection ended before the answer did.");
}

let running = null;  // the AbortController of the answer that is on its way

function setRunning(controller) {
  running = controller;
  root.toggleAttribute("data-running", controller !== null);
  at("stop").hidden = controller === null;
  at("send").disabled = controller !== null;
  // The pressed button is gone. A finger needs no focus, and would get the keyboard.
  if ([document.body, at("send"), at("stop")].includes(document.activeElement) && matchMedia("(hover: hover)").matches) input.focus();
}

async function ask() {
  const controller = new AbortController(), entry = add({role: "assistant", text: "", stopped: true});
  setRunning(controller);
  entry.below.replaceChildren();
  entry.text.ariaBusy = "true";  // a screen reader reads the answer once, when it is complete
  say("Waiting");
  save();
  let outcome = "";
  try {
    await receive(entry, controller.signal);
  } catch (error) {
    if (controller.signal.aborted) outcome = "Stopped";
    else entry.message.error = error.message;
  }
  controller.abort();  // whatever came behind the end or an error
  entry.finish();
  if (running !== controller) return;  // another chat has begun
  setRunning(null);
  if (save()) say(outcome);
}

function askAgain() {
  if (editing !== null) endEdit();
  dropFrom(entries.length - 1);
  ask();
}

// ---- writing

let documents = [];     // of the message that is being written
let reading = Promise.resolve();
let editing = null;     // {index, text, documents}: the message, and the draft before

const chip = (one) => make("li", {}, `${one.name}, ${size(one.size)}`);

function showDraft(text, list) {
  input.value = text;
  documents = list;
  at("chips").hidden = list.length === 0;
  at("chips").replaceChildren(...list.map((one) => {
    const element = chip(one), remove = button("Remove", "", () => {
      showDraft(input.value, documents.filter((other) => other !== one));
      input.focus();
    });
    remove.ariaLabel = `Remove ${one.name}`;
    element.append(remove);
    return element;
  }));
}

async function attach(file) {
  const report = (reason) => say(`${file.name}: ${reason}`);
  if (file.size > MOST_BYTES) return report("over the limit of 8 MB.");
  if (file.size === 0) return report("empty.");
  try {
    const text = new TextDecoder("utf-8", {fatal: true}).decode(await file.arrayBuffer());
    if (text.includes("\0")) throw new TypeError();
    showDraft(input.value, [...documents, {name: file.name, size: file.size, text}]);
    report("attached.");
  } catch (error) {
    report(error instanceof TypeError ? "no UTF-8 text." : "cannot be read.");
  }
}
function attachAll(files) {
  for (const file of files) reading = reading.then(() => attach(file));
}

async function send() {
  await reading;
  const message = {role: "user", text: input.value, documents};
  if (running !== null || (message.text.trim() === "" && documents.length === 0)) return;
  if (editing !== null) {
    dropFrom(editing.index);
    endEdit();
  } else {
    showDraft("", []);
  }
  add(message);
  ask();
}

function startEdit(index) {
  if (editing !== null) endEdit();
  editing = {index, text: input.value, documents};
  const {message} = entries[index];
  entries.forEach(({element}, i) => element.classList.toggle("leaves", i >= index));
  at("editing").hidden = false;
  showDraft(message.text, message.documents);
  input.focus();
}
function endEdit() {
  showDraft(editing.text, editing.documents);
  editing = null;
  at("editing").hidden = true;
  for (const {element} of entries) element.classList.remove("leaves");
  input.focus();
}

function newChat() {
  running?.abort();
  setRunning(null);
  if (editing !== null) endEdit();
  dropFrom(0);
  save();
  say("");
  input.focus();
}

// ---- settings

const FIELDS = ["system", "temperature", "max_tokens"];

function openSettings(field) {
  if (!at("settings").open) at("settings").showModal();
  at(field).focus();
}
at("settings").oninput = () => {
  store("localStorage", SETTINGS, [at("dense").checked, ...FIELDS.map((id) => at(id).value)]);
  store("sessionStorage", KEY, at("key").value);
};
at("key").onchange = showModel;
at("settings-button").onclick = () => openSettings("system");
at("settings-close").onclick = () => at("settings").close();
at("settings").onclose = () => (messages.querySelector("li:last-child .retry") ?? input).focus();

// ---- the atlas

let atlas = null;  // {layers, columns, column_tokens, rows: [[begin, end]], shares: [row][layer][column], 255: all}

function openAtlas(given) {
  atlas = {...given, shares: Uint8Array.from(atob(given.shares), (c) => c.charCodeAt(0))};
  Object.assign(at("layer"), {max: atlas.layers, value: 0});
  at("atlas").showModal();
  drawAtlas();
}

// Which share of the earlier tokens of a column a row reads in the layer that is chosen, 1, 2, ..., or by mean of all.
function shareOf(row, column) {
  const chosen = at("layer").valueAsNumber, {layers, columns, shares} = atlas;
  let sum = 0;
  for (let layer = 0; layer < layers; ++layer) {
    if (chosen === 0 || chosen === layer + 1) sum += shares[(row * layers + layer) * columns + column] / 255;
  }
  return sum / (chosen === 0 ? layers : 1);
}

// Across: the tokens that are read; down: those that read.
function drawAtlas() {
  const map = at("map"), {columns, column_tokens: tokens, rows} = atlas, cell = 4;
  map.width = map.height = columns * cell;  // which clears it
  const context = map.getContext("2d"), colour = (name) => getComputedStyle(root).getPropertyValue(name);
  const fill = (alpha, x, y, width, height) => {
    context.globalAlpha = alpha;
    context.fillRect(x * cell / tokens, y * cell / tokens, width * cell / tokens, height * cell / tokens);
  };
  // A token reads all before it from `begin` on.
  const triangle = (begin, end) => {
    const [from, to] = [begin, end].map((token) => token * cell / tokens);
    context.globalAlpha = 1;
    context.fill(new Path2D(`M${from} ${from} L${from} ${to} L${to} ${to}`));
  };
  context.fillStyle = colour("--cache");
  triangle(0, rows[0][0]);
  context.fillStyle = colour("--computed");
  let read = 0, earlier = 0;
  rows.forEach(([begin, end], row) => {
    for (let first = 0; first < begin; first += tokens) {
      const share = shareOf(row, first / tokens), width = Math.min(tokens, begin - first);
      fill(Math.sqrt(share), first, begin, width, end - begin);
      read += share * width * (end - begin);
      earlier += width * (end - begin);
    }
    triangle(begin, end);
  });
  const part = at("layer").value === "0" ? "All layers read" : `Layer ${at("layer").value} reads`;
  at("map-words").textContent = earlier === 0 ? "One chunk: every token reads all before it." :
    `${part} ${(100 * read / earlier).toFixed(1)} % of the tokens before their chunk.`;
}

at("layer").oninput = drawAtlas;
at("map").onpointermove = ({offsetX, offsetY}) => {
  const {columns, column_tokens: tokens, rows} = atlas, scale = columns * tokens / at("map").clientWidth;
  const row = rows.findIndex(([begin, end]) => begin <= offsetY * scale && offsetY * scale < end);
  const column = Math.floor(offsetX * scale / tokens);
  if (row < 0 || column < 0 || column * tokens >= rows[row][0]) return;
  const last = Math.min((column + 1) * tokens, rows[row][0]) - 1;
  at("map-words").textContent = `Tokens ${rows[row][0]} to ${rows[row][1] - 1} read ${(100 * shareOf(row, column)).toFixed(1)} % of ` +
    `tokens ${column * tokens} to ${last}.`;
};
at("map").onpointerleave = drawAtlas;
at("atlas-close").onclick = () => at("atlas").close();

// ---- keys, mouse, the life of the page

at("send").onclick = send;
at("stop").onclick = () => running?.abort();
at("new").onclick = newChat;
at("cancel-edit").onclick = endEdit;
at("attach").onclick = () => at("file").click();
at("file").onchange = () => {
  attachAll([...at("file").files]);
  at("file").value = "";  // the same file again is a change too
};
input.onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;  // an input method takes Enter for itself
  event.preventDefault();
  send();
};
document.onkeydown = (event) => {
  if (event.key !== "Escape" || event.isComposing || document.querySelector("dialog[open]")) return;
  if (running !== null) running.abort();
  else if (editing !== null) endEdit();
};
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    if (!event.dataTransfer.types.includes("Files")) return;  // text goes where it is dropped
    event.preventDefault();
    root.toggleAttribute("data-drop", kind === "dragover");
    if (kind === "drop") attachAll([...event.dataTransfer.files]);
  });
}
addEventListener("pagehide", () => {
  if (running === null) return;
  running.abort();
  save();
});

const [dense = false, ...values] = load("localStorage", SETTINGS, []);
at("dense").checked = dense;
FIELDS.forEach((id, i) => { at(id).value = values[i] ?? ""; });
at("key").value = load("sessionStorage", KEY, "");
for (const message of load("localStorage", CHAT, [])) add(message);
showModel();
root.dataset.drawn = 1;
