#include "cli/support/calls.hpp"

#include <algorithm>

#include "headwater/testing/sabotage.hpp"

namespace headwater::cli {
namespace {

/// Tokens of a call below which its fixed costs begin to count; small batches are handed over several at a time.
constexpr std::int64_t kWorthwhileCall = 4096;

}  // namespace

void for_each_call(std::span<const StepItem> steps, const EffectiveOptions& options,
                   const std::function<void(const Call&)>& action) {
  const std::int64_t batches = (kWorthwhileCall + options.batch - 1) / options.batch;
  std::int64_t most = options.batch * batches;
  if (HEADWATER_SABOTAGE("cli.calls.cut_inside_a_batch")) most -= 1;
  std::int64_t base = 0;
  bool prefilling = false;
  bool sparse = false;
  for (std::size_t item = 0; item < steps.size(); ++item) {
    Step step = steps[item].step;
    if (step.kind == Step::Kind::decode) {
      action({step, base, item, ChunkMode::decode});
      base += step.n;
      prefilling = false;
      continue;
    }
    if (!prefilling) {
      if (step.turn_length == 0) step.turn_length = step.n;
      sparse = options.sparse_turn(step.turn_length, base == 0) && !options.dense_layer(0);
      prefilling = true;
    }
    const std::int64_t end = base + step.n;
    while (base < end) {
      const std::int64_t n = sparse ? std::min(most, end - base) : end - base;
      action({Step::prefill(n, step.turn_length), base, item, sparse ? ChunkMode::sparse : ChunkMode::dense});
      step.turn_length = 0;  // said once
      base += n;
    }
  }
}

std::uint64_t pairs_of(std::int64_t n, std::int64_t before) {
  const auto queries = static_cast<std::uint64_t>(n);
  return queries * (queries + 1) / 2 + queries * static_cast<std::uint64_t>(before);
}

Work measure(std::span<const StepItem> steps, const EffectiveOptions& options) {
  Work work;
  for_each_call(steps, options, [&](const Call& call) {
    work.longest_call = std::max(work.longest_call, call.step.n);
    if (call.mode != ChunkMode::sparse) {
      ++work.chunks;
      work.pairs += pairs_of(call.step.n, call.base);
      return;
    }
    for (std::int64_t batch = 0; batch < call.step.n; batch += options.batch) {
      const std::int64_t batch_end = std::min(batch + options.batch, call.step.n);
      for (std::int64_t begin = batch; begin < batch_end; begin += options.chunk) {
        const std::int64_t first = call.base + begin;
        const std::int64_t rows = std::min(options.chunk, batch_end - begin);
        const std::int64_t memory = options.memory_count(first);
        ++work.chunks;
        work.pairs += pairs_of(rows, memory);
        if (options.select == Select::h2o) {
          work.memory_entries += memory;
          continue;
        }
        const std::int64_t sets = options.query_blocks(rows);
        const std::int64_t candidates = options.candidate_blocks(first);
        const std::int64_t voted = options.voted_tokens(first);
        work.memory_entries += sets * memory;
        work.query_blocks += sets;
        work.most_candidates = std::max(work.most_candidates, candidates);
        work.most_voted = std::max(work.most_voted, voted);
        work.block_votes += sets * candidates;
        work.token_votes += sets * voted;
      }
    }
  });
  return work;
}

}  // namespace headwater::cli
