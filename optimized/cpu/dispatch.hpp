#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpu/kernels/bf16/table.hpp"
#include "cpu/kernels/sketch_table.hpp"
#include "cpu/kernels/table.hpp"
#include "headwater/detail/processor.hpp"

namespace headwater::cpu {

/// Kernels that multiply sketches, and what a processor must have for them beside what the engine needs.
struct SketchChoice {
  const SketchTable* table;
  std::span<const detail::Feature> needs;
};

/// The kernels of an engine and what a processor must have to run them.
struct Variant {
  const char* engine;       ///< name of the engine that uses it on every call
  const char* description;  ///< one line
  const KernelTable* kernels;
  const Bf16Table* bf16;  ///< for calls whose Q, K and V are all BF16; null: `kernels` computes them, too
  std::span<const detail::Feature> needs;
  std::span<const SketchChoice> sketch_choices;  ///< the best first
  /// Votes by sketches in integers: the first choice that this processor has all for; null: in floats.
  [[nodiscard]] const SketchTable* sketches() const;
  /// What this processor (or its operating system) lacks, empty if nothing.
  [[nodiscard]] std::string missing() const { return detail::missing_feature(needs); }
};

/// All variants, the plainest first.
std::span<const Variant> variants();

enum class Vendor { any, amd, intel };

/// What the choice of a variant follows from.
struct Processor {
  Vendor vendor = Vendor::any;         ///< any: neither of the others
  int family = 0;                      ///< as CPUID counts it, the extended one added
  std::vector<std::string_view> runs;  ///< engines for which it lacks nothing
};

/// A row of the table of preferences.
struct Preference {
  std::string_view engine;
  Vendor vendor;          ///< of the processors that it is about
  int first_family;       ///< and later ones
  std::string_view rows;  ///< types of Q, K and V that it is about: all or BF16
  std::string_view reason;
};

Processor this_processor();

/// The last row of the table that applies to a processor which runs at least cpu-portable.
const Preference& preference_for(const Processor& processor);

/// That of this processor.
const Preference& preference();

/// The variant of the engine `cpu`: it follows from the processor alone, never from a timing, so that it is the same in
/// every run.
const Variant& preferred_variant();

}  // namespace headwater::cpu
