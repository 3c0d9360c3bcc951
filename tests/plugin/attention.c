/* The algorithm: one query row after another, as the spec writes it. Softmax and sums in double. */

#include <math.h>
#include <string.h>

#include "tests/plugin/naive.h"

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- PLAN-1, PLAN-2 ---- */

bool step_chunk(const struct headwater_session* s, const struct step* step, int64_t index,
                headwater_chunk* chunk) {
  const int64_t end = step->base + step->n;
  chunk->mode = step->mode;
  chunk->reserved = 0;
  if (step->mode != HEADWATER_CHUNK_SPARSE) {
    chunk->begin = step->base;
    chunk->end = end;
    return index == 0;
  }
  const int64_t batch = FAULT(batch_ignored) ? step->n : s->options.batch;
  const int64_t per_batch = (batch + s->options.chunk - 1) / s->options.chunk;
  const int64_t batch_begin = step->base + index / per_batch * batch;
  chunk->begin = batch_begin + index % per_batch * s->options.chunk;
  chunk->end = smaller(chunk->begin + s->options.chunk, smaller(batch_begin + batch, end));
  return chunk->begin < end;
}

/* ---- MEM-1 .. MEM-7 ---- */

bool ranks_before(float a, int32_t p, float b, int32_t q, int64_t pinned) {
  if (p < pinned || q < pinned) return p < q; /* MEM-7 */
  if (isnan(a) != isnan(b)) return isnan(b);
  if (!isnan(a) && a != b) return a > b;
  return FAULT(ties_by_higher_position) ? p > q : p < q;
}

/* The set that a chunk beginning at `end` reads, in place of the one before. Returns its number of entries. */
static int64_t build_memory_set(struct headwater_session* s, struct layer* layer, int64_t head, int64_t end) {
  int32_t* set = layer->memory + head * s->width;
  if (FAULT(stale_set) && layer->memory_count == s->width) return s->width;
  const int64_t local_begin = larger(0, end - s->options.local); /* MEM-1 */
  int64_t candidates = 0;                                        /* MEM-2 */
  for (int64_t i = 0; i < layer->memory_count; ++i) {
    if (set[i] < local_begin) s->candidates[candidates++] = set[i];
  }
  for (int64_t p = layer->memory_end; p < local_begin; ++p) s->candidates[candidates++] = (int32_t)p;

  /* MEM-3: the best that is left, `heavy` times, each put in its place among those chosen before (MEM-4). */
  const int64_t heavy = smaller(s->options.heavy, candidates);
  const int64_t pinned = FAULT(pinned_once) && layer->memory_count > 0 ? 0 : s->options.pinned;
  for (int64_t chosen = 0; chosen < heavy; ++chosen) {
    int64_t best = 0;
    float best_score = load_score(s, layer, head, s->candidates[0]);
    for (int64_t i = 1; i < candidates; ++i) {
      const float score = load_score(s, layer, head, s->candidates[i]);
      if (!ranks_before(score, s->candidates[i], best_score, s->candidates[best], pinned)) continue;
      best = i;
      best_score = score;
    }
    const int32_t position = s->candidates[best];
    s->candidates[best] = s->candidates[--candidates];
    int64_t at = chosen;
    for (; at > 0 && set[at - 1] > position; --at) set[at] = set[at - 1];
    set[at] = position;
  }
  int64_t count = heavy;
  for (int64_t p = local_begin; p < end; ++p) set[count++] = (int32_t)p;
  for (int64_t i = count; i < s->width; ++i) set[i] = -1;
  return count;
}

static void build_memory_sets(struct headwater_session* s, struct layer* layer, int64_t end) {
  int64_t count = 0; /* the same for every head */
  for (int64_t h = 0; h < s->shape.n_head; ++h) count = build_memory_set(s, layer, h, end);
  layer->memory_count = count;
  layer->memory_end = end;
}

/* ---- LOGIT, INTRA, INTER, FUSE ---- */

/* Softmax of one query over a set of keys: maximum, sum, normalised output. Neutral: (-inf, 0, 0). */
struct part {
  double m, l;
  double* o; /* [dv] */
};

