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
  std::optional<std::int64_t> window;  ///< most tokens of a prompt and its answer
  std::vector<double> depths;          ///< per cent, ascending
  std::int64_t prompts = 56;
  bool tail = false;  ///< the question is a dense decode step, else the end of the prefill
  bool dense = true;  ///< run dense prefill, too
  std::uint64_t seed = 0;
  HaystackTexts texts;
  bool json = false;
};

/// Parses the arguments after `retrieval`. Nothing if help was asked for. Failure naming the flag, its value and what
/// is allowed otherwise.
[[nodiscard]] std::optional<RetrievalFlags> parse_retrieval_flags(const std::vector<std::string>& arguments);

}  // namespace headwater::cli
