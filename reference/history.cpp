#include "reference/history.hpp"

#include <algorithm>

namespace headwater::reference {

History::History(const EffectiveOptions& options)
    : select_(options.select), checkpoints_(static_cast<std::size_t>(options.checkpoints)) {}

Turn History::turn() const { return steps_.empty() ? Turn{} : steps_.back().turn; }

std::span<const Chunk> History::plan() const {
  return steps_.empty() ? std::span<const Chunk>() : chunks().subspan(steps_.back().first_chunk);
}

// STATE-12
std::vector<std::int64_t> History::step_numbers() const {
  std::vector<std::int64_t> numbers;
  std::int64_t length = 0;
  for (const PastStep& step : steps_) {
    if (step.turn.state == SessionState::prefilling) length = step.turn.length;
    numbers.insert(numbers.end(), {static_cast<std::int64_t>(step.first_chunk), length});
  }
  return numbers;
}

void History::add(const Turn& turn, std::span<const Chunk> plan) {
  const std::size_t first_chunk = chunks_.size();
  chunks_.insert(chunks_.end(), plan.begin(), plan.end());
  try {
    steps_.push_back({turn, first_chunk});
  } catch (...) {
    chunks_.resize(first_chunk);
    throw;
  }
}

void History::drop_last() {
  chunks_.resize(steps_.back().first_chunk);
  steps_.pop_back();
}

// STATE-10
void History::settle() {
  std::size_t sparse_after = 0;  // sparse chunks after the one that is looked at
  for (auto chunk = chunks_.rbegin(); chunk != chunks_.rend(); ++chunk) {
    if (chunk->mode != ChunkMode::sparse) continue;
    if (sparse_after >= checkpoints_) {
      settled_end_ = std::max(settled_end_, chunk->end);  // what is settled stays settled
      return;
    }
    ++sparse_after;
  }
}

// STATE-12
void History::settle_all() {
  for (const Chunk& chunk : chunks_) {
    if (chunk.mode == ChunkMode::sparse) settled_end_ = chunk.end;
  }
}

const Chunk* History::sparse_chunk_around(std::int64_t n) const {
  for (const Chunk& chunk : chunks_) {
    if (chunk.mode == ChunkMode::sparse && chunk.begin < n && n < chunk.end) return &chunk;
  }
  return nullptr;
}

// STATE-10
bool History::can_end_at(std::int64_t n) const {
  if (n == 0 || select_ != Select::h2o) return true;
  return n >= settled_end_ && sparse_chunk_around(n) == nullptr;
}

// STATE-9
void History::truncate(std::int64_t n) {
  while (chunks_.back().begin >= n) chunks_.pop_back();
  chunks_.back().end = n;
  while (steps_.back().first_chunk >= chunks_.size()) steps_.pop_back();
}

void History::clear() {
  steps_.clear();
  chunks_.clear();
  settled_end_ = 0;
}

}  // namespace headwater::reference
