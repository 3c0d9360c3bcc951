// Dense prefill on the kernels of sm_90a: the bits of a session's first chunk, of every cut of its calls, and which steps stay
// with the kernels of mma.sync.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/cuda/session_support.hpp"

namespace headwater::cuda {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr Sm90Switch kAlways{true, 1};
constexpr Sm90Switch kNever{false};

EmulationOptions sm90_device() {
  EmulationOptions options;
  options.compute_capability = 90;
  return options;
}

Options dense() {
  Options wished = options();
  wished.dense = true;
  return wished;
}

/// Sparse, chunks of `chunk`.
Options chunks_of(std::int64_t chunk) {
  Options wished = options();
  wished.chunk = chunk;
  wished.batch = kCapacity;
  return wished;
}

/// A session and rows for all of its capacity, the same in every caller.
class Caller {
 public:
  Caller(DType type, const Options& asked, const Sm90Switch& wanted = kAlways,
         Launching launching = Launching::replayed)
      : type_(type),
        session_(session_on(open_emulated_device(dispatch().kernels(), sm90_device()), type, launching, {},
                            asked, wanted)),
        q_(elements(kCapacity * kHeads * kWidth, type, 1)),
        k_(elements(kCapacity * kHeadsKv * kWidth, type, 2)),
        v_(elements(kCapacity * kHeadsKv * kWidth, type, 3)),
        out_(static_cast<std::size_t>(kCapacity * kHeads * kWidth)) {}

  void step(const Step& step) {
    session_->begin(step);
    const auto at = [&](std::vector<unsigned char>& rows, std::int64_t heads) {
      return rows.data() + tokens_ * heads * kWidth * static_cast<std::int64_t>(dtype_size(type_));
    };
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      session_->attend(
          layer, headwater::Rows::token_major(at(q_, kHeads), type_, kHeads, kWidth),
          headwater::Rows::token_major(at(k_, kHeadsKv), type_, kHeadsKv, kWidth),
          headwater::Rows::token_major(at(v_, kHeadsKv), type_, kHeadsKv, kWidth),
          MutableRows::token_major(out_.data() + tokens_ * kHeads * kWidth, DType::f32, kHeads, kWidth));
    }
    session_->end();
    tokens_ += step.n;
  }
  /// Of the last layer, all tokens so far.
  [[nodiscard]] std::vector<float> out() const {
    return {out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(tokens_ * kHeads * kWidth)};
  }
  [[nodiscard]] CudaSession& session() { return *session_; }
  [[nodiscard]] std::vector<std::string> kernels_of(const Step& one) {
    auto& device = const_cast<Device&>(session_->device());
    device.profile(true);
    step(one);
    std::vector<std::string> names;
    for (const KernelTimes& times : device.take_profile()) names.push_back(times.kernel);
    device.profile(false);
    return names;
  }
  /// The rows of all heads and tokens from `token` on become others.
  void change_rows_from(std::int64_t token) {
    for (auto* rows : {&q_, &k_, &v_}) {
      const std::size_t begin =
          rows->size() / static_cast<std::size_t>(kCapacity) * static_cast<std::size_t>(token);
      for (std::size_t i = begin; i < rows->size(); i += 2) (*rows)[i] ^= 0x55u;
    }
  }

 private:
  DType type_;
  std::unique_ptr<CudaSession> session_;
  std::vector<unsigned char> q_, k_, v_;
  std::vector<float> out_;
  std::int64_t tokens_ = 0;
};

std::vector<float> one_call(DType type, const Options& asked, std::int64_t n,
                            const Sm90Switch& wanted = kAlways) {
  Caller caller(type, asked, wanted);
  caller.step(Step::prefill(n));
  return caller.out();
}

TEST(Sm90Dense, AFirstChunkHasTheBitsOfDenseAttention) {
  for (const DType type : {DType::bf16, DType::f16}) {
    const auto expected = one_call(type, dense(), kCapacity);
    EXPECT_EQ(one_call(type, chunks_of(kCapacity), kCapacity), expected);
    EXPECT_NE(one_call(type, dense(), kCapacity, kNever), expected) << "other kernels, other bits";
  }
}

