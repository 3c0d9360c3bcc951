#pragma once

#include "reference/softmax.hpp"

/// Chapter 9 of the spec: fusion (FUSE-1, FUSE-2).
namespace headwater::reference {

/// FUSE-1: one softmax over the union of two disjoint key sets, given the softmax over each. Both have the
/// same dv.
[[nodiscard]] SoftmaxRow fuse(const SoftmaxRow& a, const SoftmaxRow& b);

}  // namespace headwater::reference
