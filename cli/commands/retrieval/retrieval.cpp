#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <span>

#include "cli/commands/commands.hpp"
#include "cli/commands/retrieval/flags.hpp"
#include "cli/support/interrupt.hpp"
#include "cli/support/json_text.hpp"
#include "cli/support/loaded_model.hpp"
#include "cli/support/progress.hpp"
#include "cli/support/prompt.hpp"
#include "cli/support/statistics.hpp"
#include "cli/support/streams.hpp"
#include "cli/support/text.hpp"
#include "headwater/headwater.hpp"
#include "runtime/generate/sampler.hpp"

namespace headwater::cli {
namespace {

constexpr const char* kCommand = "headwater retrieval";

struct Mode {
  const char* key;
  const char* name;
  bool dense;
  bool tail;
};
// The dense mode stands first, and is run last: the sparse ones share a transformer.
constexpr std::array kModes = {Mode{"dense", "dense", true, false}, Mode{"sparse", "sparse", false, false},
                               Mode{"sparse_dense_tail", "sparse, dense tail", false, true}};

/// The prompts of a trial: the same for every mode.
class Trial {
 public:
  Trial(const Haystack& haystack, const RetrievalFlags& flags, std::int64_t index)
      : haystack_(haystack), single_(flags.single) {
    const auto word = [](std::uint64_t value) { return static_cast<std::uint32_t>(value); };
    constexpr unsigned kWord = 32;
    std::seed_seq seed{word(flags.seed), word(flags.seed >> kWord), word(static_cast<std::uint64_t>(index))};
    std::mt19937_64 random(seed);
    needles_ = draw_needles(flags.depths, random);
    order_ = shuffled(needles_.size(), random);
    first_line_ = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(haystack.lines()));
  }
  /// One prompt with all questions, or one for each depth.
  [[nodiscard]] std::size_t prompts() const { return single_ ? needles_.size() : 1; }
  [[nodiscard]] Prompt prompt(std::int64_t window, std::size_t index) const {
    return haystack_.prompt(window, first_line_, needles_, single_ ? std::vector{index} : order_);
  }

 private:
  const Haystack& haystack_;
  bool single_;
  std::vector<Needle> needles_;
  std::vector<std::size_t> order_;  // of the questions
  std::int64_t first_line_ = 0;
};

/// 1 for a right answer, 0 for a wrong one: [trial][depth].
using Answers = std::vector<std::vector<double>>;

class Experiment {
 public:
  explicit Experiment(const RetrievalFlags& flags)
      : flags_(flags), text_(read_text("-f (--file)", flags.file)), model_(flags.model) {
    check_utf8("-f (--file)", text_, warnings_);
    const HaystackTexts& texts = flags.texts;
    haystack_.emplace(model_.tokenizer(), text_, texts);
    const std::int64_t asked = flags.window.value_or(std::min(haystack_->tokens(), model_.context()));
    if (asked > model_.context()) {
      throw Failure(
          fmt::format("--window: {} is not allowed; the context has {} tokens", asked, model_.context()));
    }
    window_ = asked;
    if (haystack_->tokens() < window_) {
      warnings_.push_back(fmt::format("{} has about {} tokens, so it is repeated to fill {}",
                                      in_quotes(flags.file), haystack_->tokens(), window_));
    }
    // What does not fit is said before the weights are read.
    const Trial first(*haystack_, flags_, 0);
    for (std::size_t i = 0; i < first.prompts(); ++i) {
      const Prompt prompt = first.prompt(window_, i);
      prompt_tokens_.push_back(static_cast<double>(prompt.ids.size()));
      question_tokens_ = static_cast<std::int64_t>(prompt.ids.size()) - prompt.questions;
    }
  }

  void run() {
    // Sparse prefill comes first, because what its options say comes before the work.
    transformer_ = model_.open(window_, false);
    effective_ = transformer_->session().options();
    warn(warnings());
    const auto prompts = static_cast<std::uint64_t>(flags_.trials) * prompt_tokens_.size() * kModes.size();
    Progress progress(prompts, "retrieval", prompts * static_cast<std::uint64_t>(window_));
    for (std::size_t m = kModes.size(); m-- > 0;) {
      if (kModes[m].dense) {
        transformer_.reset();  // one cache at a time
        transformer_ = model_.open(window_, true);
      }
      answers_[m] = ask_all(kModes[m], progress);
    }
  }

