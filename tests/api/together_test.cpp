// SEQ-1 at the sizes of a server: more sequences than one region takes, of lengths on each side of what a context is cut
// into, beside prompts; and one of them interrupted.

#include <cstring>
#include <functional>
#include <random>

#include "tests/api/hosts.hpp"
#include "tests/api/problem.hpp"

namespace headwater::api_test {
namespace {

constexpr std::int64_t kLongest = 9001;
constexpr Shape kShape{.n_layer = 2,
                       .n_head = 4,
                       .n_head_kv = 2,
                       .d_head = 16,
                       .d_value = 12,
                       .capacity = kLongest + 8,
                       .kv_type = DType::f32};

/// A session, the same one to be called by itself, and what its step reads and writes.
struct Sequence {
  std::unique_ptr<Session> together;
  std::unique_ptr<Session> alone;
  Step step;
  std::int64_t row = 0;  ///< of the rows of all, where the step's begin
  std::vector<float> out, wanted, lse, wanted_lse;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

class ManyTogether : public EachEngine {
 protected:
  static Options options(int threads) {
    Options options;
    options.chunk = 64, options.batch = 16384, options.local = 16, options.heavy = 16;
    options.threads = threads;
    return options;
  }
  static const LayerInput& rows() {
    static const LayerInput input = random_input(kShape, kShape.capacity, 7);
    return input;
  }
  SequenceCall call_of(Session& session, std::int64_t layer, const Sequence& sequence,
                       std::vector<float>& out, std::vector<float>& lse) const {
    const std::int64_t n = sequence.step.n;
    SequenceCall call;
    call.session = &session;
    call.layer = layer;
    call.q = rows_from(rows().q, sequence.row, kShape.n_head, kShape.d_head);
    call.k = rows_from(rows().k, sequence.row, kShape.n_head_kv, kShape.d_head);
    call.v = rows_from(rows().v, sequence.row, kShape.n_head_kv, kShape.d_value);
    out.resize(static_cast<std::size_t>(kShape.n_layer * n * kShape.n_head * kShape.d_value), 9.0f);
    call.out = MutableRows::token_major(out.data() + layer * n * kShape.n_head * kShape.d_value, DType::f32,
                                        kShape.n_head, kShape.d_value);
    if (sequence.row % 2 == 0 || !engine().claims().lse) return call;
    lse.resize(static_cast<std::size_t>(n * kShape.n_head));
    call.lse = {lse.data(), kShape.n_head, 1};
    return call;
  }
  /// A session after `tokens` tokens, whose last step is still to come.
  Sequence sequence(const Options& options, std::int64_t tokens, const Step& step) const {
    Sequence made{.together = engine().open(kShape, options),
                  .alone = engine().open(kShape, options),
                  .step = step,
                  .row = tokens % 5,
                  .out = {},
                  .wanted = {},
                  .lse = {},
                  .wanted_lse = {}};
    for (Session* session : {made.together.get(), made.alone.get()}) {
      std::vector<float> out(static_cast<std::size_t>(tokens * kShape.n_head * kShape.d_value));
      if (tokens > 0) {
        session->begin(Step::prefill(tokens));
        for (std::int64_t layer = 0; layer < kShape.n_layer; ++layer) {
          session->attend(layer, rows_from(rows().q, 0, kShape.n_head, kShape.d_head),
                          rows_from(rows().k, 0, kShape.n_head_kv, kShape.d_head),
                          rows_from(rows().v, 0, kShape.n_head_kv, kShape.d_value),
                          MutableRows::token_major(out.data(), DType::f32, kShape.n_head, kShape.d_value));
        }
        session->end();
      }
      session->begin(step);
    }
    return made;
  }
  void attend_alone(Sequence& one) const {
    for (std::int64_t layer = 0; layer < kShape.n_layer; ++layer) {
      const SequenceCall call = call_of(*one.alone, layer, one, one.wanted, one.wanted_lse);
      one.alone->attend(layer, call.q, call.k, call.v, call.out, call.lse);
    }
    one.alone->end();
  }
  void attend_all(std::vector<Sequence>& sequences, std::int64_t layer) const {
    std::vector<SequenceCall> calls;
    for (Sequence& one : sequences) calls.push_back(call_of(*one.together, layer, one, one.out, one.lse));
    attend_together(calls);
  }
  void expect_as_alone(std::vector<Sequence>& sequences) const {
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      Sequence& one = sequences[i];
      attend_alone(one);
      EXPECT_TRUE(same_bits(one.out, one.wanted)) << "sequence " << i;
      EXPECT_TRUE(same_bits(one.lse, one.wanted_lse)) << "sequence " << i;
    }
  }
  /// Sessions after so many tokens, and `more` short ones.
  void expect_same_bits(const std::vector<std::int64_t>& lengths, std::size_t more) const {
    std::vector<Sequence> sequences;
    for (const std::int64_t tokens : lengths) {
      sequences.push_back(sequence(options(2), tokens, Step::decode(1 + tokens % 3)));
    }
    Options windows = options(2);
    windows.layers = std::vector<LayerOptions>(static_cast<std::size_t>(kShape.n_layer));
    windows.layers[1].window = 300;
    if (engine().claims().layers) sequences.push_back(sequence(windows, 700, Step::decode(1)));
    sequences.push_back(sequence(options(2), 70, Step::prefill(200)));
    sequences.push_back(sequence(options(1), 204, Step::decode(1)));  // on other threads
    sequences.push_back(sequence(options(2), 0, Step::prefill(130)));
    sequences.push_back(sequence(options(2), 0, Step::decode(1)));
    sequences.push_back(sequence(options(2), 8, Step::decode(8)));
    for (std::size_t i = 0; i < more; ++i) {
      sequences.push_back(sequence(options(2), 3 + static_cast<std::int64_t>(i), Step::decode(1)));
    }
    for (std::int64_t layer = 0; layer < kShape.n_layer; ++layer) attend_all(sequences, layer);
    for (Sequence& one : sequences) one.together->end();
    expect_as_alone(sequences);
  }
};

TEST_P(ManyTogether, SEQ_1_OtherLengthsHaveTheBitsOfEachAlone) {
  expect_same_bits({1, 60, 1100}, 0);
  expect_same_bits({1, 60}, 65);
}

// Whoever is interrupted at his k-th question: sessions that have failed are opened anew, and then all are as alone.
TEST_P(ManyTogether, SEQ_1_OneIsInterrupted) {
  if (!engine().claims().interrupt) GTEST_SKIP() << engine().name() << " does not claim it";
  bool through = false;
  for (std::int64_t k = 1; !through; ++k) {
    ASSERT_LT(k, 1000);
    std::vector<Sequence> sequences;
    for (const std::int64_t tokens : {1100, 60, 2100}) {
      sequences.push_back(sequence(options(2), tokens, Step::decode(1)));
    }
    std::int64_t asked = 0;
    sequences[1].together->set_interrupt([&] { return ++asked >= k; });
    try {
      attend_all(sequences, 0);
      through = true;
      EXPECT_GT(asked, 0);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::interrupted) << error.what();
      EXPECT_EQ(asked, k) << "asked again after the answer";
      EXPECT_TRUE(sequences[1].together->failed());
    }
    sequences[1].together->set_interrupt({});
    for (Sequence& one : sequences) {
      const bool failed = one.together->failed();
      if (failed) {
        one.together->abort();
        one.together->begin(one.step);
      }
      for (std::int64_t layer = failed || !through ? 0 : 1; layer < kShape.n_layer; ++layer) {
        const SequenceCall call = call_of(*one.together, layer, one, one.out, one.lse);
        try {
          attend_together({&call, 1});
        } catch (const Error& error) {  // it was done before another one was interrupted
          ASSERT_EQ(error.code(), ErrorCode::wrong_state) << error.what();
        }
      }
      one.together->end();
    }
    expect_as_alone(sequences);
  }
}
HEADWATER_EACH_ENGINE(ManyTogether);

class ManyTogetherSizes : public ManyTogether {};

// 1024 keys are a part of a context; 64 calls are dealt out together.
TEST_P(ManyTogetherSizes, SEQ_1_EachSideOfPartsAndGroups) {
  const std::vector<std::int64_t> lengths{kLongest, 1, 1023, 1024, 1025, 4095, 4096};
  for (const std::size_t more : {std::size_t{0}, std::size_t{52}, std::size_t{53}, std::size_t{120}}) {
    expect_same_bits(lengths, more);
  }
}
HEADWATER_EACH_ENGINE(ManyTogetherSizes);

}  // namespace
}  // namespace headwater::api_test
