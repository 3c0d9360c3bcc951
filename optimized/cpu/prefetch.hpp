#pragma once

#include <algorithm>
#include <cstdint>

#include "core/kv_store.hpp"

namespace headwater::cpu {

/// Rows that are prefetched before their turn: 8 KiB of K and V in BF16 at d = 128.
inline constexpr std::int64_t kPrefetchedRows = 16;

/// Prefetches `bytes` bytes into the second-level cache: the first has room for few misses at a time. The empty
/// instruction keeps the call: g++ 12 takes a function that does nothing but prefetch for one without effects, and
/// drops it.
inline void prefetch(const void* data, std::int64_t bytes) {
  constexpr std::int64_t kCacheLine = 64;
  const auto* at = static_cast<const unsigned char*>(data);
  for (std::int64_t line = 0; line < bytes; line += kCacheLine) __builtin_prefetch(at + line, 0, 2);
  asm volatile("");
}

/// Some of the rows that are gathered. The addresses of the last kKept rows stand before them.
struct GatheredRows {
  static constexpr std::int64_t kMost = 8;
  static constexpr std::int64_t kKept = 32;
  std::int64_t n;  ///< 1 .. kMost
  const void* const* keys;
  const void* const* values;
};

/// Which of the rows are prefetched before their turn.
enum class Fetch : std::uint8_t { nothing, values, both };

/// Calls body(first, rows) for the stored rows at n positions, in any order of positions; `first`, a multiple of
/// GatheredRows::kMost, is the number of the first of them.
template <class Body>
void for_gathered(const core::KvStore& kv, std::int64_t layer, std::int64_t head,
                  const std::int32_t* positions, std::int64_t n, Fetch fetch, const Body& body) {
  const auto element = static_cast<std::int64_t>(dtype_size(kv.type()));
  const std::int64_t key_bytes = kv.d_head(layer) * element;
  const std::int64_t value_bytes = kv.d_value(layer) * element;
  constexpr std::int64_t kSlots = 2 * GatheredRows::kKept;
  static_assert(kPrefetchedRows + GatheredRows::kMost <= GatheredRows::kKept);
  const void* keys[kSlots];
  const void* values[kSlots];
  // Rows that lie together are found from the first of them, which saves most of an address.
  struct Run {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    const unsigned char* key = nullptr;  // of position `begin`
    const unsigned char* value = nullptr;
  } run;
  std::int64_t found = 0;
  const auto find = [&](std::int64_t end) {
    for (; found < std::min(end, n); ++found) {
      const std::int64_t position = positions[found];
      if (position < run.begin || position >= run.end) {
        constexpr std::int64_t kAll = std::int64_t{1} << 31;  // more rows than any session has
        run = {position,
               position + std::min(kv.keys_together(layer, position, kAll),
                                   kv.values_together(layer, position, kAll)),
               static_cast<const unsigned char*>(kv.key(layer, head, position)),
               static_cast<const unsigned char*>(kv.value(layer, head, position))};
      }
      const unsigned char* key = run.key + (position - run.begin) * key_bytes;
      const unsigned char* value = run.value + (position - run.begin) * value_bytes;
      if (fetch == Fetch::both) prefetch(key, key_bytes);
      if (fetch != Fetch::nothing) prefetch(value, value_bytes);
      keys[found % kSlots] = key;
      values[found % kSlots] = value;
    }
  };
  for (std::int64_t first = 0; first < n; first += GatheredRows::kMost) {
    find(first + GatheredRows::kMost + kPrefetchedRows);
    body(first, GatheredRows{std::min(GatheredRows::kMost, n - first), keys + first % kSlots,
                             values + first % kSlots});
  }
}

}  // namespace headwater::cpu
