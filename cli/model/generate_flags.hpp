#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/model/model_flags.hpp"
#include "runtime/generate/sampler.hpp"

namespace headwater::cli {

/// What `headwater generate` was asked for.
struct GenerateFlags {
  ModelFlags model;
  std::optional<std::string> prompt;  ///< -p, or
  std::optional<std::string> file;    ///< -f; "-" is standard input
  std::int64_t tokens = 64;           ///< most tokens to generate
  std::int64_t dense_tail = 64;
  runtime::SamplingOptions sampling;
  bool chat = false;
  bool interactive = false;
  bool dense = false;
  bool compare = false;
  bool json = false;
  std::optional<std::int64_t> dump_layer;  ///< --dump-qkv LAYER OUT
  std::string dump_path;
};

/// Parses the arguments behind `generate`. Nothing if help was asked for. Failure naming the flag, its value and what
/// is allowed otherwise.
[[nodiscard]] std::optional<GenerateFlags> parse_generate_flags(const std::vector<std::string>& arguments);

}  // namespace headwater::cli
