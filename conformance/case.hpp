#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "headwater/engine.hpp"

namespace headwater::conformance {

/// How a case judges (docs/verification.md). The name of a lane is what `--lane` takes.
enum class Lane {
  exact,  ///< bits: discrete stages on the same inputs, or inputs whose sums have one value in every order
  bound,  ///< random inputs, error per element against a bound derived from the number formats
  adversarial,  ///< the same on inputs that are hard on purpose
  bias,         ///< signed mean error over positive inputs: finds truncation in place of rounding
  replay,       ///< scores and memory sets recomputed bit for bit from the engine's own column sums (SCORE-6)
  determinism,  ///< the same bits over threads, runs, schedules and call cuts
  law,          ///< SPEC 14: properties that need no oracle, and the independent one
  hostile,      ///< canaries, poison, guard pages, odd strides
  state,        ///< the session's state machine, validation and inspection
  shape,        ///< replay and bound at the sizes people run
};

[[nodiscard]] const char* lane_name(Lane lane);

enum class Status {
  pass,
  fail,
  skip,        ///< the hardware is absent or the engine does not claim it; the reason is always printed
  mistrusted,  ///< the bound is as large as the signal: nothing was shown
  waived,      ///< failed, and a waiver tolerates it for now, with a reason (waivers.hpp)
};

[[nodiscard]] const char* status_name(Status status);

/// Thrown by a case that found a violation. what() says what, where, got, wanted.
class Violation : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Thrown by a case that has nothing to test here; what() is the reason.
class Skipped : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The errors of one case in one stage and number format.
struct StageError {
  std::string stage;     ///< "out", "lse", "colsum_intra", "colsum_inter"
  std::string dtype;     ///< of the stored rows, "F32"
  double ratio = 0.0;    ///< the worst err/B: what the ratchet compares
  double bounds = 0.0;   ///< sum of all B ...
  double signals = 0.0;  ///< ... and of the magnitudes that they bound
};

/// The settings of a case, and the errors that it measures.
class Context {
 public:
  const Engine* engine = nullptr;  ///< null for stage cases
  std::uint64_t seed = 1;          ///< of this case, already mixed with its name
  int threads = 2;                 ///< Options::threads of ordinary runs
  bool quick = false;              ///< the subset for sanitizers: same paths, fewer and smaller inputs
  bool exhaustive = false;         ///< sweeps over all 2^32 floats

  /// `full` iterations, or a tenth of them (at least two) with --quick.
  [[nodiscard]] int rounds(int full) const { return !quick ? full : full / 10 < 2 ? 2 : full / 10; }

  /// The row types that a case of thousands of tokens takes: `all`, or the last where the engine computes in double, which
  /// costs it seconds a type and has no kernels of its own for any.
  [[nodiscard]] std::vector<DType> types(const std::vector<DType>& all) const {
    return engine->claims().double_arithmetic ? std::vector{all.back()} : all;
  }

  /// Throws Skipped with --quick where the engine computes in double: of many heads or layers it takes a sanitizer as long as
  /// ten other cases do.
  void require_fast_or_full() const {
    if (quick && engine->claims().double_arithmetic)
      throw Skipped("runs in double arithmetic without --quick only");
  }

  /// Adds one compared element: its err/B, and a bound with the magnitude of what it bounds (both 0: not compared).
  void measured(std::string_view stage, std::string_view dtype, double ratio, double bound = 0.0,
                double signal = 0.0);
  /// The first stage and type whose bounds add up to as much as their signals, "out BF16", or nothing: nothing was shown
  /// there, whatever the other stages say.
  [[nodiscard]] std::string mistrusted() const;
  [[nodiscard]] const std::vector<StageError>& errors() const { return errors_; }

 private:
  std::vector<StageError> errors_;
};

/// One conformance case: name, the clauses it is named for, the stage it tests, and its lane.
struct Case {
  std::string name;
  std::vector<std::string> clauses;
  std::string stage;
  Lane lane;
  bool per_engine;  ///< run once for every engine; else once, on stage functions
  std::function<void(Context&)> body;
};

/// All cases, sorted by name.
[[nodiscard]] const std::vector<Case>& all_cases();

/// One line registers a case: static const Register kX{{name, clauses, stage, lane, per_engine, body}};
struct Register {
  explicit Register(Case entry);
};

}  // namespace headwater::conformance
