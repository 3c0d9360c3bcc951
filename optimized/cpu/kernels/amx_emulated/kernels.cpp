// The kernels of AMX on a tile unit in software, for conformance on machines without one (test builds only). Built for
// AVX-512 F, BW, DQ, VL, BF16. Kernels and their table only.
#ifdef HEADWATER_TESTING

#include "cpu/kernels/amx/sketches.hpp"
#include "cpu/kernels/amx/unit.hpp"
#include "tiles/software.hpp"

namespace headwater::cpu {

constinit const Bf16Table amx_emulated_kernels =
    bf16_kernels<TileUnit<SoftwareTiles>>("AMX-BF16 emulated", 32, 16, kKeyTile);
constinit const SketchTable amx_emulated_sketches = tile_sketches<SoftwareTiles>();

}  // namespace headwater::cpu

#endif
