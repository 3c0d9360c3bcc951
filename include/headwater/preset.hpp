#pragma once

#include <cstdint>

#include "headwater/dtype.hpp"
#include "headwater/engine.hpp"
#include "headwater/options.hpp"

namespace headwater {

/// How close a sparse prefill stays to dense attention, and at what price. docs/quality.md has divergence and time of each
/// on real models.
enum class Quality : std::uint8_t {
  fast = 0,      ///< the least time
  balanced = 1,  ///< the default of `headwater generate` and of the Python package
  exact = 2,     ///< dense attention
};

/// Tokens at the end of a sparse turn that are left to a dense decode step, so that a question there sees every token.
inline constexpr std::int64_t kDenseTail = 64;

/// Options that were measured on real models, for callers who do not choose their own. (Options{} are those of the founding
/// plan: rule `h2o`, nothing pinned.) `balanced` is rule `sketches`, `fast` rule `blocks`, both with pinned first tokens.
[[nodiscard]] HEADWATER_API Options preset(Quality quality);

/// The same for an engine: Options{} where it lacks the rule. Errors: those of has_rule().
[[nodiscard]] HEADWATER_API Options preset(Quality quality, const Engine& engine);

/// Whether an engine has a rule. Errors: those of Engine::open() but for invalid_argument.
[[nodiscard]] HEADWATER_API bool has_rule(const Engine& engine, Select rule);

}  // namespace headwater
