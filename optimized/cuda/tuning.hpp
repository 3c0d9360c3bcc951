#pragma once

#include <cstdint>

/// Sizes that trade speed only. What a result's bits depend on follows from the sizes of a problem alone, never from the
/// device: the same on an emulated one.
namespace headwater::cuda {

/// Rows (queries of the forward pass, keys of the column sums) up to which one warp a block is enough.
inline constexpr std::int64_t kFewRows = 32;
/// Rows wider than every kernel come in slices of this many elements.
inline constexpr int kSliceWidth = 64;

/// Rows that are staged and whose intra state is kept at a time: the default batch.
inline constexpr std::int64_t kWindowRows = 4096;

/// Most chunks of a window, each with its places in the captured graph; least rows of chunks whose intra passes are launched
/// together, beside the passes over memory sets of the chunks before them. Predicted for chunks of 1024 on sm_90a: a layer
/// takes 5.5 % less than with one chunk to a launch, 0.8 % more than with four, which let the first memory sets wait.
inline constexpr std::int64_t kWindowChunks = 64;
inline constexpr std::int64_t kGroupRows = 2048;
/// Memory sets whose rows are kept gathered: scores run so many chunks ahead of the outputs of the inter pass.
inline constexpr std::int64_t kGatheredSets = 4;

/// Decode: query rows (tokens x query heads of a key/value head) of a step that is split along its keys; least keys of a
/// split, a multiple of every key tile; most splits.
inline constexpr std::int64_t kDecodeRows = 64;
inline constexpr std::int64_t kSplitKeys = 256;
inline constexpr std::int64_t kMaxSplits = 64;

/// Shorter chunks leave most of a tile of 128 x 128 empty: kernels of mma.sync take them in tiles of 64.
inline constexpr std::int64_t kSm90LeastChunk = 128;
/// Runs of the score kernel are cut as for an H100 or H200 of all its multiprocessors, whatever the device: bits.
inline constexpr int kSm90Multiprocessors = 132;

/// The y and z extents of a grid end here.
inline constexpr std::int64_t kMaxGrid = 65535;

}  // namespace headwater::cuda
