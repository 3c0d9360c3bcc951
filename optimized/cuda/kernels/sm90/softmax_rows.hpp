#pragma once

#include <cstdint>

#include "cuda/kernels/platform/numbers.hpp"
#include "cuda/kernels/sm90/fragments.hpp"

namespace headwater::cuda::sm90 {

inline constexpr float kMinusInfinity = -__builtin_huge_valf();
inline constexpr float kLn2 = 0.693147180559945309417232121458f;

/// Rows of a warpgroup's 64 that a thread holds parts of: `r` of accumulator i is row_of(i).
inline constexpr int kRowsOfThread = 2;
HEADWATER_CUDA_BOTH constexpr int row_of(int accumulator) { return accumulator / 2 % 2; }

/// Sum or maximum over the four lanes that share a row, in a fixed order; all four get it.
template <class Machine>
HEADWATER_CUDA_FUNCTION float quad_sum(Machine& machine, float x) {
  x += machine.shuffle_xor(x, 1);
  return x + machine.shuffle_xor(x, 2);
}

template <class Machine>
HEADWATER_CUDA_FUNCTION float quad_maximum(Machine& machine, float x) {
  x = machine.maximum(x, machine.shuffle_xor(x, 1));
  return machine.maximum(x, machine.shuffle_xor(x, 2));
}

/// 2^x for x <= 0 on the multiply-add pipe, for kernels that wait for the special function unit: 2^round(x) by the exponent
/// field, 2^(x - round(x)) by a polynomial with p(0) = 1 that is minimax on [-1/2, 1/2]. 0 from -127 on, so that a masked
/// logit weighs nothing.
template <class Machine>
HEADWATER_CUDA_FUNCTION float exp2_by_polynomial(Machine& machine, float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: a sum with it has no fraction left
  const float clamped = machine.maximum(x, -127.0f);
  const float shifted = clamped + kRound;
  const float fraction = clamped - (shifted - kRound);
  float p = 0.00132647238f;
  p = machine.multiply_add(p, fraction, 0.00967151299f);
  p = machine.multiply_add(p, fraction, 0.0555073358f);
  p = machine.multiply_add(p, fraction, 0.240222424f);
  p = machine.multiply_add(p, fraction, 0.693147004f);
  p = machine.multiply_add(p, fraction, 1.0f);
  return float_of(bits_of(p) + (bits_of(shifted) << 23));
}

/// The largest of `before` and row r's logits in this tile, over the four lanes of the row.
template <class Machine, int Count>
HEADWATER_CUDA_FUNCTION float row_maximum(Machine& machine, const float (&logits)[Count], int r,
                                          float before) {
  float highest = before;
  HEADWATER_CUDA_UNROLL
  for (int i = 0; i < Count; ++i) {
    if (row_of(i) == r) highest = machine.maximum(highest, logits[i]);
  }
  return quad_maximum(machine, highest);
}

/// Running softmax of a thread's two rows. Logits are products q . k; `scale` takes them to units of ln 2 inside the
/// multiply-add before exp2, so it must be positive (a maximum of products is then one of logits).
struct SoftmaxRows {
  float highest[kRowsOfThread] = {kMinusInfinity, kMinusInfinity};
  float sum[kRowsOfThread] = {};      ///< of the weights, this thread's columns only
  float rounded[kRowsOfThread] = {};  ///< of the weights as the second product sees them

  /// Turns a tile of logits into weights, in place, and adds them up; returns by row what sums and outputs so far are to
  /// be multiplied with. With `first` there is nothing so far.
  /// With `MayBeEmpty` a row may have seen nothing yet, and see nothing in this tile.
  template <bool First, bool MayBeEmpty, class Machine, int Count>
  HEADWATER_CUDA_FUNCTION void add_tile(Machine& machine, float (&logits)[Count], float scale,
                                        float (&factor)[kRowsOfThread]) {
    float offset[kRowsOfThread];
    HEADWATER_CUDA_UNROLL
    for (int r = 0; r < kRowsOfThread; ++r) {
      const float before = highest[r];
      highest[r] = row_maximum(machine, logits, r, before);
      offset[r] = MayBeEmpty && highest[r] == kMinusInfinity ? 0.0f : highest[r] * scale;
      factor[r] = First ? 0.0f : machine.exp2(before * scale - offset[r]);
      sum[r] *= factor[r];
      rounded[r] *= factor[r];
    }
    HEADWATER_CUDA_UNROLL
    for (int i = 0; i < Count; ++i) {
      logits[i] = machine.exp2(machine.multiply_add(logits[i], scale, -offset[row_of(i)]));
      sum[row_of(i)] += logits[i];
    }
  }

  /// Rounds the weights into the A operand of the second product and adds up what it will see.
  template <class Element, int Count>
  HEADWATER_CUDA_FUNCTION void pack(const float (&weights)[Count], std::uint32_t (&operand)[Count / 2]) {
    HEADWATER_CUDA_UNROLL
    for (int i = 0; i < Count; i += 2) {
      const std::uint32_t pair = Element::pack(weights[i], weights[i + 1]);
      operand[i / 2] = pair;
      rounded[row_of(i)] += Element::low(pair) + Element::high(pair);
    }
  }
};

/// The end of a row, all keys and the sink in (LOGIT-4). `keys` takes the output so far to the maximum; the output is
/// divided by `rounded` where it is finished, l and the log-sum-exp are those of the weights before rounding.
struct RowEnd {
  float max;  ///< units of ln 2
  float sum;
  float rounded;
  float keys;
};

/// `highest` is the row's largest logit in units of ln 2; `sum` and `rounded` are those of the whole row; `sink` is in units
/// of ln 2, -inf for none.
template <class Machine>
HEADWATER_CUDA_FUNCTION RowEnd end_of_row(Machine& machine, float highest, float sum, float rounded,
                                          float sink) {
  const float max = machine.maximum(highest, sink);
  const float keys = machine.exp2(highest - max);
  const float own = machine.exp2(sink - max);
  return {max, sum * keys + own, rounded * keys + own, keys};
}

}  // namespace headwater::cuda::sm90
