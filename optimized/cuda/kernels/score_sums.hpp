#pragma once

#include "cuda/kernels/elements.hpp"

namespace headwater::cuda {

inline constexpr int kScoreSumsThreads = 128;

/// Adds up the column sums of runs of queries in the order of the runs, and the whole to the scores of its tokens (INTER-2,
/// SCORE-3). Grid: heads x pieces of kScoreSumsThreads memory keys.
template <class Context>
HEADWATER_CUDA_FUNCTION void score_sums(Context& ctx, const ScoreSumsParams& p) {
  const int head = ctx.block_x();
  const int key = ctx.block_y() * kScoreSumsThreads + ctx.thread();
  if (key >= p.count) return;
  const int runs = HEADWATER_SABOTAGE("cuda.sm90.last_run_lost") && p.runs > 1 ? p.runs - 1 : p.runs;
  float sum = 0.0f;
  for (int run = 0; run < runs; ++run) {
    sum += p.partial_sums[(static_cast<std::int64_t>(head) * p.runs + run) * p.partial_stride + key];
  }
  p.sums[head * p.sums_stride + key] = sum;
  const std::int64_t score = head * p.capacity + p.positions[head * p.positions_stride + key];
  write_score(p.scores, p.scores_bf16, score, read_score(p.scores, p.scores_bf16, score) + sum);
}

}  // namespace headwater::cuda
