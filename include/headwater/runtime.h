#ifndef HEADWATER_RUNTIME_H_
#define HEADWATER_RUNTIME_H_

/*
 * The C ABI of the model runtime (C11 and C++), libheadwater-runtime.so: models in GGUF files, their tokenizers,
 * conversations over them, sampling. It stands on libheadwater.so and has the manners of headwater.h: status codes,
 * structures that travel with their size, ownership, growth. Differences are said here.
 *
 * Errors. headwater_runtime_last_error() holds the line of this library's calls, headwater_last_error() those of
 * libheadwater.so's alone.
 *
 * Texts. UTF-8 with a length in bytes; a maximal ill-formed subsequence is read as U+FFFD.
 *
 * Results of any length. `capacity` elements of the caller's array are written at most, and *count says how many there
 * are: where it is more, the call is made again with a larger array. The array may be NULL where capacity is 0.
 *
 * Threads. A model may be used by several threads at once; a conversation or a sampler by one at a time.
 */

#include "headwater/headwater.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HEADWATER_RUNTIME_ABI_VERSION 1

/* The HEADWATER_RUNTIME_ABI_VERSION that the library was built with. */
HEADWATER_API int32_t headwater_runtime_abi_version(void);

/* What went wrong in this thread's latest call of this library; as headwater_last_error(). */
HEADWATER_API const char* headwater_runtime_last_error(void);

/* ---- Models ---- */

typedef struct headwater_model headwater_model; /* opaque */

/* Operands of products over many rows; sums are F32. INT8: rows rounded to 8 bits (or 16), with a scale for each run of 32, beside
 * the codes of quantised weights; other weights in BF16 where the processor multiplies it, else F32. AUTO: the fastest. */
enum {
  HEADWATER_PROJECTIONS_AUTO = 0,
  HEADWATER_PROJECTIONS_F32 = 1,
  HEADWATER_PROJECTIONS_BF16 = 2,
  HEADWATER_PROJECTIONS_INT8 = 3
};

/* Opens a GGUF file (docs/models.md lists architectures; of a split file its first part): metadata and tokenizer are read
 * now, the weights by the first headwater_conversation_open(). *model is set to NULL on error. Errors: invalid_argument
 * (no such file; damaged; a model that is not supported; BF16 or INT8 where the processor has no such products), out_of_memory. */
HEADWATER_API headwater_status headwater_model_open(const char* path, int32_t projections,
                                                    headwater_model** model);

/* Of the rotary embedding. */
enum {
  HEADWATER_ROPE_SCALING_FILE = 0, /* as the file says; linear where it says none and rope_scale is set */
  HEADWATER_ROPE_SCALING_NONE = 1,
  HEADWATER_ROPE_SCALING_LINEAR = 2,
  HEADWATER_ROPE_SCALING_YARN = 3
};

/* What stands in place of the file's metadata, and projections. 0 (default) leaves what the file says. Always fill it with
 * headwater_model_options_init() first. */
typedef struct headwater_model_options {
  size_t struct_size;      /* of the caller, set by headwater_model_options_init() */
  int32_t projections;     /* HEADWATER_PROJECTIONS_AUTO (default), _F32, _BF16 or _INT8 */
  int32_t rope_scaling;    /* HEADWATER_ROPE_SCALING_FILE (default), _NONE, _LINEAR or _YARN */
  double rope_scale;       /* the context is stretched to so many times as many tokens; at least 1 */
  double rope_freq_base;   /* at least 1 */
  double yarn_attn_factor; /* YaRN: its magnitude 1 + 0.1 ln(rope_scale) is multiplied by it; above 0 */
  double yarn_beta_fast;   /* YaRN: pairs that turn more often in the original context stay; above 0 */
  double yarn_beta_slow;   /* YaRN: pairs that turn less often are interpolated; above 0 */
  int64_t yarn_orig_ctx;   /* YaRN: tokens that the model was trained on; at least 1 */
} headwater_model_options;

/* As headwater_options_init(). */
HEADWATER_API headwater_status headwater_model_options_init(headwater_model_options* options,
                                                            size_t struct_size);

/* headwater_model_open() with options; NULL means the defaults. `context` of the model stays the file's: a conversation's
 * capacity may be more. Errors: those of headwater_model_open(); invalid_argument (the field, its value and what is allowed:
 * one of YaRN where the scaling is another, a scale without a scaling, a scaling without a scale, a scaling of a model with
 * LongRoPE). */
HEADWATER_API headwater_status headwater_model_open_with(const char* path,
                                                         const headwater_model_options* options,
                                                         headwater_model** model);

