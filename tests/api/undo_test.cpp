// STATE-8 to STATE-10: after abort() and truncate() a session has the bits of one that was given only what is left.

#include <algorithm>
#include <cstring>
#include <random>
#include <stdexcept>

#include "tests/api/problem.hpp"

namespace headwater::api_test {
namespace {

/// A step that is left, and the seed of its rows, of which there were so many at first. T is said in every call of a turn.
struct Kept {
  Step step;
  std::uint64_t seed;
  std::int64_t rows = step.n;
};

/// What one step gave: outputs, and all that the observer was shown.
struct Given {
  std::vector<float> out;
  std::vector<float> shown;
  bool operator==(const Given& other) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    return same(out, other.out) && same(shown, other.shown);
  }
};

struct Setting {
  Shape shape;
  Options options;
  DType rows = DType::f32;  // of q, k and v
};

/// A session under test, and the list of what is left of its steps.
class Story {
 public:
  Story(const Engine& engine, const Setting& setting)
      : engine_(engine), setting_(setting), session_(engine.open(setting.shape, setting.options)) {}

  Session& session() { return *session_; }
  std::int64_t tokens() const { return session_->tokens(); }

  void run(Step step) {
    if (step.kind == Step::Kind::prefill) {
      if (session_->state() == SessionState::prefilling) {
        step.turn_length = kept_.back().step.turn_length;
      } else if (step.turn_length == 0) {
        step.turn_length = step.n;
      }
    }
    kept_.push_back({step, ++seed_});
    const std::int64_t after = tokens() + step.n;
    (void)give(*session_, kept_.back());
    ASSERT_EQ(tokens(), after);
    settled_.resize(session_->chunks().size(), false);
    settle();
  }

  /// Opens a step, goes so far, and aborts it. `fault`: 0 none, 1 an observer throws in the last of the layers, 2 a layer
  /// twice, 3 begin() again, 4 end() too early.
  void abort(const Step& step, std::int64_t layers, int fault) {
    const Rows16 rows(setting_, step.n, ++seed_);
    session_->begin(step);
    std::vector<float> out(out_size(step.n));
    const auto attend = [&](std::int64_t layer) { rows.attend(*session_, layer, out.data()); };
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      if (fault == 1 && layer + 1 == layers) {
        const bool one_chunk = session_->options().dense_layer(layer);
        std::size_t left = one_chunk ? 0 : seed_ % session_->plan().size();
        session_->set_observer([left](const ChunkRecord&) mutable {
          if (left-- == 0) throw std::runtime_error("enough");
        });
        EXPECT_ANY_THROW(attend(layer));
        EXPECT_TRUE(session_->failed());
        session_->set_observer({});
      } else {
        attend(layer);
      }
    }
    if (fault == 2 && layers > 0) {
      EXPECT_THROW(attend(0), Error);
    }
    if (fault == 3) {
      EXPECT_THROW(session_->begin(step), Error);
    }
    if (fault == 4 && layers < setting_.shape.n_layer) {
      EXPECT_THROW(session_->end(), Error);
    }
    session_->abort();
    EXPECT_FALSE(session_->failed());
  }

  /// STATE-10, from the chunks and which of them are settled.
  bool possible(std::int64_t n) const {
    const EffectiveOptions& options = session_->options();
    if (n < 0 || n > tokens()) return false;
    if (n == 0 || !options.sparse || options.select == Select::blocks) return true;
    for (std::size_t c = 0; c < settled_.size(); ++c) {
      const Chunk& chunk = session_->chunks()[c];
      if (settled_[c] && n < chunk.end) return false;
      if (chunk.mode == ChunkMode::sparse && chunk.begin < n && n < chunk.end) return false;
    }
    return true;
  }

  void truncate(std::int64_t n) {
    if (!possible(n)) {
      expect_error([&] { session_->truncate(n); }, ErrorCode::invalid_argument,
                   {"truncate", std::to_string(n)});
      return;
    }
    session_->truncate(n);
    std::int64_t left = n;
    std::size_t steps = 0;
    for (; left > 0; ++steps) {
      kept_[steps].step.n = std::min(kept_[steps].step.n, left);
      left -= kept_[steps].step.n;
    }
    kept_.resize(steps);
    settled_.resize(session_->chunks().size());
    if (n == 0) settled_.clear();
  }

