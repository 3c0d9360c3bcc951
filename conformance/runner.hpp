#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "conformance/case.hpp"
#include "conformance/ratchet.hpp"

namespace headwater::conformance {

inline constexpr std::uint64_t kDefaultSeed = 1;
inline constexpr int kDefaultThreads = 2;
inline constexpr double kDefaultTimeLimit = 120.0;

/// How cases are run.
struct Settings {
  std::uint64_t seed = kDefaultSeed;
  int threads = kDefaultThreads;
  bool quick = false;
  bool exhaustive = false;
  const Ratchet* ratchet = nullptr;  ///< null: not compared
  /// --ratchet: an engine without baselines fails; else it is not compared. Their file, "" the built-in ones.
  std::optional<std::string> ratchet_file;
  std::string plugin;  ///< absolute path of the plug-in that is tested; empty: engines of the library
  double time_limit = kDefaultTimeLimit;  ///< seconds for one case of a plug-in
};

/// The outcome of one case on one engine.
struct Result {
  const Case* test = nullptr;
  std::string engine;  ///< empty for stage cases
  Status status = Status::pass;
  std::string message;    ///< why not PASS
  std::string reproduce;  ///< the command that runs exactly this again
  double seconds = 0.0;
  std::vector<StageError> errors;
  std::string waiver;  ///< the reason of the waiver that covers it
  std::string output;  ///< what a plug-in wrote to standard output and standard error, its end
};

/// Whether a result makes the run fail.
[[nodiscard]] constexpr bool is_failure(Status status) {
  return status == Status::fail || status == Status::mistrusted;
}

/// Runs one case; every exception becomes a status.
[[nodiscard]] Result run_case(const Case& test, const Engine* engine, const Settings& settings);

/// The command that repeats one case.
[[nodiscard]] std::string reproduction(const Case& test, const Engine* engine, const Settings& settings);

/// "cpu-portable/x86-64-v2": what baselines are filed under; those of `cpu` under the engine that it stands for here.
[[nodiscard]] std::string ratchet_name(const Engine& engine);

/// A line for each engine whose accuracy is not compared, because no baselines are recorded for it.
[[nodiscard]] std::vector<std::string> not_compared(const std::vector<const Engine*>& engines,
                                                    const Settings& settings);

}  // namespace headwater::conformance
