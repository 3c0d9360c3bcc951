#pragma once

#include "cuda/kernels/sm90/shared_tile.hpp"

namespace headwater::cuda::sm90 {

/// What a kernel is compiled for. kD, kDv: widths of query and key rows and of value rows in shared memory, whole lines;
/// narrower rows are filled up with zeros by the copies. kMapped: logits are mapped by the whole rule (a cap, ALiBi slopes,
/// a factor of any sign); else they are products times a positive factor, which the exponentials take in.
template <class ElementType, int kDType, int kDvType, bool kMappedType>
struct KernelShape {
  using Element = ElementType;
  static constexpr int kD = kDType;
  static constexpr int kDv = kDvType;
  static constexpr bool kMapped = kMappedType;
  /// Keys of a tile of the forward: two stages of keys and of values must fit beside the queries.
  static constexpr int kKeys = kD + kDv <= 320 ? 128 : 64;
  static_assert(kD % kLineElements == 0 && (kDv == 64 || kDv == 128 || kDv == 256));
};

}  // namespace headwater::cuda::sm90