/* NULL is allowed. What was opened over the model stays usable. */
HEADWATER_API void headwater_model_close(headwater_model* model);

/* The file's name of the model ("" where it has none) and its architecture; bytes as stored. They live as long as the
 * model. NULL where the model is NULL. */
HEADWATER_API const char* headwater_model_name(const headwater_model* model);
HEADWATER_API const char* headwater_model_architecture(const headwater_model* model);

/* What is strange in the file and was read all the same (ids of special tokens that the vocabulary lacks, equal texts of unused
 * tokens), a line each, every line ended by a line feed; "" where nothing is. It lives as long as the model. NULL where the
 * model is NULL. */
HEADWATER_API const char* headwater_model_warnings(const headwater_model* model);

typedef struct headwater_model_facts {
  int64_t layers;
  int64_t width; /* of the residual stream */
  int64_t heads;
  int64_t heads_kv;
  int64_t d_head;
  int64_t d_value;
  int64_t feed_forward;
  int64_t vocabulary; /* logits of a position; ids of tokens are 0 .. vocabulary - 1 */
  int64_t tokens;     /* those with a text, the first ones; at most vocabulary */
  int64_t context;    /* tokens that the model was made for */
  int64_t bytes;      /* of the file, or files */
  int32_t bos;        /* first token of a text; -1: none */
  int32_t eos;        /* last token of a text; -1: none */
  int32_t adds_bos;   /* 1: add_special puts BOS in front */
  int32_t
      turn_end; /* control token behind an answer in a chat; -1: none, or no chat template that can be rendered */
  int32_t projections; /* HEADWATER_PROJECTIONS_F32, _BF16 or _INT8 */
  int32_t reserved;    /* 0 */
} headwater_model_facts;

/* Writes struct_size bytes, the caller's sizeof(headwater_model_facts); see headwater_session_options(). */
HEADWATER_API headwater_status headwater_model_describe(const headwater_model* model,
                                                        headwater_model_facts* facts, size_t struct_size);

/* ---- Tokens ---- */

/* Ids of a text of `bytes` bytes. add_special, 0 or 1: BOS in front and EOS at the end where the file asks for them.
 * parse_special, 0 or 1: texts of control tokens become those tokens; 0: they are text like any other. Bytes
 * for which the vocabulary has no token are left out. Texts are brought into Unicode's normal form C where the model's own
 * tokenizer does so (Qwen's vocabulary). A text that begins with BOS itself has it twice with add_special. */
HEADWATER_API headwater_status headwater_tokenize(const headwater_model* model, const char* text,
                                                  int64_t bytes, int32_t add_special, int32_t parse_special,
                                                  int32_t* ids, int64_t capacity, int64_t* count);

/* What a text loses when it is tokenized: in *ill_formed the place of the first byte that is not UTF-8 and is read as
 * U+FFFD, in *without_token that of the first character for which the vocabulary has no token and which is left out; -1:
 * there is none. */
HEADWATER_API headwater_status headwater_text_losses(const headwater_model* model, const char* text,
                                                     int64_t bytes, int64_t* ill_formed,
                                                     int64_t* without_token);

/* The text of n ids: pieces without control tokens, and without the space that some vocabularies put in front of a text.
 * No NUL is written. Not always well-formed UTF-8. Errors: invalid_argument (an id without a text). */
HEADWATER_API headwater_status headwater_detokenize(const headwater_model* model, const int32_t* ids,
                                                    int64_t n, char* text, int64_t capacity, int64_t* count);

/* What a token is: never part of what a reader should see; generation stops at it (EOS, end of turn). */
enum { HEADWATER_TOKEN_CONTROL = 1, HEADWATER_TOKEN_END = 2 };

/* The bytes that a token stands for, not always whole characters; of a control token its text. *flags: a sum of
 * HEADWATER_TOKEN_CONTROL and _END. Errors: invalid_argument (an id without a text). */
HEADWATER_API headwater_status headwater_token_piece(const headwater_model* model, int32_t id, char* piece,
                                                     int64_t capacity, int64_t* count, int32_t* flags);

typedef struct headwater_chat_message {
  const char* role; /* "system", "user" or "assistant" */
  const char* text;
  int64_t text_bytes;
  const char* question; /* goes on after the text, in tokens of its own; NULL: nothing does */
  int64_t question_bytes;
} headwater_chat_message;

