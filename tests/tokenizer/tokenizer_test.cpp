// Merges, special tokens and ends on vocabularies small enough to do by hand.

#include <gmock/gmock.h>

#include <ctime>
#include <thread>

#include "runtime/tokenizer/pre_tokenizer.hpp"
#include "tests/tokenizer/vocabularies.hpp"

namespace headwater::runtime::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ByteBpe, TheLowestRankIsMergedFirst) {
  VocabularyBuilder b = all_bytes();
  const std::int32_t bc = b.add("bc");
  const std::int32_t ab = b.add("ab");
  b.merges = {"b c", "a b"};
  EXPECT_THAT(b.build()->encode("abc", false, false), ElementsAre('a', bc));
  b.merges = {"a b", "b c"};
  EXPECT_THAT(b.build()->encode("abc", false, false), ElementsAre(ab, 'c'));
}

TEST(ByteBpe, EqualRanksFromTheLeft) {
  VocabularyBuilder b = all_bytes();
  const std::int32_t aa = b.add("aa");
  b.merges = {"a a"};
  EXPECT_THAT(b.build()->encode("aaa", false, false), ElementsAre(aa, 'a'));
  EXPECT_THAT(b.build()->encode("aaaa", false, false), ElementsAre(aa, aa));
}

// A rule of a lower rank whose parts come into being late is still applied before worse ones.
TEST(ByteBpe, MergesOfMerges) {
  VocabularyBuilder b = all_bytes();
  b.add("ab");
  const std::int32_t abab = b.add("abab");
  const std::int32_t ba = b.add("ba");
  b.merges = {"a b", "ab ab", "b a"};
  EXPECT_THAT(b.build()->encode("abab", false, false), ElementsAre(abab));
  EXPECT_THAT(b.build()->encode("bab", false, false), ElementsAre('b', 256));
  EXPECT_THAT(b.build()->encode("bba", false, false), ElementsAre('b', ba));
}

TEST(ByteBpe, AMergeThatIsNoTokenFallsBackToBytes) {
  VocabularyBuilder b = all_bytes();
  const std::int32_t abc = b.add("abc");
  b.merges = {"a b", "ab c"};
  EXPECT_THAT(b.build()->encode("abc", false, false), ElementsAre(abc));
  EXPECT_THAT(b.build()->encode("abx", false, false), ElementsAre('a', 'b', 'x'));
}

TEST(ByteBpe, WholeWordsFirstOnlyForLlama) {
  VocabularyBuilder b = all_bytes();
  const std::int32_t abc = b.add("abc");
  const std::int32_t bc = b.add("bc");
  b.merges = {"b c"};
  EXPECT_THAT(b.build()->encode("abc", false, false), ElementsAre('a', bc));
  b.pre = "llama-bpe";
  b.file.add<std::uint8_t>("tokenizer.ggml.add_bos_token", kBool, 0);
  EXPECT_THAT(b.build()->encode("abc", false, false), ElementsAre(abc));
}

// Names of one kind mean the same in everything.
TEST(ByteBpe, PreTokenizersByAllTheirNames) {
  const std::vector<std::vector<std::string>> kinds = {
      {"qwen2", "deepseek-r1-qwen"},
      {"llama-bpe", "llama3", "llama-v3"},
      {"gpt-2"},
      {"default"},
      {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "minerva"}};
  for (const auto& names : kinds) {
    const bool llama = names[0] == "llama-bpe";
    const std::string text = "I'LL add 12345 words\n\n  at once!?";
    const auto words = PreTokenizer::named(names[0])->split(text);
    for (const std::string& name : names) {
      const auto kind = PreTokenizer::named(name);
      EXPECT_EQ(kind->split(text), words) << name;
      EXPECT_EQ(kind->whole_words_first(), llama) << name;
      EXPECT_EQ(kind->adds_bos(), llama) << name;
    }
  }
  EXPECT_EQ(PreTokenizer::named("qwen"), nullptr);
}

