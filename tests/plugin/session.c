/* STATE-1 .. STATE-9, STATE-11: the protocol, what a session shows, and the table that the kit loads. */

#include <stdlib.h>
#include <string.h>

#include "tests/plugin/naive.h"

static int sessions_opened; /* read by faults only */

/* ---- open and close ---- */

/* count_1 * count_2 * count_3 zeroed elements, or NULL where the product overflows or there is no memory. Counts the
 * bytes, which headwater_memory_bytes promises to report. */
static void* take(struct headwater_session* s, int64_t* bytes, int64_t count_1, int64_t count_2,
                  int64_t count_3, size_t size) {
  size_t total = size;
  const int64_t counts[] = {count_1, count_2, count_3};
  for (int i = 0; i < 3; ++i) {
    if (counts[i] != 0 && total > (size_t)PTRDIFF_MAX / (size_t)counts[i]) return NULL;
    total *= (size_t)counts[i];
  }
  if (total == 0) total = 1;
  void* block = calloc(total, 1);
  if (block == NULL) return NULL;
  *bytes += (int64_t)total;
  s->blocks[s->block_count] = block;
  s->block_bytes[s->block_count++] = total;
  return block;
}

static void close_session(headwater_session* s) {
  if (s == NULL) return;
  for (int i = 0; i < s->block_count; ++i) free(s->blocks[i]);
  if (!FAULT(malloc_leaks)) free(s);
}

/* Rows of a layer in the KV type's bytes, for each element of their width. */
static int64_t row_bytes(const struct headwater_session* s) {
  if (s->options.kv_owner != HEADWATER_KV_OF_SESSION) return 0;
  return s->shape.n_head_kv * s->shape.capacity * (int64_t)element_size(s->shape.kv_type); /* below 2^50 */
}

/* Gives each layer its part of the blocks. */
static void place_layers(struct headwater_session* s) {
  const headwater_shape* shape = &s->shape;
  int64_t d = 0, dv = 0; /* of the layers before */
  for (int64_t l = 0; l < shape->n_layer; ++l) {
    struct layer* layer = &s->layers[l];
    layer->keys = s->keys + row_bytes(s) * d;
    layer->values = s->values + row_bytes(s) * dv;
    layer->scores = s->scores + s->bytes.scores / shape->n_layer * l;
    layer->memory = s->memory + l * shape->n_head * s->width;
    layer->sinks = s->sinks + l * shape->n_head;
    d += layer->d;
    dv += layer->dv;
  }
}

static bool take_layers(struct headwater_session* s) {
  const headwater_shape* shape = &s->shape;
  const size_t score = s->options.score_type == HEADWATER_SCORE_BF16 ? sizeof(uint16_t) : sizeof(float);
  const int64_t score_rows = shape->n_head * shape->capacity; /* below 2^47 */
  s->layers = take(s, &s->bytes.workspace, shape->n_layer, 1, 1, sizeof *s->layers);
  if (s->layers == NULL && !FAULT(malloc_unchecked)) return false;
  s->keys = take(s, &s->bytes.kv, row_bytes(s), s->all_d, 1, 1);
  if (s->keys == NULL) return false; /* at once: the next one may be small enough to be had */
  s->values = take(s, &s->bytes.kv, row_bytes(s), s->all_dv, 1, 1);
  if (s->values == NULL) return false;
  s->scores = take(s, &s->bytes.scores, shape->n_layer, score_rows, 1, score);
  if (s->scores == NULL) return false;
  s->memory = take(s, &s->bytes.memory_sets, shape->n_layer, shape->n_head, s->width, sizeof *s->memory);
  s->sinks = take(s, &s->bytes.workspace, shape->n_layer, shape->n_head, 1, sizeof *s->sinks);
  return s->memory != NULL && s->sinks != NULL;
}

