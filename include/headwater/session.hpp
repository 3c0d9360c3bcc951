#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "headwater/error.hpp"
#include "headwater/export.h"
#include "headwater/options.hpp"

namespace headwater {

class Session;
class StateArchive;

/// One step of a session: a prefill call or a decode step. The caller says which it is (STATE-2).
struct Step {
  enum class Kind : std::uint8_t { prefill = 0, decode = 1 };
  Kind kind = Kind::prefill;
  std::int64_t n = 0;            ///< tokens of this step, >= 1
  std::int64_t turn_length = 0;  ///< STATE-3: T of the turn that this prefill call opens; 0: not said, T = n

  static Step prefill(std::int64_t n, std::int64_t turn_length = 0) {
    return {Kind::prefill, n, turn_length};
  }
  static Step decode(std::int64_t n = 1) { return {Kind::decode, n, 0}; }
};

/// Strided read-only view of n x heads rows. Row t of head h begins `t * row_stride + h * head_stride`
/// elements after data; the elements of a row are contiguous. No alignment is required. The caller keeps
/// ownership; the memory must stay valid until the call returns.
struct Rows {
  const void* data = nullptr;
  DType type = DType::f32;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;

  /// View of a contiguous tensor [n, heads, width].
  static Rows token_major(const void* data, DType type, std::int64_t heads, std::int64_t width) {
    return {data, type, heads * width, width};
  }
  /// View of a contiguous tensor [heads, n, width].
  static Rows head_major(const void* data, DType type, std::int64_t n, std::int64_t width) {
    return {data, type, width, n * width};
  }
};

/// The same for rows that are written. Elements between the rows are never touched.
struct MutableRows {
  void* data = nullptr;
  DType type = DType::f32;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;

  static MutableRows token_major(void* data, DType type, std::int64_t heads, std::int64_t width) {
    return {data, type, heads * width, width};
  }
  static MutableRows head_major(void* data, DType type, std::int64_t n, std::int64_t width) {
    return {data, type, width, n * width};
  }
};

/// Where attend() writes the log-sum-exp of each row and head, so that results over several key sets can be merged
/// (FUSE-1): F32, entry t * row_stride + h * head_stride for row t of query head h. data null: not wanted.
struct LseOutput {
  float* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;

  /// Of a contiguous tensor [n, heads].
  static LseOutput token_major(float* data, std::int64_t heads) { return {data, heads, 1}; }
};

/// K and V rows of one layer in the caller's memory (ROWS-1): those of positions 0 .. rows - 1, of Shape::kv_type. All
/// strides count elements; the elements of a row are contiguous; no alignment is required. A key row of head h at
/// position p begins `p * key_row_stride + h * key_head_stride` elements after keys, a value row likewise.
///
/// With a block table the rows lie in pages of page_rows positions: position p is row p % page_rows of page
/// table[p / page_rows], and page b begins `b * key_page_stride` elements after keys. The pages of the
/// tokens stored and of those of the open step differ from each other.
struct StoredRows {
  const void* keys = nullptr;
  const void* values = nullptr;
  std::int64_t rows = 0;  ///< readable positions; at least tokens() and those of the open step
  std::int64_t key_row_stride = 0;
  std::int64_t key_head_stride = 0;
  std::int64_t value_row_stride = 0;
  std::int64_t value_head_stride = 0;

