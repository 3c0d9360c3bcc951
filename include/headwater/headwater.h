#ifndef HEADWATER_HEADWATER_H_
#define HEADWATER_HEADWATER_H_

/*
 * Headwater's C ABI (C11 and C++). Chunked sparse prefill attention with H2O heavy hitters; the contract is
 * docs/spec.md, whose clause ids stand in the comments.
 *
 * A session holds the K and V rows of all layers of one conversation. A step is headwater_begin_prefill() or
 * headwater_begin_decode(), then headwater_attend() once for each layer, then headwater_end().
 *
 * Errors. A function that returns headwater_status returns HEADWATER_OK (0) or one of the codes below;
 * headwater_last_error() then holds one line that says what, where, and what is allowed. A NULL where a pointer is
 * needed is HEADWATER_INVALID_ARGUMENT. No C++ exception leaves the library; it never prints and never aborts.
 *
 * A call that returns another code than HEADWATER_OK leaves the session as it was, unless headwater_session_failed()
 * says otherwise: then the open step has failed and only headwater_abort() and headwater_reset() are legal (STATE-5).
 * Two things fail a step, and nothing else does: breaking its protocol (HEADWATER_WRONG_STATE of a step function while
 * it is open), and a headwater_attend() that cannot finish (HEADWATER_OUT_OF_MEMORY, HEADWATER_INTERNAL,
 * HEADWATER_INTERRUPTED). A refused argument never does.
 *
 * Threads. A session is used by one thread at a time; different sessions are independent. All other functions
 * may be called by any thread at any time.
 *
 * Ownership. The library copies what it keeps; a pointer that is handed in must stay valid until the call
 * returns. A pointer that is handed out belongs to the library; how long it lives is said at each function.
 *
 * Growth. HEADWATER_ABI_VERSION changes when something existing changes its meaning. New fields are appended
 * to the structures that travel with their size, so a program built with an older or newer header of the same
 * version keeps working.
 */

#include <stddef.h>
#include <stdint.h>

#include "headwater/export.h"
#include "headwater/version.h" /* HEADWATER_VERSION, HEADWATER_VERSION_MAJOR, _MINOR and _PATCH */

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Versions ---- */

#define HEADWATER_ABI_VERSION 1

/* The HEADWATER_ABI_VERSION that the library was built with; compare it with the header's. */
HEADWATER_API int32_t headwater_abi_version(void);

/* HEADWATER_VERSION of the library that runs, "major.minor.patch". Lives as long as the program. */
HEADWATER_API const char* headwater_version(void);

/* ---- Errors ---- */

typedef int32_t headwater_status;
enum {
  HEADWATER_OK = 0,
  HEADWATER_INVALID_ARGUMENT = 1,   /* a value or pointer is not allowed; nothing was changed */
  HEADWATER_WRONG_STATE = 2,        /* the call is not legal now (STATE-1..5); fails the step that is open */
  HEADWATER_CAPACITY_EXCEEDED = 3,  /* more tokens than the shape's capacity; nothing was written (STATE-5) */
  HEADWATER_ENGINE_UNAVAILABLE = 4, /* no such engine, or this machine lacks what it needs */
  HEADWATER_OUT_OF_MEMORY = 5,      /* the memory could not be had */
  HEADWATER_INTERNAL = 6,           /* a broken invariant of the library: please report it */
  HEADWATER_INTERRUPTED = 7,        /* the interrupt asked headwater_attend() to stop (INTR-1) */
  HEADWATER_UNSUPPORTED = 8         /* this engine does not offer the call or the option */
};

/* "invalid_argument" for HEADWATER_INVALID_ARGUMENT and so on; "unknown" for any other number. Never NULL,
 * lives as long as the program. */
HEADWATER_API const char* headwater_status_name(headwater_status status);

/* What went wrong in this thread's latest call that returned a status (or a NULL where it promises a text): one
 * line without a newline, "" after a success. Never NULL. Valid until the next such call in this thread. */
HEADWATER_API const char* headwater_last_error(void);

/* ---- Engines ---- */

/* Number of engines in this library, the preferred ones last; some may be unavailable on this machine. */
HEADWATER_API int32_t headwater_engine_count(void);

/* Of engine `index` (0 .. count - 1): its name ("cpu-portable"), its instruction set ("x86-64-v2"), one line
 * about it, and why this machine cannot run it ("" where it can). They live as long as the program. NULL for
 * an index out of range (headwater_last_error() says so). */
HEADWATER_API const char* headwater_engine_name(int32_t index);
HEADWATER_API const char* headwater_engine_isa(int32_t index);
HEADWATER_API const char* headwater_engine_description(int32_t index);
HEADWATER_API const char* headwater_engine_unavailable_because(int32_t index);

/* ---- Opening a session ---- */

