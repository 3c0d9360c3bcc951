#pragma once

#include "cuda/kernels/blocks/place.hpp"
#include "cuda/kernels/sm80/tiles.hpp"

/// Votes of a set's pools on summaries of key blocks or regions (SEL-5, SEL-6, SEL-12), or on keys (SEL-7): products of the
/// pooled queries, 32 at a time, with all that is voted on, twice over: for the largest estimates, or m and l, and then
/// for the votes themselves, the largest of all pools.
namespace headwater::cuda {

/// kSlice: elements of a row in shared memory at a time. Each of kWarps warps takes 32 columns, which are rows of the keys.
template <class UnitType, int kSliceType, int kWarpsType>
struct VoteShape {
  using Unit = UnitType;
  static constexpr int kSlice = kSliceType;
  static constexpr int kWarps = kWarpsType;
  static constexpr int kRowTiles = 2;
  static constexpr int kRows = kRowTiles * kFragmentRows;
  static constexpr int kColumnTiles = 4;
  static constexpr int kWarpColumns = kColumnTiles * kFragmentColumns;
  static constexpr int kKeys = kWarps * kWarpColumns;
  static constexpr int kStride = kSlice + Unit::kPad;
  static constexpr int kElementBytes = static_cast<int>(sizeof(typename Unit::Element));
  static constexpr int kRowBytes = kElementBytes * (kRows + kKeys) * kStride;
  static constexpr int kShared = kRowBytes + 2 * 4 * kRows * kWarps;  ///< m and l of every warp
};

/// What the columns of a set's votes stand for.
struct VoteColumns {
  int n;
  int listed;  ///< columns of runs of `run` that the list names; those after them follow each other from `rest` on
  int run;
  int rest;
  int keys;     ///< that each stands for
  bool by_row;  ///< votes stand by the number of the row, and are -infinity elsewhere
};

HEADWATER_CUDA_FUNCTION VoteColumns vote_columns(const VoteParams& p, const QueryBlock& block) {
  if (p.kind == VoteKind::regions) return {block.regions, 0, 1, 0, kRegionBlocks * p.at.key_block, false};
  if (p.kind == VoteKind::tokens) return {block.tokens, block.tokens, p.at.key_block, 0, 1, false};
  if (block.regions == 0) return {block.candidates, 0, 1, 0, p.at.key_block, false};
  const int listed = static_cast<int>(smaller(p.at.most_regions, block.regions)) * kRegionBlocks;
  const int rest = block.regions * kRegionBlocks;
  return {listed + block.candidates - rest, listed, kRegionBlocks, rest, p.at.key_block, true};
}

/// The row of the keys that a column is.
HEADWATER_CUDA_FUNCTION std::int64_t vote_row(const VoteParams& p, const VoteColumns& columns,
                                              std::int64_t list, int column) {
  if (column >= columns.listed) return columns.rest + column - columns.listed;
  const std::int64_t number = p.listed[list + column / columns.run];
  return number * columns.run + column % columns.run;
}

/// The pools' rows that a lane holds numbers of.
struct VoteRows {
  std::int64_t last[4];  ///< position of its pool's last row; -1: there is none
  float slope[4];
  float max[4];
  float sum[4];
};

template <class Shape, class Context>
struct Voting {
  using Unit = typename Shape::Unit;
  using Element = typename Unit::Element;

  Context& ctx;
  const VoteParams& p;
  QueryBlock block;
  VoteColumns columns;
  std::int64_t set;
  int head;  ///< key/value head
  Shared<Element> queries;
  Shared<Element> keys;

