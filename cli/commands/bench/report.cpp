#include "cli/commands/bench/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/commands/bench/workload.hpp"
#include "cli/support/cpu_features.hpp"
#include "cli/support/json_text.hpp"
#include "cli/support/statistics.hpp"
#include "cli/support/text.hpp"
#include "headwater/version.hpp"

namespace headwater::bench {

namespace {

constexpr double kGiga = 1e-9;

/// The numbers of one way of attention that both reports show.
struct Figures {
  double seconds = 0.0;
  double seconds_p10 = 0.0;
  double flops = 0.0;          ///< useful, a second, at the median
  double share_of_peak = 0.0;  ///< median over the rounds; 0 where no peak was measured
};

Figures figures(const Flags& flags, const Comparison& comparison, const Timed& timed) {
  Figures result;
  const double flops = useful_flops(flags.shape, timed.pairs);
  result.seconds = cli::median(timed.seconds);
  result.seconds_p10 = cli::tenth(timed.seconds);
  result.flops = flops / cli::median(timed.judged);
  if (comparison.peak.empty()) return result;
  std::vector<double> shares;
  for (std::size_t i = 0; i < timed.judged.size(); ++i) {
    shares.push_back(flops / timed.judged[i] / comparison.peak[i]);
  }
  result.share_of_peak = cli::median(shares);
  return result;
}

/// Dense over sparse, round by round: what slows a whole round cancels.
double speed_up(const Comparison& comparison) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < comparison.sparse.judged.size(); ++i) {
    ratios.push_back(comparison.dense.judged[i] / comparison.sparse.judged[i]);
  }
  return cli::median(ratios);
}

nlohmann::ordered_json timed_json(const Flags& flags, const Comparison& comparison, const Timed& timed) {
  const Figures shown = figures(flags, comparison, timed);
  nlohmann::ordered_json json;
  json["seconds"] = {{"median", shown.seconds}, {"p10", shown.seconds_p10}, {"rounds", timed.seconds}};
  json["judged_seconds"] = timed.judged;
  json["pairs"] = timed.pairs;
  json["gflops"] = shown.flops * kGiga;
  json["share_of_peak"] =
      comparison.peak.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(shown.share_of_peak);
  json["tokens_per_second"] = static_cast<double>(flags.shape.capacity) / cli::median(timed.judged);
  json["memory_bytes"] = timed.memory_bytes;
  json["checked"] = {{"rows", timed.checked.rows},
                     {"worst_row_error_over_bound", timed.checked.worst_row},
                     {"column_sums", timed.checked.column_sums},
                     {"worst_column_sum_error_over_bound", timed.checked.worst_column_sum},
                     {"heads_replayed", timed.checked.heads_replayed}};
  return json;
}

std::string checked_text(const char* name, const Checked& checked, Select select) {
  std::string text = fmt::format("{} {}", name, cli::count_text(checked.rows, "row"));
  if (checked.column_sums > 0) text += " and " + cli::count_text(checked.column_sums, "column sum");
  if (checked.heads_replayed > 0) {
    text += fmt::format(", {} replayed bit for bit", cli::count_text(checked.heads_replayed, "head"));
    if (checked.column_sums == 0 && select == Select::h2o)
      text += ", no column sum (the chunks are too long)";
  }
  return text + fmt::format(" (worst {:.0f} % of the bound)",
                            100.0 * std::max(checked.worst_row, checked.worst_column_sum));
}

std::string timed_text(const char* name, const Flags& flags, const Comparison& comparison,
                       const Timed& timed) {
  const Figures shown = figures(flags, comparison, timed);
  const std::string share =
      comparison.peak.empty() ? std::string("-") : fmt::format("{:.1f} %", 100.0 * shown.share_of_peak);
  return fmt::format("{:<9}{:>10.5f} s {:>10.5f} s {:>10.1f} {:>10} {:>12.0f}\n", name, shown.seconds,
                     shown.seconds_p10, shown.flops * kGiga, share,
                     static_cast<double>(flags.shape.capacity) / cli::median(timed.judged));
}

}  // namespace

