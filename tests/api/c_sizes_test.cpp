// The C ABI at the sizes of long prompts: what it hands on and hands back is what the C++ API gives, for positions, strides
// and indices beyond 2^8 and 2^16.

#include <algorithm>
#include <array>
#include <bit>
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

constexpr std::int64_t kTokens = 70000, kHeads = 40, kWidth = 2, kChunk = 50, kMemory = 8;
constexpr const char* kEngine = "cpu";

std::vector<float> random_floats(std::int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& value : values) value = static_cast<float>(random() >> 8) * 0x1p-23F - 1.0F;
  return values;
}

/// What stands in a record beside its arrays.
using Numbers = std::array<std::int64_t, 10>;
template <class Record>
Numbers numbers_of(const Record& record) {
  return {record.layer,
          record.chunk.begin,
          record.chunk.end,
          static_cast<int>(record.chunk.mode),
          record.memory_count,
          record.memory_stride,
          record.row_stride,
          record.query_blocks,
          record.candidate_blocks,
          record.voted_tokens};
}
void take(void* to, const headwater_chunk_record* seen) {
  static_cast<std::vector<Numbers>*>(to)->push_back(numbers_of(*seen));
}

/// Every chunk of the C session is that of the C++ one, with as many entries of memory.
void expect_chunks(const headwater_session* c, const Session& cpp) {
  std::int64_t count = 0;
  ASSERT_EQ(headwater_session_chunk_count(c, &count), HEADWATER_OK);
  const auto chunks = cpp.chunks();
  ASSERT_EQ(static_cast<std::size_t>(count), chunks.size());
  for (std::int64_t i = 0; i < count; ++i) {
    const Chunk& wanted = chunks[static_cast<std::size_t>(i)];
    headwater_chunk chunk;
    std::int64_t memory = -1;
    ASSERT_EQ(headwater_session_chunk(c, i, &chunk, &memory), HEADWATER_OK);
    ASSERT_EQ(chunk.begin, wanted.begin) << i;
    ASSERT_EQ(chunk.end, wanted.end) << i;
    ASSERT_EQ(chunk.mode, static_cast<int>(wanted.mode)) << i;
    ASSERT_EQ(memory, cpp.memory_count(wanted)) << i;
  }
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
    cpp_->set_observer([](const ChunkRecord& seen) { cpp_seen_.push_back(numbers_of(seen)); });
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
    ASSERT_EQ(headwater_set_observer(c_, take, &seen_), HEADWATER_OK);
    ASSERT_EQ(headwater_begin_prefill(c_, kTokens, 0), HEADWATER_OK);
    const headwater_lse_output lse{c_lse_.data(), 1, kTokens};
    ASSERT_EQ(headwater_attend_lse(c_, 0, &q, &k, &v, &out, &lse), HEADWATER_OK) << headwater_last_error();
    ASSERT_EQ(headwater_end(c_), HEADWATER_OK);
  }

  static inline std::vector<float> q_, k_, v_, slopes_, cpp_out_, c_out_, cpp_lse_, c_lse_;
  static inline std::unique_ptr<Session> cpp_;
  static inline headwater_session* c_ = nullptr;
  static inline std::vector<Numbers> seen_, cpp_seen_;
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
  EXPECT_TRUE(seen_ == cpp_seen_);
  expect_chunks(c_, *cpp_);
  for (std::int64_t i = 0; i < count; ++i) {
    headwater_chunk chunk;
    ASSERT_EQ(headwater_plan_chunk(c_, i, &chunk), HEADWATER_OK);
    ASSERT_EQ(chunk.begin, i * kChunk);
    ASSERT_EQ(chunk.end, (i + 1) * kChunk);
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

// 66000 decode steps of rows alone (DEC-2), then a turn whose every two rows vote on all of them.
TEST(CTurn, ChunksAndCandidatesBeyond65536) {
  constexpr std::int64_t kStored = 66000, kTurn = 1200;
  const headwater_shape shape{1, 1, 1, kWidth, kWidth, kStored + kTurn, HEADWATER_F32, 0};
  headwater_options options;
  ASSERT_EQ(headwater_options_init(&options, sizeof options), HEADWATER_OK);
  options.select = HEADWATER_SELECT_BLOCKS;
  options.chunk = options.batch = 600;
  options.local = 100, options.heavy = 300;
  options.key_block = 1, options.query_block = options.pool = 2;
  options.threads = 1;
  headwater_session* c = nullptr;
  ASSERT_EQ(headwater_open(kEngine, &shape, &options, &c), HEADWATER_OK) << headwater_last_error();
  Options same;
  same.select = Select::blocks;
  same.chunk = same.batch = 600;
  same.local = 100, same.heavy = 300;
  same.key_block = 1, same.query_block = same.pool = 2;
  same.threads = 1;
  const auto cpp = engine(kEngine).open({.n_layer = 1,
                                         .n_head = 1,
                                         .n_head_kv = 1,
                                         .d_head = kWidth,
                                         .d_value = kWidth,
                                         .capacity = kStored + kTurn},
                                        same);
  std::vector<Numbers> seen, cpp_seen;
  ASSERT_EQ(headwater_set_observer(c, take, &seen), HEADWATER_OK);
  cpp->set_observer([&](const ChunkRecord& record) { cpp_seen.push_back(numbers_of(record)); });
  const std::vector<float> values = random_floats((kStored + kTurn) * kWidth, 5);
  std::vector<float> out(2 * kTurn * kWidth);
  const auto step = [&](std::int64_t first, std::int64_t n, bool prefill) {
    const headwater_rows rows{values.data() + first * kWidth, kWidth, kWidth, HEADWATER_F32, 0};
    const headwater_mutable_rows to{out.data(), kWidth, kWidth, HEADWATER_F32, 0};
    ASSERT_EQ(prefill ? headwater_begin_prefill(c, n, kTurn) : headwater_begin_decode(c, n), HEADWATER_OK);
    ASSERT_EQ(headwater_attend(c, 0, prefill ? &rows : nullptr, &rows, &rows, prefill ? &to : nullptr),
              HEADWATER_OK)
        << headwater_last_error();
    ASSERT_EQ(headwater_end(c), HEADWATER_OK);
    const Rows cpp_rows = Rows::token_major(rows.data, DType::f32, 1, kWidth);
    cpp->begin(prefill ? Step::prefill(n, kTurn) : Step::decode(n));
    cpp->attend(0, prefill ? cpp_rows : Rows{}, cpp_rows, cpp_rows,
                prefill ? MutableRows::token_major(out.data() + kTurn * kWidth, DType::f32, 1, kWidth)
                        : MutableRows{});
    cpp->end();
  };
  for (std::int64_t t = 0; t < kStored; ++t) step(t, 1, false);
  step(kStored, kTurn / 2, true);
  step(kStored + kTurn / 2, kTurn / 2, true);
  expect_chunks(c, *cpp);
  ASSERT_EQ(seen.size(), 2U);
  EXPECT_TRUE(seen == cpp_seen);
  EXPECT_EQ(seen[1][7], kTurn / 4);
  EXPECT_GT(seen[1][8], kStored);
  headwater_close(c);
}

TEST(CInspection, LayersAndHeadsBeyond256) {
  constexpr std::int64_t kRows = 3;
  for (const auto& [layers, heads] : {std::pair<std::int64_t, std::int64_t>{300, 2}, {2, 300}}) {
    const headwater_shape shape{layers, heads, heads, 1, 1, kRows, HEADWATER_F32, 0};
    headwater_options options;
    ASSERT_EQ(headwater_options_init(&options, sizeof options), HEADWATER_OK);
    options.chunk = 1, options.clamp = 0, options.local = options.heavy = 1;
    headwater_session* c = nullptr;
    ASSERT_EQ(headwater_open(kEngine, &shape, &options, &c), HEADWATER_OK) << headwater_last_error();
    const std::vector<float> values = random_floats(layers * kRows * heads, 6);
    std::vector<float> out(static_cast<std::size_t>(kRows * heads));
    std::vector<Numbers> seen;
    ASSERT_EQ(headwater_set_observer(c, take, &seen), HEADWATER_OK);
    ASSERT_EQ(headwater_begin_prefill(c, kRows, 0), HEADWATER_OK);
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      const headwater_rows rows{values.data() + layer * kRows * heads, heads, 1, HEADWATER_F32, 0};
      const headwater_mutable_rows to{out.data(), heads, 1, HEADWATER_F32, 0};
      ASSERT_EQ(headwater_attend(c, layer, &rows, &rows, &rows, &to), HEADWATER_OK) << headwater_last_error();
      ASSERT_EQ(seen.back()[0], layer);
    }
    ASSERT_EQ(headwater_end(c), HEADWATER_OK);
    std::vector<const void*> places;
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      headwater_score_view scores;
      headwater_memory_view memory;
      ASSERT_EQ(headwater_scores(c, layer, &scores), HEADWATER_OK);
      ASSERT_EQ(headwater_memory(c, layer, &memory), HEADWATER_OK);
      places.insert(places.end(), {scores.data, memory.data});
      for (std::int64_t head = 0; head < heads; ++head) {
        float copied[kRows];
        ASSERT_EQ(headwater_copy_scores(c, layer, head, 0, kRows, copied), HEADWATER_OK);
        const auto* const bits = static_cast<const std::uint16_t*>(scores.data) + head * scores.head_stride;
        for (std::int64_t t = 0; t < kRows; ++t) {
          ASSERT_EQ(std::bit_cast<std::uint32_t>(copied[t]), std::uint32_t{bits[t]} << 16) << layer;
        }
        for (std::int64_t t = 0; t < kRows; ++t) {
          const float wanted = values[static_cast<std::size_t>((layer * kRows + t) * heads + head)];
          float row = 0;
          ASSERT_EQ(headwater_read_key(c, layer, head, t, &row, 1), HEADWATER_OK);
          ASSERT_EQ(row, wanted) << "layer " << layer << ", head " << head;
          ASSERT_EQ(headwater_read_value(c, layer, head, t, &row, 1), HEADWATER_OK);
          ASSERT_EQ(row, wanted) << "layer " << layer << ", head " << head;
        }
      }
    }
    // Views of another layer lie elsewhere.
    std::sort(places.begin(), places.end());
    EXPECT_TRUE(std::adjacent_find(places.begin(), places.end()) == places.end());
    headwater_close(c);
  }
}