/* Element types (NUM-1). F16 is IEEE binary16, BF16 the upper half of an IEEE binary32. */
enum { HEADWATER_F32 = 0, HEADWATER_F16 = 1, HEADWATER_BF16 = 2 };

/* Which tokens a memory set holds: the newest ones and those with the largest accumulated column sums, a set per chunk
 * (MEM); the newest ones and those that the queries of a query block vote for (SEL); the same, of votes on single tokens by
 * sketches of the keys, and no more than count (SKE). */
enum { HEADWATER_SELECT_H2O = 0, HEADWATER_SELECT_BLOCKS = 1, HEADWATER_SELECT_SKETCHES = 2 };

/* Storage of the heavy-hitter scores (SCORE-1, SCORE-5). */
enum { HEADWATER_SCORE_BF16 = 0, HEADWATER_SCORE_F32 = 1 };

/* SCHED-1 and SCHED-2. */
enum { HEADWATER_LAYER_MAJOR = 0, HEADWATER_CHUNK_MAJOR = 1 };

/* Who keeps the K and V rows of a session: the session, which stores those of each step; the caller, who gives those of all
 * tokens to headwater_attend_stored() (ROWS-1). */
enum { HEADWATER_KV_OF_SESSION = 0, HEADWATER_KV_OF_CALLER = 1 };

/* Memory of the rows that are given to headwater_attend(): the host's, or that of the engine's device. */
enum { HEADWATER_HOST_MEMORY = 0, HEADWATER_DEVICE_MEMORY = 1 };

/* Sizes of a session (CFG-1). This structure does not grow. */
typedef struct headwater_shape {
  int64_t n_layer;   /* layers, 1 .. 65536 */
  int64_t n_head;    /* Hq, query heads, 1 .. 65536 */
  int64_t n_head_kv; /* Hkv, key/value heads; divides n_head */
  int64_t d_head;    /* d, elements of a query or key row, 1 .. 65536 */
  int64_t d_value;   /* dv, elements of a value row, 1 .. 65536 */
  int64_t capacity;  /* most tokens that the session can hold, 1 .. 2^31 - 1 */
  int32_t kv_type;   /* HEADWATER_F32, _F16 or _BF16: type of the stored K and V rows (STATE-6) */
  int32_t reserved;  /* 0 */
} headwater_shape;

/* Threads of the host (HOST-1): calls body(argument, index) once for each index 0 .. n - 1, on threads of its choice, at
 * once or one after the other, and returns when all of them have returned. n is at most the session's threads. The bodies
 * return (no longjmp, no C++ exception) and never wait for each other. */
typedef void (*headwater_parallel_body)(void* argument, int64_t index);
typedef void (*headwater_parallel_for)(void* context, int64_t n, headwater_parallel_body body,
                                       void* argument);

/* Memory of the host (HOST-2): a block of `bytes` bytes, at least 1, on a multiple of `alignment`, a power of two, or NULL
 * where there is none; and back, each block once, with the same numbers. They are called on the threads of the calls that
 * take memory or close a session: several at a time where forks are on several threads. They return (no longjmp, no C++
 * exception) and call nothing of the session. */
typedef void* (*headwater_allocate)(void* context, size_t bytes, size_t alignment);
typedef void (*headwater_release)(void* context, void* block, size_t bytes, size_t alignment);

/* What one layer has of its own (LAYER-1). */
typedef struct headwater_layer_options {
  int64_t
      window; /* w, keys that a token sees, itself among them (MASK-2); such a layer is never sparse. 0: all */
  double scale;       /* LOGIT-1; NaN: the session's */
  double softcap;     /* LOGIT-2; NaN: the session's */
  const float* sinks; /* LOGIT-4: n_head logits, each finite or -inf (none); NULL: the session's */
  int64_t d_head;     /* width of a query or key row, 1 .. 65536; 0: the shape's */
  int64_t d_value;    /* width of a value row, 1 .. 65536; 0: the shape's */
} headwater_layer_options;

