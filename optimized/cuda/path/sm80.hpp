#pragma once

#include "cuda/path/path.hpp"

namespace headwater::cuda {

/// Kernels of mma.sync, and of F32 on CUDA cores: every device has them, for rows of every type and width.
class Sm80Path final : public KernelPath {
 public:
  explicit Sm80Path(const SessionData& data) : data_(data) {}

  void intra(const Window& window, const SparseStores& stores, std::int64_t group, std::int64_t begin,
             std::int64_t end) override;
  void inter_scores(const Window& window, const SparseStores& stores, const InterChunk& chunk) override;
  void inter_output(const Window& window, const SparseStores& stores, const InterChunk& chunk) override;
  void chosen_output(const Window& window, const SparseStores& stores, const QueryBlocks& at,
                     const ChosenSets& sets) override;
  void dense(const Window& window) override;

  /// intra() in places of the launches.
  void intra(const Window& window, const SparseStores& stores, const WindowLaunches::IntraPlaces& places,
             std::int64_t begin, std::int64_t end) const;
  /// Rows [begin, end) of a window over what is stored of its layer; ranges and states are the caller's.
  [[nodiscard]] ForwardParams forward_params(const Window& window, std::int64_t begin,
                                             std::int64_t end) const;
  /// `parts` (chunks or splits) of `rows` query rows.
  void launch_forward(const Window& window, WindowLaunches::Place place, const ForwardParams& params,
                      std::int64_t parts, std::int64_t rows) const;

 private:
  [[nodiscard]] ForwardParams inter_params(const Window& window, const SparseStores& stores,
                                           const InterChunk& chunk) const;
  [[nodiscard]] ColumnSumsParams column_sums_params(const Window& window, const ForwardParams& pass) const;
  void launch_column_sums(const Window& window, WindowLaunches::Place place, const ColumnSumsParams& params,
                          std::int64_t chunks, std::int64_t keys) const;

  const SessionData& data_;
};

}  // namespace headwater::cuda
