// Texts on one line, strict numbers, and the kernel's description of a processor.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "cli/support/cpu_features.hpp"
#include "cli/support/numbers.hpp"
#include "cli/support/statistics.hpp"
#include "cli/support/text.hpp"
#include "tests/cli/parser_fixtures.hpp"

namespace headwater::cli::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ExactHalf, AllNumbersOfF16) {
  for (int bits = 0; bits < 0x8000; ++bits) {
    const int exponent = bits >> 10;
    const int fraction = bits & 0x3ff;
    const double value = exponent == 31  ? (fraction == 0 ? INFINITY : NAN)
                         : exponent == 0 ? std::ldexp(fraction, -24)
                                         : std::ldexp(1024 + fraction, exponent - 25);
    if (std::isnan(value)) {
      EXPECT_GT(exact_half(static_cast<float>(value)) & 0x7fff, 0x7c00);
      continue;
    }
    EXPECT_EQ(exact_half(static_cast<float>(value)), bits) << value;
    EXPECT_EQ(exact_half(-static_cast<float>(value)), bits | 0x8000) << value;
  }
}

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

/// UTF-8 of a number, by its definition; of surrogates and of what lies above U+10FFFF, too.
std::string encoded(std::uint32_t c) {
  const auto rest = [c](unsigned shift) { return static_cast<char>(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0 | (c >> 6)), rest(0)};
  if (c < 0x10000) return {static_cast<char>(0xE0 | (c >> 12)), rest(6), rest(0)};
  return {static_cast<char>(0xF0 | (c >> 18)), rest(12), rest(6), rest(0)};
}

std::string as_bytes(const std::string& text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    result += {'\\', 'x', kDigits[byte / 16], kDigits[byte % 16]};
  }
  return result;
}

// Every character there is, and those that there are not: what breaks a line or turns its order, what controls a terminal
// and what is none is shown by its bytes; all else stays.
TEST(OneLine, EveryCharacter) {
  for (std::uint32_t c = 0; c < 0x200000; c += c < 0x111000 ? 1 : 0x155) {
    const std::string text = encoded(c);
    const bool exists = c < 0xD800 || (c > 0xDFFF && c <= 0x10FFFF);
    const bool control = c < ' ' || (c >= 0x7F && c < 0xA0);
    const bool order =
        c == 0x200E || c == 0x200F || (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
    ASSERT_EQ(one_line(text), !exists || control || order ? as_bytes(text) : text) << c;
    const bool blank = c == '\t' || c == '\n';
    ASSERT_EQ(for_terminal(text), !exists || (control && !blank) ? as_bytes(text) : text) << c;
  }
}

// All that lies beside well-formed text: longer forms of a character than its own, and sequences that end too early.
TEST(OneLine, EverySequenceThatIsNoCharacter) {
  for (std::uint32_t c = 0; c < 0x10000; ++c) {
    const std::string four = {static_cast<char>(0xF0), static_cast<char>(0x80 | (c >> 12)),
                              static_cast<char>(0x80 | ((c >> 6) & 0x3F)),
                              static_cast<char>(0x80 | (c & 0x3F))};
    ASSERT_EQ(one_line(four), as_bytes(four)) << c;
    if (c < 0x800) {
      const std::string three = {static_cast<char>(0xE0), static_cast<char>(0x80 | (c >> 6)),
                                 static_cast<char>(0x80 | (c & 0x3F))};
      ASSERT_EQ(one_line(three), as_bytes(three)) << c;
    }
  }
  for (const std::uint32_t c : {0xE9U, 0x20ACU, 0xD7FFU, 0xFFFDU, 0x1F30AU, 0x4ABCDU, 0x10FFFFU}) {
    const std::string text = encoded(c);
    for (std::size_t kept = 1; kept < text.size(); ++kept) {
      const std::string cut = text.substr(0, kept);
      ASSERT_EQ(one_line(cut), as_bytes(cut)) << c;
      ASSERT_EQ(one_line(cut + "a"), as_bytes(cut) + "a") << c;
      ASSERT_EQ(one_line(cut + text), as_bytes(cut) + text) << c;
    }
    ASSERT_EQ(one_line(text + text), text + text) << c;
  }
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
  std::uint64_t bytes = 1024;
  for (const char* unit : {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}) {
    EXPECT_EQ(bytes_text(bytes), std::string("1.0 ") + unit);
    EXPECT_EQ(bytes_text(bytes / 4 * 13), std::string("3.2 ") + unit);  // of 3.25, the even digit
    EXPECT_EQ(bytes_text(bytes * 15), std::string("15.0 ") + unit);
    bytes *= 1024;
  }
}

// By their definitions: as many values lie below as above; a tenth of them, and no fewer, are at most so large.
TEST(Statistics, MedianAndTenthOfAnyNumberOfValues) {
  std::mt19937 random(5);
  for (std::size_t count = 1; count < 300; ++count) {
    std::vector<double> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<double>(i * i) - 70000.0;
    std::shuffle(values.begin(), values.end(), random);
    const auto share = [&](const auto& of) { return std::count_if(values.begin(), values.end(), of); };
    const double middle = median(values);
    EXPECT_EQ(share([&](double v) { return v < middle; }), share([&](double v) { return v > middle; }))
        << count;
    const double low = tenth(values);
    EXPECT_EQ(share([&](double v) { return v == low; }), 1) << count;
    EXPECT_GE(10 * share([&](double v) { return v <= low; }), static_cast<std::ptrdiff_t>(count));
    EXPECT_LT(10 * share([&](double v) { return v < low; }), static_cast<std::ptrdiff_t>(count));
  }
  EXPECT_EQ(median({4, 1, 3, 10}), 3.5);
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

// The kernel's names are those that are shown, but for a point; each stands for itself and for no longer one.
TEST(CpuInfo, EveryFeatureByItself) {
  std::vector<std::string> names = {"sse4_2",   "popcnt",      "avx",      "f16c",        "fma",
                                    "avx2",     "bmi2",        "avx_vnni", "avx512f",     "avx512dq",
                                    "avx512cd", "avx512bw",    "avx512vl", "avx512_vnni", "avx512_bf16",
                                    "amx_tile", "avx512_fp16", "amx_bf16", "amx_int8",    "amx_fp16"};
  std::string all;
  for (const std::string& name : names) {
    const std::string shown = name == "sse4_2" ? "sse4.2" : name;
    EXPECT_THAT(parse_cpu_info("flags\t\t: fpu " + name + " sse4_1 bmi1\n").features, ElementsAre(shown));
    EXPECT_THAT(parse_cpu_info("flags\t\t: fpu x" + name + " " + name + "x").features, ElementsAre());
    all += " " + name;
  }
  EXPECT_EQ(parse_cpu_info("flags:" + all).features.size(), names.size());
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
