#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "headwater/dtype.hpp"

namespace headwater {

/// Sizes of a session. Engine::open checks all of them (CFG-1); the upper limits are those of the 32-bit positions of
/// a memory set and of allocations, and every error names them.
struct Shape {
  std::int64_t n_layer = 1;    ///< layers, 1 .. 65536
  std::int64_t n_head = 1;     ///< Hq, query heads, 1 .. 65536
  std::int64_t n_head_kv = 1;  ///< Hkv, key/value heads; divides n_head
  std::int64_t d_head = 64;    ///< d, width of a query or key row, 1 .. 65536
  std::int64_t d_value = 64;   ///< dv, width of a value row, 1 .. 65536
  std::int64_t capacity = 0;   ///< most tokens that a session can hold, 1 .. 2^31 - 1
  DType kv_type = DType::f32;  ///< type of the stored K and V rows (STATE-6)
};

/// SCHED-1 and SCHED-2. Both give the same bits inside every engine that claims it.
enum class Schedule : std::uint8_t { layer_major = 0, chunk_major = 1 };

/// Storage of the heavy-hitter scores (SCORE-1, SCORE-5).
enum class ScoreType : std::uint8_t { bf16 = 0, f32 = 1 };

/// Which tokens a memory set holds.
enum class Select : std::uint8_t {
  h2o = 0,     ///< MEM: the newest tokens and those with the largest accumulated column sums, a set per chunk
  blocks = 1,  ///< SEL: the newest tokens and those that the queries of a query block vote for
  sketches = 2,  ///< SKE: the newest tokens and those that single queries vote for, while they have weight
};

/// Who keeps the K and V rows of a session.
enum class KvOwner : std::uint8_t {
  session = 0,  ///< the session: attend() is given those of the step and stores them
  caller = 1,   ///< the caller: attend_stored() is given those of all tokens, in his memory (ROWS-1)
};

/// What one layer has of its own (LAYER-1). What is not said is the session's.
struct LayerOptions {
  /// w, keys that a token sees, itself among them (MASK-2), 1 .. 2^31 - 1; 0: all. A layer with a window is never sparse.
  std::int64_t window = 0;
  std::optional<double> scale{};              ///< LOGIT-1
  std::optional<double> softcap{};            ///< LOGIT-2
  std::optional<std::vector<float>> sinks{};  ///< LOGIT-4; as Options::sinks, empty: the layer has none
  std::int64_t d_head = 0;                    ///< width of a query or key row, 1 .. 65536; 0: the shape's
  std::int64_t d_value = 0;                   ///< width of a value row, 1 .. 65536; 0: the shape's
};

/// The shape of one layer: the session's, with the layer's own widths. `layers`: of options, or effective ones.
[[nodiscard]] inline Shape shape_of_layer(Shape shape, const std::vector<LayerOptions>& layers,
                                          std::int64_t layer) {
  if (layers.empty()) return shape;
  const LayerOptions& own = layers[static_cast<std::size_t>(layer)];
  if (own.d_head > 0) shape.d_head = own.d_head;
  if (own.d_value > 0) shape.d_value = own.d_value;
  return shape;
}

/// Memory of the rows that are given to attend().
enum class RowMemory : std::uint8_t {
  host = 0,
  device = 1,  ///< the engine's device's; an engine that has none refuses it
};

/// Threads of the host (HOST-1): calls body(argument, index) once for each index 0 .. n - 1, on threads of its choice, at
/// once or one after the other, and returns when all of them have returned. n is at most the session's threads. The bodies
/// throw nothing and never wait for each other.
using ParallelFor = void (*)(void* context, std::int64_t n, void (*body)(void* argument, std::int64_t index),
                             void* argument);

/// Memory of the host (HOST-2) for the large blocks of a session and of its forks: rows, scores, memory sets, working
/// memory, lists of chunks; all that MemoryBytes counts. Both functions or none.
///
/// allocate() returns `bytes` bytes, at least 1, on a multiple of `alignment`, which is 64 now and always a power of two;
/// what is in them does not matter. Null: out of memory; the call that needed it says so and leaves the session as it was.
/// release() is given each block once, with the same numbers. Called by open(), by the calls that take memory (begin,
/// truncate, reset, exchange_state) and by those that close a session, on their threads: several at a time where forks
/// are on several threads. Neither throws, nor calls the session. Both, and the context, outlive session and forks.
struct Allocator {
  void* (*allocate)(void* context, std::size_t bytes, std::size_t alignment) = nullptr;
  void (*release)(void* context, void* block, std::size_t bytes, std::size_t alignment) = nullptr;
  void* context = nullptr;  ///< handed back to them
};

/// Options of a session. See EffectiveOptions for what is used after CFG-2, CFG-3 and CFG-4.
struct Options {
  std::int64_t batch = 4096;  ///< B, logical batch, 1 .. 2^31 - 1 (`-b`)
  std::int64_t chunk =
      1024;                  ///< S, tokens with full causal attention among themselves, 1 .. 2^31 - 1 (`-ub`)
  std::int64_t local = 256;  ///< L, newest tokens always in the memory set, 0 .. 2^31 - 1 (`--h2o-local`)
  std::int64_t heavy =
      256;                  ///< H, tokens kept because of their score or votes, 0 .. 2^31 - 1 (`--h2o-heavy`)
  bool clamp = true;        ///< CFG-3; false is `--h2o-no-clamp`: then local + heavy <= 2^31 - 1
  bool dense = false;       ///< CFG-2: same as local = heavy = 0
  std::int64_t pinned = 0;  ///< A, first tokens kept among the heavy ones (MEM-7), 0 .. H (`--pinned`)
  std::int64_t dense_below = 0;  ///< D, shorter turns are dense (STATE-3), 0 .. 2^31 - 1 (`--dense-below`)
  /// Layers whose prefill is dense (STATE-7): ascending, each once, 0 .. n_layer - 1 (`--dense-layers`)
  std::vector<std::int64_t> dense_layers;
  std::vector<LayerOptions> layers;  ///< LAYER-1: empty, or one for each layer

