#include "fuzz/session_model.hpp"

#include <algorithm>
#include <cstddef>

namespace headwater::fuzz {

SessionModel::SessionModel(const Shape& its_shape, const EffectiveOptions& its_options)
    : shape(its_shape),
      options(its_options),
      attended(static_cast<std::size_t>(its_shape.n_layer), false),
      memory_count(static_cast<std::size_t>(its_shape.n_layer), 0) {}

Code SessionModel::begin(const Step& step) {
  if (failed) return ErrorCode::wrong_state;
  if (open) {
    failed = true;
    return ErrorCode::wrong_state;
  }
  const bool prefill = step.kind == Step::Kind::prefill;
  const bool opens = state != SessionState::prefilling;
  if (!prefill && step.kind != Step::Kind::decode) return ErrorCode::invalid_argument;
  if (step.n < 1 || (!prefill && step.turn_length != 0)) return ErrorCode::invalid_argument;
  if (prefill && step.turn_length != 0) {
    if (opens ? step.turn_length < step.n : step.turn_length != turn_length)
      return ErrorCode::invalid_argument;
  }
  if (step.n > shape.capacity - tokens) return ErrorCode::capacity_exceeded;
  if (prefill && opens) {
    turn_length = step.turn_length == 0 ? step.n : step.turn_length;
    turn_sparse = options.sparse && (tokens == 0 || turn_length > options.chunk);
  }
  const ChunkMode mode = !prefill ? ChunkMode::decode : turn_sparse ? ChunkMode::sparse : ChunkMode::dense;
  plan = cut(step.n, mode);
  state = prefill ? SessionState::prefilling : SessionState::decoding;
  step_tokens = step.n;
  open = true;
  attended.assign(static_cast<std::size_t>(shape.n_layer), false);
  return std::nullopt;
}

/// Token by token: a sparse chunk ends where its S tokens, its batch or the call end.
std::vector<Chunk> SessionModel::cut(std::int64_t n, ChunkMode mode) const {
  if (mode != ChunkMode::sparse) return {{tokens, tokens + n, mode}};
  std::vector<Chunk> chunks;
  std::int64_t begin = 0;
  for (std::int64_t t = 1; t <= n; ++t) {
    if (t - begin != options.chunk && t % options.batch != 0 && t != n) continue;
    chunks.push_back({tokens + begin, tokens + t, mode});
    begin = t;
  }
  return chunks;
}

Code SessionModel::attend(std::int64_t layer, bool rows) {
  if (failed || !open) return ErrorCode::wrong_state;
  if (layer < 0 || layer >= shape.n_layer || !rows) return ErrorCode::invalid_argument;
  const auto at = static_cast<std::size_t>(layer);
  if (attended[at] || observer_throws) {
    failed = true;
    return attended[at] ? ErrorCode::wrong_state : ErrorCode::internal;
  }
  attended[at] = true;
  may_score.resize(static_cast<std::size_t>(tokens + step_tokens), false);
  if (plan.front().mode == ChunkMode::sparse) {
    // MEM-5: the last set of the layer is built when the last chunk starts, from all tokens before it.
    memory_count[at] = std::min(options.memory(), plan.back().begin);
    std::fill(may_score.begin(), may_score.end(), true);
  }
  return std::nullopt;
}

Code SessionModel::end() {
  if (failed || !open) return ErrorCode::wrong_state;
  if (std::find(attended.begin(), attended.end(), false) != attended.end()) {
    failed = true;
    return ErrorCode::wrong_state;
  }
  tokens += step_tokens;
  step_tokens = 0;
  open = false;
  return std::nullopt;
}

void SessionModel::reset() {
  SessionModel fresh(shape, options);
  fresh.observer_throws = observer_throws;
  fresh.epoch = epoch + 1;
  *this = fresh;
}

}  // namespace headwater::fuzz
