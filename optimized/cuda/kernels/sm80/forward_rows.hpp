#pragma once

#include "cuda/kernels/entries.hpp"
#include "cuda/kernels/sm80/forward.hpp"

/// Two kernels of a head size: one warp for few rows (short chunks, decode), four for the others; and the same without values.
#define HEADWATER_CUDA_FORWARD(name, Unit, d, dv, keys, per_sm)                         \
  HEADWATER_CUDA_KERNEL(forward_##name##_16_rows, ForwardParams, 32, 2 * (per_sm),      \
                        ::headwater::cuda::forward<ForwardShape<Unit, d, dv, keys, 1>>) \
  HEADWATER_CUDA_KERNEL(forward_##name##_64_rows, ForwardParams, 128, per_sm,           \
                        ::headwater::cuda::forward<ForwardShape<Unit, d, dv, keys, 4>>) \
  HEADWATER_CUDA_KERNEL(softmax_##name##_16_rows, ForwardParams, 32, 2 * (per_sm),      \
                        ::headwater::cuda::forward<SoftmaxShape<Unit, d, dv, keys, 1>>) \
  HEADWATER_CUDA_KERNEL(softmax_##name##_64_rows, ForwardParams, 128, per_sm,           \
                        ::headwater::cuda::forward<SoftmaxShape<Unit, d, dv, keys, 4>>)
#define HEADWATER_CUDA_FORWARD_ROWS(name, Unit, d, dv, keys)                                           \
  forward_entry<ForwardShape<Unit, d, dv, keys, 1>>(HEADWATER_CUDA_ROW(forward_##name##_16_rows)),     \
      forward_entry<ForwardShape<Unit, d, dv, keys, 4>>(HEADWATER_CUDA_ROW(forward_##name##_64_rows)), \
      forward_entry<SoftmaxShape<Unit, d, dv, keys, 1>>(HEADWATER_CUDA_ROW(softmax_##name##_16_rows)), \
      forward_entry<SoftmaxShape<Unit, d, dv, keys, 4>>(HEADWATER_CUDA_ROW(softmax_##name##_64_rows))

namespace headwater::cuda {

template <class Shape>
KernelEntry forward_entry(const Kernel& kernel) {
  static_assert(Shape::kShared <= kSharedLimitSm80);
  constexpr Stage kStage = Shape::kSeesValues ? Stage::forward : Stage::softmax;
  return {kernel,       kStage,       Shape::Unit::kType, Shape::kD, Shape::kDv,
          Shape::kRows, Shape::kKeys, Shape::kShared,     0};
}

}  // namespace headwater::cuda
