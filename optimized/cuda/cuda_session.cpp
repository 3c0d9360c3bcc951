#include "cuda/cuda_session.hpp"

#include <algorithm>
#include <numbers>
#include <string>
#include <utility>

#include "core/numbers.hpp"
#include "cuda/tuning.hpp"
#include "headwater/error.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cuda {

namespace {

constexpr std::int64_t kRowBytes = 16;  // stored rows are whole vectors

std::int64_t padded_width(std::int64_t width, DType type) {
  const std::int64_t multiple = kRowBytes / static_cast<std::int64_t>(dtype_size(type));
  return (width + multiple - 1) / multiple * multiple;
}

std::int64_t slices(std::int64_t width) { return (width + kSliceWidth - 1) / kSliceWidth; }

std::int64_t most_window_rows(const Shape& shape, const EffectiveOptions& options) {
  if (!options.sparse) return std::min(shape.capacity, kWindowRows);
  const std::int64_t chunk = std::min(options.chunk, shape.capacity);
  if (options.schedule == Schedule::chunk_major) return chunk;
  // A launch has one grid layer for each chunk and value slice.
  const std::int64_t most_chunks = std::max<std::int64_t>(1, kMaxGrid / slices(shape.d_value));
  const std::int64_t rows = std::min({options.batch, shape.capacity, kWindowRows, kWindowChunks * chunk});
  return std::max(chunk, std::min(rows, core::checked_product(chunk, most_chunks)));
}

}  // namespace

CudaSession::CudaSession(std::unique_ptr<Device> device, const Dispatch& dispatch, const Shape& shape,
                         const Options& options, const EffectiveOptions& effective, Launching launching,
                         const RowPlace& rows, const Sm90Switch& sm90_switch)
    : SessionBase(shape, effective),
      device_(std::move(device)),
      dispatch_(dispatch),
      device_rows_(rows.on_device) {
  set_states_.resize(static_cast<std::size_t>(shape.n_layer));
  group_ = shape.n_head / shape.n_head_kv;
  key_width_ = padded_width(shape.d_head, shape.kv_type);
  value_width_ = padded_width(shape.d_value, shape.kv_type);
  set_width_ = effective.sparse ? std::min(effective.memory(), shape.capacity) : 0;
  element_bytes_ = static_cast<std::int64_t>(dtype_size(shape.kv_type));
  score_bytes_ = effective.score_type == ScoreType::bf16 ? 2 : 4;
  window_rows_ = most_window_rows(shape, effective);
  decode_tokens_ = std::clamp<std::int64_t>(kDecodeRows / group_, 1, shape.capacity);
  stream_ = device_rows_ ? device_->adopt(rows.stream) : device_->stream(true);
  choose_paths(sm90_switch, !options.alibi.empty());
  take_memory(shape, options);
  launches_ = std::make_unique<WindowLaunches>(*device_, dispatch, launching, stream_, window_extent());
  bytes_.workspace += launches_->bytes();

  const double log2e = std::numbers::log2e;
  const bool capped = effective.softcap > 0.0;
  rule_.factor = static_cast<float>(capped ? effective.scale / effective.softcap : effective.scale * log2e);
  rule_.cap = static_cast<float>(effective.softcap * log2e);
  const auto upload = [&](const std::vector<float>& values, float* to) -> const float* {
    if (values.empty()) return nullptr;
    std::vector<float> scaled(values);
    for (float& x : scaled) x = static_cast<float>(x * log2e);
    device_->copy(stream_, to, scaled.data(), static_cast<std::int64_t>(scaled.size() * sizeof(float)),
                  Direction::host_to_device);
    device_->synchronize(stream_);
    return to;
  };
  rule_.slopes = upload(options.alibi, slopes_);
  rule_.sinks = upload(options.sinks, sinks_);
  forget();
  device_->synchronize(stream_);
}

template <class T>
T* CudaSession::take(std::int64_t count, const char* what, Account account) {
  const std::int64_t bytes = core::checked_product(count, static_cast<std::int64_t>(sizeof(T)));
  if (bytes == 0) return nullptr;
  std::int64_t* const accounts[] = {&bytes_.kv, &bytes_.scores, &bytes_.memory_sets, &bytes_.workspace};
  *accounts[static_cast<std::size_t>(account)] += bytes;
  return static_cast<T*>(device_->allocate(bytes, what));
}

WindowExtent CudaSession::window_extent() const {
  if (!options().sparse) return {};
  const std::int64_t chunk = std::min(options().chunk, window_rows_);
  const std::int64_t chunks = (window_rows_ + chunk - 1) / chunk;
  return {chunks, std::max<std::int64_t>(1, kGroupRows / chunk), std::min(chunks, kGatheredSets),
          on_sm90(PathStage::intra) || on_sm90(PathStage::dense) ? kSm90IntraParts : 1};
}

