#pragma once

#include <bit>
#include <cstdint>

/// Elementary functions without branches, calls or integer conversions of floats, so that loops over them
/// vectorise and NaN stays NaN without undefined behaviour.
namespace headwater::cpu::portable {

/// exp(x) for x <= 88, about 1 ulp; 0 where the result would be subnormal, NaN for NaN.
/// Cody and Waite's reduction and the minimax polynomial of Cephes' expf (S. Moshier).
inline float exp_nonpositive(float x) {
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693359375f;  // 10 bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;    // 1.5 * 2^23: adding it rounds to an integer in the low bits
  constexpr float kSmallest = -87.33654f;  // ln of the smallest normal float
  const float clamped = x < kSmallest ? kSmallest : x;
  const float shifted = clamped * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // The integer n sits in the low bits of `shifted`; the other bits of 1.5 * 2^23 are shifted out.
  const std::uint32_t exponent = (std::bit_cast<std::uint32_t>(shifted) << 23) + 0x3F800000u;
  const float result = p * std::bit_cast<float>(exponent);
  return x < kSmallest ? 0.0f : result;
}

/// tanh(x), about 2 ulp (Cephes' tanhf): an odd polynomial near zero, 1 - 2 / (exp(2|x|) + 1) elsewhere.
inline float tanh_any(float x) {
  constexpr float kSmall = 0.625f;
  constexpr float kOne = 9.1f;  // tanh rounds to 1 above
  const float magnitude = x < 0 ? -x : x;
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float small = p * z * x + x;
  // exp(-2|x|) stays in the range of exp_nonpositive: tanh = (1 - e) / (1 + e).
  const float limited = magnitude > kOne ? kOne : magnitude;
  const float e = exp_nonpositive(-2.0f * limited);
  const float large = (1.0f - e) / (1.0f + e);
  const float signed_large = x < 0 ? -large : large;
  return magnitude < kSmall ? small : signed_large;
}

}  // namespace headwater::cpu::portable
