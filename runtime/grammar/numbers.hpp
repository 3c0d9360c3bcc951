#pragma once

#include <optional>
#include <string>

#include "runtime/grammar/builder.hpp"

namespace headwater::runtime {

/// Which numbers are allowed; a limit that is absent is none.
struct NumberRange {
  std::optional<double> least, most;
  bool above = false;  ///< not `least` itself
  bool below = false;  ///< not `most` itself
};

/// Numbers of JSON, of at most 16 digits before and 16 behind the point.
class JsonNumbers {
 public:
  explicit JsonNumbers(GrammarBuilder& builder) : builder_(&builder) {}

  // Error(invalid_argument): the range is empty, or a limit is not supported.
  [[nodiscard]] GrammarBuilder::Node integer(const NumberRange& range);
  /// Limits are whole numbers; with a limit no exponents.
  [[nodiscard]] GrammarBuilder::Node real(const NumberRange& range);

 private:
  using Node = GrammarBuilder::Node;
  Node digit(char first = '0', char last = '9');
  /// Digits, exactly as many as the limits have.
  Node between(const std::string& least, const std::string& most);
  /// Whole numbers without a sign, 0 <= least <= most.
  Node whole(std::int64_t least, std::int64_t most);
  /// Numbers without a sign, from `least` (or above it) to `most` (or below it).
  Node positive(std::int64_t least, bool above, std::int64_t most, bool below);

  GrammarBuilder* builder_;
};

}  // namespace headwater::runtime
