#pragma once

#include <cstdint>

namespace headwater::runtime {

/// Turns rows into columns: to[k * to_stride + r] = from[r * from_stride + k] for `rows` rows of n words of 32 bits (one
/// F32, or a pair of BF16).
void interleave_rows(const std::uint32_t* from, std::int64_t from_stride, std::int64_t rows, std::int64_t n,
                     std::uint32_t* to, std::int64_t to_stride);

}  // namespace headwater::runtime
