// CFG-1..CFG-4: what is refused, by name; what is read differently, and the warning that says so.

#include <cmath>
#include <limits>

#include "tests/api/problem.hpp"

namespace headwater::api_test {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kCapacity = 64;

class OptionsOf : public EachEngine {
 protected:
  void refuses(const Shape& shape, const Options& options, const std::vector<std::string>& parts) const {
    std::vector<std::string> all = parts;
    all.emplace_back("allowed");
    expect_error([&] { (void)engine().open(shape, options); }, ErrorCode::invalid_argument, all);
  }
  [[nodiscard]] EffectiveOptions effective(const Options& options) const {
    return engine().open(small_shape(kCapacity), options)->options();
  }
};

// CFG-1
TEST_P(OptionsOf, RefusesSizesByFieldAndValue) {
  struct Field {
    std::int64_t Shape::*member;
    const char* name;
    std::int64_t most;
  };
  constexpr std::int64_t kMostExtent = 65536;
  const Field fields[] = {{&Shape::n_layer, "n_layer", kMostExtent},
                          {&Shape::n_head, "n_head", kMostExtent},
                          {&Shape::n_head_kv, "n_head_kv", kMostExtent},
                          {&Shape::d_head, "d_head", kMostExtent},
                          {&Shape::d_value, "d_value", kMostExtent},
                          {&Shape::capacity, "capacity", std::numeric_limits<std::int32_t>::max()}};
  for (const Field& field : fields) {
    for (const std::int64_t bad : {std::int64_t{0}, std::int64_t{-1}, field.most + 1, kHuge, -kHuge}) {
      Shape shape = small_shape(kCapacity);
      shape.*field.member = bad;
      refuses(shape, small_options(), {field.name, std::to_string(bad)});
    }
  }
}

// CFG-1
TEST_P(OptionsOf, RefusesHeadsThatDoNotDivide) {
  Shape shape = small_shape(kCapacity);
  shape.n_head_kv = 3;
  refuses(shape, small_options(), {"n_head_kv", "3", "n_head = 4"});
  shape.n_head_kv = 8;
  refuses(shape, small_options(), {"n_head_kv", "8"});
}

// CFG-1
TEST_P(OptionsOf, RefusesOptionsByFieldAndValue) {
  struct Field {
    std::int64_t Options::*member;
    const char* name;
    std::int64_t bad;
  };
  const Field fields[] = {{&Options::batch, "batch", 0},
                          {&Options::batch, "batch", -kHuge},
                          {&Options::chunk, "chunk", 0},
                          {&Options::chunk, "chunk", -1},
                          {&Options::local, "local", -1},
                          {&Options::heavy, "heavy", -1},
                          {&Options::heavy, "heavy", std::numeric_limits<std::int64_t>::min()}};
  for (const Field& field : fields) {
    Options options = small_options();
    options.*field.member = field.bad;
    refuses(small_shape(kCapacity), options, {field.name, std::to_string(field.bad)});
  }
  Options options = small_options();
  options.threads = -1;
  refuses(small_shape(kCapacity), options, {"threads", "-1", "512"});
  options.threads = 513;
  refuses(small_shape(kCapacity), options, {"threads", "513", "512"});
}

// LOGIT-1..LOGIT-4: only values that the formulas can carry.
TEST_P(OptionsOf, RefusesLogitOptionsByFieldAndValue) {
  const Shape shape = small_shape(kCapacity);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {infinity, -infinity, std::nan("")}) {
    Options options = small_options();
    options.scale = bad;
    refuses(shape, options, {"scale"});
    options = small_options();
    options.softcap = bad;
    refuses(shape, options, {"softcap"});
  }
  Options options = small_options();
  options.softcap = -1.0;
  refuses(shape, options, {"softcap", "-1"});
  for (const std::size_t size : {std::size_t{1}, std::size_t{3}, std::size_t{5}}) {
    options = small_options();
    options.sinks.assign(size, 0.0f);
    refuses(shape, options, {"sinks", std::to_string(size), "n_head = 4"});
    options = small_options();
    options.alibi.assign(size, 0.0f);
    refuses(shape, options, {"alibi", std::to_string(size), "n_head = 4"});
  }
  const float inf = std::numeric_limits<float>::infinity();
  options = small_options();
  options.sinks = {0.0f, -inf, inf, 0.0f};
  refuses(shape, options, {"sinks[2]", "inf"});
  options.sinks = {0.0f, -inf, 1.0f, std::nanf("")};
  refuses(shape, options, {"sinks[3]", "nan"});
  options = small_options();
  options.alibi = {0.0f, -inf, 0.0f, 0.0f};
  refuses(shape, options, {"alibi[1]", "inf"});
  options = small_options();
  options.sinks = {0.0f, -inf, 1.0f, -2.0f};
  EXPECT_NO_THROW((void)engine().open(shape, options));
}

