#include "runtime/serve/prompt_atlas.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace headwater::runtime {
namespace {

std::int64_t column_of(std::int64_t tokens) {
  std::int64_t column = PromptAtlas::kFewestTokens;
  while (column < (tokens + PromptAtlas::kMostColumns - 1) / PromptAtlas::kMostColumns) column *= 2;
  return column;
}

}  // namespace

PromptAtlas::PromptAtlas(const Shape& shape, std::vector<std::int64_t> windows, std::int64_t tokens)
    : shape_(shape), windows_(std::move(windows)), tokens_(tokens), column_(column_of(tokens)) {}

/// That which has the chunk's first token: the last one, a longer one, or a new one.
PromptAtlas::Row& PromptAtlas::row_of(const Chunk& chunk) {
  const auto has = [&](const Row& row) { return row.begin <= chunk.begin && chunk.begin < row.end; };
  const auto found = std::find_if(rows_.rbegin(), rows_.rend(), has);
  if (found != rows_.rend()) return *found;
  if (rows_.empty() || rows_.back().end != chunk.begin || chunk.end - rows_.back().begin > column_) {
    const auto cells = static_cast<std::size_t>(layers() * columns());
    rows_.push_back({chunk.begin, chunk.end, std::vector<float>(cells), std::vector<float>(cells)});
  }
  rows_.back().end = chunk.end;
  return rows_.back();
}

void PromptAtlas::add(const ChunkRecord& record) {
  const Chunk& chunk = record.chunk;
  Row& row = row_of(chunk);
  const auto queries = static_cast<float>(chunk.end - chunk.begin);
  float* const read = row.read.data() + record.layer * columns();
  float* const possible = row.possible.data() + record.layer * columns();
  for (std::int64_t first = 0; first < chunk.begin; first += column_)
    possible[first / column_] += queries * static_cast<float>(std::min(column_, chunk.begin - first));

  const std::int64_t window = windows_[static_cast<std::size_t>(record.layer)];
  if (window == 0 && chunk.mode == ChunkMode::sparse) {
    const std::int64_t sets =
        record.query_blocks > 0 ? shape_.n_head_kv * record.query_blocks : shape_.n_head;
    const float weight = queries / static_cast<float>(sets);
    for (std::int64_t set = 0; set < sets; ++set) {
      const std::int32_t* const entries = record.memory + set * record.memory_stride;
      for (std::int64_t i = 0; i < record.memory_count && entries[i] >= 0; ++i)
        read[entries[i] / column_] += weight;
    }
    return;
  }
  const std::int64_t oldest = window == 0 ? 0 : std::max<std::int64_t>(0, chunk.begin - window + 1);
  for (std::int64_t position = oldest; position < chunk.begin; ++position) {
    const auto see = static_cast<float>(window - (chunk.begin - position));
    read[position / column_] += window == 0 ? queries : std::min(queries, see);
  }
}

std::vector<std::uint8_t> PromptAtlas::shares() const {
  constexpr float kAll = 255;
  std::vector<std::uint8_t> shares;
  shares.reserve(rows_.size() * static_cast<std::size_t>(layers() * columns()));
  for (const Row& row : rows_) {
    for (std::size_t i = 0; i < row.read.size(); ++i) {
      const float share = row.possible[i] > 0 ? std::min(1.0F, row.read[i] / row.possible[i]) : 0.0F;
      shares.push_back(static_cast<std::uint8_t>(std::lround(kAll * share)));
    }
  }
  return shares;
}

}  // namespace headwater::runtime
