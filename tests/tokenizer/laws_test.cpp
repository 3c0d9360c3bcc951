// What holds for every text.

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "runtime/support/utf8.hpp"
#include "tests/tokenizer/vocabularies.hpp"

namespace headwater::runtime::testing {
namespace {

const Tokenizer& byte_level() {
  static const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(FIXTURES "/tiny.gguf");
  return *tokenizer;
}

const Tokenizer& llama_words() {
  static const std::unique_ptr<Tokenizer> tokenizer = tiny_with("llama-bpe").build();
  return *tokenizer;
}

const Tokenizer& defaults() {
  static const std::unique_ptr<Tokenizer> tokenizer = tiny_with("default").build();
  return *tokenizer;
}

const Tokenizer& sentences() {
  static const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(FIXTURES "/sentence.gguf");
  return *tokenizer;
}

const Tokenizer& any_tokenizer() {
  const int which = *rc::gen::inRange(0, 4);
  return which == 0 ? byte_level() : which == 1 ? llama_words() : which == 2 ? defaults() : sentences();
}

/// "▁" and a space are the same to a SentencePiece-style vocabulary.
std::string spaces_for_marks(const std::string& text) {
  constexpr std::string_view kMark = "\xe2\x96\x81";
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    const bool mark = std::string_view(text).substr(i).starts_with(kMark);
    result += mark ? ' ' : text[i];
    i += mark ? kMark.size() : 1;
  }
  return result;
}

/// Text of all planes with words, blanks, specials and, where asked for, bytes that are no UTF-8.
rc::Gen<std::string> texts(bool broken) {
  const auto scalar =
      rc::gen::map(rc::gen::oneOf(rc::gen::inRange(0, 0x80), rc::gen::inRange(0x80, 0x3000),
                                  rc::gen::inRange(0x3000, 0xD800), rc::gen::inRange(0xE000, 0x110000)),
                   [](int c) { return utf8_of(static_cast<char32_t>(c)); });
  const auto word = rc::gen::element<std::string>("self", " return", "    ", "\n\n", "\r\n", "\t",
                                                  " \xe2\x96\x81", "123456", "<|im_end|>", "<|im_", "<s>",
                                                  "<0x41>", "'ll", "e\xcc\x81", " ");
  const auto bytes =
      rc::gen::map(rc::gen::inRange(0x80, 0x100), [](int c) { return std::string(1, static_cast<char>(c)); });
  const auto part = broken ? rc::gen::oneOf(scalar, word, bytes) : rc::gen::oneOf(scalar, word);
  return rc::gen::map(rc::gen::container<std::vector<std::string>>(part),
                      [](const std::vector<std::string>& parts) {
                        std::string text;
                        for (const std::string& p : parts) text += p;
                        return text;
                      });
}

RC_GTEST_PROP(TokenizerLaws, DecodingGivesTheTextBack, ()) {
  const Tokenizer& tokenizer = any_tokenizer();
  const std::string text = *texts(true);
  // A control token of the text would be left out; typed text has none.
  std::string expected = well_formed_utf8(text);
  if (&tokenizer == &sentences()) expected = spaces_for_marks(expected);
  RC_ASSERT(tokenizer.decode(tokenizer.encode(text, false, false)) == expected);
}

// Where one text goes on after another, nothing comes between them.
RC_GTEST_PROP(TokenizerLaws, MoreTextIsTextAndNothingElse, ()) {
  const Tokenizer& tokenizer = any_tokenizer();
  std::string text = *texts(false);
  text += 'x';  // a second text needs a first one
  const std::string second = *texts(true);
  std::vector<std::int32_t> ids = tokenizer.encode(text, false, false);
  const std::vector<std::int32_t> more = tokenizer.encode_more(second, false);
  ids.insert(ids.end(), more.begin(), more.end());
  std::string expected = well_formed_utf8(text + second);
  if (&tokenizer == &sentences()) expected = spaces_for_marks(expected);
  RC_ASSERT(tokenizer.decode(ids) == expected);
}

RC_GTEST_PROP(TokenizerLaws, TypedTextHasNoControlTokens, ()) {
  const Tokenizer& tokenizer = any_tokenizer();
  for (const std::int32_t id : tokenizer.encode(*texts(true), false, false))
    RC_ASSERT(!tokenizer.is_control(id));
}

RC_GTEST_PROP(TokenizerLaws, IdsAreOfTheVocabulary, ()) {
  const Tokenizer& tokenizer = any_tokenizer();
  for (const std::int32_t id : tokenizer.encode(*texts(true), true, true))
    RC_ASSERT(id >= 0 && id < tokenizer.size());
}

RC_GTEST_PROP(TokenizerLaws, StreamingGivesWholeCharactersAndTheSameText, ()) {
  const Tokenizer& tokenizer = any_tokenizer();
  const std::vector<std::int32_t> ids = tokenizer.encode(*texts(true), false, false);
  StreamDecoder stream(tokenizer);
  std::string all;
  std::string expected;
  for (const std::int32_t id : ids) {
    const std::string text = stream.push(id);
    RC_ASSERT(!first_ill_formed_utf8(text));
    all += text;
    expected += tokenizer.piece(id);
  }
  RC_ASSERT(stream.finish().empty());  // the text was well-formed, so nothing is held back
  RC_ASSERT(all == expected);
}

// Any ids, as a model may produce them: still well-formed, and as if decoded at once.
RC_GTEST_PROP(TokenizerLaws, StreamingOfAnyIds, ()) {
  const Tokenizer& tokenizer = any_tokenizer();
  const auto ids = *rc::gen::container<std::vector<std::int32_t>>(rc::gen::oneOf(
      rc::gen::inRange<std::int32_t>(0, tokenizer.size()), rc::gen::inRange<std::int32_t>(0, 260)));
  StreamDecoder stream(tokenizer);
  std::string all;
  std::string bytes;
  for (const std::int32_t id : ids) {
    const std::string text = stream.push(id);
    RC_ASSERT(!first_ill_formed_utf8(text));
    all += text;
    if (!tokenizer.is_control(id)) bytes += tokenizer.piece(id);
  }
  all += stream.finish();
  RC_ASSERT(all == well_formed_utf8(bytes));
}

}  // namespace
}  // namespace headwater::runtime::testing
