#pragma once

#include <cstdint>

#include "headwater/dtype.hpp"

namespace headwater::core {

/// Groups of STATE-13: an F16 scale, low byte first, and an integer for each of the elements.
inline constexpr std::int64_t kGroupElements = 32;
inline constexpr std::int64_t kGroupBytes = 2 + kGroupElements;

/// Restores `groups` consecutive groups to elements of `type`, at any alignment.
using RestoreGroups = void (*)(const void* packed, std::int64_t groups, DType type, void* to);

/// A row of n elements, a multiple of kGroupElements, to its groups.
void pack_row(const void* row, DType type, std::int64_t n, void* to);

/// RestoreGroups in plain C++.
void restore_groups(const void* packed, std::int64_t groups, DType type, void* to);

}  // namespace headwater::core
