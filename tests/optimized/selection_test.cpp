#include "core/selection.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "core/memory_sets.hpp"
#include "cpu/dispatch.hpp"
#include "cpu/kernels/table.hpp"

namespace headwater::core {
namespace {

/// MEM-3 spelled out: NaN below every number, higher first, equal ones by lower index.
std::vector<std::int32_t> by_sorting(const std::vector<float>& scores, std::int64_t budget) {
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const float x = scores[static_cast<std::size_t>(a)];
    const float y = scores[static_cast<std::size_t>(b)];
    if (std::isnan(x) || std::isnan(y)) return !std::isnan(x) && std::isnan(y);
    return x > y;
  });
  order.resize(std::min(order.size(), static_cast<std::size_t>(std::max<std::int64_t>(budget, 0))));
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<std::int32_t> by_threshold(const std::vector<float>& scores, std::int64_t budget, int key_bits,
                                       const SelectionLoops& loops) {
  std::vector<std::uint32_t> keys;
  for (const float score : scores) keys.push_back(order_key(score));
  std::vector<std::int32_t> chosen(scores.size() + 1, -7);
  const std::int64_t written = select_best(keys.data(), static_cast<std::int64_t>(keys.size()), budget,
                                           key_bits, chosen.data(), loops);
  for (auto i = static_cast<std::size_t>(written); i < chosen.size(); ++i) EXPECT_EQ(chosen[i], -7);
  chosen.resize(static_cast<std::size_t>(written));
  return chosen;
}

float draw(std::mt19937& random, int kind) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kSpecial[] = {0.0f,   -0.0f,   kInf, -kInf, std::numeric_limits<float>::quiet_NaN(),
                                1e-40f, -1e-40f, 1.0f, -1.0f, 3.0e38f};
  if (kind == 0) return kSpecial[random() % std::size(kSpecial)];
  if (kind == 1) return static_cast<float>(random() % 4);  // heavy ties
  const float x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  return kind == 2 ? x : std::fabs(x);
}

/// Of the core and of every table of kernels.
std::vector<SelectionLoops> all_loops() {
  std::vector<SelectionLoops> loops{{count_at_least, collect, collect_scores}};
  for (const cpu::Variant& variant : cpu::variants()) {
    if (variant.missing().empty()) loops.push_back(variant.kernels->selection);
  }
  return loops;
}

TEST(Selection, MEM_3_EqualsASort) {
  const std::vector<SelectionLoops> loops = all_loops();
  std::mt19937 random(3);
  for (int round = 0; round < 4000; ++round) {
    const bool large = round % 40 == 0;
    const auto count = static_cast<std::size_t>(large ? 900 + random() % 3000 : random() % 70);
    const auto budget = static_cast<std::int64_t>(random() % (large ? count : 75)) - 2;
    const bool bf16 = random() % 2 == 0;
    const int kind = static_cast<int>(random() % 4);
    std::vector<float> scores(count);
    for (float& score : scores) {
      score = draw(random, kind);
      if (bf16) score = float_from_bf16(bf16_from_float(score));
    }
    const std::vector<std::int32_t> sorted = by_sorting(scores, budget);
    for (std::size_t i = 0; i < loops.size(); ++i) {
      EXPECT_EQ(by_threshold(scores, budget, bf16 ? 16 : 32, loops[i]), sorted)
          << "round " << round << ", " << i;
    }
  }
}

TEST(Selection, SKE_7_CollectsTheScoresFromAThresholdOn) {
  const std::vector<SelectionLoops> loops = all_loops();
  std::mt19937 random(4);
  for (int round = 0; round < 2000; ++round) {
    std::vector<float> scores(random() % (round % 40 == 0 ? 3000 : 70));
    for (float& score : scores) score = draw(random, round % 4);
    const float threshold =
        round % 3 == 0 ? -std::numeric_limits<float>::infinity() : draw(random, round % 4);
    std::vector<std::int32_t> indices;
    std::vector<std::uint32_t> keys;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      if (!(scores[i] >= threshold)) continue;
      indices.push_back(static_cast<std::int32_t>(i));
      keys.push_back(order_key(scores[i]));
    }
    for (const SelectionLoops& one : loops) {
      std::vector<std::int32_t> found(scores.size());
      std::vector<std::uint32_t> found_keys(scores.size());
      const std::int64_t n =
          one.collect_scores(scores.data(), std::ssize(scores), threshold, found.data(), found_keys.data());
      ASSERT_EQ(n, std::ssize(indices)) << "round " << round;
      found.resize(indices.size()), found_keys.resize(indices.size());
      EXPECT_EQ(found, indices) << "round " << round;
      EXPECT_EQ(found_keys, keys) << "round " << round;
    }
  }
}

