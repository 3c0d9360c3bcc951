#pragma once

#include <string>

namespace headwater::conformance {

/// How this thread computes with floating-point numbers: rounding, flushing of subnormals, traps; not the flags that
/// arithmetic raises. The oracles compute on the thread that calls a plug-in: one that leaves subnormals flushed there, as
/// objects linked with -ffast-math do when they are loaded (GCC bug 55522), would meet oracles that flush, too.
class FloatControls {
 public:
  /// The controls of this thread now.
  FloatControls();
  /// Whether the thread's controls differ from these.
  [[nodiscard]] bool changed() const;
  /// Sets the thread's controls to these.
  void restore() const;
  /// What differs now, for a message; call it before restore().
  [[nodiscard]] std::string difference() const;

 private:
  int rounding_;
  unsigned vector_controls_;  // x86: MXCSR without its flags; 0 elsewhere
};

}  // namespace headwater::conformance
