#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "reference/engine.hpp"
#include "reference/session.hpp"
#include "tests/reference/support.hpp"

/// The state machine and the errors of a session (STATE-1 .. STATE-7), and the engine.
/// Clauses: STATE-1, STATE-3, STATE-5, STATE-6, STATE-7, NUM-2, CFG-1, CFG-5.
namespace headwater::reference {
namespace {

using test::error_of;
using test::expect_error;
using test::kNaNF;

constexpr std::int64_t kCapacity = 24;

Shape two_layers() {
  Shape shape;
  shape.n_layer = 2;
  shape.n_head = 2;
  shape.n_head_kv = 1;
  shape.d_head = 2;
  shape.d_value = 3;
  shape.capacity = kCapacity;
  return shape;
}

Options chunks_of_4() {
  Options options;
  options.batch = 8;
  options.chunk = 4;
  options.local = 1;
  options.heavy = 2;
  return options;
}

/// A session with the tensors that it is fed.
struct Fixture {
  std::unique_ptr<Session> session;
  std::vector<float> q, k, v, out;

  explicit Fixture(const Options& options = chunks_of_4(), const Shape& shape = two_layers())
      : session(reference_engine().open(shape, options)) {
    test::Numbers numbers(5);
    q = numbers.floats(shape.capacity * shape.n_head * shape.d_head);
    k = numbers.floats(shape.capacity * shape.n_head_kv * shape.d_head);
    v = numbers.floats(shape.capacity * shape.n_head_kv * shape.d_value);
    out.assign(static_cast<std::size_t>(shape.capacity * shape.n_head * shape.d_value), kNaNF);
  }
  void attend(std::int64_t layer) {
    const Shape& s = session->shape();
    const std::int64_t p = session->tokens();
    session->attend(
        layer, Rows::token_major(q.data() + p * s.n_head * s.d_head, DType::f32, s.n_head, s.d_head),
        Rows::token_major(k.data() + p * s.n_head_kv * s.d_head, DType::f32, s.n_head_kv, s.d_head),
        Rows::token_major(v.data() + p * s.n_head_kv * s.d_value, DType::f32, s.n_head_kv, s.d_value),
        MutableRows::token_major(out.data() + p * s.n_head * s.d_value, DType::f32, s.n_head, s.d_value));
  }
  void run(const Step& step) {
    session->begin(step);
    for (std::int64_t layer = 0; layer < session->shape().n_layer; ++layer) attend(layer);
    session->end();
  }
  /// Scores, memory sets and outputs, as bytes.
  [[nodiscard]] std::vector<unsigned char> everything() const {
    std::vector<unsigned char> bytes;
    const auto add = [&](const void* data, std::size_t size) {
      const auto* begin = static_cast<const unsigned char*>(data);
      bytes.insert(bytes.end(), begin, begin + size);
    };
    const Shape& s = session->shape();
    for (std::int64_t layer = 0; layer < s.n_layer; ++layer) {
      add(session->scores(layer).data, static_cast<std::size_t>(s.n_head * s.capacity) * 2);
      const MemoryView memory = session->memory(layer);
      add(memory.data, static_cast<std::size_t>(s.n_head * memory.width) * 4);
      add(&memory.count, sizeof memory.count);
    }
    add(out.data(), out.size() * sizeof(float));
    return bytes;
  }
};

void expect_failed(Session& session) {
  expect_error(ErrorCode::wrong_state, {"abort()", "reset()"}, [&] { session.begin(Step::decode()); });
  expect_error(ErrorCode::wrong_state, {"abort()", "reset()"}, [&] { session.end(); });
  expect_error(ErrorCode::wrong_state, {"reset()"}, [&] { session.attend(0, {}, {}, {}, {}); });
}

TEST(Session, STATE_1_StartsEmpty) {
  const Fixture f;
  EXPECT_EQ(f.session->state(), SessionState::empty);
  EXPECT_EQ(f.session->tokens(), 0);
  EXPECT_TRUE(f.session->plan().empty());
  EXPECT_EQ(f.session->shape().capacity, kCapacity);
  EXPECT_EQ(f.session->shape().d_value, 3);
  EXPECT_EQ(f.session->options().chunk, 4);
  EXPECT_EQ(f.session->memory(1).count, 0);
}

TEST(Session, STATE_1_StatesAndTokens) {
  Fixture f;
  f.session->begin(Step::prefill(6));
  EXPECT_EQ(f.session->state(), SessionState::prefilling);
  EXPECT_EQ(f.session->tokens(), 0);
  EXPECT_EQ(f.session->plan().size(), 2U);
  f.attend(1);
  f.attend(0);
  EXPECT_EQ(f.session->tokens(), 0);
  f.session->end();
  EXPECT_EQ(f.session->tokens(), 6);
  EXPECT_EQ(f.session->plan().size(), 2U);
  f.run(Step::prefill(1));
  EXPECT_EQ(f.session->state(), SessionState::prefilling);
  f.run(Step::decode(2));
  EXPECT_EQ(f.session->state(), SessionState::decoding);
  EXPECT_EQ(f.session->tokens(), 9);
  f.session->reset();
  EXPECT_EQ(f.session->state(), SessionState::empty);
  EXPECT_EQ(f.session->tokens(), 0);
  EXPECT_TRUE(f.session->plan().empty());
}

TEST(Session, STATE_1_ResetForgetsEverything) {
  Fixture fresh;
  fresh.run(Step::prefill(11));
  fresh.run(Step::decode(1));
  fresh.run(Step::prefill(5));
  const std::vector<unsigned char> expected = fresh.everything();

  Fixture used;
  used.run(Step::prefill(24));
  used.session->reset();
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    EXPECT_EQ(used.session->memory(layer).count, 0);
    const auto* scores = static_cast<const std::uint16_t*>(used.session->scores(layer).data);
    EXPECT_TRUE(std::all_of(scores, scores + 2 * kCapacity, [](std::uint16_t s) { return s == 0; }));
  }
  std::fill(used.out.begin(), used.out.end(), kNaNF);
  used.run(Step::prefill(11));
  used.run(Step::decode(1));
  used.run(Step::prefill(5));
  EXPECT_EQ(used.everything(), expected);
}

TEST(Session, STATE_5_AFailedStepIsUndoneByReset) {
  Fixture fresh;
  fresh.run(Step::prefill(7));
  const std::vector<unsigned char> expected = fresh.everything();

  Fixture f;
  f.run(Step::prefill(5));
  f.session->begin(Step::prefill(10));
  f.attend(0);
  static_cast<void>(error_of(ErrorCode::wrong_state, [&] { f.session->end(); }));
  f.session->reset();
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    const auto* scores = static_cast<const std::uint16_t*>(f.session->scores(layer).data);
    EXPECT_TRUE(std::all_of(scores, scores + 2 * kCapacity, [](std::uint16_t s) { return s == 0; }));
  }
  std::fill(f.out.begin(), f.out.end(), kNaNF);
  f.run(Step::prefill(7));
  EXPECT_EQ(f.everything(), expected);
}

