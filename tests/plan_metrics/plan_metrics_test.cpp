// Rows of the source plan's metrics that have no other test of their own; docs/plan-metrics.md has the whole table. The
// names begin with the row. What a test measured goes into the table by RecordProperty: "figure" is the same in every run,
// and the stored table is compared with it (tools/plan_metrics.py --figures); "measured" is not.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "headwater/headwater.hpp"
#include "tests/plan_metrics/trace.hpp"

namespace headwater::tests {
namespace {

const char* const kTraces[] = {"trace-layer1.safetensors", "trace-layer6.safetensors"};
const char* const kEngines[] = {"reference", "cpu"};

/// Figures come from the same arithmetic on all machines but the oldest.
std::string figure_engine() {
  for (const Engine* one : engines()) {
    if (one->name() == "cpu-avx2" && one->unavailable_because().empty()) return "cpu-avx2";
  }
  return "cpu-portable";
}

Options sized(std::int64_t batch, std::int64_t chunk, std::int64_t local, std::int64_t heavy) {
  Options options;
  options.batch = batch, options.chunk = chunk, options.local = local, options.heavy = heavy;
  return options;
}

/// Rounding of SCORE-4, written once more: nearest even, of finite numbers.
float bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>((bits + 0x7FFFU + (bits >> 16U & 1U)) & 0xFFFF0000U);
}

/// Rows that begin as noise; a test then writes what it needs into them.
struct Rows32 {
  std::vector<float> q, k, v;
  Shape shape;
  std::int64_t n;

