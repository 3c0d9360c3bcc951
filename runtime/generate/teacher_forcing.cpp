#include "runtime/generate/teacher_forcing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "headwater/error.hpp"
#include "optimized/threads/team.hpp"
#include "runtime/generate/sampler.hpp"

namespace headwater::runtime {
namespace {

constexpr std::int64_t kLogitRows = 256;  ///< rows whose logits are in memory at a time

}  // namespace

Prediction::Prediction(std::span<const float> logits) : logits_(logits) {
  if (!std::all_of(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); })) {
    refuse_logits();
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

std::vector<Judgement> judge(std::span<Transformer* const> transformers, std::span<const std::int32_t> next) {
  const std::int64_t vocabulary = transformers.front()->model().config().vocabulary;
  for (const std::int32_t id : next) {
    if (id < kNoToken || id >= vocabulary) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("a next token is {}; allowed: 0 .. {}, or {} for none", id, vocabulary - 1, kNoToken));
    }
  }
  std::vector<Judgement> judgements(next.size());
  const auto n = static_cast<std::int64_t>(next.size());
  const auto width = static_cast<std::size_t>(vocabulary);
  std::vector<std::vector<float>> logits(
      transformers.size(), std::vector<float>(static_cast<std::size_t>(std::min(n, kLogitRows)) * width));
  for (std::int64_t first = 0; first < n; first += kLogitRows) {
    const std::int64_t rows = std::min(kLogitRows, n - first);
    for (std::size_t i = 0; i < transformers.size(); ++i) transformers[i]->logits(first, rows, logits[i]);
    // For a wide vocabulary this is as much work as some layers.
    parallel_tasks(transformers.front()->options().threads, rows, [&](std::int64_t row, int) {
      const auto position = static_cast<std::size_t>(first + row);
      Judgement& judgement = judgements[position];
      std::vector<Prediction> predictions;
      for (std::size_t i = 0; i < transformers.size(); ++i) {
        predictions.emplace_back(std::span(logits[i]).subspan(static_cast<std::size_t>(row) * width, width));
        if (next[position] == kNoToken) continue;
        judgement.losses[i] = -predictions[i].log_probability(static_cast<std::size_t>(next[position]));
      }
      if (predictions.size() < 2) return;
      judgement.divergence = divergence(predictions[0], predictions[1]);
      judgement.rank1 = predictions[0].likeliest() == predictions[1].likeliest() ? 1 : 0;
    });
  }
  return judgements;
}

WindowReader::WindowReader(std::vector<Transformer*> transformers, std::int64_t decode, FarJudge far)
    : transformers_(std::move(transformers)), decode_(decode), far_(std::move(far)) {}

void WindowReader::read(std::span<const std::int32_t> ids, const Observer& observer,
                        const Progress& progress) {
  const auto n = static_cast<std::int64_t>(ids.size());
  const std::int64_t prefill = n - decode_;
  std::int64_t most = n;
  for (Transformer* const transformer : transformers_) {
    transformer->reset();
    most = std::min(most, transformer->max_step());
  }
  std::vector<std::int32_t> next(ids.begin() + 1, ids.end());
  next.push_back(kNoToken);
  for (std::int64_t at = 0; at < n;) {
    const bool decoding = at >= prefill;
    const std::int64_t count = std::min(most, (decoding ? n : prefill) - at);
    const std::int64_t turn = at == 0 && count < prefill ? prefill : 0;
    const Step step = decoding ? Step::decode(count) : Step::prefill(count, turn);
    for (Transformer* const transformer : transformers_) {
      transformer->run(step, ids.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)));
      if (progress) progress(count);
    }
    // Of the session's latest step: known now, and no longer when a far judge has answered.
    Asked asked{observer, at, {}};
    for (std::int64_t position = at; position < at + count; ++position) {
      asked.ends_block.push_back(!decoding && ends_query_block(transformers_.back()->session(), position));
    }
    const auto targets =
        std::span(next).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count));
    if (far_.ask) {
      far_.ask(transformers_, targets);
      asked_.push_back(std::move(asked));
    } else {
      show(asked, judge(transformers_, targets));
    }
    at += count;
  }
}

void WindowReader::show(const Asked& asked, const std::vector<Judgement>& judgements) {
  if (judgements.size() != asked.ends_block.size()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} tokens were judged; allowed: the {} that were asked about", judgements.size(),
                            asked.ends_block.size()));
  }
  for (std::size_t i = 0; i < judgements.size(); ++i) {
    asked.observer(asked.at + static_cast<std::int64_t>(i), judgements[i], asked.ends_block[i]);
  }
}

void WindowReader::finish() {
  for (const Asked& asked : asked_) show(asked, far_.answer());
  asked_.clear();
}

}  // namespace headwater::runtime
