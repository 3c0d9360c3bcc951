#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "headwater/rope.hpp"

/// Chapter 3 of the spec: positions (ROPE-1 .. ROPE-4). A twin of the public functions of headwater/rope.hpp,
/// written apart from them, with the same contracts and errors.
namespace headwater::reference {

/// ROPE-1: theta^(-2i/r), i = 0 .. r/2 - 1.
[[nodiscard]] std::vector<double> inverse_frequencies(std::int64_t r, double theta);

/// ROPE-1 on one row that stands at `position`: pair i turns by position * frequencies[i] and is multiplied
/// by `magnitude`. Elements after the first 2 * frequencies.size() stay as they are.
void rotate_row(std::span<double> row, std::int64_t position, std::span<const double> frequencies,
                double magnitude, RopeLayout layout);

/// n x heads rows in place, row t at first_position + t; each rotated element is rounded once to the rows'
/// type.
void rotate_rows(const MutableRows& rows, std::int64_t n, std::int64_t heads, std::int64_t width,
                 std::int64_t first_position, std::span<const double> frequencies, double magnitude,
                 RopeLayout layout);

}  // namespace headwater::reference
