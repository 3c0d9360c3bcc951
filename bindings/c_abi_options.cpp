// headwater_options to Options, every field checked by name, and back.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

#include "bindings/c_abi_support.hpp"
#include "headwater/detail/option_table.hpp"
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

headwater_options c_options_of(const Options& options) {
  headwater_options filled{};
  detail::for_each_option([&](const auto& option) { filled.*option.c = options.*option.asked; });
  filled.clamp = options.clamp ? 1 : 0;
  filled.dense = options.dense ? 1 : 0;
  filled.scale = std::nan("");
  filled.softcap = options.softcap;
  filled.score_type = static_cast<std::int32_t>(options.score_type);
  filled.schedule = static_cast<std::int32_t>(options.schedule);
  filled.threads = options.threads;
  filled.select = static_cast<std::int32_t>(options.select);
  filled.kv_owner = static_cast<std::int32_t>(options.kv_owner);
  return filled;
}

Options options_of(const headwater_options& caller, const Shape& shape) {
  check_struct_size(caller.struct_size, kOptionsSize1, "options.struct_size");
  headwater_options from{};  // what the caller does not know is 0, but for a default that is none
  from.least_weight = Options{}.least_weight;
  const auto* bytes = reinterpret_cast<const unsigned char*>(&caller);
  std::memcpy(&from, bytes, std::min(caller.struct_size, sizeof from));
  check_unknown(bytes, caller.struct_size, sizeof from, "options");
  check_reserved(from.reserved, "options.reserved");
  constexpr std::int32_t kTwo = 2;
  Options options;
  detail::for_each_option([&](const auto& option) { options.*option.asked = from.*option.c; });
  if (HEADWATER_SABOTAGE("bindings.options.batch_in_16_bits")) options.batch &= 0xFFFF;
  if (from.page == 0) options.page = Options{}.page;
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
  if (from.dense_layer_count != 0) {
    constexpr std::int64_t kMostLayers = 65536;  // Shape::n_layer
    check_range(shape.n_layer, 1, kMostLayers, "shape.n_layer");
    check_range(from.dense_layer_count, 0, shape.n_layer, "options.dense_layer_count");
    needed(from.dense_layers, "options.dense_layers");
    options.dense_layers.assign(from.dense_layers, from.dense_layers + from.dense_layer_count);
  }
  options.parallel_for = from.parallel_for;
  options.parallel_context = from.parallel_context;
  options.kv_owner = enumerator<KvOwner>(from.kv_owner, kTwo, "options.kv_owner");
  check_reserved(from.reserved5, "options.reserved5");
  options.layers = layers_of(from, shape);
  options.allocator = {from.allocate, from.release, from.allocator_context};
  return options;
}

}  // namespace headwater::c_abi
