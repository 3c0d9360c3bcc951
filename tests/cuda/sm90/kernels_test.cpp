#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/numbers.hpp"
#include "cuda/sm90/column_sums.hpp"
#include "cuda/sm90/intra_forward.hpp"
#include "cuda/sm90/score.hpp"
#include "problem.hpp"
#include "software_hopper.hpp"

/// The kernels' own source, thread by thread, on the software multiprocessor: every tile, stage and barrier in their order.
namespace headwater::cuda::sm90 {
namespace {

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

struct IntraResult {
  std::vector<float> out;   ///< [token][head][d]
  std::vector<float> lse2;  ///< [head][chunk][padded]
  std::vector<float> lse;   ///< [head][token]
  std::vector<float> sums;  ///< [head][token]
  std::string fault;
  std::int64_t copies = 0;
  std::int64_t products = 0;
};

struct Launch {
  Timing timing;
  std::uint32_t seed;
  int blocks = 3;
};

/// Both kernels of phase 1, the second on what the first left.
template <class Element, class Machine>
IntraResult run_intra(const IntraProblem& problem, const IntraShape& shape, const Launch& run) {
  const auto tokens = static_cast<std::size_t>(problem.tokens());
  const auto heads = static_cast<std::size_t>(shape.heads);
  const auto padded = static_cast<std::size_t>(shape.padded_tokens()) * shape.chunks;
  IntraResult result;
  result.out.assign(tokens * heads * kHead, kPoison);
  result.lse2.assign(heads * padded + 4, kPoison);
  result.lse.assign(heads * tokens, kPoison);
  result.sums.assign(heads * tokens, kPoison);
  // The bulk copy of a tile's log-sum-exps asks for 16 bytes, which a vector does not promise.
  const std::size_t skipped = (16 - reinterpret_cast<std::uintptr_t>(result.lse2.data()) % 16) % 16 / 4;
  float* lse2 = result.lse2.data() + skipped;
  const IntraForwardParams<TileMap> forward{
      problem.q_map(kTile), problem.k_map(),     problem.v_map(), shape, problem.scale2(), problem.sinks(),
      result.out.data(),    shape.heads * kHead, kHead,           lse2,  result.lse.data()};
  const ColumnSumParams<TileMap> sums{problem.q_map(kTile), problem.k_map(), shape, problem.scale2(), lse2,
                                      result.sums.data(),   problem.tokens()};
  const auto launch = [&](const auto& body) {
    for (int block = 0; block < run.blocks && result.fault.empty(); ++block) {
      SoftwareBlock multiprocessor(block, run.blocks, run.timing, run.seed + block);
      if (!multiprocessor.run<Machine>(body)) result.fault = multiprocessor.fault();
      result.copies += multiprocessor.copies();
      result.products += multiprocessor.products();
    }
  };
  launch([&](Machine& machine) { IntraForward::run<Element>(machine, forward); });
  launch([&](Machine& machine) { ColumnSums::run<Element>(machine, sums); });
  return result;
}

/// Weights are rounded once to the element type, and the sum they are divided by is that of the rounded ones; a logit's
/// own error is of second order here.
double output_bound(bool bf16) { return (bf16 ? 0x1p-8 : 0x1p-10) + 1e-5; }
constexpr double kF32Bound = 3e-5;

void expect_reference(const IntraProblem& problem, const IntraShape& shape, bool bf16,
                      const IntraResult& result, int tokens) {
  for (int head = 0; head < shape.heads; ++head) {
    for (int token = 0; token < tokens; ++token) {
      const IntraProblem::Row row = problem.row(head, token);
      const float* out = &result.out[(static_cast<std::size_t>(token) * shape.heads + head) * kHead];
      for (int i = 0; i < kHead; ++i) {
        ASSERT_LE(std::abs(out[i] - row.out[i]), output_bound(bf16) * row.magnitude[i])
            << "head " << head << ", token " << token << ", column " << i;
      }
      ASSERT_NEAR(result.lse[static_cast<std::size_t>(head) * problem.tokens() + token], row.lse, 1e-5 * 8)
          << "head " << head << ", token " << token;
    }
    for (int chunk = 0; (chunk + 1) * shape.tokens <= tokens; ++chunk) {
      const std::vector<double> sums = problem.column_sums(head, chunk);
      for (int key = 0; key < shape.tokens; ++key) {
        const std::size_t at = static_cast<std::size_t>(head) * problem.tokens() + chunk * shape.tokens + key;
        ASSERT_NEAR(result.sums[at], sums[key], kF32Bound * (1.0 + sums[key]))
            << "head " << head << ", chunk " << chunk << ", key " << key;
      }
    }
  }
}

TEST(Sm90Intra, IsTheReferenceForEveryTailOfATile) {
  struct Case {
    IntraShape shape;
    bool bf16;
    bool sinks;
    float spread;
  };
  const Case cases[] = {
      {{2, 1, 1, 128}, true, false, 1.0f}, {{1, 1, 2, 1}, true, true, 1.0f},
      {{2, 2, 1, 129}, true, true, 2.0f},  {{1, 1, 1, 63}, false, false, 1.0f},
      {{4, 2, 2, 200}, true, false, 1.0f}, {{2, 1, 1, 513}, false, true, 1.5f},
      {{1, 1, 1, 640}, true, false, 3.0f},
  };
  std::uint32_t seed = 1;
  for (const Case& c : cases) {
    for (const Timing timing : {Timing::kEarly, Timing::kLate}) {
      SCOPED_TRACE("tokens " + std::to_string(c.shape.tokens) +
                   (timing == Timing::kEarly ? " early" : " late"));
      const IntraProblem problem({c.shape, c.bf16, c.sinks, c.spread, ++seed});
      const IntraResult result = c.bf16 ? run_intra<Bf16, SoftwareHopper>(problem, c.shape, {timing, seed})
                                        : run_intra<F16, SoftwareHopper>(problem, c.shape, {timing, seed});
      ASSERT_EQ(result.fault, "");
      expect_reference(problem, c.shape, c.bf16, result, problem.tokens());
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Sm90Intra, PaddingOfTheLogSumExpIsInfinite) {
  const IntraShape shape{1, 1, 2, 130};
  const IntraProblem problem({shape});
  const IntraResult result = run_intra<Bf16, SoftwareHopper>(problem, shape, {Timing::kLate, 5});
  ASSERT_EQ(result.fault, "");
  const auto infinite =
      std::count(result.lse2.begin(), result.lse2.end(), std::numeric_limits<float>::infinity());
  EXPECT_EQ(infinite, shape.chunks * (shape.padded_tokens() - shape.tokens));
}

TEST(Sm90Intra, SameBitsWhateverTheTimingTheOrderOfThreadsAndTheNumberOfBlocks) {
  const IntraShape shape{2, 1, 1, 384};
  const IntraProblem problem({shape, true, true, 2.0f, 9});
  const IntraResult first = run_intra<Bf16, SoftwareHopper>(problem, shape, {Timing::kEarly, 1, 1});
  ASSERT_EQ(first.fault, "");
  for (const Launch& run :
       {Launch{Timing::kLate, 2, 2}, Launch{Timing::kLate, 3, 5}, Launch{Timing::kEarly, 4, 9}}) {
    const IntraResult again = run_intra<Bf16, SoftwareHopper>(problem, shape, run);
    ASSERT_EQ(again.fault, "");
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    EXPECT_TRUE(same(first.out, again.out));
    EXPECT_TRUE(same(first.lse, again.lse));
    EXPECT_TRUE(same(first.sums, again.sums));
    EXPECT_EQ(first.copies, again.copies);
    EXPECT_EQ(first.products, again.products);
  }
}

/// NUM-2: rows of a later chunk, and whatever lies behind the last row, reach nothing.
TEST(Sm90Intra, NaNInALaterChunkStaysThere) {
  const IntraShape shape{2, 1, 2, 150};
  IntraProblem problem({shape, true, false, 1.0f, 11});
  problem.poison(150);
  const IntraResult result = run_intra<Bf16, SoftwareHopper>(problem, shape, {Timing::kLate, 3});
  ASSERT_EQ(result.fault, "");
  expect_reference(problem, shape, true, result, 150);
  EXPECT_TRUE(std::isnan(result.out[static_cast<std::size_t>(150) * shape.heads * kHead]));
}

/// What the schedule says it does: the model of docs/cuda.md counts the same.
TEST(Sm90Intra, CopiesAndProductsAreThoseOfTheSchedule) {
  const IntraShape shape{2, 1, 1, 512};
  const IntraProblem problem({shape});
  const IntraResult result = run_intra<Bf16, SoftwareHopper>(problem, shape, {Timing::kEarly, 1});
  ASSERT_EQ(result.fault, "");
  const int tiles = shape.tiles();
  const int pairs = shape.heads * tiles * (tiles + 1) / 2;
  const int rows = shape.heads * tiles;
  // Two boxes a tile. Forward: a Q tile a row of tiles, K and V a pair. Column sums: K a row, Q and a line of lse a pair.
  EXPECT_EQ(result.copies, 2 * rows + 4 * pairs + 2 * rows + 3 * pairs);
  // Two consumers, eight k steps; two products a pair in the forward, one in the column sums.
  EXPECT_EQ(result.products, 2 * 8 * (2 + 1) * pairs);
}

// ---- score kernel ------------------------------------------------------------------------------------------

struct ScoreProblem {
  ScoreShape shape;
  int memory;  ///< rows of the gathered keys
  std::vector<int> counts;
  std::vector<std::uint16_t> q;     ///< [token][head][d]
  std::vector<std::uint16_t> keys;  ///< [head][memory][d]

  ScoreProblem(const ScoreShape& of, int memory_rows, std::vector<int> valid, float spread,
               std::uint32_t seed)
      : shape(of), memory(memory_rows), counts(std::move(valid)) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, spread);
    q.resize(static_cast<std::size_t>(shape.tokens) * shape.heads * kHead);
    for (std::uint16_t& x : q) x = core::bf16_from_float(normal(random));
    keys.assign(static_cast<std::size_t>(shape.heads) * memory * kHead, 0xFFFF);
    for (int head = 0; head < shape.heads; ++head) {
      for (int i = 0; i < counts[head] * kHead; ++i) {
        keys[static_cast<std::size_t>(head) * memory * kHead + i] = core::bf16_from_float(normal(random));
      }
    }
  }

  [[nodiscard]] std::vector<double> column_sums(int head) const {
    std::vector<double> sums(ScoreShape::kMemoryKeys);
    for (int token = 0; token < shape.tokens; ++token) {
      std::vector<double> weights(counts[head]);
      double all = 0.0;
      for (int key = 0; key < counts[head]; ++key) {
        double logit = 0.0;
        for (int i = 0; i < kHead; ++i) {
          logit += static_cast<double>(core::float_from_bf16(
                       q[(static_cast<std::size_t>(token) * shape.heads + head) * kHead + i])) *
                   core::float_from_bf16(keys[(static_cast<std::size_t>(head) * memory + key) * kHead + i]);
        }
        weights[key] = std::exp(logit / std::sqrt(static_cast<double>(kHead)));
        all += weights[key];
      }
      for (int key = 0; key < counts[head]; ++key) sums[key] += weights[key] / all;
    }
    return sums;
  }
};

template <class Machine>
std::vector<float> run_score(const ScoreProblem& problem, Timing timing, std::uint32_t seed,
                             std::string& fault) {
  const ScoreShape& shape = problem.shape;
  std::vector<float> partial(static_cast<std::size_t>(shape.blocks()) * ScoreShape::kMemoryKeys, kPoison);
  const ScoreParams<TileMap> params{
      tile_map({problem.q.data(), kHead, shape.tokens, 1, shape.heads, shape.heads * kHead, kHead},
               ScoreShape::kQueries),
      tile_map({problem.keys.data(), kHead, problem.memory, 1, shape.heads, kHead,
                static_cast<std::int64_t>(problem.memory) * kHead},
               kFragmentColumns),
      shape,
      0,
      static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(kHead))),
      problem.counts.data(),
      partial.data()};
  for (int block = 0; block < shape.blocks() && fault.empty(); ++block) {
    SoftwareBlock multiprocessor(block, shape.blocks(), timing, seed + block);
    if (!multiprocessor.run<Machine>([&](Machine& machine) { Score::run<Bf16>(machine, params); })) {
      fault = multiprocessor.fault();
    }
  }
  return partial;
}

