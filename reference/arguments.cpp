#include "reference/arguments.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>

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

void check_stored_rows(const StoredRows& rows, const Shape& shape, std::int64_t tokens) {
  const auto at_least = [](const std::string& field, std::int64_t value, std::int64_t least) {
    if (value < least) reject("rows." + field, std::to_string(value), "at least " + std::to_string(least));
  };
  if (rows.keys == nullptr) reject("rows.keys", "null", "a pointer to the rows of all tokens");
  if (rows.values == nullptr) reject("rows.values", "null", "a pointer to the rows of all tokens");
  at_least("rows", rows.rows, tokens);
  std::int64_t pages = 1;
  std::int64_t page_rows = tokens;
  if (rows.table != nullptr) {
    at_least("page_rows", rows.page_rows, 1);
    at_least("pages", rows.pages, 1);
    pages = rows.pages;
    page_rows = std::min(tokens, rows.page_rows);
    const std::int64_t entries = (tokens - 1) / rows.page_rows + 1;
    at_least("table_size", rows.table_size, entries);
    std::map<std::int32_t, std::int64_t> places;
    for (std::int64_t i = 0; i < entries; ++i) {
      const std::string field = "rows.table[" + std::to_string(i) + "]";
      if (rows.table[i] < 0 || rows.table[i] >= rows.pages) {
        reject(field, std::to_string(rows.table[i]), "0 to " + std::to_string(rows.pages - 1));
      }
      const auto [place, first] = places.emplace(rows.table[i], i);
      if (!first) {
        reject(field, std::to_string(rows.table[i]),
               "another page than that of rows.table[" + std::to_string(place->second) + "]");
      }
    }
  }
  // A third of half of the bytes that can be counted, each, for the pages, the rows and the heads.
  const std::int64_t most =
      std::numeric_limits<std::int64_t>::max() / 6 / static_cast<std::int64_t>(dtype_size(shape.kv_type));
  const auto require_stride = [&](const std::string& field, std::int64_t stride, std::int64_t count) {
    const std::int64_t limit = most / count;
    if (stride >= -limit && stride <= limit) return;
    reject("rows." + field, std::to_string(stride), std::to_string(-limit) + " to " + std::to_string(limit));
  };
  require_stride("key_page_stride", rows.table ? rows.key_page_stride : 0, pages);
  require_stride("value_page_stride", rows.table ? rows.value_page_stride : 0, pages);
  require_stride("key_row_stride", rows.key_row_stride, page_rows);
  require_stride("value_row_stride", rows.value_row_stride, page_rows);
  require_stride("key_head_stride", rows.key_head_stride, shape.n_head_kv);
  require_stride("value_head_stride", rows.value_head_stride, shape.n_head_kv);
}

namespace {

/// One position of rows that may lie in pages.
Rows rows_at(const void* data, DType type, std::int64_t row_stride, std::int64_t head_stride,
             std::int64_t page_stride, const StoredRows& rows, std::int64_t position) {
  std::int64_t element = position * row_stride;
  if (rows.table != nullptr) {
    element = rows.table[position / rows.page_rows] * page_stride + position % rows.page_rows * row_stride;
  }
  return {static_cast<const std::byte*>(data) + element * static_cast<std::int64_t>(dtype_size(type)), type,
          0, head_stride};
}

}  // namespace

Rows key_rows(const StoredRows& rows, DType type, std::int64_t position) {
  return rows_at(rows.keys, type, rows.key_row_stride, rows.key_head_stride, rows.key_page_stride, rows,
                 position);
}

Rows value_rows(const StoredRows& rows, DType type, std::int64_t position) {
  return rows_at(rows.values, type, rows.value_row_stride, rows.value_head_stride, rows.value_page_stride,
                 rows, position);
}

Rows read_only(const MutableRows& rows) { return {rows.data, rows.type, rows.row_stride, rows.head_stride}; }

MutableRows as_rows(const LseOutput& lse) { return {lse.data, DType::f32, lse.row_stride, lse.head_stride}; }

}  // namespace headwater::reference
