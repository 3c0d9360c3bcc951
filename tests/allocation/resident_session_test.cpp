// What a session holds in memory grows with the tokens that it stores, not with its capacity. A program of its own: what
// other tests gave back to malloc would count.

#include <gtest/gtest.h>

#include <vector>

#include "headwater/headwater.hpp"
#include "tests/allocation/resident_memory.hpp"

namespace headwater::testing {
namespace {

constexpr std::int64_t kHeads = 32;
constexpr std::int64_t kHeadsKv = 8;
constexpr std::int64_t kWidth = 128;
constexpr std::int64_t kPrompt = 1000;

// The runs of rows are 8 MiB long, 576 of them. Their rows take 144 KiB a token. A huge page under each run would take
// 1.1 GiB. (Where the machine's huge pages are switched off, nothing can be wrong here.)
TEST(ResidentMemory, OfASessionFollowsItsTokens) {
  ASSERT_GT(resident_memory(), 0) << "/proc/self/statm tells it";
  const Shape shape{.n_layer = 36,
                    .n_head = kHeads,
                    .n_head_kv = kHeadsKv,
                    .d_head = kWidth,
                    .d_value = kWidth,
                    .capacity = 32768,
                    .kv_type = DType::bf16};
  Options options;
  options.chunk = 64;
  options.local = options.heavy = 16;
  options.threads = 2;
  const auto session = engine("cpu").open(shape, options);
  const std::vector<std::uint16_t> rows(kPrompt * kHeads * kWidth, 0x3E80);
  std::vector<float> out(rows.size());
  const Rows q = Rows::token_major(rows.data(), DType::bf16, kHeads, kWidth);
  const Rows kv = Rows::token_major(rows.data(), DType::bf16, kHeadsKv, kWidth);
  const MutableRows to = MutableRows::token_major(out.data(), DType::f32, kHeads, kWidth);
  const auto step = [&](const Step& what) {
    session->begin(what);
    for (std::int64_t layer = 0; layer < shape.n_layer; ++layer) session->attend(layer, q, kv, kv, to);
    session->end();
  };
  step(Step::prefill(1));
  EXPECT_LT(resident_memory(), 100 * kMiB) << "after one token, " << resident_memory() / kMiB << " MiB";
  step(Step::prefill(kPrompt));
  EXPECT_LT(resident_memory(), 400 * kMiB) << "after 1001 tokens, " << resident_memory() / kMiB << " MiB";
}

}  // namespace
}  // namespace headwater::testing
