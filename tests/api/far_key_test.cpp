// One key whose logit stands far above all others, in every place of a pass: its weight is 1 to the last bit, and every row
// that sees it is its value. An engine that takes its maximum from part of the keys overflows here, or loses the key.

#include <bit>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/api/problem.hpp"

namespace headwater::api_test {
namespace {

constexpr std::int64_t kTokens = 150;
constexpr std::int64_t kDecoded = 3;
constexpr Shape kShape{.n_layer = 1,
                       .n_head = 2,
                       .n_head_kv = 1,
                       .d_head = 32,
                       .d_value = 16,
                       .capacity = kTokens,
                       .kv_type = DType::f32};

/// Rows of small integers over 64, which F32 and BF16 hold exactly.
class Rows64 {
 public:
  Rows64(std::int64_t rows, std::int64_t width, std::uint64_t seed)
      : width_(width), values_(static_cast<std::size_t>(rows * width)) {
    std::mt19937_64 generator(seed);
    std::uniform_int_distribution<int> integer(-64, 64);
    for (float& value : values_) value = static_cast<float>(integer(generator)) / 64.0f;
  }
  void fill(std::int64_t row, float value) {
    for (std::int64_t x = 0; x < width_; ++x) values_[static_cast<std::size_t>(row * width_ + x)] = value;
  }
  void fill_all(float value) { values_.assign(values_.size(), value); }
  [[nodiscard]] float at(std::int64_t row, std::int64_t x) const {
    return values_[static_cast<std::size_t>(row * width_ + x)];
  }
  /// Rows [first, ...) of a tensor with `heads` rows for each token.
  [[nodiscard]] Rows view(DType type, std::int64_t first, std::int64_t heads) {
    halves_.clear();
    for (const float value : values_) {
      halves_.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16));
    }
    const auto skipped = first * heads * width_;
    return type == DType::f32 ? Rows::token_major(values_.data() + skipped, type, heads, width_)
                              : Rows::token_major(halves_.data() + skipped, type, heads, width_);
  }

 private:
  std::int64_t width_;
  std::vector<float> values_;
  std::vector<std::uint16_t> halves_;
};

class FarKey : public EachEngine {
 protected:
  /// A prefill and a decode step in which token `far` has a logit `above` and the others at most 32.
  void run(DType type, const Options& options, std::int64_t far, float above) const {
    Rows64 q(kTokens * kShape.n_head, kShape.d_head, 1);
    Rows64 k(kTokens, kShape.d_head, 2);
    Rows64 v(kTokens, kShape.d_value, 3);
    q.fill_all(1.0f);
    k.fill(far, above / static_cast<float>(kShape.d_head));
    Shape shape = kShape;
    shape.kv_type = type;
    const auto session = engine().open(shape, options);
    std::vector<float> out(static_cast<std::size_t>(kTokens * shape.n_head * shape.d_value));
    const auto step = [&](const Step& what, std::int64_t first) {
      session->begin(what);
      session->attend(0, q.view(type, first, shape.n_head), k.view(type, first, 1), v.view(type, first, 1),
                      MutableRows::token_major(out.data() + first * shape.n_head * shape.d_value, DType::f32,
                                               shape.n_head, shape.d_value));
      session->end();
    };
    step(Step::prefill(kTokens - kDecoded), 0);
    step(Step::decode(kDecoded), kTokens - kDecoded);
    for (std::int64_t row = far * shape.n_head; row < kTokens * shape.n_head; ++row) {
      for (std::int64_t x = 0; x < shape.d_value; ++x) {
        ASSERT_FLOAT_EQ(out[static_cast<std::size_t>(row * shape.d_value + x)], v.at(far, x))
            << "far key " << far << ", " << above << " above, row " << row << ", element " << x;
      }
    }
  }
};

TEST_P(FarKey, TakesAllWeightWhereverItStands) {
  Options one_chunk = small_options();
  one_chunk.threads = 1;
  one_chunk.scale = 1.0;
  one_chunk.batch = one_chunk.chunk = kTokens;
  Options dense = one_chunk;
  dense.dense = true;
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const std::int64_t far : {0, 1, 15, 16, 63, 64, 127, 128, 140, 146, 147, 149}) {
      for (const float above : {256.0f, 8192.0f}) {
        ASSERT_NO_FATAL_FAILURE(run(type, dense, far, above));
        ASSERT_NO_FATAL_FAILURE(run(type, one_chunk, far, above));
      }
    }
  }
}

// Before and in each of nine segments of 1024 keys of dense rows.
TEST_P(FarKey, BeforeNineThousandTokens) {
  if (!engine().claims().rows_alone) GTEST_SKIP() << "so many tokens are stored without queries only";
  constexpr std::int64_t kStored = 9300, kAsked = 40;
  Options options = small_options();
  options.scale = 1.0;
  options.batch = options.chunk = 64;
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const std::int64_t far : {5, 1023, 1024, 4096, 8191, 9216}) {
      Rows64 q(kAsked * kShape.n_head, kShape.d_head, 1);
      Rows64 k(kStored + kAsked, kShape.d_head, 2);
      Rows64 v(kStored + kAsked, kShape.d_value, 3);
      q.fill_all(1.0f);
      k.fill(far, 8192.0f / static_cast<float>(kShape.d_head));
      Shape shape = kShape;
      shape.kv_type = type;
      shape.capacity = kStored + kAsked;
      const auto session = engine().open(shape, options);
      session->begin(Step::decode(kStored));
      session->attend(0, {}, k.view(type, 0, 1), v.view(type, 0, 1), {});
      session->end();
      std::vector<float> out(static_cast<std::size_t>(kAsked * shape.n_head * shape.d_value));
      session->begin(Step::prefill(kAsked));
      session->attend(0, q.view(type, 0, shape.n_head), k.view(type, kStored, 1), v.view(type, kStored, 1),
                      MutableRows::token_major(out.data(), DType::f32, shape.n_head, shape.d_value));
      session->end();
      for (std::size_t i = 0; i < out.size(); ++i) {
        ASSERT_FLOAT_EQ(out[i], v.at(far, static_cast<std::int64_t>(i) % shape.d_value))
            << "far key " << far << ", element " << i;
      }
    }
  }
}

HEADWATER_EACH_ENGINE(FarKey);

}  // namespace
}  // namespace headwater::api_test
