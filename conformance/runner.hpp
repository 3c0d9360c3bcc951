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

/// How cases are run.
struct Settings {
  std::uint64_t seed = kDefaultSeed;
  int threads = kDefaultThreads;
  bool quick = false;
  bool exhaustive = false;
  const Ratchet* ratchet = nullptr;  ///< null: not compared
};

/// What became of one case on one engine.
struct Result {
  const Case* test = nullptr;
  std::string engine;  ///< empty for stage cases
  Status status = Status::pass;
  std::string message;    ///< why not PASS
  std::string reproduce;  ///< the command that runs exactly this again
  double seconds = 0.0;
  std::vector<Mark> marks;
};

/// Runs one case; every exception becomes a status.
[[nodiscard]] Result run_case(const Case& test, const Engine* engine, const Settings& settings);

/// "cpu-portable/x86-64-v2": what marks are filed under.
[[nodiscard]] std::string ratchet_name(const Engine& engine);

}  // namespace headwater::conformance
