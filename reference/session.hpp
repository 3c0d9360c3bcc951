#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "headwater/session.hpp"
#include "reference/history.hpp"
#include "reference/storage.hpp"

/// Chapters 2, 10 and 11 of the spec: a session (STATE-1 .. STATE-10) and the two schedules (SCHED-1,
/// SCHED-2).
namespace headwater::reference {

/// The session of the engine `reference`.
class ReferenceSession final : public Session {
 public:
  /// Errors: invalid_argument (CFG-1 .. CFG-4), std::bad_alloc.
  ReferenceSession(const Shape& shape, const Options& options);

  void begin(const Step& step) override;
  void attend(std::int64_t layer, const Rows& q, const Rows& k, const Rows& v, const MutableRows& out,
              const LseOutput& lse) override;
  void attend_stored(std::int64_t layer, const Rows& q, const StoredRows& rows, const MutableRows& out,
                     const LseOutput& lse) override;
  void check_call(const SequenceCall& call) const override;
  void end() override;
  void reset() override;
  void abort() override;
  void truncate(std::int64_t n) override;
  [[nodiscard]] std::unique_ptr<Session> fork() override;
  void exchange_state(StateArchive& archive) override;

  [[nodiscard]] SessionState state() const override { return history_.turn().state; }
  [[nodiscard]] bool failed() const override;
  [[nodiscard]] std::int64_t tokens() const override { return tokens_; }
  [[nodiscard]] const Shape& shape() const override { return shape_; }
  [[nodiscard]] const EffectiveOptions& options() const override { return effective_; }
  [[nodiscard]] MemoryBytes memory_bytes() const override;
  [[nodiscard]] std::span<const Chunk> plan() const override { return history_.plan(); }
  [[nodiscard]] std::span<const Chunk> chunks() const override { return history_.chunks(); }
  [[nodiscard]] ScoreView scores(std::int64_t layer) const override;
  [[nodiscard]] MemoryView memory(std::int64_t layer) const override;
  void read_key(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                std::span<float> row) const override;
  void read_value(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                  std::span<float> row) const override;
  void set_observer(Observer observer) override;
  void set_interrupt(Interrupt interrupt) override;

 private:
  enum class Progress : std::uint8_t { idle, open, failed };  ///< of the step

  /// STATE-5: after a step that failed only abort() and reset() are legal.
  void require_usable() const;
  /// The same, and no step is open.
  void require_idle(const std::string& call) const;
  void run(const SequenceCall& call);
  /// STATE-6, or ROWS-1: the rows of the open step, or of the caller, into the storage of a layer.
  void store(const SequenceCall& call);
  /// STATE-6: those of the open step once `layer` was attended.
  [[nodiscard]] std::int64_t stored_rows(std::int64_t layer) const;

  Shape shape_;
  Options options_;
  EffectiveOptions effective_;
  std::vector<LayerStorage> layers_;
  History history_;
  std::vector<LayerState> before_step_;  ///< one per layer while a step is open (STATE-8)
  std::vector<std::vector<Checkpoint>>
      checkpoints_;             ///< per layer, of the chunks that are not settled (STATE-10)
  std::vector<bool> attended_;  ///< one per layer, of the open step
  std::int64_t tokens_ = 0;     ///< finished steps only
  std::int64_t step_tokens_ = 0;
  Progress progress_ = Progress::idle;
  Observer observer_;
  Interrupt interrupt_;
};

}  // namespace headwater::reference
