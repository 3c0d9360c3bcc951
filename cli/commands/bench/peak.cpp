#include "cli/commands/bench/peak.hpp"

#include <algorithm>
#include <array>
#include <map>

#include "cli/commands/bench/clock.hpp"

namespace headwater::bench {

namespace {

using detail::Feature;

constexpr std::array kAvx2Fma = {Feature::avx2, Feature::fma};
constexpr std::array kAvx512Fma = {Feature::avx512f};
constexpr std::array kAvx512Products = {Feature::avx512f, Feature::avx512bf16};
constexpr std::array kTileProducts = {Feature::amx_bf16, Feature::amx_tile};

enum Index : std::uint8_t { kSse, kAvx2, kAvx512, kAvx512Bf16, kAmxBf16 };

constexpr Arithmetic kArithmetics[] = {
    {"SSE multiply and add", detail::kBaseline, sse_flops},
    {"AVX2 FMA", kAvx2Fma, avx2_flops},
    {"AVX-512 FMA", kAvx512Fma, avx512_flops},
    {"AVX512_BF16 vdpbf16ps", kAvx512Products, avx512_bf16_flops},
    {"AMX tdpbf16ps", kTileProducts, amx_bf16_flops},
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
  if (type == DType::bf16 && amx) return kArithmetics[kAmxBf16];
  if (type == DType::bf16 && names(isa, "BF16")) return kArithmetics[kAvx512Bf16];
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
