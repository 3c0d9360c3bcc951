// Dense attention of a few rows to a long context (DEC-1): K and V are read once for all query heads of a group, and
// the context is split over the threads.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/cpu_session.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cpu {

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// Fewer keys are not worth a task.
constexpr std::int64_t kSplitKeys = 1024;

/// Parts of a head that feed enough threads; beyond, longer parts stream better than more of them.
constexpr std::int64_t kFewSplits = 8;

/// Keys per task: a function of the context alone, so that no result depends on the threads.
std::int64_t split_keys(std::int64_t n) {
  const auto share = [&](std::int64_t splits) { return (n + splits - 1) / splits; };
  const std::int64_t keys = std::max(std::min(share(kFewSplits), kDecodeLogits), share(kMaxSplits));
  return (keys + kSplitKeys - 1) / kSplitKeys * kSplitKeys;
}

/// The largest of n logits and `top`; NaN is passed over. Many chains, so that the loop vectorises.
float highest(const float* logits, std::int64_t n, float top) {
  constexpr int kChains = 16;
  float tops[kChains];
  std::fill_n(tops, kChains, top);
  std::int64_t i = 0;
  for (; i + kChains <= n; i += kChains) {
    for (int c = 0; c < kChains; ++c) tops[c] = logits[i + c] > tops[c] ? logits[i + c] : tops[c];
  }
  for (; i < n; ++i) tops[0] = logits[i] > tops[0] ? logits[i] : tops[0];
  for (const float candidate : tops) top = candidate > top ? candidate : top;
  return top;
}

}  // namespace

bool CpuSession::decodes_by_rows(const Chunk& chunk) const {
  const std::int64_t group = shape().n_head / shape().n_head_kv;
  // A prompt from position 0 on has the bits of a sparse first chunk (STATE-3), which is computed in blocks.
  return chunk.begin > 0 && (chunk.end - chunk.begin) * group <= kDecodeRows;
}

void CpuSession::run_decode(const Call& call, const Chunk& chunk) {
  const std::int64_t heads_kv = shape().n_head_kv;
  const std::int64_t rows = (chunk.end - chunk.begin) * (shape().n_head / heads_kv);
  const std::int64_t keys = split_keys(chunk.end);
  const std::int64_t splits = (chunk.end + keys - 1) / keys;
#pragma omp parallel num_threads(threads_)
  {
#pragma omp for schedule(static)
    for (std::int64_t task = 0; task < heads_kv * splits; ++task) {
      const std::int64_t first = task % splits * keys;
      decode_split(call, chunk, task / splits, task % splits, first, std::min(first + keys, chunk.end),
                   thread_scratch());
    }
#pragma omp for schedule(static)
    for (std::int64_t task = 0; task < heads_kv * rows; ++task) {
      join_splits(call, chunk, task / rows, task % rows, splits, thread_scratch());
    }
  }
}

CpuSession::DecodeRow CpuSession::decode_row(const Chunk& chunk, std::int64_t head_kv,
                                             std::int64_t row) const {
  const std::int64_t group = shape().n_head / shape().n_head_kv;
  return {head_kv * group + row % group, chunk.begin + row / group};
}

float* CpuSession::split_state(std::int64_t head_kv, std::int64_t split, std::int64_t row) {
  return splits_.data() + ((head_kv * kMaxSplits + split) * kDecodeRows + row) * (kv_.d_value() + 2);
}

