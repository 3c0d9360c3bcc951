#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "headwater/session.hpp"

namespace headwater::bench {

/// Bytes at a cache line's boundary.
class LineBytes {
 public:
  explicit LineBytes(std::size_t bytes) : lines_((bytes + sizeof(Line) - 1) / sizeof(Line)) {}
  [[nodiscard]] std::byte* data() { return reinterpret_cast<std::byte*>(lines_.data()); }
  [[nodiscard]] const std::byte* data() const { return reinterpret_cast<const std::byte*>(lines_.data()); }
  [[nodiscard]] std::size_t size() const { return lines_.size() * sizeof(Line); }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> lines_;
};

/// Q, K and V of one layer for `shape.capacity` tokens, contiguous [tokens, heads, width] in shape.kv_type, and room for
/// the output in F32. About normal values; logits have a deviation of two. The same numbers for a seed on every machine.
class Workload {
 public:
  Workload(const Shape& shape, std::uint64_t seed);

  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] Rows q(std::int64_t first = 0) const;
  [[nodiscard]] Rows k(std::int64_t first = 0) const;
  [[nodiscard]] Rows v(std::int64_t first = 0) const;
  [[nodiscard]] MutableRows out(std::int64_t first = 0);
  /// The output row of a token and query head, shape.d_value floats.
  [[nodiscard]] const float* out_row(std::int64_t token, std::int64_t head) const;

  /// What the constructor takes, in bytes; a double, as no shape can overflow it.
  [[nodiscard]] static double bytes(const Shape& shape);

 private:
  Shape shape_;
  LineBytes q_, k_, v_, out_;
};

/// Useful flops of so many pairs per query head: 2 d for the logit of a pair and 2 dv for its share of the output.
/// Exponentials, masks, column sums, selection and gather are overhead.
[[nodiscard]] double useful_flops(const Shape& shape, double pairs);

}  // namespace headwater::bench
