#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/grammar/token_filter.hpp"

namespace headwater::runtime {

/// How the next token is chosen from its logits. Biases and penalties change the logits first, whatever the temperature. The
/// filters apply in this order, each to what the one before left, on probabilities at temperature 1; the temperature comes
/// last.
struct SamplingOptions {
  double temperature = 0.0;  ///< 0: the best token (greedy), and no filter matters; finite, >= 0
  std::int64_t top_k = 0;    ///< keep the k best; 0 keeps all
  double top_p =
      1.0;  ///< keep the fewest best whose probabilities reach p (nucleus; Holtzman et al., 2019); 0 .. 1
  double min_p = 0.0;      ///< keep those with at least this share of the best one's probability; 0 .. 1
  std::uint64_t seed = 0;  ///< equal seeds and logits give equal tokens
  std::vector<std::pair<std::int32_t, double>> logit_bias = {};  ///< added to the logits of these ids; finite
  /// Divides a positive logit of each token among the last `repeat_last` of prompt and answer, and multiplies a negative
  /// one; finite, > 0, 1: no penalty (CTRL; Keskar et al., 2019).
  double repeat_penalty = 1.0;
  std::int64_t repeat_last = 64;   ///< 0 or more
  double presence_penalty = 0.0;   ///< taken from the logit of each token of the answer; finite
  double frequency_penalty = 0.0;  ///< the same, times how often the token is in the answer; finite
  /// What the answer may be; without a grammar, anything. Where the token that was drawn is not allowed, all that are not are
  /// left out, and another one is drawn.
  AnswerGrammar answer = {};

  /// Whether a logit can change before the filters.
  [[nodiscard]] bool edits() const {
    return !logit_bias.empty() || repeat_penalty != 1.0 || presence_penalty != 0.0 ||
           frequency_penalty != 0.0;
  }
};

/// Draws tokens. Takes its memory when it is made.
class Sampler {
 public:
  /// Errors: invalid_argument naming the option that is out of its range.
  Sampler(const SamplingOptions& options, std::int64_t vocabulary);

  /// The next token. Equal logits rank by token id. Error(invalid_argument) where a logit is NaN, or the best is not finite.
  /// Without top_k it takes a few passes over the logits: sums go by id, and only as many candidates as the draw reaches
  /// are put in order.
  /// Errors of TokenFilter where there is a grammar.
  [[nodiscard]] std::int32_t draw(std::span<const float> logits);
  /// A new answer: a grammar begins again.
  void begin_answer();
  /// What penalties and grammars look at: the tokens before the answer, once, and each token that the answer takes, those that
  /// end it included. Both need memory only where there are such.
  void read_prompt(std::span<const std::int32_t> ids);
  void accept(std::int32_t id);
  /// Whether the grammar, where there is one, lets the answer go on with this id. Errors of TokenFilter.
  [[nodiscard]] bool allows(std::int32_t id) { return !filter_ || filter_->allows(id); }

 private:
  struct Candidate {
    std::int32_t id;
    float logit;
  };
  /// From logits with biases and penalties.
  std::int32_t draw_edited(std::span<const float> logits);
  /// The logits with biases and penalties.
  std::span<const float> edited(std::span<const float> logits);
  void keep_best(std::span<const float> logits);
  void keep_likely();
  const Candidate& ranked(std::size_t rank);
  [[nodiscard]] double weight(const Candidate& candidate, double temperature) const;

  SamplingOptions options_;
  std::mt19937_64 random_;
  std::optional<TokenFilter> filter_;
  std::vector<float> edited_;
  std::vector<std::int32_t> last_;  // of prompt and answer, as far as repeat_last may need them
  std::unordered_map<std::int32_t, std::int64_t> counts_;  // of the answer's tokens
  double best_ = 0;                                        // the best one's logit
  std::vector<Candidate> candidates_;  // worse ones after the first ordered_, in order of id or in none
  std::size_t ordered_ = 0;  // so many are in falling order; more than there are, where filters took some
};

/// The error of logits that no token can be taken from, with what may be the reason.
[[noreturn]] void refuse_logits();

/// The best token, the lowest id among equals. Error(invalid_argument) where a logit is NaN, or the best is not finite.
[[nodiscard]] std::int32_t best_token(std::span<const float> logits);

}  // namespace headwater::runtime
