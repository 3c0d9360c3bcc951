#pragma once

#include <cstdint>

#include "cuda/kernels/platform/numbers.hpp"
#include "cuda/kernels/sm90/fragments.hpp"
#include "cuda/kernels/sm90/raw_params.hpp"
#include "cuda/kernels/sm90/roles.hpp"
#include "cuda/kernels/sm90/softmax_rows.hpp"

/// What becomes of the outputs of a row: kept unfinished in F32, or written where a caller has them.
namespace headwater::cuda::sm90 {

/// The first column that a thread has of a row, in accumulator 0.
template <class Machine>
HEADWATER_CUDA_FUNCTION int first_column(const Machine& machine) {
  return accumulator_place(lane_of_warpgroup(machine), 0).column;
}

/// Calls pair(c, i) for each pair of neighbouring columns below `columns` of row r that this thread has, in its accumulators
/// i and i + 1. Columns are counted from its first one: so counted they are constants, which take no registers.
template <int kOutputs, class Pair>
HEADWATER_CUDA_FUNCTION void for_column_pairs(int r, int columns, const Pair& pair) {
  HEADWATER_CUDA_UNROLL
  for (int i = 2 * r; i < kOutputs; i += 4) {
    const int c = accumulator_place(0, i).column;
    if (c < columns) pair(c, i);
  }
}

/// Row r as it is, times `factor`: with one store a pair where all rows begin at pairs.
template <class Machine, int kOutputs>
HEADWATER_CUDA_FUNCTION void keep_row(Machine& machine, float* to, int dv, int r, float factor,
                                      const float (&out)[kOutputs]) {
  const bool pairs = dv % 2 == 0;
  to += first_column(machine);
  dv -= first_column(machine);
  if (pairs) {
    for_column_pairs<kOutputs>(r, dv, [&](int column, int i) {
      machine.store_pair(to + column, out[i] * factor, out[i + 1] * factor);
    });
  } else {
    for_column_pairs<kOutputs>(r, dv, [&](int column, int i) {
      to[column] = out[i] * factor;
      if (column + 1 < dv) to[column + 1] = out[i + 1] * factor;
    });
  }
}

/// What keep_row left of row r. All of it is on its way together.
template <class Machine, int kOutputs>
HEADWATER_CUDA_FUNCTION void read_row(Machine& machine, const float* row, int dv, int r,
                                      float (&out)[kOutputs]) {
  const bool pairs = dv % 2 == 0;
  row += first_column(machine);
  dv -= first_column(machine);
  if (pairs) {
    for_column_pairs<kOutputs>(
        r, dv, [&](int column, int i) { machine.load_pair(row + column, out[i], out[i + 1]); });
  } else {
    for_column_pairs<kOutputs>(r, dv, [&](int column, int i) {
      out[i] = row[column];
      if (column + 1 < dv) out[i + 1] = row[column + 1];
    });
  }
}

/// Row r of two passes, each times its own factor.
template <int kOutputs>
HEADWATER_CUDA_FUNCTION void join_row(int r, float own, float other, const float (&row)[kOutputs],
                                      float (&out)[kOutputs]) {
  HEADWATER_CUDA_UNROLL
  for (int i = 0; i < kOutputs; ++i) {
    if (row_of(i) == r) out[i] = out[i] * own + row[i] * other;
  }
}

/// read_row and join_row at once, where registers for a second row are short.
template <class Machine, int kOutputs>
HEADWATER_CUDA_FUNCTION void join_kept_row(Machine& machine, const float* row, int dv, int r, float own,
                                           float other, float (&out)[kOutputs]) {
  const bool pairs = dv % 2 == 0;
  row += first_column(machine);
  dv -= first_column(machine);
  for_column_pairs<kOutputs>(r, dv, [&](int column, int i) {
    float first = 0.0f;
    float second = 0.0f;
    if (pairs) {
      machine.load_pair(row + column, first, second);
    } else {
      first = row[column];
      if (column + 1 < dv) second = row[column + 1];
    }
    out[i] = out[i] * own + first * other;
    out[i + 1] = out[i + 1] * own + second * other;
  });
}

HEADWATER_CUDA_FUNCTION std::uint32_t narrow(DType type, float x) {
  return type == DType::bf16 ? bf16_from_float(x) : f16_from_float(x);
}

HEADWATER_CUDA_FUNCTION void write_one(const RowOutputs& to, std::int64_t at, float x) {
  if (to.type == DType::f32) {
    static_cast<float*>(to.data)[at] = x;
  } else {
    static_cast<std::uint16_t*>(to.data)[at] = static_cast<std::uint16_t>(narrow(to.type, x));
  }
}

/// Row r of `head` times `factor`, finished: row `row` of `to`.
template <class Machine, int kOutputs>
HEADWATER_CUDA_FUNCTION void write_row(Machine& machine, const RowOutputs& to, int head, std::int64_t row,
                                       int dv, int r, float factor, const float (&out)[kOutputs]) {
  const std::int64_t begin = row * to.row_stride + head * to.head_stride + first_column(machine);
  dv -= first_column(machine);
  if (!to.pairs) {
    for_column_pairs<kOutputs>(r, dv, [&](int column, int i) {
      write_one(to, begin + column, out[i] * factor);
      if (column + 1 < dv) write_one(to, begin + column + 1, out[i + 1] * factor);
    });
  } else if (to.type == DType::f32) {
    float* at = static_cast<float*>(to.data) + begin;
    for_column_pairs<kOutputs>(r, dv, [&](int column, int i) {
      machine.store_pair(at + column, out[i] * factor, out[i + 1] * factor);
    });
  } else {
    auto* at = static_cast<std::uint16_t*>(to.data) + begin;
    for_column_pairs<kOutputs>(r, dv, [&](int column, int i) {
      machine.store_word(at + column, narrow(to.type, out[i] * factor) | narrow(to.type, out[i + 1] * factor)
                                                                             << 16);
    });
  }
}

/// FUSE-1: the log-sum-exp of a finished row, by one lane of the four that share it.
template <class Machine>
HEADWATER_CUDA_FUNCTION void write_lse(Machine& machine, const RowOutputs& to, int head, std::int64_t row,
                                       float max, float sum) {
  if (to.lse == nullptr || machine.thread() % 4 != 0) return;
  to.lse[head * to.lse_stride + row] = kLn2 * (max + machine.log2(sum));
}

}  // namespace headwater::cuda::sm90
