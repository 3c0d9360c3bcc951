#include "cpu/dispatch.hpp"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string_view>

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

std::string missing_avx512bf16() {
  if (std::string missing = missing_avx512(); !missing.empty()) return missing;
  if (!__builtin_cpu_supports("avx512bw")) return "the processor lacks AVX-512BW";
  if (!__builtin_cpu_supports("avx512vl")) return "the processor lacks AVX-512VL";
  return __builtin_cpu_supports("avx512bf16") ? "" : "the processor lacks AVX512_BF16";
}

/// Asks the operating system for the tile registers, once for the process and its threads to come.
bool tiles_granted() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILE_DATA
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

std::string missing_amx() {
  if (std::string missing = missing_avx512bf16(); !missing.empty()) return missing;
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  constexpr unsigned kBf16 = 1u << 22;
  constexpr unsigned kTile = 1u << 24;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & kTile) == 0)
    return "the processor lacks AMX-TILE";
  if ((edx & kBf16) == 0) return "the processor lacks AMX-BF16";
  return tiles_granted() ? "" : "the operating system grants no AMX tiles";
}

constexpr Variant kVariants[] = {
    {"cpu-portable", "plain C++ for every x86-64-v2 processor", portable_kernels, nullptr, missing_sse},
    {"cpu-avx2", "float kernels in AVX2 with FMA", avx2_kernels, nullptr, missing_avx2},
    {"cpu-avx512", "float kernels in AVX-512", avx512_kernels, nullptr, missing_avx512},
    {"cpu-avx512bf16", "BF16 rows by AVX512_BF16, others as cpu-avx512", avx512_kernels, avx512bf16_kernels,
     missing_avx512bf16},
    {"cpu-amx", "BF16 rows by AMX-BF16, others as cpu-avx512", avx512_kernels, amx_kernels, missing_amx},
#ifdef HEADWATER_TESTING
    {"cpu-amx-emulated", "cpu-amx on a tile unit in software (test builds)", avx512_kernels,
     amx_emulated_kernels, missing_avx512bf16},
#endif
};

bool any() { return true; }
bool amd() { return __builtin_cpu_is("amd"); }

/// What the engine `cpu` uses: the last row that applies. F32 and F16 rows are the same in all rows from AVX-512 on; the
/// dtype of a call decides inside the session (CpuSession::run_layer), the head size does not matter.
struct Preference {
  const char* engine;
  bool (*applies)();
  const char* reason;
};

constexpr Preference kPreferences[] = {
    {"cpu-portable", any, "runs everywhere"},
    {"cpu-avx2", any, "8 floats per FMA"},
    {"cpu-avx512", any, "16 floats per FMA; no slower than AVX2 on any processor that has it"},
    // Zen 4 and Zen 5: vdpbf16ps does twice the multiply-adds of an FMA per cycle. Sapphire Rapids: half of it.
    {"cpu-avx512bf16", amd, "vdpbf16ps is twice as fast as FMA on AMD, and half as fast on Intel"},
    {"cpu-amx", any, "1024 BF16 flops per cycle against 64 in F32"},
};

const Variant* variant_named(std::string_view name) {
  for (const Variant& variant : kVariants) {
    if (name == variant.engine) return &variant;
  }
  return nullptr;
}

}  // namespace

std::span<const Variant> variants() { return kVariants; }

const Variant& preferred_variant() {
  const Variant* best = &kVariants[0];
  for (const Preference& preference : kPreferences) {
    const Variant* variant = variant_named(preference.engine);
    if (variant && preference.applies() && variant->missing().empty()) best = variant;
  }
  return *best;
}

}  // namespace headwater::cpu
