#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "conformance/state_archive.hpp"
#include "reference/engine.hpp"
#include "tests/reference/support.hpp"

/// What a session saves and loads (STATE-12): it goes on as if nothing had happened, and nothing loaded is believed.
namespace headwater::reference {
namespace {

using conformance::MemoryArchive;
using test::expect_error;

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

/// A call that is continued, decode steps, a short turn (dense), a long one, and a decode step.
const std::vector<Step> kSteps{Step::prefill(6, 10), Step::prefill(4, 10), Step::decode(),
                               Step::decode(2),      Step::prefill(3),     Step::prefill(2),
                               Step::decode(2),      Step::prefill(9),     Step::decode()};

Shape small(DType type = DType::f32) {
  Shape shape;
  shape.n_layer = 2;
  shape.n_head = 4;
  shape.n_head_kv = 2;
  shape.d_head = 3;
  shape.d_value = 2;
  shape.capacity = 32;
  shape.kv_type = type;
  return shape;
}

Options of_rule(Select select) {
  Options options;
  options.batch = 8;
  options.chunk = 5;
  options.local = 1;
  options.heavy = 2;
  options.select = select;
  options.key_block = 1;
  options.query_block = 2;
  options.pool = 1;
  options.checkpoints = select == Select::h2o ? 2 : 0;
  options.sinks = {0.5F, -1.0F, 0.0F, 0.25F};
  return options;
}

std::unique_ptr<Session> open(const Options& options, const Shape& shape = small()) {
  return reference_engine().open(shape, options);
}

/// The outputs of a step, whose rows depend on position and layer alone.
std::vector<float> run(Session& session, const Step& step) {
  const Shape& s = session.shape();
  std::vector<float> all;
  const std::int64_t first = session.tokens();
  session.begin(step);
  for (std::int64_t layer = 0; layer < s.n_layer; ++layer) {
    const auto rows = [&](std::uint64_t seed, std::int64_t elements) {
      std::vector<float> values;
      for (std::int64_t t = first; t < first + step.n; ++t) {
        test::Numbers numbers(seed + static_cast<std::uint64_t>(100 * t + 10 * layer));
        const std::vector<float> row = numbers.floats(elements);
        values.insert(values.end(), row.begin(), row.end());
      }
      return values;
    };
    const std::vector<float> q = rows(1, s.n_head * s.d_head);
    const std::vector<float> k = rows(2, s.n_head_kv * s.d_head);
    const std::vector<float> v = rows(3, s.n_head_kv * s.d_value);
    std::vector<float> out(static_cast<std::size_t>(step.n * s.n_head * s.d_value));
    session.attend(layer, Rows::token_major(q.data(), DType::f32, s.n_head, s.d_head),
                   Rows::token_major(k.data(), DType::f32, s.n_head_kv, s.d_head),
                   Rows::token_major(v.data(), DType::f32, s.n_head_kv, s.d_value),
                   MutableRows::token_major(out.data(), DType::f32, s.n_head, s.d_value));
    all.insert(all.end(), out.begin(), out.end());
  }
  session.end();
  return all;
}

std::unique_ptr<Session> after(const Options& options, std::size_t steps = kSteps.size(),
                               const Shape& shape = small()) {
  auto session = open(options, shape);
  for (std::size_t s = 0; s < steps; ++s) (void)run(*session, kSteps[s]);
  return session;
}

/// Ready to be loaded.
std::unique_ptr<MemoryArchive> saved(Session& session) {
  auto archive = std::make_unique<MemoryArchive>();
  session.exchange_state(*archive);
  archive->load();
  return archive;
}

void expect_same(const MemoryArchive& a, const MemoryArchive& b) {
  EXPECT_EQ(a.lists, b.lists);
  ASSERT_EQ(a.arrays.size(), b.arrays.size());
  for (const auto& [name, array] : a.arrays) {
    EXPECT_EQ(array.dims, b.arrays.at(name).dims) << name;
    EXPECT_TRUE(array.bytes == b.arrays.at(name).bytes) << name;
  }
}

/// Refused, and the session is an empty one that works.
void expect_refused(const Options& options, MemoryArchive& archive, const std::vector<std::string>& parts,
                    const Shape& shape = small()) {
  const auto session = open(options, shape);
  expect_error(ErrorCode::invalid_argument, parts, [&] { session->exchange_state(archive); });
  EXPECT_EQ(session->tokens(), 0);
  EXPECT_EQ(session->state(), SessionState::empty);
  EXPECT_TRUE(session->chunks().empty());
  const auto fresh = open(options, shape);
  const Step step = Step::prefill(7);
  EXPECT_EQ(run(*session, step), run(*fresh, step));
  expect_same(*saved(*session), *saved(*fresh));
}

TEST(SavedState, STATE_12_TheLoadedSessionGoesOnLikeTheSavedOne) {
  for (const Select select : {Select::h2o, Select::blocks}) {
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
      for (const bool dense_layer : {false, true}) {
        Options options = of_rule(select);
        options.score_type = dense_layer ? ScoreType::f32 : ScoreType::bf16;
        if (dense_layer) options.dense_layers = {1};
        for (std::size_t steps = 0; steps <= kSteps.size(); ++steps) {
          const auto session = after(options, steps, small(type));
          Shape wider = small(type);
          wider.capacity += 9;
          const auto loaded = open(options, wider);
          const auto archive = saved(*session);
          loaded->exchange_state(*archive);
          EXPECT_EQ(loaded->state(), session->state());
          EXPECT_EQ(loaded->tokens(), session->tokens());
          EXPECT_EQ(loaded->plan().size(), session->plan().size());
          expect_same(*saved(*loaded), *archive);
          for (std::size_t s = steps; s < kSteps.size(); ++s) {
            EXPECT_EQ(run(*loaded, kSteps[s]), run(*session, kSteps[s])) << "from step " << steps;
          }
          expect_same(*saved(*loaded), *saved(*session));
        }
      }
    }
  }
}

TEST(SavedState, STATE_12_NamesAndDimensions) {
  const auto archive = saved(*after(of_rule(Select::h2o), 3));
  EXPECT_EQ(archive->lists.at("chunks"), (std::vector<std::int64_t>{0, 5, 0, 5, 6, 0, 6, 10, 0, 10, 11, 2}));
  EXPECT_EQ(archive->lists.at("steps"), (std::vector<std::int64_t>{0, 10, 2, 10, 3, 10}));
  EXPECT_EQ(archive->lists.at("sets"), (std::vector<std::int64_t>{3, 6, 3, 6}));
  EXPECT_EQ(archive->lists.at("sinks").size(), 4U);
  EXPECT_TRUE(archive->lists.at("alibi").empty());
  using Dims = std::vector<std::int64_t>;
  EXPECT_EQ(archive->arrays.at("key.1").dims, (Dims{2, 11, 3}));
  EXPECT_EQ(archive->arrays.at("value.0").dims, (Dims{2, 11, 2}));
  EXPECT_EQ(archive->arrays.at("score.1").dims, (Dims{4, 11}));
  EXPECT_EQ(archive->arrays.at("set.0").dims, (Dims{4, 3}));
  EXPECT_EQ(archive->arrays.size(), 8U);
  EXPECT_EQ(saved(*after(of_rule(Select::blocks), 3))->arrays.size(), 4U);  // rows alone
  Options caller = of_rule(Select::blocks);
  caller.kv_owner = KvOwner::caller;
  EXPECT_TRUE(saved(*open(caller))->arrays.empty());
}

TEST(SavedState, STATE_12_SparseChunksAreSettled) {
  const auto session = after(of_rule(Select::h2o));
  const auto loaded = open(of_rule(Select::h2o));
  loaded->exchange_state(*saved(*session));
  expect_error(ErrorCode::invalid_argument, {"29"}, [&] { loaded->truncate(28); });  // a chunk begins there
  loaded->truncate(29);
  session->truncate(28);
  const auto blocks = open(of_rule(Select::blocks));
  blocks->exchange_state(*saved(*after(of_rule(Select::blocks))));
  blocks->truncate(3);
  EXPECT_EQ(blocks->tokens(), 3);
}

TEST(SavedState, STATE_12_TruncatedSessions) {
  for (const std::int64_t n : {1, 4, 10, 14, 17, 19, 27}) {
    const auto session = after(of_rule(Select::blocks));
    session->truncate(n);
    const auto loaded = open(of_rule(Select::blocks));
    loaded->exchange_state(*saved(*session));
    EXPECT_EQ(run(*loaded, Step::prefill(2)), run(*session, Step::prefill(2))) << n;
    expect_same(*saved(*loaded), *saved(*session));
  }
}

TEST(SavedState, STATE_12_EachNumberIsChecked) {
  const Options options = of_rule(Select::h2o);
  const auto good = saved(*after(options));
  // A call that continues a dense turn and a decode step differ in their mode alone: both sessions are possible.
  const auto possible = [](const std::string& name, std::size_t i, std::int64_t value) {
    return name == "chunks" && ((i == 20 && value == 2) || (i == 23 && value == 1));
  };
  for (const std::string name : {"chunks", "steps", "sets", "sinks"}) {
    const std::vector<std::int64_t> numbers = good->lists.at(name);
    std::vector<std::int64_t>& list = good->lists.at(name);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      for (const std::int64_t wrong : {numbers[i] - 1, numbers[i] + 1, kMost, -kMost - 1}) {
        if (possible(name, i, wrong)) continue;
        SCOPED_TRACE(name + "[" + std::to_string(i) + "] = " + std::to_string(wrong));
        list[i] = wrong;
        expect_refused(options, *good, {});
      }
      list = numbers;
    }
    list.pop_back();
    expect_refused(options, *good, {name});
    list = numbers;
    list.push_back(0);
    expect_refused(options, *good, {name});
    list.clear();
    expect_refused(options, *good, {});
    good->lists.erase(name);
    expect_refused(options, *good, {name, "missing"});
    good->lists[name] = numbers;
  }
}