TEST(ByteBpe, BytesWithoutTokenAreLeftOutAndTheirPlaceIsKnown) {
  VocabularyBuilder b = all_bytes();
  b.tokens['q'] = "qq";
  const std::unique_ptr<Tokenizer> tokenizer = b.build();
  EXPECT_THAT(tokenizer->encode("x", false, false), ElementsAre('x'));
  EXPECT_THAT(tokenizer->encode("q", false, false), IsEmpty());
  EXPECT_THAT(tokenizer->encode("xqyq", false, false), ElementsAre('x', 'y'));
  EXPECT_EQ(tokenizer->first_without_token(""), std::nullopt);
  EXPECT_EQ(tokenizer->first_without_token("xyz"), std::nullopt);
  EXPECT_EQ(tokenizer->first_without_token("q"), 0U);
  EXPECT_EQ(tokenizer->first_without_token("x y qq"), 4U);
  EXPECT_EQ(tokenizer->first_without_token("\xff x\xc3 q"),
            5U);  // bytes of the text, not of what is read for it
  EXPECT_EQ(all_bytes().build()->first_without_token("q"), std::nullopt);
  b = all_bytes();
  b.tokens[0xF3] = "other";
  EXPECT_THAT(b.build()->encode("a\xf3\xa0\x80\x81z", false, false), ElementsAre('a', 0xA0, 0x80, 0x81, 'z'));
  EXPECT_EQ(b.build()->first_without_token("a\xf3\xa0\x80\x81z"), 1U);
}

// Qwen's own tokenizer composes texts; its vocabulary is known by its size, and special tokens are split off before.
TEST(ByteBpe, QwensVocabularyComposesTexts) {
  const std::string decomposed = "e\xcc\x81";
  for (const int tokens : {151642, 151643, 151936}) {
    for (const char* pre : {"qwen2", "deepseek-r1-qwen", "gpt-2"}) {
      VocabularyBuilder b = all_bytes();
      b.pre = pre;
      const std::int32_t special = b.add("<" + decomposed + ">", kControl);
      while (b.tokens.size() < static_cast<std::size_t>(tokens)) b.add(std::to_string(b.tokens.size()) + "~");
      const auto tokenizer = b.build();
      const std::vector<std::int32_t> apart = {'e', 0xCC, 0x81};
      const std::vector<std::int32_t> one = {0xC3, 0xA9};
      const bool composes = tokens >= 151643 && (pre != std::string("gpt-2"));
      EXPECT_EQ(tokenizer->encode(decomposed, false, false), composes ? one : apart) << pre << ' ' << tokens;
      EXPECT_THAT(tokenizer->encode("<" + decomposed + ">", false, true), ElementsAre(special));
    }
  }
}

TEST(ByteBpe, PiecesAreBytes) {
  VocabularyBuilder b = all_bytes();
  const std::int32_t space = b.add(
      "\xc4\xa0"
      "a");                                          // "Ġa"
  const std::int32_t plain = b.add("\xe6\x9d\xb1");  // an added token, spelled plainly
  const std::unique_ptr<Tokenizer> tokenizer = b.build();
  for (int byte = 0; byte < 256; ++byte)
    EXPECT_EQ(tokenizer->piece(byte), std::string(1, static_cast<char>(byte)));
  EXPECT_EQ(tokenizer->piece(space), " a");
  EXPECT_EQ(tokenizer->piece(plain), "\xe6\x9d\xb1");
}

TEST(Special, ControlTokensOnlyWhereAskedFor) {
  VocabularyBuilder b = all_bytes();
  const std::int32_t end = b.add("<e>", kControl);
  const std::unique_ptr<Tokenizer> tokenizer = b.build();
  EXPECT_THAT(tokenizer->encode("a<e>b", false, true), ElementsAre('a', end, 'b'));
  EXPECT_THAT(tokenizer->encode("a<e>b", false, false), ElementsAre('a', '<', 'e', '>', 'b'));
  EXPECT_THAT(tokenizer->encode("<e><e>", false, true), ElementsAre(end, end));
  EXPECT_EQ(tokenizer->decode(std::vector<std::int32_t>{'a', end, 'b'}), "ab");
  EXPECT_EQ(tokenizer->piece(end), "<e>");
}

TEST(Special, UserDefinedTokensAlways) {
  VocabularyBuilder b = all_bytes();
  const std::int32_t think = b.add("<think>", kUserDefined);
  const std::unique_ptr<Tokenizer> tokenizer = b.build();
  EXPECT_THAT(tokenizer->encode("a<think>", false, false), ElementsAre('a', think));
  EXPECT_EQ(tokenizer->decode(std::vector<std::int32_t>{'a', think}), "a<think>");
  EXPECT_FALSE(tokenizer->is_control(think));
}