/* The keys that a query sees: `count` listed positions, or those from `first` on. */
struct keys {
  const int32_t* listed;
  int64_t first;
  int64_t count;
};

static int64_t key_position(struct keys keys, int64_t j) {
  return keys.listed != NULL ? keys.listed[j] : keys.first + j;
}

static int64_t head_kv_of(const struct headwater_session* s, int64_t head) {
  return head * s->shape.n_head_kv / s->shape.n_head; /* LOGIT-1 */
}

double cap_and_bias(const struct headwater_session* s, const struct layer* layer, int64_t head, double value,
                    int64_t i, int64_t j) {
  if (layer->softcap > 0.0) value = layer->softcap * tanh(value / layer->softcap); /* LOGIT-2 */
  if (s->has_alibi) value -= (double)s->alibi[head] * (double)(i - j);             /* LOGIT-3 */
  return value;
}

double logit(const struct headwater_session* s, const struct layer* layer, int64_t head, int64_t i,
             int64_t j) {
  const void* key = stored_row(s, layer, true, head_kv_of(s, head), j);
  double dot = 0.0;
  for (int64_t x = 0; x < layer->d; ++x) {
    dot += s->query[x] * load_element(key, s->shape.kv_type, x);
    if (FAULT(float_inside)) dot = (float)dot;
  }
  return cap_and_bias(s, layer, head, layer->scale * dot, i, j);
}

/* INTRA-1 and INTER-1. Adds every key's weight to sums[] where there are any (INTRA-2, INTER-2). sink: LOGIT-4. */
static struct part attend_keys(struct headwater_session* s, const struct layer* layer, int64_t head,
                               int64_t i, struct keys keys, double sink, double* o, double* sums) {
  struct part part = {sink, 0.0, o};
  for (int64_t j = 0; j < keys.count; ++j) {
    s->logits[j] = logit(s, layer, head, i, key_position(keys, j));
    if (s->logits[j] > part.m || isnan(s->logits[j])) part.m = s->logits[j];
  }
  const int64_t dv = layer->dv;
  for (int64_t x = 0; x < dv; ++x) o[x] = 0.0;
  if (part.m == (double)-INFINITY) return part; /* no key was seen */
  if (sink > (double)-INFINITY) part.l = exp(sink - part.m);
  for (int64_t j = 0; j < keys.count; ++j) {
    s->logits[j] = exp(s->logits[j] - part.m);
    part.l += s->logits[j];
  }
  for (int64_t j = 0; j < keys.count; ++j) {
    const double weight = s->logits[j] / part.l;
    const void* value = stored_row(s, layer, false, head_kv_of(s, head), key_position(keys, j));
    for (int64_t x = 0; x < dv; ++x) o[x] += weight * load_element(value, s->shape.kv_type, x);
    if (sums != NULL) sums[j] += weight;
  }
  return part;
}

/* FUSE-1: *a becomes one softmax over both key sets. */
static void fuse(struct part* a, struct part b, int64_t dv) {
  const double m = a->m > b.m ? a->m : b.m;
  if (m == (double)-INFINITY) return; /* both are neutral */
  const double w_a = a->l * exp(a->m - m);
  const double w_b = b.l * exp(b.m - m);
  a->m = m;
  a->l = w_a + w_b;
  for (int64_t x = 0; x < dv; ++x) a->o[x] = (a->o[x] * w_a + b.o[x] * w_b) / a->l;
}

/* ---- One attend() ---- */

/* INTR-1: false where the caller wants the call to stop. */
static bool may_go_on(const struct headwater_session* s) {
  return s->interrupt == NULL || FAULT(interrupt_ignored) || s->interrupt(s->interrupt_user) == 0;
}

