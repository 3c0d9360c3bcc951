/* Rule BLOCKS: a set for every query block and key/value head, chosen by votes (SEL-2 .. SEL-8, SEL-12). Votes in double,
 * rounded once to F32. */

#include <math.h>

#include "tests/plugin/naive.h"

/* SEL-3: columns of a group */
enum { GROUP_COLUMNS = 8 };

/* SEL-12 */
enum { MOST_ESTIMATED = 2048, LEAST_SEARCHED = 16 };

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- SEL-2, SEL-8 ---- */

struct block_sizes blocks_of(const struct headwater_session* s, headwater_chunk chunk) {
  const headwater_effective_options* o = &s->options;
  const int64_t k = o->key_block;
  struct block_sizes sizes;
  sizes.local_begin = smaller(chunk.begin, (larger(0, chunk.begin - o->local) + k - 1) / k * k);
  sizes.candidates = o->heavy > 0 ? sizes.local_begin / k : 0;
  sizes.kept = smaller(o->refine * (o->heavy / k), sizes.candidates);
  sizes.voted_tokens = o->refine > 1 && sizes.kept * k > o->heavy ? sizes.kept * k : 0;
  sizes.memory = chunk.begin - sizes.local_begin + smaller(o->heavy, sizes.candidates * k);
  sizes.query_blocks = (chunk.end - chunk.begin + o->query_block - 1) / o->query_block;
  return sizes;
}

/* The numbers of the `count` highest of n votes, ascending, in the order of MEM-3; those below `pinned` first (MEM-7). */
static void choose(struct headwater_session* s, const float* votes, int64_t n, int64_t count, int64_t pinned,
                   int32_t* chosen) {
  for (int64_t i = 0; i < n; ++i) s->candidates[i] = (int32_t)i;
  for (int64_t c = 0; c < count; ++c) {
    int64_t best = 0;
    for (int64_t i = 1; i < n - c; ++i) {
      const int32_t a = s->candidates[i];
      const int32_t b = s->candidates[best];
      if (ranks_before(votes[a], a, votes[b], b, pinned)) best = i;
    }
    const int32_t number = s->candidates[best];
    s->candidates[best] = s->candidates[n - c - 1];
    int64_t at = c;
    for (; at > 0 && chosen[at - 1] > number; --at) chosen[at] = chosen[at - 1];
    chosen[at] = number;
  }
}

/* ---- SEL-3 ---- */

static int64_t group_columns(int64_t d, int64_t group) {
  return smaller(GROUP_COLUMNS, d - group * GROUP_COLUMNS);
}

static void summarise(struct headwater_session* s, const struct layer* layer, int64_t head_kv,
                      int64_t blocks) {
  const int64_t d = layer->d;
  const int64_t k = s->options.key_block;
  for (int64_t b = 0; b < blocks; ++b) {
    double* mean = s->means + b * d;
    double* variance = s->variances + b * d;
    for (int64_t x = 0; x < d; ++x) mean[x] = variance[x] = 0.0;
    for (int64_t j = 0; j < k; ++j) {
      const void* key = stored_row(s, layer, true, head_kv, b * k + j);
      for (int64_t x = 0; x < d; ++x) mean[x] += load_element(key, s->shape.kv_type, x);
    }
    for (int64_t x = 0; x < d; ++x) mean[x] /= (double)k;
    for (int64_t j = 0; j < k; ++j) {
      const void* key = stored_row(s, layer, true, head_kv, b * k + j);
      for (int64_t x = 0; x < d; ++x) {
        const double from_mean = load_element(key, s->shape.kv_type, x) - mean[x];
        variance[x / GROUP_COLUMNS] += from_mean * from_mean;
      }
    }
    for (int64_t g = 0; g * GROUP_COLUMNS < d; ++g) variance[g] /= (double)(k * group_columns(d, g));
  }
}

/* SEL-12: whole regions, after those of all blocks that fit. */
static void summarise_regions(struct headwater_session* s, int64_t d, int64_t regions) {
  for (int64_t r = 0; r < regions; ++r) {
    double* mean = s->means + (s->first_region + r) * d;
    double* variance = s->variances + (s->first_region + r) * d;
    for (int64_t g = 0; g * GROUP_COLUMNS < d; ++g) {
      double within = 0.0;
      for (int64_t b = r * REGION_BLOCKS; b < (r + 1) * REGION_BLOCKS; ++b) within += s->variances[b * d + g];
      variance[g] = within / REGION_BLOCKS;
    }
    for (int64_t x = 0; x < d; ++x) {
      double sum = 0.0;
      for (int64_t b = r * REGION_BLOCKS; b < (r + 1) * REGION_BLOCKS; ++b) sum += s->means[b * d + x];
      mean[x] = sum / REGION_BLOCKS;
      double between = 0.0;
      for (int64_t b = r * REGION_BLOCKS; b < (r + 1) * REGION_BLOCKS; ++b) {
        const double from_mean = s->means[b * d + x] - mean[x];
        between += from_mean * from_mean;
      }
      const int64_t g = x / GROUP_COLUMNS;
      variance[g] += between / (double)(REGION_BLOCKS * group_columns(d, g));
    }
  }
}