  /// Holds the session against one that was given only what is left, then both go on with these steps; the session's are
  /// aborted if `probe`.
  void compare(const std::vector<Step>& steps, bool probe) {
    const auto fresh = engine_.open(setting_.shape, setting_.options);
    for (const Kept& one : kept_) (void)give(*fresh, one);
    expect_same(*fresh);
    for (const Step& step : steps) {
      if (step.n > setting_.shape.capacity - tokens()) break;
      Kept next{step, ++seed_};
      const Given expected = give(*fresh, next);
      EXPECT_TRUE(give(*session_, next, !probe) == expected) << "after " << tokens() << " tokens";
      if (probe) {
        session_->abort();
        break;
      }
      expect_same(*fresh);
    }
  }

 private:
  /// Rows of a step in the type of the setting.
  struct Rows16 {
    Rows16(const Setting& setting, std::int64_t n, std::uint64_t seed)
        : shape(setting.shape), type(setting.rows), input(random_input(setting.shape, n, seed)) {
      if (type == DType::f32) return;
      const auto narrow = [](const std::vector<float>& from, std::vector<std::uint16_t>& to) {
        for (const float x : from)
          to.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16));
      };
      narrow(input.q, q), narrow(input.k, k), narrow(input.v, v);
    }
    void attend(Session& session, std::int64_t layer, float* out) const {
      const auto view = [&](const std::vector<float>& f, const std::vector<std::uint16_t>& h,
                            std::int64_t heads, std::int64_t width) {
        const void* data = type == DType::f32 ? static_cast<const void*>(f.data()) : h.data();
        return Rows::token_major(data, type, heads, width);
      };
      session.attend(layer, view(input.q, q, shape.n_head, shape.d_head),
                     view(input.k, k, shape.n_head_kv, shape.d_head),
                     view(input.v, v, shape.n_head_kv, shape.d_value),
                     MutableRows::token_major(out, DType::f32, shape.n_head, shape.d_value));
    }
    const Shape& shape;
    DType type;
    LayerInput input;
    std::vector<std::uint16_t> q, k, v;
  };

  std::size_t out_size(std::int64_t n) const {
    return static_cast<std::size_t>(n * setting_.shape.n_head * setting_.shape.d_value);
  }

  Given give(Session& session, const Kept& one, bool end = true) const {
    Given given;
    const std::int64_t heads = setting_.shape.n_head;
    session.set_observer([&](const ChunkRecord& record) {
      std::vector<float>& shown = given.shown;
      const auto rows = [&](const float* data, std::int64_t stride, std::int64_t n) {
        for (std::int64_t h = 0; data != nullptr && h < heads; ++h)
          shown.insert(shown.end(), data + h * stride, data + h * stride + n);
      };
      rows(record.lse, record.row_stride, record.chunk.end - record.chunk.begin);
      if (record.chunk.mode != ChunkMode::sparse || record.query_blocks > 0) return;
      rows(record.colsum_intra, record.row_stride, record.chunk.end - record.chunk.begin);
      rows(record.colsum_inter, record.memory_stride, record.memory_stride);
      for (std::int64_t i = 0; i < heads * record.memory_stride; ++i)
        shown.push_back(static_cast<float>(record.memory[i]));
    });
    const Rows16 rows(setting_, one.rows, one.seed);
    session.begin(one.step);
    given.out.resize(out_size(one.step.n) * static_cast<std::size_t>(setting_.shape.n_layer));
    for (std::int64_t layer = 0; layer < setting_.shape.n_layer; ++layer)
      rows.attend(session, layer, given.out.data() + out_size(one.step.n) * static_cast<std::size_t>(layer));
    session.set_observer({});
    if (end) session.end();
    return given;
  }

  /// The definition: settled is what E sparse chunks or more follow.
  void settle() {
    std::int64_t after = 0;
    for (std::size_t c = settled_.size(); c-- > 0;) {
      if (session_->chunks()[c].mode != ChunkMode::sparse) continue;
      if (after++ >= setting_.options.checkpoints) settled_[c] = true;
    }
  }

  void expect_same(const Session& fresh) const {
    EXPECT_EQ(session_->state(), fresh.state());
    ASSERT_EQ(session_->tokens(), fresh.tokens());
    const auto boundaries = [](std::span<const Chunk> chunks) {
      std::vector<std::int64_t> all;
      for (const Chunk& c : chunks)
        all.insert(all.end(), {c.begin, c.end, static_cast<std::int64_t>(c.mode)});
      return all;
    };
    EXPECT_EQ(boundaries(session_->chunks()), boundaries(fresh.chunks()));
    EXPECT_EQ(boundaries(session_->plan()), boundaries(fresh.plan()));
    const Shape& shape = setting_.shape;
    const auto bytes = static_cast<std::size_t>(setting_.options.score_type == ScoreType::bf16 ? 2 : 4);
    std::vector<float> a(static_cast<std::size_t>(std::max(shape.d_head, shape.d_value)));
    std::vector<float> b = a;
    for (std::int64_t layer = 0; layer < shape.n_layer; ++layer) {
      const ScoreView scores = session_->scores(layer), others = fresh.scores(layer);
      for (std::int64_t h = 0; h < shape.n_head; ++h) {
        const auto at = [&](const ScoreView& view) {
          return static_cast<const char*>(view.data) + static_cast<std::size_t>(h * view.head_stride) * bytes;
        };
        ASSERT_EQ(std::memcmp(at(scores), at(others), static_cast<std::size_t>(tokens()) * bytes), 0)
            << "scores of layer " << layer << ", head " << h << " after " << tokens() << " tokens";
      }
      const MemoryView memory = session_->memory(layer), other = fresh.memory(layer);
      ASSERT_EQ(memory.count, other.count) << "layer " << layer;
      ASSERT_EQ(memory.width, other.width);
      for (std::int64_t i = 0; memory.width > 0 && i < shape.n_head * memory.width; ++i)
        ASSERT_EQ(memory.data[i], other.data[i]) << "set of layer " << layer << ", head " << i / memory.width;
      for (std::int64_t p = 0; p < tokens(); p += 1 + tokens() / 50) {
        session_->read_key(layer, shape.n_head_kv - 1, p, a);
        fresh.read_key(layer, shape.n_head_kv - 1, p, b);
        ASSERT_EQ(a, b) << "key " << p;
        session_->read_value(layer, 0, p, a);
        fresh.read_value(layer, 0, p, b);
        ASSERT_EQ(a, b) << "value " << p;
      }
    }
  }

  const Engine& engine_;
  const Setting& setting_;
  std::unique_ptr<Session> session_;
  std::vector<Kept> kept_;
  std::vector<bool> settled_;  // of each chunk
  std::uint64_t seed_ = 0;
};

