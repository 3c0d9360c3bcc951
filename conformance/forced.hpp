#pragma once

#include <functional>

#include "conformance/case.hpp"
#include "conformance/eigen_oracle.hpp"
#include "conformance/problem.hpp"
#include "conformance/reference_oracle.hpp"
#include "conformance/run.hpp"
#include "conformance/votes.hpp"

namespace headwater::conformance {

/// The oracle whose values an engine is compared with. Bounds always come from the Eigen oracle.
enum class Truth { eigen, reference };

/// The rows, positions and logit rule of one query head of one reported chunk, under the engine's own memory set.
/// K and V are rounded once to the KV type (STATE-6).
[[nodiscard]] HeadChunk head_chunk(const Problem& problem, std::int64_t layer, const ChunkTrace& chunk,
                                   std::int64_t head);
/// The same for some of its queries, given by ascending positions, all of which read the same set; without value rows where
/// only weights matter.
[[nodiscard]] HeadChunk head_chunk(const Problem& problem, std::int64_t layer, const ChunkTrace& chunk,
                                   std::int64_t head, const std::vector<std::int64_t>& rows, bool values);
/// Positions of all queries of a chunk.
[[nodiscard]] std::vector<std::int64_t> all_rows(const ChunkTrace& chunk);
/// The same, apart where they read different sets: a query block each in sparse chunks of rules `blocks` and
/// `sketches` (SEL-4, SKE-2), else one.
[[nodiscard]] std::vector<std::vector<std::int64_t>> rows_by_set(const ChunkTrace& chunk);

/// One layer as the reference oracle reads it: K and V rounded as they are stored.
struct StoredLayer {
  StoredLayer(const Problem& problem, std::int64_t layer);
  std::int64_t index;
  Tensor k, v;
  LayerRows rows;  ///< of q in the problem, and of k and v
};

/// Values of the reference oracle for the same chunk, in the shape of the Eigen oracle's (bounds left as they are).
void use_reference_values(const Problem& problem, const StoredLayer& layer, const ChunkTrace& chunk,
                          std::int64_t head, HeadTruth& truth);

/// The same for the rows of one set, which are consecutive; `truth` is of these rows.
void use_reference_values(const Problem& problem, const StoredLayer& layer, const ChunkTrace& chunk,
                          std::int64_t head, const std::vector<std::int64_t>& rows, HeadTruth& truth);

/// The oracle's votes of one set. Rule `sketches`: for every candidate (`tokens`). Rule `blocks`: for every candidate that the engine searched by its own block votes (SEL-12), for the
/// regions of candidates, and for the tokens of the blocks that the engine's own block votes keep (none without a second
/// stage).
struct SetVotes {
  std::vector<Eigen::Index> searched;  ///< ascending; all candidates where there are no levels
  VoteTruth blocks;                    ///< of these
  std::vector<bool> region_searched;   ///< empty without levels
  VoteTruth regions;
  std::vector<std::int32_t> tokens;
  VoteTruth of_tokens;
};

/// The oracle of the votes of one key/value head of a chunk: of rule `blocks` for finite queries and keys, of `sketches` for
/// any.
class VoteOracle {
 public:
  /// Keeps references to problem and chunk.
  VoteOracle(const VoteArithmetic& arithmetic, const Problem& problem, std::int64_t layer,
             const ChunkTrace& chunk, std::int64_t head_kv);
  [[nodiscard]] SetVotes votes(std::int64_t query_block) const;

 private:
  void take_sketches(std::int64_t layer);
  [[nodiscard]] Eigen::MatrixXd key_rows(const std::vector<std::int32_t>& positions) const;

  const Problem& problem_;
  const LayerInput& input_;
  const ChunkTrace& chunk_;
  std::int64_t head_kv_;
  EffectiveOptions options_;
  VoteArithmetic arithmetic_;
  Summaries summaries_;  // of the candidates
  Summaries regions_;    // empty without levels

  // Rule `sketches`; empty where there are no candidates.
  std::vector<std::int32_t> candidates_;
  std::vector<Eigen::Index> columns_;
  Sketches sketches_;            // of the candidates
  std::vector<OwnWeights> own_;  // of the chunk's rows, each query head of the key/value head
};

/// Teacher forcing (SPEC 13): every output, log-sum-exp, column sum and vote of a run within the derived bound of the oracle
/// under the engine's own memory sets. Throws Violation; records errors and trust in the context.
void require_forced(Context& context, const Problem& problem, const Trace& trace, Truth truth = Truth::eigen);

/// The votes alone, which rule `sketches` defines for rows with NaN and infinities, too.
void require_votes(Context& context, const Problem& problem, const Trace& trace);

/// Bound of a layer's outputs under the run's own sets, [N][Hq][dv], output rounding included: what two runs that
/// differ in rounding only may be apart from the exact result.
[[nodiscard]] std::vector<double> output_bounds(const Context& context, const Problem& problem,
                                                const Trace& trace, std::int64_t layer = 0);

/// What is compared with the oracle where all of a run would take too long. Column sums, votes and log-sum-exps of a sparse
/// chunk are compared whole (where sets are those of query blocks, log-sum-exps where outputs are); of outputs all rows of some heads, and of
/// the other heads (and of dense and decode chunks) the rows on both sides of one in every `border` rows of the chunk: of
/// multiples of 32, others from head to head and from layer to layer, so that all of them have their turn.
struct Part {
  std::function<bool(const Chunk&)> chunk = {};  ///< none: every chunk
  std::function<bool(std::int64_t head)> head =
      {};                          ///< query heads whose numbers are compared; none: every one
  std::int64_t whole_head_of = 4;  ///< one head of so many, another one in every layer
  std::int64_t border = 32;
};

/// require_forced for a part of a run, by the Eigen oracle on Context::threads threads.
void require_forced_in_part(Context& context, const Problem& problem, const Trace& trace, const Part& part);

/// run + require_replay + require_forced.
void require_conforming(Context& context, const Problem& problem, const RunStyle& style = {},
                        Truth truth = Truth::eigen);

/// run + require_replay (of the whole run) + require_forced_in_part.
void require_conforming_in_part(Context& context, const Problem& problem, const Part& part = {});

}  // namespace headwater::conformance
