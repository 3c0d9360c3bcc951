// Prompts of `headwater retrieval`, and the statistics of its answers.

#include "cli/commands/retrieval/haystack.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

#include "cli/support/failure.hpp"
#include "cli/support/statistics.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tests/model/support.hpp"

namespace headwater::cli {
namespace {

const runtime::Tokenizer& tokenizer() {
  static const auto one = runtime::Tokenizer::from_gguf(*runtime::testing::bundled_file());
  return *one;
}

std::string numbered_lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "value_" + std::to_string(i) + " = [" + std::to_string(i) + "]\n";
  return text;
}

const std::vector<double> kDepths = {0, 25, 50, 100};

TEST(Haystack, PlantsEachCodeAtItsDepthAndAsksForIt) {
  const Haystack haystack(tokenizer(), numbered_lines(400), {});
  std::mt19937_64 random(1);
  for (const std::int64_t window : {200, 512, 1500}) {
    const auto needles = draw_needles(kDepths, random);
    for (std::size_t asked = 0; asked < needles.size(); ++asked) {
      const Prompt prompt = haystack.prompt(window, 7, needles, asked);
      const auto n = static_cast<std::int64_t>(prompt.ids.size() + prompt.answer.size());
      EXPECT_LE(n, window);
      EXPECT_GT(n, window - 24) << "another line would fit";
      const std::span<const std::int32_t> ids(prompt.ids);
      const auto text = tokenizer().decode(ids.first(static_cast<std::size_t>(prompt.question)));
      for (const Needle& needle : needles) {
        const std::string line = "# REGISTRY: the code of " + needle.name + " is " + needle.code + "\n";
        const auto at = text.find(line);
        ASSERT_NE(at, std::string::npos) << line;
        EXPECT_EQ(text.find(line, at + 1), std::string::npos) << "twice";
        const auto before = static_cast<double>(tokenizer().encode(text.substr(0, at), false, false).size());
        const double own = 16.0 * static_cast<double>(needles.size());  // the codes in front of it
        EXPECT_NEAR(before / static_cast<double>(prompt.question), needle.depth / 100.0,
                    (own + 24.0) / static_cast<double>(prompt.question));
      }
      // The space before the code is a token of its own, and no part of the answer.
      EXPECT_EQ(tokenizer().decode(ids.subspan(static_cast<std::size_t>(prompt.question))),
                "# QUERY: the code of " + needles[asked].name + " is ");
      EXPECT_EQ(tokenizer().decode(prompt.answer), needles[asked].code);
    }
  }
}

TEST(Haystack, GoesOnFromTheBeginningAfterTheLastLine) {
  const Haystack haystack(tokenizer(), "alpha = 1\nbeta = 2", {});
  std::mt19937_64 random(1);
  const auto needles = draw_needles({100}, random);
  const auto text = tokenizer().decode(haystack.prompt(100, 1, needles, 0).ids);
  EXPECT_TRUE(text.starts_with("beta = 2\nalpha = 1\nbeta = 2\n")) << text;
  for (const std::int64_t window : {700, 5000}) {  // many times as long as the text
    const Prompt prompt = haystack.prompt(window, 1, needles, 0);
    const auto n = static_cast<std::int64_t>(prompt.ids.size() + prompt.answer.size());
    EXPECT_LE(n, window);
    EXPECT_GT(n, window - 24);
  }
}

TEST(Haystack, RefusesWhatCannotBe) {
  EXPECT_THROW(Haystack(tokenizer(), "one line\n", {}), Failure);
  const Haystack haystack(tokenizer(), numbered_lines(9), {});
  std::mt19937_64 random(1);
  const auto needles = draw_needles(kDepths, random);
  EXPECT_THROW((void)haystack.prompt(60, 0, needles, 0), Failure);
  EXPECT_THROW((void)draw_needles(std::vector<double>(1000), random), Failure);
  EXPECT_THROW(check_templates({"{name} is", "{name}?"}), Failure);
  EXPECT_THROW(check_templates({"{name} {code}", "what?"}), Failure);
  EXPECT_THROW(check_templates({"{name} {code}", "{name} {code}"}), Failure);
  EXPECT_THROW(check_templates({"{name}\n{code}", "{name}"}), Failure);
  check_templates({"{code} is {name}'s", "{name}:"});
}

TEST(Haystack, DrawsNamesOnceAndCodesOfFiveDigits) {
  std::mt19937_64 random(5);
  std::set<std::string> names;
  const auto needles = draw_needles(std::vector<double>(40), random);
  for (const Needle& needle : needles) {
    names.insert(needle.name);
    EXPECT_EQ(needle.code.size(), 5U);
    EXPECT_NE(needle.code.front(), '0');
  }
  EXPECT_EQ(names.size(), 40U);
  std::mt19937_64 again(5);
  EXPECT_EQ(draw_needles(std::vector<double>(40), again).back().code, needles.back().code);
  const auto order = shuffled(7, random);
  EXPECT_EQ(std::set<std::size_t>(order.begin(), order.end()).size(), 7U);
}

TEST(Statistics, MeanAndStandardError) {
  const Mean mean = mean_of({1, 2, 3, 6});
  EXPECT_DOUBLE_EQ(mean.value, 3);
  EXPECT_DOUBLE_EQ(mean.error, std::sqrt(14.0 / 3 / 4));
  EXPECT_EQ(mean_of({}).count, 0U);
  EXPECT_EQ(mean_of(std::vector<double>(21, 1.0)).value, 1.0);  // a rate is never above 1
  EXPECT_EQ(mean_of({5}).error, 0);
  EXPECT_EQ(differences({3, 5}, {1, 9}), (std::vector<double>{2, -4}));
}

// Newcombe (1998), table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
TEST(Statistics, IntervalsOfRates) {
  const double cases[][4] = {
      {81, 263, 0.2553, 0.3662}, {15, 148, 0.0624, 0.1605}, {0, 20, 0.0000, 0.1611}, {1, 29, 0.0061, 0.1718}};
  for (const auto& one : cases) {
    const Interval interval = wilson(one[0], one[1]);
    EXPECT_NEAR(interval.low, one[2], 5e-5);
    EXPECT_NEAR(interval.high, one[3], 5e-5);
  }
}

}  // namespace
}  // namespace headwater::cli