/* Steps and copies (undo.c). */
static bool take_undo(struct headwater_session* s) {
  const headwater_shape* shape = &s->shape;
  int64_t* bytes = &s->bytes.memory_sets;
  s->steps = take(s, &s->bytes.workspace, shape->capacity, 1, 1, sizeof *s->steps);
  if (s->steps == NULL) return false;
  if (!s->options.sparse || s->options.select != HEADWATER_SELECT_H2O) return true;
  s->copies = s->options.checkpoints < shape->capacity ? s->options.checkpoints : shape->capacity;
  const int64_t copies = 2 * s->copies + 1;
  s->copy_order = take(s, bytes, copies, 1, 1, sizeof *s->copy_order);
  s->saved_scores = take(s, bytes, copies, s->bytes.scores, 1, 1);
  s->saved_sets = take(s, bytes, copies * shape->n_layer, shape->n_head, s->width, sizeof *s->saved_sets);
  s->saved_layers = take(s, bytes, copies, shape->n_layer, 1, sizeof *s->saved_layers);
  if (!s->copy_order || !s->saved_scores || !s->saved_sets || !s->saved_layers) return false;
  for (int64_t i = 0; i < copies; ++i) s->copy_order[i] = i;
  return true;
}

static bool take_workspace(struct headwater_session* s) {
  const headwater_shape* shape = &s->shape;
  int64_t* bytes = &s->bytes.workspace;
  const int64_t chunk = s->options.chunk < shape->capacity ? s->options.chunk : shape->capacity;
  s->logits = take(s, bytes, shape->capacity, 1, 1, sizeof *s->logits);
  s->query = take(s, bytes, s->most_d, 1, 1, sizeof *s->query);
  s->intra_o = take(s, bytes, s->most_dv, 1, 1, sizeof *s->intra_o);
  s->inter_o = take(s, bytes, s->most_dv, 1, 1, sizeof *s->inter_o);
  s->intra_sums = take(s, bytes, chunk, 1, 1, sizeof *s->intra_sums);
  s->inter_sums = take(s, bytes, s->width, 1, 1, sizeof *s->inter_sums);
  s->candidates = take(s, bytes, shape->capacity, 1, 1, sizeof *s->candidates);
  s->colsum_intra = take(s, bytes, shape->n_head, shape->capacity, 1, sizeof *s->colsum_intra);
  s->colsum_inter = take(s, bytes, shape->n_head, s->width, 1, sizeof *s->colsum_inter);
  s->lse = take(s, bytes, shape->n_head, shape->capacity, 1, sizeof *s->lse);
  const bool h2o = s->logits && s->query && s->intra_o && s->inter_o && s->intra_sums && s->inter_sums &&
                   s->candidates && s->colsum_intra && s->colsum_inter && s->lse;
  if (!h2o || s->options.select != HEADWATER_SELECT_BLOCKS) return h2o;

  const headwater_effective_options* o = &s->options;
  const int64_t query_blocks = (chunk + o->query_block - 1) / o->query_block;
  const int64_t candidates = shape->capacity / o->key_block;
  const int64_t tokens = o->refine * o->heavy < shape->capacity ? o->refine * o->heavy : shape->capacity;
  s->sets = take(s, &s->bytes.memory_sets, shape->n_head_kv, query_blocks, s->width, sizeof *s->sets);
  s->block_votes = take(s, bytes, shape->n_head_kv, query_blocks, candidates, sizeof *s->block_votes);
  s->token_votes = take(s, bytes, shape->n_head_kv, query_blocks, tokens, sizeof *s->token_votes);
  const int64_t regions = candidates / REGION_BLOCKS + 1;
  s->first_region = candidates;
  s->means = take(s, bytes, candidates + regions, s->most_d, 1, sizeof *s->means);
  s->variances = take(s, bytes, candidates + regions, s->most_d, 1, sizeof *s->variances);
  s->region_votes = take(s, bytes, regions, 1, 1, sizeof *s->region_votes);
  s->searched = take(s, bytes, candidates + regions, 1, 1, sizeof *s->searched);
  s->estimates = take(s, bytes, candidates, 1, 1, sizeof *s->estimates);
  s->kept_blocks = take(s, bytes, candidates, 1, 1, sizeof *s->kept_blocks);
  s->kept = take(s, bytes, shape->capacity, 1, 1, sizeof *s->kept);
  return s->sets && s->block_votes && s->token_votes && s->means && s->variances && s->region_votes &&
         s->searched && s->estimates && s->kept_blocks && s->kept;
}

/* All memory of a session whose shape and options are known. */
static bool take_all(struct headwater_session* s) {
  if (!take_layers(s) || !take_undo(s) || !take_workspace(s)) return false;
  if (s->has_alibi) s->alibi = take(s, &s->bytes.workspace, s->shape.n_head, 1, 1, sizeof *s->alibi);
  return !s->has_alibi || s->alibi != NULL;
}

