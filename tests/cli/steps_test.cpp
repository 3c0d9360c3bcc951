// --steps, and the session calls that carry them out (PLAN-1, PLAN-2, STATE-3).

#include "cli/support/steps.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cli/support/calls.hpp"
#include "cli/support/numbers.hpp"
#include "tests/cli/parser_fixtures.hpp"

namespace headwater::cli::testing {
namespace {

using ::testing::HasSubstr;

EffectiveOptions options(std::int64_t batch, std::int64_t chunk, std::int64_t memory) {
  EffectiveOptions effective;
  effective.batch = batch;
  effective.chunk = chunk;
  effective.local = memory;
  effective.sparse = memory > 0;
  return effective;
}

TEST(ParseSteps, ReadsEveryForm) {
  const auto steps = parse_steps("p4096,d1,p2147483647:2147483647,p1:5,d900");
  ASSERT_EQ(steps.size(), 5U);
  EXPECT_EQ(steps[0].step.kind, Step::Kind::prefill);
  EXPECT_EQ(steps[0].step.n, 4096);
  EXPECT_EQ(steps[0].step.turn_length, 0);
  EXPECT_EQ(steps[1].step.kind, Step::Kind::decode);
  EXPECT_EQ(steps[2].step.n, kMaxCount);
  EXPECT_EQ(steps[3].step.turn_length, 5);
  EXPECT_EQ(steps[3].text, "p1:5");
  EXPECT_EQ(steps[4].step.n, 900);
}

TEST(ParseSteps, NamesTheItemThatIsWrong) {
  EXPECT_THAT(refusal([] { (void)parse_steps("p1,d2,x3,p0"); }), HasSubstr("item 3 is 'x3'"));
  EXPECT_THAT(refusal([] { (void)parse_steps("p1,"); }), HasSubstr("item 2 is ''"));
  EXPECT_THAT(refusal([] { (void)parse_steps("p5:4"); }), HasSubstr("item 1 is 'p5:4'"));
  EXPECT_THAT(refusal([] { (void)parse_steps("p0"); }), HasSubstr("item 1 is 'p0'"));
  EXPECT_THAT(refusal([] { (void)parse_steps("p1,d0"); }), HasSubstr("item 2 is 'd0'"));
}

TEST(ParseSteps, ReadsThreeHundredItems) {
  std::string text = "p70001:70001";
  for (int i = 1; i < 300; ++i) text += ",d" + std::to_string(1000 * i);
  const auto steps = parse_steps(text);
  ASSERT_EQ(steps.size(), 300U);
  for (int i = 1; i < 300; ++i) EXPECT_EQ(steps[static_cast<std::size_t>(i)].step.n, 1000 * i);
  EXPECT_THAT(refusal([&] { (void)parse_steps(text + ",d0"); }), HasSubstr("item 301 is 'd0'"));
  EXPECT_EQ(refusal([&] { check_steps(steps, 44920001); }), "");
  EXPECT_THAT(refusal([&] { check_steps(steps, 44920000); }), HasSubstr("44920001"));
  EXPECT_THAT(refusal([&] { check_steps(parse_steps(text + ",p3,p4:8"), kMaxCount); }),
              HasSubstr("item 302"));
}

TEST(CheckSteps, SumsWithoutOverflow) {
  const auto steps = parse_steps("p2147483647,p2147483647,d2147483647");
  EXPECT_THAT(refusal([&] { check_steps(steps, kMaxCount); }), HasSubstr("4294967294"));
  EXPECT_EQ(refusal([] { check_steps(parse_steps("p3,d4"), 7); }), "");
  EXPECT_THAT(refusal([] { check_steps(parse_steps("p3,d3"), 7); }), HasSubstr("6 tokens"));
}

TEST(CheckSteps, ATurnHasOneLength) {
  EXPECT_THAT(refusal([] { check_steps(parse_steps("p3:7,p4:8"), 7); }), HasSubstr("item 2 ('p4:8')"));
  EXPECT_THAT(refusal([] { check_steps(parse_steps("p3,p4:4"), 7); }), HasSubstr("a turn of 3 tokens"));
  for (const char* allowed : {"p3:7,p4:7", "p3:7,p4", "p3,p3:3,p1", "p3:7,d1,p3:4", "d1,p3:9,p3:9"}) {
    EXPECT_EQ(refusal([&] { check_steps(parse_steps(allowed), 7); }), "") << allowed;
  }
}

TEST(Calls, SparseStepsAreHandedOverInWholeBatches) {
  // PLAN-2: chunks restart at batch starts, so a cut there changes nothing.
  for (const std::int64_t batch : {1, 6, 100, 4096, 5000, 1 << 20}) {
    const auto effective = options(batch, std::min<std::int64_t>(batch, 6), 2);
    const auto steps = parse_steps("p10007");
    std::int64_t end = 0;
    int openings = 0;
    for_each_call(steps, effective, [&](const Call& call) {
      EXPECT_EQ(call.base, end);
      EXPECT_EQ(call.base % batch, 0);
      EXPECT_EQ(call.mode, ChunkMode::sparse);
      openings += call.step.turn_length == 10007 ? 1 : 0;
      EXPECT_EQ(call.step.turn_length, call.base == 0 ? 10007 : 0);
      end += call.step.n;
    });
    EXPECT_EQ(end, 10007);
    EXPECT_EQ(openings, 1);
  }
}

TEST(Calls, TurnsHaveTheModeOfState3) {
  const auto mode_of = [](const char* text, std::size_t item, std::int64_t memory) {
    ChunkMode mode = ChunkMode::decode;
    for_each_call(parse_steps(text), options(64, 8, memory), [&](const Call& call) {
      if (call.item == item) mode = call.mode;
    });
    return mode;
  };
  EXPECT_EQ(mode_of("p1", 0, 2), ChunkMode::sparse);
  EXPECT_EQ(mode_of("p100", 0, 0), ChunkMode::dense);
  EXPECT_EQ(mode_of("p100,d1,p8", 2, 2), ChunkMode::dense);
  EXPECT_EQ(mode_of("p100,d1,p9", 2, 2), ChunkMode::sparse);
  EXPECT_EQ(mode_of("p100,d1,p1:9", 2, 2), ChunkMode::sparse);
  EXPECT_EQ(mode_of("p100,d1,p8,p100", 3, 2), ChunkMode::dense);
  EXPECT_EQ(mode_of("d1,p8", 1, 2), ChunkMode::dense);
  EXPECT_EQ(mode_of("p8,d3", 1, 2), ChunkMode::decode);
}

TEST(Calls, TurnsBelowAndDenseLayersAreDense) {
  EffectiveOptions effective = options(64, 8, 2);
  const auto modes = [&](const char* text) {
    std::vector<ChunkMode> found;
    for_each_call(parse_steps(text), effective, [&](const Call& call) { found.push_back(call.mode); });
    return found;
  };
  using enum ChunkMode;
  effective.dense_below = 30;  // STATE-3
  EXPECT_EQ(modes("p29,d1,p30,d1,p29:30,p1,d1,p29"),
            (std::vector{dense, decode, sparse, decode, sparse, sparse, decode, dense}));
  effective.dense_below = 0;
  effective.dense_layers = {0};  // STATE-7: one chunk each call, which is not cut
  EXPECT_EQ(modes("p10007,d1,p9000"), (std::vector{dense, decode, dense}));
  const Work work = measure(parse_steps("p10007"), effective);
  EXPECT_EQ(work.chunks, 1);
  EXPECT_EQ(work.longest_call, 10007);
  EXPECT_EQ(work.pairs, 10007U * 10008 / 2);
  EXPECT_EQ(work.memory_entries, 0);
}

TEST(Calls, WorkIsWhatTheSpecificationCounts) {
  // README's N(S/2 + M): 4096 tokens, S = 1024, M = 512.
  const Work work = measure(parse_steps("p4096"), options(4096, 1024, 512));
  EXPECT_EQ(work.chunks, 4);
  EXPECT_EQ(work.memory_entries, 3 * 512);
  EXPECT_EQ(work.pairs, 4U * (1024 * 1025 / 2) + 3U * 1024 * 512);
  EXPECT_EQ(work.longest_call, 4096);

  const Work dense = measure(parse_steps("p100,d5"), options(64, 8, 0));
  EXPECT_EQ(dense.chunks, 2);
  EXPECT_EQ(dense.pairs, 105U * 106 / 2);
  EXPECT_EQ(dense.memory_entries, 0);

  const Work ragged = measure(parse_steps("p30"), options(12, 8, 5));  // 8 4 | 8 4 | 6
  EXPECT_EQ(ragged.chunks, 5);
  EXPECT_EQ(ragged.memory_entries, 4 * 5);
  EXPECT_EQ(ragged.pairs, (36U + 10 + 36 + 10 + 21) + 22U * 5);
  EXPECT_EQ(ragged.query_blocks + ragged.block_votes + ragged.token_votes, 0);
}

TEST(Calls, WorkOfAMillionTokens) {
  const std::uint64_t chunk = 100000;
  const Work work = measure(parse_steps("p1000000"), options(1 << 20, 100000, 50000));
  EXPECT_EQ(work.chunks, 10);
  EXPECT_EQ(work.longest_call, 1000000);
  EXPECT_EQ(work.memory_entries, 9 * 50000);
  EXPECT_EQ(work.pairs, 10 * (chunk * (chunk + 1) / 2) + 9 * chunk * 50000);

  EffectiveOptions effective = options(4096, 2, 1);
  const Work small = measure(parse_steps("p1000000"), effective);
  EXPECT_EQ(small.chunks, 500000);
  EXPECT_EQ(small.memory_entries, 499999);
  EXPECT_EQ(small.pairs, 500000U * 3 + 999998U);

  effective = options(1 << 20, 100000, 5);
  effective.heavy = 70000;
  effective.select = Select::blocks;
  effective.key_block = 1, effective.query_block = 10, effective.pool = 1, effective.refine = 1;
  const Work blocks = measure(parse_steps("p1000000"), effective);
  EXPECT_EQ(blocks.query_blocks, 100000);
  EXPECT_EQ(blocks.most_candidates, 900000 - 5);
  EXPECT_EQ(blocks.block_votes, 10000LL * (45 * 100000 - 9 * 5));
  EXPECT_EQ(blocks.memory_entries, 90000LL * 70005);
}

TEST(Calls, WorkOfRuleBlocksCountsSetsAndVotes) {
  EffectiveOptions effective = options(32, 16, 5);
  effective.heavy = 8;
  effective.select = Select::blocks;
  effective.key_block = 4, effective.query_block = 6, effective.pool = 3, effective.refine = 2;
  // Chunks begin at 0, 16, 32, 39 (dense), 40, 56: Local from 12, 28, -, 36, 52.
  const Work work = measure(parse_steps("p39,d1,p20"), effective);
  EXPECT_EQ(work.chunks, 6);
  EXPECT_EQ(work.query_blocks, 3 + 3 + 2 + 3 + 1);
  EXPECT_EQ(work.most_candidates, 13);
  EXPECT_EQ(work.most_voted, 16);
  EXPECT_EQ(work.block_votes, 3 * 3 + 2 * 7 + 3 * 9 + 1 * 13);
  EXPECT_EQ(work.token_votes, 3 * 12 + 2 * 16 + 3 * 16 + 1 * 16);
  EXPECT_EQ(work.memory_entries, 3 * (4 + 8) + 2 * (4 + 8) + 3 * (4 + 8) + 1 * (4 + 8));
  const std::uint64_t own = 136 + 136 + 28 + 136 + 10;
  EXPECT_EQ(work.pairs, own + (16 + 7 + 16 + 4) * 12U + (1 + 39));

  effective.heavy = 0;
  EXPECT_EQ(measure(parse_steps("p39"), effective).block_votes, 0);
  effective.heavy = 8;
  effective.refine = 1;
  EXPECT_EQ(measure(parse_steps("p39"), effective).token_votes, 0);
}

}  // namespace
}  // namespace headwater::cli::testing
