#pragma once

#include <cstdint>

#include "cpu/layer.hpp"

namespace headwater::cpu {

/// All chunks of a call whose sets the queries choose, so that neither chunks nor heads depend on each other. Where the heads
/// are equal shares for the threads, of_head(window, head_kv, thread) is a task, and a thread computes all chunks of a
/// key/value head before those of its next; else, and for an observer, who is shown all heads of a chunk, of_chunk(window)
/// shares the work. A window is one chunk.
template <class OfHead, class OfChunk>
void deal_out(const LayerCall& call, const OfHead& of_head, const OfChunk& of_chunk) {
  const std::int64_t heads = call.data.shape.n_head_kv;
  const auto chunks = static_cast<std::int64_t>(call.chunks.size());
  const auto window = [&](std::int64_t index) {
    const auto i = static_cast<std::size_t>(index);
    return Window{call.chunks.subspan(i, 1), call.chunks[i].begin};
  };
  if (call.observer || heads % call.data.options.threads != 0) {
    for (std::int64_t i = 0; i < chunks; ++i) of_chunk(window(i));
    return;
  }
  call.data.workers.each(
      heads * chunks,
      [&](const Workers::Task& task) {
        of_head(window(task.index % chunks), task.index / chunks, task.thread);
      },
      Workers::Asks::at_start);
}

}  // namespace headwater::cpu
