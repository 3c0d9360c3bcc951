#pragma once

#include <stdexcept>
#include <string>

namespace headwater::cli {

/// Exit statuses of the program.
enum class ExitCode : int {
  done = 0,
  check_failed = 1,  ///< a comparison that was asked for did not hold
  bad_input = 2,     ///< bad usage, bad input, or a file that cannot be read or written
  no_engine = 3,     ///< an engine (or the conformance program) is not available
};

/// Ends a command. what() says in one line what is wrong, where, and what is allowed.
class Failure : public std::runtime_error {
 public:
  Failure(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  /// Bad usage or bad input.
  explicit Failure(const std::string& message) : Failure(ExitCode::bad_input, message) {}
  [[nodiscard]] ExitCode code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

}  // namespace headwater::cli
