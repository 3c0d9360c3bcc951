#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "reference/block_rule.hpp"
#include "reference/engine.hpp"
#include "reference/numbers.hpp"
#include "tests/reference/support.hpp"

/// Laws of sessions of rule `blocks`. Its functions are in block_rule_test.cpp.
/// Clauses: SEL-8, SEL-9, SEL-10, SEL-11, PLAN-2, NUM-2, SCHED-2.
namespace headwater::reference {
namespace {

using test::kInfF;
using test::kNaNF;
using Positions = std::vector<std::int32_t>;

constexpr std::int64_t kTokens = 43;

Shape grouped_shape() {
  Shape shape;
  shape.n_layer = 1;
  shape.n_head = 4;
  shape.n_head_kv = 2;
  shape.d_head = 4;
  shape.d_value = 3;
  shape.capacity = kTokens;
  return shape;
}

Options block_options() {
  Options options;
  options.batch = 32;
  options.chunk = 16;
  options.local = 5;
  options.heavy = 6;
  options.select = Select::blocks;
  options.key_block = 3;
  options.query_block = 6;
  options.pool = 2;
  options.refine = 2;
  return options;
}

/// What the observer was told of one chunk.
struct Seen {
  ChunkRecord record;
  std::vector<std::int32_t> memory;
  std::vector<float> block_votes, token_votes;
};

/// A session, the tensors that it is fed and what it gave.
struct Fixture {
  Shape shape;
  std::unique_ptr<Session> session;
  std::vector<float> q, k, v, out;
  std::vector<Seen> seen;

