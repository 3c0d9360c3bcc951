#pragma once

#include <memory>
#include <span>
#include <utility>

#include "headwater/session.hpp"

namespace headwater::conformance {

/// A session that hands every call on to another one: a base for those that change some of them.
class ForwardedSession : public Session {
 public:
  void begin(const Step& step) override { inner_->begin(step); }
  void attend(std::int64_t layer, const Rows& q, const Rows& k, const Rows& v, const MutableRows& out,
              const LseOutput& lse) override {
    inner_->attend(layer, q, k, v, out, lse);
  }
  void attend_stored(std::int64_t layer, const Rows& q, const StoredRows& rows, const MutableRows& out,
                     const LseOutput& lse) override {
    inner_->attend_stored(layer, q, rows, out, lse);
  }
  void check_call(const SequenceCall& call) const override { inner_->check_call(call); }
  void end() override { inner_->end(); }
  void reset() override { inner_->reset(); }
  void abort() override { inner_->abort(); }
  void truncate(std::int64_t n) override { inner_->truncate(n); }
  [[nodiscard]] SessionState state() const override { return inner_->state(); }
  [[nodiscard]] bool failed() const override { return inner_->failed(); }
  [[nodiscard]] std::int64_t tokens() const override { return inner_->tokens(); }
  [[nodiscard]] const Shape& shape() const override { return inner_->shape(); }
  [[nodiscard]] const EffectiveOptions& options() const override { return inner_->options(); }
  [[nodiscard]] MemoryBytes memory_bytes() const override { return inner_->memory_bytes(); }
  [[nodiscard]] std::span<const Chunk> plan() const override { return inner_->plan(); }
  [[nodiscard]] std::span<const Chunk> chunks() const override { return inner_->chunks(); }
  [[nodiscard]] ScoreView scores(std::int64_t layer) const override { return inner_->scores(layer); }
  [[nodiscard]] MemoryView memory(std::int64_t layer) const override { return inner_->memory(layer); }
  void read_key(std::int64_t layer, std::int64_t head, std::int64_t position,
                std::span<float> row) const override {
    inner_->read_key(layer, head, position, row);
  }
  void read_value(std::int64_t layer, std::int64_t head, std::int64_t position,
                  std::span<float> row) const override {
    inner_->read_value(layer, head, position, row);
  }
  void set_observer(Observer observer) override { inner_->set_observer(std::move(observer)); }
  void set_interrupt(Interrupt interrupt) override { inner_->set_interrupt(std::move(interrupt)); }
  [[nodiscard]] StageSeconds stage_seconds() const override { return inner_->stage_seconds(); }

 protected:
  explicit ForwardedSession(std::unique_ptr<Session> inner) : inner_(std::move(inner)) {}

  std::unique_ptr<Session> inner_;
};

}  // namespace headwater::conformance