/// Chunks that the kernels of sm_90a are not taken for: the first one still goes the way of dense prefill.
TEST(Sm90Dense, SoHasAFirstChunkThatIsShort) {
  constexpr Sm90Switch kLongOnly{true, 128};
  Caller caller(DType::bf16, chunks_of(32), kLongOnly);
  EXPECT_THAT(caller.session().paths(), HasSubstr("intra: sm_80 (chunks are short)"));
  EXPECT_THAT(caller.session().paths(), HasSubstr("dense: sm_90a"));
  caller.step(Step::prefill(32));
  EXPECT_EQ(caller.out(), one_call(DType::bf16, dense(), 32, kLongOnly));
  // And a prompt of more chunks begins with it.
  auto longer = one_call(DType::bf16, chunks_of(32), 100, kLongOnly);
  longer.resize(caller.out().size());
  EXPECT_EQ(longer, caller.out());
}

TEST(Sm90Dense, CutsOfCallsChangeNoBit) {
  const auto expected = one_call(DType::bf16, dense(), kCapacity);
  for (const std::vector<std::int64_t>& cuts :
       {std::vector<std::int64_t>{128, 172}, {1, 299}, {70, 57, 2, 171}, {127, 1, 1, 171}}) {
    Caller caller(DType::bf16, dense());
    bool first = true;
    for (const std::int64_t n : cuts) {
      caller.step(Step::prefill(n, first ? kCapacity : 0));
      first = false;
    }
    EXPECT_EQ(caller.out(), expected) << cuts.size() << " calls";
  }
}

TEST(Sm90Dense, LaterTokensChangeNoEarlierBit) {
  Caller caller(DType::bf16, dense());
  caller.step(Step::prefill(kCapacity));
  for (const std::int64_t token : {1, 130, 199}) {
    Caller changed(DType::bf16, dense());
    changed.change_rows_from(token);
    changed.step(Step::prefill(kCapacity));
    const auto before = static_cast<std::ptrdiff_t>(token * kHeads * kWidth);
    const auto a = caller.out();
    const auto b = changed.out();
    EXPECT_TRUE(std::equal(a.begin(), a.begin() + before, b.begin())) << token;
    EXPECT_FALSE(std::equal(a.begin() + before, a.end(), b.begin() + before)) << token;
  }
}

/// A turn of no more than a chunk after others is dense, over all that is stored, from a position that no tile begins at.
TEST(Sm90Dense, ALaterTurnAgreesWithTheOtherKernels) {
  const auto turns = [](const Sm90Switch& wanted) {
    Caller caller(DType::f16, chunks_of(80), wanted);
    caller.step(Step::prefill(70));
    caller.step(Step::decode());
    caller.step(Step::prefill(75));
    return caller.out();
  };
  const auto taken = turns(kAlways);
  const auto other = turns(kNever);
  EXPECT_NE(taken, other);
  for (std::size_t i = 0; i < taken.size(); ++i) ASSERT_NEAR(taken[i], other[i], 4 * 0x1p-11f) << i;
}

TEST(Sm90Dense, DecodeStaysWithTheOtherKernels) {
  Caller caller(DType::bf16, dense(), kAlways, Launching::one_by_one);
  EXPECT_THAT(caller.kernels_of(Step::prefill(40)), Contains(std::string("sm90_causal_forward_bf16_64")));
  for (const std::int64_t n : {1, 60}) {
    for (const std::string& name : caller.kernels_of(Step::decode(n)))
      EXPECT_THAT(name, Not(HasSubstr("sm90"))) << n;
  }
}

TEST(Sm90Dense, WindowsAreReplayedWithTheSameBits) {
  Caller direct(DType::bf16, dense(), kAlways, Launching::one_by_one);
  direct.step(Step::prefill(150));
  EXPECT_EQ(direct.out(), one_call(DType::bf16, dense(), 150));
}

}  // namespace
}  // namespace headwater::cuda
