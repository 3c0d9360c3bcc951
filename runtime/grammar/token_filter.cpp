#include "runtime/grammar/token_filter.hpp"

#include <algorithm>
#include <array>
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

/// Reads tokens that begin alike once. Inside a string most bytes lead to where they came from: states that need no new frame are
/// known again, with where each byte leads.
class TokenFilter::Walk {
 public:
  Walk(GrammarMatcher& matcher, const GrammarMatcher::State& first)
      : matcher_(matcher), begin_(matcher.mark()), places_(1) {
    places_[0].mark = begin_;
    places_[0].known = known(first);
  }
  ~Walk() { matcher_.forget(begin_); }
  Walk(const Walk&) = delete;
  Walk& operator=(const Walk&) = delete;

  /// Reads a byte behind `depth` others that were read; false: no text goes on so.
  bool read(std::size_t depth, std::uint8_t byte) {
    if (places_.size() < depth + 2) places_.resize(depth + 2);
    Place &from = places_[depth], &to = places_[depth + 1];
    const std::size_t known_from = from.known;
    if (known_from != kUnknown) {
      const std::int32_t next = known_[known_from].next[byte];
      if (next == kNowhere) return false;
      to.known = next == kNotTried ? kUnknown : static_cast<std::size_t>(next);
      to.mark = begin_;
      if (next != kNotTried) return true;
    }
    matcher_.forget(from.mark);
    const bool goes_on =
        matcher_.step(known_from == kUnknown ? from.state : known_[known_from].state, byte, to.state);
    to.mark = matcher_.mark();
    to.known = kUnknown;
    if (goes_on && to.mark.frames == begin_.frames && to.mark.edges == begin_.edges)
      to.known = known(to.state);
    if (known_from != kUnknown && !goes_on) known_[known_from].next[byte] = kNowhere;
    if (known_from != kUnknown && to.known != kUnknown)
      known_[known_from].next[byte] = static_cast<std::int32_t>(to.known);
    return goes_on;
  }

 private:
  static constexpr std::size_t kMostKnown = 64;
  static constexpr std::size_t kUnknown = kMostKnown;
  static constexpr std::int32_t kNotTried = -1, kNowhere = -2;
  struct Known {
    GrammarMatcher::State state;
    std::array<std::int32_t, 256> next{};
  };
  struct Place {
    std::size_t known = kUnknown;
    GrammarMatcher::State state;  // where it is not known
    GrammarMatcher::Mark mark;
  };

  std::size_t known(const GrammarMatcher::State& state) {
    const auto found =
        std::find_if(known_.begin(), known_.end(), [&](const Known& one) { return one.state == state; });
    if (found != known_.end()) return static_cast<std::size_t>(found - known_.begin());
    if (known_.size() == kMostKnown) return kUnknown;
    known_.push_back({state});
    known_.back().next.fill(kNotTried);
    return known_.size() - 1;
  }

  GrammarMatcher& matcher_;
  const GrammarMatcher::Mark begin_;
  std::vector<Place> places_;  // behind each byte of a token
  std::vector<Known> known_;
};

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
    Walk walk(matcher_, state_);
    std::size_t depth = 0;  // bytes of the token before that were read
    for (const TokenTexts::Token& token : answer_.texts->sorted()) {
      if (token.shared > depth) continue;  // it has the byte at which the one before failed
      depth = token.shared;
      while (depth < token.text.size() && walk.read(depth, static_cast<std::uint8_t>(token.text[depth])))
        ++depth;
      if (depth == token.text.size()) allow(token.id);
    }
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
