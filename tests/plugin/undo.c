/* STATE-8 .. STATE-10: steps that are taken back. A session remembers its steps; what chunks change in place, the scores and
 * memory sets of rule H2O, is copied before it is changed. */

#include <string.h>

#include "tests/plugin/naive.h"

/* Of one layer. */
static size_t score_bytes(const struct headwater_session* s) {
  return (size_t)(s->bytes.scores / s->shape.n_layer);
}
static size_t set_bytes(const struct headwater_session* s) {
  return (size_t)(s->shape.n_head * s->width) * sizeof(int32_t);
}

static void save(struct headwater_session* s, int64_t copy, int64_t layer) {
  const struct layer* from = &s->layers[layer];
  const int64_t at = copy * s->shape.n_layer + layer;
  memcpy(s->saved_scores + (size_t)at * score_bytes(s), from->scores, score_bytes(s));
  memcpy(s->saved_sets + at * s->shape.n_head * s->width, from->memory, set_bytes(s));
  s->saved_layers[at] = (struct saved_layer){from->memory_count, from->memory_end};
}

static void restore(struct headwater_session* s, int64_t copy) {
  for (int64_t l = 0; l < s->shape.n_layer; ++l) {
    struct layer* to = &s->layers[l];
    if (to->dense) continue; /* it has neither scores nor sets (STATE-7) */
    const int64_t at = copy * s->shape.n_layer + l;
    memcpy(to->scores, s->saved_scores + (size_t)at * score_bytes(s), score_bytes(s));
    memcpy(to->memory, s->saved_sets + at * s->shape.n_head * s->width, set_bytes(s));
    to->memory_count = s->saved_layers[at].memory_count;
    to->memory_end = s->saved_layers[at].memory_end;
  }
}

/* Whether the chunks of a step change scores and sets. */
static bool changes_sets(const struct headwater_session* s, const struct step* step) {
  return step->mode == HEADWATER_CHUNK_SPARSE && s->options.select == HEADWATER_SELECT_H2O;
}

static int64_t chunk_count(const struct headwater_session* s, const struct step* step) {
  headwater_chunk chunk;
  int64_t count = 0;
  while (step_chunk(s, step, count, &chunk)) ++count;
  return count;
}

void begin_undo(struct headwater_session* s) {
  const struct step* step = last_step(s);
  s->copies_made = 0;
  if (!changes_sets(s, step)) return;
  for (int64_t l = 0; l < s->shape.n_layer; ++l) save(s, 2 * s->copies, l);
  const int64_t chunks = chunk_count(s, step);
  s->copies_made = chunks < s->copies ? chunks : s->copies;
}

void save_before_chunk(struct headwater_session* s, int64_t layer, int64_t index) {
  const struct step* step = last_step(s);
  if (!changes_sets(s, step)) return;
  const int64_t made =
      index - (chunk_count(s, step) - s->copies_made); /* of the last chunks of a step alone */
  if (made >= 0) save(s, s->copy_order[s->copies_kept + made], layer);
}

void end_undo(struct headwater_session* s) {
  const int64_t all = s->copies_kept + s->copies_made;
  int64_t dropped = all > s->copies ? all - s->copies : 0; /* their chunks are settled */
  if (FAULT(settles_early) && all > dropped) ++dropped;
  for (int64_t i = 0; i < dropped; ++i) {
    const int64_t first = s->copy_order[0];
    memmove(s->copy_order, s->copy_order + 1, (size_t)(2 * s->copies - 1) * sizeof *s->copy_order);
    s->copy_order[2 * s->copies - 1] = first;
  }
  s->copies_kept = all - dropped;
  s->copies_made = 0;
}

void undo_step(struct headwater_session* s) {
  if (changes_sets(s, last_step(s)) && !FAULT(abort_keeps_scores)) restore(s, 2 * s->copies);
  s->copies_made = 0;
  --s->step_count;
}

headwater_status undo_tokens(struct headwater_session* s, int64_t n) {
  /* Sparse chunks of rule H2O, and those of them that end behind n. */
  int64_t chunks = 0;
  int64_t removed = 0;
  bool inside = false;
  headwater_chunk chunk;
  for (int64_t i = 0; i < s->step_count; ++i) {
    if (!changes_sets(s, &s->steps[i])) continue;
    for (int64_t c = 0; step_chunk(s, &s->steps[i], c, &chunk); ++c, ++chunks) {
      if (chunk.begin >= n) ++removed;
      if (chunk.begin < n && n < chunk.end) inside = true;
    }
  }
  if (inside || removed > s->copies_kept) {
    int64_t settled = chunks - s->copies_kept;
    int64_t least = 0;
    for (int64_t i = 0; i < s->step_count; ++i) {
      if (!changes_sets(s, &s->steps[i])) continue;
      for (int64_t c = 0; settled > 0 && step_chunk(s, &s->steps[i], c, &chunk); ++c, --settled)
        least = chunk.end;
    }
    return fail(HEADWATER_INVALID_ARGUMENT,
                "n is %lld; allowed: 0, and %lld .. %lld but inside a sparse chunk", (long long)n,
                (long long)least, (long long)s->tokens);
  }
  if (removed > 0) {
    s->copies_kept -= removed;
    if (!FAULT(truncate_keeps_sets)) restore(s, s->copy_order[s->copies_kept]);
  }
  while (s->steps[s->step_count - 1].base >= n) --s->step_count;
  s->steps[s->step_count - 1].n = n - last_step(s)->base;
  s->tokens = n;
  return HEADWATER_OK;
}
