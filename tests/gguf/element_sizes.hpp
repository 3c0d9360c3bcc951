#pragma once

// What the error of a dot product of a quantised row is measured by.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/gguf/kernels/blocks.hpp"
#include "runtime/gguf/tensor_type.hpp"

namespace headwater::runtime::testing {
namespace {  // as of the blocks

/// |scale * code| + |minimum| of every element of a stored row.
template <class Block>
std::vector<double> sizes_of(const std::byte* row, std::int64_t n) {
  std::vector<double> sizes;
  for (std::int64_t first = 0; first < n; first += Block::kElements, row += Block::kBytes) {
    std::int8_t room[Block::kElements];
    float scales[16];
    float minima[16] = {};
    const std::int8_t* const codes = Block::unpack(row, room, scales, minima);
    for (int i = 0; i < Block::kElements; ++i) {
      const int run = i / Block::kRun;
      sizes.push_back(std::fabs(static_cast<double>(scales[run]) * codes[i]) +
                      (Block::kMinima ? std::fabs(static_cast<double>(minima[run])) : 0.0));
    }
  }
  return sizes;
}

inline std::vector<double> sizes_of(TensorType type, const std::byte* row, std::int64_t n) {
  switch (type) {
    case TensorType::q8_0: return sizes_of<Q8_0>(row, n);
    case TensorType::q4_0: return sizes_of<Q4_0>(row, n);
    case TensorType::q4_1: return sizes_of<Q4_1>(row, n);
    case TensorType::q5_0: return sizes_of<Q5_0>(row, n);
    case TensorType::q5_1: return sizes_of<Q5_1>(row, n);
    case TensorType::q4_k: return sizes_of<Q4K>(row, n);
    case TensorType::q5_k: return sizes_of<Q5K>(row, n);
    case TensorType::iq4_nl: return sizes_of<IQ4_NL>(row, n);
    case TensorType::mxfp4: return sizes_of<MXFP4>(row, n);
    case TensorType::q2_k: return sizes_of<Q2K>(row, n);
    case TensorType::q3_k: return sizes_of<Q3K>(row, n);
    case TensorType::iq4_xs: return sizes_of<IQ4_XS>(row, n);
    default: return sizes_of<Q6K>(row, n);
  }
}

}  // namespace
}  // namespace headwater::runtime::testing