TEST(Session, STATE_5_ARefusedBeginChangesNothing) {
  Fixture f;
  f.run(Step::prefill(5));
  const std::vector<unsigned char> before = f.everything();
  expect_error(ErrorCode::capacity_exceeded, {"n = 20", "5 stored", "capacity = 24"},
               [&] { f.session->begin(Step::decode(20)); });
  expect_error(ErrorCode::invalid_argument, {"n = 0"}, [&] { f.session->begin(Step::prefill(0)); });
  expect_error(ErrorCode::invalid_argument, {"turn_length = 7"},
               [&] { f.session->begin(Step::prefill(1, 7)); });
  EXPECT_EQ(f.session->state(), SessionState::prefilling);
  EXPECT_EQ(f.session->tokens(), 5);
  EXPECT_EQ(f.session->plan().size(), 2U);
  EXPECT_EQ(f.session->plan()[1].end, 5);
  EXPECT_EQ(f.everything(), before);
  f.run(Step::prefill(19));
  EXPECT_EQ(f.session->tokens(), kCapacity);
  expect_error(ErrorCode::capacity_exceeded, {"n = 1"}, [&] { f.session->begin(Step::decode(1)); });

  Fixture untouched;
  untouched.run(Step::prefill(5));
  untouched.run(Step::prefill(19));
  EXPECT_EQ(f.everything(), untouched.everything());
}

