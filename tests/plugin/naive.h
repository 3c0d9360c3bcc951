#ifndef NAIVE_H_
#define NAIVE_H_

/*
 * The engine "naive-c": docs/spec.md in plain C11, one query row after another, double inside, one thread. It is the
 * sample to copy for an engine of your own, and what the kit's plug-in tests run.
 *
 *   numbers.c    F32, F16 and BF16 (NUM-1, SCORE-4)
 *   config.c     what is allowed, and what is used (CFG-1 .. CFG-5, SEL-1, LAYER-1)
 *   rows.c       stored rows, and rows of the caller (STATE-6, ROWS-1)
 *   attention.c  plan, memory sets, softmax, scores (PLAN, MEM, INTRA, INTER, FUSE, DEC)
 *   blocks.c     memory sets that the queries choose (SEL)
 *   undo.c       steps that are taken back (STATE-8 .. STATE-10)
 *   session.c    the state machine (STATE), inspection, and the table that the kit loads
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "headwater/plugin.h"
#include "tests/plugin/faults.h"

/* What a session keeps of one layer (STATE-6, SCORE-1, MEM-4). Head-major: row p of head h is row h * capacity + p. */
struct layer {
  unsigned char* keys;   /* [Hkv][capacity][d] of the KV type; nothing where the caller keeps the rows */
  unsigned char* values; /* [Hkv][capacity][dv] */
  void* scores;          /* [Hq][capacity] uint16_t or float */
  int32_t* memory;       /* [Hq][width], -1 after the count */
  int64_t memory_count;  /* entries of every head's set */
  int64_t memory_end;    /* tokens that there were when it was built */
  bool attended;         /* in the open step */
  bool dense;            /* STATE-7, MASK-2 */
  int64_t window;        /* MASK-2; 0: all keys */
  double scale, softcap; /* LOGIT-1, LOGIT-2 */
  const float* sinks;    /* [Hq] LOGIT-4; -inf: none */
  int64_t d, dv;         /* LAYER-1 */
};

enum progress { STEP_IDLE, STEP_OPEN, STEP_FAILED };

/* A step that is stored or open: tokens [base, base + n). */
struct step {
  int64_t base, n;
  int64_t turn_length;
  int32_t state; /* after it, STATE-1 */
  int32_t mode;  /* HEADWATER_CHUNK_... of the turn or step */
};

/* What a copy keeps of a layer beside scores and sets. */
struct saved_layer {
  int64_t memory_count, memory_end;
};

enum { MOST_BLOCKS = 40 };

struct headwater_session {
  headwater_shape shape;
  headwater_effective_options options;
  int64_t most_d, most_dv; /* of any layer (LAYER-1) */
  int64_t all_d, all_dv;   /* of all layers, added up */

  /* All memory, in the order in which it was taken. */
  void* blocks[MOST_BLOCKS];
  size_t block_bytes[MOST_BLOCKS];
  int block_count;
  /* Those of all layers; each layer has its part of them. */
  unsigned char* keys;
  unsigned char* values;
  unsigned char* scores;
  int32_t* memory;
  float* sinks;

  bool has_alibi;
  float* alibi; /* [Hq] */
  char warnings[2][160];
  int64_t warning_count;

  struct layer* layers;
  int64_t width; /* min(M, capacity): entries of a stored set */

  enum progress progress;
  int64_t tokens;     /* of finished steps */
  int64_t n;          /* of the open step */
  struct step* steps; /* [capacity], the open one is the last */
  int64_t step_count;

  /* Copies of all layers: 2 * copies of them before chunks, the last one before the open step. */
  int64_t copies;                   /* min(E, capacity) sparse chunks can be taken back (STATE-10) */
  int64_t copies_kept;              /* of stored chunks */
  int64_t copies_made;              /* by the open step: its last chunks */
  int64_t* copy_order;              /* [2 * copies] numbers of the copies: kept ones, made ones, the others */
  unsigned char* saved_scores;      /* [2 * copies + 1][n_layer][Hq][capacity] */
  int32_t* saved_sets;              /* [2 * copies + 1][n_layer][Hq][width] */
  struct saved_layer* saved_layers; /* [2 * copies + 1][n_layer] */

  headwater_stored_rows stored; /* of the attend_stored() that runs */
  headwater_observer observer;
  void* user;
  headwater_interrupt interrupt;
  void* interrupt_user;

  /* Workspace, taken by open(): nothing is allocated afterwards (NUM-4). */
  double* logits;      /* [capacity], of one query */
  double* query;       /* [most_d] */
  double* intra_o;     /* [most_dv] */
  double* inter_o;     /* [most_dv] */
  double* intra_sums;  /* [longest sparse chunk] */
  double* inter_sums;  /* [width] */
  int32_t* candidates; /* [capacity] */
  float* colsum_intra; /* [Hq][capacity] */
  float* colsum_inter; /* [Hq][width] */
  float* lse;          /* [Hq][capacity] */

  /* Of one chunk under rule BLOCKS. */
  int32_t* sets;        /* [Hkv][query blocks][width] */
  float* block_votes;   /* [Hkv][query blocks][candidates] */
  float* token_votes;   /* [Hkv][query blocks][voted tokens] */
  double* means;        /* [first_region + regions][d], of one key/value head */
  double* variances;    /* the same; of column groups, the first of each row */
  int64_t first_region; /* candidates that fit: the summaries of regions follow theirs */
  float* region_votes;  /* [regions], of one query block */
  bool* searched;       /* [first_region + regions], of one query block */
  double* estimates;    /* [candidates] */
  int32_t* kept_blocks; /* [candidates] */
  int32_t* kept;        /* [capacity] tokens of the kept blocks */
  headwater_memory_bytes bytes;

