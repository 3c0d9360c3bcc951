#include "cli/support/chosen_engine.hpp"

#include <algorithm>
#include <cstdlib>

#include "cli/support/failure.hpp"
#include "headwater/error.hpp"

namespace headwater::cli {
namespace {

constexpr const char* kLeftOut = "cuda";  ///< the engine that a build may be without

}  // namespace

const Engine& chosen_engine(const std::string& name) {
  try {
    return engine(name);
  } catch (const Error& error) {
    const char* const variable = std::getenv("HEADWATER_ENGINE");
    const std::string wanted = !name.empty() || variable == nullptr ? name : variable;
    const auto all = engines();
    if (std::any_of(all.begin(), all.end(), [&](const Engine* e) { return e->name() == wanted; })) throw;
    if (wanted != kLeftOut) throw Failure(error.what());
    throw Failure(ExitCode::no_engine, std::string("this build has no engine cuda: ") + error.what());
  }
}

}  // namespace headwater::cli
