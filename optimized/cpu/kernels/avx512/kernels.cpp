// AVX-512 float kernels (F, DQ; every processor that has them has FMA). Kernels and their table only: all code here is
// built for such a processor.

#include "cpu/kernels/avx512/vector.hpp"
#include "cpu/kernels/wide/row_kernels.hpp"

namespace headwater::cpu {

// Segments of 256 keys: 32 KiB of weights; a quarter of a second-level cache of 1 MiB with keys and values.
constinit const KernelTable avx512_kernels = wide_kernels<Avx512>("AVX-512", 256);

}  // namespace headwater::cpu
