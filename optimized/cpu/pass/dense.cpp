#include "cpu/pass/dense.hpp"

#include <algorithm>

namespace headwater::cpu {

DensePass::DensePass(SessionData& data)
    : data_(data), decode_(data), lse_(core::checked_product(data.shape.n_head, data.shape.capacity)) {}

void DensePass::run(const LayerCall& call) {
  const Chunk& chunk = call.chunks.front();
  const LseRows lse = shown(chunk);
  if (decode_.takes(chunk)) {
    const DecodePass::Decode decode{&decode_, &call, lse};
    DecodePass::run(data_.workers, {&decode, 1});
  } else {
    run_blocks(call, lse);
  }
  if (!call.observer) return;
  ChunkRecord record;
  record.layer = call.layer;
  record.chunk = chunk;
  record.row_stride = lse.stride;
  record.lse = lse.data;
  call.observer(record);
}

void DensePass::run_blocks(const LayerCall& call, const LseRows& lse) {
  const Chunk& chunk = call.chunks.front();
  const std::int64_t heads = data_.shape.n_head;
  const std::int64_t share = call.arithmetic.heads_share_blocks() ? heads / data_.shape.n_head_kv : 1;
  const std::int64_t sets = heads / share;
  call.arithmetic.prepare_context(call, chunk.end);
  // Groups of whole runs of kGroupRows positions, so that their blocks end where tiles of keys do; few rows are one group.
  // Later groups see more keys: dealt out one by one from the longest, the shares of the threads differ by about one task.
  const bool few = length(chunk) <= 2 * kGroupRows;
  const std::int64_t first_group = few ? 0 : chunk.begin / kGroupRows;
  const std::int64_t groups = few ? 1 : (chunk.end + kGroupRows - 1) / kGroupRows - first_group;
  const std::int64_t blocks =
      (share * (few ? length(chunk) : kGroupRows) + kBlockRows - 1) / kBlockRows;  // of a group and a set
  const std::int64_t task_blocks = few ? few_blocks(blocks, sets) : kGroupRows / kBlockRows;
  const std::int64_t parts = (blocks + task_blocks - 1) / task_blocks;
  data_.workers.each_in_turn(groups * sets * parts, [&](const Workers::Task& task) {
    const std::int64_t group = first_group + groups - 1 - task.index / (sets * parts);
    const std::int64_t begin = few ? chunk.begin : std::max(group * kGroupRows, chunk.begin);
    const std::int64_t end = few ? chunk.end : std::min((group + 1) * kGroupRows, chunk.end);
    const std::int64_t first_head = task.index / parts % sets * share;
    const std::int64_t first_lane = task.index % parts * task_blocks * kBlockRows;
    const std::int64_t last_lane = std::min(first_lane + task_blocks * kBlockRows, share * (end - begin));
    HeadRows rows[kGroupRows];
    std::size_t n = 0;
    for (std::int64_t lane = first_lane; lane < last_lane;) {
      const std::int64_t head = lane / (end - begin);
      const std::int64_t first = lane - head * (end - begin);
      const std::int64_t some = std::min(end - begin - first, last_lane - lane);
      rows[n++] = {first_head + head, begin + first, begin + first + some};
      lane += some;
    }
    if (n > 0) call.arithmetic.attend_context(call, {rows, n}, lse, task.thread);
  });
}

std::int64_t DensePass::few_blocks(std::int64_t blocks, std::int64_t sets) const {
  const auto turns = [&](std::int64_t tasks) {
    return (tasks + data_.options.threads - 1) / data_.options.threads;
  };
  std::int64_t best = kGroupRows / kBlockRows;
  const auto time = [&](std::int64_t some) { return turns(sets * ((blocks + some - 1) / some)) * some; };
  for (std::int64_t some = best; some-- > 1;) {
    if (time(some) < time(best)) best = some;
  }
  return best;
}

}  // namespace headwater::cpu
