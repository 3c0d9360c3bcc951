#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace headwater::cli {

/// The processor as the kernel describes it. What it does not tell stays empty or zero.
struct CpuFeatures {
  std::string vendor;
  std::string brand;
  int family = 0;
  int model = 0;
  /// Those instruction sets that matter to attention kernels; the kernel lists a set only where it also saves its
  /// registers, so every one of them can be used.
  std::vector<std::string> features;
};

/// Reads the first processor of a text in the form of Linux's /proc/cpuinfo on x86.
[[nodiscard]] CpuFeatures parse_cpu_info(std::string_view text);

/// The same of /proc/cpuinfo itself; empty where there is none.
[[nodiscard]] CpuFeatures read_cpu_features();

}  // namespace headwater::cli