TEST(Sm90Score, IsTheReferenceForEveryTailAndCount) {
  const ScoreProblem problems[] = {
      {{2, 64, 1}, 512, {512, 512}, 1.0f, 1}, {{3, 200, 3}, 512, {511, 1, 256}, 1.0f, 2},
      {{1, 257, 2}, 512, {384}, 3.0f, 3},     {{2, 65, 4}, 300, {300, 129}, 1.0f, 4},
      {{2, 100, 2}, 512, {0, 100}, 1.0f, 5},
  };
  for (const ScoreProblem& problem : problems) {
    for (const Timing timing : {Timing::kEarly, Timing::kLate}) {
      std::string fault;
      const std::vector<float> partial = run_score<SoftwareHopper>(problem, timing, 7, fault);
      ASSERT_EQ(fault, "");
      for (int head = 0; head < problem.shape.heads; ++head) {
        const std::vector<double> reference = problem.column_sums(head);
        for (int key = 0; key < ScoreShape::kMemoryKeys; ++key) {
          float sum = 0.0f;
          for (int run = 0; run < problem.shape.runs(); ++run) {
            sum += partial[(static_cast<std::size_t>(head) * problem.shape.runs() + run) *
                               ScoreShape::kMemoryKeys +
                           key];
          }
          if (key >= problem.counts[head]) {
            ASSERT_EQ(sum, 0.0f) << "head " << head << ", key " << key;
          } else {
            ASSERT_NEAR(sum, reference[key], kF32Bound * (0.1 + reference[key]))
                << "head " << head << ", key " << key;
          }
        }
      }
    }
  }
}

