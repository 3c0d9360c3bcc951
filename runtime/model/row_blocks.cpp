#include <algorithm>

#include "runtime/model/projection.hpp"

namespace headwater::runtime {
namespace {

void cut_segment(std::int64_t first, std::int64_t rows, std::vector<RowBlock>& blocks) {
  while (rows > 0) {
    std::int64_t height = kBlockHeights.back();
    for (const std::int64_t candidate : kBlockHeights) {
      if (candidate > rows) continue;
      height = candidate;
      break;
    }
    const std::int64_t valid = std::min(height, rows);
    blocks.push_back({first, height, valid});
    first += valid;
    rows -= valid;
  }
}

}  // namespace

void cut_into_blocks(std::int64_t n, std::int64_t segment, std::vector<RowBlock>& blocks,
                     std::int64_t first) {
  for (std::int64_t begin = 0; begin < n; begin += segment) {
    cut_segment(first + begin, std::min(segment, n - begin), blocks);
  }
}

std::size_t most_blocks(std::int64_t n, std::int64_t segment) {
  // A segment of any length: its whole tallest blocks, and fewer of each lower height than make the next taller one.
  const std::int64_t length = std::min(n, segment);
  std::int64_t most = length / kBlockHeights.front() + 1;
  for (std::size_t i = 1; i < kBlockHeights.size(); ++i) most += kBlockHeights[i - 1] / kBlockHeights[i];
  return static_cast<std::size_t>(most * ((n + segment - 1) / segment));
}

}  // namespace headwater::runtime
