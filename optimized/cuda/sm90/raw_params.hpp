#pragma once

#include <cstdint>

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

}  // namespace headwater::cuda::sm90
