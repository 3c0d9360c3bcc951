#include "runtime/model/recurrent_session.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <new>
#include <utility>

#include "headwater/error.hpp"
#include "headwater/state.hpp"

namespace headwater::runtime {
namespace {

std::shared_ptr<AlignedBuffer> take_states(std::size_t bytes) {
  try {
    return std::make_shared<AlignedBuffer>(bytes);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::out_of_memory,
                fmt::format("the states of recurrent layers take {} bytes, which are not there", bytes));
  }
}

}  // namespace

RecurrentSession::RecurrentSession(std::unique_ptr<Session> rows, std::size_t floats)
    : rows_(std::move(rows)), states_(take_states(floats * sizeof(float))) {
  std::memset(states_->data(), 0, states_->size());
}

float* RecurrentSession::states() {
  if (states_.use_count() > 1) {
    std::shared_ptr<AlignedBuffer> own = take_states(states_->size());
    std::memcpy(own->data(), states_->data(), own->size());
    states_ = std::move(own);
  }
  return states_->floats();
}

void RecurrentSession::clear(const std::function<void()>& clear_rows) {
  std::shared_ptr<AlignedBuffer> own = states_.use_count() > 1 ? take_states(states_->size()) : states_;
  clear_rows();
  states_ = std::move(own);
  std::memset(states_->data(), 0, states_->size());
}

void RecurrentSession::reset() {
  clear([this] { rows_->reset(); });
}

void RecurrentSession::truncate(std::int64_t n) {
  if (n == 0) return clear([this] { rows_->truncate(0); });
  if (n != tokens()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("truncate to {} of {} tokens in a model with recurrent layers; allowed: 0, {}", n,
                            tokens(), tokens()));
  }
  rows_->truncate(n);
}

std::unique_ptr<Session> RecurrentSession::fork() {
  return std::unique_ptr<Session>(new RecurrentSession(rows_->fork(), states_));
}

void RecurrentSession::exchange_state(StateArchive& archive) {
  if (archive.loading()) (void)states();  // no fork's
  rows_->exchange_state(archive);
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
