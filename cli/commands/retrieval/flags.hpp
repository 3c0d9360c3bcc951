#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands/retrieval/haystack.hpp"
#include "cli/support/model_flags.hpp"

namespace headwater::cli {

/// What `headwater retrieval` was asked for.
struct RetrievalFlags {
  ModelFlags model;
  std::string file;                    ///< "-" is standard input
  std::optional<std::int64_t> window;  ///< most tokens of a prompt
  std::vector<double> depths;          ///< per cent, ascending
  std::int64_t trials = 8;
  std::optional<std::int64_t> dense_tail;  ///< else from the first question on
  bool single = false;                     ///< one question a prompt
  std::uint64_t seed = 0;
  HaystackTexts texts;
  bool json = false;
};

/// Parses the arguments after `retrieval`. Nothing if help was asked for. Failure naming the flag, its value and what
/// is allowed otherwise.
[[nodiscard]] std::optional<RetrievalFlags> parse_retrieval_flags(const std::vector<std::string>& arguments);

}  // namespace headwater::cli
