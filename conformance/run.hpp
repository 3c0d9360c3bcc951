#pragma once

#include <cstdint>
#include <memory>
#include <span>
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
  bool lse = false;                       ///< ask attend() for log-sum-exps (LSE-1)
};

/// Copy of a ChunkRecord (headwater/session.hpp), packed: set s of `memory` begins at s * memory_count.
struct ChunkTrace {
  Chunk chunk;
  std::int64_t memory_count = 0;
  std::vector<std::int32_t>
      memory;  ///< [Hq][memory_count]; sets of query blocks: [Hkv][query_blocks][memory_count]
  std::vector<float> colsum_inter;  ///< [Hq][memory_count]
  std::vector<float> colsum_intra;  ///< [Hq][chunk length]; empty for dense and decode chunks
  std::vector<float> lse;           ///< [Hq][chunk length]

  // Sparse chunks of rules `blocks` and `sketches`; else 0 and empty.
  std::int64_t query_block = 0;  ///< rows of a query block
  std::int64_t query_blocks = 0;
  std::int64_t candidate_blocks = 0;
  std::int64_t voted_tokens = 0;
  std::vector<float> block_votes;  ///< [Hkv][query_blocks][candidate_blocks]
  std::vector<float> token_votes;  ///< [Hkv][query_blocks][voted_tokens]

  /// Which set of `memory` the query at a position of the chunk reads; `group` query heads share a key/value head.
  [[nodiscard]] std::int64_t set_of(std::int64_t head, std::int64_t group, std::int64_t position) const {
    if (query_blocks == 0) return head;
    return head / group * query_blocks + (position - chunk.begin) / query_block;
  }
  /// The positions of a set, without the -1 at its end (SKE-8).
  [[nodiscard]] std::span<const std::int32_t> entries(std::int64_t set) const {
    std::span<const std::int32_t> all(memory.data() + set * memory_count,
                                      static_cast<std::size_t>(memory_count));
    while (!all.empty() && all.back() == -1) all = all.first(all.size() - 1);
    return all;
  }
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
  std::vector<float> lse;           ///< [N][Hq], if asked for
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

/// The same for the steps [first, last) of a problem, on a session that holds the tokens of those before.
[[nodiscard]] Trace run_steps(Session& session, const Problem& problem, std::size_t first, std::size_t last,
                              const RunStyle& style = {});
/// What a run of the whole problem said of these steps.
[[nodiscard]] Trace trace_of_steps(const Trace& trace, const Problem& problem, std::size_t first,
                                   std::size_t last);

/// Throws Skipped where the engine refuses rule `blocks` by name: its answer to a session that asks for it is
/// invalid_argument and says "has no other rule". Any other refusal is let through.
void require_rule_blocks(const Engine& engine);
/// The same for rule `sketches`: its answer says "2 (sketches)".
void require_rule_sketches(const Engine& engine);

/// The same for the rule that a case is about; every engine has h2o.
void require_rule(const Engine& engine, Select rule);

/// The same for pinned tokens (MEM-7) under rule h2o: its answer says "pins no tokens".
void require_pinned(const Engine& engine);

/// Opens a session for it.
[[nodiscard]] Trace run(const Engine& engine, const Problem& problem, const RunStyle& style = {});
/// A run that passes require_replay().
[[nodiscard]] Trace replayed(const Engine& engine, const Problem& problem, const RunStyle& style = {});

/// A packed copy of what an observer is handed, `heads` query heads; checks what the record's documentation promises.
/// Sets of query blocks: also the number of key/value heads and the rows of a query block.
[[nodiscard]] ChunkTrace copy_record(const ChunkRecord& record, std::int64_t heads, std::int64_t heads_kv = 0,
                                     std::int64_t query_block = 0);

/// Scores and set of one layer as the session shows them now; checks the views.
[[nodiscard]] Snapshot snapshot(const Session& session, std::int64_t layer);

/// Throws Violation unless the engine refuses to open these with invalid_argument, in one line that names the field and its
/// value.
void require_refused(const Engine& engine, const Shape& shape, const Options& options,
                     const std::string& field, const std::string& value);

/// Throws Violation: what is wrong, and with which problem.
[[noreturn]] void broken(const std::string& what, const Problem& problem);

/// Throws Violation unless both traces have the same bits. `outputs` = false leaves out and lse out. Snapshots, and
/// log-sum-exps that were asked for, are compared where both have them.
void require_same(const Trace& a, const Trace& b, const std::string& what, bool outputs = true);

}  // namespace headwater::conformance
