// Row kernels for AVX-512 (F and BW; every processor that has them has FMA and F16C).

#include "runtime/gguf/kernels/avx512.hpp"

namespace headwater::runtime {

constinit const RowKernels avx512_row_kernels =
    make_row_kernels_with_integers<Avx512, Avx512Words>("AVX-512");

}  // namespace headwater::runtime
