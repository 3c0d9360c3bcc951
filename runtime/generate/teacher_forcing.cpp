#include "runtime/generate/teacher_forcing.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "headwater/error.hpp"

namespace headwater::runtime {
namespace {

constexpr std::int64_t kLogitRows = 256;  ///< rows whose logits are in memory at a time

}  // namespace

Prediction::Prediction(std::span<const float> logits) : logits_(logits) {
  if (!std::all_of(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); })) {
    throw Error(ErrorCode::invalid_argument, "the model's logits are not finite; its weights are unusable");
  }
  likeliest_ = std::max_element(logits.begin(), logits.end()) - logits.begin();
  const double most = static_cast<double>(logits[static_cast<std::size_t>(likeliest_)]);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - most);
  log_sum_ = most + std::log(sum);
}

double divergence(const Prediction& p, const Prediction& q) {
  double sum = 0;
  for (std::size_t id = 0; id < p.size(); ++id) {
    const double log_p = p.log_probability(id);
    const double probability = std::exp(log_p);
    if (probability > 0) sum += probability * (log_p - q.log_probability(id));
  }
  return sum;
}

bool ends_query_block(const Session& session, std::int64_t position) {
  const EffectiveOptions& options = session.options();
  const std::int64_t rows = options.query_block;
  if (rows == 0 || options.heavy == options.pinned) return false;  // nothing is chosen: h2o, and windows
  const std::span<const Chunk> plan = session.plan();
  const auto chunk = std::find_if(plan.begin(), plan.end(),
                                  [&](const Chunk& candidate) { return position < candidate.end; });
  const std::int64_t end = position + 1;
  return end == chunk->end || (end - chunk->begin) % rows == 0;
}

WindowReader::WindowReader(std::vector<Transformer*> transformers, std::int64_t decode)
    : transformers_(std::move(transformers)),
      decode_(decode),
      vocabulary_(transformers_.front()->model().config().vocabulary),
      logits_(transformers_.size(), std::vector<float>(static_cast<std::size_t>(kLogitRows * vocabulary_))) {}

void WindowReader::read(std::span<const std::int32_t> ids, const Observer& observer,
                        const Progress& progress) {
  const auto n = static_cast<std::int64_t>(ids.size());
  const std::int64_t prefill = n - decode_;
  std::int64_t most = n;
  for (Transformer* const transformer : transformers_) {
    transformer->reset();
    most = std::min(most, transformer->max_step());
  }
  for (std::int64_t at = 0; at < n;) {
    const bool decoding = at >= prefill;
    const std::int64_t count = std::min(most, (decoding ? n : prefill) - at);
    const std::int64_t turn = at == 0 && count < prefill ? prefill : 0;
    const Step step = decoding ? Step::decode(count) : Step::prefill(count, turn);
    for (Transformer* const transformer : transformers_) {
      transformer->run(step, ids.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)));
      if (progress) progress(count);
    }
    show(at, count, observer);
    at += count;
  }
}

void WindowReader::show(std::int64_t at, std::int64_t count, const Observer& observer) {
  for (std::int64_t first = 0; first < count; first += kLogitRows) {
    const std::int64_t rows = std::min(kLogitRows, count - first);
    for (std::size_t i = 0; i < transformers_.size(); ++i) transformers_[i]->logits(first, rows, logits_[i]);
    for (std::int64_t r = 0; r < rows; ++r) {
      predictions_.clear();
      for (const std::vector<float>& logits : logits_) {
        predictions_.emplace_back(std::span(logits).subspan(static_cast<std::size_t>(r * vocabulary_),
                                                            static_cast<std::size_t>(vocabulary_)));
      }
      observer(at + first + r, predictions_);
    }
  }
}

}  // namespace headwater::runtime
