#include "cli/commands/bench/peak.hpp"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "cli/commands/bench/clock.hpp"

namespace headwater::bench {

namespace {

constexpr unsigned kAvx512Bf16 = 1u << 5;  // CPUID 7.1 EAX
constexpr unsigned kAmxBf16 = 1u << 22;    // CPUID 7.0 EDX
constexpr unsigned kAmxTile = 1u << 24;
constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM of arch_prctl(2), Linux 5.16
constexpr long kTileData = 18;               // the state component of the tiles

struct Leaf {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
};

Leaf leaf7(unsigned subleaf) {
  Leaf leaf;
  __get_cpuid_count(7, subleaf, &leaf.eax, &leaf.ebx, &leaf.ecx, &leaf.edx);
  return leaf;
}

std::string missing_sse() { return {}; }

std::string missing_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? "" : "no AVX2 with FMA";
}

std::string missing_avx512() { return __builtin_cpu_supports("avx512f") ? "" : "no AVX-512F"; }

std::string missing_avx512_bf16() {
  if (std::string reason = missing_avx512(); !reason.empty()) return reason;
  return (leaf7(1).eax & kAvx512Bf16) != 0 ? "" : "no AVX512_BF16";
}

std::string missing_amx_bf16() {
  const unsigned both = kAmxBf16 | kAmxTile;
  if ((leaf7(0).edx & both) != both) return "no AMX-BF16";
  // Once for the process and all threads that it starts from now on.
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 ? "" : "the system does not grant AMX";
}

enum Index : std::uint8_t { kSse, kAvx2, kAvx512, kAvx512Bf16Index, kAmxBf16Index };

constexpr Arithmetic kArithmetics[] = {
    {"SSE multiply and add", missing_sse, sse_flops},
    {"AVX2 FMA", missing_avx2, avx2_flops},
    {"AVX-512 FMA", missing_avx512, avx512_flops},
    {"AVX512_BF16 vdpbf16ps", missing_avx512_bf16, avx512_bf16_flops},
    {"AMX tdpbf16ps", missing_amx_bf16, amx_bf16_flops},
};

double timed(const Arithmetic& arithmetic, std::int64_t turns, int threads, double& flops) {
  flops = 0.0;
  const Seconds begin = seconds_now();
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : flops) if (threads > 1)
  for (int thread = 0; thread < threads; ++thread) flops += arithmetic.flops(turns);
  const Seconds elapsed = seconds_now() - begin;
  return threads == 1 ? elapsed.cpu : elapsed.wall;
}

/// Turns that take about `seconds` on one thread, found by doubling.
std::int64_t turns_for(const Arithmetic& arithmetic, double seconds) {
  constexpr std::int64_t kMostTurns = std::int64_t{1} << 40;
  double flops = 0.0;
  std::int64_t turns = 1024;
  while (turns < kMostTurns && timed(arithmetic, turns, 1, flops) < seconds) turns *= 2;
  return turns;
}

bool names(std::string_view isa, std::string_view part) { return isa.find(part) != std::string_view::npos; }

}  // namespace

std::span<const Arithmetic> arithmetics() { return kArithmetics; }

const Arithmetic& arithmetic_of(std::string_view isa, DType type) {
  const bool amx = names(isa, "AMX");
  if (type == DType::bf16 && amx) return kArithmetics[kAmxBf16Index];
  if (type == DType::bf16 && names(isa, "BF16")) return kArithmetics[kAvx512Bf16Index];
  if (amx || names(isa, "AVX-512") || names(isa, "AVX512")) return kArithmetics[kAvx512];
  return kArithmetics[names(isa, "AVX2") ? kAvx2 : kSse];
}

double peak_rate(const Arithmetic& arithmetic, int threads, double seconds) {
  static std::map<const Arithmetic*, std::int64_t> known;
  const auto [entry, unknown] = known.try_emplace(&arithmetic, 0);
  if (unknown) entry->second = turns_for(arithmetic, seconds);
  double flops = 0.0;
  const double elapsed = timed(arithmetic, entry->second, threads, flops);
  return flops / elapsed;
}

}  // namespace headwater::bench
