#include "cpu/dispatch.hpp"

#include <cpuid.h>

namespace headwater::cpu {

namespace {

// __builtin_cpu_supports also asks whether the operating system saves the registers.

std::string missing_sse() { return __builtin_cpu_supports("sse4.2") ? "" : "the processor lacks SSE4.2"; }

// clang 14's __builtin_cpu_supports does not know the name. The registers are those of AVX2, asked for beside it.
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

std::string missing_avx2() {
  if (!__builtin_cpu_supports("avx2")) return "the processor lacks AVX2";
  if (!__builtin_cpu_supports("fma")) return "the processor lacks FMA";
  return has_f16c() ? "" : "the processor lacks F16C";
}

std::string missing_avx512() {
  if (!__builtin_cpu_supports("avx512f")) return "the processor lacks AVX-512F";
  return __builtin_cpu_supports("avx512dq") ? "" : "the processor lacks AVX-512DQ";
}

// In the order of their speed on every processor that runs more than one of them.
constexpr Variant kVariants[] = {
    {"cpu-portable", "plain C++ for every x86-64-v2 processor", portable_kernels, missing_sse},
    {"cpu-avx2", "float kernels in AVX2 with FMA", avx2_kernels, missing_avx2},
    {"cpu-avx512", "float kernels in AVX-512", avx512_kernels, missing_avx512},
};

}  // namespace

std::span<const Variant> variants() { return kVariants; }

const Variant& preferred_variant() {
  const Variant* best = &kVariants[0];
  for (const Variant& variant : kVariants) {
    if (variant.missing().empty()) best = &variant;
  }
  return *best;
}

}  // namespace headwater::cpu