  /// Rule h2o: how many of the last sparse chunks truncate() can take back (STATE-10), 0 .. 65536. Each costs
  /// 12 bytes (F32 scores: 16) an entry of every memory set: 6 MB with 32 layers, 32 query heads, M = 512.
  std::int64_t checkpoints = 0;

  KvOwner kv_owner = KvOwner::session;
  /// Tokens of a page of the session's own rows, a multiple of 256, 256 .. 2^31 - 256. begin() takes pages as
  /// tokens come. A page holds all layers; what is not yet filled of it is not touched.
  std::int64_t page = 4096;

  /// Bits of an element of the session's own rows: 0, those of the KV type; 8: integers with a scale for 32 elements, about
  /// half the memory of 16-bit rows; then d and dv of every layer are multiples of 32 (STATE-13)
  std::int64_t kv_bits = 0;

  Select select = Select::h2o;
  // Sizes of rule `blocks` (SEL-1); not read with any other.
  std::int64_t key_block = 8;     ///< K, keys of a key block, 1 .. 256 and at most S; divides H
  std::int64_t query_block = 32;  ///< Q, rows of a query block, 1 .. S; of rule `sketches`, too
  std::int64_t pool = 4;          ///< P, rows of a pool, half as many for tokens (SEL-4); divides Q
  std::int64_t refine = 2;        ///< R, 1: blocks alone; 2 .. 16: tokens of R times as many blocks (SEL-7)

  /// W, least weight of a token that a set takes, relative to what its row has without it, 0 <= W < 1 (SKE-7); not read
  /// with any rule but `sketches`.
  double least_weight = 0.0005;

  std::optional<double> scale;  ///< LOGIT-1; default 1/sqrt(d); finite
  double softcap = 0.0;         ///< LOGIT-2; 0 is none; finite, >= 0
  std::vector<float> sinks;     ///< LOGIT-4; empty or n_head values, each finite or -inf
  std::vector<float> alibi;     ///< LOGIT-3; empty or n_head finite slopes

  ScoreType score_type = ScoreType::bf16;
  Schedule schedule = Schedule::layer_major;
  int threads = 0;  ///< 0: what OpenMP would use (all cores, or OMP_NUM_THREADS); else 1 .. 512
  /// Threads of the host in place of OpenMP's (HOST-1); null: OpenMP's. The context is handed back to it. Both must
  /// outlive the session. Engines that compute on the calling thread, or on a device, never call it.
  ParallelFor parallel_for = nullptr;
  void* parallel_context = nullptr;

  Allocator allocator{};  ///< no functions: the library's own memory

