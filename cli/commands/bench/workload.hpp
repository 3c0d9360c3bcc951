#pragma once

#include <cstddef>
#include <cstdint>

#include "core/buffer.hpp"
#include "headwater/session.hpp"

namespace headwater::bench {

/// Zeroed bytes, whole cache lines of them; on huge pages where there are enough, as an engine's KV store and a model's
/// weights are: a loop that reads them is as fast as reading is.
class LineBytes {
 public:
  explicit LineBytes(std::size_t bytes);
  [[nodiscard]] std::byte* data() { return lines_.data(); }
  [[nodiscard]] const std::byte* data() const { return lines_.data(); }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(lines_.size()); }

 private:
  core::Buffer<std::byte> lines_;
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