/* ---- SEL-4 ---- */

/* The mean of the queries at positions [first, last] becomes s->query; `size`: rows of a pool that is not cut short. */
static void pool_queries(struct headwater_session* s, const struct layer* layer, const headwater_rows* q,
                         int64_t head, int64_t first, int64_t last, int64_t size) {
  for (int64_t x = 0; x < layer->d; ++x) {
    double sum = 0.0;
    for (int64_t i = first; i <= last; ++i) {
      sum += load_element(q->data, q->type, (i - s->tokens) * q->row_stride + head * q->head_stride + x);
    }
    s->query[x] = sum / (double)(FAULT(short_pool_by_whole_size) ? size : last - first + 1);
  }
}

/* ---- SEL-5, SEL-6 ---- */

/* Of `count` summaries from `first` on, each of `keys` keys, on those that are searched. */
static void vote_for_summaries(struct headwater_session* s, const struct layer* layer, int64_t head,
                               int64_t last, int64_t first, int64_t count, int64_t keys, float* votes) {
  const int64_t d = layer->d;
  const double scale = layer->scale;
  double most = -(double)INFINITY;
  for (int64_t b = 0; b < count; ++b) {
    if (!s->searched[first + b]) continue;
    double linear = 0.0;
    double square = 0.0;
    for (int64_t x = 0; x < d; ++x) {
      linear += s->query[x] * s->means[(first + b) * d + x];
      square += s->query[x] * s->query[x] * s->variances[(first + b) * d + x / GROUP_COLUMNS];
    }
    const double e =
        cap_and_bias(s, layer, head, scale * linear + scale * scale / 2.0 * square, last, (b + 1) * keys - 1);
    s->estimates[b] = isnan(e) ? -(double)INFINITY : e;
    if (s->estimates[b] > most) most = s->estimates[b];
  }
  for (int64_t b = 0; b < count; ++b) {
    if (!s->searched[first + b]) continue;
    const double e = s->estimates[b];
    const float vote = (float)(e == most ? 0.0 : e - most); /* infinity less itself would be NaN */
    if (vote > votes[b]) votes[b] = vote;
  }
}

/* ---- SEL-7 ---- */

static void vote_for_tokens(struct headwater_session* s, const struct layer* layer, int64_t head,
                            int64_t last, int64_t tokens, float* votes) {
  double m = -(double)INFINITY;
  for (int64_t j = 0; j < tokens; ++j) {
    s->logits[j] = logit(s, layer, head, last, s->kept[j]);
    if (s->logits[j] > m) m = s->logits[j];
  }
  double l = 0.0;
  for (int64_t j = 0; j < tokens; ++j) {
    s->logits[j] = exp(s->logits[j] - m);
    l += s->logits[j];
  }
  for (int64_t j = 0; j < tokens; ++j) {
    const float weight = (float)(s->logits[j] / l);
    if (weight > votes[j]) votes[j] = weight; /* NaN counts 0 */
  }
}

/* ---- a chunk ---- */

/* Calls for every pool, of so many rows, of a query block and every query head of a key/value head. */
typedef void (*vote_function)(struct headwater_session* s, const struct layer* layer, int64_t head,
                              int64_t last, int64_t count, float* votes);

static void block_stage(struct headwater_session* s, const struct layer* layer, int64_t head, int64_t last,
                        int64_t count, float* votes) {
  vote_for_summaries(s, layer, head, last, 0, count, s->options.key_block, votes);
}

static void region_stage(struct headwater_session* s, const struct layer* layer, int64_t head, int64_t last,
                         int64_t count, float* votes) {
  vote_for_summaries(s, layer, head, last, s->first_region, count, REGION_BLOCKS * s->options.key_block,
                     votes);
}

