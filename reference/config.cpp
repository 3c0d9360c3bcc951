#include "reference/config.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "reference/arguments.hpp"
#include "reference/rows_8bit.hpp"

namespace headwater::reference {
namespace {

constexpr std::int64_t kMaxCount = 65536;  // layers, heads, widths
constexpr std::int64_t kMaxPosition =
    std::numeric_limits<std::int32_t>::max();  // positions are 32 bit (MEM-4)
constexpr std::int64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();
constexpr int kMaxThreads = 512;
constexpr std::int64_t kMaxScoreBytes = 4;  // an F32 score, and an entry of a memory set
constexpr std::int64_t kMaxKeyBlock = 256;  // SEL-1
constexpr std::int64_t kMaxRefine = 16;     // SEL-1
constexpr std::int64_t kMaxCheckpoints = 65536;

void require_range(const std::string& field, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return;
  reject(field, std::to_string(value), std::to_string(least) + " to " + std::to_string(most));
}

/// a * b * c * d * e for factors >= 1, or an error that names the product.
void require_product(const std::string& product, std::int64_t a, std::int64_t b, std::int64_t c,
                     std::int64_t d, std::int64_t e) {
  std::int64_t room = kMaxBytes;
  for (const std::int64_t factor : {a, b, c, d, e}) room /= factor;
  if (room >= 1) return;
  reject(product, "too large", "at most 2^63 - 1 bytes");
}

void require_one_per_head(const std::string& field, std::size_t size, std::int64_t n_head) {
  if (size == 0 || size == static_cast<std::size_t>(n_head)) return;
  reject(field + ".size", std::to_string(size), "0 or n_head = " + std::to_string(n_head));
}

// SEL-1
void validate_blocks(const Options& options) {
  require_range("key_block", options.key_block, 1, std::min(kMaxKeyBlock, options.chunk));
  require_range("query_block", options.query_block, 1, options.chunk);
  require_range("pool", options.pool, 1, options.query_block);
  if (options.query_block % options.pool != 0) {
    reject("pool", std::to_string(options.pool),
           "a divisor of query_block = " + std::to_string(options.query_block));
  }
  require_range("refine", options.refine, 1, kMaxRefine);
  if (options.heavy % options.key_block != 0) {
    reject("heavy", std::to_string(options.heavy),
           "a multiple of key_block = " + std::to_string(options.key_block));
  }
  if (options.pinned % options.key_block != 0) {
    reject("pinned", std::to_string(options.pinned),
           "a multiple of key_block = " + std::to_string(options.key_block));
  }
}

// SKE-1
void validate_sketches(const Options& options) {
  require_range("query_block", options.query_block, 1, options.chunk);
  if (!(options.least_weight >= 0.0 && options.least_weight < 1.0)) {
    reject("least_weight", std::to_string(options.least_weight), "0 and more, below 1");
  }
}

// LOGIT-1, LOGIT-2 and LOGIT-4; `of` is what stands before the names of the fields.
void validate_logits(const std::string& of, std::optional<double> scale, double softcap,
                     const std::vector<float>& sinks, std::int64_t n_head) {
  if (scale && !std::isfinite(*scale)) reject(of + "scale", std::to_string(*scale), "finite");
  if (!std::isfinite(softcap) || softcap < 0.0) {
    reject(of + "softcap", std::to_string(softcap), "finite and at least 0");
  }
  require_one_per_head(of + "sinks", sinks.size(), n_head);
  for (std::size_t h = 0; h < sinks.size(); ++h) {
    const bool none = sinks[h] == -std::numeric_limits<float>::infinity();
    if (!std::isfinite(sinks[h]) && !none) {
      reject(of + "sinks[" + std::to_string(h) + "]", std::to_string(sinks[h]), "finite or -inf");
    }
  }
}

// LAYER-1
void validate_layers(const Shape& shape, const std::vector<LayerOptions>& layers) {
  if (!layers.empty() && std::ssize(layers) != shape.n_layer) {
    reject("layers.size", std::to_string(layers.size()), "0 or n_layer = " + std::to_string(shape.n_layer));
  }
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const std::string of = "layers[" + std::to_string(l) + "].";
    require_range(of + "window", layers[l].window, 0, kMaxPosition);
    require_range(of + "d_head", layers[l].d_head, 0, kMaxCount);
    require_range(of + "d_value", layers[l].d_value, 0, kMaxCount);
    validate_logits(of, layers[l].scale, layers[l].softcap.value_or(0),
                    layers[l].sinks.value_or(std::vector<float>()), shape.n_head);
  }
}

/// The rows of all layers, d + dv elements of each token and key/value head.
void require_row_bytes(const Shape& shape, const std::vector<LayerOptions>& layers) {
  std::int64_t widths = 0;
  for (std::int64_t layer = 0; layer < shape.n_layer; ++layer) {
    const Shape own = shape_of_layer(shape, layers, layer);
    widths += own.d_head + own.d_value;
  }
  require_product("n_layer * capacity * n_head_kv * (d_head + d_value) * element size", widths,
                  shape.capacity, shape.n_head_kv, static_cast<std::int64_t>(dtype_size(shape.kv_type)), 1);
}

// STATE-13
void validate_bits(const Shape& shape, const Options& options) {
  if (options.kv_bits != 0 && options.kv_bits != 8) {
    reject("kv_bits", std::to_string(options.kv_bits), "0 or 8");
  }
  if (options.kv_bits == 0) return;
  const auto require_groups = [](const std::string& field, std::int64_t width) {
    if (width % kGroupElements != 0)
      reject(field, std::to_string(width), "a multiple of 32, as kv_bits is 8");
  };
  require_groups("d_head", shape.d_head);
  require_groups("d_value", shape.d_value);
  for (std::size_t l = 0; l < options.layers.size(); ++l) {
    require_groups("layers[" + std::to_string(l) + "].d_head", options.layers[l].d_head);
    require_groups("layers[" + std::to_string(l) + "].d_value", options.layers[l].d_value);
  }
  if (options.kv_owner != KvOwner::session) {
    reject("kv_owner", "1 (caller)", "0 (session), as kv_bits is 8");
  }
}

// STATE-7
void validate_dense_layers(const Shape& shape, const std::vector<std::int64_t>& layers) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::string field = "dense_layers[" + std::to_string(i) + "]";
    require_range(field, layers[i], 0, shape.n_layer - 1);
    if (i > 0 && layers[i] <= layers[i - 1]) {
      reject(field, std::to_string(layers[i]), "above the entry before, " + std::to_string(layers[i - 1]));
    }
  }
}

}  // namespace

