#include "runtime/model/kernels/kernels.hpp"

#include <cpuid.h>

namespace headwater::runtime {
namespace {

// clang 14's __builtin_cpu_supports does not know F16C. The registers are those of AVX2, asked for beside it.
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool has_avx2() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 && has_f16c();
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512dq") != 0;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& best = has_avx512() ? kKernelsAvx512 : has_avx2() ? kKernelsAvx2 : kKernelsBaseline;
  return best;
}

}  // namespace headwater::runtime
