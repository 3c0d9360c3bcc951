#pragma once

#include "cpu/kernels/bf16/kernel_names.hpp"

HEADWATER_DECLARE_BF16_KERNELS(avx512bf16)

namespace headwater::cpu::avx512bf16 {

void row_logits(const std::uint16_t* q, std::int64_t rows, std::int64_t d, const std::uint16_t* keys,
                std::int64_t n_keys, float scale, float* logits, std::int64_t stride);

}  // namespace headwater::cpu::avx512bf16
