#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "cuda/kernels/blocks/place.hpp"
#include "cuda/layer.hpp"
#include "cuda/path/path.hpp"

namespace headwater::cuda {

/// Sparse prefill whose memory sets the queries choose (SEL): summaries of key blocks as their keys are stored, then for all
/// query blocks of a window at once pools, votes, sets, and one pass over the chosen keys where they are stored, joined with
/// the intra pass. No chunk waits for another. Everything is cut by query blocks, so that both schedules give the same bits.
class BlocksPass {
 public:
  /// Of a session with rule blocks whose options are sparse. Takes all memory. Errors: out_of_memory, std::bad_alloc.
  explicit BlocksPass(SessionData& data);

  /// SEL-3 of what a window's rows complete, sparse or dense.
  void summarise(const Window& window);
  /// All chunks of a window.
  void run(const Window& window, std::span<const Chunk> chunks);

 private:
  [[nodiscard]] QueryBlocks query_blocks(const Window& window, std::span<const Chunk> chunks) const;
  /// A layer's of all of a kind, of which a head has `rows`.
  [[nodiscard]] StoredRows summaries(const unsigned char* all, std::int64_t rows, std::int64_t layer) const;
  [[nodiscard]] StoredRows blocks(std::int64_t layer) const {
    return summaries(blocks_, most_blocks_, layer);
  }
  [[nodiscard]] StoredRows regions(std::int64_t layer) const {
    return summaries(regions_, most_blocks_ / kRegionBlocks, layer);
  }
  void choose_sets(const Window& window, const QueryBlocks& at);
  void pool(const Window& window, const QueryBlocks& at);
  void vote(const Window& window, const QueryBlocks& at, VoteKind kind, WindowLaunches::BlockStep step) const;
  void choose(const Window& window, const QueryBlocks& at, VoteKind kind, WindowLaunches::BlockStep step,
              std::int64_t most) const;
  void report(const Window& window, std::span<const Chunk> chunks, const QueryBlocks& at);

  /// Rows of pools, or of half pools, of a set.
  [[nodiscard]] std::int64_t pooled_rows(std::int64_t pool) const {
    return pieces(std::min(data_.options.query_block, data_.longest_chunk()), pool) * data_.group;
  }

  SessionData& data_;
  SparseStores stores_;
  // Of the longest history, and of a set where a window has the most of them.
  std::int64_t most_blocks_;
  std::int64_t most_regions_;  // 0: never searched
  std::int64_t searched_;      // G of SEL-12, no more than there are
  std::int64_t kept_;
  std::int64_t tokens_;
  std::int64_t half_;  // rows of a half pool
  std::int64_t most_sets_;
  DType summary_type_;
  std::int64_t summary_width_;
  std::int64_t half_width_;
  unsigned char* blocks_ = nullptr;      // [layers][Hkv][blocks][summary width]
  unsigned char* regions_ = nullptr;     // [layers][Hkv][whole regions][summary width]
  unsigned char* pooled_ = nullptr;      // [sets][pools * group][summary width]
  unsigned char* halves_ = nullptr;      // [sets][half pools * group][half width]
  float* region_votes_ = nullptr;        // [sets][regions]
  float* block_votes_ = nullptr;         // [sets][blocks]
  float* token_votes_ = nullptr;         // [sets][tokens]
  std::int32_t* listed_ = nullptr;       // [sets][searched regions]
  std::int32_t* kept_blocks_ = nullptr;  // [sets][kept]
  std::int32_t* sets_ = nullptr;         // [sets][set_width]
};

}  // namespace headwater::cuda
