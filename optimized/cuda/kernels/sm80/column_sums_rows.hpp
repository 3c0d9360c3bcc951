#pragma once

#include "cuda/kernels/entries.hpp"
#include "cuda/kernels/sm80/column_sums.hpp"

#define HEADWATER_CUDA_COLUMN_SUMS(name, Unit, d, queries, per_sm)                            \
  HEADWATER_CUDA_KERNEL(column_sums_##name##_16_keys, ColumnSumsParams, 32, 2 * (per_sm),     \
                        ::headwater::cuda::column_sums<ColumnSumsShape<Unit, d, queries, 1>>) \
  HEADWATER_CUDA_KERNEL(column_sums_##name##_64_keys, ColumnSumsParams, 128, per_sm,          \
                        ::headwater::cuda::column_sums<ColumnSumsShape<Unit, d, queries, 4>>)
#define HEADWATER_CUDA_COLUMN_SUMS_ROWS(name, Unit, d, queries)                                              \
  column_sums_entry<ColumnSumsShape<Unit, d, queries, 1>>(HEADWATER_CUDA_ROW(column_sums_##name##_16_keys)), \
      column_sums_entry<ColumnSumsShape<Unit, d, queries, 4>>(                                               \
          HEADWATER_CUDA_ROW(column_sums_##name##_64_keys))

namespace headwater::cuda {

template <class Shape>
KernelEntry column_sums_entry(const Kernel& kernel) {
  static_assert(Shape::kShared <= kSharedLimitSm80);
  return {kernel,       Stage::column_sums, Shape::Unit::kType, Shape::kD, 0,
          Shape::kKeys, Shape::kQueries,    Shape::kShared,     0};
}

}  // namespace headwater::cuda
