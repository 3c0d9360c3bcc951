#pragma once

#include <stdexcept>
#include <string>

#include "headwater/export.h"

namespace headwater {

/// What kind of thing went wrong. The numbers are also the status codes of the C ABI (headwater.h).
enum class ErrorCode {
  invalid_argument = 1,   ///< a field, flag or pointer is not allowed; the message names field, value, range
  wrong_state = 2,        ///< the call is not legal now (STATE-1..5): begin in an open step, layer twice, ...
  capacity_exceeded = 3,  ///< more tokens than Shape::capacity (STATE-5); nothing was written
  engine_unavailable = 4,  ///< no such engine, or this machine lacks what it needs
  out_of_memory = 5,       ///< open() could not take its memory
  internal = 6,            ///< a broken invariant of the library: please report it
  interrupted = 7,         ///< the session's interrupt asked attend() to stop (INTR-1)
  unsupported = 8,  ///< this engine does not offer the call or the option; its Claims say what it offers
};

/// The one exception type of the library. what() is a single line: what, where, and what is allowed.
class HEADWATER_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  [[nodiscard]] ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace headwater