  explicit Fixture(const std::vector<Step>& all = {}, const Options& options = block_options(),
                   const Shape& opened = grouped_shape())
      : shape(opened), session(reference_engine().open(opened, options)) {
    test::Numbers numbers(3);
    q = numbers.floats(kTokens * shape.n_head * shape.d_head, 2.0F);
    k = numbers.floats(kTokens * shape.n_head_kv * shape.d_head, 2.0F);
    v = numbers.floats(kTokens * shape.n_head_kv * shape.d_value);
    out.assign(static_cast<std::size_t>(kTokens * shape.n_head * shape.d_value), kNaNF);
    session->set_observer([this](const ChunkRecord& record) {
      Seen chunk{record, {}, {}, {}};
      const std::int64_t sets = shape.n_head_kv * record.query_blocks;
      chunk.memory.assign(record.memory, record.memory + sets * record.memory_stride);
      if (record.block_votes != nullptr) {
        chunk.block_votes.assign(record.block_votes, record.block_votes + sets * record.candidate_blocks);
      }
      if (record.token_votes != nullptr) {
        chunk.token_votes.assign(record.token_votes, record.token_votes + sets * record.voted_tokens);
      }
      seen.push_back(chunk);
    });
    steps(all);
  }
  void step(const Step& step) {
    const std::int64_t p = session->tokens();
    session->begin(step);
    const Shape& s = shape;
    session->attend(
        0, Rows::token_major(q.data() + p * s.n_head * s.d_head, DType::f32, s.n_head, s.d_head),
        Rows::token_major(k.data() + p * s.n_head_kv * s.d_head, DType::f32, s.n_head_kv, s.d_head),
        Rows::token_major(v.data() + p * s.n_head_kv * s.d_value, DType::f32, s.n_head_kv, s.d_value),
        MutableRows::token_major(out.data() + p * s.n_head * s.d_value, DType::f32, s.n_head, s.d_value));
    session->end();
  }
  void steps(const std::vector<Step>& all) {
    for (const Step& one : all) step(one);
  }
  /// Outputs of the tokens [begin, end).
  [[nodiscard]] std::vector<float> outputs(std::int64_t begin, std::int64_t end) const {
    const std::int64_t width = shape.n_head * shape.d_value;
    return {out.begin() + begin * width, out.begin() + end * width};
  }
  void change_token(std::int64_t j, float value) {
    const auto fill = [&](std::vector<float>& rows) {
      const std::int64_t width = static_cast<std::int64_t>(rows.size()) / kTokens;
      std::fill(rows.begin() + j * width, rows.begin() + (j + 1) * width, value);
    };
    fill(q);
    fill(k);
    fill(v);
  }
};

const std::vector<Step> kTwoTurns{Step::prefill(21), Step::decode(2), Step::prefill(20)};

void expect_same(const Fixture& a, const Fixture& b) {
  EXPECT_EQ(a.outputs(0, kTokens), b.outputs(0, kTokens));
  ASSERT_EQ(a.seen.size(), b.seen.size());
  for (std::size_t c = 0; c < a.seen.size(); ++c) {
    EXPECT_EQ(a.seen[c].record.chunk.begin, b.seen[c].record.chunk.begin);
    EXPECT_EQ(a.seen[c].memory, b.seen[c].memory);
    EXPECT_EQ(a.seen[c].block_votes, b.seen[c].block_votes);
    EXPECT_EQ(a.seen[c].token_votes, b.seen[c].token_votes);
  }
}

TEST(BlockSessions, SEL_8_OneSetForEachKeyValueHeadAndQueryBlock) {
  const Fixture run(kTwoTurns);
  ASSERT_EQ(run.seen.size(), 5U);  // [0, 16), [16, 21), decode, [23, 39), [39, 43)
  const std::int64_t query_blocks[] = {3, 1, 0, 3, 1};
  // Local begins at 12, none, 18, 36 (from 11, none, 18, 34): candidates 4, none, 6, 12.
  const std::int64_t candidates[] = {0, 4, 0, 6, 12};
  const std::int64_t counts[] = {0, 4 + 6, 0, 5 + 6, 3 + 6};
  for (std::size_t c = 0; c < run.seen.size(); ++c) {
    SCOPED_TRACE(c);
    const ChunkRecord& record = run.seen[c].record;
    EXPECT_EQ(record.query_blocks, query_blocks[c]);
    EXPECT_EQ(record.candidate_blocks, candidates[c]);
    EXPECT_EQ(record.memory_count, counts[c]);
    EXPECT_EQ(record.voted_tokens, candidates[c] == 0 ? 0 : 12);
    EXPECT_EQ(record.memory_stride, record.chunk.mode == ChunkMode::sparse ? 11 : 0);
    EXPECT_EQ(record.memory == nullptr, record.chunk.mode != ChunkMode::sparse);
  }
  // The sets of a chunk differ: by query block, and by key/value head.
  const std::vector<std::int32_t>& memory = run.seen[3].memory;
  EXPECT_FALSE(std::equal(memory.begin(), memory.begin() + 11, memory.begin() + 11));
  EXPECT_FALSE(std::equal(memory.begin(), memory.begin() + 11, memory.begin() + 33));
}

TEST(BlockSessions, SEL_9_NoScoresNoColumnSumsAndNoMemoryView) {
  for (const ScoreType type : {ScoreType::bf16, ScoreType::f32}) {
    Options options = block_options();
    options.score_type = type;
    const Fixture run(kTwoTurns, options);
    for (const Seen& chunk : run.seen) {
      EXPECT_EQ(chunk.record.colsum_intra, nullptr);
      EXPECT_EQ(chunk.record.colsum_inter, nullptr);
    }
    const ScoreView scores = run.session->scores(0);
    const auto* bytes = static_cast<const unsigned char*>(scores.data);
    const std::int64_t size = run.shape.n_head * kTokens * (type == ScoreType::bf16 ? 2 : 4);
    EXPECT_EQ(std::count(bytes, bytes + size, 0), size);
    const MemoryView memory = run.session->memory(0);
    EXPECT_EQ(memory.data, nullptr);
    EXPECT_EQ(memory.count, 0);
    EXPECT_EQ(memory.width, 0);
    EXPECT_EQ(run.session->memory_bytes().memory_sets, 0);
  }
}

TEST(BlockSessions, SEL_11_SetsFollowFromTheReportedVotes) {
  for (const std::int64_t refine : {1, 2}) {
    Options options = block_options();
    options.refine = refine;
    const Fixture run(kTwoTurns, options);
    for (const Seen& chunk : run.seen) {
      const ChunkRecord& record = chunk.record;
      const std::int64_t begin = record.chunk.begin;
      for (std::int64_t s = 0; s < run.shape.n_head_kv * record.query_blocks; ++s) {
        const auto votes = std::span(chunk.block_votes)
                               .subspan(static_cast<std::size_t>(s * record.candidate_blocks),
                                        static_cast<std::size_t>(record.candidate_blocks));
        Positions kept = tokens_of_best_blocks(votes, refine * options.heavy / 3, 3);
        if (record.voted_tokens > 0) {
          ASSERT_EQ(record.voted_tokens, static_cast<std::int64_t>(kept.size()));
          kept = best_tokens(kept,
                             std::span(chunk.token_votes)
                                 .subspan(static_cast<std::size_t>(s * record.voted_tokens),
                                          static_cast<std::size_t>(record.voted_tokens)),
                             options.heavy);
        }
        Positions set = with_local(kept, aligned_local_begin(begin, options.local, 3), begin);
        ASSERT_EQ(static_cast<std::int64_t>(set.size()), record.memory_count);
        set.resize(static_cast<std::size_t>(record.memory_stride), -1);
        EXPECT_TRUE(std::equal(set.begin(), set.end(), chunk.memory.begin() + s * record.memory_stride));
      }
    }
  }
}

TEST(BlockSessions, SEL_10_NothingBeforeTheQueryBlockChanges) {
  const Fixture before(kTwoTurns);
  bool earlier_rows_changed = false;
  for (std::int64_t j = 0; j < kTokens; ++j) {
    SCOPED_TRACE(j);
    Fixture after;
    after.change_token(j, 9.0F);
    after.steps(kTwoTurns);
    // First position that may change: the query block's begin; in a decode step the token itself.
    std::int64_t first = j;
    for (const Seen& chunk : before.seen) {
      const Chunk& c = chunk.record.chunk;
      if (c.begin <= j && j < c.end && c.mode == ChunkMode::sparse) {
        first = c.begin + (j - c.begin) / 6 * 6;
      }
    }
    EXPECT_EQ(before.outputs(0, first), after.outputs(0, first));
    EXPECT_NE(before.outputs(j, j + 1), after.outputs(j, j + 1));
    earlier_rows_changed = earlier_rows_changed || before.outputs(first, j) != after.outputs(first, j);
  }
  EXPECT_TRUE(earlier_rows_changed);  // else the law would be the plain one, and pools not read
}

TEST(BlockSessions, NUM_2_BadRowsReachNoEarlierChunkAndSetsStayValid) {
  const Fixture before(kTwoTurns);
  for (const float bad : {kNaNF, kInfF, -kInfF}) {
    for (std::int64_t j = 0; j < kTokens; ++j) {
      Fixture after;
      after.change_token(j, bad);
      after.steps(kTwoTurns);
      const auto chunk = std::find_if(before.seen.begin(), before.seen.end(),
                                      [&](const Seen& seen) { return j < seen.record.chunk.end; });
      const std::int64_t first = chunk->record.chunk.begin;
      EXPECT_EQ(before.outputs(0, first), after.outputs(0, first));
      for (const Seen& seen : after.seen) {
        for (std::int64_t s = 0; s < 2 * seen.record.query_blocks; ++s) {
          const std::int32_t* set = seen.memory.data() + s * seen.record.memory_stride;
          for (std::int64_t e = 0; e < seen.record.memory_stride; ++e) {
            if (e >= seen.record.memory_count) {
              EXPECT_EQ(set[e], -1);
            } else {
              EXPECT_LT(e == 0 ? -1 : set[e - 1], set[e]);
              EXPECT_LT(set[e], seen.record.chunk.begin);
            }
          }
        }
        for (const float vote : seen.block_votes) EXPECT_LE(vote, 0.0F);
        for (const float vote : seen.token_votes) EXPECT_TRUE(vote >= 0.0F && vote <= 1.0F);
      }
    }
  }
}

TEST(BlockSessions, PLAN_2_CallsCutAtMultiplesOfTheChunk) {
  const Fixture whole({Step::prefill(kTokens)});
  const Fixture cut({Step::prefill(16, kTokens), Step::prefill(16), Step::prefill(11)});
  expect_same(whole, cut);
  Options options = block_options();
  options.schedule = Schedule::chunk_major;
  const Fixture other({Step::prefill(32, kTokens), Step::prefill(11)}, options);
  expect_same(whole, other);
}

TEST(BlockSessions, SCHED_2_BothSchedulesAgree) {
  const Fixture layer_major(kTwoTurns);
  Options options = block_options();
  options.schedule = Schedule::chunk_major;
  expect_same(layer_major, Fixture(kTwoTurns, options));
}

TEST(BlockSessions, SEL_9_ResetGivesTheSameAgain) {
  Fixture twice({Step::prefill(40)});
  twice.session->reset();
  twice.seen.clear();
  twice.steps(kTwoTurns);
  expect_same(Fixture(kTwoTurns), twice);
}

/// The rows that a session stored are all that carries over: the second turn does not depend on how they came.
TEST(BlockSessions, SEL_9_OnlyStoredRowsCarryOver) {
  const Fixture prefilled({Step::prefill(20), Step::decode(3), Step::prefill(20)});
  const Fixture decoded({Step::decode(23), Step::prefill(20)});
  EXPECT_EQ(prefilled.outputs(23, kTokens), decoded.outputs(23, kTokens));
  EXPECT_EQ(prefilled.seen.back().memory, decoded.seen.back().memory);
  EXPECT_NE(prefilled.outputs(0, 20), decoded.outputs(0, 20));
}

TEST(BlockSessions, SEL_8_AMemoryOfAllHistoryIsDense) {
  Options options = block_options();
  options.dense = true;
  const Fixture dense(kTwoTurns, options);
  options.dense = false;
  options.clamp = false;
  const auto expect_dense = [&](std::int64_t local, std::int64_t heavy, std::int64_t key_block) {
    SCOPED_TRACE(testing::Message() << local << ", " << heavy << ", " << key_block);
    options.local = local;
    options.heavy = heavy;
    options.key_block = key_block;
    const Fixture run(kTwoTurns, options);
    for (std::size_t i = 0; i < dense.out.size(); ++i) EXPECT_NEAR(run.out[i], dense.out[i], 2e-7);
  };
  expect_dense(kTokens, 0, 3);
  expect_dense(kTokens + 2, 6, 3);
  expect_dense(0, kTokens, 1);  // every block holds one key
  expect_dense(1, 39, 1);
  expect_dense(8, 40, 5);  // L >= K: no token lies between candidates and Local
}

TEST(BlockSessions, SEL_9_StoredRowsAreRead) {
  // Keys of BF16: the summaries are of the rounded rows, which F32 rows that are rounded already give.
  Shape shape = grouped_shape();
  shape.kv_type = DType::bf16;
  const Fixture rounded(kTwoTurns, block_options(), shape);
  Fixture exact;
  for (float& value : exact.k) value = static_cast<float>(from_bf16(round_to_bf16(value)));
  for (float& value : exact.v) value = static_cast<float>(from_bf16(round_to_bf16(value)));
  exact.steps(kTwoTurns);
  EXPECT_EQ(rounded.outputs(0, kTokens), exact.outputs(0, kTokens));
}

}  // namespace
}  // namespace headwater::reference