void CudaSession::take_staging(const Shape& shape) {
  Staging* const all[] = {&q_staging_, &k_staging_, &v_staging_, &out_staging_};
  const std::int64_t heads[] = {shape.n_head, shape.n_head_kv, shape.n_head_kv, shape.n_head};
  const std::int64_t widths[] = {shape.d_head, shape.d_head, shape.d_value, shape.d_value};
  for (std::size_t i = 0; i < 4; ++i) *all[i] = {{}, {}, heads[i], widths[i]};
  if (device_rows_) return;
  // No call of a session that holds one window has a second.
  sides_ = shape.capacity > window_rows_ ? 2 : 1;
  // Each begins on a boundary that a vector can be loaded from.
  constexpr std::int64_t kAlign = 256;
  std::int64_t begins[5] = {};
  for (std::size_t i = 0; i < 4; ++i) {
    const std::int64_t bytes = core::checked_product(
        window_rows_, heads[i], padded_width(widths[i], DType::f32), std::int64_t{sizeof(float)});
    begins[i + 1] = begins[i] + (bytes + kAlign - 1) / kAlign * kAlign;
  }
  const char* const names[] = {"staged queries", "staged keys", "staged values", "staged outputs"};
  const std::int64_t bytes = core::checked_product(sides_, begins[4]);
  auto* device = take<unsigned char>(bytes, "staged rows");
  auto* pinned = static_cast<unsigned char*>(device_->allocate_pinned(bytes, "staged rows"));
  bytes_.workspace += bytes;
  for (int side = 0; side < sides_; ++side, device += begins[4], pinned += begins[4]) {
    for (std::size_t i = 0; i < 4; ++i) {
      all[i]->pinned[side] = pinned + begins[i];
      all[i]->device[side] = device + begins[i];
      device_->name_part(device + begins[i], begins[i + 1] - begins[i], names[i]);
    }
    staged_[side] = device_->event();
    computed_[side] = device_->event();
    returned_[side] = device_->event();
  }
  inward_ = device_->stream();
  outward_ = device_->stream();
}

void CudaSession::take_states(const Shape& shape) {
  const std::int64_t window = core::checked_product(shape.n_head, window_rows_);
  // A context of one split needs no parts.
  const std::int64_t splits = std::min(kMaxSplits, (shape.capacity + kSplitKeys - 1) / kSplitKeys);
  const std::int64_t parts = splits > 1 ? core::checked_product(splits, shape.n_head, decode_tokens_) : 0;
  const std::int64_t sparse = set_width_ > 0 ? window : 0;
  // m, l and divisors of the intra pass and of splits; m and l of the inter pass; column sums and lse of a window.
  auto* next = take<float>(core::checked_product(sparse, 6) + core::checked_product(parts, 3) + window,
                           "softmax state");
  const auto array = [&](std::int64_t count, const char* what) {
    device_->name_part(next, count * static_cast<std::int64_t>(sizeof(float)), what);
    return std::exchange(next, next + count);
  };
  intra_ = {array(sparse, "intra maxima"),
            array(sparse, "intra sums"),
            array(sparse, "intra divisors"),
            nullptr,
            window_rows_,
            0};
  inter_ = {array(sparse, "inter maxima"), array(sparse, "inter sums"), nullptr, nullptr, window_rows_, 0};
  parts_ = {array(parts, "maxima of splits"),
            array(parts, "sums of splits"),
            array(parts, "divisors of splits"),
            nullptr,
            decode_tokens_,
            0};
  colsum_intra_ = array(sparse, "intra column sums");
  lse_ = array(window, "log-sum-exps");
  auto* outputs = take<float>(core::checked_product(sparse + parts, shape.d_value), "unfinished outputs");
  intra_.out = outputs;
  parts_.out = outputs + sparse * shape.d_value;
  const std::int64_t row_bytes = shape.d_value * static_cast<std::int64_t>(sizeof(float));
  device_->name_part(outputs, sparse * row_bytes, "intra outputs");
  device_->name_part(parts_.out.raw(), parts * row_bytes, "outputs of splits");
}

