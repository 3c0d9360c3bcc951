#pragma once

#include <string>
#include <vector>

#include "conformance/eigen_oracle.hpp"
#include "conformance/problem.hpp"
#include "conformance/run.hpp"
#include "conformance/votes.hpp"

namespace headwater::conformance {

/// What the two files of a `headwater attend` run say: the inputs and options as a problem without steps, the chunks as
/// an observer would have reported them.
struct AttendRun {
  Problem problem;
  EffectiveOptions options;
  Arithmetic arithmetic;  ///< of the engine that the output names
  VoteArithmetic votes;   ///< the same, of votes
  std::string engine;
  std::vector<ChunkTrace> chunks;
  std::vector<float> out;             ///< [n][Hq][dv]
  std::vector<float> lse;             ///< [n][Hq]
  std::vector<std::uint32_t> scores;  ///< [Hq][n], bit patterns
};

/// Reads an input and the output that `attend` made of it. The mode of a chunk is recognised: dense or decode if its
/// memory is empty though tokens stand before it, and for the first chunk if its column sums are 0; under rule `blocks`, if
/// it has no query blocks. Errors:
/// headwater::Error invalid_argument naming file, tensor and what is allowed.
[[nodiscard]] AttendRun read_attend_run(const std::string& input, const std::string& output);

/// `out` of another output file of the same shape.
[[nodiscard]] std::vector<float> read_attend_outputs(const std::string& path, const AttendRun& like);

}  // namespace headwater::conformance
