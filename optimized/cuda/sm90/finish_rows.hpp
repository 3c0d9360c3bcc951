#pragma once

#include <cstdint>

#include "cuda/device/numbers.hpp"
#include "cuda/sm90/fragments.hpp"
#include "cuda/sm90/raw_params.hpp"
#include "cuda/sm90/roles.hpp"
#include "cuda/sm90/softmax_rows.hpp"

/// What becomes of the outputs of a row: kept unfinished in F32, or written where a caller has them.
namespace headwater::cuda::sm90 {

/// Calls column(c, i) for each pair of neighbouring columns c and c + 1 below `dv` of row r that this thread has, in its
/// accumulators i and i + 1.
template <int kOutputs, class Machine, class Column>
HEADWATER_CUDA_DEVICE void for_column_pairs(const Machine& machine, int r, int dv, const Column& column) {
  HEADWATER_CUDA_UNROLL
  for (int i = 2 * r; i < kOutputs; i += 4) {
    const int c = accumulator_place(lane_of_warpgroup(machine), i).column;
    if (c < dv) column(c, i);
  }
}

/// Row r as it is, times `factor`: with one store a pair where all rows begin at pairs.
template <class Machine, int kOutputs>
HEADWATER_CUDA_DEVICE void keep_row(Machine& machine, float* to, int dv, int r, float factor,
                                    const float (&out)[kOutputs]) {
  const bool pairs = dv % 2 == 0;
  for_column_pairs<kOutputs>(machine, r, dv, [&](int column, int i) {
    if (pairs) {
      machine.store_pair(to + column, out[i] * factor, out[i + 1] * factor);
    } else {
      to[column] = out[i] * factor;
      if (column + 1 < dv) to[column + 1] = out[i + 1] * factor;
    }
  });
}

/// What keep_row left of row r.
template <class Machine, int kOutputs>
HEADWATER_CUDA_DEVICE void read_row(Machine& machine, const float* row, int dv, int r,
                                    float (&out)[kOutputs]) {
  const bool pairs = dv % 2 == 0;
  for_column_pairs<kOutputs>(machine, r, dv, [&](int column, int i) {
    if (pairs) {
      machine.load_pair(row + column, out[i], out[i + 1]);
    } else {
      out[i] = row[column];
      if (column + 1 < dv) out[i + 1] = row[column + 1];
    }
  });
}

HEADWATER_CUDA_DEVICE std::uint32_t narrow(DType type, float x) {
  return type == DType::bf16 ? bf16_from_float(x) : f16_from_float(x);
}

/// Row r of `head` times `factor`, finished: row `row` of `to`.
template <class Machine, int kOutputs>
HEADWATER_CUDA_DEVICE void write_row(Machine& machine, const RowOutputs& to, int head, std::int64_t row,
                                     int dv, int r, float factor, const float (&out)[kOutputs]) {
  const std::int64_t begin = row * to.row_stride + head * to.head_stride;
  if (to.type == DType::f32) {
    float* at = static_cast<float*>(to.data) + begin;
    for_column_pairs<kOutputs>(machine, r, dv, [&](int column, int i) {
      if (to.pairs) {
        machine.store_pair(at + column, out[i] * factor, out[i + 1] * factor);
      } else {
        at[column] = out[i] * factor;
        if (column + 1 < dv) at[column + 1] = out[i + 1] * factor;
      }
    });
    return;
  }
  auto* at = static_cast<std::uint16_t*>(to.data) + begin;
  for_column_pairs<kOutputs>(machine, r, dv, [&](int column, int i) {
    const std::uint32_t low = narrow(to.type, out[i] * factor);
    const std::uint32_t high = narrow(to.type, out[i + 1] * factor);
    if (to.pairs) {
      machine.store_word(at + column, low | high << 16);
    } else {
      at[column] = static_cast<std::uint16_t>(low);
      if (column + 1 < dv) at[column + 1] = static_cast<std::uint16_t>(high);
    }
  });
}

/// FUSE-1: the log-sum-exp of a finished row, by one lane of the four that share it.
template <class Machine>
HEADWATER_CUDA_DEVICE void write_lse(Machine& machine, const RowOutputs& to, int head, std::int64_t row,
                                     float max, float sum) {
  if (to.lse == nullptr || machine.thread() % 4 != 0) return;
  to.lse[head * to.lse_stride + row] = kLn2 * (max + machine.log2(sum));
}

}  // namespace headwater::cuda::sm90