TEST(Session, STATE_5_CallsWithoutAnOpenStepChangeNothing) {
  Fixture f;
  for (int round = 0; round < 2; ++round) {
    expect_error(ErrorCode::wrong_state, {"attend()", "begin()"}, [&] { f.attend(0); });
    expect_error(ErrorCode::wrong_state, {"end()", "begin()"}, [&] { f.session->end(); });
    f.run(Step::prefill(3));
  }
  EXPECT_EQ(f.session->tokens(), 6);
}

TEST(Session, STATE_5_BeginInAnOpenStepFailsIt) {
  Fixture f;
  f.run(Step::prefill(2));
  f.session->begin(Step::decode());
  expect_error(ErrorCode::wrong_state, {"begin()", "end()"}, [&] { f.session->begin(Step::decode()); });
  expect_failed(*f.session);
  EXPECT_EQ(f.session->state(), SessionState::decoding);
  EXPECT_EQ(f.session->tokens(), 2);
  EXPECT_GT(f.session->memory_bytes().total(), 0);
  EXPECT_EQ(f.session->plan().size(), 1U);
  EXPECT_EQ(f.session->memory(0).count, 0);
  EXPECT_NE(f.session->scores(0).data, nullptr);
  f.session->reset();
  f.run(Step::prefill(2));
  EXPECT_EQ(f.session->tokens(), 2);
}

TEST(Session, STATE_5_ALayerTwiceFailsTheStep) {
  Fixture f;
  f.session->begin(Step::prefill(2));
  f.attend(1);
  expect_error(ErrorCode::wrong_state, {"layer 1", "already"}, [&] { f.attend(1); });
  expect_failed(*f.session);
  f.session->reset();
  f.run(Step::prefill(2));
}

TEST(Session, STATE_5_EndBeforeAllLayersFailsTheStep) {
  for (const std::int64_t missing : {0, 1}) {
    Fixture f;
    f.session->begin(Step::prefill(2));
    f.attend(1 - missing);
    expect_error(ErrorCode::wrong_state, {"end()", "layer " + std::to_string(missing)},
                 [&] { f.session->end(); });
    expect_failed(*f.session);
    EXPECT_EQ(f.session->tokens(), 0);
  }
}

TEST(Session, STATE_5_EachStepAttendsEachLayerAnew) {
  Fixture f;
  f.run(Step::prefill(2));
  f.session->begin(Step::prefill(2));
  f.attend(0);
  static_cast<void>(error_of(ErrorCode::wrong_state, [&] { f.session->end(); }));
}

TEST(Session, STATE_5_RefusedArgumentsLeaveTheStepOpen) {
  Fixture f;
  Fixture other;
  other.run(Step::prefill(6));
  f.session->begin(Step::prefill(6));
  const float* in = f.q.data();
  float* out = f.out.data();
  const Rows q = Rows::token_major(in, DType::f32, 2, 2);
  const Rows k = Rows::token_major(f.k.data(), DType::f32, 1, 2);
  const Rows v = Rows::token_major(f.v.data(), DType::f32, 1, 3);
  const MutableRows o = MutableRows::token_major(out, DType::f32, 2, 3);
  const auto null = [](Rows rows) {
    rows.data = nullptr;
    return rows;
  };
  const auto refuse = [&](const char* part, std::int64_t layer, const Rows& rq, const Rows& rk,
                          const Rows& rv, const MutableRows& ro) {
    expect_error(ErrorCode::invalid_argument, {part}, [&] { f.session->attend(layer, rq, rk, rv, ro); });
  };
  refuse("layer = -1", -1, q, k, v, o);
  refuse("layer = 2", 2, q, k, v, o);
  refuse("q.data", 0, null(q), k, v, o);
  refuse("k.data", 0, q, null(k), v, o);
  refuse("v.data", 0, q, k, null(v), o);
  refuse("out.data", 0, q, k, v, MutableRows{nullptr, DType::f32, 6, 3});
  refuse("q.type", 0, Rows{in, static_cast<DType>(9), 4, 2}, k, v, o);
  refuse("out.type", 0, q, k, v, MutableRows{out, static_cast<DType>(9), 6, 3});
  // The largest strides for 6 tokens, and for 2 query heads and 1 key/value head (arguments_test.cpp).
  const std::int64_t most = std::numeric_limits<std::int64_t>::max() / 4 / 3;
  const std::int64_t row = most / 6 + 1;
  const std::int64_t head = most / 2 + 1;
  refuse("q.row_stride", 0, Rows{in, DType::f32, row, 2}, k, v, o);
  refuse("q.head_stride", 0, Rows{in, DType::f32, 4, -head}, k, v, o);
  refuse("k.row_stride", 0, q, Rows{in, DType::f32, -row, 2}, v, o);
  refuse("k.head_stride", 0, q, Rows{in, DType::f32, 2, most + 1}, v, o);
  refuse("v.row_stride", 0, q, k, Rows{in, DType::f32, row, 2}, o);
  refuse("v.head_stride", 0, q, k, Rows{in, DType::f32, 3, most + 1}, o);
  refuse("out.row_stride", 0, q, k, v, MutableRows{out, DType::f32, row, 3});
  refuse("out.head_stride", 0, q, k, v, MutableRows{out, DType::f32, 6, head});
  EXPECT_TRUE(std::all_of(f.out.begin(), f.out.end(), [](float x) { return std::isnan(x); }));
  // No second key/value head, so its stride is as good as any.
  f.session->attend(0, q, Rows{k.data, DType::f32, 2, most}, Rows{v.data, DType::f32, 3, most}, o);
  f.attend(1);
  f.session->end();
  EXPECT_EQ(f.everything(), other.everything());
}

