#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

/// Rows in 8 bits (STATE-13).
namespace headwater::reference {

inline constexpr std::int64_t kGroupElements = 32;
inline constexpr std::int64_t kGroupBytes = 2 + kGroupElements;

/// The group of 32 elements, which are floats: an F16 scale, low byte first, and an integer for each element.
void pack_group(std::span<const double> elements, std::span<std::byte> group);

/// Scale times integers, before they are rounded to the KV type. The bytes may be any.
void restore_group(std::span<const std::byte> group, std::span<double> elements);

}  // namespace headwater::reference
