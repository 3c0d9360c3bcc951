#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <random>
#include <string>
#include <vector>

#include "core/numbers.hpp"
#include "cuda/emulation/sm90.hpp"
#include "cuda/kernels/sm90/elements.hpp"
#include "cuda/kernels/sm90/score.hpp"
#include "tests/cuda/sm90/problem.hpp"

/// The score kernel's own source on the software multiprocessor, as kernels_test.cpp.
namespace headwater::cuda::sm90 {
namespace {

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();
constexpr double kF32Bound = 3e-5;

struct ScoreProblem {
  ScoreShape shape;
  int memory;  ///< rows of the gathered keys; those from `count` on are NaN
  int count;
  float spread = 1.0f;
  int d = 128;
  float cap = 0.0f;
  double scale = 1.0 / std::sqrt(static_cast<double>(d));
  std::vector<std::uint16_t> q = {};     ///< [token][head][d]
  std::vector<std::uint16_t> keys = {};  ///< [head][memory][d]

  void fill(std::uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, spread);
    q.resize(static_cast<std::size_t>(shape.tokens) * shape.heads * d);
    for (std::uint16_t& x : q) x = core::bf16_from_float(normal(random));
    keys.assign(static_cast<std::size_t>(shape.heads) * memory * d, 0xFFFF);
    for (int head = 0; head < shape.heads; ++head) {
      for (int i = 0; i < count * d; ++i) {
        keys[static_cast<std::size_t>(head) * memory * d + i] = core::bf16_from_float(normal(random));
      }
    }
  }

  [[nodiscard]] double logit(int head, int token, int key) const {
    const std::uint16_t* a = &q[(static_cast<std::size_t>(token) * shape.heads + head) * d];
    const std::uint16_t* b = &keys[(static_cast<std::size_t>(head) * memory + key) * d];
    double sum = 0.0;
    for (int i = 0; i < d; ++i) {
      sum += static_cast<double>(core::float_from_bf16(a[i])) * core::float_from_bf16(b[i]);
    }
    return cap > 0.0f ? cap * std::tanh(sum * scale / cap) : sum * scale;
  }

  [[nodiscard]] std::vector<double> column_sums(int head) const {
    std::vector<double> sums(ScoreShape::kMemoryKeys);
    for (int token = 0; token < shape.tokens; ++token) {
      std::vector<double> weights(count);
      double all = 0.0;
      for (int key = 0; key < count; ++key) {
        weights[key] = std::exp(logit(head, token, key));
        all += weights[key];
      }
      for (int key = 0; key < count; ++key) sums[key] += weights[key] / all;
    }
    return sums;
  }
};

template <class Shape>
std::vector<float> run_score(const ScoreProblem& problem, Timing timing, std::uint32_t seed,
                             std::string& fault) {
  const ScoreShape& shape = problem.shape;
  std::vector<float> partial(static_cast<std::size_t>(shape.blocks()) * ScoreShape::kMemoryKeys, kPoison);
  const double log2e = std::numbers::log2e;
  const bool capped = problem.cap > 0.0f;
  const LogitRule rule{static_cast<float>(capped ? problem.scale / problem.cap : problem.scale * log2e),
                       static_cast<float>(problem.cap * log2e), nullptr, nullptr};
  const int d = problem.d;
  const ScoreParams params{
      encoded(tile_map({problem.q.data(), d, shape.tokens, 1, shape.heads, shape.heads * d, d},
                       ScoreShape::kQueries)),
      encoded(tile_map({problem.keys.data(), d, problem.memory, 1, shape.heads, d,
                        static_cast<std::int64_t>(problem.memory) * d},
                       kFragmentColumns)),
      shape,
      rule,
      problem.count,
      partial.data()};
  for (int block = 0; block < shape.blocks() && fault.empty(); ++block) {
    SoftwareBlock multiprocessor(block, shape.blocks(), timing, seed + block);
    if (!multiprocessor.run<SoftwareMachine>(
            [&](SoftwareMachine& machine) { Score<Shape>::run(machine, params); })) {
      fault = multiprocessor.fault();
    }
  }
  return partial;
}

template <class Shape>
void expect_reference(ScoreProblem problem, std::uint32_t seed) {
  problem.fill(seed);
  const ScoreShape& shape = problem.shape;
  for (const Timing timing : {Timing::kEarly, Timing::kLate}) {
    std::string fault;
    const std::vector<float> partial = run_score<Shape>(problem, timing, 7, fault);
    ASSERT_EQ(fault, "");
    for (int head = 0; head < shape.heads; ++head) {
      const std::vector<double> reference = problem.column_sums(head);
      for (int key = 0; key < ScoreShape::kMemoryKeys; ++key) {
        float sum = 0.0f;
        for (int run = 0; run < shape.runs(); ++run) {
          sum +=
              partial[(static_cast<std::size_t>(head) * shape.runs() + run) * ScoreShape::kMemoryKeys + key];
        }
        if (key >= problem.count) {
          ASSERT_EQ(sum, 0.0f) << "head " << head << ", key " << key;
        } else {
          ASSERT_NEAR(sum, reference[key], kF32Bound * (0.1 + reference[key]))
              << "head " << head << ", key " << key;
        }
      }
    }
  }
}

TEST(Sm90Score, IsTheReferenceForEveryTailAndCount) {
  using Plain = KernelShape<Bf16, 128, 64, false>;
  expect_reference<Plain>({{2, 64, 1}, 512, 512}, 1);
  expect_reference<Plain>({{3, 200, 3}, 512, 511}, 2);
  expect_reference<Plain>({{1, 257, 2}, 512, 384, 3.0f}, 3);
  expect_reference<Plain>({{2, 65, 4}, 300, 129}, 4);
  expect_reference<Plain>({{1, 100, 2}, 512, 1}, 5);
  expect_reference<Plain>({{1, 70, 2}, 40, 0}, 6);
}

TEST(Sm90Score, IsTheReferenceForEveryWidthAndWithACap) {
  using Narrow = KernelShape<Bf16, 64, 64, false>;
  expect_reference<Narrow>({{2, 130, 2}, 512, 512, 1.0f, 64}, 7);
  expect_reference<Narrow>({{2, 70, 1}, 200, 150, 1.0f, 24}, 8);
  expect_reference<KernelShape<Bf16, 128, 64, false>>({{1, 70, 1}, 512, 512, 1.0f, 80}, 9);
  expect_reference<KernelShape<Bf16, 128, 64, true>>({{2, 130, 2}, 512, 512, 2.0f, 128, 4.0f}, 10);
  expect_reference<KernelShape<Bf16, 64, 64, true>>({{1, 70, 1}, 300, 300, 1.0f, 64, 0.0f, -0.2}, 11);
}

}  // namespace
}  // namespace headwater::cuda::sm90
