#include "runtime/serve/stop_texts.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace headwater::runtime::testing {
namespace {

TEST(StopTexts, HoldsBackWhatMayBecomeOne) {
  struct Case {
    std::vector<std::string> stops;
    std::vector<std::string> pushes;
    std::string text;
    bool found;
  };
  const std::vector<Case> cases = {
      {{}, {"abc", "def"}, "abcdef", false},
      {{"END"}, {"abE", "NDx"}, "ab", true},
      {{"END"}, {"abE", "Nx"}, "abENx", false},
      {{"aab"}, {"a", "a", "a", "b"}, "a", true},
      {{"xyz", "yz"}, {"wx", "y", "z"}, "w", true},
      {{"abcd", "bc"}, {"abc"}, "a", true},
      {{"abcd", "bc"}, {"abcd"}, "a", true},
      {{"bc", "abc"}, {"xabc"}, "x", true},
      {{"\n"}, {"\n"}, "", true},
      {{"END"}, {"EN"}, "EN", false},
      {{"END"}, {"EN", "EN", "E", "x"}, "ENENEx", false},
      {{"END"}, {"ENEN", "Dmore"}, "EN", true},
      {{"ab", "abc"}, {"xa", "b", "c"}, "x", true},
      {{"abc", "ab"}, {"xa", "bc"}, "x", true},
      {{"\xC3\xA9"}, {"a\xC3\xA8", "\xC3", "\xA9z"}, "a\xC3\xA8", true},
  };
  for (const Case& one : cases) {
    StopTexts stops(one.stops);
    std::string text;
    for (const std::string& push : one.pushes) {
      if (!stops.found()) text += stops.push(push);
    }
    EXPECT_EQ(stops.found(), one.found);
    if (!stops.found()) text += stops.finish();
    EXPECT_EQ(text, one.text);
  }
}

// Of two letters, so that stops begin everywhere: what was returned is all that cannot belong to one.
TEST(StopTexts, ReturnWhatIsCertainAndNoLess) {
  std::mt19937 random(1);
  const auto letters = [&](unsigned least, unsigned most) {
    std::string text(least + random() % (most - least + 1), 'a');
    for (char& letter : text) letter = random() % 2 == 0 ? 'a' : 'b';
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    const std::vector<std::string> texts{letters(1, 6), letters(3, 7)};
    StopTexts stops(texts);
    std::string all;
    std::string returned;
    while (!stops.found() && all.size() < 40) {
      const std::string more = letters(0, 4);
      all += more;
      returned += stops.push(more);
      // The one that is complete first, by letters.
      std::size_t at = std::string::npos;
      for (std::size_t end = 1; end <= all.size() && at == std::string::npos; ++end) {
        for (const std::string& stop : texts) {
          if (all.substr(0, end).ends_with(stop)) at = std::min(at, end - stop.size());
        }
      }
      ASSERT_EQ(stops.found(), at != std::string::npos);
      std::size_t certain = std::min(at, all.size());
      const auto may_begin = [&](const std::string& stop) { return stop.starts_with(all.substr(certain)); };
      if (!stops.found()) {
        for (certain = 0; !may_begin(texts[0]) && !may_begin(texts[1]);) ++certain;
      }
      ASSERT_EQ(returned, all.substr(0, certain)) << texts[0] << ' ' << texts[1] << ' ' << all;
    }
    if (!stops.found()) {
      ASSERT_EQ(returned + stops.finish(), all);
    }
  }
}

}  // namespace
}  // namespace headwater::runtime::testing
