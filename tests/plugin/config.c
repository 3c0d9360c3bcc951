/* CFG-1 .. CFG-5, SEL-1, LAYER-1: what is allowed, what is used instead, and what is said about it. */

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tests/plugin/naive.h"

#define MOST_EXTENT 65536
#define MOST_POSITIONS INT64_C(2147483647)
#define MOST_THREADS 512
#define MOST_CHECKPOINTS 65536

static _Thread_local char error_text[256];

headwater_status fail(headwater_status status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error_text, sizeof error_text, format, arguments);
  va_end(arguments);
  if (FAULT(error_of_two_lines)) snprintf(error_text, sizeof error_text, "something\nis wrong");
  return FAULT(status_99) ? 99 : status;
}

const char* last_error(void) { return FAULT(error_without_text) ? NULL : error_text; }

headwater_status check_range(const char* field, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return HEADWATER_OK;
  return fail(HEADWATER_INVALID_ARGUMENT, "%s is %lld; allowed: %lld .. %lld", field, (long long)value,
              (long long)least, (long long)most);
}

static headwater_status check_shape(const headwater_shape* shape) {
  const struct {
    const char* field;
    int64_t value, least, most;
  } sizes[] = {{"n_layer", shape->n_layer, 1, MOST_EXTENT},
               {"n_head", shape->n_head, 1, MOST_EXTENT},
               {"n_head_kv", shape->n_head_kv, 1, MOST_EXTENT},
               {"d_head", shape->d_head, 1, MOST_EXTENT},
               {"d_value", shape->d_value, 1, MOST_EXTENT},
               {"capacity", shape->capacity, 1, MOST_POSITIONS},
               {"kv_type", shape->kv_type, 0, 2},
               {"reserved", shape->reserved, 0, 0}};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
    const headwater_status status =
        check_range(sizes[i].field, sizes[i].value, sizes[i].least, sizes[i].most);
    if (status != HEADWATER_OK) return status;
  }
  if (shape->n_head % shape->n_head_kv != 0) {
    return fail(HEADWATER_INVALID_ARGUMENT, "n_head_kv is %lld; allowed: a divisor of n_head = %lld",
                (long long)shape->n_head_kv, (long long)shape->n_head);
  }
  return HEADWATER_OK;
}

static headwater_status check_per_head(const char* field, const float* values, int64_t heads, bool or_none) {
  for (int64_t h = 0; values != NULL && h < heads; ++h) {
    if (isfinite(values[h]) || (or_none && values[h] == -INFINITY)) continue;
    return fail(HEADWATER_INVALID_ARGUMENT, "%s[%lld] is %g; allowed: finite numbers%s", field, (long long)h,
                (double)values[h], or_none ? " and -inf" : "");
  }
  return HEADWATER_OK;
}

/* SEL-1 */
static headwater_status check_blocks(const headwater_options* o) {
  if (FAULT(no_rule_blocks)) {
    return fail(HEADWATER_INVALID_ARGUMENT,
                "select is 1; allowed: 0 (h2o): engine naive-c has no other rule");
  }
  if (FAULT(rule_refused_unnamed)) return fail(HEADWATER_INVALID_ARGUMENT, "select is 1; allowed: 0");
  const struct {
    const char* field;
    int64_t value, most;
  } sizes[] = {{"key_block", o->key_block, o->chunk < 256 ? o->chunk : 256},
               {"query_block", o->query_block, o->chunk},
               {"pool", o->pool, o->query_block},
               {"refine", o->refine, 16}};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
    const headwater_status status = check_range(sizes[i].field, sizes[i].value, 1, sizes[i].most);
    if (status != HEADWATER_OK) return status;
  }
  if (o->query_block % o->pool != 0) {
    return fail(HEADWATER_INVALID_ARGUMENT, "pool is %lld; allowed: a divisor of query_block = %lld",
                (long long)o->pool, (long long)o->query_block);
  }
  if (o->heavy % o->key_block != 0) {
    return fail(HEADWATER_INVALID_ARGUMENT, "key_block is %lld; allowed: a divisor of heavy = %lld",
                (long long)o->key_block, (long long)o->heavy);
  }
  if (o->pinned % o->key_block != 0) { /* CFG-5 */
    return fail(HEADWATER_INVALID_ARGUMENT, "pinned is %lld; allowed: a multiple of key_block = %lld",
                (long long)o->pinned, (long long)o->key_block);
  }
  return HEADWATER_OK;
}

