#include "cli/commands/attend/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/support/json_text.hpp"
#include "cli/support/text.hpp"

namespace headwater::cli {
namespace {

double minimum(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace

std::string json_text(const AttendReport& report) {
  const EffectiveOptions& effective = report.effective;
  nlohmann::ordered_json json;
  json["engine"] = report.engine;
  json["isa"] = report.isa;
  json["threads"] = effective.threads;
  json["effective"] = effective_json(effective, {{"scale", effective.scale},
                                                 {"softcap", effective.softcap},
                                                 {"score_type", score_type_name(effective.score_type)},
                                                 {"schedule", schedule_name(effective.schedule)}});
  json["tokens"] = report.tokens;
  json["chunks"] = report.chunks;
  json["heads"] = report.heads;
  json["heads_kv"] = report.heads_kv;
  json["d_head"] = report.d_head;
  json["d_value"] = report.d_value;
  json["q_type"] = dtype_name(report.q_type);
  json["kv_type"] = dtype_name(report.kv_type);
  json["pairs"] = report.pairs;
  json["pairs_dense"] = report.pairs_dense;
  json["seconds"] = {{"min", minimum(report.seconds)},
                     {"median", median(report.seconds)},
                     {"repeats", report.seconds.size()}};
  json["memory_bytes"] = report.memory.total();
  json["memory"] = {{"kv", report.memory.kv},
                    {"scores", report.memory.scores},
                    {"memory_sets", report.memory.memory_sets},
                    {"workspace", report.memory.workspace}};
  json["output_bytes"] = report.output_bytes;
  json["warnings"] = report.warnings;
  return json_line(json);
}

std::string summary_text(const AttendReport& report) {
  const EffectiveOptions& effective = report.effective;
  const double share = 100.0 * static_cast<double>(report.pairs) / static_cast<double>(report.pairs_dense);
  std::string text = fmt::format("input    {}, {}, {}, rows of {} and {} (q {}, k and v {})\n",
                                 count_text(report.tokens, "token"), count_text(report.heads, "query head"),
                                 count_text(report.heads_kv, "key/value head"), report.d_head, report.d_value,
                                 dtype_name(report.q_type), dtype_name(report.kv_type));
  text += fmt::format("engine   {} ({}), {}, {}\n", report.engine, report.isa,
                      count_text(effective.threads, "thread"), schedule_name(effective.schedule));
  text += fmt::format("options  batch {}, chunk {}, local {}, heavy {}, {}\n", effective.batch,
                      effective.chunk, effective.local, effective.heavy, rule_text(effective));
  text += fmt::format("pairs    {} of {} per head, {:.1f} % of dense attention, in {}\n", report.pairs,
                      report.pairs_dense, share, count_text(report.chunks, "chunk"));
  text += fmt::format("time     {:.4g} s", minimum(report.seconds));
  if (report.seconds.size() > 1) {
    text += fmt::format(" (best of {} runs, median {:.4g} s)", report.seconds.size(), median(report.seconds));
  }
  text += fmt::format("\nmemory   {} (K and V {}, scores {}, memory sets {}, workspace {})\n",
                      bytes_text(static_cast<std::uint64_t>(report.memory.total())),
                      bytes_text(static_cast<std::uint64_t>(report.memory.kv)),
                      bytes_text(static_cast<std::uint64_t>(report.memory.scores)),
                      bytes_text(static_cast<std::uint64_t>(report.memory.memory_sets)),
                      bytes_text(static_cast<std::uint64_t>(report.memory.workspace)));
  text += fmt::format("output   {} ({})\n", one_line(report.output), bytes_text(report.output_bytes));
  return text;
}

}  // namespace headwater::cli
