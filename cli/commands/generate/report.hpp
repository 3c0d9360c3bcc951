#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/support/ranks.hpp"
#include "headwater/options.hpp"
#include "headwater/session.hpp"
#include "runtime/generate/conversation.hpp"

namespace headwater::cli {

/// One run of a prompt and what it generated.
struct GenerateRun {
  std::string text;
  std::vector<std::int32_t> prompt_ids;
  std::vector<std::int32_t> ids;    ///< generated
  std::vector<float> first_logits;  ///< after the prompt
  EffectiveOptions effective;
  std::int64_t prompt_tokens = 0;
  std::int64_t done_tokens = 0;  ///< of these, all but where an interrupt ended the prefill
  std::int64_t tail_tokens = 0;  ///< of these, in the dense tail
  runtime::Pairs pairs;          ///< of the prompt
  std::string steps;             ///< of the prompt, as `headwater attend --steps` takes them
  double prefill_seconds = 0;    ///< from the first token in to the logits of the last one
  double decode_seconds = 0;
  std::int64_t decoded = 0;     ///< decode steps after the prompt
  runtime::PhaseTimes prefill;  ///< where the seconds went
  bool interrupted = false;
};

/// What --interactive did, over all turns.
struct SessionTotals {
  std::int64_t turns = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t generated = 0;
  std::int64_t decoded = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
  runtime::Pairs pairs;
  std::int64_t stored = 0;
  std::int64_t capacity = 0;

  void add(const GenerateRun& run);
};

/// What a command tells at its end.
struct GenerateReport {
  std::string model;  ///< its name, or the file's
  std::string architecture;
  std::int64_t windowed_layers = 0;
  std::string windows;  ///< windows_text()
  std::string engine, isa;
  std::string projections;  ///< "BF16, AVX-512 BF16"
  std::string cache_type;
  double load_seconds = 0;
  std::uint64_t weight_bytes = 0;
  MemoryBytes session_memory;
  std::uint64_t workspace_bytes = 0;
  GenerateRun run;
  std::optional<GenerateRun> dense;         ///< --compare
  std::optional<SessionTotals> session;     ///< --interactive: in place of the run
  std::vector<pipeline::RankReport> ranks;  ///< where there are several
  std::vector<std::string> warnings;
};

/// How two runs differ.
struct GenerateDifference {
  std::int64_t equal_tokens = 0;  ///< generated tokens before the first difference
  double worst_logit = 0;         ///< largest difference of the logits after the prompt
  double divergence = 0;    ///< Kullback-Leibler, dense || sparse, of the next token's distribution, in nats
  double times_sooner = 0;  ///< dense prefill seconds / sparse ones
};
[[nodiscard]] GenerateDifference difference(const GenerateRun& sparse, const GenerateRun& dense);

[[nodiscard]] std::string json_text(const GenerateReport& report);
[[nodiscard]] std::string summary_text(const GenerateReport& report);

}  // namespace headwater::cli
