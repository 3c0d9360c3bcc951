#pragma once

/// The list of kernels, one table for each type of arithmetic. Included with HEADWATER_CUDA_SIDE set to the namespace of
/// the compiler at work (on_host; on_gpu for nvcc): what nvcc and g++ make of one source are different programs.
#include "cuda/kernels/combine.hpp"
#include "cuda/kernels/gather.hpp"
#include "cuda/kernels/score_sums.hpp"
#include "cuda/kernels/select.hpp"
#include "cuda/kernels/sm80/column_sums_rows.hpp"
#include "cuda/kernels/sm80/forward_rows.hpp"
#include "cuda/kernels/store_rows.hpp"

namespace headwater::cuda::HEADWATER_CUDA_SIDE {

Entries f32_entries();
Entries bf16_entries();
Entries f16_entries();
Entries row_entries();
/// sm90/: by type and rule.
Entries sm90_bf16_entries();
Entries sm90_mapped_bf16_entries();
Entries sm90_f16_entries();
Entries sm90_mapped_f16_entries();

}  // namespace headwater::cuda::HEADWATER_CUDA_SIDE

/// Head sizes on tensor cores; others take the next larger one, and beyond 256 slices of 64. A key tile of 32 leaves
/// registers for 256 value columns.
#define HEADWATER_CUDA_TENSOR_SIZES(X, Y, type, Unit) \
  X(type##_64, Unit, 64, 64, 64, 3)                   \
  X(type##_128, Unit, 128, 128, 64, 2)                \
  X(type##_256, Unit, 256, 256, 32, 1)                \
  Y(type##_64, Unit, 64, 64, 3)                       \
  Y(type##_128, Unit, 128, 64, 2)                     \
  Y(type##_256, Unit, 256, 64, 1)

/// F32 arithmetic takes rows of every type, wider ones in slices of 64. The size of 16 is for small problems, most of the
/// conformance kit's: on the emulation they would take four times as long.
#define HEADWATER_CUDA_FLOAT_SIZES(X, Y) \
  X(f32_16, FloatUnit, 16, 16, 32, 4)    \
  X(f32_64, FloatUnit, 64, 64, 32, 2)    \
  Y(f32_16, FloatUnit, 16, 32, 4)        \
  Y(f32_64, FloatUnit, 64, 32, 2)

#define HEADWATER_CUDA_FORWARD_ENTRY(name, Unit, d, dv, keys, per_sm) \
  HEADWATER_CUDA_FORWARD_ROWS(name, Unit, d, dv, keys),
#define HEADWATER_CUDA_COLUMN_SUMS_ENTRY(name, Unit, d, queries, per_sm) \
  HEADWATER_CUDA_COLUMN_SUMS_ROWS(name, Unit, d, queries),