static headwater_status reset(headwater_session* s);

#ifdef NAIVE_BROKEN
void commit_open_fault(headwater_session* s, const headwater_options* options);
void commit_attend_fault(headwater_session* s, const headwater_rows* q, const headwater_mutable_rows* out);
void commit_fork_fault(headwater_session* s, headwater_session* fork, headwater_session** forked);
#endif

static headwater_status open_session(const headwater_shape* shape, const headwater_options* options,
                                     headwater_session** session) {
  *session = NULL;
  headwater_status status = check_config(shape, options);
  if (status != HEADWATER_OK) return status;
  headwater_session* s = calloc(1, sizeof *s);
  if (s == NULL) return fail(HEADWATER_OUT_OF_MEMORY, "open: no memory for a session");
  s->shape = *shape;
  s->opened = sessions_opened++;
  s->threads_asked = options->threads;
  status = resolve_options(s, options);
  if (status != HEADWATER_OK) {
    close_session(s);
    return status;
  }
  const int64_t set = s->options.local + s->options.heavy;
  s->width = set < shape->capacity ? set : shape->capacity;
  s->has_alibi = options->alibi != NULL;
  add_up_widths(s, options);
  if (!take_all(s)) {
    close_session(s);
    return fail(HEADWATER_OUT_OF_MEMORY, "open: no memory for capacity %lld in %lld layers",
                (long long)shape->capacity, (long long)shape->n_layer);
  }
  if (s->has_alibi) memcpy(s->alibi, options->alibi, (size_t)shape->n_head * sizeof *s->alibi);
  resolve_layers(s, options);
  place_layers(s);
#ifdef NAIVE_BROKEN
  commit_open_fault(s, options);
#endif
  if (FAULT(bytes_too_small)) s->bytes.workspace = 0;
  reset(s);
  if (!FAULT(open_without_session)) *session = s;
  return HEADWATER_OK;
}

/* ---- steps ---- */

static headwater_status require_usable(const headwater_session* s) {
  if (s->progress != STEP_FAILED) return HEADWATER_OK;
  return fail(HEADWATER_WRONG_STATE, "the last step failed; allowed: abort, reset (STATE-5)");
}

static headwater_status fail_step(headwater_session* s, const char* what) {
  s->progress = STEP_FAILED;
  return fail(HEADWATER_WRONG_STATE, "%s; the step has failed, allowed: abort, reset", what);
}

/* The steps say it all: a session whose steps are taken back is in the state of those that are left. */
static int32_t state_of(const headwater_session* s) {
  return s->step_count > 0 ? last_step(s)->state : HEADWATER_EMPTY;
}

static headwater_status begin(headwater_session* s, bool prefill, int64_t n, int64_t turn_length) {
  const headwater_status status = require_usable(s);
  if (status != HEADWATER_OK) return status;
  if (s->progress == STEP_OPEN) return fail_step(s, "begin in an open step");
  if (n < 1) return fail(HEADWATER_INVALID_ARGUMENT, "n is %lld; allowed: 1 or more", (long long)n);
  struct step step = {.base = s->tokens, .n = n, .state = HEADWATER_DECODING, .mode = HEADWATER_CHUNK_DECODE};
  const bool continues = prefill && state_of(s) == HEADWATER_PREFILLING; /* a turn, STATE-1 */
  const bool opens = prefill && !continues;
  if (continues)
    step = (struct step){s->tokens, n, last_step(s)->turn_length, step.state, last_step(s)->mode};
  if (prefill && turn_length != 0 && (opens ? turn_length < n : turn_length != step.turn_length)) {
    return fail(HEADWATER_INVALID_ARGUMENT, "turn_length is %lld; allowed: 0, or %s %lld",
                (long long)turn_length, opens ? "at least n =" : "that of the turn,",
                (long long)(opens ? n : step.turn_length));
  }
  if (n > s->shape.capacity - s->tokens) {
    return fail(HEADWATER_CAPACITY_EXCEEDED, "n is %lld with %lld tokens stored; allowed: capacity %lld",
                (long long)n, (long long)s->tokens, (long long)s->shape.capacity);
  }
  if (opens) { /* STATE-3 */
    step.turn_length = turn_length != 0 ? turn_length : n;
    const bool long_enough = s->tokens == 0 || step.turn_length > s->options.chunk;
    const int64_t length = FAULT(turn_by_its_first_call) ? n : step.turn_length;
    const bool sparse = s->options.sparse && long_enough && length >= s->options.dense_below;
    step.mode = sparse ? HEADWATER_CHUNK_SPARSE : HEADWATER_CHUNK_DENSE;
  }
  if (prefill) step.state = HEADWATER_PREFILLING;
  s->n = n;
  s->steps[s->step_count++] = step;
  begin_undo(s);
  for (int64_t l = 0; l < s->shape.n_layer; ++l) s->layers[l].attended = false;
  s->progress = STEP_OPEN;
  return HEADWATER_OK;
}

