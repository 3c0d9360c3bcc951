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

/// Calls body(i, key row, value row) for the stored rows at n positions, in any order of positions.
template <class Body>
void for_gathered(const core::KvStore& kv, std::int64_t layer, std::int64_t head,
                  const std::int32_t* positions, std::int64_t n, const Body& body) {
  const auto element = static_cast<std::int64_t>(dtype_size(kv.type()));
  const std::int64_t key_bytes = kv.d_head(layer) * element;
  const std::int64_t value_bytes = kv.d_value(layer) * element;
  const void* keys[kPrefetchedRows];
  const void* values[kPrefetchedRows];
  // Rows that lie together are found from the first of them, which saves most of an address.
  struct Run {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    const unsigned char* key = nullptr;  // of position `begin`
    const unsigned char* value = nullptr;
  } run;
  const auto prefetch_row = [&](std::int64_t i) {
    const std::int64_t at = i % kPrefetchedRows;
    const std::int64_t position = positions[i];
    if (position < run.begin || position >= run.end) {
      constexpr std::int64_t kAll = std::int64_t{1} << 31;  // more rows than any session has
      run = {position,
             position +
                 std::min(kv.keys_together(layer, position, kAll), kv.values_together(layer, position, kAll)),
             static_cast<const unsigned char*>(kv.key(layer, head, position)),
             static_cast<const unsigned char*>(kv.value(layer, head, position))};
    }
    keys[at] = run.key + (position - run.begin) * key_bytes;
    values[at] = run.value + (position - run.begin) * value_bytes;
    prefetch(keys[at], key_bytes);
    prefetch(values[at], value_bytes);
  };
  for (std::int64_t i = 0; i < std::min(kPrefetchedRows, n); ++i) prefetch_row(i);
  for (std::int64_t i = 0; i < n; ++i) {
    const void* key = keys[i % kPrefetchedRows];
    const void* value = values[i % kPrefetchedRows];
    if (i + kPrefetchedRows < n) prefetch_row(i + kPrefetchedRows);
    body(i, key, value);
  }
}

}  // namespace headwater::cpu
