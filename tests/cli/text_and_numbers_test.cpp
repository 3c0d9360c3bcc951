// Texts on one line, strict numbers, and the kernel's description of a processor.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/support/cpu_features.hpp"
#include "cli/support/numbers.hpp"
#include "cli/support/text.hpp"
#include "tests/cli/parser_fixtures.hpp"

namespace headwater::cli::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(OneLine, KeepsTextAndEscapesWhatBreaksLines) {
  EXPECT_EQ(one_line("plain 'text' \\"), "plain 'text' \\");
  EXPECT_EQ(one_line("gr\u00fc\u00dfe \u65e5\u672c \U0001F30A"), "gr\u00fc\u00dfe \u65e5\u672c \U0001F30A");
  EXPECT_EQ(one_line("a\nb\r\t\x1b[31m\x7f"), "a\\x0ab\\x0d\\x09\\x1b[31m\\x7f");
  EXPECT_EQ(one_line(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(one_line("\u0085\u2028\u2029\u202e\u2066"),
            "\\xc2\\x85\\xe2\\x80\\xa8\\xe2\\x80\\xa9\\xe2\\x80\\xae\\xe2\\x81\\xa6");
}

TEST(OneLine, EscapesWhatIsNoUtf8) {
  EXPECT_EQ(one_line("\xff"), "\\xff");
  EXPECT_EQ(one_line("\xc0\xaf"), "\\xc0\\xaf");                    // overlong
  EXPECT_EQ(one_line("\xe0\x80\xaf"), "\\xe0\\x80\\xaf");           // overlong
  EXPECT_EQ(one_line("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // surrogate
  EXPECT_EQ(one_line("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // above U+10FFFF
  EXPECT_EQ(one_line("\xe2\x82"), "\\xe2\\x82");                    // cut
  EXPECT_EQ(one_line("\xe2\x82"
                     "a"),
            "\\xe2\\x82"
            "a");
}

TEST(OneLine, IsBounded) {
  EXPECT_EQ(one_line("abcdef", 6), "abcdef");
  EXPECT_EQ(one_line("abcdefg", 6), "abcdef...");
  EXPECT_EQ(one_line("abcd\n", 6), "abcd...");
  EXPECT_EQ(in_quotes(std::string(1000, 'x')).size(), kQuotedLimit + 5);
}

TEST(BytesText, TakesTheLargestUnit) {
  EXPECT_EQ(bytes_text(0), "0 bytes");
  EXPECT_EQ(bytes_text(1023), "1023 bytes");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(~std::uint64_t{0}), "16.0 EiB");
}

TEST(ParseInteger, TakesTheWholeRange) {
  EXPECT_EQ(parse_integer("-x", "0", 0, 5), 0);
  EXPECT_EQ(parse_integer("-x", "5", 0, 5), 5);
  EXPECT_EQ(parse_integer("-x", "0005", 0, 5), 5);
  EXPECT_EQ(parse_integer("-x", "2147483647", 1, kMaxCount), kMaxCount);
}

TEST(ParseInteger, RefusesEverythingElseAndNamesIt) {
  for (const char* text :
       {"", "6", "-1", "+1", " 1", "1 ", "1.0", "1e0", "0x1", "a", "99999999999999999999"}) {
    const auto message = refusal([&] { (void)parse_integer("--flag", text, 0, 5); });
    EXPECT_THAT(message, HasSubstr("--flag")) << text;
    EXPECT_THAT(message, HasSubstr(in_quotes(text)));
    EXPECT_THAT(message, HasSubstr("from 0 to 5"));
  }
}

TEST(ParseNumbers, ReadsNumbersAndRanges) {
  using Numbers = std::vector<std::int64_t>;
  EXPECT_EQ(parse_numbers("-x", "5", 9), Numbers{5});
  EXPECT_EQ(parse_numbers("-x", "7-9,0,2-2,8", 9), (Numbers{7, 8, 9, 0, 2, 8}));
  EXPECT_EQ(parse_numbers("-x", "0-65535", 65535).size(), 65536U);
  EXPECT_EQ(parse_numbers("-x", "0-65535", 65535).back(), 65535);
  std::string list;
  Numbers numbers;
  for (std::int64_t i = 0; i < 300; ++i) {
    numbers.push_back(kMaxCount - i * i);
    list += (i == 0 ? "" : ",") + std::to_string(numbers.back());
  }
  EXPECT_EQ(parse_numbers("-x", list, kMaxCount), numbers);
}

TEST(ParseNumbers, RefusesEverythingElseAndNamesIt) {
  const auto refused = [](const std::string& text) {
    return refusal([&] { (void)parse_numbers("--flag", text, 9); });
  };
  for (const char* text : {"", "10", "-1", "+1", "x", "1.0", "99999999999999999999"}) {
    EXPECT_THAT(refused(text), HasSubstr("--flag: " + in_quotes(text))) << text;
    EXPECT_THAT(refused("3," + std::string(text)), HasSubstr("--flag: " + in_quotes(text))) << text;
  }
  EXPECT_THAT(refused("1-2-3"), HasSubstr("'2-3'"));
  EXPECT_THAT(refused("3-"), HasSubstr("''"));
  EXPECT_THAT(refused("1,5-3"), HasSubstr("'5-3' runs backwards"));
  EXPECT_THAT(refused("0-9,0-9"), HasSubstr("more than 10"));
}

TEST(ParseReal, TakesFiniteNumbersOnly) {
  EXPECT_EQ(parse_real("-x", "-1.5e-3"), -1.5e-3);
  EXPECT_EQ(parse_real("-x", "0", 0.0), 0.0);
  EXPECT_EQ(parse_real("-x", "1e308"), 1e308);
  for (const char* text : {"", "nan", "inf", "-inf", "1e309", "1x", "+1", " 1", "1,5", "0x1p3"}) {
    EXPECT_THAT(refusal([&] { (void)parse_real("--flag", text); }), HasSubstr("--flag")) << text;
  }
  EXPECT_THAT(refusal([] { (void)parse_real("--flag", "-0.1", 0.0); }), HasSubstr(">= 0"));
}

TEST(CpuInfo, ReadsTheFirstProcessor) {
  const auto cpu = parse_cpu_info(
      "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Some: Name\n"
      "flags\t\t: fpu sse4_2 avx fma avx512_bf16 amx_tile\n\nprocessor\t: 1\nvendor_id\t: Other\n");
  EXPECT_EQ(cpu.vendor, "GenuineIntel");
  EXPECT_EQ(cpu.brand, "Some: Name");
  EXPECT_EQ(cpu.family, 6);
  EXPECT_EQ(cpu.model, 143);
  EXPECT_THAT(cpu.features, ElementsAre("sse4.2", "avx", "fma", "avx512_bf16", "amx_tile"));
}

TEST(CpuInfo, SurvivesOtherTexts) {
  for (const char* text : {"", "\n", ":", "model\t: x\nflags\n", "model\t: 99999999999999", "no line feed"}) {
    const auto cpu = parse_cpu_info(text);
    EXPECT_EQ(cpu.model, 0);
    EXPECT_TRUE(cpu.features.empty());
  }
}

}  // namespace
}  // namespace headwater::cli::testing