/* Options of a session. Always fill them with headwater_options_init() first. */
typedef struct headwater_options {
  size_t struct_size; /* sizeof(headwater_options) of the caller, set by headwater_options_init() */
  int64_t batch;      /* B, logical batch in tokens, >= 1; default 4096 (CFG-4) */
  int64_t chunk;      /* S, tokens with full causal attention among themselves, >= 1; default 1024 */
  int64_t local;      /* L, newest tokens always in the memory set, >= 0; default 256 */
  int64_t heavy;      /* H, tokens kept because of their score or votes, >= 0; default 256 */
  int32_t clamp;      /* 1 (default): CFG-3 clamps local and heavy; 0: it does not */
  int32_t dense;      /* 1: dense causal attention (CFG-2); default 0 */
  double scale;       /* LOGIT-1, finite; NaN (default) means 1 / sqrt(d_head) */
  double softcap;     /* LOGIT-2, finite, >= 0; 0 (default) is none */
  const float* sinks; /* LOGIT-4: NULL (default) or n_head logits, each finite or -inf; copied by open */
  const float* alibi; /* LOGIT-3: NULL (default) or n_head finite slopes; copied by open */
  int32_t score_type; /* HEADWATER_SCORE_BF16 (default) or HEADWATER_SCORE_F32 */
  int32_t schedule;   /* HEADWATER_LAYER_MAJOR (default) or HEADWATER_CHUNK_MAJOR */
  int32_t threads;    /* 0 (default): what OpenMP would use; else 1 .. 512 */
  int32_t reserved;   /* 0 */
  int32_t row_memory; /* HEADWATER_HOST_MEMORY (default) or HEADWATER_DEVICE_MEMORY: of q, k, v and out */
  int32_t reserved2;  /* 0 */
  /* Device rows: the caller's cudaStream_t, one of the session's device, NULL (default) for its default stream; it must
   * outlive the session. Host rows: NULL. While it is being captured (cudaStreamBeginCapture), headwater_open(),
   * headwater_attend(), headwater_reset() and what reads scores, memory sets and rows are invalid_argument, enqueue nothing
   * and leave session and capture as they were; the session must not be closed then. */
  void* stream;
  /* 1 + the ordinal of the device, 1 .. devices of the machine; 0 (default): the calling thread's current one when the
   * session is opened. No call changes the current device. Engines without devices: 0. */
  int32_t device_plus_1;
  int32_t reserved3; /* 0 */
  int32_t select; /* HEADWATER_SELECT_H2O (default), HEADWATER_SELECT_BLOCKS or HEADWATER_SELECT_SKETCHES */
  int32_t reserved4; /* 0 */
  /* Sizes of rule BLOCKS (SEL-1); not read with any other. */
  int64_t key_block;   /* K, keys of a key block, 1 .. 256 and at most S; divides H; default 8 */
  int64_t query_block; /* Q, rows of a query block, 1 .. S; default 32; of rule SKETCHES, too */
  int64_t pool;        /* P, rows of a pool, half as many for tokens (SEL-4); divides Q; default 4 */
  int64_t refine;      /* R, 1: blocks alone; 2 .. 16: tokens of R times as many blocks (SEL-7); default 2 */
  int64_t pinned;      /* A, first tokens kept among the heavy ones (MEM-7), 0 (default) .. heavy */
  int64_t dense_below; /* D, shorter turns are dense (STATE-3), 0 (default) .. 2^31 - 1 */
  /* Layers whose prefill is dense (STATE-7): NULL (default) or dense_layer_count layers, ascending, each once; copied by
   * open. */
  const int64_t* dense_layers;
  int64_t dense_layer_count; /* 0 (default) .. n_layer */
  int64_t
      checkpoints; /* rule H2O: how many of the last sparse chunks headwater_truncate() can take back (STATE-10),
                        * 0 (default) .. 65536; each costs 12 bytes (F32 scores: 16) an entry of every set */
  headwater_parallel_for parallel_for; /* in place of OpenMP's threads (HOST-1); NULL (default): OpenMP's */
  void* parallel_context;              /* handed back to it; both must outlive the session */
  int32_t kv_owner;                    /* HEADWATER_KV_OF_SESSION (default) or HEADWATER_KV_OF_CALLER */
  int32_t reserved5;                   /* 0 */
  /* LAYER-1: NULL (default) or layer_count = n_layer entries of layer_size = sizeof(headwater_layer_options) bytes of the
   * caller; copied by open. */
  const headwater_layer_options* layers;
  int64_t layer_count;
  size_t layer_size;
  int64_t page; /* tokens of a page of the session's own rows, a multiple of 256; default 4096, and so is 0 */
  /* Memory of the host for all that headwater_memory_bytes counts, of the session and its forks, in place of the library's
   * own (HOST-2): both or NULL (default). They and their context outlive session and forks. */
  headwater_allocate allocate;
  headwater_release release;
  void* allocator_context; /* handed back to them */
  /* Rule SKETCHES: W, least weight of a token that a set takes, relative to what its row has without it, 0 (none) <= W < 1;
   * default 0.0005, also where struct_size ends before it (SKE-7). */
  double least_weight;
  /* Bits of an element of the session's own rows: 0 (default), those of the KV type, or 8, integers with a scale for 32
   * elements; then d and dv of every layer are multiples of 32 (STATE-13). */
  int64_t kv_bits;
} headwater_options;

/* Fills *options with the defaults. struct_size is the caller's sizeof(headwater_options): no byte after it
 * is written. Errors: invalid_argument (NULL; struct_size below that of HEADWATER_ABI_VERSION 1). */
HEADWATER_API headwater_status headwater_options_init(headwater_options* options, size_t struct_size);

