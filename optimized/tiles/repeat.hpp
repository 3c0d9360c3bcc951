#pragma once

/// Loops over registers. For files that hold nothing but kernels: everything sits in an unnamed namespace.

namespace headwater {
namespace {

/// A place that is known at compile time. An array that is only addressed by such places lives in registers; one with
/// loops over it is given memory before g++ unrolls them, and keeps stores to it.
template <int I>
struct Place {
  constexpr operator int() const { return I; }  // NOLINT(google-explicit-constructor): it stands for an index
};

/// body(Place<0>), ..., body(Place<N - 1>), written out.
template <int N, int I = 0, class Body>
[[gnu::always_inline]] inline void repeat(const Body& body) {
  if constexpr (I < N) {
    body(Place<I>{});
    repeat<N, I + 1>(body);
  }
}

}  // namespace
}  // namespace headwater
