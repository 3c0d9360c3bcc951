#include "runtime/generate/sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "headwater/error.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::runtime {
namespace {

void require(bool allowed, const char* field, double value, const char* range) {
  if (allowed) return;
  throw Error(ErrorCode::invalid_argument, fmt::format("{} is {}; allowed: {}", field, value, range));
}

constexpr auto better = [](const auto& a, const auto& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
};

}  // namespace

void refuse_logits() {
  throw Error(ErrorCode::invalid_argument,
              "the model's logits hold NaN or no finite number: its weights are unusable, or keys and values "
              "are beyond "
              "65504, the largest number of an f16 cache; allowed: a cache of bf16 or f32 for such a model");
}

std::int32_t best_token(std::span<const float> logits) {
  std::size_t best = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) refuse_logits();
    if (logits[i] > logits[best]) best = i;
  }
  if (logits.empty() || !std::isfinite(logits[best])) refuse_logits();
  if (HEADWATER_SABOTAGE("runtime.sampler.best_id_in_16_bits")) return static_cast<std::int16_t>(best);
  return static_cast<std::int32_t>(best);
}

Sampler::Sampler(const SamplingOptions& options, std::int64_t vocabulary)
    : options_(options), random_(options.seed) {
  const bool finite = std::isfinite(options.temperature);
  require(finite && options.temperature >= 0, "temperature", options.temperature, "a finite number >= 0");
  require(options.top_k >= 0, "top_k", static_cast<double>(options.top_k), "0 (all) or more");
  require(options.top_p >= 0 && options.top_p <= 1, "top_p", options.top_p, "0 .. 1");
  require(options.min_p >= 0 && options.min_p <= 1, "min_p", options.min_p, "0 .. 1");
  require(std::isfinite(options.repeat_penalty) && options.repeat_penalty > 0, "repeat_penalty",
          options.repeat_penalty, "a finite number > 0");
  require(options.repeat_last >= 0, "repeat_last", static_cast<double>(options.repeat_last), "0 or more");
  for (const auto& [name, value] : {std::pair{"presence_penalty", options.presence_penalty},
                                    std::pair{"frequency_penalty", options.frequency_penalty}}) {
    require(std::isfinite(value), name, value, "a finite number");
  }
  for (const auto& [id, bias] : options.logit_bias) {
    require(id >= 0 && id < vocabulary, "an id of logit_bias", static_cast<double>(id),
            "ids of the vocabulary");
    require(std::isfinite(bias), "a number of logit_bias", bias, "a finite number");
  }
  begin_answer();
  if (options.edits() || filter_) edited_.reserve(static_cast<std::size_t>(vocabulary));
  if (options.temperature > 0) candidates_.reserve(static_cast<std::size_t>(vocabulary));
}

/// In proportion to the probability at this temperature; 1 for the best one.
double Sampler::weight(const Candidate& candidate, double temperature) const {
  return std::exp((static_cast<double>(candidate.logit) - best_) / temperature);
}

/// What top_k leaves, in falling order; without top_k everything, by id.
void Sampler::keep_best(std::span<const float> logits) {
  candidates_.clear();
  if (HEADWATER_SABOTAGE("runtime.sampler.candidates_below_65536") && logits.size() > 65536) {
    logits = logits.first(65536);
  }
  for (std::size_t i = 0; i < logits.size(); ++i) {
    candidates_.push_back({static_cast<std::int32_t>(i), logits[i]});
  }
  ordered_ = 0;
  if (options_.top_k == 0 || options_.top_k >= static_cast<std::int64_t>(candidates_.size())) return;
  std::partial_sort(candidates_.begin(), candidates_.begin() + options_.top_k, candidates_.end(), better);
  ordered_ = static_cast<std::size_t>(options_.top_k);
  candidates_.resize(ordered_);
}

/// The candidate of this rank. Nearly every draw needs the first few, hardly any draw many.
const Sampler::Candidate& Sampler::ranked(std::size_t rank) {
  constexpr std::size_t kFirst = 64;
  constexpr std::size_t kGrowth = 8;
  while (ordered_ <= rank) {
    const auto begin = candidates_.begin() + static_cast<std::ptrdiff_t>(ordered_);
    const std::size_t wanted = ordered_ == 0 ? kFirst : ordered_ * kGrowth;
    const std::size_t count = std::min(wanted, candidates_.size() - ordered_);
    if (ordered_ >= 4096 && HEADWATER_SABOTAGE("runtime.sampler.tail_unordered")) break;
    const auto end = begin + static_cast<std::ptrdiff_t>(count);
    if (end != candidates_.end()) std::nth_element(begin, end, candidates_.end(), better);
    std::sort(begin, end, better);
    ordered_ += count;
  }
  return candidates_[rank];
}

