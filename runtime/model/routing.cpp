#include "runtime/model/routing.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "headwater/testing/sabotage.hpp"

namespace headwater::runtime {

void Routing::reserve(std::int64_t rows, std::int64_t experts, std::int64_t used, bool weights_of_all) {
  weights_of_all_ = weights_of_all;
  experts_ = experts;
  used_ = used;
  choices_.resize(static_cast<std::size_t>(rows * used));
  visits_.resize(choices_.size());
  begins_.resize(static_cast<std::size_t>(experts) + 1);
}

void Routing::choose_row(const float* logits, Choice* choices) const {
  // The lowest of those chosen so far comes last; NaN never comes before a number.
  std::int64_t count = 0;
  bool nan = false;
  std::int64_t seen = experts_;
  if (HEADWATER_SABOTAGE("runtime.routing.first_64_experts"))
    seen = std::min<std::int64_t>(seen, std::max<std::int64_t>(64, used_));
  for (std::int64_t e = 0; e < seen; ++e) {
    const float logit = logits[e];
    nan = nan || std::isnan(logit);
    std::int64_t at = count;
    while (at > 0 && !(choices[at - 1].weight >= logit) && !std::isnan(logit)) --at;
    if (at == used_) continue;
    count = std::min(count + 1, used_);
    for (std::int64_t i = count - 1; i > at; --i) choices[i] = choices[i - 1];
    choices[at] = {static_cast<std::int32_t>(e), logit};
  }
  const float most = choices[0].weight;
  float sum = 0;
  for (std::int64_t i = 0; i < used_; ++i) sum += choices[i].weight = std::exp(choices[i].weight - most);
  if (weights_of_all_) {
    sum = 0;
    for (std::int64_t e = 0; e < experts_; ++e) sum += std::exp(logits[e] - most);
  }
  const float scale = nan ? std::numeric_limits<float>::quiet_NaN() : 1 / sum;
  for (std::int64_t i = 0; i < used_; ++i) choices[i].weight *= scale;
}

void Routing::choose(const float* logits, std::int64_t rows) {
  std::fill(begins_.begin(), begins_.end(), 0);
  for (std::int64_t row = 0; row < rows; ++row) {
    Choice* const own = choices_.data() + row * used_;
    choose_row(logits + row * experts_, own);
    for (std::int64_t i = 0; i < used_; ++i) ++begins_[static_cast<std::size_t>(own[i].expert) + 1];
  }
  for (std::size_t e = 1; e < begins_.size(); ++e) begins_[e] += begins_[e - 1];
  // Each begin moves to its end while the rows are dealt out, and is then that of the next one.
  for (std::int64_t row = 0; row < rows; ++row) {
    const Choice* const own = choices_.data() + row * used_;
    for (std::int64_t i = 0; i < used_; ++i) {
      visits_[begins_[static_cast<std::size_t>(own[i].expert)]++] = {static_cast<std::int32_t>(row),
                                                                     own[i].weight};
    }
  }
  std::copy_backward(begins_.begin(), begins_.end() - 1, begins_.end());
  begins_.front() = 0;
}

}  // namespace headwater::runtime
