#include "runtime/model/kernels/kernels.hpp"

#include <array>
#include <span>

#include "headwater/detail/processor.hpp"

namespace headwater::runtime {
namespace {

using detail::Feature;

constexpr std::array kAvx512 = {Feature::avx2,     Feature::fma,      Feature::f16c,    Feature::avx512f,
                                Feature::avx512bw, Feature::avx512dq, Feature::avx512vl};

bool runs(std::span<const Feature> needs) { return detail::missing_feature(needs).empty(); }

}  // namespace

const Kernels& kernels() {
  static const Kernels& best = runs(kAvx512)         ? kKernelsAvx512
                               : runs(detail::kAvx2) ? kKernelsAvx2
                                                     : kKernelsBaseline;
  return best;
}

}  // namespace headwater::runtime
