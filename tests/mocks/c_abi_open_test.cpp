// The C ABI where engine and session are mocks: what the engine is asked for, sessions of files, estimates.

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <new>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "tests/mocks/session_handle.hpp"

namespace headwater::mocks {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::ByMove;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::InSequence;
using ::testing::MockFunction;
using ::testing::NiceMock;
using ::testing::Property;
using ::testing::Return;
using ::testing::ReturnRef;
using ::testing::SaveArg;
using ::testing::StartsWith;
using ::testing::StrictMock;
using ::testing::Throw;

void count_calls(void* context, std::int64_t n, headwater_parallel_body body, void* argument) {
  *static_cast<std::int64_t*>(context) += n;
  for (std::int64_t i = 0; i < n; ++i) body(argument, i);
}

TEST(CAbiOpen, TheEngineGetsWhatTheCallerAskedFor) {
  StrictMock<EngineList> list;
  StrictMock<MockEngine> engine;
  MockFunction<void()> destroyed;
  Shape shape;
  Options options;
  {
    const InSequence order;
    EXPECT_CALL(list, engine(std::string_view("mine"))).WillOnce(ReturnRef(engine));
    EXPECT_CALL(engine, open(_, _)).WillOnce([&](const Shape& for_shape, const Options& asked) {
      shape = for_shape;
      options = asked;
      auto session = std::make_unique<StrictMock<MockSession>>();
      session->on_destruction = destroyed.AsStdFunction();
      return session;
    });
    EXPECT_CALL(destroyed, Call());
  }
  headwater_options asked = default_options();
  std::vector<float> sinks{1, 2, 3, 4, 5, 6};
  std::vector<float> slopes{6, 5, 4, 3, 2, 1};
  int stream = 0;
  asked.batch = 11, asked.chunk = 12, asked.local = 13, asked.heavy = 14, asked.clamp = 0, asked.dense = 1;
  asked.scale = 0.5, asked.softcap = 1.5, asked.sinks = sinks.data(), asked.alibi = slopes.data();
  asked.score_type = HEADWATER_SCORE_F32, asked.schedule = HEADWATER_CHUNK_MAJOR, asked.threads = 15;
  asked.row_memory = HEADWATER_DEVICE_MEMORY, asked.stream = &stream;
  asked.select = HEADWATER_SELECT_BLOCKS, asked.key_block = 16, asked.query_block = 17, asked.pool = 18;
  asked.refine = 19, asked.pinned = 20, asked.dense_below = 21, asked.least_weight = 0.25;
  asked.kv_bits = 22;
  std::vector<std::int64_t> layers{1, 0};  // in any order: what is allowed is the engine's to say
  asked.dense_layers = layers.data(), asked.dense_layer_count = 2;
  std::int64_t calls = 0;
  asked.checkpoints = 65536, asked.parallel_for = count_calls, asked.parallel_context = &calls;
  const headwater_shape wanted = some_shape();
  headwater_session* handle = nullptr;
  ASSERT_EQ(headwater_open("mine", &wanted, &asked, &handle), HEADWATER_OK);
  ASSERT_NE(handle, nullptr);

  EXPECT_EQ(std::tuple(shape.n_layer, shape.n_head, shape.n_head_kv, shape.d_head, shape.d_value,
                       shape.capacity, shape.kv_type),
            std::tuple(2, 6, 3, 40, 50, 700, DType::bf16));
  EXPECT_EQ(std::tuple(options.batch, options.chunk, options.local, options.heavy, options.threads),
            std::tuple(11, 12, 13, 14, 15));
  EXPECT_EQ(std::tuple(options.key_block, options.query_block, options.pool, options.refine, options.pinned,
                       options.dense_below, options.kv_bits),
            std::tuple(16, 17, 18, 19, 20, 21, 22));
  EXPECT_EQ(std::tuple(options.clamp, options.dense, options.score_type, options.schedule, options.select),
            std::tuple(false, true, ScoreType::f32, Schedule::chunk_major, Select::blocks));
  EXPECT_EQ(std::tuple(options.scale, options.softcap, options.least_weight), std::tuple(0.5, 1.5, 0.25));
  EXPECT_EQ(std::tuple(options.sinks, options.alibi), std::tuple(sinks, slopes));
  EXPECT_EQ(std::tuple(options.row_memory, options.stream), std::tuple(RowMemory::device, &stream));
  EXPECT_EQ(std::tuple(options.dense_layers, options.checkpoints), std::tuple(layers, 65536));
  ASSERT_NE(options.parallel_for, nullptr);
  std::int64_t sum = 0;
  options.parallel_for(
      options.parallel_context, 5, [](void* to, std::int64_t i) { *static_cast<std::int64_t*>(to) += i; },
      &sum);
  EXPECT_EQ(std::tuple(calls, sum), std::tuple(5, 0 + 1 + 2 + 3 + 4));
  headwater_close(handle);
}

TEST(CAbiOpen, WithoutOptionsTheEngineGetsTheDefaults) {
  NiceMock<EngineList> list;
  StrictMock<MockEngine> engine;
  Options options;
  options.batch = 1;
  // A NULL name is the empty one, which stands for the environment's engine.
  EXPECT_CALL(list, engine(std::string_view())).WillOnce(ReturnRef(engine));
  EXPECT_CALL(engine, open(_, _))
      .WillOnce(::testing::DoAll(SaveArg<1>(&options), Return(ByMove(std::make_unique<MockSession>()))));
  const headwater_shape wanted = some_shape();
  headwater_session* handle = nullptr;
  ASSERT_EQ(headwater_open(nullptr, &wanted, nullptr, &handle), HEADWATER_OK);
  const Handle owner(handle);
  EXPECT_EQ(options.batch, Options{}.batch);
  EXPECT_EQ(options.scale, std::nullopt);
  EXPECT_TRUE(options.sinks.empty());
  EXPECT_EQ(std::tuple(options.pinned, options.dense_below), std::tuple(0, 0));
  EXPECT_TRUE(options.dense_layers.empty());
  EXPECT_EQ(options.checkpoints, 0);
  EXPECT_EQ(options.parallel_for, nullptr);
  EXPECT_EQ(options.parallel_context, nullptr);
}

/// What the engine is asked for, or the line of a refusal that comes before it.
struct Asked {
  std::optional<Options> options;
  std::string refusal;
};

Asked ask(const headwater_options& options, std::int64_t layers) {
  NiceMock<EngineList> list;
  NiceMock<MockEngine> engine;
  Asked asked;
  ON_CALL(list, engine(_)).WillByDefault(ReturnRef(engine));
  ON_CALL(engine, open(_, _)).WillByDefault([&](const Shape&, const Options& wanted) {
    asked.options = wanted;
    return std::make_unique<NiceMock<MockSession>>();
  });
  headwater_shape shape = some_shape();
  shape.n_layer = layers;
  headwater_session* handle = nullptr;
  const headwater_status status = headwater_open("mine", &shape, &options, &handle);
  const Handle owner(handle);
  EXPECT_EQ(status, asked.options ? HEADWATER_OK : HEADWATER_INVALID_ARGUMENT);
  EXPECT_EQ(handle != nullptr, asked.options.has_value());
  if (!asked.options) asked.refusal = headwater_last_error();
  return asked;
}

// A count of hostile callers must not decide how much is read or allocated.
TEST(CAbiOpen, DenseLayersAreCountedBeforeTheyAreRead) {
  headwater_options asked = default_options();
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  const std::int64_t layer = 1;
  for (const std::int64_t* layers : {&layer, static_cast<const std::int64_t*>(nullptr)}) {
    asked.dense_layers = layers;
    for (const std::int64_t count : {std::int64_t{-1}, std::int64_t{3}, kMost, kLeast}) {
      asked.dense_layer_count = count;
      EXPECT_EQ(ask(asked, 2).refusal,
                "options.dense_layer_count is " + std::to_string(count) + "; allowed: 0 .. 2");
    }
    for (const std::int64_t absurd :
         {std::int64_t{0}, std::int64_t{-1}, std::int64_t{65537}, kMost, kLeast}) {
      asked.dense_layer_count = absurd > 0 ? absurd : 1;
      EXPECT_EQ(ask(asked, absurd).refusal,
                "shape.n_layer is " + std::to_string(absurd) + "; allowed: 1 .. 65536");
    }
    asked.dense_layer_count = 0;  // nothing is read, and n_layer is the engine's to judge
    for (const std::int64_t any : {std::int64_t{2}, kMost}) {
      const Asked none = ask(asked, any);
      ASSERT_TRUE(none.options);
      EXPECT_TRUE(none.options->dense_layers.empty());
    }
  }
  asked.dense_layer_count = 1;
  EXPECT_THAT(ask(asked, 2).refusal, HasSubstr("options.dense_layers is NULL"));
  std::vector<std::int64_t> all(65536);
  asked.dense_layers = all.data();
  asked.dense_layer_count = 65536;
  const Asked most = ask(asked, 65536);
  ASSERT_TRUE(most.options);
  EXPECT_EQ(most.options->dense_layers, all);
}

// Both directions: a program that knows less than this library, and one that knows more (AnUnknownFieldIsRefused...). What
// is after the caller's structure is neither written nor read.
TEST(CAbiOpen, AnOlderCallerHasTheDefaultsOfLaterFields) {
  const std::int64_t layer = 1;
  std::int64_t calls = 0;
  headwater_options all = default_options();
  all.pinned = 5, all.dense_below = 6, all.dense_layers = &layer, all.dense_layer_count = 1;
  all.checkpoints = 7, all.parallel_for = count_calls, all.parallel_context = &calls;
  const struct {
    std::size_t size;
    std::int64_t pinned, dense_below;
    std::size_t dense_layers;
    std::int64_t checkpoints;
    headwater_parallel_for parallel_for;
  } cases[] = {{offsetof(headwater_options, pinned), 0, 0, 0, 0, nullptr},
               {offsetof(headwater_options, dense_below), 5, 0, 0, 0, nullptr},
               {offsetof(headwater_options, dense_layers), 5, 6, 0, 0, nullptr},
               // The pointer without the count is not followed.
               {offsetof(headwater_options, dense_layer_count), 5, 6, 0, 0, nullptr},
               {offsetof(headwater_options, checkpoints), 5, 6, 1, 0, nullptr},
               {offsetof(headwater_options, parallel_for), 5, 6, 1, 7, nullptr},
               {offsetof(headwater_options, parallel_context), 5, 6, 1, 7, count_calls}};
  for (const auto& one : cases) {
    SCOPED_TRACE(one.size);
    headwater_options untouched;
    std::memset(&untouched, 0xAB, sizeof untouched);
    headwater_options asked = untouched;
    ASSERT_EQ(headwater_options_init(&asked, one.size), HEADWATER_OK);
    const auto after = [&](const auto& options) {
      return reinterpret_cast<const char*>(&options) + one.size;
    };
    EXPECT_EQ(std::memcmp(after(asked), after(untouched), sizeof asked - one.size), 0) << "written";
    std::memcpy(&asked, &all, one.size);
    asked.struct_size = one.size;
    const Asked seen = ask(asked, 2);
    ASSERT_TRUE(seen.options) << seen.refusal;
    const Options& options = *seen.options;
    EXPECT_EQ(std::tuple(options.pinned, options.dense_below, options.dense_layers.size(),
                         options.checkpoints, options.parallel_for, options.parallel_context),
              std::tuple(one.pinned, one.dense_below, one.dense_layers, one.checkpoints, one.parallel_for,
                         nullptr));
  }
}

TEST(CAbiOpen, WhatFailsLeavesNoHandle) {
  NiceMock<EngineList> list;
  StrictMock<MockEngine> engine;
  const headwater_shape wanted = some_shape();
  const auto fails = [&](headwater_status status, const char* text) {
    expect_no_session([&](auto** handle) { return headwater_open("mine", &wanted, nullptr, handle); }, status,
                      text);
  };
  EXPECT_CALL(list, engine(_))
      .WillOnce(Throw(Error(ErrorCode::engine_unavailable, "no such")))
      .WillRepeatedly(ReturnRef(engine));
  fails(HEADWATER_ENGINE_UNAVAILABLE, "no such");
  EXPECT_CALL(engine, open(_, _))
      .WillOnce(Throw(Error(ErrorCode::invalid_argument, "shape.d_head is 40; allowed: 64")))
      .WillOnce(Throw(std::bad_alloc()));
  fails(HEADWATER_INVALID_ARGUMENT, "shape.d_head is 40; allowed: 64");
  fails(HEADWATER_OUT_OF_MEMORY, "out of memory");
}

TEST(CAbiOpen, AnUnknownFieldIsRefusedBeforeTheEngineTakesMemory) {
  NiceMock<EngineList> list;
  StrictMock<MockEngine> engine;
  ON_CALL(list, engine(_)).WillByDefault(ReturnRef(engine));
  struct {
    headwater_options known;
    std::int64_t later;
  } asked{};
  ASSERT_EQ(headwater_options_init(&asked.known, sizeof asked), HEADWATER_OK);
  asked.later = 1;
  const headwater_shape wanted = some_shape();
  expect_no_session([&](auto** handle) { return headwater_open("mine", &wanted, &asked.known, handle); },
                    HEADWATER_INVALID_ARGUMENT, HasSubstr("is set; this library knows"));
}

// Texts are copied once for the whole program: no other test may read them.
TEST(CAbiEngines, EachTextIsTheEnginesOwn) {
  NiceMock<EngineList> list;
  NiceMock<MockEngine> first;
  NiceMock<MockEngine> second;
  const std::array<const Engine*, 2> all{&first, &second};
  ON_CALL(list, engines()).WillByDefault(Return(std::span<const Engine* const>(all)));
  ON_CALL(second, name()).WillByDefault(Return("mine"));
  ON_CALL(second, isa()).WillByDefault(Return("scalar"));
  ON_CALL(second, description()).WillByDefault(Return("one line"));
  ON_CALL(second, unavailable_because()).WillByDefault(Return("needs a device"));
  EXPECT_EQ(headwater_engine_count(), 2);
  EXPECT_STREQ(headwater_engine_name(1), "mine");
  EXPECT_STREQ(headwater_engine_isa(1), "scalar");
  EXPECT_STREQ(headwater_engine_description(1), "one line");
  EXPECT_STREQ(headwater_engine_unavailable_because(1), "needs a device");
  EXPECT_EQ(headwater_engine_name(2), nullptr);
  EXPECT_THAT(headwater_last_error(), HasSubstr("engine index is 2"));
}

// ---- files ---------------------------------------------------------------------------------------------------------

/// A folder with a file of a session, or the name of one, and a session that gives or takes `numbers` and `entries`.
class CAbiFiles : public ::testing::Test {
 protected:
  CAbiFiles() {
    std::string name = ::testing::TempDir() + "headwater-mocks-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    file_ = (folder_ / "session").string();
    shape_.d_head = 40;
    expect_sizes(*opened_.session);
  }
  ~CAbiFiles() override { std::filesystem::remove_all(folder_); }

