#include "conform.hpp"

#include "companion.hpp"

namespace headwater::cli {

namespace {

constexpr const char* kProgram = "headwater-conformance";

}  // namespace

std::string find_conformance() { return find_companion(kProgram); }

ExitCode conform_command(const std::vector<std::string>& arguments) {
  return become_companion(kProgram, "HEADWATER_TESTS", arguments);
}

}  // namespace headwater::cli
