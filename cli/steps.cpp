#include "steps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "failure.hpp"
#include "headwater/testing/sabotage.hpp"
#include "numbers.hpp"
#include "text.hpp"

namespace headwater::cli {
namespace {

constexpr std::string_view kGrammar = "use pN, pN:T or dN, with N and T from 1 to 2147483647 and T >= N";

std::optional<std::int64_t> count(std::string_view text) {
  // No sign, no space: from_chars alone would let a minus sign through.
  if (text.empty() || !std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    return std::nullopt;
  }
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::int64_t least = HEADWATER_SABOTAGE("cli.steps.zero_tokens") ? 0 : 1;
  if (error != std::errc{} || value < least || value > kMaxCount) return std::nullopt;
  return value;
}

std::optional<Step> parse_step(std::string_view item) {
  if (item.empty()) return std::nullopt;
  const char kind = item.front();
  item.remove_prefix(1);
  if (kind == 'd') {
    const auto n = count(item);
    return n ? std::optional(Step::decode(*n)) : std::nullopt;
  }
  if (kind != 'p') return std::nullopt;
  const auto colon = item.find(':');
  const auto n = count(item.substr(0, colon));
  if (!n) return std::nullopt;
  if (colon == std::string_view::npos) return Step::prefill(*n);
  const auto turn = count(item.substr(colon + 1));
  if (!turn || (*turn < *n && !HEADWATER_SABOTAGE("cli.steps.turn_below_call"))) return std::nullopt;
  return Step::prefill(*n, *turn);
}

}  // namespace

std::vector<StepItem> parse_steps(std::string_view text) {
  std::vector<StepItem> steps;
  for (;;) {
    const auto comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    const auto step = parse_step(item);
    if (!step) {
      throw Failure(fmt::format("--steps: item {} is {}, which is not allowed; {}", steps.size() + 1,
                                in_quotes(item), kGrammar));
    }
    steps.push_back({*step, std::string(item)});
    if (comma == std::string_view::npos) return steps;
    text.remove_prefix(comma + 1);
  }
}

void check_steps_cover(const std::vector<StepItem>& steps, std::int64_t n) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    // n < 2^31 and every item < 2^31, so the sum stays far from overflow.
    sum += steps[i].step.n;
    if (sum > n) {
      throw Failure(fmt::format(
          "--steps: item {} ({}) brings the sum to {} tokens, but the input has {}; the steps must add "
          "up to exactly {}",
          i + 1, in_quotes(steps[i].text), sum, n, n));
    }
  }
  if (sum < n && !HEADWATER_SABOTAGE("cli.steps.rest_left_over")) {
    throw Failure(
        fmt::format("--steps: the {} items add up to {} tokens, but the input has {}; they must add up to "
                    "exactly {}",
                    steps.size(), sum, n, n));
  }
}

}  // namespace headwater::cli
