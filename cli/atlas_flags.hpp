#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headwater::cli {

/// The command line of `atlas`.
struct AtlasFlags {
  std::string input;
  std::string page;
  std::string picture;              ///< empty: none
  std::vector<std::int64_t> heads;  ///< ascending; empty: all of the file
  bool json = false;
};

/// Nothing where help was asked for; it then stands on standard output. Failure naming flag, value and what is allowed.
[[nodiscard]] std::optional<AtlasFlags> parse_atlas_flags(const std::vector<std::string>& arguments);

/// "0,3,8-11" as ascending numbers without repetition. Failure naming the item and what is allowed.
[[nodiscard]] std::vector<std::int64_t> parse_heads(std::string_view text);

}  // namespace headwater::cli