TEST(Special, TheLongestAtTheLeftmostPlace) {
  VocabularyBuilder b = all_bytes();
  const std::int32_t a = b.add("<a>", kControl);
  const std::int32_t ab = b.add("<a><b>", kControl);
  const std::int32_t b_token = b.add("><b>", kControl);
  const std::unique_ptr<Tokenizer> tokenizer = b.build();
  EXPECT_THAT(tokenizer->encode("<a><b>", false, true), ElementsAre(ab));
  EXPECT_THAT(tokenizer->encode("<a><c>", false, true), ElementsAre(a, '<', 'c', '>'));
  EXPECT_THAT(tokenizer->encode("x><b>", false, true), ElementsAre('x', b_token));
}

TEST(Special, BeginAndEnd) {
  VocabularyBuilder b = all_bytes();
  b.add("<s>", kControl);
  b.add("</s>", kControl);
  b.file.add<std::uint32_t>("tokenizer.ggml.bos_token_id", kU32, 256);
  b.file.add<std::uint32_t>("tokenizer.ggml.eos_token_id", kU32, 257);
  VocabularyBuilder both = b;
  both.file.add<std::uint8_t>("tokenizer.ggml.add_bos_token", kBool, 1);
  both.file.add<std::uint8_t>("tokenizer.ggml.add_eos_token", kBool, 1);
  const std::unique_ptr<Tokenizer> tokenizer = both.build();
  EXPECT_EQ(tokenizer->bos(), 256);
  EXPECT_EQ(tokenizer->eos(), 257);
  EXPECT_TRUE(tokenizer->adds_bos());
  EXPECT_THAT(tokenizer->encode("x", true, false), ElementsAre(256, 'x', 257));
  EXPECT_THAT(tokenizer->encode("x", false, false), ElementsAre('x'));
  EXPECT_THAT(tokenizer->encode("", true, false), ElementsAre(256, 257));
  EXPECT_THAT(b.build()->encode("", true, false), IsEmpty());  // qwen2 adds none by itself
  b.pre = "llama-bpe";
  EXPECT_THAT(b.build()->encode("x", true, false), ElementsAre(256, 'x'));  // llama-bpe does
}

TEST(Special, Ends) {
  VocabularyBuilder b = all_bytes();
  const std::int32_t eos = b.add("</s>", kControl);
  const std::int32_t turn = b.add("<|eot_id|>", kControl);
  const std::int32_t im = b.add("<|im_end|>", kControl);
  const std::int32_t named = b.add("<finis>", kControl);
  const std::int32_t other = b.add("<|im_start|>", kControl);
  const std::int32_t text = b.add("<|end|>", kNormal);
  b.file.add("tokenizer.ggml.eos_token_id", kU32, static_cast<std::uint32_t>(eos));
  b.file.add("tokenizer.ggml.eot_token_id", kU32, static_cast<std::uint32_t>(named));
  const std::unique_ptr<Tokenizer> tokenizer = b.build();
  for (const std::int32_t id : {eos, turn, im, named}) EXPECT_TRUE(tokenizer->is_end(id)) << id;
  for (const std::int32_t id : {other, text, std::int32_t{'x'}}) EXPECT_FALSE(tokenizer->is_end(id)) << id;
  EXPECT_EQ(tokenizer->find_special("<|im_start|>"), other);
  EXPECT_EQ(tokenizer->find_special("<|end|>"), std::nullopt);
  EXPECT_EQ(tokenizer->find_special("<none>"), std::nullopt);
}

