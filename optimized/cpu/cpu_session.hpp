#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "core/session_base.hpp"
#include "cpu/arithmetic/bf16.hpp"
#include "cpu/arithmetic/float.hpp"
#include "cpu/layer.hpp"
#include "cpu/pass/blocks.hpp"
#include "cpu/pass/dense.hpp"
#include "cpu/pass/sparse.hpp"

namespace headwater::cpu {

/// A session of the CPU engine: its stores, the passes over them, and the arithmetics that a call may choose from.
class CpuSession final : public core::SessionBase {
 public:
  /// `effective` is resolve(shape, options); takes all memory (std::bad_alloc) and starts OpenMP's threads, where these are used. Calls
  /// whose Q, K and V are all BF16 use `bf16`, unless it is null, others `kernels`. Both tables outlive the session.
  CpuSession(const KernelTable& kernels, const Bf16Table* bf16, const Shape& shape, const Options& options,
             const EffectiveOptions& effective);

  [[nodiscard]] MemoryBytes memory_bytes() const override;
  [[nodiscard]] StageSeconds stage_seconds() const override;
  [[nodiscard]] ScoreView scores(std::int64_t layer) const override;
  [[nodiscard]] MemoryView memory(std::int64_t layer) const override;
  void read_key(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                std::span<float> row) const override;
  void read_value(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                  std::span<float> row) const override;
  void exchange_state(StateArchive& archive) override;
  void set_interrupt(Interrupt interrupt) override { interrupt_ = std::move(interrupt); }

 private:
  void run_layer(const SequenceCall& asked) override;
  void forget() override;
  void keep_step() override;
  void undo_step() override;
  void undo_chunks(std::int64_t sparse) override;

  /// Sinks and slopes are no part of the options that a session tells: the archive holds their bits.
  static void exchange_floats(StateArchive& archive, const char* name, const std::vector<float>& own);

  void store_rows(std::int64_t layer, const Rows& k, const Rows& v, std::int64_t base, std::int64_t n);
  /// Key blocks that n stored rows from `base` have made whole (SEL-3).
  void summarise(std::int64_t layer, std::int64_t base, std::int64_t n);

  SessionData data_;
  Interrupt interrupt_;
  FloatArithmetic floats_;
  std::optional<Bf16Arithmetic> bf16_;  // none: no call is computed in BF16
  std::optional<SparsePass> sparse_;    // rule h2o; none: the session is dense or has the other rule
  std::optional<BlocksPass> blocks_;    // rule blocks
  DensePass dense_;
};

}  // namespace headwater::cpu
