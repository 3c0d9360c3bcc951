// headwater_options to Options: every field is checked by name.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

#include "bindings/c_abi_support.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::c_abi {
namespace {

// n_head floats of the caller. n_head is checked first: it says how much is read and copied.
std::vector<float> per_head(const float* values, std::int64_t n_head) {
  constexpr std::int64_t kMostHeads = 65536;  // Shape::n_head
  if (values == nullptr) return {};
  check_range(n_head, 1, kMostHeads, "shape.n_head");
  std::vector<float> copied(values, values + n_head);
  if (HEADWATER_SABOTAGE("bindings.options.slopes_of_32_heads")) {
    for (std::size_t h = 32; h < copied.size(); ++h) copied[h] = copied[h % 32];
  }
  return copied;
}

// LAYER-1. An entry may be longer than this library's; what follows must be 0.
std::vector<LayerOptions> layers_of(const headwater_options& from, const Shape& shape) {
  if (from.layers == nullptr && from.layer_count == 0) return {};
  needed(from.layers, "options.layers");
  constexpr std::int64_t kMostLayers = 65536;  // Shape::n_layer
  check_range(shape.n_layer, 1, kMostLayers, "shape.n_layer");
  check_range(from.layer_count, shape.n_layer, shape.n_layer, "options.layer_count");
  constexpr std::size_t kFirstSize = offsetof(headwater_layer_options, d_head);  // without head widths
  check_struct_size(from.layer_size, kFirstSize, "options.layer_size");
  std::vector<LayerOptions> layers(static_cast<std::size_t>(from.layer_count));
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(from.layers) + l * from.layer_size;
    const std::string name = "options.layers[" + std::to_string(l) + "]";
    check_unknown(bytes, from.layer_size, sizeof(headwater_layer_options), name);
    headwater_layer_options one{};
    std::memcpy(&one, bytes, std::min(from.layer_size, sizeof one));
    layers[l].window = one.window;
    if (!std::isnan(one.scale)) layers[l].scale = one.scale;
    if (!std::isnan(one.softcap)) layers[l].softcap = one.softcap;
    if (one.sinks != nullptr) layers[l].sinks = per_head(one.sinks, shape.n_head);
    layers[l].d_head = one.d_head;
    layers[l].d_value = HEADWATER_SABOTAGE("bindings.options.value_width_of_the_shape") ? 0 : one.d_value;
  }
  return layers;
}

}  // namespace

Options options_of(const headwater_options& caller, const Shape& shape) {
  check_struct_size(caller.struct_size, kOptionsSize1, "options.struct_size");
  headwater_options from{};
  const auto* bytes = reinterpret_cast<const unsigned char*>(&caller);
  std::memcpy(&from, bytes, std::min(caller.struct_size, sizeof from));
  check_unknown(bytes, caller.struct_size, sizeof from, "options");
  check_reserved(from.reserved, "options.reserved");
  constexpr std::int32_t kTwo = 2;
  Options options;
  options.batch = from.batch;
  if (HEADWATER_SABOTAGE("bindings.options.batch_in_16_bits")) options.batch &= 0xFFFF;
  options.chunk = from.chunk;
  options.local = from.local;
  options.heavy = from.heavy;
  options.clamp = enumerator<int>(from.clamp, kTwo, "options.clamp") == 1;
  options.dense = enumerator<int>(from.dense, kTwo, "options.dense") == 1;
  if (!std::isnan(from.scale)) options.scale = from.scale;
  options.softcap = from.softcap;
  options.sinks = per_head(from.sinks, shape.n_head);
  options.alibi = per_head(from.alibi, shape.n_head);
  options.score_type = enumerator<ScoreType>(from.score_type, kTwo, "options.score_type");
  options.schedule = enumerator<Schedule>(from.schedule, kTwo, "options.schedule");
  options.threads = from.threads;
  options.row_memory = enumerator<RowMemory>(from.row_memory, kTwo, "options.row_memory");
  check_reserved(from.reserved2, "options.reserved2");
  options.stream = from.stream;
  check_reserved(from.reserved3, "options.reserved3");
  check_range(from.device_plus_1, 0, std::numeric_limits<std::int32_t>::max(), "options.device_plus_1");
  if (from.device_plus_1 > 0) options.device = from.device_plus_1 - 1;
  constexpr std::int32_t kRules = 3;
  options.select = enumerator<Select>(from.select, kRules, "options.select");
  check_reserved(from.reserved4, "options.reserved4");
  options.key_block = from.key_block;
  options.query_block = from.query_block;
  options.pool = from.pool;
  options.refine = from.refine;
  options.pinned = from.pinned;
  options.dense_below = from.dense_below;
  if (from.dense_layer_count != 0) {
    constexpr std::int64_t kMostLayers = 65536;  // Shape::n_layer
    check_range(shape.n_layer, 1, kMostLayers, "shape.n_layer");
    check_range(from.dense_layer_count, 0, shape.n_layer, "options.dense_layer_count");
    needed(from.dense_layers, "options.dense_layers");
    options.dense_layers.assign(from.dense_layers, from.dense_layers + from.dense_layer_count);
  }
  options.checkpoints = from.checkpoints;
  options.parallel_for = from.parallel_for;
  options.parallel_context = from.parallel_context;
  options.kv_owner = enumerator<KvOwner>(from.kv_owner, kTwo, "options.kv_owner");
  check_reserved(from.reserved5, "options.reserved5");
  if (from.page != 0) options.page = from.page;
  options.layers = layers_of(from, shape);
  options.allocator = {from.allocate, from.release, from.allocator_context};
  constexpr std::size_t kWithLeastWeight =
      offsetof(headwater_options, least_weight) + sizeof from.least_weight;
  if (caller.struct_size >= kWithLeastWeight) options.least_weight = from.least_weight;
  return options;
}

}  // namespace headwater::c_abi