// By each name that models have for it, where it is no plain text; and by each key, wherever it stands in a vocabulary.
TEST(Special, EndsByEveryNameAndKey) {
  for (const char* const name : {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>",
                                 "<|end|>", "<|end_of_turn|>", "<end_of_turn>"}) {
    for (const std::int32_t kind : {kNormal, kUnknown, kControl, kUserDefined, kUnused}) {
      VocabularyBuilder b = all_bytes();
      const std::int32_t id = b.add(name, kind);
      EXPECT_EQ(b.build()->is_end(id), kind != kNormal) << name << ", " << kind;
      VocabularyBuilder sentence = small_sentence();
      const std::int32_t other = sentence.add(name, kind);
      EXPECT_EQ(sentence.build()->is_end(other), kind != kNormal) << name << ", " << kind;
    }
  }
  VocabularyBuilder plain = all_bytes();
  while (plain.tokens.size() < 140000) plain.add("t" + std::to_string(plain.tokens.size()));
  const std::vector<std::int32_t> ids = {65535, 65537, 139999, 131073, 0, 255};
  for (std::size_t turn = 0; turn < 3; ++turn) {
    VocabularyBuilder b = plain;
    const auto id_of = [&](std::size_t key) { return ids[(key + turn) % ids.size()]; };
    const std::string keys[] = {"eos", "eot", "eom", "bos", "unknown", "padding"};
    for (std::size_t key = 0; key < std::size(keys); ++key) {
      b.file.add("tokenizer.ggml." + keys[key] + "_token_id", kU32, static_cast<std::uint32_t>(id_of(key)));
    }
    const auto tokenizer = b.build();
    EXPECT_EQ(tokenizer->eos(), id_of(0));
    EXPECT_EQ(tokenizer->bos(), id_of(3));
    for (std::int32_t id = 0; id < tokenizer->size(); ++id) {
      ASSERT_EQ(tokenizer->is_end(id), id == id_of(0) || id == id_of(1) || id == id_of(2)) << id;
    }
  }
}

// Not as a word, as what merges make, nor as a character: of no kind of vocabulary, whatever the token's name.
TEST(Special, TypedTextIsNeverAControlToken) {
  for (const std::int32_t kind : {kUnknown, kControl}) {
    for (const std::string pre : {"qwen2", "llama-bpe", "llama3", "gpt-2", "default", "smollm"}) {
      VocabularyBuilder b = all_bytes();
      b.pre = pre;
      b.file.add<std::uint8_t>("tokenizer.ggml.add_bos_token", kBool, 0);
      const std::int32_t word = b.add("abc", kind);
      const std::int32_t ab = b.add("ab");
      b.merges = {"a b", "ab c"};
      const auto tokenizer = b.build();
      EXPECT_THAT(tokenizer->encode("abc", false, false), ElementsAre('a', 'b', 'c')) << pre;
      EXPECT_THAT(tokenizer->encode("ab", false, false), ElementsAre(ab)) << pre;
      EXPECT_THAT(tokenizer->encode("abc", false, true), ElementsAre(word)) << pre;
      // A user-defined one is one wherever it stands.
      b.kinds[static_cast<std::size_t>(word)] = kUserDefined;
      EXPECT_THAT(b.build()->encode("xabcx", false, false), ElementsAre('x', word, 'x')) << pre;
    }
    VocabularyBuilder b = small_sentence();
    b.file.add<std::uint8_t>("tokenizer.ggml.add_space_prefix", kBool, 0);
    b.add("ab", kind, -1);
    const std::int32_t x = b.add("x", kind, -1);
    const std::int32_t a = b.add("a", kNormal, -2);
    const std::int32_t letter = b.add("b", kNormal, -2);
    const auto tokenizer = b.build();
    EXPECT_THAT(tokenizer->encode("abx", false, false), ElementsAre(a, letter, 3 + 'x'));
    EXPECT_THAT(tokenizer->encode("x", false, true), ElementsAre(x));
  }
}

constexpr std::int32_t kFirstByte = 3;

TEST(SentenceBpe, TheHighestScoreFirst) {
  VocabularyBuilder b = small_sentence();
  const std::int32_t mark = b.add("\xe2\x96\x81", kNormal, -9);
  const std::int32_t a = b.add("a", kNormal, -10);
  const std::int32_t c = b.add("c", kNormal, -11);
  b.add("b", kNormal, -12);
  const std::int32_t ab = b.add("ab", kNormal, -2);
  b.add("bc", kNormal, -3);
  const std::int32_t mark_a = b.add(
      "\xe2\x96\x81"
      "a",
      kNormal, -1);
  const std::unique_ptr<Tokenizer> tokenizer = b.build();
  EXPECT_THAT(tokenizer->encode("cabc", true, false), ElementsAre(1, mark, c, ab, c));
  EXPECT_THAT(tokenizer->encode("a a", true, false), ElementsAre(1, mark_a, mark_a));
  EXPECT_THAT(tokenizer->encode("aa", false, false), ElementsAre(mark_a, a));
}

