// Built for AVX2 with FMA, and nothing but kernels.

#include "tests/model/software_tiles.hpp"

#include "optimized/tiles/software.hpp"
#include "runtime/model/kernels/tile_product.hpp"

namespace headwater::runtime::testing {

constinit const TileKernels software_tiles = tile_kernels<SoftwareTiles>();

}  // namespace headwater::runtime::testing
