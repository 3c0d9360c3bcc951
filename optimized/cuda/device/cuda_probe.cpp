// What the CUDA runtime says of this machine, before a device is opened.
#include <cuda_runtime.h>

#include "cuda/device/cuda_device.hpp"
#include "cuda/device/usable.hpp"

namespace headwater::cuda {
namespace {

Probe probe_of(int ordinal) {
  Probe probe;
  probe.ordinal = ordinal;
  if (cudaDriverGetVersion(&probe.driver_version) != cudaSuccess) probe.driver_version = 0;
  if (cudaRuntimeGetVersion(&probe.runtime_version) != cudaSuccess) probe.runtime_version = CUDART_VERSION;
  if (const cudaError_t error = cudaGetDeviceCount(&probe.devices); error != cudaSuccess) {
    probe.devices = 0;
    if (error != cudaErrorNoDevice) probe.error = cudaGetErrorString(error);
  }
  cudaDeviceProp properties{};
  if (ordinal >= 0 && ordinal < probe.devices) {
    if (const cudaError_t error = cudaGetDeviceProperties(&properties, ordinal); error != cudaSuccess) {
      probe.error = cudaGetErrorString(error);
    } else {
      probe.name = properties.name;
      probe.compute_capability = 10 * properties.major + properties.minor;
    }
  }
  (void)cudaGetLastError();
  return probe;
}

}  // namespace

int cuda_devices() { return probe_of(0).devices; }

int cuda_current_device() {
  int ordinal = 0;
  if (cudaGetDevice(&ordinal) == cudaSuccess) return ordinal;
  (void)cudaGetLastError();
  return 0;
}

std::string cuda_unavailable_because(int ordinal) { return why_unusable(probe_of(ordinal)); }

int cuda_compute_capability(int ordinal) { return probe_of(ordinal).compute_capability; }

}  // namespace headwater::cuda
