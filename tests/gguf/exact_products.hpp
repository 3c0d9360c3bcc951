#pragma once

// Rows x whose product with a stored row no order of summation rounds.

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "runtime/gguf/kernels/table.hpp"
#include "tests/gguf/element_sizes.hpp"
#include "tests/gguf/random_rows.hpp"

namespace headwater::runtime::testing {

struct ExactProduct {
  std::vector<float> x;
  std::int64_t product;
};

/// For stored row r, whose scales and minima are one: integers x in neighbouring runs, as many as keep the sum of all parts
/// below 2^24, and so on to the end of the row. Every run that is not zero has the largest code of fixed point, where it
/// costs least, so that its scale is one; a run that alone is too large stays zero.
inline std::vector<ExactProduct> exact_products(const RandomRows& rows, std::int64_t r,
                                                std::mt19937& random) {
  constexpr double kExact = 0x1p24;
  constexpr float kLargest = 32639.0F;
  const auto n = static_cast<std::size_t>(rows.n);
  std::vector<float> w(n);
  dequantize_row(rows.type, rows.row(r), rows.n, w.data());
  const std::vector<double> sizes = sizes_of(rows.type, rows.row(r), rows.n);
  std::vector<ExactProduct> all;
  double cost = kExact;
  for (std::size_t first = 0; first < n; first += kFixedRun) {
    std::vector<float> run(kFixedRun);
    std::size_t least = 0;
    for (std::size_t i = 0; i < kFixedRun; ++i) {
      run[i] = static_cast<float>(static_cast<int>(random() % 41) - 20);
      if (sizes[first + i] < sizes[first + least]) least = i;
    }
    run[least] = random() % 2 == 0 ? kLargest : -kLargest;
    double own = 0;
    for (std::size_t i = 0; i < kFixedRun; ++i)
      own += sizes[first + i] * std::fabs(static_cast<double>(run[i]));
    if (own >= kExact) continue;
    if (cost + own >= kExact) {
      all.push_back({std::vector<float>(n), 0});
      cost = 0;
    }
    cost += own;
    for (std::size_t i = 0; i < kFixedRun; ++i) {
      all.back().x[first + i] = run[i];
      all.back().product += static_cast<std::int64_t>(w[first + i]) * static_cast<std::int64_t>(run[i]);
    }
  }
  return all;
}

}  // namespace headwater::runtime::testing