TEST_P(OptionsOf, RefusesEnumeratorsThatAreNone) {
  Shape shape = small_shape(kCapacity);
  shape.kv_type = static_cast<DType>(3);
  refuses(shape, small_options(), {"kv_type", "3"});
  Options options = small_options();
  options.score_type = static_cast<ScoreType>(2);
  refuses(small_shape(kCapacity), options, {"score_type", "2"});
  options = small_options();
  options.schedule = static_cast<Schedule>(255);
  refuses(small_shape(kCapacity), options, {"schedule", "255"});
}

// No allocation is driven by an unchecked number: a product that overflows, or that no machine has, is an error.
TEST_P(OptionsOf, RefusesWhatCannotBeHeld) {
  const Shape overflowing{.n_layer = 65536,
                          .n_head = 65536,
                          .n_head_kv = 65536,
                          .d_head = 65536,
                          .d_value = 65536,
                          .capacity = std::numeric_limits<std::int32_t>::max()};
  EXPECT_THROW((void)engine().open(overflowing, Options{}), Error);
#ifndef HEADWATER_SANITIZED  // a sanitizer ends the program where its own allocator refuses
  // 2^59 bytes: no product overflows, no address space holds it.
  const Shape too_large{.n_layer = 1,
                        .n_head = 1024,
                        .n_head_kv = 1024,
                        .d_head = 65536,
                        .d_value = 65536,
                        .capacity = 1 << 30};
  expect_error([&] { (void)engine().open(too_large, Options{}); }, ErrorCode::out_of_memory, {"memory"});
#endif
}

// CFG-2
TEST_P(OptionsOf, DenseAndNoMemoryAreTheSame) {
  Options dense = small_options();
  dense.dense = true;
  Options empty = small_options();
  empty.local = empty.heavy = 0;
  for (const Options& options : {dense, empty}) {
    const EffectiveOptions used = effective(options);
    EXPECT_FALSE(used.sparse);
    EXPECT_EQ(used.local, 0);
    EXPECT_EQ(used.heavy, 0);
    EXPECT_EQ(used.memory(), 0);
    EXPECT_TRUE(used.warnings.empty());
  }
}

// CFG-3
TEST_P(OptionsOf, ClampsTheMemoryBelowTheChunk) {
  struct Case {
    std::int64_t chunk, local, heavy, used_local, used_heavy;
  };
  const Case cases[] = {{8, 3, 2, 3, 2},     {8, 4, 3, 4, 3}, {8, 4, 4, 4, 3},
                        {8, 8, 0, 7, 0},     {8, 0, 9, 0, 7}, {8, 6, 100, 6, 1},
                        {8, 100, 100, 7, 0}, {1, 3, 2, 0, 0}, {8, 1 << 30, 1 << 29, 7, 0}};
  for (const Case& c : cases) {
    Options options = small_options();
    options.chunk = c.chunk;
    options.local = c.local;
    options.heavy = c.heavy;
    const EffectiveOptions used = effective(options);
    SCOPED_TRACE("chunk " + std::to_string(c.chunk) + " local " + std::to_string(c.local) + " heavy " +
                 std::to_string(c.heavy));
    EXPECT_EQ(used.local, c.used_local);
    EXPECT_EQ(used.heavy, c.used_heavy);
    EXPECT_EQ(used.sparse, c.used_local + c.used_heavy > 0);
    const bool clamped = c.local != c.used_local || c.heavy != c.used_heavy;
    EXPECT_EQ(used.warnings.size(), clamped ? 1u : 0u);
  }
}

// CFG-3
TEST_P(OptionsOf, ClampCanBeSwitchedOff) {
  Options options = small_options();
  options.clamp = false;
  options.local = 20;
  options.heavy = 30;
  const EffectiveOptions used = effective(options);
  EXPECT_EQ(used.local, 20);
  EXPECT_EQ(used.heavy, 30);
  EXPECT_EQ(used.memory(), 50);
  EXPECT_TRUE(used.warnings.empty());
}

// CFG-4
TEST_P(OptionsOf, BatchIsAtLeastAChunk) {
  Options options = small_options();
  options.batch = 7;
  const EffectiveOptions used = effective(options);
  EXPECT_EQ(used.batch, 8);
  options.batch = 20;  // legal, and said
  const EffectiveOptions uneven = effective(options);
  EXPECT_EQ(uneven.batch, 20);
  ASSERT_EQ(uneven.warnings.size(), 1u);
  EXPECT_THAT(uneven.warnings[0],
              testing::AllOf(testing::HasSubstr("batch"), testing::HasSubstr("20"), testing::HasSubstr("8"),
                             testing::Not(testing::HasSubstr("\n"))));
}

// LOGIT-1
TEST_P(OptionsOf, ScaleDefaultsToTheRootOfTheWidth) {
  EXPECT_DOUBLE_EQ(effective(small_options()).scale, 1.0 / std::sqrt(8.0));
  Options options = small_options();
  options.scale = 0.0;
  EXPECT_DOUBLE_EQ(effective(options).scale, 0.0);
  options.scale = -2.5;
  EXPECT_DOUBLE_EQ(effective(options).scale, -2.5);
}

HEADWATER_EACH_ENGINE(OptionsOf);

}  // namespace
}  // namespace headwater::api_test
