// libFuzzer target: --steps takes any text; what it accepts must be in range.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "cli/support/failure.hpp"
#include "cli/support/steps.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace headwater::cli;
  try {
    const auto items = parse_steps({reinterpret_cast<const char*>(data), size});
    if (items.empty()) std::abort();
    for (const StepItem& item : items) {
      if (item.step.n < 1 || item.step.n > 2147483647) std::abort();
      if (item.step.turn_length != 0 && item.step.turn_length < item.step.n) std::abort();
    }
  } catch (const Failure&) {
    // A refusal is right, too.
  }
  return 0;
}
