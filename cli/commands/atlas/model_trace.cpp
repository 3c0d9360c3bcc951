#include "cli/commands/atlas/model_trace.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace headwater::cli {

ModelTrace::ModelTrace(Session& session, std::vector<std::int64_t> layers)
    : session_(session), layers_(std::move(layers)), sets_(layers_.size()) {
  session_.set_observer([this](const ChunkRecord& one) { record(one); });
}

ModelTrace::~ModelTrace() { session_.set_observer({}); }

void ModelTrace::record(const ChunkRecord& record) {
  const auto found = std::lower_bound(layers_.begin(), layers_.end(), record.layer);
  if (found == layers_.end() || *found != record.layer) return;
  const bool first = found == layers_.begin();
  auto& of_layer = sets_[static_cast<std::size_t>(found - layers_.begin())];
  if (session_.options().select == Select::blocks) {
    record_blocks(record, first, of_layer);
    return;
  }
  if (first) chunk_start_.push_back(record.chunk.begin);
  Sets sets;
  sets.count = record.memory_count;
  for (std::int64_t h = 0; h < session_.shape().n_head && record.memory_count > 0; ++h) {
    const std::int32_t* const positions = record.memory + h * record.memory_stride;
    sets.positions.insert(sets.positions.end(), positions, positions + record.memory_count);
    const float* const sums = record.colsum_inter + h * record.memory_stride;
    sets.column_sums.insert(sets.column_sums.end(), sums, sums + record.memory_count);
  }
  of_layer.push_back(std::move(sets));
}

/// A row for each query block; a dense or decode chunk is one.
void ModelTrace::record_blocks(const ChunkRecord& record, bool first, std::vector<Sets>& of_layer) {
  const EffectiveOptions& options = session_.options();
  const std::int64_t begin = record.chunk.begin;
  const bool dense = record.chunk.mode != ChunkMode::sparse;
  const std::int64_t blocks = dense ? 1 : record.query_blocks;
  for (std::int64_t b = 0; b < blocks; ++b) {
    if (first) {
      chunk_start_.push_back(begin + b * options.query_block);
      rows_.push_back({begin, options.local_begin(begin), dense});
    }
    Sets sets;
    sets.count = record.memory_count;
    for (std::int64_t g = 0; g < session_.shape().n_head_kv && record.memory_count > 0; ++g) {
      const std::int32_t* const positions = record.memory + (g * blocks + b) * record.memory_stride;
      sets.positions.insert(sets.positions.end(), positions, positions + record.memory_count);
    }
    of_layer.push_back(std::move(sets));
  }
}

void ModelTrace::append_scores(std::int64_t layer, std::vector<float>& scores) const {
  const ScoreView view = session_.scores(layer);
  for (std::int64_t h = 0; h < session_.shape().n_head; ++h) {
    for (std::int64_t t = 0; t < session_.tokens(); ++t) {
      const std::int64_t at = h * view.head_stride + t;
      constexpr unsigned kHalf = 16;  // BF16 is the upper half of an F32
      scores.push_back(
          view.type == ScoreType::bf16
              ? std::bit_cast<float>(
                    static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(view.data)[at]) << kHalf)
              : static_cast<const float*>(view.data)[at]);
    }
  }
}

AtlasTrace ModelTrace::take() const {
  AtlasTrace trace;
  trace.n = session_.tokens();
  trace.memory = session_.options().memory();
  trace.local = session_.options().local;
  const bool blocks = session_.options().select == Select::blocks;
  trace.heads_in_layer = blocks ? session_.shape().n_head_kv : session_.shape().n_head;
  trace.rows = rows_;
  trace.heads_in_file = session_.shape().n_layer * trace.heads_in_layer;
  trace.chunk_start = chunk_start_;
  trace.chunk_start.push_back(trace.n);
  for (const std::int64_t layer : layers_) {
    trace.narrow_scores = session_.scores(layer).type == ScoreType::bf16;
    if (!blocks) append_scores(layer, trace.scores);  // SEL-9
    for (std::int64_t h = 0; h < trace.heads_in_layer; ++h) {
      trace.head_numbers.push_back(layer * trace.heads_in_layer + h);
    }
  }
  trace.set_start.push_back(0);
  for (std::size_t c = 0; c < chunk_start_.size(); ++c) {
    for (const std::vector<Sets>& chunks : sets_) {
      const Sets& sets = chunks[c];
      for (std::int64_t h = 0; h < trace.heads_in_layer; ++h) {
        const std::int64_t from = h * sets.count;
        trace.positions.insert(trace.positions.end(), sets.positions.begin() + from,
                               sets.positions.begin() + from + sets.count);
        if (!blocks) {
          trace.colsum_inter.insert(trace.colsum_inter.end(), sets.column_sums.begin() + from,
                                    sets.column_sums.begin() + from + sets.count);
        }
        trace.set_start.push_back(static_cast<std::int64_t>(trace.positions.size()));
      }
    }
  }
  return trace;
}

}  // namespace headwater::cli
