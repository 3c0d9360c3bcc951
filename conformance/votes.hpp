#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <vector>

#include "conformance/eigen_oracle.hpp"
#include "headwater/engine.hpp"

/// The oracle of the votes of rules `blocks` (SEL-3 to SEL-7) and `sketches` (SKE-3 to SKE-6), in Eigen matrices of doubles.
namespace headwater::conformance {

/// The arithmetic of an engine's votes, from which their bounds are derived (docs/verification.md).
struct VoteArithmetic {
  double u = 0x1p-24;        ///< unit round-off of its estimates, logits and sums
  double exp = 4 * 0x1p-24;  ///< relative error of an exponential
  double tiny = 0x1p-125;    ///< weights below this may vanish
  double summary = 0x1p-24;  ///< rounding of a mean or variance to the type that it is kept in
  double flushed = 0.0;      ///< elements of a query below this may count as zero
  double query = 0.0;  ///< rounding of a pooled query, and of its square, to the type of a matrix product
};

/// What an engine's claims promise for queries and stored rows of these types: double throughout; else summaries in F32, or
/// in BF16 where stored rows have 16 bits; products of BF16 where Claims::bf16_weights holds for these types.
[[nodiscard]] VoteArithmetic vote_arithmetic_of(const Engine& engine, DType query, DType stored);

/// Summaries of candidates, and how far those of an engine may be from them.
struct Summaries {
  Eigen::MatrixXd mean, mean_error;          ///< [blocks][d]
  Eigen::MatrixXd variance, variance_error;  ///< [blocks][column groups]
};

/// SEL-3 of `keys`, blocks of `key_block` rows.
[[nodiscard]] Summaries summaries_of(const Eigen::MatrixXd& keys, std::int64_t key_block,
                                     const VoteArithmetic& arithmetic);

/// SEL-12: more candidates than this are searched by regions of so many blocks.
constexpr Eigen::Index kCandidatesOfOneLevel = 2048;
constexpr Eigen::Index kBlocksOfRegion = 32;

/// SEL-12 of the whole regions, from the summaries of all candidates and what an engine's kept ones are off by.
[[nodiscard]] Summaries region_summaries(const Summaries& blocks, const VoteArithmetic& arithmetic);

/// Some rows of summaries.
[[nodiscard]] Summaries rows_of(const Summaries& summaries, const std::vector<Eigen::Index>& rows);

/// The queries of one query block that one key/value head's sets are chosen by, and how their logits are formed.
struct QueryBlock {
  std::vector<Eigen::MatrixXd> q;  ///< of each query head of the key/value head: [rows][d]
  std::int64_t begin = 0;          ///< position of the first row
  std::int64_t pool = 1;           ///< rows of a pool; of a half pool half as many, rounded up
  double scale = 1.0;
  double softcap = 0.0;
  std::vector<double> slope;  ///< of each query head; empty: none
};

/// Votes in double before their rounding to F32; the bounds hold that rounding.
struct VoteTruth {
  Eigen::VectorXd vote, bound;
};

/// SEL-4 to SEL-6: a vote for every key block.
[[nodiscard]] VoteTruth block_votes(const QueryBlock& block, const Summaries& summaries,
                                    std::int64_t key_block, const VoteArithmetic& arithmetic);
/// The same where row i of the summaries is block `numbers[i]`; the maxima are over these blocks.
[[nodiscard]] VoteTruth block_votes(const QueryBlock& block, const Summaries& summaries,
                                    const std::vector<Eigen::Index>& numbers, std::int64_t key_block,
                                    const VoteArithmetic& arithmetic);

/// SEL-7: a vote for every kept token, given by key rows and positions.
[[nodiscard]] VoteTruth token_votes(const QueryBlock& block, const Eigen::MatrixXd& keys,
                                    const std::vector<std::int32_t>& positions,
                                    const VoteArithmetic& arithmetic);

/// SKE-3: X, ascending; row j of `keys` is the stored key of position j, of all positions before the chunk.
[[nodiscard]] std::vector<Eigen::Index> sketch_columns(const Eigen::MatrixXd& keys);

/// SKE-4 of some rows.
struct Sketches {
  Eigen::MatrixXd integers;  ///< [rows][columns of X]
  Eigen::VectorXd unit;      ///< NaN where the row has no sketch
};
[[nodiscard]] Sketches sketches_of(const Eigen::MatrixXd& rows, const std::vector<Eigen::Index>& columns);

/// SKE-5 of a query block's rows in one query head.
struct OwnWeights {
  Eigen::VectorXd value, bound;
};

/// SKE-6: a vote for every candidate, given by sketches and positions. The bound is infinite where a row may leave the range
/// of F32.
[[nodiscard]] VoteTruth sketch_votes(const QueryBlock& block, const std::vector<OwnWeights>& own,
                                     const std::vector<Eigen::Index>& columns, const Sketches& keys,
                                     const std::vector<std::int32_t>& positions,
                                     const VoteArithmetic& arithmetic);

}  // namespace headwater::conformance
