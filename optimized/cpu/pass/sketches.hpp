#pragma once

#include <cstdint>
#include <vector>

#include "core/buffer.hpp"
#include "cpu/kernels/sketch_table.hpp"
#include "cpu/layer.hpp"
#include "cpu/pass/row_blocks.hpp"

namespace headwater::cpu {

/// Sparse prefill whose memory sets every row votes on, by sketches of the keys (SKE). The rows of a query block first attend
/// their own keys and the fixed part of their set: that gives their own weights. Then they vote, then they attend the chosen
/// tokens, and both results are joined (FUSE-1). Chunks and heads are dealt out as in BlocksPass; one query block of one
/// key/value head is a unit of work, and so both schedules and every number of threads give the same bits (SCHED-2, NUM-3).
class SketchesPass {
 public:
  /// Of a session with rule sketches whose options are sparse. `integer_kernels`: Variant::sketches().
  SketchesPass(SessionData& data, const SketchTable* integer_kernels);

  /// Of working memory; set_bytes() of the sets and votes of a chunk.
  [[nodiscard]] std::int64_t bytes() const;
  [[nodiscard]] std::int64_t set_bytes() const;
  [[nodiscard]] double selection_seconds() const;

  void forget();
  /// All chunks of the call.
  void run(const LayerCall& call);

 private:
  /// What a chunk has before it (SKE-2): pinned tokens [0, pinned), candidates, Local [local, chunk.begin).
  struct Past {
    std::int64_t query_blocks;
    std::int64_t pinned;
    std::int64_t candidates;
    std::int64_t local;
  };
  /// The rows of a query block of one query head that vote: they have a sketch and a finite own weight.
  struct Voters {
    std::int64_t head;
    std::int64_t begin;  ///< among all that vote
    std::int64_t end;
  };
  /// Working memory of one thread.
  struct Scratch {
    Scratch(const SessionData& data, std::int64_t rows, std::int64_t row_blocks);
    [[nodiscard]] std::int64_t bytes() const;

    // Of the row blocks of a query block, head after head.
    core::Buffer<float> out;  ///< [row blocks][kBlockRows][dv] outputs of the first pass
    core::Buffer<float> max;  ///< [row blocks][kBlockRows] its BlockResult
    core::Buffer<float> sum;
    // Of the rows that vote.
    core::Buffer<float> integers;            ///< [rows, at least kBlockRows][width], or of some keys
    core::Buffer<std::uint8_t> query_bytes;  ///< SketchedRows::bytes
    core::Buffer<float> factor;              ///< scale times unit
    core::Buffer<float> offset;              ///< own weight
    core::Buffer<std::int32_t> positions;    ///< of the rows
    core::Buffer<float> block;               ///< [rows][kBlockRows] products with a tile of keys
    std::vector<Voters> voters;              ///< of each head
    core::Buffer<float> votes;               ///< [candidates, whole tiles]
    core::Buffer<std::int32_t> eligible;     ///< candidates whose votes are enough (SKE-7)
    core::Buffer<std::uint32_t> order_keys;  ///< of their votes
    core::Buffer<std::int32_t> fixed;        ///< positions of the fixed part
    double selection_seconds = 0;            ///< StageSeconds, of this thread
  };

  [[nodiscard]] Past past_of(const Chunk& chunk) const;
  /// The chunk of the window: one head of it by one thread, or all heads by all.
  void run_head(const LayerCall& call, const Window& window, std::int64_t head_kv, int thread);
  void run_chunk(const LayerCall& call, const Window& window);
  void run_unit(const LayerCall& call, const Window& window, const Past& past, std::int64_t head_kv,
                std::int64_t query_block, int thread);

  /// SKE-3 of a chunk that begins at `begin`.
  void choose_columns(const LayerCall& call, std::int64_t begin, std::int64_t head_kv);
  /// After the chunk that begins at `begin`: whole tiles of sketches stay for the chunks after it, whose columns are the
  /// same where enough keys have chosen them (SKE-3).
  void keep_tiles(const Past& past, std::int64_t begin, std::int64_t head_kv);
  [[nodiscard]] std::int64_t known_tiles(std::int64_t head_kv) const {
    return known_tiles_[static_cast<std::size_t>(head_kv)];
  }
  /// SKE-4 of the candidates in the tiles [first, last).
  void sketch_keys(const LayerCall& call, const Past& past, std::int64_t head_kv, std::int64_t first,
                   std::int64_t last, int thread);
  /// SKE-4 and SKE-5 of the rows of a query block, from the results of the first pass; returns how many vote.
  std::int64_t sketch_queries(const LayerCall& call, std::int64_t begin, std::int64_t end,
                              std::int64_t head_kv, int thread);
  /// SKE-6: votes[candidates, whole tiles].
  void vote(const LayerCall& call, const Past& past, std::int64_t head_kv, std::int64_t rows, float* votes,
            int thread);
  /// SKE-7: writes the chosen positions, ascending, and returns their number.
  std::int64_t choose(const Past& past, const float* votes, std::int32_t* chosen, int thread);
  void report(const LayerCall& call, const Chunk& chunk, const Past& past);

  /// What a head has of an array over all heads.
  template <class T>
  [[nodiscard]] T* part(core::Buffer<T>& all, std::int64_t head_kv) const {
    return all.data() + head_kv * (all.size() / data_.shape.n_head_kv);
  }
  /// Where the set of a query block stands among those of a chunk: side by side for an observer, else at the same place in
  /// every chunk.
  [[nodiscard]] std::int64_t set_number(const LayerCall& call, const Past& past, std::int64_t head_kv,
                                        std::int64_t query_block) const;
  [[nodiscard]] Scratch& of(int thread) { return scratch_[static_cast<std::size_t>(thread)]; }
  /// Whether sketches of a layer are multiplied in integers: LOGIT-2 and LOGIT-3 are computed of products in floats.
  [[nodiscard]] bool in_integers(std::int64_t layer) const {
    return integer_kernels_ && data_.alibi.empty() && !(data_.options.softcap_of(layer) > 0);
  }
  /// Integers of a sketch of the current layer.
  [[nodiscard]] std::int64_t width() const { return sketch_width(data_.shape.d_head); }
  [[nodiscard]] std::int64_t tile_bytes(bool in_integers, std::int64_t width) const {
    return in_integers ? integer_kernels_->tile_bytes(width)
                       : kKeyTile * width * static_cast<std::int64_t>(sizeof(float));
  }

  SessionData& data_;
  const SketchTable* integer_kernels_;  // null: products in floats
  std::int64_t group_;                  // query heads of a key/value head
  RowBlocks rows_;
  std::vector<SketchColumns> columns_;     // of each key/value head
  std::vector<std::int64_t> known_tiles_;  // of each key/value head: those of keys_ that stay
  core::Buffer<unsigned char> keys_;       // [Hkv][tiles] sketches of the candidates
  core::Buffer<float> units_;              // [Hkv][candidates, whole tiles]
  core::Buffer<std::int32_t> sets_;        // [Hkv][query blocks][set width] of the chunk
  core::Buffer<float> votes_;              // [Hkv][query blocks][candidates], for an observer
  std::vector<Scratch> scratch_;           // one per thread
};

}  // namespace headwater::cpu
