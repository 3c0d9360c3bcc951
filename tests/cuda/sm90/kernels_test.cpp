#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/numbers.hpp"
#include "cuda/emulation/sm90.hpp"
#include "cuda/kernels/sm90/column_sums.hpp"
#include "cuda/kernels/sm90/elements.hpp"
#include "cuda/kernels/sm90/forward.hpp"
#include "tests/cuda/sm90/problem.hpp"

/// The kernels' own source, thread by thread, on the software multiprocessor: every tile, stage and barrier in their order.
namespace headwater::cuda::sm90 {
namespace {

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

constexpr int kHead = 128;
using PlainBf16 = KernelShape<Bf16, 128, 128, false>;
using PlainF16 = KernelShape<F16, 128, 128, false>;

struct IntraResult {
  std::vector<float> out;   ///< [head][token][dv], finished
  std::vector<float> lse2;  ///< [head][chunk][padded]
  std::vector<float> lse;   ///< [head][token], natural
  std::vector<float> sums;  ///< [head][token]
  std::vector<float> scores;
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
template <class Shape, class Machine = SoftwareMachine>
IntraResult run_intra(const IntraProblem& problem, const Launch& run) {
  const IntraShape& shape = problem.options().shape;
  const int dv = problem.options().dv;
  const auto rows = static_cast<std::size_t>(problem.tokens()) * shape.heads;
  const auto padded = static_cast<std::size_t>(shape.padded_tokens()) * shape.chunks;
  IntraResult result;
  result.out.assign(rows * dv, kPoison);
  result.lse2.assign(static_cast<std::size_t>(shape.heads) * padded + 4, kPoison);
  std::vector<float> max(rows, kPoison);
  std::vector<float> sum(rows, kPoison);
  std::vector<float> rounded(rows, kPoison);
  result.sums.assign(rows, kPoison);
  result.scores.assign(rows, kPoison);
  // The bulk copy of a tile's log-sum-exps asks for 16 bytes, which a vector does not promise.
  const std::size_t skipped = (16 - reinterpret_cast<std::uintptr_t>(result.lse2.data()) % 16) % 16 / 4;
  float* lse2 = result.lse2.data() + skipped;
  const SoftmaxState state{max.data(), sum.data(), rounded.data(), result.out.data(), problem.tokens()};
  const CausalForwardParams forward{encoded(problem.q_map(kTile)),
                                    encoded(problem.k_map(Shape::kKeys)),
                                    encoded(problem.v_map(Shape::kKeys)),
                                    shape,
                                    problem.rule(),
                                    state,
                                    0,
                                    problem.tokens(),  // after other chunks: rows stay unfinished
                                    {},
                                    dv,
                                    lse2};
  const ColumnSumParams sums{encoded(problem.q_map(kTile)),
                             encoded(problem.k_map()),
                             shape,
                             problem.rule(),
                             lse2,
                             result.sums.data(),
                             problem.tokens(),
                             0,
                             result.scores.data(),
                             false,
                             problem.tokens(),
                             0};
  const auto launch = [&](const auto& body) {
    for (int block = 0; block < run.blocks && result.fault.empty(); ++block) {
      SoftwareBlock multiprocessor(block, run.blocks, run.timing, run.seed + block);
      if (!multiprocessor.run<Machine>(body)) result.fault = multiprocessor.fault();
      result.copies += multiprocessor.copies();
      result.products += multiprocessor.products();
    }
  };
  launch([&](Machine& machine) { CausalForward<Shape>::run(machine, forward); });
  launch([&](Machine& machine) { ColumnSums<Shape>::run(machine, sums); });
  // What becomes of a row that nothing else joins.
  for (std::size_t row = 0; row < rows; ++row) {
    result.lse.push_back(kLn2 * (max[row] + std::log2(sum[row])));
    for (int i = 0; i < dv; ++i) result.out[row * dv + i] /= rounded[row];
  }
  return result;
}

/// Weights are rounded once to the element type, and the sum they are divided by is that of the rounded ones; a logit's
/// own error is of second order here.
double output_bound(bool bf16) { return (bf16 ? 0x1p-8 : 0x1p-10) + 1e-5; }
constexpr double kF32Bound = 3e-5;

void expect_reference(const IntraProblem& problem, const IntraResult& result, int tokens) {
  const IntraShape& shape = problem.options().shape;
  const int dv = problem.options().dv;
  for (int head = 0; head < shape.heads; ++head) {
    for (int token = 0; token < tokens; ++token) {
      const IntraProblem::Row row = problem.row(head, token);
      const std::size_t at = static_cast<std::size_t>(head) * problem.tokens() + token;
      for (int i = 0; i < dv; ++i) {
        ASSERT_LE(std::abs(result.out[at * dv + i] - row.out[i]),
                  output_bound(problem.options().bf16) * row.magnitude[i])
            << "head " << head << ", token " << token << ", column " << i;
      }
      ASSERT_NEAR(result.lse[at], row.lse, 1e-5 * 8) << "head " << head << ", token " << token;
    }
    for (int chunk = 0; (chunk + 1) * shape.tokens <= tokens; ++chunk) {
      const std::vector<double> sums = problem.column_sums(head, chunk);
      for (int key = 0; key < shape.tokens; ++key) {
        const std::size_t at = static_cast<std::size_t>(head) * problem.tokens() + chunk * shape.tokens + key;
        ASSERT_NEAR(result.sums[at], sums[key], kF32Bound * (1.0 + sums[key]))
            << "head " << head << ", chunk " << chunk << ", key " << key;
        ASSERT_EQ(result.scores[at], result.sums[at]);
      }
    }
  }
}

/// Every tail of a tile; rows narrower than the kernel's; with and without the whole rule of logits.
template <class Shape>
void expect_reference_with(IntraProblem::Options options) {
  static std::uint32_t seed = 1;
  options.bf16 = Shape::Element::kBf16;
  for (const Timing timing : {Timing::kEarly, Timing::kLate}) {
    SCOPED_TRACE("tokens " + std::to_string(options.shape.tokens) + ", d " + std::to_string(options.d) +
                 (timing == Timing::kEarly ? " early" : " late"));
    options.seed = ++seed;
    const IntraProblem problem(options);
    const IntraResult result = run_intra<Shape>(problem, {timing, seed});
    ASSERT_EQ(result.fault, "");
    expect_reference(problem, result, problem.tokens());
  }
}

TEST(Sm90Intra, IsTheReferenceForEveryTailOfATile) {
  expect_reference_with<PlainBf16>({.shape = {2, 1, 1, 128}});
  expect_reference_with<PlainBf16>({.shape = {1, 1, 2, 1}, .sinks = true});
  expect_reference_with<PlainBf16>({.shape = {2, 2, 1, 129}, .sinks = true, .spread = 2.0f});
  expect_reference_with<PlainF16>({.shape = {1, 1, 1, 63}});
  expect_reference_with<PlainBf16>({.shape = {4, 2, 2, 200}});
  expect_reference_with<PlainF16>({.shape = {2, 1, 1, 513}, .sinks = true, .spread = 1.5f});
  expect_reference_with<PlainBf16>({.shape = {1, 1, 1, 640}, .spread = 3.0f});
}

TEST(Sm90Intra, IsTheReferenceForEveryWidth) {
  using Narrow = KernelShape<Bf16, 64, 64, false>;
  using Wide = KernelShape<Bf16, 192, 128, false>;
  expect_reference_with<Narrow>({.shape = {2, 1, 2, 140}, .d = 64, .dv = 64});
  expect_reference_with<KernelShape<F16, 64, 64, false>>({.shape = {1, 1, 1, 300}, .d = 64, .dv = 64});
  expect_reference_with<Narrow>({.shape = {2, 2, 1, 130}, .d = 16, .dv = 8});
  expect_reference_with<PlainBf16>({.shape = {1, 1, 1, 200}, .d = 80, .dv = 96});
  expect_reference_with<PlainBf16>({.shape = {1, 1, 1, 130}, .d = 5, .dv = 3});
  expect_reference_with<Wide>({.shape = {2, 1, 1, 400}, .sinks = true, .d = 192});
  expect_reference_with<Wide>({.shape = {1, 1, 1, 129}, .d = 136, .dv = 64});
  for (const int tokens : {1, 64, 65, 128, 129, 330}) {
    expect_reference_with<KernelShape<Bf16, 256, 256, false>>(
        {.shape = {2, 1, 2, tokens}, .sinks = true, .d = 256, .dv = 256});
  }
  expect_reference_with<KernelShape<F16, 256, 256, false>>(
      {.shape = {1, 1, 1, 200}, .spread = 2.0f, .d = 200, .dv = 136});
}

TEST(Sm90Intra, IsTheReferenceWithTheWholeRuleOfLogits) {
  using Mapped = KernelShape<Bf16, 128, 128, true>;
  using MappedNarrow = KernelShape<Bf16, 64, 64, true>;
  expect_reference_with<Mapped>({.shape = {2, 1, 1, 300}, .sinks = true, .spread = 2.0f, .cap = 5.0f});
  expect_reference_with<Mapped>({.shape = {3, 1, 2, 140}, .slope = 0.25f});
  expect_reference_with<MappedNarrow>(
      {.shape = {2, 2, 1, 400}, .d = 64, .dv = 64, .cap = 3.0f, .slope = -0.01f});
  expect_reference_with<MappedNarrow>({.shape = {1, 1, 1, 200}, .d = 40, .dv = 24, .scale = -0.1f});
  expect_reference_with<KernelShape<F16, 128, 128, true>>(
      {.shape = {2, 1, 1, 150}, .sinks = true, .cap = 30.0f, .slope = 0.5f});
}

TEST(Sm90Intra, PaddingOfTheLogSumExpIsInfinite) {
  const IntraShape shape{1, 1, 2, 130};
  const IntraProblem problem({shape});
  const IntraResult result = run_intra<PlainBf16>(problem, {Timing::kLate, 5});
  ASSERT_EQ(result.fault, "");
  const auto infinite =
      std::count(result.lse2.begin(), result.lse2.end(), std::numeric_limits<float>::infinity());
  EXPECT_EQ(infinite, shape.chunks * (shape.padded_tokens() - shape.tokens));
}

TEST(Sm90Intra, SameBitsWhateverTheTimingTheOrderOfThreadsAndTheNumberOfBlocks) {
  const IntraShape shape{2, 1, 1, 384};
  const IntraProblem problem({shape, true, true, 2.0f, 9});
  const IntraResult first = run_intra<PlainBf16>(problem, {Timing::kEarly, 1, 1});
  ASSERT_EQ(first.fault, "");
  for (const Launch& run :
       {Launch{Timing::kLate, 2, 2}, Launch{Timing::kLate, 3, 5}, Launch{Timing::kEarly, 4, 9}}) {
    const IntraResult again = run_intra<PlainBf16>(problem, run);
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

/// NUM-2: rows of a later chunk, and whatever lies after the last row, reach nothing.
TEST(Sm90Intra, NaNInALaterChunkStaysThere) {
  const IntraShape shape{2, 1, 2, 150};
  IntraProblem problem({shape, true, false, 1.0f, 11});
  problem.poison(150);
  const IntraResult result = run_intra<PlainBf16>(problem, {Timing::kLate, 3});
  ASSERT_EQ(result.fault, "");
  expect_reference(problem, result, 150);
  EXPECT_TRUE(std::isnan(result.out[static_cast<std::size_t>(150) * kHead]));
}

/// What the schedule says it does.
TEST(Sm90Intra, CopiesAndProductsAreThoseOfTheSchedule) {
  const IntraShape shape{2, 1, 1, 512};
  const IntraProblem problem({shape});
  const IntraResult result = run_intra<PlainBf16>(problem, {Timing::kEarly, 1});
  ASSERT_EQ(result.fault, "");
  const int tiles = shape.tiles();
  const int pairs = shape.heads * tiles * (tiles + 1) / 2;
  const int rows = shape.heads * tiles;
  // Two boxes a tile. Forward: a Q tile a row of tiles, K and V a pair. Column sums: K a row, Q and a line of lse a pair.
  EXPECT_EQ(result.copies, 2 * rows + 4 * pairs + 2 * rows + 3 * pairs);
  // Two consumers, eight k steps; two products a pair in the forward, one in the column sums.
  EXPECT_EQ(result.products, 2 * 8 * (2 + 1) * pairs);
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
  kLaterFenceMissing,
  kSwizzleMissing,
  kStrideOffByOne,
  kDescriptorDiffers,
  kBytesMiscounted,
  kShuffleOfWrongLane,
};

template <Fault kFault>
class FaultyMachine : public SoftwareMachine {
 public:
  using SoftwareMachine::SoftwareMachine;

  void wait(Barrier& barrier, std::uint32_t parity) {
    if (kFault != Fault::kBarrierNotWaitedFor || warpgroup() == 0) SoftwareMachine::wait(barrier, parity);
  }
  using SoftwareMachine::arrive;
  void arrive(Barrier& barrier) {
    if (kFault == Fault::kStageNotReleased && thread() == 160) return;
    SoftwareMachine::arrive(barrier);
    if (kFault == Fault::kStageReleasedTwice && thread() == 160) SoftwareMachine::arrive(barrier);
  }
  void arrive_expecting(Barrier& barrier, std::uint32_t bytes) {
    SoftwareMachine::arrive_expecting(barrier, kFault == Fault::kBytesMiscounted ? bytes - 16 : bytes);
  }
  template <int Count>
  void fence_operands(float (&accumulators)[Count]) {
    const bool missing = kFault == Fault::kLaterFenceMissing ? fenced_ : kFault == Fault::kFenceMissing;
    if (!missing) SoftwareMachine::fence_operands(accumulators);
    fenced_ = true;
  }
  template <int Count, int Words>
  void fence_operands(float (&accumulators)[Count], std::uint32_t (&)[Words]) {
    fence_operands(accumulators);
  }
  template <int Pending, int Count>
  void wait_products(float (&accumulators)[Count]) {
    if (kFault == Fault::kProductNotWaitedFor)
      return SoftwareMachine::wait_products<Pending + 1>(accumulators);
    SoftwareMachine::wait_products<Pending>(accumulators);
  }
  template <class Element>
  void multiply(float (&c)[kAccumulators], MatrixDescriptor a, MatrixDescriptor b, bool accumulate) {
    SoftwareMachine::multiply<Element>(c, faulty(a), faulty(b), accumulate);
  }
  template <class Element>
  void multiply(float (&c)[kAccumulators], const std::uint32_t* a, MatrixDescriptor b, bool accumulate) {
    SoftwareMachine::multiply<Element>(c, a, faulty(b), accumulate);
  }
  float shuffle_xor(float x, int mask) {
    return SoftwareMachine::shuffle_xor(x, kFault == Fault::kShuffleOfWrongLane && mask == 2 ? 4 : mask);
  }

 private:
  bool fenced_ = false;
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
  const IntraResult result = run_intra<PlainBf16, FaultyMachine<kFault>>(problem, {timing, 3, 1});
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
    EXPECT_TRUE(detected<Fault::kLaterFenceMissing>(timing));
    EXPECT_TRUE(detected<Fault::kSwizzleMissing>(timing));
    EXPECT_TRUE(detected<Fault::kStrideOffByOne>(timing));
    EXPECT_TRUE(detected<Fault::kDescriptorDiffers>(timing));
    EXPECT_TRUE(detected<Fault::kBytesMiscounted>(timing));
    EXPECT_TRUE(detected<Fault::kShuffleOfWrongLane>(timing));
  }
}

/// A stage that is filled again while it is read: the producer does not wait until it is empty.
class ImpatientProducer : public SoftwareMachine {
 public:
  using SoftwareMachine::SoftwareMachine;
  void wait(Barrier& barrier, std::uint32_t parity) {
    if (warpgroup() != 0) SoftwareMachine::wait(barrier, parity);
  }
};

TEST(Sm90Checks, FindAnOverwrittenStage) {
  for (const Timing timing : {Timing::kEarly, Timing::kLate}) {
    const IntraShape shape{1, 1, 1, 640};
    const IntraProblem problem({shape, true, false, 1.0f, 21});
    const IntraResult result = run_intra<PlainBf16, ImpatientProducer>(problem, {timing, 3, 1});
    EXPECT_NE(result.fault, "");
  }
}

}  // namespace
}  // namespace headwater::cuda::sm90