  [[nodiscard]] std::string json() const;
  [[nodiscard]] std::string table() const;
  [[nodiscard]] std::vector<std::string> warnings() const {
    std::vector<std::string> all = model_.warnings();
    all.insert(all.end(), warnings_.begin(), warnings_.end());
    all.insert(all.end(), effective_.warnings.begin(), effective_.warnings.end());
    return all;
  }

 private:
  Answers ask_all(const Mode& mode, Progress& progress) {
    Answers answers;
    for (std::int64_t t = 0; t < flags_.trials; ++t) {
      const Trial trial(*haystack_, flags_, t);
      std::vector<double> row(flags_.depths.size());
      for (std::size_t i = 0; i < trial.prompts(); ++i) {
        read(trial.prompt(window_, i), mode, row);
        progress.advance(1);
      }
      answers.push_back(std::move(row));
    }
    return answers;
  }

  /// Runs a prompt and enters which answers are right.
  void read(const Prompt& prompt, const Mode& mode, std::vector<double>& right) {
    transformer_->reset();
    for (const AnswerSpan& answer : prompt.answers) right[answer.needle] = 1;
    const auto n = static_cast<std::int64_t>(prompt.ids.size());
    const std::int64_t tail =
        mode.tail ? std::min(flags_.dense_tail.value_or(n - prompt.questions), n - 1) : 0;
    const std::int64_t prefill = n - tail;
    for (std::int64_t at = 0; at < n;) {
      const bool decoding = at >= prefill;
      const std::int64_t count = std::min(transformer_->max_step(), (decoding ? n : prefill) - at);
      const std::int64_t turn = at == 0 && count < prefill ? prefill : 0;
      transformer_->run(
          decoding ? Step::decode(count) : Step::prefill(count, turn),
          std::span(prompt.ids).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)));
      for (const AnswerSpan& answer : prompt.answers) {
        if (!judge(prompt, answer, at, at + count)) right[answer.needle] = 0;
      }
      at += count;
    }
  }

  /// Whether those tokens of the answer that positions [from, to) predict are ranked first there.
  bool judge(const Prompt& prompt, const AnswerSpan& answer, std::int64_t from, std::int64_t to) {
    const std::int64_t first = std::max(from, answer.begin - 1);
    const std::int64_t last = std::min(to, answer.end - 1);
    if (first >= last) return true;
    const auto vocabulary = static_cast<std::size_t>(model_.config().vocabulary);
    const auto count = static_cast<std::size_t>(last - first);
    logits_.resize(std::max(logits_.size(), count * vocabulary));
    transformer_->logits(first - from, last - first, logits_);
    for (std::size_t r = 0; r < count; ++r) {
      const auto row = std::span<const float>(logits_).subspan(r * vocabulary, vocabulary);
      if (runtime::best_token(row) != prompt.ids[static_cast<std::size_t>(first) + r + 1]) return false;
    }
    return true;
  }

  [[nodiscard]] std::vector<double> at_depth(std::size_t mode, std::size_t depth) const {
    std::vector<double> values;
    for (const auto& row : answers_[mode]) values.push_back(row[depth]);
    return values;
  }
  /// The rate of each trial.
  [[nodiscard]] std::vector<double> by_trial(std::size_t mode) const {
    std::vector<double> values;
    for (const auto& row : answers_[mode]) values.push_back(mean_of(row).value);
    return values;
  }
  [[nodiscard]] nlohmann::ordered_json rate_json(const std::vector<double>& values,
                                                 std::size_t prompts) const {
    const Mean mean = mean_of(values);
    const auto count = static_cast<double>(prompts);
    const Interval interval = wilson(mean.value * count, count);
    return {{"rate", mean.value},
            {"stderr", mean.error},
            {"low", interval.low},
            {"high", interval.high},
            {"prompts", prompts}};
  }

  const RetrievalFlags& flags_;
  std::string text_;
  LoadedModel model_;
  std::optional<Haystack> haystack_;
  std::int64_t window_ = 0;
  std::int64_t question_tokens_ = 0;
  std::vector<double> prompt_tokens_;  // of the first trial
  std::vector<float> logits_;
  std::unique_ptr<runtime::Transformer> transformer_;
  std::array<Answers, kModes.size()> answers_;
  EffectiveOptions effective_;
  std::vector<std::string> warnings_;
};

