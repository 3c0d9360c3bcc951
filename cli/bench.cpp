#include "bench.hpp"

#include "companion.hpp"

namespace headwater::cli {

namespace {

constexpr const char* kProgram = "headwater-bench";

}  // namespace

std::string find_bench() { return find_companion(kProgram); }

ExitCode bench_command(const std::vector<std::string>& arguments) {
  return become_companion(kProgram, "HEADWATER_BENCH", arguments);
}

}  // namespace headwater::cli