// ---- the checks can fail -----------------------------------------------------------------------------------

/// A machine with one instruction that does not do its work.
enum class Fault {
  kNone,
  kBarrierNotWaitedFor,
  kProductNotWaitedFor,
  kStageNotReleased,
  kStageReleasedTwice,
  kFenceMissing,
  kSwizzleMissing,
  kStrideOffByOne,
  kDescriptorDiffers,
  kBytesMiscounted,
  kShuffleOfWrongLane,
};

template <Fault kFault>
class FaultyHopper : public SoftwareHopper {
 public:
  using SoftwareHopper::SoftwareHopper;

  void wait(Barrier& barrier, std::uint32_t parity) {
    if (kFault != Fault::kBarrierNotWaitedFor || warpgroup() == 0) SoftwareHopper::wait(barrier, parity);
  }
  using SoftwareHopper::arrive;
  void arrive(Barrier& barrier) {
    if (kFault == Fault::kStageNotReleased && thread() == 160) return;
    SoftwareHopper::arrive(barrier);
    if (kFault == Fault::kStageReleasedTwice && thread() == 160) SoftwareHopper::arrive(barrier);
  }
  void arrive_expecting(Barrier& barrier, std::uint32_t bytes) {
    SoftwareHopper::arrive_expecting(barrier, kFault == Fault::kBytesMiscounted ? bytes - 16 : bytes);
  }
  template <int Count>
  void fence_operands(float (&accumulators)[Count]) {
    if (kFault != Fault::kFenceMissing) SoftwareHopper::fence_operands(accumulators);
  }
  template <int Count, int Words>
  void fence_operands(float (&accumulators)[Count], std::uint32_t (&)[Words]) {
    fence_operands(accumulators);
  }
  template <int Pending, int Count>
  void wait_products(float (&accumulators)[Count]) {
    if (kFault == Fault::kProductNotWaitedFor)
      return SoftwareHopper::wait_products<Pending + 1>(accumulators);
    SoftwareHopper::wait_products<Pending>(accumulators);
  }
  template <class Element>
  void multiply(float (&c)[kAccumulators], MatrixDescriptor a, MatrixDescriptor b, bool accumulate) {
    SoftwareHopper::multiply<Element>(c, faulty(a), faulty(b), accumulate);
  }
  template <class Element>
  void multiply(float (&c)[kAccumulators], const std::uint32_t* a, MatrixDescriptor b, bool accumulate) {
    SoftwareHopper::multiply<Element>(c, a, faulty(b), accumulate);
  }
  float shuffle_xor(float x, int mask) {
    return SoftwareHopper::shuffle_xor(x, kFault == Fault::kShuffleOfWrongLane && mask == 2 ? 4 : mask);
  }

