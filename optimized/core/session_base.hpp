#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/memory.hpp"
#include "core/step_machine.hpp"
#include "headwater/session.hpp"

namespace headwater::core {

/// What every optimized session has in common: the protocol of Session (states, argument checks, failure rules)
/// around run_layer(), which does the work of one layer.
class SessionBase : public Session {
 public:
  /// Takes the memory of the list of chunks (std::bad_alloc). `undoes`: abort() and truncate() are offered. Later calls
  /// take the memory that is current now.
  SessionBase(const Shape& shape, EffectiveOptions options, bool undoes = false);

  void begin(const Step& step) final;
  void attend(std::int64_t layer, const Rows& q, const Rows& k, const Rows& v, const MutableRows& out,
              const LseOutput& lse = {}) final;
  void attend_stored(std::int64_t layer, const Rows& q, const StoredRows& rows, const MutableRows& out,
                     const LseOutput& lse = {}) override;
  void check_call(const SequenceCall& call) const final;
  void end() final;
  void reset() final;
  void abort() final;
  void truncate(std::int64_t n) final;
  [[nodiscard]] std::unique_ptr<Session> fork() final;

  [[nodiscard]] SessionState state() const final { return machine_.state(); }
  [[nodiscard]] bool failed() const final { return machine_.failed(); }
  [[nodiscard]] std::int64_t tokens() const final { return machine_.tokens(); }
  [[nodiscard]] const Shape& shape() const final { return shape_; }
  [[nodiscard]] const EffectiveOptions& options() const final { return machine_.options(); }
  [[nodiscard]] std::span<const Chunk> plan() const final { return machine_.plan(); }
  [[nodiscard]] std::span<const Chunk> chunks() const final { return machine_.chunks(); }
  void set_observer(Observer observer) final { observer_ = std::move(observer); }

 protected:
  /// The same tokens and chunks, without an observer.
  SessionBase(const SessionBase& parent);

  /// STATE-11, between steps. Refuses where the engine does not override it.
  virtual std::unique_ptr<Session> fork_session() { return Session::fork(); }
  /// Tokens are about to be taken back, down to n (undo_chunks, or forget). What it throws leaves the session as it was.
  virtual void prepare_truncate(std::int64_t /*n*/) {}
  /// The step for these positions is about to open: takes what it needs beyond what the session holds (NUM-4). What it
  /// throws leaves the session as it was.
  virtual void reserve(std::int64_t /*begin*/, std::int64_t /*end*/) {}
  /// Checks what an engine requires of rows beyond pointers and types: invalid_argument or unsupported, with the step as it
  /// was.
  virtual void check_rows(const SequenceCall& /*call*/) const {}
  /// Stores K and V of the step's tokens and computes all chunks of the plan for one layer. Arguments are valid.
  virtual void run_layer(const SequenceCall& call) = 0;
  /// run() computes a checked call: the layer is entered before it and fails where it throws. For attend_group().
  void enter(const SequenceCall& call) { machine_.enter_layer(call.layer); }
  void fail(const SequenceCall& call) { machine_.fail_layer(call.layer); }
  /// Forgets all tokens; what it throws leaves the session as it was. (The state machine is reset by the base.)
  virtual void forget() = 0;
  /// Of a session that undoes. Stored rows, and scores after the last token, may stay: they are written before they are
  /// read. None of the three may throw.
  /// The step has ended, whose chunks are plan().
  virtual void keep_step() {}
  /// Scores and memory sets become those before the step (STATE-8).
  virtual void undo_step() {}
  /// They become those before the last `sparse` sparse chunks of all kept steps (STATE-10).
  virtual void undo_chunks(std::int64_t /*sparse*/) {}

  /// For exchange_state(): first the part of the state machine, which is followed by `rest`. What is thrown while the
  /// session takes the archive leaves it empty.
  template <class Rest>
  void exchange(StateArchive& archive, Rest&& rest) {
    require_exchange(archive.loading());
    const MemoryScope scope(memory_);
    try {
      machine_.exchange(archive);
      if (archive.loading()) reserve(0, machine_.tokens());
      rest();
    } catch (...) {
      if (archive.loading()) reset();
      throw;
    }
  }

  void require_layer(std::int64_t layer) const;
  /// For read_key and read_value: the session keeps rows, and this one is stored; then the row given is wide enough.
  void require_row(std::int64_t layer, std::int64_t head_kv, std::int64_t position) const;
  static void require_width(std::int64_t row_size, std::int64_t width);
  /// Of the list of chunks, which belongs to the workspace.
  [[nodiscard]] std::int64_t chunk_bytes() const { return machine_.chunk_bytes(); }
  /// Empty where there is none; then nothing need be copied for it.
  [[nodiscard]] const Observer& observer() const { return observer_; }

 private:
  void run(const SequenceCall& call);
  void require_exchange(bool loading) const;

  Memory memory_;  // current where the session takes some
  Shape shape_;
  bool undoes_;
  StepMachine machine_;
  Observer observer_;
};

}  // namespace headwater::core