  Rows32(std::int64_t tokens, std::int64_t heads, std::int64_t heads_kv, std::int64_t width) : n(tokens) {
    shape = {.n_head = heads,
             .n_head_kv = heads_kv,
             .d_head = width,
             .d_value = width,
             .capacity = tokens + 8,
             .kv_type = DType::f32};
    q.resize(static_cast<std::size_t>(n * heads * width));
    k.resize(static_cast<std::size_t>(n * heads_kv * width));
    v.resize(k.size());
    std::uint32_t state = 1;
    for (auto* rows : {&q, &k, &v}) {
      for (float& x : *rows) {
        state = state * 1664525U + 1013904223U;
        x = static_cast<float>(state >> 8U) * 0x1p-23F - 1.0F;
      }
    }
  }
  [[nodiscard]] Views views() const {
    return {n, shape, Rows::token_major(q.data(), DType::f32, shape.n_head, shape.d_head),
            Rows::token_major(k.data(), DType::f32, shape.n_head_kv, shape.d_head),
            Rows::token_major(v.data(), DType::f32, shape.n_head_kv, shape.d_value)};
  }
};

TEST(PlanMetrics, P1_1_ScoresAndMemorySetsLieHeadByHeadWithoutGaps) {
  for (const char* name : kEngines) {
    const Rows32 rows(40, 4, 2, 8);
    const PrefillRun run = prefill(name, rows.views(), sized(16, 8, 3, 2));
    const ScoreView scores = run.session->scores(0);
    EXPECT_EQ(scores.head_stride, rows.shape.capacity);
    const MemoryView memory = run.session->memory(0);
    EXPECT_EQ(memory.head_stride, memory.width);
    EXPECT_EQ(memory.width, 5);
    EXPECT_EQ(memory.count, 5);
    for (std::int64_t h = 0; h < 4; ++h) {
      const auto* const set = memory.data + h * memory.head_stride;
      EXPECT_TRUE(
          std::equal(set, set + memory.count, run.chunks.back().memory[static_cast<std::size_t>(h)].begin()));
    }
    // Stored rows are read by position; the strides of the store are not public.
    std::vector<float> row(8);
    for (std::int64_t t = 0; t < 40; ++t) {
      for (std::int64_t h = 0; h < 2; ++h) {
        run.session->read_key(0, h, t, row);
        EXPECT_TRUE(std::equal(row.begin(), row.end(), rows.k.begin() + (t * 2 + h) * 8));
        run.session->read_value(0, h, t, row);
        EXPECT_TRUE(std::equal(row.begin(), row.end(), rows.v.begin() + (t * 2 + h) * 8));
      }
    }
  }
}

/// T1 of the source plan: what each chunk was, and how many tokens of memory it read.
TEST(PlanMetrics, P1_3_ChunksOfTheWholeSessionCanBeRead) {
  for (const char* name : kEngines) {
    const Rows32 rows(40, 4, 2, 8);
    PrefillRun run = prefill(name, rows.views(), sized(16, 8, 3, 2));
    std::vector<float> out(4 * 8);
    run.session->begin(Step::decode());
    run.session->attend(0, rows.views().q, rows.views().k, rows.views().v,
                        MutableRows::token_major(out.data(), DType::f32, 4, 8));
    run.session->end();
    const std::span<const Chunk> chunks = run.session->chunks();
    ASSERT_EQ(chunks.size(), 6U) << name;
    for (std::size_t c = 0; c < 5; ++c) {
      EXPECT_EQ(chunks[c].begin, static_cast<std::int64_t>(8 * c)) << name;
      EXPECT_EQ(chunks[c].end, static_cast<std::int64_t>(8 * c + 8)) << name;
      EXPECT_EQ(chunks[c].mode, ChunkMode::sparse) << name;
      EXPECT_EQ(run.session->memory_count(chunks[c]),
                static_cast<std::int64_t>(run.chunks[c].memory.front().size()))
          << name;
    }
    EXPECT_EQ(chunks[5].mode, ChunkMode::decode) << name;
    EXPECT_EQ(chunks[5].end, 41) << name;
    EXPECT_EQ(run.session->memory_count(chunks[5]), 0) << name;
    run.session->reset();
    EXPECT_TRUE(run.session->chunks().empty()) << name;
  }
}

TEST(PlanMetrics, P1_3_ScoresAndSetsAgainstTheKvCache) {
  const Shape shape{
      .n_head = 32, .n_head_kv = 8, .d_head = 128, .d_value = 128, .capacity = 16384, .kv_type = DType::bf16};
  const auto session = engine("cpu").open(shape, Options{});
  session->begin(Step::prefill(shape.capacity));  // takes the pages
  const MemoryBytes bytes = session->memory_bytes();
  ASSERT_GE(bytes.kv, std::int64_t{2} * 2 * 8 * 128 * 16384);
  const auto chunks = static_cast<std::int64_t>(sizeof(Chunk)) * shape.capacity;  // a chunk a token at most
  const double share =
      100.0 * static_cast<double>(bytes.scores + bytes.memory_sets + chunks) / static_cast<double>(bytes.kv);
  RecordProperty("figure", fmt::format("{:.2f} %", share));
  EXPECT_LT(share, 5.0);
}

TEST(PlanMetrics, P1_8_AHighScoreOfTheFirstChunkSurvives) {
  constexpr std::int64_t kToken = 5, kWidth = 8, kChunk = 16;
  for (const char* name : kEngines) {
    Rows32 rows(8 * kChunk, 2, 1, kWidth);
    // All queries are equal, and one key of the first chunk has a large product with them.
    for (std::int64_t t = 0; t < rows.n * 2; ++t) rows.q[static_cast<std::size_t>(t * kWidth)] = 4.0F;
    for (std::int64_t t = 0; t < rows.n; ++t)
      rows.k[static_cast<std::size_t>(t * kWidth)] = t == kToken ? 4.0F : 0.0F;
    const PrefillRun run = prefill(name, rows.views(), sized(8 * kChunk, kChunk, 4, 2));
    ASSERT_EQ(run.chunks.size(), 8U);
    for (std::size_t c = 1; c < run.chunks.size(); ++c) {
      for (const auto& set : run.chunks[c].memory) {
        EXPECT_TRUE(std::binary_search(set.begin(), set.end(), kToken)) << name << ", chunk " << c;
      }
    }
    RecordProperty("figure", "7 of 7 later chunks");
  }
}

TEST(PlanMetrics, P1_9_AdjacentHeadsKeepDifferentTokens) {
  std::int64_t pairs = 0, different = 0;
  double jaccard = 0;
  for (const char* trace : kTraces) {
    const PrefillRun run = prefill(figure_engine(), RealTrace(trace).views(), Options{});
    for (const RecordedChunk& chunk : run.chunks) {
      if (chunk.chunk.begin == 0) continue;
      for (std::size_t h = 0; h + 1 < chunk.memory.size(); ++h) {
        const auto& a = chunk.memory[h];
        const auto& b = chunk.memory[h + 1];
        std::vector<std::int32_t> both;
        std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
        const double common = static_cast<double>(both.size());
        jaccard += common / (static_cast<double>(a.size() + b.size()) - common);
        different += a == b ? 0 : 1;
        ++pairs;
      }
    }
  }
  ASSERT_EQ(pairs, 2 * 3 * 3);
  const double share = 100.0 * static_cast<double>(different) / static_cast<double>(pairs);
  RecordProperty("figure", fmt::format("{:.0f} % differ, mean Jaccard {:.2f} (local window included)", share,
                                       jaccard / static_cast<double>(pairs)));
  EXPECT_GT(share, 50.0);
}

struct Stagnation {
  std::int64_t additions = 0, lost = 0;
  float largest = 0;
  double unrounded = 0;  // the same score, had it never been rounded
};

/// Replays SCORE-2 and SCORE-3 and counts the additions of more than zero that changed nothing.
Stagnation replay(const PrefillRun& run, std::int64_t heads, std::int64_t n) {
  Stagnation result;
  for (std::int64_t h = 0; h < heads; ++h) {
    std::vector<float> scores(static_cast<std::size_t>(n));
    std::vector<double> unrounded(scores.size());
    for (const RecordedChunk& chunk : run.chunks) {
      const auto& set = chunk.memory[static_cast<std::size_t>(h)];
      for (std::size_t e = 0; e < set.size(); ++e) {
        const float sum = chunk.colsum_inter[static_cast<std::size_t>(h)][e];
        float& score = scores[static_cast<std::size_t>(set[e])];
        const float after = bf16(score + sum);
        if (sum > 0) ++result.additions, result.lost += after == score ? 1 : 0;
        score = after;
        unrounded[static_cast<std::size_t>(set[e])] += static_cast<double>(sum);
      }
      for (std::int64_t t = chunk.chunk.begin; t < chunk.chunk.end; ++t) {
        const float sum =
            chunk.colsum_intra[static_cast<std::size_t>(h)][static_cast<std::size_t>(t - chunk.chunk.begin)];
        scores[static_cast<std::size_t>(t)] = bf16(sum);
        unrounded[static_cast<std::size_t>(t)] = static_cast<double>(sum);
      }
    }
    for (std::int64_t t = 0; t < n; ++t) {
      EXPECT_EQ(scores[static_cast<std::size_t>(t)], run.score(h, t)) << "head " << h << ", token " << t;
      if (run.score(h, t) <= result.largest) continue;
      result.largest = run.score(h, t);
      result.unrounded = unrounded[static_cast<std::size_t>(t)];
    }
  }
  return result;
}

/// Mean over heads of the Jaccard index of the memory sets that two runs read last.
double last_sets_in_common(const PrefillRun& one, const PrefillRun& other) {
  double sum = 0;
  const auto& heads = one.chunks.back().memory;
  for (std::size_t h = 0; h < heads.size(); ++h) {
    const auto& set = other.chunks.back().memory[h];
    std::vector<std::int32_t> both;
    std::set_intersection(heads[h].begin(), heads[h].end(), set.begin(), set.end(), std::back_inserter(both));
    const auto common = static_cast<double>(both.size());
    sum += common / (static_cast<double>(heads[h].size() + set.size()) - common);
  }
  return sum / static_cast<double>(heads.size());
}

/// The plan's own setting, S = 1024 and L = H = 256, needs 16384 and 131072 tokens for its 16 and 128 chunks: the real
/// trace of 4096 tokens, over and over. Smaller chunks get there on the trace alone.
TEST(PlanMetrics, P1_11_ScoresAfterManyChunks) {
  std::string figure;
  for (const auto& [chunk, memory, chunks] : {std::tuple{1024, 256, 16}, std::tuple{1024, 256, 128},
                                              std::tuple{256, 64, 16}, std::tuple{32, 12, 128}}) {
    Stagnation sum;
    double common = 0;
    for (const char* name : kTraces) {
      const RealTrace trace(name);
      const Views views = trace.views();
      const std::int64_t calls = chunk * chunks / views.n;
      Options options = sized(4096, chunk, memory, memory);
      const PrefillRun run = prefill(figure_engine(), views, options, calls);
      ASSERT_EQ(run.chunks.size(), static_cast<std::size_t>(chunks));
      const Stagnation one = replay(run, views.shape.n_head, calls * views.n);
      sum.additions += one.additions, sum.lost += one.lost;
      if (one.largest > sum.largest) sum.largest = one.largest, sum.unrounded = one.unrounded;
      options.score_type = ScoreType::f32;
      common +=
          last_sets_in_common(run, prefill(figure_engine(), views, options, calls)) / std::size(kTraces);
    }
    EXPECT_TRUE(std::isfinite(sum.largest));
    EXPECT_LT(sum.largest, 1e6F);
    const double share = 100.0 * static_cast<double>(sum.lost) / static_cast<double>(sum.additions);
    figure += (figure.empty() ? "" : "; ") +
              fmt::format(
                  "S = {}, {} chunks: largest score {:.0f} (unrounded {:.0f}), {:.1f} % of additions "
                  "lost to rounding, last sets against those of F32 scores: Jaccard {:.2f}",
                  chunk, chunks, static_cast<double>(sum.largest), sum.unrounded, share, common);
  }
  RecordProperty("figure", figure);
}

TEST(PlanMetrics, P2_4_RowsOfWeightsAddUpToOne) {
  double worst = 0;
  for (const char* trace : kTraces) {
    RealTrace rows(trace);
    const PrefillRun run = prefill("cpu", rows.views_with_unit_values(), sized(4096, 512, 128, 128));
    for (const float sum : run.out) worst = std::max(worst, std::abs(static_cast<double>(sum) - 1.0));
  }
  RecordProperty("measured", fmt::format("{:.1e}", worst));
  EXPECT_LT(worst, 1e-5);
}

TEST(PlanMetrics, P3_2_ScoresOfTheSecondChunkComeAfterTheFirst) {
  constexpr std::int64_t kChunk = 16, kTokens = 2 * kChunk - 3;
  for (const char* name : kEngines) {
    const Rows32 rows(kTokens, 4, 2, 8);
    const PrefillRun run = prefill(name, rows.views(), sized(64, kChunk, 4, 3));
    ASSERT_EQ(run.chunks.size(), 2U);
    for (std::int64_t h = 0; h < 4; ++h) {
      for (std::int64_t t = kChunk; t < kTokens; ++t) {
        const float sum =
            run.chunks[1].colsum_intra[static_cast<std::size_t>(h)][static_cast<std::size_t>(t - kChunk)];
        EXPECT_EQ(run.score(h, t), bf16(sum)) << name << ", head " << h << ", token " << t;
      }
    }
  }
}

TEST(PlanMetrics, P3_3_MemoriesAreScoredOncePerChunkButTheFirst) {
  for (const char* name : kEngines) {
    const Rows32 rows(100, 2, 1, 8);
    const PrefillRun run = prefill(name, rows.views(), sized(32, 16, 4, 3));
    std::int64_t updates = 0;
    for (const RecordedChunk& chunk : run.chunks) updates += chunk.memory.front().empty() ? 0 : 1;
    EXPECT_EQ(updates, static_cast<std::int64_t>(run.chunks.size()) - 1) << name;
    static_cast<void>(replay(run, 2, rows.n));  // and nothing else changed a score
  }
}

TEST(PlanMetrics, P3_4_HeadsHaveScoresOfTheirOwn) {
  for (const char* trace : kTraces) {
    const RealTrace rows(trace);
    const Views views = rows.views();
    const PrefillRun run = prefill("cpu", views, Options{});
    std::set<std::vector<float>> distinct;
    for (std::int64_t h = 0; h < views.shape.n_head; ++h) {
      std::vector<float> scores;
      for (std::int64_t t = 0; t < views.n; ++t) scores.push_back(run.score(h, t));
      distinct.insert(scores);
    }
    EXPECT_EQ(distinct.size(), static_cast<std::size_t>(views.shape.n_head)) << trace;
  }
}

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * 4096;
}

