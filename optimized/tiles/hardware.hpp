#pragma once

/// The tiles of AMX-TILE, AMX-BF16 and AMX-INT8. The instructions are written out, because the compilers' intrinsics take
/// tile numbers as literals alone. Included by files that hold nothing but kernels.

#include <cstdint>

#include "optimized/tiles/config.hpp"

namespace headwater {
namespace {

struct HardwareTiles {
  struct Session {
    explicit Session(const TileConfig& config = kFullTiles) { asm volatile("ldtilecfg %0" : : "m"(config)); }
    // Tiles in their initial state cost a context switch nothing.
    ~Session() { asm volatile("tilerelease" : : : "memory"); }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
  };

  template <int Tile>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(Tile));
  }
  template <int Tile>
  static void load(const void* from, std::int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(Tile) : "memory");
  }
  /// load() of what is not soon read again: the first-level cache keeps what it has.
  template <int Tile>
  static void stream(const void* from, std::int64_t stride) {
    asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(Tile) : "memory");
  }
  template <int Tile>
  static void store(void* to, std::int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(Tile) : "memory");
  }
  template <int C, int A, int B>
  static void multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
  template <int C, int A, int B>
  static void multiply_bytes() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
  }
};

}  // namespace
}  // namespace headwater
