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
#include "headwater/session.hpp"

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

// Rows of three heads of 64 over one, dense: a call of few rows packs those of all heads into blocks over the keys that all
// see, a longer one does not. Finds a row of one of them that is lost, or that meets another row's state.
TEST(CpuEngines, DenseRowsHaveTheSameBitsInCallsOfAnySize) {
  constexpr std::int64_t kHeads = 3;
  constexpr std::int64_t kWidth = 64;
  constexpr std::int64_t kBefore = 1100;  // more than a segment of keys
  constexpr std::int64_t kAll = kBefore + 257;
  std::uint32_t state = 1;
  std::vector<std::uint16_t> q(kAll * kHeads * kWidth), k(kAll * kWidth), v(kAll * kWidth);
  for (auto* rows : {&q, &k, &v}) {
    for (std::uint16_t& bits : *rows) {
      state = state * 1664525u + 1013904223u;
      bits = static_cast<std::uint16_t>((state >> 16 & 0x807Fu) |
                                        (0x3F00u + (state >> 5 & 0x80u)));  // +-.5 .. 2
    }
  }
  const auto attend = [&](Session& session, std::int64_t first, std::int64_t n, std::vector<float>& out) {
    session.begin(Step::prefill(n));
    session.attend(
        0, Rows::token_major(q.data() + first * kHeads * kWidth, DType::bf16, kHeads, kWidth),
        Rows::token_major(k.data() + first * kWidth, DType::bf16, 1, kWidth),
        Rows::token_major(v.data() + first * kWidth, DType::bf16, 1, kWidth),
        MutableRows::token_major(out.data() + first * kHeads * kWidth, DType::f32, kHeads, kWidth));
    session.end();
  };
  for (const Variant& variant : variants()) {
    if (!variant.missing().empty()) continue;
    for (const int threads : {1, 2, 3}) {
      Shape shape;
      shape.n_layer = 1;
      shape.n_head = kHeads;
      shape.n_head_kv = 1;
      shape.d_head = shape.d_value = kWidth;
      shape.capacity = kAll;
      shape.kv_type = DType::bf16;
      Options options;
      options.dense = true;
      options.threads = threads;
      const auto whole = engine(variant.engine).open(shape, options);
      std::vector<float> expected(q.size());
      attend(*whole, 0, kAll, expected);
      const auto begun = engine(variant.engine).open(shape, options);
      std::vector<float> got(q.size());
      attend(*begun, 0, kBefore, got);
      for (const std::int64_t n : {20, 63, 128, 255, 256, 257}) {
        attend(*begun->fork(), kBefore, n, got);
        const auto of = [&](const std::vector<float>& out) {
          return std::vector<float>(out.begin(), out.begin() + (kBefore + n) * kHeads * kWidth);
        };
        EXPECT_TRUE(of(got) == of(expected))
            << variant.engine << ", " << threads << " threads, " << n << " rows";
      }
    }
  }
}

}  // namespace
}  // namespace headwater::cpu
