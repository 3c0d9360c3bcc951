#include "reference/fusion.hpp"

#include <cmath>
#include <cstddef>
#include <limits>

namespace headwater::reference {

// FUSE-1
SoftmaxRow fuse(const SoftmaxRow& a, const SoftmaxRow& b) {
  SoftmaxRow fused = neutral_row(static_cast<std::int64_t>(a.o.size()));
  // NUM-2: a NaN on either side must show, and no comparison with it is ever true.
  fused.m = (b.m > a.m || std::isnan(b.m)) ? b.m : a.m;
  if (fused.m == -std::numeric_limits<double>::infinity()) return fused;  // two neutrals give o = 0

  const double weight_a = a.l * std::exp(a.m - fused.m);
  const double weight_b = b.l * std::exp(b.m - fused.m);
  fused.l = weight_a + weight_b;
  for (std::size_t c = 0; c < fused.o.size(); ++c) {
    fused.o[c] = (a.o[c] * weight_a + b.o[c] * weight_b) / fused.l;
  }
  return fused;
}

}  // namespace headwater::reference