TEST(Session, STATE_5_StridesAreLimitedByHeadsNotByWidths) {
  Shape shape = two_layers();
  shape.d_head = 1;
  Fixture f(chunks_of_4(), shape);
  const std::int64_t most = std::numeric_limits<std::int64_t>::max() / 4 / 3;
  f.session->begin(Step::prefill(1));
  expect_error(ErrorCode::invalid_argument, {"q.head_stride"}, [&] {
    f.session->attend(0, Rows{f.q.data(), DType::f32, 2, most / 2 + 1},
                      Rows::token_major(f.k.data(), DType::f32, 1, 1),
                      Rows::token_major(f.v.data(), DType::f32, 1, 3),
                      MutableRows::token_major(f.out.data(), DType::f32, 2, 3));
  });
}

TEST(Session, STATE_5_WhatAnObserverThrowsFailsTheStep) {
  Fixture f;
  f.session->set_observer([](const ChunkRecord&) { throw std::runtime_error("seen enough"); });
  f.session->begin(Step::prefill(6));
  EXPECT_THROW(f.attend(0), std::runtime_error);
  expect_failed(*f.session);
  f.session->set_observer({});
  f.session->reset();
  f.run(Step::prefill(6));
}

TEST(Session, ObserversSurviveResetAndCanBeTakenAway) {
  Fixture f;
  int calls = 0;
  f.session->set_observer([&](const ChunkRecord&) { ++calls; });
  f.run(Step::prefill(6));
  EXPECT_EQ(calls, 4);
  f.session->reset();
  f.run(Step::decode(3));
  EXPECT_EQ(calls, 6);
  f.session->set_observer({});
  f.run(Step::decode(3));
  EXPECT_EQ(calls, 6);
}

/// Both schedules give the same bits, so which one ran shows only where the caller breaks the rules: here the
/// observer of the first chunk changes the queries of the second, which layer-major has used by then.
TEST(Session, SCHED_1_SCHED_2_TheScheduleOfTheOptionsRuns) {
  for (const Schedule schedule : {Schedule::layer_major, Schedule::chunk_major}) {
    Options options = chunks_of_4();
    options.schedule = schedule;
    const auto second_chunk = [&](bool change) {
      Fixture f(options);
      std::vector<float> sums;
      f.session->set_observer([&](const ChunkRecord& record) {
        if (change && record.chunk.begin == 0) std::fill(f.q.begin() + 16, f.q.end(), 0.0F);
        if (record.chunk.begin == 4) sums.assign(record.colsum_intra, record.colsum_intra + 8);
      });
      f.session->begin(Step::prefill(8));
      f.attend(0);
      return sums;
    };
    EXPECT_EQ(second_chunk(true) == second_chunk(false), schedule == Schedule::layer_major);
  }
}

