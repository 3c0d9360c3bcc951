#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
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

/// What one or two models say of what comes after a position. Travels as it lies in memory between processes of one build.
struct Judgement {
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  /// Negative log-likelihood of the next token in nats, by model; kNone where the window ends, and for a model that is not there.
  std::array<double, 2> losses = {kNone, kNone};
  double divergence = kNone;  ///< of the second model from the first one, nats
  double rank1 = kNone;       ///< 1 where both hold the same token for the likeliest, else 0
};

/// No token comes after the last position of a window.
inline constexpr std::int32_t kNoToken = -1;

/// Judges the first next.size() tokens of the last step of one or two transformers of one vocabulary, which hold the output
/// head: next[i] is the id after token i, or kNoToken. Error(invalid_argument) for other ids, and those of Transformer::logits
/// and Prediction.
[[nodiscard]] std::vector<Judgement> judge(std::span<Transformer* const> transformers,
                                           std::span<const std::int32_t> next);

/// judge() in another process. Answers come in the order of the questions, which do not wait for them.
struct FarJudge {
  std::function<void(std::span<Transformer* const> transformers, std::span<const std::int32_t> next)> ask;
  std::function<std::vector<Judgement>()> answer;
};

/// Whether a position of the session's latest step reads a set that rows chose, and is the last of these rows (SEL-10).
[[nodiscard]] bool ends_query_block(const Session& session, std::int64_t position);

/// Windows of a text through transformers, step by step side by side: each window is a fresh session, a prefill turn, then
/// one decode step.
class WindowReader {
 public:
  /// Called for each position in ascending order. `ends_block`: it is the last of rows inside the turn that chose a set for
  /// themselves, in the last transformer.
  using Observer = std::function<void(std::int64_t position, const Judgement& judgement, bool ends_block)>;
  /// Called when a transformer has read so many tokens more.
  using Progress = std::function<void(std::int64_t tokens)>;

  /// `transformers`: one or two, of one vocabulary; they must outlive the reader. `decode`: tokens at the end of a window that
  /// are decoded, 0 or more. `far`: where the output head is another process's.
  WindowReader(std::vector<Transformer*> transformers, std::int64_t decode, FarJudge far = {});

  /// Resets the sessions and reads a window of more than `decode` ids. Errors: those of Transformer::run and of judge(); the
  /// sessions must be reset then. A far judge's answers are not waited for: finish() is what calls the observer.
  void read(std::span<const std::int32_t> ids, const Observer& observer, const Progress& progress = {});
  /// Hears all answers of a far judge.
  void finish();

 private:
  /// A step whose judgements are to come.
  struct Asked {
    Observer observer;
    std::int64_t at;
    std::vector<bool> ends_block;
  };
  static void show(const Asked& asked, const std::vector<Judgement>& judgements);

  std::vector<Transformer*> transformers_;
  std::int64_t decode_;
  FarJudge far_;
  std::vector<Asked> asked_;
};

}  // namespace headwater::runtime
