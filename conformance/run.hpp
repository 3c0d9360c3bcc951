#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "conformance/placed.hpp"
#include "conformance/problem.hpp"
#include "headwater/engine.hpp"

namespace headwater::conformance {

struct RunStyle {
  Placement placement = Placement::token_major;
  std::vector<std::int64_t> layer_order;  ///< order of attend() inside a step; empty: ascending
  bool snapshots = true;                  ///< copy scores and memory sets after every step
  bool observed = true;                   ///< else the trace has no chunks
};

/// Copy of a ChunkRecord (headwater/session.hpp), packed: head h of `memory` begins at h * memory_count.
struct ChunkTrace {
  Chunk chunk;
  std::int64_t memory_count = 0;
  std::vector<std::int32_t> memory;  ///< [Hq][memory_count]
  std::vector<float> colsum_inter;   ///< [Hq][memory_count]
  std::vector<float> colsum_intra;   ///< [Hq][chunk length]; empty for dense and decode chunks
  std::vector<float> lse;            ///< [Hq][chunk length]

  [[nodiscard]] std::int64_t length() const { return chunk.end - chunk.begin; }
};

/// Scores and memory set of one layer after a step.
struct Snapshot {
  std::vector<std::uint32_t> scores;  ///< [Hq][tokens], bit patterns of 16 or 32 bits
  std::vector<std::int32_t> memory;   ///< [Hq][memory_count]
  std::int64_t memory_count = 0;
};

struct LayerTrace {
  std::vector<float> out;           ///< [N][Hq][dv], widened
  std::vector<ChunkTrace> chunks;   ///< of all steps, in order
  std::vector<Snapshot> snapshots;  ///< one per step, if asked for
};

/// Everything that a run said.
struct Trace {
  std::vector<std::vector<Chunk>> plans;  ///< one per step
  std::vector<LayerTrace> layers;
};

/// Takes all steps of a problem on an empty session. Checks on the way what every run must obey: records and views
/// are well-formed, outputs are fully written, inputs and gaps are not. Throws Violation.
[[nodiscard]] Trace run(Session& session, const Problem& problem, const RunStyle& style = {});

/// Opens a session for it.
[[nodiscard]] Trace run(const Engine& engine, const Problem& problem, const RunStyle& style = {});

/// A packed copy of what an observer is handed, `heads` query heads; checks what the record's documentation promises.
[[nodiscard]] ChunkTrace copy_record(const ChunkRecord& record, std::int64_t heads);

/// Scores and set of one layer as the session shows them now; checks the views.
[[nodiscard]] Snapshot snapshot(const Session& session, std::int64_t layer);

/// Throws Violation unless both traces have the same bits. `outputs` = false leaves out and lse out.
void require_same(const Trace& a, const Trace& b, const std::string& what, bool outputs = true);

}  // namespace headwater::conformance