/* How the conversations of this model are written, in place of the template in the file (tokenizer.chat_template, a program
 * in Jinja; where the file has none, ChatML or Llama 3 by its control tokens): a text of `bytes` bytes, which is "chatml",
 * "llama3", or a template. 0 bytes: the file's own again. Not while another thread uses the model. Errors:
 * invalid_argument (the template cannot be read; the vocabulary lacks the markers of the format), and nothing has changed. */
HEADWATER_API headwater_status headwater_model_set_chat_template(headwater_model* model, const char* text,
                                                                 int64_t bytes);

/* Ids of `messages` as the chat template writes them, up to where the assistant begins to write. message_size
 * is the caller's sizeof(headwater_chat_message). first, 0 or 1: they open a session; 0: they go on after an answer that
 * ended with the model's turn_end, which is not repeated, whatever was said before it (headwater_chat_continue() knows
 * that). Texts of control tokens in messages are text. *question: the place of the last question's first id, 0 where no
 * message has one. Errors: invalid_argument (another role; a template that is damaged, not supported, refuses the
 * conversation or does not come to an end; a model without one). */
HEADWATER_API headwater_status headwater_chat_encode(const headwater_model* model,
                                                     const headwater_chat_message* messages,
                                                     int64_t message_count, size_t message_size,
                                                     int32_t first, int32_t* ids, int64_t capacity,
                                                     int64_t* count, int64_t* question);

/* headwater_chat_encode() of a conversation that goes on: `messages` are all of it, and the session holds what comes before
 * the last message of the assistant, and that message as it was generated, without a token that ended it. The ids begin with
 * what the template writes behind that message. *anew, 0 or 1: 1 where the template writes what was said before in another
 * way than it was fed; the ids are then the whole conversation, for an empty session. */
HEADWATER_API headwater_status headwater_chat_continue(const headwater_model* model,
                                                       const headwater_chat_message* messages,
                                                       int64_t message_count, size_t message_size,
                                                       int32_t* ids, int64_t capacity, int64_t* count,
                                                       int64_t* question, int32_t* anew);

/* ---- Conversations ---- */

typedef struct headwater_conversation headwater_conversation; /* opaque */

/* Of stored keys and values. AUTO: BF16 where the processor multiplies it, unless projections are F32; else F16. Q8_0:
 * restored to that type from 8 bits, about half its memory; head widths are multiples of 32 (attention.kv_bits = 8). */
enum {
  HEADWATER_CACHE_AUTO = 0,
  HEADWATER_CACHE_F32 = 1,
  HEADWATER_CACHE_F16 = 2,
  HEADWATER_CACHE_BF16 = 3,
  HEADWATER_CACHE_Q8_0 = 4
};

/* Always fill them with headwater_conversation_options_init() first. */
typedef struct headwater_conversation_options {
  size_t struct_size; /* of the caller, set by headwater_conversation_options_init() */
  const char* engine; /* as headwater_open(); NULL is the default */
  /* NULL: the defaults of headwater_options_init(). What belongs to the model (scale, softcap, sinks, alibi, layers) and
   * kv_owner, row_memory and stream must be the defaults. */
  const headwater_options* attention;
  int64_t
      capacity; /* most tokens; 0 (default): the model's context. More than that is allowed, at a loss of quality */
  int64_t
      dense_tail; /* so many tokens at the end of a sparse turn see all before them; default 64, 0: none */
  int32_t cache_type; /* HEADWATER_CACHE_AUTO (default), _F32, _F16, _BF16 or _Q8_0 */
  int32_t reserved;   /* 0 */
} headwater_conversation_options;

/* As headwater_options_init(). */
HEADWATER_API headwater_status headwater_conversation_options_init(headwater_conversation_options* options,
                                                                   size_t struct_size);

/* Opens an empty conversation; several over one model share its weights, which the first one packs. options: NULL means
 * the defaults. *conversation is set to NULL on error. Errors: those of headwater_open(); invalid_argument (a tensor of the
 * file is missing, has another shape, or holds NaN or infinity). */
HEADWATER_API headwater_status headwater_conversation_open(headwater_model* model,
                                                           const headwater_conversation_options* options,
                                                           headwater_conversation** conversation);

/* NULL is allowed. */
HEADWATER_API void headwater_conversation_close(headwater_conversation* conversation);

/* Asked by feed, append and losses on the thread that called them, by engines with interrupts as headwater_set_interrupt()
 * has it, else after each layer of a turn: another value than 0 stops the call with HEADWATER_INTERRUPTED. NULL switches it
 * off. It must not call functions of the conversation, and must return. */
HEADWATER_API headwater_status headwater_conversation_set_interrupt(headwater_conversation* conversation,
                                                                    headwater_interrupt interrupt,
                                                                    void* user);

