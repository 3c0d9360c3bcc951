#include "fuzz/session_model.hpp"

#include <algorithm>
#include <cstddef>

namespace headwater::fuzz {

SessionModel::SessionModel(const Shape& its_shape, const EffectiveOptions& its_options,
                           const Claims& its_claims)
    : shape(its_shape),
      options(its_options),
      claims(its_claims),
      attended(static_cast<std::size_t>(its_shape.n_layer), false),
      lengths(its_options) {}

Code SessionModel::begin(const Step& step) {
  if (failed) return ErrorCode::wrong_state;
  if (open) {
    failed = true;
    return ErrorCode::wrong_state;
  }
  const bool prefill = step.kind == Step::Kind::prefill;
  const bool opens = state() != SessionState::prefilling;
  if (!prefill && step.kind != Step::Kind::decode) return ErrorCode::invalid_argument;
  if (step.n < 1 || (!prefill && step.turn_length != 0)) return ErrorCode::invalid_argument;
  if (prefill && step.turn_length != 0) {
    if (opens ? step.turn_length < step.n : step.turn_length != turn_length())
      return ErrorCode::invalid_argument;
  }
  if (step.n > shape.capacity - tokens) return ErrorCode::capacity_exceeded;
  before_ = std::make_shared<const SessionModel>(*this);
  Taken taken = steps.empty() ? Taken{} : steps.back();
  taken.state = prefill ? SessionState::prefilling : SessionState::decoding;
  if (prefill && opens) {
    const std::int64_t length = step.turn_length == 0 ? step.n : step.turn_length;
    taken.turn_length = length;
    taken.turn_sparse =
        options.sparse && length >= options.dense_below && (tokens == 0 || length > options.chunk);
  }
  taken.plan = cut(step.n, !prefill            ? ChunkMode::decode
                           : taken.turn_sparse ? ChunkMode::sparse
                                               : ChunkMode::dense);
  steps.push_back(taken);
  step_tokens = step.n;
  open = true;
  attended.assign(static_cast<std::size_t>(shape.n_layer), false);
  ++epoch;
  epochs.resize(static_cast<std::size_t>(tokens));
  epochs.resize(static_cast<std::size_t>(tokens + step.n), epoch);
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
  // INTR-1: the first question comes before the first chunk, and so before the observer.
  const bool stopped = interrupt == Answer::stop || interrupt == Answer::throws;
  if (attended[at] || stopped || observer_throws) {
    failed = true;
    if (attended[at]) return ErrorCode::wrong_state;
    return interrupt == Answer::stop ? ErrorCode::interrupted : ErrorCode::internal;
  }
  attended[at] = true;
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
  before_.reset();
  lengths.ended(chunks());
  return std::nullopt;
}

void SessionModel::restore(SessionModel earlier) {
  earlier.observer_throws = observer_throws;
  earlier.interrupt = interrupt;
  earlier.epoch = epoch;
  *this = std::move(earlier);
}

Code SessionModel::abort() {
  if (!claims.abort) return ErrorCode::unsupported;
  if (!open) return ErrorCode::wrong_state;
  restore(*before_);
  return std::nullopt;
}

Code SessionModel::truncate(std::int64_t n) {
  if (!claims.truncate) return ErrorCode::unsupported;
  if (open) return ErrorCode::wrong_state;
  if (!lengths.possible(n)) return ErrorCode::invalid_argument;
  if (n == 0) {
    reset();
    return std::nullopt;
  }
  while (steps.back().plan.front().begin >= n) steps.pop_back();
  std::vector<Chunk>& last = steps.back().plan;
  std::erase_if(last, [&](const Chunk& chunk) { return chunk.begin >= n; });
  last.back().end = n;
  tokens = n;
  lengths.truncated(n);
  return std::nullopt;
}

Code SessionModel::set_interrupt(Answer answer) {
  if (!claims.interrupt) return ErrorCode::unsupported;
  interrupt = answer;
  return std::nullopt;
}

Code SessionModel::become_fork() {
  if (!claims.fork) return ErrorCode::unsupported;
  if (open) return ErrorCode::wrong_state;
  forget_askers();
  return std::nullopt;
}

Code SessionModel::become_loaded() {
  if (!claims.save) return ErrorCode::unsupported;
  if (open) return ErrorCode::wrong_state;
  forget_askers();
  lengths.loaded();
  return std::nullopt;
}

void SessionModel::reset() { restore(SessionModel(shape, options, claims)); }

std::vector<Chunk> SessionModel::chunks() const {
  std::vector<Chunk> all;
  for (const Taken& step : steps) all.insert(all.end(), step.plan.begin(), step.plan.end());
  return all;
}

Chunk SessionModel::last_sparse(std::int64_t layer) const {
  const std::int64_t end = tokens + (attended[static_cast<std::size_t>(layer)] ? step_tokens : 0);
  Chunk last;
  for (const Chunk& chunk : chunks()) {
    if (chunk.mode == ChunkMode::sparse && chunk.end <= end) last = chunk;
  }
  return last;
}

}  // namespace headwater::fuzz
