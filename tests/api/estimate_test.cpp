// NUM-5: what a session will hold, before it is opened, is what memory_bytes() says of it.

#include <cstring>
#include <limits>

#include "headwater/headwater.h"
#include "tests/api/problem.hpp"

namespace headwater::api_test {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMostExtent = 65536;

void expect_bytes(const MemoryBytes& said, const MemoryBytes& held, const std::string& what) {
  EXPECT_EQ(said.kv, held.kv) << what;
  EXPECT_EQ(said.scores, held.scores) << what;
  EXPECT_EQ(said.memory_sets, held.memory_sets) << what;
  EXPECT_EQ(said.workspace, held.workspace) << what;
}

class EstimateOf : public EachEngine {
 protected:
  void SetUp() override {
    if (!engine().claims().estimate) GTEST_SKIP() << engine().name() << " does not claim estimate()";
  }
  /// As opened, and once tokens have come in steps of these sizes, the last of them open, until it is full.
  void expect_exact(const Shape& shape, const Options& options, const std::string& what) const {
    const MemoryEstimate said = engine().estimate(shape, options);
    // What is held does not depend on what the rows hold.
    const auto zeros = [&](std::int64_t width) {
      return std::vector<float>(static_cast<std::size_t>(shape.capacity * shape.n_head_kv * width));
    };
    const std::vector<float> k = zeros(shape.d_head), v = zeros(shape.d_value);
    for (const std::int64_t step : {shape.capacity, std::int64_t{100}}) {
      const auto session = engine().open(shape, options);
      expect_bytes(said.opened, session->memory_bytes(), what + ", opened");
      while (session->tokens() < shape.capacity) {
        const std::int64_t first = session->tokens();
        const std::int64_t n = std::min(step, shape.capacity - first);
        session->begin(Step::decode(n));
        if (first + n == shape.capacity) break;
        for (std::int64_t layer = 0; layer < shape.n_layer; ++layer) {
          session->attend(layer, {}, rows_from(k, first, shape.n_head_kv, shape.d_head),
                          rows_from(v, first, shape.n_head_kv, shape.d_value), {});
        }
        session->end();
      }
      expect_bytes(said.full, session->memory_bytes(), what + ", full by " + std::to_string(step));
    }
  }
  /// open() refuses it, and estimate() with the same line.
  void expect_refused(const Shape& shape, const Options& options) const {
    const auto line = [](const auto& call) -> std::string {
      try {
        call();
      } catch (const Error& error) {
        return std::to_string(static_cast<int>(error.code())) + ": " + error.what();
      }
      return "no error";
    };
    const std::string opened = line([&] { (void)engine().open(shape, options); });
    EXPECT_NE(opened, "no error");
    EXPECT_EQ(line([&] { (void)engine().estimate(shape, options); }), opened);
  }
};

/// Opens what is larger than the machine: an allocator that ends the process instead of refusing (a sanitizer's) cannot.
class EstimateSizes : public EstimateOf {};

TEST_P(EstimateOf, NUM_5_EveryTypeRuleAndPage) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const std::int64_t width : {8, 40, 128}) {
      for (const std::int64_t capacity : {1, 255, 256, 257, 511, 513, 1000}) {
        for (const Select select : {Select::h2o, Select::blocks}) {
          for (const int threads : {1, 3}) {
            Shape shape{.n_layer = 2, .n_head = 4, .n_head_kv = 2, .d_head = width, .d_value = 24};
            shape.capacity = capacity;
            shape.kv_type = type;
            Options options;
            options.chunk = 64, options.batch = 128;
            options.local = 16, options.heavy = 32;
            options.select = select;
            options.page = capacity % 2 == 0 ? 512 : 256;
            options.threads = threads;
            options.score_type = width == 40 ? ScoreType::f32 : ScoreType::bf16;
            options.schedule = width == 8 ? Schedule::chunk_major : Schedule::layer_major;
            options.checkpoints = width == 128 ? 3 : 0;
            expect_exact(shape, options,
                         "type " + std::to_string(static_cast<int>(type)) + ", width " +
                             std::to_string(width) + ", capacity " + std::to_string(capacity) + ", rule " +
                             std::to_string(static_cast<int>(select)) + ", threads " +
                             std::to_string(threads));
          }
        }
      }
    }
  }
}

