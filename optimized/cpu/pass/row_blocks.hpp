#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/buffer.hpp"
#include "cpu/arithmetic/arithmetic.hpp"
#include "cpu/layer.hpp"

namespace headwater::cpu {

/// At most kBlockRows consecutive rows of a chunk and a query head.
struct BlockRows {
  std::int64_t head;
  std::int64_t row;  ///< position of the first
  std::int64_t n;    ///< 1 .. kBlockRows
  std::span<PrefetchRows> prefetch = {};
};

/// Both passes of a block of rows, their fusion and the output rows: what the sparse passes have in common.
class RowBlocks {
 public:
  /// Keeps log-sum-exps of up to `lse_rows` rows of a chunk for every head.
  RowBlocks(const SessionData& data, std::int64_t lse_rows);

  [[nodiscard]] std::int64_t bytes() const;

  /// Both passes in one softmax, then the output rows. Rows of the same head before `prefetch_end` are soon asked for.
  void attend(const LayerCall& call, const Window& window, const Chunk& chunk, const BlockRows& rows,
              std::int64_t prefetch_end, const GatheredSet& set, int thread);
  /// The same with column sums, added to `intra_sums` and `inter_sums`, of one pass after the other while queries and
  /// outputs are in the cache. `set`: null where the chunk has no memory.
  void attend_with_sums(const LayerCall& call, const Window& window, const Chunk& chunk,
                        const BlockRows& rows, std::int64_t prefetch_end, const GatheredSet* set,
                        double* intra_sums, double* inter_sums, int thread);

  // The steps of the latter.

  /// Own keys, and those of a set that all rows see besides, where it has any; `out`: [kBlockRows][dv].
  BlockResult intra(const LayerCall& call, const Window& window, const Chunk& chunk, const BlockRows& rows,
                    const GatheredSet& set, double* sums, float* out, int thread);
  /// `loaded`: the block before had the same rows.
  BlockResult inter(const LayerCall& call, const Window& window, const Chunk& chunk, const BlockRows& rows,
                    const GatheredSet& set, bool loaded, double* sums, int thread);
  /// FUSE-1 with the thread's last inter pass; stores the rows.
  void join(const LayerCall& call, const Chunk& chunk, const BlockRows& rows, const BlockResult& intra,
            const float* intra_out, const BlockResult& inter, int thread);
  /// Stores rows without a memory set; overwrites `out`.
  void write(const LayerCall& call, const Chunk& chunk, const BlockRows& rows, const BlockResult& intra,
             float* out);
  [[nodiscard]] float* intra_out(int thread) { return of(thread).intra.data(); }

  /// [Hq][lse_rows] of the chunk that was computed last, where the call has an observer.
  [[nodiscard]] const float* lse() const { return lse_.data(); }

 private:
  /// Working memory of one thread.
  struct Scratch {
    explicit Scratch(std::int64_t dv);
    core::Buffer<float> intra;  ///< [kBlockRows][dv] outputs of the intra pass
    core::Buffer<float> inter;  ///< [kBlockRows][dv] outputs of the inter pass
  };

  void store_lse(const LayerCall& call, const Chunk& chunk, const BlockRows& rows, const float* lse);
  [[nodiscard]] Scratch& of(int thread) { return scratch_[static_cast<std::size_t>(thread)]; }

  const SessionData& data_;
  std::int64_t lse_rows_;
  core::Buffer<float> lse_;
  std::vector<Scratch> scratch_;  // one per thread
};

}  // namespace headwater::cpu
