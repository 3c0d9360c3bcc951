// Characters whose bytes come token by token.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <vector>

#include "runtime/support/utf8.hpp"
#include "tests/tokenizer/vocabularies.hpp"

namespace headwater::runtime::testing {
namespace {

class Stream : public ::testing::Test {
 protected:
  Stream() {
    VocabularyBuilder b = all_bytes();
    end_ = b.add("<|im_end|>", kControl);
    think_ = b.add("<think>", kUserDefined);
    tokenizer_ = b.build();
  }
  /// Ids are bytes.
  std::vector<std::string> push_all(const std::string& bytes) {
    StreamDecoder stream(*tokenizer_);
    std::vector<std::string> texts;
    for (const char c : bytes) texts.push_back(stream.push(static_cast<unsigned char>(c)));
    texts.push_back(stream.finish());
    return texts;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::int32_t end_ = -1;
  std::int32_t think_ = -1;
};

using ::testing::ElementsAre;

TEST_F(Stream, CharactersComeWhole) {
  EXPECT_THAT(push_all("a\xc3\xa9z"), ElementsAre("a", "", "\xc3\xa9", "z", ""));
  EXPECT_THAT(push_all("\xf0\x9f\x99\x82"), ElementsAre("", "", "", "\xf0\x9f\x99\x82", ""));
}

TEST_F(Stream, IllFormedBytesAreReplacedOnce) {
  const std::string r(kReplacementCharacter);
  EXPECT_THAT(push_all("\xff"), ElementsAre(r, ""));
  EXPECT_THAT(push_all("\xc3("), ElementsAre("", r + "(", ""));
  EXPECT_THAT(push_all("\xe2\x82"), ElementsAre("", "", r));
  EXPECT_THAT(push_all("\xf0\x9f\xc3\xa9"), ElementsAre("", "", r, "\xc3\xa9", ""));
  EXPECT_THAT(push_all("\xed\xa0\x80"), ElementsAre("", r + r, r, ""));  // a surrogate
}

TEST_F(Stream, ControlTokensShowNothingAndSplitNothing) {
  StreamDecoder stream(*tokenizer_);
  EXPECT_EQ(stream.push(0xC3), "");
  EXPECT_EQ(stream.push(end_), "");
  EXPECT_EQ(stream.push(0xA9), "\xc3\xa9");
  EXPECT_EQ(stream.push(think_), "<think>");
}

TEST_F(Stream, FinishForgets) {
  StreamDecoder stream(*tokenizer_);
  EXPECT_EQ(stream.push(0xC3), "");
  EXPECT_EQ(stream.finish(), kReplacementCharacter);
  EXPECT_EQ(stream.push('x'), "x");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Utf8, IllFormedTextIsFound) {
  EXPECT_EQ(first_ill_formed_utf8(""), std::nullopt);
  EXPECT_EQ(first_ill_formed_utf8("caf\xc3\xa9 \xf0\x9f\x99\x82 \xef\xbf\xbf"), std::nullopt);
  EXPECT_EQ(first_ill_formed_utf8("caf\xe9"), 3U);
  EXPECT_EQ(first_ill_formed_utf8("\xc0\x80"), 0U);
  EXPECT_EQ(first_ill_formed_utf8("ab\xed\xa0\x80"), 2U);
  EXPECT_EQ(first_ill_formed_utf8("\xf4\x90\x80\x80"), 0U);
  EXPECT_EQ(first_ill_formed_utf8("x\xe2\x82"), 1U);
}

// The definition of UTF-8, for every scalar value and around it.
TEST(Utf8, EveryScalarValue) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    const std::string text = utf8_of(c);
    const Utf8Sequence sequence = next_utf8(text);
    ASSERT_TRUE(sequence.well_formed) << static_cast<unsigned>(c);
    ASSERT_EQ(sequence.length, text.size());
    ASSERT_EQ(text.size(), c < 0x80 ? 1U : c < 0x800 ? 2U : c < 0x10000 ? 3U : 4U);
    if (text.size() > 1) {
      const Utf8Sequence cut = next_utf8(std::string_view(text).substr(0, text.size() - 1));
      ASSERT_TRUE(cut.incomplete && !cut.well_formed);
      ASSERT_EQ(cut.length, text.size() - 1);
    }
  }
}

/// Bytes and how many they are as one number.
std::uint64_t packed(std::string_view text) {
  std::uint64_t number = text.size();
  for (const char c : text) number = number << 8 | static_cast<unsigned char>(c);
  return number;
}

// All texts of four bytes at the ends of the ranges of the definition, and shorter ones: a character where one begins them,
// or else as much as may be the beginning of some character, or one byte.
TEST(Utf8, EverySequenceByWhatCharactersBeginWith) {
  std::vector<std::uint64_t> characters, beginnings;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    const std::string text = utf8_of(c);
    characters.push_back(packed(text));
    if ((c & 0x3F) != 0) continue;  // all last bytes
    for (std::size_t n = 1; n < text.size(); ++n) beginnings.push_back(packed(text.substr(0, n)));
  }
  for (auto* const list : {&characters, &beginnings}) std::sort(list->begin(), list->end());
  const auto among = [](const std::vector<std::uint64_t>& list, std::string_view text) {
    return std::binary_search(list.begin(), list.end(), packed(text));
  };
  constexpr std::array<unsigned, 26> kBytes = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF,
                                               0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE,
                                               0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xF8, 0xFF};
  std::string text(4, '\0');
  for (std::size_t i = 0; i < 26U * 26 * 26 * 26; ++i) {
    std::size_t rest = i;
    for (char& c : text) {
      c = static_cast<char>(kBytes[rest % 26]);
      rest /= 26;
    }
    std::size_t whole = 0, begun = 0;
    for (std::size_t n = 1; n <= text.size(); ++n) {
      const std::string_view seen = std::string_view(text).substr(0, n);
      if (whole == 0 && among(characters, seen)) whole = n;
      if (whole == 0 && among(beginnings, seen)) begun = n;
      const Utf8Sequence got = next_utf8(seen);
      ASSERT_EQ(got.well_formed, whole > 0) << ::testing::PrintToString(std::string(seen));
      ASSERT_EQ(got.length, whole > 0 ? whole : std::max<std::size_t>(begun, 1));
      ASSERT_EQ(got.incomplete, whole == 0 && begun == n);
    }
  }
}

// Control characters are C0, DEL and C1; everything else is shown as it is.
TEST(Utf8, QuotedShowsNoControlCharacter) {
  for (char32_t c = 0; c < 0x900; ++c) {
    const std::string text = utf8_of(c);
    std::string shown = text;
    if (c < 0x20 || (c >= 0x7F && c < 0xA0)) {
      shown.clear();
      for (const char byte : text) shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
    }
    ASSERT_EQ(runtime::quoted("a" + text + "b"), "'a" + shown + "b'") << static_cast<unsigned>(c);
  }
  EXPECT_EQ(runtime::quoted(""), "''");
  EXPECT_EQ(runtime::quoted(std::string(120, 'x')), "'" + std::string(120, 'x') + "'");
  EXPECT_EQ(runtime::quoted(std::string(121, 'x')), "'" + std::string(120, 'x') + "...'");
  EXPECT_EQ(runtime::quoted(std::string(119, 'x') + "\xc3\xa9"), "'" + std::string(119, 'x') + "...'");
  EXPECT_EQ(runtime::quoted("\xe2\x82x\xff"), R"('\xe2\x82x\xff')");
}

}  // namespace
}  // namespace headwater::runtime::testing
