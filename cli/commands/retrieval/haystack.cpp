#include "cli/commands/retrieval/haystack.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "cli/support/failure.hpp"
#include "cli/support/text.hpp"

namespace headwater::cli {
namespace {

constexpr std::string_view kName = "{name}";
constexpr std::string_view kCode = "{code}";

// Common nouns: a vocabulary of code and one of prose both have them in a token or two.
constexpr std::array kNames = {
    "anchor",  "apple",  "arrow",  "basket", "beacon", "bottle", "bridge", "button",   "candle", "canyon",
    "carpet",  "castle", "circle", "cloud",  "copper", "corner", "desert", "dragon",   "engine", "falcon",
    "feather", "forest", "garden", "hammer", "harbor", "helmet", "island", "jacket",   "kettle", "ladder",
    "lantern", "lemon",  "letter", "magnet", "marble", "meadow", "mirror", "mountain", "needle", "ocean",
    "orange",  "paper",  "pencil", "pepper", "piano",  "planet", "pocket", "pyramid",  "rabbit", "ribbon",
    "river",   "rocket", "saddle", "shadow", "silver", "spider", "summer", "table",    "ticket", "tiger",
    "tower",   "tunnel", "valley", "violin", "wagon",  "walnut", "window", "winter",   "yellow", "zebra"};
constexpr std::uint64_t kLeastCode = 10'000;
constexpr std::uint64_t kCodes = 90'000;

/// Uniform below `n`, the same on every standard library.
std::uint64_t below(std::mt19937_64& random, std::uint64_t n) {
  const std::uint64_t most = std::mt19937_64::max() - std::mt19937_64::max() % n;
  std::uint64_t value = random();
  while (value >= most) value = random();
  return value % n;
}

std::string replaced(std::string text, std::string_view word, std::string_view by) {
  for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + by.size())) {
    text.replace(at, word.size(), by);
  }
  return text;
}

void check_template(const char* flag, const std::string& text, bool has_code) {
  const auto fail = [&](const std::string& allowed) {
    throw Failure(fmt::format("{}: {} is not allowed; use {}", flag, in_quotes(text), allowed));
  };
  if (text.find('\n') != std::string::npos) fail("one line");
  if (text.find(kName) == std::string::npos) fail("a line with {name} in it");
  const bool found = text.find(kCode) != std::string::npos;
  if (has_code && !found) fail("a line with {code} in it");
  if (!has_code && found) fail("a line without {code}: it is what the model must say");
}

}  // namespace

void check_templates(const HaystackTexts& texts) {
  check_template("--needle", texts.needle, true);
  check_template("--question", texts.question, false);
}

std::vector<Needle> draw_needles(const std::vector<double>& depths, std::mt19937_64& random) {
  if (depths.size() > kNames.size()) {
    throw Failure(fmt::format("--depths: {} are not allowed; use at most {}, each has a name of its own",
                              depths.size(), kNames.size()));
  }
  const std::vector<std::size_t> order = shuffled(kNames.size(), random);
  std::vector<Needle> needles;
  for (std::size_t i = 0; i < depths.size(); ++i) {
    needles.push_back({kNames[order[i]], std::to_string(kLeastCode + below(random, kCodes)), depths[i]});
  }
  return needles;
}

/// Fisher and Yates.
std::vector<std::size_t> shuffled(std::size_t n, std::mt19937_64& random) {
  std::vector<std::size_t> order(n);
  for (std::size_t i = 0; i < n; ++i) order[i] = i;
  for (std::size_t i = 0; i + 1 < n; ++i) std::swap(order[i], order[i + below(random, n - i)]);
  return order;
}

Haystack::Haystack(const runtime::Tokenizer& tokenizer, std::string_view text, HaystackTexts texts)
    : tokenizer_(tokenizer), texts_(std::move(texts)), before_{0} {
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size() - 1) + 1;
    lines_.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  if (lines_.size() < 2) throw Failure("the text has fewer than 2 lines; codes are planted between lines");
  if (lines_.back().back() != '\n') lines_.back() += '\n';
  for (const std::string& line : lines_) {
    before_.push_back(before_.back() +
                      static_cast<std::int64_t>(tokenizer_.encode(line, false, false).size()));
  }
}

std::int64_t Haystack::tokens_of(std::int64_t first_line, std::int64_t count) const {
  const auto place = [&](std::int64_t line) {
    return line / lines() * tokens() + before_[static_cast<std::size_t>(line % lines())];
  };
  return place(first_line + count) - place(first_line);
}

/// Lines whose tokens, encoded alone, are at most `budget`.
std::int64_t Haystack::fitting(std::int64_t budget, std::int64_t first_line) const {
  std::int64_t low = 0;
  std::int64_t high = budget + 1;  // a line has a token or more
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (tokens_of(first_line, middle) <= budget ? low : high) = middle;
  }
  return low;
}

std::string Haystack::planted(std::int64_t first_line, std::int64_t count,
                              const std::vector<Needle>& needles) const {
  std::string text;
  std::int64_t done = 0;
  const std::int64_t all = tokens_of(first_line, count);
  for (const Needle& needle : needles) {
    // Depth is counted in tokens; the code stands in front of the line where it is reached.
    const double goal = needle.depth / 100.0 * static_cast<double>(all);
    for (; done < count && static_cast<double>(tokens_of(first_line, done)) < goal; ++done) {
      text += lines_[static_cast<std::size_t>((first_line + done) % lines())];
    }
    text += replaced(replaced(texts_.needle, kName, needle.name), kCode, needle.code) + '\n';
  }
  for (; done < count; ++done) text += lines_[static_cast<std::size_t>((first_line + done) % lines())];
  return text;
}

Prompt Haystack::prompt(std::int64_t window, std::int64_t first_line, const std::vector<Needle>& needles,
                        std::size_t asked) const {
  const auto encode = [&](const std::string& text) { return tokenizer_.encode(text, true, false); };
  const std::string question = replaced(texts_.question, kName, needles[asked].name);
  const std::string said = question + ' ' + needles[asked].code;
  const auto encoded = [&](std::int64_t count) { return encode(planted(first_line, count, needles) + said); };
  const auto bare = static_cast<std::int64_t>(encoded(0).size());
  if (bare > window) {
    throw Failure(fmt::format("--window: {} tokens are not allowed; {} codes and a question alone have {}",
                              window, needles.size(), bare));
  }
  std::int64_t count = fitting(window - bare, first_line);
  std::vector<std::int32_t> ids = encoded(count);
  // Lines together may have a few tokens more than each alone.
  while (static_cast<std::int64_t>(ids.size()) > window) ids = encoded(--count);

  const std::string text = planted(first_line, count, needles);
  // Tokens up to a place in the text: what the text up to there and the whole have in common.
  const auto tokens_to = [&](const std::string& part) {
    const auto before = encode(text + part);
    return std::mismatch(before.begin(), before.end(), ids.begin(), ids.end()).second;
  };
  const auto is_blank = [&](std::int32_t id) {
    const std::string piece = tokenizer_.piece(id);
    return piece.find_first_not_of(" \t") == std::string::npos;
  };
  Prompt prompt;
  prompt.question = tokens_to("") - ids.begin();
  const auto answer = std::find_if_not(tokens_to(question), ids.end(), is_blank);
  if (answer == ids.end())
    throw Failure("the code has no token: no character of it is in the model's vocabulary");
  prompt.answer.assign(answer, ids.end());
  ids.erase(answer, ids.end());
  prompt.ids = std::move(ids);
  return prompt;
}

}  // namespace headwater::cli
