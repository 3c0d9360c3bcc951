// The kernels of AMX on a tile unit in software, for conformance on machines without one (test builds only). Built for
// AVX-512 F, BW, DQ, VL, BF16. Kernels only: see table.cpp.
#ifdef HEADWATER_TESTING

#include "cpu/kernels/amx_emulated/kernels.hpp"

#include "cpu/kernels/amx/unit.hpp"
#include "cpu/kernels/amx_emulated/software_tiles.hpp"

HEADWATER_DEFINE_BF16_KERNELS(amx_emulated, TileUnit<SoftwareTiles>)

#endif
