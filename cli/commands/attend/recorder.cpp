#include "cli/commands/attend/recorder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "cli/commands/attend/tensor_stream.hpp"
#include "cli/support/failure.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cli {
namespace {

constexpr std::int32_t kEmpty = -1;
std::size_t index(std::int64_t value) { return static_cast<std::size_t>(value); }

}  // namespace

Recorder::Recorder(const Shape& shape, const EffectiveOptions& effective, const Work& work, bool trace)
    : n_(shape.capacity),
      heads_(shape.n_head),
      heads_kv_(shape.n_head_kv),
      effective_(effective),
      most_chunks_(work.chunks),
      trace_(trace && effective.select == Select::h2o),
      most_entries_(trace_ ? work.memory_entries * heads_ : 0),
      lse_(index(n_ * heads_)),
      colsum_intra_(index(n_ * heads_)) {
  chunk_start_.reserve(index(work.chunks + 1));
  chunk_start_.push_back(0);
  if (trace && effective.select != Select::h2o) blocks_.emplace(shape.n_head_kv, effective, work);
  if (!trace_) return;
  count_.reserve(index(work.chunks));
  entries_.reserve(index(most_entries_));
  colsum_inter_.reserve(index(most_entries_));
}

void Recorder::check(const ChunkRecord& record) const {
  const Chunk& chunk = record.chunk;
  const bool in_place = chunk.begin == chunk_start_.back() && chunk.begin < chunk.end && chunk.end <= n_ &&
                        chunks() < most_chunks_;
  const bool sized = record.memory_count >= 0 &&
                     record.memory_count <= std::min(effective_.memory(), chunk.begin) &&
                     (chunk.mode == ChunkMode::sparse || record.memory_count == 0);
  const bool fits =
      !trace_ || static_cast<std::int64_t>(entries_.size()) + record.memory_count * heads_ <= most_entries_;
  if (in_place && sized && fits) return;
  throw Failure(
      fmt::format("internal error: the engine reports chunk [{}, {}) with a memory set of {} after {} "
                  "chunks of {} tokens",
                  chunk.begin, chunk.end, record.memory_count, chunks(), chunk_start_.back()));
}

/// SKE-8: of rows and the sets that they read, by the mean over the heads.
std::uint64_t Recorder::sketched_pairs(const ChunkRecord& record) const {
  std::int64_t pairs = 0;
  for (std::int64_t set = 0; set < heads_kv_ * record.query_blocks; ++set) {
    const std::int32_t* const entries = record.memory + set * record.memory_stride;
    const std::int64_t first = record.chunk.begin + set % record.query_blocks * effective_.query_block;
    const std::int64_t rows = std::min(effective_.query_block, record.chunk.end - first);
    pairs += rows * (std::find(entries, entries + record.memory_count, kEmpty) - entries);
  }
  return static_cast<std::uint64_t>(pairs / heads_kv_);
}

void Recorder::record(const ChunkRecord& record) {
  check(record);
  const std::int64_t begin = record.chunk.begin;
  const std::int64_t length = record.chunk.end - begin;
  for (std::int64_t h = 0; h < heads_; ++h) {
    const float* const row = record.lse + h * record.row_stride;
    for (std::int64_t t = 0; t < length; ++t) lse_[index((begin + t) * heads_ + h)] = row[t];
    if (record.colsum_intra == nullptr) continue;  // dense: zero by definition, as it was made
    const float* const sums = record.colsum_intra + h * record.row_stride;
    std::copy_n(sums, length, colsum_intra_.begin() + h * n_ + begin);
  }
  if (trace_) {
    count_.push_back(record.memory_count);
    for (std::int64_t h = 0; h < heads_ && record.memory_count > 0; ++h) {
      const std::int32_t* const positions = record.memory + h * record.memory_stride;
      entries_.insert(entries_.end(), positions, positions + record.memory_count);
      const float* const sums = record.colsum_inter + h * record.memory_stride;
      colsum_inter_.insert(colsum_inter_.end(), sums, sums + record.memory_count);
    }
  }
  if (blocks_) blocks_->record(record);
  // A sparse chunk reads its memory set, any other everything before it.
  const bool sketched = record.query_blocks > 0 && effective_.select == Select::sketches;
  pairs_ += pairs_of(length, record.chunk.mode != ChunkMode::sparse ? begin
                             : sketched                             ? 0
                                                                    : record.memory_count);
  if (sketched) pairs_ += sketched_pairs(record);
  chunk_start_.push_back(static_cast<std::int32_t>(record.chunk.end));
}

void Recorder::write(OutputFile& file, const OutputLayout& layout) const {
  if (chunks() != most_chunks_ || chunk_start_.back() != n_) {
    throw Failure(fmt::format("internal error: the engine reported {} of {} chunks", chunks(), most_chunks_));
  }
  file.write_at(layout.offset("lse"), std::as_bytes(std::span(lse_)));
  file.write_at(layout.offset("colsum_intra"), std::as_bytes(std::span(colsum_intra_)));
  file.write_at(layout.offset("chunk_start"), std::as_bytes(std::span(chunk_start_)));
  if (trace_) write_trace(file, layout);
  if (blocks_) blocks_->write(file, layout);
}

void Recorder::write_trace(OutputFile& file, const OutputLayout& layout) const {
  TensorStream<std::int32_t> memory(file, layout.offset("memory"));
  TensorStream<float> sums(file, layout.offset("colsum_inter"));
  std::size_t at = 0;
  for (const std::int64_t count : count_) {
    for (std::int64_t h = 0; h < heads_; ++h) {
      memory.append(std::span(entries_).subspan(at, index(count)));
      memory.fill(effective_.memory() - count, kEmpty);
      sums.append(std::span(colsum_inter_).subspan(at, index(count)));
      sums.fill(effective_.memory() - count, 0.0F);
      at += index(count);
    }
  }
  memory.flush();
  sums.flush();
}

}  // namespace headwater::cli
