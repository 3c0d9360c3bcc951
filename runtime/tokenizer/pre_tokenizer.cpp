#define PCRE2_CODE_UNIT_WIDTH 8
#include "runtime/tokenizer/pre_tokenizer.hpp"

#include <fmt/format.h>
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <new>
#include <span>
#include <utility>

#include "headwater/error.hpp"
#include "runtime/support/utf8.hpp"

namespace headwater::runtime {
namespace {

// White space is Unicode's White_Space, written out: PCRE2's \s has U+180E besides and lacks U+0085.
#define SPACES R"(\t-\r\x{85}\p{Z})"
#define SPACE "[" SPACES "]"
#define NO_SPACE "[^" SPACES "]"
#define OTHER "[^" SPACES R"(\p{L}\p{N}])"
// The tail that all have: white space up to the word that it precedes, which keeps the last of it.
#define TAIL SPACE "+(?!" NO_SPACE ")|" SPACE "+"

// As published with the models; `numbers` is how many digits make a word.
#define MODERN(numbers)                                                                                \
  R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)" numbers "| ?" OTHER R"(+[\r\n]*|)" SPACE \
  R"(*[\r\n]+|)" TAIL
constexpr const char* kQwen2[] = {MODERN(R"(\p{N})")};
constexpr const char* kLlama3[] = {MODERN(R"(\p{N}{1,3})")};
#define GPT2 R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?)" OTHER "+|" TAIL
constexpr const char* kGpt2[] = {GPT2};
// Every digit alone, without the blank in front of it. The models' own tokenizers (Digits of `tokenizers`) ask Rust's
// char::is_numeric, which is categories Nd, Nl and No: \p{N}. So a half, a Roman and a circled number stand alone, too.
constexpr const char* kSingleDigits[] = {R"(\p{N})", GPT2};
// Each cuts what the one before left: punctuation, words, numbers, groups of three digits.
constexpr const char* kDefault[] = {R"([\p{P}$+<=>^~|]+)", GPT2, R"(\p{N}+)", "[0-9][0-9][0-9]"};

// Words begin with letters that are no small ones or end with some that are no large ones; clitics belong to them, if any.
#define CASED(clitics, numbers)                                                                          \
  R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)" clitics              \
  R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)" clitics "|" numbers \
  "| ?" OTHER R"(+[\r\n/]*|)" SPACE R"(*[\r\n]+|)" TAIL
constexpr const char* kGpt4o[] = {CASED("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", R"(\p{N}{1,3})")};
constexpr const char* kTekken[] = {CASED("", R"(\p{N})")};
// Marks belong to their letters.
constexpr const char* kQwen35[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^)" SPACES
    R"(\p{L}\p{M}\p{N}]+[\r\n]*|)" SPACE R"(*[\r\n]+|)" TAIL};
constexpr const char* kDeepseek3[] = {
    R"(\p{N}{1,3})", R"([\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+)",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)" SPACE
    R"(*[\r\n]+|)" TAIL};

constexpr std::int64_t kQwenTokens = 151643;  // before its control tokens

struct Kind {
  std::string_view name;
  std::span<const char* const> patterns;
  bool whole_words_first;
  bool adds_bos;
  bool qwen;
};

// Several names mean the same, as in llama.cpp.
constexpr Kind kKinds[] = {
    {"qwen2", kQwen2, false, false, true},
    {"deepseek-r1-qwen", kQwen2, false, false, true},
    {"llama-bpe", kLlama3, true, true, false},
    {"llama3", kLlama3, true, true, false},
    {"llama-v3", kLlama3, true, true, false},
    {"falcon3", kLlama3, true, true, false},
    {"falcon-h1", kLlama3, true, true, false},
    {"pixtral", kLlama3, true, true, false},
    {"lfm2", kLlama3, true, true, false},
    {"glm4", kLlama3, true, false, false},
    {"chatglm-bpe", kLlama3, false, false, false},
    {"dbrx", kLlama3, false, false, false},
    {"smaug-bpe", kLlama3, false, false, false},
    {"gpt-4o", kGpt4o, false, false, false},
    {"llama4", kGpt4o, false, false, false},
    {"tekken", kTekken, true, true, false},
    {"qwen35", kQwen35, false, false, false},
    {"deepseek-v3", kDeepseek3, false, false, false},
    {"stablelm2", kQwen2, false, false, false},
    {"gpt-2", kGpt2, false, false, false},
    {"phi-2", kGpt2, false, false, false},
    {"exaone4", kGpt2, false, false, false},
    {"olmo", kGpt2, false, false, false},
    {"default", kDefault, false, false, false},
    {"smollm", kSingleDigits, false, false, false},
    {"starcoder", kSingleDigits, false, false, false},
    {"refact", kSingleDigits, false, false, false},
    {"command-r", kSingleDigits, false, false, false},
    {"codeshell", kSingleDigits, false, false, false},
    {"exaone", kSingleDigits, false, false, false},
    {"minerva-7b", kSingleDigits, false, false, false},
    {"minerva", kSingleDigits, false, false, false},
};

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
using Code = std::unique_ptr<pcre2_code, FreeCode>;

