#pragma once

#include <cstdint>

#include "headwater/options.hpp"

namespace headwater::conformance {

/// The kit's own number formats, written from IEEE 754 by value (a sum in double that keeps whole units), where the
/// engines work on bits: so that the two do not share a mistake.

/// Nearest even; overflow to infinity, subnormals kept, NaN is 0x7FC0 (SCORE-4).
[[nodiscard]] std::uint16_t bf16_bits(float value);
[[nodiscard]] float bf16_value(std::uint16_t bits);
/// Nearest even; NaN stays a NaN.
[[nodiscard]] std::uint16_t f16_bits(float value);
[[nodiscard]] float f16_value(std::uint16_t bits);

/// Writes `value` rounded to `type` at `to`; no alignment is required.
void store_element(DType type, float value, void* to);
/// Reads one element, widened exactly.
[[nodiscard]] float load_element(DType type, const void* from);
/// `value` rounded to `type`, as a float.
[[nodiscard]] float round_to(DType type, float value);

/// Unit round-off of the format: half the distance from 1 to the next number.
[[nodiscard]] double unit_roundoff(DType type);
/// Smallest positive subnormal.
[[nodiscard]] double smallest(DType type);

/// Same bits, or both NaN.
[[nodiscard]] bool same_bits(float a, float b);

}  // namespace headwater::conformance
