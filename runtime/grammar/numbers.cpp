#include "runtime/grammar/numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "headwater/error.hpp"

namespace headwater::runtime {
namespace {

constexpr std::int64_t kMost = 9'999'999'999'999'999;  // of 16 digits
constexpr std::int64_t kMostDigits = 16;

[[noreturn]] void refuse_empty() {
  throw Error(ErrorCode::invalid_argument, "no number is within the limits; allowed: a range that has one");
}

std::int64_t limited(double value) {
  return static_cast<std::int64_t>(
      std::clamp(value, -static_cast<double>(kMost), static_cast<double>(kMost)));
}

}  // namespace

GrammarBuilder::Node JsonNumbers::digit(char first, char last) {
  return builder_->set({{static_cast<char32_t>(first), static_cast<char32_t>(last)}});
}

GrammarBuilder::Node JsonNumbers::between(const std::string& least, const std::string& most) {
  if (least.empty()) return builder_->sequence({});
  const std::string low = least.substr(1), high = most.substr(1);
  const std::string zeros(low.size(), '0'), nines(low.size(), '9');
  if (least[0] == most[0]) return builder_->sequence({digit(least[0], least[0]), between(low, high)});
  if (low == zeros && high == nines)
    return builder_->sequence(
        {digit(least[0], most[0]), builder_->repeat(digit(), static_cast<std::int64_t>(low.size()),
                                                    static_cast<std::int64_t>(low.size()))});
  std::vector<Node> ways = {builder_->sequence({digit(least[0], least[0]), between(low, nines)}),
                            builder_->sequence({digit(most[0], most[0]), between(zeros, high)})};
  if (most[0] - least[0] > 1) {
    ways.push_back(builder_->sequence(
        {digit(static_cast<char>(least[0] + 1), static_cast<char>(most[0] - 1)), between(zeros, nines)}));
  }
  return builder_->choice(std::move(ways));
}

GrammarBuilder::Node JsonNumbers::whole(std::int64_t least, std::int64_t most) {
  std::vector<Node> ways;
  for (std::int64_t first = 0, last = 9; first <= most; first = last + 1, last = 10 * last + 9) {
    // Numbers of one length.
    if (last < least) continue;
    ways.push_back(between(std::to_string(std::max(first, least)), std::to_string(std::min(last, most))));
  }
  return builder_->choice(std::move(ways));
}

GrammarBuilder::Node JsonNumbers::integer(const NumberRange& range) {
  double least = std::ceil(range.least.value_or(-static_cast<double>(kMost)));
  double most = std::floor(range.most.value_or(static_cast<double>(kMost)));
  if (range.above && range.least == least) ++least;
  if (range.below && range.most == most) --most;
  if (least > most || least > static_cast<double>(kMost) || most < -static_cast<double>(kMost))
    refuse_empty();
  const std::int64_t first = limited(least), last = limited(most);
  std::vector<Node> ways;
  if (last >= 0) ways.push_back(whole(std::max<std::int64_t>(first, 0), last));
  if (first < 0)
    ways.push_back(
        builder_->sequence({builder_->literal("-"), whole(std::max<std::int64_t>(-last, 1), -first)}));
  return builder_->choice(std::move(ways));
}

GrammarBuilder::Node JsonNumbers::positive(std::int64_t least, bool above, std::int64_t most, bool below) {
  const Node point = builder_->literal(".");
  const Node fraction = builder_->sequence({point, builder_->repeat(digit(), 1, kMostDigits)});
  const Node zeros =
      builder_->optional(builder_->sequence({point, builder_->repeat(digit('0', '0'), 1, kMostDigits)}));
  std::vector<Node> ways;
  if (least == most) {
    if (above || below) return builder_->choice({});
    return builder_->sequence({whole(least, least), zeros});
  }
  if (above) {
    ways.push_back(
        builder_->sequence({whole(least, least), point, builder_->repeat(digit('0', '0'), 0, kMostDigits - 1),
                            digit('1', '9'), builder_->repeat(digit(), 0, kMostDigits - 1)}));
  } else {
    ways.push_back(builder_->sequence({whole(least, least), builder_->optional(fraction)}));
  }
  if (least + 1 < most)
    ways.push_back(builder_->sequence({whole(least + 1, most - 1), builder_->optional(fraction)}));
  if (!below) ways.push_back(builder_->sequence({whole(most, most), zeros}));
  return builder_->choice(std::move(ways));
}

GrammarBuilder::Node JsonNumbers::real(const NumberRange& range) {
  if (!range.least && !range.most) {
    const Node digits = builder_->choice(
        {digit('0', '0'),
         builder_->sequence({digit('1', '9'), builder_->repeat(digit(), 0, kMostDigits - 1)})});
    const Node fraction =
        builder_->sequence({builder_->literal("."), builder_->repeat(digit(), 1, kMostDigits)});
    const Node exponent = builder_->sequence({builder_->set({{'e', 'e'}, {'E', 'E'}}),
                                              builder_->optional(builder_->set({{'+', '+'}, {'-', '-'}})),
                                              digit('0', '9'), builder_->repeat(digit(), 0, 1)});
    return builder_->sequence({builder_->optional(builder_->literal("-")), digits,
                               builder_->optional(fraction), builder_->optional(exponent)});
  }
  for (const std::optional<double>& limit : {range.least, range.most}) {
    if (limit && (std::floor(*limit) != *limit || std::abs(*limit) > static_cast<double>(kMost)))
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("a limit of a number is {}; allowed: whole numbers of at most 16 digits", *limit));
  }
  const std::int64_t least = limited(range.least.value_or(-static_cast<double>(kMost)));
  const std::int64_t most = limited(range.most.value_or(static_cast<double>(kMost)));
  if (least > most || (least == most && (range.above || range.below))) refuse_empty();
  std::vector<Node> ways;
  if (most >= 0) {
    const bool inner = least < 0;
    ways.push_back(positive(inner ? 0 : least, !inner && range.above, most, range.below));
  }
  if (least < 0) {
    // Their amounts; there is no -0.
    const bool inner = most >= 0;
    ways.push_back(builder_->sequence(
        {builder_->literal("-"), positive(inner ? 0 : -most, inner || range.below, -least, range.above)}));
  }
  return builder_->choice(std::move(ways));
}

}  // namespace headwater::runtime
