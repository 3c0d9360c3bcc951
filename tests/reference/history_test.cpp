#include "reference/history.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "reference/engine.hpp"
#include "tests/reference/support.hpp"

/// Sessions that go back: abort, truncate, interrupt. What is left is compared with a session that was given no more.
/// Clauses: STATE-8, STATE-9, STATE-10, INTR-1, LSE-1.
namespace headwater::reference {
namespace {

using test::error_of;
using test::expect_error;
using test::kNaNF;

constexpr std::int64_t kCapacity = 48;

Shape two_layers() {
  Shape shape;
  shape.n_layer = 2;
  shape.n_head = 4;
  shape.n_head_kv = 2;
  shape.d_head = 2;
  shape.d_value = 3;
  shape.capacity = kCapacity;
  return shape;
}

/// Rule, checkpoints, schedule.
using Setting = std::tuple<Select, std::int64_t, Schedule>;

Options options_of(const Setting& setting) {
  Options options;
  options.batch = 8;
  options.chunk = 4;
  options.local = 1;
  options.heavy = 2;
  std::tie(options.select, options.checkpoints, options.schedule) = setting;
  options.key_block = 1;
  options.query_block = 2;
  options.pool = 1;
  return options;
}

Options options_of(std::int64_t checkpoints) {
  return options_of({Select::h2o, checkpoints, Schedule::layer_major});
}

using Planned = std::tuple<std::int64_t, std::int64_t, ChunkMode>;

std::vector<Planned> planned(std::span<const Chunk> chunks) {
  std::vector<Planned> all;
  for (const Chunk& chunk : chunks) all.emplace_back(chunk.begin, chunk.end, chunk.mode);
  return all;
}

/// All that a session shows of itself.
struct Seen {
  SessionState state{};
  std::int64_t tokens = 0;
  bool failed = false;
  std::vector<Planned> chunks, plan;
  std::vector<std::uint16_t> scores;
  std::vector<std::int32_t> sets;
  std::vector<std::int64_t> counts;
  std::vector<float> rows;

  bool operator==(const Seen& other) const = default;
};

Seen look_at(const Session& session) {
  Seen seen{session.state(),
            session.tokens(),
            session.failed(),
            planned(session.chunks()),
            planned(session.plan()),
            {},
            {},
            {},
            {}};
  const Shape& shape = session.shape();
  std::vector<float> key(static_cast<std::size_t>(shape.d_head));
  std::vector<float> value(static_cast<std::size_t>(shape.d_value));
  for (std::int64_t layer = 0; layer < shape.n_layer; ++layer) {
    const auto* scores = static_cast<const std::uint16_t*>(session.scores(layer).data);
    seen.scores.insert(seen.scores.end(), scores, scores + shape.n_head * shape.capacity);
    const MemoryView memory = session.memory(layer);
    seen.sets.insert(seen.sets.end(), memory.data, memory.data + shape.n_head * memory.width);
    seen.counts.push_back(memory.count);
    for (std::int64_t p = 0; p < session.tokens(); ++p) {
      for (std::int64_t g = 0; g < shape.n_head_kv; ++g) {
        session.read_key(layer, g, p, key);
        session.read_value(layer, g, p, value);
        seen.rows.insert(seen.rows.end(), key.begin(), key.end());
        seen.rows.insert(seen.rows.end(), value.begin(), value.end());
      }
    }
  }
  return seen;
}

/// A session that is fed the same rows at the same positions, whichever way it came there; each layer its own.
struct Player {
  std::unique_ptr<Session> session;
  std::vector<float> q, k, v, out;

