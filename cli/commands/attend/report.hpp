#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/commands/attend/input.hpp"
#include "headwater/engine.hpp"

namespace headwater::cli {

/// What `attend` tells about a run.
struct AttendReport {
  std::string engine;
  std::string isa;
  EffectiveOptions effective;
  MemoryBytes memory;
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t heads_kv = 0;
  std::int64_t d_head = 0;
  std::int64_t d_value = 0;
  DType q_type = DType::f32;
  DType kv_type = DType::f32;
  std::int64_t chunks = 0;
  std::uint64_t pairs = 0;        ///< query-key pairs per query head
  std::uint64_t pairs_dense = 0;  ///< what dense causal attention takes
  std::vector<double> seconds;    ///< of each run
  std::string output;
  std::uint64_t output_bytes = 0;
  std::vector<std::string> warnings;
};

/// One JSON object and a line feed.
[[nodiscard]] std::string json_text(const AttendReport& report);
/// A few lines for a reader.
[[nodiscard]] std::string summary_text(const AttendReport& report);

}  // namespace headwater::cli
