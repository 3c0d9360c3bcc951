#include "cli/commands/bench/model_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/support/cpu_features.hpp"
#include "cli/support/json_text.hpp"
#include "cli/support/statistics.hpp"
#include "cli/support/text.hpp"
#include "headwater/version.hpp"

namespace headwater::bench {

namespace {

constexpr double kGiga = 1e-9;

/// The median over the rounds of what `value` takes from each.
template <typename Value>
double over_rounds(const PromptRounds& prompt, const Value& value) {
  std::vector<double> values;
  for (const PromptTimes& times : prompt.rounds) values.push_back(value(times));
  return cli::median(std::move(values));
}

/// By the clock that rates and ratios are taken with.
double judged(const ModelMeasurement& measurement, const Seconds& seconds) {
  return measurement.by_processor_time ? seconds.cpu : seconds.wall;
}

double first_token(const ModelMeasurement& measurement, const PromptRounds& prompt) {
  return over_rounds(prompt,
                     [&](const PromptTimes& times) { return judged(measurement, times.first_token); });
}

double decode(const ModelMeasurement& measurement, const PromptRounds& prompt) {
  return over_rounds(prompt, [&](const PromptTimes& times) { return judged(measurement, times.decode); });
}

/// Seconds of the first token that are neither projections nor attention nor selection.
double rest(const PromptTimes& times) {
  return std::max(0.0, times.first_token.wall - times.phases.projections - times.phases.attention -
                           times.phases.selection);
}

/// Reading alone over decoding, round by round: what slows a whole round cancels.
double share_of_reading(const ModelBenchFlags& flags, const ModelMeasurement& measurement,
                        const PromptRounds& prompt) {
  return over_rounds(prompt, [&](const PromptTimes& times) {
    return judged(measurement, times.reading) * static_cast<double>(flags.decode) /
           judged(measurement, times.decode);
  });
}

/// Tokens a second of all slots over those of one, round by round.
double gain_of_slots(const ModelBenchFlags& flags, const ModelMeasurement& measurement,
                     const PromptRounds& prompt) {
  return over_rounds(prompt, [&](const PromptTimes& times) {
    return static_cast<double>(flags.slots) * judged(measurement, times.decode) /
           judged(measurement, times.together);
  });
}

double tokens_of_slots(const ModelBenchFlags& flags, const ModelMeasurement& measurement,
                       const PromptRounds& prompt) {
  return over_rounds(prompt, [&](const PromptTimes& times) {
    return static_cast<double>(flags.slots * flags.decode) / judged(measurement, times.together);
  });
}

double pair_share(const PromptRounds& prompt) {
  return static_cast<double>(prompt.pairs.computed) / static_cast<double>(prompt.pairs.dense);
}

/// Dense over sparse of one length, round by round.
double speed_up(const ModelMeasurement& measurement, const PromptRounds& sparse, const PromptRounds& dense) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < sparse.rounds.size(); ++i) {
    ratios.push_back(judged(measurement, dense.rounds[i].first_token) /
                     judged(measurement, sparse.rounds[i].first_token));
  }
  return cli::median(std::move(ratios));
}

nlohmann::ordered_json prompt_json(const ModelBenchFlags& flags, const ModelMeasurement& measurement,
                                   const PromptRounds& prompt) {
  const PromptTimes& middle = prompt.middle();
  const double seconds = first_token(measurement, prompt);
  nlohmann::ordered_json json;
  json["tokens"] = prompt.tokens;
  json["mode"] = prompt.dense ? "dense" : "sparse";
  json["pairs"] = prompt.pairs.computed;
  json["pairs_dense"] = prompt.pairs.dense;
  json["best"] = {{"token", prompt.best_token}, {"logit", prompt.best_logit}};
  std::vector<double> rounds;
  for (const PromptTimes& times : prompt.rounds) rounds.push_back(judged(measurement, times.first_token));
  json["first_token"] = {{"seconds", seconds},
                         {"tokens_per_second", static_cast<double>(prompt.tokens) / seconds},
                         {"split",
                          {{"seconds", middle.first_token.wall},
                           {"projections", middle.phases.projections},
                           {"attention", middle.phases.attention},
                           {"selection", middle.phases.selection},
                           {"rest", rest(middle)}}},
                         {"rounds", rounds}};
  if (flags.decode == 0) return json;
  const double all = decode(measurement, prompt);
  std::vector<double> decodes;
  for (const PromptTimes& times : prompt.rounds) decodes.push_back(judged(measurement, times.decode));
  const double tokens = static_cast<double>(flags.decode);
  json["decode"] = {
      {"tokens", flags.decode},
      {"tokens_per_second", tokens / all},
      {"bytes_per_token", prompt.bytes_per_token},
      {"gigabytes_per_second", static_cast<double>(prompt.bytes_per_token) * tokens / all * kGiga},
      {"share_of_reading", share_of_reading(flags, measurement, prompt)},
      {"rounds", decodes}};
  if (flags.slots == 1 || prompt.dense) return json;
  json["slots"] = {{"slots", flags.slots},
                   {"tokens_per_second", tokens_of_slots(flags, measurement, prompt)},
                   {"times_one", gain_of_slots(flags, measurement, prompt)}};
  return json;
}

