#pragma once

#include <cstdint>
#include <vector>

#include "cuda/kernels/entries.hpp"

namespace headwater::cuda {

/// A row of the table of kernels and its index.
struct Choice {
  int index = 0;
  const KernelEntry* entry = nullptr;
};

/// Chooses kernels by sizes.
class Dispatch {
 public:
  explicit Dispatch(Entries entries);

  /// The table as a Device takes it; lives as long as this object.
  [[nodiscard]] std::span<const Kernel> kernels() const { return kernels_; }

  [[nodiscard]] Choice only(Stage stage) const;
  /// The smallest kernel for rows of d (and values of dv) elements, or the one that takes wider rows in slices.
  [[nodiscard]] Choice forward(DType unit, std::int64_t d, std::int64_t dv, std::int64_t rows) const;
  /// Of the same tiles as forward(): the same m and l.
  [[nodiscard]] Choice softmax(DType unit, std::int64_t d, std::int64_t dv, std::int64_t rows) const;
  [[nodiscard]] Choice column_sums(DType unit, std::int64_t d, std::int64_t keys) const;
  /// Of the same tiles as forward(), over chosen keys.
  [[nodiscard]] Choice chosen_forward(DType unit, std::int64_t d, std::int64_t dv, std::int64_t rows) const;
  [[nodiscard]] Choice votes(DType unit) const;
  /// `of`: select or choose.
  [[nodiscard]] Choice select(Stage of, std::int64_t candidates) const;
  /// The smallest kernel of sm_90a of a stage for rows of d (and values of dv) elements; entry null: there is none.
  [[nodiscard]] Choice sm90(Stage stage, DType unit, std::int64_t d, std::int64_t dv, bool mapped) const;

 private:
  [[nodiscard]] Choice sized(Stage stage, DType unit, std::int64_t d, std::int64_t dv,
                             std::int64_t rows) const;

  Entries entries_;
  std::vector<Kernel> kernels_;
};

}  // namespace headwater::cuda
