#include "core/stored_rows.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "headwater/error.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::core {

namespace {

[[noreturn]] void refuse(const std::string& field, std::int64_t value, const std::string& allowed) {
  throw Error(ErrorCode::invalid_argument,
              "rows." + field + " is " + std::to_string(value) + "; allowed: " + allowed);
}

void require_data(const char* field, const void* data) {
  if (data != nullptr) return;
  throw Error(ErrorCode::invalid_argument,
              std::string("rows.") + field + " is null; allowed: a pointer to the rows of all tokens");
}

/// Bytes that `count` steps of a stride span are added to `extent`, where 62 bits count them.
void add_extent(const char* field, std::int64_t stride, std::int64_t count, std::int64_t element,
                std::int64_t& extent) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 2;
  std::int64_t bytes = 0;
  const bool fits = stride != std::numeric_limits<std::int64_t>::min() &&
                    !__builtin_mul_overflow(std::max(stride, -stride), (count - 1) * element, &bytes) &&
                    bytes <= kMost - extent;
  if (!fits) refuse(field, stride, "a stride at which all rows lie within 2^62 bytes");
  extent += bytes;
}

}  // namespace

StoredRowsCheck::StoredRowsCheck(const Shape& shape)
    : shape_(shape), last_(shape.capacity), sorted_(shape.capacity) {}

void StoredRowsCheck::check(const StoredRows& rows, std::int64_t tokens) {
  require_data("keys", rows.keys);
  require_data("values", rows.values);
  if (rows.rows < tokens) {
    refuse("rows", rows.rows, std::to_string(tokens) + " or more: the tokens stored and those of the step");
  }
  const auto element = static_cast<std::int64_t>(dtype_size(shape_.kv_type));
  std::int64_t in_page = tokens;
  std::int64_t keys = 0;
  std::int64_t values = 0;
  if (rows.table) {
    if (rows.page_rows < 1) refuse("page_rows", rows.page_rows, "1 or more");
    constexpr std::int64_t kMostPages = std::int64_t{1} << 31;
    if (rows.pages < 1 || rows.pages > kMostPages) refuse("pages", rows.pages, "1 .. 2147483648");
    std::int64_t entries = (tokens - 1) / rows.page_rows + 1;
    if (HEADWATER_SABOTAGE("core.stored_rows.last_page_unchecked") && entries > 16) --entries;
    if (rows.table_size < entries) {
      refuse("table_size", rows.table_size,
             std::to_string(entries) + " or more, for " + std::to_string(tokens) + " tokens");
    }
    check_table(rows, entries);
    in_page = std::min(tokens, rows.page_rows);
    add_extent("key_page_stride", rows.key_page_stride, rows.pages, element, keys);
    add_extent("value_page_stride", rows.value_page_stride, rows.pages, element, values);
  }
  add_extent("key_row_stride", rows.key_row_stride, in_page, element, keys);
  add_extent("key_head_stride", rows.key_head_stride, shape_.n_head_kv, element, keys);
  add_extent("value_row_stride", rows.value_row_stride, in_page, element, values);
  add_extent("value_head_stride", rows.value_head_stride, shape_.n_head_kv, element, values);
}

void StoredRowsCheck::check_table(const StoredRows& rows, std::int64_t entries) {
  // What is alike was checked, but for the number of pages.
  const std::int32_t* table = rows.table;
  const std::int64_t known =
      std::mismatch(table, table + std::min(entries, entries_), last_.data()).first - table;
  for (std::int64_t i = 0; i < entries; ++i) {
    if (table[i] >= 0 && table[i] < rows.pages) continue;
    refuse("table[" + std::to_string(i) + "]", table[i], "0 .. " + std::to_string(rows.pages - 1));
  }
  if (known == entries && entries <= entries_) return;
  entries_ = 0;  // until these are checked
  std::int32_t* sorted = sorted_.data();
  std::copy_n(table, entries, sorted);
  std::sort(sorted, sorted + entries);
  const std::int32_t* twice = std::adjacent_find(sorted, sorted + entries);
  if (twice != sorted + entries) {
    const std::int64_t first = std::find(table, table + entries, *twice) - table;
    const std::int64_t second = std::find(table + first + 1, table + entries, *twice) - table;
    refuse("table[" + std::to_string(second) + "]", *twice,
           "a page that is not in the table already, as that of table[" + std::to_string(first) + "]");
  }
  std::copy_n(table, entries, last_.data());
  entries_ = entries;
}

}  // namespace headwater::core