std::string prompt_line(const ModelBenchFlags& flags, const ModelMeasurement& measurement,
                        const PromptRounds& prompt) {
  const PromptTimes& middle = prompt.middle();
  const double seconds = first_token(measurement, prompt);
  const auto percent = [&](double part) {
    return fmt::format("{:.1f} %", 100.0 * part / middle.first_token.wall);
  };
  std::string line = fmt::format(
      "{:>8} {:<6} {:>10.3f} s {:>9.1f} {:>9} {:>9} {:>9} {:>7} {:>8}", prompt.tokens,
      prompt.dense ? "dense" : "sparse", seconds, static_cast<double>(prompt.tokens) / seconds,
      percent(middle.phases.projections), percent(middle.phases.attention), percent(middle.phases.selection),
      percent(rest(middle)), fmt::format("{:.1f} %", 100.0 * pair_share(prompt)));
  if (flags.decode > 0) {
    const double each = decode(measurement, prompt) / static_cast<double>(flags.decode);
    line += fmt::format(" {:>9.1f} {:>7.1f} {:>9}", 1.0 / each,
                        static_cast<double>(prompt.bytes_per_token) / each * kGiga,
                        fmt::format("{:.1f} %", 100.0 * share_of_reading(flags, measurement, prompt)));
  }
  return line + "\n";
}

}  // namespace

std::string json_text(const ModelBenchFlags& flags, const ModelMeasurement& measurement) {
  const EffectiveOptions& effective = measurement.effective;
  nlohmann::ordered_json json;
  json["version"] = kVersion;
  json["cpu"] = cli::read_cpu_features().brand;
  json["model"] = measurement.model;
  json["architecture"] = measurement.architecture;
  json["weights"] = measurement.weights;
  json["engine"] = measurement.engine;
  json["isa"] = measurement.isa;
  json["projections"] = measurement.projections;
  json["cache_type"] = flags.model.cache_name();
  json["threads"] = effective.threads;
  json["effective"] = cli::effective_json(effective, {{"dense_tail", flags.dense_tail}});
  json["judged_by"] = measurement.by_processor_time ? "processor time" : "wall time";
  json["rounds"] = flags.rounds;
  json["seed"] = flags.seed;
  json["seconds_load"] = measurement.load_seconds;
  json["memory"] = {{"weights", measurement.weight_bytes},
                    {"kv", measurement.session_memory.kv},
                    {"scores", measurement.session_memory.scores},
                    {"memory_sets", measurement.session_memory.memory_sets},
                    {"workspace", static_cast<std::uint64_t>(measurement.session_memory.workspace) +
                                      measurement.workspace_bytes}};
  json["prompts"] = nlohmann::ordered_json::array();
  for (const PromptRounds& prompt : measurement.prompts)
    json["prompts"].push_back(prompt_json(flags, measurement, prompt));
  if (flags.dense) {
    json["speed_up"] = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i + 1 < measurement.prompts.size(); i += 2) {
      json["speed_up"].push_back(speed_up(measurement, measurement.prompts[i], measurement.prompts[i + 1]));
    }
  }
  cli::add_ranks(json, measurement.ranks);
  json["warnings"] = measurement.warnings;
  return cli::json_line(json);
}

std::string summary_text(const ModelBenchFlags& flags, const ModelMeasurement& measurement) {
  const EffectiveOptions& effective = measurement.effective;
  std::string text =
      fmt::format("model    {} ({}), {} {}, projections {}, cache {} {}\n", cli::one_line(measurement.model),
                  measurement.architecture, measurement.weights, cli::bytes_text(measurement.weight_bytes),
                  measurement.projections, flags.model.cache_name(),
                  cli::bytes_text(static_cast<std::uint64_t>(measurement.session_memory.kv)));
  text += fmt::format("engine   {} ({}), {}\n", measurement.engine, measurement.isa,
                      cli::count_text(effective.threads, "thread"));
  text += fmt::format("options  batch {}, chunk {}, memory {} local + {} heavy, {}, the last {} dense\n",
                      effective.batch, effective.chunk, effective.local, effective.heavy,
                      cli::rule_text(effective), cli::count_text(flags.dense_tail, "token"));
  text += cli::ranks_text(measurement.ranks);
  text += fmt::format("loaded   in {:.3f} s; {}, sparse and dense in turn; {}\n\n", measurement.load_seconds,
                      cli::count_text(flags.rounds, "round"),
                      measurement.by_processor_time ? "by processor time (one thread)" : "by the wall");
  text += fmt::format("{:>8} {:<6} {:>12} {:>9} {:>9} {:>9} {:>9} {:>7} {:>8}", "tokens", "", "first token",
                      "tokens/s", "projected", "attention", "selection", "rest", "pairs");
  if (flags.decode > 0) text += fmt::format(" {:>9} {:>7} {:>9}", "decode/s", "GB/s", "of reads");
  text += "\n";
  for (const PromptRounds& prompt : measurement.prompts) text += prompt_line(flags, measurement, prompt);
  for (const PromptRounds& prompt : measurement.prompts) {
    if (flags.slots == 1 || prompt.dense) continue;
    text +=
        fmt::format("{} in each of {} slots: {:.1f} tokens/s decoded together, {:.2f} times one slot\n",
                    cli::count_text(prompt.tokens, "token"), flags.slots,
                    tokens_of_slots(flags, measurement, prompt), gain_of_slots(flags, measurement, prompt));
  }
  if (!flags.dense) return text;
  for (std::size_t i = 0; i + 1 < measurement.prompts.size(); i += 2) {
    text += fmt::format("{}{}: the first token {:.2f} times sooner than with dense prefill\n",
                        i == 0 ? "\n" : "", cli::count_text(measurement.prompts[i].tokens, "token"),
                        speed_up(measurement, measurement.prompts[i], measurement.prompts[i + 1]));
  }
  return text;
}

}  // namespace headwater::bench