TEST(Session, STATE_6_StoredRowsCanBeRead) {
  Fixture f;
  std::vector<float> key(2);
  std::vector<float> value(4, 9.0F);
  const auto read_key = [&](std::int64_t layer, std::int64_t head, std::int64_t position) {
    return [&, layer, head, position] { f.session->read_key(layer, head, position, key); };
  };
  const auto read_value = [&](std::int64_t layer, std::int64_t head, std::int64_t position) {
    return [&, layer, head, position] { f.session->read_value(layer, head, position, value); };
  };
  const ErrorCode code = ErrorCode::invalid_argument;
  expect_error(code, {"position = 0"}, read_key(0, 0, 0));
  expect_error(code, {"position = 0"}, read_value(0, 0, 0));
  f.run(Step::prefill(3));
  expect_error(code, {"position = 3", "below 3"}, read_key(0, 0, 3));
  f.session->begin(Step::decode(2));
  f.attend(0);
  f.session->read_key(0, 0, 4, key);
  EXPECT_EQ(key, (std::vector<float>{f.k[8], f.k[9]}));
  f.session->read_value(0, 0, 4, value);
  EXPECT_EQ(value, (std::vector<float>{f.v[12], f.v[13], f.v[14], 9.0F}));
  f.session->read_key(1, 0, 2, key);
  EXPECT_EQ(key, (std::vector<float>{f.k[4], f.k[5]}));
  expect_error(code, {"position = 5"}, read_key(0, 0, 5));
  expect_error(code, {"position = -1"}, read_key(0, 0, -1));
  expect_error(code, {"head_kv = 1"}, read_key(0, 1, 0));
  expect_error(code, {"head_kv = -1"}, read_key(0, -1, 0));
  expect_error(code, {"layer = 2"}, read_key(2, 0, 0));
  expect_error(code, {"layer = -1"}, read_key(-1, 0, 0));
  expect_error(code, {"position = 5"}, read_value(0, 0, 5));
  expect_error(code, {"head_kv = 1"}, read_value(0, 1, 0));
  expect_error(code, {"layer = 2"}, read_value(2, 0, 0));
  key.resize(1);
  expect_error(code, {"row.size = 1", "at least 2"}, read_key(0, 0, 0));
  value.resize(2);
  expect_error(code, {"row.size = 2", "at least 3"}, read_value(0, 0, 0));
  for (const std::int64_t layer : {-1, 2}) {
    expect_error(code, {"layer = "}, [&] { static_cast<void>(f.session->scores(layer)); });
    expect_error(code, {"layer = "}, [&] { static_cast<void>(f.session->memory(layer)); });
  }
  f.session->reset();
  key.resize(2);
  expect_error(code, {"position = 0", "below 0"}, read_key(0, 0, 0));
}

TEST(Session, MemoryBytesAddUpOverTheLayers) {
  const Fixture f;
  const MemoryBytes bytes = f.session->memory_bytes();
  EXPECT_EQ(bytes.kv, 2 * kCapacity * (2 + 3) * 4);
  EXPECT_EQ(bytes.scores, 2 * kCapacity * 2 * 2);
  EXPECT_EQ(bytes.memory_sets, 2 * 2 * 3 * 4);
  EXPECT_EQ(bytes.workspace, static_cast<std::int64_t>(sizeof(ReferenceSession) + 2 * sizeof(LayerStorage)));
  EXPECT_EQ(bytes.total(), bytes.kv + bytes.scores + bytes.memory_sets + bytes.workspace);
}

TEST(Session, NUM_2_NanReachesNoPositionBeforeIt) {
  Fixture clean;
  clean.run(Step::prefill(16));
  for (const bool in_key : {true, false}) {
    Fixture f;
    const std::int64_t j = 9;  // in the chunk [8, 12)
    (in_key ? f.k[static_cast<std::size_t>(j * 2)] : f.v[static_cast<std::size_t>(j * 3)]) = kNaNF;
    f.run(Step::prefill(16));
    for (std::int64_t e = 0; e < j * 6; ++e) {
      EXPECT_EQ(f.out[static_cast<std::size_t>(e)], clean.out[static_cast<std::size_t>(e)]);
    }
    EXPECT_TRUE(std::isnan(f.out[static_cast<std::size_t>(j * 6)]));
    EXPECT_EQ(std::isnan(f.out[static_cast<std::size_t>(j * 6 + 1)]), in_key);
    const MemoryView memory = f.session->memory(0);
    EXPECT_EQ(memory.count, 3);
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t e = 0; e + 1 < 3; ++e) EXPECT_LT(memory.data[h * 3 + e], memory.data[h * 3 + e + 1]);
      EXPECT_EQ(memory.data[h * 3 + 2], 11);
    }
  }
}

