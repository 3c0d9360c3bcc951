#include "headwater/rope.hpp"

#include <bit>
#include <cmath>
#include <string>

#include "core/config.hpp"
#include "core/kv_store.hpp"
#include "core/numbers.hpp"
#include "headwater/error.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater {

namespace {

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::invalid_argument, message); }

void require_range(const char* field, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high) {
    refuse(std::string(field) + " is " + std::to_string(value) + "; allowed: " + std::to_string(low) +
           " .. " + std::to_string(high));
  }
}

double load(const unsigned char* element, DType type) {
  float value = 0;
  core::widen(element, type, 1, &value);
  return value;
}

/// Rounded once: what float cannot hold is kept as a sticky last bit (round to odd), so that a second rounding to
/// a 16-bit type falls as if it had seen the double.
void store(unsigned char* element, DType type, double value) {
  auto single = static_cast<float>(value);
  const auto back = static_cast<double>(single);
  if (type != DType::f32 && back != value && std::isfinite(single)) {
    if (std::fabs(back) > std::fabs(value)) single = std::nextafter(single, 0.0f);
    single = std::bit_cast<float>(std::bit_cast<std::uint32_t>(single) | 1u);
  }
  core::narrow(&single, 1, type, element);
}

}  // namespace

std::vector<double> rope_inverse_frequencies(std::int64_t r, double theta) {
  require_range("r", r, 2, core::kMaxExtent);
  if (r % 2 != 0) refuse("r is " + std::to_string(r) + "; allowed: an even number");
  if (!std::isfinite(theta) || theta <= 0) {
    refuse("theta is " + std::to_string(theta) + "; allowed: a finite number > 0");
  }
  std::vector<double> frequencies(static_cast<std::size_t>(r / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(r));
  }
  return frequencies;
}

void rotate(const MutableRows& rows, std::int64_t n, std::int64_t heads, std::int64_t width,
            std::int64_t first_position, std::span<const double> inverse_frequencies, double magnitude,
            RopeLayout layout) {
  if (rows.data == nullptr) refuse("rows.data is null; allowed: a pointer to n x heads rows");
  require_range("rows.type", static_cast<std::int64_t>(rows.type), 0, static_cast<std::int64_t>(DType::bf16));
  require_range("n", n, 0, core::kMaxPosition);
  require_range("heads", heads, 1, core::kMaxExtent);
  require_range("width", width, 1, core::kMaxExtent);
  require_range("first_position", first_position, 0, core::kMaxPosition + 1 - n);
  require_range("layout", static_cast<std::int64_t>(layout), 0, 1);
  const auto pairs = static_cast<std::int64_t>(inverse_frequencies.size());
  if (2 * pairs > width) {
    refuse("inverse_frequencies has " + std::to_string(pairs) +
           " entries; allowed: at most width / 2 = " + std::to_string(width / 2));
  }
  if (!std::isfinite(magnitude)) refuse("magnitude is not finite; allowed: a finite number");
  for (std::int64_t i = 0; i < pairs; ++i) {
    if (std::isfinite(inverse_frequencies[static_cast<std::size_t>(i)])) continue;
    refuse("inverse_frequencies[" + std::to_string(i) + "] is not finite; allowed: finite numbers");
  }

  const auto size = static_cast<std::int64_t>(dtype_size(rows.type));
  const bool adjacent = layout == RopeLayout::adjacent_pairs;
  const std::int64_t pair_step = adjacent ? 2 : 1;
  const std::int64_t partner = adjacent || HEADWATER_SABOTAGE("core.rope.partner_is_neighbour") ? 1 : pairs;
  for (std::int64_t t = 0; t < n; ++t) {
    const auto position = static_cast<double>(first_position + t);
    for (std::int64_t i = 0; i < pairs; ++i) {
      double angle = position * inverse_frequencies[static_cast<std::size_t>(i)];
      if (HEADWATER_SABOTAGE("core.rope.local_position")) {
        angle = static_cast<double>(t) * inverse_frequencies[static_cast<std::size_t>(i)];
      }
      if (HEADWATER_SABOTAGE("core.rope.float_angle")) {
        angle = static_cast<double>(static_cast<float>(position) *
                                    static_cast<float>(inverse_frequencies[static_cast<std::size_t>(i)]));
      }
      const double c = std::cos(angle) * magnitude;
      const double s = std::sin(angle) * magnitude;
      for (std::int64_t h = 0; h < heads; ++h) {
        auto* row = static_cast<unsigned char*>(core::row_address(rows, t, h));
        unsigned char* first = row + i * pair_step * size;
        unsigned char* second = first + partner * size;
        const double x = load(first, rows.type);
        const double y = load(second, rows.type);
        store(first, rows.type, x * c - y * s);
        store(second, rows.type, x * s + y * c);
      }
    }
  }
}

}  // namespace headwater