/// Keeps the candidates that top_p and min_p allow, at least the best one.
void Sampler::keep_likely() {
  double total = 0;  // before min_p
  if (options_.top_p < 1) {
    for (const Candidate& candidate : candidates_) total += weight(candidate, 1.0);
  }
  if (options_.min_p > 0) {
    const auto unlikely = [&](const Candidate& candidate) { return weight(candidate, 1.0) < options_.min_p; };
    std::erase_if(candidates_, unlikely);
  }
  if (options_.top_p == 1) return;
  double reached = 0;
  std::size_t kept = 0;
  do {
    reached += weight(ranked(kept), 1.0);
    ++kept;
  } while (kept < candidates_.size() && reached < options_.top_p * total);
  candidates_.resize(kept);
}

void Sampler::read_prompt(std::span<const std::int32_t> ids) {
  if (options_.repeat_penalty == 1.0) return;
  const std::size_t kept = std::min(ids.size(), static_cast<std::size_t>(options_.repeat_last));
  last_.assign(ids.end() - static_cast<std::ptrdiff_t>(kept), ids.end());
}

void Sampler::begin_answer() {
  if (options_.answer.grammar) filter_.emplace(options_.answer);
}

void Sampler::accept(std::int32_t id) {
  if (filter_) filter_->accept(id);
  if (options_.presence_penalty != 0.0 || options_.frequency_penalty != 0.0) ++counts_[id];
  if (options_.repeat_penalty != 1.0) last_.push_back(id);
}

std::span<const float> Sampler::edited(std::span<const float> logits) {
  edited_.assign(logits.begin(), logits.end());
  const auto logit = [&](std::int32_t id) -> float& { return edited_[static_cast<std::size_t>(id)]; };
  for (const auto& [id, bias] : options_.logit_bias) logit(id) += static_cast<float>(bias);
  for (const auto& [id, count] : counts_) {
    logit(id) -= static_cast<float>(options_.presence_penalty +
                                    options_.frequency_penalty * static_cast<double>(count));
  }
  if (!last_.empty()) {
    const std::size_t kept = std::min(last_.size(), static_cast<std::size_t>(options_.repeat_last));
    std::vector<std::int32_t> once(last_.end() - static_cast<std::ptrdiff_t>(kept), last_.end());
    std::sort(once.begin(), once.end());
    once.erase(std::unique(once.begin(), once.end()), once.end());
    const auto penalty = static_cast<float>(options_.repeat_penalty);
    for (const std::int32_t id : once) logit(id) = logit(id) > 0 ? logit(id) / penalty : logit(id) * penalty;
  }
  return edited_;
}

std::int32_t Sampler::draw(std::span<const float> logits) {
  if (options_.edits()) logits = edited(logits);
  const std::int32_t drawn = draw_edited(logits);
  if (!filter_ || filter_->allows(drawn)) return drawn;
  if (!options_.edits()) edited_.assign(logits.begin(), logits.end());
  filter_->restrict_to_allowed(edited_);
  return draw_edited(edited_);
}

std::int32_t Sampler::draw_edited(std::span<const float> logits) {
  const std::int32_t best = best_token(logits);
  if (options_.temperature == 0) return best;
  best_ = static_cast<double>(logits[static_cast<std::size_t>(best)]);
  keep_best(logits);
  keep_likely();
  double total = 0;
  for (const Candidate& candidate : candidates_) total += weight(candidate, options_.temperature);
  // 53 bits of a uniform number in [0, 1): written out, because the standard's distributions differ by library.
  double at = static_cast<double>(random_() >> 11) * 0x1p-53 * total;
  std::int32_t drawn = best;
  for (std::size_t rank = 0; rank < candidates_.size(); ++rank) {
    const Candidate& candidate = ranked(rank);
    const double share = weight(candidate, options_.temperature);
    if (share == 0)
      break;  // rounding may bring the search this far, but never to a token that cannot be drawn
    drawn = candidate.id;
    if (HEADWATER_SABOTAGE("runtime.sampler.drawn_id_in_16_bits")) drawn = static_cast<std::uint16_t>(drawn);
    at -= share;
    if (at < 0) break;
  }
  return drawn;
}

}  // namespace headwater::runtime