TEST(SentenceBpe, BytesOfWhatHasNoToken) {
  VocabularyBuilder b = small_sentence();
  const std::int32_t mark = b.add("\xe2\x96\x81");
  const std::unique_ptr<Tokenizer> tokenizer = b.build();
  EXPECT_THAT(tokenizer->encode("\xc3\xa9\n", false, false),
              ElementsAre(mark, kFirstByte + 0xC3, kFirstByte + 0xA9, kFirstByte + 0x0A));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("\xc3\xa9\n", true, false)), "\xc3\xa9\n");
}

TEST(SentenceBpe, WithoutByteTokensCharactersAreLeftOut) {
  VocabularyBuilder b;
  b.model = "llama";
  b.pre = "";
  const std::int32_t mark = b.add("\xe2\x96\x81");
  const std::int32_t x = b.add("x");
  b.file.add<std::uint8_t>("tokenizer.ggml.add_bos_token", kBool, 0);
  const std::unique_ptr<Tokenizer> tokenizer = b.build();
  EXPECT_THAT(tokenizer->encode("x \xc3\xa9x", true, false), ElementsAre(mark, x, mark, x));
  EXPECT_EQ(tokenizer->first_without_token("x  x"), std::nullopt);
  EXPECT_EQ(tokenizer->first_without_token("\xc3\xa9"), 0U);
  EXPECT_EQ(tokenizer->first_without_token("x \xe2\x96\x81  \xc3\xa9x y"), 7U);
}

// "<" and "s>" are pieces; what is typed must not become the control token.
TEST(SentenceBpe, MergesMakeNoControlTokens) {
  VocabularyBuilder b = small_sentence();
  b.file.add<std::uint8_t>("tokenizer.ggml.add_space_prefix", kBool, 0);
  const std::int32_t less = b.add("<", kNormal, -1);
  b.add("s", kNormal, -1);
  b.add(">", kNormal, -1);
  const std::int32_t tail = b.add("s>", kNormal, -1);
  const std::unique_ptr<Tokenizer> tokenizer = b.build();
  EXPECT_THAT(tokenizer->encode("<s>", false, false), ElementsAre(less, tail));
  EXPECT_THAT(tokenizer->encode("<s>", false, true), ElementsAre(1));
}

// A token like any other, as a character and as what two become.
TEST(SentenceBpe, TokenNumber0) {
  for (const std::string first : {"a", "ab"}) {
    VocabularyBuilder b;
    b.model = "llama";
    b.pre = "";
    b.add(first, kNormal, -1);
    VocabularyBuilder rest = small_sentence();
    for (std::size_t i = 3; i < rest.tokens.size(); ++i) b.add(rest.tokens[i], kByte);
    b.file.add<std::uint8_t>("tokenizer.ggml.add_space_prefix", kBool, 0);
    b.file.add<std::uint8_t>("tokenizer.ggml.add_bos_token", kBool, 0);
    if (first == "ab") b.add("a", kNormal, -2), b.add("b", kNormal, -3);
    const std::unique_ptr<Tokenizer> tokenizer = b.build();
    EXPECT_THAT(tokenizer->encode(first, true, false), ElementsAre(0)) << first;
    EXPECT_EQ(tokenizer->decode(std::vector<std::int32_t>{0, 0}), first + first);
  }
}

