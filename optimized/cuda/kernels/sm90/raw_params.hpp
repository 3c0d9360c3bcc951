#pragma once

#include <cstdint>

#include "headwater/dtype.hpp"

namespace headwater::cuda::sm90 {

/// LogitRule and SoftmaxState with plain pointers: the multiprocessor in software does not keep account of global memory, as
/// the emulation's context does for kernels of mma.sync.
struct LogitRule {
  float factor;
  float cap;
  const float* slopes;
  const float* sinks;
};
struct SoftmaxState {
  float* max;
  float* sum;
  float* rounded;
  float* out;
  std::int64_t stride;
};
/// Where finished rows go.
struct RowOutputs {
  void* data;
  std::int64_t row_stride;  ///< elements
  std::int64_t head_stride;
  DType type;
  bool pairs;  ///< rows are pairs of columns, each at a multiple of its size
  float* lse;  ///< [head][lse_stride], natural logarithm; or null
  std::int64_t lse_stride;
};

}  // namespace headwater::cuda::sm90