/// A chunk that can be compared: begin, end, mode.
using Planned = std::tuple<std::int64_t, std::int64_t, ChunkMode>;

Planned planned(const Chunk& chunk) { return {chunk.begin, chunk.end, chunk.mode}; }

std::vector<Planned> planned(std::span<const Chunk> chunks) {
  std::vector<Planned> all;
  for (const Chunk& chunk : chunks) all.push_back(planned(chunk));
  return all;
}

/// What one layer gave and what the observer was told of it, step after step.
struct LayerTrace {
  std::vector<float> out, lse, sums, votes;
  std::vector<Planned> chunks;
  std::vector<std::int64_t> counts;
  std::vector<std::int32_t> memory;
  std::vector<std::uint16_t> scores;
  std::vector<std::int32_t> last_memory;
  std::int64_t last_count = 0;

  bool operator==(const LayerTrace& other) const = default;
};

struct SessionTrace {
  std::vector<LayerTrace> layers;
  std::vector<std::vector<Planned>> plans;  ///< of every step
  std::vector<Planned> chunks;              ///< Session::chunks() at the end
};

LayerTrace& traced(std::vector<LayerTrace>& layers, const ChunkRecord& record, const Shape& shape) {
  LayerTrace& layer = layers.at(static_cast<std::size_t>(record.layer));
  const auto add = [](std::vector<float>& to, const float* from, std::int64_t count) {
    if (from != nullptr) to.insert(to.end(), from, from + count);
  };
  const bool of_blocks = record.query_blocks > 0;
  const std::int64_t sets = of_blocks ? shape.n_head_kv * record.query_blocks : shape.n_head;
  layer.chunks.push_back(planned(record.chunk));
  layer.counts.push_back(record.memory_count);
  layer.memory.insert(layer.memory.end(), record.memory, record.memory + sets * record.memory_stride);
  add(layer.lse, record.lse, shape.n_head * record.row_stride);
  add(layer.sums, record.colsum_intra, shape.n_head * record.row_stride);
  add(layer.sums, record.colsum_inter, shape.n_head * record.memory_stride);
  add(layer.votes, record.block_votes, sets * record.candidate_blocks);
  add(layer.votes, record.token_votes, sets * record.voted_tokens);
  return layer;
}

constexpr std::int64_t kLayers = 4;
constexpr std::int64_t kLongCapacity = 160;

SessionTrace trace_session(const Options& options, const std::vector<Step>& steps) {
  Shape shape = two_layers();
  shape.n_layer = kLayers;
  shape.capacity = kLongCapacity;
  SessionTrace trace;
  trace.layers.resize(kLayers);
  Fixture f(options, shape);
  f.session->set_observer(
      [&](const ChunkRecord& record) { static_cast<void>(traced(trace.layers, record, shape)); });
  for (const Step& step : steps) {
    f.session->begin(step);
    trace.plans.push_back(planned(f.session->plan()));
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      // Every layer its own queries.
      for (float& value : f.q) value += 0.125F;
      f.attend(layer);
      const std::int64_t width = shape.n_head * shape.d_value;
      const auto first = f.out.begin() + f.session->tokens() * width;
      std::vector<float>& out = trace.layers[static_cast<std::size_t>(layer)].out;
      out.insert(out.end(), first, first + step.n * width);
    }
    f.session->end();
  }
  trace.chunks = planned(f.session->chunks());
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    LayerTrace& of = trace.layers[static_cast<std::size_t>(layer)];
    const auto* scores = static_cast<const std::uint16_t*>(f.session->scores(layer).data);
    of.scores.assign(scores, scores + shape.n_head * shape.capacity);
    const MemoryView memory = f.session->memory(layer);
    if (memory.data != nullptr) of.last_memory.assign(memory.data, memory.data + shape.n_head * memory.width);
    of.last_count = memory.count;
  }
  return trace;
}

