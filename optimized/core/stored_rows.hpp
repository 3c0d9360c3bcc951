#pragma once

#include <cstdint>

#include "core/buffer.hpp"
#include "headwater/session.hpp"

namespace headwater::core {

/// Checks rows of the caller (ROWS-1). A block table that differs from the last one by entries at its end alone, as while
/// tokens are decoded, is checked by these entries.
class StoredRowsCheck {
 public:
  StoredRowsCheck() = default;
  /// Takes all memory.
  explicit StoredRowsCheck(const Shape& shape);

  /// Errors: invalid_argument, naming field, value and what is allowed. `tokens`: those that must be readable.
  void check(const StoredRows& rows, std::int64_t tokens);

  [[nodiscard]] std::int64_t bytes() const { return last_.bytes() + sorted_.bytes(); }

 private:
  void check_table(const StoredRows& rows, std::int64_t entries);

  Shape shape_;
  Buffer<std::int32_t> last_;    // [capacity] the entries that were checked last
  Buffer<std::int32_t> sorted_;  // [capacity]
  std::int64_t entries_ = 0;
};

}  // namespace headwater::core
