// What the CPU engines say of themselves: the conformance kit tests a claim only where it is made, so a claim that
// silently disappears would take its tests with it.

#include <gtest/gtest.h>

#include <string>

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

TEST(CpuEngines, CpuIsTheLastVariantThatThisProcessorRuns) {
  const Variant* last = nullptr;
  for (const Variant& variant : variants()) {
    if (variant.missing().empty()) last = &variant;
  }
  ASSERT_NE(last, nullptr);
  EXPECT_STREQ(preferred_variant().engine, last->engine);
  EXPECT_EQ(engine("cpu").isa(), last->kernels().isa);
}

TEST(CpuEngines, EveryVariantIsAnEngineOfItsOwnName) {
  for (const Variant& variant : variants()) {
    if (!variant.missing().empty()) {
      EXPECT_THROW((void)engine(variant.engine), Error);
      continue;
    }
    EXPECT_EQ(engine(variant.engine).name(), variant.engine);
    EXPECT_EQ(engine(variant.engine).isa(), variant.kernels().isa);
  }
}

}  // namespace
}  // namespace headwater::cpu
