#pragma once

#include <span>

#include "cuda/kernels/platform/kernel.hpp"
#include "headwater/dtype.hpp"

namespace headwater::cuda {

enum class Stage : std::uint8_t {
  store_rows,
  forward,
  softmax,
  column_sums,
  select,
  gather,
  combine,
  sm90_causal,       ///< sm90/: the intra pass of equal chunks, windows of dense prefill
  sm90_memory,       ///< the inter pass, joined with the intra pass
  sm90_column_sums,  ///< its column sums
  sm90_score,        ///< column sums of the inter pass, by runs of queries
  score_sums,        ///< adds those up
  // Rule blocks.
  summarise,
  pool_queries,
  votes,
  choose,
  chosen_forward,  ///< forward over the keys of query blocks' sets
};

/// A compiled kernel and what it is made for.
struct KernelEntry {
  Kernel kernel;
  Stage stage;
  DType unit = DType::f32;  ///< arithmetic: tensor cores for 16-bit types
  int d = 0;                ///< elements of a row in shared memory; wider rows come in slices
  int dv = 0;               ///< of a value row, forwards and softmax only
  int rows = 0;             ///< query rows (forwards, softmax, votes) or keys (column sums) of a block
  int keys = 0;             ///< keys (forwards, softmax, votes) or queries (column sums) of a tile
  int shared_bytes = 0;
  int candidates = 0;   ///< select, choose: most that fit into shared memory
  bool mapped = false;  ///< sm90/: made for the whole rule of logits (cap, slopes, factor of any sign)
};

using Entries = std::span<const KernelEntry>;

/// All kernels, compiled for the GPU and for the emulation.
namespace on_gpu {
Entries entries();
}
namespace on_host {
Entries entries();
}

}  // namespace headwater::cuda
