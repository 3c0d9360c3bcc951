#include "cpu/pass/row_blocks.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "headwater/testing/sabotage.hpp"

namespace headwater::cpu {

namespace {

/// What the outputs of the passes are multiplied with, per row (FUSE-1).
struct FusedRows {
  float intra_weight[kBlockRows];
  float inter_weight[kBlockRows];
  float lse[kBlockRows];
};

/// Joins (m, l, o) of the inter pass to the intra pass's in double, but for the exponentials. The logarithm of lse costs
/// as much as the rest and is for those who ask.
void fuse(const LayerCall& call, const BlockResult& intra, const BlockResult& inter, std::int64_t n,
          FusedRows& fused) {
  const KernelTable& kernels = call.data.kernels;
  const double unit = call.arithmetic.unit();
  const bool divided = call.arithmetic.divides();
  const bool with_lse = call.wants_lse();
  for (std::int64_t r = 0; r < n; ++r) {
    const double m = std::max(intra.max[r], inter.max[r]);
    const auto relative = [&](float max) {
      return max == m ? 0.0f : static_cast<float>(unit * (static_cast<double>(max) - m));
    };
    fused.intra_weight[r] = relative(intra.max[r]);
    fused.inter_weight[r] = relative(inter.max[r]);
  }
  (void)kernels.row_weights(fused.intra_weight, n, 0.0f);
  (void)kernels.row_weights(fused.inter_weight, n, 0.0f);
  for (std::int64_t r = 0; r < n; ++r) {
    const double intra_sum = intra.sum[r];
    const double inter_sum = inter.sum[r];
    const double a = intra_sum == 0 ? 0 : intra_sum * static_cast<double>(fused.intra_weight[r]);
    double b = inter_sum == 0 ? 0 : inter_sum * static_cast<double>(fused.inter_weight[r]);
    if (HEADWATER_SABOTAGE("cpu.fuse.no_rescale")) b = inter_sum;
    const double l = a + b;
    const auto weight = [&](double share, double sum) {
      return share == 0 ? 0.0f : static_cast<float>(share / (divided ? l : l * sum));
    };
    fused.intra_weight[r] = weight(a, intra_sum);
    fused.inter_weight[r] = weight(b, inter_sum);
    const double m = std::max(intra.max[r], inter.max[r]);
    fused.lse[r] = l == 0     ? -std::numeric_limits<float>::infinity()
                   : with_lse ? static_cast<float>(unit * m + std::log(l))
                              : 0.0f;
  }
}

/// Query rows [begin, end) of a head in the caller's memory.
PrefetchRows queries_of(const LayerCall& call, std::int64_t head, std::int64_t begin, std::int64_t end) {
  const auto element = static_cast<std::int64_t>(dtype_size(call.q.type));
  if (begin >= end) return {};
  return {static_cast<const unsigned char*>(core::row_address(call.q, begin - call.base(), head)),
          call.q.row_stride * element, call.data.shape.d_head * element, end - begin};
}

/// Output rows [begin, end) of a head.
PrefetchRows outputs_of(const LayerCall& call, std::int64_t head, std::int64_t begin, std::int64_t end) {
  const auto element = static_cast<std::int64_t>(dtype_size(call.out.type));
  return {static_cast<const unsigned char*>(core::row_address(call.out, begin - call.base(), head)),
          call.out.row_stride * element, call.data.shape.d_value * element, end - begin};
}

}  // namespace

RowBlocks::Scratch::Scratch(std::int64_t dv)
    : intra(core::checked_product(kBlockRows, dv)), inter(core::checked_product(kBlockRows, dv)) {}

RowBlocks::RowBlocks(const SessionData& data, std::int64_t lse_rows)
    : data_(data), lse_rows_(lse_rows), lse_(core::checked_product(data.shape.n_head, lse_rows)) {
  scratch_.reserve(static_cast<std::size_t>(data.options.threads));
  for (int t = 0; t < data.options.threads; ++t) scratch_.emplace_back(data.widest.d_value);
}

std::int64_t RowBlocks::bytes() const {
  std::int64_t bytes = lse_.bytes();
  for (const Scratch& scratch : scratch_) bytes += scratch.intra.bytes() + scratch.inter.bytes();
  return bytes;
}

void RowBlocks::attend(const LayerCall& call, const Window& window, const Chunk& chunk, const BlockRows& rows,
                       std::int64_t prefetch_end, const GatheredSet& set, int thread) {
  const std::int64_t end = rows.row + rows.n;
  PrefetchRows prefetch[] = {outputs_of(call, rows.head, rows.row, end),
                             queries_of(call, rows.head, end, std::min(end + kBlockRows, prefetch_end))};
  const BlockRows ahead{rows.head, rows.row, rows.n, prefetch};
  float* out = intra_out(thread);
  write(call, chunk, rows, intra(call, window, chunk, ahead, set, nullptr, out, thread), out);
}

void RowBlocks::attend_with_sums(const LayerCall& call, const Window& window, const Chunk& chunk,
                                 const BlockRows& rows, std::int64_t prefetch_end, const GatheredSet* set,
                                 double* intra_sums, double* inter_sums, int thread) {
  const std::int64_t end = rows.row + rows.n;
  PrefetchRows prefetch[] = {outputs_of(call, rows.head, rows.row, end),
                             queries_of(call, rows.head, end, std::min(end + kBlockRows, prefetch_end))};
  const BlockRows ahead{rows.head, rows.row, rows.n, prefetch};
  float max[kBlockRows];
  float sum[kBlockRows];
  float* out = intra_out(thread);
  const BlockResult own = intra(call, window, chunk, ahead, {}, intra_sums, out, thread);
  std::copy_n(own.max, kBlockRows, max);
  std::copy_n(own.sum, kBlockRows, sum);
  const BlockResult kept{max, sum};
  if (set) {
    join(call, chunk, ahead, kept, out, inter(call, window, chunk, ahead, *set, true, inter_sums, thread),
         thread);
  } else {
    write(call, chunk, ahead, kept, out);
  }
}

BlockResult RowBlocks::intra(const LayerCall& call, const Window& window, const Chunk& chunk,
                             const BlockRows& rows, const GatheredSet& set, double* sums, float* out,
                             int thread) {
  const PassBlock block{
      .head = rows.head,
      .row = rows.row,
      .rows = rows.n,
      .sink = call.sink(rows.head),
      .own_keys = rows.row + rows.n - chunk.begin,  // MASK-1: what the last row sees
      .set = set,
      .sums = sums,
      .out = out,
      .loaded = false,
      .prefetch = rows.prefetch,
  };
  return call.arithmetic.attend(call, window, chunk, block, thread);
}

BlockResult RowBlocks::inter(const LayerCall& call, const Window& window, const Chunk& chunk,
                             const BlockRows& rows, const GatheredSet& set, bool loaded, double* sums,
                             int thread) {
  const PassBlock block{
      .head = rows.head,
      .row = rows.row,
      .rows = rows.n,
      .sink = -std::numeric_limits<float>::infinity(),  // LOGIT-4: no sink in the inter pass
      .own_keys = 0,
      .set = set,
      .sums = sums,
      .out = of(thread).inter.data(),
      .loaded = loaded,
      .prefetch = rows.prefetch,
  };
  return call.arithmetic.attend(call, window, chunk, block, thread);
}

void RowBlocks::join(const LayerCall& call, const Chunk& chunk, const BlockRows& rows,
                     const BlockResult& intra, const float* intra_out, const BlockResult& inter, int thread) {
  const std::int64_t dv = data_.shape.d_value;
  float* inter_out = of(thread).inter.data();
  FusedRows fused;
  fuse(call, intra, inter, rows.n, fused);
  store_lse(call, chunk, rows, fused.lse);
  for (std::int64_t r = 0; r < rows.n; ++r) {
    // Straight to the caller where his rows are floats.
    float* o = inter_out + r * dv;
    float* direct = call.float_row(rows.row + r, rows.head);
    data_.kernels.blend(intra_out + r * dv, fused.intra_weight[r], o, fused.inter_weight[r], dv,
                        direct ? direct : o);
    if (!direct) call.store_row(rows.row + r, rows.head, o);
  }
}

void RowBlocks::write(const LayerCall& call, const Chunk& chunk, const BlockRows& rows,
                      const BlockResult& intra, float* out) {
  const std::int64_t dv = data_.shape.d_value;
  float nothing[kBlockRows];
  std::fill_n(nothing, kBlockRows, -std::numeric_limits<float>::infinity());
  const float no_sum[kBlockRows] = {};
  FusedRows fused;
  fuse(call, intra, {nothing, no_sum}, rows.n, fused);
  store_lse(call, chunk, rows, fused.lse);
  for (std::int64_t r = 0; r < rows.n; ++r) {
    float* o = out + r * dv;
    float* direct = call.float_row(rows.row + r, rows.head);
    const bool scaled = !call.arithmetic.divides();
    if (scaled) data_.kernels.scale(o, fused.intra_weight[r], dv, direct ? direct : o);
    if (!scaled || !direct) call.store_row(rows.row + r, rows.head, o);
  }
}

void RowBlocks::store_lse(const LayerCall& call, const Chunk& chunk, const BlockRows& rows,
                          const float* lse) {
  if (!call.wants_lse()) return;
  const LseRows shown{lse_.data(), lse_rows_, chunk.begin};
  for (std::int64_t r = 0; r < rows.n; ++r) call.store_lse(shown, rows.row + r, rows.head, lse[r]);
}

}  // namespace headwater::cpu
