// What a session shows of itself: observer, scores, memory sets, stored rows, bytes.

#include <algorithm>
#include <stdexcept>
#include <tuple>

#include "tests/api/problem.hpp"

namespace headwater::api_test {
namespace {

constexpr std::int64_t kCapacity = 64;

class InspectionOf : public EachEngine {
 protected:
  std::unique_ptr<Session> open() const { return engine().open(shape_, small_options()); }
  const Shape shape_ = small_shape(kCapacity);
  const LayerInput input_ = random_input(shape_, kCapacity, 5);
};

/// What an observer was shown, copied.
struct Seen {
  std::int64_t layer, begin, end;
  ChunkMode mode;
  std::int64_t memory_count;
  bool column_sums;
};

std::vector<Seen> watched(Session& session, const Step& step, const LayerInput& input) {
  std::vector<Seen> all;
  session.set_observer([&](const ChunkRecord& record) {
    all.push_back({record.layer, record.chunk.begin, record.chunk.end, record.chunk.mode, record.memory_count,
                   record.colsum_intra != nullptr});
    EXPECT_NE(record.lse, nullptr);
    EXPECT_LE(record.memory_count, record.memory_stride);
    EXPECT_GE(record.row_stride, record.chunk.end - record.chunk.begin);
  });
  (void)run_step(session, step, input, session.tokens());
  session.set_observer({});
  return all;
}

TEST_P(InspectionOf, ObserverSeesEveryChunkInOrder) {
  for (const Schedule schedule : {Schedule::layer_major, Schedule::chunk_major}) {
    Options options = small_options();
    options.schedule = schedule;
    const auto session = engine().open(shape_, options);
    const auto seen = watched(*session, Step::prefill(21), input_);
    const std::int64_t begins[] = {0, 8, 16};
    ASSERT_EQ(seen.size(), 6u);
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const std::size_t c = i % 3;
      EXPECT_EQ(seen[i].layer, static_cast<std::int64_t>(i / 3));
      EXPECT_EQ(seen[i].begin, begins[c]);
      EXPECT_EQ(seen[i].end, c == 2 ? 21 : begins[c + 1]);
      EXPECT_EQ(seen[i].mode, ChunkMode::sparse);
      EXPECT_EQ(seen[i].memory_count, c == 0 ? 0 : 5);
      EXPECT_TRUE(seen[i].column_sums);
    }
    const auto decoded = watched(*session, Step::decode(2), input_);
    ASSERT_EQ(decoded.size(), 2u);
    EXPECT_EQ(decoded[0].mode, ChunkMode::decode);
    EXPECT_EQ(decoded[0].memory_count, 0);
    EXPECT_FALSE(decoded[0].column_sums);
  }
}

// INTRA-2: without a sink, the column sums of a chunk add up to its number of queries.
TEST_P(InspectionOf, ColumnSumsPartitionTheQueries) {
  const auto session = open();
  std::int64_t records = 0;
  session->set_observer([&](const ChunkRecord& record) {
    ++records;
    const std::int64_t n = record.chunk.end - record.chunk.begin;
    for (std::int64_t h = 0; h < shape_.n_head; ++h) {
      double intra = 0, inter = 0;
      for (std::int64_t i = 0; i < n; ++i)
        intra += static_cast<double>(record.colsum_intra[h * record.row_stride + i]);
      for (std::int64_t i = 0; i < record.memory_count; ++i) {
        inter += static_cast<double>(record.colsum_inter[h * record.memory_stride + i]);
      }
      EXPECT_NEAR(intra, static_cast<double>(n), 1e-4);
      EXPECT_NEAR(inter, record.memory_count > 0 ? static_cast<double>(n) : 0.0, 1e-4);
      for (std::int64_t i = record.memory_count; i < record.memory_stride; ++i) {
        EXPECT_EQ(record.memory[h * record.memory_stride + i], -1);  // MEM-4
        EXPECT_EQ(record.colsum_inter[h * record.memory_stride + i], 0.0f);
      }
    }
  });
  (void)run_step(*session, Step::prefill(21), input_, 0);
  EXPECT_EQ(records, 6);
}

TEST_P(InspectionOf, ObserverSurvivesResetAndCanBeSwitchedOff) {
  const auto session = open();
  int calls = 0;
  session->set_observer([&](const ChunkRecord&) { ++calls; });
  session->reset();
  (void)run_step(*session, Step::prefill(3), input_, 0);
  EXPECT_EQ(calls, 2);
  session->set_observer({});
  (void)run_step(*session, Step::prefill(3), input_, 0);
  EXPECT_EQ(calls, 2);
}

TEST_P(InspectionOf, WatchingChangesNothing) {
  Results blind, seen;
  const auto plain = open();
  blind.out = run_step(*plain, Step::prefill(40), input_, 0);
  append_contents(*plain, blind);
  const auto session = open();
  session->set_observer([](const ChunkRecord&) {});
  seen.out = run_step(*session, Step::prefill(40), input_, 0);
  append_contents(*session, seen);
  EXPECT_TRUE(blind == seen);
}

// STATE-5: an exception from an observer fails the step.
TEST_P(InspectionOf, ThrowingObserverFailsTheStep) {
  const auto session = open();
  int calls = 0;
  session->set_observer([&](const ChunkRecord&) {
    if (++calls == 2) throw std::runtime_error("enough");
  });
  EXPECT_THROW((void)run_step(*session, Step::prefill(21), input_, 0), std::exception);
  EXPECT_EQ(calls, 2);
  expect_error([&] { session->begin(Step::decode()); }, ErrorCode::wrong_state, {"reset"});
  session->set_observer({});
  session->reset();
  const auto fresh = open();
  EXPECT_TRUE(run_step(*session, Step::prefill(21), input_, 0) ==
              run_step(*fresh, Step::prefill(21), input_, 0));
}

// STATE-6
TEST_P(InspectionOf, ReadsEveryStoredRow) {
  const auto session = open();
  (void)run_step(*session, Step::prefill(20), input_, 0);
  (void)run_step(*session, Step::decode(), input_, 20);
  std::vector<float> key(static_cast<std::size_t>(shape_.d_head));
  std::vector<float> value(static_cast<std::size_t>(shape_.d_value));
  for (std::int64_t layer = 0; layer < shape_.n_layer; ++layer) {
    for (std::int64_t h = 0; h < shape_.n_head_kv; ++h) {
      for (std::int64_t p = 0; p < 21; ++p) {
        session->read_key(layer, h, p, key);
        session->read_value(layer, h, p, value);
        const std::int64_t row = p * shape_.n_head_kv + h;
        EXPECT_TRUE(std::equal(key.begin(), key.end(), input_.k.begin() + row * shape_.d_head));
        EXPECT_TRUE(std::equal(value.begin(), value.end(), input_.v.begin() + row * shape_.d_value));
      }
    }
  }
}

// STATE-6: a layer's rows of the open step are stored when that layer was attended.
TEST_P(InspectionOf, RowsOfTheOpenStepShowLayerByLayer) {
  const auto session = open();
  (void)run_step(*session, Step::prefill(20), input_, 0);
  std::vector<float> row(static_cast<std::size_t>(shape_.d_head));
  std::vector<float> out(static_cast<std::size_t>(shape_.n_head * shape_.d_value));
  const auto refused = [&](std::int64_t layer) {
    expect_error([&] { session->read_key(layer, 0, 20, row); }, ErrorCode::invalid_argument,
                 {"position", "20"});
    expect_error([&] { session->read_value(layer, 0, 20, row); }, ErrorCode::invalid_argument,
                 {"position", "20"});
  };
  session->begin(Step::decode());
  refused(0);
  refused(1);
  session->attend(1, rows_from(input_.q, 20, shape_.n_head, shape_.d_head),
                  rows_from(input_.k, 20, shape_.n_head_kv, shape_.d_head),
                  rows_from(input_.v, 20, shape_.n_head_kv, shape_.d_value),
                  MutableRows::token_major(out.data(), DType::f32, shape_.n_head, shape_.d_value));
  refused(0);
  session->read_key(1, 0, 20, row);
  EXPECT_TRUE(std::equal(row.begin(), row.end(), input_.k.begin() + 20 * shape_.n_head_kv * shape_.d_head));
}

TEST_P(InspectionOf, RefusesWhatIsOutOfRange) {
  const auto session = open();
  (void)run_step(*session, Step::prefill(20), input_, 0);
  std::vector<float> row(static_cast<std::size_t>(shape_.d_head));
  const auto invalid = ErrorCode::invalid_argument;
  for (const std::int64_t layer : {-1, 2}) {
    expect_error([&] { (void)session->scores(layer); }, invalid, {"layer", std::to_string(layer)});
    expect_error([&] { (void)session->memory(layer); }, invalid, {"layer", std::to_string(layer)});
    expect_error([&] { session->read_key(layer, 0, 0, row); }, invalid, {"layer", std::to_string(layer)});
  }
  for (const std::int64_t head : {-1, 2}) {
    expect_error([&] { session->read_key(0, head, 0, row); }, invalid, {"head", std::to_string(head)});
    expect_error([&] { session->read_value(0, head, 0, row); }, invalid, {"head", std::to_string(head)});
  }
  for (const std::int64_t position : {-1, 20}) {
    expect_error([&] { session->read_key(0, 0, position, row); }, invalid,
                 {"position", std::to_string(position)});
    expect_error([&] { session->read_value(0, 0, position, row); }, invalid,
                 {"position", std::to_string(position)});
  }
  expect_error([&] { session->read_key(0, 0, 0, std::span(row).first(7)); }, invalid, {"row", "7", "8"});
  expect_error([&] { session->read_value(0, 0, 0, std::span(row).first(5)); }, invalid, {"row", "5", "6"});
}

// SCORE-1, DEC-1: decoded tokens have score 0, prefilled ones more; scores can be kept in F32 (SCORE-5).
TEST_P(InspectionOf, ScoresOfBothTypes) {
  for (const ScoreType type : {ScoreType::bf16, ScoreType::f32}) {
    Options options = small_options();
    options.score_type = type;
    const auto session = engine().open(shape_, options);
    (void)run_step(*session, Step::prefill(20), input_, 0);
    (void)run_step(*session, Step::decode(3), input_, 20);
    for (std::int64_t layer = 0; layer < shape_.n_layer; ++layer) {
      const ScoreView view = session->scores(layer);
      ASSERT_EQ(view.type, type);
      EXPECT_EQ(view.head_stride, kCapacity);
      for (std::int64_t h = 0; h < shape_.n_head; ++h) {
        for (std::int64_t p = 0; p < 23; ++p) {
          const std::int64_t at = h * view.head_stride + p;
          const bool positive = type == ScoreType::f32 ? static_cast<const float*>(view.data)[at] > 0.0f
                                                       : static_cast<const std::uint16_t*>(view.data)[at] > 0;
          EXPECT_EQ(positive, p < 20) << "position " << p;
        }
      }
    }
  }
}

// MEM-1, MEM-4
TEST_P(InspectionOf, MemorySetIsAscendingAndHoldsTheNewest) {
  const auto session = open();
  EXPECT_EQ(session->memory(0).count, 0);
  (void)run_step(*session, Step::prefill(8), input_, 0);
  EXPECT_EQ(session->memory(0).count, 0);  // MEM-5: nothing is built after the last chunk
  (void)run_step(*session, Step::prefill(20), input_, 8);
  for (std::int64_t layer = 0; layer < shape_.n_layer; ++layer) {
    const MemoryView view = session->memory(layer);
    ASSERT_EQ(view.count, 5);
    EXPECT_EQ(view.width, 5);
    for (std::int64_t h = 0; h < shape_.n_head; ++h) {
      const std::int32_t* set = view.data + h * view.head_stride;
      EXPECT_TRUE(std::is_sorted(set, set + 5));
      EXPECT_GE(set[0], 0);
      EXPECT_EQ(set[4], 23);
      EXPECT_EQ(set[3], 22);
      EXPECT_EQ(set[2], 21);
    }
  }
}

// Where an engine measures it, the time of selection is 0 at first, grows only where something is selected, and is 0
// after reset().
TEST_P(InspectionOf, SecondsOfSelectionAreThoseOfSparseSteps) {
  const auto session = engine().open(small_shape(64), small_options());
  if (session->stage_seconds().selection == -1) GTEST_SKIP() << "this engine does not measure";
  EXPECT_EQ(session->stage_seconds().selection, 0);
  (void)run_step(*session, Step::prefill(20), input_, 0);
  const double spent = session->stage_seconds().selection;
  EXPECT_GT(spent, 0);
  (void)run_step(*session, Step::decode(1), input_, 20);
  EXPECT_EQ(session->stage_seconds().selection, spent);
  session->reset();
  EXPECT_EQ(session->stage_seconds().selection, 0);
}

// NUM-4: the bytes that are held are told by kind, and what must be there is there.
TEST_P(InspectionOf, MemoryBytesAreTold) {
  MemoryBytes before;
  for (const std::int64_t capacity : {std::int64_t{64}, std::int64_t{256}, std::int64_t{1024}}) {
    const auto session = engine().open(small_shape(capacity), small_options());
    (void)run_step(*session, Step::prefill(20), input_, 0);
    const MemoryBytes bytes = session->memory_bytes();
    EXPECT_GE(bytes.kv, 2 * capacity * 2 * (8 + 6) * 4);               // layers, tokens, heads, widths, F32
    EXPECT_LE(bytes.kv, 2 * (2 * capacity * 2 * (8 + 6) * 4) + 4096);  // padding may double it, not more
    EXPECT_GE(bytes.scores, 2 * capacity * 4 * 2);                     // layers, tokens, query heads, BF16
    EXPECT_GE(bytes.memory_sets, 2 * 4 * 5 * 4);  // layers, query heads, M, 32-bit positions
    EXPECT_GE(bytes.workspace, 0);
    EXPECT_EQ(bytes.total(), bytes.kv + bytes.scores + bytes.memory_sets + bytes.workspace);
    EXPECT_GT(bytes.kv, before.kv);
    EXPECT_GT(bytes.scores, before.scores);
    before = bytes;
    (void)run_step(*session, Step::prefill(20), input_, 20);
    EXPECT_EQ(session->memory_bytes().total(), bytes.total());
  }
  Shape half = small_shape(1024);
  half.kv_type = DType::bf16;
  const auto session = engine().open(half, small_options());
  (void)run_step(*session, Step::prefill(20), input_, 0);
  EXPECT_LT(session->memory_bytes().kv, before.kv);
}

TEST_P(InspectionOf, ShapeIsKept) {
  const auto session = open();
  EXPECT_EQ(session->shape().n_layer, shape_.n_layer);
  EXPECT_EQ(session->shape().n_head, shape_.n_head);
  EXPECT_EQ(session->shape().n_head_kv, shape_.n_head_kv);
  EXPECT_EQ(session->shape().d_head, shape_.d_head);
  EXPECT_EQ(session->shape().d_value, shape_.d_value);
  EXPECT_EQ(session->shape().capacity, shape_.capacity);
  EXPECT_EQ(session->shape().kv_type, shape_.kv_type);
}

HEADWATER_EACH_ENGINE(InspectionOf);

}  // namespace
}  // namespace headwater::api_test