/* How close a sparse prefill stays to dense attention (docs/quality.md): the least time; what `headwater generate` does;
 * dense attention. */
enum { HEADWATER_QUALITY_FAST = 0, HEADWATER_QUALITY_BALANCED = 1, HEADWATER_QUALITY_EXACT = 2 };

/* As headwater_options_init(), with options that were measured on real models: rule SKETCHES (balanced) or BLOCKS (fast)
 * with pinned first tokens, or dense attention. engine: as headwater_open(); one that lacks the rule gets the defaults of
 * headwater_options_init(). Errors: also those of headwater_open() for the engine; invalid_argument (quality). */
HEADWATER_API headwater_status headwater_options_preset(const char* engine, int32_t quality,
                                                        headwater_options* options, size_t struct_size);

typedef struct headwater_session headwater_session; /* opaque */

/* Opens an empty session and takes all its memory. engine: a name, or NULL or "" for the environment's
 * HEADWATER_ENGINE, "cpu" where that is not set. options: NULL means the defaults. *session is set to NULL on
 * error. Errors: invalid_argument (field, value and what is allowed; a field of a newer header that this
 * library does not know and that is not zero), engine_unavailable (lists what there is), out_of_memory. */
HEADWATER_API headwater_status headwater_open(const char* engine, const headwater_shape* shape,
                                              const headwater_options* options, headwater_session** session);

/* Gives back the session's memory. NULL is allowed. */
HEADWATER_API void headwater_close(headwater_session* session);

/* ---- Steps ---- */

/* n x heads rows: row t of head h begins t * row_stride + h * head_stride elements after data; the elements
 * of a row are contiguous. Strides are in elements. No alignment is needed. A contiguous tensor [n, heads,
 * width] has row_stride = heads * width and head_stride = width; [heads, n, width] has width and n * width.
 */
typedef struct headwater_rows {
  const void* data;
  int64_t row_stride;
  int64_t head_stride;
  int32_t type;     /* HEADWATER_F32, _F16 or _BF16 */
  int32_t reserved; /* 0 */
} headwater_rows;

/* The same for rows that are written. Elements between the rows are never touched. */
typedef struct headwater_mutable_rows {
  void* data;
  int64_t row_stride;
  int64_t head_stride;
  int32_t type;
  int32_t reserved;
} headwater_mutable_rows;

/* Opens a prefill call of n >= 1 tokens (STATE-1, STATE-2). turn_length: the length in tokens of the whole
 * turn that this call opens (STATE-3), or 0 for n; 0 or the same length in the calls that continue the turn.
 * Errors: invalid_argument, capacity_exceeded, wrong_state. */
HEADWATER_API headwater_status headwater_begin_prefill(headwater_session* session, int64_t n,
                                                       int64_t turn_length);

/* Opens a decode step of n >= 1 tokens (DEC-1). Errors: the same. */
HEADWATER_API headwater_status headwater_begin_decode(headwater_session* session, int64_t n);

/* Attention of one layer (0 .. n_layer - 1, each once a step, in any order) over the n tokens of the open
 * step. q: n x Hq rows of d elements; k: n x Hkv rows of d; v: n x Hkv rows of dv; all rotated already
 * (ROPE-4). out: n x Hq rows of dv, rounded once to its type; must not overlap the inputs. Rows in device memory
 * (options.row_memory) begin on multiples of their element's size; the call then returns when its work is enqueued on
 * options.stream: the inputs must stay as they are, and out is there, when the stream has got so far, and a fault of the
 * device may be reported by a later call. Errors: invalid_argument (memory of the other kind among them); wrong_state
 * (no open step; layer twice, which fails the step); out_of_memory, internal, interrupted, which fail it.
 * In a decode step q and out may both be NULL, here and in the calls below: the rows are stored and nothing else is done
 * (DEC-2), so that a prefix computed elsewhere becomes part of the session. Errors: unsupported. */
HEADWATER_API headwater_status headwater_attend(headwater_session* session, int64_t layer,
                                                const headwater_rows* q, const headwater_rows* k,
                                                const headwater_rows* v, const headwater_mutable_rows* out);

/* Where headwater_attend_lse() writes log-sum-exps: entry t * row_stride + h * head_stride for row t of query head h. A
 * contiguous tensor [n, Hq] has row_stride = Hq and head_stride = 1. */
typedef struct headwater_lse_output {
  float* data;
  int64_t row_stride;
  int64_t head_stride;
} headwater_lse_output;

/* headwater_attend() that also writes the log-sum-exp of each of the n x Hq rows (LSE-1): m + ln l of all that the row
 * attended to, in natural units, the sink included; -infinity for a row that saw no key. So results over several key
 * sets can be merged (FUSE-1). Errors: the same; unsupported (then nothing was computed and the step goes on). */
