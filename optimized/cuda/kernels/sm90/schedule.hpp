#pragma once

#include "cuda/kernels/sm90/annotations.hpp"

namespace headwater::cuda::sm90 {

/// Tiles are kTile queries by kTile keys.
inline constexpr int kTile = 128;

HEADWATER_CUDA_BOTH constexpr int tiles_of(int tokens) { return (tokens + kTile - 1) / kTile; }

/// Chunks of equal length that one launch works on.
struct IntraShape {
  int heads;
  int kv_heads;
  int chunks;
  int tokens;           ///< of each chunk
  int first_query = 0;  ///< token of the first query: a dense window is the end of its only chunk

  [[nodiscard]] HEADWATER_CUDA_BOTH constexpr int tiles() const { return tiles_of(tokens); }
  /// Tokens of a chunk in scratch memory: whole tiles.
  [[nodiscard]] HEADWATER_CUDA_BOTH constexpr int padded_tokens() const { return tiles() * kTile; }
  [[nodiscard]] HEADWATER_CUDA_BOTH constexpr int items() const {
    return heads * chunks * (tiles() - first_query / kTile);
  }
  /// LOGIT-1.
  [[nodiscard]] HEADWATER_CUDA_BOTH constexpr int kv_head(int head) const {
    return head / (heads / kv_heads);
  }
};

/// A block of queries (forward) or of keys (column sums) of one head and chunk.
struct WorkItem {
  int head;
  int chunk;
  int tile;
};

/// Item `index` of a launch, those with the most tiles first. Heads run fastest: the blocks at work at one time share the
/// key/value heads of a chunk in the second-level cache.
HEADWATER_CUDA_BOTH constexpr WorkItem query_block(const IntraShape& shape, int index) {
  const int pair = index % (shape.heads * shape.chunks);
  const int rank = index / (shape.heads * shape.chunks);
  return {pair % shape.heads, pair / shape.heads, shape.tiles() - 1 - rank};
}

HEADWATER_CUDA_BOTH constexpr WorkItem key_block(const IntraShape& shape, int index) {
  const WorkItem mirrored = query_block(shape, index);
  return {mirrored.head, mirrored.chunk, shape.tiles() - 1 - mirrored.tile};
}

/// The item that persistent block `block` of `blocks` takes in its round `round`; past the end when there is none. Every
/// other round runs backwards, so that no block always gets the larger item of its round.
HEADWATER_CUDA_BOTH constexpr int item_of_round(int block, int blocks, int round) {
  return round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
}

}  // namespace headwater::cuda::sm90
