// Decode steps over a context of as many parts as an engine may cut it into (32 of 4096 keys on a CPU), with as many rows
// as one pass takes, and over one key more. Queries are 0, so every weight is 1 and a row is the mean of the values that it
// sees: a part that is lost, taken twice or stored in the place of another head changes it.

#include <cstdint>
#include <vector>

#include "tests/api/problem.hpp"

namespace headwater::api_test {
namespace {

constexpr std::int64_t kFullContext = 32 * 4096;
constexpr std::int64_t kRowsAtOnce = 4;  // of 4 query heads on each key/value head: 16 rows
constexpr Shape kShape{.n_layer = 1,
                       .n_head = 8,
                       .n_head_kv = 2,
                       .d_head = 2,
                       .d_value = 3,
                       .capacity = kFullContext + 1,
                       .kv_type = DType::f32};

/// Small integers, whose sums F32 holds exactly.
float value_at(std::int64_t token, std::int64_t head_kv, std::int64_t x) {
  return static_cast<float>((token * (x + 1) + 3 * head_kv) % 8);
}

class LongDecode : public EachEngine {
 protected:
  void SetUp() override {
    for (std::int64_t token = 0; token < kShape.capacity; ++token) {
      for (std::int64_t row = 0; row < kShape.n_head_kv * kShape.d_value; ++row) {
        v_.push_back(value_at(token, row / kShape.d_value, row % kShape.d_value));
      }
    }
  }

  /// Outputs of the step's tokens, token-major.
  std::vector<float> run(Session& session, const Step& step) const {
    const std::int64_t first = session.tokens();
    std::vector<float> out(static_cast<std::size_t>(step.n * kShape.n_head * kShape.d_value));
    session.begin(step);
    session.attend(0, rows_from(zeros_, 0, kShape.n_head, kShape.d_head),
                   rows_from(zeros_, 0, kShape.n_head_kv, kShape.d_head),
                   rows_from(v_, first, kShape.n_head_kv, kShape.d_value),
                   MutableRows::token_major(out.data(), DType::f32, kShape.n_head, kShape.d_value));
    session.end();
    return out;
  }

  void check(const std::vector<float>& out, std::int64_t first) const {
    const std::int64_t width = kShape.n_head * kShape.d_value;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::int64_t token = first + static_cast<std::int64_t>(i) / width;
      const std::int64_t head_kv =
          static_cast<std::int64_t>(i) % width / kShape.d_value / (kShape.n_head / kShape.n_head_kv);
      double sum = 0;
      for (std::int64_t p = 0; p <= token; ++p) {
        sum += static_cast<double>(value_at(p, head_kv, static_cast<std::int64_t>(i) % kShape.d_value));
      }
      ASSERT_FLOAT_EQ(out[i], static_cast<float>(sum / static_cast<double>(token + 1)))
          << "token " << token << ", element " << i;
    }
  }

  std::vector<float> zeros_ =
      std::vector<float>(static_cast<std::size_t>(kShape.capacity * kShape.n_head * kShape.d_head));
  std::vector<float> v_;
};

TEST_P(LongDecode, EveryPartOfTheContextCountsOnce) {
  Options options = small_options();
  options.chunk = 64;
  options.batch = 4096;
  const auto session = engine().open(kShape, options);
  run(*session, Step::prefill(kFullContext - kRowsAtOnce));
  ASSERT_NO_FATAL_FAILURE(check(run(*session, Step::decode(kRowsAtOnce)), kFullContext - kRowsAtOnce));
  ASSERT_NO_FATAL_FAILURE(check(run(*session, Step::decode(1)), kFullContext));
}

HEADWATER_EACH_ENGINE(LongDecode);

}  // namespace
}  // namespace headwater::api_test
