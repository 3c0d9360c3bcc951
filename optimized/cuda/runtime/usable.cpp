#include "cuda/runtime/usable.hpp"

namespace headwater::cuda {
namespace {

constexpr int kLeastCapability = 80;

std::string version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

}  // namespace

std::string why_unusable(const Probe& probe) {
  if (probe.driver_version == 0) return "cuda: no NVIDIA driver is installed";
  // Runtimes of one major version run on each other's drivers (CUDA Compatibility, minor version compatibility).
  if (probe.driver_version / 1000 < probe.runtime_version / 1000) {
    return "cuda: the NVIDIA driver is too old: it knows CUDA " + version(probe.driver_version) +
           "; needed: " + std::to_string(probe.runtime_version / 1000) + ".0 or later";
  }
  if (!probe.error.empty()) return "cuda: no device can be used: " + probe.error;
  if (probe.devices == 0) return "cuda: no device is there";
  if (probe.ordinal < 0 || probe.ordinal >= probe.devices) {
    return "cuda: no device " + std::to_string(probe.ordinal) + "; allowed: 0 .. " +
           std::to_string(probe.devices - 1);
  }
  if (probe.compute_capability < kLeastCapability) {
    return "cuda: " + probe.name + " has compute capability " +
           std::to_string(probe.compute_capability / 10) + "." +
           std::to_string(probe.compute_capability % 10) + "; needed: 8.0 or later";
  }
  return {};
}

}  // namespace headwater::cuda