std::string json_text(const Flags& flags, const Comparison& comparison) {
  const EffectiveOptions& effective = comparison.effective;
  const Shape& shape = flags.shape;
  const bool dense = !comparison.dense.seconds.empty();
  nlohmann::ordered_json json;
  json["version"] = kVersion;
  json["cpu"] = cli::read_cpu_features().brand;
  json["engine"] = comparison.engine->name();
  json["isa"] = comparison.engine->isa();
  json["threads"] = effective.threads;
  json["tokens"] = shape.capacity;
  json["heads"] = shape.n_head;
  json["heads_kv"] = shape.n_head_kv;
  json["d_head"] = shape.d_head;
  json["d_value"] = shape.d_value;
  json["dtype"] = dtype_name(shape.kv_type);
  json["effective"] = cli::effective_json(effective, {{"schedule", cli::schedule_name(effective.schedule)}});
  json["rounds"] = flags.rounds;
  json["judged_by"] = comparison.by_processor_time ? "processor time" : "wall time";
  json["seed"] = flags.seed;
  json["peak"] = {{"arithmetic", comparison.arithmetic->name}, {"missing", comparison.arithmetic_missing}};
  json["peak"]["gflops"] = comparison.peak.empty()
                               ? nlohmann::ordered_json(nullptr)
                               : nlohmann::ordered_json(cli::median(comparison.peak) * kGiga);
  json["sparse"] = timed_json(flags, comparison, comparison.sparse);
  if (dense) {
    json["dense"] = timed_json(flags, comparison, comparison.dense);
    json["speed_up"] = speed_up(comparison);
    json["pair_ratio"] = comparison.dense.pairs / comparison.sparse.pairs;
  }
  json["warnings"] = effective.warnings;
  return cli::json_line(json);
}

std::string summary_text(const Flags& flags, const Comparison& comparison) {
  const EffectiveOptions& effective = comparison.effective;
  const Shape& shape = flags.shape;
  std::string text =
      fmt::format("engine   {} ({}), {}, {}\n", comparison.engine->name(), comparison.engine->isa(),
                  cli::count_text(effective.threads, "thread"), cli::schedule_name(effective.schedule));
  text += fmt::format("input    {}, {}, {}, rows of {} and {}, {}\n",
                      cli::count_text(shape.capacity, "token"), cli::count_text(shape.n_head, "query head"),
                      cli::count_text(shape.n_head_kv, "key/value head"), shape.d_head, shape.d_value,
                      dtype_name(shape.kv_type));
  text += fmt::format("options  batch {}, chunk {}, local {}, heavy {}, {}\n", effective.batch,
                      effective.chunk, effective.local, effective.heavy, cli::rule_text(effective));
  text += fmt::format("checked  {}\n", checked_text("sparse", comparison.sparse.checked, effective.select));
  const bool dense = !comparison.dense.seconds.empty();
  if (dense)
    text += fmt::format("         {}\n", checked_text("dense", comparison.dense.checked, effective.select));
  text += comparison.peak.empty()
              ? fmt::format("peak     {} does not run here: {}\n", comparison.arithmetic->name,
                            comparison.arithmetic_missing)
              : fmt::format("peak     {:.1f} GFLOP/s, {} on registers alone\n",
                            cli::median(comparison.peak) * kGiga, comparison.arithmetic->name);
  text += fmt::format("\n{:<9}{:>12} {:>12} {:>10} {:>10} {:>12}\n",
                      fmt::format("{} {}", flags.rounds, flags.rounds == 1 ? "round" : "rounds"), "median",
                      "p10", "GFLOP/s", "of peak", "tokens/s");
  text += timed_text("sparse", flags, comparison, comparison.sparse);
  const char* const clock = comparison.by_processor_time
                                ? "seconds by the wall; rates and ratios by processor time (one thread)\n"
                                : "all by the wall\n";
  if (!dense) return text + clock;
  text += timed_text("dense", flags, comparison, comparison.dense);
  text += fmt::format(
      "speed-up {:.2f} times (median of the rounds; p10 against p10 {:.2f}), with {:.2f} times fewer pairs\n",
      speed_up(comparison), cli::tenth(comparison.dense.judged) / cli::tenth(comparison.sparse.judged),
      comparison.dense.pairs / comparison.sparse.pairs);
  return text + clock;
}

}  // namespace headwater::bench