HEADWATER_API headwater_status headwater_attend_lse(headwater_session* session, int64_t layer,
                                                    const headwater_rows* q, const headwater_rows* k,
                                                    const headwater_rows* v,
                                                    const headwater_mutable_rows* out,
                                                    const headwater_lse_output* lse);

/* K and V rows of one layer in the caller's memory (ROWS-1): those of positions 0 .. rows - 1, of shape.kv_type. All strides
 * count elements; the elements of a row are contiguous; no alignment is needed. A key row of head h at position p begins
 * p * key_row_stride + h * key_head_stride elements after keys, a value row likewise. With a block table position p is row
 * p % page_rows of page table[p / page_rows], and page b begins b * key_page_stride elements after keys. The pages of
 * the tokens stored and of those of the open step differ from each other. */
typedef struct headwater_stored_rows {
  size_t struct_size; /* sizeof(headwater_stored_rows) of the caller */
  const void* keys;
  const void* values;
  int64_t rows; /* readable positions; at least the tokens of the session and those of the open step */
  int64_t key_row_stride;
  int64_t key_head_stride;
  int64_t value_row_stride;
  int64_t value_head_stride;
  const int32_t* table; /* NULL: no pages, and what follows is not read */
  int64_t table_size;   /* entries; at least ceil(rows / page_rows) */
  int64_t page_rows;    /* >= 1 */
  int64_t pages;        /* entries of the table are 0 .. pages - 1 */
  int64_t key_page_stride;
  int64_t value_page_stride;
} headwater_stored_rows;

/* headwater_attend() of a session whose rows the caller keeps (options.kv_owner): `rows` holds K and V of all tokens, those
 * of the open step included. Rows of earlier tokens must hold what they held before, wherever they lie now. lse may be
 * NULL. Errors: those of headwater_attend(); unsupported. */
HEADWATER_API headwater_status headwater_attend_stored(headwater_session* session, int64_t layer,
                                                       const headwater_rows* q,
                                                       const headwater_stored_rows* rows,
                                                       const headwater_mutable_rows* out,
                                                       const headwater_lse_output* lse);

/* One call of headwater_attend_together(). */
typedef struct headwater_sequence_call {
  headwater_session* session; /* with an open step; each session at most once */
  int64_t layer;
  const headwater_rows* q;
  const headwater_rows* k; /* this and v: sessions that keep their rows */
  const headwater_rows* v;
  const headwater_stored_rows* stored; /* sessions whose rows are the caller's; else NULL */
  const headwater_mutable_rows* out;
  const headwater_lse_output* lse; /* NULL: not wanted */
} headwater_sequence_call;

/* headwater_attend() or headwater_attend_stored() of each of the `count` calls, which is what they compute, to the bit
 * (SEQ-1). call_size is the caller's sizeof(headwater_sequence_call). Sessions may be of different engines. Errors: those of
 * the calls, with the number of the call in front; invalid_argument (count not 1 .. 4096, one session twice). Where an
 * argument is refused, or a layer is attended twice, nothing was computed and all steps go on. Where a call cannot finish,
 * its step has failed; other calls are done, failed (headwater_session_failed()) or not begun. */
HEADWATER_API headwater_status headwater_attend_together(const headwater_sequence_call* calls, int64_t count,
                                                         size_t call_size);

/* Closes the step. Errors: wrong_state (no open step; a layer is missing, which fails the step). */
HEADWATER_API headwater_status headwater_end(headwater_session* session);

/* Back to an empty session. Legal in every state. Errors: invalid_argument (options.stream is being captured), internal. */
HEADWATER_API headwater_status headwater_reset(headwater_session* session);

/* Drops the open step, failed or not: the session is what it was before headwater_begin_...(), to the bit (STATE-8).
 * Errors: wrong_state (no open step), unsupported. */
HEADWATER_API headwater_status headwater_abort(headwater_session* session);

/* Keeps the first n tokens, 0 <= n <= headwater_session_tokens(): the session is, to the bit, one that was given these
 * tokens alone (STATE-9). With rule H2O not every n is possible (STATE-10, options.checkpoints). Errors: invalid_argument
 * (which n are allowed), wrong_state (a step is open; it stays open), unsupported. */
HEADWATER_API headwater_status headwater_truncate(headwater_session* session, int64_t n);

/* A second session that is equal to this one and goes on independently of it, to the bit (STATE-11). Stored rows are
 * shared; nothing else is taken before its first step. Observer and interrupt are not taken over; what options.stream,
 * parallel_for and parallel_context name is. Either may be used by another thread, and may be closed first. *forked is set
 * to NULL on error. Errors: wrong_state (a step is open; it stays open), out_of_memory, unsupported. */
HEADWATER_API headwater_status headwater_fork(headwater_session* session, headwater_session** forked);

