#pragma once

#include "cuda/kernels/sm90/fragments.hpp"
#include "cuda/kernels/sm90/raw_params.hpp"

namespace headwater::cuda::sm90 {

/// LOGIT-2 by way of exp2, as kernels/elements.hpp: the quotient is the machine's.
template <class Machine>
HEADWATER_CUDA_FUNCTION float tanh_of(Machine& machine, float x) {
  constexpr float kTwoLog2E = 2.885390081777926815f;
  constexpr float kSaturated = 30.0f;  // (2^30 - 1) / (2^30 + 1) is 1 in F32
  float y = x * kTwoLog2E;
  // NaN stays: it is neither above nor below.
  y = y > kSaturated ? kSaturated : y;
  y = y < -kSaturated ? -kSaturated : y;
  const float e = machine.exp2(y);
  return machine.quotient(e - 1.0f, e + 1.0f);
}

/// Products q . k to logits in units of ln 2 (LOGIT-1, LOGIT-2), in place.
template <class Machine, int Count>
HEADWATER_CUDA_FUNCTION void scale_and_cap(Machine& machine, const LogitRule& rule, float (&logits)[Count]) {
  HEADWATER_CUDA_UNROLL
  for (int i = 0; i < Count; ++i) logits[i] *= rule.factor;
  if (rule.cap > 0.0f) {
    HEADWATER_CUDA_UNROLL
    for (int i = 0; i < Count; ++i) logits[i] = rule.cap * tanh_of(machine, logits[i]);
  }
}

/// The whole rule (LOGIT-1..3). `distance(i)` is query position - key position of accumulator i.
template <class Machine, int Count, class Distance>
HEADWATER_CUDA_FUNCTION void map_logits(Machine& machine, const LogitRule& rule, int head,
                                        float (&logits)[Count], const Distance& distance) {
  scale_and_cap(machine, rule, logits);
  if (rule.slopes == nullptr) return;
  const float slope = rule.slopes[head];
  HEADWATER_CUDA_UNROLL
  for (int i = 0; i < Count; ++i) {
    logits[i] = machine.multiply_add(-slope, distance(i), logits[i]);
  }
}

/// What takes a logit to units of ln 2 after map_logits: nothing is left to do.
template <class Shape>
HEADWATER_CUDA_FUNCTION constexpr float scale_of(const LogitRule& rule) {
  return Shape::kMapped ? 1.0f : rule.factor;
}

}  // namespace headwater::cuda::sm90
