#pragma once

#include <cstdint>
#include <span>

#include "core/run_buffer.hpp"
#include "headwater/session.hpp"
#include "headwater/state.hpp"

namespace headwater::core {

/// K and V rows of all layers in host memory, rounded once to the KV type (STATE-6):
/// key[layer][head][position][d], value[layer][head][position][dv].
class KvStore {
 public:
  static constexpr std::int64_t kReadableRows = 32;

  KvStore() = default;
  explicit KvStore(const Shape& shape);

  /// Rows [begin, end) of all heads of a layer are about to be stored. Not from several threads.
  void make_room(std::int64_t layer, std::int64_t begin, std::int64_t end);

  /// Stores row `row` of the views (row 0 = first token of the step) at `position`, for one head.
  void write(std::int64_t layer, std::int64_t head, std::int64_t position, const Rows& k, const Rows& v,
             std::int64_t row);

  /// STATE-12: `key` and `value` of one layer, [heads][tokens][d] and [heads][tokens][dv].
  void exchange(StateArchive& archive, std::int64_t layer, std::int64_t tokens);

  /// First byte of the key row at a position; the rows of one head follow each other without gaps. kReadableRows rows
  /// after the last may be read, too, so that a kernel can load a whole tile; they hold anything.
  [[nodiscard]] const void* key(std::int64_t layer, std::int64_t head, std::int64_t position) const {
    return keys_.data() + ((layer * heads_ + head) * capacity_ + position) * key_bytes_;
  }
  [[nodiscard]] const void* value(std::int64_t layer, std::int64_t head, std::int64_t position) const {
    return values_.data() + ((layer * heads_ + head) * capacity_ + position) * value_bytes_;
  }
  [[nodiscard]] DType type() const { return type_; }
  [[nodiscard]] std::int64_t d_head() const { return d_head_; }
  [[nodiscard]] std::int64_t d_value() const { return d_value_; }
  /// Of the rows alone.
  [[nodiscard]] std::int64_t bytes() const { return keys_.bytes() + values_.bytes(); }
  /// Of the readable rows after the last.
  [[nodiscard]] std::int64_t spare_bytes() const { return kReadableRows * key_bytes_; }

 private:
  std::int64_t heads_ = 0;
  std::int64_t capacity_ = 0;
  std::int64_t d_head_ = 0;
  std::int64_t d_value_ = 0;
  std::int64_t key_bytes_ = 0;
  std::int64_t value_bytes_ = 0;
  DType type_ = DType::f32;
  RunBuffer keys_;
  RunBuffer values_;
};

/// First byte of row `row` of head `head` of a view.
const void* row_address(const Rows& rows, std::int64_t row, std::int64_t head);
void* row_address(const MutableRows& rows, std::int64_t row, std::int64_t head);

/// Copies one row of `count` elements between types; each element is rounded at most once.
void convert_row(const void* from, DType from_type, std::int64_t count, void* to, DType to_type);

}  // namespace headwater::core
