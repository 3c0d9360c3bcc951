// The C ABI at the sizes of long prompts: what it hands on and hands back is what the C++ API gives, for positions, strides
// and indices beyond 2^8 and 2^16.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "headwater/headwater.h"
#include "headwater/rope.hpp"
#include "tests/api/problem.hpp"

namespace headwater::api_test {
namespace {

constexpr std::int64_t kTokens = 70000, kHeads = 40, kWidth = 2, kChunk = 100, kMemory = 8;
constexpr const char* kEngine = "cpu";

std::vector<float> random_floats(std::int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& value : values) value = static_cast<float>(random() >> 8) * 0x1p-23F - 1.0F;
  return values;
}

/// A prompt of 70000 tokens with 40 heads over one, and what both APIs made of it.
class CSizes : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    q_ = random_floats(kTokens * kHeads * kWidth, 1);
    k_ = random_floats(kTokens * kWidth, 2);
    v_ = random_floats(kTokens * kWidth, 3);
    slopes_ = random_floats(kHeads, 4);
    for (float& slope : slopes_) slope *= 0.01F;
    run_cpp();
    run_c();
  }
  static void TearDownTestSuite() {
    headwater_close(c_);
    cpp_.reset();
    q_ = k_ = v_ = slopes_ = cpp_out_ = c_out_ = cpp_lse_ = c_lse_ = {};
  }

  static void run_cpp() {
    Options options;
    options.batch = 100000;
    options.chunk = kChunk;
    options.local = options.heavy = kMemory / 2;
    options.alibi = slopes_;
    options.threads = 2;
    cpp_ = engine(kEngine).open({.n_layer = 1,
                                 .n_head = kHeads,
                                 .n_head_kv = 1,
                                 .d_head = kWidth,
                                 .d_value = kWidth,
                                 .capacity = kTokens,
                                 .kv_type = DType::f16},
                                options);
    cpp_out_.resize(q_.size());
    cpp_lse_.resize(kTokens * kHeads);
    cpp_->begin(Step::prefill(kTokens));
    cpp_->attend(0, Rows::head_major(q_.data(), DType::f32, kTokens, kWidth),
                 Rows::head_major(k_.data(), DType::f32, kTokens, kWidth),
                 Rows::head_major(v_.data(), DType::f32, kTokens, kWidth),
                 MutableRows::head_major(cpp_out_.data(), DType::f32, kTokens, kWidth),
                 {cpp_lse_.data(), 1, kTokens});
    cpp_->end();
  }
  static void run_c() {
    const headwater_shape shape{.n_layer = 1,
                                .n_head = kHeads,
                                .n_head_kv = 1,
                                .d_head = kWidth,
                                .d_value = kWidth,
                                .capacity = kTokens,
                                .kv_type = HEADWATER_F16,
                                .reserved = 0};
    headwater_options options;
    ASSERT_EQ(headwater_options_init(&options, sizeof options), HEADWATER_OK);
    options.batch = 100000;
    options.chunk = kChunk;
    options.local = options.heavy = kMemory / 2;
    options.alibi = slopes_.data();
    options.threads = 2;
    ASSERT_EQ(headwater_open(kEngine, &shape, &options, &c_), HEADWATER_OK) << headwater_last_error();
    c_out_.resize(q_.size());
    c_lse_.resize(kTokens * kHeads);
    const auto rows = [](const std::vector<float>& from) {
      return headwater_rows{from.data(), kWidth, kTokens * kWidth, HEADWATER_F32, 0};
    };
    const headwater_rows q = rows(q_);
    const headwater_rows k = rows(k_);
    const headwater_rows v = rows(v_);
    const headwater_mutable_rows out{c_out_.data(), kWidth, kTokens * kWidth, HEADWATER_F32, 0};
    ASSERT_EQ(headwater_set_observer(c_, watch, nullptr), HEADWATER_OK);
    ASSERT_EQ(headwater_begin_prefill(c_, kTokens, 0), HEADWATER_OK);
    const headwater_lse_output lse{c_lse_.data(), 1, kTokens};
    ASSERT_EQ(headwater_attend_lse(c_, 0, &q, &k, &v, &out, &lse), HEADWATER_OK) << headwater_last_error();
    ASSERT_EQ(headwater_end(c_), HEADWATER_OK);
  }
  static void watch(void*, const headwater_chunk_record* seen) { seen_.push_back(seen->chunk); }

  static inline std::vector<float> q_, k_, v_, slopes_, cpp_out_, c_out_, cpp_lse_, c_lse_;
  static inline std::unique_ptr<Session> cpp_;
  static inline headwater_session* c_ = nullptr;
  static inline std::vector<headwater_chunk> seen_;
};

TEST_F(CSizes, OutputsAreThoseOfTheCppApi) {
  EXPECT_EQ(std::memcmp(c_out_.data(), cpp_out_.data(), c_out_.size() * sizeof(float)), 0);
}

TEST_F(CSizes, LogSumExpsAreThoseOfTheCppApi) {
  EXPECT_EQ(std::memcmp(c_lse_.data(), cpp_lse_.data(), c_lse_.size() * sizeof(float)), 0);
  EXPECT_TRUE(std::all_of(c_lse_.begin(), c_lse_.end(), [](float lse) { return lse != 0.0F; }));
}

