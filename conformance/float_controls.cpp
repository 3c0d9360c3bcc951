#include "conformance/float_controls.hpp"

#include <cfenv>

#include <fmt/format.h>

#ifdef __SSE__
#include <xmmintrin.h>
#endif

namespace headwater::conformance {
namespace {

#ifdef __SSE__
constexpr unsigned kFlags = 0x3f;  // the sticky bits of MXCSR

unsigned vector_controls() { return _mm_getcsr() & ~kFlags; }
void set_vector_controls(unsigned controls) { _mm_setcsr(controls | (_mm_getcsr() & kFlags)); }
#else
unsigned vector_controls() { return 0; }
void set_vector_controls(unsigned) {}
#endif

}  // namespace

FloatControls::FloatControls() : rounding_(std::fegetround()), vector_controls_(vector_controls()) {}

bool FloatControls::changed() const {
  return std::fegetround() != rounding_ || vector_controls() != vector_controls_;
}

void FloatControls::restore() const {
  std::fesetround(rounding_);
  set_vector_controls(vector_controls_);
}

std::string FloatControls::difference() const {
  return fmt::format("rounding mode {:#x} was {:#x}, MXCSR {:#x} was {:#x}", std::fegetround(), rounding_,
                     vector_controls(), vector_controls_);
}

}  // namespace headwater::conformance