void CpuSession::decode_split(const Call& call, const Chunk& chunk, std::int64_t head_kv, std::int64_t split,
                              std::int64_t begin, std::int64_t end, Scratch& scratch) {
  const std::int64_t d = kv_.d_head();
  const std::int64_t dv = kv_.d_value();
  const std::int64_t rows = (chunk.end - chunk.begin) * (shape().n_head / shape().n_head_kv);
  const bool paired = call.bf16 && bf16_->row_logits != nullptr;
  for (std::int64_t r = 0; r < rows; ++r) {
    const DecodeRow row = decode_row(chunk, head_kv, r);
    const void* q = core::row_address(call.q, row.position - call.base, row.head);
    if (paired) {
      HEADWATER_MARK("cpu.decode.paired");
      std::memcpy(scratch.packed16.data() + r * d, q, static_cast<std::size_t>(d) * sizeof(std::uint16_t));
    } else {
      kernels_.widen(q, call.q.type, d, scratch.rows.data());
      kernels_.arrange_row(scratch.rows.data(), kv_.type(), d, scratch.packed.data() + r * d);
    }
  }
  float* out = scratch.out.data();
  float max[kDecodeRows];
  float sum[kDecodeRows] = {};
  std::fill_n(max, kDecodeRows, kMinusInfinity);
  std::fill_n(out, rows * dv, 0.0f);
  for (std::int64_t first = begin; first < end; first += kDecodeLogits) {
    if (first > begin && HEADWATER_SABOTAGE("cpu.decode.first_logits_of_a_split_only")) break;
    const std::int64_t n = std::min(kDecodeLogits, end - first);
    float* logits = scratch.decode.data();
    const void* keys = kv_.key(call.layer, head_kv, first);
    if (paired) {
      bf16_->row_logits(scratch.packed16.data(), rows, d, static_cast<const std::uint16_t*>(keys), n, scale_,
                        logits, kDecodeLogits);
    } else {
      kernels_.row_logits(scratch.packed.data(), rows, d, keys, kv_.type(), n, scale_, logits, kDecodeLogits);
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      float* line = logits + r * kDecodeLogits;
      map_row(decode_row(chunk, head_kv, r), first, n, line);
      const float top = highest(line, n, max[r]);
      const float offset = top == kMinusInfinity ? 0.0f : top;
      const float rescale = std::exp(max[r] - offset);
      for (std::int64_t c = 0; c < dv; ++c) out[r * dv + c] *= rescale;
      sum[r] = sum[r] * rescale + kernels_.row_weights(line, n, offset);
      max[r] = top;
    }
    kernels_.row_values(logits, kDecodeLogits, rows, kv_.value(call.layer, head_kv, first), kv_.type(), n, dv,
                        out);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    float* state = split_state(head_kv, split, r);
    state[0] = max[r];
    state[1] = sum[r];
    const bool unrestored = HEADWATER_SABOTAGE("cpu.decode.unrestored_row");
    kernels_.restore_row(out + r * dv, unrestored ? DType::f32 : kv_.type(), dv, state + 2);
  }
}

void CpuSession::map_row(const DecodeRow& row, std::int64_t first, std::int64_t n, float* logits) const {
  const LogitMap map = logit_map(row.head);
  if (map.softcap > 0) {
    for (std::int64_t i = 0; i < n; ++i) logits[i] = map.softcap * std::tanh(logits[i] / map.softcap);
  }
  if (map.slope != 0) {
    for (std::int64_t i = 0; i < n; ++i)
      logits[i] -= map.slope * static_cast<float>(row.position - (first + i));
  }
  const std::int64_t hidden = row.position + 1 + (HEADWATER_SABOTAGE("cpu.decode.one_future_key") ? 1 : 0);
  for (std::int64_t i = std::max<std::int64_t>(0, hidden - first); i < n; ++i) logits[i] = kMinusInfinity;
}

void CpuSession::join_splits(const Call& call, const Chunk& chunk, std::int64_t head_kv, std::int64_t r,
                             std::int64_t splits, Scratch& scratch) {
  const std::int64_t dv = kv_.d_value();
  if (HEADWATER_SABOTAGE("cpu.decode.splits_beyond_8")) splits = std::min<std::int64_t>(splits, 8);
  const DecodeRow row = decode_row(chunk, head_kv, r);
  float max = sink(row.head);
  for (std::int64_t split = 0; split < splits; ++split) {
    const float top = split_state(head_kv, split, r)[0];
    max = top > max ? top : max;
  }
  const float offset = max == kMinusInfinity ? 0.0f : max;
  double sum = std::exp(static_cast<double>(sink(row.head)) - static_cast<double>(offset));
  float* out = scratch.out.data();
  std::fill_n(out, dv, 0.0f);
  for (std::int64_t split = 0; split < splits; ++split) {
    if (split > 0 && HEADWATER_SABOTAGE("cpu.decode.first_split_only")) break;
    const float* state = split_state(head_kv, split, r);
    const double factor = std::exp(static_cast<double>(state[0]) - static_cast<double>(offset));
    sum += factor * static_cast<double>(state[1]);
    for (std::int64_t c = 0; c < dv; ++c) out[c] += static_cast<float>(factor) * state[2 + c];
  }
  if (sum != 0) {
    for (std::int64_t c = 0; c < dv; ++c) out[c] /= static_cast<float>(sum);
  }
  store_row(call, row.position, row.head, out);
  lse_.data()[row.head * shape().capacity + (row.position - call.base)] =
      static_cast<float>(static_cast<double>(max) + std::log(sum));
}

}  // namespace headwater::cpu
