#include "cli/commands/attend/block_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>

#include "cli/commands/attend/tensor_stream.hpp"
#include "cli/support/failure.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cli {
namespace {

constexpr std::int32_t kEmpty = -1;
constexpr float kNoVote = std::numeric_limits<float>::quiet_NaN();  // votes are never NaN

std::size_t index(std::int64_t value) { return static_cast<std::size_t>(value); }

/// Appends the `count` values of set `set`.
template <typename Element>
void append(std::vector<Element>& to, const Element* from, std::int64_t set, std::int64_t stride,
            std::int64_t count) {
  if (count == 0) return;
  to.insert(to.end(), from + set * stride, from + set * stride + count);
}

}  // namespace

BlockTrace::BlockTrace(std::int64_t heads_kv, const EffectiveOptions& effective, const Work& work)
    : heads_kv_(heads_kv), effective_(effective), work_(work) {
  sizes_.reserve(index(work.query_blocks));
  rows_.reserve(index(2 * work.query_blocks));
  entries_.reserve(index(work.memory_entries * heads_kv));
  block_votes_.reserve(index(work.block_votes * heads_kv));
  token_votes_.reserve(index(work.token_votes * heads_kv));
}

std::uint64_t BlockTrace::bytes(std::int64_t heads_kv, std::int64_t memory, const Work& work) {
  const auto each = static_cast<std::uint64_t>(memory + work.most_candidates + work.most_voted);
  auto bytes = static_cast<std::uint64_t>(work.query_blocks);
  bool overflow = __builtin_mul_overflow(bytes, sizeof(float) * static_cast<std::uint64_t>(heads_kv), &bytes);
  overflow |= __builtin_mul_overflow(bytes, each, &bytes);
  return overflow ? std::numeric_limits<std::uint64_t>::max() : bytes;
}

void BlockTrace::lay_out(OutputLayout& layout, std::int64_t heads_kv, const EffectiveOptions& effective,
                         const Work& work) {
  const auto blocks = static_cast<std::uint64_t>(work.query_blocks);
  const auto heads = static_cast<std::uint64_t>(heads_kv);
  layout.add("query_blocks", TensorType::i32, {blocks, 2});
  layout.add("block_sets", TensorType::i32, {blocks, heads, static_cast<std::uint64_t>(effective.memory())});
  if (effective.select == Select::blocks) {
    layout.add("block_votes", TensorType::f32,
               {blocks, heads, static_cast<std::uint64_t>(work.most_candidates)});
  }
  layout.add("token_votes", TensorType::f32, {blocks, heads, static_cast<std::uint64_t>(work.most_voted)});
}

void BlockTrace::check(const ChunkRecord& record) const {
  const std::int64_t begin = record.chunk.begin;
  const bool sized = record.memory_count == effective_.memory_count(begin) &&
                     record.query_blocks == effective_.query_blocks(record.chunk.end - begin) &&
                     record.candidate_blocks == effective_.candidate_blocks(begin) &&
                     record.voted_tokens == effective_.voted_tokens(begin);
  const bool fits = static_cast<std::int64_t>(sizes_.size()) + record.query_blocks <= work_.query_blocks;
  if (sized && fits) return;
  throw Failure(fmt::format(
      "internal error: the engine reports for chunk [{}, {}) {} query blocks with sets of {}, {} key "
      "blocks and {} tokens to vote on, after {} of {} query blocks",
      begin, record.chunk.end, record.query_blocks, record.memory_count, record.candidate_blocks,
      record.voted_tokens, sizes_.size(), work_.query_blocks));
}

void BlockTrace::record(const ChunkRecord& record) {
  if (record.chunk.mode != ChunkMode::sparse) return;
  check(record);
  for (std::int64_t b = 0; b < record.query_blocks; ++b) {
    const std::int64_t first = record.chunk.begin + b * effective_.query_block;
    rows_.push_back(static_cast<std::int32_t>(first));
    rows_.push_back(static_cast<std::int32_t>(std::min(first + effective_.query_block, record.chunk.end)));
    sizes_.push_back({record.memory_count, record.candidate_blocks, record.voted_tokens});
    for (std::int64_t g = 0; g < heads_kv_; ++g) {
      const std::int64_t set = HEADWATER_SABOTAGE("cli.block_trace.heads_inside_blocks")
                                   ? b * heads_kv_ + g
                                   : g * record.query_blocks + b;
      append(entries_, record.memory, set, record.memory_stride, record.memory_count);
      append(block_votes_, record.block_votes, set, record.candidate_blocks, record.candidate_blocks);
      append(token_votes_, record.token_votes, set, record.voted_tokens, record.voted_tokens);
    }
  }
}

void BlockTrace::write(OutputFile& file, const OutputLayout& layout) const {
  if (static_cast<std::int64_t>(sizes_.size()) != work_.query_blocks) {
    throw Failure(fmt::format("internal error: the engine reported {} of {} query blocks", sizes_.size(),
                              work_.query_blocks));
  }
  file.write_at(layout.offset("query_blocks"), std::as_bytes(std::span(rows_)));
  const auto write_padded = [&]<typename Element>(const char* name, const std::vector<Element>& values,
                                                  std::int64_t Sizes::*size, std::int64_t width,
                                                  Element empty) {
    TensorStream<Element> stream(file, layout.offset(name));
    std::span<const Element> left(values);
    for (const Sizes& sizes : sizes_) {
      for (std::int64_t g = 0; g < heads_kv_; ++g) {
        stream.append(left.first(index(sizes.*size)));
        stream.fill(width - sizes.*size, empty);
        left = left.subspan(index(sizes.*size));
      }
    }
    stream.flush();
  };
  write_padded("block_sets", entries_, &Sizes::entries, effective_.memory(), kEmpty);
  if (effective_.select == Select::blocks)
    write_padded("block_votes", block_votes_, &Sizes::candidates, work_.most_candidates, kNoVote);
  write_padded("token_votes", token_votes_, &Sizes::voted, work_.most_voted, kNoVote);
}

}  // namespace headwater::cli