class UndoOf : public EachEngine {
 protected:
  void SetUp() override {
    if (!engine().claims().truncate || !engine().claims().abort) GTEST_SKIP() << "not claimed";
  }

  /// A random script: steps, aborts, truncates, each compared.
  void random_script(const Setting& setting, std::uint64_t seed, int acts) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::int64_t n) {
      return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
    };
    const std::int64_t chunk = setting.options.chunk;
    const auto any_step = [&](std::int64_t room) {
      const std::int64_t lengths[] = {1, 2, chunk - 1, chunk, chunk + 1, 2 * chunk, 3 * chunk + 1, 5 * chunk};
      const std::int64_t n = std::min(std::max<std::int64_t>(1, lengths[below(8)]), room);
      if (below(3) == 0) return Step::decode(std::min<std::int64_t>(n, 3));
      return Step::prefill(n);
    };
    Story story(engine(), setting);
    for (int act = 0; act < acts; ++act) {
      const std::int64_t room = setting.shape.capacity - story.tokens();
      const std::int64_t kind = room == 0 ? 6 : below(8);
      if (kind < 4) {
        Step step = any_step(room);
        if (step.kind == Step::Kind::prefill && below(3) == 0) step.turn_length = step.n + below(2 * chunk);
        ASSERT_NO_FATAL_FAILURE(story.run(step));
        continue;
      }
      if (kind < 6) {
        story.abort(any_step(room), below(setting.shape.n_layer + 1), static_cast<int>(below(5)));
      } else {
        const auto chunks = story.session().chunks();
        std::int64_t n = below(story.tokens() + 3) - 1;
        if (!chunks.empty() && below(4) != 0) {
          const std::int64_t from_end = below(std::min<std::int64_t>(6, std::ssize(chunks)));
          n = chunks[chunks.size() - 1 - static_cast<std::size_t>(from_end)].begin + below(3) - 1;
        }
        if (n <= 0 && below(4) != 0) n = story.tokens();
        story.truncate(n);
        if (below(2) == 0) continue;  // two in a row, and one before the next step
      }
      ASSERT_NO_FATAL_FAILURE(story.compare({any_step(1 + chunk)}, true));
    }
    ASSERT_NO_FATAL_FAILURE(
        story.compare({Step::decode(2), Step::prefill(2 * chunk + 3), Step::decode()}, false));
  }
};

