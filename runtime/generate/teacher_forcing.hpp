#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "runtime/model/transformer.hpp"

namespace headwater::runtime {

/// Logits of one position as a distribution.
class Prediction {
 public:
  /// The logits must outlive it. Error(invalid_argument) where one is not finite.
  explicit Prediction(std::span<const float> logits);

  /// ln of the probability of token `id`.
  [[nodiscard]] double log_probability(std::size_t id) const {
    return static_cast<double>(logits_[id]) - log_sum_;
  }
  [[nodiscard]] std::ptrdiff_t likeliest() const { return likeliest_; }
  [[nodiscard]] std::size_t size() const { return logits_.size(); }

 private:
  std::span<const float> logits_;
  std::ptrdiff_t likeliest_ = 0;
  double log_sum_ = 0;
};

/// How far the distribution q is from p (Kullback and Leibler 1951): sum p ln(p / q) in nats, where 0 ln 0 = 0. Precondition:
/// equal sizes.
[[nodiscard]] double divergence(const Prediction& p, const Prediction& q);

/// Whether a position of the session's latest step reads a set that rows chose, and is the last of these rows (SEL-10).
[[nodiscard]] bool ends_query_block(const Session& session, std::int64_t position);

/// Windows of a text through transformers, step by step side by side: each window is a fresh session, a prefill turn, then
/// one decode step.
class WindowReader {
 public:
  /// Called for each position in ascending order, with what each transformer predicts for the next one.
  using Observer = std::function<void(std::int64_t position, std::span<const Prediction> predictions)>;
  /// Called when a transformer has read so many tokens more.
  using Progress = std::function<void(std::int64_t tokens)>;

  /// `transformers`: of one vocabulary; they must outlive the reader. `decode`: tokens at the end of a window that are
  /// decoded, 0 or more.
  WindowReader(std::vector<Transformer*> transformers, std::int64_t decode);

  /// Resets the sessions and reads a window of more than `decode` ids. Errors: those of Transformer::run and of Prediction;
  /// the sessions must be reset then.
  void read(std::span<const std::int32_t> ids, const Observer& observer, const Progress& progress = {});

 private:
  /// The predictions of the last step's tokens.
  void show(std::int64_t at, std::int64_t count, const Observer& observer);

  std::vector<Transformer*> transformers_;
  std::int64_t decode_;
  std::int64_t vocabulary_;
  std::vector<std::vector<float>> logits_;  // of each transformer
  std::vector<Prediction> predictions_;
};

}  // namespace headwater::runtime