 private:
  [[nodiscard]] MatrixDescriptor faulty(MatrixDescriptor descriptor) const {
    if (kFault == Fault::kSwizzleMissing) return {descriptor.bits & ~MatrixDescriptor::kSwizzle128};
    if (kFault == Fault::kStrideOffByOne) return {descriptor.bits + (1ull << 32)};
    if (kFault == Fault::kDescriptorDiffers && thread() % kWarpgroup == 77) return descriptor.advanced(32);
    return descriptor;
  }
};

/// Whether a run of both intra kernels with this fault is told from a right one, by a fault line or by its results.
template <Fault kFault>
bool detected(Timing timing) {
  const IntraShape shape{1, 1, 1, 640};
  const IntraProblem problem({shape, true, false, 1.0f, 21});
  const IntraResult result = run_intra<Bf16, FaultyHopper<kFault>>(problem, shape, {timing, 3, 1});
  if (!result.fault.empty()) return true;
  for (int token = 0; token < shape.tokens; token += 37) {
    const IntraProblem::Row row = problem.row(0, token);
    for (int i = 0; i < kHead; ++i) {
      const float out = result.out[static_cast<std::size_t>(token) * kHead + i];
      const double error = std::abs(out - row.out[i]);  // NaN is an error
      if (!(error <= output_bound(true) * row.magnitude[i])) return true;
    }
  }
  return false;
}

