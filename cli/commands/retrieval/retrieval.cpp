#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string_view>

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
#include "runtime/generate/conversation.hpp"
#include "runtime/generate/sampler.hpp"

namespace headwater::cli {
namespace {

constexpr const char* kCommand = "headwater retrieval";

/// What was seen of one kind of prefill, for each prompt: 1 for right, 0 for wrong.
struct Answers {
  std::vector<double> first;  ///< of the answer's tokens the first
  std::vector<double> whole;
};

class Experiment {
 public:
  explicit Experiment(const RetrievalFlags& flags)
      : flags_(flags), text_(read_text("-f (--file)", flags.file)), model_(flags.model) {
    check_text("-f (--file)", text_, model_.tokenizer(), warnings_);
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
    for (std::size_t i = 0; i < std::min(depths(), prompts()); ++i) {
      const Prompt one = prompt(i);
      prompt_tokens_.push_back(static_cast<double>(one.ids.size()));
      question_tokens_.push_back(static_cast<double>(tail_of(one)));
    }
  }

  void run() {
    // Sparse prefill comes first, because what its options say comes before the work.
    transformer_ = model_.open(window_, false);
    effective_ = transformer_->session().options();
    warn(warnings());
    const std::uint64_t all = prompts() * (flags_.dense ? 2 : 1);
    Progress progress(all, "retrieval", all * static_cast<std::uint64_t>(window_));
    sparse_ = ask_all(progress);
    if (!flags_.dense) return;
    transformer_.reset();  // one cache at a time
    transformer_ = model_.open(window_, true);
    dense_ = ask_all(progress);
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
  [[nodiscard]] std::size_t prompts() const { return static_cast<std::size_t>(flags_.prompts); }
  [[nodiscard]] std::size_t depths() const { return flags_.depths.size(); }
  /// Its place among --depths.
  [[nodiscard]] std::size_t depth_of(std::size_t prompt) const { return prompt % depths(); }

  /// The same for every rule.
  [[nodiscard]] Prompt prompt(std::size_t index) const {
    const auto word = [](std::uint64_t value) { return static_cast<std::uint32_t>(value); };
    constexpr unsigned kWord = 32;
    std::seed_seq seed{word(flags_.seed), word(flags_.seed >> kWord), word(index)};
    std::mt19937_64 random(seed);
    const std::vector<Needle> needles = draw_needles(flags_.depths, random);
    const auto lines = static_cast<std::uint64_t>(haystack_->lines());
    return haystack_->prompt(window_, static_cast<std::int64_t>(random() % lines), needles, depth_of(index));
  }
  /// Tokens of the question.
  static std::int64_t tail_of(const Prompt& prompt) {
    return static_cast<std::int64_t>(prompt.ids.size()) - prompt.question;
  }

  Answers ask_all(Progress& progress) {
    Answers answers;
    runtime::Conversation conversation(*transformer_, 0);
    for (std::size_t i = 0; i < prompts(); ++i) {
      const Prompt one = prompt(i);
      const std::size_t right = ask(one, conversation);
      answers.first.push_back(right > 0 ? 1 : 0);
      answers.whole.push_back(right == one.answer.size() ? 1 : 0);
      progress.advance(1);
    }
    return answers;
  }

  /// How many tokens of the answer greedy generation gets right before the first wrong one.
  [[nodiscard]] std::size_t ask(const Prompt& prompt, runtime::Conversation& conversation) const {
    conversation.reset();
    conversation.set_dense_tail(flags_.tail ? tail_of(prompt) : 0);
    conversation.feed(prompt.ids);
    std::size_t right = 0;
    while (runtime::best_token(conversation.logits()) == prompt.answer[right]) {
      if (++right == prompt.answer.size()) break;
      conversation.append(prompt.answer[right - 1]);
    }
    return right;
  }

  /// Of the prompts that ask for the code at one depth.
  [[nodiscard]] std::vector<double> at_depth(const std::vector<double>& values, std::size_t depth) const {
    std::vector<double> found;
    for (std::size_t i = depth; i < values.size(); i += depths()) found.push_back(values[i]);
    return found;
  }
  [[nodiscard]] Answers at_depth(const Answers& answers, std::size_t depth) const {
    return {at_depth(answers.first, depth), at_depth(answers.whole, depth)};
  }

  const RetrievalFlags& flags_;
  std::string text_;
  LoadedModel model_;
  std::optional<Haystack> haystack_;
  std::int64_t window_ = 0;
  // Of the first prompt for each depth.
  std::vector<double> prompt_tokens_, question_tokens_;
  std::unique_ptr<runtime::Transformer> transformer_;
  Answers dense_, sparse_;
  EffectiveOptions effective_;
  std::vector<std::string> warnings_;
};

nlohmann::ordered_json rate_json(const std::vector<double>& values) {
  const Mean mean = mean_of(values);
  const auto count = static_cast<double>(values.size());
  const Interval interval = wilson(mean.value * count, count);
  return {{"rate", mean.value}, {"stderr", mean.error}, {"low", interval.low}, {"high", interval.high}};
}

nlohmann::ordered_json answers_json(const Answers& answers) {
  return {{"first", rate_json(answers.first)}, {"answer", rate_json(answers.whole)}};
}

nlohmann::ordered_json change_json(const std::vector<double>& sparse, const std::vector<double>& dense) {
  const Mean change = mean_of(differences(sparse, dense));
  return {{"rate", change.value}, {"stderr", change.error}};
}

std::string Experiment::json() const {
  nlohmann::ordered_json json;
  json["window"] = window_;
  json["prompts"] = flags_.prompts;
  json["prompt_tokens"] = mean_of(prompt_tokens_).value;
  json["question_tokens"] = mean_of(question_tokens_).value;
  json["ask"] = flags_.tail ? "tail" : "prefill";
  json["seed"] = flags_.seed;
  json["needle"] = flags_.texts.needle;
  json["question"] = flags_.texts.question;
  json["engine"] = transformer_->engine().name();
  json["isa"] = transformer_->engine().isa();
  json["projections"] = runtime::precision_name(flags_.model.precision);
  json["effective"] = effective_json(effective_, nlohmann::ordered_json::object());
  json["depths"] = nlohmann::ordered_json::array();
  for (std::size_t d = 0; d < std::min(depths(), prompts()); ++d) {
    const Answers sparse = at_depth(sparse_, d);
    nlohmann::ordered_json entry = {{"depth", flags_.depths[d]}, {"prompts", sparse.first.size()}};
    if (flags_.dense) entry["dense"] = answers_json(at_depth(dense_, d));
    entry["sparse"] = answers_json(sparse);
    json["depths"].push_back(std::move(entry));
  }
  if (flags_.dense) json["dense"] = answers_json(dense_);
  json["sparse"] = answers_json(sparse_);
  if (flags_.dense) {
    json["difference"] = {{"first", change_json(sparse_.first, dense_.first)},
                          {"answer", change_json(sparse_.whole, dense_.whole)}};
  }
  json["warnings"] = warnings();
  return json_line(json);
}

std::string Experiment::table() const {
  constexpr double kPercent = 100;
  const auto cells = [](const Answers& answers) {
    std::string text;
    for (const auto* values : {&answers.first, &answers.whole}) {
      const Mean mean = mean_of(*values);
      text += fmt::format("  {:>15}",
                          fmt::format("{:.1f} (se {:.1f})", kPercent * mean.value, kPercent * mean.error));
    }
    return text;
  };
  std::string text = fmt::format(
      "prompts  {} of {:.0f} tokens with {} codes, one asked for at the end, {}; chunks of {}, memory {} "
      "local "
      "+ {} heavy, {}\nfirst token of the answer and whole answer right, in per cent\n\n{:>6} {:>8}",
      flags_.prompts, mean_of(prompt_tokens_).value, depths(),
      flags_.tail ? "as a dense tail" : "inside the prefill", effective_.chunk, effective_.local,
      effective_.heavy, rule_text(effective_), "depth", "prompts");
  for (const char* mode : {"dense", select_name(effective_)}) {
    if (mode == std::string_view("dense") && !flags_.dense) continue;
    text += fmt::format("  {:>15}  {:>15}", fmt::format("{}: first", mode), "whole");
  }
  text += '\n';
  const auto line = [&](const std::string& name, const Answers& dense, const Answers& sparse) {
    text += fmt::format("{:>6} {:>8}{}{}\n", name, sparse.first.size(), flags_.dense ? cells(dense) : "",
                        cells(sparse));
  };
  for (std::size_t d = 0; d < std::min(depths(), prompts()); ++d) {
    line(fmt::format("{}%", flags_.depths[d]), at_depth(dense_, d), at_depth(sparse_, d));
  }
  line("all", dense_, sparse_);
  return text;
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