  const std::int32_t* table = nullptr;  ///< null: no pages, and what follows is not read
  std::int64_t table_size = 0;          ///< entries; at least ceil(rows / page_rows)
  std::int64_t page_rows = 0;           ///< 1 ..
  std::int64_t pages = 0;               ///< of the caller's memory: entries of the table are 0 .. pages - 1
  std::int64_t key_page_stride = 0;
  std::int64_t value_page_stride = 0;
};

/// STATE-1.
enum class SessionState : std::uint8_t { empty = 0, prefilling = 1, decoding = 2 };

/// How the tokens of a chunk attend.
enum class ChunkMode : std::uint8_t {
  sparse = 0,  ///< intra pass plus memory set (FUSE-2)
  dense = 1,   ///< dense prefill call: causal attention over everything stored (CFG-2, STATE-3)
  decode = 2,  ///< decode step: the same arithmetic (DEC-1)
};

/// Global positions [begin, end) that are processed together (PLAN-1).
struct Chunk {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  ChunkMode mode = ChunkMode::sparse;
};

/// What an engine computed for one chunk of one layer; handed to the observer from inside attend(), chunk after
/// chunk in ascending order, on the calling thread. All views are valid during the callback only.
/// For dense and decode chunks memory_count is 0 and the column sums are null (they are zero by definition), with rules
/// `blocks` and `sketches` for all chunks.
struct ChunkRecord {
  std::int64_t layer = 0;
  Chunk chunk;
  /// Entries of the set that is read, the same for every set of the chunk; rule `sketches`: the most that any can have (SKE-8).
  std::int64_t memory_count = 0;
  std::int64_t memory_stride = 0;  ///< entries from one set to the next; memory_count <= memory_stride
  /// Ascending positions, then -1 (MEM-4): [Hq][memory_stride]; rules `blocks` and `sketches`:
  /// [Hkv][query_blocks][memory_stride] (SEL-8, SKE-8)
  const std::int32_t* memory = nullptr;
  const float* colsum_inter = nullptr;  ///< [Hq][memory_stride] INTER-2; 0 after memory_count
  std::int64_t row_stride = 0;          ///< entries from one head to the next in the two arrays below
  const float* colsum_intra = nullptr;  ///< [Hq][row_stride] INTRA-2, one per token of the chunk
  const float* lse = nullptr;           ///< [Hq][row_stride] m + ln l of the final softmax (FUSE-1)

  // Rules `blocks` and `sketches`, sparse chunks; else 0 and null. The latter has no key blocks.
  std::int64_t query_blocks = 0;      ///< sets for each key/value head (SEL-4, SKE-2)
  std::int64_t candidate_blocks = 0;  ///< key blocks 0, 1, ... that are voted on (SEL-2)
  const float* block_votes =
      nullptr;  ///< [Hkv][query_blocks][candidate_blocks] SEL-6; null where there are none
  std::int64_t voted_tokens =
      0;  ///< tokens of the second stage (SEL-7), or candidates (SKE-2); 0: there are none
  /// [Hkv][query_blocks][voted_tokens] SEL-7, SKE-6: the tokens of the chosen blocks, or the candidates, in ascending order;
  /// null: there are none
  const float* token_votes = nullptr;
};

using Observer = std::function<void(const ChunkRecord&)>;

/// Asked by attend() whether to stop: true ends it with `interrupted`, an exception with that exception (INTR-1).
using Interrupt = std::function<bool()>;

/// Scores of one layer, head-major: the score of position p and query head h is entry h * head_stride + p, BF16 bit patterns
/// (uint16) or floats by `type`. head_stride = capacity, or 0 where all scores are zero because the session forms none. Old
/// after abort() or truncate(): ask anew.
struct ScoreView {
  ScoreType type = ScoreType::bf16;
  const void* data = nullptr;
  std::int64_t head_stride = 0;
};

/// The memory set that was built last in a layer (MEM-4): `count` ascending positions per query head, then -1
/// up to `width` = min(M, capacity) entries. count is 0 until a set was built. With any other rule than h2o, whose sets live
/// as long as their chunk (SEL-9), the view is empty: null, and all numbers 0. Old after abort() or truncate().
struct MemoryView {
  const std::int32_t* data = nullptr;
  std::int64_t head_stride = 0;
  std::int64_t width = 0;
  std::int64_t count = 0;
};

/// Bytes that a session holds: taken by open(), and by begin() where pages of rows or a fork's own part are needed (NUM-4).
/// What forks share counts in each of them.
struct MemoryBytes {
  std::int64_t kv = 0;           ///< pages of stored K and V rows
  std::int64_t scores = 0;       ///< heavy-hitter scores
  std::int64_t memory_sets = 0;  ///< memory sets and their column sums
  std::int64_t workspace = 0;    ///< everything else
  [[nodiscard]] std::int64_t total() const { return kv + scores + memory_sets + workspace; }
};

/// What Engine::estimate() says of a session that is not opened (NUM-5).
struct MemoryEstimate {
  MemoryBytes opened;  ///< memory_bytes() of it once it is open and empty
  MemoryBytes full;    ///< once it holds `capacity` tokens and has never been forked
};

/// One attend() of attend_together().
struct SequenceCall {
  Session* session = nullptr;  ///< with an open step; each session at most once
  std::int64_t layer = 0;
  Rows q;
  Rows k;  ///< this and v: sessions that keep their rows
  Rows v;
  const StoredRows* stored = nullptr;  ///< sessions whose rows are the caller's; then k and v are not read
  MutableRows out;
  LseOutput lse = {};