  /// Logits of the batch of rows from `row` on and the columns of this warp from `first` on.
  HEADWATER_CUDA_FUNCTION void multiply(int row, int rows, int first, const VoteRows& of,
                                        float (&logits)[Shape::kRowTiles][Shape::kColumnTiles][4]) {
    const int own = first + ctx.warp() * Shape::kWarpColumns;
    const std::int64_t list = set * p.listed_stride;
    for (int column = 0; column < p.columns; column += Shape::kSlice) {
      ctx.barrier();  // what is there has been read
      load_rows<Unit, Shape::kRows, Shape::kSlice>(
          ctx, queries, p.queries, set, column,
          [&](int r) -> std::int64_t { return row + r < rows ? row + r : -1; });
      load_rows<Unit, Shape::kKeys, Shape::kSlice>(
          ctx, keys, p.keys, head, column, [&](int c) -> std::int64_t {
            return first + c < columns.n ? vote_row(p, columns, list, first + c) : -1;
          });
      if constexpr (Unit::kAsync) ctx.copy_commit();
      arrive<0, Unit>(ctx);
      if (own >= columns.n) continue;
      const int left = p.columns - column;
      const int steps = ((left < Shape::kSlice ? left : Shape::kSlice) + Unit::kStep - 1) / Unit::kStep;
      const Shared<Element> own_keys = keys + ctx.warp() * Shape::kWarpColumns * Shape::kStride;
      HEADWATER_CUDA_UNROLL
      for (int tile = 0; tile < Shape::kRowTiles; ++tile) {
        if (row + tile * kFragmentRows >= rows) continue;
        Unit::template dot_rows<Shape::kColumnTiles>(ctx, logits[tile],
                                                     queries + tile * kFragmentRows * Shape::kStride,
                                                     Shape::kStride, own_keys, Shape::kStride, steps);
      }
    }
    if (own >= columns.n) return;
    HEADWATER_CUDA_UNROLL
    for (int t = 0; t < Shape::kColumnTiles; ++t) {
      HEADWATER_CUDA_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int column = own + fragment_column(ctx.lane(), t, e);
        const bool seen = column < columns.n;
        std::int64_t position = 0;
        if (seen && p.rule.slopes != nullptr)
          position = vote_row(p, columns, list, column) * columns.keys + columns.keys - 1;
        HEADWATER_CUDA_UNROLL
        for (int i = 0; i < 4; ++i) {
          float& logit = logits[i / 2][t][2 * (i % 2) + e];
          const bool valid = seen && of.last[i] >= 0;
          logit = valid ? map_logit(ctx, p.rule, of.slope[i], logit, of.last[i] - position) : kMinusInfinity;
          // SEL-5; a NaN among logits of tokens makes l NaN, and all weights 0.
          if (p.kind != VoteKind::tokens && logit != logit) logit = kMinusInfinity;
        }
      }
    }
  }

  HEADWATER_CUDA_FUNCTION VoteRows begin_rows(int row, int rows) {
    VoteRows of;
    HEADWATER_CUDA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int r = row + i / 2 * kFragmentRows + fragment_row(ctx.lane(), 2 * (i % 2));
      of.last[i] = r < rows ? pool_begin(block, r / p.group + 1, p.pool) - 1 : -1;
      of.slope[i] = r < rows && p.rule.slopes != nullptr ? p.rule.slopes[head * p.group + r % p.group] : 0.0f;
      of.max[i] = kMinusInfinity;
      of.sum[i] = 0.0f;
    }
    return of;
  }

  /// Largest estimates, or m and l, of what this lane has seen.
  HEADWATER_CUDA_FUNCTION void measure(const float (&logits)[Shape::kRowTiles][Shape::kColumnTiles][4],
                                       VoteRows& of) {
    HEADWATER_CUDA_UNROLL
    for (int i = 0; i < 4; ++i) {
      float max = of.max[i];
      HEADWATER_CUDA_UNROLL
      for (int t = 0; t < Shape::kColumnTiles; ++t) {
        max = larger(logits[i / 2][t][2 * (i % 2)], max);
        max = larger(logits[i / 2][t][2 * (i % 2) + 1], max);
      }
      if (p.kind == VoteKind::tokens) {
        const float offset = offset_of(max);
        float sum = of.sum[i] * ctx.exp2(of.max[i] - offset);
        HEADWATER_CUDA_UNROLL
        for (int t = 0; t < Shape::kColumnTiles; ++t) {
          sum += ctx.exp2(logits[i / 2][t][2 * (i % 2)] - offset);
          sum += ctx.exp2(logits[i / 2][t][2 * (i % 2) + 1] - offset);
        }
        of.sum[i] = sum;
      }
      of.max[i] = max;
    }
  }

  /// Those of all lanes and warps, in this order.
  HEADWATER_CUDA_FUNCTION void join(VoteRows& of, Shared<float> maxima, Shared<float> sums) {
    HEADWATER_CUDA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float max = quad_max(ctx, of.max[i]);
      const float sum = quad_sum(ctx, of.sum[i] * ctx.exp2(of.max[i] - offset_of(max)));
      const int row = i / 2 * kFragmentRows + fragment_row(ctx.lane(), 2 * (i % 2));
      if (ctx.lane() % 4 == 0) {
        maxima[row * Shape::kWarps + ctx.warp()] = max;
        sums[row * Shape::kWarps + ctx.warp()] = sum;
      }
    }
    ctx.barrier();
    HEADWATER_CUDA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int first = (i / 2 * kFragmentRows + fragment_row(ctx.lane(), 2 * (i % 2))) * Shape::kWarps;
      float max = kMinusInfinity;
      HEADWATER_CUDA_UNROLL
      for (int w = 0; w < Shape::kWarps; ++w) {
        const float one = maxima[first + w];
        max = larger(one, max);
        if (w == 0 && HEADWATER_SABOTAGE("cuda.votes.maxima_of_first_warp")) break;
      }
      const float offset = offset_of(max);
      float sum = 0.0f;
      HEADWATER_CUDA_UNROLL
      for (int w = 0; w < Shape::kWarps; ++w) {
        const float one = maxima[first + w];
        const float part = sums[first + w];
        sum += part * ctx.exp2(one - offset);
      }
      of.max[i] = max;
      of.sum[i] = sum;
    }
  }

  /// Votes of this warp's columns: the largest of these rows', and of those before them.
  HEADWATER_CUDA_FUNCTION void raise(const float (&logits)[Shape::kRowTiles][Shape::kColumnTiles][4],
                                     const VoteRows& of, int first, bool anew) {
    const int own = first + ctx.warp() * Shape::kWarpColumns;
    if (own >= columns.n) return;
    const bool tokens = p.kind == VoteKind::tokens;
    float inverse[4];
    HEADWATER_CUDA_UNROLL
    for (int i = 0; i < 4; ++i) inverse[i] = tokens ? inverse_of(of.sum[i]) : 1.0f;
    HEADWATER_CUDA_UNROLL
    for (int t = 0; t < Shape::kColumnTiles; ++t) {
      HEADWATER_CUDA_UNROLL
      for (int e = 0; e < 2; ++e) {
        float best = tokens ? 0.0f : kMinusInfinity;
        HEADWATER_CUDA_UNROLL
        for (int i = 0; i < 4; ++i) {
          const float logit = logits[i / 2][t][2 * (i % 2) + e];
          float vote = tokens               ? ctx.exp2(logit - offset_of(of.max[i])) * inverse[i]
                       : logit == of.max[i] ? 0.0f
                                            : logit - of.max[i];
          if (of.last[i] < 0) vote = kMinusInfinity;
          best = vote > best ? vote : best;  // a NaN is none
        }
        HEADWATER_CUDA_UNROLL
        for (int lanes = 4; lanes < kWarp; lanes *= 2) best = larger(best, ctx.shuffle_xor(best, lanes));
        const int column = own + fragment_column(ctx.lane(), t, e);
        if (ctx.lane() >= 4 || column >= columns.n) continue;
        std::int64_t at = set * p.votes_stride;
        at += columns.by_row ? vote_row(p, columns, set * p.listed_stride, column) : column;
        const float before = anew ? best : static_cast<float>(p.votes[at]);
        p.votes[at] = larger(before, best);
      }
    }
  }
};

