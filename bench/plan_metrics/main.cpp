// The rows of the source plan's metrics that are times: headwater-plan-metrics [--engine NAME] [--row ID ...] prints one
// JSON object. Nothing is asserted here; docs/plan-metrics.md shows figures beside their targets. Medians of repeated runs, and
// what is compared is measured in turn.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/plan_metrics/rows.hpp"
#include "cli/support/streams.hpp"
#include "headwater/headwater.hpp"

namespace {

namespace cli = headwater::cli;
using headwater::bench::metric_rows;
using headwater::bench::MetricRow;

void list() {
  for (const MetricRow& row : metric_rows()) cli::print_out(fmt::format("{}\n", row.id));
}

void require_known(const std::vector<std::string>& wanted) {
  const auto all = metric_rows();
  for (const std::string& name : wanted) {
    if (std::any_of(all.begin(), all.end(), [&](const MetricRow& row) { return name == row.id; })) continue;
    throw std::invalid_argument(fmt::format("--row '{}' is not measured here; --list has what is", name));
  }
}

void measure(const std::string& engine, const std::vector<std::string>& wanted) {
  nlohmann::ordered_json json;
  json["engine"] = headwater::engine(engine).name();
  json["isa"] = headwater::engine(engine).isa();
  auto& rows = json["rows"] = nlohmann::ordered_json::object();
  for (const MetricRow& row : metric_rows()) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), row.id) == wanted.end()) continue;
    const std::string measured = row.measure(engine);
    rows[row.id] = measured;
    cli::print_error(fmt::format("{}: {}\n", row.id, measured));
  }
  cli::print_out(json.dump(2) + "\n");
}

}  // namespace

int main(int argc, char** argv) {
  cli::prepare_streams();
  CLI::App app("Measures the rows of docs/plan-metrics.md that are times.", "headwater-plan-metrics");
  bool only_list = false;
  std::string engine = "cpu";
  std::vector<std::string> rows;
  app.add_flag("--list", only_list, "list the rows");
  app.add_option("--engine", engine, "engine to measure (cpu)");
  app.add_option("--row", rows, "rows to measure, as P1.2 (all)");
  std::int64_t peak = 0;
  bool dense = false;
  app.add_option("--peak", peak,
                 "print KiB that a prefill of this many tokens adds at its peak, nothing else")
      ->check(CLI::Range(1024, 1 << 20));
  app.add_flag("--dense", dense, "with --peak: of a dense session");
  CLI11_PARSE(app, argc, argv);
  try {
    require_known(rows);
    if (only_list) {
      list();
    } else if (peak > 0) {
      cli::print_out(fmt::format("{}\n", headwater::bench::peak_kibibytes(engine, peak, dense)));
    } else {
      measure(engine, rows);
    }
    return 0;
  } catch (const cli::ReaderGone&) {
    return cli::kReaderGone;
  } catch (const std::exception& error) {
    cli::print_error(fmt::format("headwater-plan-metrics: {}\n", error.what()));
    return 2;
  }
}