TEST(SavedState, PLAN_1_AStepIsCutInNoOtherWay) {
  const Options options = of_rule(Select::h2o);
  const auto good = saved(*after(options, 1));
  const auto refuse = [&](const std::vector<std::int64_t>& chunks, const std::vector<std::int64_t>& steps) {
    good->lists["chunks"] = chunks;
    good->lists["steps"] = steps;
    expect_refused(options, *good, {"steps[0].chunks"});
  };
  refuse({0, 4, 0, 4, 6, 0}, {0, 10});
  refuse({0, 6, 1}, {0, 10});
  refuse({0, 3, 0, 3, 6, 0}, {0, 10});
  refuse({0, 5, 0, 5, 6, 2}, {0, 10});
  refuse({0, 5, 2, 5, 6, 2}, {0, 0});
  good->lists["chunks"] = {0, 6, 0};
  expect_refused(options, *good, {"chunks[0].end", "1 to 5"});
}

TEST(SavedState, MEM_4_EachEntryOfTheSetsIsChecked) {
  Options options = of_rule(Select::h2o);
  options.chunk = options.batch = 8;
  options.local = 2;
  options.heavy = 4;
  options.pinned = 1;
  for (const std::size_t steps : {std::size_t{1}, std::size_t{8}}) {
    auto session = open(options);
    (void)run(*session, Step::prefill(steps == 1 ? 11 : 30));
    const auto good = saved(*session);
    for (const char* name : {"set.0", "set.1"}) {
      auto& bytes = good->arrays.at(name).bytes;
      const auto right = bytes;
      for (std::size_t i = 0; i < bytes.size() / 4; ++i) {
        std::int32_t entry = 0;
        std::memcpy(&entry, right.data() + 4 * i, 4);
        std::vector<std::int32_t> wrong{-2, -1, 31, std::numeric_limits<std::int32_t>::max()};
        const std::size_t in_set = i % 6;
        if (in_set == 0 || in_set >= 4) wrong.insert(wrong.end(), {entry - 1, entry + 1});
        if (in_set > 0) {
          std::int32_t before = 0;
          std::memcpy(&before, right.data() + 4 * (i - 1), 4);
          wrong.push_back(before);
        }
        for (const std::int32_t value : wrong) {
          SCOPED_TRACE(std::string(name) + "[" + std::to_string(i) + "] = " + std::to_string(value));
          if (value == entry) continue;
          std::memcpy(bytes.data() + 4 * i, &value, 4);
          expect_refused(options, *good, {name, "entry", "MEM-4"});
        }
        bytes = right;
      }
    }
  }
}

