#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/support/flag_set.hpp"

namespace headwater::cli {

/// What `atlas` writes.
struct AtlasOutputs {
  std::string page;
  std::string picture;  ///< empty: none
  bool quiet = false;
  bool json = false;

  [[nodiscard]] bool take_standard_output() const;
};

/// The command line of `atlas` for an `attend` output.
struct AtlasFlags {
  std::string input;
  AtlasOutputs outputs;
  std::vector<std::int64_t> heads;  ///< ascending; empty: all of the file
};

/// -o and --png.
void declare_atlas_outputs(FlagSet& set, AtlasOutputs& outputs);
/// --quiet and --json, and that no two outputs are one.
void declare_atlas_reports(FlagSet& set, AtlasOutputs& outputs);
/// Whether two names mean one file, existing or not.
[[nodiscard]] bool same_file(const std::string& a, const std::string& b);

/// Nothing where help was asked for; it then stands on standard output. Failure naming flag, value and what is allowed.
[[nodiscard]] std::optional<AtlasFlags> parse_atlas_flags(const std::vector<std::string>& arguments);

/// "0,3,8-11" as ascending numbers without repetition. Failure naming the flag, the item and what is allowed.
[[nodiscard]] std::vector<std::int64_t> parse_indices(const char* flag, std::string_view text);

}  // namespace headwater::cli