  /* Not for copying: read by faults only. */
  int opened; /* sessions before this one */
  int32_t threads_asked;
  const float* their_sinks;
  const headwater_layer_options* their_layers;
};

/* One attend(). */
struct call {
  int64_t layer;
  const headwater_rows* q; /* q and out NULL: rows alone (DEC-2) */
  const headwater_rows *k, *v;
  const headwater_stored_rows* stored; /* in place of k and v (ROWS-1) */
  const headwater_mutable_rows* out;
  const headwater_lse_output* lse; /* or NULL */
};

/* ---- numbers.c ---- */

size_t element_size(int32_t type);
/* Element `index` of an array, widened exactly; and the same rounded once to nearest even. */
double load_element(const void* data, int32_t type, int64_t index);
void store_element(void* data, int32_t type, int64_t index, double value);
/* SCORE-4 for the type of the scores. */
float load_score(const struct headwater_session* s, const struct layer* layer, int64_t head,
                 int64_t position);
void store_score(const struct headwater_session* s, struct layer* layer, int64_t head, int64_t position,
                 float value);

/* ---- config.c ---- */

/* Remembers one line for last_error() and returns `status`. */
#ifdef __GNUC__
__attribute__((format(printf, 2, 3))) /* compilers check the arguments */
#endif
headwater_status
fail(headwater_status status, const char* format, ...);
const char* last_error(void);
headwater_status check_range(const char* field, int64_t value, int64_t least, int64_t most);
/* CFG-1: HEADWATER_OK, or what is wrong. */
headwater_status check_config(const headwater_shape* shape, const headwater_options* options);
/* CFG-2 .. CFG-5: fills s->options and the warnings. */
headwater_status resolve_options(struct headwater_session* s, const headwater_options* asked);
/* LAYER-1: adds up the widths of the layers. */
void add_up_widths(struct headwater_session* s, const headwater_options* asked);
/* LAYER-1, STATE-7: fills what each layer has of its own. */
void resolve_layers(struct headwater_session* s, const headwater_options* asked);

/* ---- rows.c ---- */

/* The key or value row of a key/value head at a position. */
const void* stored_row(const struct headwater_session* s, const struct layer* layer, bool key,
                       int64_t head_kv, int64_t position);
/* Stores the rows of the open step, rounded once. */
void store_rows(const struct headwater_session* s, struct layer* layer, const headwater_rows* k,
                const headwater_rows* v);
/* ROWS-1: HEADWATER_OK, or what is wrong with rows for the open step. */
headwater_status check_stored(const struct headwater_session* s, const headwater_stored_rows* rows);

/* ---- attention.c ---- */

/* Chunk `index` of a step (PLAN-1); false where there is none. */
bool step_chunk(const struct headwater_session* s, const struct step* step, int64_t index,
                headwater_chunk* chunk);
/* Attention of one layer over the open step. False where the interrupt stopped it. */
bool attend_layer(struct headwater_session* s, struct call call);
/* MEM-3, MEM-7: whether (score a, position p) ranks before (score b, position q), where positions below `pinned` do first
 * of all. */
bool ranks_before(float a, int32_t p, float b, int32_t q, int64_t pinned);
/* LOGIT-1 .. LOGIT-3 of s->query at position i and the stored key j; and the last two alone. */
double logit(const struct headwater_session* s, const struct layer* layer, int64_t head, int64_t i,
             int64_t j);
double cap_and_bias(const struct headwater_session* s, const struct layer* layer, int64_t head, double value,
                    int64_t i, int64_t j);

/* ---- undo.c ---- */

/* The open or last step; there must be one. */
static inline struct step* last_step(const struct headwater_session* s) {
  return &s->steps[s->step_count - 1];
}
/* When a step opens, before chunk `index` of it changes a layer, and when it ends. */
void begin_undo(struct headwater_session* s);
void save_before_chunk(struct headwater_session* s, int64_t layer, int64_t index);
void end_undo(struct headwater_session* s);
/* STATE-8: takes the open step back. */
void undo_step(struct headwater_session* s);
/* STATE-9 for 0 < n <= tokens and no open step: HEADWATER_OK, or which n are allowed (STATE-10). */
headwater_status undo_tokens(struct headwater_session* s, int64_t n);

/* ---- blocks.c ---- */

enum { REGION_BLOCKS = 32 }; /* SEL-12 */

/* Counts of a sparse chunk under rule BLOCKS. */
struct block_sizes {
  int64_t local_begin;  /* first position of Local */
  int64_t candidates;   /* key blocks that are voted on */
  int64_t kept;         /* of them after the first stage */
  int64_t voted_tokens; /* 0: no second stage */
  int64_t memory;       /* entries of a set */
  int64_t query_blocks;
};
struct block_sizes blocks_of(const struct headwater_session* s, headwater_chunk chunk);
/* Fills s->sets, s->block_votes and s->token_votes for a chunk. */
void choose_sets(struct headwater_session* s, const struct layer* layer, const headwater_rows* q,
                 headwater_chunk chunk, struct block_sizes sizes);

#endif