/* CFG-5 */
static headwater_status check_dense_layers(const headwater_shape* shape, const headwater_options* o) {
  headwater_status status = check_range("dense_layer_count", o->dense_layer_count, 0, shape->n_layer);
  if (status != HEADWATER_OK || o->dense_layer_count == 0) return status;
  if (o->dense_layers == NULL) {
    return fail(HEADWATER_INVALID_ARGUMENT, "dense_layers is NULL; allowed: dense_layer_count layers");
  }
  int64_t least = 0; /* ascending, each once */
  for (int64_t i = 0; i < o->dense_layer_count; ++i) {
    status = check_range("dense_layers", o->dense_layers[i], least, shape->n_layer - 1);
    if (status != HEADWATER_OK) return status;
    least = o->dense_layers[i] + 1;
  }
  return HEADWATER_OK;
}

/* LOGIT-1, LOGIT-2, LOGIT-4; NaN: not said. */
static headwater_status check_logits(const char* of, double scale, double softcap, const float* sinks,
                                     int64_t heads) {
  if (isinf(scale)) {
    return fail(HEADWATER_INVALID_ARGUMENT, "%sscale is %g; allowed: a finite number", of, scale);
  }
  if (isinf(softcap) || softcap < 0.0) {
    return fail(HEADWATER_INVALID_ARGUMENT, "%ssoftcap is %g; allowed: 0 or a finite number > 0", of,
                softcap);
  }
  char field[64];
  snprintf(field, sizeof field, "%ssinks", of);
  return check_per_head(field, sinks, heads, true);
}

/* LAYER-1: what layer `l` has of its own. The caller's entries may be longer than ours. */
static headwater_layer_options layer_options(const headwater_options* o, int64_t l) {
  headwater_layer_options own = {.scale = (double)NAN, .softcap = (double)NAN};
  const size_t size = FAULT(layer_size_ignored) ? sizeof own.window : o->layer_size;
  if (o->layers != NULL) memcpy(&own, (const unsigned char*)o->layers + (size_t)l * size, sizeof own);
  return own;
}

static headwater_status check_layers(const headwater_shape* shape, const headwater_options* o) {
  if (o->layers == NULL && o->layer_count == 0) return HEADWATER_OK;
  if (o->layers == NULL || o->layer_size < sizeof *o->layers) {
    return fail(HEADWATER_INVALID_ARGUMENT, "layers is %p with layer_size %zu; allowed: entries of %zu",
                (const void*)o->layers, o->layer_size, sizeof *o->layers);
  }
  headwater_status status = check_range("layer_count", o->layer_count, shape->n_layer, shape->n_layer);
  for (int64_t l = 0; l < shape->n_layer && status == HEADWATER_OK; ++l) {
    const headwater_layer_options own = layer_options(o, l);
    char of[32];
    char field[64];
    snprintf(of, sizeof of, "layers[%lld].", (long long)l);
    snprintf(field, sizeof field, "%swindow", of);
    status = check_range(field, own.window, 0, MOST_POSITIONS);
    snprintf(field, sizeof field, "%sd_head", of);
    if (status == HEADWATER_OK) status = check_range(field, own.d_head, 0, MOST_EXTENT);
    snprintf(field, sizeof field, "%sd_value", of);
    if (status == HEADWATER_OK) status = check_range(field, own.d_value, 0, MOST_EXTENT);
    if (status == HEADWATER_OK) status = check_logits(of, own.scale, own.softcap, own.sinks, shape->n_head);
  }
  return status;
}

