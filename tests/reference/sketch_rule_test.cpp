#include "reference/sketch_rule.hpp"

#include <cmath>
#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

#include "reference/engine.hpp"
#include "tests/reference/support.hpp"

/// Rule `sketches`: the functions on small cases computed by hand, and laws of sessions.
/// Clauses: SKE-1, SKE-2, SKE-3, SKE-4, SKE-5, SKE-6, SKE-7, SKE-8, SKE-9.
namespace headwater::reference {
namespace {

using test::kInf;
using test::kInfF;
using test::kNaN;
using test::kNaNF;
using test::matrix;
using Positions = std::vector<std::int32_t>;
using Columns = std::vector<std::int64_t>;

TEST(SketchedPast, FixedPartAndCandidates) {
  const SketchedPast past = sketched_past(10, 3, 5, 2);
  EXPECT_EQ(past.fixed, (Positions{0, 1, 7, 8, 9}));
  EXPECT_EQ(past.candidates, (Positions{2, 3, 4, 5, 6}));
}

TEST(SketchedPast, PinnedTokensMeetLocal) {
  const SketchedPast past = sketched_past(4, 3, 5, 2);
  EXPECT_EQ(past.fixed, (Positions{0, 1, 2, 3}));
  EXPECT_TRUE(past.candidates.empty());
  EXPECT_TRUE(sketched_past(0, 3, 5, 2).fixed.empty());
  EXPECT_EQ(sketched_past(4, 9, 5, 0).fixed, (Positions{0, 1, 2, 3}));
}

TEST(SketchedPast, NoCandidatesWithoutHeavy) {
  const SketchedPast past = sketched_past(10, 3, 0, 0);
  EXPECT_EQ(past.fixed, (Positions{7, 8, 9}));
  EXPECT_TRUE(past.candidates.empty());
}

TEST(SketchColumns, AllOfFew) { EXPECT_EQ(sketch_columns(matrix({{1, -2, 0}})), (Columns{0, 1, 2})); }

// 33 columns of which one has to go: the least, of equal ones the last.
TEST(SketchColumns, ThirtyTwoWithTheLargestSquares) {
  Matrix k(2, 33);
  for (std::int64_t x = 0; x < 33; ++x) {
    k.row(0)[static_cast<std::size_t>(x)] = x == 5 ? 1.0 : -3.0;
    k.row(1)[static_cast<std::size_t>(x)] = x == 5 ? 2.0 : 0.0;
  }
  Columns all(33);
  std::iota(all.begin(), all.end(), 0);
  Columns without_5 = all;
  without_5.erase(without_5.begin() + 5);
  EXPECT_EQ(sketch_columns(k), without_5);  // 5 < 9
  Columns without_last = all;
  without_last.pop_back();
  k.row(1)[5] = 3.0;  // now all are equal
  k.row(0)[5] = 0.0;
  EXPECT_EQ(sketch_columns(k), without_last);
  k.row(0)[32] = kNaN;  // counts as infinite
  EXPECT_EQ(sketch_columns(k).back(), 32);
}

// Half of them, in whole lots of 32, up to 256.
TEST(SketchColumns, HalfOfManyInLotsOf32) {
  for (const auto& [d, wanted] : {std::pair<std::int64_t, std::size_t>{1, 1},
                                  {31, 31},
                                  {32, 32},
                                  {33, 32},
                                  {64, 32},
                                  {65, 64},
                                  {80, 64},
                                  {128, 64},
                                  {129, 96},
                                  {256, 128},
                                  {512, 256},
                                  {513, 256},
                                  {4096, 256}}) {
    Matrix k(1, d);
    for (std::int64_t x = 0; x < d; ++x) k.row(0)[static_cast<std::size_t>(x)] = static_cast<double>(x + 1);
    const Columns columns = sketch_columns(k);
    EXPECT_EQ(columns.size(), wanted) << d;
    EXPECT_EQ(columns.front(), d - static_cast<std::int64_t>(wanted)) << d;
  }
}

// Position 256 has no say, position 255 has.
TEST(SketchColumns, TheFirst256PositionsChoose) {
  Matrix k(257, 33);
  for (std::int64_t x = 0; x < 33; ++x) k.row(0)[static_cast<std::size_t>(x)] = x == 7 ? 0.0 : 1.0;
  k.row(256)[7] = 100.0;
  Columns columns = sketch_columns(k);
  EXPECT_FALSE(std::binary_search(columns.begin(), columns.end(), 7));
  k.row(255)[7] = 100.0;
  columns = sketch_columns(k);
  EXPECT_TRUE(std::binary_search(columns.begin(), columns.end(), 7));
}

TEST(SketchOfRow, IntegersOf127ToTheLargest) {
  const Columns columns{0, 1, 2, 3};
  const Sketch row = sketch(std::vector<double>{127.0, -63.5, 0.25, -0.75}, columns);
  EXPECT_TRUE(row.exists);
  EXPECT_EQ(row.unit, 1.0F);
  EXPECT_EQ(row.integers, (Positions{127, -64, 0, -1}));  // -63.5 is a tie
  EXPECT_EQ(sketch(std::vector<double>{127.0, 62.5, 0.5, 1.5}, columns).integers, (Positions{127, 62, 0, 2}));
}

// What is in other columns does not matter.
TEST(SketchOfRow, OnlyItsColumns) {
  const std::vector<double> row{kInf, 2.0, kNaN, -2.0};
  EXPECT_FALSE(sketch(row, Columns{0, 1}).exists);
  EXPECT_FALSE(sketch(row, Columns{1, 2}).exists);
  EXPECT_EQ(sketch(row, Columns{1, 3}).integers, (Positions{127, -127}));
}

TEST(SketchOfRow, ZerosAndTinyRows) {
  for (const double tiny : {0.0, 0x1p-149, 0x1p-122}) {
    const Sketch row = sketch(std::vector<double>{tiny, 0.0}, Columns{0, 1});
    EXPECT_TRUE(row.exists);
    EXPECT_EQ(row.integers, (Positions{0, 0})) << tiny;
  }
  EXPECT_EQ(sketch(std::vector<double>{0x1p-120, 0.0}, Columns{0, 1}).integers, (Positions{127, 0}));
}

// Logits 2 (fixed), 1 and 3 (own); the key between them is a candidate and has no part.
TEST(OwnWeight, FixedPartAndOwnKeys) {
  const Matrix k = matrix({{2.0}, {50.0}, {1.0}, {3.0}, {40.0}});
  LogitRule rule;
  const double want = std::log(std::exp(2.0) + std::exp(1.0) + std::exp(3.0));
  EXPECT_NEAR(own_weight(rule, std::vector<double>{1.0}, 3, k, Positions{0}, 2), want, 1e-12);
  rule.sink = 5.0;
  EXPECT_NEAR(own_weight(rule, std::vector<double>{1.0}, 3, k, Positions{0}, 2),
              std::log(std::exp(want) + std::exp(5.0)), 1e-12);
}

// Two rows: units 1 and 2 / 127; the key of position 1 with a NaN has no vote.
TEST(SketchVotes, TheLargestOverRowsAndHeads) {
  const Matrix k = matrix({{127.0, 0.0}, {kNaN, 1.0}, {0.0, -127.0}});
  LogitRule rule;
  rule.scale = 0.5;
  const Columns columns{0, 1};
  VotingHead first{rule, matrix({{127.0, 0.0}, {0.0, 2.0}}), {10.0, 1.0}};
  const std::vector<double> votes = sketch_votes(std::span(&first, 1), 3, k, Positions{0, 1, 2}, columns);
  EXPECT_NEAR(votes[0], 0.5 * 127.0 * 127.0 - 10.0, 1e-3);
  EXPECT_EQ(votes[1], -kInf);
  EXPECT_NEAR(votes[2], 0.0 - 10.0, 1e-9);  // row 0; row 1 has -127 - 1
  const VotingHead second{rule, matrix({{0.0, -2.0}, {kNaN, 2.0}}), {kInf, 0.0}};  // neither has a vote
  const std::vector<VotingHead> both{first, second};
  EXPECT_EQ(sketch_votes(both, 3, k, Positions{0, 1, 2}, columns), votes);
}

TEST(SketchVotes, CapAndSlope) {
  const Matrix k = matrix({{127.0}, {127.0}});
  LogitRule rule;
  rule.softcap = 3.0;
  rule.slope = 0.25;
  const VotingHead head{rule, matrix({{127.0}}), {0.0}};
  const std::vector<double> votes = sketch_votes(std::span(&head, 1), 5, k, Positions{0, 1}, Columns{0});
  EXPECT_NEAR(votes[0], 3.0 - 0.25 * 5, 1e-12);
  EXPECT_NEAR(votes[1], 3.0 - 0.25 * 4, 1e-12);
}

TEST(ChosenByVotes, LeastWeightAndMost) {
  const Positions candidates{3, 5, 8, 9, 12};
  const auto least = static_cast<float>(std::log(0.5));
  const std::vector<float> votes{-0.1F, least, std::nextafterf(least, -kInfF), kNaNF, 0.3F};
  EXPECT_EQ(chosen_by_votes(candidates, votes, 0.5, 9), (Positions{3, 5, 12}));
  EXPECT_EQ(chosen_by_votes(candidates, votes, 0.5, 2), (Positions{3, 12}));
  EXPECT_EQ(chosen_by_votes(candidates, votes, 0.0, 9), (Positions{3, 5, 8, 12}));
  EXPECT_TRUE(chosen_by_votes(candidates, votes, 0.5, -1).empty());
}

// ---- sessions

constexpr std::int64_t kTokens = 90;
const std::vector<Step> kTwoTurns{Step::prefill(41), Step::decode(2), Step::prefill(47)};

Options sketch_options() {
  Options options;
  options.select = Select::sketches;
  options.chunk = 16;
  options.batch = 32;
  options.local = 3;
  options.heavy = 7;
  options.pinned = 2;
  options.query_block = 5;
  options.least_weight = 0.5;
  options.clamp = false;
  return options;
}

/// A session of 4 over 2 heads, what it is fed, and what it gave.
struct Fixture {
  struct Seen {
    ChunkRecord record;
    std::vector<std::vector<std::int32_t>> sets;
    std::vector<std::vector<float>> votes;
  };
  static constexpr std::int64_t kWidth = 40;  // more columns than a sketch has

