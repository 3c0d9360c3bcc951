#include "cli/commands/attend/recorder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "cli/support/failure.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cli {
namespace {

constexpr std::int32_t kEmpty = -1;
constexpr std::size_t kBufferEntries = std::size_t{1} << 18;  ///< 1 MiB: few system calls, little memory

std::size_t index(std::int64_t value) { return static_cast<std::size_t>(value); }

/// Writes a tensor of 4-byte elements from front to back.
template <typename Element>
class TensorStream {
 public:
  TensorStream(OutputFile& file, std::uint64_t offset) : file_(file), offset_(offset) {
    buffer_.reserve(kBufferEntries);
  }
  void append(std::span<const Element> values) {
    while (!values.empty()) {
      const auto part = values.first(std::min(values.size(), kBufferEntries - buffer_.size()));
      buffer_.insert(buffer_.end(), part.begin(), part.end());
      values = values.subspan(part.size());
      if (buffer_.size() == kBufferEntries) flush();
    }
  }
  void fill(std::int64_t count, Element value) {
    while (count > 0) {
      const auto part = std::min(count, static_cast<std::int64_t>(kBufferEntries - buffer_.size()));
      buffer_.insert(buffer_.end(), index(part), value);
      count -= part;
      if (buffer_.size() == kBufferEntries) flush();
    }
  }
  void flush() {
    file_.write_at(offset_, std::as_bytes(std::span<const Element>(buffer_)));
    if (!HEADWATER_SABOTAGE("cli.recorder.second_buffer_over_the_first")) {
      offset_ += buffer_.size() * sizeof(Element);
    }
    buffer_.clear();
  }

 private:
  OutputFile& file_;
  std::uint64_t offset_;
  std::vector<Element> buffer_;
};

}  // namespace

Recorder::Recorder(std::int64_t n, std::int64_t heads, std::int64_t memory, const Work& work, bool trace)
    : n_(n),
      heads_(heads),
      memory_(memory),
      most_chunks_(work.chunks),
      most_entries_(trace ? work.memory_entries * heads : 0),
      trace_(trace),
      lse_(index(n * heads)),
      colsum_intra_(index(n * heads)) {
  chunk_start_.reserve(index(work.chunks + 1));
  chunk_start_.push_back(0);
  if (!trace_) return;
  count_.reserve(index(work.chunks));
  entries_.reserve(index(most_entries_));
  colsum_inter_.reserve(index(most_entries_));
}

void Recorder::check(const ChunkRecord& record) const {
  const Chunk& chunk = record.chunk;
  const bool in_place = chunk.begin == chunk_start_.back() && chunk.begin < chunk.end && chunk.end <= n_ &&
                        chunks() < most_chunks_;
  const bool sized = record.memory_count >= 0 && record.memory_count <= std::min(memory_, chunk.begin) &&
                     (chunk.mode == ChunkMode::sparse || record.memory_count == 0);
  const bool fits =
      !trace_ || static_cast<std::int64_t>(entries_.size()) + record.memory_count * heads_ <= most_entries_;
  if (in_place && sized && fits) return;
  throw Failure(
      fmt::format("internal error: the engine reports chunk [{}, {}) with a memory set of {} after {} "
                  "chunks of {} tokens",
                  chunk.begin, chunk.end, record.memory_count, chunks(), chunk_start_.back()));
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
  // A sparse chunk reads its memory set, any other everything before it.
  pairs_ += pairs_of(length, record.chunk.mode == ChunkMode::sparse ? record.memory_count : begin);
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
}

void Recorder::write_trace(OutputFile& file, const OutputLayout& layout) const {
  TensorStream<std::int32_t> memory(file, layout.offset("memory"));
  TensorStream<float> sums(file, layout.offset("colsum_inter"));
  std::size_t at = 0;
  for (const std::int64_t count : count_) {
    for (std::int64_t h = 0; h < heads_; ++h) {
      memory.append(std::span(entries_).subspan(at, index(count)));
      memory.fill(memory_ - count, kEmpty);
      sums.append(std::span(colsum_inter_).subspan(at, index(count)));
      sums.fill(memory_ - count, 0.0F);
      at += index(count);
    }
  }
  memory.flush();
  sums.flush();
}

}  // namespace headwater::cli