Options long_chunks(Select select, Schedule schedule) {
  Options options;
  options.batch = 48;
  options.chunk = 24;
  options.local = 4;
  options.heavy = 8;
  options.select = select;
  options.key_block = 4;
  options.query_block = 8;
  options.schedule = schedule;
  return options;
}

/// Sparse in two calls, decoding, a dense turn, decoding, a sparse turn.
const std::vector<Step> kTurns{Step::prefill(48, 61), Step::prefill(13), Step::decode(2),
                               Step::prefill(9),      Step::decode(1),   Step::prefill(60)};

/// A layer that attends its calls densely (STATE-7): one chunk for each step.
void expect_dense(const LayerTrace& layer, const LayerTrace& of_dense_session) {
  EXPECT_EQ(layer.out, of_dense_session.out);
  EXPECT_EQ(layer.lse, of_dense_session.lse);
  EXPECT_EQ(layer.chunks, of_dense_session.chunks);
  ASSERT_EQ(layer.chunks.size(), kTurns.size());
  std::int64_t base = 0;
  for (std::size_t s = 0; s < kTurns.size(); ++s) {
    const bool prefill = kTurns[s].kind == Step::Kind::prefill;
    EXPECT_EQ(layer.chunks[s],
              Planned(base, base + kTurns[s].n, prefill ? ChunkMode::dense : ChunkMode::decode));
    EXPECT_EQ(layer.counts[s], 0);
    base += kTurns[s].n;
  }
  EXPECT_TRUE(layer.sums.empty());
  EXPECT_TRUE(layer.votes.empty());
  const auto no_token = [](std::int32_t entry) { return entry == -1; };
  EXPECT_TRUE(std::all_of(layer.memory.begin(), layer.memory.end(), no_token));
  EXPECT_TRUE(std::all_of(layer.last_memory.begin(), layer.last_memory.end(), no_token));
  EXPECT_EQ(layer.last_count, 0);
  EXPECT_TRUE(std::all_of(layer.scores.begin(), layer.scores.end(), [](std::uint16_t s) { return s == 0; }));
}

TEST(Session, STATE_7_DenseLayersAreDenseAndTheOthersAsWithoutThem) {
  for (const Select select : {Select::h2o, Select::blocks}) {
    for (const Schedule schedule : {Schedule::layer_major, Schedule::chunk_major}) {
      Options options = long_chunks(select, schedule);
      options.dense = true;
      const SessionTrace dense = trace_session(options, kTurns);
      options.dense = false;
      const SessionTrace sparse = trace_session(options, kTurns);
      ASSERT_NE(sparse.layers[0].out, dense.layers[0].out);
      ASSERT_EQ(sparse.plans[0].size(), 2U);
      const std::vector<std::vector<std::int64_t>> some{{0}, {3}, {1, 2}, {0, 1, 2, 3}};
      for (const std::vector<std::int64_t>& dense_layers : some) {
        options.dense_layers = dense_layers;
        const SessionTrace mixed = trace_session(options, kTurns);
        EXPECT_EQ(mixed.plans, sparse.plans);
        EXPECT_EQ(mixed.chunks, sparse.chunks);
        for (std::int64_t layer = 0; layer < kLayers; ++layer) {
          SCOPED_TRACE(layer);
          const auto at = static_cast<std::size_t>(layer);
          if (std::count(dense_layers.begin(), dense_layers.end(), layer) > 0) {
            expect_dense(mixed.layers[at], dense.layers[at]);
          } else {
            EXPECT_TRUE(mixed.layers[at] == sparse.layers[at]);
          }
        }
      }
    }
  }
}

TEST(Session, STATE_7_ResetKeepsTheDenseLayers) {
  Options options = chunks_of_4();
  options.dense_layers = {1};
  Fixture f(options);
  std::vector<ChunkMode> modes;
  f.session->set_observer([&](const ChunkRecord& record) {
    if (record.layer == 1) modes.push_back(record.chunk.mode);
  });
  f.run(Step::prefill(9));
  f.session->reset();
  f.run(Step::prefill(9));
  EXPECT_EQ(modes, (std::vector<ChunkMode>{ChunkMode::dense, ChunkMode::dense}));
  EXPECT_EQ(f.session->memory(1).count, 0);
  EXPECT_EQ(f.session->memory(0).count, 3);
}

