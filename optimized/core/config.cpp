#include "core/config.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <type_traits>

#include "core/rows_8bit.hpp"
#include "headwater/detail/option_table.hpp"
#include "headwater/error.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::core {

namespace {

template <typename Value>
[[noreturn]] void refuse(const std::string& field, Value value, const std::string& allowed) {
  std::ostringstream message;
  message.precision(9);
  message << field << " is " << value << "; allowed: " << allowed;
  throw Error(ErrorCode::invalid_argument, message.str());
}

void require_range(const char* field, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high) {
    refuse(field, value, std::to_string(low) + " .. " + std::to_string(high));
  }
}

template <class Number>
void require_range(const Options& options, const detail::Option<Number>& option) {
  const auto& [least, most, at_most, multiple] = option.range;
  const Number value = options.*option.asked;
  if constexpr (std::is_floating_point_v<Number>) {
    if (!(value >= least && value < most)) refuse(option.name, value, "0 and more, below 1");
  } else {
    const Number high = at_most == nullptr ? most : std::min(most, options.*at_most);
    if (value >= least && value <= high && value % multiple == 0) return;
    const std::string range = std::to_string(least) + " .. " + std::to_string(high);
    refuse(option.name, value,
           multiple == 1 ? range : "a multiple of " + std::to_string(multiple) + ", " + range);
  }
}

void validate(const Shape& shape) {
  require_range("n_layer", shape.n_layer, 1, kMaxExtent);
  require_range("n_head", shape.n_head, 1, kMaxExtent);
  require_range("n_head_kv", shape.n_head_kv, 1, kMaxExtent);
  require_range("d_head", shape.d_head, 1, kMaxExtent);
  require_range("d_value", shape.d_value, 1, kMaxExtent);
  require_range("capacity", shape.capacity, 1, kMaxPosition);
  if (shape.n_head % shape.n_head_kv != 0) {
    refuse("n_head_kv", shape.n_head_kv, "a divisor of n_head = " + std::to_string(shape.n_head));
  }
  require_range("kv_type", static_cast<std::int64_t>(shape.kv_type), 0,
                static_cast<std::int64_t>(DType::bf16));
}

/// SEL-1
void validate_blocks(const Options& options) {
  if (options.query_block % options.pool != 0) {
    refuse("pool", options.pool, "a divisor of query_block = " + std::to_string(options.query_block));
  }
  if (options.heavy % options.key_block != 0) {
    refuse("key_block", options.key_block, "a divisor of heavy = " + std::to_string(options.heavy));
  }
  if (options.pinned % options.key_block != 0) {
    refuse("pinned", options.pinned, "a multiple of key_block = " + std::to_string(options.key_block));
  }
}

/// STATE-13
void validate_packed_rows(const Shape& shape, const Options& options) {
  const auto require_groups = [](const std::string& field, std::int64_t width) {
    if (width % kGroupElements != 0) refuse(field, width, "a multiple of 32, as kv_bits is 8");
  };
  require_groups("d_head", shape.d_head);
  require_groups("d_value", shape.d_value);
  for (std::size_t l = 0; l < options.layers.size(); ++l) {
    const std::string of = "layers[" + std::to_string(l) + "].";
    require_groups(of + "d_head", options.layers[l].d_head);
    require_groups(of + "d_value", options.layers[l].d_value);
  }
  if (options.kv_owner == KvOwner::caller) refuse("kv_owner", "1 (caller)", "0 (session), as kv_bits is 8");
}

/// STATE-7
void validate_dense_layers(const Shape& shape, const std::vector<std::int64_t>& layers) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::string field = "dense_layers[" + std::to_string(i) + "]";
    require_range(field.c_str(), layers[i], 0, shape.n_layer - 1);
    if (i > 0 && layers[i] <= layers[i - 1]) {
      refuse(field, layers[i], "more than " + std::to_string(layers[i - 1]) + ", the one before");
    }
  }
}

