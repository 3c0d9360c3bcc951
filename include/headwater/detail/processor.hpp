#pragma once

/// Which processor this is and what it lacks, for everything that is chosen at run time. Not part of the API.

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace headwater::detail {

/// Features that code of this program is built for. Each includes what the operating system has to do for it: save
/// the registers, and permit the tiles.
enum class Feature : std::uint8_t {
  sse42,
  avx2,
  fma,
  f16c,
  avx512f,
  avx512dq,
  avx512bw,
  avx512vl,
  avx512vnni,
  avx512bf16,
  amx_tile,
  amx_bf16,
  amx_int8,
};

/// Registers that CPUID fills.
struct CpuId {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  /// All zero where the processor does not know the leaf.
  explicit CpuId(unsigned leaf, unsigned part = 0) {
    (void)__get_cpuid_count(leaf, part, &eax, &ebx, &ecx, &edx);
  }
};

/// Requests the tile registers from the operating system, once for the process and its later threads.
inline bool tiles_granted() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILE_DATA
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

/// "" or what is missing.
inline std::string_view missing_feature(Feature feature) {
  // __builtin_cpu_supports also asks whether the operating system saves the registers. clang 14's does not know F16C,
  // whose registers are those of AVX2.
  switch (feature) {
    case Feature::sse42: return __builtin_cpu_supports("sse4.2") ? "" : "the processor lacks SSE4.2";
    case Feature::avx2: return __builtin_cpu_supports("avx2") ? "" : "the processor lacks AVX2";
    case Feature::fma: return __builtin_cpu_supports("fma") ? "" : "the processor lacks FMA";
    case Feature::f16c: return (CpuId(1).ecx & bit_F16C) != 0 ? "" : "the processor lacks F16C";
    case Feature::avx512f: return __builtin_cpu_supports("avx512f") ? "" : "the processor lacks AVX-512F";
    case Feature::avx512dq: return __builtin_cpu_supports("avx512dq") ? "" : "the processor lacks AVX-512DQ";
    case Feature::avx512bw: return __builtin_cpu_supports("avx512bw") ? "" : "the processor lacks AVX-512BW";
    case Feature::avx512vl: return __builtin_cpu_supports("avx512vl") ? "" : "the processor lacks AVX-512VL";
    case Feature::avx512vnni:
      return __builtin_cpu_supports("avx512vnni") ? "" : "the processor lacks AVX-512 VNNI";
    case Feature::avx512bf16:
      return __builtin_cpu_supports("avx512bf16") ? "" : "the processor lacks AVX512_BF16";
    case Feature::amx_tile:
      if ((CpuId(7).edx & 1u << 24) == 0) return "the processor lacks AMX-TILE";
      return tiles_granted() ? "" : "the operating system grants no AMX tiles";
    case Feature::amx_bf16: return (CpuId(7).edx & 1u << 22) != 0 ? "" : "the processor lacks AMX-BF16";
    case Feature::amx_int8: return (CpuId(7).edx & 1u << 25) != 0 ? "" : "the processor lacks AMX-INT8";
  }
  return "unknown feature";
}

/// The first of these that is missing, or "".
inline std::string missing_feature(std::span<const Feature> features) {
  for (const Feature feature : features) {
    if (const std::string_view missing = missing_feature(feature); !missing.empty())
      return std::string(missing);
  }
  return {};
}

// What the files of an ISA are built for.
inline constexpr std::array kBaseline = {Feature::sse42};
inline constexpr std::array kAvx2 = {Feature::avx2, Feature::fma, Feature::f16c};

}  // namespace headwater::detail
