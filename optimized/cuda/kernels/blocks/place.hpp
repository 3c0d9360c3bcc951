#pragma once

#include "cuda/kernels/elements.hpp"

/// Rule blocks: what a query block is and how much it chooses from.
namespace headwater::cuda {

/// SEL-12: more candidates are searched by regions, of so many blocks each.
inline constexpr int kFlatBlocks = 2048;
inline constexpr int kRegionBlocks = 32;
/// SEL-3: columns of a group, which share a variance.
inline constexpr int kGroupColumns = 8;

/// Column groups of d columns.
HEADWATER_CUDA_FUNCTION constexpr int column_groups(int d) { return (d + kGroupColumns - 1) / kGroupColumns; }

/// A query block, and the numbers of SEL-2 to SEL-8 that its chunk makes the same for all heads.
struct QueryBlock {
  std::int64_t chunk_begin;
  std::int64_t begin;  ///< positions of its rows; none where the last chunk is shorter
  std::int64_t end;
  std::int64_t local_begin;
  int candidates;
  int regions;  ///< whole ones, where they are searched; else 0
  int kept;     ///< blocks of the first stage
  int tokens;   ///< that are voted on; 0: there is no second stage
  int entries;  ///< of the set
};

HEADWATER_CUDA_FUNCTION std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

HEADWATER_CUDA_FUNCTION QueryBlock query_block(const QueryBlocks& at, int number) {
  QueryBlock block;
  block.chunk_begin = at.begin + number / at.per_chunk * at.chunk;
  const std::int64_t chunk_end = smaller(block.chunk_begin + at.chunk, at.end);
  block.begin = block.chunk_begin + static_cast<std::int64_t>(number % at.per_chunk) * at.rows;
  block.end = smaller(block.begin + at.rows, chunk_end);
  const std::int64_t first = block.chunk_begin > at.local ? block.chunk_begin - at.local : 0;
  block.local_begin = smaller((first + at.key_block - 1) / at.key_block * at.key_block, block.chunk_begin);
  if (HEADWATER_SABOTAGE("cuda.blocks.local_unaligned")) block.local_begin = first;
  const std::int64_t candidates = at.heavy > 0 ? block.local_begin / at.key_block : 0;
  const std::int64_t kept = smaller(at.most_kept, candidates);
  const bool stage = at.refines && kept * at.key_block > at.heavy;
  block.candidates = static_cast<int>(candidates);
  block.regions = candidates > kFlatBlocks ? block.candidates / kRegionBlocks : 0;
  block.kept = static_cast<int>(kept);
  block.tokens = stage ? static_cast<int>(kept * at.key_block) : 0;
  block.entries =
      static_cast<int>(block.chunk_begin - block.local_begin + smaller(at.heavy, candidates * at.key_block));
  return block;
}

/// The first of pool `pool`'s rows, and the one after its last.
HEADWATER_CUDA_FUNCTION std::int64_t pool_begin(const QueryBlock& block, int pool, int size) {
  return smaller(block.begin + static_cast<std::int64_t>(pool) * size, block.end);
}

HEADWATER_CUDA_FUNCTION int pools_of(const QueryBlock& block, int size) {
  return static_cast<int>((block.end - block.begin + size - 1) / size);
}

}  // namespace headwater::cuda