static headwater_status begin_prefill(headwater_session* s, int64_t n, int64_t turn_length) {
  return begin(s, true, n, turn_length);
}

static headwater_status begin_decode(headwater_session* s, int64_t n) { return begin(s, false, n, 0); }

static headwater_status check_layer(const headwater_session* s, int64_t layer) {
  if (layer >= 0 && layer < s->shape.n_layer) return HEADWATER_OK;
  return fail(HEADWATER_INVALID_ARGUMENT, "layer is %lld; allowed: 0 .. %lld", (long long)layer,
              (long long)s->shape.n_layer - 1);
}

static headwater_status check_rows(const char* name, const headwater_rows* rows) {
  if (rows == NULL || rows->data == NULL) {
    return fail(HEADWATER_INVALID_ARGUMENT, "%s or %s.data is NULL; allowed: rows", name, name);
  }
  if (rows->type >= HEADWATER_F32 && rows->type <= HEADWATER_BF16) return HEADWATER_OK;
  return fail(HEADWATER_INVALID_ARGUMENT, "%s.type is %d; allowed: 0 .. 2", name, (int)rows->type);
}

static headwater_status check_call(const headwater_session* s, struct call call) {
  headwater_status status = check_layer(s, call.layer);
  const bool decode = last_step(s)->mode == HEADWATER_CHUNK_DECODE || FAULT(rows_alone_in_prefill);
  if (status == HEADWATER_OK && (call.q != NULL || call.out != NULL || !decode)) { /* DEC-2 */
    headwater_rows out = {0};
    if (call.out != NULL) out = (headwater_rows){call.out->data, 0, 0, call.out->type, 0};
    status = check_rows("q", call.q);
    if (status == HEADWATER_OK) status = check_rows("out", &out);
  }
  if (status != HEADWATER_OK) return status;
  if ((call.stored != NULL) != (s->options.kv_owner == HEADWATER_KV_OF_CALLER)) {
    return fail(HEADWATER_INVALID_ARGUMENT, "attend%s with kv_owner %d; allowed: attend%s",
                call.stored != NULL ? "_stored" : "", (int)s->options.kv_owner,
                call.stored != NULL ? "" : "_stored");
  }
  if (call.stored != NULL) return check_stored(s, call.stored);
  status = check_rows("k", call.k);
  return status == HEADWATER_OK ? check_rows("v", call.v) : status;
}

static headwater_status attend_call(headwater_session* s, struct call call) {
  headwater_status status = require_usable(s);
  if (status == HEADWATER_OK && s->progress != STEP_OPEN) {
    status = fail(HEADWATER_WRONG_STATE, "attend without an open step; allowed: begin first");
  }
  if (status == HEADWATER_OK) status = check_call(s, call);
  if (status != HEADWATER_OK) return status;
  if (s->layers[call.layer].attended && !FAULT(layer_twice_allowed)) {
    return fail_step(s, "a layer attended twice");
  }
  if (!attend_layer(s, call)) {
    if (!FAULT(interrupt_leaves_step)) s->progress = STEP_FAILED;
    return fail(HEADWATER_INTERRUPTED, "attend: the interrupt asked to stop; allowed: abort, reset");
  }
  s->layers[call.layer].attended = true;
#ifdef NAIVE_BROKEN
  if (call.q != NULL) commit_attend_fault(s, call.q, call.out);
#endif
  return HEADWATER_OK;
}

static headwater_status attend(headwater_session* s, int64_t layer, const headwater_rows* q,
                               const headwater_rows* k, const headwater_rows* v,
                               const headwater_mutable_rows* out) {
  return attend_call(s, (struct call){.layer = layer, .q = q, .k = k, .v = v, .out = out});
}