// Options of each layer and head, and layers that are dense, in lists of 300.
TEST(COptions, ListsBeyond256) {
  constexpr std::int64_t kRows = 12;
  for (const auto& [layers, heads] : {std::pair<std::int64_t, std::int64_t>{300, 1}, {2, 300}}) {
    const headwater_shape shape{layers, heads, heads, 1, 1, kRows, HEADWATER_F32, 0};
    const std::vector<float> sinks = random_floats(heads, 7), slopes = random_floats(heads, 8);
    const std::vector<float> own_sinks = random_floats(layers * heads, 9);
    const float nothing = std::nanf("");
    std::vector<headwater_layer_options> own;
    std::vector<std::int64_t> dense;
    Options same;
    for (std::int64_t l = 0; l < layers; ++l) {
      const float* const at = l % 2 == 0 ? nullptr : own_sinks.data() + l * heads;
      own.push_back({l % 7, l % 3 == 0 ? nothing : 1.0 + static_cast<double>(l), nothing, at, 0, 0});
      LayerOptions& layer = same.layers.emplace_back();
      layer.window = l % 7;
      if (l % 3 != 0) layer.scale = 1.0 + static_cast<double>(l);
      if (at != nullptr) layer.sinks = std::vector<float>(at, at + heads);
      if (l % 16 != 3) dense.push_back(l);
    }
    same.chunk = 4, same.local = same.heavy = 1;
    same.sinks = sinks, same.alibi = slopes, same.dense_layers = dense;
    headwater_options options;
    ASSERT_EQ(headwater_options_init(&options, sizeof options), HEADWATER_OK);
    options.chunk = 4, options.local = options.heavy = 1;
    options.sinks = sinks.data(), options.alibi = slopes.data();
    options.layers = own.data(), options.layer_count = layers, options.layer_size = sizeof own[0];
    options.dense_layers = dense.data(), options.dense_layer_count = static_cast<std::int64_t>(dense.size());
    headwater_session* c = nullptr;
    ASSERT_EQ(headwater_open(kEngine, &shape, &options, &c), HEADWATER_OK) << headwater_last_error();
    const auto cpp = engine(kEngine).open({.n_layer = layers,
                                           .n_head = heads,
                                           .n_head_kv = heads,
                                           .d_head = 1,
                                           .d_value = 1,
                                           .capacity = kRows},
                                          same);
    const std::vector<float> values = random_floats(kRows * heads, 10);
    ASSERT_EQ(headwater_begin_prefill(c, kRows, 0), HEADWATER_OK);
    cpp->begin(Step::prefill(kRows));
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      std::vector<float> out(values.size()), cpp_out(values.size());
      const headwater_rows rows{values.data(), heads, 1, HEADWATER_F32, 0};
      const headwater_mutable_rows to{out.data(), heads, 1, HEADWATER_F32, 0};
      ASSERT_EQ(headwater_attend(c, layer, &rows, &rows, &rows, &to), HEADWATER_OK) << headwater_last_error();
      const Rows same_rows = Rows::token_major(values.data(), DType::f32, heads, 1);
      cpp->attend(layer, same_rows, same_rows, same_rows,
                  MutableRows::token_major(cpp_out.data(), DType::f32, heads, 1));
      ASSERT_EQ(out, cpp_out) << "layer " << layer;
    }
    headwater_close(c);
  }
}

