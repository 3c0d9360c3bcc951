// The list of engines and the choice of one.

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <set>
#include <vector>

#include "tests/api/problem.hpp"

namespace headwater::api_test {
namespace {

/// Sets HEADWATER_ENGINE for one test and puts it back.
class EngineChoice : public testing::Test {
 protected:
  void SetUp() override {
    if (const char* value = std::getenv("HEADWATER_ENGINE")) before_ = value;
    ASSERT_EQ(unsetenv("HEADWATER_ENGINE"), 0);
  }
  void TearDown() override {
    ASSERT_EQ(before_.empty() ? unsetenv("HEADWATER_ENGINE") : setenv("HEADWATER_ENGINE", before_.c_str(), 1),
              0);
  }

 private:
  std::string before_;
};

TEST_F(EngineChoice, ListsTheReferenceFirst) {
  ASSERT_GE(engines().size(), 3u);
  EXPECT_EQ(engines().front()->name(), "reference");
  EXPECT_TRUE(engines().front()->claims().double_arithmetic);
  std::set<std::string_view> names;
  for (const Engine* engine : engines()) {
    EXPECT_TRUE(names.insert(engine->name()).second) << engine->name() << " is there twice";
    EXPECT_FALSE(engine->isa().empty());
    EXPECT_FALSE(engine->description().empty());
  }
  EXPECT_TRUE(names.contains("cpu-portable"));
  EXPECT_TRUE(names.contains("cpu"));
}

// The conformance kit tests a claim only where it is made, so one that disappears by mistake would no longer be tested.
TEST(EngineClaims, AreThoseOfTheTableInEmbedding) {
  const auto expect_all = [](std::initializer_list<bool> claims, bool made, const Engine& engine) {
    EXPECT_THAT(std::vector<bool>(claims), testing::Each(made)) << engine.name();
  };
  for (const Engine* engine : engines()) {
    const Claims c = engine->claims();
    const bool cpu = engine->name().starts_with("cpu");
    const bool reference = engine->name() == "reference";
    expect_all({c.bitwise_threads, c.bitwise_runs, c.bitwise_schedules}, true, *engine);
    expect_all({c.abort, c.truncate, c.interrupt, c.lse, c.fork, c.save, c.layers, c.stored_rows, c.kv_bits},
               cpu || reference, *engine);
    EXPECT_TRUE(c.rows_alone) << engine->name();
    expect_all({c.host_threads, c.estimate, c.host_memory}, cpu, *engine);
    EXPECT_EQ(c.double_arithmetic, reference) << engine->name();
  }
}

TEST_F(EngineChoice, FindsByName) {
  for (const Engine* candidate : engines()) {
    if (candidate->unavailable_because().empty()) {
      EXPECT_EQ(&engine(candidate->name()), candidate);
    } else {
      expect_error([&] { (void)engine(candidate->name()); }, ErrorCode::engine_unavailable,
                   {candidate->unavailable_because()});
    }
  }
  EXPECT_EQ(engine().name(), "cpu");
}

TEST_F(EngineChoice, AsksTheEnvironment) {
  ASSERT_EQ(setenv("HEADWATER_ENGINE", "reference", 1), 0);
  EXPECT_EQ(engine().name(), "reference");
  EXPECT_EQ(engine("cpu-portable").name(), "cpu-portable");
  ASSERT_EQ(setenv("HEADWATER_ENGINE", "", 1), 0);
  EXPECT_EQ(engine().name(), "cpu");
  ASSERT_EQ(setenv("HEADWATER_ENGINE", "Reference", 1), 0);
  expect_error([] { (void)engine(); }, ErrorCode::engine_unavailable,
               {"'Reference'", "HEADWATER_ENGINE", "available: reference, cpu-portable, cpu"});
}

TEST_F(EngineChoice, JunkGivesOneBoundedLine) {
  const std::string junk = "a\nb\x1b[31m\xff" + std::string(100000, 'x');
  ASSERT_EQ(setenv("HEADWATER_ENGINE", junk.c_str(), 1), 0);
  try {
    (void)engine();
    FAIL() << "no error";
  } catch (const Error& error) {
    const std::string_view message = error.what();
    EXPECT_LT(message.size(), 400u);
    EXPECT_TRUE(std::all_of(message.begin(), message.end(), [](char c) { return c >= 0x20 && c < 0x7f; }));
    EXPECT_THAT(error.what(), testing::HasSubstr("a\\x0ab\\x1b[31m\\xff"));
  }
}

// Printable ASCII stays, all else is shown by its bytes; forty letters are shown and no more.
TEST_F(EngineChoice, NamesOfEveryByte) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (unsigned byte = 1; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const std::string wanted = byte > 31 && byte < 127
                                   ? std::string(1, c)
                                   : std::string{'\\', 'x', kDigits[byte / 16], kDigits[byte % 16]};
    expect_error([&] { (void)engine(std::string(1, c)); }, ErrorCode::engine_unavailable,
                 {"engine '" + wanted + "' is not known"});
    text += c;
    if (text.size() < 38 || text.size() > 43) continue;
    const std::string letters = std::string(text.size(), 'k');
    expect_error([&] { (void)engine(letters); }, ErrorCode::engine_unavailable,
                 {"engine '" + std::string(std::min<std::size_t>(text.size(), 40), 'k') +
                  (text.size() > 40 ? "...' is" : "' is")});
  }
}

}  // namespace
}  // namespace headwater::api_test
