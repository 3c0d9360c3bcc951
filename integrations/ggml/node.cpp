#include "integrations/ggml/node.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace headwater::ggml {
namespace {

constexpr std::uint16_t kVisible = 0x0000;  // 0.0
constexpr std::uint16_t kHidden = 0xFC00;   // -infinity

/// Wider heads would only cost memory here: no model has them.
constexpr std::int64_t kMostWidth = 1024;
constexpr std::int64_t kMostHeads = 65536;

/// Strides so far apart that an offset of them overflows are no views of anything.
constexpr std::size_t kMostStride = std::size_t{1} << 40;

bool all(const std::uint16_t* entries, std::int64_t n, std::uint16_t value) {
  constexpr std::int64_t kRun = 1024;  // between two looks: a vector loop without a branch
  for (std::int64_t begin = 0; begin < n; begin += kRun) {
    const std::int64_t end = std::min(begin + kRun, n);
    unsigned other = 0;
    for (std::int64_t i = begin; i < end; ++i) other |= static_cast<unsigned>(entries[i] ^ value);
    if (other != 0) return false;
  }
  return true;
}

/// Rows of whole elements, and strides that are multiples of them.
bool row_view(const ggml_tensor* t, std::size_t element, std::size_t row_bytes) {
  const auto stride = [&](int i) {
    return t->nb[i] % element == 0 && t->nb[i] >= row_bytes && t->nb[i] <= kMostStride;
  };
  return t->nb[0] == element && stride(1) && stride(2);
}

struct Format {
  DType type;
  bool quantised;
};

std::optional<Format> format_of(ggml_type type) {
  switch (type) {
    case GGML_TYPE_F32: return Format{DType::f32, false};
    case GGML_TYPE_F16: return Format{DType::f16, false};
    case GGML_TYPE_BF16: return Format{DType::bf16, false};
    case GGML_TYPE_Q8_0:
    case GGML_TYPE_Q4_0: return Format{DType::f32, true};
    default: return {};
  }
}

}  // namespace

const char* name_of(Reason reason) {
  constexpr const char* kNames[kReasons] = {"",      "few rows", "no mask", "streams", "alibi",
                                            "type",  "layout",   "size",    "numbers", "mask not causal",
                                            "failed"};
  return kNames[static_cast<int>(reason)];
}

std::optional<Node> read_node(const ggml_tensor* op, Reason& why) {
  Node node;
  const auto left = [&](Reason reason) {
    why = reason;
    return std::nullopt;
  };
  node.out = op;
  node.q = op->src[0], node.k = op->src[1], node.v = op->src[2], node.mask = op->src[3],
  node.sinks = op->src[4];
  const ggml_tensor *const q = node.q, *const k = node.k, *const v = node.v, *const mask = node.mask;
  if (!q || !k || !v) return left(Reason::size);
  node.rows = q->ne[1], node.keys = k->ne[1];
  if (node.rows < kLeastRows) return left(Reason::few_rows);
  if (q->ne[3] != 1 || k->ne[3] != 1 || v->ne[3] != 1) return left(Reason::streams);
  if (!mask || mask->type != GGML_TYPE_F16 || mask->ne[0] != node.keys || mask->ne[1] < node.rows ||
      mask->ne[2] != 1 || mask->ne[3] != 1) {
    return left(Reason::no_mask);
  }
  float max_bias = 0;
  std::memcpy(&node.scale, op->op_params, sizeof node.scale);
  std::memcpy(&max_bias, op->op_params + 1, sizeof max_bias);
  std::memcpy(&node.softcap, op->op_params + 2, sizeof node.softcap);
  if (max_bias != 0) return left(Reason::alibi);
  if (!std::isfinite(node.scale) || !(node.softcap >= 0) || !std::isfinite(node.softcap)) {
    return left(Reason::numbers);
  }
  const std::optional<Format> format = format_of(k->type);
  const bool precise = op->op_params[3] == GGML_PREC_DEFAULT || op->op_params[3] == GGML_PREC_F32;
  if (!format || v->type != k->type || q->type != GGML_TYPE_F32 || op->type != GGML_TYPE_F32 || !precise) {
    return left(Reason::type);
  }
  const std::int64_t d = k->ne[0], dv = v->ne[0], heads = q->ne[2], heads_kv = k->ne[2];
  const bool fits = d >= 1 && d <= kMostWidth && dv >= 1 && dv <= kMostWidth && heads >= 1 &&
                    heads <= kMostHeads && heads_kv >= 1 && heads % heads_kv == 0 && node.keys >= node.rows &&
                    node.keys < INT32_MAX;
  if (!fits || q->ne[0] != d || v->ne[1] != node.keys || v->ne[2] != heads_kv || op->ne[0] != dv ||
      op->ne[1] != heads || op->ne[2] != node.rows || op->ne[3] != 1) {
    return left(Reason::size);
  }
  // A block of a quantised row is one element to ggml.
  const ggml_type_traits* const traits = host().ggml_get_type_traits(k->type);
  if (!traits || traits->type_size == 0 || traits->blck_size < 1 || d % traits->blck_size != 0 ||
      dv % traits->blck_size != 0 || (format->quantised && !traits->to_float)) {
    return left(Reason::type);
  }
  const std::size_t block = traits->type_size;
  const auto row_bytes = [&](std::int64_t width) {
    return static_cast<std::size_t>(width / traits->blck_size) * block;
  };
  const std::size_t f32 = sizeof(float), out_row = static_cast<std::size_t>(dv) * f32;
  if (!row_view(q, f32, static_cast<std::size_t>(d) * f32) || !row_view(k, block, row_bytes(d)) ||
      !row_view(v, block, row_bytes(dv)) || op->nb[0] != f32 || op->nb[1] != out_row ||
      op->nb[2] != out_row * static_cast<std::size_t>(heads) || mask->nb[0] != 2 || mask->nb[1] % 2 != 0 ||
      mask->nb[1] < 2 * static_cast<std::size_t>(node.keys) || mask->nb[1] > kMostStride) {
    return left(Reason::layout);
  }
  if (node.sinks &&
      (node.sinks->type != GGML_TYPE_F32 || node.sinks->ne[0] != heads || node.sinks->nb[0] != f32)) {
    return left(Reason::layout);
  }
  node.quantised = format->quantised;
  node.shape.n_head = heads, node.shape.n_head_kv = heads_kv, node.shape.d_head = d, node.shape.d_value = dv;
  node.shape.capacity = node.keys, node.shape.kv_type = format->type;
  why = Reason::none;
  return node;
}

std::optional<Causal> read_mask(const std::uint16_t* mask, std::int64_t stride, std::int64_t rows,
                                std::int64_t keys) {
  Causal causal;
  while (causal.first < keys && mask[causal.first] == kHidden) ++causal.first;
  while (causal.first + causal.seen < keys && mask[causal.first + causal.seen] == kVisible) ++causal.seen;
  if (causal.seen == 0 || causal.first + causal.seen + rows - 1 > keys) return {};
  // Each row has one key more than the row before it. Ends first: another mask differs there, most often.
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::uint16_t* const row = mask + i * stride;
    const std::int64_t end = causal.first + causal.seen + i;
    if (row[end - 1] != kVisible || row[causal.first] != kVisible || (end < keys && row[end] != kHidden))
      return {};
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::uint16_t* const row = mask + i * stride;
    const std::int64_t seen = causal.seen + i, end = causal.first + seen;
    if (!all(row, causal.first, kHidden) || !all(row + causal.first, seen, kVisible) ||
        !all(row + end, keys - end, kHidden)) {
      return {};
    }
  }
  return causal;
}

}  // namespace headwater::ggml
