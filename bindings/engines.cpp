// The list of engines, one line each; docs/HACKING.md says how to add one.

#include <array>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "headwater/engine.hpp"
#include "headwater/error.hpp"

// Engines of test builds only.
#ifdef HEADWATER_TESTING
#define HEADWATER_TEST_ENGINES(X) \
  X(cpu_amx_emulated_engine) X(cuda_emulated_engine) X(cuda_emulated_sm90_engine)
#else
#define HEADWATER_TEST_ENGINES(X)
#endif

// Where the build has a CUDA toolkit.
#ifdef HEADWATER_CUDA_ENGINE
#define HEADWATER_CUDA_ENGINES(X) X(cuda_engine)
#else
#define HEADWATER_CUDA_ENGINES(X)
#endif

// X(factory): a function `const Engine& factory()` in namespace headwater that the engine's folder defines.
// It returns a function-local static object, so no order of static initialisation matters. Preferred ones
// last.
#define HEADWATER_ENGINES(X) \
  X(reference_engine)        \
  X(cpu_portable_engine)     \
  X(cpu_avx2_engine)         \
  X(cpu_avx512_engine)       \
  X(cpu_avx512bf16_engine)   \
  X(cpu_amx_engine)          \
  HEADWATER_TEST_ENGINES(X)  \
  HEADWATER_CUDA_ENGINES(X)  \
  X(cpu_engine)

namespace headwater {

#define HEADWATER_DECLARE(factory) const Engine& factory();
HEADWATER_ENGINES(HEADWATER_DECLARE)
#undef HEADWATER_DECLARE

namespace {

constexpr std::string_view kDefaultEngine = "cpu";
constexpr const char* kEngineVariable = "HEADWATER_ENGINE";

// Longest engine name that a message repeats. Names of engines have about a dozen letters.
constexpr std::size_t kLongestShownName = 40;

// Printable ASCII with every other byte as \xNN, cut to a bounded length: a message is one line of valid
// UTF-8, whatever a caller or the environment holds.
std::string shown(std::string_view name) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text = "'";
  for (const char c : name.substr(0, kLongestShownName)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      text += c;
    } else {
      text += "\\x";
      text += kHex[byte >> 4];
      text += kHex[byte & 15];
    }
  }
  if (name.size() > kLongestShownName) text += "...";
  return text + "'";
}

// "reference, cpu-portable; not on this machine: cpu (needs AVX2)".
std::string what_there_is() {
  std::string available;
  std::string unavailable;
  for (const Engine* engine : engines()) {
    const std::string reason = engine->unavailable_because();
    std::string& list = reason.empty() ? available : unavailable;
    if (!list.empty()) list += ", ";
    list += engine->name();
    if (!reason.empty()) list += " (" + reason + ")";
  }
  if (available.empty()) available = "none";
  return unavailable.empty() ? available : available + "; not on this machine: " + unavailable;
}

}  // namespace

std::span<const Engine* const> engines() {
#define HEADWATER_ADDRESS(factory) &factory(),
  static const std::array kEngines{HEADWATER_ENGINES(HEADWATER_ADDRESS)};
#undef HEADWATER_ADDRESS
  return kEngines;
}

const Engine& engine(std::string_view name) {
  std::string from;
  if (name.empty()) {
    const char* environment = std::getenv(kEngineVariable);
    if (environment != nullptr && *environment != '\0') {
      name = environment;
      from = " of the environment variable " + std::string(kEngineVariable);
    } else {
      name = kDefaultEngine;
    }
  }
  for (const Engine* candidate : engines()) {
    if (candidate->name() != name) continue;
    const std::string reason = candidate->unavailable_because();
    if (reason.empty()) return *candidate;
    throw Error(ErrorCode::engine_unavailable, "engine " + shown(name) + from + " is not available here: " +
                                                   reason + "; available: " + what_there_is());
  }
  throw Error(ErrorCode::engine_unavailable,
              "engine " + shown(name) + from + " is not known; available: " + what_there_is());
}

}  // namespace headwater