  RowMemory row_memory = RowMemory::host;  ///< of q, k, v and out in every attend() of the session
  /// Device rows: the caller's stream (a cudaStream_t of the session's device; null: its default one), where the session
  /// enqueues its work. It must outlive the session. Host rows: null. While it is being captured (cudaStreamBeginCapture),
  /// open(), attend(), reset() and the inspection functions are invalid_argument, enqueue nothing and leave session and
  /// capture as they were; the session must not be destroyed then.
  void* stream = nullptr;
  /// Which device, by its ordinal, 0 .. devices of the machine - 1; none: the calling thread's current one when the session
  /// is opened. No call of a session changes the current device. Engines without devices: none.
  std::optional<int> device;
};

/// The options after CFG-2 (sparse path off), CFG-3 (clamp) and CFG-4 (B >= S). batch, chunk, local and heavy
/// are what an `attend` output calls "effective".
struct EffectiveOptions {
  std::int64_t batch = 0;
  std::int64_t chunk = 0;
  std::int64_t local = 0;
  std::int64_t heavy = 0;
  bool sparse = false;  ///< local + heavy > 0
  Select select = Select::h2o;
  std::int64_t key_block = 0;  ///< this and the next three: 0 with rule h2o
  std::int64_t query_block = 0;
  std::int64_t pool = 0;
  std::int64_t refine = 0;
  double least_weight = 0.0;  ///< 0 with other rules than `sketches`
  std::int64_t pinned = 0;
  std::int64_t dense_below = 0;
  std::vector<std::int64_t> dense_layers;
  std::vector<LayerOptions> layers;  ///< scale is said where it follows from the layer's own d_head (LOGIT-1)
  std::int64_t checkpoints = 0;      ///< 0 unless the session is sparse by rule h2o
  KvOwner kv_owner = KvOwner::session;
  std::int64_t page = 0;
  std::int64_t kv_bits = 0;
  double scale = 0.0;
  double softcap = 0.0;
  ScoreType score_type = ScoreType::bf16;
  Schedule schedule = Schedule::layer_major;
  int threads = 1;
  std::vector<std::string> warnings;  ///< one line each, without a "warning:" prefix (CFG-3, CFG-4)

  /// MASK-2: keys that a token of the layer sees; 0: all.
  [[nodiscard]] std::int64_t window(std::int64_t layer) const {
    return layers.empty() ? 0 : layers[static_cast<std::size_t>(layer)].window;
  }
  /// LOGIT-1 and LOGIT-2 of the layer.
  [[nodiscard]] double scale_of(std::int64_t layer) const {
    return layers.empty() ? scale : layers[static_cast<std::size_t>(layer)].scale.value_or(scale);
  }
  [[nodiscard]] double softcap_of(std::int64_t layer) const {
    return layers.empty() ? softcap : layers[static_cast<std::size_t>(layer)].softcap.value_or(softcap);
  }
  /// Sizes of the layer, of a session of this shape.
  [[nodiscard]] Shape shape_of(const Shape& shape, std::int64_t layer) const {
    return shape_of_layer(shape, layers, layer);
  }
  /// Whether the layer's prefill is never sparse (STATE-7, MASK-2).
  [[nodiscard]] bool dense_layer(std::int64_t layer) const {
    return window(layer) > 0 || std::binary_search(dense_layers.begin(), dense_layers.end(), layer);
  }

  /// STATE-3: whether a turn of so many tokens is sparse. `first`: of an empty session; later ones of at most a chunk are
  /// dense.
  [[nodiscard]] bool sparse_turn(std::int64_t length, bool first) const {
    return sparse && length >= dense_below && (first || length > chunk);
  }

  /// M, the trailing dimension of a memory set.
  [[nodiscard]] std::int64_t memory() const { return local + heavy; }

  // Of the sets that a chunk reads whose first position is `begin`.

  /// First position of Local (MEM-1, SEL-2).
  [[nodiscard]] std::int64_t local_begin(std::int64_t begin) const {
    const std::int64_t first = std::max<std::int64_t>(0, begin - local);
    if (select != Select::blocks) return first;
    return std::min(begin, (first + key_block - 1) / key_block * key_block);
  }
  /// Key blocks that are voted on (SEL-2); 0 with rule h2o.
  [[nodiscard]] std::int64_t candidate_blocks(std::int64_t begin) const {
    return select == Select::blocks && heavy > 0 ? local_begin(begin) / key_block : 0;
  }
  /// Tokens that are voted on one by one (SEL-7, SKE-2); 0 where there are none, or no second stage.
  [[nodiscard]] std::int64_t voted_tokens(std::int64_t begin) const {
    if (select == Select::sketches)
      return heavy > 0 ? std::max<std::int64_t>(0, local_begin(begin) - pinned) : 0;
    if (refine < 2) return 0;
    const std::int64_t tokens = std::min(refine * heavy, candidate_blocks(begin) * key_block);
    return tokens > heavy ? tokens : 0;
  }
  /// Entries of each set (MEM-4, SEL-8); the most of a set with rule `sketches` (SKE-8).
  [[nodiscard]] std::int64_t memory_count(std::int64_t begin) const {
    if (select == Select::h2o) return std::min(memory(), begin);
    if (select == Select::sketches) {
      return begin - local_begin(begin) + std::min(pinned, local_begin(begin)) +
             std::min(heavy - pinned, voted_tokens(begin));
    }
    return begin - local_begin(begin) + std::min(heavy, candidate_blocks(begin) * key_block);
  }
  /// Sets of a chunk of `rows` tokens and a key/value head (SEL-4); 0 with rule h2o.
  [[nodiscard]] std::int64_t query_blocks(std::int64_t rows) const {
    return select == Select::h2o ? 0 : (rows + query_block - 1) / query_block;
  }
};

}  // namespace headwater
