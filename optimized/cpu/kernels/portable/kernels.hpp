#pragma once

#include "cpu/kernels/table.hpp"

/// Plain C++ for the baseline x86-64-v2; written so that g++ and clang keep the tiles in registers.
namespace headwater::cpu::portable {

void pack_queries(const float* rows, std::int64_t lanes, std::int64_t d, float* packed);
void dot_products(const float* packed, std::int64_t lanes, std::int64_t d, const float* keys,
                  std::int64_t n_keys, float* block);
void map_logits(const LogitMap& map, const BlockPositions& positions, std::int64_t lanes, std::int64_t n_keys,
                float* block);
void mask_future(const BlockPositions& positions, std::int64_t lanes, std::int64_t n_keys, float* block);
void softmax(std::int64_t lanes, std::int64_t n_keys, float* block, SoftmaxState& state);
void accumulate_values(const float* block, std::int64_t lanes, std::int64_t n_keys, const float* values,
                       std::int64_t dv, const float* rescale, float* out);
void column_sums(const float* block, std::int64_t lanes, std::int64_t n_keys, const float* factor,
                 double* sums);

}  // namespace headwater::cpu::portable
