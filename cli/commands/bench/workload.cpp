#include "cli/commands/bench/workload.hpp"

#include <algorithm>
#include <cstring>

#include "conformance/formats.hpp"
#include "conformance/random.hpp"

namespace headwater::bench {

namespace {

std::size_t tensor_bytes(const Shape& shape, std::int64_t heads, std::int64_t width, std::size_t element) {
  return static_cast<std::size_t>(shape.capacity * heads * width) * element;
}

/// Fills a tensor with pieces of a pool of encoded numbers that begin anywhere in it: drawing every element of a long
/// context by itself would take longer than attending to it.
void fill(LineBytes& tensor, std::size_t bytes, DType type, double deviation, std::uint64_t seed) {
  constexpr std::int64_t kPool = 1 << 16;
  constexpr std::int64_t kPiece = 1 << 9;
  const std::size_t element = dtype_size(type);
  conformance::Random random(seed);
  std::vector<std::byte> pool(static_cast<std::size_t>(kPool) * element);
  for (std::size_t at = 0; at < pool.size(); at += element) {
    conformance::store_element(type, static_cast<float>(deviation * random.normal()), pool.data() + at);
  }
  for (std::size_t at = 0; at < bytes;) {
    const auto from = static_cast<std::size_t>(random.integer(0, kPool - kPiece)) * element;
    const std::size_t count = std::min(static_cast<std::size_t>(kPiece) * element, bytes - at);
    std::memcpy(tensor.data() + at, pool.data() + from, count);
    at += count;
  }
}

Rows view(const LineBytes& tensor, DType type, std::int64_t heads, std::int64_t width, std::int64_t first) {
  const auto offset = static_cast<std::size_t>(first * heads * width) * dtype_size(type);
  return Rows::token_major(tensor.data() + offset, type, heads, width);
}

}  // namespace

LineBytes::LineBytes(std::size_t bytes)
    : lines_(
          static_cast<std::int64_t>((bytes + core::kAlignment - 1) / core::kAlignment * core::kAlignment)) {
  std::fill_n(lines_.data(), lines_.size(), std::byte{0});
}

Workload::Workload(const Shape& shape, std::uint64_t seed)
    : shape_(shape),
      q_(tensor_bytes(shape, shape.n_head, shape.d_head, dtype_size(shape.kv_type))),
      k_(tensor_bytes(shape, shape.n_head_kv, shape.d_head, dtype_size(shape.kv_type))),
      v_(tensor_bytes(shape, shape.n_head_kv, shape.d_value, dtype_size(shape.kv_type))),
      out_(tensor_bytes(shape, shape.n_head, shape.d_value, sizeof(float))) {
  constexpr double kLogitDeviation = 2.0;  // q . k / sqrt(d) has that of q times that of k
  fill(q_, q_.size(), shape.kv_type, kLogitDeviation, conformance::mix_seed(seed, "q"));
  fill(k_, k_.size(), shape.kv_type, 1.0, conformance::mix_seed(seed, "k"));
  fill(v_, v_.size(), shape.kv_type, 1.0, conformance::mix_seed(seed, "v"));
}

Rows Workload::q(std::int64_t first) const {
  return view(q_, shape_.kv_type, shape_.n_head, shape_.d_head, first);
}
Rows Workload::k(std::int64_t first) const {
  return view(k_, shape_.kv_type, shape_.n_head_kv, shape_.d_head, first);
}
Rows Workload::v(std::int64_t first) const {
  return view(v_, shape_.kv_type, shape_.n_head_kv, shape_.d_value, first);
}

MutableRows Workload::out(std::int64_t first) {
  const auto offset = static_cast<std::size_t>(first * shape_.n_head * shape_.d_value) * sizeof(float);
  return MutableRows::token_major(out_.data() + offset, DType::f32, shape_.n_head, shape_.d_value);
}

const float* Workload::out_row(std::int64_t token, std::int64_t head) const {
  return reinterpret_cast<const float*>(out_.data()) + (token * shape_.n_head + head) * shape_.d_value;
}

double Workload::bytes(const Shape& shape) {
  const auto tokens = static_cast<double>(shape.capacity);
  const auto element = static_cast<double>(dtype_size(shape.kv_type));
  const auto heads = static_cast<double>(shape.n_head);
  const auto heads_kv = static_cast<double>(shape.n_head_kv);
  const auto d = static_cast<double>(shape.d_head);
  const auto dv = static_cast<double>(shape.d_value);
  return tokens * (element * (heads * d + heads_kv * (d + dv)) + sizeof(float) * heads * dv);
}

double useful_flops(const Shape& shape, double pairs) {
  return 2.0 * static_cast<double>(shape.d_head + shape.d_value) * static_cast<double>(shape.n_head) * pairs;
}

}  // namespace headwater::bench
