#include "cuda/device/usable.hpp"

namespace headwater::cuda {
namespace {

constexpr int kLeastCapability = 80;

std::string version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

}  // namespace

std::string why_unusable(const Probe& probe) {
  if (probe.driver_version == 0) return "no NVIDIA driver is installed";
  // Runtimes of one major version run on each other's drivers (CUDA Compatibility, minor version compatibility).
  if (probe.driver_version / 1000 < probe.runtime_version / 1000) {
    return "the NVIDIA driver is too old: it knows CUDA " + version(probe.driver_version) +
           "; needed: " + std::to_string(probe.runtime_version / 1000) + ".0 or later";
  }
  if (!probe.error.empty()) return "no device can be used: " + probe.error;
  if (probe.devices == 0) return "no device is there";
  if (probe.ordinal < 0 || probe.ordinal >= probe.devices) {
    return "no device " + std::to_string(probe.ordinal) + "; allowed: 0 .. " +
           std::to_string(probe.devices - 1);
  }
  if (probe.compute_capability < kLeastCapability) {
    return probe.name + " has compute capability " + std::to_string(probe.compute_capability / 10) + "." +
           std::to_string(probe.compute_capability % 10) + "; needed: 8.0 or later";
  }
  return {};
}

}  // namespace headwater::cuda