static headwater_status attend_lse(headwater_session* s, int64_t layer, const headwater_rows* q,
                                   const headwater_rows* k, const headwater_rows* v,
                                   const headwater_mutable_rows* out, const headwater_lse_output* lse) {
  if (lse == NULL || lse->data == NULL) {
    return fail(HEADWATER_INVALID_ARGUMENT, "lse.data is NULL; allowed: room for n x n_head floats");
  }
  return attend_call(s, (struct call){.layer = layer, .q = q, .k = k, .v = v, .out = out, .lse = lse});
}

static headwater_status attend_stored(headwater_session* s, int64_t layer, const headwater_rows* q,
                                      const headwater_stored_rows* rows, const headwater_mutable_rows* out,
                                      const headwater_lse_output* lse) {
  if (rows == NULL) return fail(HEADWATER_INVALID_ARGUMENT, "rows is NULL; allowed: rows");
  if (lse != NULL && lse->data == NULL) {
    return fail(HEADWATER_INVALID_ARGUMENT, "lse.data is NULL; allowed: room for n x n_head floats");
  }
  return attend_call(s, (struct call){.layer = layer, .q = q, .stored = rows, .out = out, .lse = lse});
}

static headwater_status end(headwater_session* s) {
  const headwater_status status = require_usable(s);
  if (status != HEADWATER_OK) return status;
  if (s->progress != STEP_OPEN) {
    return fail(HEADWATER_WRONG_STATE, "end without an open step; allowed: begin first");
  }
  for (int64_t l = 0; l < s->shape.n_layer; ++l) {
    if (!s->layers[l].attended) return fail_step(s, "end before all layers were attended");
  }
  if (FAULT(interrupt_after_attend) && s->interrupt != NULL) s->interrupt(s->interrupt_user);
  end_undo(s);
  s->tokens += s->n;
  s->n = 0;
  s->progress = STEP_IDLE;
  return HEADWATER_OK;
}

static headwater_status reset(headwater_session* s) {
  const headwater_shape* shape = &s->shape;
  s->progress = STEP_IDLE;
  s->tokens = s->n = s->step_count = s->copies_kept = s->copies_made = 0;
  for (int64_t l = 0; l < shape->n_layer; ++l) {
    struct layer* layer = &s->layers[l];
    layer->memory_count = layer->memory_end = 0;
    for (int64_t i = 0; i < shape->n_head * s->width; ++i) layer->memory[i] = -1;
  }
  if (FAULT(reset_keeps_scores)) return HEADWATER_OK;
  memset(s->scores, 0, (size_t)s->bytes.scores); /* SCORE-1, all layers */
  return HEADWATER_OK;
}

static headwater_status abort_step(headwater_session* s) {
  if (s->progress == STEP_IDLE) {
    return fail(HEADWATER_WRONG_STATE, "abort without an open step; allowed: begin first");
  }
  undo_step(s);
  s->n = 0;
  s->progress = STEP_IDLE;
  return HEADWATER_OK;
}

static headwater_status truncate_tokens(headwater_session* s, int64_t n) {
  if (s->progress != STEP_IDLE) {
    return fail(HEADWATER_WRONG_STATE, "truncate in an open step; allowed: after end, abort or reset");
  }
  if (n < 0 || n > s->tokens) {
    return fail(HEADWATER_INVALID_ARGUMENT, "n is %lld; allowed: 0 .. %lld", (long long)n,
                (long long)s->tokens);
  }
  return n == 0 ? reset(s) : undo_tokens(s, n);
}

static headwater_status fork_session(headwater_session* s, headwater_session** forked) {
  *forked = NULL;
  if (s->progress != STEP_IDLE && !FAULT(fork_in_open_step)) {
    return fail(HEADWATER_WRONG_STATE, "fork in an open step; allowed: after end, abort or reset");
  }
  headwater_session* fork = malloc(sizeof *fork);
  if (fork == NULL && !FAULT(fork_unchecked))
    return fail(HEADWATER_OUT_OF_MEMORY, "fork: no memory for a session");
  *fork = *s;
  fork->block_count = 0;
  fork->bytes = (headwater_memory_bytes){0};
  fork->observer = NULL;
  fork->interrupt = NULL;
  if (!take_all(fork)) {
    if (!FAULT(fork_leaks)) close_session(fork);
    return fail(HEADWATER_OUT_OF_MEMORY, "fork: no memory for capacity %lld", (long long)s->shape.capacity);
  }
  /* Both took their blocks in the same order. */
  for (int i = 0; i < s->block_count; ++i) memcpy(fork->blocks[i], s->blocks[i], s->block_bytes[i]);
  place_layers(fork);
  *forked = fork;
#ifdef NAIVE_BROKEN
  commit_fork_fault(s, fork, forked);
#endif
  return HEADWATER_OK;
}

