#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "headwater/session.hpp"

namespace headwater::cli {

/// One item of `--steps`.
struct StepItem {
  Step step;
  std::string text;  ///< as written, for messages
};

/// Parses `--steps`: items separated by commas, each `pN` (a prefill call of N tokens), `pN:T` (that opens a turn of
/// T >= N tokens, STATE-3) or `dN` (a decode step of N tokens, DEC-1); N and T are 1 .. 2147483647.
/// Failure naming the item and its place otherwise.
[[nodiscard]] std::vector<StepItem> parse_steps(std::string_view text);

/// Failure unless the steps add up to the n tokens of the input, and calls that continue a turn name its own length or none
/// (STATE-3): what is left cannot be refused in the middle of the work.
void check_steps(const std::vector<StepItem>& steps, std::int64_t n);

}  // namespace headwater::cli