TEST(Selection, MEM_3_OrderKeyIsStrictlyMonotone) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float ascending[] = {std::numeric_limits<float>::quiet_NaN(),
                             -kInf,
                             -3e38f,
                             -1.0f,
                             -1e-40f,
                             0.0f,
                             1e-45f,
                             1e-40f,
                             1.0f,
                             std::nextafter(1.0f, 2.0f),
                             3e38f,
                             kInf};
  for (std::size_t i = 1; i < std::size(ascending); ++i) {
    EXPECT_LT(order_key(ascending[i - 1]), order_key(ascending[i])) << i;
  }
  EXPECT_EQ(order_key(-0.0f), order_key(0.0f));
  EXPECT_EQ(order_key(-std::numeric_limits<float>::quiet_NaN()), 0u);
}

/// MEM-1..5 and MEM-7 by sets, from the scores alone.
struct SetModel {
  std::int64_t local;
  std::int64_t heavy;
  std::int64_t pinned = 0;
  std::int64_t built_at = 0;
  std::set<std::int32_t> previous{};

  std::vector<std::int32_t> build(std::int64_t end, const std::vector<float>& scores) {
    std::set<std::int32_t> candidates = previous;
    for (std::int64_t p = built_at; p < end; ++p) candidates.insert(static_cast<std::int32_t>(p));
    const std::int64_t begin = std::max<std::int64_t>(0, end - local);
    std::vector<std::int32_t> rest;
    previous.clear();
    for (const std::int32_t p : candidates) {
      if (p >= begin) break;
      if (p < pinned) {
        previous.insert(p);
      } else {
        rest.push_back(p);
      }
    }
    std::vector<float> values;
    for (const std::int32_t p : rest) values.push_back(scores[static_cast<std::size_t>(p)]);
    const std::int64_t budget = heavy - static_cast<std::int64_t>(previous.size());
    for (const std::int32_t i : by_sorting(values, budget)) {
      previous.insert(rest[static_cast<std::size_t>(i)]);
    }
    for (std::int64_t p = begin; p < end; ++p) previous.insert(static_cast<std::int32_t>(p));
    built_at = end;
    return {previous.begin(), previous.end()};
  }
};

