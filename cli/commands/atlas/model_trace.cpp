#include "cli/commands/atlas/model_trace.hpp"

#include <algorithm>
#include <bit>
#include <span>
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
  auto& of_layer = sets_[static_cast<std::size_t>(found - layers_.begin())];
  const EffectiveOptions& options = session_.options();
  // A dense layer reads a call as one chunk (STATE-7); it gets the rows that the call has in the others, without sets.
  std::span<const Chunk> chunks(&record.chunk, 1);
  if (options.dense_layer(record.layer)) chunks = session_.plan();
  for (const Chunk& chunk : chunks) {
    const bool sparse = chunk.mode == ChunkMode::sparse;
    const bool cut = sparse && options.select != Select::h2o;
    const std::int64_t rows = cut ? options.query_blocks(chunk.end - chunk.begin) : 1;
    for (std::int64_t row = 0; row < rows; ++row) {
      of_layer.push_back(sets_of_row(record, row, rows));
      if (found != layers_.begin()) continue;
      chunk_start_.push_back(chunk.begin + row * options.query_block);
      if (options.select != Select::h2o) {
        rows_.push_back({chunk.begin, options.local_begin(chunk.begin), !sparse});
      }
    }
  }
}

ModelTrace::Sets ModelTrace::sets_of_row(const ChunkRecord& record, std::int64_t row,
                                         std::int64_t rows) const {
  const bool blocks = session_.options().select != Select::h2o;
  const std::int64_t heads = blocks ? session_.shape().n_head_kv : session_.shape().n_head;
  Sets sets;
  sets.count = record.memory_count;
  for (std::int64_t h = 0; h < heads && record.memory_count > 0; ++h) {
    const std::int64_t at = (h * rows + row) * record.memory_stride;
    sets.positions.insert(sets.positions.end(), record.memory + at, record.memory + at + record.memory_count);
    if (blocks) continue;  // SEL-9
    const float* const sums = record.colsum_inter + at;
    sets.column_sums.insert(sets.column_sums.end(), sums, sums + record.memory_count);
  }
  return sets;
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
  const bool blocks = session_.options().select != Select::h2o;
  trace.heads_in_layer = blocks ? session_.shape().n_head_kv : session_.shape().n_head;
  trace.rows = rows_;
  trace.heads_in_file = session_.shape().n_layer * trace.heads_in_layer;
  trace.chunk_start = chunk_start_;
  trace.chunk_start.push_back(trace.n);
  const bool any_dense = !session_.options().dense_layers.empty();
  for (const std::int64_t layer : layers_) {
    trace.narrow_scores = session_.scores(layer).type == ScoreType::bf16;
    if (!blocks) append_scores(layer, trace.scores);  // SEL-9
    for (std::int64_t h = 0; h < trace.heads_in_layer; ++h) {
      trace.head_numbers.push_back(layer * trace.heads_in_layer + h);
      if (any_dense) trace.dense_heads.push_back(session_.options().dense_layer(layer));
    }
  }
  trace.set_start.push_back(0);
  for (std::size_t c = 0; c < chunk_start_.size(); ++c) {
    for (const std::vector<Sets>& chunks : sets_) {
      const Sets& sets = chunks[c];
      for (std::int64_t h = 0; h < trace.heads_in_layer; ++h) {
        const std::int64_t from = h * sets.count;
        const auto first = sets.positions.begin() + from;
        // SKE-8: a set may end before the others do.
        trace.positions.insert(trace.positions.end(), first, std::find(first, first + sets.count, -1));
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
