#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "headwater/export.h"
#include "headwater/session.hpp"

namespace headwater {

/// Which elements form a rotated pair (ROPE-1): (x0, x1), (x2, x3), ... or (x_i, x_{i + r/2}).
enum class RopeLayout : std::uint8_t { adjacent_pairs = 0, split_halves = 1 };

/// The r/2 inverse frequencies theta^(-2i/r), i = 0 .. r/2 - 1 (ROPE-1; Su et al., RoFormer, 2021).
/// Errors: r odd, r < 2 or > 65536; theta not finite or <= 0.
[[nodiscard]] HEADWATER_API std::vector<double> rope_inverse_frequencies(std::int64_t r, double theta);

/// Rotates n x heads rows in place: pair i of the row at global position p turns by p * inverse_frequencies[i]
/// radians and is multiplied by magnitude (1, or YaRN's attention factor). Row t stands at first_position + t.
/// The first 2 * inverse_frequencies.size() elements are rotated, the others of the `width` stay as they are.
/// Angles, sine and cosine are double (ROPE-3); the result is rounded once to the rows' type. Linear, YaRN and
/// Llama-3 scaling are only other frequencies (ROPE-4).
/// Errors: null data; n < 0, heads < 1; first_position < 0 or a position >= 2^31; more rotated elements than
/// width; a frequency or magnitude that is not finite.
HEADWATER_API void rotate(const MutableRows& rows, std::int64_t n, std::int64_t heads, std::int64_t width,
                          std::int64_t first_position, std::span<const double> inverse_frequencies,
                          double magnitude, RopeLayout layout);

}  // namespace headwater