Setting small(std::int64_t checkpoints) {
  Setting setting{small_shape(160), small_options()};
  setting.options.batch = 20;
  setting.options.checkpoints = checkpoints;
  return setting;
}

TEST_P(UndoOf, RandomScriptsOfRuleH2o) {
  for (const std::int64_t checkpoints : {0, 1, 5}) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      Setting setting = small(checkpoints);
      setting.options.threads = seed % 3 == 0 ? 3 : 1;  // three: windows of several chunks
      setting.options.schedule = seed % 2 == 0 ? Schedule::layer_major : Schedule::chunk_major;
      if (seed % 4 == 1) setting.options.score_type = ScoreType::f32;
      if (seed % 4 == 2) setting.options.pinned = 2;
      if (seed % 4 == 3) setting.options.dense_layers = {0};
      if (seed == 5) setting.options.dense_layers = {0, 1};
      if (seed >= 6) setting.options.dense_below = 12;
      if (seed == 7) setting.options.local = 0;
      SCOPED_TRACE("E = " + std::to_string(checkpoints) + ", seed " + std::to_string(seed));
      ASSERT_NO_FATAL_FAILURE(
          random_script(setting, 100 * seed + static_cast<std::uint64_t>(checkpoints), 24));
    }
  }
}

TEST_P(UndoOf, RandomScriptsOfRuleBlocks) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    Setting setting = small(3);
    setting.options.select = Select::blocks;
    setting.options.key_block = 2;
    setting.options.query_block = 4;
    setting.options.pool = 2;
    if (seed % 2 == 1) setting.options.dense_layers = {1};
    if (seed % 3 == 2) setting.options.dense_below = 12;
    setting.options.threads = 1 + static_cast<int>(seed % 3);
    SCOPED_TRACE("seed " + std::to_string(seed));
    ASSERT_NO_FATAL_FAILURE(random_script(setting, seed, 24));
  }
}

TEST_P(UndoOf, RandomScriptsOfDenseSessions) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    Setting setting = small(static_cast<std::int64_t>(seed));
    setting.options.dense = true;
    ASSERT_NO_FATAL_FAILURE(random_script(setting, seed, 24)) << "seed " << seed;
  }
}

TEST_P(UndoOf, RandomScriptsOfBf16Rows) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    Setting setting = small(static_cast<std::int64_t>(seed));
    setting.rows = setting.shape.kv_type = DType::bf16;
    setting.options.threads = seed % 2 == 0 ? 1 : 3;
    if (seed >= 4) {
      setting.options.select = Select::blocks;
      setting.options.key_block = 2;
      setting.options.query_block = setting.options.pool = 4;
    }
    ASSERT_NO_FATAL_FAILURE(random_script(setting, seed, 24)) << "seed " << seed;
  }
}

// STATE-8, STATE-9: what is refused, and that it changes nothing.
TEST_P(UndoOf, Refusals) {
  const Setting setting = small(2);
  Story story(engine(), setting);
  expect_error([&] { story.session().abort(); }, ErrorCode::wrong_state, {"abort", "begin"});
  expect_error([&] { story.session().truncate(1); }, ErrorCode::invalid_argument, {"1", "0"});
  story.run(Step::prefill(40));  // chunks of 8, 8, 4, 8, 8, 4; the first four are settled
  expect_error([&] { story.session().abort(); }, ErrorCode::wrong_state, {"abort", "begin"});
  expect_error([&] { story.session().truncate(-1); }, ErrorCode::invalid_argument, {"-1", "40"});
  expect_error([&] { story.session().truncate(41); }, ErrorCode::invalid_argument, {"41", "40"});
  expect_error([&] { story.session().truncate(20); }, ErrorCode::invalid_argument, {"20", "0", "28"});
  expect_error([&] { story.session().truncate(33); }, ErrorCode::invalid_argument, {"33", "28", "36"});
  EXPECT_FALSE(story.session().failed());
  story.session().begin(Step::decode());
  expect_error([&] { story.session().truncate(36); }, ErrorCode::wrong_state, {"truncate"});
  EXPECT_FALSE(story.session().failed());
  story.session().abort();
  story.compare({Step::decode()}, true);
  story.truncate(36);
  story.compare({Step::prefill(9)}, true);
  story.truncate(28);
  EXPECT_FALSE(story.possible(20));  // chunks stay settled
  expect_error([&] { story.session().truncate(20); }, ErrorCode::invalid_argument, {"20", "28"});
  story.compare({Step::prefill(9)}, true);
  story.session().begin(Step::decode());
  expect_error([&] { story.session().begin(Step::decode()); }, ErrorCode::wrong_state, {"begin()"});
  expect_error([&] { story.session().end(); }, ErrorCode::wrong_state, {"abort()", "reset()"});
  expect_error([&] { story.session().truncate(28); }, ErrorCode::wrong_state, {"abort()", "reset()"});
  story.session().abort();
  story.compare({Step::prefill(9)}, false);
}

