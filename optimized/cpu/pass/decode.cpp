#include "cpu/pass/decode.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "headwater/testing/sabotage.hpp"

namespace headwater::cpu {

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// Fewer keys are not worth a task.
constexpr std::int64_t kSplitKeys = 1024;

/// The first key of a layer with a window (MASK-2) is rounded down to this, so that runs of stored rows end where they do
/// without one.
constexpr std::int64_t kOldestMultiple = 256;

/// Parts of a head that feed enough threads; with more, longer parts stream better than more of them.
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

static_assert(kDecodeRows <= kGroupRows, "an arithmetic has room for the rows of a group");

DecodePass::Scratch::Scratch(const SessionData& data)
    : logits(kDecodeRows * kDecodeLogits), out(core::checked_product(kDecodeRows, data.widest.d_value)) {
  if (!data.kv.packed()) return;
  restored = core::Buffer<unsigned char>(core::checked_product(
      kRestoredRows + core::KvStore::kReadableRows, std::max(data.widest.d_head, data.widest.d_value),
      static_cast<std::int64_t>(dtype_size(data.kv.type()))));
}

DecodePass::DecodePass(SessionData& data)
    : data_(data),
      splits_(
          core::checked_product(data.shape.n_head_kv, kMaxSplits * kDecodeRows, data.widest.d_value + 2)) {
  scratch_.reserve(static_cast<std::size_t>(data.options.threads));
  for (int t = 0; t < data.options.threads; ++t) scratch_.emplace_back(data);
}

std::int64_t DecodePass::bytes() const {
  std::int64_t bytes = splits_.bytes();
  for (const Scratch& scratch : scratch_) {
    bytes += scratch.logits.bytes() + scratch.out.bytes() + scratch.restored.bytes();
  }
  return bytes;
}

template <class Body>
void DecodePass::for_keys(const LayerCall& call, std::int64_t head_kv, std::int64_t first, std::int64_t n,
                          unsigned char* restored, const Body& body) const {
  if (!data_.kv.packed()) return data_.kv.for_keys(call.layer, head_kv, first, n, body);
  for (std::int64_t done = 0; done < n; done += kRestoredRows) {
    const std::int64_t some = std::min(kRestoredRows, n - done);
    const std::int64_t from = HEADWATER_SABOTAGE("cpu.kv8.first_rows_of_a_split") ? first : first + done;
    data_.kv.restore_keys(call.layer, head_kv, from, some, data_.kernels.restore_groups, restored);
    body(restored, done, some);
  }
}

template <class Body>
void DecodePass::for_values(const LayerCall& call, std::int64_t head_kv, std::int64_t first, std::int64_t n,
                            unsigned char* restored, const Body& body) const {
  if (!data_.kv.packed()) return data_.kv.for_values(call.layer, head_kv, first, n, body);
  for (std::int64_t done = 0; done < n; done += kRestoredRows) {
    const std::int64_t some = std::min(kRestoredRows, n - done);
    data_.kv.restore_values(call.layer, head_kv, first + done, some, data_.kernels.restore_groups, restored);
    body(restored, done, some);
  }
}

bool DecodePass::takes(const Chunk& chunk) const {
  // A prompt from position 0 on has the bits of a sparse first chunk (STATE-3), which is computed in blocks.
  return chunk.begin > 0 && length(chunk) * group() <= kDecodeRows;
}

DecodePass::Cut DecodePass::cut(const LayerCall& call) {
  const Chunk& chunk = call.chunks.front();
  const std::int64_t oldest = call.first_visible(chunk.begin) / kOldestMultiple * kOldestMultiple;
  const std::int64_t keys = split_keys(chunk.end - oldest);
  return {oldest, keys, (chunk.end - oldest + keys - 1) / keys};
}

void DecodePass::run(Workers& workers, std::span<const Decode> decodes) {
  const auto heads_kv = [](const Decode& decode) { return decode.call->data.shape.n_head_kv; };
  workers.each_of(
      decodes, [&](const Decode& decode) { return heads_kv(decode) * cut(*decode.call).splits; },
      [&](const Decode& decode, const Workers::Task& task) {
        decode.call->data.workers.ask_between_tasks();
        const Cut cut = DecodePass::cut(*decode.call);
        const std::int64_t index = task.index % cut.splits;
        const std::int64_t begin = cut.oldest + index * cut.keys;
        const Split split{index, begin, std::min(begin + cut.keys, decode.call->chunks.front().end)};
        decode.pass->attend_split(*decode.call, task.index / cut.splits, split, task.thread);
      });
  const auto rows = [](const Decode& decode) {
    return length(decode.call->chunks.front()) * decode.pass->group();
  };
  workers.each_of(
      decodes, [&](const Decode& decode) { return heads_kv(decode) * rows(decode); },
      [&](const Decode& decode, const Workers::Task& task) {
        const bool of_first = HEADWATER_SABOTAGE("cpu.together.splits_of_the_first");
        const std::int64_t splits = cut(of_first ? *decodes.front().call : *decode.call).splits;
        const std::int64_t n = rows(decode);
        decode.pass->join_splits(*decode.call, task.index / n, task.index % n, splits, decode.lse,
                                 task.thread);
      });
}

DecodePass::Row DecodePass::row_of(const Chunk& chunk, std::int64_t head_kv, std::int64_t row) const {
  return {head_kv * group() + row % group(), chunk.begin + row / group()};
}

float* DecodePass::split_state(std::int64_t head_kv, std::int64_t split, std::int64_t row) {
  return splits_.data() + ((head_kv * kMaxSplits + split) * kDecodeRows + row) * (data_.shape.d_value + 2);
}

void DecodePass::attend_split(const LayerCall& call, std::int64_t head_kv, const Split& split, int thread) {
  const KernelTable& kernels = data_.kernels;
  const std::int64_t dv = data_.shape.d_value;
  const Chunk& chunk = call.chunks.front();
  const std::int64_t rows = length(chunk) * group();
  for (std::int64_t r = 0; r < rows; ++r) {
    const Row row = row_of(chunk, head_kv, r);
    call.arithmetic.load_row(call, row.head, row.position, r, thread);
  }
  Scratch& scratch = scratch_[static_cast<std::size_t>(thread)];
  float* out = scratch.out.data();
  float max[kDecodeRows];
  float sum[kDecodeRows] = {};
  std::fill_n(max, kDecodeRows, kMinusInfinity);
  std::fill_n(out, rows * dv, 0.0f);
  for (std::int64_t first = split.begin; first < split.end; first += kDecodeLogits) {
    if (first > split.begin && HEADWATER_SABOTAGE("cpu.decode.first_logits_of_a_split_only")) break;
    const std::int64_t n = std::min(kDecodeLogits, split.end - first);
    float* logits = scratch.logits.data();
    for_keys(call, head_kv, first, n, scratch.restored.data(),
             [&](const void* keys, std::int64_t at, std::int64_t some) {
               if (HEADWATER_SABOTAGE("cpu.decode.first_page_alone")) at = 0;
               call.arithmetic.row_logits(call, keys, some, rows, logits + at, kDecodeLogits, thread);
             });
    for (std::int64_t r = 0; r < rows; ++r) {
      float* line = logits + r * kDecodeLogits;
      map_row(call, row_of(chunk, head_kv, r), first, n, line);
      const float top = highest(line, n, max[r]);
      const float offset = top == kMinusInfinity ? 0.0f : top;
      const float rescale = std::exp(max[r] - offset);
      const bool some = HEADWATER_SABOTAGE("cpu.decode.rescaled_columns_beyond_128");
      for (std::int64_t c = 0; c < (some ? std::min<std::int64_t>(dv, 128) : dv); ++c)
        out[r * dv + c] *= rescale;
      sum[r] = sum[r] * rescale + kernels.row_weights(line, n, offset);
      max[r] = top;
    }
    for_values(call, head_kv, first, n, scratch.restored.data(),
               [&](const void* values, std::int64_t at, std::int64_t some) {
                 kernels.row_values(logits + at, kDecodeLogits, rows, values, data_.kv.type(), some, dv, out);
               });
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    float* state = split_state(head_kv, split.index, r);
    state[0] = max[r];
    state[1] = sum[r];
    const bool unrestored = HEADWATER_SABOTAGE("cpu.decode.unrestored_row");
    kernels.restore_row(out + r * dv, unrestored ? DType::f32 : data_.kv.type(), dv, state + 2);
  }
}

void DecodePass::map_row(const LayerCall& call, const Row& row, std::int64_t first, std::int64_t n,
                         float* logits) const {
  const LogitMap map = call.logit_map(row.head);
  if (map.softcap > 0) {
    for (std::int64_t i = 0; i < n; ++i) logits[i] = map.softcap * std::tanh(logits[i] / map.softcap);
  }
  if (map.slope != 0) {
    for (std::int64_t i = 0; i < n; ++i) {
      std::int64_t distance = row.position - (first + i);
      if (HEADWATER_SABOTAGE("cpu.decode.distance_in_16_bits")) distance &= 0xFFFF;
      logits[i] -= map.slope * static_cast<float>(distance);
    }
  }
  const std::int64_t hidden = row.position + 1 + (HEADWATER_SABOTAGE("cpu.decode.one_future_key") ? 1 : 0);
  for (std::int64_t i = std::max<std::int64_t>(0, hidden - first); i < n; ++i) logits[i] = kMinusInfinity;
  const std::int64_t past = std::min(n, call.first_visible(row.position) - first);
  for (std::int64_t i = 0; i < past; ++i) logits[i] = kMinusInfinity;
}

void DecodePass::join_splits(const LayerCall& call, std::int64_t head_kv, std::int64_t r, std::int64_t splits,
                             const LseRows& lse, int thread) {
  const std::int64_t dv = data_.shape.d_value;
  if (HEADWATER_SABOTAGE("cpu.decode.splits_beyond_8")) splits = std::min<std::int64_t>(splits, 8);
  const Row row = row_of(call.chunks.front(), head_kv, r);
  float max = call.sink(row.head);
  for (std::int64_t split = 0; split < splits; ++split) {
    const float top = split_state(head_kv, split, r)[0];
    max = top > max ? top : max;
  }
  const float offset = max == kMinusInfinity ? 0.0f : max;
  double sum = std::exp(static_cast<double>(call.sink(row.head)) - static_cast<double>(offset));
  float* out = scratch_[static_cast<std::size_t>(thread)].out.data();
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
  call.store_row(row.position, row.head, out);
  if (call.wants_lse()) {
    call.store_lse(lse, row.position, row.head, static_cast<float>(static_cast<double>(max) + std::log(sum)));
  }
}

}  // namespace headwater::cpu
