#pragma once

#include <cstdint>
#include <vector>

#include "cli/support/calls.hpp"
#include "cli/support/output_file.hpp"
#include "cli/support/output_layout.hpp"
#include "headwater/session.hpp"

namespace headwater::cli {

/// The trace of rules `blocks` and `sketches`, with B query blocks in ascending order:
///   query_blocks [B, 2] I32          first row of each, and the row after its last
///   block_sets   [B, Hkv, M] I32     the set that its rows read, -1 where empty (SEL-8, SKE-8)
///   block_votes  [B, Hkv, X] F32     one for each candidate (SEL-6), NaN after the last; X: the most of any chunk; not of
///                                    rule `sketches`, which has no key blocks
///   token_votes  [B, Hkv, Y] F32     one for each token of the chosen key blocks in ascending order (SEL-7), NaN after
///                                    the last and where there is no second stage; rule `sketches`: one for each candidate
///                                    (SKE-6); Y: the most of any chunk
/// Takes all of its memory when it is made: 4 bytes for each valid entry and vote.
class BlockTrace {
 public:
  BlockTrace(std::int64_t heads_kv, const EffectiveOptions& effective, const Work& work);

  /// Bytes of the tensors; the most of 64 bits where they overflow.
  [[nodiscard]] static std::uint64_t bytes(std::int64_t heads_kv, std::int64_t memory, const Work& work);
  /// Adds the tensors.
  static void lay_out(OutputLayout& layout, std::int64_t heads_kv, const EffectiveOptions& effective,
                      const Work& work);

  /// Chunk after chunk in ascending order; chunks that are not sparse have no sets.
  void record(const ChunkRecord& record);
  void write(OutputFile& file, const OutputLayout& layout) const;

 private:
  /// The sets of one query block have these sizes, for every head.
  struct Sizes {
    std::int64_t entries;
    std::int64_t candidates;
    std::int64_t voted;
  };
  void check(const ChunkRecord& record) const;

  std::int64_t heads_kv_;
  const EffectiveOptions& effective_;
  Work work_;
  std::vector<Sizes> sizes_;        // [B]
  std::vector<std::int32_t> rows_;  // [B, 2]
  // Query block after query block [Hkv, count]: without the empty places, which only the file has.
  std::vector<std::int32_t> entries_;
  std::vector<float> block_votes_;
  std::vector<float> token_votes_;
};

}  // namespace headwater::cli
