#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "headwater/detail/processor.hpp"
#include "headwater/options.hpp"

/// The arithmetic of this machine at its limit: multiply-adds on registers alone, in enough independent chains to
/// hide their latency. No kernel of that instruction set can pass this rate.
namespace headwater::bench {

/// One way to multiply and add.
struct Arithmetic {
  const char* name;  ///< "AVX-512 FMA"
  /// Empty where this processor and its operating system have it, else the reason why not.
  [[nodiscard]] std::string missing() const { return detail::missing_feature(needs); }
  std::span<const detail::Feature> needs;
  /// Runs `turns` turns of the loop on the calling thread; returns the flops done. Needs missing() empty.
  double (*flops)(std::int64_t turns);
};

/// All of them, the plainest first: SSE, AVX2 FMA, AVX-512 FMA, AVX512_BF16, AMX BF16.
[[nodiscard]] std::span<const Arithmetic> arithmetics();

/// The arithmetic that an engine of this instruction set (Engine::isa()) uses for rows of this type: 16-bit products
/// for BF16 rows where it names them, else its F32 vectors. F16 rows are widened by every engine.
[[nodiscard]] const Arithmetic& arithmetic_of(std::string_view isa, DType type);

/// Flops a second of `threads` threads together, over about `seconds` seconds: of processor time on one thread, else by
/// the wall. The first call of a loop finds out how many turns that takes.
[[nodiscard]] double peak_rate(const Arithmetic& arithmetic, int threads, double seconds = 0.01);

// The loops, one file for each instruction set, built with its flags.
double sse_flops(std::int64_t turns);
double avx2_flops(std::int64_t turns);
double avx512_flops(std::int64_t turns);
double avx512_bf16_flops(std::int64_t turns);
double amx_bf16_flops(std::int64_t turns);

}  // namespace headwater::bench
