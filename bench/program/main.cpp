// The program `headwater-bench`, which `headwater bench` becomes: it sees the oracle and the instruction sets, which the
// program of the users must not.

#include <fmt/format.h>

#include <exception>
#include <new>
#include <string>
#include <vector>

#include "cli/chosen_engine.hpp"
#include "cli/failure.hpp"
#include "cli/interrupt.hpp"
#include "cli/streams.hpp"
#include "cli/text.hpp"
#include "comparison.hpp"
#include "conformance/case.hpp"
#include "flags.hpp"
#include "headwater/headwater.hpp"
#include "report.hpp"
#ifdef HEADWATER_HAS_RUNTIME
#include "bench/model/measurement.hpp"
#include "bench/model/report.hpp"
#endif

namespace headwater::bench {

namespace {

constexpr const char* kCommand = "headwater bench";

#ifdef HEADWATER_HAS_RUNTIME
cli::ExitCode run_model(const std::vector<std::string>& arguments) {
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

int report(const std::string& message, cli::ExitCode code) {
  cli::print_error(cli::one_line(fmt::format("{}: {}", kCommand, message)) + "\n");
  return static_cast<int>(code);
}

}  // namespace

}  // namespace headwater::bench

int main(int argc, char** argv) {
  using namespace headwater;
  using cli::ExitCode;
  cli::prepare_streams();
  try {
    return static_cast<int>(bench::run({argv + (argc > 0 ? 1 : 0), argv + argc}));
  } catch (const cli::ReaderGone&) {
    return cli::kReaderGone;
  } catch (const cli::Failure& failure) {
    return bench::report(failure.what(), failure.code());
  } catch (const Error& error) {
    const bool engine = error.code() == ErrorCode::engine_unavailable;
    return bench::report(error.what(), engine ? ExitCode::no_engine : ExitCode::bad_input);
  } catch (const conformance::Violation& violation) {
    return bench::report(fmt::format("the result is wrong: {}", violation.what()), ExitCode::check_failed);
  } catch (const std::bad_alloc&) {
    return bench::report("out of memory; use fewer tokens or heads", ExitCode::bad_input);
  } catch (const std::exception& error) {
    return bench::report(error.what(), ExitCode::bad_input);
  }
}