headwater_status check_config(const headwater_shape* shape, const headwater_options* o) {
  if (shape == NULL || o == NULL) {
    return fail(HEADWATER_INVALID_ARGUMENT, "shape or options is NULL; allowed: valid pointers");
  }
  headwater_status status = check_shape(shape);
  if (status != HEADWATER_OK) return status;
  if (o->struct_size < sizeof *o) {
    return fail(HEADWATER_INVALID_ARGUMENT, "options.struct_size is %zu; allowed: %zu or more",
                o->struct_size, sizeof *o);
  }
  if (o->select == HEADWATER_SELECT_SKETCHES) {
    return fail(HEADWATER_INVALID_ARGUMENT,
                "select is 2 (sketches); allowed: 0 (h2o), 1 (blocks): engine naive-c has no other rule");
  }
  const struct {
    const char* field;
    int64_t value, least, most;
  } numbers[] = {{"batch", o->batch, 1, MOST_POSITIONS},
                 {"chunk", o->chunk, 1, MOST_POSITIONS},
                 {"local", o->local, 0, MOST_POSITIONS},
                 {"heavy", o->heavy, 0, MOST_POSITIONS},
                 {"pinned", o->pinned, 0, o->heavy},
                 {"dense_below", o->dense_below, 0, MOST_POSITIONS},
                 {"clamp", o->clamp, 0, 1},
                 {"dense", o->dense, 0, 1},
                 {"score_type", o->score_type, 0, 1},
                 {"schedule", o->schedule, 0, 1},
                 {"threads", o->threads, 0, MOST_THREADS},
                 {"kv_owner", o->kv_owner, HEADWATER_KV_OF_SESSION, HEADWATER_KV_OF_CALLER},
                 {"page", o->page, 0, MOST_POSITIONS}, /* and not used: rows lie in one piece */
                 {"kv_bits", o->kv_bits, 0, 0},
                 {"select", o->select, HEADWATER_SELECT_H2O, HEADWATER_SELECT_BLOCKS},
                 {"reserved4", o->reserved4, 0, 0}};
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; ++i) {
    status = check_range(numbers[i].field, numbers[i].value, numbers[i].least, numbers[i].most);
    if (status != HEADWATER_OK) return status;
  }
  if (FAULT(pins_no_tokens) && o->pinned > 0) {
    return fail(HEADWATER_INVALID_ARGUMENT, "pinned is %lld; allowed: 0: engine naive-c pins no tokens",
                (long long)o->pinned);
  }
  if (isnan(o->softcap)) {
    return fail(HEADWATER_INVALID_ARGUMENT, "softcap is nan; allowed: 0 or a finite number > 0");
  }
  status = check_logits("", o->scale, o->softcap, o->sinks, shape->n_head);
  if (status == HEADWATER_OK) status = check_dense_layers(shape, o);
  if (status == HEADWATER_OK) status = check_layers(shape, o);
  if (status == HEADWATER_OK) status = check_range("checkpoints", o->checkpoints, 0, MOST_CHECKPOINTS);
  if (status == HEADWATER_OK) status = check_per_head("alibi", o->alibi, shape->n_head, false);
  if (status == HEADWATER_OK && o->select == HEADWATER_SELECT_BLOCKS) status = check_blocks(o);
  return status;
}

static char* next_warning(struct headwater_session* s) { return s->warnings[s->warning_count++]; }

/* LOGIT-1 for keys of d elements. */
static double scale_of(const headwater_options* asked, int64_t d) {
  return isnan(asked->scale) ? 1.0 / sqrt((double)d) : asked->scale;
}

