#pragma once

#include <optional>
#include <string>
#include <vector>

#include "headwater/options.hpp"

namespace headwater::cli {

/// What `headwater attend` was asked for.
struct AttendFlags {
  std::string input;
  std::string output;
  std::string engine;                ///< empty: HEADWATER_ENGINE, or the library's default
  Options options;                   ///< sinks and alibi come with the input
  std::optional<std::string> steps;  ///< --steps; without it the whole input is one prefill call
  int repeat = 1;
  bool trace = true;  ///< memory and colsum_inter in the output
  bool quiet = false;
  bool json = false;
};

/// Parses the arguments after `attend`. Nothing if help was asked for; it then stands on standard output.
/// Failure naming the flag, its value and what is allowed otherwise.
[[nodiscard]] std::optional<AttendFlags> parse_attend_flags(const std::vector<std::string>& arguments);

}  // namespace headwater::cli
