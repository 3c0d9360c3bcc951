// SCORE-4 and NUM-1: number formats, reference and optimized, on the same inputs.

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "conformance/case.hpp"
#include "conformance/formats.hpp"
#include "conformance/random.hpp"
#include "optimized/core/kv_store.hpp"
#include "optimized/core/numbers.hpp"
#include "reference/numbers.hpp"

namespace headwater::conformance {
namespace {

// What SCORE-4 says of one float, by the distance to the two neighbours of the format, in exact double arithmetic.
bool is_nearest_even_bf16(std::uint32_t bits, std::uint16_t rounded) {
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return rounded == 0x7fc0;
  if ((bits >> 31) != static_cast<std::uint32_t>(rounded >> 15)) return false;
  const std::uint32_t down = magnitude >> 16;
  const std::uint32_t got = rounded & 0x7fffu;
  if (got != down && got != down + 1) return false;
  const auto value = [](std::uint32_t pattern) {
    // One beyond the largest number stands for infinity: 2^128, half an ulp of which is where overflow begins.
    return pattern == 0x7f80u ? 0x1p128 : static_cast<double>(std::bit_cast<float>(pattern << 16));
  };
  if (magnitude == 0x7f800000u) return got == 0x7f80u;
  const double x = std::bit_cast<float>(magnitude);
  const double below = x - value(down);
  const double above = value(down + 1) - x;
  if (below != above) return got == (below < above ? down : down + 1);
  return got % 2 == 0;
}

void require_bf16(std::uint32_t bits) {
  const float x = std::bit_cast<float>(bits);
  const std::uint16_t reference = reference::bf16(x);
  const std::uint16_t optimized = core::bf16_from_float(x);
  if (reference != optimized || !is_nearest_even_bf16(bits, reference)) {
    throw Violation(
        fmt::format("bf16 of {:#010x}: reference {:#06x}, optimized {:#06x}", bits, reference, optimized));
  }
}

void bf16_rounding(Context& context) {
  if (context.exhaustive) {
    std::atomic<std::uint64_t> wrong{std::numeric_limits<std::uint64_t>::max()};
#pragma omp parallel for num_threads(context.threads) schedule(static)
    for (std::uint32_t upper = 0; upper < 0x10000u; ++upper) {
      for (std::uint32_t lower = 0; lower < 0x10000u; ++lower) {
        const std::uint32_t bits = upper << 16 | lower;
        const float x = std::bit_cast<float>(bits);
        const std::uint16_t reference = reference::bf16(x);
        if (reference != core::bf16_from_float(x) || !is_nearest_even_bf16(bits, reference)) wrong = bits;
      }
    }
    if (wrong.load() <= 0xffffffffu) require_bf16(static_cast<std::uint32_t>(wrong.load()));
    return;
  }
  Random random(context.seed);
  for (std::uint32_t upper = 0; upper < 0x10000u; ++upper) {
    for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      require_bf16(upper << 16 | lower);
    require_bf16(upper << 16 | static_cast<std::uint32_t>(random.bits() & 0xffffu));
    // The kit's own conversion, by value, agrees.
    const float x = std::bit_cast<float>(upper << 16 | static_cast<std::uint32_t>(random.bits() & 0xffffu));
    if (bf16_bits(x) != reference::bf16(x)) throw Violation(fmt::format("the kit's bf16 of {:.9g}", x));
  }
}
const Register kBf16{{"stage.bf16_rounding", {"SCORE-4"}, "formats", Lane::exact, false, bf16_rounding}};

// Every 16-bit pattern is widened exactly, NaN to NaN, and comes back.
void widening(Context&) {
  for (std::uint32_t pattern = 0; pattern < 0x10000u; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    const auto require = [&](const char* what, double got, float wanted) {
      const bool same =
          std::isnan(wanted) ? std::isnan(got) : got == wanted && std::signbit(got) == std::signbit(wanted);
      if (!same) throw Violation(fmt::format("{} of {:#06x} is {}, not {}", what, bits, got, wanted));
    };
    require("reference from_f16", reference::from_f16(bits), f16_value(bits));
    require("reference from_bf16", reference::from_bf16(bits), bf16_value(bits));
    require("float_from_f16", core::float_from_f16(bits), f16_value(bits));
    require("float_from_bf16", core::float_from_bf16(bits), bf16_value(bits));
    const float f16 = f16_value(bits);
    const float bf16 = bf16_value(bits);
    const std::uint16_t f16_back = std::isnan(f16) ? std::uint16_t{0x7e00} : bits;
    const std::uint16_t bf16_back = std::isnan(bf16) ? std::uint16_t{0x7fc0} : bits;
    if (core::f16_from_float(f16) != f16_back || reference::round_to_f16(f16) != f16_back ||
        f16_bits(f16) != f16_back || core::bf16_from_float(bf16) != bf16_back ||
        reference::round_to_bf16(bf16) != bf16_back || bf16_bits(bf16) != bf16_back) {
      throw Violation(fmt::format("pattern {:#06x} does not come back", bits));
    }
  }
}
const Register kWidening{{"stage.widening", {"NUM-1", "SCORE-4"}, "formats", Lane::exact, false, widening}};

// A rounding function is determined by where it steps: at the midpoint of any two neighbours (to the even one), and
// just below and above it. The reference rounds doubles, so "just" is a double's last bit: a way by F32 would show.
void sixteen_bit_steps(Context&) {
  for (const bool half : {true, false}) {
    const std::uint32_t infinity = half ? 0x7c00u : 0x7f80u;
    const auto value = [&](std::uint32_t pattern) {
      if (pattern == infinity) return half ? 0x1p16 : 0x1p128;
      return static_cast<double>(half ? f16_value(static_cast<std::uint16_t>(pattern))
                                      : bf16_value(static_cast<std::uint16_t>(pattern)));
    };
    for (std::uint32_t pattern = 0; pattern < infinity; ++pattern) {
      const double middle = (value(pattern) + value(pattern + 1)) / 2.0;
      const auto even = static_cast<std::uint16_t>(pattern % 2 == 0 ? pattern : pattern + 1);
      const double inputs[] = {std::nextafter(middle, 0.0), middle, std::nextafter(middle, HUGE_VAL)};
      const std::uint16_t wanted[] = {static_cast<std::uint16_t>(pattern), even,
                                      static_cast<std::uint16_t>(pattern + 1)};
      for (int i = 0; i < 3; ++i) {
        for (const bool negative : {false, true}) {
          const double x = negative ? -inputs[i] : inputs[i];
          const auto signed_wanted = static_cast<std::uint16_t>(wanted[i] | (negative ? 0x8000u : 0u));
          const std::uint16_t reference = half ? reference::round_to_f16(x) : reference::round_to_bf16(x);
          if (reference != signed_wanted) {
            throw Violation(
                fmt::format("reference rounds {:a} to {:#06x}, not {:#06x}", x, reference, signed_wanted));
          }
        }
      }
      const auto middle_float = static_cast<float>(middle);  // exact: 24 bits hold any midpoint
      const float floats[] = {std::nextafter(middle_float, 0.0f), middle_float,
                              std::nextafter(middle_float, HUGE_VALF)};
      for (int i = 0; i < 3; ++i) {
        for (const bool negative : {false, true}) {
          const float x = negative ? -floats[i] : floats[i];
          const auto signed_wanted = static_cast<std::uint16_t>(wanted[i] | (negative ? 0x8000u : 0u));
          const std::uint16_t optimized = half ? core::f16_from_float(x) : core::bf16_from_float(x);
          const std::uint16_t kit = half ? f16_bits(x) : bf16_bits(x);
          if (optimized != signed_wanted || kit != signed_wanted) {
            throw Violation(fmt::format("{:a} rounds to {:#06x} (optimized) and {:#06x} (kit), not {:#06x}",
                                        x, optimized, kit, signed_wanted));
          }
        }
      }
    }
  }
  for (const double nan :
       {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::quiet_NaN()}) {
    const auto x = static_cast<float>(nan);
    if (reference::round_to_f16(nan) != 0x7e00 || core::f16_from_float(x) != 0x7e00)
      throw Violation("NaN to F16");
    if (reference::round_to_bf16(nan) != 0x7fc0 || core::bf16_from_float(x) != 0x7fc0)
      throw Violation("NaN to BF16");
    if (!std::isnan(reference::round_to_f32(nan))) throw Violation("NaN to F32");
  }
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double x : {infinity, 1e300, 65520.0}) {
    if (reference::round_to_f16(x) != 0x7c00 || reference::round_to_f16(-x) != 0xfc00)
      throw Violation("overflow to F16");
  }
  for (const double x : {infinity, 1e300, 3.4e38}) {
    if (reference::round_to_bf16(x) != 0x7f80 || reference::round_to_bf16(-x) != 0xff80)
      throw Violation("overflow to BF16");
  }
}
const Register kSteps{
    {"stage.sixteen_bit_steps", {"NUM-1", "SCORE-4"}, "formats", Lane::exact, false, sixteen_bit_steps}};

// Rows of every length and pair of types, at odd addresses, with canaries on both sides.
void row_conversion(Context& context) {
  Random random(context.seed);
  const std::vector<DType> types{DType::f32, DType::f16, DType::bf16};
  constexpr std::byte kCanary{0xa5};
  for (const DType from : types) {
    for (const DType to : types) {
      for (std::int64_t n = 0; n <= 600; n += n < 40 ? 1 : 37) {
        const auto count = static_cast<std::size_t>(n);
        std::vector<std::byte> source(count * dtype_size(from) + 1);
        std::vector<std::byte> target(count * dtype_size(to) + 3, kCanary);
        std::vector<float> values(count);
        for (std::size_t i = 0; i < count; ++i) {
          values[i] =
              round_to(from, static_cast<float>(random.normal() *
                                                std::ldexp(1.0, static_cast<int>(random.integer(-20, 17)))));
          store_element(from, values[i], source.data() + 1 + i * dtype_size(from));
        }
        core::convert_row(source.data() + 1, from, n, target.data() + 1, to);
        for (std::size_t i = 0; i < count; ++i) {
          const float got = load_element(to, target.data() + 1 + i * dtype_size(to));
          if (!same_bits(got, round_to(to, values[i]))) {
            throw Violation(fmt::format("convert_row {} to {}: element {} of {}", dtype_name(from),
                                        dtype_name(to), i, n));
          }
        }
        const std::size_t end = 1 + count * dtype_size(to);
        if (target[0] != kCanary || target[end] != kCanary || target[end + 1] != kCanary) {
          throw Violation(fmt::format("convert_row of {} elements writes outside", n));
        }
      }
    }
  }
}
const Register kRows{
    {"stage.row_conversion", {"NUM-1", "STATE-6"}, "formats", Lane::exact, false, row_conversion}};

}  // namespace
}  // namespace headwater::conformance
