#include "conformance/rows_8bit.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "conformance/formats.hpp"

namespace headwater::conformance {

std::vector<std::byte> groups_of(const float* row, std::int64_t n) {
  std::vector<std::byte> bytes;
  for (std::int64_t first = 0; first < n; first += kGroupElements) {
    const std::vector<float> x(row + first, row + first + kGroupElements);
    const bool finite = std::all_of(x.begin(), x.end(), [](float e) { return std::isfinite(e); });
    float a = 0.0f;
    for (const float e : x) a = std::isfinite(e) ? std::max(a, std::fabs(e)) : a;
    const float step = a / 127.0f;
    std::uint16_t scale = f16_bits(step);
    if (!finite || !std::isfinite(f16_value(scale))) scale = 0x7E00;
    bytes.push_back(static_cast<std::byte>(scale % 256));
    bytes.push_back(static_cast<std::byte>(scale / 256));
    for (const float e : x) {
      double integer = 0.0;
      if (scale != 0x7E00 && scale != 0) integer = std::rint(static_cast<double>(e * (1.0f / step)));
      bytes.push_back(static_cast<std::byte>(static_cast<std::int8_t>(integer)));
    }
  }
  return bytes;
}

std::vector<float> row_of(const std::vector<std::byte>& groups, DType type) {
  std::vector<float> row;
  for (std::size_t at = 0; at < groups.size(); at += kGroupBytes) {
    std::uint16_t scale = 0;
    std::memcpy(&scale, groups.data() + at, sizeof scale);
    for (std::size_t i = 0; i < kGroupElements; ++i) {
      std::int8_t integer = 0;
      std::memcpy(&integer, groups.data() + at + 2 + i, 1);
      row.push_back(round_to(type, f16_value(scale) * static_cast<float>(integer)));
    }
  }
  return row;
}

Problem restored(Problem problem) {
  for (LayerInput& layer : problem.layers) {
    for (Tensor* tensor : {&layer.k, &layer.v}) {
      tensor->type = problem.shape.kv_type;
      for (std::int64_t t = 0; t < tensor->n; ++t) {
        for (std::int64_t h = 0; h < tensor->heads; ++h) {
          const std::vector<float> row =
              row_of(groups_of(tensor->row(t, h), tensor->width), problem.shape.kv_type);
          std::copy(row.begin(), row.end(), tensor->row(t, h));
        }
      }
    }
  }
  problem.k_type = problem.v_type = problem.shape.kv_type;
  return problem;
}

}  // namespace headwater::conformance