TEST(SavedState, MEM_4_BehindAShortSetStandsMinusOne) {
  Options options = of_rule(Select::h2o);
  options.chunk = options.batch = 8;
  options.local = 2;
  options.heavy = 5;
  options.clamp = false;
  auto session = open(options);
  (void)run(*session, Step::prefill(5, 20));
  (void)run(*session, Step::prefill(8));
  const auto good = saved(*session);
  ASSERT_EQ(good->lists.at("sets"), (std::vector<std::int64_t>{5, 5, 5, 5}));
  auto& bytes = good->arrays.at("set.1").bytes;
  const std::int32_t entry = 5;
  std::memcpy(bytes.data() + 4 * 5, &entry, 4);
  expect_refused(options, *good, {"set.1", "-1 to -1"});
}

TEST(SavedState, STATE_12_WhatIsMissingLeavesAnEmptySession) {
  const Options options = of_rule(Select::h2o);
  for (const char* name : {"key.0", "value.0", "score.0", "set.0", "key.1", "value.1", "score.1", "set.1"}) {
    const auto archive = saved(*after(options));
    archive->arrays.erase(name);
    expect_refused(options, *archive, {name, "missing"});
  }
}

TEST(SavedState, STATE_12_OtherOptionsAndTooSmallACapacity) {
  const auto archive = saved(*after(of_rule(Select::h2o)));
  Options other = of_rule(Select::h2o);
  other.sinks[2] = -0.0F;
  expect_refused(other, *archive, {"sinks"});
  other = of_rule(Select::h2o);
  other.alibi = {0.5F, 0.5F, 0.5F, 0.5F};
  expect_refused(other, *archive, {"alibi"});
  other = of_rule(Select::h2o);
  other.chunk = 6;
  expect_refused(other, *archive, {"chunks"});
  Shape shape = small();
  shape.capacity = 29;
  expect_refused(of_rule(Select::h2o), *archive, {"chunks", "29"}, shape);
  shape.capacity = 30;
  EXPECT_NO_THROW(open(of_rule(Select::h2o), shape)->exchange_state(*archive));
}

TEST(SavedState, STATE_12_States) {
  const auto session = after(of_rule(Select::h2o), 2);
  const auto archive = saved(*session);
  expect_error(ErrorCode::wrong_state, {"10 tokens", "empty"}, [&] { session->exchange_state(*archive); });
  EXPECT_EQ(session->tokens(), 10);
  session->begin(Step::decode());
  MemoryArchive other;
  expect_error(ErrorCode::wrong_state, {"abort()"}, [&] { session->exchange_state(other); });
  EXPECT_FALSE(session->failed());
  expect_error(ErrorCode::wrong_state, {}, [&] { session->end(); });
  expect_error(ErrorCode::wrong_state, {"abort()", "reset()"}, [&] { session->exchange_state(other); });
  session->abort();
  session->exchange_state(other);
  expect_same(other, *archive);
}

}  // namespace
}  // namespace headwater::reference