// Packed rows, and pages of restored ones for each pair of widths.
TEST_P(EstimateOf, STATE_13_RowsIn8Bits) {
  if (!engine().claims().kv_bits) GTEST_SKIP() << engine().name() << " does not claim kv_bits";
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const std::int64_t capacity : {255, 257, 4097}) {
      Shape shape{.n_layer = 4, .n_head = 4, .n_head_kv = 2, .d_head = 64, .d_value = 32};
      shape.capacity = capacity;
      shape.kv_type = type;
      Options options;
      options.chunk = 64, options.local = 16, options.heavy = 32, options.threads = 2;
      options.select = capacity == 257 ? Select::blocks : Select::sketches;
      options.kv_bits = 8;
      options.layers.resize(4);
      options.layers[1].d_head = 96;
      options.layers[3].d_value = 128;
      expect_exact(shape, options, "capacity " + std::to_string(capacity));
    }
  }
}

TEST_P(EstimateOf, NUM_5_OptionsThatChangeWhatIsHeld) {
  Shape shape{.n_layer = 3, .n_head = 6, .n_head_kv = 3, .d_head = 16, .d_value = 12, .capacity = 700};
  Options plain;
  plain.chunk = 64, plain.batch = 256;
  plain.local = 16, plain.heavy = 32;
  plain.page = 256;
  plain.threads = 2;
  const auto with = [&](const char* what, const auto& change) {
    Options options = plain;
    change(options);
    expect_exact(shape, options, what);
  };
  with("plain", [](Options&) {});
  with("dense", [](Options& options) { options.dense = true; });
  with("checkpoints", [](Options& options) { options.checkpoints = 65536; });
  with("windows", [](Options& options) {
    options.layers.resize(3);
    options.layers[1].window = 100;
  });
  with("widths", [](Options& options) {
    options.layers = {{.d_head = 80}, {}, {.d_head = 7, .d_value = 300}};
  });
  with("dense layers", [](Options& options) { options.dense_layers = {0, 2}; });
  with("no clamp", [](Options& options) {
    options.clamp = false;
    options.heavy = 5000;
  });
  with("blocks without votes", [](Options& options) {
    options.select = Select::blocks;
    options.heavy = 0;
  });
  with("a page of all", [](Options& options) { options.page = kMost / 256 * 256; });
  with("all threads of the machine", [](Options& options) { options.threads = 0; });

  Options options = plain;
  options.kv_owner = KvOwner::caller;
  const MemoryEstimate said = engine().estimate(shape, options);
  const auto session = engine().open(shape, options);
  expect_bytes(said.opened, session->memory_bytes(), "rows of the caller, opened");
  session->begin(Step::decode(shape.capacity));
  expect_bytes(said.full, session->memory_bytes(), "rows of the caller, full");
}

// What open() refuses is refused with the same line.
TEST_P(EstimateOf, NUM_5_RefusesWhatOpenRefuses) {
  for (const std::int64_t bad :
       {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 31, std::int64_t{1} << 62}) {
    for (const auto member : {&Shape::n_layer, &Shape::n_head, &Shape::n_head_kv, &Shape::d_head,
                              &Shape::d_value, &Shape::capacity}) {
      Shape shape = small_shape(64);
      shape.*member = bad;
      expect_refused(shape, small_options());
    }
    Options options = small_options();
    options.batch = bad;
    if (bad < 1 || bad > kMost) expect_refused(small_shape(64), options);
    options = small_options();
    options.page = bad;
    expect_refused(small_shape(64), options);
  }
  Options device = small_options();
  device.row_memory = RowMemory::device;
  expect_refused(small_shape(64), device);
  Shape shape{.n_layer = std::int64_t{1} << 62,
              .n_head = std::int64_t{1} << 31,
              .n_head_kv = 1,
              .d_head = 64,
              .d_value = 64,
              .capacity = std::int64_t{1} << 62};
  expect_refused(shape, small_options());
}

// Sizes that are allowed one by one, and whose bytes 64 bits do not count: of rows; of scores, where they are formed.
TEST_P(EstimateSizes, NUM_5_RefusesWhatCannotBeCounted) {
  for (const Shape& large : {Shape{kMostExtent, kMostExtent, kMostExtent, kMostExtent, kMostExtent, kMost},
                             Shape{1, kMostExtent, kMostExtent, kMostExtent, kMostExtent, kMost},
                             Shape{kMostExtent, kMostExtent, 1, 1, 1, kMost}}) {
    expect_refused(large, Options{});
    Options dense;
    dense.dense = true;
    if (large.d_head > 1) expect_refused(large, dense);
  }
}