  /// Whether its rows are to be stored and nothing else is asked for (DEC-2).
  [[nodiscard]] bool rows_alone() const { return q.data == nullptr && out.data == nullptr; }
};

/// Where the time of attend() went, in seconds by the wall since open() or the last reset(): sums over the threads,
/// divided by their number. -1 where the engine does not measure it.
struct StageSeconds {
  double selection = -1;  ///< column sums of chunks added up, scores kept (SCORE), memory sets built (MEM)
};

/// One conversation: the stored K and V rows of all layers, the scores, and the state machine of STATE-1..5.
///
/// A step is begin(), then attend() once for each layer in any order, then end(). A session is used by one
/// thread at a time; different sessions are independent. Every call throws headwater::Error only.
///
/// Errors. A call that throws leaves the session as it was, unless failed() says otherwise: then the open step has failed
/// and only abort() and reset() are legal (STATE-5). Two things fail a step, and nothing else does: breaking its protocol (a
/// layer twice, end() before all layers, begin() in an open step: wrong_state), and an attend() that cannot finish
/// (out_of_memory, internal, interrupted, an observer that throws). A refused argument (invalid_argument,
/// capacity_exceeded, unsupported) never does.
class HEADWATER_API Session {
 public:
  Session() = default;
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  virtual ~Session() = default;

  /// Opens a step. Errors: invalid_argument (n < 1; turn_length < n; turn_length of a call that continues a turn
  /// is neither 0 nor the length said when the turn was opened), capacity_exceeded, wrong_state.
  virtual void begin(const Step& step) = 0;

  /// Attention of one layer over the n tokens of the open step.
  /// q: n x Hq rows of d elements; k: n x Hkv rows of d; v: n x Hkv rows of dv, all already rotated (ROPE-4).
  /// out: n x Hq rows of dv, F32, F16 or BF16 (rounded once to nearest even); must not overlap the inputs.
  /// lse: where the log-sum-exps of the n x Hq rows go, if they are wanted (LSE-1): m + ln l of all that the row attended
  /// to, in natural units, the sink included; -infinity for a row that saw no key. Errors: unsupported.
  ///
  /// In a decode step q.data and out.data may both be null: the rows are stored, and nothing else is done (DEC-2); lse is
  /// not written. Errors: unsupported.
  ///
  /// Device rows (Options::row_memory): every row begins on a multiple of its element's size. The call returns when its
  /// work is enqueued on Options::stream; the inputs must stay as they are, and out is there, when the stream has got so
  /// far. A fault of the device may be thrown by a later call. With an observer every chunk is waited for.
  /// Memory of the other kind is invalid_argument.
  virtual void attend(std::int64_t layer, const Rows& q, const Rows& k, const Rows& v, const MutableRows& out,
                      const LseOutput& lse = {}) = 0;

  /// attend() of a session whose rows the caller keeps (Options::kv_owner): `rows` holds K and V of all tokens, those of the
  /// open step included. Rows of earlier tokens must hold what they held before, wherever they lie now. Nothing is kept
  /// after the call but what is computed of the rows (scores, summaries). Errors: those of attend(); unsupported.
  virtual void attend_stored(std::int64_t /*layer*/, const Rows& /*q*/, const StoredRows& /*rows*/,
                             const MutableRows& /*out*/, const LseOutput& /*lse*/ = {}) {
    refuse("attend_stored()");
  }

  /// What attend() or attend_stored() would refuse of this call, without making it: throws the same error. The session is
  /// call.session.
  virtual void check_call(const SequenceCall& /*call*/) const {}
  /// What attend_together() does once all calls are checked; calls[0] is this session's. One after the other, unless an
  /// engine overrides it.
  virtual void attend_group(std::span<const SequenceCall> calls);

  /// Closes the step; every layer must have been attended.
  virtual void end() = 0;

  /// Back to an empty session. Legal in every state; refused while the session's stream is captured (Options::stream).
  virtual void reset() = 0;

  /// Drops the open step, failed or not: the session is what it was before begin(), to the bit (STATE-8).
  /// Errors: wrong_state (no open step), unsupported.
  virtual void abort() { refuse("abort()"); }

  /// Keeps the first n tokens, 0 <= n <= tokens(): the session is, to the bit, one that was given these tokens alone
  /// (STATE-9). With rule h2o not every n is possible (STATE-10, Options::checkpoints).
  /// Errors: invalid_argument (which n are allowed), wrong_state (a step is open; it stays open), unsupported.
  virtual void truncate(std::int64_t /*n*/) { refuse("truncate()"); }

