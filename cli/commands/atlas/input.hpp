#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/support/mapped_file.hpp"

namespace headwater::cli {

/// What an `attend` output tells about the chosen query heads, or a run of a model about those of the chosen layers. Heads
/// are counted 0 .. H-1 below; head_numbers[h] is the head's number in the file, or layer * heads_in_layer + head. With
/// rules `blocks` and `sketches` a "chunk" below is a query block (or a dense or decode chunk), and a head a key/value
/// head: `rows` says so.
struct AtlasTrace {
  /// A query block among the rows of the atlas.
  struct Row {
    std::int64_t chunk_begin;  ///< of the chunk that it is a part of
    std::int64_t local_begin;  ///< of the sets that its chunk reads (SEL-2)
    bool dense;                ///< a dense or decode chunk
  };
  std::int64_t n = 0;       ///< tokens
  std::int64_t memory = 0;  ///< M, places of a memory set
  std::int64_t local = 0;   ///< L, newest tokens of a memory set (MEM-1)
  std::int64_t heads_in_file = 0;
  std::int64_t heads_in_layer = 0;         ///< of a model; 0: an `attend` output, which knows no layers
  bool narrow_scores = true;               ///< scores are BF16; the floats hold the exact values
  std::vector<std::int64_t> chunk_start;   ///< [C + 1], ascending from 0 to n
  std::vector<std::int64_t> head_numbers;  ///< [H], ascending
  std::vector<std::int32_t> positions;     ///< set after set [C][H], strictly ascending, without empty places
  std::vector<float> colsum_inter;         ///< beside `positions` (INTER-2); empty without scores
  std::vector<std::int64_t> set_start;     ///< [C * H + 1]
  std::vector<float> scores;               ///< [H][n], finite and >= 0
  std::vector<Row> rows;                   ///< [C] with these rules; else empty
  std::vector<bool> dense_heads;           ///< [H] those of dense layers (STATE-7); empty: none
  std::vector<std::pair<std::string, std::string>> facts;  ///< engine, isa, batch, ... as the file says them

  std::vector<std::string> tokens;  ///< [n] the text of each; empty: not known

  /// "3", or "2.3" for head 3 of layer 2.
  [[nodiscard]] std::string head_name(std::int64_t head) const;
  [[nodiscard]] std::int64_t chunks() const { return static_cast<std::int64_t>(chunk_start.size()) - 1; }
  [[nodiscard]] std::int64_t heads() const { return static_cast<std::int64_t>(head_numbers.size()); }
  [[nodiscard]] std::int64_t begin(std::int64_t chunk) const {
    return chunk_start[static_cast<std::size_t>(chunk)];
  }
  [[nodiscard]] std::int64_t end(std::int64_t chunk) const { return begin(chunk + 1); }
  /// The set that the chunk read, ascending. Empty: the first chunk, or dense attention over everything before.
  [[nodiscard]] std::span<const std::int32_t> set(std::int64_t chunk, std::int64_t head) const {
    const auto at = static_cast<std::size_t>(chunk * heads() + head);
    const auto from = static_cast<std::size_t>(set_start[at]);
    return std::span(positions).subspan(from, static_cast<std::size_t>(set_start[at + 1]) - from);
  }
  [[nodiscard]] bool by_query_block() const { return !rows.empty(); }
  /// What a row of the atlas is, and a head.
  [[nodiscard]] const char* row_name() const { return by_query_block() ? "query block" : "chunk"; }
  [[nodiscard]] const char* head_kind() const { return by_query_block() ? "key/value head" : "query head"; }
  /// First position that the row's queries see as their own chunk.
  [[nodiscard]] std::int64_t own_begin(std::int64_t chunk) const {
    return by_query_block() ? rows[static_cast<std::size_t>(chunk)].chunk_begin : begin(chunk);
  }
  /// First position of the chunk's local window: what a set holds from here on is local, the rest heavy.
  [[nodiscard]] std::int64_t local_begin(std::int64_t chunk) const {
    if (by_query_block()) return rows[static_cast<std::size_t>(chunk)].local_begin;
    return begin(chunk) > local ? begin(chunk) - local : 0;
  }
  [[nodiscard]] bool dense(std::int64_t chunk, std::int64_t head) const {
    if (own_begin(chunk) == 0) return false;
    if (by_query_block()) return rows[static_cast<std::size_t>(chunk)].dense || dense_layer(head);
    return set(chunk, head).empty();
  }
  /// Whether the head is one of a dense layer.
  [[nodiscard]] bool dense_layer(std::int64_t head) const {
    return !dense_heads.empty() && dense_heads[static_cast<std::size_t>(head)];
  }
};

/// Reads and checks the tensors scores, chunk_start, memory and colsum_inter, or query_blocks and block_sets in place of the
/// last two, and the metadata of `file`. `heads`: which
/// heads, ascending; empty means all. Allocates in proportion to the file. Failure naming the file, the tensor,
/// the value and what is allowed otherwise.
[[nodiscard]] AtlasTrace read_atlas_trace(const runtime::MappedFile& file,
                                          const std::vector<std::int64_t>& heads);

}  // namespace headwater::cli
