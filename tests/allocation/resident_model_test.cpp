// What a model's workspace holds in memory grows with the steps that it sees, not with the longest that it may see.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "runtime/model/transformer.hpp"
#include "tests/allocation/resident_memory.hpp"

namespace headwater::runtime::testing {
namespace {

using headwater::testing::kMiB;
using headwater::testing::resident_memory;

TEST(ResidentMemory, OfAModelFollowsItsSteps) {
  auto file = std::make_shared<const GgufFile>(GgufFile::open(MODELS "/headwater-tiny-f16.gguf"));
  const auto model = Model::load(file, {native_precision(), 2});
  const std::int64_t before = resident_memory();
  ASSERT_GT(before, 0) << "/proc/self/statm tells it";
  TransformerOptions options;
  options.attention.threads = 2;
  options.attention.batch = options.capacity = std::int64_t{1} << 18;
  Transformer transformer(model, options);
  ASSERT_GT(transformer.workspace_bytes(), std::uint64_t{512} << 20) << "else nothing is shown";
  const std::vector<std::int32_t> ids(1, 100);
  transformer.run(Step::prefill(1), ids);
  const std::int64_t taken = resident_memory() - before;
  EXPECT_LT(taken, 128 * kMiB) << "after one token, " << taken / kMiB << " MiB";
}

}  // namespace
}  // namespace headwater::runtime::testing