TEST(MemorySets, MEM_1_to_7_EqualTheDefinition) {
  std::mt19937 random(9);
  for (int round = 0; round < 600; ++round) {
    const std::int64_t capacity = 1 + random() % 90;
    const std::int64_t local = random() % 12;
    const std::int64_t heavy = local == 0 ? 1 + random() % 12 : random() % 12;
    const auto any = static_cast<std::int64_t>(random()) % (heavy + 1);
    const std::int64_t pinned = round % 3 == 0 ? 0 : (round % 3 == 1 ? heavy : any);
    const std::int64_t heads = 1 + random() % 3;
    const std::int64_t layers = 1 + random() % 2;
    const ScoreType type = random() % 2 ? ScoreType::bf16 : ScoreType::f32;
    ScoreStore scores(layers, heads, capacity, type);
    MemorySets sets(layers, heads, local, heavy, capacity, pinned);
    EXPECT_EQ(sets.width(), std::min(local + heavy, capacity));
    std::vector<SetModel> models(static_cast<std::size_t>(layers * heads), {local, heavy, pinned});
    std::vector<std::uint32_t> keys(static_cast<std::size_t>(capacity));
    std::vector<std::int32_t> chosen(static_cast<std::size_t>(sets.width()));
    std::vector<std::vector<float>> values(models.size());
    for (std::int64_t end = 0; end < capacity;) {
      const std::int64_t begin = end;
      end = std::min<std::int64_t>(capacity, end + 1 + static_cast<std::int64_t>(random() % 20));
      for (std::int64_t layer = 0; layer < layers; ++layer) {
        for (std::int64_t head = 0; head < heads; ++head) {
          auto& known = values[static_cast<std::size_t>(layer * heads + head)];
          std::vector<float> sums;
          for (std::int64_t p = begin; p < end; ++p) sums.push_back(std::fabs(draw(random, 1)));
          scores.initialise(layer, head, begin, end - begin, sums.data());
          known.insert(known.end(), sums.begin(), sums.end());
          EXPECT_EQ(scores.read(layer, head, begin), sums[0]);
          sets.build_head(layer, head, end, scores, keys.data(), chosen.data());
          const auto expected = models[static_cast<std::size_t>(layer * heads + head)].build(end, known);
          const std::int32_t* set = sets.entries(layer, head);
          ASSERT_EQ(std::vector<std::int32_t>(set, set + expected.size()), expected);
          EXPECT_EQ(static_cast<std::int64_t>(expected.size()), sets.next_count(end));
          for (std::int64_t i = static_cast<std::int64_t>(expected.size()); i < sets.width(); ++i) {
            EXPECT_EQ(set[i], -1);
          }
        }
        sets.finish(layer, end);
        EXPECT_EQ(sets.count(layer), std::min(local + heavy, end));
      }
    }
    sets.reset();
    EXPECT_EQ(sets.count(0), 0);
    EXPECT_EQ(sets.entries(0, 0)[0], -1);
  }
}

/// Sets of one head, built at `ends`, against the model; scores with ties, infinities and NaN. Reset and again.
void expect_sets(std::int64_t local, std::int64_t heavy, std::int64_t pinned, ScoreType type,
                 const std::vector<std::int64_t>& ends) {
  SCOPED_TRACE(::testing::Message() << "L " << local << ", H " << heavy << ", A " << pinned);
  std::mt19937 random(static_cast<std::uint32_t>(heavy + pinned));
  const std::int64_t capacity = ends.back();
  ScoreStore scores(1, 1, capacity, type);
  MemorySets sets(1, 1, local, heavy, capacity, pinned);
  std::vector<std::uint32_t> keys(static_cast<std::size_t>(capacity));
  std::vector<std::int32_t> chosen(static_cast<std::size_t>(sets.width()));
  for (int run = 0; run < 2; ++run) {
    SetModel model{local, heavy, pinned};
    std::vector<float> known;
    std::int64_t begin = 0;
    for (const std::int64_t end : ends) {
      std::vector<float> sums;
      for (std::int64_t p = begin; p < end; ++p) {
        float sum = random() % 50 == 0 ? draw(random, 0) : static_cast<float>(random() % 4096);
        if (type == ScoreType::bf16) sum = float_from_bf16(bf16_from_float(sum));
        sums.push_back(p < pinned && p % 3 != 0 ? 0.0f : sum);  // most pinned ones would not be chosen
      }
      scores.initialise(0, 0, begin, end - begin, sums.data());
      known.insert(known.end(), sums.begin(), sums.end());
      begin = end;
      sets.build_head(0, 0, end, scores, keys.data(), chosen.data());
      sets.finish(0, end);
      const std::vector<std::int32_t> expected = model.build(end, known);
      ASSERT_EQ(sets.count(0), static_cast<std::int64_t>(expected.size()));
      const std::int32_t* set = sets.entries(0, 0);
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), set)) << "built at " << end;
    }
    sets.reset();
    EXPECT_EQ(sets.entries(0, 0)[0], -1);
  }
}

TEST(MemorySets, MEM_7_PinnedOnBothSidesOfEverySize) {
  const std::vector<std::int64_t> ends{100, 129, 200, 260, 300, 512, 1000, 2500};
  for (const ScoreType type : {ScoreType::bf16, ScoreType::f32}) {
    for (const std::int64_t pinned : {0, 1, 29, 30, 31, 99, 100, 127, 128, 129, 255, 256, 257, 299, 300}) {
      expect_sets(0, 300, pinned, type, ends);
      expect_sets(70, 300, pinned, type, ends);
    }
    expect_sets(0, 1, 1, type, ends);
    expect_sets(3, 1, 1, type, ends);
    // More than there are candidates in any set, Local wider than the first one.
    expect_sets(64, 4000, 4000, type, ends);
    expect_sets(300, 2200, 2199, type, ends);
  }
}