[[noreturn]] void fail(const char* action, int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  throw Error(ErrorCode::internal, fmt::format("PCRE2 cannot {} a pre-tokeniser: {}", action,
                                               reinterpret_cast<const char*>(text.data())));
}

Code compile(const char* pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                          &error, &offset, nullptr));
  if (error == PCRE2_ERROR_HEAP_FAILED) throw std::bad_alloc();
  if (!code) fail("compile", error);
  // Where there is no just-in-time compiler, matching is slower and nothing else.
  (void)pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return code;
}

/// The matches of one pattern in a text, in order.
class Matcher {
 public:
  explicit Matcher(const pcre2_code* code)
      : code_(code),
        data_(pcre2_match_data_create_from_pattern(code, nullptr)),
        context_(pcre2_match_context_create(nullptr)) {
    if (!data_ || !context_) throw std::bad_alloc();
    // Backtracking is linear in a run of white space; the default limit would refuse ten million blanks.
    pcre2_set_match_limit(context_.get(), UINT32_MAX);
  }

  /// The first match in `text` from `from` on: its ends; {size, size} where there is none.
  std::pair<std::size_t, std::size_t> next(std::string_view text, std::size_t from) {
    int result = run(text, from, PCRE2_NO_UTF_CHECK);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = run(text, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT);
    if (result == PCRE2_ERROR_NOMATCH) return {text.size(), text.size()};
    if (result == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
    if (result < 0) fail("run", result);
    const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(data_.get());
    return {ends[0], ends[1]};
  }

 private:
  int run(std::string_view text, std::size_t from, std::uint32_t options) {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, options,
                       data_.get(), context_.get());
  }

  const pcre2_code* code_;
  std::unique_ptr<pcre2_match_data, FreeMatch> data_;
  std::unique_ptr<pcre2_match_context, FreeContext> context_;
};

/// Matches of `text` and what stands between them, each a word of its own.
void cut(Matcher& matcher, std::string_view text, std::vector<std::string_view>& words) {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto [begin, end] = matcher.next(text, at);
    if (begin > at) words.push_back(text.substr(at, begin - at));
    if (end > begin) words.push_back(text.substr(begin, end - begin));
    at = end;  // no pattern matches nothing, so this moves on
  }
}

}  // namespace

struct PreTokenizer::State {
  const Kind* kind = nullptr;
  std::vector<Code> codes;
};

PreTokenizer::PreTokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
PreTokenizer::~PreTokenizer() = default;

std::unique_ptr<PreTokenizer> PreTokenizer::named(std::string_view name) {
  for (const Kind& kind : kKinds) {
    if (kind.name != name) continue;
    auto state = std::make_unique<State>();
    state->kind = &kind;
    for (const char* const pattern : kind.patterns) state->codes.push_back(compile(pattern));
    return std::unique_ptr<PreTokenizer>(new PreTokenizer(std::move(state)));
  }
  return nullptr;
}

std::string PreTokenizer::names() {
  std::string names;
  for (const Kind& kind : kKinds) names += fmt::format("{}{}", names.empty() ? "" : ", ", kind.name);
  return names;
}

std::vector<std::string_view> PreTokenizer::split(std::string_view text) const {
  std::vector<std::string_view> words;
  if (!text.empty()) words.push_back(text);
  for (const Code& code : state_->codes) {
    Matcher matcher(code.get());
    std::vector<std::string_view> finer;
    for (const std::string_view word : words) cut(matcher, word, finer);
    words = std::move(finer);
  }
  return words;
}

bool PreTokenizer::whole_words_first() const { return state_->kind->whole_words_first; }
bool PreTokenizer::adds_bos() const { return state_->kind->adds_bos; }
bool PreTokenizer::composes(std::int64_t tokens) const { return state_->kind->qwen && tokens >= kQwenTokens; }

}  // namespace headwater::runtime
