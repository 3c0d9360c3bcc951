#pragma once

/// A tile unit in software, bit for bit what Intel's SDM says of TILELOADD, TILESTORED, TILEZERO, TDPBF16PS and TDPBSSD:
/// what a tile has beyond its rows and bytes becomes zero and is not stored. TDPBF16PS: round to nearest even, denormal
/// inputs count as zero, denormal results become zero, even and odd products of a row are summed apart and joined in the
/// end. TDPBSSD: sums wrap around. One unit per thread, as in hardware; use before a Session, or in a second one, and
/// products of tiles that do not fit stop the program.

#include <cstdint>
#include <cstring>

#include "optimized/tiles/config.hpp"

namespace headwater {
namespace {

class SoftwareTiles {
 public:
  struct Session {
    explicit Session(const TileConfig& config = kFullTiles) {
      if (unit().configured) __builtin_trap();
      unit().configured = true;
      unit().config = config;
      std::memset(unit().tiles, 0, sizeof(unit().tiles));
    }
    ~Session() { unit().configured = false; }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
  };

  template <int Tile>
  static void zero() {
    std::memset(tile(Tile), 0, kTileBytes);
  }
  template <int Tile>
  static void load(const void* from, std::int64_t stride) {
    zero<Tile>();
    for (int row = 0; row < rows(Tile); ++row) {
      std::memcpy(tile(Tile) + row * kRowBytes, static_cast<const unsigned char*>(from) + row * stride,
                  row_bytes(Tile));
    }
  }
  template <int Tile>
  static void stream(const void* from, std::int64_t stride) {
    load<Tile>(from, stride);
  }
  template <int Tile>
  static void store(void* to, std::int64_t stride) {
    for (int row = 0; row < rows(Tile); ++row) {
      std::memcpy(static_cast<unsigned char*>(to) + row * stride, tile(Tile) + row * kRowBytes,
                  row_bytes(Tile));
    }
  }
  template <int C, int A, int B>
  static void multiply() {
    multiply_rows<C, A, B>(multiply_row);
  }
  template <int C, int A, int B>
  static void multiply_bytes() {
    multiply_rows<C, A, B>(multiply_row_of_bytes);
  }

 private:
  static constexpr int kRows = 16;
  static constexpr int kRowBytes = 64;
  static constexpr int kTileBytes = kRows * kRowBytes;
  static constexpr int kPairs = 16;

  struct Unit {
    alignas(64) unsigned char tiles[8][kTileBytes];
    TileConfig config;
    bool configured = false;
  };
  static Unit& unit() {
    static thread_local Unit unit;
    return unit;
  }
  static unsigned char* tile(int index) {
    if (!unit().configured) __builtin_trap();
    return unit().tiles[index];
  }
  static int rows(int index) { return unit().config.rows[index]; }
  static std::size_t row_bytes(int index) { return unit().config.row_bytes[index]; }

  /// Bytes and rows beyond those of a tile are zeros, and so are their products.
  template <int C, int A, int B>
  static void multiply_rows(void (*multiply_one)(int m, unsigned char* c, const unsigned char* a,
                                                 const unsigned char* b)) {
    static_assert(C != A && C != B && A != B, "TDPBF16PS: all three tiles differ");
    const bool fit = rows(C) == rows(A) && row_bytes(C) == row_bytes(B) &&
                     row_bytes(A) == 4 * static_cast<std::size_t>(rows(B));
    if (!fit) __builtin_trap();
    for (int m = 0; m < rows(C); ++m) multiply_one(m, tile(C), tile(A), tile(B));
  }

  static float flushed(float x) {
    const auto bits = __builtin_bit_cast(std::uint32_t, x);
    return (bits & 0x7F800000u) == 0 ? __builtin_bit_cast(float, bits & 0x80000000u) : x;
  }
  static float element(const unsigned char* at) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, at, sizeof(bits));
    return flushed(__builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16));
  }

  static void multiply_row(int m, unsigned char* c, const unsigned char* a, const unsigned char* b) {
    float even[kPairs] = {};
    float odd[kPairs] = {};
    for (int k = 0; k < kPairs; ++k) {
      const float a0 = element(a + m * kRowBytes + 4 * k);
      const float a1 = element(a + m * kRowBytes + 4 * k + 2);
      for (int n = 0; n < kPairs; ++n) {
        even[n] = flushed(__builtin_fmaf(a0, element(b + k * kRowBytes + 4 * n), even[n]));
        odd[n] = flushed(__builtin_fmaf(a1, element(b + k * kRowBytes + 4 * n + 2), odd[n]));
      }
    }
    for (int n = 0; n < kPairs; ++n) {
      float sum = 0;
      std::memcpy(&sum, c + m * kRowBytes + 4 * n, sizeof(sum));
      sum = flushed(flushed(sum) + flushed(even[n] + odd[n]));
      std::memcpy(c + m * kRowBytes + 4 * n, &sum, sizeof(sum));
    }
  }

  static void multiply_row_of_bytes(int m, unsigned char* c, const unsigned char* a, const unsigned char* b) {
    for (int n = 0; n < kPairs; ++n) {
      std::uint32_t sum = 0;
      std::memcpy(&sum, c + m * kRowBytes + 4 * n, sizeof(sum));
      for (int k = 0; k < kRowBytes; ++k) {
        const int product = static_cast<std::int8_t>(a[m * kRowBytes + k]) *
                            static_cast<std::int8_t>(b[k / 4 * kRowBytes + 4 * n + k % 4]);
        sum += static_cast<std::uint32_t>(product);
      }
      std::memcpy(c + m * kRowBytes + 4 * n, &sum, sizeof(sum));
    }
  }
};

}  // namespace
}  // namespace headwater