TEST(MemorySets, MEM_7_ChunksOfOneToken) {
  std::vector<std::int64_t> ends;
  for (std::int64_t end = 1; end <= 400; ++end) ends.push_back(end);
  for (const std::int64_t pinned : {0, 1, 7, 8}) {
    expect_sets(0, 8, pinned, ScoreType::bf16, ends);
    expect_sets(5, 8, pinned, ScoreType::bf16, ends);
  }
}

TEST(MemorySets, MEM_7_LongRuns) {
  std::vector<std::int64_t> ends;
  for (std::int64_t end = 4096; end <= 139264; end += 4096) ends.push_back(end);
  for (const std::int64_t pinned : {0, 1, 4, 511, 512}) expect_sets(256, 512, pinned, ScoreType::bf16, ends);
  expect_sets(256, 512, 300, ScoreType::f32, ends);
  // Pinned positions beyond 65536.
  const std::vector<std::int64_t> few{30000, 65536, 65600, 70000, 100000, 131072};
  expect_sets(64, 70000, 66000, ScoreType::bf16, few);
  expect_sets(64, 70000, 70000, ScoreType::f32, few);
}

TEST(Scores, SCORE_2_and_3_RoundOncePerChunk) {
  for (const ScoreType type : {ScoreType::bf16, ScoreType::f32}) {
    ScoreStore scores(2, 2, 5, type);
    const bool rounded = type == ScoreType::bf16;
    EXPECT_EQ(scores.key_bits(), rounded ? 16 : 32);
    EXPECT_EQ(scores.bytes(), 2 * 2 * 5 * (rounded ? 2 : 4));
    scores.clear(1, 1, 0, 5);
    const float sums[] = {1.001f, 256.0f, 3.0f};
    scores.initialise(1, 1, 1, 3, sums);
    EXPECT_EQ(scores.read(1, 1, 0), 0.0f);
    EXPECT_EQ(scores.read(1, 1, 1), rounded ? 1.0f : 1.001f);
    EXPECT_EQ(scores.read(1, 1, 4), 0.0f);
    const std::int32_t positions[] = {2, 3};
    const float more[] = {0.9f, 0.01f};
    scores.accumulate(1, 1, positions, 2, more);
    EXPECT_EQ(scores.read(1, 1, 2), rounded ? 256.0f : 256.9f);  // stagnates in BF16 (SCORE-5)
    EXPECT_EQ(scores.read(1, 1, 3), rounded ? 3.015625f : 3.01f);
    EXPECT_EQ(scores.read(1, 1, 1), rounded ? 1.0f : 1.001f);
    const ScoreView view = scores.view(1);
    EXPECT_EQ(view.head_stride, 5);
    EXPECT_EQ(view.type, type);
    scores.clear(1, 1, 2, 4);
    EXPECT_EQ(scores.read(1, 1, 2), 0.0f);
    EXPECT_EQ(scores.read(1, 1, 1), rounded ? 1.0f : 1.001f);
  }
}

// A session that forms no scores holds one row of zeros, whatever its layers and heads.
TEST(Scores, SEL_9_NoneAreARowOfZeros) {
  for (const ScoreType type : {ScoreType::bf16, ScoreType::f32}) {
    ScoreStore scores = ScoreStore::zeros(5000, type);
    EXPECT_EQ(scores.bytes(), 5000 * scores.element_bytes());
    EXPECT_EQ(scores.rows(), 1);
    scores.make_room(3, 0, 4999);
    scores.clear(3, 0, 0, 4999);
    EXPECT_EQ(scores.view(7).head_stride, 0);
    EXPECT_EQ(scores.view(7).data, scores.view(0).data);
    ScoreStore other = ScoreStore::zeros(5000, type);
    other.copy(scores, 4999);
    for (const std::int64_t position : {0, 4097, 4998}) EXPECT_EQ(other.read(2, 3, position), 0.0f);
  }
}

}  // namespace
}  // namespace headwater::core