// STATE-10: an aborted step settles nothing, and its checkpoints take no place of older ones.
TEST_P(UndoOf, AbortedStepsKeepCheckpoints) {
  const Setting setting = small(3);
  Story story(engine(), setting);
  story.run(Step::prefill(56));
  story.abort(Step::prefill(60), 2, 0);
  story.abort(Step::prefill(24), 2, 1);
  story.truncate(40);
  story.compare({Step::prefill(20)}, true);
  story.truncate(36);
  story.compare({Step::decode()}, true);
  story.run(Step::prefill(8));  // one checkpoint, and none behind it
  story.truncate(36);
  story.compare({Step::prefill(20), Step::decode()}, false);
}

// Options::checkpoints
TEST_P(UndoOf, CheckpointsAreAnOption) {
  Setting setting = small(65536);
  EXPECT_EQ(engine().open(setting.shape, setting.options)->options().checkpoints, 65536);
  for (const std::int64_t wrong : {-1, 65537}) {
    setting.options.checkpoints = wrong;
    expect_error([&] { (void)engine().open(setting.shape, setting.options); }, ErrorCode::invalid_argument,
                 {"checkpoints", std::to_string(wrong), "65536"});
  }
  setting.options.checkpoints = 4;
  Options other = setting.options;
  other.dense = true;
  EXPECT_EQ(engine().open(setting.shape, other)->options().checkpoints, 0);
  other = setting.options;
  other.select = Select::blocks;
  other.key_block = 2;
  other.query_block = other.pool = 4;
  EXPECT_EQ(engine().open(setting.shape, other)->options().checkpoints, 0);
}

HEADWATER_EACH_ENGINE(UndoOf);

class UndoNotOffered : public EachEngine {};

// An engine without these calls refuses them by name, and stays as it was.
TEST_P(UndoNotOffered, IsSaid) {
  if (engine().claims().truncate) GTEST_SKIP() << "claimed";
  const Setting setting = small(0);
  const auto session = engine().open(setting.shape, setting.options);
  expect_error([&] { session->abort(); }, ErrorCode::unsupported, {"abort()"});
  session->begin(Step::decode());
  expect_error([&] { session->abort(); }, ErrorCode::unsupported, {"abort()"});
  expect_error([&] { session->truncate(0); }, ErrorCode::unsupported, {"truncate()"});
  EXPECT_FALSE(session->failed());
  Options options = setting.options;
  options.checkpoints = 1;
  expect_error([&] { (void)engine().open(setting.shape, options); }, ErrorCode::unsupported,
               {"checkpoints", "1", std::string(engine().name())});
}

HEADWATER_EACH_ENGINE(UndoNotOffered);

/// Sizes beyond 64 heads, 256 entries, 256 and 65536 chunks, on the engine that people get.
class UndoSizes : public testing::Test {
 protected:
  static Setting sized(const Shape& shape, std::int64_t chunk, std::int64_t local, std::int64_t heavy,
                       std::int64_t checkpoints) {
    Setting setting{shape, {}};
    setting.options.batch = 4 * chunk;
    setting.options.chunk = chunk;
    setting.options.local = local;
    setting.options.heavy = heavy;
    setting.options.threads = 2;
    setting.options.checkpoints = checkpoints;
    return setting;
  }
  const Engine& cpu_ = engine("cpu");
};