/* Writes a session to a file, a safetensors file whose metadata name version, shape, options and `fingerprint`, a text of the
 * caller that says of which model the rows are (NULL: ""; at most 1024 bytes of printable ASCII) (STATE-12). The file is
 * there whole or not at all; one that exists is replaced. Errors: wrong_state (a step is open), invalid_argument,
 * internal (the file cannot be written), unsupported. */
HEADWATER_API headwater_status headwater_save(headwater_session* session, const char* path,
                                              const char* fingerprint);

/* headwater_open(), then the state of a file that headwater_save() wrote. Shape (the capacity apart, which must hold the
 * tokens), the options that results depend on, and fingerprint must be those of the file. *session is set to NULL on error.
 * Errors: those of headwater_open(); invalid_argument (no such file; damaged, foreign, of another version; another shape,
 * option or fingerprint), internal (it cannot be read), unsupported. */
HEADWATER_API headwater_status headwater_load(const char* engine, const headwater_shape* shape,
                                              const headwater_options* options, const char* path,
                                              const char* fingerprint, headwater_session** session);

/* ---- What a session holds ---- */

/* STATE-1. */
enum { HEADWATER_EMPTY = 0, HEADWATER_PREFILLING = 1, HEADWATER_DECODING = 2 };

/* How the tokens of a chunk attend: intra pass and memory set; a dense prefill call; a decode step. */
enum { HEADWATER_CHUNK_SPARSE = 0, HEADWATER_CHUNK_DENSE = 1, HEADWATER_CHUNK_DECODE = 2 };

/* HEADWATER_EMPTY, HEADWATER_PREFILLING or HEADWATER_DECODING. */
HEADWATER_API headwater_status headwater_session_state(const headwater_session* session, int32_t* state);

/* 1 where the open step has failed, so that only headwater_abort() and headwater_reset() are legal (STATE-5), else 0. */
HEADWATER_API headwater_status headwater_session_failed(const headwater_session* session, int32_t* failed);

/* Tokens stored, the open step not counted. */
HEADWATER_API headwater_status headwater_session_tokens(const headwater_session* session, int64_t* tokens);

/* The options after CFG-2 (sparse path off), CFG-3 (clamp) and CFG-4 (B >= S). */
typedef struct headwater_effective_options {
  int64_t batch;
  int64_t chunk;
  int64_t local;
  int64_t heavy; /* local + heavy = M, the most entries of a memory set */
  double scale;
  double softcap;
  int32_t sparse; /* 1 where local + heavy > 0 */
  int32_t score_type;
  int32_t schedule;
  int32_t threads;
  int32_t select;
  int32_t reserved;
  int64_t key_block; /* this and the next three: 0 with rule H2O; with rule SKETCHES, all but query_block */
  int64_t query_block;
  int64_t pool;
  int64_t refine;
  int64_t pinned;
  int64_t dense_below;
  int64_t checkpoints; /* 0 unless the session is sparse by rule H2O */
  int32_t kv_owner;
  int32_t reserved2;
  int64_t page;
  double least_weight; /* 0 with other rules than SKETCHES */
  int64_t kv_bits;
} headwater_effective_options;

/* Writes the effective options into struct_size bytes, the caller's sizeof(headwater_effective_options): what
 * this library does not know becomes 0, what the caller does not know is left out. Errors: invalid_argument
 * (NULL; struct_size below that of HEADWATER_ABI_VERSION 1). */
HEADWATER_API headwater_status headwater_session_options(const headwater_session* session,
                                                         headwater_effective_options* options,
                                                         size_t struct_size);

/* Warnings of CFG-3 and CFG-4: their number, and warning `index` (0 .. count - 1) as one line that lives
 * until headwater_close(). */
HEADWATER_API headwater_status headwater_warning_count(const headwater_session* session, int64_t* count);
HEADWATER_API headwater_status headwater_warning(const headwater_session* session, int64_t index,
                                                 const char** text);

/* Bytes that the session holds: taken by headwater_open(), and when a step begins where pages of rows or a fork's own part
 * are needed (NUM-4). What forks share counts in each of them. */
typedef struct headwater_memory_bytes {
  int64_t kv;          /* pages of stored K and V rows */
  int64_t scores;      /* heavy-hitter scores */
  int64_t memory_sets; /* memory sets and their column sums */
  int64_t workspace;   /* everything else */
} headwater_memory_bytes;

/* Writes struct_size bytes, the caller's sizeof(headwater_memory_bytes); see headwater_session_options(). */
HEADWATER_API headwater_status headwater_session_memory_bytes(const headwater_session* session,
                                                              headwater_memory_bytes* bytes,
                                                              size_t struct_size);