void validate(const Shape& shape, const Options& options) {
  detail::for_each_option([&](const auto& option) {
    if (option.part != detail::Part::size) require_range(options, option);
  });
  validate_dense_layers(shape, options.dense_layers);
  require_range("threads", options.threads, 0, kMaxThreads);
  require_range("score_type", static_cast<std::int64_t>(options.score_type), 0, 1);
  require_range("schedule", static_cast<std::int64_t>(options.schedule), 0, 1);
  require_range("kv_owner", static_cast<std::int64_t>(options.kv_owner), 0, 1);
  if ((options.allocator.allocate == nullptr) != (options.allocator.release == nullptr)) {
    const bool allocates = options.allocator.allocate != nullptr;
    refuse(allocates ? "allocator.release" : "allocator.allocate", "null",
           std::string("a function, as allocator.") + (allocates ? "allocate" : "release") + " is one");
  }
  require_range("row_memory", static_cast<std::int64_t>(options.row_memory), 0, 1);
  if (options.row_memory == RowMemory::host && options.stream != nullptr) {
    refuse("stream", options.stream, "null, as row_memory is 0 (host)");
  }
  const auto logits = [](const std::string& of, std::optional<double> scale, double softcap) {
    if (scale && !std::isfinite(*scale)) refuse(of + "scale", *scale, "a finite number");
    if (!std::isfinite(softcap) || softcap < 0) {
      refuse(of + "softcap", softcap, "0 (none) or a finite number > 0");
    }
  };
  logits("", options.scale, options.softcap);
  const auto per_head = [&](const std::string& field, const std::vector<float>& values, bool minus_infinity) {
    if (values.empty()) return;
    if (static_cast<std::int64_t>(values.size()) != shape.n_head) {
      refuse(field + " size", values.size(), "0 or n_head = " + std::to_string(shape.n_head));
    }
    for (std::size_t h = 0; h < values.size(); ++h) {
      if (std::isfinite(values[h]) || (minus_infinity && std::isinf(values[h]) && values[h] < 0)) continue;
      refuse(field + "[" + std::to_string(h) + "]", values[h], minus_infinity ? "finite or -inf" : "finite");
    }
  };
  per_head("sinks", options.sinks, true);
  per_head("alibi", options.alibi, false);
  if (!options.layers.empty() && std::ssize(options.layers) != shape.n_layer) {
    refuse("layers size", options.layers.size(), "0 or n_layer = " + std::to_string(shape.n_layer));
  }
  for (std::size_t l = 0; l < options.layers.size(); ++l) {  // LAYER-1
    const LayerOptions& layer = options.layers[l];
    const std::string of = "layers[" + std::to_string(l) + "].";
    require_range((of + "window").c_str(), layer.window, 0, kMaxPosition);
    require_range((of + "d_head").c_str(), layer.d_head, 0, kMaxExtent);
    require_range((of + "d_value").c_str(), layer.d_value, 0, kMaxExtent);
    logits(of, layer.scale, layer.softcap.value_or(0));
    if (layer.sinks) per_head(of + "sinks", *layer.sinks, true);
  }
  if (options.select > Select::sketches) {
    refuse("select", static_cast<int>(options.select), "0 (h2o), 1 (blocks) or 2 (sketches)");
  }
  detail::for_each_option(detail::Part::size, [&](const auto& option) {
    if (option.read_by(options.select)) require_range(options, option);
  });
  if (options.select == Select::blocks) validate_blocks(options);
  if (options.kv_bits == 8) validate_packed_rows(shape, options);
}

}  // namespace

void require_no_sketches(const Options& options, std::string_view engine) {
  if (options.select != Select::sketches) return;
  refuse("select", "2 (sketches)",
         "0 (h2o), 1 (blocks): engine " + std::string(engine) + " has no other rule");
}

void require_no_checkpoints(const Options& options, std::string_view engine) {
  if (options.checkpoints == 0) return;
  throw Error(ErrorCode::unsupported, "checkpoints is " + std::to_string(options.checkpoints) +
                                          "; allowed: 0: engine " + std::string(engine) +
                                          " does not truncate");
}

void require_equal_layers(const Options& options, std::string_view engine) {
  if (options.layers.empty()) return;
  throw Error(ErrorCode::unsupported, "layers has " + std::to_string(options.layers.size()) +
                                          " entries; allowed: none: layers of engine " + std::string(engine) +
                                          " are all alike");
}

void require_no_kv_bits(const Options& options, std::string_view engine) {
  if (options.kv_bits == 0) return;
  throw Error(ErrorCode::unsupported, "kv_bits is " + std::to_string(options.kv_bits) +
                                          "; allowed: 0: engine " + std::string(engine) +
                                          " stores rows of the KV type");
}

void require_own_memory(const Options& options, std::string_view engine) {
  if (options.allocator.allocate == nullptr) return;
  throw Error(ErrorCode::unsupported,
              "allocator is given; allowed: none: engine " + std::string(engine) + " has memory of its own");
}

