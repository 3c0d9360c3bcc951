#pragma once

#include <string>
#include <vector>

namespace headwater::cli {

/// The processor as it describes itself. Empty and zero where the architecture has no cpuid.
struct CpuFeatures {
  std::string vendor;
  std::string brand;
  int family = 0;
  int model = 0;
  /// Instruction sets that both the processor has and the system saves the registers of, as engines need them.
  std::vector<std::string> features;
};

[[nodiscard]] CpuFeatures read_cpu_features();

}  // namespace headwater::cli