/* Query `i` of one head: intra or dense pass, inter pass over the first `memory` entries of a set, fusion. */
static void attend_query(struct headwater_session* s, struct layer* layer, struct call call, int64_t head,
                         int64_t i, headwater_chunk chunk, const int32_t* set, int64_t memory) {
  const bool sparse = chunk.mode == HEADWATER_CHUNK_SPARSE;
  const int64_t t = i - s->tokens; /* row of the call */
  const int64_t q = t * call.q->row_stride + head * call.q->head_stride;
  for (int64_t x = 0; x < layer->d; ++x) s->query[x] = load_element(call.q->data, call.q->type, q + x);

  int64_t first = sparse ? chunk.begin : 0; /* MASK-1; DEC-1 */
  if (layer->window > 0) {                  /* MASK-2 */
    first = larger(first, i - layer->window + (FAULT(window_off_by_one) ? 0 : 1));
  }
  const int64_t next = FAULT(sees_next_key) && i + 1 < chunk.end; /* key i + 1 */
  const struct keys own = {NULL, first, i - first + 1 + next};
  double sink = (double)layer->sinks[head];
  if (FAULT(ignores_sinks)) sink = (double)-INFINITY;
  if (FAULT(keeps_sinks_pointer) && s->their_sinks != NULL) sink = (double)s->their_sinks[head];
  struct part result = attend_keys(s, layer, head, i, own, sink, s->intra_o, sparse ? s->intra_sums : NULL);
  if (memory > 0) {
    const struct keys listed = {set, 0, memory};
    fuse(&result, attend_keys(s, layer, head, i, listed, (double)-INFINITY, s->inter_o, s->inter_sums),
         layer->dv);
  }

  const float lse = (float)(result.m + log(result.l));
  s->lse[head * s->shape.capacity + (i - chunk.begin)] = lse;
  if (call.lse != NULL) { /* LSE-1 */
    call.lse->data[t * call.lse->row_stride + head * call.lse->head_stride] =
        FAULT(lse_in_base_2) ? lse * 1.442695f : lse;
  }
  const int64_t out = t * call.out->row_stride + head * call.out->head_stride;
  if (FAULT(skips_last_row) && t == s->n - 1) return;
  for (int64_t x = 0; x < layer->dv; ++x) {
    store_element(call.out->data, call.out->type, out + x, result.o[x]);
  }
}

/* SCORE-2 and SCORE-3: once per chunk, sums in double rounded once to F32. */
static void update_scores(struct headwater_session* s, struct layer* layer, int64_t head,
                          headwater_chunk chunk, int64_t memory) {
  for (int64_t t = 0; t < chunk.end - chunk.begin; ++t) {
    const float sum = (float)s->intra_sums[t];
    s->colsum_intra[head * s->shape.capacity + t] = sum;
    store_score(s, layer, head, chunk.begin + t, sum);
  }
  for (int64_t e = 0; e < s->width; ++e) s->colsum_inter[head * s->width + e] = 0.0f;
  for (int64_t e = 0; e < memory; ++e) {
    const int32_t position = layer->memory[head * s->width + e];
    const float sum = (float)s->inter_sums[e];
    s->colsum_inter[head * s->width + e] = sum;
    if (FAULT(stale_score) && e == 0) continue;
    store_score(s, layer, head, position, load_score(s, layer, head, position) + sum);
  }
}

static void observe(const struct headwater_session* s, const struct layer* layer, struct call call,
                    headwater_chunk chunk, int64_t memory) {
  if (s->observer == NULL) return;
  const bool sparse = chunk.mode == HEADWATER_CHUNK_SPARSE;
  const bool blocks = sparse && s->options.select == HEADWATER_SELECT_BLOCKS;
  headwater_chunk_record record = {.struct_size = sizeof record,
                                   .layer = call.layer,
                                   .chunk = chunk,
                                   .memory_count = memory,
                                   .memory_stride = s->width,
                                   .memory = blocks ? s->sets : layer->memory,
                                   .colsum_inter = sparse && !blocks ? s->colsum_inter : NULL,
                                   .row_stride = s->shape.capacity,
                                   .colsum_intra = sparse && !blocks ? s->colsum_intra : NULL,
                                   .lse = s->lse};
  if (blocks) {
    const struct block_sizes sizes = blocks_of(s, chunk);
    record.query_blocks = sizes.query_blocks;
    record.candidate_blocks = sizes.candidates;
    record.block_votes = sizes.candidates > 0 ? s->block_votes : NULL;
    record.voted_tokens = sizes.voted_tokens;
    record.token_votes = sizes.voted_tokens > 0 ? s->token_votes : NULL;
  }
  if (FAULT(record_too_small)) record.struct_size = sizeof record - sizeof record.lse;
  if (FAULT(record_of_no_layer)) record.layer = -1;
  if (FAULT(record_of_no_chunk)) record.chunk.end = record.row_stride = INT64_C(1) << 62;
  s->observer(s->user, &record);
}

