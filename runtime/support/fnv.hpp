#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace headwater::runtime {

/// FNV-1a of 64 bits (Fowler, Noll, Vo), of bytes behind those that `hash` stands for: says whether two files are the same,
/// not whether somebody forged one.
[[nodiscard]] inline std::uint64_t fnv1a(std::span<const std::byte> bytes,
                                         std::uint64_t hash = 0xcbf29ce484222325U) {
  for (const std::byte byte : bytes) hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3U;
  return hash;
}

}  // namespace headwater::runtime
