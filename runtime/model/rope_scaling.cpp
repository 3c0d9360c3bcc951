#include "runtime/model/rope_scaling.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "headwater/rope.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::runtime {
namespace {

/// The pair (not rounded) that turns `rotations` times in the original context: solves context * theta^(-2i/r) =
/// 2 pi rotations for i.
double pair_that_turns(double rotations, std::int64_t r, double theta, std::int64_t context) {
  const double ratio = static_cast<double>(context) / (rotations * 2.0 * std::numbers::pi);
  return static_cast<double>(r) * std::log(ratio) / (2.0 * std::log(theta));
}

void blend(RopeFrequencies& frequencies, std::int64_t r, double theta, const RopeScaling& scaling) {
  const double first = pair_that_turns(scaling.beta_fast, r, theta, scaling.original_context);
  const double last = pair_that_turns(scaling.beta_slow, r, theta, scaling.original_context);
  const double low = std::max(0.0, scaling.whole_pairs ? std::floor(first) : first);
  const double high = std::min(static_cast<double>(r - 1), scaling.whole_pairs ? std::ceil(last) : last);
  const double span = std::max(0.001, high - low);
  for (std::size_t i = 0; i < frequencies.inverse.size(); ++i) {
    const double interpolated = std::clamp((static_cast<double>(i) - low) / span, 0.0, 1.0);
    const double slow = frequencies.inverse[i] / scaling.factor;
    frequencies.inverse[i] = slow * interpolated + frequencies.inverse[i] * (1.0 - interpolated);
  }
  if (HEADWATER_SABOTAGE("runtime.rope.yarn_magnitude_missing")) return;
  frequencies.magnitude *= 1.0 + 0.1 * std::log(scaling.factor);
}

}  // namespace

RopeFrequencies rope_frequencies(std::int64_t r, double theta, std::span<const float> divisors,
                                 const RopeScaling& scaling) {
  RopeFrequencies frequencies{rope_inverse_frequencies(r, theta), scaling.attention_factor, theta, scaling};
  std::size_t slowed = divisors.size();
  if (HEADWATER_SABOTAGE("runtime.rope.divisors_of_32_pairs")) slowed = std::min<std::size_t>(slowed, 32);
  for (std::size_t i = 0; i < slowed; ++i) {
    frequencies.inverse[i] /= static_cast<double>(divisors[i]);
  }
  if (scaling.kind == RopeScaling::Kind::linear) {
    for (double& inverse : frequencies.inverse) inverse /= scaling.factor;
  } else if (scaling.kind == RopeScaling::Kind::yarn) {
    blend(frequencies, r, theta, scaling);
  }
  return frequencies;
}

}  // namespace headwater::runtime