std::string Experiment::json() const {
  nlohmann::ordered_json json;
  json["window"] = window_;
  json["prompt_tokens"] = mean_of(prompt_tokens_).value;
  json["question_tokens"] = question_tokens_;
  json["single"] = flags_.single;
  json["trials"] = flags_.trials;
  json["seed"] = flags_.seed;
  json["needle"] = flags_.texts.needle;
  json["question"] = flags_.texts.question;
  json["engine"] = transformer_->engine().name();
  json["isa"] = transformer_->engine().isa();
  json["projections"] = runtime::precision_name(flags_.model.precision);
  json["effective"] = {{"batch", effective_.batch},
                       {"chunk", effective_.chunk},
                       {"local", effective_.local},
                       {"heavy", effective_.heavy},
                       {"dense_tail", flags_.dense_tail.value_or(question_tokens_)}};
  add_rule(json["effective"], effective_);
  auto depths = nlohmann::ordered_json::array();
  for (std::size_t d = 0; d < flags_.depths.size(); ++d) {
    nlohmann::ordered_json entry = {{"depth", flags_.depths[d]}};
    for (std::size_t m = 0; m < kModes.size(); ++m) {
      const auto values = at_depth(m, d);
      entry[kModes[m].key] = rate_json(values, values.size());
    }
    depths.push_back(std::move(entry));
  }
  json["depths"] = std::move(depths);
  for (std::size_t m = 0; m < kModes.size(); ++m) {
    json[kModes[m].key] = rate_json(by_trial(m), answers_[m].size() * flags_.depths.size());
  }
  for (std::size_t m = 1; m < kModes.size(); ++m) {
    const Mean change = mean_of(differences(by_trial(m), by_trial(0)));
    json["difference"][kModes[m].key] = {{"rate", change.value}, {"stderr", change.error}};
  }
  json["warnings"] = warnings();
  return json_line(json);
}

std::string Experiment::table() const {
  constexpr double kPercent = 100;
  const auto cell = [](const std::vector<double>& values) {
    const Mean mean = mean_of(values);
    return fmt::format("{:.1f} (se {:.1f})", kPercent * mean.value, kPercent * mean.error);
  };
  std::string text = fmt::format(
      "prompts  {} of {:.0f} tokens with {} codes, {} of them asked for; chunks of {}, memory {} local + {} "
      "heavy, {}, "
      "dense tail {}\nright answers in per cent\n\n{:>6}",
      flags_.trials * static_cast<std::int64_t>(prompt_tokens_.size()), mean_of(prompt_tokens_).value,
      flags_.depths.size(), flags_.single ? 1 : flags_.depths.size(), effective_.chunk, effective_.local,
      effective_.heavy, rule_text(effective_), flags_.dense_tail.value_or(question_tokens_), "depth");
  for (const Mode& mode : kModes) text += fmt::format("  {:>18}", mode.name);
  text += '\n';
  for (std::size_t d = 0; d < flags_.depths.size(); ++d) {
    text += fmt::format("{:>5}%", flags_.depths[d]);
    for (std::size_t m = 0; m < kModes.size(); ++m) text += fmt::format("  {:>18}", cell(at_depth(m, d)));
    text += '\n';
  }
  text += fmt::format("{:>6}", "all");
  for (std::size_t m = 0; m < kModes.size(); ++m) text += fmt::format("  {:>18}", cell(by_trial(m)));
  return text + '\n';
}

}  // namespace

ExitCode retrieval_command(const std::vector<std::string>& arguments) {
  const auto flags = parse_retrieval_flags(arguments);
  if (!flags) return ExitCode::done;
  install_signal_handlers(kCommand, flags->model.model);
  Experiment experiment(*flags);
  experiment.run();
  print_out(flags->json ? experiment.json() : experiment.table());
  return ExitCode::done;
}

}  // namespace headwater::cli
