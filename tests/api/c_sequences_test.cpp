// The C ABI of forks, rows of the caller, options of layers and several sequences: what the C++ API computes.

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "headwater/headwater.h"
#include "tests/api/problem.hpp"

namespace headwater::api_test {
namespace {

constexpr std::int64_t kFirst =
    700;  // tokens of the first step: a block table of pages of one row has more than 2^8 entries
constexpr std::int64_t kTokens = kFirst + 1;
constexpr std::int64_t kOut = 4 * 6;  // elements of a token's outputs

struct Handle {
  ~Handle() { headwater_close(session); }
  headwater_session* session = nullptr;
};

class CStoredRows : public ::testing::Test {
 protected:
  CStoredRows() : shape_(small_shape(kTokens)), input_(random_input(shape_, kTokens, 3)), table_(kTokens) {
    // Page of position p: p * 5 modulo 701, a prime.
    std::vector<float> keys(input_.k.size()), values(input_.v.size());
    for (std::int64_t p = 0; p < kTokens; ++p) {
      const std::int64_t page = p * 5 % kTokens;
      table_[static_cast<std::size_t>(p)] = static_cast<std::int32_t>(page);
      std::copy_n(input_.k.data() + p * 16, 16, keys.data() + page * 16);
      std::copy_n(input_.v.data() + p * 12, 12, values.data() + page * 12);
    }
    keys_ = keys, values_ = values;
    layers_[0] = {40, 0.5, std::nan(""), nullptr, 0, 0};
    layers_[1] = {0, std::nan(""), 3.0, sinks_, 0, 0};
    EXPECT_EQ(headwater_options_init(&options_, sizeof options_), HEADWATER_OK);
    options_.chunk = 100, options_.batch = 400, options_.local = 10, options_.heavy = 20,
    options_.threads = 2;
    options_.kv_owner = HEADWATER_KV_OF_CALLER;
    options_.layers = layers_, options_.layer_count = 2, options_.layer_size = sizeof layers_[0];
  }

  headwater_status open(Handle& handle) const {
    const headwater_shape shape{2, 4, 2, 8, 6, kTokens, HEADWATER_F32, 0};
    return headwater_open("cpu", &shape, &options_, &handle.session);
  }
  [[nodiscard]] headwater_stored_rows stored(std::int64_t tokens) const {
    return {sizeof(headwater_stored_rows),
            keys_.data(),
            values_.data(),
            tokens,
            16,
            8,
            12,
            6,
            table_.data(),
            tokens,
            1,
            kTokens,
            16,
            12};
  }
  [[nodiscard]] headwater_rows queries(std::int64_t first) const {
    return {input_.q.data() + first * 32, 32, 8, HEADWATER_F32, 0};
  }

  /// What the C++ API computes with rows of its own.
  [[nodiscard]] std::vector<float> wanted() const {
    Options options;
    options.chunk = 100, options.batch = 400, options.local = 10, options.heavy = 20, options.threads = 2;
    options.layers.resize(2);
    options.layers[0].window = 40, options.layers[0].scale = 0.5;
    options.layers[1].softcap = 3.0, options.layers[1].sinks = std::vector<float>(sinks_, sinks_ + 4);
    const auto session = engine("cpu").open(shape_, options);
    std::vector<float> out = run_step(*session, Step::prefill(kFirst), input_, 0);
    const std::vector<float> last = run_step(*session, Step::decode(), input_, kFirst);
    out.insert(out.end(), last.begin(), last.end());
    return out;
  }

