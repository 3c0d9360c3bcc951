#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "conformance/problem.hpp"

namespace headwater::conformance {

// STATE-13 as the kit reads it.
inline constexpr std::int64_t kGroupElements = 32;
inline constexpr std::int64_t kGroupBytes = 34;

/// The groups of a row of n elements.
[[nodiscard]] std::vector<std::byte> groups_of(const float* row, std::int64_t n);
/// The row that the groups give, of the KV type.
[[nodiscard]] std::vector<float> row_of(const std::vector<std::byte>& groups, DType type);
/// The problem whose rows are those that sessions with kv_bits = 8 restore.
[[nodiscard]] Problem restored(Problem problem);

}  // namespace headwater::conformance