void require_own_rows(const Options& options, std::string_view engine) {
  if (options.kv_owner == KvOwner::session) return;
  throw Error(ErrorCode::unsupported, "kv_owner is 1 (caller); allowed: 0 (session): engine " +
                                          std::string(engine) + " keeps the rows");
}

void require_no_device(const Options& options, std::string_view engine) {
  const std::string reason = ": engine " + std::string(engine) + " has no device";
  if (options.row_memory == RowMemory::device) refuse("row_memory", "1 (device)", "0 (host)" + reason);
  if (options.device) refuse("device", *options.device, "none" + reason);
}

EffectiveOptions resolve(const Shape& shape, const Options& options, int default_threads) {
  validate(shape);
  validate(shape, options);

  EffectiveOptions effective;
  detail::for_each_option([&](const auto& option) {
    if (option.read_by(options.select)) effective.*option.effective = options.*option.asked;
  });
  if (options.batch < options.chunk) {  // CFG-4
    if (!HEADWATER_SABOTAGE("core.config.batch_below_chunk")) effective.batch = options.chunk;
    effective.warnings.push_back("batch " + std::to_string(options.batch) + " is below chunk " +
                                 std::to_string(options.chunk) + " and is read as " +
                                 std::to_string(options.chunk));
  } else if (options.batch % options.chunk != 0) {
    effective.warnings.push_back("batch " + std::to_string(options.batch) + " is not a multiple of chunk " +
                                 std::to_string(options.chunk) +
                                 ": the last chunk of every batch is shorter");
  }

  const std::int64_t chunk = options.chunk;
  if (options.dense && !HEADWATER_SABOTAGE("core.config.dense_ignored")) {  // CFG-2
    effective.local = effective.heavy = 0;
  } else if (options.clamp && options.local + options.heavy >= chunk) {  // CFG-3
    effective.local = std::min(options.local, chunk - 1);
    effective.heavy = std::min(options.heavy, chunk - 1 - effective.local);
    if (HEADWATER_SABOTAGE("core.config.clamp_heavy_to_chunk")) {
      effective.heavy = std::min(options.heavy, chunk - effective.local);
    }
    if (options.select == Select::blocks) effective.heavy -= effective.heavy % options.key_block;  // SEL-1
    effective.warnings.push_back("local + heavy = " + std::to_string(options.local + options.heavy) +
                                 " is not below chunk " + std::to_string(chunk) +
                                 " and is clamped to local " + std::to_string(effective.local) + ", heavy " +
                                 std::to_string(effective.heavy));
  }
  effective.pinned = std::min(options.pinned, effective.heavy);  // CFG-5
  if (HEADWATER_SABOTAGE("core.config.pinned_below_256")) {
    effective.pinned = std::min<std::int64_t>(effective.pinned, 256);
  }
  effective.dense_layers = options.dense_layers;
  effective.layers = options.layers;
  for (LayerOptions& own : effective.layers) {  // LOGIT-1
    if (own.d_head == 0 || own.scale || options.scale) continue;
    const bool of_shape = HEADWATER_SABOTAGE("core.config.scale_of_the_shape_in_every_layer");
    own.scale = 1.0 / std::sqrt(static_cast<double>(of_shape ? shape.d_head : own.d_head));
  }
  if (HEADWATER_SABOTAGE("core.config.dense_layers_in_8_bits")) {
    for (std::int64_t& layer : effective.dense_layers) layer &= 0xFF;
  }
  // The clamp makes every sum fit; without it the width of a memory set is a 32-bit count like its positions.
  require_range("local + heavy", effective.memory(), 0, kMaxPosition);
  effective.sparse = effective.memory() > 0;
  effective.scale = options.scale ? *options.scale : 1.0 / std::sqrt(static_cast<double>(shape.d_head));
  if (HEADWATER_SABOTAGE("core.config.scale_of_value_width")) {
    effective.scale = 1.0 / std::sqrt(static_cast<double>(shape.d_value));
  }
  effective.softcap = options.softcap;
  effective.score_type = options.score_type;
  effective.kv_owner = options.kv_owner;
  effective.schedule = options.schedule;
  effective.select = options.select;
  if (!effective.sparse || options.select != Select::h2o) effective.checkpoints = 0;
  if (HEADWATER_SABOTAGE("core.config.checkpoints_in_8_bits")) effective.checkpoints &= 0xFF;
  effective.threads = options.threads > 0 ? options.threads : default_threads;
  return effective;
}

}  // namespace headwater::core
