#pragma once

#include "runtime/model/kernels/tile_kernels.hpp"

namespace headwater::runtime::testing {

/// On a tile unit in software, which has the bits of AMX. For processors with AVX2.
extern const TileKernels software_tiles;

}  // namespace headwater::runtime::testing