// CFG-1
void validate(const Shape& shape) {
  require_range("n_layer", shape.n_layer, 1, kMaxCount);
  require_range("n_head", shape.n_head, 1, kMaxCount);
  require_range("n_head_kv", shape.n_head_kv, 1, kMaxCount);
  if (shape.n_head % shape.n_head_kv != 0) {
    reject("n_head_kv", std::to_string(shape.n_head_kv),
           "a divisor of n_head = " + std::to_string(shape.n_head));
  }
  require_range("d_head", shape.d_head, 1, kMaxCount);
  require_range("d_value", shape.d_value, 1, kMaxCount);
  require_range("capacity", shape.capacity, 1, kMaxPosition);
  if (shape.kv_type != DType::f32 && shape.kv_type != DType::f16 && shape.kv_type != DType::bf16) {
    reject("kv_type", std::to_string(static_cast<int>(shape.kv_type)), "0 (F32), 1 (F16) or 2 (BF16)");
  }
  require_row_bytes(shape, {});
  require_product("n_layer * capacity * n_head * score size", shape.n_layer, shape.capacity, shape.n_head,
                  kMaxScoreBytes, 1);
}

// CFG-1 for the options
void validate(const Shape& shape, const Options& options) {
  require_range("batch", options.batch, 1, kMaxPosition);
  require_range("chunk", options.chunk, 1, kMaxPosition);
  require_range("local", options.local, 0, kMaxPosition);
  require_range("heavy", options.heavy, 0, kMaxPosition);
  require_range("pinned", options.pinned, 0, options.heavy);
  require_range("dense_below", options.dense_below, 0, kMaxPosition);
  validate_dense_layers(shape, options.dense_layers);
  require_range("checkpoints", options.checkpoints, 0, kMaxCheckpoints);
  require_range("kv_owner", static_cast<std::int64_t>(options.kv_owner), 0, 1);
  if ((options.allocator.allocate == nullptr) != (options.allocator.release == nullptr)) {
    const bool allocates = options.allocator.allocate != nullptr;
    reject(
        allocates ? "allocator.release" : "allocator.allocate", "null",
        allocates ? "a function, as allocator.allocate is one" : "a function, as allocator.release is one");
  }
  if (options.page < 256 || options.page > kMaxPosition || options.page % 256 != 0) {
    reject("page", std::to_string(options.page), "a multiple of 256, 256 .. 2147483392");
  }
  if (options.select > Select::sketches) {
    reject("select", std::to_string(static_cast<int>(options.select)), "0 (h2o), 1 (blocks) or 2 (sketches)");
  }
  if (options.select == Select::blocks) validate_blocks(options);
  if (options.select == Select::sketches) validate_sketches(options);
  validate_logits("", options.scale, options.softcap, options.sinks, shape.n_head);
  validate_layers(shape, options.layers);
  validate_bits(shape, options);
  require_row_bytes(shape, options.layers);
  require_one_per_head("alibi", options.alibi.size(), shape.n_head);
  for (std::size_t h = 0; h < options.alibi.size(); ++h) {
    if (!std::isfinite(options.alibi[h])) {
      reject("alibi[" + std::to_string(h) + "]", std::to_string(options.alibi[h]), "finite");
    }
  }
  if (options.score_type != ScoreType::bf16 && options.score_type != ScoreType::f32) {
    reject("score_type", std::to_string(static_cast<int>(options.score_type)), "0 (BF16) or 1 (F32)");
  }
  if (options.schedule != Schedule::layer_major && options.schedule != Schedule::chunk_major) {
    reject("schedule", std::to_string(static_cast<int>(options.schedule)),
           "0 (layer-major) or 1 (chunk-major)");
  }
  require_range("threads", options.threads, 0, kMaxThreads);
  if (options.row_memory != RowMemory::host) {
    reject("row_memory", std::to_string(static_cast<int>(options.row_memory)),
           "0 (host): engine reference has no device");
  }
  if (options.device) {
    reject("device", std::to_string(*options.device), "none: engine reference has no device");
  }
  if (options.stream != nullptr) reject("stream", "a pointer", "null, as row_memory is 0 (host)");
}

