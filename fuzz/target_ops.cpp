// libFuzzer target: random calls on all engines side by side.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "fuzz/ops.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string problem = headwater::fuzz::run_ops({data, size});
  if (!problem.empty()) {
    std::fprintf(stderr, "engines disagree: %s\n", problem.c_str());
    std::abort();
  }
  return 0;
}
