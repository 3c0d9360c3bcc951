#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headwater/options.hpp"

namespace headwater::bench {

/// What `headwater bench` was asked for.
struct Flags {
  Shape shape;         ///< capacity is the number of tokens, kv_type the type of all rows
  Options options;     ///< of the sparse run; the dense one differs in `dense` alone
  std::string engine;  ///< empty: HEADWATER_ENGINE, or the library's default
  int rounds = 7;
  std::uint64_t seed = 1;
  bool dense = true;  ///< time dense attention too
  bool json = false;
};

/// Parses the arguments after `bench`. Nothing if help was asked for; it then stands on standard output.
/// cli::Failure naming the flag, its value and what is allowed otherwise.
[[nodiscard]] std::optional<Flags> parse_flags(const std::vector<std::string>& arguments);

}  // namespace headwater::bench
