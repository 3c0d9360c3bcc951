#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "core/session_base.hpp"
#include "core/stored_rows.hpp"
#include "cpu/arithmetic/bf16.hpp"
#include "cpu/arithmetic/float.hpp"
#include "cpu/dispatch.hpp"
#include "cpu/layer.hpp"
#include "cpu/pass/blocks.hpp"
#include "cpu/pass/dense.hpp"
#include "cpu/pass/sketches.hpp"
#include "cpu/pass/sparse.hpp"

namespace headwater::cpu {

/// A session of the CPU engine: its stores, the passes over them, and the arithmetics that a call may choose from.
class CpuSession final : public core::SessionBase {
 public:
  /// `effective` is resolve(shape, options); takes all memory (std::bad_alloc) and starts the library's own threads, where
  /// these are used. The variant outlives the session.
  CpuSession(const Variant& variant, const Shape& shape, const Options& options,
             const EffectiveOptions& effective);

  [[nodiscard]] MemoryBytes memory_bytes() const override;
  /// What memory_bytes() says now, and once all tokens are stored (NUM-5). Errors: std::bad_alloc, where 64 bits cannot
  /// count it.
  [[nodiscard]] MemoryEstimate estimate() const;
  [[nodiscard]] StageSeconds stage_seconds() const override;
  [[nodiscard]] ScoreView scores(std::int64_t layer) const override;
  [[nodiscard]] MemoryView memory(std::int64_t layer) const override;
  void read_key(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                std::span<float> row) const override;
  void read_value(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                  std::span<float> row) const override;
  void exchange_state(StateArchive& archive) override;
  void attend_group(std::span<const SequenceCall> calls) override;
  void set_interrupt(Interrupt interrupt) override { interrupt_ = std::move(interrupt); }

 private:
  /// Arithmetics and passes with their working memory.
  struct Work {
    Work(SessionData& data, const Variant& variant);
    [[nodiscard]] std::int64_t bytes() const;
    [[nodiscard]] std::int64_t set_bytes() const;

    FloatArithmetic floats;
    std::optional<Bf16Arithmetic> bf16;    // none: no call is computed in BF16
    std::optional<SparsePass> sparse;      // rule h2o; none: the session is dense or has another rule
    std::optional<BlocksPass> blocks;      // rule blocks
    std::optional<SketchesPass> sketches;  // rule sketches
    DensePass dense;
  };

  CpuSession(CpuSession& parent);

  /// The first `tokens` scores of its own, where they are shared. Errors: out_of_memory.
  void own_scores(std::int64_t tokens);

  void check_rows(const SequenceCall& call) const override;
  /// The session of a call of attend_group(), where this one may compute it in regions of its own; else null.
  [[nodiscard]] CpuSession* decodes_together(const SequenceCall& call) const;
  /// Calls that decodes_together() takes.
  void decode_group(std::span<const SequenceCall* const> calls);
  void run_layer(const SequenceCall& asked) override;
  void reserve(std::int64_t begin, std::int64_t end) override;
  void forget() override;
  std::unique_ptr<Session> fork_session() override;
  void prepare_truncate(std::int64_t n) override;
  void keep_step() override;
  void undo_step() override;
  void undo_chunks(std::int64_t sparse) override;

  /// Sinks and slopes are no part of the options that a session tells: the archive holds their bits.
  static void exchange_floats(StateArchive& archive, const char* name, const std::vector<float>& own);

  /// Rows, scores and threads are made ready for the call.
  void open_call(const SequenceCall& call);
  /// Stores K and V of the steps of these calls, which are open, each of another session.
  static void store_rows(Workers& workers, std::span<const SequenceCall* const> calls);
  /// A part of that: rows of tokens, then rows of scores, which are cleared.
  [[nodiscard]] std::int64_t store_tasks() const;
  void store_task(const SequenceCall& call, std::int64_t index);
  [[nodiscard]] Arithmetic& arithmetic_of(const SequenceCall& call);
  [[nodiscard]] std::int64_t step_tokens() const { return plan().back().end - plan().front().begin; }
  /// Packed rows [begin, end) of the layer, all heads, become readable (STATE-13); else nothing.
  void restore(std::int64_t layer, std::int64_t begin, std::int64_t end);
  /// The first row that summarise() reads of rows from `base` on.
  [[nodiscard]] std::int64_t first_summarised(std::int64_t base) const {
    return data_.summaries.empty() ? base : base / data_.summaries.key_block() * data_.summaries.key_block();
  }
  /// Key blocks that n stored rows from `base` have made whole (SEL-3).
  void summarise(std::int64_t layer, std::int64_t base, std::int64_t n);

  SessionData data_;
  mutable core::StoredRowsCheck stored_rows_;  // ROWS-1; empty where the session keeps its rows
  Interrupt interrupt_;
  const Variant& variant_;
  std::unique_ptr<Work> work_;  // a fork takes it with its first step
};

}  // namespace headwater::cpu
