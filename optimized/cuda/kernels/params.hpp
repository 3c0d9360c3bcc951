#pragma once

#include <cstdint>

#include "cuda/kernels/platform/global.hpp"
#include "headwater/dtype.hpp"

/// Parameters of the kernels. Pointers are the device's; strides are elements; positions are global.
namespace headwater::cuda {

/// Rows handed in by a caller: row t of head h begins t * row_stride + h * head_stride elements after data.
struct InputRows {
  Global<const void> data;
  std::int64_t row_stride;
  std::int64_t head_stride;
  DType type;
  bool vectors;  ///< every row begins at a multiple of 16 bytes
};

struct OutputRows {
  Global<void> data;
  std::int64_t row_stride;
  std::int64_t head_stride;
  DType type;
};

/// Stored or gathered rows [heads][rows][width], the width padded with zeros to a multiple of 16 bytes.
struct StoredRows {
  Global<const void> data;
  std::int64_t head_stride;
  DType type;
  int width;  ///< elements from one row to the next
};

/// LOGIT-1..4 in units of ln 2: a weight is exp2 of a difference of logits.
struct LogitRule {
  float factor;                ///< scale * log2(e), or scale / cap where there is a cap
  float cap;                   ///< cap * log2(e); 0: none
  Global<const float> slopes;  ///< [Hq] ALiBi slopes * log2(e), or null
  Global<const float> sinks;   ///< [Hq] sinks * log2(e), or null
};

/// m (in units of ln 2), l and the output of query rows before its division: index
/// (part * heads + head) * stride + position - base.
struct SoftmaxState {
  Global<float> max;
  Global<float> sum;
  Global<float> rounded;  ///< sum of the weights as the output saw them: it divides the output; or null
  Global<float> out;      ///< [...][dv], or null
  std::int64_t stride;
  std::int64_t base;
};

/// Which keys a query sees.
enum class KeyRange : std::uint8_t {
  chunk = 0,   ///< those of its own chunk up to itself (MASK-1)
  all = 1,     ///< everything stored up to itself (DEC-1)
  memory = 2,  ///< every entry of its head's memory set (INTER-1)
};

/// Query positions [begin, end), cut into chunks of `chunk` from begin; where rows and keys stand.
struct PassGeometry {
  std::int64_t base;  ///< position of row 0 of q and out
  std::int64_t begin;
  std::int64_t end;
  std::int64_t chunk;
  KeyRange range;
  int heads;                             ///< Hq
  int group;                             ///< query heads that share a head of the key rows
  int memory;                            ///< entries of a memory set
  Global<const std::int32_t> positions;  ///< [Hq][positions_stride] of the memory entries
  std::int64_t positions_stride;
};

/// Query blocks of a window's chunks that have a memory, `count` for each key/value head (SEL-4): per_chunk for every chunk,
/// of which a short one uses the first. Set: what query block b and key/value head h choose, number h * count + b.
struct QueryBlocks {
  std::int64_t base;   ///< position of row 0 of q
  std::int64_t begin;  ///< of the first chunk
  std::int64_t end;    ///< after the last one
  std::int64_t chunk;
  std::int64_t local;         ///< L
  std::int64_t heavy;         ///< H
  std::int64_t most_kept;     ///< R H / K
  std::int64_t most_regions;  ///< G of SEL-12
  int key_block;              ///< K
  int rows;                   ///< Q
  int per_chunk;
  int count;
  bool refines;  ///< R > 1
};

/// What is voted on.
enum class VoteKind : std::uint8_t {
  regions = 0,  ///< SEL-12
  blocks = 1,   ///< SEL-6
  tokens = 2,   ///< SEL-7
};

struct StoreRowsParams {
  InputRows k;
  InputRows v;
  Global<void> keys;    ///< [Hkv][capacity][key_width] of the layer
  Global<void> values;  ///< [Hkv][capacity][value_width]
  Global<void> scores;  ///< [Hq][capacity], score_bytes each: the new tokens' become 0 (SCORE-1)
  int score_bytes;
  DType type;
  int d;
  int dv;
  int key_width;
  int value_width;
  int heads;
  int heads_kv;
  std::int64_t capacity;
  std::int64_t position;  ///< of row 0
  int n;
};

/// SEL-3 of key blocks [first, last), which the rows that were just stored complete, and SEL-12 of the regions that these
/// complete. Grid x: regions that are touched * key/value heads.
struct SummariseParams {
  StoredRows keys;
  Global<void>
      blocks;  ///< [Hkv][blocks_stride] elements: rows of `width`, d means, the variances of the groups, zeros
  Global<void> regions;
  std::int64_t blocks_stride;
  std::int64_t regions_stride;
  DType type;
  int width;
  int d;
  int heads_kv;
  int key_block;
  int first;
  int last;
};

/// SEL-4, the queries of pools and half pools. Grid x, here and in the next two: sets.
struct PoolParams {
  QueryBlocks at;
  InputRows q;
  int d;
  int group;  ///< query heads of a key/value head
  int pool;   ///< P
  int half;   ///< rows of a half pool
  float scale;
  DType type;  ///< of both
  Global<void>
      pooled;  ///< [sets][pools * group][width]: scaled means, half the squares' sums of the groups, zeros
  Global<void> halves;  ///< [sets][half pools * group][half_width]: means, zeros; or null
  std::int64_t stride;  ///< elements of a set
  std::int64_t half_stride;
  int width;
  int half_width;
};

struct VoteParams {
  QueryBlocks at;
  VoteKind kind;
  StoredRows queries;  ///< of pools or half pools, a set's as if they were a head's
  StoredRows keys;     ///< summaries or stored keys
  LogitRule rule;      ///< of tokens in units of ln 2, else as it is
  int columns;         ///< of a row that are multiplied
  int group;
  int pool;  ///< rows of a pool
  Global<const std::int32_t>
      listed;  ///< [sets][listed_stride] regions that are searched, or blocks that are kept
  std::int64_t listed_stride;
  Global<float> votes;  ///< [sets][votes_stride]
  std::int64_t votes_stride;
};

/// The best by their votes (MEM-3, MEM-7): of regions or blocks their numbers, at last the set (SEL-8).
struct ChooseParams {
  QueryBlocks at;
  VoteKind kind;
  Global<const float> votes;
  std::int64_t votes_stride;
  Global<const std::int32_t> listed;  ///< tokens: blocks that are kept
  std::int64_t listed_stride;
  Global<std::int32_t> chosen;  ///< [sets][chosen_stride]
  std::int64_t chosen_stride;
  std::int64_t pinned;  ///< first ones that are kept, whatever their votes
};

/// Grid: heads (packed: key/value heads) x row tiles x (chunks or splits) * value slices; of chosen keys
/// (row tiles * sets) x 1 x value slices.
struct ForwardParams {
  InputRows q;
  StoredRows keys;
  StoredRows values;
  LogitRule rule;
  PassGeometry at;
  int d;
  int dv;
  int value_slices;         ///< grid z = (chunk or split) * value_slices + slice
  int rows_per_token;       ///< 1, or `group` where the query heads of a key/value head are rows of one tile
  std::int64_t split_keys;  ///< keys of a split, a multiple of the key tile; 0: not split
  OutputRows out;           ///< data null: only the state is written
  Global<float> lse;        ///< [Hq][lse_stride] of finished rows, natural logarithm; or null
  std::int64_t lse_stride;
  SoftmaxState
      state;  ///< written: by rows whose softmax goes on elsewhere (out not null), of all rows max and sum
  SoftmaxState fused;  ///< max not null: joined with the own softmax (FUSE-1)
  QueryBlocks blocks;  ///< of chosen keys, whose positions are at.positions by set
};

struct CombineParams {
  SoftmaxState parts;
  int splits;
  int heads;
  int dv;
  std::int64_t base;  ///< position of row 0 of out
  std::int64_t begin;
  std::int64_t end;
  OutputRows out;
  Global<float> lse;
  std::int64_t lse_stride;
};

/// Grid: heads x key tiles x chunks.
struct ColumnSumsParams {
  InputRows q;
  StoredRows keys;
  LogitRule rule;
  PassGeometry at;
  SoftmaxState state;  ///< m and l of the pass whose columns are summed
  int d;
  Global<float>
      sums;  ///< [Hq][sums_stride]: by position - sums_base in the intra pass, by entry in the inter pass
  std::int64_t sums_stride;
  std::int64_t sums_base;
  Global<void> scores;  ///< [Hq][capacity] of the layer
  bool scores_bf16;
  std::int64_t capacity;
};

struct ScoreSumsParams {
  Global<const float> partial_sums;  ///< [Hq][runs][partial_stride]
  std::int64_t partial_stride;
  int runs;
  int count;                             ///< memory keys
  Global<const std::int32_t> positions;  ///< [Hq][positions_stride]
  std::int64_t positions_stride;
  Global<float> sums;  ///< [Hq][sums_stride]
  std::int64_t sums_stride;
  Global<void> scores;  ///< [Hq][capacity] of the layer
  bool scores_bf16;
  std::int64_t capacity;
};

/// MEM-1..4 for all heads of a layer; grid x: heads.
struct SelectParams {
  Global<std::int32_t> sets;     ///< [Hq][width]: in: the previous set, out: the new one
  Global<std::int32_t> scratch;  ///< [Hq][width]
  Global<const void> scores;     ///< [Hq][capacity]
  bool scores_bf16;
  std::int64_t capacity;
  int width;
  int kept;   ///< entries of the previous set before Local: the first candidates
  int since;  ///< position of the candidates after them
  int candidates;
  int pinned;       ///< first candidates that are kept, whatever their scores (MEM-7)
  int heavy;        ///< of the new set
  int local_begin;  ///< Local is [local_begin, end)
  int end;
};

/// Rows of the memory sets; grid: heads x entry tiles, which go on in steps of the grid.
struct GatherParams {
  StoredRows keys;
  StoredRows values;
  Global<void> gathered_keys;               ///< [Hq][entries][key width]
  Global<void> gathered_values;             ///< [Hq][entries][value width]
  Global<std::int32_t> gathered_positions;  ///< [Hq][entries]
  Global<const std::int32_t> positions;     ///< [Hq][positions_stride]
  std::int64_t positions_stride;
  std::int64_t entries;  ///< rows of a head in the gathered arrays
  int count;             ///< valid entries
  int group;
  int element_bytes;
};

}  // namespace headwater::cuda