static void each_pool(struct headwater_session* s, const struct layer* layer, const headwater_rows* q,
                      int64_t head_kv, int64_t begin, int64_t end, int64_t size, vote_function vote,
                      int64_t count, float* votes) {
  const int64_t group = s->shape.n_head / s->shape.n_head_kv;
  for (int64_t h = head_kv * group; h < (head_kv + 1) * group; ++h) {
    for (int64_t first = begin; first < end; first += size) {
      const int64_t last = smaller(first + size, end) - 1;
      pool_queries(s, layer, q, h, first, last, size);
      vote(s, layer, h, last, count, votes);
    }
  }
}

/* SEL-12: which candidates are searched. */
static void choose_searched(struct headwater_session* s, const struct layer* layer, const headwater_rows* q,
                            int64_t head_kv, int64_t begin, int64_t end, int64_t candidates) {
  for (int64_t b = 0; b < candidates; ++b) s->searched[b] = true;
  if (candidates <= MOST_ESTIMATED) return;
  const int64_t regions = candidates / REGION_BLOCKS;
  for (int64_t r = 0; r < regions; ++r) {
    s->searched[s->first_region + r] = true;
    s->region_votes[r] = -INFINITY;
  }
  each_pool(s, layer, q, head_kv, begin, end, s->options.pool, region_stage, regions, s->region_votes);
  const int64_t eighth = 8 * s->options.key_block;
  const int64_t most = larger(LEAST_SEARCHED, (s->options.refine * s->options.heavy + eighth - 1) / eighth);
  const int64_t count = smaller(most, regions);
  choose(s, s->region_votes, regions, count, 0, s->kept_blocks);
  for (int64_t b = 0; b < regions * REGION_BLOCKS; ++b) s->searched[b] = false;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t b = 0; b < REGION_BLOCKS; ++b) s->searched[s->kept_blocks[i] * REGION_BLOCKS + b] = true;
  }
}

static void choose_set(struct headwater_session* s, const struct layer* layer, const headwater_rows* q,
                       int64_t head_kv, int64_t index, headwater_chunk chunk, struct block_sizes sizes) {
  const headwater_effective_options* o = &s->options;
  const int64_t set_index = head_kv * sizes.query_blocks + index;
  const int64_t begin = chunk.begin + index * o->query_block;
  const int64_t end = smaller(begin + o->query_block, chunk.end);
  int32_t* set = s->sets + set_index * s->width;
  int64_t entries = 0;
  if (sizes.candidates > 0) {
    float* block_votes = s->block_votes + set_index * sizes.candidates;
    for (int64_t b = 0; b < sizes.candidates; ++b) block_votes[b] = -INFINITY;
    choose_searched(s, layer, q, head_kv, begin, end, sizes.candidates);
    each_pool(s, layer, q, head_kv, begin, end, o->pool, block_stage, sizes.candidates, block_votes);
    choose(s, block_votes, sizes.candidates, sizes.kept, o->pinned / o->key_block, s->kept_blocks);
    for (int64_t i = 0; i < sizes.kept * o->key_block; ++i) {
      s->kept[i] = (int32_t)(s->kept_blocks[i / o->key_block] * o->key_block + i % o->key_block);
    }
    entries = sizes.kept * o->key_block;
    if (sizes.voted_tokens > 0) {
      float* token_votes = s->token_votes + set_index * sizes.voted_tokens;
      for (int64_t j = 0; j < entries; ++j) token_votes[j] = 0.0f;
      each_pool(s, layer, q, head_kv, begin, end, (o->pool + 1) / 2, vote_for_tokens, entries, token_votes);
      /* The tokens of pinned blocks are the first. */
      const int64_t pinned = FAULT(pinned_tokens_by_votes) ? 0 : o->pinned;
      choose(s, token_votes, entries, o->heavy, pinned, set);
      for (int64_t i = 0; i < o->heavy; ++i) set[i] = s->kept[set[i]];
      entries = o->heavy;
    } else {
      for (int64_t i = 0; i < entries; ++i) set[i] = s->kept[i];
    }
  }
  for (int64_t p = sizes.local_begin; p < chunk.begin; ++p) set[entries++] = (int32_t)p;
  for (; entries < s->width; ++entries) set[entries] = -1;
}

void choose_sets(struct headwater_session* s, const struct layer* layer, const headwater_rows* q,
                 headwater_chunk chunk, struct block_sizes sizes) {
  for (int64_t g = 0; g < s->shape.n_head_kv; ++g) {
    summarise(s, layer, g, sizes.candidates);
    if (sizes.candidates > MOST_ESTIMATED) summarise_regions(s, layer->d, sizes.candidates / REGION_BLOCKS);
    for (int64_t index = 0; index < sizes.query_blocks; ++index) {
      choose_set(s, layer, q, g, index, chunk, sizes);
    }
  }
}
