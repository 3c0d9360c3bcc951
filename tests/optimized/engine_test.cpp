// What the CPU engines say of themselves: the conformance kit tests a claim only where it is made, so a claim that
// silently disappears would take its tests with it.

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "cpu/dispatch.hpp"
#include "headwater/engine.hpp"
#include "headwater/error.hpp"

namespace headwater::cpu {
namespace {

TEST(CpuEngines, MakeEveryClaimOfTheSpec) {
  int seen = 0;
  for (const Engine* engine : engines()) {
    if (!engine->name().starts_with("cpu")) continue;
    ++seen;
    const Claims claims = engine->claims();
    EXPECT_TRUE(claims.bitwise_threads) << engine->name();
    EXPECT_TRUE(claims.bitwise_runs) << engine->name();
    EXPECT_TRUE(claims.bitwise_schedules) << engine->name();
    EXPECT_TRUE(claims.no_allocation) << engine->name();
    EXPECT_FALSE(claims.double_arithmetic) << engine->name();
  }
  EXPECT_EQ(seen, static_cast<int>(variants().size()) + 1);  // every variant, and `cpu`
}

const char* isa_of(const Variant& variant) {
  return variant.bf16 ? variant.bf16().isa : variant.kernels().isa;
}

bool runs(std::string_view name) {
  for (const Variant& variant : variants()) {
    if (variant.engine == name) return variant.missing().empty();
  }
  return false;
}

// The table of preferences, written out once more: AMX before all, vdpbf16ps where it beats FMA, never what is emulated.
TEST(CpuEngines, CpuIsTheBestVariantForThisProcessor) {
  std::string_view best = "cpu-portable";
  if (runs("cpu-avx2")) best = "cpu-avx2";
  if (runs("cpu-avx512")) best = "cpu-avx512";
  if (runs("cpu-avx512bf16") && __builtin_cpu_is("amd")) best = "cpu-avx512bf16";
  if (runs("cpu-amx")) best = "cpu-amx";
  EXPECT_EQ(preferred_variant().engine, best);
  EXPECT_EQ(engine("cpu").isa(), isa_of(preferred_variant()));
}

TEST(CpuEngines, EveryVariantIsAnEngineOfItsOwnName) {
  for (const Variant& variant : variants()) {
    if (!variant.missing().empty()) {
      EXPECT_THROW((void)engine(variant.engine), Error);
      continue;
    }
    EXPECT_EQ(engine(variant.engine).name(), variant.engine);
    EXPECT_EQ(engine(variant.engine).isa(), isa_of(variant));
  }
}

}  // namespace
}  // namespace headwater::cpu
