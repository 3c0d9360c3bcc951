#include "cli/commands/generate/qkv_dump.hpp"

#include <fmt/format.h>

#include <cstring>
#include <span>

#include "cli/support/failure.hpp"
#include "cli/support/numbers.hpp"
#include "cli/support/output_layout.hpp"
#include "cli/support/safetensors.hpp"
#include "headwater/version.hpp"
#include "runtime/support/mapped_file.hpp"

namespace headwater::cli {
namespace {

TensorType tensor_type_of(DType type) {
  return type == DType::f32 ? TensorType::f32 : type == DType::f16 ? TensorType::f16 : TensorType::bf16;
}

void append_exact(std::vector<std::byte>& out, DType type, std::span<const float> row) {
  for (const float value : row) {
    std::uint32_t wide = 0;
    std::memcpy(&wide, &value, sizeof wide);
    std::uint16_t narrow = type == DType::f16 ? exact_half(value) : static_cast<std::uint16_t>(wide >> 16);
    const auto* const from = type == DType::f32 ? reinterpret_cast<const std::byte*>(&wide)
                                                : reinterpret_cast<const std::byte*>(&narrow);
    out.insert(out.end(), from, from + dtype_size(type));
  }
}

}  // namespace

QkvDump::QkvDump(runtime::Transformer& transformer, std::int64_t layer, const std::string& path,
                 const std::string& model_path)
    : transformer_(transformer), layer_(layer), file_(path, runtime::MappedFile(model_path)) {
  const std::int64_t layers = transformer.model().config().layers;
  if (layer >= layers) {
    throw Failure(
        fmt::format("--dump-qkv LAYER: {} is not allowed; the model has layers 0 to {}", layer, layers - 1));
  }
  if (transformer.model().config().layer_specs[static_cast<std::size_t>(layer)].recurrent)
    throw Failure(fmt::format("--dump-qkv LAYER: {} is recurrent; allowed: a layer that attends", layer));
}

void QkvDump::take(const runtime::LayerView& view) {
  if (view.stage != runtime::LayerView::Stage::attention || view.layer != layer_) return;
  const auto& config = transformer_.model().config();
  q_type_ = view.q.type;
  const auto element = static_cast<std::int64_t>(dtype_size(q_type_));
  const auto* const rows = static_cast<const std::byte*>(view.q.data);
  for (std::int64_t t = 0; t < view.n; ++t) {
    const std::byte* const row = rows + t * view.q.row_stride * element;
    q_.insert(q_.end(), row, row + config.heads * config.d_head * element);
  }
}

void QkvDump::write(const std::string& steps) {
  const auto& config = transformer_.model().config();
  const Session& session = transformer_.session();
  const std::int64_t place = transformer_.place_of(layer_);
  const DType type = session.shape().kv_type;
  const auto n = static_cast<std::uint64_t>(session.tokens());
  const auto heads_kv = static_cast<std::uint64_t>(config.heads_kv);
  std::vector<std::byte> keys;
  std::vector<std::byte> values;
  std::vector<float> key(static_cast<std::size_t>(config.d_head));
  std::vector<float> value(static_cast<std::size_t>(config.d_value));
  for (std::int64_t t = 0; t < session.tokens(); ++t) {
    for (std::int64_t h = 0; h < config.heads_kv; ++h) {
      session.read_key(place, h, t, key);
      session.read_value(place, h, t, value);
      append_exact(keys, type, key);
      append_exact(values, type, value);
    }
  }
  OutputLayout layout;
  layout.add_metadata("format", "headwater-qkv-1");
  layout.add_metadata("version", kVersion);
  layout.add_metadata("model", config.name);
  layout.add_metadata("layer", std::to_string(layer_));
  layout.add_metadata("steps", steps);
  layout.add("q", tensor_type_of(q_type_),
             {n, static_cast<std::uint64_t>(config.heads), static_cast<std::uint64_t>(config.d_head)});
  layout.add("k", tensor_type_of(type), {n, heads_kv, static_cast<std::uint64_t>(config.d_head)});
  layout.add("v", tensor_type_of(type), {n, heads_kv, static_cast<std::uint64_t>(config.d_value)});
  const ScoreView scores = session.scores(place);
  const MemoryView memory = session.memory(place);
  const auto heads = static_cast<std::uint64_t>(config.heads);
  const bool narrow = scores.type == ScoreType::bf16;
  if (memory.count > 0) {
    layout.add("last_memory", TensorType::i32, {heads, static_cast<std::uint64_t>(memory.count)});
  }
  layout.add("scores", narrow ? TensorType::bf16 : TensorType::f32, {heads, n});
  layout.close();
  file_.reserve(layout.file_bytes());
  file_.write_at(0, std::as_bytes(std::span(layout.header())));
  file_.write_at(layout.offset("q"), q_);
  file_.write_at(layout.offset("k"), keys);
  file_.write_at(layout.offset("v"), values);
  const std::uint64_t score_row = n * (narrow ? sizeof(std::uint16_t) : sizeof(float));
  const std::uint64_t set_row = static_cast<std::uint64_t>(memory.count) * sizeof(std::int32_t);
  for (std::uint64_t h = 0; h < heads; ++h) {
    const auto* const from = static_cast<const std::byte*>(scores.data) +
                             h * static_cast<std::uint64_t>(scores.head_stride) * (score_row / n);
    file_.write_at(layout.offset("scores") + h * score_row, {from, score_row});
    if (memory.count == 0) continue;
    const auto* const set =
        reinterpret_cast<const std::byte*>(memory.data + static_cast<std::int64_t>(h) * memory.head_stride);
    file_.write_at(layout.offset("last_memory") + h * set_row, {set, set_row});
  }
  file_.commit();
}

}  // namespace headwater::cli
