#include "reference/arguments.hpp"

#include <limits>

#include "headwater/error.hpp"

namespace headwater::reference {

void reject(const std::string& field, const std::string& value, const std::string& allowed) {
  throw Error(ErrorCode::invalid_argument, field + " = " + value + " is not allowed: must be " + allowed);
}

void check_rows(const std::string& name, const Rows& rows, std::int64_t n, std::int64_t heads,
                std::int64_t width) {
  if (rows.data == nullptr) reject(name + ".data", "null", "a pointer to the rows");
  if (rows.type != DType::f32 && rows.type != DType::f16 && rows.type != DType::bf16) {
    reject(name + ".type", std::to_string(static_cast<int>(rows.type)), "0 (F32), 1 (F16) or 2 (BF16)");
  }
  // A third of all elements that bytes can be counted for, each, for the rows, the heads and the width.
  const std::int64_t most =
      std::numeric_limits<std::int64_t>::max() / static_cast<std::int64_t>(dtype_size(rows.type)) / 3;
  const auto require_stride = [&](const std::string& field, std::int64_t stride, std::int64_t count) {
    const std::int64_t limit = most / count;
    if (stride >= -limit && stride <= limit) return;
    reject(
        name + field, std::to_string(stride),
        std::to_string(-limit) + " to " + std::to_string(limit) + " for " + std::to_string(count) + " rows");
  };
  require_stride(".row_stride", rows.row_stride, n);
  require_stride(".head_stride", rows.head_stride, heads);
  if (width > most) reject(name + ".width", std::to_string(width), "at most " + std::to_string(most));
}

Rows read_only(const MutableRows& rows) { return {rows.data, rows.type, rows.row_stride, rows.head_stride}; }

MutableRows as_rows(const LseOutput& lse) { return {lse.data, DType::f32, lse.row_stride, lse.head_stride}; }

}  // namespace headwater::reference