/* ---- what a session shows ---- */

static headwater_status session_state(const headwater_session* s, int32_t* state) {
  *state = state_of(s);
  if (FAULT(state_too_long)) state[1] = 0;
  return HEADWATER_OK;
}

static headwater_status session_failed(const headwater_session* s, int32_t* failed) {
  *failed = s->progress == STEP_FAILED && !FAULT(failure_hidden);
  return HEADWATER_OK;
}

static headwater_status session_tokens(const headwater_session* s, int64_t* tokens) {
  *tokens = s->tokens;
  return HEADWATER_OK;
}

/* A structure that grows with its versions: what the caller does not know is left out, what this file does not know
 * is 0. */
static headwater_status copy_struct(void* to, size_t struct_size, const void* from, size_t size) {
  memset(to, 0, struct_size);
  memcpy(to, from, struct_size < size ? struct_size : size);
  return HEADWATER_OK;
}

static headwater_status session_options(const headwater_session* s, headwater_effective_options* options,
                                        size_t struct_size) {
  return copy_struct(options, struct_size + (FAULT(options_too_long) ? 8 : 0), &s->options,
                     sizeof s->options);
}

static headwater_status warning_count(const headwater_session* s, int64_t* count) {
  *count = s->warning_count;
  return HEADWATER_OK;
}

static headwater_status warning(const headwater_session* s, int64_t index, const char** text) {
  if (index < 0 || index >= s->warning_count) {
    return fail(HEADWATER_INVALID_ARGUMENT, "index is %lld; allowed: below %lld", (long long)index,
                (long long)s->warning_count);
  }
  *text = s->warnings[index];
  return HEADWATER_OK;
}

static headwater_status session_memory_bytes(const headwater_session* s, headwater_memory_bytes* bytes,
                                             size_t struct_size) {
  return copy_struct(bytes, struct_size, &s->bytes, sizeof s->bytes);
}

static headwater_status plan_count(const headwater_session* s, int64_t* count) {
  headwater_chunk chunk;
  *count = 0;
  while (s->step_count > 0 && step_chunk(s, last_step(s), *count, &chunk)) ++*count;
  return HEADWATER_OK;
}

static headwater_status plan_chunk_of(const headwater_session* s, int64_t index, headwater_chunk* chunk) {
  if (index >= 0 && s->step_count > 0 && step_chunk(s, last_step(s), index, chunk)) return HEADWATER_OK;
  return fail(HEADWATER_INVALID_ARGUMENT, "index is %lld; allowed: 0 .. plan_count - 1", (long long)index);
}

static headwater_status scores(const headwater_session* s, int64_t layer, headwater_score_view* view) {
  const headwater_status status = check_layer(s, layer);
  if (status != HEADWATER_OK) return status;
  *view = (headwater_score_view){FAULT(scores_nowhere) ? NULL : s->layers[layer].scores, s->shape.capacity,
                                 s->options.score_type, 0};
  return HEADWATER_OK;
}

static headwater_status memory(const headwater_session* s, int64_t layer, headwater_memory_view* view) {
  const headwater_status status = check_layer(s, layer);
  if (status != HEADWATER_OK) return status;
  const struct layer* l = &s->layers[layer];
  *view = (headwater_memory_view){l->memory, s->width, s->width, l->memory_count};
  if (FAULT(set_beyond_its_width)) view->count = INT64_C(1) << 40;
  return HEADWATER_OK;
}