TEST_F(CSizes, TokensBeyond65536AreKept) {
  ASSERT_EQ(headwater_truncate(c_, kTokens), HEADWATER_OK) << headwater_last_error();
  std::int64_t tokens = 0;
  ASSERT_EQ(headwater_session_tokens(c_, &tokens), HEADWATER_OK);
  EXPECT_EQ(tokens, kTokens);
}

TEST_F(CSizes, OptionsAndChunksAreThoseOfTheCppApi) {
  headwater_effective_options options;
  ASSERT_EQ(headwater_session_options(c_, &options, sizeof options), HEADWATER_OK);
  EXPECT_EQ(options.batch, 100000);
  EXPECT_EQ(options.batch, cpp_->options().batch);
  std::int64_t count = 0;
  ASSERT_EQ(headwater_plan_count(c_, &count), HEADWATER_OK);
  const auto plan = cpp_->plan();
  ASSERT_EQ(count, kTokens / kChunk);
  ASSERT_EQ(static_cast<std::size_t>(count), plan.size());
  ASSERT_EQ(seen_.size(), plan.size());
  for (std::int64_t i = 0; i < count; ++i) {
    headwater_chunk chunk;
    ASSERT_EQ(headwater_plan_chunk(c_, i, &chunk), HEADWATER_OK);
    ASSERT_EQ(chunk.begin, i * kChunk);
    ASSERT_EQ(chunk.end, (i + 1) * kChunk);
    ASSERT_EQ(seen_[static_cast<std::size_t>(i)].begin, chunk.begin);
    ASSERT_EQ(seen_[static_cast<std::size_t>(i)].end, chunk.end);
  }
}

TEST_F(CSizes, ScoresOfEveryHeadAndPosition) {
  const ScoreView view = cpp_->scores(0);
  ASSERT_EQ(view.type, ScoreType::bf16);
  std::vector<float> copied(kTokens);
  for (std::int64_t h = 0; h < kHeads; ++h) {
    for (const std::int64_t first : {std::int64_t{0}, std::int64_t{65530}}) {
      ASSERT_EQ(headwater_copy_scores(c_, 0, h, first, kTokens - first, copied.data()), HEADWATER_OK);
      const auto* const wanted = static_cast<const std::uint16_t*>(view.data) + h * view.head_stride + first;
      for (std::int64_t t = 0; t < kTokens - first; ++t) {
        std::uint32_t bits = 0;
        std::memcpy(&bits, &copied[static_cast<std::size_t>(t)], sizeof bits);
        ASSERT_EQ(bits, std::uint32_t{wanted[t]} << 16) << "head " << h << ", position " << first + t;
      }
    }
  }
  headwater_memory_view memory;
  ASSERT_EQ(headwater_memory(c_, 0, &memory), HEADWATER_OK);
  const MemoryView wanted = cpp_->memory(0);
  ASSERT_EQ(memory.count, wanted.count);
  for (std::int64_t h = 0; h < kHeads; ++h) {
    for (std::int64_t e = 0; e < memory.count; ++e) {
      ASSERT_EQ(memory.data[h * memory.head_stride + e], wanted.data[h * wanted.head_stride + e]);
    }
  }
}

TEST_F(CSizes, StoredRowsOfEveryPosition) {
  float row[kWidth];
  float wanted[kWidth];
  for (std::int64_t t = 0; t < kTokens; ++t) {
    ASSERT_EQ(headwater_read_key(c_, 0, 0, t, row, kWidth), HEADWATER_OK);
    cpp_->read_key(0, 0, t, wanted);
    // Rounded to F16: by less than 2^-11 of numbers up to 1.
    ASSERT_NEAR(row[0], k_[static_cast<std::size_t>(t * kWidth)], 0x1p-11) << t;
    ASSERT_EQ(std::memcmp(row, wanted, sizeof row), 0) << t;
    ASSERT_EQ(headwater_read_value(c_, 0, 0, t, row, kWidth), HEADWATER_OK);
    ASSERT_NEAR(row[1], v_[static_cast<std::size_t>(t * kWidth + 1)], 0x1p-11) << t;
  }
}

// ROPE-1 at positions of long prompts, by its formula.
TEST(CRotate, PositionsBeyond65536) {
  constexpr std::int64_t kPairs = 64;
  std::vector<double> frequencies(kPairs);
  ASSERT_EQ(headwater_rope_inverse_frequencies(2 * kPairs, 1e6, frequencies.data(), kPairs), HEADWATER_OK);
  for (const std::int64_t position : {8191, 8192, 32768, 65535, 65536, 70001, 131072, 1000000}) {
    std::vector<float> row(2 * kPairs);
    std::fill_n(row.begin(), kPairs, 1.0F);
    const headwater_mutable_rows rows{row.data(), 2 * kPairs, 2 * kPairs, HEADWATER_F32, 0};
    ASSERT_EQ(headwater_rotate(&rows, 1, 1, 2 * kPairs, position, frequencies.data(), kPairs, 1.0,
                               HEADWATER_SPLIT_HALVES),
              HEADWATER_OK);
    for (std::int64_t i = 0; i < kPairs; ++i) {
      const double angle = static_cast<double>(position) *
                           std::pow(1e6, -2.0 * static_cast<double>(i) / static_cast<double>(2 * kPairs));
      ASSERT_NEAR(row[static_cast<std::size_t>(i)], std::cos(angle), 1e-6) << position << ", pair " << i;
      ASSERT_NEAR(row[static_cast<std::size_t>(i + kPairs)], std::sin(angle), 1e-6) << position;
    }
  }
}

}  // namespace
}  // namespace headwater::api_test