TEST(PlanMetrics, P6_2_MemoryIsConstantOverSessions) {
  const Rows32 rows(300, 4, 2, 16);
  // Threads and the runtime's own bookkeeping come with the first runs, and that of the runtime varies a little: the most
  // that is in use in each half of the rest is compared.
  constexpr int kWarm = 10, kHalf = 55, kAll = 100;
  constexpr std::int64_t kRuntime = 2048;
  std::int64_t early = 0, late = 0, resident = 0;
  for (int i = 0; i < kAll; ++i) {
    { const PrefillRun run = prefill("cpu", rows.views(), sized(128, 64, 8, 8)); }
    const struct mallinfo2 info = mallinfo2();
    const auto used = static_cast<std::int64_t>(info.uordblks + info.hblkhd);
    if (i == kWarm) resident = resident_bytes();
    if (i >= kWarm) (i < kHalf ? early : late) = std::max(i < kHalf ? early : late, used);
  }
  EXPECT_LE(late, early + kRuntime);
  const std::int64_t growth = resident_bytes() - resident;
  RecordProperty("measured", fmt::format("heap {:+} bytes, resident {:+} KiB", late - early, growth / 1024));
  EXPECT_LT(growth, 1 << 20);
}

TEST(PlanMetrics, P6_3_DecodingSeesEverythingThatWasPrefilled) {
  for (const char* name : kEngines) {
    const Rows32 rows(61, 4, 2, 8);
    const auto decoded = [&](bool dense) {
      Views views = rows.views();
      views.n = 60;
      Options options = sized(32, 16, 4, 3);
      options.dense = dense;
      PrefillRun run = prefill(name, views, options);
      std::vector<float> out(4 * 8);
      const auto last = [&](const std::vector<float>& all, std::int64_t heads) {
        return Rows::token_major(all.data() + 60 * heads * 8, DType::f32, heads, 8);
      };
      run.session->begin(Step::decode());
      run.session->attend(0, last(rows.q, 4), last(rows.k, 2), last(rows.v, 2),
                          MutableRows::token_major(out.data(), DType::f32, 4, 8));
      run.session->end();
      return out;
    };
    EXPECT_EQ(decoded(false), decoded(true)) << name;
  }
}

TEST(PlanMetrics, P8_2_SessionMemoryByPart) {
  std::string figure;
  for (const std::int64_t tokens : {1024, 4096, 16384, 65536}) {
    const Shape shape{.n_head = 32,
                      .n_head_kv = 8,
                      .d_head = 128,
                      .d_value = 128,
                      .capacity = tokens,
                      .kv_type = DType::bf16};
    Options options;
    options.threads = 1;
    const auto session = engine(figure_engine()).open(shape, options);
    session->begin(Step::prefill(tokens));
    const MemoryBytes bytes = session->memory_bytes();
    const auto mebi = [](std::int64_t count) { return static_cast<double>(count) / (1 << 20); };
    figure += fmt::format("{}{}: KV {:.1f}, scores {:.2f}, sets {:.2f}, workspace {:.1f} MiB",
                          figure.empty() ? "taken by open() and begin(), one thread in F32: " : "; ", tokens,
                          mebi(bytes.kv), mebi(bytes.scores), mebi(bytes.memory_sets), mebi(bytes.workspace));
  }
  RecordProperty("figure", figure);
}

}  // namespace
}  // namespace headwater::tests
