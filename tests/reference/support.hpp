#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "headwater/error.hpp"
#include "headwater/session.hpp"
#include "reference/numbers.hpp"

namespace headwater::reference::test {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr float kInfF = std::numeric_limits<float>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr float kNaNF = std::numeric_limits<float>::quiet_NaN();

/// Message of the Error that `call` throws; the test fails where it throws none, or one of another code, or
/// one that is not a single line.
std::string error_of(ErrorCode code, const std::function<void()>& call);

/// The test fails unless the message of that error contains each of these parts.
void expect_error(ErrorCode code, const std::vector<std::string>& parts, const std::function<void()>& call);

/// Values of a small deterministic generator, uniform in [-1, 1), multiples of 2^-11.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed * 2 + 1) {}
  double next();
  /// Uniform in [0, bound).
  std::int64_t below(std::int64_t bound);
  std::vector<float> floats(std::int64_t count, float size = 1.0F);

 private:
  std::uint64_t state_;
};

/// A matrix from rows written out; all of the same length.
Matrix matrix(const std::vector<std::vector<double>>& rows);

/// A column of single values: rows of width 1.
Matrix column(const std::vector<double>& values);

void expect_near(std::span<const double> actual, const std::vector<double>& expected,
                 double tolerance = 1e-14);

}  // namespace headwater::reference::test
