// The products of products_kinds.hpp for one kind of processor: the including file names the namespace (PRODUCTS) and has chosen
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

}  // namespace PRODUCTS
