// LSE-1: log-sum-exps that the caller asks for.

#include <cstring>
#include <limits>

#include "tests/api/conversation.hpp"

namespace headwater::api_test {
namespace {

constexpr unsigned char kPoison = 0xA5;

/// Where the log-sum-exps of n rows and some heads lie in memory of their own.
struct Layout {
  bool head_major = false;
  std::int64_t pad = 0;
  std::size_t misalign = 0;
};

class LseMemory {
 public:
  LseMemory(std::int64_t n, std::int64_t heads, const Layout& layout)
      : n_(n),
        heads_(heads),
        misalign_(layout.misalign),
        row_stride_(layout.head_major ? 1 + layout.pad : heads * (1 + layout.pad)),
        head_stride_(layout.head_major ? n * (1 + layout.pad) + layout.pad : 1 + layout.pad),
        bytes_(misalign_ + 4 * static_cast<std::size_t>(n * row_stride_ + heads * head_stride_), kPoison) {}

  [[nodiscard]] LseOutput view() {
    return {reinterpret_cast<float*>(bytes_.data() + misalign_), row_stride_, head_stride_};
  }
  /// [heads][n]; what lies between them becomes poison, and `clean` false where it was not.
  [[nodiscard]] std::vector<float> take(bool& clean) {
    std::vector<float> values(static_cast<std::size_t>(heads_ * n_));
    for (std::int64_t h = 0; h < heads_; ++h) {
      for (std::int64_t t = 0; t < n_; ++t) {
        unsigned char* from =
            bytes_.data() + misalign_ + 4 * static_cast<std::size_t>(t * row_stride_ + h * head_stride_);
        std::memcpy(&values[static_cast<std::size_t>(h * n_ + t)], from, 4);
        std::memset(from, kPoison, 4);
      }
    }
    for (const unsigned char byte : bytes_) clean = clean && byte == kPoison;
    return values;
  }

 private:
  std::int64_t n_, heads_;
  std::size_t misalign_;
  std::int64_t row_stride_, head_stride_;
  std::vector<unsigned char> bytes_;
};

/// What observers are shown of a call, [heads][n].
struct Shown {
  explicit Shown(Session& session) {
    session.set_observer([this, &session](const ChunkRecord& record) {
      const std::int64_t heads = session.shape().n_head;
      const std::int64_t base = session.plan().front().begin;
      const std::int64_t n = session.plan().back().end - base;
      lse.resize(static_cast<std::size_t>(heads * n));
      for (std::int64_t h = 0; h < heads; ++h) {
        std::memcpy(lse.data() + h * n + record.chunk.begin - base, record.lse + h * record.row_stride,
                    static_cast<std::size_t>(record.chunk.end - record.chunk.begin) * 4);
      }
    });
  }
  std::vector<float> lse;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * 4) == 0);
}

class LseOf : public EachEngine {
 protected:
  void SetUp() override {
    if (!engine().claims().lse) GTEST_SKIP() << engine().name() << " does not claim it";
  }

  /// Four sessions: one that is asked for nothing, one with an observer, one that is asked, and one with both. Their
  /// outputs have the same bits, and so have their log-sum-exps. Returns those of layer 0 of the first step, [heads][n].
  std::vector<float> expect_shown(const Conversation& conversation, const Options& options,
                                  const std::vector<Step>& steps, const Layout& layout = {}) const {
    const Shape& shape = conversation.shape;
    std::vector<float> first;
    std::unique_ptr<Session> sessions[4];
    for (auto& session : sessions) session = engine().open(shape, options);
    Shown shown(*sessions[1]), also_shown(*sessions[3]);
    for (const Step& step : steps) {
      SCOPED_TRACE("step of " + std::to_string(step.n) + " tokens after " +
                   std::to_string(sessions[0]->tokens()));
      LseMemory asked(step.n, shape.n_head, layout), observed(step.n, shape.n_head, layout);
      for (auto& session : sessions) session->begin(step);
      for (std::int64_t layer = 0; layer < shape.n_layer; ++layer) {
        std::vector<float> out[4];
        for (std::size_t s = 0; s < 4; ++s) {
          out[s].resize(static_cast<std::size_t>(step.n * shape.n_head * shape.d_value));
          conversation.attend(*sessions[s], layer, out[s].data(),
                              s < 2 ? LseOutput{} : (s == 2 ? asked : observed).view());
          EXPECT_TRUE(same_bits(out[s], out[0]));
        }
        bool clean = true;
        const std::vector<float> lse = asked.take(clean);
        EXPECT_TRUE(same_bits(lse, shown.lse));
        EXPECT_TRUE(same_bits(observed.take(clean), lse));
        EXPECT_TRUE(same_bits(also_shown.lse, lse));
        EXPECT_TRUE(clean) << "written between the entries";
        if (first.empty()) first = lse;
      }
      for (auto& session : sessions) session->end();
    }
    return first;
  }
};

