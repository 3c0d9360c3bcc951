#include "runtime/gguf/row_kernels.hpp"

#include <array>
#include <cassert>

namespace headwater::runtime {
namespace {

using detail::Feature;

// Every processor with AVX-512BW has FMA and F16C.
constexpr std::array kAvx512 = {Feature::avx512f, Feature::avx512bw};
constexpr std::array kAvx512Vnni = {Feature::avx512f, Feature::avx512bw, Feature::avx512vl,
                                    Feature::avx512vnni};

constexpr RowKernelVariant kVariants[] = {
    {&portable_row_kernels, detail::kBaseline},
    {&avx2_row_kernels, detail::kAvx2},
    {&avx512_row_kernels, kAvx512},
    {&avx512vnni_row_kernels, kAvx512Vnni},
};

const RowKernels& choose() {
  const RowKernelVariant* best = kVariants;
  for (const RowKernelVariant& variant : kVariants) {
    if (variant.missing().empty()) best = &variant;
  }
  return *best->kernels;
}

std::size_t aligned_to_line(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

std::size_t index_of(TensorType type, std::int64_t n) {
  assert(n >= 0 && n % tensor_type_info(type).block_elements == 0);
  (void)n;
  return static_cast<std::size_t>(type);
}

}  // namespace

std::span<const RowKernelVariant> row_kernel_variants() { return kVariants; }

const RowKernels& row_kernels() {
  static const RowKernels& chosen = choose();
  return chosen;
}

void dequantize_row(TensorType type, const std::byte* row, std::int64_t n, float* out) {
  row_kernels().widen[index_of(type, n)](row, n, out);
}

void dequantize_row_bf16(TensorType type, const std::byte* row, std::int64_t n, std::uint16_t* out) {
  row_kernels().widen_bf16[index_of(type, n)](row, n, out);
}

bool is_quantised(TensorType type) { return tensor_type_info(type).block_elements > 1; }

std::size_t fixed_row_bytes(std::int64_t n) {
  const auto elements = static_cast<std::size_t>(n);
  return aligned_to_line(elements * sizeof(std::int16_t) + 2 * elements / kFixedRun * sizeof(float));
}

std::size_t arranged_row_bytes(std::int64_t n) {
  return aligned_to_line((static_cast<std::size_t>(n) + 255) / 256 * kArrangedBytes);
}

FixedRow fix_row(const float* x, std::int64_t n, std::byte* memory) {
  assert(n % kFixedRun == 0);
  auto* const codes = reinterpret_cast<std::int16_t*>(memory);
  auto* const scales = reinterpret_cast<float*>(codes + n);
  float* const sums = scales + n / kFixedRun;
  row_kernels().fix(x, n, codes, scales, sums);
  return {codes, scales, sums, nullptr};
}

FixedRow arrange_row(TensorType type, const FixedRow& x, std::int64_t n, std::byte* memory) {
  const auto arrange = row_kernels().arrange[index_of(type, n)];
  if (arrange == nullptr) return x;
  arrange(x, n, memory);
  return {x.codes, x.scales, x.sums, memory};
}

void dot_rows_fixed(TensorType type, const std::byte* rows, std::int64_t count, std::int64_t n,
                    std::span<const FixedRow> x, float* out, std::int64_t stride) {
  const RowKernels& kernels = row_kernels();
  const std::size_t index = index_of(type, n);
  const auto few = kernels.dot_fixed_few[index];
  const std::int64_t bytes = row_bytes(type, n);
  while (!x.empty()) {
    const bool at_once = few != nullptr && x.size() >= kFixedRowsAtOnce;
    const std::size_t taken = at_once ? kFixedRowsAtOnce : 1;
    for (std::int64_t r = 0; r < count; ++r) {
      float dots[kFixedRowsAtOnce];
      if (at_once) {
        few(rows + r * bytes, n, x.data(), dots);
      } else {
        dots[0] = kernels.dot_fixed[index](rows + r * bytes, n, x.front());
      }
      for (std::size_t i = 0; i < taken; ++i) out[static_cast<std::int64_t>(i) * stride + r] = dots[i];
    }
    x = x.subspan(taken);
    out += static_cast<std::int64_t>(taken) * stride;
  }
}

void dot_rows(TensorType type, const std::byte* rows, std::int64_t count, std::int64_t n, const float* x,
              float* out) {
  const auto dot = row_kernels().dot[index_of(type, n)];
  const std::int64_t bytes = row_bytes(type, n);
  for (std::int64_t r = 0; r < count; ++r) out[r] = dot(rows + r * bytes, n, x);
}

}  // namespace headwater::runtime
