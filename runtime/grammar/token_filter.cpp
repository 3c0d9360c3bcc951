#include "runtime/grammar/token_filter.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "headwater/error.hpp"

namespace headwater::runtime {

const std::vector<TokenTexts::Token>& TokenTexts::sorted() const {
  std::call_once(once_, [&] {
    for (std::int32_t id = 0; id < tokenizer_.size(); ++id) {
      if (tokenizer_.is_control(id) || tokenizer_.is_end(id)) continue;
      std::string text = tokenizer_.piece(id);
      if (!text.empty()) sorted_.push_back({std::move(text), id});
    }
    std::sort(sorted_.begin(), sorted_.end(), [](const Token& a, const Token& b) { return a.text < b.text; });
    for (std::size_t i = 1; i < sorted_.size(); ++i) {
      const std::string& before = sorted_[i - 1].text;
      const std::string& text = sorted_[i].text;
      const std::size_t most = std::min(before.size(), text.size());
      while (sorted_[i].shared < most && before[sorted_[i].shared] == text[sorted_[i].shared])
        ++sorted_[i].shared;
    }
  });
  return sorted_;
}

TokenFilter::TokenFilter(AnswerGrammar answer)
    : answer_(std::move(answer)), matcher_(answer_.grammar), state_(matcher_.begin()) {}

/// Whether the text goes on from the present state; what it read is the caller's to forget.
bool TokenFilter::read(std::string_view text, GrammarMatcher::State& to) {
  to = state_;
  GrammarMatcher::State next;
  for (const char byte : text) {
    if (!matcher_.step(to, static_cast<std::uint8_t>(byte), next)) return false;
    std::swap(to, next);
  }
  return true;
}

bool TokenFilter::allows(std::int32_t id) {
  const Tokenizer& tokenizer = answer_.texts->tokenizer();
  if (id >= tokenizer.size()) return false;  // a logit without a token
  if (tokenizer.is_end(id)) return state_.complete;
  if (ended_ || tokenizer.is_control(id)) return false;
  const std::string text = tokenizer.piece(id);
  if (text.empty()) return false;
  matcher_.begin_work();
  const GrammarMatcher::Mark mark = matcher_.mark();
  GrammarMatcher::State reached;
  const bool allowed = read(text, reached);
  matcher_.forget(mark);
  return allowed;
}

void TokenFilter::restrict_to_allowed(std::span<float> logits) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  std::vector<bool> allowed(logits.size(), false);
  bool any = false;
  const auto allow = [&](std::int32_t id) {
    allowed[static_cast<std::size_t>(id)] = true;
    any = true;
  };
  matcher_.begin_work();
  if (!ended_) {
    // Tokens that begin alike are read once: states_[n] is behind n bytes of the token, marks those before each byte.
    std::vector<GrammarMatcher::Mark> marks(1, matcher_.mark());
    if (states_.empty()) states_.resize(1);
    states_[0] = state_;
    std::size_t depth = 0;  // bytes of the token before that were read
    bool failed = false;    // at the next one
    for (const TokenTexts::Token& token : answer_.texts->sorted()) {
      if (token.shared > depth) continue;  // it has the byte at which the one before failed
      depth = token.shared;
      matcher_.forget(marks[depth]);
      failed = false;
      for (; depth < token.text.size(); ++depth) {
        if (states_.size() < depth + 2) states_.resize(depth + 2);
        if (marks.size() < depth + 2) marks.resize(depth + 2);
        failed =
            !matcher_.step(states_[depth], static_cast<std::uint8_t>(token.text[depth]), states_[depth + 1]);
        if (failed) break;
        marks[depth + 1] = matcher_.mark();
      }
      if (!failed) allow(token.id);
    }
    matcher_.forget(marks[0]);
  }
  const Tokenizer& tokenizer = answer_.texts->tokenizer();
  for (std::int32_t id = 0; id < static_cast<std::int32_t>(logits.size()); ++id) {
    if (state_.complete && id < tokenizer.size() && tokenizer.is_end(id)) allow(id);
    if (!allowed[static_cast<std::size_t>(id)]) logits[static_cast<std::size_t>(id)] = kNever;
  }
  if (any) return;
  throw Error(ErrorCode::invalid_argument,
              "no token of the vocabulary goes on with a text of the grammar; allowed: a grammar of "
              "characters that the "
              "model has tokens for");
}

void TokenFilter::accept(std::int32_t id) {
  const Tokenizer& tokenizer = answer_.texts->tokenizer();
  ended_ = ended_ || tokenizer.is_end(id);
  if (ended_) return;
  matcher_.begin_work();
  GrammarMatcher::State reached;
  if (read(tokenizer.piece(id), reached)) state_ = std::move(reached);
}

}  // namespace headwater::runtime