/* The memory that headwater_open() with these arguments will hold, without taking it (NUM-5), also where this machine has
 * less. *opened: what headwater_session_memory_bytes() will say of the open, empty session; *full: what it will say once the
 * session holds `capacity` tokens and has never been forked. struct_size: the caller's sizeof(headwater_memory_bytes), of
 * each. Errors: those of headwater_open(), with the same text; out_of_memory where 64 bits cannot count the bytes;
 * unsupported. Nothing is written then. */
HEADWATER_API headwater_status headwater_estimate(const char* engine, const headwater_shape* shape,
                                                  const headwater_options* options,
                                                  headwater_memory_bytes* opened,
                                                  headwater_memory_bytes* full, size_t struct_size);

/* Where the time of headwater_attend() went, in seconds by the wall since headwater_open() or the last
 * headwater_reset(): sums over the threads, divided by their number. -1 where the engine does not measure it. */
typedef struct headwater_stage_seconds {
  double selection; /* column sums of chunks added up, scores kept (SCORE), memory sets built (MEM) */
} headwater_stage_seconds;

/* Writes struct_size bytes, the caller's sizeof(headwater_stage_seconds); see headwater_session_options(). */
HEADWATER_API headwater_status headwater_session_stage_seconds(const headwater_session* session,
                                                               headwater_stage_seconds* seconds,
                                                               size_t struct_size);

/* Global positions [begin, end) that are processed together (PLAN-1). */
typedef struct headwater_chunk {
  int64_t begin;
  int64_t end;
  int32_t mode; /* HEADWATER_CHUNK_SPARSE, _DENSE or _DECODE */
  int32_t reserved;
} headwater_chunk;

/* Chunks of the open step, or of the last one when none is open: their number, and chunk `index`. */
HEADWATER_API headwater_status headwater_plan_count(const headwater_session* session, int64_t* count);
HEADWATER_API headwater_status headwater_plan_chunk(const headwater_session* session, int64_t index,
                                                    headwater_chunk* chunk);

/* Chunks of all steps since the session was empty, those of the open step included: their number, and chunk `index` with
 * the entries of the memory set that it reads, the same for every head and layer that is not dense (MEM-4, STATE-7). */
HEADWATER_API headwater_status headwater_session_chunk_count(const headwater_session* session,
                                                             int64_t* count);
HEADWATER_API headwater_status headwater_session_chunk(const headwater_session* session, int64_t index,
                                                       headwater_chunk* chunk, int64_t* memory_count);

/* Scores of a layer, head-major: the score of position p and query head h is entry h * head_stride + p, a
 * BF16 bit pattern (uint16_t) or a float by `type`. Valid, and changing with the session, until headwater_close(); after
 * headwater_abort() and headwater_truncate() it must be asked for anew. */
typedef struct headwater_score_view {
  const void* data;
  int64_t head_stride; /* entries; may be 0 where all scores are zero, as with any other rule than H2O */
  int32_t type;        /* HEADWATER_SCORE_BF16 or HEADWATER_SCORE_F32 */
  int32_t reserved;
} headwater_score_view;
HEADWATER_API headwater_status headwater_scores(const headwater_session* session, int64_t layer,
                                                headwater_score_view* view);

/* Copies the scores of positions [first, first + count) of one query head, widened exactly to floats.
 * Positions must lie below headwater_session_tokens(). `scores` may be NULL where count is 0. */
HEADWATER_API headwater_status headwater_copy_scores(const headwater_session* session, int64_t layer,
                                                     int64_t head, int64_t first, int64_t count,
                                                     float* scores);

/* The memory set that was built last in a layer (MEM-4): of query head h the `count` ascending positions
 * data[h * head_stride] .. , then -1 up to `width` entries. count is 0 until a set was built, and always with rules
 * BLOCKS and SKETCHES (SEL-9); data may be NULL where width is 0. It is valid as long as the view of scores. */
typedef struct headwater_memory_view {
  const int32_t* data;
  int64_t head_stride; /* entries */
  int64_t width;
  int64_t count;
} headwater_memory_view;
HEADWATER_API headwater_status headwater_memory(const headwater_session* session, int64_t layer,
                                                headwater_memory_view* view);

/* Copies a stored key row (width = d_head) or value row (width = d_value) of key/value head head_kv, widened
 * exactly to floats (STATE-6). Positions of the open step's attended layers included. */
HEADWATER_API headwater_status headwater_read_key(const headwater_session* session, int64_t layer,
                                                  int64_t head_kv, int64_t position, float* row,
                                                  int64_t width);
HEADWATER_API headwater_status headwater_read_value(const headwater_session* session, int64_t layer,
                                                    int64_t head_kv, int64_t position, float* row,
                                                    int64_t width);

/* ---- Observers ---- */

/* What was computed for one chunk of one layer. All arrays are valid during the callback only. For dense and
 * decode chunks memory_count is 0 and the column sums are NULL (they are zero by definition), with rules BLOCKS and
 * SKETCHES for all chunks. New fields are appended: read them only where struct_size covers them. */
