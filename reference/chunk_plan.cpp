#include "reference/chunk_plan.hpp"

#include <algorithm>

namespace headwater::reference {

std::vector<Chunk> chunk_plan(std::int64_t base, std::int64_t n, ChunkMode mode, std::int64_t batch,
                              std::int64_t chunk) {
  // PLAN-1: dense prefill calls and decode steps are one chunk.
  if (mode != ChunkMode::sparse) return {Chunk{base, base + n, mode}};

  std::vector<Chunk> chunks;
  std::int64_t batch_begin = base;
  while (batch_begin < base + n) {
    const std::int64_t batch_end = std::min(batch_begin + batch, base + n);
    std::int64_t begin = batch_begin;  // PLAN-2
    while (begin < batch_end) {
      const std::int64_t end = std::min(begin + chunk, batch_end);
      chunks.push_back(Chunk{begin, end, mode});
      begin = end;
    }
    batch_begin = batch_end;
  }
  return chunks;
}

}  // namespace headwater::reference
