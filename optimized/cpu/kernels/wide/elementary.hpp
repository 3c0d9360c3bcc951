#pragma once

/// Elementary functions for any vector type of kernels.hpp that has, besides what stands there: Mask, not_less (true
/// for NaN, too), less, mul_where (a * b where the mask is set, else 0), select (a where the mask is set, else b), sub,
/// div, fnma (c - a * b), abs, with_sign_of and power_of_two (2^(n - 127) for n in the low bits of the float).

namespace headwater::cpu {
namespace {

/// exp(x), x <= 0, about 1 ulp; exactly 0 below the smallest normal result, 1 at 0, NaN for NaN. Few operations of
/// the ports that multiply: adding 1.5 * 2^23 + 127 rounds x log2(e) and leaves the biased exponent in the low bits;
/// Cody and Waite's reduction; a minimax polynomial of relative error 2e-9.
template <class V>
inline typename V::Reg exp_nonpositive(typename V::Reg x) {
  const typename V::Mask normal = V::not_less(x, V::set(-87.33654f));
  const typename V::Reg shift = V::set(12582912.0f + 127.0f);
  const typename V::Reg shifted = V::fma(x, V::set(1.44269504f), shift);
  const typename V::Reg n = V::sub(shifted, shift);
  typename V::Reg r = V::fnma(n, V::set(0.693359375f), x);
  r = V::fnma(n, V::set(-2.12194440e-4f), r);
  typename V::Reg p = V::set(0x1.6ae6e0p-10f);
  p = V::fma(p, r, V::set(0x1.1267d8p-7f));
  p = V::fma(p, r, V::set(0x1.555824p-5f));
  p = V::fma(p, r, V::set(0x1.555418p-3f));
  p = V::fma(p, r, V::set(0x1.fffffcp-2f));
  p = V::fma(p, r, V::set(1.0f));
  p = V::fma(p, r, V::set(1.0f));
  return V::mul_where(normal, p, V::power_of_two(shifted));
}

/// Cephes' tanhf: an odd polynomial near zero, (1 - e) / (1 + e) with e = exp(-2|x|) elsewhere.
template <class V>
inline typename V::Reg hyperbolic_tangent(typename V::Reg x) {
  const typename V::Reg magnitude = V::abs(x);
  const typename V::Reg z = V::mul(x, x);
  typename V::Reg p = V::set(-5.70498872745e-3f);
  p = V::fma(p, z, V::set(2.06390887954e-2f));
  p = V::fma(p, z, V::set(-5.37397155531e-2f));
  p = V::fma(p, z, V::set(1.33314422036e-1f));
  p = V::fma(p, z, V::set(-3.33332819422e-1f));
  const typename V::Reg small = V::fma(V::mul(p, z), x, x);
  const typename V::Reg e = exp_nonpositive<V>(V::mul(V::set(-2.0f), magnitude));
  const typename V::Reg large = V::div(V::sub(V::set(1.0f), e), V::add(V::set(1.0f), e));
  return V::select(V::less(magnitude, V::set(0.625f)), small, V::with_sign_of(large, x));
}

}  // namespace
}  // namespace headwater::cpu
