#pragma once

#include <string>

namespace headwater::cuda {

/// What the driver says about a device. Versions as the driver counts them: 1000 * major + 10 * minor.
struct Probe {
  int driver_version = 0;   ///< newest runtime that the driver knows; 0: no driver
  int runtime_version = 0;  ///< what this library was built with
  std::string error;        ///< of asking for the devices; empty: none
  int devices = 0;
  int ordinal = 0;
  std::string name;
  int compute_capability = 0;  ///< 80, 90, ..
};

/// One line, empty if the device can be used.
[[nodiscard]] std::string why_unusable(const Probe& probe);

}  // namespace headwater::cuda
