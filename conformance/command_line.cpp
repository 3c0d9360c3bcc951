#include "conformance/command_line.hpp"

#include <CLI/CLI.hpp>

#include "cli/support/arguments.hpp"
#include "cli/support/failure.hpp"
#include "conformance/program.hpp"

namespace headwater::conformance {
namespace {

constexpr const char* kAbout =
    "Proves that engines compute the spec.\n"
    "Example: headwater-conformance --engine cpu-portable --lane bound,replay\n"
    "         headwater-conformance --engine-plugin ./libmine.so --report report\n"
    "Exit status: 0 all PASS (SKIP is said), 1 a check failed, 2 bad usage or input, 3 engine not available.";

const std::vector<std::string> kLanes{"exact",       "bound", "adversarial", "bias",  "replay",
                                      "determinism", "law",   "hostile",     "state", "shape"};

}  // namespace

std::optional<Request> parse_command_line(const std::vector<std::string>& arguments) {
  Request request;
  CLI::App app{kAbout, kProgram};
  bool list = false;
  bool clauses = false;
  bool self_test = false;
  bool saboteurs = false;
  const auto several = [&](const char* name, std::vector<std::string>& to, const char* help) {
    return app.add_option(name, to, help)->delimiter(',')->allow_extra_args(false);
  };
  CLI::Option* engine = several("--engine", request.engines,
                                "engines to run, names or shell patterns: 'cpu-*' (default: all, and the "
                                "stage cases); none: stage cases only");
  CLI::Option* plugin =
      app.add_option(
             "--engine-plugin", request.settings.plugin,
             "test the engine of this shared object (headwater/plugin.h), each case in its own process")
          ->type_name("FILE")
          ->excludes(engine);
  app.add_option("--time-limit", request.settings.time_limit, "seconds after which a case of a plug-in hangs")
      ->check(CLI::Range(0.1, 86400.0))
      ->capture_default_str()
      ->needs(plugin);
  several("--case", request.cases, "case names or shell patterns: 'bound.*'");
  several("--clause", request.clauses, "clause ids: MEM-3");
  several("--stage", request.stages, "stages: selection, attention, ...");
  several("--lane", request.lanes, "lanes")->check(CLI::IsMember(kLanes));
  app.add_option("--seed", request.settings.seed, "seed of all random inputs")->capture_default_str();
  app.add_option("--threads,-t", request.settings.threads, "threads of ordinary runs")
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  app.add_flag("--quick", request.settings.quick, "fewer and smaller inputs, for sanitizers");
  app.add_flag("--exhaustive", request.settings.exhaustive, "sweeps over all 2^32 floats");
  app.add_flag("--list", list, "list the cases (with --json: for machines)");
  app.add_flag("--clauses", clauses, "the table clause -> cases; exit status 1 where it has a hole");
  app.add_option("--json", request.json, "write results as JSON to FILE, - is standard output")
      ->type_name("FILE")
      ->expected(0, 1)
      ->default_str("-");
  app.add_option("--junit", request.junit, "write results as JUnit XML to FILE")->type_name("FILE");
  app.add_option("--html", request.html, "write a readable report as one HTML page to FILE")
      ->type_name("FILE");
  app.add_option("--report", request.report, "write report.json and report.html into DIR")->type_name("DIR");
  app.add_option("--waivers", request.waivers, "failures to tolerate, instead of the built-in list")
      ->type_name("FILE");
  std::string baselines;
  CLI::Option* ratchet =
      app.add_option("--ratchet", baselines,
                     "every engine must have baselines, those of FILE or the built-in ones; "
                     "without it one that has none is not compared")
          ->type_name("FILE")
          ->expected(0, 1);
  app.add_option("--update-ratchet", request.update_ratchet, "record the baselines of this run in FILE")
      ->type_name("FILE");
  app.add_flag("--no-ratchet", request.no_ratchet, "do not compare with recorded baselines")
      ->excludes(ratchet);
  app.add_flag("--fail-fast", request.fail_fast, "stop after the first case that fails");
  app.add_flag("--must-pass", request.must_pass,
               "fail where something of mustpass.txt did not run or was skipped")
      ->excludes(plugin);
  app.add_flag("--self-test", self_test,
               "prove that the kit can fail: engines with a fault wrapped around them")
      ->excludes(plugin);
#ifdef HEADWATER_TESTING
  app.add_flag("--saboteurs", saboteurs,
               "activate every fault of saboteurs.json; each must be killed by its case")
      ->excludes(plugin);
#endif
  CLI::App* verify =
      app.add_subcommand("verify",
                         "Checks an output file of `headwater attend` against the oracle, teacher-forced.\n"
                         "Example: headwater-conformance verify trace.safetensors out.safetensors --json");
  verify->add_option("IN", request.input, "input of attend (safetensors)")->required();
  verify->add_option("OUT", request.output, "output of attend (safetensors)")->required();
  verify->add_option("--against", request.against, "another output: report the difference")
      ->type_name("FILE");
  verify->add_option("--json", request.json, "write the report as JSON to FILE, - is standard output")
      ->type_name("FILE")
      ->expected(0, 1)
      ->default_str("-");
  verify->add_option("--threads,-t", request.settings.threads, "threads of the oracle")
      ->check(CLI::Range(1, 512));
  app.require_subcommand(0, 1);
  if (!cli::parse_arguments(app, arguments)) return std::nullopt;
  if (ratchet->count() > 0) request.settings.ratchet_file = baselines;
  // CLI11 leaves an option with an optional value empty when the value is left out.
  const bool json_asked = app.count("--json") > 0 || verify->count("--json") > 0;
  if (json_asked && request.json.empty()) request.json = "-";
  const int actions = list + clauses + self_test + saboteurs + verify->parsed();
  if (actions > 1) {
    throw cli::Failure("only one of --list, --clauses, --self-test, --saboteurs and verify is allowed");
  }
  if (list) request.action = Request::Action::list;
  if (clauses) request.action = Request::Action::clauses;
  if (self_test) request.action = Request::Action::self_test;
  if (saboteurs) request.action = Request::Action::saboteurs;
  if (verify->parsed()) request.action = Request::Action::verify;
  return request;
}

}  // namespace headwater::conformance
