#pragma once

#include <string>

namespace headwater::conformance {

/// How this thread computes with floating-point numbers: rounding, flushing of subnormals, traps; not the flags that
/// arithmetic raises. The oracles compute on the thread that calls a plug-in: one that leaves subnormals flushed there, as
/// objects linked with -ffast-math do when they are loaded (GCC bug 55522), would be judged by oracles that flush, too.
class FloatControls {
 public:
  /// As they are now.
  FloatControls();
  /// Whether they are others by now.
  [[nodiscard]] bool changed() const;
  /// Makes them what they were.
  void restore() const;
  /// What differs now, for a message; call it before restore().
  [[nodiscard]] std::string difference() const;

 private:
  int rounding_;
  unsigned vector_controls_;  // x86: MXCSR without its flags; 0 elsewhere
};

}  // namespace headwater::conformance
