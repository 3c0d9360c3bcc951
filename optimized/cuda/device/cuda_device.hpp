#pragma once

#include <memory>
#include <span>
#include <string>

#include "cuda/device/device.hpp"

namespace headwater::cuda {

/// Devices of this machine; 0 where they cannot be asked for.
[[nodiscard]] int cuda_devices();

/// Of the calling thread; 0 where it cannot be asked for.
[[nodiscard]] int cuda_current_device();

/// Why device `ordinal` cannot be used here (no driver, one that is too old, no device, or one below compute capability
/// 8.0), as one line; empty if it can. Only where the build has a CUDA toolkit.
[[nodiscard]] std::string cuda_unavailable_because(int ordinal);

/// Of device `ordinal`: 80, 90, ..; 0 where it cannot be asked.
[[nodiscard]] int cuda_compute_capability(int ordinal);

/// Errors: engine_unavailable, "cuda: " and the text of cuda_unavailable_because.
[[nodiscard]] std::unique_ptr<Device> open_cuda_device(std::span<const Kernel> kernels, int ordinal);

}  // namespace headwater::cuda
