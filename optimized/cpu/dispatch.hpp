#pragma once

#include <span>
#include <string>

#include "cpu/kernels/table.hpp"

namespace headwater::cpu {

/// One table of kernels and what a processor must have to run it.
struct Variant {
  const char* engine;       ///< name of the engine that uses it on every call
  const char* description;  ///< one line
  const KernelTable& (*kernels)();
  /// What this processor (or its operating system) lacks, empty if nothing.
  std::string (*missing)();
};

/// All variants, the plainest first.
std::span<const Variant> variants();

/// The variant of the engine `cpu`: the last one of the list that this processor runs. The choice follows from the
/// processor alone, never from a timing, so that it is the same in every run.
const Variant& preferred_variant();

}  // namespace headwater::cpu
