#pragma once

#include <cstdint>

#include "cuda/kernels/sm90/annotations.hpp"

namespace headwater::cuda::sm90 {

/// Where a producer or a consumer is in a ring of `Stages` stages. Both count the same sequence of tiles; a stage's barriers
/// change phase once a round. wait(full[stage()], parity()) for a consumer; wait(empty[stage()], parity() ^ 1) for a
/// producer: before the first round that phase counts as done, so that all stages start empty.
template <int Stages>
class Ring {
 public:
  [[nodiscard]] HEADWATER_CUDA_BOTH int stage() const { return stage_; }
  [[nodiscard]] HEADWATER_CUDA_BOTH std::uint32_t parity() const { return parity_; }
  HEADWATER_CUDA_BOTH void advance() {
    if (++stage_ == Stages) {
      stage_ = 0;
      parity_ ^= 1u;
    }
  }

 private:
  int stage_ = 0;
  std::uint32_t parity_ = 0;
};

}  // namespace headwater::cuda::sm90
