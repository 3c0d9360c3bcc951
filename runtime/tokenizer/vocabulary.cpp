#include "runtime/tokenizer/vocabulary.hpp"

#include <fmt/format.h>

#include <limits>

#include "runtime/support/utf8.hpp"

namespace headwater::runtime {
namespace {

constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
constexpr std::string_view kKinds = "tokenizer.ggml.token_type";
constexpr std::string_view kScores = "tokenizer.ggml.scores";

void check_length(const GgufFile& file, std::string_view key, std::size_t tokens) {
  const std::uint64_t length = file.array_length(key);
  if (length != tokens) {
    file.refuse(
        fmt::format("key '{}' has {} elements for {} tokens; they must be as many", key, length, tokens));
  }
}

TokenKind kind_of(const GgufFile& file, std::int64_t number, std::size_t id) {
  if (number < 1 || number > 6) {
    file.refuse(fmt::format("key '{}' says {} for token {}; allowed: 1 .. 6", kKinds, number, id));
  }
  return static_cast<TokenKind>(number);
}

}  // namespace

Vocabulary::Vocabulary(const GgufFile& file, bool with_scores, std::vector<std::string>& warnings) {
  const std::vector<std::string_view> texts = file.texts(kTokens);
  if (texts.empty() || texts.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    file.refuse(fmt::format("key '{}' has {} elements; allowed: 1 .. 2^31 - 1", kTokens, texts.size()));
  }
  check_length(file, kKinds, texts.size());
  const std::vector<std::int64_t> kinds = file.integers(kKinds);
  if (with_scores) check_length(file, kScores, texts.size());
  const std::vector<double> scores = with_scores ? file.numbers(kScores) : std::vector<double>();

  tokens_.reserve(texts.size());
  for (std::size_t id = 0; id < texts.size(); ++id) {
    tokens_.push_back({std::string(texts[id]), kind_of(file, kinds[id], id), with_scores ? scores[id] : 0.0});
  }
  by_text_.reserve(tokens_.size());
  std::string first_equal;
  std::int64_t equal = 0;
  for (std::int32_t id = 0; id < size(); ++id) {
    const auto [other, fresh] = by_text_.emplace((*this)[id].text, id);
    // Nothing finds an empty text; files use it for ids that mean nothing.
    if (fresh || (*this)[id].text.empty()) continue;
    const std::string both =
        fmt::format("tokens {} and {} are both {}", other->second, id, quoted(other->first));
    const bool unused = (*this)[id].kind == TokenKind::unused;
    if (!unused && (*this)[other->second].kind != TokenKind::unused) {
      file.refuse(fmt::format("key '{}': {}; they must differ", kTokens, both));
    }
    if (++equal == 1) first_equal = both;
    if (!unused) other->second = id;
  }
  if (equal == 0) return;
  const std::string more = equal > 1 ? fmt::format(", and {} more are equal", equal - 1) : std::string();
  warnings.push_back(fmt::format("{}: key '{}': {}{}; no text becomes an unused one of them",
                                 quoted(file.path()), kTokens, first_equal, more));
}

std::int32_t Vocabulary::find(std::string_view text) const {
  const auto found = text.empty() ? by_text_.end() : by_text_.find(text);
  return found == by_text_.end() ? -1 : found->second;
}

}  // namespace headwater::runtime
