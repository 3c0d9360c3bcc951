// The functions of products_kinds.hpp for one kind of processor: the including file names the namespace (PRODUCTS) and has chosen
// the instructions. Eigen is in that namespace, too, so that the linker never takes a function that is compiled for one
// processor for that of another.

#define Eigen PRODUCTS
#include <Eigen/Core>
#undef Eigen

namespace PRODUCTS {

using Rows = Matrix<double, Dynamic, Dynamic, RowMajor>;

void product(const double* a, const double* b, double* c, std::ptrdiff_t rows, std::ptrdiff_t depth,
             std::ptrdiff_t columns) {
  Map<Rows>(c, rows, columns).noalias() =
      Map<const Rows>(a, rows, depth) * Map<const Rows>(b, depth, columns);
}

void product_transposed(const double* a, const double* b, double* c, std::ptrdiff_t rows,
                        std::ptrdiff_t depth, std::ptrdiff_t columns) {
  Map<Rows>(c, rows, columns).noalias() =
      Map<const Rows>(a, rows, depth) * Map<const Rows>(b, columns, depth).transpose();
}

void weigh(const SeenPart& seen) {
  // Nearly all errors are small, where the first terms of the series of expm1 give all of its digits in a tenth of the time.
  constexpr double kSmall = 0x1p-5;
  const auto relative = [&](const SeenPart::Side& side, std::ptrdiff_t j) {
    return seen.error[j] + seen.u2 * (side.m - seen.logit[j]) + side.error;
  };
  for (const SeenPart::Side* side : {&seen.whole, &seen.part}) {
    std::ptrdiff_t large = 0;
#pragma omp simd reduction(+ : large)
    for (std::ptrdiff_t j = 0; j < seen.keys; ++j) {
      const double x = relative(*side, j);
      double sum = 1.0 + x * (1.0 / 8);
      sum = 1.0 + sum * x * (1.0 / 7);
      sum = 1.0 + sum * x * (1.0 / 6);
      sum = 1.0 + sum * x * (1.0 / 5);
      sum = 1.0 + sum * x * (1.0 / 4);
      sum = 1.0 + sum * x * (1.0 / 3);
      sum = 1.0 + sum * x * (1.0 / 2);
      side->growth[j] = x * sum;
      large += x < kSmall ? 0 : 1;  // or no number
    }
    for (std::ptrdiff_t j = 0; large > 0 && j < seen.keys; ++j) {
      const double x = relative(*side, j);
      if (x < kSmall) continue;
      side->growth[j] = std::expm1(x);
      --large;
    }
  }
  const double least = seen.least / seen.whole.l;
#pragma omp simd
  for (std::ptrdiff_t j = 0; j < seen.keys; ++j) {
    const double w = seen.whole.weight[j] / seen.whole.l;
    seen.weights[j] = w;
    const double growth = seen.whole.growth[j];
    seen.weight_errors[j] = w * growth + seen.tiny + (least > 0.0 ? least * (1.0 + growth) : 0.0);
    const double p = seen.part.weight[j] / seen.part.l;
    seen.columns[j] += p;
    seen.column_errors[j] += p * seen.part.growth[j] + seen.tiny;
  }
}

}  // namespace PRODUCTS