  Shape shape{.n_layer = 1, .n_head = 4, .n_head_kv = 2, .d_head = kWidth, .d_value = 3, .capacity = kTokens};
  std::vector<float> q, k, v;
  std::vector<float> out = std::vector<float>(static_cast<std::size_t>(kTokens * 4 * 3), kNaNF);
  std::vector<Seen> seen;

  explicit Fixture(std::int64_t changed = -1) {
    test::Numbers numbers(3);
    q = numbers.floats(kTokens * 4 * kWidth, 2.0F);
    k = numbers.floats(kTokens * 2 * kWidth, 2.0F);
    v = numbers.floats(kTokens * 2 * 3);
    if (changed >= 0) {
      std::fill_n(q.begin() + changed * 4 * kWidth, 4 * kWidth, 3.0F);
      std::fill_n(k.begin() + changed * 2 * kWidth, 2 * kWidth, 3.0F);
    }
  }
  Fixture& operator()(const Options& options) {
    const auto session = reference_engine().open(shape, options);
    session->set_observer([this](const ChunkRecord& record) {
      Seen chunk{record, {}, {}};
      for (std::int64_t s = 0; s < shape.n_head_kv * record.query_blocks; ++s) {
        const std::int32_t* set = record.memory + s * record.memory_stride;
        chunk.sets.emplace_back(set, set + record.memory_stride);
        if (record.voted_tokens == 0) continue;
        const float* votes = record.token_votes + s * record.voted_tokens;
        chunk.votes.emplace_back(votes, votes + record.voted_tokens);
      }
      seen.push_back(chunk);
    });
    for (const Step& step : kTwoTurns) {
      const std::int64_t p = session->tokens();
      session->begin(step);
      session->attend(0, Rows::token_major(q.data() + p * 4 * kWidth, DType::f32, 4, kWidth),
                      Rows::token_major(k.data() + p * 2 * kWidth, DType::f32, 2, kWidth),
                      Rows::token_major(v.data() + p * 2 * 3, DType::f32, 2, 3),
                      MutableRows::token_major(out.data() + p * 4 * 3, DType::f32, 4, 3));
      session->end();
    }
    return *this;
  }
};

// Sets differ in length, and none is longer than its chunk says.
TEST(SketchSessions, SKE_9_SetsFollowFromTheVotes) {
  const Options options = sketch_options();
  Fixture run;
  run(options);
  std::set<std::size_t> lengths;
  for (const Fixture::Seen& chunk : run.seen) {
    if (chunk.record.chunk.mode != ChunkMode::sparse) continue;
    const SketchedPast past =
        sketched_past(chunk.record.chunk.begin, options.local, options.heavy, options.pinned);
    EXPECT_EQ(chunk.record.voted_tokens, std::ssize(past.candidates));
    for (std::size_t s = 0; s < chunk.sets.size(); ++s) {
      Positions wanted = past.fixed;
      if (!chunk.votes.empty()) {
        const Positions chosen =
            chosen_by_votes(past.candidates, chunk.votes[s], options.least_weight, options.heavy - 2);
        wanted.insert(wanted.end(), chosen.begin(), chosen.end());
        lengths.insert(chosen.size());
      }
      std::sort(wanted.begin(), wanted.end());
      EXPECT_LE(std::ssize(wanted), chunk.record.memory_count);
      wanted.resize(chunk.sets[s].size(), -1);
      EXPECT_EQ(chunk.sets[s], wanted);
    }
  }
  EXPECT_GE(lengths.size(), 3U);
  EXPECT_EQ(*lengths.rbegin(), 5U);  // H - A
}

TEST(SketchSessions, SKE_8_AMemoryOfAllHistoryIsDense) {
  Options options = sketch_options();
  options.dense = true;
  Fixture dense;
  dense(options);
  options.dense = false;
  options.heavy = kTokens;
  options.least_weight = 0.0;
  Fixture run;
  run(options);
  for (std::size_t i = 0; i < dense.out.size(); ++i) EXPECT_NEAR(run.out[i], dense.out[i], 2e-7);
}

TEST(SketchSessions, SEL_10_NothingBeforeTheQueryBlockChanges) {
  Fixture before;
  before(sketch_options());
  bool earlier_rows_changed = false;
  for (const std::int64_t j : {0, 17, 30, 39, 42, 47, 89}) {
    Fixture after(j);
    after(sketch_options());
    std::int64_t first = j;
    for (const Fixture::Seen& chunk : before.seen) {
      const Chunk& c = chunk.record.chunk;
      if (c.begin <= j && j < c.end && c.mode == ChunkMode::sparse) first = c.begin + (j - c.begin) / 5 * 5;
    }
    EXPECT_TRUE(std::equal(before.out.begin(), before.out.begin() + first * 12, after.out.begin())) << j;
    earlier_rows_changed |= !std::equal(before.out.begin() + first * 12, before.out.begin() + j * 12,
                                        after.out.begin() + first * 12);
  }
  EXPECT_TRUE(earlier_rows_changed);
}

TEST(SketchSessions, SCHED_2_BothSchedulesAgree) {
  Options options = sketch_options();
  Fixture layers, chunks;
  layers(options);
  options.schedule = Schedule::chunk_major;
  chunks(options);
  EXPECT_EQ(layers.out, chunks.out);
}

TEST(SketchSessions, SKE_1_RefusedOptions) {
  const auto refused = [](const char* part, const auto& change) {
    Options options = sketch_options();
    change(options);
    test::expect_error(ErrorCode::invalid_argument, {part}, [&] { Fixture()(options); });
  };
  refused("least_weight", [](Options& options) { options.least_weight = 1.0; });
  refused("least_weight", [](Options& options) { options.least_weight = -1e-9; });
  refused("least_weight", [](Options& options) { options.least_weight = kNaN; });
  refused("query_block", [](Options& options) { options.query_block = 0; });
  refused("query_block", [](Options& options) { options.query_block = 17; });
}

}  // namespace
}  // namespace headwater::reference
