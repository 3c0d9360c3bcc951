#pragma once

#include <cstdint>
#include <span>

#include "cpu/kernels/bf16/table.hpp"
#include "cpu/layer.hpp"

namespace headwater::cpu {

/// Keys that the thread's last Arithmetic::gather() took.
struct GatheredSet {
  const std::int32_t* positions = nullptr;
  std::int64_t n = 0;
};

/// Query rows of a block of one head, and their keys: those of one pass, or of both.
struct PassBlock {
  std::int64_t head;
  std::int64_t row;       ///< position of the first
  std::int64_t rows;      ///< 1 .. kBlockRows
  float sink;             ///< natural units; -inf: none
  std::int64_t own_keys;  ///< of the chunk, from its first; 0: none
  GatheredSet set;        ///< n = 0: none
  double* sums;           ///< column sums of the keys of one pass are added here; null: none are wanted
  /// [kBlockRows][d_value] outputs, divided by BlockResult::sum where Arithmetic::divides().
  float* out;
  bool loaded;                            ///< the queries of the block before were the same
  std::span<PrefetchRows> prefetch = {};  ///< of the caller's memory, on the way
};

/// Rows of a query head at the positions [begin, end).
struct HeadRows {
  std::int64_t head;
  std::int64_t begin;
  std::int64_t end;
};

/// Elements of a row that may not be 0, and of the whole row.
struct RowWidth {
  std::int64_t used;
  std::int64_t whole;
};

/// Arithmetic of the passes: the type in which rows are multiplied, and how they lie for it. The session chooses one for
/// each call of a layer. It owns the working memory of `threads` threads; methods with the number of a thread may run on
/// all of them at once, for different tasks.
class Arithmetic {
 public:
  Arithmetic() = default;
  virtual ~Arithmetic() = default;
  Arithmetic(const Arithmetic&) = delete;
  Arithmetic& operator=(const Arithmetic&) = delete;

  /// Of working memory.
  [[nodiscard]] virtual std::int64_t bytes() const = 0;
  /// Of logits and maxima, in natural units.
  [[nodiscard]] virtual double unit() const = 0;
  /// Whether outputs of a block are divided by the row sums.
  [[nodiscard]] virtual bool divides() const = 0;

  // The sparse pass.

  /// Whether the prepared rows of all chunks of the window fit at once.
  [[nodiscard]] virtual bool fits(const Window& window) const = 0;
  /// Keys and values of a chunk of the window, as attend() reads them.
  virtual void prepare_chunk(std::int64_t layer, const Window& window, const Chunk& chunk,
                             std::int64_t head_kv) = 0;
  /// Keys and values of a memory set, for the blocks of this thread until its next gather(). Those of a query block, which
  /// few rows read, are read where they are stored, as far as the kernels can.
  virtual void gather(std::int64_t layer, std::int64_t head_kv, const std::int32_t* positions, std::int64_t n,
                      int thread) = 0;
  /// Attention of a block to its keys, and their column sums (INTRA-1, INTRA-2, INTER-1, INTER-2). The result is valid
  /// until the next block of this thread.
  virtual BlockResult attend(const LayerCall& call, const Window& window, const Chunk& chunk,
                             const PassBlock& block, int thread) = 0;

  // Votes (SEL).

  /// Up to kBlockRows rows become the lanes of the thread's next lane_products(), in place of the queries of blocks.
  virtual void load_lanes(const float* rows, std::int64_t lanes, const RowWidth& width, int thread) = 0;
  /// products[row][kBlockRows]: the dot products of the rows of all runs with every lane; lanes after the last hold anything.
  /// Rows are readable and products writable up to a whole tile of keys.
  virtual void lane_products(std::span<const RowRun> runs, DType type, const RowWidth& width,
                             std::int64_t lanes, float* products, int thread) = 0;
  /// Fewer rows that lie together are better copied side by side for lane_products().
  [[nodiscard]] virtual std::int64_t least_rows() const = 0;

  // The dense pass.

  /// Keys and values of positions [0, end), as attend_context() reads them. Not from several threads.
  virtual void prepare_context(const LayerCall& call, std::int64_t end) = 0;
  /// Whether rows of several query heads may share a block of attend_context(); else a task has rows of one head.
  [[nodiscard]] virtual bool heads_share_blocks() const = 0;
  /// Causal attention of at most kGroupRows rows of one KV head to all keys: stores outputs with call.store_row and
  /// log-sum-exps with call.store_lse. The bits of a row do not depend on the rows beside it.
  virtual void attend_context(const LayerCall& call, std::span<const HeadRows> rows, const LseRows& lse,
                              int thread) = 0;

  // Decode, whose keys are read as they are stored.

  /// A query row becomes row `slot` of the rows that row_logits() of this thread multiplies.
  virtual void load_row(const LayerCall& call, std::int64_t head, std::int64_t position, std::int64_t slot,
                        int thread) = 0;
  /// KernelTable::row_logits of the loaded rows 0 .. rows - 1 and n keys of the KV type that follow each other.
  virtual void row_logits(const LayerCall& call, const void* keys, std::int64_t n, std::int64_t rows,
                          float* logits, std::int64_t stride, int thread) = 0;
};

}  // namespace headwater::cpu
