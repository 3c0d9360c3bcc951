#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/layer.hpp"

namespace headwater::cuda {

/// Memory sets with their rows side by side, and what the passes of a sparse window leave for each other.
struct SparseStores {
  /// Rows of a chunk's memory set, by query head.
  struct Gathered {
    StoredRows keys;
    StoredRows values;
    std::int32_t* positions;  ///< that they came from
  };

  /// Of the places for gathered rows, that one.
  [[nodiscard]] Gathered gathered(std::int64_t slot) const {
    const std::int64_t entries = slot * data.shape.n_head * data.set_width;
    const DType type = data.shape.kv_type;
    return {{keys + entries * data.key_width * data.element_bytes, data.set_width * data.key_width, type,
             static_cast<int>(data.key_width)},
            {values + entries * data.value_width * data.element_bytes, data.set_width * data.value_width,
             type, static_cast<int>(data.value_width)},
            positions + entries};
  }

  /// The states that the two passes leave. Errors: out_of_memory.
  void take_states(SessionData& to) {
    const std::int64_t rows = core::checked_product(to.shape.n_head, to.window_rows);
    auto* next = to.take<float>(core::checked_product(rows, 3 + to.shape.d_value), "softmax state");
    intra.out = to.part(next, rows * to.shape.d_value, "unfinished outputs");  // first: aligned as allocated
    intra.max = to.part(next, rows, "intra maxima");
    intra.sum = to.part(next, rows, "intra sums");
    intra.rounded = to.part(next, rows, "intra divisors");
    intra.stride = to.window_rows;
  }

  const SessionData& data;
  unsigned char* keys = nullptr;      ///< [slots][Hq][set_width][key_width]
  unsigned char* values = nullptr;    ///< [slots][Hq][set_width][value_width]
  std::int32_t* positions = nullptr;  ///< [slots][Hq][set_width]
  float* colsum_intra = nullptr;      ///< [Hq][window]; null: none are formed (SEL-9)
  float* colsum_inter = nullptr;      ///< [Hq][set_width]
  SoftmaxState intra{};               ///< [Hq][window]
  SoftmaxState inter{};               ///< [Hq][window], without outputs
};

/// A chunk of a window and its memory set.
struct InterChunk {
  const Chunk& chunk;
  std::int64_t index;  ///< from the window's first
  std::int64_t count;  ///< entries of its memory set
};

/// [sets][stride]
struct ChosenSets {
  const std::int32_t* positions;
  std::int64_t stride;
};

/// The kernels that compute a window's products, and how they are launched.
class KernelPath {
 public:
  KernelPath() = default;
  KernelPath(const KernelPath&) = delete;
  KernelPath& operator=(const KernelPath&) = delete;
  virtual ~KernelPath() = default;

  /// Intra passes of a window's first `chunks` chunks, group by group.
  void intra_groups(const Window& window, const SparseStores& stores, std::int64_t chunks) {
    const std::int64_t rows = window.launches.together() * stores.data.options.chunk;
    for (std::int64_t group = 0; group < window.launches.groups(chunks); ++group) {
      const std::int64_t begin = window.begin + group * rows;
      intra(window, stores, group, begin, std::min(window.end, begin + rows));
      window.launches.after_group(group);
    }
  }
  /// Intra passes of the chunks of a group, which fill [begin, end), and their column sums.
  virtual void intra(const Window& window, const SparseStores& stores, std::int64_t group, std::int64_t begin,
                     std::int64_t end) = 0;
  /// Column sums of a chunk's inter pass.
  virtual void inter_scores(const Window& window, const SparseStores& stores, const InterChunk& chunk) = 0;
  /// Outputs of a chunk's inter pass, joined with those of its intra pass.
  virtual void inter_output(const Window& window, const SparseStores& stores, const InterChunk& chunk) = 0;
  /// Outputs of query blocks over their sets, joined with those of their intra passes.
  virtual void chosen_output(const Window& window, const SparseStores& stores, const QueryBlocks& at,
                             const ChosenSets& sets) = 0;
  /// Outputs of a dense window.
  virtual void dense(const Window& window) = 0;
};

}  // namespace headwater::cuda
