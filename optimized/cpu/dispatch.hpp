#pragma once

#include <span>
#include <string>

#include "cpu/kernels/bf16/table.hpp"
#include "cpu/kernels/table.hpp"

namespace headwater::cpu {

/// The kernels of an engine and what a processor must have to run them.
struct Variant {
  const char* engine;       ///< name of the engine that uses it on every call
  const char* description;  ///< one line
  const KernelTable& (*kernels)();
  const Bf16Table& (
      *bf16)();  ///< for calls whose Q, K and V are all BF16; null: `kernels` computes them, too
  /// What this processor (or its operating system) lacks, empty if nothing.
  std::string (*missing)();
};

/// All variants, the plainest first.
std::span<const Variant> variants();

/// The variant of the engine `cpu`, by the table of preferences in dispatch.cpp: it follows from the processor alone,
/// never from a timing, so that it is the same in every run.
const Variant& preferred_variant();

}  // namespace headwater::cpu
