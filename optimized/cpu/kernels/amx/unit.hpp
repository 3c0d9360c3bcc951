#pragma once

/// The matrix products of bf16/kernels.hpp on tiles of 16 rows x 64 bytes, for any `Tiles` with the semantics of Intel's
/// AMX-BF16 (Intel SDM, volume 2, TILELOADD, TDPBF16PS, TILESTORED): Tiles::Session (configures eight such tiles and
/// releases them), zero<t>(), load<t>(from, stride in bytes), stream<t>(), a load of what is not soon read again,
/// store<t>(to, stride), multiply<c, a, b>().
///
/// Keys are the rows of A, packed queries the pairs of B, so that C is a block of logits, key by key. For the outputs
/// packed values are A and weights B. Included by files that are built for AVX-512 and hold nothing but kernels.

#include "cpu/kernels/bf16/kernels.hpp"

namespace headwater::cpu {
namespace {

inline constexpr std::int64_t kTileRows = 16;
inline constexpr std::int64_t kTileDepth =
    32;  // BF16 elements of a row of A: products that one multiply adds up

template <class Tiles>
struct TileUnit {
  /// The next tile of keys is multiplied while the weights of this one are computed: the two units overlap.
  static constexpr bool kKeysInPlace = false;
  static constexpr bool kPipelined = true;
  static constexpr decltype(Bf16Table::row_logits) kRowLogits = nullptr;
  using Session = typename Tiles::Session;

  static constexpr std::int64_t kLine = kBlockRows * 4;     // bytes of a line of logits or of packed pairs
  static constexpr std::int64_t kHalfLine = kTileRows * 4;  // bytes of 16 of its lanes
  static constexpr std::int64_t kHalfElements = kTileRows * 2;  // elements of 16 pairs
  static constexpr std::int64_t kValueLine = kKeyTile * 2;      // bytes of a line of packed values

  /// Multiplies of the same two tiles of logits.
  static constexpr std::int64_t steps_of_dot(std::int64_t d) { return d / kTileDepth; }

  /// Rows of logits after the last key come from rows after it, which are readable (Bf16Segment::keys).
  template <int Halves>
  static void dot(const Bf16Segment& segment, std::int64_t first, std::int64_t n, float* logits) {
    dot_beside<Halves>(segment, first, n, logits, [](auto) {});
  }

  /// The same. Calls beside(Place<0 .. 3>) after the multiplies of each of steps_of_dot() steps.
  template <int Halves, class Beside>
  [[gnu::always_inline]] static void dot_beside(const Bf16Segment& segment, std::int64_t first, std::int64_t,
                                                float* logits, const Beside& beside) {
    const std::uint16_t* keys = segment.key_tile(first);
    const std::int64_t stride = segment.key_stride * 2;
    Tiles::template zero<0>();
    Tiles::template zero<1>();
    Tiles::template zero<2>();
    Tiles::template zero<3>();
    for (std::int64_t e = 0; e < segment.d; e += kTileDepth) {
      const std::uint16_t* queries = segment.queries + e * kBlockRows;
      Tiles::template load<4>(keys + e, stride);
      Tiles::template load<6>(queries, kLine);
      Tiles::template multiply<0, 4, 6>();
      beside(Place<0>{});
      if constexpr (Halves == 2) {
        Tiles::template load<7>(queries + kHalfElements, kLine);
        Tiles::template multiply<1, 4, 7>();
      }
      beside(Place<1>{});
      Tiles::template load<5>(keys + e + kTileRows * segment.key_stride, stride);
      Tiles::template multiply<2, 5, 6>();
      beside(Place<2>{});
      if constexpr (Halves == 2) Tiles::template multiply<3, 5, 7>();
      beside(Place<3>{});
    }
    float* below = logits + kTileRows * kBlockRows;
    Tiles::template store<0>(logits, kLine);
    Tiles::template store<2>(below, kLine);
    if constexpr (Halves == 2) {
      Tiles::template store<1>(logits + kTileRows, kLine);
      Tiles::template store<3>(below + kTileRows, kLine);
    }
  }

  /// 32 columns of the output (16 where `Wide` is false) over all keys.
  template <bool Wide>
  static void value_tile(const std::uint16_t* weights, std::int64_t tiles, const std::uint16_t* values,
                         std::int64_t dv, bool fresh, float* out) {
    float* below = out + kTileRows * kBlockRows;
    if (fresh) {
      Tiles::template zero<0>();
      Tiles::template zero<1>();
      Tiles::template zero<2>();
      Tiles::template zero<3>();
    } else {
      Tiles::template load<0>(out, kLine);
      Tiles::template load<1>(out + kTileRows, kLine);
      if constexpr (Wide) {
        Tiles::template load<2>(below, kLine);
        Tiles::template load<3>(below + kTileRows, kLine);
      }
    }
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      Tiles::template stream<4>(values, kValueLine);
      Tiles::template load<6>(weights, kLine);
      Tiles::template multiply<0, 4, 6>();
      Tiles::template load<7>(weights + kHalfElements, kLine);
      Tiles::template multiply<1, 4, 7>();
      if constexpr (Wide) {
        Tiles::template stream<5>(values + kTileRows * kKeyTile, kValueLine);
        Tiles::template multiply<2, 5, 6>();
        Tiles::template multiply<3, 5, 7>();
      }
      weights += kTileWeights;
      values += dv * kKeyTile;
    }
    Tiles::template store<0>(out, kLine);
    Tiles::template store<1>(out + kTileRows, kLine);
    if constexpr (Wide) {
      Tiles::template store<2>(below, kLine);
      Tiles::template store<3>(below + kTileRows, kLine);
    }
  }

  static void accumulate(const std::uint16_t* weights, std::int64_t tiles, const std::uint16_t* values,
                         std::int64_t dv, bool fresh, float* out) {
    const Session session;
    std::int64_t column = 0;
    for (; column + 2 * kTileRows <= dv; column += 2 * kTileRows) {
      value_tile<true>(weights, tiles, values + column * kKeyTile, dv, fresh, out + column * kBlockRows);
    }
    if (column < dv)
      value_tile<false>(weights, tiles, values + column * kKeyTile, dv, fresh, out + column * kBlockRows);
  }
};

}  // namespace
}  // namespace headwater::cpu
