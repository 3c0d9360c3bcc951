#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands/bench/checked_run.hpp"
#include "headwater/engine.hpp"

/// The suite of Google Benchmark: whole layers, decode steps, and the stages below them.
namespace headwater::bench {

/// One session on one input, as its name in the suite says it.
struct LayerCase {
  std::string engine = "cpu";
  Shape shape;
  Options options;

  /// "engine:cpu/type:BF16/n:4096/chunk:1024/memory:512/heads:4/kv:2/d:128/dv:128/threads:1/layer-major".
  [[nodiscard]] std::string name() const;
};

/// 4096 tokens, 4 query heads over 2 key/value heads, d = 128, S = 1024, L = H = 256, one thread: small enough to be
/// quick, and every head costs the same.
[[nodiscard]] LayerCase base_case(const std::string& engine, DType type);

/// A case whose result has been judged by the oracle, ready for the clock.
struct Prepared {
  Prepared(const LayerCase& from, std::int64_t prefilled, std::int64_t decoded);
  Workload workload;
  AttentionRun run;
};

/// The prepared cases that were used last, as many as a few gigabytes hold; a case is judged once, when it is made.
/// Throws what Prepared throws: headwater::Error, conformance::Violation.
Prepared& prepared(const LayerCase& wanted, std::int64_t prefilled, std::int64_t decoded);

/// Names of the engines that run here, the reference left out: it is not meant to be fast.
[[nodiscard]] std::vector<std::string> engine_names();

/// Each adds its benchmarks. `full` adds the long contexts and wide sweeps.
void register_layers(bool full);
void register_decode(bool full);
void register_sessions();
void register_stages();
void register_kernels();
void register_bf16_kernels();
void register_chunks();
/// Where the model runtime is built.
void register_rows();
void register_projections();

}  // namespace headwater::bench
