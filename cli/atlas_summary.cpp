#include "atlas_summary.hpp"

#include <algorithm>

#include "calls.hpp"

namespace headwater::cli {
namespace {

std::size_t index(std::int64_t value) { return static_cast<std::size_t>(value); }

/// The chunks that read a memory set.
std::vector<std::int64_t> readers(const AtlasTrace& trace, std::int64_t head) {
  std::vector<std::int64_t> chunks;
  for (std::int64_t c = 0; c < trace.chunks(); ++c) {
    if (!trace.set(c, head).empty()) chunks.push_back(c);
  }
  return chunks;
}

}  // namespace

PairCounts count_pairs(const AtlasTrace& trace, std::int64_t head) {
  PairCounts pairs;
  for (std::int64_t c = 0; c < trace.chunks(); ++c) {
    const std::int64_t length = trace.end(c) - trace.begin(c);
    const auto queries = static_cast<std::uint64_t>(length);
    const auto set = trace.set(c, head);
    const auto first_local = std::lower_bound(set.begin(), set.end(), trace.local_begin(c));
    pairs.own += pairs_of(length, 0);
    pairs.heavy += queries * static_cast<std::uint64_t>(first_local - set.begin());
    pairs.local += queries * static_cast<std::uint64_t>(set.end() - first_local);
    if (trace.dense(c, head)) pairs.dense += queries * static_cast<std::uint64_t>(trace.begin(c));
  }
  return pairs;
}

std::vector<std::int32_t> heavy_reads(const AtlasTrace& trace, std::int64_t head) {
  std::vector<std::int32_t> reads(index(trace.n));
  for (std::int64_t c = 0; c < trace.chunks(); ++c) {
    for (const std::int32_t position : trace.set(c, head)) {
      if (position >= trace.local_begin(c)) break;
      ++reads[index(position)];
    }
  }
  return reads;
}

std::vector<double> survival(const AtlasTrace& trace, std::int64_t head) {
  const auto sets = readers(trace, head);
  std::vector<double> kept(sets.size());
  std::vector<double> had(sets.size());
  for (std::size_t r = 0; r < sets.size(); ++r) {
    const auto set = trace.set(sets[r], head);
    auto from = set.begin();
    // The reader whose set is the k-th after chunk c: k is how many readers lie behind c, up to and with this one.
    std::size_t first_reader_behind = 0;
    for (std::int64_t c = 0; c < sets[r]; ++c) {
      while (first_reader_behind < r && sets[first_reader_behind] <= c) ++first_reader_behind;
      const std::size_t k = r - first_reader_behind;  // counted from 0
      const auto to = std::lower_bound(from, set.end(), trace.end(c));
      kept[k] += static_cast<double>(to - from);
      had[k] += static_cast<double>(trace.end(c) - trace.begin(c));
      from = to;
    }
  }
  for (std::size_t k = 0; k < kept.size(); ++k) kept[k] = had[k] > 0.0 ? kept[k] / had[k] : 0.0;
  return kept;
}

}  // namespace headwater::cli