void CudaSession::take_memory(const Shape& shape, const Options& options) {
  const std::int64_t heads = shape.n_head;
  const std::int64_t rows = core::checked_product(shape.n_layer, shape.n_head_kv, shape.capacity);
  const std::int64_t key_bytes = core::checked_product(rows, key_width_, element_bytes_);
  const std::int64_t value_bytes = core::checked_product(rows, value_width_, element_bytes_);
  keys_ = take<unsigned char>(key_bytes, "keys", Account::kv);
  values_ = take<unsigned char>(value_bytes, "values", Account::kv);
  // Rows alone are KV; what pads them to whole vectors is workspace.
  const std::int64_t padding =
      rows * (key_width_ - shape.d_head + value_width_ - shape.d_value) * element_bytes_;
  bytes_.kv -= padding;
  bytes_.workspace += padding;
  const std::int64_t all_scores = core::checked_product(shape.n_layer, heads, shape.capacity, score_bytes_);
  scores_ = take<unsigned char>(all_scores, "scores", Account::scores);

  const std::int64_t window = core::checked_product(heads, window_rows_);
  if (set_width_ > 0) {
    const std::int64_t entries = core::checked_product(heads, set_width_);
    sets_ = take<std::int32_t>(core::checked_product(shape.n_layer, entries), "memory sets",
                               Account::memory_sets);
    colsum_inter_ = take<float>(entries, "column sums", Account::memory_sets);
    set_scratch_ = take<std::int32_t>(entries, "selection");
    const std::int64_t gathered = core::checked_product(window_extent().gathered, entries);
    const std::int64_t gathered_row_bytes = core::checked_product(key_width_ + value_width_, element_bytes_) +
                                            static_cast<std::int64_t>(sizeof(std::int32_t));
    gathered_keys_ =
        take<unsigned char>(core::checked_product(gathered, gathered_row_bytes), "gathered rows");
    const std::int64_t gathered_key_bytes = gathered * key_width_ * element_bytes_;
    gathered_values_ = gathered_keys_ + gathered_key_bytes;
    device_->name_part(gathered_keys_, gathered_key_bytes, "gathered keys");
    const std::int64_t gathered_value_bytes = gathered * value_width_ * element_bytes_;
    gathered_positions_ = reinterpret_cast<std::int32_t*>(gathered_values_ + gathered_value_bytes);
    device_->name_part(gathered_values_, gathered_value_bytes, "gathered values");
    device_->name_part(gathered_positions_, gathered * static_cast<std::int64_t>(sizeof(std::int32_t)),
                       "positions of gathered rows");
    shown_sets_ = core::Buffer<std::int32_t>(core::checked_product(shape.n_layer, entries));
    shown_intra_ = core::Buffer<float>(window);
    shown_inter_ = core::Buffer<float>(entries);
  }
  take_states(shape);
  slopes_ = take<float>(options.alibi.empty() ? 0 : heads, "slopes");
  sinks_ = take<float>(options.sinks.empty() ? 0 : heads, "sinks");
  take_staging(shape);
  const Sm90Scratch scratch = sm90_scratch();
  sm90_.lse2 = take<float>(scratch.lse2, "log-sum-exps");
  sm90_.partial_sums = take<float>(scratch.partial_sums, "partial column sums");

  shown_scores_ = core::Buffer<unsigned char>(all_scores);
  shown_lse_ = core::Buffer<float>(core::checked_product(heads, shape.capacity));
  shown_row_ = core::Buffer<unsigned char>(std::max(shape.d_head, shape.d_value) * element_bytes_);
  bytes_.workspace += shown_scores_.bytes() + shown_sets_.bytes() + shown_intra_.bytes() +
                      shown_inter_.bytes() + shown_lse_.bytes() + shown_row_.bytes() + chunk_bytes();
}

void CudaSession::forget() {
  device_->require_uncaptured(stream_);
  if (set_width_ == 0) return;
  const std::int64_t entries = shape().n_layer * shape().n_head * set_width_;
  std::fill(set_states_.begin(), set_states_.end(), SetState{});
  std::fill_n(shown_sets_.data(), shown_sets_.size(), -1);
  device_->set(stream_, sets_, 0xFF,
               entries * static_cast<std::int64_t>(sizeof(std::int32_t)));  // -1 everywhere
}

void* CudaSession::score_row(std::int64_t layer) const {
  return scores_ + layer * shape().n_head * shape().capacity * score_bytes_;
}

ScoreView CudaSession::scores(std::int64_t layer) const {
  require_layer(layer);
  device_->require_uncaptured(stream_);
  const std::int64_t stored = plan().empty() ? 0 : plan().back().end;
  const std::int64_t pitch = shape().capacity * score_bytes_;
  auto* shown = const_cast<unsigned char*>(shown_scores_.data()) + layer * shape().n_head * pitch;
  if (stored > 0) {
    device_->copy_rows(stream_, {shown, pitch}, {score_row(layer), pitch}, stored * score_bytes_,
                       shape().n_head, Direction::device_to_host);
    device_->synchronize(stream_);
  }
  return {options().score_type, shown, shape().capacity};
}

MemoryView CudaSession::memory(std::int64_t layer) const {
  require_layer(layer);
  device_->require_uncaptured(stream_);
  if (set_width_ == 0) return {};
  const std::int64_t entries = shape().n_head * set_width_;
  auto* shown = const_cast<std::int32_t*>(shown_sets_.data()) + layer * entries;
  device_->copy(stream_, shown, sets(layer), entries * static_cast<std::int64_t>(sizeof(std::int32_t)),
                Direction::device_to_host);
  device_->synchronize(stream_);
  return {shown, set_width_, set_width_, set_states_[static_cast<std::size_t>(layer)].count};
}

