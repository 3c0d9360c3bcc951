#pragma once

#include <cstdint>
#include <string>

#include "headwater/session.hpp"

/// Checks of what callers hand over, before anything is read or written.
namespace headwater::reference {

/// Throws invalid_argument: "<field> = <value> is not allowed: must be <allowed>".
[[noreturn]] void reject(const std::string& field, const std::string& value, const std::string& allowed);

/// A view of n >= 1 rows of `heads` heads: data not null, a known type, and strides whose byte offsets fit 64
/// bits. Errors: invalid_argument, naming the field as `name`.data, .type, .row_stride or .head_stride.
void check_rows(const std::string& name, const Rows& rows, std::int64_t n, std::int64_t heads,
                std::int64_t width);

/// ROWS-1: rows of the caller, of which `tokens` must be readable. Errors: invalid_argument, naming the field as rows.keys,
/// rows.table[i] and so on.
void check_stored_rows(const StoredRows& rows, const Shape& shape, std::int64_t tokens);

/// The key rows, or value rows, of all heads at one position, as a view of one row.
[[nodiscard]] Rows key_rows(const StoredRows& rows, DType type, std::int64_t position);
[[nodiscard]] Rows value_rows(const StoredRows& rows, DType type, std::int64_t position);

/// The same memory, read only.
[[nodiscard]] Rows read_only(const MutableRows& rows);

/// Log-sum-exps as rows of one element.
[[nodiscard]] MutableRows as_rows(const LseOutput& lse);

}  // namespace headwater::reference