// More than any machine has: the numbers are right, and nothing is taken for them.
TEST_P(EstimateOf, NUM_5_LargerThanTheMachine) {
  for (const Select select : {Select::h2o, Select::blocks}) {
    for (const std::int64_t page : {std::int64_t{256}, kMost / 256 * 256}) {
      Shape shape{.n_layer = 1024, .n_head = 256, .n_head_kv = 64, .d_head = 128, .d_value = 96};
      shape.capacity = kMost;
      shape.kv_type = DType::bf16;
      Options options;
      options.select = select;
      options.page = page;
      options.threads = 512;
      const MemoryEstimate said = engine().estimate(shape, options);
      const std::int64_t rows = shape.n_layer * shape.n_head_kv * kMost;
      EXPECT_EQ(said.opened.kv, 0);
      EXPECT_GE(said.full.kv, rows * (128 + 96) * 2);
      EXPECT_LE(said.full.kv - rows * (128 + 96) * 2, (kMost / page + 1) * (32 * (128 + 96) * 2 + page));
      const std::int64_t score_rows = select == Select::h2o ? shape.n_layer * shape.n_head : 1;
      EXPECT_LE(said.opened.scores, shape.n_layer * shape.n_head * kMost * 2);
      EXPECT_GE(said.opened.scores, score_rows * kMost * 2);
      EXPECT_EQ(said.full.scores, said.opened.scores);
      EXPECT_EQ(said.full.workspace, said.opened.workspace);
      if (select != Select::blocks) continue;
      // Summaries of 8 keys: 128 means and 16 variances, 160 elements padded; those of regions are a thirty-second more.
      const std::int64_t summaries = said.full.memory_sets - said.opened.memory_sets;
      EXPECT_GT(summaries, rows / 8 * 160 * 2);
      EXPECT_LT(summaries, rows / 8 * 166 * 2);
    }
  }
}

TEST(Estimate, NUM_5_FromC) {
  headwater_shape shape{2, 4, 2, 8, 6, 600, HEADWATER_BF16, 0};
  headwater_options options;
  ASSERT_EQ(headwater_options_init(&options, sizeof options), HEADWATER_OK);
  headwater_memory_bytes opened{-1, -1, -1, -1}, full = opened, held{};
  const char* const name = "cpu-portable";
  ASSERT_EQ(headwater_estimate(name, &shape, &options, &opened, &full, sizeof full), HEADWATER_OK);
  headwater_session* session = nullptr;
  ASSERT_EQ(headwater_open(name, &shape, &options, &session), HEADWATER_OK);
  const auto expect = [&](const headwater_memory_bytes& said) {
    ASSERT_EQ(headwater_session_memory_bytes(session, &held, sizeof held), HEADWATER_OK);
    EXPECT_EQ(std::memcmp(&said, &held, sizeof held), 0);
  };
  expect(opened);
  ASSERT_EQ(headwater_begin_decode(session, 600), HEADWATER_OK);
  expect(full);
  headwater_close(session);

  const auto refused = [&](headwater_status got, headwater_status wanted, const std::string& named) {
    EXPECT_EQ(got, wanted);
    EXPECT_THAT(headwater_last_error(), testing::HasSubstr(named));
  };
  const headwater_memory_bytes before = full;
  const auto bad = HEADWATER_INVALID_ARGUMENT;
  refused(headwater_estimate(name, nullptr, &options, &opened, &full, sizeof full), bad, "shape");
  refused(headwater_estimate(name, &shape, &options, nullptr, &full, sizeof full), bad, "opened");
  refused(headwater_estimate(name, &shape, &options, &opened, nullptr, sizeof full), bad, "full");
  refused(headwater_estimate(name, &shape, &options, &opened, &full, 8), bad, "struct_size");
  refused(headwater_estimate("none", &shape, &options, &opened, &full, sizeof full),
          HEADWATER_ENGINE_UNAVAILABLE, "none");
  refused(headwater_estimate("reference", &shape, &options, &opened, &full, sizeof full),
          HEADWATER_UNSUPPORTED, "estimate() is not offered by engine reference");
  shape.capacity = std::int64_t{1} << 62;
  refused(headwater_estimate(name, &shape, &options, &opened, &full, sizeof full), bad, "capacity");
  EXPECT_EQ(std::memcmp(&before, &full, sizeof full), 0) << "a refused call writes nothing";
}

HEADWATER_EACH_ENGINE(EstimateOf);
HEADWATER_EACH_ENGINE(EstimateSizes);

}  // namespace
}  // namespace headwater::api_test
