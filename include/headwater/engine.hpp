#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "headwater/export.h"
#include "headwater/options.hpp"
#include "headwater/session.hpp"

namespace headwater {

/// What an engine promises beyond the spec's tolerances. The conformance kit turns each claim into a test.
struct Claims {
  bool bitwise_threads = false;    ///< same bits for every number of threads (NUM-3)
  bool bitwise_runs = false;       ///< same bits in every run (NUM-3)
  bool bitwise_schedules = false;  ///< outputs have the same bits in both schedules (SCHED-2)
  bool no_allocation = false;      ///< attend() takes no memory (NUM-4)
  bool double_arithmetic = false;  ///< sums and softmax in double: the oracle itself
  /// Where Q, K and V are all BF16: softmax weights are rounded to BF16 (unit round-off 2^-8), outputs divided by the
  /// sum of the rounded ones, exponentials good to 2^-17, and subnormal products and values may count as zero. Sums,
  /// l and column sums stay in F32.
  bool bf16_weights = false;
  /// open() takes device memory: it is not counted by malloc, and cannot be refused there.
  bool device_memory = false;
  /// Where Q, K and V are all F16: softmax weights, relative to a maximum that their row has seen, are rounded to F16 (unit
  /// round-off 2^-11, below 2^-14 half a subnormal, 2^-25) before they multiply the values, and outputs divided by
  /// the sum of the rounded ones. Exponentials, sums, l and column sums stay in F32.
  bool f16_weights = false;
  // Calls and options that are `unsupported` where they are not claimed.
  bool abort = false;         ///< Session::abort() (STATE-8)
  bool truncate = false;      ///< Session::truncate() (STATE-9), Options::checkpoints
  bool interrupt = false;     ///< Session::set_interrupt() (INTR-1)
  bool lse = false;           ///< LseOutput of Session::attend() (LSE-1)
  bool host_threads = false;  ///< works on Options::parallel_for (HOST-1); else it is never called
  bool fork = false;          ///< Session::fork() (STATE-11)
  bool save = false;          ///< save() and load() (STATE-12)
  bool layers = false;        ///< Options::layers (LAYER-1, MASK-2)
  bool stored_rows = false;   ///< Options::kv_owner `caller`, Session::attend_stored() (ROWS-1)
  bool rows_alone = false;    ///< attend() without queries in a decode step (DEC-2)
  bool estimate = false;      ///< Engine::estimate() (NUM-5)
  bool host_memory = false;   ///< Options::allocator (HOST-2)
  bool kv_bits = false;       ///< Options::kv_bits (STATE-13)
};

/// A way to compute the spec. Engines are immutable, live as long as the program, and may be used by any number
/// of threads at a time.
class HEADWATER_API Engine {
 public:
  Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  virtual ~Engine() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;         ///< "cpu-portable"
  [[nodiscard]] virtual std::string_view isa() const = 0;          ///< "x86-64-v2"
  [[nodiscard]] virtual std::string_view description() const = 0;  ///< one line for `headwater info`
  /// Empty if this machine can run it, else the reason why not.
  [[nodiscard]] virtual std::string unavailable_because() const = 0;
  [[nodiscard]] virtual Claims claims() const = 0;

  /// Validates (CFG-1..4), takes all memory, and returns an empty session. Errors: invalid_argument (the message
  /// names field, value and what is allowed), engine_unavailable, out_of_memory.
  [[nodiscard]] virtual std::unique_ptr<Session> open(const Shape& shape, const Options& options) const = 0;

  /// The memory that a session of open() will hold, without taking it (NUM-5); more than this machine has, too. Errors:
  /// what open() refuses, with the same line; out_of_memory, with that of open(), where 64 bits cannot count the bytes;
  /// unsupported.
  [[nodiscard]] virtual MemoryEstimate estimate(const Shape& /*shape*/, const Options& /*options*/) const {
    throw Error(ErrorCode::unsupported, "estimate() is not offered by engine " + std::string(name()) +
                                            "; allowed: an engine that claims it");
  }
};

/// All engines built into this library, the preferred ones last; some may be unavailable on this machine.
[[nodiscard]] HEADWATER_API std::span<const Engine* const> engines();

/// The engine of that name; an empty name means the environment's HEADWATER_ENGINE, or "cpu" where that is unset
/// or empty. Errors: engine_unavailable, listing what there is.
[[nodiscard]] HEADWATER_API const Engine& engine(std::string_view name = {});

}  // namespace headwater