void CudaSession::read_row(const void* device_row, std::int64_t width, std::span<float> row) const {
  device_->require_uncaptured(stream_);
  device_->copy(stream_, shown_row_.data(), device_row, width * element_bytes_, Direction::device_to_host);
  device_->synchronize(stream_);
  core::widen(shown_row_.data(), shape().kv_type, width, row.data());
}

void CudaSession::read_key(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                           std::span<float> row) const {
  require_row(layer, head_kv, position, static_cast<std::int64_t>(row.size()), shape().d_head);
  const std::int64_t index = (layer * shape().n_head_kv + head_kv) * shape().capacity + position;
  read_row(keys_ + index * key_width_ * element_bytes_, shape().d_head, row);
}

void CudaSession::read_value(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                             std::span<float> row) const {
  require_row(layer, head_kv, position, static_cast<std::int64_t>(row.size()), shape().d_value);
  const std::int64_t index = (layer * shape().n_head_kv + head_kv) * shape().capacity + position;
  read_row(values_ + index * value_width_ * element_bytes_, shape().d_value, row);
}

void CudaSession::check_rows(const headwater::Rows& q, const headwater::Rows& k, const headwater::Rows& v,
                             const MutableRows& out) const {
  device_->require_uncaptured(stream_);
  require_memory("q", q.data, q.type);
  require_memory("k", k.data, k.type);
  require_memory("v", v.data, v.type);
  require_memory("out", out.data, out.type);
}

void CudaSession::run_layer(std::int64_t layer, const headwater::Rows& q, const headwater::Rows& k,
                            const headwater::Rows& v, const MutableRows& out) {
  const std::span<const Chunk> chunks = plan();
  const std::int64_t base = chunks.front().begin;
  const std::int64_t end = chunks.back().end;
  const ChunkMode mode = chunks.front().mode;
  // Tensor cores where both rows of a product have the same 16-bit type.
  const bool tensor = q.type == shape().kv_type && q.type != DType::f32;
  std::size_t first = 0;  // chunk of the next window
  Returning returning[2] = {};
  int side = 0;
  for (std::int64_t begin = base; begin < end;) {
    std::size_t last = first + 1;
    std::int64_t window_end = std::min(end, begin + window_rows_);
    if (mode == ChunkMode::sparse) {
      window_end = chunks[first].end;
      // Only the last chunk of a batch is shorter, so chunks of a window are cut at multiples of S.
      while (last < chunks.size() && chunks[last].end - begin <= window_rows_ &&
             chunks[last - 1].end - chunks[last - 1].begin == options().chunk) {
        window_end = chunks[last++].end;
      }
    }
    Window window{
        layer, begin, window_end, {}, {}, tensor ? q.type : DType::f32, static_cast<bool>(observer())};
    const std::int64_t n = window_end - begin;
    // The window before is computed meanwhile.
    hand_back(std::exchange(returning[side], {}), out);
    const auto input = [&](const Staging& staging, const headwater::Rows& rows) {
      return device_rows_ ? in_place(staging, rows, begin - base)
                          : stage_in(staging, side, rows, begin - base, n);
    };
    const InputRows new_keys = input(k_staging_, k);
    const InputRows new_values = input(v_staging_, v);
    window.q = input(q_staging_, q);
    window.out = device_rows_ ? out_in_place(out, begin - base) : staged_out(out_staging_, side, out.type);
    if (!device_rows_) await_staged(side);
    launches_->begin(mode == ChunkMode::sparse ? WindowLaunches::Order::sparse : WindowLaunches::Order::dense,
                     window.observed);
    store_rows(window, new_keys, new_values);
    if (mode == ChunkMode::sparse) {
      run_sparse(window, chunks.subspan(first, last - first));
    } else if (mode == ChunkMode::decode && splits_decode(end - base)) {
      run_decode(window);
    } else if (mode == ChunkMode::decode || !on_sm90(PathStage::dense, window) || !sm90_dense(window)) {
      run_dense(window);
    }
    launches_->end();
    if (mode != ChunkMode::sparse && window.observed) keep_lse(window, chunks.front());
    if (!device_rows_) {
      returning[side] = {side, begin - base, n};
      stage_out(returning[side], out.type);
      side = (side + 1) % sides_;
    }
    begin = window_end;
    first = last;
  }
  for (int i = 0; i < sides_; ++i) hand_back(returning[(side + i) % sides_], out);
  if (mode != ChunkMode::sparse && observer()) report_dense(layer, chunks.front());
}

}  // namespace headwater::cuda
