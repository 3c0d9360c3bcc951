#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/commands/commands.hpp"
#include "cli/support/cpu_features.hpp"
#include "cli/support/failure.hpp"
#include "cli/support/flag_set.hpp"
#include "cli/support/json_text.hpp"
#include "cli/support/machine.hpp"
#include "cli/support/numbers.hpp"
#include "cli/support/streams.hpp"
#include "cli/support/text.hpp"
#include "headwater/headwater.hpp"
#ifdef HEADWATER_HAS_RUNTIME
#include "cli/support/model_facts.hpp"
#include "cli/support/model_flags.hpp"
#include "runtime/model/panel_product.hpp"
#endif

namespace headwater::cli {
namespace {

struct Part {
  const char* name;
  bool present;
  std::string note;
};

bool has_engine(std::string_view name) {
  const auto all = engines();
  return std::any_of(all.begin(), all.end(), [&](const Engine* e) { return e->name() == name; });
}

#ifdef HEADWATER_HAS_BENCH
constexpr bool kBench = true;
#else
constexpr bool kBench = false;
#endif

/// What a build may leave out.
std::vector<Part> parts() {
  const std::string conformance = find_conformance();
#ifdef HEADWATER_HAS_RUNTIME
  const std::string runtime_note = fmt::format("generate, perplexity; projections in {}",
                                               runtime::describe_products(runtime::automatic_precision()));
  constexpr bool kRuntime = true;
#else
  const std::string runtime_note = "this build has no model runtime: oneDNN or PCRE2 was not found";
  constexpr bool kRuntime = false;
#endif
  return {
      {"runtime", kRuntime, runtime_note},
      {"bench", kBench, kBench ? "headwater bench" : "this build has no benchmarks"},
      {"conformance", !conformance.empty(),
       conformance.empty() ? "headwater-conformance is neither beside this program nor on PATH"
                           : conformance},
      {"cuda", has_engine("cuda"), has_engine("cuda") ? "engine cuda" : "this build has no engine cuda"},
  };
}

std::string default_engine() {
  try {
    return std::string(engine().name());
  } catch (const Error&) {
    return {};  // HEADWATER_ENGINE names none that runs here; attend says so with the list of what there is
  }
}

nlohmann::ordered_json info_json(const CpuFeatures& cpu) {
  nlohmann::ordered_json json;
  json["version"] = kVersion;
  json["cpu"] = {{"brand", cpu.brand}, {"vendor", cpu.vendor},     {"family", cpu.family},
                 {"model", cpu.model}, {"features", cpu.features}, {"cores", usable_cores()}};
  auto& list = json["engines"] = nlohmann::ordered_json::array();
  for (const Engine* e : engines()) {
    const std::string reason = e->unavailable_because();
    list.push_back({{"name", e->name()},
                    {"available", reason.empty()},
                    {"reason", reason},
                    {"isa", e->isa()},
                    {"description", e->description()}});
  }
  const std::string chosen = default_engine();
  json["default_engine"] = chosen.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(chosen);
  json["memory_total"] = memory_limit();
  auto& built = json["parts"] = nlohmann::ordered_json::array();
  for (const Part& part : parts()) {
    built.push_back({{"name", part.name}, {"available", part.present}, {"note", part.note}});
  }
  return json;
}

std::string info_text(const CpuFeatures& cpu) {
  std::string text = fmt::format("headwater {}\n", kVersion);
  text += fmt::format("cpu      {} ({}, family {}, model {}), {}\n", cpu.brand, cpu.vendor, cpu.family,
                      cpu.model, count_text(usable_cores(), "core"));
  text += fmt::format("         {}\n", fmt::join(cpu.features, " "));
  text += fmt::format("memory   {}\n", bytes_text(memory_limit()));
  const std::string chosen = default_engine();
  text += "engines\n";
  for (const Engine* e : engines()) {
    const std::string reason = e->unavailable_because();
    text += fmt::format("  {:<14} {:<12} {}{}{}\n", e->name(), e->isa(), e->description(),
                        reason.empty() ? "" : "; not available: " + reason,
                        e->name() == chosen ? " [default]" : "");
  }
  if (chosen.empty()) text += "  HEADWATER_ENGINE names none of those that are available\n";
  text += "parts\n";
  for (const Part& part : parts()) {
    text += fmt::format("  {:<14} {:<12} {}\n", part.name, part.present ? "present" : "absent",
                        one_line(part.note));
  }
  return text;
}

}  // namespace

ExitCode info_command(const std::vector<std::string>& arguments) {
  bool json = false;
  FlagSet set("The machine, the engines, and what this build has; or with -m what a model file is.",
              "headwater info",
              "\nExample: names of the engines that run here\n"
              "  headwater info --json | jq -r '.engines[] | select(.available) | .name'");
#ifdef HEADWATER_HAS_RUNTIME
  ModelFlags flags;
  flags.precision = runtime::automatic_precision();
  set.file("-m,--model", "-m (--model)", "MODEL",
           "say what this GGUF file is, whether it can run, which layers are sparse, what memory it takes",
           flags.model);
  set.integer("-c,--ctx-size", "-c (--ctx-size)", 1, kMaxCount,
              "of -m: tokens of the conversation (the file's)", flags.context);
  declare_rotation(set, flags.rotation);
  const CLI::Option* const cache = flags.declare_cache(set);
#endif
  set.json(json);
  if (!set.parse(arguments)) return ExitCode::done;
#ifdef HEADWATER_HAS_RUNTIME
  if (!flags.model.empty()) {
    const ModelFacts facts(flags);
    warn(facts.warnings());
    print_out(json ? json_line(facts.json()) : facts.text());
    return ExitCode::done;
  }
  const std::string of_a_model = " is of a model; give -m FILE with it";
  if (flags.context) throw Failure("-c (--ctx-size)" + of_a_model);
  if (!flags.rotation.empty()) throw Failure(flags.rotation.front().source + of_a_model);
  if (cache->count() > 0) throw Failure("--cache-type" + of_a_model);
#endif
  const CpuFeatures cpu = read_cpu_features();
  print_out(json ? json_line(info_json(cpu)) : info_text(cpu));
  return ExitCode::done;
}

}  // namespace headwater::cli
