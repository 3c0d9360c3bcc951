// What a terminal is shown of generated text: no byte of it may be a command.

#include <gtest/gtest.h>

#include "cli/support/text.hpp"
#include "runtime/support/utf8.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace headwater::runtime::testing {
namespace {

/// What comes of `bytes` as tokens of one byte each, piece by piece.
std::string shown(const std::string& bytes) {
  // Of this vocabulary the first 256 tokens are the bytes.
  static const auto tokenizer = Tokenizer::from_gguf(GgufFile::open(FIXTURES "/qwen2-yarn.gguf"));
  StreamDecoder decoder(*tokenizer);
  std::string text;
  for (const char byte : bytes) text += cli::for_terminal(decoder.push(static_cast<unsigned char>(byte)));
  return text + cli::for_terminal(decoder.finish());
}

TEST(Terminal, ControlCharactersAreShownAsBytes) {
  EXPECT_EQ(shown("a\tb\n"), "a\tb\n");
  EXPECT_EQ(shown("\x1b[2J"), "\\x1b[2J");
  EXPECT_EQ(shown("bell\a back\b\b up\x7f"), "bell\\x07 back\\x08\\x08 up\\x7f");
  EXPECT_EQ(shown("one\r\ntwo"), "one\\x0d\ntwo");
  EXPECT_EQ(shown(std::string("\0", 1)), "\\x00");
  EXPECT_EQ(shown("\xc2\x9b"
                  "31m"),
            "\\xc2\\x9b31m");
  EXPECT_EQ(shown("caf\xc3\xa9 \xf0\x9f\x99\x82 \xc2\xa0\xe2\x80\x8f"),
            "caf\xc3\xa9 \xf0\x9f\x99\x82 \xc2\xa0\xe2\x80\x8f");
  EXPECT_EQ(shown("\xff\xc2"), "\xef\xbf\xbd\xef\xbf\xbd");  // what is no UTF-8 never gets there
  EXPECT_EQ(cli::for_terminal("\xff\x9b"), "\\xff\\x9b");
}

// Every character that may be a command of the terminal is replaced, every other one stays.
TEST(Terminal, EveryCharacterOfOneOrTwoBytes) {
  for (char32_t c = 0; c < 0x800; ++c) {
    const std::string text = utf8_of(c);
    const bool control = (c < 0x20 && c != U'\n' && c != U'\t') || (c >= 0x7F && c < 0xA0);
    EXPECT_EQ(shown(text) == text, !control) << static_cast<unsigned>(c);
    for (const char byte : shown(text)) {
      EXPECT_TRUE(byte == '\n' || byte == '\t' || static_cast<unsigned char>(byte) >= 0x20)
          << static_cast<unsigned>(c);
    }
  }
}

}  // namespace
}  // namespace headwater::runtime::testing