EffectiveOptions resolve(const Shape& shape, const Options& options) {
  validate(shape);
  validate(shape, options);
  EffectiveOptions effective;
  effective.scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(shape.d_head)));  // LOGIT-1
  effective.softcap = options.softcap;
  effective.score_type = options.score_type;
  effective.schedule = options.schedule;
  effective.threads = 1;
  effective.select = options.select;
  if (options.select == Select::blocks) {
    effective.key_block = options.key_block;
    effective.query_block = options.query_block;
    effective.pool = options.pool;
    effective.refine = options.refine;
  }
  if (options.select == Select::sketches) {
    effective.query_block = options.query_block;
    effective.least_weight = options.least_weight;
  }

  // CFG-4
  effective.chunk = options.chunk;
  effective.batch = std::max(options.batch, options.chunk);
  if (effective.batch != options.batch) {
    effective.warnings.push_back("batch = " + std::to_string(options.batch) + " is below chunk = " +
                                 std::to_string(options.chunk) + ": using batch = chunk");
  }
  if (effective.batch % effective.chunk != 0) {
    effective.warnings.push_back("batch = " + std::to_string(effective.batch) +
                                 " is not a multiple of chunk = " + std::to_string(effective.chunk) +
                                 ": the last chunk of each batch is shorter");
  }

  // CFG-2: dense is the same as asking for no memory.
  effective.local = options.dense ? 0 : options.local;
  effective.heavy = options.dense ? 0 : options.heavy;

  // CFG-3
  if (options.clamp && effective.memory() >= effective.chunk) {
    const std::int64_t most = effective.chunk - 1;
    effective.local = std::min(effective.local, most);
    effective.heavy = std::min(effective.heavy, most - effective.local);
    if (options.select == Select::blocks) effective.heavy -= effective.heavy % options.key_block;  // SEL-1
    effective.warnings.push_back("local = " + std::to_string(options.local) +
                                 " and heavy = " + std::to_string(options.heavy) +
                                 " add up to chunk = " + std::to_string(options.chunk) +
                                 " or more: using local = " + std::to_string(effective.local) +
                                 " and heavy = " + std::to_string(effective.heavy));
  }
  effective.pinned = std::min(options.pinned, effective.heavy);  // CFG-5
  effective.dense_below = options.dense_below;
  effective.dense_layers = options.dense_layers;
  effective.layers = options.layers;
  for (LayerOptions& own : effective.layers) {  // LAYER-1, LOGIT-1
    const bool scaled = own.scale || options.scale;
    if (own.d_head > 0 && !scaled) own.scale = 1.0 / std::sqrt(static_cast<double>(own.d_head));
  }
  effective.kv_owner = options.kv_owner;
  effective.page = options.page;
  effective.kv_bits = options.kv_bits;
  // Only without the clamp can the sum be too large for a set of 32-bit positions.
  require_range("local + heavy", effective.memory(), 0, kMaxPosition);
  effective.sparse = effective.memory() > 0;
  const bool scored = effective.sparse && effective.select == Select::h2o;
  effective.checkpoints = scored ? options.checkpoints : 0;  // STATE-10
  return effective;
}

}  // namespace headwater::reference
