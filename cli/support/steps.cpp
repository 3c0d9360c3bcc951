#include "cli/support/steps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "cli/support/failure.hpp"
#include "cli/support/numbers.hpp"
#include "cli/support/text.hpp"
#include "headwater/testing/sabotage.hpp"

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

void check_steps(const std::vector<StepItem>& steps, std::int64_t n) {
  std::int64_t sum = 0;
  std::int64_t turn = 0;  // length of the turn that item i continues, 0 where it opens one
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i].step;
    if (step.kind == Step::Kind::decode) {
      turn = 0;
    } else if (turn == 0) {
      turn = step.turn_length == 0 ? step.n : step.turn_length;
    } else if (step.turn_length != 0 && step.turn_length != turn) {
      throw Failure(
          fmt::format("--steps: item {} ({}) continues a turn of {}; its T must be {} too, or left out",
                      i + 1, in_quotes(steps[i].text), count_text(turn, "token"), turn));
    }
    // n < 2^31 and every item < 2^31, so the sum stays far from overflow.
    sum += steps[i].step.n;
    if (sum > n) {
      throw Failure(
          fmt::format("--steps: item {} ({}) brings the sum to {}, but the input has {}; the steps must add "
                      "up to exactly {}",
                      i + 1, in_quotes(steps[i].text), count_text(sum, "token"), n, n));
    }
  }
  if (sum < n && !HEADWATER_SABOTAGE("cli.steps.rest_left_over")) {
    throw Failure(
        fmt::format("--steps: the sum is {}, but the input has {}; the steps must add up to "
                    "exactly {}",
                    count_text(sum, "token"), n, n));
  }
}

}  // namespace headwater::cli