/* dense_tail of the turns that follow. */
HEADWATER_API headwater_status headwater_conversation_set_dense_tail(headwater_conversation* conversation,
                                                                     int64_t dense_tail);

/* Reads a turn of n >= 1 ids, the last dense_tail of them by a dense step where it is sparse. After a turn without such a
 * step, and before an append, it goes on with that turn, in its mode (STATE-3). Where the call fails after it has begun
 * (interrupted, out_of_memory, internal) the conversation is what it was before where its session can be truncated to that
 * (headwater_truncate(): with rule BLOCKS and dense, always, but with recurrent layers never), else empty;
 * headwater_conversation_tokens() says which.
 * Errors: invalid_argument (n = 0; an id outside the vocabulary), capacity_exceeded, interrupted, out_of_memory, internal. */
HEADWATER_API headwater_status headwater_conversation_feed(headwater_conversation* conversation,
                                                           const int32_t* ids, int64_t n);

/* Appends one token by a decode step. Errors, and what is left then: as of headwater_conversation_feed(). */
HEADWATER_API headwater_status headwater_conversation_append(headwater_conversation* conversation,
                                                             int32_t id);

/* The logits of the token that comes next: `count` floats, the model's vocabulary. They belong to the conversation and stay
 * until it is changed. Errors: wrong_state (it is empty, or was truncated). */
HEADWATER_API headwater_status headwater_conversation_logits(const headwater_conversation* conversation,
                                                             const float** logits, int64_t* count);

/* Tokens that are stored. */
HEADWATER_API headwater_status headwater_conversation_tokens(const headwater_conversation* conversation,
                                                             int64_t* tokens);

/* Back to an empty conversation. Errors: out_of_memory (of a fork; then nothing has changed). */
HEADWATER_API headwater_status headwater_conversation_reset(headwater_conversation* conversation);

/* A second conversation that is what this one is (model, options, tokens, turn, logits, dense_tail) and goes on by itself, to
 * the bit. Stored rows are shared; scores and working memory are the fork's own (headwater_fork()). No interrupt is taken
 * over. Either may be used by another thread, and may be closed first. *fork is set to NULL on error; this conversation stays
 * what it is. Errors: out_of_memory, unsupported (by the engine). */
HEADWATER_API headwater_status headwater_conversation_fork(headwater_conversation* conversation,
                                                           headwater_conversation** fork);

/* Keeps the first n tokens, 0 <= n <= headwater_conversation_tokens(), as headwater_truncate() does; the turn of token n - 1
 * goes on with the next headwater_conversation_feed(), in its mode. The logits are gone until a feed or an append; with all
 * tokens kept nothing changes. In a sparse turn tokens chose together what they read, a chunk at a time: where n is inside a
 * chunk, the last of the tokens that are kept were computed with those that are not. Errors: invalid_argument (which n are
 * allowed: with rule H2O not all, options.checkpoints; with recurrent layers 0 and all), out_of_memory (of a fork),
 * unsupported; then nothing has changed. */
HEADWATER_API headwater_status headwater_conversation_truncate(headwater_conversation* conversation,
                                                               int64_t n);

/* The session below, for the functions of headwater.h that say what one holds (options, warnings, memory, chunks, rows):
 * nothing else may be done with it. It belongs to the conversation and lives as long. */
HEADWATER_API headwater_status headwater_conversation_session(const headwater_conversation* conversation,
                                                              const headwater_session** session);

/* Losses in nats of ids[1] .. ids[n - 1], each by what is predicted after those before it: n - decode ids are one turn,
 * without a dense tail, the others one decode step. The conversation is reset before and after. Writes n - 1 doubles.
 * Errors: those of headwater_conversation_feed(); invalid_argument (n < 2; decode not 0 .. n - 1). */
HEADWATER_API headwater_status headwater_conversation_losses(headwater_conversation* conversation,
                                                             const int32_t* ids, int64_t n, int64_t decode,
                                                             double* losses);

/* Where a position of a window lies in a sparse turn, as sums of flags: after its first chunk, or its first tokens where
 * they are no more; the last of the rows that chose the set that it reads (rule BLOCKS, SEL-10). */
enum { HEADWATER_AFTER_FIRST_CHUNK = 1, HEADWATER_ENDS_QUERY_BLOCK = 2 };

