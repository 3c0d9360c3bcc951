#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/support/model_flags.hpp"
#include "runtime/generate/sampler.hpp"

namespace headwater::cli {

/// What `headwater generate` was asked for.
struct GenerateFlags {
  ModelFlags model;
  std::optional<std::string> prompt;         ///< -p; after a file it is the question
  std::optional<std::string> file;           ///< -f; "-" is standard input
  std::optional<std::string> system;         ///< of a chat
  std::optional<std::string> chat_template;  ///< a family's name, or a file with a template
  std::optional<std::string> requests;       ///< a file with a prompt in each line; "-" is standard input
  int slots = 8;                             ///< of these, that are worked on at a time
  std::int64_t tokens = 64;                  ///< most tokens to generate; -1: as many as fit
  std::optional<std::int64_t> dense_tail;    ///< else the question, or kDenseTail
  runtime::SamplingOptions sampling;
  bool chat = false;
  bool no_bos = false;
  bool interactive = false;
  bool dense = false;
  bool compare = false;
  bool json = false;
  bool quiet = false;
  std::optional<std::int64_t> dump_layer;  ///< --dump-qkv LAYER OUT
  std::string dump_path;
  std::vector<std::string> warnings;
};

/// The largest --seed.
inline constexpr std::int64_t kMostSeed = (std::int64_t{1} << 62);

/// Parses the arguments after `generate`. Nothing if help was asked for. Failure naming the flag, its value and what
/// is allowed otherwise.
[[nodiscard]] std::optional<GenerateFlags> parse_generate_flags(const std::vector<std::string>& arguments);

}  // namespace headwater::cli