headwater_status resolve_options(struct headwater_session* s, const headwater_options* asked) {
  headwater_effective_options* o = &s->options;
  o->chunk = asked->chunk;
  o->batch = asked->batch < asked->chunk ? asked->chunk : asked->batch; /* CFG-4 */
  if (o->batch % o->chunk != 0 || o->batch != asked->batch) {
    snprintf(next_warning(s), sizeof s->warnings[0],
             "batch %lld is no multiple of chunk %lld: using batch %lld", (long long)asked->batch,
             (long long)asked->chunk, (long long)o->batch);
  }
  o->local = asked->dense ? 0 : asked->local; /* CFG-2 */
  o->heavy = asked->dense ? 0 : asked->heavy;
  if (asked->clamp && o->local + o->heavy >= o->chunk) { /* CFG-3 */
    o->local = o->local < o->chunk - 1 ? o->local : o->chunk - 1;
    o->heavy = o->heavy < o->chunk - 1 - o->local ? o->heavy : o->chunk - 1 - o->local;
    if (asked->select == HEADWATER_SELECT_BLOCKS) o->heavy -= o->heavy % asked->key_block; /* SEL-1 */
    snprintf(next_warning(s), sizeof s->warnings[0],
             "local %lld + heavy %lld do not fit chunk %lld: using local %lld and heavy %lld",
             (long long)asked->local, (long long)asked->heavy, (long long)o->chunk, (long long)o->local,
             (long long)o->heavy);
  }
  o->pinned = asked->pinned < o->heavy ? asked->pinned : o->heavy; /* CFG-5 */
  o->dense_below = asked->dense_below;
  o->scale = scale_of(asked, s->shape.d_head);
  o->softcap = asked->softcap;
  o->sparse = o->local + o->heavy > 0;
  o->checkpoints = o->sparse && asked->select == HEADWATER_SELECT_H2O ? asked->checkpoints : 0;
  o->score_type = asked->score_type;
  o->schedule = asked->schedule;
  o->threads = 1;
  o->kv_owner = asked->kv_owner;
  o->select = asked->select;
  if (o->select == HEADWATER_SELECT_BLOCKS) {
    o->key_block = asked->key_block;
    o->query_block = asked->query_block;
    o->pool = asked->pool;
    o->refine = asked->refine;
  }
  return check_range("local + heavy", o->local + o->heavy, 0, MOST_POSITIONS);
}

static int64_t width_of(int64_t own, int64_t of_shape) {
  if (FAULT(layer_width_cut) && own > of_shape) return of_shape;
  return own > 0 ? own : of_shape;
}

void add_up_widths(struct headwater_session* s, const headwater_options* asked) {
  for (int64_t l = 0; l < s->shape.n_layer; ++l) {
    const headwater_layer_options own = layer_options(asked, l);
    const int64_t d = width_of(own.d_head, s->shape.d_head);
    const int64_t dv = width_of(own.d_value, s->shape.d_value);
    if (d > s->most_d) s->most_d = d;
    if (dv > s->most_dv) s->most_dv = dv;
    s->all_d += d;
    s->all_dv += dv;
  }
}

void resolve_layers(struct headwater_session* s, const headwater_options* asked) {
  const int64_t heads = s->shape.n_head;
  for (int64_t l = 0; l < s->shape.n_layer; ++l) {
    const headwater_layer_options own = layer_options(asked, l);
    struct layer* layer = &s->layers[l];
    layer->window = own.window;
    layer->dense = own.window > 0; /* MASK-2 */
    layer->d = width_of(own.d_head, s->shape.d_head);
    layer->dv = width_of(own.d_value, s->shape.d_value);
    layer->scale = own.scale;
    if (isnan(own.scale) || FAULT(layer_scale_forgotten)) layer->scale = scale_of(asked, layer->d);
    layer->softcap = isnan(own.softcap) || FAULT(layer_cap_forgotten) ? s->options.softcap : own.softcap;
    const float* sinks = own.sinks == NULL || FAULT(layer_sinks_forgotten) ? asked->sinks : own.sinks;
    for (int64_t h = 0; h < heads; ++h) s->sinks[l * heads + h] = sinks != NULL ? sinks[h] : -INFINITY;
  }
  for (int64_t i = 0; i < asked->dense_layer_count; ++i) s->layers[asked->dense_layers[i]].dense = true;
}
