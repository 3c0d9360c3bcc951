// What the flags of memory sets become: options that a session opens with.

#include "cli/support/attention_flags.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cli/support/numbers.hpp"
#include "headwater/engine.hpp"
#include "headwater/error.hpp"
#include "tests/cli/parser_fixtures.hpp"

namespace headwater::cli::testing {
namespace {

Shape small_shape() {
  Shape shape;
  shape.n_layer = 3;
  shape.n_head = shape.n_head_kv = shape.d_head = shape.d_value = 1;
  shape.capacity = 16;
  return shape;
}

bool opens(const Options& options) {
  try {
    (void)engine("cpu-portable").estimate(small_shape(), options);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Flags with values, as they are written and as options have them.
class Flags {
 public:
  explicit Flags(Select rule) {
    raw.select = rule;
    if (rule != Select::h2o) raw.local = 32, raw.heavy = 480;
    declared = raw;
  }
  /// Gives one of the values, or none.
  void number(std::mt19937& random, const char* name, std::initializer_list<std::int64_t> values,
              std::int64_t Options::*field, unsigned rarely = 2) {
    if (random() % rarely != 0) return;
    raw.*field = values.begin()[random() % values.size()];
    written.insert(written.end(), {name, std::to_string(raw.*field)});
    given.push_back(field);
  }
  [[nodiscard]] bool has(std::int64_t Options::*field) const {
    return std::find(given.begin(), given.end(), field) != given.end();
  }
  /// Reads them; what is refused is said.
  std::string parse() {
    return refusal([&] {
      FlagSet set("about", "headwater", "");
      declare_memory_sets(set, declared);
      ASSERT_TRUE(set.parse(written));
    });
  }

  Options raw;       // defaults, and what was given
  Options declared;  // what the flags make of it
  std::vector<std::string> written;
  std::vector<std::int64_t Options::*> given;
};

constexpr std::initializer_list<std::int64_t Options::*> kSizes = {&Options::key_block, &Options::query_block,
                                                                   &Options::pool, &Options::refine};

/// Flags of all kinds, but of no rule.
Flags any_flags(std::mt19937& random, Select rule, bool sizes) {
  Flags flags(rule);
  flags.number(random, "-ub", {1, 2, 16, 20, 60, 64, 300, 1000, 4096, 70001}, &Options::chunk);
  flags.number(random, "-b", {1, 16, 100, 4096, 65537, kMaxCount}, &Options::batch);
  flags.number(random, "--h2o-heavy", {0, 1, 6, 8, 12, 100, 256, 1000, 65536, kMaxCount}, &Options::heavy);
  if (const std::int64_t rest = flags.raw.chunk - flags.raw.heavy; rest > 0 && random() % 3 == 0) {
    // On both sides of the chunk, together.
    flags.number(random, "--h2o-local", {rest - 1, rest, rest + 1}, &Options::local, 1);
  } else {
    flags.number(random, "--h2o-local", {0, 1, 7, 8, 100, 256, 1000, 65536, kMaxCount}, &Options::local);
  }
  flags.number(random, "--pinned", {0, 1, 4, 8, 12, 300, 65544, kMaxCount}, &Options::pinned);
  flags.number(random, "--dense-below", {0, 1, 70000, kMaxCount}, &Options::dense_below);
  if (sizes) {
    flags.number(random, "--key-block", {1, 2, 3, 8, 64, 256}, &Options::key_block, 3);
    flags.number(random, "--query-block", {1, 8, 20, 32, 100, 70000}, &Options::query_block, 3);
    flags.number(random, "--pool", {1, 3, 4, 32, 70000}, &Options::pool, 3);
    flags.number(random, "--refine", {1, 2, 3, 16}, &Options::refine, 3);
  }
  if (random() % 3 == 0) {
    flags.raw.clamp = false;
    flags.written.emplace_back("--h2o-no-clamp");
  }
  if (random() % 3 == 0) {
    flags.raw.dense_layers = {0, 2};
    flags.written.insert(flags.written.end(), {"--dense-layers", "2,0"});
  }
  return flags;
}

void expect_equal(const Options& got, const Options& wanted) {
  for (const auto field : {&Options::batch, &Options::chunk, &Options::local, &Options::heavy,
                           &Options::pinned, &Options::dense_below, &Options::key_block,
                           &Options::query_block, &Options::pool, &Options::refine}) {
    EXPECT_EQ(got.*field, wanted.*field);
  }
  EXPECT_EQ(got.clamp, wanted.clamp);
  EXPECT_EQ(got.select, wanted.select);
  EXPECT_EQ(got.dense_layers, wanted.dense_layers);
}

// What a rule by its name makes of the flags is what was written; it is refused where a session would refuse it.
TEST(MemorySetFlags, ANamedRuleTakesWhatASessionTakes) {
  std::mt19937 random(11);
  int taken = 0;
  for (int i = 0; i < 1500; ++i) {
    const auto rule = static_cast<Select>(random() % 3);
    Flags flags = any_flags(random, static_cast<Select>(random() % 3), rule != Select::h2o);
    flags.raw.select = rule;
    constexpr const char* kNames[] = {"h2o", "blocks", "sketches"};
    flags.written.insert(flags.written.end(), {"--select", kNames[static_cast<int>(rule)]});
    SCOPED_TRACE(::testing::PrintToString(flags.written));
    const std::string refused = flags.parse();
    const bool sized =
        flags.has(&Options::key_block) || flags.has(&Options::pool) || flags.has(&Options::refine);
    const bool foreign = rule == Select::sketches && sized;
    ASSERT_EQ(refused.empty(), opens(flags.raw) && !foreign) << refused;
    if (!refused.empty()) continue;
    ++taken;
    expect_equal(flags.declared, flags.raw);
  }
  EXPECT_GT(taken, 250);
}

// Without a rule it is that of the preset: of its sizes, those that were not given become smaller until a session takes them.
TEST(MemorySetFlags, SizesThatWereNotGivenFit) {
  std::mt19937 random(12);
  int taken = 0, changed = 0;
  for (int i = 0; i < 1500; ++i) {
    const bool blocks = random() % 3 != 0;
    const bool sizes = blocks && random() % 2 == 0;
    Flags flags = any_flags(random, blocks ? Select::blocks : Select::sketches, sizes);
    SCOPED_TRACE(::testing::PrintToString(flags.written));
    const std::string refused = flags.parse();
    const bool sum = flags.raw.clamp || flags.raw.local + flags.raw.heavy <= kMaxCount;
    if (opens(flags.raw)) {
      ASSERT_EQ(refused, "");
      expect_equal(flags.declared, flags.raw);
    }
    if (!sizes) {
      ASSERT_EQ(refused.empty(), sum && flags.raw.pinned <= flags.raw.heavy) << refused;
    }
    if (!refused.empty()) continue;
    ++taken;
    EXPECT_TRUE(opens(flags.declared));
    Options wanted = flags.raw;
    for (const auto size : kSizes) {
      if (!flags.has(size)) wanted.*size = flags.declared.*size;
      EXPECT_LE(wanted.*size, flags.raw.*size);
      changed += wanted.*size < flags.raw.*size ? 1 : 0;
    }
    expect_equal(flags.declared, wanted);
  }
  EXPECT_GT(taken, 250);
  EXPECT_GT(changed, 150);
}

// As many tokens as L and H make together, or CFG-3 leaves: the first ones that are pinned, and for the rest the newest.
TEST(MemorySetFlags, AWindowIsOfAllThatIsLeft) {
  std::mt19937 random(13);
  int taken = 0;
  for (int i = 0; i < 1500; ++i) {
    const bool sizes = random() % 8 == 0;
    Flags flags = any_flags(random, static_cast<Select>(random() % 3), sizes);
    flags.written.insert(flags.written.end(), {"--select", "window"});
    SCOPED_TRACE(::testing::PrintToString(flags.written));
    const std::string refused = flags.parse();
    const Options& raw = flags.raw;
    bool sized = false;
    for (const auto size : kSizes) sized = sized || flags.has(size);
    const std::int64_t all = raw.local + raw.heavy;
    const bool allowed = !sized && (raw.clamp || all <= kMaxCount) && raw.pinned <= std::min(all, kMaxCount);
    ASSERT_EQ(refused.empty(), allowed) << refused;
    if (!allowed) continue;
    ++taken;
    ASSERT_TRUE(opens(flags.declared));
    if (!raw.clamp && all > 100000) continue;  // room for sets of that size
    const auto session = engine("cpu-portable").open(small_shape(), flags.declared);
    const EffectiveOptions& effective = session->options();
    const std::int64_t left = raw.clamp ? std::min(all, raw.chunk - 1) : all;
    EXPECT_EQ(effective.sparse, left > 0);
    if (left == 0) continue;
    EXPECT_EQ(effective.pinned, std::min(raw.pinned, left));
    EXPECT_EQ(effective.heavy, effective.pinned);
    EXPECT_EQ(effective.local, left - effective.pinned);
    EXPECT_EQ(effective.dense_below, raw.dense_below);
    EXPECT_EQ(effective.dense_layers, raw.dense_layers);
    EXPECT_EQ(effective.query_blocks(raw.chunk), 1);
    EXPECT_EQ(effective.local_begin(1000003), 1000003 - effective.local);
  }
  EXPECT_GT(taken, 250);
}

}  // namespace
}  // namespace headwater::cli::testing
