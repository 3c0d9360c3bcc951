#include "cpu/dispatch.hpp"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
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
    {"cpu-portable", "plain C++ for every x86-64-v2 processor", &portable_kernels, nullptr, missing_sse},
    {"cpu-avx2", "float kernels in AVX2 with FMA", &avx2_kernels, nullptr, missing_avx2},
    {"cpu-avx512", "float kernels in AVX-512", &avx512_kernels, nullptr, missing_avx512},
    {"cpu-avx512bf16", "BF16 rows by AVX512_BF16, others as cpu-avx512", &avx512_kernels, &avx512bf16_kernels,
     missing_avx512bf16},
    {"cpu-amx", "BF16 rows by AMX-BF16, others as cpu-avx512", &avx512_kernels, &amx_kernels, missing_amx},
#ifdef HEADWATER_TESTING
    {"cpu-amx-emulated", "cpu-amx on a tile unit in software (test builds)", &avx512_kernels,
     &amx_emulated_kernels, missing_avx512bf16},
#endif
};

// Later rows win. Each is about BF16 rows where the engine has BF16 kernels, else about all rows: from AVX-512 on F32 and
// F16 rows are computed by the same kernels in every engine, and whether a call is one of BF16 rows is decided inside the
// session (CpuSession::run_layer). Head sizes have no column: rows are padded to 2 or 32 elements, and even a head of 8,
// three quarters of which AMX wastes, is four times as quick there as in F32.
constexpr Preference kPreferences[] = {
    {"cpu-portable", Vendor::any, 0, "all", "runs everywhere"},
    {"cpu-avx2", Vendor::any, 0, "all", "8 floats per FMA"},
    {"cpu-avx512", Vendor::any, 0, "all",
     "16 floats per FMA; no slower than AVX2 on any processor that has it"},
    {"cpu-avx512bf16", Vendor::amd, 25, "BF16",
     "vdpbf16ps does twice the multiply-adds of an FMA on Zen 4 (family 25) and Zen 5 (family 26); on Intel "
     "half of them"},
    {"cpu-amx", Vendor::any, 0, "BF16", "1024 BF16 flops per cycle against 64 in F32"},
};

const Variant* variant_named(std::string_view name) {
  for (const Variant& variant : kVariants) {
    if (name == variant.engine) return &variant;
  }
  return nullptr;
}

}  // namespace

std::span<const Variant> variants() { return kVariants; }

Processor this_processor() {
  Processor processor;
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid(0, &eax, &ebx, &ecx, &edx) == 0) return processor;
  if (ebx == signature_AMD_ebx && ecx == signature_AMD_ecx && edx == signature_AMD_edx) {
    processor.vendor = Vendor::amd;
  } else if (ebx == signature_INTEL_ebx && ecx == signature_INTEL_ecx && edx == signature_INTEL_edx) {
    processor.vendor = Vendor::intel;
  }
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0) {
    constexpr unsigned kExtended = 15;  // then the extended family counts, too
    const unsigned family = eax >> 8 & 0xfu;
    processor.family = static_cast<int>(family == kExtended ? family + (eax >> 20 & 0xffu) : family);
  }
  for (const Variant& variant : kVariants) {
    if (variant.missing().empty()) processor.runs.push_back(variant.engine);
  }
  return processor;
}

const Preference& preference_for(const Processor& processor) {
  const Preference* best = &kPreferences[0];
  for (const Preference& row : kPreferences) {
    if (row.vendor != Vendor::any && row.vendor != processor.vendor) continue;
    if (processor.family < row.first_family) continue;
    if (std::find(processor.runs.begin(), processor.runs.end(), row.engine) != processor.runs.end())
      best = &row;
  }
  return *best;
}

const Preference& preference() {
  static const Preference& row = preference_for(this_processor());
  return row;
}

const Variant& preferred_variant() { return *variant_named(preference().engine); }

}  // namespace headwater::cpu