template <class Shape, class Context>
HEADWATER_CUDA_FUNCTION void vote(Context& ctx, const VoteParams& p) {
  using Element = typename Shape::Unit::Element;
  const QueryBlock block = query_block(p.at, ctx.block_x() % p.at.count);
  const VoteColumns columns = vote_columns(p, block);
  const int rows = pools_of(block, p.pool) * p.group;
  if (columns.n == 0 || block.begin >= block.end) return;
  Voting<Shape, Context> voting{
      ctx,
      p,
      block,
      columns,
      ctx.block_x(),
      ctx.block_x() / p.at.count,
      ctx.template shared<Element>(0, Shape::kRows * Shape::kStride),
      ctx.template shared<Element>(Shape::kElementBytes * Shape::kRows * Shape::kStride,
                                   Shape::kKeys * Shape::kStride)};
  const Shared<float> maxima = ctx.template shared<float>(Shape::kRowBytes, Shape::kRows * Shape::kWarps);
  const Shared<float> sums = ctx.template shared<float>(Shape::kRowBytes + 4 * Shape::kRows * Shape::kWarps,
                                                        Shape::kRows * Shape::kWarps);
  if (columns.by_row) {
    for (int b = ctx.thread(); b < block.candidates; b += ctx.threads())
      p.votes[voting.set * p.votes_stride + b] = kMinusInfinity;
    ctx.barrier();
  }
  for (int row = 0; row < rows; row += Shape::kRows) {
    if (row > 0 && HEADWATER_SABOTAGE("cuda.votes.pools_beyond_32")) break;
    VoteRows of = voting.begin_rows(row, rows);
    for (int first = 0; first < columns.n; first += Shape::kKeys) {
      float logits[Shape::kRowTiles][Shape::kColumnTiles][4] = {};
      voting.multiply(row, rows, first, of, logits);
      if (first + ctx.warp() * Shape::kWarpColumns < columns.n) voting.measure(logits, of);
    }
    voting.join(of, maxima, sums);
    for (int first = 0; first < columns.n; first += Shape::kKeys) {
      float logits[Shape::kRowTiles][Shape::kColumnTiles][4] = {};
      voting.multiply(row, rows, first, of, logits);
      voting.raise(logits, of, first, row == 0);
    }
  }
}

}  // namespace headwater::cuda
