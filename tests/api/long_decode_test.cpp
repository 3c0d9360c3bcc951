// Decode steps over a context of as many parts as an engine may cut it into (32 of 4096 keys on a CPU), with as many rows
// as one pass takes, and over one key more. Logits follow from the position alone: a part that is lost, taken twice, weighted
// by another part's maximum or stored in the place of another head changes the means of the values.

#include <cmath>
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
                       .capacity = kFullContext + 6,
                       .kv_type = DType::f32};

/// Small integers, whose sums F32 holds exactly.
float value_at(std::int64_t token, std::int64_t head_kv, std::int64_t x) {
  return static_cast<float>((token * (x + 1) + 3 * head_kv) % 8);
}

/// Weight of a key where queries are not 0: higher and lower ones in every part.
double weight_at(std::int64_t token) { return static_cast<double>(1 << token / 2048 % 3); }

class LongDecode : public EachEngine {
 protected:
  void SetUp() override {
    for (std::int64_t token = 0; token < kShape.capacity; ++token) {
      for (std::int64_t head_kv = 0; head_kv < kShape.n_head_kv; ++head_kv) {
        k_.insert(k_.end(), {static_cast<float>(std::log(weight_at(token))), 0.0F});
      }
      for (std::int64_t row = 0; row < kShape.n_head_kv * kShape.d_value; ++row) {
        v_.push_back(value_at(token, row / kShape.d_value, row % kShape.d_value));
      }
    }
  }

  /// Outputs of the step's tokens, token-major. `query`: the first element of all queries, 0 or 1.
  static std::vector<float> run(Session& session, const Step& step, float query,
                                const std::vector<float>& keys, const std::vector<float>& values) {
    const std::int64_t first = session.tokens();
    std::vector<float> out(static_cast<std::size_t>(step.n * kShape.n_head * kShape.d_value));
    session.begin(step);
    const float q[kShape.d_head] = {query, 0.0F};
    session.attend(0, {q, DType::f32, 0, 0}, rows_from(keys, first, kShape.n_head_kv, kShape.d_head),
                   rows_from(values, first, kShape.n_head_kv, kShape.d_value),
                   MutableRows::token_major(out.data(), DType::f32, kShape.n_head, kShape.d_value));
    session.end();
    return out;
  }

  static void check(const std::vector<float>& out, std::int64_t first, bool weighted) {
    const std::int64_t width = kShape.n_head * kShape.d_value;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::int64_t token = first + static_cast<std::int64_t>(i) / width;
      const std::int64_t head_kv =
          static_cast<std::int64_t>(i) % width / kShape.d_value / (kShape.n_head / kShape.n_head_kv);
      double sum = 0;
      double weights = 0;
      for (std::int64_t p = 0; p <= token; ++p) {
        const double weight = weighted ? weight_at(p) : 1;
        sum +=
            weight * static_cast<double>(value_at(p, head_kv, static_cast<std::int64_t>(i) % kShape.d_value));
        weights += weight;
      }
      const auto wanted = static_cast<float>(sum / weights);
      // Sums of small integers are exact; weights are not.
      ASSERT_NEAR(out[i], wanted, weighted ? 2e-6F * wanted : 2.5e-7F * wanted)
          << "token " << token << ", element " << i;
    }
  }

  std::vector<float> k_, v_;
};

TEST_P(LongDecode, EveryPartOfTheContextCountsOnce) {
  Options options = small_options();
  options.chunk = 64;
  options.batch = 4096;
  options.scale = 1.0;
  const auto session = engine().open(kShape, options);
  run(*session, Step::prefill(kFullContext - kRowsAtOnce), 0, k_, v_);
  const auto decode = [&](const Step& step, float query) {
    const std::int64_t first = session->tokens();
    check(run(*session, step, query, k_, v_), first, query != 0);
  };
  ASSERT_NO_FATAL_FAILURE(decode(Step::decode(kRowsAtOnce), 0));
  ASSERT_NO_FATAL_FAILURE(decode(Step::decode(1), 0));
  for (const std::int64_t n : {1, 4}) ASSERT_NO_FATAL_FAILURE(decode(Step::decode(n), 1));
}

HEADWATER_EACH_ENGINE(LongDecode);

}  // namespace
}  // namespace headwater::api_test
