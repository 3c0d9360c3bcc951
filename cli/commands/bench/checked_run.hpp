#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cli/commands/bench/clock.hpp"
#include "cli/commands/bench/workload.hpp"
#include "conformance/run.hpp"
#include "headwater/engine.hpp"

namespace headwater::bench {

/// What was compared before a run was timed, and how near the worst of it came to its bound (1: as far as the bound).
/// The bounds are those of the conformance kit, derived from the number formats.
struct Checked {
  std::int64_t rows = 0;         ///< output rows of single heads, and their log-sum-exp
  std::int64_t column_sums = 0;  ///< 0 where every chunk is dense, or too long to judge one in a second
  std::int64_t heads_replayed =
      0;  ///< heads whose memory sets, and scores, were recomputed bit for bit (SCORE-6, SEL-11)
  double worst_row = 0.0;
  double worst_column_sum = 0.0;
};

/// One engine with an open session on a workload: takes steps with a clock around them, or under the oracle's eyes.
class AttentionRun {
 public:
  /// Opens the session for as many tokens as the workload has. Errors: headwater::Error of open().
  AttentionRun(const Engine& engine, Workload& workload, const Options& options);

  /// From an empty session, a prefill of the first `prefilled` tokens, then `decoded` decode steps of one token each,
  /// judged by teacher forcing on a sample: rows anywhere against the reference oracle under the engine's own memory
  /// sets, all column sums of one chunk and head, and an exact replay of some heads. Throws conformance::Violation.
  Checked check(std::int64_t prefilled, std::int64_t decoded, std::uint64_t seed);

  /// From begin() to end() of a prefill of the first `tokens` tokens, from an empty session.
  Seconds prefill(std::int64_t tokens);
  /// The same of a decode step of the next token of the workload.
  Seconds decode();

  [[nodiscard]] const Session& session() const { return *session_; }
  [[nodiscard]] const EffectiveOptions& options() const { return session_->options(); }

 private:
  Seconds take(const Step& step);

  const Engine& engine_;
  Workload& workload_;
  Options options_;
  std::unique_ptr<Session> session_;
};

/// Least memory in bytes that a session of this shape takes beside its workload: stored K and V, and scores.
[[nodiscard]] double session_bytes(const Shape& shape);

}  // namespace headwater::bench
