#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "headwater/engine.hpp"
#include "headwater/session.hpp"
#include "runtime/model/aligned_buffer.hpp"

namespace headwater::runtime {

/// A conversation of a model of which some layers keep no rows but a state of fixed size, which every token changes: a session
/// over the layers that keep rows, and beside it the states of the others. Forks share states until one of them goes on. No
/// earlier state is kept, so that it can be truncated to nothing or to what it holds, and a step cannot be aborted.
class RecurrentSession final : public Session {
 public:
  /// States of so many floats in all, 0 at first.
  RecurrentSession(std::unique_ptr<Session> rows, std::size_t floats);

  /// Over the layers that keep rows.
  [[nodiscard]] Session& rows() { return *rows_; }
  /// Of the other layers, in their order; this session's alone from now on.
  [[nodiscard]] float* states();

  void begin(const Step& step) override { rows_->begin(step); }
  void attend(std::int64_t layer, const Rows& q, const Rows& k, const Rows& v, const MutableRows& out,
              const LseOutput& lse) override {
    rows_->attend(layer, q, k, v, out, lse);
  }
  void end() override { rows_->end(); }
  void reset() override;
  void truncate(std::int64_t n) override;
  [[nodiscard]] std::unique_ptr<Session> fork() override;
  void exchange_state(StateArchive& archive) override;
  [[nodiscard]] SessionState state() const override { return rows_->state(); }
  [[nodiscard]] std::int64_t tokens() const override { return rows_->tokens(); }
  [[nodiscard]] const Shape& shape() const override { return rows_->shape(); }
  [[nodiscard]] const EffectiveOptions& options() const override { return rows_->options(); }
  [[nodiscard]] MemoryBytes memory_bytes() const override;
  [[nodiscard]] std::span<const Chunk> plan() const override { return rows_->plan(); }
  [[nodiscard]] std::span<const Chunk> chunks() const override { return rows_->chunks(); }
  [[nodiscard]] ScoreView scores(std::int64_t layer) const override { return rows_->scores(layer); }
  [[nodiscard]] MemoryView memory(std::int64_t layer) const override { return rows_->memory(layer); }
  void read_key(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                std::span<float> row) const override {
    rows_->read_key(layer, head_kv, position, row);
  }
  void read_value(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                  std::span<float> row) const override {
    rows_->read_value(layer, head_kv, position, row);
  }
  void set_observer(Observer observer) override { rows_->set_observer(std::move(observer)); }
  void set_interrupt(Interrupt interrupt) override { rows_->set_interrupt(std::move(interrupt)); }
  [[nodiscard]] StageSeconds stage_seconds() const override { return rows_->stage_seconds(); }
  [[nodiscard]] bool failed() const override { return rows_->failed(); }

 private:
  RecurrentSession(std::unique_ptr<Session> rows, std::shared_ptr<AlignedBuffer> states)
      : rows_(std::move(rows)), states_(std::move(states)) {}
  /// Empties the rows, then the states; where either cannot be done, neither is.
  void clear(const std::function<void()>& clear_rows);

  std::unique_ptr<Session> rows_;
  std::shared_ptr<AlignedBuffer> states_;
};

/// The session over the layers that keep rows.
[[nodiscard]] Session& rows_of(Session& session);

/// An engine whose sessions keep states of so many floats, too: what headwater::load() opens.
class RecurrentEngine final : public Engine {
 public:
  RecurrentEngine(const Engine& engine, std::size_t floats) : engine_(engine), floats_(floats) {}
  [[nodiscard]] std::string_view name() const override { return engine_.name(); }
  [[nodiscard]] std::string_view isa() const override { return engine_.isa(); }
  [[nodiscard]] std::string_view description() const override { return engine_.description(); }
  [[nodiscard]] std::string unavailable_because() const override { return engine_.unavailable_because(); }
  [[nodiscard]] Claims claims() const override { return engine_.claims(); }
  [[nodiscard]] std::unique_ptr<Session> open(const Shape& shape, const Options& options) const override;

 private:
  const Engine& engine_;
  std::size_t floats_;
};

}  // namespace headwater::runtime
