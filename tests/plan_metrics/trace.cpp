#include "tests/plan_metrics/trace.hpp"

#include <bit>

namespace headwater::tests {
namespace {

std::size_t index(std::int64_t value) { return static_cast<std::size_t>(value); }

RecordedChunk copy_of(const ChunkRecord& record, std::int64_t heads) {
  RecordedChunk copy;
  copy.chunk = record.chunk;
  for (std::int64_t h = 0; h < heads; ++h) {
    const auto* const set = record.memory + h * record.memory_stride;
    const auto* const inter = record.colsum_inter + h * record.memory_stride;
    copy.memory.emplace_back(set, set + record.memory_count);
    copy.colsum_inter.emplace_back(inter, inter + record.memory_count);
    const auto* const intra = record.colsum_intra + h * record.row_stride;
    copy.colsum_intra.emplace_back(intra, intra + (record.chunk.end - record.chunk.begin));
  }
  return copy;
}

}  // namespace

float PrefillRun::score(std::int64_t head, std::int64_t token) const {
  const ScoreView view = session->scores(0);
  const auto at = index(head * view.head_stride + token);
  if (view.type == ScoreType::f32) return static_cast<const float*>(view.data)[at];
  return std::bit_cast<float>(std::uint32_t{static_cast<const std::uint16_t*>(view.data)[at]} << 16U);
}

RealTrace::RealTrace(const std::string& name)
    : file_(std::string(HEADWATER_MODELS) + "/" + name), input_(cli::read_attend_input(file_)) {}

Views RealTrace::views() const {
  Views views;
  views.n = input_.q.n;
  views.shape = {.n_head = input_.q.heads,
                 .n_head_kv = input_.k.heads,
                 .d_head = input_.q.width,
                 .d_value = input_.v.width,
                 .capacity = input_.q.n + 16,
                 .kv_type = input_.k.type};
  views.q = input_.q.from(0), views.k = input_.k.from(0), views.v = input_.v.from(0);
  return views;
}

Views RealTrace::views_with_unit_values() {
  Views result = views();
  ones_.assign(index(result.n * result.shape.n_head_kv * result.shape.d_value), 1.0F);
  result.v = Rows::token_major(ones_.data(), DType::f32, result.shape.n_head_kv, result.shape.d_value);
  return result;
}

PrefillRun prefill(const std::string& name, const Views& views, const Options& options, std::int64_t calls) {
  PrefillRun run;
  Shape shape = views.shape;
  shape.capacity += (calls - 1) * views.n;
  run.session = engine(name).open(shape, options);
  run.session->set_observer([&](const ChunkRecord& record) {
    if (record.chunk.mode == ChunkMode::sparse) run.chunks.push_back(copy_of(record, views.shape.n_head));
  });
  run.out.resize(index(views.n * views.shape.n_head * views.shape.d_value));
  for (std::int64_t call = 0; call < calls; ++call) {
    run.session->begin(Step::prefill(views.n, calls * views.n));
    run.session->attend(
        0, views.q, views.k, views.v,
        MutableRows::token_major(run.out.data(), DType::f32, views.shape.n_head, views.shape.d_value));
    run.session->end();
  }
  run.session->set_observer({});
  return run;
}

}  // namespace headwater::tests
