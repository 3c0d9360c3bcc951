#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/tokenizer.hpp"

namespace headwater::cli {

/// How codes are planted and asked for: lines with `{name}` and `{code}` in them.
struct HaystackTexts {
  std::string needle = "# REGISTRY: the code of {name} is {code}";
  std::string question = "# QUERY: the code of {name} is";
};

/// Failure naming the flag where a template lacks what it needs, or has a line break.
void check_templates(const HaystackTexts& texts);

/// A planted code.
struct Needle {
  std::string name;
  std::string code;
  double depth = 0;  ///< 0: in front of the text, 100: after it
};

/// Codes of five digits with names of their own, one for each depth in per cent.
[[nodiscard]] std::vector<Needle> draw_needles(const std::vector<double>& depths, std::mt19937_64& random);
/// 0 .. n - 1 in random order.
[[nodiscard]] std::vector<std::size_t> shuffled(std::size_t n, std::mt19937_64& random);

/// A question at the end of a text, and what must come next.
struct Prompt {
  std::vector<std::int32_t> ids;     ///< up to the last token before the code
  std::int64_t question = 0;         ///< where the question begins
  std::vector<std::int32_t> answer;  ///< the code
};

/// Filler text, from which prompts of any length are cut.
class Haystack {
 public:
  /// Keeps a reference to the tokenizer. Failure where the text has fewer than two lines.
  Haystack(const runtime::Tokenizer& tokenizer, std::string_view text, HaystackTexts texts);

  /// Tokens of the whole text, line by line.
  [[nodiscard]] std::int64_t tokens() const { return before_.back(); }
  [[nodiscard]] std::int64_t lines() const { return static_cast<std::int64_t>(lines_.size()); }

  /// Lines from `first_line` on (from the beginning again after the last), with the needles at their depths, and after
  /// them the question for one of them. With the answer it has at most `window` tokens, and as many whole lines as fit, by
  /// the tokens that each has alone. Tokens of white space between question and code are part of the prompt: the answer
  /// begins with a token that says something of the code. Failure where not even needles and question fit.
  [[nodiscard]] Prompt prompt(std::int64_t window, std::int64_t first_line,
                              const std::vector<Needle>& needles, std::size_t asked) const;

 private:
  [[nodiscard]] std::int64_t tokens_of(std::int64_t first_line, std::int64_t count) const;
  [[nodiscard]] std::int64_t fitting(std::int64_t budget, std::int64_t first_line) const;
  [[nodiscard]] std::string planted(std::int64_t first_line, std::int64_t count,
                                    const std::vector<Needle>& needles) const;

  const runtime::Tokenizer& tokenizer_;
  HaystackTexts texts_;
  std::vector<std::string> lines_;    ///< each with its line break
  std::vector<std::int64_t> before_;  ///< [lines + 1] tokens in front of each line, encoded alone
};

}  // namespace headwater::cli
