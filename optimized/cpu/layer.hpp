#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/block_summaries.hpp"
#include "core/buffer.hpp"
#include "core/kv_store.hpp"
#include "core/memory_sets.hpp"
#include "core/score_store.hpp"
#include "core/undo_log.hpp"
#include "cpu/kernels/table.hpp"
#include "cpu/workers.hpp"
#include "headwater/session.hpp"

namespace headwater::cpu {

/// Query rows that one task works through: many enough to pay for widening or gathering their keys.
inline constexpr std::int64_t kGroupRows = 128;

/// Rounds up to a multiple.
inline std::int64_t padded(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

inline std::int64_t length(const Chunk& chunk) { return chunk.end - chunk.begin; }

/// What chunks leave behind beside the rows, with rule h2o; else scores are zero and the rest is empty.
struct ScoreState {
  /// Takes all memory (std::bad_alloc).
  ScoreState(const Shape& shape, const EffectiveOptions& options);
  /// Of a session of the same shape and options, after so many tokens.
  void copy(const ScoreState& from, std::int64_t tokens);

  core::ScoreStore scores;
  core::MemorySets memory;
  /// Takes back, when a layer is next read or computed, what abort and truncate have dropped.
  std::optional<core::UndoLog> undo;
};

/// What a session stores and what its options say: all that its passes and arithmetics share.
struct SessionData {
  /// `effective` is resolve(shape, options) and outlives this. Takes the memory of all stores (std::bad_alloc).
  SessionData(const KernelTable& kernels, const Shape& shape, const Options& options,
              const EffectiveOptions& effective);

  /// The first `tokens` tokens of another session, whose rows and scores are shared. `effective` are the same options.
  SessionData(SessionData& parent, const EffectiveOptions& effective, std::int64_t tokens);

  /// Scores of the session's own, where they are shared: std::bad_alloc.
  void own_scores(std::int64_t tokens);

  [[nodiscard]] std::int64_t kv_head(std::int64_t head) const;
  [[nodiscard]] std::int64_t most_chunk_rows() const;  ///< 0 in a dense session
  [[nodiscard]] std::int64_t set_width() const;        ///< most entries of a memory set; 0 in a dense session
  /// Whether every query block has a set of its own, not a chunk or a head.
  [[nodiscard]] bool sets_of_query_blocks() const {
    return options.sparse && options.select != Select::h2o && options.heavy > 0;
  }
  [[nodiscard]] std::int64_t summary_width() const;  ///< most elements of a summary; 0 where there are none

  const KernelTable& kernels;
  const Shape widest;  ///< the session's, with the largest widths of any layer: for these memory is taken
  Shape shape;         ///< of the layer that is attended (LAYER-1)
  const EffectiveOptions& options;
  std::vector<float> sinks;
  std::vector<float> alibi;
  core::KvStore kv;
  std::shared_ptr<ScoreState> state;
  bool shares_state = false;       ///< with a fork, whichever it is: then it is read only
  core::BlockSummaries summaries;  ///< rule blocks; else empty
  Workers workers;
};

class Arithmetic;

/// log-sum-exps for an observer: row `position` of a head is entry head * stride + position - base.
struct LseRows {
  float* data;
  std::int64_t stride;
  std::int64_t base;

  [[nodiscard]] float& at(std::int64_t head, std::int64_t position) const {
    return data[head * stride + position - base];
  }
};

/// One attend() call: a layer of the open step.
struct LayerCall {
  SessionData& data;
  Arithmetic& arithmetic;
  std::int64_t layer;
  const Rows& q;
  const MutableRows& out;
  std::span<const Chunk> chunks;
  const Observer& observer;  ///< may be empty
  const LseOutput& lse;      ///< data may be null

  /// Position of row 0 of q and out.
  [[nodiscard]] std::int64_t base() const { return chunks.front().begin; }

  // LAYER-1
  [[nodiscard]] LogitMap logit_map(std::int64_t head) const;
  [[nodiscard]] float sink(std::int64_t head) const;  ///< natural units; -inf: none
  [[nodiscard]] float scale() const { return static_cast<float>(data.options.scale_of(layer)); }
  /// MASK-2: the first key that the row at this position sees.
  [[nodiscard]] std::int64_t first_visible(std::int64_t position) const;

  /// The caller's output row where it is one of aligned floats, else null.
  [[nodiscard]] float* float_row(std::int64_t position, std::int64_t head) const;
  /// A finished row of a head to the caller, in his type.
  void store_row(std::int64_t position, std::int64_t head, const float* row) const;

  /// Whether anybody asks for log-sum-exps; else no logarithm need be computed.
  [[nodiscard]] bool wants_lse() const;
  /// That of a row to those who ask: the observer, by way of `shown`, and the caller (LSE-1).
  void store_lse(const LseRows& shown, std::int64_t position, std::int64_t head, float value) const;
};

/// Chunks of the plan that are worked on together, and the position where their rows begin.
struct Window {
  std::span<const Chunk> chunks;
  std::int64_t begin;
};

/// m and l per row of a block, m in units of Arithmetic::unit().
struct BlockResult {
  const float* max;
  const float* sum;
};

}  // namespace headwater::cpu
