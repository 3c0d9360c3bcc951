#include "cli/commands/bench/peak.hpp"

#include <gtest/gtest.h>

#include <string_view>

#include "headwater/engine.hpp"

namespace headwater::bench {

namespace {

TEST(Peak, ArithmeticOfAnInstructionSet) {
  const auto name = [](std::string_view isa, DType type) {
    return std::string_view(arithmetic_of(isa, type).name);
  };
  EXPECT_EQ(name("scalar", DType::bf16), "SSE multiply and add");
  EXPECT_EQ(name("x86-64-v2", DType::f32), "SSE multiply and add");
  EXPECT_EQ(name("AVX2+FMA", DType::bf16), "AVX2 FMA");
  EXPECT_EQ(name("AVX-512", DType::f16), "AVX-512 FMA");
  EXPECT_EQ(name("AVX512_BF16", DType::bf16), "AVX512_BF16 vdpbf16ps");
  EXPECT_EQ(name("AVX512_BF16", DType::f32), "AVX-512 FMA");
  EXPECT_EQ(name("AMX-BF16", DType::bf16), "AMX tdpbf16ps");
  EXPECT_EQ(name("AMX-BF16", DType::f16), "AVX-512 FMA");
}

// The arithmetic of every engine is found by the engine's name, and runs wherever the engine does.
TEST(Peak, EveryAvailableEngineHasAPeak) {
  for (const Engine* engine : engines()) {
    if (!engine->unavailable_because().empty()) continue;
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
      EXPECT_EQ(arithmetic_of(engine->isa(), type).missing(), "") << engine->name();
    }
  }
}

// No time is asserted, but a loop that does nothing would be infinitely fast, and one that counts nothing slow.
TEST(Peak, LoopsThatRunCountTheirFlops) {
  for (const Arithmetic& arithmetic : arithmetics()) {
    if (!arithmetic.missing().empty()) continue;
    EXPECT_EQ(arithmetic.flops(2000), 2.0 * arithmetic.flops(1000)) << arithmetic.name;
    EXPECT_GT(arithmetic.flops(1000), 0.0) << arithmetic.name;
    const double rate = peak_rate(arithmetic, 1, 1e-4);
    EXPECT_GT(rate, 0.0) << arithmetic.name;
    EXPECT_LT(rate, 1e15) << arithmetic.name;
  }
}

}  // namespace

}  // namespace headwater::bench