TEST(Sm90Checks, FindWhatADeviceWouldLeaveUndefined) {
  for (const Timing timing : {Timing::kEarly, Timing::kLate}) {
    EXPECT_FALSE(detected<Fault::kNone>(timing));
    // Copies that are done at once need no waiting for.
    if (timing == Timing::kLate) {
      EXPECT_TRUE(detected<Fault::kBarrierNotWaitedFor>(timing));
    }
    EXPECT_TRUE(detected<Fault::kProductNotWaitedFor>(timing));
    EXPECT_TRUE(detected<Fault::kStageNotReleased>(timing));
    EXPECT_TRUE(detected<Fault::kStageReleasedTwice>(timing));
    EXPECT_TRUE(detected<Fault::kFenceMissing>(timing));
    EXPECT_TRUE(detected<Fault::kSwizzleMissing>(timing));
    EXPECT_TRUE(detected<Fault::kStrideOffByOne>(timing));
    EXPECT_TRUE(detected<Fault::kDescriptorDiffers>(timing));
    EXPECT_TRUE(detected<Fault::kBytesMiscounted>(timing));
    EXPECT_TRUE(detected<Fault::kShuffleOfWrongLane>(timing));
  }
}

/// A stage that is filled again while it is read: the producer does not wait until it is empty.
class ImpatientProducer : public SoftwareHopper {
 public:
  using SoftwareHopper::SoftwareHopper;
  void wait(Barrier& barrier, std::uint32_t parity) {
    if (warpgroup() != 0) SoftwareHopper::wait(barrier, parity);
  }
};

TEST(Sm90Checks, FindAnOverwrittenStage) {
  for (const Timing timing : {Timing::kEarly, Timing::kLate}) {
    const IntraShape shape{1, 1, 1, 640};
    const IntraProblem problem({shape, true, false, 1.0f, 21});
    const IntraResult result = run_intra<Bf16, ImpatientProducer>(problem, shape, {timing, 3, 1});
    EXPECT_NE(result.fault, "");
  }
}

}  // namespace
}  // namespace headwater::cuda::sm90
