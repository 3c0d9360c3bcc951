#pragma once

#include "conformance/case.hpp"
#include "conformance/eigen_oracle.hpp"
#include "conformance/problem.hpp"
#include "conformance/run.hpp"
#include "reference/oracle.hpp"

namespace headwater::conformance {

/// Whose values an engine is held against. Bounds always come from the Eigen oracle.
enum class Truth { eigen, reference };

/// The rows, positions and logit rule of one query head of one reported chunk, under the engine's own memory set.
/// K and V are rounded once to the KV type (STATE-6).
[[nodiscard]] HeadChunk head_chunk(const Problem& problem, std::int64_t layer, const ChunkTrace& chunk,
                                   std::int64_t head);

/// One layer as the reference oracle reads it: K and V rounded as they are stored.
struct StoredLayer {
  StoredLayer(const Problem& problem, std::int64_t layer);
  Tensor k, v;
  reference::LayerRows rows;  ///< of q in the problem, and of k and v
};

/// Values of the reference oracle for the same chunk, in the shape of the Eigen oracle's (bounds left as they are).
void use_reference_values(const Problem& problem, const StoredLayer& layer, const ChunkTrace& chunk,
                          std::int64_t head, HeadTruth& truth);

/// Teacher forcing (SPEC 13): every output, log-sum-exp and column sum of a run within the derived bound of the oracle
/// under the engine's own memory sets. Throws Violation; records marks and trust in the context.
void require_forced(Context& context, const Problem& problem, const Trace& trace, Truth truth = Truth::eigen);

/// run + require_replay + require_forced.
void require_conforming(Context& context, const Problem& problem, const RunStyle& style = {},
                        Truth truth = Truth::eigen);

}  // namespace headwater::conformance
