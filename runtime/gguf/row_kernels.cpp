#include "runtime/gguf/row_kernels.hpp"

#include <cpuid.h>

#include <cassert>

#include "headwater/testing/sabotage.hpp"

namespace headwater::runtime {
namespace {

// __builtin_cpu_supports also asks whether the operating system saves the registers.

// clang 14's __builtin_cpu_supports does not know the name. The registers are those of AVX2, asked for beside it.
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

std::string missing_nothing() { return {}; }

std::string missing_avx2() {
  if (!__builtin_cpu_supports("avx2")) return "the processor lacks AVX2";
  if (!__builtin_cpu_supports("fma")) return "the processor lacks FMA";
  return has_f16c() ? "" : "the processor lacks F16C";
}

std::string missing_avx512() {
  if (!__builtin_cpu_supports("avx512f")) return "the processor lacks AVX-512F";
  return __builtin_cpu_supports("avx512bw") ? "" : "the processor lacks AVX-512BW";
}

std::string missing_avx512vnni() {
  std::string missing = missing_avx512();
  if (!missing.empty()) return missing;
  if (!__builtin_cpu_supports("avx512vl")) return "the processor lacks AVX-512VL";
  return __builtin_cpu_supports("avx512vnni") ? "" : "the processor lacks AVX-512 VNNI";
}

constexpr RowKernelVariant kVariants[] = {
    {portable_row_kernels, missing_nothing},
    {avx2_row_kernels, missing_avx2},
    {avx512_row_kernels, missing_avx512},
    {avx512vnni_row_kernels, missing_avx512vnni},
};

const RowKernels& choose() {
  const RowKernelVariant* best = kVariants;
  for (const RowKernelVariant& variant : kVariants) {
    if (variant.missing().empty()) best = &variant;
  }
  return best->kernels();
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
                    const FixedRow& x, float* out) {
  const auto dot = row_kernels().dot_fixed[index_of(type, n)];
  const std::int64_t bytes = row_bytes(type, n);
  for (std::int64_t r = 0; r < count; ++r) out[r] = dot(rows + r * bytes, n, x);
}

void dot_rows(TensorType type, const std::byte* rows, std::int64_t count, std::int64_t n, const float* x,
              float* out) {
  const auto dot = row_kernels().dot[index_of(type, n)];
  const std::int64_t bytes = row_bytes(type, n);
  const bool narrow = HEADWATER_SABOTAGE("runtime.rows.offset_in_16_bits");
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t offset = r * bytes;
    out[r] = dot(rows + (narrow ? offset & 0xFFFF : offset), n, x);
  }
}

}  // namespace headwater::runtime
