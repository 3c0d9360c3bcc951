// Built for AVX2 with FMA, and nothing but kernels.

#include "tests/model/software_tiles.hpp"

#include "optimized/cpu/kernels/amx_emulated/software_tiles.hpp"
#include "runtime/model/kernels/tile_product.hpp"

namespace headwater::runtime::testing {

constinit const TileKernels software_tiles = tile_kernels<cpu::SoftwareTiles>();

}  // namespace headwater::runtime::testing
