#include "cli/commands/generate/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/support/json_text.hpp"
#include "cli/support/ranks.hpp"
#include "cli/support/text.hpp"

namespace headwater::cli {
namespace {

double rate(std::int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
}

double share(const runtime::Pairs& pairs) {
  return pairs.dense == 0 ? 0.0 : static_cast<double>(pairs.computed) / static_cast<double>(pairs.dense);
}

/// ln sum exp(x), in double.
double log_sum_exp(const std::vector<float>& logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - most);
  return most + std::log(sum);
}

nlohmann::ordered_json run_json(const GenerateRun& run, double load) {
  nlohmann::ordered_json json;
  json["text"] = run.text;
  json["prompt_tokens"] = run.prompt_tokens;
  json["prompt_tokens_done"] = run.done_tokens;
  json["generated_tokens"] = run.ids.size();
  json["ids"] = run.ids;
  json["effective"] = effective_json(run.effective, {{"dense_tail", run.tail_tokens}});
  json["threads"] = run.effective.threads;
  json["pairs"] = run.pairs.computed;
  json["pairs_dense"] = run.pairs.dense;
  json["steps"] = run.steps;
  json["seconds"] = {
      {"load", load},
      {"prefill", run.prefill_seconds},
      {"first_token", load + run.prefill_seconds},
      {"decode", run.decode_seconds},
      {"prefill_projections", run.prefill.projections},
      {"prefill_attention", run.prefill.attention},
      {"prefill_selection", run.prefill.selection_apart ? nlohmann::ordered_json(run.prefill.selection)
                                                        : nlohmann::ordered_json(nullptr)},
      {"prefill_other", run.prefill.other}};
  json["tokens_per_second"] = {{"prefill", rate(run.done_tokens, run.prefill_seconds)},
                               {"decode", rate(run.decoded, run.decode_seconds)}};
  json["interrupted"] = run.interrupted;
  return json;
}

std::string run_text(const GenerateRun& run, double load) {
  const EffectiveOptions& effective = run.effective;
  const double prefill = run.prefill_seconds;
  std::string text = "prompt   " + count_text(run.prompt_tokens, "token");
  if (effective.sparse) {
    text +=
        fmt::format(", chunks of {}, memory {} local + {} heavy, {}, the last {} tokens dense",
                    effective.chunk, effective.local, effective.heavy, rule_text(effective), run.tail_tokens);
  } else {
    text += ", dense";
  }
  text += '\n';
  if (run.pairs.dense > 0)
    text += fmt::format("pairs    {} of {} per head and layer, {:.1f} % of dense attention\n",
                        run.pairs.computed, run.pairs.dense, 100.0 * share(run.pairs));
  text += fmt::format(
      "first    {:.3f} s {}: load {:.3f}, projections {:.3f}, {}, other {:.3f}\n", load + prefill,
      run.done_tokens < run.prompt_tokens ? "without a token" : "to the first token", load,
      run.prefill.projections,
      run.prefill.selection_apart
          ? fmt::format("attention {:.3f}, selection {:.3f}", run.prefill.attention, run.prefill.selection)
          : fmt::format("attention with selection {:.3f}", run.prefill.attention),
      std::max(0.0, prefill - run.prefill.projections - run.prefill.attention - run.prefill.selection));
  text += fmt::format("rate     prefill {:.1f} tokens/s, decode {:.1f} tokens/s ({} in {:.3f} s)\n",
                      rate(run.done_tokens, prefill), rate(run.decoded, run.decode_seconds),
                      count_text(run.decoded, "token"), run.decode_seconds);
  if (run.interrupted) {
    text += "ended    by an interrupt";
    if (run.done_tokens < run.prompt_tokens) {
      text += fmt::format(", after about {} of {} of the prompt", run.done_tokens,
                          count_text(run.prompt_tokens, "token"));
    }
    text += '\n';
  }
  return text;
}

std::string session_text(const SessionTotals& session) {
  return fmt::format(
      "turns    {}, of {} in {:.3f} s ({:.1f} tokens/s); {} of {} stored\n"
      "pairs    {} of {} per head and layer, {:.1f} % of dense attention\n"
      "answers  {} in {:.3f} s ({:.1f} tokens/s)\n",
      session.turns, count_text(session.prompt_tokens, "token"), session.prefill_seconds,
      rate(session.prompt_tokens, session.prefill_seconds), session.stored,
      count_text(session.capacity, "token"), session.pairs.computed, session.pairs.dense,
      100.0 * share(session.pairs), count_text(session.generated, "token"), session.decode_seconds,
      rate(session.decoded, session.decode_seconds));
}

}  // namespace

