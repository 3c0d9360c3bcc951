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
  call.arithmetic.prepare_context(call, chunk.end);
  // Groups of whole runs of kGroupRows positions, so that their blocks end where tiles of keys do. Later groups see
  // more keys: dealt out one by one from the longest, the shares of the threads differ by about one group.
  const std::int64_t first_group = chunk.begin / kGroupRows;
  const std::int64_t groups = (chunk.end + kGroupRows - 1) / kGroupRows - first_group;
  data_.workers.each_in_turn(groups * heads, [&](const Workers::Task& task) {
    const std::int64_t group = first_group + groups - 1 - task.index / heads;
    const std::int64_t begin = std::max(group * kGroupRows, chunk.begin);
    const std::int64_t end = std::min((group + 1) * kGroupRows, chunk.end);
    call.arithmetic.attend_context(call, task.index % heads, begin, end, lse, task.thread);
  });
}

}  // namespace headwater::cpu
