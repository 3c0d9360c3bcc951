#pragma once

#include "cuda/kernels/sm90/fragments.hpp"
#include "cuda/kernels/sm90/shared_tile.hpp"
#include "cuda/kernels/sm90/tensor_map.hpp"

/// What the warp-specialised kernels share: one warpgroup of which one thread copies, two that compute.
namespace headwater::cuda::sm90 {

inline constexpr int kConsumers = 2;
inline constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
inline constexpr int kConsumerWarps = kConsumers * kWarpgroup / 32;
/// Registers of a thread, by role: (24 + 2 * 240) * 128 of the multiprocessor's 65536.
inline constexpr int kProducerRegisters = 24;
inline constexpr int kConsumerRegisters = 240;
static_assert((kProducerRegisters + kConsumers * kConsumerRegisters) * kWarpgroup <= 65536);

/// Copies a tile: one box for each line of its columns. (chunk, head) of the map's view.
template <class Tile, class Machine>
HEADWATER_CUDA_FUNCTION void load_tile(Machine& machine, Tile& tile, const TensorMap& map,
                                       typename Machine::Barrier& full, int token, int chunk, int head) {
  HEADWATER_CUDA_UNROLL
  for (int box = 0; box < Tile::kBoxes; ++box) {
    machine.load_box(tile.elements + box * (Tile::kBoxBytes / 2), map, full, box * kLineElements, token,
                     chunk, head);
  }
}

template <class Machine>
HEADWATER_CUDA_FUNCTION int consumer_of(const Machine& machine) {
  return machine.warpgroup() - 1;
}

template <class Machine>
HEADWATER_CUDA_FUNCTION int lane_of_warpgroup(const Machine& machine) {
  return machine.thread() % kWarpgroup;
}

/// A consumer's warp has read a stage: one of the kConsumerWarps arrivals its barrier counts.
template <class Machine>
HEADWATER_CUDA_FUNCTION void release(Machine& machine, typename Machine::Barrier& empty) {
  machine.warp_sync();
  if (machine.thread() % 32 == 0) machine.arrive(empty);
}

}  // namespace headwater::cuda::sm90