TEST_P(LseOf, LSE_1_BitsAreThoseOfTheObserver) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const Conversation conversation(type);
    for (const Select select : {Select::h2o, Select::blocks}) {
      for (const int threads : {1, 5})
        (void)expect_shown(conversation, conversation_options(select, threads), Conversation::steps());
    }
    Options dense = conversation_options(Select::h2o, 2);
    dense.dense = true;
    (void)expect_shown(conversation, dense, {Step::prefill(300), Step::decode(), Step::prefill(40)});
    Options dense_layer = conversation_options(Select::h2o, 2);
    dense_layer.dense_layers = {1};
    (void)expect_shown(conversation, dense_layer, {Step::prefill(300)});
  }
}

TEST_P(LseOf, LSE_1_EntriesLieWhereTheCallerSays) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const Conversation conversation(type);
    for (const Layout& layout :
         {Layout{true, 0, 0}, Layout{false, 2, 1}, Layout{true, 3, 2}, Layout{false, 0, 3}}) {
      (void)expect_shown(conversation, conversation_options(Select::h2o, 2), Conversation::steps(), layout);
    }
  }
}

// Bias, cap and sinks, and a row that sees no key: -infinity, or the sink alone.
TEST_P(LseOf, LSE_1_WithBiasCapSinksAndARowWithoutKeys) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  for (const DType type : {DType::f32, DType::bf16}) {
    const Conversation conversation(type, true);
    const std::vector<float> sinks = {0.5f, kNone, -1.0f, 2.0f, kNone, 0.0f};
    for (const bool sparse : {true, false}) {
      Options options = conversation_options(Select::h2o, 2);
      options.dense = !sparse;
      const std::vector<Step> steps = {Step::prefill(200), Step::decode(), Step::decode(9)};
      std::vector<float> lse = expect_shown(conversation, options, steps);
      for (std::size_t h = 0; h < 6; ++h) EXPECT_EQ(lse[h * 200], kNone);
      options.sinks = sinks;
      options.alibi = {0.5f, 0.25f, 0.0f, 0.125f, 0.01f, 1.0f};
      lse = expect_shown(conversation, options, steps);
      for (std::size_t h = 0; h < 6; ++h) EXPECT_EQ(lse[h * 200], sinks[h]);
      options.softcap = 20.0;
      (void)expect_shown(conversation, options, steps);
    }
  }
}

HEADWATER_EACH_ENGINE(LseOf);

class LseSizes : public LseOf {};

// Rows on each side of the blocks (32), groups (128), decoded rows (16 of 3 heads) and chunks (160) of the CPU engines.
TEST_P(LseSizes, LSE_1_OnEachSideOfEverySize) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const Conversation conversation(type);
    for (const int threads : {1, 5}) {
      const Options options = conversation_options(Select::h2o, threads);
      for (const std::int64_t n : {31, 32, 33, 127, 128, 129, 159, 160, 161, 321})
        (void)expect_shown(conversation, options, {Step::prefill(n), Step::decode(5), Step::decode(6)});
    }
    Options dense = conversation_options(Select::h2o, 2);
    dense.dense = true;
    for (const std::int64_t n : {1, 31, 32, 33, 127, 128, 129})
      (void)expect_shown(conversation, dense, {Step::prefill(n), Step::prefill(n)});
  }
}

TEST_P(LseSizes, LSE_1_OfMoreRowsThanAWindow) {
  Conversation conversation(DType::f32);
  conversation.shape = {
      .n_layer = 1, .n_head = 5, .n_head_kv = 1, .d_head = 4, .d_value = 4, .capacity = 4400};
  conversation.set_rows(random_input(conversation.shape, 4400, 5));
  Options options =
      conversation_options(Select::h2o, 2);  // in two phases, whose windows have 4096 rows at most
  options.batch = 4320;
  (void)expect_shown(conversation, options, {Step::prefill(4333), Step::decode()});
}

TEST_P(LseSizes, LSE_1_OfFortyHeads) {
  Conversation conversation(DType::f32);
  conversation.shape = {
      .n_layer = 1, .n_head = 40, .n_head_kv = 2, .d_head = 4, .d_value = 4, .capacity = 400};
  conversation.set_rows(random_input(conversation.shape, 400, 5));
  (void)expect_shown(conversation, conversation_options(Select::h2o, 2),
                     {Step::prefill(200), Step::decode(), Step::prefill(100)});
}

HEADWATER_EACH_ENGINE(LseSizes);

}  // namespace
}  // namespace headwater::api_test
