// What the program wrote into the page: base64 in the elements data-*, unpacked into typed arrays.

function bytesOf(id) {
  const text = atob(document.getElementById(`data-${id}`).textContent);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) bytes[i] = text.charCodeAt(i);
  return bytes;
}

// Scores [heads][tokens]. BF16 is the upper half of an F32.
function unpackScores(bytes, narrow) {
  if (!narrow) return new Float32Array(bytes.buffer);
  const halves = new Uint16Array(bytes.buffer);
  const words = new Uint32Array(halves.length);
  for (let i = 0; i < halves.length; ++i) words[i] = halves[i] << 16;
  return new Float32Array(words.buffer);
}

// Memory sets [chunks][heads]: where each begins, and the positions of all. LEB128: the number of entries, then the
// tokens skipped before each.
function unpackSets(bytes, sets, entries) {
  const start = new Uint32Array(sets + 1);
  const positions = new Int32Array(entries);
  let at = 0, filled = 0;
  const next = () => {
    let value = 0, scale = 1;
    for (;;) {
      const byte = bytes[at++];
      value += (byte & 127) * scale;
      if (byte < 128) return value;
      scale *= 128;
    }
  };
  for (let set = 0; set < sets; ++set) {
    let before = -1;
    for (let count = next(); count > 0; --count) {
      before += next() + 1;
      positions[filled++] = before;
    }
    start[set + 1] = filled;
  }
  return {start, positions};
}

function loadTrace() {
  const meta = JSON.parse(document.getElementById("data-meta").textContent);
  const chunks = meta.chunk_start.length - 1;
  const weights = bytesOf("weights");
  const {start, positions} = unpackSets(bytesOf("sets"), chunks * meta.heads.length, weights.length);
  return {
    meta, chunks, start, positions, weights,
    tokens: JSON.parse(document.getElementById("data-tokens").textContent),
    n: meta.tokens, heads: meta.heads.length, local: meta.local, chunkStart: meta.chunk_start,
    byBlocks: "rows" in meta, unit: "rows" in meta ? "query block" : "chunk", ownStart: meta.rows?.own ?? meta.chunk_start,
    scores: unpackScores(bytesOf("scores"), meta.score_type === "BF16"),
  };
}