  explicit Player(const Options& options, std::uint64_t seed = 5)
      : session(reference_engine().open(two_layers(), options)) {
    const Shape& s = session->shape();
    test::Numbers numbers(seed);
    q = numbers.floats(s.n_layer * s.capacity * s.n_head * s.d_head, 2.0F);
    k = numbers.floats(s.n_layer * s.capacity * s.n_head_kv * s.d_head, 2.0F);
    v = numbers.floats(s.n_layer * s.capacity * s.n_head_kv * s.d_value);
    out.assign(static_cast<std::size_t>(s.n_layer * s.capacity * s.n_head * s.d_value), kNaNF);
  }
  void attend(std::int64_t layer, const LseOutput& lse = {}) {
    const Shape& s = session->shape();
    const std::int64_t p = layer * s.capacity + session->tokens();
    session->attend(
        layer, Rows::token_major(q.data() + p * s.n_head * s.d_head, DType::f32, s.n_head, s.d_head),
        Rows::token_major(k.data() + p * s.n_head_kv * s.d_head, DType::f32, s.n_head_kv, s.d_head),
        Rows::token_major(v.data() + p * s.n_head_kv * s.d_value, DType::f32, s.n_head_kv, s.d_value),
        MutableRows::token_major(out.data() + p * s.n_head * s.d_value, DType::f32, s.n_head, s.d_value),
        lse);
  }
  void attend_all() {
    for (std::int64_t layer = session->shape().n_layer; layer-- > 0;) attend(layer);
  }
  void run(const Step& step) {
    session->begin(step);
    attend_all();
    session->end();
  }
  void run(const std::vector<Step>& steps) {
    for (const Step& step : steps) run(step);
  }
  void forget_outputs() { std::fill(out.begin(), out.end(), kNaNF); }
  /// The rows that a step stores and attends with are other ones.
  void change_rows() {
    for (std::vector<float>* rows : {&q, &k, &v}) {
      for (float& value : *rows) value = 0.75F - value;
    }
  }
};

/// The length of the turn that runs, as it shows in the message of a call that says another one; empty where the call
/// opens a turn of its own.
std::string turn_length(Session& session) {
  try {
    session.begin(Step::prefill(1, 1000));
  } catch (const Error& error) {
    return error.what();
  }
  session.abort();
  return {};
}

/// Both sessions go the same way from here.
void expect_same(Player& a, Player& b) {
  ASSERT_EQ(look_at(*a.session), look_at(*b.session));
  EXPECT_EQ(turn_length(*a.session), turn_length(*b.session));
  a.forget_outputs();
  b.forget_outputs();
  for (const Step& step : {Step::prefill(6), Step::decode(2), Step::prefill(5)}) {
    a.run(step);
    b.run(step);
    EXPECT_EQ(look_at(*a.session), look_at(*b.session));
  }
  const auto same = [](float x, float y) { return x == y || (x != x && y != y); };
  EXPECT_TRUE(std::equal(a.out.begin(), a.out.end(), b.out.begin(), same));
}

/// Sparse in two calls (3 and 2 chunks), decoding, a dense turn, decoding, a sparse turn (3 chunks): 32 tokens.
const std::vector<Step> kTurns{Step::prefill(11, 17), Step::prefill(6), Step::decode(2),
                               Step::prefill(3),      Step::decode(1),  Step::prefill(9)};
constexpr std::int64_t kTokens = 32;

/// The steps of the first n tokens; a call that opens a turn says the length that the turn has.
std::vector<Step> first_tokens(const std::vector<Step>& all, std::int64_t n) {
  std::vector<Step> steps;
  bool in_turn = false;
  for (Step step : all) {
    const bool prefill = step.kind == Step::Kind::prefill;
    if (prefill && !in_turn && step.turn_length == 0) step.turn_length = step.n;
    in_turn = prefill;
    step.n = std::min(step.n, n);
    n -= step.n;
    if (step.n > 0) steps.push_back(step);
  }
  return steps;
}

/// STATE-10, once all steps have ended.
bool settled(std::span<const Chunk> chunks, const Chunk& chunk, const Options& options) {
  if (chunk.mode != ChunkMode::sparse || options.select == Select::blocks) return false;
  const auto after = std::count_if(chunks.begin(), chunks.end(), [&](const Chunk& other) {
    return other.mode == ChunkMode::sparse && other.begin > chunk.begin;
  });
  return after >= options.checkpoints;
}

/// STATE-10: no sparse chunk holds n inside, or none has to be whole.
bool possible_inside(std::span<const Chunk> chunks, const Options& options, std::int64_t n) {
  return options.select == Select::blocks ||
         std::none_of(chunks.begin(), chunks.end(), [&](const Chunk& chunk) {
           return chunk.mode == ChunkMode::sparse && chunk.begin < n && n < chunk.end;
         });
}

/// STATE-10, of a session whose steps have all ended and that was never truncated.
bool possible(std::span<const Chunk> chunks, const Options& options, std::int64_t n) {
  if (n == 0) return true;
  return possible_inside(chunks, options, n) &&
         std::none_of(chunks.begin(), chunks.end(),
                      [&](const Chunk& chunk) { return settled(chunks, chunk, options) && n < chunk.end; });
}

/// Ways to end up with an open or a failed step.
const std::vector<std::function<void(Player&, const Step&)>> kOpenSteps{
    [](Player& player, const Step& step) { player.session->begin(step); },
    [](Player& player, const Step& step) {
      player.session->begin(step);
      player.attend(1);
    },
    [](Player& player, const Step& step) {
      player.session->begin(step);
      player.attend_all();
    },
    [](Player& player, const Step& step) {
      player.session->begin(step);
      player.attend(0);
      expect_error(ErrorCode::wrong_state, {"already"}, [&] { player.attend(0); });
      EXPECT_TRUE(player.session->failed());
    },
    [](Player& player, const Step& step) {
      player.session->begin(step);
      player.attend(0);
      expect_error(ErrorCode::wrong_state, {"end()"}, [&] { player.session->end(); });
      EXPECT_TRUE(player.session->failed());
    },
    [](Player& player, const Step& step) {
      player.session->begin(step);
      player.attend(1);
      expect_error(ErrorCode::wrong_state, {"begin()"}, [&] { player.session->begin(step); });
      expect_error(ErrorCode::wrong_state, {"abort()", "reset()"}, [&] { player.session->begin(step); });
    }};

class Back : public testing::TestWithParam<Setting> {
 protected:
  Options options_ = options_of(GetParam());
};

TEST_P(Back, STATE_9_STATE_10_TruncatedToEveryN) {
  std::vector<std::int64_t> allowed;
  for (const std::vector<std::int64_t>& dense_layers : {std::vector<std::int64_t>{}, {0}}) {
    options_.dense_layers = dense_layers;
    allowed.clear();
    for (std::int64_t n = 0; n <= kTokens; ++n) {
      SCOPED_TRACE(n);
      Player player(options_);
      player.run(kTurns);
      ASSERT_EQ(player.session->tokens(), kTokens);
      if (possible(player.session->chunks(), options_, n)) {
        allowed.push_back(n);
        player.session->truncate(n);
        Player fresh(options_);
        fresh.run(first_tokens(kTurns, n));
        expect_same(player, fresh);
      } else {
        const Seen before = look_at(*player.session);
        expect_error(ErrorCode::invalid_argument,
                     {"n = " + std::to_string(n) + " ", "0, or", " to 32 ",
                      "checkpoints = " + std::to_string(options_.checkpoints)},
                     [&] { player.session->truncate(n); });
        EXPECT_EQ(look_at(*player.session), before);
      }
    }
  }
  if (options_.select == Select::blocks) {
    EXPECT_EQ(allowed.size(), 33U);
  } else if (options_.checkpoints == 5) {
    EXPECT_EQ(allowed, (std::vector<std::int64_t>{0, 11, 15, 17, 18, 19, 20, 21, 22, 23, 27, 31, 32}));
  } else if (options_.checkpoints == 0) {
    EXPECT_EQ(allowed, (std::vector<std::int64_t>{0, 32}));
  }
}

TEST_P(Back, STATE_9_TruncatedAgainAndAgain) {
  Player player(options_);
  player.run(kTurns);
  const std::vector<Chunk> chunks(player.session->chunks().begin(), player.session->chunks().end());
  for (std::int64_t n = kTokens; n-- > 1;) {
    if (!possible(chunks, options_, n)) continue;
    SCOPED_TRACE(n);
    player.session->truncate(n);
    Player fresh(options_);
    fresh.run(first_tokens(kTurns, n));
    EXPECT_EQ(look_at(*player.session), look_at(*fresh.session));
    player.change_rows();
    player.run(Step::decode(3));  // settles nothing
    player.change_rows();
    player.session->truncate(n);
    EXPECT_EQ(look_at(*player.session), look_at(*fresh.session));
  }
}

/// Steps, aborted steps and truncations at random, with a plain account of the steps that are left and of what is
/// settled.
TEST_P(Back, STATE_8_STATE_9_STATE_10_RandomWays) {
  test::Numbers numbers(11);
  int truncated = 0;
  int refused = 0;
  for (int way = 0; way < 20; ++way) {
    SCOPED_TRACE(way);
    Player player(options_);
    std::vector<Step> left;
    std::int64_t settled_end = 0;
    for (int move = 0; move < 12; ++move) {
      const std::int64_t stored = player.session->tokens();
      const bool in_turn = player.session->state() == SessionState::prefilling;
      Step step =
          numbers.below(3) == 0 ? Step::decode(1 + numbers.below(2)) : Step::prefill(1 + numbers.below(11));
      if (step.kind == Step::Kind::prefill && !in_turn) step.turn_length = step.n + numbers.below(4);
      const bool fits = step.n <= kCapacity - stored;
      const std::int64_t kind = numbers.below(4);
      if (kind < 2 && fits) {
        player.run(step);
        left.push_back(step);
        const std::span<const Chunk> chunks = player.session->chunks();
        for (const Chunk& chunk : chunks) {
          if (settled(chunks, chunk, options_)) settled_end = std::max(settled_end, chunk.end);
        }
      } else if (kind == 2 && fits) {
        player.change_rows();
        kOpenSteps[static_cast<std::size_t>(numbers.below(6))](player, step);
        player.change_rows();
        player.session->abort();
      } else {
        const std::int64_t n = numbers.below(stored + 1);
        if (n == 0 || (n >= settled_end && possible_inside(player.session->chunks(), options_, n))) {
          player.session->truncate(n);
          left = first_tokens(left, n);
          if (n == 0) settled_end = 0;
          ++truncated;
        } else {
          expect_error(ErrorCode::invalid_argument, {" " + std::to_string(settled_end) + " to "},
                       [&] { player.session->truncate(n); });
          ++refused;
        }
      }
      Player fresh(options_);
      fresh.run(left);
      ASSERT_EQ(look_at(*player.session), look_at(*fresh.session));
    }
    Player fresh(options_);
    fresh.run(left);
    player.session->truncate(player.session->tokens());
    if (player.session->tokens() + 13 <= kCapacity) expect_same(player, fresh);
  }
  EXPECT_GT(truncated, 20);
  EXPECT_EQ(refused > 0, options_.select == Select::h2o);
}

TEST_P(Back, STATE_8_AbortedStepsNeverWere) {
  for (std::size_t s = 0; s < kTurns.size(); ++s) {
    SCOPED_TRACE(s);
    const std::vector<Step> steps(kTurns.begin(), kTurns.begin() + static_cast<std::ptrdiff_t>(s));
    Player fresh(options_);
    fresh.run(steps);
    Player player(options_);
    player.run(steps);
    for (const auto& open_step : kOpenSteps) {
      player.change_rows();
      open_step(player, kTurns[s]);
      player.change_rows();
      player.session->abort();
      EXPECT_EQ(look_at(*player.session), look_at(*fresh.session));
    }
    expect_same(player, fresh);
  }
}

TEST_P(Back, STATE_8_WhatAnObserverThrewCanBeAborted) {
  Player player(options_);
  player.run(kTurns[0]);
  const Seen before = look_at(*player.session);
  int records = 0;
  for (int k = 0; k < 2; ++k) {
    records = 0;
    player.session->set_observer([&](const ChunkRecord&) {
      if (records++ == k) throw std::runtime_error("seen enough");
    });
    player.session->begin(kTurns[1]);
    EXPECT_THROW(player.attend(1), std::runtime_error);
    EXPECT_TRUE(player.session->failed());
    player.session->abort();
    EXPECT_EQ(look_at(*player.session), before);
  }
  player.session->set_observer({});
  Player fresh(options_);
  fresh.run(kTurns[0]);
  expect_same(player, fresh);
}

TEST_P(Back, INTR_1_InterruptedAtEveryQuestion) {
  for (std::size_t s = 0; s < kTurns.size(); ++s) {
    SCOPED_TRACE(s);
    const std::vector<Step> steps(kTurns.begin(), kTurns.begin() + static_cast<std::ptrdiff_t>(s));
    Player fresh(options_);
    fresh.run(steps);
    Player player(options_);
    player.run(steps);
    std::int64_t stop_at = 1;
    std::int64_t asked = 0;
    player.session->set_interrupt([&] { return ++asked == stop_at; });
    for (bool stopped = true; stopped; ++stop_at) {
      asked = 0;
      player.session->begin(kTurns[s]);
      try {
        player.attend(1);
        stopped = false;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::interrupted);
        const std::string message = error.what();
        EXPECT_NE(message.find("layer 1"), std::string::npos) << message;
        EXPECT_NE(message.find("abort() or reset()"), std::string::npos) << message;
        EXPECT_EQ(message.find('\n'), std::string::npos) << message;
        EXPECT_EQ(asked, stop_at);
        EXPECT_TRUE(player.session->failed());
      }
      if (stopped) {
        expect_error(ErrorCode::wrong_state, {"abort()", "reset()"}, [&] { player.attend(0); });
      }
      player.session->abort();
      EXPECT_EQ(look_at(*player.session), look_at(*fresh.session));
    }
    stop_at = 0;  // never
    expect_same(player, fresh);
  }
}

TEST_P(Back, INTR_1_AsksBeforeTheFirstChunkAndForEachOne) {
  Player player(options_);
  player.run(kTurns[0]);
  player.forget_outputs();
  player.session->set_interrupt([] { return true; });
  player.session->begin(kTurns[1]);
  expect_error(ErrorCode::interrupted, {"attend()"}, [&] { player.attend(0); });
  EXPECT_TRUE(std::all_of(player.out.begin(), player.out.end(), [](float x) { return x != x; }));
  player.session->reset();

  std::int64_t asked = 0;
  std::vector<std::int64_t> asked_for_chunk;
  player.session->set_interrupt([&] {
    ++asked;
    return false;
  });
  player.session->set_observer([&](const ChunkRecord&) {
    asked_for_chunk.push_back(asked);
    asked = 0;
  });
  for (const Step& step : kTurns) {
    asked_for_chunk.clear();
    player.run(step);
    EXPECT_EQ(asked_for_chunk.size(), player.session->plan().size() * 2);  // layers
    for (const std::int64_t times : asked_for_chunk) EXPECT_GE(times, 2);  // key/value heads
  }
  player.session->set_interrupt({});
  asked = 0;
  player.run(Step::decode());
  EXPECT_EQ(asked, 0);
}

TEST_P(Back, INTR_1_WhatTheInterruptThrowsComesThrough) {
  Player player(options_);
  player.run(kTurns[0]);
  const Seen before = look_at(*player.session);
  player.session->set_interrupt([]() -> bool { throw std::runtime_error("the question itself"); });
  player.session->begin(kTurns[1]);
  EXPECT_THROW(player.attend(0), std::runtime_error);
  EXPECT_TRUE(player.session->failed());
  player.session->abort();
  EXPECT_EQ(look_at(*player.session), before);
}

INSTANTIATE_TEST_SUITE_P(Settings, Back,
                         testing::Values(Setting{Select::h2o, 0, Schedule::layer_major},
                                         Setting{Select::h2o, 1, Schedule::layer_major},
                                         Setting{Select::h2o, 3, Schedule::chunk_major},
                                         Setting{Select::h2o, 5, Schedule::layer_major},
                                         Setting{Select::h2o, 65536, Schedule::layer_major},
                                         Setting{Select::blocks, 0, Schedule::layer_major},
                                         Setting{Select::blocks, 3, Schedule::chunk_major}));

TEST(History, STATE_8_AbortNeedsAnOpenStep) {
  Player player(options_of(1));
  const auto refused = [&] {
    const Seen before = look_at(*player.session);
    expect_error(ErrorCode::wrong_state, {"abort()", "begin()"}, [&] { player.session->abort(); });
    EXPECT_EQ(look_at(*player.session), before);
  };
  refused();
  player.run(Step::prefill(6));
  refused();
  expect_error(ErrorCode::capacity_exceeded, {"n = 99"}, [&] { player.session->begin(Step::decode(99)); });
  refused();
  player.session->begin(Step::decode());
  player.session->abort();
  refused();
  player.session->begin(Step::decode());
  player.session->reset();
  refused();
}

TEST(History, STATE_9_TruncateInAnOpenStepLeavesItOpen) {
  Player player(options_of(1));
  Player other(options_of(1));
  other.run({Step::prefill(8), Step::decode()});
  player.run(Step::prefill(8));
  player.session->begin(Step::decode());
  player.attend(1);
  for (const std::int64_t n : {0, 4, 8, 99}) {
    expect_error(ErrorCode::wrong_state, {"truncate()", "end()", "abort()"},
                 [&] { player.session->truncate(n); });
  }
  EXPECT_FALSE(player.session->failed());
  player.attend(0);
  player.session->end();
  expect_same(player, other);

  player.session->begin(Step::decode());
  expect_error(ErrorCode::wrong_state, {"end()"}, [&] { player.session->end(); });
  expect_error(ErrorCode::wrong_state, {"abort()", "reset()"}, [&] { player.session->truncate(0); });
  EXPECT_TRUE(player.session->failed());
}

TEST(History, STATE_9_OnlyTokensThatAreStored) {
  for (const Select select : {Select::h2o, Select::blocks}) {
    Player player(options_of({select, 0, Schedule::layer_major}));
    player.run(Step::prefill(6));
    const Seen before = look_at(*player.session);
    for (const std::int64_t n : {-1, 7}) {
      expect_error(ErrorCode::invalid_argument, {"n = " + std::to_string(n), "0 to 6"},
                   [&] { player.session->truncate(n); });
    }
    EXPECT_EQ(look_at(*player.session), before);
  }
}

TEST(History, STATE_9_TruncatedToNothingIsReset) {
  Player player(options_of(2));
  player.session->truncate(0);
  EXPECT_EQ(player.session->state(), SessionState::empty);
  player.run(kTurns);
  player.session->truncate(0);
  EXPECT_EQ(player.session->state(), SessionState::empty);
  EXPECT_TRUE(player.session->plan().empty());
  Player fresh(options_of(2));
  expect_same(player, fresh);
}

TEST(History, STATE_9_ATurnKeepsItsLengthAndMode) {
  Player player(options_of(5));
  player.run(kTurns);
  player.session->truncate(15);
  expect_error(ErrorCode::invalid_argument, {"turn_length = 18", "17"},
               [&] { player.session->begin(Step::prefill(2, 18)); });
  player.session->begin(Step::prefill(2, 17));
  EXPECT_EQ(planned(player.session->plan()), (std::vector<Planned>{{15, 17, ChunkMode::sparse}}));
  player.session->abort();
  EXPECT_EQ(planned(player.session->plan()), (std::vector<Planned>{{11, 15, ChunkMode::sparse}}));

  // In a dense turn of 3 tokens: what follows is dense too, and it has that length.
  Player dense(options_of(5));
  dense.run(kTurns);
  dense.session->truncate(20);
  EXPECT_EQ(planned(dense.session->plan()), (std::vector<Planned>{{19, 20, ChunkMode::dense}}));
  dense.session->begin(Step::prefill(9, 3));
  EXPECT_EQ(planned(dense.session->plan()), (std::vector<Planned>{{20, 29, ChunkMode::dense}}));
  dense.session->abort();

  // After a decode step of 2 tokens, one of them left, a turn opens.
  dense.session->truncate(18);
  EXPECT_EQ(dense.session->state(), SessionState::decoding);
  dense.session->begin(Step::prefill(5));
  EXPECT_EQ(planned(dense.session->plan()),
            (std::vector<Planned>{{18, 22, ChunkMode::sparse}, {22, 23, ChunkMode::sparse}}));
}

TEST(History, STATE_10_SettledStaysSettled) {
  Player player(options_of(1));
  player.run(Step::prefill(12));
  player.session->truncate(8);
  expect_error(ErrorCode::invalid_argument, {"n = 4 ", "0, or 8 to 8"}, [&] { player.session->truncate(4); });
  player.run(Step::decode());
  expect_error(ErrorCode::invalid_argument, {"n = 4 ", "8 to 9"}, [&] { player.session->truncate(4); });
  player.run(Step::prefill(4));
  player.session->truncate(8);
  expect_error(ErrorCode::invalid_argument, {"n = 4 "}, [&] { player.session->truncate(4); });
  player.run(Step::prefill(8));
  expect_error(ErrorCode::invalid_argument, {"n = 8 ", "12 to 16"}, [&] { player.session->truncate(8); });
  player.session->truncate(0);
  player.run(Step::prefill(8));
  player.session->truncate(4);
  EXPECT_EQ(player.session->tokens(), 4);
}

TEST(History, STATE_10_AnAbortedStepSettlesNothing) {
  const Options options = options_of(2);
  Player player(options);
  player.run(Step::prefill(8, 40));
  player.change_rows();
  player.session->begin(Step::prefill(20));
  player.attend_all();
  player.session->abort();
  player.change_rows();
  player.run(Step::prefill(4));
  player.session->truncate(8);
  Player fresh(options);
  fresh.run(Step::prefill(8, 40));
  EXPECT_EQ(look_at(*player.session), look_at(*fresh.session));
  expect_error(ErrorCode::invalid_argument, {"n = 3 ", "4 to 8"}, [&] { player.session->truncate(3); });
  player.session->truncate(4);
  Player first(options);
  first.run(Step::prefill(4, 40));
  expect_same(player, first);
}

TEST(History, STATE_8_STATE_10_MemoryBytesCountWhatIsKept) {
  Player player(options_of(1));
  const MemoryBytes at_first = player.session->memory_bytes();
  const std::int64_t sets = 2 * 4 * 3 * 4;  // layers, heads, entries, bytes each
  player.session->begin(Step::prefill(8));
  EXPECT_EQ(player.session->memory_bytes().memory_sets, at_first.memory_sets + sets);
  player.attend_all();  // checkpoints at 0 and 4, two bytes a score
  EXPECT_EQ(player.session->memory_bytes().memory_sets, at_first.memory_sets + 3 * sets + 2 * 4 * 4 * 2);
  player.session->end();
  EXPECT_EQ(player.session->memory_bytes().memory_sets, at_first.memory_sets + sets + 2 * 4 * 4 * 2);
  player.session->truncate(4);
  EXPECT_EQ(player.session->memory_bytes().total(), at_first.total());
}

TEST(History, LSE_1_AskingChangesNothingElse) {
  for (const Select select : {Select::h2o, Select::blocks}) {
    Player with(options_of({select, 0, Schedule::layer_major}));
    Player without(options_of({select, 0, Schedule::layer_major}));
    std::vector<float> lse(static_cast<std::size_t>(kCapacity * 4));
    for (const Step& step : kTurns) {
      with.session->begin(step);
      for (const std::int64_t layer : {0, 1}) with.attend(layer, LseOutput::token_major(lse.data(), 4));
      with.session->end();
      without.run(step);
    }
    EXPECT_EQ(look_at(*with.session), look_at(*without.session));
    EXPECT_TRUE(std::equal(with.out.begin(), with.out.begin() + kTokens * 12, without.out.begin()));
  }
}

TEST(History, LSE_1_StridesAreCheckedWhereItIsWanted) {
  Player player(options_of(0));
  std::vector<float> lse(8, kNaNF);
  const std::int64_t most = std::numeric_limits<std::int64_t>::max() / 4 / 3;
  player.session->begin(Step::prefill(2));
  const auto refused = [&](const char* part, const LseOutput& output) {
    expect_error(ErrorCode::invalid_argument, {part}, [&] { player.attend(0, output); });
  };
  refused("lse.row_stride", {lse.data(), most / 2 + 1, 1});
  refused("lse.head_stride", {lse.data(), 4, -most / 4 - 1});
  EXPECT_FALSE(player.session->failed());
  EXPECT_TRUE(std::all_of(lse.begin(), lse.end(), [](float x) { return x != x; }));
  player.attend(0, {nullptr, most, most});
  player.attend(1, {lse.data() + 3, 4, -1});  // the last head first
  player.session->end();
  EXPECT_TRUE(std::none_of(lse.begin(), lse.end(), [](float x) { return x != x; }));
}

TEST(History, LSE_1_ARowThatSawNoKey) {
  Player player(options_of(0));
  std::fill(player.q.begin(), player.q.end(), test::kInfF);
  std::fill(player.k.begin(), player.k.end(), -1.0F);
  std::vector<float> lse(4, kNaNF);
  player.session->begin(Step::decode());
  player.attend(0, LseOutput::token_major(lse.data(), 4));
  EXPECT_EQ(lse, std::vector<float>(4, -test::kInfF));
}

}  // namespace
}  // namespace headwater::reference
