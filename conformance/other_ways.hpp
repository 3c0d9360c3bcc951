#pragma once

#include <cstdint>
#include <vector>

#include "conformance/problem.hpp"
#include "conformance/random.hpp"
#include "conformance/run.hpp"

namespace headwater::conformance {

/// One step with the rows of the problem in the caller's memory, in pages in random order or in one piece; returns the outputs
/// of all layers, or none where no queries are given (DEC-2). Rows that are no token's hold NaN.
std::vector<std::vector<float>> stored_step(Random& random, Session& session, const Problem& problem,
                                            const Step& step, bool queries = true);

/// A decode step of the problem's rows without queries (DEC-2).
void store_step(Session& session, const Problem& problem, const Step& step);

/// ROWS-1: a session of the problem, whose K and V rows have the KV type, gives `wanted` over rows of the caller.
void require_stored_rows(Random& random, const Engine& engine, Problem problem, const Trace& wanted);

/// A session at one of its problem's steps.
struct Sequence {
  const Problem* problem;
  const Trace* wanted;
  Session* session;
  Step step;
};

/// One layer of the open steps of all sequences that have it, in one call; each must give what is wanted of it (SEQ-1).
void attend_layer_together(const std::vector<Sequence>& sequences, std::int64_t layer);

}  // namespace headwater::conformance