typedef struct headwater_chunk_record {
  size_t struct_size;
  int64_t layer;
  headwater_chunk chunk;
  /* Entries of the set that is read, the same for every set of the chunk; rule SKETCHES: the most of a set (SKE-8). */
  int64_t memory_count;
  int64_t memory_stride; /* entries from one set to the next; memory_count <= memory_stride */
  /* Ascending positions, then -1 (MEM-4): [Hq][memory_stride]; rules BLOCKS and SKETCHES:
   * [Hkv][query_blocks][memory_stride] (SEL-8, SKE-8). */
  const int32_t* memory;
  const float* colsum_inter; /* [Hq][memory_stride] INTER-2 */
  int64_t row_stride;        /* entries from one head to the next in the two arrays below */
  const float* colsum_intra; /* [Hq][row_stride] INTRA-2, one per token of the chunk */
  const float* lse;          /* [Hq][row_stride] natural log-sum-exp of the final softmax (FUSE-1) */
  /* Rules BLOCKS and SKETCHES, sparse chunks; else 0 and NULL. */
  int64_t query_blocks;     /* sets for each key/value head (SEL-4, SKE-2) */
  int64_t candidate_blocks; /* rule BLOCKS: key blocks 0, 1, ... that are voted on (SEL-2); else 0 */
  const float* block_votes; /* [Hkv][query_blocks][candidate_blocks] SEL-6; NULL where there are none */
  int64_t voted_tokens;     /* tokens of the second stage (SEL-7), or candidates (SKE-2); 0: there are none */
  /* [Hkv][query_blocks][voted_tokens], of ascending tokens: those of the chosen blocks (SEL-7), candidates (SKE-6); or
   * NULL. */
  const float* token_votes;
} headwater_chunk_record;

/* Called from inside headwater_attend(), chunk after chunk in ascending order, on the calling thread. It must
 * not call functions that change the session, and must return (no longjmp, no C++ exception). */
typedef void (*headwater_observer)(void* user, const headwater_chunk_record* record);

/* Sets the observer of all layers; NULL switches it off. `user` is handed back to it. Survives
 * headwater_reset(). */
HEADWATER_API headwater_status headwater_set_observer(headwater_session* session, headwater_observer observer,
                                                      void* user);

/* The same for an observer that can stop the call: another value than 0 fails the step, and headwater_attend() returns
 * HEADWATER_INTERRUPTED. It takes the place of an observer that was set before, and the other way round. */
typedef int32_t (*headwater_stopping_observer)(void* user, const headwater_chunk_record* record);
HEADWATER_API headwater_status headwater_set_stopping_observer(headwater_session* session,
                                                               headwater_stopping_observer observer,
                                                               void* user);

/* Asked again and again by headwater_attend(), on the thread that called it (INTR-1): another value than 0 stops it with
 * HEADWATER_INTERRUPTED and fails the step. NULL switches it off. Survives headwater_reset(). It must not call functions
 * that change the session, and must return. Errors: unsupported. */
typedef int32_t (*headwater_interrupt)(void* user);
HEADWATER_API headwater_status headwater_set_interrupt(headwater_session* session,
                                                       headwater_interrupt interrupt, void* user);

/* ---- Rotation ---- */

/* Which elements form a rotated pair (ROPE-1): (x0, x1), (x2, x3), ... or (x_i, x_{i + r/2}). */
enum { HEADWATER_ADJACENT_PAIRS = 0, HEADWATER_SPLIT_HALVES = 1 };

/* Writes the r/2 inverse frequencies theta^(-2i/r), i = 0 .. r/2 - 1, in radians a position (ROPE-1). count
 * is the number of doubles that `frequencies` has room for and must be r/2. Errors: invalid_argument (r odd,
 * < 2 or > 65536; theta not finite or <= 0; count). */
HEADWATER_API headwater_status headwater_rope_inverse_frequencies(int64_t r, double theta,
                                                                  double* frequencies, int64_t count);

/* Rotates n x heads rows of `width` elements in place: pair i of the row at global position p turns by
 * p * frequencies[i] radians and is multiplied by magnitude. Row t stands at first_position + t. The first
 * 2 * count elements are rotated, the others stay. Double inside, rounded once to the rows' type (ROPE-3,
 * ROPE-4). Errors: invalid_argument (n < 0, heads < 1, a position below 0 or >= 2^31, 2 * count > width, a
 * frequency or magnitude that is not finite, layout). */
HEADWATER_API headwater_status headwater_rotate(const headwater_mutable_rows* rows, int64_t n, int64_t heads,
                                                int64_t width, int64_t first_position,
                                                const double* frequencies, int64_t count, double magnitude,
                                                int32_t layout);

#ifdef __cplusplus
}
#endif

#endif /* HEADWATER_HEADWATER_H_ */
