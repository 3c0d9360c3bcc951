// The claims of the CPU engines: the conformance kit tests a claim only where it is made, so a claim that disappears
// by mistake would no longer be tested.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

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
    EXPECT_TRUE(claims.interrupt) << engine->name();
    EXPECT_TRUE(claims.lse) << engine->name();
    EXPECT_TRUE(claims.host_threads) << engine->name();
    EXPECT_FALSE(claims.double_arithmetic) << engine->name();
  }
  EXPECT_EQ(seen, static_cast<int>(variants().size()) + 1);  // every variant, and `cpu`
}

const char* isa_of(const Variant& variant) { return variant.bf16 ? variant.bf16->isa : variant.kernels->isa; }

TEST(CpuEngines, CpuFollowsFromTheProcessor) {
  const std::vector<std::string_view> avx2 = {"cpu-portable", "cpu-avx2"};
  const std::vector<std::string_view> avx512 = {"cpu-portable", "cpu-avx2", "cpu-avx512"};
  const std::vector<std::string_view> bf16 = {"cpu-portable", "cpu-avx2", "cpu-avx512", "cpu-avx512bf16",
                                              "cpu-amx-emulated"};
  const std::vector<std::string_view> amx = {"cpu-portable",   "cpu-avx2", "cpu-avx512",
                                             "cpu-avx512bf16", "cpu-amx",  "cpu-amx-emulated"};
  const auto chosen = [](const Processor& processor) { return preference_for(processor).engine; };
  EXPECT_EQ(chosen({Vendor::intel, 6, {"cpu-portable"}}), "cpu-portable");  // Nehalem
  EXPECT_EQ(chosen({Vendor::intel, 6, avx2}), "cpu-avx2");                  // Haswell
  EXPECT_EQ(chosen({Vendor::intel, 6, avx512}), "cpu-avx512");              // Skylake-X
  EXPECT_EQ(chosen({Vendor::intel, 6, bf16}), "cpu-avx512");     // Cooper Lake: vdpbf16ps at half rate
  EXPECT_EQ(chosen({Vendor::intel, 6, amx}), "cpu-amx");         // Sapphire Rapids
  EXPECT_EQ(chosen({Vendor::amd, 25, avx2}), "cpu-avx2");        // Zen 3
  EXPECT_EQ(chosen({Vendor::amd, 25, bf16}), "cpu-avx512bf16");  // Zen 4
  EXPECT_EQ(chosen({Vendor::amd, 26, bf16}), "cpu-avx512bf16");  // Zen 5
  EXPECT_EQ(chosen({Vendor::any, 25, bf16}), "cpu-avx512");  // an unknown vendor: no preference of its own
}

/// What Linux says it is; 0 where it does not.
int family_of_cpuinfo() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("cpu family")) return std::stoi(line.substr(line.find(':') + 1));
  }
  return 0;
}

TEST(CpuEngines, CpuIsTheBestVariantForThisProcessor) {
  const Processor processor = this_processor();
  EXPECT_EQ(processor.vendor == Vendor::amd, __builtin_cpu_is("amd") != 0);
  EXPECT_EQ(processor.vendor == Vendor::intel, __builtin_cpu_is("intel") != 0);
  EXPECT_EQ(processor.family, family_of_cpuinfo());
  for (const Variant& variant : variants()) {
    const bool listed =
        std::find(processor.runs.begin(), processor.runs.end(), variant.engine) != processor.runs.end();
    EXPECT_EQ(listed, variant.missing().empty()) << variant.engine;
  }
  EXPECT_EQ(preferred_variant().engine, preference_for(processor).engine);
  EXPECT_TRUE(preferred_variant().missing().empty());
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
