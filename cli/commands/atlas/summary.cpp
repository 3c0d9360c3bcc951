#include "cli/commands/atlas/summary.hpp"

#include <algorithm>

#include "cli/support/calls.hpp"
#include "headwater/testing/sabotage.hpp"

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
    pairs.own += pairs_of(length, trace.begin(c) - trace.own_begin(c));
    pairs.heavy += queries * static_cast<std::uint64_t>(first_local - set.begin());
    if (HEADWATER_SABOTAGE("atlas.pairs.in_32_bits")) pairs.heavy = static_cast<std::uint32_t>(pairs.heavy);
    pairs.local += queries * static_cast<std::uint64_t>(set.end() - first_local);
    if (trace.dense(c, head)) pairs.dense += queries * static_cast<std::uint64_t>(trace.own_begin(c));
  }
  return pairs;
}

std::vector<std::int32_t> heavy_reads(const AtlasTrace& trace, std::int64_t head) {
  std::vector<std::int32_t> reads(index(trace.n));
  for (std::int64_t c = 0; c < trace.chunks(); ++c) {
    for (const std::int32_t position : trace.set(c, head)) {
      if (position >= trace.local_begin(c)) break;
      ++reads[index(HEADWATER_SABOTAGE("atlas.reads.position_in_16_bits") ? position & 0xFFFF : position)];
    }
  }
  return reads;
}

Survival survival(const AtlasTrace& trace, std::int64_t head) {
  struct Survivor {
    std::int64_t position;
    std::size_t first_set;  // after its chunk
  };
  if (trace.by_query_block()) return {};  // every set is chosen anew: none follows another
  const auto sets = readers(trace, head);
  std::vector<std::int64_t> at_risk(sets.size()), kept(sets.size());
  std::vector<Survivor> survivors;  // ascending
  std::int64_t next = 0;            // token that is not among them yet
  for (std::size_t r = 0; r < sets.size(); ++r) {
    for (; next < trace.begin(sets[r]); ++next) survivors.push_back({next, r});
    const auto set = trace.set(sets[r], head);
    auto entry = set.begin();
    std::size_t left = 0;
    for (const Survivor token : survivors) {
      std::size_t age = r - token.first_set;  // counted from 0
      if (HEADWATER_SABOTAGE("atlas.survival.age_in_8_bits")) age &= 0xFF;
      ++at_risk[age];
      while (entry != set.end() && *entry < token.position) ++entry;
      if (entry == set.end() || *entry != token.position) continue;
      ++kept[age];
      survivors[left++] = token;
    }
    survivors.resize(left);
  }
  Survival result;
  double share = 1.0;
  for (std::size_t k = 0; k < sets.size() && at_risk[k] > 0; ++k) {
    share *= static_cast<double>(kept[k]) / static_cast<double>(at_risk[k]);
    result.share.push_back(share);
    result.at_risk.push_back(at_risk[k]);
  }
  return result;
}

}  // namespace headwater::cli