TEST_F(UndoSizes, SetsOnEachSideOf256) {
  for (const std::int64_t heavy : {127, 128, 129, 200}) {
    Setting setting =
        sized({.n_layer = 2, .n_head = 2, .n_head_kv = 1, .d_head = 8, .d_value = 8, .capacity = 2600}, 400,
              128, heavy, 2);
    if (heavy == 200) setting.options.score_type = ScoreType::f32;
    Story story(cpu_, setting);
    story.run(Step::prefill(2000));
    story.truncate(1600);
    story.compare({Step::prefill(500)}, true);
    story.truncate(1200);
    story.compare({Step::prefill(500)}, true);
    story.run(Step::prefill(400));
    story.abort(Step::prefill(900), 2, 1);
    story.compare({Step::prefill(500), Step::decode()}, false);
  }
}

TEST_F(UndoSizes, SetsOf1500) {
  Setting setting =
      sized({.n_layer = 1, .n_head = 2, .n_head_kv = 1, .d_head = 8, .d_value = 8, .capacity = 5000}, 400,
            500, 1000, 2);
  setting.options.clamp = false;
  Story story(cpu_, setting);
  story.run(Step::prefill(4000));
  story.abort(Step::prefill(900), 1, 1);
  story.truncate(3600);
  story.compare({Step::prefill(500), Step::decode()}, false);
}

TEST_F(UndoSizes, SeventyTwoHeads) {
  const Setting setting = sized(
      {.n_layer = 1, .n_head = 72, .n_head_kv = 9, .d_head = 4, .d_value = 4, .capacity = 400}, 32, 4, 12, 3);
  Story story(cpu_, setting);
  story.run(Step::prefill(256));
  story.abort(Step::prefill(80), 1, 1);
  story.compare({Step::prefill(70)}, true);
  story.truncate(192);
  story.compare({Step::prefill(70), Step::decode()}, false);
}

TEST_F(UndoSizes, ThreeHundredCheckpoints) {
  const Setting setting = sized(
      {.n_layer = 2, .n_head = 2, .n_head_kv = 2, .d_head = 4, .d_value = 4, .capacity = 3000}, 4, 1, 2, 300);
  Story story(cpu_, setting);
  story.run(Step::prefill(1600, 3000));
  story.run(Step::prefill(700));
  story.abort(Step::prefill(700), 2, 1);
  story.truncate(2200);
  story.truncate(1100);  // 300 chunks back
  story.compare({Step::prefill(900), Step::decode()}, false);
}

TEST_F(UndoSizes, TwentyThousandTokens) {
  const Setting setting =
      sized({.n_layer = 2, .n_head = 2, .n_head_kv = 1, .d_head = 8, .d_value = 8, .capacity = 21000}, 512,
            64, 192, 4);
  Story story(cpu_, setting);
  story.run(Step::prefill(20000));
  story.run(Step::decode(3));
  story.abort(Step::prefill(900), 2, 1);
  story.truncate(20001);
  story.compare({Step::prefill(600)}, true);
  story.truncate(18432);
  story.compare({Step::prefill(1200), Step::decode()}, false);
}

TEST_F(UndoSizes, MoreThan65536Chunks) {
  Setting setting = sized(
      {.n_layer = 1, .n_head = 1, .n_head_kv = 1, .d_head = 1, .d_value = 1, .capacity = 66000}, 1, 1, 1, 2);
  setting.options.clamp = false;
  setting.options.threads = 1;
  Story story(cpu_, setting);
  story.run(Step::prefill(65600));
  story.run(Step::prefill(7));
  story.abort(Step::prefill(5), 1, 0);
  story.truncate(65605);
  story.compare({Step::prefill(3), Step::decode()}, false);
}

// SEL-3, SEL-12: blocks and regions that were whole before, and are again.
TEST_F(UndoSizes, RegionsOfKeyBlocks) {
  Setting setting =
      sized({.n_layer = 1, .n_head = 2, .n_head_kv = 1, .d_head = 8, .d_value = 8, .capacity = 6000}, 256, 16,
            64, 0);
  setting.options.select = Select::blocks;
  setting.options.key_block = 2;
  Story story(cpu_, setting);
  story.run(Step::prefill(5000, 6000));
  for (const std::int64_t n : {4801, 4800, 4737, 4736, 4735}) {
    story.abort(Step::prefill(300), 1, 1);
    story.truncate(n);
    story.compare({Step::prefill(300)}, true);
  }
  story.compare({Step::prefill(300), Step::decode(70), Step::prefill(300)}, false);
}

}  // namespace
}  // namespace headwater::api_test
