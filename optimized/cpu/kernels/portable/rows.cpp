#include <algorithm>

#include "core/numbers.hpp"
#include "cpu/kernels/portable/elementary.hpp"
#include "cpu/kernels/portable/kernels.hpp"
#include "headwater/options.hpp"

namespace headwater::cpu::portable {

namespace {

constexpr std::int64_t kPiece = 64;  // elements of a row that are widened at a time
constexpr int kChains = 8;           // partial sums of a dot product

/// Calls body(first, n, floats) for every piece of a stored row.
template <class Body>
void for_pieces(const void* row, DType type, std::int64_t count, const Body& body) {
  const auto* bytes = static_cast<const unsigned char*>(row);
  for (std::int64_t first = 0; first < count; first += kPiece) {
    const std::int64_t n = std::min(kPiece, count - first);
    float piece[kPiece] = {};
    core::widen(bytes + first * static_cast<std::int64_t>(dtype_size(type)), type, n, piece);
    body(first, n, piece);
  }
}

const void* row_of(const void* rows, DType type, std::int64_t row, std::int64_t width) {
  return static_cast<const unsigned char*>(rows) + row * width * static_cast<std::int64_t>(dtype_size(type));
}

float dot(const float* a, const float* b, std::int64_t n) {
  float partial[kChains] = {};
  std::int64_t i = 0;
  for (; i + kChains <= n; i += kChains) {
    for (int c = 0; c < kChains; ++c) partial[c] += a[i + c] * b[i + c];
  }
  for (int c = 0; i < n; ++i, ++c) partial[c] += a[i] * b[i];
  return ((partial[0] + partial[4]) + (partial[2] + partial[6])) +
         ((partial[1] + partial[5]) + (partial[3] + partial[7]));
}

}  // namespace

void blend(const float* a, float a_weight, const float* b, float b_weight, std::int64_t n, float* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = a[i] * a_weight + b[i] * b_weight;
}

void arrange_row(const float* row, DType, std::int64_t n, float* arranged) { std::copy_n(row, n, arranged); }

void restore_row(const float* arranged, DType, std::int64_t n, float* row) { std::copy_n(arranged, n, row); }

void row_logits(const float* q, std::int64_t rows, std::int64_t d, const void* keys, DType type,
                std::int64_t n_keys, float scale, float* logits, std::int64_t stride) {
  for (std::int64_t key = 0; key < n_keys; ++key) {
    for (std::int64_t row = 0; row < rows; ++row) logits[row * stride + key] = 0;
    for_pieces(row_of(keys, type, key, d), type, d,
               [&](std::int64_t first, std::int64_t n, const float* piece) {
                 for (std::int64_t row = 0; row < rows; ++row) {
                   logits[row * stride + key] += dot(q + row * d + first, piece, n);
                 }
               });
    for (std::int64_t row = 0; row < rows; ++row) logits[row * stride + key] *= scale;
  }
}

float row_weights(float* logits, std::int64_t n, float max) {
  float partial[kChains] = {};
  for (std::int64_t i = 0; i < n; ++i) logits[i] = exp_nonpositive(logits[i] - max);
  std::int64_t i = 0;
  for (; i + kChains <= n; i += kChains) {
    for (int c = 0; c < kChains; ++c) partial[c] += logits[i + c];
  }
  for (int c = 0; i < n; ++i, ++c) partial[c] += logits[i];
  float total = 0;
  for (const float sum : partial) total += sum;
  return total;
}

void row_values(const float* weights, std::int64_t stride, std::int64_t rows, const void* values, DType type,
                std::int64_t n_keys, std::int64_t dv, float* out) {
  for (std::int64_t key = 0; key < n_keys; ++key) {
    for_pieces(row_of(values, type, key, dv), type, dv,
               [&](std::int64_t first, std::int64_t n, const float* piece) {
                 for (std::int64_t row = 0; row < rows; ++row) {
                   const float weight = weights[row * stride + key];
                   float* to = out + row * dv + first;
                   for (std::int64_t c = 0; c < n; ++c) to[c] += weight * piece[c];
                 }
               });
  }
}

}  // namespace headwater::cpu::portable
