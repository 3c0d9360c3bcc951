#include "reference/rope.hpp"

#include <cmath>
#include <cstddef>
#include <string>

#include "reference/arguments.hpp"
#include "reference/numbers.hpp"

namespace headwater::reference {
namespace {

constexpr std::int64_t kMaxRotated = 65536;
constexpr std::int64_t kPositions = std::int64_t{1} << 31;

}  // namespace

// ROPE-1
std::vector<double> inverse_frequencies(std::int64_t r, double theta) {
  if (r < 2 || r > kMaxRotated || r % 2 != 0) {
    reject("r", std::to_string(r), "even, 2 to " + std::to_string(kMaxRotated));
  }
  if (!std::isfinite(theta) || theta <= 0.0) reject("theta", std::to_string(theta), "finite and above 0");
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < r / 2; ++i) {
    frequencies.push_back(std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(r)));
  }
  return frequencies;
}

void rotate_row(std::span<double> row, std::int64_t position, std::span<const double> frequencies,
                double magnitude, RopeLayout layout) {
  const bool adjacent = layout == RopeLayout::adjacent_pairs;
  const std::size_t pairs = frequencies.size();
  for (std::size_t i = 0; i < pairs; ++i) {
    const double angle = static_cast<double>(position) * frequencies[i];  // ROPE-3: double
    double& x = row[adjacent ? 2 * i : i];
    double& y = row[adjacent ? 2 * i + 1 : i + pairs];
    const double rotated_x = magnitude * (x * std::cos(angle) - y * std::sin(angle));
    const double rotated_y = magnitude * (x * std::sin(angle) + y * std::cos(angle));
    x = rotated_x;
    y = rotated_y;
  }
}

void rotate_rows(const MutableRows& rows, std::int64_t n, std::int64_t heads, std::int64_t width,
                 std::int64_t first_position, std::span<const double> frequencies, double magnitude,
                 RopeLayout layout) {
  if (rows.data == nullptr) reject("rows.data", "null", "a pointer to the rows");
  if (n < 0) reject("n", std::to_string(n), "at least 0");
  if (heads < 1) reject("heads", std::to_string(heads), "at least 1");
  if (width < 0) reject("width", std::to_string(width), "at least 0");
  if (first_position < 0 || first_position >= kPositions) {
    reject("first_position", std::to_string(first_position), "0 to 2^31 - 1");
  }
  if (n > kPositions - first_position) {
    reject("n", std::to_string(n),
           "at most " + std::to_string(kPositions - first_position) + ", so that positions stay below 2^31");
  }
  const auto rotated = static_cast<std::int64_t>(2 * frequencies.size());
  if (rotated > width) {
    reject("2 * inverse_frequencies.size", std::to_string(rotated),
           "at most width = " + std::to_string(width));
  }
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    if (!std::isfinite(frequencies[i])) {
      reject("inverse_frequencies[" + std::to_string(i) + "]", std::to_string(frequencies[i]), "finite");
    }
  }
  if (!std::isfinite(magnitude)) reject("magnitude", std::to_string(magnitude), "finite");
  if (layout != RopeLayout::adjacent_pairs && layout != RopeLayout::split_halves) {
    reject("layout", std::to_string(static_cast<int>(layout)), "0 (adjacent pairs) or 1 (split halves)");
  }
  if (n == 0) return;
  check_rows("rows", read_only(rows), n, heads, width);

  std::vector<double> row(static_cast<std::size_t>(rotated));
  for (std::int64_t t = 0; t < n; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      // Only the rotated elements are read and written: the others keep every bit, NaN payloads included.
      read_row(read_only(rows), t, h, row);
      rotate_row(row, first_position + t, frequencies, magnitude, layout);
      write_row(rows, t, h, row);
    }
  }
}

}  // namespace headwater::reference
