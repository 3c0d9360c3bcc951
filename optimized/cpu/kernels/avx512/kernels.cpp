// AVX-512 float kernels (F, DQ; every processor that has them has FMA). Kernels only: see table.cpp.

#include "cpu/kernels/avx512/kernels.hpp"

#include "cpu/kernels/avx512/vector.hpp"
#include "cpu/kernels/wide/row_kernels.hpp"

namespace headwater::cpu {

namespace avx512 {

void pack_queries(const float* rows, std::int64_t stride, std::int64_t n_rows, std::int64_t d,
                  float* packed) {
  cpu::pack_queries<Avx512>(rows, stride, n_rows, d, packed);
}
void dot_products(const float* packed, std::int64_t lanes, std::int64_t d, const float* keys,
                  std::int64_t n_keys, float scale, float* block, const float* next) {
  cpu::dot_products<Avx512>(packed, lanes, d, keys, n_keys, scale, block, next);
}
void cap_and_bias(const LogitMap& map, const BlockPositions& positions, std::int64_t lanes,
                  std::int64_t n_keys, float* block) {
  cpu::cap_and_bias<Avx512>(map, positions, lanes, n_keys, block);
}
void softmax(std::int64_t lanes, std::int64_t n_keys, float* block, SoftmaxState& state) {
  cpu::softmax<Avx512>(lanes, n_keys, block, state);
}
void accumulate_values(const float* block, std::int64_t lanes, std::int64_t n_keys, std::int64_t visible,
                       const float* values, std::int64_t dv, const float* rescale, float* out) {
  cpu::accumulate_values<Avx512>(block, lanes, n_keys, visible, values, dv, rescale, out);
}
void widen(const void* from, DType type, std::int64_t count, float* to) {
  cpu::widen<Avx512>(from, type, count, to);
}
void narrow(const float* from, std::int64_t count, DType type, void* to) {
  cpu::narrow<Avx512>(from, count, type, to);
}
void column_sums(const float* block, std::int64_t lanes, std::int64_t n_keys, const float* factor,
                 double* sums) {
  cpu::column_sums<Avx512>(block, lanes, n_keys, factor, sums);
}

void blend(const float* a, float a_weight, const float* b, float b_weight, std::int64_t n, float* to) {
  cpu::blend<Avx512>(a, a_weight, b, b_weight, n, to);
}
void arrange_row(const float* row, DType type, std::int64_t n, float* arranged) {
  cpu::arrange_row<Avx512>(row, type, n, arranged);
}
void restore_row(const float* arranged, DType type, std::int64_t n, float* row) {
  cpu::restore_row<Avx512>(arranged, type, n, row);
}
void row_logits(const float* q, std::int64_t rows, std::int64_t d, const void* keys, DType type,
                std::int64_t n_keys, float scale, float* logits, std::int64_t stride) {
  cpu::row_logits<Avx512>(q, rows, d, keys, type, n_keys, scale, logits, stride);
}
float row_weights(float* logits, std::int64_t n, float max) {
  return cpu::row_weights<Avx512>(logits, n, max);
}
void row_values(const float* weights, std::int64_t stride, std::int64_t rows, const void* values, DType type,
                std::int64_t n_keys, std::int64_t dv, float* out) {
  cpu::row_values<Avx512>(weights, stride, rows, values, type, n_keys, dv, out);
}

}  // namespace avx512
}  // namespace headwater::cpu
