#include "conformance/runner.hpp"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "conformance/crash_note.hpp"
#include "conformance/program.hpp"
#include "conformance/random.hpp"
#include "headwater/error.hpp"

namespace headwater::conformance {
namespace {

// As a shell takes it back: 'it'\''s'.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

}  // namespace

std::string reproduction(const Case& test, const Engine* engine, const Settings& settings) {
  std::string command(kProgram);
  if (!settings.plugin.empty()) {
    command += " --engine-plugin " + quoted(settings.plugin);
    if (settings.time_limit != kDefaultTimeLimit)
      command += fmt::format(" --time-limit {}", settings.time_limit);
  } else if (engine != nullptr) {
    command += fmt::format(" --engine {}", engine->name());
  }
  command += fmt::format(" --case {} --seed {}", test.name, settings.seed);
  if (settings.threads != kDefaultThreads) command += fmt::format(" --threads {}", settings.threads);
  if (settings.quick) command += " --quick";
  if (settings.exhaustive) command += " --exhaustive";
  if (settings.ratchet_file) {
    command += " --ratchet";
    if (!settings.ratchet_file->empty()) command += fmt::format(" {}", quoted(*settings.ratchet_file));
  }
  return command;
}

std::string ratchet_name(const Engine& engine) {
  std::string_view name = engine.name();
  // Tiles in software give the bits of the real ones.
  if (name == "cpu-amx-emulated") return "cpu-amx/AMX-BF16";
  if (name == "cpu") {
    const auto all = engines();
    const auto twin = std::find_if(all.begin(), all.end(), [&](const Engine* other) {
      return other->name() != name && other->isa() == engine.isa();
    });
    if (twin != all.end()) name = (*twin)->name();
  }
  return fmt::format("{}/{}", name, engine.isa());
}

std::vector<std::string> not_compared(const std::vector<const Engine*>& engines, const Settings& settings) {
  std::vector<std::string> lines;
  if (settings.ratchet == nullptr || settings.ratchet_file || settings.seed != kDefaultSeed) return lines;
  for (const Engine* engine : engines) {
    const std::string name = ratchet_name(*engine);
    if (settings.ratchet->has(name)) continue;
    lines.push_back(fmt::format(
        "SKIP       ratchet: no baselines are recorded for {}; --ratchet makes that a failure", name));
  }
  return lines;
}

Result run_case(const Case& test, const Engine* engine, const Settings& settings) {
  Result result;
  result.test = &test;
  if (engine != nullptr) result.engine = engine->name();
  result.reproduce = reproduction(test, engine, settings);

  Context context;
  context.engine = engine;
  context.seed = mix_seed(settings.seed, test.name);
  context.threads = settings.threads;
  context.quick = settings.quick;
  context.exhaustive = settings.exhaustive;
  const auto start = std::chrono::steady_clock::now();
  set_crash_note(result.reproduce);
  try {
    test.body(context);
  } catch (const Skipped& skipped) {
    result.status = Status::skip;
    result.message = skipped.what();
  } catch (const Violation& violation) {
    result.status = Status::fail;
    result.message = violation.what();
  } catch (const Error& error) {
    result.status = Status::fail;
    result.message = fmt::format("headwater::Error {}: {}", static_cast<int>(error.code()), error.what());
  } catch (const std::exception& error) {
    result.status = Status::fail;
    result.message = fmt::format("an exception that is not a headwater::Error: {}", error.what());
  }
  set_crash_note({});
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.errors = context.errors();
  if (result.status != Status::pass) return result;
  if (const std::string stage = context.mistrusted(); !stage.empty()) {
    result.status = Status::mistrusted;
    result.message = stage + ": the bounds are as large as the signals: nothing was shown";
  } else if (settings.ratchet != nullptr && engine != nullptr) {
    // Other seeds draw other inputs: the baselines belong to the default one.
    const std::string name = ratchet_name(*engine);
    const bool compared =
        settings.seed == kDefaultSeed && (settings.ratchet_file || settings.ratchet->has(name));
    const auto worse = compared ? settings.ratchet->judge(name, test.name, result.errors) : std::nullopt;
    if (worse) {
      result.status = Status::fail;
      result.message = *worse;
    }
  }
  return result;
}

}  // namespace headwater::conformance
