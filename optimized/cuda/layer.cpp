#include "cuda/layer.hpp"

#include <numbers>
#include <utility>

namespace headwater::cuda {

namespace {

constexpr std::int64_t kRowBytes = 16;  // stored rows are whole vectors

std::int64_t most_window_rows(const Shape& shape, const EffectiveOptions& options) {
  if (!options.sparse) return std::min(shape.capacity, kWindowRows);
  const std::int64_t chunk = std::min(options.chunk, shape.capacity);
  if (options.schedule == Schedule::chunk_major) return chunk;
  // A launch has one grid layer for each chunk and value slice.
  const std::int64_t most_chunks = std::max<std::int64_t>(1, kMaxGrid / pieces(shape.d_value, kSliceWidth));
  const std::int64_t rows = std::min({options.batch, shape.capacity, kWindowRows, kWindowChunks * chunk});
  return std::max(chunk, std::min(rows, core::checked_product(chunk, most_chunks)));
}

}  // namespace

std::int64_t padded_width(std::int64_t width, DType type) {
  const std::int64_t multiple = kRowBytes / static_cast<std::int64_t>(dtype_size(type));
  return pieces(width, multiple) * multiple;
}

SessionData::SessionData(std::unique_ptr<Device> opened, const Dispatch& kernels, const Shape& session_shape,
                         const Options& wished, const EffectiveOptions& effective, const RowPlace& rows)
    : device(std::move(opened)),
      dispatch(kernels),
      shape(session_shape),
      options(effective),
      device_rows(rows.on_device),
      stream(rows.on_device ? device->adopt(rows.stream) : device->stream(true)),
      group(shape.n_head / shape.n_head_kv),
      key_width(padded_width(shape.d_head, shape.kv_type)),
      value_width(padded_width(shape.d_value, shape.kv_type)),
      set_width(effective.sparse ? std::min(effective.memory(), shape.capacity) : 0),
      window_rows(most_window_rows(shape, effective)),
      element_bytes(static_cast<std::int64_t>(dtype_size(shape.kv_type))),
      score_bytes(effective.score_type == ScoreType::bf16 ? 2 : 4) {
  const std::int64_t heads = shape.n_head;
  const std::int64_t all_rows = core::checked_product(shape.n_layer, shape.n_head_kv, shape.capacity);
  keys_ = take<unsigned char>(core::checked_product(all_rows, key_width, element_bytes), "keys", Account::kv);
  values_ =
      take<unsigned char>(core::checked_product(all_rows, value_width, element_bytes), "values", Account::kv);
  // Rows alone are KV; what pads them to whole vectors is workspace.
  const std::int64_t padding =
      all_rows * (key_width - shape.d_head + value_width - shape.d_value) * element_bytes;
  bytes.kv -= padding;
  bytes.workspace += padding;
  scores_ = take<unsigned char>(core::checked_product(shape.n_layer, heads, shape.capacity, score_bytes),
                                "scores", Account::scores);
  lse = take<float>(core::checked_product(heads, window_rows), "log-sum-exps");
  shown_lse = core::Buffer<float>(core::checked_product(heads, shape.capacity));
  bytes.workspace += shown_lse.bytes();

  const double log2e = std::numbers::log2e;
  const bool capped = effective.softcap > 0.0;
  rule.factor = static_cast<float>(capped ? effective.scale / effective.softcap : effective.scale * log2e);
  rule.cap = static_cast<float>(effective.softcap * log2e);
  rule.slopes = upload(wished.alibi, log2e, "slopes");
  rule.sinks = upload(wished.sinks, log2e, "sinks");
  if (!effective.sparse || effective.select != Select::blocks) return;
  vote_rule.factor = capped ? static_cast<float>(1.0 / effective.softcap) : 1.0F;
  vote_rule.cap = static_cast<float>(effective.softcap);
  vote_rule.slopes = upload(wished.alibi, 1.0, "slopes of estimates");
}

/// Times a factor; null: there are none.
const float* SessionData::upload(const std::vector<float>& values, double factor, const char* what) {
  std::vector<float> scaled(values);
  for (float& x : scaled) x = static_cast<float>(x * factor);
  const auto count = static_cast<std::int64_t>(scaled.size());
  auto* to = take<float>(count, what);
  if (to == nullptr) return nullptr;
  device->copy(stream, to, scaled.data(), count * static_cast<std::int64_t>(sizeof(float)),
               Direction::host_to_device);
  device->synchronize(stream);
  return to;
}

float* SessionData::part(float*& next, std::int64_t count, const char* what) const {
  device->name_part(next, count * static_cast<std::int64_t>(sizeof(float)), what);
  return std::exchange(next, next + count);
}

StoredRows SessionData::keys(std::int64_t layer) const {
  return {keys_ + layer * shape.n_head_kv * shape.capacity * key_width * element_bytes,
          shape.capacity * key_width, shape.kv_type, static_cast<int>(key_width)};
}

StoredRows SessionData::values(std::int64_t layer) const {
  return {values_ + layer * shape.n_head_kv * shape.capacity * value_width * element_bytes,
          shape.capacity * value_width, shape.kv_type, static_cast<int>(value_width)};
}

void* SessionData::scores(std::int64_t layer) const {
  return scores_ + layer * shape.n_head * shape.capacity * score_bytes;
}

WindowExtent SessionData::extent() const {
  if (!options.sparse) return {};
  const std::int64_t chunk = std::min(options.chunk, window_rows);
  const std::int64_t chunks = pieces(window_rows, chunk);
  return {chunks, std::max<std::int64_t>(1, kGroupRows / chunk), std::min(chunks, kGatheredSets), 1,
          options.select == Select::blocks};
}

}  // namespace headwater::cuda
