#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "headwater/session.hpp"
#include "reference/storage.hpp"

/// Chapter 10 of the spec: what one attend() call does with the chunks of a layer (SCHED-1, SCHED-2). All ask to stop
/// (INTR-1) once for each chunk and query head, which is more often than for each key/value head.
namespace headwater::reference {

/// One layer of one step. The rows of k and v are stored already.
struct LayerStep {
  const Shape& shape;  ///< of the layer
  const Options& options;
  const EffectiveOptions& effective;
  const Observer& observer;
  const Interrupt& interrupt;
  LayerStorage& storage;
  std::vector<Checkpoint>& checkpoints;  ///< where those of the step's sparse chunks go
  std::int64_t layer = 0;
  std::int64_t base = 0;  ///< position of row 0 of q and out
  Rows q;
  MutableRows out;
  LseOutput lse;
};

/// INTR-1. Errors: interrupted; what the caller's function throws.
void ask_to_stop(const LayerStep& step);

/// STATE-6: rounds the rows of n new tokens once and stores them at positions base, base + 1, ...
void store_rows(LayerStorage& storage, std::int64_t base, std::int64_t n, const Rows& k, const Rows& v);

/// SCHED-1: the intra pass of all chunks, then chunk after chunk the rest.
void attend_layer_major(LayerStep& step, std::span<const Chunk> chunks);

/// SCHED-2: chunk after chunk, intra pass and the rest.
void attend_chunk_major(LayerStep& step, std::span<const Chunk> chunks);

/// DEC-1, STATE-3: a decode step or a dense prefill call, which is one chunk.
void attend_dense(LayerStep& step, const Chunk& chunk);

}  // namespace headwater::reference
