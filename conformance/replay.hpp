#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "conformance/problem.hpp"
#include "conformance/run.hpp"
#include "headwater/options.hpp"

namespace headwater::conformance {

/// CFG-2..5 as the kit reads them: what sessions of this shape must call effective (threads and warnings apart).
[[nodiscard]] EffectiveOptions expected_options(const Shape& shape, const Options& options);

/// The chunks of every step, from PLAN and STATE alone.
[[nodiscard]] std::vector<std::vector<Chunk>> expected_plans(const Problem& problem);
/// STATE-7: the chunks that one layer attends in a step that is planned so.
[[nodiscard]] std::vector<Chunk> layer_chunks(const EffectiveOptions& options, std::int64_t layer,
                                              const std::vector<Chunk>& plan);

/// SCORE-4 or, for F32 scores, no rounding: bits of a score.
[[nodiscard]] std::uint32_t score_bits(ScoreType type, float value);
[[nodiscard]] float score_value(ScoreType type, std::uint32_t bits);

/// MEM-1..4 and MEM-7 for one head, by a full sort: the set from all `end` tokens before a chunk.
/// `previous` was built when `previous_end` tokens were stored; `scores` holds a score per position.
[[nodiscard]] std::vector<std::int32_t> expected_set(const std::vector<std::int32_t>& previous,
                                                     std::int64_t previous_end, std::int64_t end,
                                                     std::int64_t local, std::int64_t heavy,
                                                     const std::vector<float>& scores,
                                                     std::int64_t pinned = 0);

/// SEL-2: first position of Local of a chunk that begins at `begin`, and how many key blocks stand before it.
[[nodiscard]] std::int64_t blocks_local_begin(const EffectiveOptions& options, std::int64_t begin);
[[nodiscard]] std::int64_t blocks_candidates(const EffectiveOptions& options, std::int64_t begin);

/// SEL-12: how many regions are searched where there are so many candidates; 0 where all candidates are.
[[nodiscard]] std::int64_t regions_searched(const EffectiveOptions& options, std::int64_t candidates);
/// SEL-12: of each whole region, whether the votes say that it was searched: one of its blocks has a vote that is not
/// -infinity. Empty where all candidates are searched.
[[nodiscard]] std::vector<bool> searched_regions(std::span<const float> block_votes);

/// SEL-6, MEM-7: tokens of the key blocks that the first stage keeps, ascending; a vote for each candidate.
[[nodiscard]] std::vector<std::int32_t> kept_tokens(const EffectiveOptions& options, std::int64_t begin,
                                                    std::span<const float> block_votes);
/// SEL-6 to SEL-8, MEM-7: the set of one query block and key/value head. `token_votes`: one for each of kept_tokens(),
/// empty where there is no second stage.
[[nodiscard]] std::vector<std::int32_t> expected_block_set(const EffectiveOptions& options,
                                                           std::int64_t begin,
                                                           std::span<const float> block_votes,
                                                           std::span<const float> token_votes);

/// SKE-2: the fixed part of the sets of a chunk that begins at `begin`, and its candidates; both ascending.
struct SketchedPast {
  std::vector<std::int32_t> fixed, candidates;
};
[[nodiscard]] SketchedPast sketched_past(const EffectiveOptions& options, std::int64_t begin);
/// SKE-7, SKE-8: the set of one query block and key/value head, without the -1 at its end; a vote for each candidate.
[[nodiscard]] std::vector<std::int32_t> expected_sketch_set(const EffectiveOptions& options,
                                                            std::int64_t begin, std::span<const float> votes);

/// One layer as the spec says it must be, recomputed chunk by chunk from reported column sums (SCORE-6) or votes (SEL-11,
/// SKE-9).
class Replay {
 public:
  /// `heads_kv` is not read with rule h2o.
  Replay(const EffectiveOptions& options, std::int64_t heads, std::int64_t heads_kv = 0);

  /// Takes the next chunk: its memory sets must be those that MEM builds from the scores so far, then its column sums
  /// go into the scores (SCORE-2, SCORE-3). Also tries the memory-set laws of SPEC 14. Other rules: its sets must be those
  /// that follow from its votes. Throws Violation.
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
  void take_blocks(const ChunkTrace& chunk, const std::string& where) const;
  void take_sketches(const ChunkTrace& chunk, const std::string& where) const;

  EffectiveOptions options_;
  std::vector<Head> heads_;
  std::int64_t heads_kv_;
  std::int64_t set_end_ = 0;  // tokens stored when the sets were built
};

/// SCORE-6, SEL-11, SKE-9: recomputes the plan, every memory set and every score of a run from the engine's own F32 column sums
/// or votes, and throws Violation at the first bit that differs. Written from the spec, shares no code with any engine.
/// Needs snapshots. Where queries and keys are ordinary numbers, finite and far from the ends of the range, no searched
/// candidate may have the vote -infinity, and exactly as many as SEL-12 says are searched; else no more than that.
void require_replay(const Problem& problem, const Trace& trace);

}  // namespace headwater::conformance