static headwater_status read_row(const headwater_session* s, int64_t layer, int64_t head_kv, int64_t position,
                                 float* row, int64_t width, bool key) {
  const headwater_status status = check_layer(s, layer);
  if (status != HEADWATER_OK) return status;
  if (s->options.kv_owner == HEADWATER_KV_OF_CALLER) {
    return fail(HEADWATER_UNSUPPORTED, "the caller keeps the rows; allowed: a session that does");
  }
  const int64_t wanted = key ? s->layers[layer].d : s->layers[layer].dv;
  const int64_t stored = s->tokens + (s->layers[layer].attended ? s->n : 0);
  if (head_kv < 0 || head_kv >= s->shape.n_head_kv || position < 0 || position >= stored || width != wanted ||
      row == NULL) {
    return fail(HEADWATER_INVALID_ARGUMENT,
                "head_kv %lld, position %lld, width %lld; allowed: below %lld, below %lld, %lld",
                (long long)head_kv, (long long)position, (long long)width, (long long)s->shape.n_head_kv,
                (long long)stored, (long long)wanted);
  }
  const void* from = stored_row(s, &s->layers[layer], key, head_kv, position);
  for (int64_t x = 0; x < wanted; ++x) row[x] = (float)load_element(from, s->shape.kv_type, x);
  if (FAULT(key_row_too_long)) row[wanted] = 0.0f;
  if (FAULT(key_row_too_early)) row[-1] = 0.0f;
  return HEADWATER_OK;
}

static headwater_status read_key(const headwater_session* s, int64_t layer, int64_t head_kv, int64_t position,
                                 float* row, int64_t width) {
  return read_row(s, layer, head_kv, position, row, width, true);
}

static headwater_status read_value(const headwater_session* s, int64_t layer, int64_t head_kv,
                                   int64_t position, float* row, int64_t width) {
  return read_row(s, layer, head_kv, position, row, width, false);
}

static headwater_status set_observer(headwater_session* s, headwater_observer observer, void* user) {
  s->observer = observer;
  s->user = user;
  return HEADWATER_OK;
}

static headwater_status set_interrupt(headwater_session* s, headwater_interrupt interrupt, void* user) {
  s->interrupt = interrupt;
  s->interrupt_user = user;
  return HEADWATER_OK;
}

/* ---- the table ---- */

static const headwater_engine_table kTable = {
    .struct_size = sizeof(headwater_engine_table),
    .abi_version = HEADWATER_PLUGIN_VERSION,
    .claims = HEADWATER_CLAIM_BITWISE_THREADS | HEADWATER_CLAIM_BITWISE_RUNS |
              HEADWATER_CLAIM_BITWISE_SCHEDULES | HEADWATER_CLAIM_NO_ALLOCATION |
              HEADWATER_CLAIM_DOUBLE_ARITHMETIC | HEADWATER_CLAIM_ABORT | HEADWATER_CLAIM_TRUNCATE |
              HEADWATER_CLAIM_INTERRUPT | HEADWATER_CLAIM_LSE | HEADWATER_CLAIM_FORK |
              HEADWATER_CLAIM_LAYERS | HEADWATER_CLAIM_STORED_ROWS | HEADWATER_CLAIM_ROWS_ALONE,
    .name = "naive-c",
    .isa = "scalar",
    .description = "the spec in plain C, row by row, in double arithmetic on one thread",
    .unavailable_because = "",
    .last_error = last_error,
    .open = open_session,
    .close = close_session,
    .begin_prefill = begin_prefill,
    .begin_decode = begin_decode,
    .attend = attend,
    .end = end,
    .reset = reset,
    .session_state = session_state,
    .session_tokens = session_tokens,
    .session_options = session_options,
    .warning_count = warning_count,
    .warning = warning,
    .session_memory_bytes = session_memory_bytes,
    .plan_count = plan_count,
    .plan_chunk = plan_chunk_of,
    .scores = scores,
    .memory = memory,
    .read_key = read_key,
    .read_value = read_value,
    .set_observer = set_observer,
    .session_failed = session_failed,
    .abort = abort_step,
    .truncate = truncate_tokens,
    .set_interrupt = set_interrupt,
    .attend_lse = attend_lse,
    .fork = fork_session,
    .attend_stored = attend_stored,
};

#ifdef NAIVE_BROKEN
bool choose_fault(void);
const headwater_engine_table* with_other_claims(const headwater_engine_table* table);
#endif

const headwater_engine_table* headwater_plugin_v1(void) {
#ifdef NAIVE_BROKEN
  if (!choose_fault()) return NULL;
  return with_other_claims(&kTable);
#else
  return &kTable;
#endif
}
