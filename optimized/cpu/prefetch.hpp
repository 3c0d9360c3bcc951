#pragma once

#include <cstdint>

namespace headwater::cpu {

inline constexpr std::int64_t kCacheLine = 64;

/// Asks for `bytes` bytes that are going to be read.
inline void prefetch(const void* data, std::int64_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  for (std::int64_t line = 0; line < bytes; line += kCacheLine) __builtin_prefetch(at + line);
}

/// The same for bytes that are going to be written.
inline void prefetch_to_write(void* data, std::int64_t bytes) {
  auto* at = static_cast<unsigned char*>(data);
  for (std::int64_t line = 0; line < bytes; line += kCacheLine) __builtin_prefetch(at + line, 1);
}

}  // namespace headwater::cpu
