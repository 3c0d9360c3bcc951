#pragma once

#include <cstdint>
#include <vector>

#include "conformance/problem.hpp"
#include "conformance/run.hpp"
#include "headwater/options.hpp"

namespace headwater::conformance {

/// CFG-2..4 as the kit reads them: what sessions of this shape must call effective (threads and warnings apart).
[[nodiscard]] EffectiveOptions expected_options(const Shape& shape, const Options& options);

/// The chunks of every step, from PLAN and STATE alone.
[[nodiscard]] std::vector<std::vector<Chunk>> expected_plans(const Problem& problem);

/// SCORE-4 or, for F32 scores, no rounding: bits of a score.
[[nodiscard]] std::uint32_t score_bits(ScoreType type, float value);
[[nodiscard]] float score_value(ScoreType type, std::uint32_t bits);

/// MEM-1..4 for one head, by a full sort: the set from all `end` tokens before a chunk.
/// `previous` was built when `previous_end` tokens were stored; `scores` holds a score per position.
[[nodiscard]] std::vector<std::int32_t> expected_set(const std::vector<std::int32_t>& previous,
                                                     std::int64_t previous_end, std::int64_t end,
                                                     std::int64_t local, std::int64_t heavy,
                                                     const std::vector<float>& scores);

/// One layer as the spec says it must be, recomputed chunk by chunk from reported column sums (SCORE-6).
class Replay {
 public:
  Replay(const EffectiveOptions& options, std::int64_t heads);

  /// Takes the next chunk: its memory sets must be those that MEM builds from the scores so far, then its column sums
  /// go into the scores (SCORE-2, SCORE-3). Also tries the memory-set laws of SPEC 14. Throws Violation.
  void take(const ChunkTrace& chunk, const std::string& where);
  /// Throws Violation unless `bits`, [heads][tokens], are the scores.
  void require_scores(const std::vector<std::uint32_t>& bits, const std::string& where) const;
  /// The sets that were built last, head after head.
  [[nodiscard]] std::vector<std::int32_t> sets() const;

 private:
  struct Head {
    std::vector<float> scores;      // one per stored token
    std::vector<std::int32_t> set;  // built last
  };
  EffectiveOptions options_;
  std::vector<Head> heads_;
  std::int64_t set_end_ = 0;  // tokens stored when the sets were built
};

/// SCORE-6: recomputes the plan, every memory set and every score of a run from the engine's own F32 column sums,
/// and throws Violation at the first bit that differs. Written from the spec, shares no code with any engine.
/// Needs snapshots.
void require_replay(const Problem& problem, const Trace& trace);

}  // namespace headwater::conformance