  Shape shape_;
  LayerInput input_;
  std::vector<std::int32_t> table_;
  std::vector<float> keys_, values_;
  const float sinks_[4] = {0.5f, -1.0f, -std::numeric_limits<float>::infinity(), 2.0f};
  headwater_layer_options layers_[2];
  headwater_options options_;
};

TEST_F(CStoredRows, ROWS_1_AreThoseOfTheCppApi) {
  Handle parent;
  ASSERT_EQ(open(parent), HEADWATER_OK) << headwater_last_error();
  std::vector<float> out(static_cast<std::size_t>(2 * kTokens * kOut));
  float* to = out.data();
  ASSERT_EQ(headwater_begin_prefill(parent.session, kFirst, 0), HEADWATER_OK);
  const headwater_stored_rows rows = stored(kFirst);
  const headwater_rows q = queries(0);
  for (std::int64_t layer = 0; layer < 2; ++layer, to += kFirst * kOut) {
    const headwater_mutable_rows given{to, kOut, 6, HEADWATER_F32, 0};
    ASSERT_EQ(headwater_attend_stored(parent.session, layer, &q, &rows, &given, nullptr), HEADWATER_OK)
        << headwater_last_error();
  }
  ASSERT_EQ(headwater_end(parent.session), HEADWATER_OK);

  // A fork, and the parent beside it: the same token in one call.
  Handle fork;
  ASSERT_EQ(headwater_fork(parent.session, &fork.session), HEADWATER_OK) << headwater_last_error();
  std::vector<float> of_parent(2 * kOut);
  float lse[2][4];
  const headwater_stored_rows all = stored(kTokens);
  const headwater_rows last = queries(kFirst);
  ASSERT_EQ(headwater_begin_decode(parent.session, 1), HEADWATER_OK);
  ASSERT_EQ(headwater_begin_decode(fork.session, 1), HEADWATER_OK);
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    const headwater_mutable_rows first_out{of_parent.data() + layer * kOut, kOut, 6, HEADWATER_F32, 0};
    const headwater_mutable_rows second_out{to + layer * kOut, kOut, 6, HEADWATER_F32, 0};
    const headwater_lse_output sums[2] = {{lse[0], 4, 1}, {lse[1], 4, 1}};
    const headwater_sequence_call calls[2] = {
        {parent.session, layer, &last, nullptr, nullptr, &all, &first_out, &sums[0]},
        {fork.session, layer, &last, nullptr, nullptr, &all, &second_out, &sums[1]}};
    ASSERT_EQ(headwater_attend_together(calls, 2, sizeof calls[0]), HEADWATER_OK) << headwater_last_error();
    EXPECT_EQ(std::memcmp(lse[0], lse[1], sizeof lse[0]), 0);
  }
  ASSERT_EQ(headwater_end(parent.session), HEADWATER_OK);
  ASSERT_EQ(headwater_end(fork.session), HEADWATER_OK);
  const std::vector<float> right = wanted();
  ASSERT_EQ(right.size(), out.size());
  EXPECT_EQ(std::memcmp(right.data(), out.data(), out.size() * sizeof(float)), 0);
  EXPECT_EQ(std::memcmp(of_parent.data(), to, of_parent.size() * sizeof(float)), 0);
}

TEST_F(CStoredRows, SEQ_1_EachCallHasRowsOfItsOwn) {
  const LayerInput other = random_input(shape_, kTokens, 9);
  headwater_stored_rows rows[2] = {stored(kFirst), stored(kFirst)};
  rows[1].keys = other.k.data(), rows[1].values = other.v.data(), rows[1].table = nullptr;
  const headwater_rows q = queries(0);
  const auto size = static_cast<std::size_t>(2 * kFirst * kOut);
  std::vector<float> out[2][2];  // alone and together, of each
  for (const int together : {0, 1}) {
    Handle sessions[2];
    headwater_mutable_rows to[2];
    for (const int i : {0, 1}) {
      out[together][i].resize(size);
      ASSERT_EQ(open(sessions[i]), HEADWATER_OK) << headwater_last_error();
      ASSERT_EQ(headwater_begin_prefill(sessions[i].session, kFirst, 0), HEADWATER_OK);
    }
    for (std::int64_t layer = 0; layer < 2; ++layer) {
      headwater_sequence_call calls[2];
      for (const int i : {0, 1}) {
        to[i] = {out[together][i].data() + layer * kFirst * kOut, kOut, 6, HEADWATER_F32, 0};
        calls[i] = {sessions[i].session, layer, &q, nullptr, nullptr, &rows[i], &to[i], nullptr};
        if (together == 0) {
          ASSERT_EQ(headwater_attend_stored(sessions[i].session, layer, &q, &rows[i], &to[i], nullptr),
                    HEADWATER_OK);
        }
      }
      if (together == 1) {
        ASSERT_EQ(headwater_attend_together(calls, 2, sizeof calls[0]), HEADWATER_OK)
            << headwater_last_error();
      }
    }
    for (const Handle& one : sessions) ASSERT_EQ(headwater_end(one.session), HEADWATER_OK);
  }
  for (const int i : {0, 1}) EXPECT_TRUE(out[0][i] == out[1][i]) << i;
  EXPECT_FALSE(out[0][0] == out[0][1]);
}

TEST_F(CStoredRows, ROWS_1_WhatIsWrongIsNamed) {
  const auto expect_refused = [](headwater_status got, const char* named) {
    EXPECT_EQ(got, HEADWATER_INVALID_ARGUMENT);
    EXPECT_THAT(headwater_last_error(), testing::HasSubstr(named));
  };
  Handle session;
  options_.layer_count = 1;
  expect_refused(open(session), "options.layer_count");
  options_.layer_count = 2, options_.layer_size = offsetof(headwater_layer_options, d_head) - 8;
  expect_refused(open(session), "options.layer_size");
  options_.layer_size = sizeof layers_[0];
  layers_[1].window = -1;
  expect_refused(open(session), "layers[1].window");
  layers_[1].window = 0;
  layers_[1].d_head = 65537;
  expect_refused(open(session), "layers[1].d_head");
  layers_[1].d_head = 0, layers_[0].d_value = -1;
  expect_refused(open(session), "layers[0].d_value");
  layers_[0].d_value = 0;
  options_.page = 100;
  expect_refused(open(session), "page");
  options_.page = 0;
  options_.kv_owner = 2;
  expect_refused(open(session), "options.kv_owner");
  options_.kv_owner = HEADWATER_KV_OF_CALLER;
  ASSERT_EQ(open(session), HEADWATER_OK) << headwater_last_error();

  ASSERT_EQ(headwater_begin_prefill(session.session, kFirst, 0), HEADWATER_OK);
  std::vector<float> out(static_cast<std::size_t>(kFirst * kOut));
  headwater_stored_rows rows = stored(kFirst);
  const headwater_rows q = queries(0);
  const headwater_mutable_rows to{out.data(), kOut, 6, HEADWATER_F32, 0};
  const auto attend = [&](const headwater_stored_rows* given) {
    return headwater_attend_stored(session.session, 0, &q, given, &to, nullptr);
  };
  expect_refused(attend(nullptr), "rows");
  rows.struct_size = 8;
  expect_refused(attend(&rows), "rows.struct_size");
  rows = stored(kFirst);
  rows.table_size = kFirst - 1;
  expect_refused(attend(&rows), "rows.table_size");
  const headwater_sequence_call none{session.session, 0, &q, nullptr, nullptr, nullptr, &to, nullptr};
  expect_refused(headwater_attend_together(&none, 1, sizeof none), "calls[0].k");
  expect_refused(headwater_attend_together(&none, 0, sizeof none), "count");
  expect_refused(headwater_attend_together(&none, 4097, sizeof none), "count");
  expect_refused(headwater_attend_together(&none, 1, sizeof none - 8), "call_size");
  expect_refused(headwater_attend_together(nullptr, 1, sizeof none), "calls");
  Handle fork;
  EXPECT_EQ(headwater_fork(session.session, &fork.session), HEADWATER_WRONG_STATE);
  EXPECT_EQ(fork.session, nullptr);
  expect_refused(headwater_fork(session.session, nullptr), "forked");
  EXPECT_EQ(headwater_version()[0] - '0', HEADWATER_VERSION_NUMBER / 10000);
}

/// An entry of an array that a later version has made larger.
template <class T>
struct Later {
  T own;
  std::int64_t more;
};

// The first token of each: its output is its value.
TEST(CTogether, SEQ_1_ThreeHundredCalls) {
  constexpr std::size_t kCalls = 300;
  const headwater_shape shape{1, 1, 1, 1, 1, 4, HEADWATER_F32, 0};
  std::vector<Handle> sessions(kCalls);
  std::vector<float> values, out(kCalls), sums(kCalls);
  std::vector<headwater_rows> rows(kCalls);
  std::vector<headwater_mutable_rows> to(kCalls);
  std::vector<headwater_lse_output> lse(kCalls);
  std::vector<Later<headwater_sequence_call>> calls(kCalls);
  for (std::size_t i = 0; i < kCalls; ++i) values.push_back(static_cast<float>(i + 1));
  for (std::size_t i = 0; i < kCalls; ++i) {
    ASSERT_EQ(headwater_open("cpu", &shape, nullptr, &sessions[i].session), HEADWATER_OK);
    ASSERT_EQ(headwater_begin_decode(sessions[i].session, 1), HEADWATER_OK);
    rows[i] = {&values[i], 1, 1, HEADWATER_F32, 0};
    to[i] = {&out[i], 1, 1, HEADWATER_F32, 0};
    lse[i] = {&sums[i], 1, 1};
    calls[i] = {{sessions[i].session, 0, &rows[i], &rows[i], &rows[i], nullptr, &to[i], &lse[i]}, 0};
  }
  const auto attend = [&] { return headwater_attend_together(&calls[0].own, kCalls, sizeof calls[0]); };
  calls.back().own.v = nullptr;
  EXPECT_EQ(attend(), HEADWATER_INVALID_ARGUMENT);
  EXPECT_THAT(headwater_last_error(), testing::HasSubstr("calls[299].v"));
  calls.back().own.v = &rows.back();
  lse.back().data = nullptr;
  EXPECT_EQ(attend(), HEADWATER_INVALID_ARGUMENT);
  EXPECT_THAT(headwater_last_error(), testing::HasSubstr("calls[299].lse.data"));
  lse.back().data = &sums.back();
  ASSERT_EQ(attend(), HEADWATER_OK) << headwater_last_error();
  EXPECT_EQ(out, values);
  for (std::size_t i = 0; i < kCalls; ++i) {
    EXPECT_FLOAT_EQ(sums[i], values[i] * values[i]);  // of one logit, with scale 1
    EXPECT_EQ(headwater_end(sessions[i].session), HEADWATER_OK) << i;
  }
}

TEST(CLayers, LAYER_1_WidthsAreThoseOfTheLayer) {
  constexpr std::int64_t kRows = 300;
  const headwater_shape shape{2, 2, 1, 8, 6, kRows, HEADWATER_F32, 0};
  const Later<headwater_layer_options> layers[2] = {{{0, std::nan(""), std::nan(""), nullptr, 0, 0}, 0},
                                                    {{0, std::nan(""), std::nan(""), nullptr, 11, 9}, 0}};
  headwater_options options;
  ASSERT_EQ(headwater_options_init(&options, sizeof options), HEADWATER_OK);
  options.chunk = 100, options.local = 10, options.heavy = 20;
  options.layers = &layers[0].own, options.layer_count = 2, options.layer_size = sizeof layers[0];
  Handle handle;
  ASSERT_EQ(headwater_open("cpu", &shape, &options, &handle.session), HEADWATER_OK) << headwater_last_error();
  const LayerInput input = random_input({.n_head = 2, .n_head_kv = 1, .d_head = 11, .d_value = 9}, kRows, 7);

  // The layer as the only one of a session whose shape has its widths.
  const Shape alike{.n_head = 2, .n_head_kv = 1, .d_head = 11, .d_value = 9, .capacity = kRows};
  Options wished;
  wished.chunk = 100, wished.local = 10, wished.heavy = 20;
  const auto alone = engine("cpu").open(alike, wished);
  const std::vector<float> wanted = run_step(*alone, Step::prefill(kRows), input, 0);

  ASSERT_EQ(headwater_begin_prefill(handle.session, kRows, 0), HEADWATER_OK);
  std::vector<float> out(static_cast<std::size_t>(kRows * 18));
  const headwater_rows q{input.q.data(), 22, 11, HEADWATER_F32, 0};
  const headwater_rows k{input.k.data(), 11, 11, HEADWATER_F32, 0};
  const headwater_rows v{input.v.data(), 9, 9, HEADWATER_F32, 0};
  const headwater_mutable_rows to{out.data(), 18, 9, HEADWATER_F32, 0};
  ASSERT_EQ(headwater_attend(handle.session, 1, &q, &k, &v, &to), HEADWATER_OK) << headwater_last_error();
  EXPECT_EQ(std::memcmp(out.data(), wanted.data(), out.size() * sizeof(float)), 0);

  float row[11];
  ASSERT_EQ(headwater_read_key(handle.session, 1, 0, 299, row, 11), HEADWATER_OK) << headwater_last_error();
  EXPECT_EQ(std::memcmp(row, input.k.data() + 299 * 11, 11 * sizeof(float)), 0);
  ASSERT_EQ(headwater_read_value(handle.session, 1, 0, 299, row, 9), HEADWATER_OK);
  EXPECT_EQ(std::memcmp(row, input.v.data() + 299 * 9, 9 * sizeof(float)), 0);
  EXPECT_EQ(headwater_read_key(handle.session, 1, 0, 299, row, 8), HEADWATER_INVALID_ARGUMENT);
  EXPECT_THAT(headwater_last_error(), testing::HasSubstr("width is 8; allowed: 11"));
  for (const std::int64_t layer : {-1, 2}) {
    EXPECT_EQ(headwater_read_value(handle.session, layer, 0, 0, row, 6), HEADWATER_INVALID_ARGUMENT);
    EXPECT_THAT(headwater_last_error(), testing::HasSubstr("layer is " + std::to_string(layer)));
  }

  // Entries of the first size end before the widths, whatever lies there.
  options.layer_count = 1, options.layer_size = offsetof(headwater_layer_options, d_head);
  const headwater_shape one{1, 2, 1, 8, 6, kRows, HEADWATER_F32, 0};
  options.layers = &layers[1].own;
  Handle first_size;
  ASSERT_EQ(headwater_open("cpu", &one, &options, &first_size.session), HEADWATER_OK);
  ASSERT_EQ(headwater_begin_decode(first_size.session, 1), HEADWATER_OK);
  EXPECT_EQ(headwater_read_key(first_size.session, 0, 0, 0, row, 8), HEADWATER_INVALID_ARGUMENT);
  EXPECT_THAT(headwater_last_error(), testing::HasSubstr("position is 0"));
}

// As many sequences as one call takes, each with rows of its own, every second one the caller's: two tokens, of which the
// second one sees the first, by the formula. One more is refused, and so is a last one that is wrong, with its number.
TEST(CTogetherSizes, SEQ_1_AsManySequencesAsACallTakes) {
  constexpr std::size_t kMost = 4096;
  const headwater_shape shape{1, 1, 1, 1, 1, 2, HEADWATER_F32, 0};
  headwater_options options;
  ASSERT_EQ(headwater_options_init(&options, sizeof options), HEADWATER_OK);
  options.batch = options.chunk = 2, options.local = options.heavy = 0, options.threads = 1;
  std::vector<Handle> handles(kMost + 1);
  for (std::size_t i = 0; i < handles.size(); ++i) {
    options.kv_owner = i % 2 == 1 ? HEADWATER_KV_OF_CALLER : HEADWATER_KV_OF_SESSION;
    ASSERT_EQ(headwater_open("cpu", &shape, &options, &handles[i].session), HEADWATER_OK)
        << headwater_last_error();
  }
  const LayerInput input =
      random_input({.n_head = 1, .n_head_kv = 1, .d_head = 1, .d_value = 1}, 2 * kMost + 2, 4);
  std::vector<float> out(2 * kMost + 2, 9.0F);
  for (std::size_t token = 0; token < 2; ++token) {
    std::vector<headwater_rows> rows;
    std::vector<headwater_mutable_rows> outs;
    std::vector<headwater_stored_rows> stored;
    std::vector<headwater_sequence_call> calls;
    rows.reserve(3 * handles.size());
    outs.reserve(handles.size());
    stored.reserve(handles.size());
    for (std::size_t i = 0; i < handles.size(); ++i) {
      const std::size_t row = 2 * i + token;
      ASSERT_EQ(headwater_begin_decode(handles[i].session, 1), HEADWATER_OK);
      for (const auto* const from : {&input.q, &input.k, &input.v}) {
        rows.push_back({from->data() + row, 1, 1, HEADWATER_F32, 0});
      }
      outs.push_back({out.data() + row, 1, 1, HEADWATER_F32, 0});
      const headwater_rows* const own = rows.data() + 3 * i;
      stored.push_back({sizeof(headwater_stored_rows), input.k.data() + 2 * i, input.v.data() + 2 * i,
                        static_cast<std::int64_t>(token + 1), 1, 1, 1, 1, nullptr, 0, 0, 0, 0, 0});
      calls.push_back({handles[i].session, 0, own, own + 1, own + 2, i % 2 == 1 ? &stored[i] : nullptr,
                       &outs[i], nullptr});
    }
    const auto refused = [&](std::int64_t count, const char* named) {
      EXPECT_EQ(headwater_attend_together(calls.data(), count, sizeof calls[0]), HEADWATER_INVALID_ARGUMENT);
      EXPECT_THAT(headwater_last_error(), testing::HasSubstr(named));
    };
    refused(kMost + 1, "count is 4097; allowed: 1 .. 4096");
    headwater_sequence_call right = std::exchange(calls[kMost - 1], calls[255]);
    refused(kMost, "calls[4095]: session is that of calls[255], too");
    calls[kMost - 1] = right;
    calls[kMost - 1].layer = 1;
    refused(kMost, "calls[4095]: layer is 1");
    calls[kMost - 1] = right;
    ASSERT_EQ(headwater_attend_together(calls.data(), kMost, sizeof calls[0]), HEADWATER_OK)
        << headwater_last_error();
    for (std::size_t i = 0; i < kMost; ++i) ASSERT_EQ(headwater_end(handles[i].session), HEADWATER_OK);
    ASSERT_EQ(headwater_abort(handles[kMost].session), HEADWATER_OK);
  }
  for (std::size_t i = 0; i < kMost; ++i) {
    const auto at = [i](const std::vector<float>& values, std::size_t token) {
      return static_cast<double>(values[2 * i + token]);
    };
    EXPECT_EQ(out[2 * i], input.v[2 * i]) << i;
    const double first = std::exp(at(input.q, 1) * at(input.k, 0));
    const double second = std::exp(at(input.q, 1) * at(input.k, 1));
    ASSERT_NEAR(out[2 * i + 1], (first * at(input.v, 0) + second * at(input.v, 1)) / (first + second), 1e-5)
        << i;
  }
  EXPECT_EQ(out[2 * kMost], 9.0F) << "a call that was refused";
}

}  // namespace
}  // namespace headwater::api_test