// A token that is not used helps to make longer ones; where it is left over, what it was made of comes instead, as far down
// as is needed.
TEST(SentenceBpe, UnusedTokensAreTakenApart) {
  VocabularyBuilder plain = small_sentence();
  plain.file.add<std::uint8_t>("tokenizer.ggml.add_space_prefix", kBool, 0);
  std::vector<std::int32_t> ids{plain.add("a", kNormal, -100)};  // of 1, 2, 4 ... letters
  for (int length = 2; length <= 512; length *= 2) {
    ids.push_back(
        plain.add(std::string(static_cast<std::size_t>(length), 'a'), kNormal, -static_cast<float>(length)));
  }
  for (unsigned used = 0; used < 1024; used += used < 16 ? 1 : 37) {
    VocabularyBuilder b = plain;
    for (std::size_t i = 1; i < ids.size(); ++i) {
      if ((used >> i & 1U) == 0) b.kinds[static_cast<std::size_t>(ids[i])] = kUnused;
    }
    const auto tokenizer = b.build();
    for (const std::size_t length :
         {std::size_t{1}, std::size_t{2}, std::size_t{512}, std::size_t{3 * 512}}) {
      std::size_t whole = 0;  // the longest one that is used and not longer than what was merged
      for (std::size_t i = 1; i < ids.size(); ++i) {
        if ((used >> i & 1U) != 0 && (std::size_t{1} << i) <= length) whole = i;
      }
      const std::vector<std::int32_t> wanted(length >> whole, ids[whole]);
      EXPECT_EQ(tokenizer->encode(std::string(length, 'a'), false, false), wanted) << used << ", " << length;
    }
  }
}

TEST(SentenceBpe, TheSpaceInFront) {
  VocabularyBuilder b = small_sentence();
  const std::int32_t mark = b.add("\xe2\x96\x81");
  const std::int32_t x = b.add("x");
  VocabularyBuilder without = b;
  without.file.add<std::uint8_t>("tokenizer.ggml.add_space_prefix", kBool, 0);
  EXPECT_THAT(b.build()->encode("x", false, false), ElementsAre(mark, x));
  EXPECT_THAT(b.build()->encode("x<s>x", false, true), ElementsAre(mark, x, 1, mark, x));
  EXPECT_THAT(without.build()->encode("x", false, false), ElementsAre(x));
  EXPECT_THAT(b.build()->encode_more("x<s>x", true), ElementsAre(x, 1, mark, x));
  EXPECT_EQ(b.build()->decode(std::vector<std::int32_t>{mark, x}), "x");
  EXPECT_EQ(without.build()->decode(std::vector<std::int32_t>{mark, x}), " x");
  EXPECT_THAT(b.build()->encode("", true, false), ElementsAre(1));
}

TEST(Tokenizer, IdsOutsideAreRefused) {
  const std::unique_ptr<Tokenizer> tokenizer = all_bytes().build();
  EXPECT_THAT(refusal([&] { (void)tokenizer->piece(-1); }),
              HasSubstr("token id -1 is not in the vocabulary; allowed: 0 .. 255"));
  EXPECT_THAT(refusal([&] { (void)tokenizer->piece(256); }), HasSubstr("allowed: 0 .. 255"));
  EXPECT_THAT(refusal([&] { (void)tokenizer->is_control(256); }), HasSubstr("allowed"));
  EXPECT_FALSE(tokenizer->is_end(99999));
}

// Texts that make backtracking or repeated scanning expensive take time in proportion.
TEST(Tokenizer, LongRunsAreCheap) {
  const std::unique_ptr<Tokenizer> byte_level = open_tokenizer(FIXTURES "/tiny.gguf");
  const std::unique_ptr<Tokenizer> sentence = open_tokenizer(FIXTURES "/sentence.gguf");
  constexpr std::size_t kLength = 1 << 17;
  const std::clock_t begin = std::clock();  // of the processor: other jobs do not count
  for (const char c : {'x', ' ', '\n', '<', '1', '\''}) {
    const std::string text(kLength, c);
    EXPECT_EQ(byte_level->decode(byte_level->encode(text, false, true)).size(), kLength);
    if (c == ' ' || c == 'x') {
      EXPECT_EQ(sentence->decode(sentence->encode(text, false, true)).size(), kLength);
    }
  }
  // Quadratic would be many minutes; this leaves room for sanitizers.
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 60.0);
}

TEST(Tokenizer, ThreadsShareIt) {
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(FIXTURES "/tiny.gguf");
  const std::string text = "def f(x):\n    return x ** 2  # caf\xc3\xa9 \xf0\x9f\x99\x82\n";
  const std::vector<std::int32_t> expected = tokenizer->encode(text, true, true);
  std::vector<std::thread> threads;
  std::vector<int> same(4, 0);
  for (std::size_t t = 0; t < same.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) same[t] += tokenizer->encode(text, true, true) == expected ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(same, ::testing::Each(50));
}

}  // namespace
}  // namespace headwater::runtime::testing
