#include "core/chunk_plan.hpp"

#include <algorithm>

#include "headwater/testing/sabotage.hpp"

namespace headwater::core {

void append_sparse_chunks(std::int64_t base, std::int64_t n, std::int64_t batch, std::int64_t chunk,
                          List<Chunk>& plan) {
  const std::int64_t end = base + n;
  std::int64_t begin = base;
  while (begin < end) {
    std::int64_t batch_end = std::min(begin + batch, end);
    if (HEADWATER_SABOTAGE("core.plan.ignore_batches")) batch_end = end;
    while (begin < batch_end) {
      std::int64_t chunk_end = std::min(begin + chunk, batch_end);
      if (HEADWATER_SABOTAGE("core.plan.short_rest_joined") && batch_end - chunk_end < chunk)
        chunk_end = batch_end;
      plan.push_back({begin, chunk_end, ChunkMode::sparse});
      begin = chunk_end;
    }
  }
}

}  // namespace headwater::core