static bool attend_chunk(struct headwater_session* s, struct layer* layer, struct call call,
                         headwater_chunk chunk) {
  const bool sparse = chunk.mode == HEADWATER_CHUNK_SPARSE;
  const bool blocks = sparse && s->options.select == HEADWATER_SELECT_BLOCKS;
  const bool h2o = sparse && !blocks;
  const int64_t length = chunk.end - chunk.begin;
  /* MEM-5: built when the chunk starts, from all tokens before it; the first chunk of a session reads none. */
  if (h2o && chunk.begin > 0) build_memory_sets(s, layer, chunk.begin);
  int64_t memory = h2o && chunk.begin > 0 ? layer->memory_count : 0;
  struct block_sizes sizes = {0};
  if (blocks) {
    sizes = blocks_of(s, chunk);
    memory = sizes.memory;
    choose_sets(s, layer, call.q, chunk, sizes);
  }
  for (int64_t h = 0; h < s->shape.n_head; ++h) {
    if (!may_go_on(s)) return false;
    if (sparse) {
      for (int64_t t = 0; t < length; ++t) s->intra_sums[t] = 0.0;
      for (int64_t e = 0; e < memory; ++e) s->inter_sums[e] = 0.0;
    }
    for (int64_t i = chunk.begin; i < chunk.end; ++i) {
      const int32_t* set = layer->memory + h * s->width;
      if (blocks) {
        const int64_t index = FAULT(set_of_first_block) ? 0 : (i - chunk.begin) / s->options.query_block;
        set = s->sets + (head_kv_of(s, h) * sizes.query_blocks + index) * s->width;
      }
      attend_query(s, layer, call, h, i, chunk, set, memory);
      if (FAULT(column_sum_misses_a_query) && sparse && i == chunk.begin) s->intra_sums[0] = 0.0;
    }
    if (h2o) update_scores(s, layer, h, chunk, memory);
  }
  observe(s, layer, call, chunk, memory);
  return true;
}

bool attend_layer(struct headwater_session* s, struct call call) {
  struct layer* layer = &s->layers[call.layer];
  const struct step* step = last_step(s);
  if (!may_go_on(s)) return false;
  if (FAULT(keeps_layers_pointer) && s->their_layers != NULL) layer->window = s->their_layers[0].window;
  if (call.stored != NULL) {
    s->stored = *call.stored;
  } else if (call.q != NULL || !FAULT(rows_alone_not_stored)) {
    store_rows(s, layer, call.k, call.v);
  }
  if (call.q == NULL) { /* DEC-2 */
    const headwater_chunk whole = {s->tokens, s->tokens + s->n, HEADWATER_CHUNK_DECODE, 0};
    if (FAULT(rows_alone_observed)) observe(s, layer, call, whole, 0);
    return true;
  }
  if (layer->dense && !FAULT(dense_layer_forgotten) && step->mode == HEADWATER_CHUNK_SPARSE) { /* STATE-7 */
    const headwater_chunk whole = {s->tokens, s->tokens + s->n, HEADWATER_CHUNK_DENSE, 0};
    return attend_chunk(s, layer, call, whole);
  }
  headwater_chunk chunk;
  for (int64_t c = 0; step_chunk(s, step, c, &chunk); ++c) {
    save_before_chunk(s, call.layer, c);
    if (!attend_chunk(s, layer, call, chunk)) return false;
  }
  return true;
}