TEST(Session, STATE_3_ADenseShortTurnIsThatOfADenseSession) {
  const std::vector<Step> steps{Step::prefill(59), Step::decode(2), Step::prefill(30, 60), Step::prefill(30)};
  for (const Select select : {Select::h2o, Select::blocks}) {
    Options options = long_chunks(select, Schedule::layer_major);
    const SessionTrace sparse = trace_session(options, steps);
    options.dense_below = 59;
    EXPECT_TRUE(trace_session(options, steps).layers == sparse.layers);
    options.dense_below = 60;
    const SessionTrace first_dense = trace_session(options, steps);
    options.dense_below = 61;
    const SessionTrace all_dense = trace_session(options, steps);
    options.dense = true;
    const SessionTrace dense = trace_session(options, steps);
    const std::ptrdiff_t first_turn = 59 * 2 * 3;  // two heads of three values
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      const std::vector<float>& out = first_dense.layers[layer].out;
      EXPECT_TRUE(std::equal(out.begin(), out.begin() + first_turn, dense.layers[layer].out.begin()));
      EXPECT_NE(out, dense.layers[layer].out);
      EXPECT_EQ(all_dense.layers[layer].out, dense.layers[layer].out);
    }
    EXPECT_EQ(first_dense.plans[0].size(), 1U);
    EXPECT_EQ(first_dense.plans[2].size(), 2U);
    EXPECT_EQ(first_dense.plans[2][0], Planned(61, 85, ChunkMode::sparse));
    EXPECT_EQ(all_dense.plans[2].size(), 1U);
  }
}

TEST(Session, CFG_5_EffectiveOptionsAreShown) {
  Options options = chunks_of_4();
  options.heavy = 9;  // 2 after the clamp
  options.pinned = 5;
  options.dense_below = 7;
  options.dense_layers = {0, 1};
  const Fixture f(options);
  EXPECT_EQ(f.session->options().pinned, 2);
  EXPECT_EQ(f.session->options().dense_below, 7);
  EXPECT_EQ(f.session->options().dense_layers, (std::vector<std::int64_t>{0, 1}));
  options.dense_layers = {2};
  expect_error(ErrorCode::invalid_argument, {"dense_layers[0] = 2", "0 to 1"},
               [&] { static_cast<void>(reference_engine().open(two_layers(), options)); });
}

TEST(Engine, WhatItSaysOfItself) {
  const Engine& engine = reference_engine();
  EXPECT_EQ(&engine, &reference_engine());
  EXPECT_EQ(engine.name(), "reference");
  EXPECT_EQ(engine.isa(), "scalar");
  EXPECT_FALSE(engine.description().empty());
  EXPECT_TRUE(engine.unavailable_because().empty());
  EXPECT_TRUE(engine.claims().bitwise_threads);
  EXPECT_TRUE(engine.claims().bitwise_runs);
  EXPECT_TRUE(engine.claims().bitwise_schedules);
  EXPECT_FALSE(engine.claims().no_allocation);
  EXPECT_TRUE(engine.claims().double_arithmetic);
  EXPECT_TRUE(engine.claims().abort);
  EXPECT_TRUE(engine.claims().truncate);
  EXPECT_TRUE(engine.claims().interrupt);
  EXPECT_TRUE(engine.claims().lse);
  EXPECT_FALSE(engine.claims().host_threads);
}

TEST(Engine, CFG_1_OpenValidates) {
  Shape shape = two_layers();
  shape.n_head_kv = 3;
  expect_error(ErrorCode::invalid_argument, {"n_head_kv = 3"},
               [&] { static_cast<void>(reference_engine().open(shape, Options{})); });
  Options options = chunks_of_4();
  options.softcap = -1.0;
  expect_error(ErrorCode::invalid_argument, {"softcap"},
               [&] { static_cast<void>(reference_engine().open(two_layers(), options)); });
}

TEST(Engine, OpenSaysWhenThereIsNoMemory) {
  Shape shape = two_layers();
  shape.capacity = 2147483647;
  shape.d_head = 65536;  // half a petabyte of keys
  expect_error(ErrorCode::out_of_memory, {"capacity = 2147483647", "2 layers"},
               [&] { static_cast<void>(reference_engine().open(shape, chunks_of_4())); });
}

}  // namespace
}  // namespace headwater::reference