  void expect_sizes(MockSession& session) {
    EXPECT_CALL(session, shape()).WillRepeatedly(ReturnRef(shape_));
    EXPECT_CALL(session, options()).WillRepeatedly(ReturnRef(options_));
  }
  static auto is_archive(bool loading) { return Property("loading", &StateArchive::loading, loading); }
  void exchange(StateArchive& archive) {
    archive.numbers("chunks", numbers_, 3);
    const std::int64_t dim = std::ssize(entries_);
    const StateArchive::Piece piece{entries_.data(), dim * 4};
    archive.array("set.0", StateArchive::Element::i32, std::span(&dim, 1), std::span(&piece, 1));
  }
  void save() {
    EXPECT_CALL(*opened_.session, exchange_state(is_archive(false)))
        .Times(2)
        .WillRepeatedly([this](auto& to) { exchange(to); });
    ASSERT_EQ(headwater_save(opened_.get(), file_.c_str(), "model 7"), HEADWATER_OK)
        << headwater_last_error();
  }
  std::string text() const {
    std::ifstream file(file_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::int64_t files() const { return std::distance(std::filesystem::directory_iterator(folder_), {}); }

  std::filesystem::path folder_;
  std::string file_;
  Shape shape_;
  EffectiveOptions options_;
  std::vector<std::int64_t> numbers_{1, -2, std::int64_t{1} << 40};
  std::vector<std::int32_t> entries_{5, 6, 7, 8};
  Opened<StrictMock> opened_;
  StrictMock<EngineList> list_;
  StrictMock<MockEngine> engine_;
};

TEST_F(CAbiFiles, TheSessionGivesItsStateAndAnotherTakesIt) {
  save();
  const std::vector<std::int64_t> numbers = std::exchange(numbers_, {});
  const std::vector<std::int32_t> entries = std::exchange(entries_, std::vector<std::int32_t>(4));
  auto owned = std::make_unique<StrictMock<MockSession>>();
  MockSession& loaded = *owned;
  expect_sizes(loaded);
  headwater_options asked = default_options();
  asked.batch = 11;
  const InSequence order;
  EXPECT_CALL(list_, engine(std::string_view("mine"))).WillOnce(ReturnRef(engine_));
  EXPECT_CALL(engine_, open(_, _)).WillOnce([&](const Shape& shape, const Options& options) {
    EXPECT_EQ(std::tuple(shape.d_value, shape.capacity, options.batch), std::tuple(50, 700, 11));
    return std::move(owned);
  });
  EXPECT_CALL(loaded, exchange_state(is_archive(true))).WillOnce([this](auto& from) { exchange(from); });
  EXPECT_CALL(loaded, begin(decode(3)));
  const headwater_shape shape = some_shape();
  headwater_session* handle = nullptr;
  ASSERT_EQ(headwater_load("mine", &shape, &asked, file_.c_str(), "model 7", &handle), HEADWATER_OK)
      << headwater_last_error();
  const Handle owner(handle);
  EXPECT_EQ(numbers_, numbers);
  EXPECT_EQ(entries_, entries);
  EXPECT_EQ(headwater_begin_decode(handle, 3), HEADWATER_OK);
}

// headwater.h: the file is there whole or not at all; one that exists stays.
TEST_F(CAbiFiles, ASaveThatFailsLeavesTheFileThatWasThere) {
  const struct {
    std::function<void()> fail;
    headwater_status status;
    const char* text;
  } cases[] = {
      {[] { throw Error(ErrorCode::wrong_state, "save() while a step is open"); }, HEADWATER_WRONG_STATE,
       "save() while a step is open"},
      {[] { throw Error(ErrorCode::unsupported, "not offered"); }, HEADWATER_UNSUPPORTED, "not offered"},
      {[] { throw std::bad_alloc(); }, HEADWATER_OUT_OF_MEMORY, "no memory for a session's file"},
      {[] { throw std::runtime_error("a vector of none"); }, HEADWATER_INTERNAL, "a vector of none"}};
  std::ofstream(file_) << "old";
  for (const auto& one : cases) {
    for (const int done : {0, 1}) {  // passes over the state: sizes, data
      SCOPED_TRACE(std::string(one.text) + ", " + std::to_string(done));
      int calls = 0;
      EXPECT_CALL(*opened_.session, exchange_state(is_archive(false)))
          .Times(done + 1)
          .WillRepeatedly([&](auto& to) {
            exchange(to);
            if (calls++ == done) one.fail();
          });
      expect_refused(headwater_save(opened_.get(), file_.c_str(), nullptr), HasSubstr(one.text), one.status);
      EXPECT_EQ(text(), "old");
      EXPECT_EQ(files(), 1) << "a part was left";
    }
  }
  for (const auto& [path, fingerprint] : {std::pair<const char*, const char*>{nullptr, nullptr},
                                          {"", nullptr},
                                          {file_.c_str(), "two\nlines"},
                                          {folder_.c_str(), nullptr}}) {
    EXPECT_EQ(headwater_save(opened_.get(), path, fingerprint), HEADWATER_INVALID_ARGUMENT);
  }
  save();
  EXPECT_NE(text(), "old");
  EXPECT_EQ(files(), 1);
}

TEST_F(CAbiFiles, ALoadThatFailsLeavesNoSession) {
  save();
  const headwater_shape shape = some_shape();
  EXPECT_CALL(list_, engine(_)).WillRepeatedly(ReturnRef(engine_));
  const auto fails = [&](const std::string& file, const char* fingerprint, headwater_status status,
                         const char* text) {
    SCOPED_TRACE(text);
    expect_no_session(
        [&](auto** handle) {
          return headwater_load("mine", &shape, nullptr, file.c_str(), fingerprint, handle);
        },
        status, HasSubstr(text));
  };
  fails(file_ + ".not", "model 7", HEADWATER_INVALID_ARGUMENT, "does not exist");
  EXPECT_CALL(engine_, open(_, _)).WillOnce(Throw(Error(ErrorCode::out_of_memory, "no memory for keys")));
  fails(file_, "model 7", HEADWATER_OUT_OF_MEMORY, "no memory for keys");

  // The session that was opened is destroyed.
  MockFunction<void()> destroyed;
  using Take = std::function<void(StateArchive&)>;
  const auto opens = [&](const Take& take) {
    EXPECT_CALL(engine_, open(_, _)).WillOnce([this, take, &destroyed](auto&&...) {
      auto session = std::make_unique<StrictMock<MockSession>>();
      expect_sizes(*session);
      session->on_destruction = destroyed.AsStdFunction();
      if (take) EXPECT_CALL(*session, exchange_state(is_archive(true))).WillOnce(take);
      return session;
    });
    EXPECT_CALL(destroyed, Call());
  };
  const auto takes_all_and = [this](const auto& thrown) {
    return [this, thrown](StateArchive& from) {
      exchange(from);
      throw thrown;
    };
  };
  const auto takes = [this](std::int64_t most) {
    return [this, most](StateArchive& from) { from.numbers("chunks", numbers_, most); };
  };
  const std::string file = "file '" + file_.substr(0, 20);
  const struct {
    const char* fingerprint;
    Take take;
    headwater_status status;
    const char* text;
  } cases[] = {
      {"model 8", {}, HEADWATER_INVALID_ARGUMENT, "fingerprint is 'model 7' in the file; allowed: 'model 8'"},
      {nullptr, {}, HEADWATER_INVALID_ARGUMENT, "fingerprint is 'model 7' in the file; allowed: ''"},
      {"model 7", takes_all_and(Error(ErrorCode::invalid_argument, "701 tokens; allowed: 700")),
       HEADWATER_INVALID_ARGUMENT, file.c_str()},
      {"model 7", takes_all_and(Error(ErrorCode::internal, "the device is gone")), HEADWATER_INTERNAL,
       "the device is gone"},
      {"model 7", takes_all_and(std::bad_alloc()), HEADWATER_OUT_OF_MEMORY, "no memory for a session's file"},
      {"model 7", takes(2), HEADWATER_INVALID_ARGUMENT, "chunks is 'I64' [3]; allowed: I64 [0 .. 2]"},
      {"model 7", takes(3), HEADWATER_INVALID_ARGUMENT, "tensor 'set.0' is none of such a session"}};
  for (const auto& one : cases) {
    opens(one.take);
    fails(file_, one.fingerprint, one.status, one.text);
  }

  opens([this](StateArchive& from) { exchange(from); });
  headwater_session* handle = nullptr;
  EXPECT_EQ(headwater_load("mine", &shape, nullptr, file_.c_str(), "model 7", &handle), HEADWATER_OK);
  EXPECT_NE(handle, nullptr);
  headwater_close(handle);
}

// ---- memory of a session that is not opened ------------------------------------------------------------------------

TEST(CAbiEstimate, TheEngineGetsShapeAndOptionsAndOpensNothing) {
  StrictMock<EngineList> list;
  StrictMock<MockEngine> engine;
  EXPECT_CALL(list, engine(std::string_view("mine"))).WillOnce(ReturnRef(engine));
  EXPECT_CALL(engine, estimate(AllOf(Field(&Shape::n_layer, 2), Field(&Shape::d_value, 50),
                                     Field(&Shape::kv_type, DType::bf16)),
                               AllOf(Field(&Options::batch, 11), Field(&Options::dense, true))))
      .WillOnce(Return(MemoryEstimate{{1, 2, 3, 4}, {5, 6, 7, std::int64_t{1} << 40}}));
  headwater_options asked = default_options();
  asked.batch = 11, asked.dense = 1;
  const headwater_shape shape = some_shape();
  // As a later version may have it: what this one does not know is 0.
  struct Newer {
    headwater_memory_bytes known;
    std::int64_t later;
  } opened, full;
  opened.later = full.later = -1;
  ASSERT_EQ(headwater_estimate("mine", &shape, &asked, &opened.known, &full.known, sizeof full),
            HEADWATER_OK);
  const auto all = [](const Newer& bytes) {
    return std::vector{bytes.known.kv, bytes.known.scores, bytes.known.memory_sets, bytes.known.workspace,
                       bytes.later};
  };
  EXPECT_EQ(all(opened), (std::vector<std::int64_t>{1, 2, 3, 4, 0}));
  EXPECT_EQ(all(full), (std::vector<std::int64_t>{5, 6, 7, std::int64_t{1} << 40, 0}));
}

TEST(CAbiEstimate, WhatFailsWritesNothing) {
  StrictMock<EngineList> list;
  StrictMock<MockEngine> engine;
  const headwater_shape shape = some_shape();
  headwater_shape odd = shape;
  odd.kv_type = 3;
  headwater_memory_bytes opened{-1, -1, -1, -1};
  headwater_memory_bytes full = opened;
  const auto fails = [&](const headwater_shape* of, headwater_memory_bytes* to, headwater_memory_bytes* other,
                         std::size_t size, headwater_status status, const char* text) {
    expect_refused(headwater_estimate(nullptr, of, nullptr, to, other, size), StartsWith(text), status);
    for (const headwater_memory_bytes& bytes : {opened, full}) {
      EXPECT_EQ(std::tuple(bytes.kv, bytes.scores, bytes.memory_sets, bytes.workspace),
                std::tuple(-1, -1, -1, -1))
          << text;
    }
  };
  // The engine is not asked.
  fails(nullptr, &opened, &full, sizeof full, HEADWATER_INVALID_ARGUMENT, "shape is NULL");
  fails(&odd, &opened, &full, sizeof full, HEADWATER_INVALID_ARGUMENT, "shape.kv_type is 3");
  fails(&shape, nullptr, &full, sizeof full, HEADWATER_INVALID_ARGUMENT, "opened is NULL");
  fails(&shape, &opened, nullptr, sizeof full, HEADWATER_INVALID_ARGUMENT, "full is NULL");
  fails(&shape, &opened, &full, sizeof full - 1, HEADWATER_INVALID_ARGUMENT, "struct_size is 31");
  EXPECT_CALL(list, engine(std::string_view()))
      .WillOnce(Throw(Error(ErrorCode::engine_unavailable, "no such")))
      .WillRepeatedly(ReturnRef(engine));
  fails(&shape, &opened, &full, sizeof full, HEADWATER_ENGINE_UNAVAILABLE, "no such");
  EXPECT_CALL(engine, estimate(_, _))
      .WillOnce(Throw(Error(ErrorCode::invalid_argument, "shape.d_head is 40; allowed: 64")))
      .WillOnce(Throw(Error(ErrorCode::out_of_memory, "more than 2^63 bytes")))
      .WillOnce(Throw(Error(ErrorCode::unsupported, "not offered")));
  fails(&shape, &opened, &full, sizeof full, HEADWATER_INVALID_ARGUMENT, "shape.d_head is 40; allowed: 64");
  fails(&shape, &opened, &full, sizeof full, HEADWATER_OUT_OF_MEMORY, "more than 2^63 bytes");
  fails(&shape, &opened, &full, sizeof full, HEADWATER_UNSUPPORTED, "not offered");
}

}  // namespace
}  // namespace headwater::mocks
