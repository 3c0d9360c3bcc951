#pragma once

#include "cuda/kernels/elements.hpp"

namespace headwater::cuda {

inline constexpr int kGatherThreads = 128;
inline constexpr int kGatherEntries = 16;  ///< entries of one head that a block copies

template <class Context>
HEADWATER_CUDA_FUNCTION void gather_vectors(Context& ctx, const StoredRows& from, Global<void> to,
                                            const GatherParams& p, int first, int last) {
  const int vectors = from.width * p.element_bytes / kVectorBytes;
  const int head = ctx.block_x();
  for (int i = ctx.thread(); i < (last - first) * vectors; i += ctx.threads()) {
    const int entry = first + i / vectors;
    std::int64_t position = p.positions[head * p.positions_stride + entry];
    if (HEADWATER_SABOTAGE("cuda.gather.entry_zero")) position = p.positions[head * p.positions_stride];
    const std::int64_t row = head / p.group * (from.head_stride / from.width) + position;
    const std::int64_t target = head * p.entries + entry;
    // In units of 16 bytes: rows are whole vectors.
    const GlobalPlace<const Words4> source =
        elements_of<const Words4>(from.data) + row * vectors + i % vectors;
    ctx.store16(elements_of<Words4>(to) + target * vectors + i % vectors, ctx.load16(source));
  }
}

/// Key and value rows of every head's memory set side by side, and their positions, since the set itself is the next chunk's
/// before all has been read: neighbouring threads copy neighbouring vectors.
template <class Context>
HEADWATER_CUDA_FUNCTION void gather(Context& ctx, const GatherParams& p) {
  for (int first = ctx.block_y() * kGatherEntries; first < p.count; first += ctx.grid_y() * kGatherEntries) {
    const int last = first + kGatherEntries < p.count ? first + kGatherEntries : p.count;
    gather_vectors(ctx, p.keys, p.gathered_keys, p, first, last);
    gather_vectors(ctx, p.values, p.gathered_values, p, first, last);
    const std::int64_t head = ctx.block_x();
    for (int entry = first + ctx.thread(); entry < last; entry += ctx.threads()) {
      p.gathered_positions[head * p.entries + entry] = p.positions[head * p.positions_stride + entry];
    }
  }
}

}  // namespace headwater::cuda
