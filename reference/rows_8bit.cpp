#include "reference/rows_8bit.hpp"

#include <algorithm>
#include <cmath>

#include "reference/numbers.hpp"

namespace headwater::reference {

constexpr std::uint16_t kNotFinite = 0x7E00;  // a NaN

void pack_group(std::span<const double> elements, std::span<std::byte> group) {
  bool finite = true;
  float largest = 0.0F;
  for (const double x : elements) {
    finite = finite && std::isfinite(x);
    largest = std::max(largest, std::fabs(static_cast<float>(x)));
  }
  const float step = largest / 127.0F;
  std::uint16_t scale = round_to_f16(static_cast<double>(step));
  finite = finite && std::isfinite(from_f16(scale));
  scale = finite ? scale : kNotFinite;
  group[0] = static_cast<std::byte>(scale & 0xFF);
  group[1] = static_cast<std::byte>(scale >> 8);
  const bool zeros = !finite || scale == 0;
  const float per_step = zeros ? 0.0F : 1.0F / step;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    float integer = 0.0F;
    if (!zeros) integer = std::nearbyint(static_cast<float>(elements[i]) * per_step);
    group[2 + i] = static_cast<std::byte>(static_cast<std::int8_t>(integer));
  }
}

void restore_group(std::span<const std::byte> group, std::span<double> elements) {
  const int low = std::to_integer<int>(group[0]);
  const int high = std::to_integer<int>(group[1]);
  const double scale = from_f16(static_cast<std::uint16_t>(low + 256 * high));
  for (std::size_t i = 0; i < elements.size(); ++i) {
    elements[i] = scale * std::to_integer<std::int8_t>(group[2 + i]);  // exact
  }
}

}  // namespace headwater::reference
