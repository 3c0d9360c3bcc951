#pragma once

#include <cmath>

namespace headwater::conformance {

/// Whether an error or a ratio is worse than another one. NaN is worse than every number, so that a
/// number never hides it.
[[nodiscard]] inline bool worse(double a, double than) { return !std::isnan(than) && !(a <= than); }
[[nodiscard]] inline double worse_of(double a, double b) { return worse(b, a) ? b : a; }

}  // namespace headwater::conformance
