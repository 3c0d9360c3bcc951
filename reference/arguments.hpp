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

/// The same memory, read only.
[[nodiscard]] Rows read_only(const MutableRows& rows);

/// Log-sum-exps as rows of one element.
[[nodiscard]] MutableRows as_rows(const LseOutput& lse);

}  // namespace headwater::reference