void SessionTotals::add(const GenerateRun& run) {
  ++turns;
  prompt_tokens += run.done_tokens;
  generated += static_cast<std::int64_t>(run.ids.size());
  decoded += run.decoded;
  prefill_seconds += run.prefill_seconds;
  decode_seconds += run.decode_seconds;
}

GenerateDifference difference(const GenerateRun& sparse, const GenerateRun& dense) {
  GenerateDifference result;
  const std::size_t common = std::min(sparse.ids.size(), dense.ids.size());
  std::size_t equal = 0;
  while (equal < common && sparse.ids[equal] == dense.ids[equal]) ++equal;
  result.equal_tokens = static_cast<std::int64_t>(equal);
  if (sparse.prefill_seconds > 0) result.times_sooner = dense.prefill_seconds / sparse.prefill_seconds;
  if (sparse.first_logits.empty() || sparse.first_logits.size() != dense.first_logits.size()) return result;
  const double sparse_total = log_sum_exp(sparse.first_logits);
  const double dense_total = log_sum_exp(dense.first_logits);
  for (std::size_t i = 0; i < dense.first_logits.size(); ++i) {
    const auto s = static_cast<double>(sparse.first_logits[i]);
    const auto d = static_cast<double>(dense.first_logits[i]);
    result.worst_logit = std::max(result.worst_logit, std::fabs(s - d));
    result.divergence += std::exp(d - dense_total) * ((d - dense_total) - (s - sparse_total));
  }
  return result;
}

std::string json_text(const GenerateReport& report) {
  nlohmann::ordered_json json = run_json(report.run, report.load_seconds);
  json["prompt_ids"] = report.run.prompt_ids;
  json["model"] = report.model;
  json["architecture"] = report.architecture;
  json["windowed_layers"] = report.windowed_layers;
  json["engine"] = report.engine;
  json["isa"] = report.isa;
  json["projections"] = report.projections;
  json["cache_type"] = report.cache_type;
  json["memory"] = {
      {"weights", report.weight_bytes},
      {"kv", report.session_memory.kv},
      {"scores", report.session_memory.scores},
      {"memory_sets", report.session_memory.memory_sets},
      {"workspace", static_cast<std::uint64_t>(report.session_memory.workspace) + report.workspace_bytes}};
  if (report.dense) {
    const GenerateDifference differs = difference(report.run, *report.dense);
    json["dense"] = run_json(*report.dense, report.load_seconds);
    json["difference"] = {{"equal_tokens", differs.equal_tokens},
                          {"worst_logit", differs.worst_logit},
                          {"divergence", differs.divergence},
                          {"times_sooner", differs.times_sooner}};
  }
  add_ranks(json, report.ranks);
  json["warnings"] = report.warnings;
  return json_line(json);
}

std::string summary_text(const GenerateReport& report) {
  std::string text =
      fmt::format("model    {} ({}){}, weights {}, projections {}, cache {} {}\n", one_line(report.model),
                  report.architecture, report.windows.empty() ? "" : ", " + report.windows,
                  bytes_text(report.weight_bytes), report.projections, report.cache_type,
                  bytes_text(static_cast<std::uint64_t>(report.session_memory.kv)));
  text += fmt::format("engine   {} ({}), {} {}\n", report.engine, report.isa, report.run.effective.threads,
                      report.run.effective.threads == 1 ? "thread" : "threads");
  text += ranks_text(report.ranks);
  if (report.session) return text + session_text(*report.session);
  text += run_text(report.run, report.load_seconds);
  if (!report.dense) return text;
  const GenerateDifference differs = difference(report.run, *report.dense);
  text += fmt::format("-- dense\n{}", run_text(*report.dense, report.load_seconds));
  text += fmt::format(
      "-- sparse against dense\nprefill  {:.2f} times sooner\ntext     {} of {} generated tokens equal "
      "before the "
      "first difference\nlogits   after the prompt: largest difference {:.3g}, divergence {:.3g} nats\n",
      differs.times_sooner, differs.equal_tokens, report.dense->ids.size(), differs.worst_logit,
      differs.divergence);
  return text;
}

}  // namespace headwater::cli
