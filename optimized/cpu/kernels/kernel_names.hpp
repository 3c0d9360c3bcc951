#pragma once

#include "cpu/kernels/table.hpp"

/// Declares the kernels of one ISA in the namespace of that ISA, with the signatures of KernelTable.
#define HEADWATER_DECLARE_KERNELS(isa)                                                                      \
  namespace headwater::cpu::isa {                                                                           \
  void widen(const void* from, DType type, std::int64_t count, float* to);                                  \
  void narrow(const float* from, std::int64_t count, DType type, void* to);                                 \
  void pack_queries(const float* rows, std::int64_t stride, std::int64_t n_rows, std::int64_t d,            \
                    float* packed);                                                                         \
  void dot_products(const float* packed, std::int64_t lanes, std::int64_t d, const float* keys,             \
                    std::int64_t n_keys, float scale, float* block, const float* next);                     \
  void cap_and_bias(const LogitMap& map, const BlockPositions& positions, std::int64_t lanes,               \
                    std::int64_t n_keys, float* block);                                                     \
  void softmax(std::int64_t lanes, std::int64_t n_keys, float* block, SoftmaxState& state);                 \
  void accumulate_values(const float* block, std::int64_t lanes, std::int64_t n_keys, std::int64_t visible, \
                         const float* values, std::int64_t dv, const float* rescale, float* out);           \
  void column_sums(const float* block, std::int64_t lanes, std::int64_t n_keys, const float* factor,        \
                   double* sums);                                                                           \
  void blend(const float* a, float a_weight, const float* b, float b_weight, std::int64_t n, float* to);    \
  void arrange_row(const float* row, DType type, std::int64_t n, float* arranged);                          \
  void restore_row(const float* arranged, DType type, std::int64_t n, float* row);                          \
  void row_logits(const float* q, std::int64_t rows, std::int64_t d, const void* keys, DType type,          \
                  std::int64_t n_keys, float scale, float* logits, std::int64_t stride);                    \
  float row_weights(float* logits, std::int64_t n, float max);                                              \
  void row_values(const float* weights, std::int64_t stride, std::int64_t rows, const void* values,         \
                  DType type, std::int64_t n_keys, std::int64_t dv, float* out);                            \
  }
