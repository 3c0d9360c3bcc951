// What the atlas of a model keeps of a long prompt is what the engine said and the session holds.

#include "cli/commands/atlas/model_trace.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>
#include <vector>

#include "headwater/headwater.hpp"

namespace headwater::cli {
namespace {

constexpr std::int64_t kTokens = 70000, kLayers = 3, kHeads = 3, kWidth = 2;

std::unique_ptr<Session> open() {
  Options options;
  options.batch = 4096;
  options.chunk = 128;
  options.local = options.heavy = 4;
  options.threads = 2;
  return engine("cpu").open({.n_layer = kLayers,
                             .n_head = kHeads,
                             .n_head_kv = 1,
                             .d_head = kWidth,
                             .d_value = kWidth,
                             .capacity = kTokens},
                            options);
}

void run(Session& session) {
  std::mt19937 random(1);
  std::vector<float> rows(kTokens * kHeads * kWidth);
  std::vector<float> out(rows.size());
  session.begin(Step::prefill(kTokens));
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    for (float& x : rows) x = static_cast<float>(random() >> 8) * 0x1p-23F - 1.0F;
    session.attend(layer, Rows::token_major(rows.data(), DType::f32, kHeads, kWidth),
                   Rows::token_major(rows.data() + 1, DType::f32, 1, kWidth),
                   Rows::token_major(rows.data() + 2, DType::f32, 1, kWidth),
                   MutableRows::token_major(out.data(), DType::f32, kHeads, kWidth));
  }
  session.end();
}

TEST(ModelTrace, OfALongPromptIsWhatTheEngineSaid) {
  const auto traced = open();
  const ModelTrace recorder(*traced, {0, 2});
  run(*traced);
  const AtlasTrace trace = recorder.take();

  struct Set {
    std::int64_t layer, head;
    Chunk chunk;
    std::vector<std::int32_t> positions;
    std::vector<float> sums;
  };
  std::vector<Set> sets;
  const auto watched = open();
  watched->set_observer([&](const ChunkRecord& record) {
    for (std::int64_t h = 0; h < kHeads; ++h) {
      Set set{record.layer, h, record.chunk, {}, {}};
      for (std::int64_t e = 0; e < record.memory_count; ++e) {
        set.positions.push_back(record.memory[h * record.memory_stride + e]);
        set.sums.push_back(record.colsum_inter[h * record.memory_stride + e]);
      }
      sets.push_back(set);
    }
  });
  run(*watched);

  EXPECT_EQ(trace.n, kTokens);
  EXPECT_EQ(trace.head_numbers, (std::vector<std::int64_t>{0, 1, 2, 6, 7, 8}));
  ASSERT_EQ(trace.chunks(), (kTokens + 127) / 128);
  std::size_t seen = 0;
  for (const Set& set : sets) {
    if (set.layer == 1) continue;
    const std::int64_t c = set.chunk.begin / 128;
    const std::int64_t head = set.layer / 2 * kHeads + set.head;
    ASSERT_EQ(trace.begin(c), set.chunk.begin);
    ASSERT_EQ(trace.end(c), set.chunk.end);
    const auto got = trace.set(c, head);
    ASSERT_TRUE(std::equal(got.begin(), got.end(), set.positions.begin(), set.positions.end()))
        << "chunk " << c << ", head " << head;
    const auto first = trace.set_start[static_cast<std::size_t>(c * trace.heads() + head)];
    ASSERT_TRUE(std::equal(set.sums.begin(), set.sums.end(), trace.colsum_inter.begin() + first));
    ++seen;
  }
  EXPECT_EQ(seen, static_cast<std::size_t>(trace.chunks() * trace.heads()));
  ASSERT_EQ(trace.scores.size(), static_cast<std::size_t>(trace.heads() * kTokens));
  for (std::int64_t head = 0; head < trace.heads(); ++head) {
    const ScoreView view = watched->scores(head / kHeads * 2);
    ASSERT_EQ(view.type, ScoreType::bf16);
    const auto* const row = static_cast<const std::uint16_t*>(view.data) + head % kHeads * view.head_stride;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(trace.scores[static_cast<std::size_t>(head * kTokens + t)]),
                std::uint32_t{row[t]} << 16)
          << "head " << head << ", token " << t;
    }
  }
}