  /// A second session that is equal to this one and goes on independently of it, to the bit (STATE-11). Stored rows are
  /// shared, nothing else is taken before the fork's first begin(). It works for the same engine with the same options;
  /// observer and interrupt are not taken over. Either may be used by another thread, and may be destroyed first.
  /// Errors: wrong_state (a step is open; it stays open), out_of_memory, unsupported.
  [[nodiscard]] virtual std::unique_ptr<Session> fork() { refuse("fork()"); }

  /// Gives all that the session must keep to an archive, or, in an empty session, takes it (STATE-12); see state.hpp. After
  /// an error while taking the session is empty. Errors: wrong_state (a step is open), invalid_argument, unsupported.
  virtual void exchange_state(StateArchive& /*archive*/) { refuse("save() and load()"); }

  [[nodiscard]] virtual SessionState state() const = 0;
  /// Tokens stored, the open step not counted.
  [[nodiscard]] virtual std::int64_t tokens() const = 0;
  [[nodiscard]] virtual const Shape& shape() const = 0;
  [[nodiscard]] virtual const EffectiveOptions& options() const = 0;
  [[nodiscard]] virtual MemoryBytes memory_bytes() const = 0;

  /// Chunks of the open step, or of the last one when none is open (PLAN-1).
  [[nodiscard]] virtual std::span<const Chunk> plan() const = 0;
  /// Chunks of all steps since the session was empty, those of the open step included, in ascending order; plan() is its
  /// end. Valid until a call that changes the session. Empty where an engine does not keep them.
  [[nodiscard]] virtual std::span<const Chunk> chunks() const { return {}; }
  /// Entries of the memory set that a chunk of this session reads, the same for every head and layer that is not
  /// dense (MEM-4, STATE-7).
  [[nodiscard]] std::int64_t memory_count(const Chunk& chunk) const {
    return chunk.mode == ChunkMode::sparse ? options().memory_count(chunk.begin) : 0;
  }
  /// Scores of all positions < tokens(); zero for tokens never scored. Errors: layer out of range.
  [[nodiscard]] virtual ScoreView scores(std::int64_t layer) const = 0;
  [[nodiscard]] virtual MemoryView memory(std::int64_t layer) const = 0;
  /// Copies a stored key (d floats) or value row (dv floats), widened exactly to F32 (STATE-6).
  /// Errors: layer, head or position (>= tokens stored, those of the open step included once the layer was attended)
  /// out of range; row shorter than that.
  virtual void read_key(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                        std::span<float> row) const = 0;
  virtual void read_value(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                          std::span<float> row) const = 0;

  /// Called for every chunk of every layer; empty switches it off. Survives reset(). An observer must not call
  /// the session's mutating functions; an exception from it fails the step (STATE-5).
  virtual void set_observer(Observer observer) = 0;

  /// Asked again and again by attend(), on the thread that called it (INTR-1); empty switches it off. Survives reset().
  /// It must not call the session's mutating functions, nor this one. Errors: unsupported.
  virtual void set_interrupt(Interrupt /*interrupt*/) { refuse("set_interrupt()"); }  // NOLINT: for overrides

  [[nodiscard]] virtual StageSeconds stage_seconds() const { return {}; }

  /// Whether the open step has failed, so that only abort() and reset() are legal (STATE-5).
  [[nodiscard]] virtual bool failed() const = 0;

 protected:
  [[noreturn]] static void refuse(const char* what) {
    throw Error(ErrorCode::unsupported,
                std::string(what) + " is not offered by this engine; allowed: an engine that claims it");
  }
};

/// attend() or attend_stored() of each of the calls, which is what they compute, to the bit: several sequences that are
/// decoded, a chunk of a prompt beside them (SEQ-1). Sessions may be of different engines. Errors: those of the calls, with
/// the number of the call in front; invalid_argument (no call, more than 4096, a null session, one session twice). Where an
/// argument is refused, or a layer is attended twice, nothing was computed and all steps go on. Where a call cannot finish,
/// its step has failed; other calls are done, failed or not begun: Session::failed() and the layer's attend() say which.
HEADWATER_API void attend_together(std::span<const SequenceCall> calls);

inline void Session::attend_group(std::span<const SequenceCall> calls) {
  for (const SequenceCall& call : calls) {
    if (call.stored) {
      call.session->attend_stored(call.layer, call.q, *call.stored, call.out, call.lse);
    } else {
      call.session->attend(call.layer, call.q, call.k, call.v, call.out, call.lse);
    }
  }
}

}  // namespace headwater
