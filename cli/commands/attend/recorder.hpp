#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cli/commands/attend/block_trace.hpp"
#include "cli/support/calls.hpp"
#include "cli/support/output_file.hpp"
#include "cli/support/output_layout.hpp"
#include "headwater/session.hpp"

namespace headwater::cli {

/// Collects what an engine tells about its chunks (ChunkRecord) and writes it as the tensors lse, colsum_intra,
/// chunk_start, memory and colsum_inter, with rules `blocks` and `sketches` those of BlockTrace in place of the last two,
/// which have no entries. Takes all of its memory when it is made: 8 bytes per token and query head, and with the trace 8
/// bytes per entry of a memory set.
class Recorder {
 public:
  Recorder(const Shape& shape, const EffectiveOptions& effective, const Work& work, bool trace);

  /// Chunk after chunk in ascending order.
  void record(const ChunkRecord& record);
  [[nodiscard]] std::uint64_t pairs() const { return pairs_; }
  [[nodiscard]] std::int64_t chunks() const { return static_cast<std::int64_t>(chunk_start_.size()) - 1; }

  /// Writes the tensors at the places that the layout gives them.
  void write(OutputFile& file, const OutputLayout& layout) const;

 private:
  void check(const ChunkRecord& record) const;
  [[nodiscard]] std::uint64_t sketched_pairs(const ChunkRecord& record) const;
  void write_trace(OutputFile& file, const OutputLayout& layout) const;

  std::int64_t n_;
  std::int64_t heads_;
  std::int64_t heads_kv_;
  const EffectiveOptions& effective_;
  std::int64_t most_chunks_;
  bool trace_;  // of rule h2o
  std::int64_t most_entries_;
  std::uint64_t pairs_ = 0;
  std::vector<float> lse_;                 // [n, Hq]
  std::vector<float> colsum_intra_;        // [Hq, n]
  std::vector<std::int32_t> chunk_start_;  // [C + 1]
  std::vector<std::int64_t> count_;        // [C], |M_{c-1}|
  // Chunk after chunk [Hq, count]: without the empty places of a set, which only the file has.
  std::vector<std::int32_t> entries_;
  std::vector<float> colsum_inter_;
  std::optional<BlockTrace> blocks_;
};

}  // namespace headwater::cli