/* What two conversations predict after a position of a window. This structure does not grow. */
typedef struct headwater_comparison {
  double loss;       /* nats, of the window's next token by the first one; NaN at the last position */
  double other_loss; /* by the second one */
  double
      divergence; /* sum p ln(p / q) in nats, p of the first one and q of the second (Kullback and Leibler) */
  int32_t same_likeliest; /* 1 where both hold the same token for the likeliest, else 0 */
  int32_t flags;          /* of the second one's chunks */
} headwater_comparison;

/* headwater_conversation_losses() of two conversations side by side, over models of one vocabulary: one with dense attention
 * and one without, say. Either's interrupt stops it. Both are reset before and after. Writes n positions. Errors: those of
 * headwater_conversation_losses(); invalid_argument (one conversation twice; other vocabularies). */
HEADWATER_API headwater_status headwater_conversation_compare(headwater_conversation* conversation,
                                                              headwater_conversation* other,
                                                              const int32_t* ids, int64_t n, int64_t decode,
                                                              headwater_comparison* positions);

/* ---- Sampling ---- */

typedef struct headwater_sampler headwater_sampler; /* opaque */

/* How the next token is drawn: the filters in this order, each from what the one before left, on probabilities at
 * temperature 1; the temperature comes last. Always fill it with headwater_sampling_init() first. */
typedef struct headwater_sampling {
  size_t struct_size;
  double temperature; /* 0 (default): the best token, and no filter matters; finite, >= 0 */
  int64_t top_k;      /* keep the k best; 0 (default): all */
  double top_p;       /* keep the fewest best whose probabilities reach p, 0 .. 1; default 1 */
  double min_p;  /* keep those with at least this share of the best one's probability, 0 .. 1; default 0 */
  uint64_t seed; /* equal seeds and logits give equal tokens; default 0 */
} headwater_sampling;

/* As headwater_options_init(). */
HEADWATER_API headwater_status headwater_sampling_init(headwater_sampling* sampling, size_t struct_size);

/* Opens a sampler for logits of `vocabulary` tokens. sampling: NULL means the defaults. *sampler is set to NULL on error.
 * Errors: invalid_argument (the field, its value and what is allowed), out_of_memory. */
HEADWATER_API headwater_status headwater_sampler_open(const headwater_sampling* sampling, int64_t vocabulary,
                                                      headwater_sampler** sampler);

/* NULL is allowed. */
HEADWATER_API void headwater_sampler_close(headwater_sampler* sampler);

/* What the texts of a grammar are. */
enum {
  HEADWATER_GRAMMAR_GBNF = 0,        /* `text` is in llama.cpp's notation; its rule `root` is the answer */
  HEADWATER_GRAMMAR_JSON_SCHEMA = 1, /* JSON that a JSON Schema (2020-12) describes; `text` is the schema */
  HEADWATER_GRAMMAR_JSON_OBJECT = 2  /* any JSON object; `text` is empty */
};

/* From here on the sampler draws only tokens that go on with a text of the grammar and, where that is complete, those that
 * end it (HEADWATER_TOKEN_END); headwater_sampler_accept() says which one the answer takes. Before the first draw; a second
 * call replaces the first. kind: HEADWATER_GRAMMAR_GBNF, _JSON_SCHEMA or _JSON_OBJECT. text: at most 262144 bytes, all of
 * them well-formed. The sampler keeps what it needs of the model, which may be closed. Errors: invalid_argument (a grammar
 * that is malformed, too large, not supported or of no text: where, and what is allowed; a sampler of another vocabulary
 * than the model's), wrong_state (a token was drawn or accepted), out_of_memory; then nothing has changed. */
HEADWATER_API headwater_status headwater_sampler_restrict(headwater_sampler* sampler,
                                                          const headwater_model* model, int32_t kind,
                                                          const char* text, int64_t bytes);

/* Draws a token from `count` logits, the vocabulary that the sampler was opened for. Equal logits rank by id. Errors:
 * invalid_argument (another count; a logit is NaN, or all are -inf; with a grammar: no token of the vocabulary goes on with a
 * text of it, or it takes more steps or memory than allowed). */
HEADWATER_API headwater_status headwater_sampler_draw(headwater_sampler* sampler, const float* logits,
                                                      int64_t count, int32_t* id);

/* `id` is the answer's next token. To be said of each of them, those that end it included, where the sampler is restricted;
 * without effect where it is not. Errors: invalid_argument (an id outside the vocabulary, or one that does not go on with a
 * text of the grammar; the grammar takes too much, as of headwater_sampler_draw()); then nothing has changed. */
HEADWATER_API headwater_status headwater_sampler_accept(headwater_sampler* sampler, int32_t id);

#ifdef __cplusplus
}
#endif

#endif /* HEADWATER_RUNTIME_H_ */
