#include "runtime/model/recurrent_session.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <utility>

#include "headwater/error.hpp"
#include "headwater/state.hpp"

namespace headwater::runtime {

RecurrentSession::RecurrentSession(std::unique_ptr<Session> rows, std::size_t floats)
    : rows_(std::move(rows)), states_(std::make_shared<AlignedBuffer>(floats * sizeof(float))) {
  std::memset(states_->data(), 0, states_->size());
}

void RecurrentSession::own_states() {
  if (states_.use_count() > 1) states_ = std::make_shared<AlignedBuffer>(states_->size());
}

float* RecurrentSession::states() {
  const std::shared_ptr<AlignedBuffer> before = states_.use_count() > 1 ? states_ : nullptr;
  own_states();
  if (before) std::memcpy(states_->data(), before->data(), before->size());
  return states_->floats();
}

void RecurrentSession::reset() {
  rows_->reset();
  own_states();
  std::memset(states_->data(), 0, states_->size());
}

void RecurrentSession::truncate(std::int64_t n) {
  if (n != 0 && n != tokens()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("truncate to {} of {} tokens in a model with recurrent layers; allowed: 0, {}", n,
                            tokens(), tokens()));
  }
  rows_->truncate(n);
  if (n == 0) reset();
}

std::unique_ptr<Session> RecurrentSession::fork() {
  return std::unique_ptr<Session>(new RecurrentSession(rows_->fork(), states_));
}

void RecurrentSession::exchange_state(StateArchive& archive) {
  rows_->exchange_state(archive);
  if (archive.loading()) own_states();
  const auto bytes = static_cast<std::int64_t>(states_->size());
  const std::array dims = {bytes / static_cast<std::int64_t>(sizeof(float))};
  const std::array pieces = {StateArchive::Piece{states_->data(), bytes}};
  try {
    archive.array("recurrent", StateArchive::Element::f32, dims, pieces);
  } catch (...) {
    if (archive.loading()) reset();
    throw;
  }
}

MemoryBytes RecurrentSession::memory_bytes() const {
  MemoryBytes bytes = rows_->memory_bytes();
  bytes.kv += static_cast<std::int64_t>(states_->size());
  return bytes;
}

Session& rows_of(Session& session) {
  auto* const recurrent = dynamic_cast<RecurrentSession*>(&session);
  return recurrent == nullptr ? session : recurrent->rows();
}

std::unique_ptr<Session> RecurrentEngine::open(const Shape& shape, const Options& options) const {
  return std::make_unique<RecurrentSession>(engine_.open(shape, options), floats_);
}

}  // namespace headwater::runtime
