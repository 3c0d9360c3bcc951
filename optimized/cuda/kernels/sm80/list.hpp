#pragma once

/// Kernels of mma.sync, and of F32 on CUDA cores. Included by a unit of kernels/list.in with HEADWATER_CUDA_SIDE set.
#include "cuda/kernels/entries.hpp"
#include "cuda/kernels/sm80/column_sums.hpp"
#include "cuda/kernels/sm80/forward.hpp"
#include "cuda/kernels/sm80/votes.hpp"

namespace headwater::cuda {

template <class Shape>
KernelEntry forward_entry(const Kernel& kernel) {
  static_assert(Shape::kShared <= kSharedLimitSm80);
  constexpr Stage kStage = Shape::kChosen       ? Stage::chosen_forward
                           : Shape::kSeesValues ? Stage::forward
                                                : Stage::softmax;
  return {kernel,       kStage,       Shape::Unit::kType, Shape::kD, Shape::kDv,
          Shape::kRows, Shape::kKeys, Shape::kShared,     0};
}

template <class Shape>
KernelEntry column_sums_entry(const Kernel& kernel) {
  static_assert(Shape::kShared <= kSharedLimitSm80);
  return {kernel,       Stage::column_sums, Shape::Unit::kType, Shape::kD, 0,
          Shape::kKeys, Shape::kQueries,    Shape::kShared,     0};
}

template <class Shape>
KernelEntry vote_entry(const Kernel& kernel) {
  static_assert(Shape::kShared <= kSharedLimitSm80);
  return {kernel, Stage::votes, Shape::Unit::kType, 0, 0, Shape::kRows, Shape::kKeys, Shape::kShared, 0};
}

}  // namespace headwater::cuda

