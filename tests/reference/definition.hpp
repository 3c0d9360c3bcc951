#pragma once

#include <cstdint>
#include <vector>

#include "headwater/options.hpp"
#include "headwater/session.hpp"

/// The whole spec once more, as one definition of what each token sees, written apart from the reference: no
/// passes, no running softmax, no fusion, no state. One layer.
namespace headwater::reference::test {

/// What goes in, as the values that are read: k and v already rounded to the KV type. All token-major.
struct Inputs {
  std::int64_t n = 0;
  std::int64_t n_head = 1, n_head_kv = 1, d_head = 1, d_value = 1;
  std::vector<double> q;  ///< [n][n_head][d_head]
  std::vector<double> k;  ///< [n][n_head_kv][d_head]
  std::vector<double> v;  ///< [n][n_head_kv][d_value]
};

/// The effective options in plain numbers.
struct Settings {
  std::int64_t batch = 1, chunk = 1, local = 0, heavy = 0;
  double scale = 1.0, softcap = 0.0;
  std::vector<float> sinks, alibi;  ///< empty or one per query head
  bool bf16_scores = true;
  bool blocks = false;  ///< chapter 17, with the sizes below
  std::int64_t key_block = 1, query_block = 1, pool = 1, refine = 1;
  std::int64_t pinned = 0;       ///< MEM-7
  std::int64_t dense_below = 0;  ///< STATE-3
  bool dense_layer = false;      ///< STATE-7
};

/// The set of one key/value head and query block, and its votes (SEL-6 .. SEL-8).
struct DefinedSet {
  std::vector<float> block_votes;  ///< one per candidate
  std::vector<float> token_votes;  ///< one per token of the second stage
  std::vector<std::int32_t> positions;
};

/// What one chunk of one query head read and how it was looked at.
struct DefinedChunk {
  std::int64_t begin = 0, end = 0;
  ChunkMode mode = ChunkMode::sparse;
  std::vector<std::vector<std::int32_t>> memory;  ///< per query head
  std::vector<std::vector<float>> colsum_inter;   ///< per query head, one per entry
  std::vector<std::vector<float>> colsum_intra;   ///< per query head, one per token; empty unless sparse
  std::vector<DefinedSet> sets;                   ///< rule `blocks`: per key/value head, per query block
};

struct Defined {
  std::vector<DefinedChunk> chunks;
  std::vector<double> out;    ///< [n][n_head][d_value]
  std::vector<double> lse;    ///< [n][n_head]
  std::vector<float> scores;  ///< [n_head][n]
};

/// SEL-2 .. SEL-8, SEL-12: the set of the rows [first, end), one query block of a chunk that begins at `begin`.
DefinedSet define_set(const Inputs& inputs, const Settings& settings, std::int64_t begin, std::int64_t first,
                      std::int64_t end, std::int64_t kv_head);

/// PLAN-1, PLAN-2, STATE-3, STATE-7: the chunks, with nothing in them.
std::vector<DefinedChunk> define_chunks(const Settings& settings, const std::vector<Step>& steps);

Defined define(const Inputs& inputs, const Settings& settings, const std::vector<Step>& steps);

}  // namespace headwater::reference::test
