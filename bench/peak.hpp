#pragma once

#include <cstdint>

/// Multiply-adds on registers alone, in enough independent chains to hide their latency: the rate that no kernel of
/// that ISA can pass. Each call runs `turns` turns and returns the flops done.
namespace headwater::bench {

double sse_flops(std::int64_t turns);  ///< separate multiplications and additions, as the baseline has no FMA
double avx2_flops(std::int64_t turns);    ///< needs AVX2 and FMA
double avx512_flops(std::int64_t turns);  ///< needs AVX-512F

}  // namespace headwater::bench
