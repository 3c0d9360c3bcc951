// Vocabularies and texts of the sizes that models and prompts have: ids, ranks and places beyond 2^16. The merges are
// done once more by the definition, over strings.

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <random>
#include <unordered_map>

#include "runtime/tokenizer/pre_tokenizer.hpp"
#include "tests/tokenizer/vocabularies.hpp"

namespace headwater::runtime::testing {
namespace {

using Ids = std::vector<std::int32_t>;

const std::string kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// All pairs of letters, then triples up to a vocabulary of Qwen's size, in an order that puts none into the first
/// 65536.
std::vector<std::string> letter_tokens() {
  constexpr std::size_t kTokens = 151936 - 300;
  std::vector<std::string> texts;
  for (const char a : kLetters)
    for (const char b : kLetters) texts.push_back({a, b});
  for (const char c : kLetters)
    for (const char a : kLetters)
      for (const char b : kLetters) texts.push_back({a, b, c});
  std::vector<std::string> longer;
  for (std::size_t i = 0; texts.size() + longer.size() < kTokens; ++i)
    longer.push_back(texts[3000 + i] + "z");
  texts.insert(texts.end(), longer.begin(), longer.end());
  std::mt19937 random(3);
  for (std::size_t i = texts.size(); i > 1; --i) std::swap(texts[i - 1], texts[random() % i]);
  return texts;
}

std::string random_word(std::mt19937& random, std::size_t length) {
  std::string word;
  while (word.size() < length) word += kLetters[random() % kLetters.size()];
  return word;
}

/// Neighbours with the lowest order are merged, the leftmost of equal ones, until there are none.
template <typename Order>
std::vector<std::string> merged(const std::string& word, const Order& order) {
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  while (true) {
    std::size_t best = parts.size();
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const double here = order(parts[i], parts[i + 1]);
      if (here < least) least = here, best = i;
    }
    if (best == parts.size()) return parts;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(TokenizerSizes, RanksAndIdsBeyond65536) {
  VocabularyBuilder b = all_bytes();
  std::unordered_map<std::string, double> ranks;  // of "left right"
  std::unordered_map<std::string, std::int32_t> ids;
  for (const char c : kLetters) ids[std::string(1, c)] = static_cast<unsigned char>(c);
  for (const std::string& text : letter_tokens()) {
    ids[text] = b.add(text);
    b.merges.push_back(text.substr(0, text.size() - 1) + " " + text.back());
    ranks.emplace(b.merges.back(), static_cast<double>(ranks.size()));
  }
  const std::int32_t end = b.add("<|im_end|>", kControl);
  const std::int32_t start = b.add("<|start|>", kControl);
  ASSERT_GT(end, 150000);
  b.file.add("tokenizer.ggml.bos_token_id", kU32, static_cast<std::uint32_t>(start));
  b.file.add("tokenizer.ggml.eos_token_id", kU32, static_cast<std::uint32_t>(end));
  const auto tokenizer = b.build();
  EXPECT_EQ(tokenizer->bos(), start);
  EXPECT_EQ(tokenizer->eos(), end);
  EXPECT_EQ(tokenizer->find_special("<|im_end|>"), end);
  EXPECT_TRUE(tokenizer->is_end(end));
  EXPECT_FALSE(tokenizer->is_end(end & 0xFFFF));
  EXPECT_TRUE(tokenizer->is_control(end));
  EXPECT_FALSE(tokenizer->is_control(end & 0xFFFF));
  EXPECT_EQ(tokenizer->piece(end), "<|im_end|>");
  const auto rank = [&](const std::string& left, const std::string& right) {
    const auto found = ranks.find(left + " " + right);
    return found == ranks.end() ? std::numeric_limits<double>::infinity() : found->second;
  };
  std::mt19937 random(5);
  int beyond = 0;
  for (int i = 0; i < 200; ++i) {
    const std::string word = random_word(random, 1 + random() % 40);
    Ids wanted;
    for (const std::string& part : merged(word, rank)) wanted.push_back(ids.at(part));
    for (const std::int32_t id : wanted) beyond += id > 65535 ? 1 : 0;
    ASSERT_EQ(tokenizer->encode(word, false, false), wanted) << word;
    ASSERT_EQ(tokenizer->decode(wanted), word);
    StreamDecoder stream(*tokenizer);
    std::string streamed;
    for (const std::int32_t id : wanted) streamed += stream.push(id);
    ASSERT_EQ(streamed + stream.finish(), word);
  }
  EXPECT_GT(beyond, 500);
  // Llama 3 looks a whole word up first.
  b.pre = "llama-bpe";
  const auto by_words = b.build();
  for (std::size_t t = 256; t < 256 + 150000; t += 777) {
    const std::string& word = b.tokens[t];
    EXPECT_EQ(by_words->encode(word, false, false), Ids{ids.at(word)}) << word;
  }
}

// A pair of symbols is not another pair that has the same lower 16 bits, on either side.
TEST(TokenizerSizes, PairsOfSymbolsBeyond65536) {
  VocabularyBuilder b = all_bytes();
  const std::int32_t ab = b.add("ab");
  while (b.tokens.size() < 65536 + 'a') b.add("t" + std::to_string(b.tokens.size()));
  const std::int32_t pq = b.add("pq");  // 65536 and 'a'
  const std::int32_t xy = b.add("xy");  // 65536 and 'b'
  b.merges = {"x y", "p q", "a b"};
  const auto tokenizer = b.build();
  EXPECT_EQ(tokenizer->encode("ab", false, false), Ids{ab});
  EXPECT_EQ(tokenizer->encode("axy", false, false), (Ids{'a', xy}));
  EXPECT_EQ(tokenizer->encode("pqb", false, false), (Ids{pq, 'b'}));
  EXPECT_EQ(tokenizer->encode("pqxy", false, false), (Ids{pq, xy}));
}

TEST(TokenizerSizes, ScoresAndIdsBeyond65536) {
  VocabularyBuilder b = small_sentence();
  b.file.add<std::uint8_t>("tokenizer.ggml.add_space_prefix", kBool, 0);
  std::unordered_map<std::string, std::int32_t> ids;
  for (const char c : kLetters) ids[std::string(1, c)] = b.add(std::string(1, c));
  // Scores fall with the id, as in files; they are exact in F32.
  for (const std::string& text : letter_tokens()) {
    ids[text] = b.add(text, kNormal, -static_cast<float>(b.tokens.size()));
  }
  const auto tokenizer = b.build();
  const auto order = [&](const std::string& left, const std::string& right) {
    const auto found = ids.find(left + right);
    return found == ids.end() ? std::numeric_limits<double>::infinity() : static_cast<double>(found->second);
  };
  std::mt19937 random(7);
  for (int i = 0; i < 200; ++i) {
    const std::string word = random_word(random, 1 + random() % 40);
    Ids wanted;
    for (const std::string& part : merged(word, order)) wanted.push_back(ids.at(part));
    ASSERT_EQ(tokenizer->encode(word, false, false), wanted) << word;
  }
}

/// Left and right parts, lowest order first: what one rule makes meets its left neighbour in the second and the fourth, its
/// right one in the third and the fourth.
const std::vector<std::pair<std::string, std::string>> kRules = {
    {"a", "b"}, {"c", "ab"}, {"cab", "c"}, {"ab", "ab"}};

/// One rule after the other, each from left to right: none makes what an earlier one merges.
std::vector<std::string> merged_by_rules(const std::string& text) {
  std::vector<std::string> parts;
  for (const char c : text) parts.emplace_back(1, c);
  for (const auto& [left, right] : kRules) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < parts.size(); ++i, ++kept) {
      const bool both = i + 1 < parts.size() && parts[i] == left && parts[i + 1] == right;
      parts[kept] = both ? left + right : parts[i];
      i += both ? 1 : 0;
    }
    parts.resize(kept);
  }
  return parts;
}

// Words of 300000 letters, with a pair across each place, and text in words of 999.
TEST(TokenizerSizes, OneWordBeyond65536Letters) {
  VocabularyBuilder bytes = all_bytes();
  VocabularyBuilder sentence = small_sentence();
  sentence.file.add<std::uint8_t>("tokenizer.ggml.add_space_prefix", kBool, 0);
  for (const char c : {'a', 'b', 'c'}) sentence.add(std::string(1, c), kNormal, -100.0F);
  for (const auto& [left, right] : kRules) {
    bytes.add(left + right);
    bytes.merges.push_back(left + " " + right);
    sentence.add(left + right, kNormal, -static_cast<float>(bytes.merges.size()));
  }
  std::mt19937 random(9);
  std::string mixed;
  std::string pairs;
  while (mixed.size() < 300000) mixed += static_cast<char>('a' + random() % 3);
  while (pairs.size() < 300000) pairs += "ab";
  std::string words = mixed;
  for (std::size_t i = 999; i < words.size(); i += 1000) words[i] = ' ';
  for (const VocabularyBuilder* const b : {&bytes, &sentence}) {
    const auto tokenizer = b->build();
    std::unordered_map<std::string, std::int32_t> ids;
    for (const std::string& token : b->tokens) ids.emplace(token, static_cast<std::int32_t>(ids.size()));
    ids[" "] = ' ';
    for (const std::string& text : {mixed, pairs, "b" + pairs, "bbb" + pairs, words}) {
      if (b == &sentence && text == words) continue;  // has no words
      Ids wanted;
      for (const std::string& part : merged_by_rules(text)) wanted.push_back(ids.at(part));
      ASSERT_EQ(tokenizer->encode(text, false, false), wanted);
      EXPECT_EQ(tokenizer->decode(wanted), text);
    }
  }
}

// Each rule joins two of what the one before makes.
TEST(TokenizerSizes, TokensOf1024Letters) {
  VocabularyBuilder bytes = all_bytes();
  VocabularyBuilder sentence = small_sentence();
  sentence.file.add<std::uint8_t>("tokenizer.ggml.add_space_prefix", kBool, 0);
  std::unordered_map<std::size_t, std::int32_t> ids[] = {{{1, 'a'}}, {{1, sentence.add("a")}}};
  for (std::size_t half = 1; half < 1024; half *= 2) {
    const std::string left(half, 'a');
    ids[0][2 * half] = bytes.add(left + left);
    ids[1][2 * half] = sentence.add(left + left, kNormal, -static_cast<float>(half));
    bytes.merges.push_back(left + " " + left);
  }
  for (const bool sentences : {false, true}) {
    Ids wanted;
    for (const std::size_t length : {1024, 1024, 32, 4, 1})
      wanted.push_back(ids[sentences ? 1 : 0].at(length));
    const auto tokenizer = (sentences ? sentence : bytes).build();
    EXPECT_EQ(tokenizer->encode(std::string(2 * 1024 + 37, 'a'), false, false), wanted);
    EXPECT_EQ(tokenizer->decode(wanted), std::string(2 * 1024 + 37, 'a'));
  }
}

TEST(TokenizerSizes, SpecialTokensAfter65536Bytes) {
  VocabularyBuilder b = all_bytes();
  const std::int32_t end = b.add("<|im_end|>", kControl);
  const std::int32_t long_one = b.add("<" + std::string(300, 'l') + ">", kControl);
  const auto tokenizer = b.build();
  for (const std::size_t before : {std::size_t{65535}, std::size_t{65536}, std::size_t{200000}}) {
    const std::string text(before, 'x');
    Ids wanted(before, 'x');
    wanted.insert(wanted.end(), {end, long_one, 'y'});
    ASSERT_EQ(tokenizer->encode(text + "<|im_end|><" + std::string(300, 'l') + ">y", false, true), wanted);
  }
}

// Each is the beginning of all longer ones.
TEST(TokenizerSizes, SpecialTokensOfThreeHundredLengths) {
  VocabularyBuilder b = all_bytes();
  Ids wanted;
  std::string text;
  for (std::size_t length = 1; length <= 300; ++length) {
    const std::string token = "\x01" + std::string(length - 1, 'l');
    wanted.insert(wanted.end(), {b.add(token, length % 2 == 0 ? kControl : kUserDefined), 'y'});
    text += token + "y";
  }
  EXPECT_EQ(b.build()->encode(text, false, true), wanted);
}

// Patterns whose classes overlap go back over a run of letters: as often as it is long, and not the square of that.
TEST(TokenizerSizes, RunsOfAMillionCharacters) {
  for (const char* const name :
       {"qwen2", "llama-bpe", "gpt-2", "gpt-4o", "tekken", "qwen35", "deepseek-v3"}) {
    const auto pre_tokenizer = PreTokenizer::named(name);
    for (const std::string unit :
         {"A", "a", "Aa", "aA", "\u3042", "\u0301", "\u01c5", "1", "'", " ", "\n", "/", " \n"}) {
      std::string text;
      while (text.size() < 1'000'000) text += unit;
      std::size_t length = 0;
      for (const std::string_view word : pre_tokenizer->split(text)) {
        ASSERT_EQ(word.data(), text.data() + length) << name << " " << unit;
        length += word.size();
      }
      EXPECT_EQ(length, text.size()) << name << " " << unit;
    }
  }
}

}  // namespace
}  // namespace headwater::runtime::testing
