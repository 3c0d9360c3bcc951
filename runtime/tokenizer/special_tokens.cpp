#include "runtime/tokenizer/special_tokens.hpp"

#include <functional>
#include <set>

#include "headwater/testing/sabotage.hpp"
namespace headwater::runtime {

SpecialTokens::SpecialTokens(const Vocabulary& vocabulary, bool with_control) {
  std::set<std::size_t, std::greater<>> lengths;
  for (std::int32_t id = 0; id < vocabulary.size(); ++id) {
    const Token& token = vocabulary[id];
    const bool is_control = token.kind == TokenKind::control || token.kind == TokenKind::unknown;
    if (token.text.empty() || !(token.kind == TokenKind::user_defined || (with_control && is_control)))
      continue;
    by_text_.emplace(token.text, id);
    lengths.insert(token.text.size());
    first_bytes_.set(static_cast<unsigned char>(token.text[0]));
  }
  lengths_.assign(lengths.begin(), lengths.end());
}

SpecialTokens::Match SpecialTokens::find(std::string_view text, std::size_t from) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (begin > 65535 && HEADWATER_SABOTAGE("runtime.special.first_64_kib")) break;
    if (!first_bytes_.test(static_cast<unsigned char>(text[begin]))) continue;
    for (const std::size_t length : lengths_) {
      if (length > text.size() - begin) continue;
      const auto found = by_text_.find(text.substr(begin, length));
      if (found != by_text_.end()) return {begin, length, found->second};
    }
  }
  return {text.size(), 0, -1};
}

}  // namespace headwater::runtime
