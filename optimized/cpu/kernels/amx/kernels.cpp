// BF16 kernels on the tiles of AMX (and AVX-512 F, BW, DQ, VL, BF16 for what stands between), and votes by sketches on
// AMX-INT8. Kernels and their tables only: all code here is built for such a processor.

#include "cpu/kernels/amx/sketches.hpp"
#include "cpu/kernels/amx/unit.hpp"
#include "tiles/hardware.hpp"

namespace headwater::cpu {

constinit const Bf16Table amx_kernels = bf16_kernels<TileUnit<HardwareTiles>>("AMX-BF16", 32, 16, kKeyTile);
constinit const SketchTable amx_sketches = tile_sketches<HardwareTiles>();

}  // namespace headwater::cpu
