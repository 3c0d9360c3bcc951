// Products of many rows on the tiles of AMX (and AVX-512F for copies). Kernels and their table only: all code here is
// built for such a processor.

#include "optimized/tiles/hardware.hpp"
#include "runtime/model/kernels/tile_product.hpp"

namespace headwater::runtime {

constinit const TileKernels amx_tile_kernels = tile_kernels<HardwareTiles>();

}  // namespace headwater::runtime
