#include "integrations/ggml/attention.hpp"

#include <algorithm>
#include <bit>

namespace headwater::ggml {
namespace {

/// Sessions of a context: layers differ in their sinks, and in their widths. What was used longest ago goes first.
constexpr std::size_t kMostKept = 64;

/// Capacities are powers of two from here on, so that a growing context opens few sessions.
constexpr std::int64_t kLeastCapacity = 4096;

bool same(const Options& a, const Options& b) {
  return a.threads == b.threads && a.scale == b.scale && a.softcap == b.softcap && a.sinks == b.sinks;
}

bool same(const Shape& a, const Shape& b) {
  return a.n_head == b.n_head && a.n_head_kv == b.n_head_kv && a.d_head == b.d_head &&
         a.d_value == b.d_value && a.kv_type == b.kv_type;
}

std::int64_t elements(std::size_t bytes, DType type) {
  return static_cast<std::int64_t>(bytes / dtype_size(type));
}

const char* row_of(const ggml_tensor* t, std::int64_t row) {
  return static_cast<const char*>(t->data) + static_cast<std::size_t>(row) * t->nb[1];
}

}  // namespace

Options options_of(const Settings& settings) {
  Options options = preset(settings.dense ? Quality::exact : Quality::balanced);
  options.kv_owner = KvOwner::caller;
  options.clamp = false;
  options.chunk = settings.chunk, options.batch = std::max(options.batch, settings.chunk);
  if (settings.dense) return options;
  options.local = kLocal, options.heavy = settings.memory - kLocal, options.pinned = settings.pinned;
  options.query_block = std::min(options.query_block, settings.chunk);
  options.least_weight = settings.least_weight;
  return options;
}

Session& Attention::session_for(const Node& node, std::int64_t tokens) {
  Options options = options_of(settings_);
  options.threads = std::clamp(settings_.threads > 0 ? settings_.threads : threads_, 0, 512);
  options.scale = node.scale, options.softcap = node.softcap;
  if (node.sinks) {
    const auto* const sinks = static_cast<const float*>(node.sinks->data);
    options.sinks.assign(sinks, sinks + node.shape.n_head);
  }
  const auto fits = [&](const Kept& kept) {
    return kept.shape.capacity >= tokens && same(kept.shape, node.shape) && same(kept.options, options);
  };
  const auto last = std::find_if(kept_.begin(), kept_.end(), fits);
  if (last != kept_.end()) {
    std::rotate(last, last + 1, kept_.end());
    return *kept_.back().session;
  }
  // A shorter one of the kind will not be asked for again.
  std::erase_if(
      kept_, [&](const Kept& kept) { return same(kept.shape, node.shape) && same(kept.options, options); });
  if (kept_.size() >= kMostKept) kept_.erase(kept_.begin());
  Shape shape = node.shape;
  const auto rounded = std::bit_ceil(static_cast<std::uint64_t>(std::max(tokens, kLeastCapacity)));
  shape.capacity = std::min<std::int64_t>(static_cast<std::int64_t>(rounded), INT32_MAX);
  auto session = engine().open(shape, options);
  kept_.push_back({shape, std::move(options), std::move(session)});
  return *kept_.back().session;
}

void Attention::widen(const ggml_tensor* rows, std::int64_t first, std::int64_t tokens, float* copy) const {
  const auto to_float = host().ggml_get_type_traits(rows->type)->to_float;
  const std::int64_t width = rows->ne[0], heads = rows->ne[2];
#pragma omp parallel for num_threads(std::max(threads_, 1)) schedule(static)
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const char* const row = row_of(rows, first + t) + static_cast<std::size_t>(head) * rows->nb[2];
      to_float(row, copy + (t * heads + head) * width, width);
    }
  }
}

StoredRows Attention::stored_rows(const Node& node, const Causal& causal, std::int64_t tokens) {
  StoredRows rows;
  rows.rows = tokens;
  if (!node.quantised) {
    const DType type = node.shape.kv_type;
    rows.keys = row_of(node.k, causal.first), rows.values = row_of(node.v, causal.first);
    rows.key_row_stride = elements(node.k->nb[1], type), rows.key_head_stride = elements(node.k->nb[2], type);
    rows.value_row_stride = elements(node.v->nb[1], type),
    rows.value_head_stride = elements(node.v->nb[2], type);
    return rows;
  }
  const std::int64_t d = node.shape.d_head, dv = node.shape.d_value, heads = node.shape.n_head_kv;
  const std::int64_t key_floats = tokens * heads * d;  // below 2^31 * 2^16 * 2^10
  copy_.resize(static_cast<std::size_t>(key_floats + tokens * heads * dv));
  widen(node.k, causal.first, tokens, copy_.data());
  widen(node.v, causal.first, tokens, copy_.data() + key_floats);
  rows.keys = copy_.data(), rows.values = copy_.data() + key_floats;
  rows.key_row_stride = heads * d, rows.key_head_stride = d;
  rows.value_row_stride = heads * dv, rows.value_head_stride = dv;
  return rows;
}

Way Attention::run(const Node& node, const Causal& causal, std::int64_t longest) {
  const std::int64_t n = node.rows, total = causal.seen + n - 1;
  Session& session = session_for(node, total);
  const StoredRows stored = stored_rows(node, causal, total);
  const Rows q{node.q->data, DType::f32, elements(node.q->nb[1], DType::f32),
               elements(node.q->nb[2], DType::f32)};
  const MutableRows out =
      MutableRows::token_major(node.out->data, DType::f32, node.shape.n_head, node.shape.d_value);
  const auto attend = [&](const Step& step, std::int64_t first) {
    Rows q_rows = q;
    MutableRows out_rows = out;
    q_rows.data = static_cast<const float*>(q.data) + first * q.row_stride;
    out_rows.data = static_cast<float*>(out.data) + first * out.row_stride;
    session.begin(step);
    session.attend_stored(0, q_rows, stored, out_rows);
    session.end();
  };
  const bool sparse = !settings_.dense && total > settings_.dense_below;
  const bool tail = settings_.every_tail || n < longest;
  const std::int64_t sparse_rows = !sparse ? 0
                                   : tail  ? std::max<std::int64_t>(0, n - settings_.dense_tail)
                                           : n;
  try {
    if (total > n) {  // tokens of earlier calls: their rows are there (DEC-2)
      session.begin(Step::decode(total - n));
      session.attend_stored(0, {}, stored, {});
      session.end();
    }
    // A turn that continues a context and is no longer than a chunk would be dense (STATE-3): this one is not over.
    if (sparse_rows > 0) attend(Step::prefill(sparse_rows, std::max(sparse_rows, settings_.chunk + 1)), 0);
    if (sparse_rows < n) attend(Step::decode(n - sparse_rows), sparse_rows);
    session.reset();
  } catch (...) {
    kept_.pop_back();  // it may be inside a step
    throw;
  }
  return sparse_rows > 0 ? Way::sparse : Way::dense;
}

}  // namespace headwater::ggml