// Sets of each query block, of which the last one of a chunk has fewer rows; the layer in the middle is dense, and of the
// others the first one is left out.
class ModelTraceOfSets : public testing::TestWithParam<Select> {};
TEST_P(ModelTraceOfSets, IsWhatTheEngineSaid) {
  constexpr std::int64_t kKv = 2, kChunk = 300, kRows = 32;
  const bool sketches = GetParam() == Select::sketches;
  const std::int64_t kAll = sketches ? 1500 : 9000;
  Options options;
  options.batch = 4000;
  options.chunk = kChunk;
  options.local = 8, options.heavy = 24;
  options.select = GetParam();
  options.least_weight = 0.5;
  options.key_block = 4, options.query_block = kRows, options.pool = 4;
  options.dense_layers = {1};
  options.threads = 2;
  const auto opened = [&] {
    return engine(sketches ? "reference" : "cpu")
        .open({.n_layer = kLayers,
               .n_head = 2 * kKv,
               .n_head_kv = kKv,
               .d_head = kWidth,
               .d_value = kWidth,
               .capacity = kAll},
              options);
  };
  const auto run_all = [&](Session& session) {
    std::mt19937 random(2);
    std::vector<float> rows(static_cast<std::size_t>(kAll * 2 * kKv * kWidth));
    std::vector<float> out(rows.size());
    session.begin(Step::prefill(kAll));
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      for (float& x : rows) x = static_cast<float>(random() >> 8) * 0x1p-23F - 1.0F;
      const Rows keys = Rows::token_major(rows.data(), DType::f32, kKv, kWidth);
      session.attend(layer, Rows::token_major(rows.data(), DType::f32, 2 * kKv, kWidth), keys, keys,
                     MutableRows::token_major(out.data(), DType::f32, 2 * kKv, kWidth));
    }
    session.end();
  };
  const auto traced = opened();
  const ModelTrace recorder(*traced, {1, 2});
  run_all(*traced);
  const AtlasTrace trace = recorder.take();
  EXPECT_EQ(trace.heads_in_file, kLayers * kKv);
  EXPECT_EQ(trace.head_numbers, (std::vector<std::int64_t>{2, 3, 4, 5}));
  EXPECT_EQ(trace.dense_heads, (std::vector<bool>{true, true, false, false}));
  EXPECT_TRUE(trace.scores.empty() && trace.colsum_inter.empty());

  const auto watched = opened();
  std::int64_t row = 0;
  std::int64_t entries = 0, shorter = 0;
  watched->set_observer([&](const ChunkRecord& record) {
    if (record.layer != 2) return;
    const std::int64_t begin = record.chunk.begin;
    ASSERT_EQ(record.query_blocks, (record.chunk.end - begin + kRows - 1) / kRows);
    for (std::int64_t b = 0; b < record.query_blocks; ++b, ++row) {
      ASSERT_LT(row, trace.chunks());
      EXPECT_EQ(trace.begin(row), begin + b * kRows);
      EXPECT_EQ(trace.end(row), std::min(begin + (b + 1) * kRows, record.chunk.end));
      EXPECT_EQ(trace.own_begin(row), begin);
      for (std::int64_t g = 0; g < kKv; ++g) {
        EXPECT_TRUE(trace.set(row, g).empty());
        EXPECT_EQ(trace.dense(row, g), begin > 0);
        EXPECT_FALSE(trace.dense(row, kKv + g));
        const auto got = trace.set(row, kKv + g);
        const std::int32_t* const set = record.memory + (g * record.query_blocks + b) * record.memory_stride;
        const std::int32_t* const end = std::find(set, set + record.memory_count, -1);  // SKE-8
        ASSERT_TRUE(std::equal(got.begin(), got.end(), set, end)) << row << ", " << g;
        entries += end - set;
        shorter += end < set + record.memory_count ? 1 : 0;
      }
    }
  });
  run_all(*watched);
  EXPECT_EQ(row, trace.chunks());
  EXPECT_GT(entries, sketches ? 500 : 10000);
  EXPECT_EQ(shorter > 0, sketches);
}
INSTANTIATE_TEST_SUITE_P(, ModelTraceOfSets, testing::Values(Select::blocks, Select::sketches));

}  // namespace
}  // namespace headwater::cli