TEST(COptions, NumbersBeyond65536) {
  const headwater_shape shape{1, 1, 1, 1, 1, 100, HEADWATER_F32, 0};
  headwater_options options;
  ASSERT_EQ(headwater_options_init(&options, sizeof options), HEADWATER_OK);
  options.batch = 300000, options.chunk = 280000, options.local = 66000, options.heavy = 547 * 256;
  options.select = HEADWATER_SELECT_BLOCKS;
  options.key_block = 256, options.query_block = options.pool = 140000;
  options.pinned = 258 * 256, options.dense_below = 1 << 30;
  options.page = 65536 + 256;
  headwater_session* c = nullptr;
  ASSERT_EQ(headwater_open(kEngine, &shape, &options, &c), HEADWATER_OK) << headwater_last_error();
  headwater_effective_options seen;
  ASSERT_EQ(headwater_session_options(c, &seen, sizeof seen), HEADWATER_OK);
  EXPECT_EQ(seen.batch, options.batch);
  EXPECT_EQ(seen.chunk, options.chunk);
  EXPECT_EQ(seen.local, options.local);
  EXPECT_EQ(seen.heavy, options.heavy);
  EXPECT_EQ(seen.key_block, options.key_block);
  EXPECT_EQ(seen.query_block, options.query_block);
  EXPECT_EQ(seen.pool, options.pool);
  EXPECT_EQ(seen.pinned, options.pinned);
  EXPECT_EQ(seen.dense_below, options.dense_below);
  EXPECT_EQ(seen.page, options.page);
  headwater_close(c);
}

TEST(CEstimate, BytesBeyondFourGiB) {
  const headwater_shape shape{80, 64, 8, 128, 128, 1000000, HEADWATER_F16, 0};
  headwater_memory_bytes opened, full;
  ASSERT_EQ(headwater_estimate(kEngine, &shape, nullptr, &opened, &full, sizeof full), HEADWATER_OK);
  const MemoryEstimate wanted = engine(kEngine).estimate({.n_layer = 80,
                                                          .n_head = 64,
                                                          .n_head_kv = 8,
                                                          .d_head = 128,
                                                          .d_value = 128,
                                                          .capacity = 1000000,
                                                          .kv_type = DType::f16},
                                                         {});
  EXPECT_GT(full.kv, std::int64_t{1} << 38);
  EXPECT_EQ(full.kv, wanted.full.kv);
  EXPECT_EQ(full.scores, wanted.full.scores);
  EXPECT_EQ(full.memory_sets, wanted.full.memory_sets);
  EXPECT_EQ(full.workspace, wanted.full.workspace);
  EXPECT_EQ(opened.kv, wanted.opened.kv);
  EXPECT_EQ(opened.scores, wanted.opened.scores);
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
