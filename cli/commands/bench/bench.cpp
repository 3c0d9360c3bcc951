// `headwater bench`. It sees the conformance kit, which checks a run before it is timed, and loops for each instruction set;
// no other command does.

#include <fmt/format.h>

#include <new>
#include <string>
#include <vector>

#include "cli/commands/bench/comparison.hpp"
#include "cli/commands/bench/flags.hpp"
#include "cli/commands/bench/report.hpp"
#include "cli/commands/commands.hpp"
#include "cli/support/chosen_engine.hpp"
#include "cli/support/failure.hpp"
#include "cli/support/interrupt.hpp"
#include "cli/support/streams.hpp"
#include "conformance/case.hpp"
#include "headwater/headwater.hpp"
#ifdef HEADWATER_HAS_RUNTIME
#include "cli/commands/bench/model_measurement.hpp"
#include "cli/commands/bench/model_report.hpp"
#endif

namespace headwater::bench {

namespace {

constexpr const char* kCommand = "headwater bench";

#ifdef HEADWATER_HAS_RUNTIME
cli::ExitCode run_model(const std::vector<std::string>& arguments) {
  cli::join_ranks(kCommand, arguments);
  const auto flags = parse_model_flags(arguments);
  if (!flags) return cli::ExitCode::done;
  cli::install_signal_handlers(kCommand, flags->model.model);
  if (flags->save) {
    save_random_model(*flags);
    return cli::ExitCode::done;
  }
  const ModelMeasurement measurement = measure_model(*flags);
  cli::print_out(flags->json ? json_text(*flags, measurement) : summary_text(*flags, measurement));
  return cli::ExitCode::done;
}
#endif

cli::ExitCode run(const std::vector<std::string>& arguments) {
#ifdef HEADWATER_HAS_RUNTIME
  if (is_model_bench(arguments)) return run_model(arguments);
#endif
  const auto flags = parse_flags(arguments);
  if (!flags) return cli::ExitCode::done;
  const Engine& chosen = cli::chosen_engine(flags->engine);
  cli::install_signal_handlers(kCommand, {});
  const Comparison comparison = compare(*flags, chosen);
  cli::print_out(flags->json ? json_text(*flags, comparison) : summary_text(*flags, comparison));
  return cli::ExitCode::done;
}

}  // namespace

}  // namespace headwater::bench

namespace headwater::cli {

ExitCode bench_command(const Arguments& arguments) {
  try {
    return bench::run(arguments);
  } catch (const conformance::Violation& violation) {
    throw Failure(ExitCode::check_failed, fmt::format("the result is wrong: {}", violation.what()));
  } catch (const std::bad_alloc&) {
    throw Failure("out of memory; use fewer tokens or heads");
  }
}

}  // namespace headwater::cli
