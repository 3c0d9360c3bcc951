// The trace of rule `blocks`: sets and votes of chunks of several sizes, through a file and back.

#include "cli/commands/attend/block_trace.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/support/steps.hpp"
#include "tests/cli/parser_fixtures.hpp"

namespace headwater::cli::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kHeadsKv = 3;

EffectiveOptions rule() {
  EffectiveOptions effective;
  effective.batch = 16, effective.chunk = 16, effective.local = 5, effective.heavy = 8,
  effective.sparse = true;
  effective.select = Select::blocks;
  effective.key_block = 4, effective.query_block = 6, effective.pool = 3, effective.refine = 2;
  return effective;
}

/// A number that names chunk, set and place.
float mark(std::int64_t begin, std::int64_t set, std::int64_t place) {
  return static_cast<float>(begin * 10000 + set * 100 + place);
}

/// What an engine would report of a sparse chunk; the rows of `memory` are longer than they need to be.
struct Made {
  Made(const EffectiveOptions& effective, std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t kUnused = 2;
    record.chunk = {begin, end, ChunkMode::sparse};
    record.memory_count = effective.memory_count(begin);
    record.memory_stride = record.memory_count + kUnused;
    record.query_blocks = effective.query_blocks(end - begin);
    record.candidate_blocks = effective.candidate_blocks(begin);
    record.voted_tokens = effective.voted_tokens(begin);
    for (std::int64_t set = 0; set < kHeadsKv * record.query_blocks; ++set) {
      for (std::int64_t e = 0; e < record.memory_stride; ++e) {
        memory.push_back(static_cast<std::int32_t>(mark(begin, set, e)));
      }
      for (std::int64_t e = 0; e < record.candidate_blocks; ++e) blocks.push_back(-mark(begin, set, e));
      for (std::int64_t e = 0; e < record.voted_tokens; ++e) tokens.push_back(mark(begin, set, e));
    }
    record.memory = memory.data();
    record.block_votes = blocks.empty() ? nullptr : blocks.data();
    record.token_votes = tokens.empty() ? nullptr : tokens.data();
  }
  ChunkRecord record;
  std::vector<std::int32_t> memory;
  std::vector<float> blocks, tokens;
};

struct File {
  std::string path =
      std::filesystem::path(::testing::TempDir()) / ("headwater-block-trace-" + std::to_string(::getpid()));
  ~File() { std::filesystem::remove(path); }
};

TEST(BlockTrace, SetsAndVotesComeBackInTheirPlaces) {
  const EffectiveOptions effective = rule();
  const Work work = measure(parse_steps("p36,d1,p20"), effective);  // 16 16 4 | 1 | 16 4
  BlockTrace trace(kHeadsKv, effective, work);
  const std::vector<std::pair<std::int64_t, std::int64_t>> chunks{
      {0, 16}, {16, 32}, {32, 36}, {37, 53}, {53, 57}};
  for (const auto& [begin, end] : chunks) {
    if (begin == 37) {  // a decode step has no sets
      ChunkRecord decode;
      decode.chunk = {36, 37, ChunkMode::decode};
      trace.record(decode);
    }
    const Made made(effective, begin, end);
    trace.record(made.record);
  }
  OutputLayout layout;
  BlockTrace::lay_out(layout, kHeadsKv, effective, work);
  layout.close();
  const File place;
  {
    OutputFile file(place.path, nullptr);
    file.write_at(0, std::as_bytes(std::span(layout.header())));
    trace.write(file, layout);
    file.commit();
  }
  const runtime::MappedFile mapped(place.path);
  const SafetensorsHeader header = parse_safetensors(mapped.bytes());
  const auto value = [&]<typename Element>(const char* name, std::int64_t at, Element element) {
    std::memcpy(&element, mapped.bytes().data() + header.tensors.at(name).begin + 4 * at, sizeof element);
    return element;
  };
  std::int64_t block = 0;
  for (const auto& [begin, end] : chunks) {
    const Made made(effective, begin, end);
    const std::int64_t count = made.record.query_blocks;
    for (std::int64_t b = 0; b < count; ++b, ++block) {
      EXPECT_EQ(value("query_blocks", 2 * block, 0), begin + 6 * b);
      EXPECT_EQ(value("query_blocks", 2 * block + 1, 0), std::min(begin + 6 * (b + 1), end));
      for (std::int64_t g = 0; g < kHeadsKv; ++g) {
        const std::int64_t row = block * kHeadsKv + g;
        for (std::int64_t e = 0; e < effective.memory(); ++e) {
          const auto wanted = static_cast<std::int32_t>(mark(begin, g * count + b, e));
          ASSERT_EQ(value("block_sets", row * effective.memory() + e, 0),
                    e < made.record.memory_count ? wanted : -1);
        }
        const auto votes = [&](const char* name, std::int64_t valid, std::int64_t width, float sign) {
          for (std::int64_t e = 0; e < width; ++e) {
            const float vote = value(name, row * width + e, 0.0F);
            ASSERT_TRUE(e < valid ? vote == sign * mark(begin, g * count + b, e) : std::isnan(vote)) << name;
          }
        };
        votes("block_votes", made.record.candidate_blocks, work.most_candidates, -1.0F);
        votes("token_votes", made.record.voted_tokens, work.most_voted, 1.0F);
      }
    }
  }
  EXPECT_EQ(block, work.query_blocks);
  EXPECT_EQ(header.tensors.at("block_sets").shape, (std::vector<std::uint64_t>{11, 3, 13}));
}

TEST(BlockTrace, AnEngineThatReportsOtherSizesIsAnInternalError) {
  const EffectiveOptions effective = rule();
  const Work work = measure(parse_steps("p32"), effective);
  for (std::int64_t ChunkRecord::*field : {&ChunkRecord::memory_count, &ChunkRecord::query_blocks,
                                           &ChunkRecord::candidate_blocks, &ChunkRecord::voted_tokens}) {
    BlockTrace trace(kHeadsKv, effective, work);
    trace.record(Made(effective, 0, 16).record);
    Made made(effective, 16, 32);
    --(made.record.*field);
    EXPECT_THAT(refusal([&] { trace.record(made.record); }), HasSubstr("internal error"));
  }
  BlockTrace trace(kHeadsKv, effective, work);
  trace.record(Made(effective, 0, 16).record);
  OutputLayout layout;
  BlockTrace::lay_out(layout, kHeadsKv, effective, work);
  layout.close();
  const File place;
  OutputFile file(place.path, nullptr);
  EXPECT_THAT(refusal([&] { trace.write(file, layout); }), HasSubstr("3 of 6 query blocks"));
  trace.record(Made(effective, 16, 32).record);
  EXPECT_THAT(refusal([&] { trace.record(Made(effective, 16, 32).record); }), HasSubstr("after 6 of 6"));
}

TEST(BlockTrace, BytesDoNotWrap) {
  Work work;
  work.query_blocks = std::int64_t{1} << 40;
  work.most_candidates = std::int64_t{1} << 30;
  EXPECT_EQ(BlockTrace::bytes(8, 512, work), std::numeric_limits<std::uint64_t>::max());
  work.query_blocks = 6;
  EXPECT_EQ(BlockTrace::bytes(2, 13, work), 6U * 2 * 4 * (13 + (std::uint64_t{1} << 30)));
}

}  // namespace
}  // namespace headwater::cli::testing