/// Head sizes on tensor cores; others take the next larger one, and beyond 256 slices of 64. A key tile of 32 leaves
/// registers for 256 value columns. X(name, Unit, d, dv, keys of a tile, blocks that fit on one SM) of the forwards,
/// Y(name, Unit, d, queries of a tile, blocks) of the column sums.
#define HEADWATER_SM80_TENSOR_SIZES(X, Y, type, Unit) \
  X(type##_64, Unit, 64, 64, 64, 3)                   \
  X(type##_128, Unit, 128, 128, 64, 2)                \
  X(type##_256, Unit, 256, 256, 32, 1)                \
  Y(type##_64, Unit, 64, 64, 3)                       \
  Y(type##_128, Unit, 128, 64, 2)                     \
  Y(type##_256, Unit, 256, 64, 1)

/// F32 arithmetic takes rows of every type, wider ones in slices of 64. The size of 16 is for small problems, most of the
/// conformance kit's: on the emulation they would take four times as long.
#define HEADWATER_SM80_FLOAT_SIZES(X, Y, type, Unit) \
  X(type##_16, Unit, 16, 16, 32, 4)                  \
  X(type##_64, Unit, 64, 64, 32, 2)                  \
  Y(type##_16, Unit, 16, 32, 4)                      \
  Y(type##_64, Unit, 64, 32, 2)

/// Two kernels of a head size: one warp for few rows (short chunks, decode), four for the others; and the same without values,
/// and for chosen keys.
#define HEADWATER_SM80_FORWARD(name, Unit, d, dv, keys, per_sm)                         \
  HEADWATER_CUDA_KERNEL(forward_##name##_16_rows, ForwardParams, 32, 2 * (per_sm),      \
                        ::headwater::cuda::forward<ForwardShape<Unit, d, dv, keys, 1>>) \
  HEADWATER_CUDA_KERNEL(forward_##name##_64_rows, ForwardParams, 128, per_sm,           \
                        ::headwater::cuda::forward<ForwardShape<Unit, d, dv, keys, 4>>) \
  HEADWATER_CUDA_KERNEL(softmax_##name##_16_rows, ForwardParams, 32, 2 * (per_sm),      \
                        ::headwater::cuda::forward<SoftmaxShape<Unit, d, dv, keys, 1>>) \
  HEADWATER_CUDA_KERNEL(softmax_##name##_64_rows, ForwardParams, 128, per_sm,           \
                        ::headwater::cuda::forward<SoftmaxShape<Unit, d, dv, keys, 4>>) \
  HEADWATER_CUDA_KERNEL(chosen_##name##_16_rows, ForwardParams, 32, 2 * (per_sm),       \
                        ::headwater::cuda::forward<ChosenShape<Unit, d, dv, keys, 1>>)  \
  HEADWATER_CUDA_KERNEL(chosen_##name##_64_rows, ForwardParams, 128, per_sm,            \
                        ::headwater::cuda::forward<ChosenShape<Unit, d, dv, keys, 4>>)
#define HEADWATER_SM80_COLUMN_SUMS(name, Unit, d, queries, per_sm)                            \
  HEADWATER_CUDA_KERNEL(column_sums_##name##_16_keys, ColumnSumsParams, 32, 2 * (per_sm),     \
                        ::headwater::cuda::column_sums<ColumnSumsShape<Unit, d, queries, 1>>) \
  HEADWATER_CUDA_KERNEL(column_sums_##name##_64_keys, ColumnSumsParams, 128, per_sm,          \
                        ::headwater::cuda::column_sums<ColumnSumsShape<Unit, d, queries, 4>>)

#define HEADWATER_SM80_FORWARD_ENTRIES(name, Unit, d, dv, keys, per_sm)                                \
  forward_entry<ForwardShape<Unit, d, dv, keys, 1>>(HEADWATER_CUDA_ROW(forward_##name##_16_rows)),     \
      forward_entry<ForwardShape<Unit, d, dv, keys, 4>>(HEADWATER_CUDA_ROW(forward_##name##_64_rows)), \
      forward_entry<SoftmaxShape<Unit, d, dv, keys, 1>>(HEADWATER_CUDA_ROW(softmax_##name##_16_rows)), \
      forward_entry<SoftmaxShape<Unit, d, dv, keys, 4>>(HEADWATER_CUDA_ROW(softmax_##name##_64_rows)), \
      forward_entry<ChosenShape<Unit, d, dv, keys, 1>>(HEADWATER_CUDA_ROW(chosen_##name##_16_rows)),   \
      forward_entry<ChosenShape<Unit, d, dv, keys, 4>>(HEADWATER_CUDA_ROW(chosen_##name##_64_rows)),
#define HEADWATER_SM80_COLUMN_SUMS_ENTRIES(name, Unit, d, queries, per_sm)                                   \
  column_sums_entry<ColumnSumsShape<Unit, d, queries, 1>>(HEADWATER_CUDA_ROW(column_sums_##name##_16_keys)), \
      column_sums_entry<ColumnSumsShape<Unit, d, queries, 4>>(                                               \
          HEADWATER_CUDA_ROW(column_sums_##name##_64_keys)),

/// Votes, by one kernel whatever their number: the bits of l depend on its cut. X(type, Unit, elements of a slice, blocks on one
/// SM): slices that leave little unused of rows of 72 and 144, those of summaries of 64 and 128 columns. F16 has no kernel:
/// its summaries are BF16 and its pooled queries F32.
#define HEADWATER_SM80_TENSOR_bf16_VOTES(X) X(bf16, TensorUnit<true>, 80, 4)
#define HEADWATER_SM80_TENSOR_f16_VOTES(X)
#define HEADWATER_SM80_FLOAT_f32_VOTES(X) X(f32, FloatUnit, 16, 3)
#define HEADWATER_SM80_VOTES(type, Unit, slice, per_sm)                   \
  HEADWATER_CUDA_KERNEL(votes_##type##_128_keys, VoteParams, 128, per_sm, \
                        ::headwater::cuda::vote<VoteShape<Unit, slice, 4>>)
#define HEADWATER_SM80_VOTES_ENTRIES(type, Unit, slice, per_sm) \
  vote_entry<VoteShape<Unit, slice, 4>>(HEADWATER_CUDA_ROW(votes_##type##_128_keys)),

/// Kernels and entries of one arithmetic; SIZES: TENSOR or FLOAT.
#define HEADWATER_SM80_LIST(type, SIZES, Unit)                                                        \
  HEADWATER_SM80_##SIZES##_SIZES(HEADWATER_SM80_FORWARD, HEADWATER_SM80_COLUMN_SUMS, type, Unit)      \
      HEADWATER_SM80_##SIZES##_##type##_VOTES(HEADWATER_SM80_VOTES) Entries sm80_##type##_entries() { \
    static const KernelEntry entries[] = {HEADWATER_SM80_##SIZES##_SIZES(                             \
        HEADWATER_SM80_FORWARD_ENTRIES, HEADWATER_SM80_COLUMN_SUMS_ENTRIES, type,                     \
        Unit) HEADWATER_SM80_##SIZES##_##type##_VOTES(HEADWATER_SM80_VOTES_ENTRIES)};                 \
    return entries;                                                                                   \
  }
