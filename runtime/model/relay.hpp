#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "headwater/session.hpp"

namespace headwater::runtime {

/// Something that the part of a model before this one did, for this one to do, too (Transformer::repeat). Travels as it
/// lies in memory between processes of one build.
struct PartCall {
  enum class Kind : std::uint32_t { run, decode, logits, reset, truncate };
  Kind kind = Kind::reset;
  std::int32_t slot = 0;                 ///< run, reset, truncate
  Step step;                             ///< run
  std::int32_t tokens = 0;               ///< decode: entries of `slots`
  std::array<std::int32_t, 16> slots{};  ///< decode
  std::int64_t first = 0;  ///< logits: tokens [first, first + count) of the last step; truncate: to `first`
  std::int64_t count = 0;
  bool few = false;  ///< logits: in F32, as those of a decode step
};

/// What a Transformer over a part of a model needs of the processes with the other parts. runtime/pipeline/ has one over
/// MPI. Calls throw where those processes have failed.
class Relay {
 public:
  Relay() = default;
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;
  virtual ~Relay() = default;

  /// The transformer is made. On the first part: returns when it is on all parts.
  virtual void opened() = 0;
  /// Hands a call to the part after this one, after it was done here; nothing on the last part. `rows`: of run and decode,
  /// the residual stream behind the layers of this part, copied before this returns.
  virtual void pass(const PartCall& call, std::span<const float> rows) = 0;
  /// On the last part: logits go to the first one.
  virtual void answer(std::span<const float> logits) = 0;
  /// On the first part: waits for as many logits as `logits` has room for.
  virtual void collect(std::span<float> logits) = 0;
};

}  // namespace headwater::runtime
