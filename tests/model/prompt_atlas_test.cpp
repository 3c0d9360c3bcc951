// What the picture of a prompt shows: by hand, and by the pairs that the server counts.

#include "runtime/serve/prompt_atlas.hpp"

#include <numeric>

#include "tests/model/serving.hpp"

namespace headwater::runtime::testing {
namespace {

Shape heads(std::int64_t query, std::int64_t key) {
  Shape shape;
  shape.n_head = query;
  shape.n_head_kv = key;
  return shape;
}

ChunkRecord dense(std::int64_t layer, std::int64_t begin, std::int64_t end) {
  ChunkRecord record;
  record.layer = layer;
  record.chunk = {begin, end, ChunkMode::dense};
  return record;
}

ChunkRecord sparse(std::int64_t begin, std::int64_t end, const std::vector<std::int32_t>& sets,
                   std::int64_t count, std::int64_t stride, std::int64_t query_blocks = 0) {
  ChunkRecord record;
  record.chunk = {begin, end, ChunkMode::sparse};
  record.memory = sets.data();
  record.memory_count = count;
  record.memory_stride = stride;
  record.query_blocks = query_blocks;
  return record;
}

using Shares = std::vector<std::uint8_t>;

TEST(PromptAtlas, ASetIsAHeadsOrAQueryBlocks) {
  // Of column 0 one head reads two tokens and the other one: 1.5 of 16. Of column 1 one and three. What lies beyond the count,
  // and behind -1, is not read.
  const std::vector<std::int32_t> sets = {0, 1, 17, -1, 5, 9, 0, 16, 17, 18, 6, 9};
  PromptAtlas by_head(heads(2, 1), {0}, 64);
  by_head.add(sparse(32, 64, sets, 4, 6));
  EXPECT_EQ(by_head.shares(), (Shares{24, 32, 0, 0}));
  // The same sets of two query blocks, and a key/value head that reads nothing.
  PromptAtlas by_block(heads(8, 2), {0}, 64);
  std::vector<std::int32_t> more = sets;
  more.resize(24, -1);
  by_block.add(sparse(32, 64, more, 4, 6, 2));
  EXPECT_EQ(by_block.shares(), (Shares{12, 16, 0, 0}));
}

TEST(PromptAtlas, DenseLayersReadAllAndWindowsTheirOwn) {
  PromptAtlas atlas(heads(2, 1), {0, 20, 20}, 64);
  atlas.add(dense(0, 24, 64));
  atlas.add(dense(1, 24, 64));
  ChunkRecord sparse_step = dense(2, 24, 64);  // the layer is exact whatever the chunk is
  sparse_step.chunk.mode = ChunkMode::sparse;
  atlas.add(sparse_step);
  Shares wanted = {255, 255, 0, 0};
  for (int layer = 0; layer < 2; ++layer) {
    for (int column = 0; column < 4; ++column) {
      double read = 0;
      double possible = 0;
      for (int query = 24; query < 64; ++query) {
        for (int key = column * 16; key < std::min(column * 16 + 16, 24); ++key) {
          read += query - key < 20 ? 1 : 0;
          ++possible;
        }
      }
      wanted.push_back(possible > 0 ? static_cast<std::uint8_t>(std::lround(255 * read / possible)) : 0);
    }
  }
  EXPECT_EQ(atlas.shares(), wanted);
}

TEST(PromptAtlas, ChunksShareARowWhereTheyFitIntoAColumn) {
  PromptAtlas atlas(heads(1, 1), {0, 0}, 4096);  // columns of 32
  const std::vector<std::int32_t> own = {70};
  for (int layer = 0; layer < 2; ++layer) {
    for (const auto& [begin, end] : {std::pair{64, 80}, {80, 96}, {96, 112}, {128, 130}}) {
      ChunkRecord record = sparse(begin, end, own, begin == 80 ? 1 : 0, 1);
      record.layer = layer;
      atlas.add(record);
    }
  }
  ASSERT_EQ(atlas.rows().size(), 3U);
  EXPECT_EQ(atlas.rows()[0].begin, 64);
  EXPECT_EQ(atlas.rows()[0].end, 96);
  EXPECT_EQ(atlas.rows()[1].end, 112);
  EXPECT_EQ(atlas.rows()[2].begin, 128);
  // Of the sixteen tokens before the second chunk its queries read one.
  EXPECT_EQ(atlas.shares()[2], 16);
  EXPECT_EQ(atlas.shares()[128 + 2], 16);
}

TEST(PromptAtlas, IsSmallWhateverThePromptIs) {
  const std::int64_t most = (std::int64_t{1} << 31) - 1;
  for (const std::int64_t n :
       {std::int64_t{1}, std::int64_t{16}, std::int64_t{17}, std::int64_t{2048}, std::int64_t{2049},
        std::int64_t{4096}, std::int64_t{4097}, std::int64_t{131072}, std::int64_t{131073}, most}) {
    const PromptAtlas atlas(heads(1, 1), {0}, n);
    EXPECT_LE(atlas.columns(), PromptAtlas::kMostColumns) << n;
    EXPECT_GE(atlas.columns() * atlas.column_tokens(), n);
    EXPECT_TRUE(atlas.column_tokens() == PromptAtlas::kFewestTokens ||
                atlas.columns() > PromptAtlas::kMostColumns / 2)
        << n;
  }
  PromptAtlas atlas(heads(1, 1), {0}, 131073);  // columns of 2048
  atlas.add(sparse(131072, 131073, {70000}, 1, 1));
  EXPECT_EQ(atlas.rows()[0].read[70000 / 2048], 1);
  EXPECT_EQ(std::reduce(atlas.rows()[0].read.begin(), atlas.rows()[0].read.end()), 1);
}

/// Pairs of a query and an earlier token, of its own chunk too, on average over the layers.
double pairs_of(const PromptAtlas& atlas) {
  double pairs = 0;
  for (const PromptAtlas::Row& row : atlas.rows()) {
    const auto n = static_cast<double>(row.end - row.begin);
    pairs += n * (n + 1) / 2;
    pairs += std::reduce(row.read.begin(), row.read.end(), 0.0) / static_cast<double>(atlas.layers());
  }
  return pairs;
}

// Finds: sets of another rule read as heads' ones; a chunk, layer or tail that the observer misses; one that is left in the slot.
TEST(PromptAtlas, HasThePairsThatTheServerCounts) {
  for (const Select select : {Select::h2o, Select::blocks}) {
    for (const bool all : {false, true}) {
      Bench bench({.select = select});
      CompletionRequest asked = request(document_and(400, 1), 1);
      asked.rule.dense = all;
      const Bench::Answer without = bench.ask(cold(asked));
      EXPECT_EQ(without.facts.atlas, nullptr);
      asked.atlas = true;
      const Bench::Answer with = bench.ask(asked);
      EXPECT_EQ(with.logprobs, without.logprobs);
      ASSERT_NE(with.facts.atlas, nullptr);
      EXPECT_NEAR(pairs_of(*with.facts.atlas), static_cast<double>(with.facts.pairs.computed), 0.5);
      EXPECT_EQ(bench.ask(cold(request(some_ids(50), 1))).facts.atlas, nullptr);
    }
  }
}

TEST(PromptAtlas, BeginsWhereTheCacheEnds) {
  Bench bench({.slots = 2});
  bench.ask(request(document_and(400, 1)));
  CompletionRequest asked = request(document_and(400, 2));
  asked.atlas = true;
  const Bench::Answer answer = bench.ask(asked);
  EXPECT_GT(answer.facts.cached_tokens, 0);
  EXPECT_EQ(answer.facts.atlas->rows().front().begin, answer.facts.cached_tokens);
  EXPECT_EQ(answer.facts.atlas->rows().back().end, 410);
}

}  // namespace
}  // namespace headwater::runtime::testing
