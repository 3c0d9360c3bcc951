#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cuda/device/device.hpp"
#include "cuda/dispatch.hpp"
#include "headwater/engine.hpp"

namespace headwater::cuda {

/// A kind of device, and the sizes that its kernels are checked at.
struct CheckSetting {
  std::unique_ptr<Device> (*open)(std::span<const Kernel> kernels);
  const Dispatch* dispatch;
  const Engine* engine;  ///< on that kind of device: what it claims is what the bounds are derived from
  std::int64_t heads, heads_kv;
  std::int64_t tokens, chunk, local, heavy;
  std::int64_t least_chunk;  ///< of the kernels of sm_90a
};

/// `headwater-cuda-bench --check`: one prefill of random rows in BF16 and F16, widths of keys and values 128, 64, 192/128 and 256,
/// rows of the device, graphs on. By the kernels of sm_90a where the device has them, by those of mma.sync, and by engine `cpu`.
/// Of each run every memory set and score is replayed exactly, and every output, log-sum-exp and column sum of every head held
/// against the oracle in double under the run's own sets, within the bounds of the conformance kit (docs/verification.md); so two
/// runs that read the same set are within the sum of both bounds of each other, and the line says how far they are apart.
/// Prints one line for each type and width that begins with PASS or FAIL; `only`, where not empty, is the one that is run, as
/// the line names it. True: all passed.
bool check(const CheckSetting& setting, const std::string& only);

}  // namespace headwater::cuda
