#include "runtime/generate/sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "headwater/error.hpp"

namespace headwater::runtime {
namespace {

void require(bool allowed, const char* field, double value, const char* range) {
  if (allowed) return;
  throw Error(ErrorCode::invalid_argument, fmt::format("{} is {}; allowed: {}", field, value, range));
}

[[noreturn]] void refuse_logits() {
  throw Error(ErrorCode::invalid_argument,
              "the model's logits hold NaN or no finite number; its weights are unusable");
}

}  // namespace

std::int32_t best_token(std::span<const float> logits) {
  std::size_t best = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) refuse_logits();
    if (logits[i] > logits[best]) best = i;
  }
  return static_cast<std::int32_t>(best);
}

Sampler::Sampler(const SamplingOptions& options, std::int64_t vocabulary)
    : options_(options), random_(options.seed) {
  const bool finite = std::isfinite(options.temperature);
  require(finite && options.temperature >= 0, "temperature", options.temperature, "a finite number >= 0");
  require(options.top_k >= 0, "top_k", static_cast<double>(options.top_k), "0 (all) or more");
  require(options.top_p >= 0 && options.top_p <= 1, "top_p", options.top_p, "0 .. 1");
  require(options.min_p >= 0 && options.min_p <= 1, "min_p", options.min_p, "0 .. 1");
  if (options.temperature > 0) candidates_.reserve(static_cast<std::size_t>(vocabulary));
}

/// Candidates in falling order, with their weights at temperature 1 relative to the best one.
void Sampler::keep_best(std::span<const float> logits) {
  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) refuse_logits();
    candidates_.push_back({static_cast<std::int32_t>(i), logits[i], 0.0});
  }
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  const auto all = static_cast<std::int64_t>(candidates_.size());
  const std::int64_t kept = options_.top_k == 0 ? all : std::min(options_.top_k, all);
  std::partial_sort(candidates_.begin(), candidates_.begin() + kept, candidates_.end(), better);
  candidates_.resize(static_cast<std::size_t>(kept));
  if (!std::isfinite(candidates_.front().logit)) refuse_logits();
  const auto best = static_cast<double>(candidates_.front().logit);
  for (Candidate& candidate : candidates_) {
    candidate.weight = std::exp(static_cast<double>(candidate.logit) - best);
  }
}

/// How many candidates top_p and min_p leave: at least the best one.
std::size_t Sampler::filtered() const {
  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  double reached = 0;
  std::size_t kept = 0;
  while (kept < candidates_.size()) {
    const double weight = candidates_[kept].weight;
    if (kept > 0 && (reached >= options_.top_p * total || weight < options_.min_p)) break;
    reached += weight;
    ++kept;
  }
  return kept;
}

std::int32_t Sampler::draw(std::span<const float> logits) {
  if (options_.temperature == 0) return best_token(logits);
  keep_best(logits);
  candidates_.resize(filtered());
  const auto best = static_cast<double>(candidates_.front().logit);
  double total = 0;
  for (Candidate& candidate : candidates_) {
    candidate.weight = std::exp((static_cast<double>(candidate.logit) - best) / options_.temperature);
    total += candidate.weight;
  }
  // 53 bits of a uniform number in [0, 1): written out, because the standard's distributions differ by library.
  double at = static_cast<double>(random_() >> 11) * 0x1p-53 * total;
  for (const Candidate& candidate : candidates_) {
    at -= candidate.weight;
    if (at < 0) return candidate.id;
  }
  return candidates_.back().id;
}

}  // namespace headwater::runtime
