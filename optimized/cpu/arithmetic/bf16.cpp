#include "cpu/arithmetic/bf16.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include "cpu/arithmetic/bf16_block.hpp"
#include "cpu/prefetch.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cpu {

namespace {

constexpr double kLog2E = std::numbers::log2e;

/// Natural units to units of ln 2.
float binary(float logit) { return static_cast<float>(static_cast<double>(logit) * kLog2E); }

const std::uint16_t* elements(const void* rows) { return static_cast<const std::uint16_t*>(rows); }

/// Keys whose weights are kept at a time.
std::int64_t bf16_block_keys(const SessionData& data) {
  return std::max(
      {std::min(kBf16SegmentKeys, data.shape.capacity), data.most_chunk_rows(), data.set_width()});
}

}  // namespace

Bf16Arithmetic::Scratch::Scratch(const SessionData& data, std::int64_t d_padded, std::int64_t dv_padded,
                                 bool copies)
    : packed(std::max(core::checked_product(kContextBlocks * kBlockRows, d_padded),
                      core::checked_product(kBlockRows, data.summary_width()))),
      keys(copies ? core::checked_product(key_tiles(data.set_width()), kKeyTile, d_padded) : 0),
      key_rows(data.sets_of_query_blocks() ? data.set_width() : 0),
      tiles(kBf16SegmentKeys / kKeyTile),
      border(core::checked_product(kBorders * kKeyTile, d_padded)),
      values(core::checked_product(key_tiles(data.set_width()), kKeyTile, dv_padded)),
      lanes(core::checked_product(kBlockRows,
                                  data.summary_width() > 0 ? std::max(data.summary_width(), d_padded) : 0)),
      weights(core::checked_product(key_tiles(bf16_block_keys(data)), kTileWeights)),
      transposed(core::checked_product(kContextBlocks * kBlockRows, dv_padded)),
      out(core::checked_product(kBlockRows, data.widest.d_value)),
      softmax(kContextBlocks) {}

std::int64_t Bf16Arithmetic::Scratch::bytes() const {
  return packed.bytes() + keys.bytes() + key_rows.bytes() + tiles.bytes() + border.bytes() + values.bytes() +
         lanes.bytes() + weights.bytes() + transposed.bytes() + out.bytes() + softmax.bytes();
}

Bf16Arithmetic::Bf16Arithmetic(const SessionData& data, const Bf16Table& kernels, Arithmetic& floats)
    : data_(data),
      kernels_(kernels),
      floats_(floats),
      d_padded_(padded(data.widest.d_head, kernels.d_multiple)),
      dv_padded_(padded(data.widest.d_value, kernels.dv_multiple)),
      packed_rows_(padded(data.shape.capacity, kKeyTile)) {
  const std::int64_t rows = core::checked_product(data.shape.n_head_kv, packed_rows_);
  packed_values_ = core::Buffer<std::uint16_t>(core::checked_product(rows, dv_padded_));
  bool packs = false;
  bool copies = false;
  for (std::int64_t layer = 0; layer < data.widest.n_layer; ++layer) {
    packs |= packs_keys(data.kv.d_head(layer));
    copies |= !in_place(data.kv.d_head(layer));
  }
  if (packs) packed_keys_ = core::Buffer<std::uint16_t>(core::checked_product(rows, d_padded_));
  scratch_.reserve(static_cast<std::size_t>(data.options.threads));
  for (int t = 0; t < data.options.threads; ++t) scratch_.emplace_back(data, d_padded_, dv_padded_, copies);
}

std::int64_t Bf16Arithmetic::bytes() const {
  std::int64_t bytes = packed_values_.bytes() + packed_keys_.bytes();
  for (const Scratch& scratch : scratch_) bytes += scratch.bytes();
  return bytes;
}

bool Bf16Arithmetic::in_place(std::int64_t d) const {
  return data_.sets_of_query_blocks() && kernels_.keys_in_place && !packs_keys(d);
}

bool Bf16Arithmetic::packs_keys(std::int64_t d) const {
  return d % kernels_.d_multiple != 0 || data_.kv.owner() == KvOwner::caller;
}

void Bf16Arithmetic::enter_layer() {
  d_padded_ = padded(data_.shape.d_head, kernels_.d_multiple);
  dv_padded_ = padded(data_.shape.d_value, kernels_.dv_multiple);
}

double Bf16Arithmetic::unit() const {
  return HEADWATER_SABOTAGE("cpu.bf16.fuse_in_natural_units") ? 1.0 : std::numbers::ln2;
}

bool Bf16Arithmetic::fits(const Window& window) const {
  const Chunk& last = window.chunks.back();
  return packed_row(window, last) + length(last) <= packed_rows_;
}

std::int64_t Bf16Arithmetic::packed_row(const Window& window, const Chunk& chunk) const {
  const std::int64_t index = &chunk - window.chunks.data();
  return index * padded(data_.most_chunk_rows(), kKeyTile);
}

void Bf16Arithmetic::prepare_chunk(std::int64_t layer, const Window& window, const Chunk& chunk,
                                   std::int64_t head_kv) {
  pack_rows(layer, head_kv, chunk.begin, length(chunk), packed_row(window, chunk));
}

void Bf16Arithmetic::pack_rows(std::int64_t layer, std::int64_t head_kv, std::int64_t first, std::int64_t n,
                               std::int64_t at) {
  if (first > 0 && HEADWATER_SABOTAGE("cpu.bf16.stale_packed_rows")) return;
  const std::int64_t row = head_kv * packed_rows_ + at;
  pack_values(
      kernels_, n, data_.shape.d_value,
      [&](std::int64_t i) { return elements(data_.kv.value(layer, head_kv, first + i)); },
      packed_values_.data() + row * dv_padded_);
  if (!packs_keys(data_.shape.d_head)) return;
  data_.kv.for_keys(layer, head_kv, first, n, [&](const void* keys, std::int64_t at_key, std::int64_t some) {
    pad_keys(kernels_, keys, some, data_.shape.d_head, packed_keys_.data() + (row + at_key) * d_padded_);
  });
}

Bf16Arithmetic::KeyRows Bf16Arithmetic::packed_rows(std::int64_t layer, std::int64_t head_kv,
                                                    std::int64_t first, std::int64_t n, std::int64_t at,
                                                    Scratch& scratch) const {
  const std::int64_t row = head_kv * packed_rows_ + at;
  const std::uint16_t* values = packed_values_.data() + row * dv_padded_;
  if (packs_keys(data_.shape.d_head)) return {packed_keys_.data() + row * d_padded_, d_padded_, values};
  if (data_.kv.keys_together(layer, first, n) == n)
    return {elements(data_.kv.key(layer, head_kv, first)), d_padded_, values};
  HEADWATER_MARK("cpu.bf16.keys_across_a_border");
  std::uint16_t* copied = scratch.border.data();
  for (std::int64_t tile = 0; tile < key_tiles(n); ++tile) {
    const std::int64_t begin = first + tile * kKeyTile;
    const std::int64_t keys = std::min(kKeyTile, first + n - begin);
    scratch.tiles.data()[tile] = elements(data_.kv.key(layer, head_kv, begin));
    if (data_.kv.keys_together(layer, begin, keys) == keys) continue;
    HEADWATER_MARK("cpu.bf16.tile_across_a_border");
    data_.kv.for_keys(layer, head_kv, begin, keys,
                      [&](const void* from, std::int64_t at_key, std::int64_t some) {
                        std::memcpy(copied + at_key * d_padded_, from,
                                    static_cast<std::size_t>(some * d_padded_) * sizeof(std::uint16_t));
                      });
    scratch.tiles.data()[tile] = copied;
    copied += kKeyTile * d_padded_;
  }
  KeyRows rows{nullptr, d_padded_, values};
  rows.tiles = scratch.tiles.data();
  return rows;
}

void Bf16Arithmetic::gather(std::int64_t layer, std::int64_t head_kv, const std::int32_t* positions,
                            std::int64_t n, int thread) {
  Scratch& scratch = of(thread);
  const bool copied = !in_place(data_.shape.d_head);
  const Fetch fetch = copied ? Fetch::both : Fetch::values;
  for_gathered(
      data_.kv, layer, head_kv, positions, n, fetch, [&](std::int64_t first, const GatheredRows& rows) {
        const std::int64_t stale =
            first == 0 && rows.n > 1 && HEADWATER_SABOTAGE("cpu.bf16.stale_gathered_row") ? 1 : 0;
        if (copied) {
          kernels_.copy_keys(rows.keys + stale, rows.n - stale, data_.shape.d_head, d_padded_,
                             scratch.keys.data() + (first + stale) * d_padded_);
        } else {
          for (std::int64_t i = 0; i < rows.n; ++i) {
            const bool other = first >= 256 && HEADWATER_SABOTAGE("cpu.bf16.key_rows_beyond_256");
            scratch.key_rows.data()[first + i] = elements(rows.keys[other ? 0 : std::max(i, stale)]);
          }
        }
        const std::int64_t end = first + rows.n;
        if (end % kKeyTile != 0 && end < n) return;
        const std::int64_t tile = (end - 1) / kKeyTile * kKeyTile;
        if (n > 256 && end - tile < kKeyTile && HEADWATER_SABOTAGE("cpu.bf16.partial_tile_beyond_256"))
          return;
        static_assert(GatheredRows::kKept >= kKeyTile);
        kernels_.pack_values(rows.values - (first - tile), end - tile, data_.shape.d_value, dv_padded_,
                             scratch.values.data() + tile * dv_padded_);
      });
}

Bf16Segment Bf16Arithmetic::segment(const LayerCall& call, std::int64_t head, const KeyRows& rows) const {
  Bf16Segment segment;
  segment.keys = rows.keys;
  segment.tiles = rows.tiles;
  segment.key_stride = rows.key_stride;
  segment.rows = rows.rows;
  segment.d = d_padded_;
  segment.factor = static_cast<float>(data_.options.scale_of(call.layer) * kLog2E);
  const LogitMap map = call.logit_map(head);
  segment.map = {binary(map.softcap), binary(map.slope)};
  return segment;
}

/// Attention of a block of the sparse pass to keys of its chunk, and to those that the thread's last gather() took.
class Bf16Arithmetic::Pass {
 public:
  Pass(const Bf16Arithmetic& arithmetic, const LayerCall& call, const Window& window, const Chunk& chunk,
       const PassBlock& block, Scratch& scratch)
      : arithmetic_(arithmetic),
        call_(call),
        chunk_(chunk),
        block_(block),
        scratch_(scratch),
        packed_(arithmetic.packed_row(window, chunk)),
        attention_{arithmetic.kernels_, block.rows, binary(block.sink), scratch.softmax.data()[0],
                   scratch.transposed.data()} {}

  BlockResult run() {
    attention_.start();
    if (const std::uint32_t failed = attend(); failed != 0) {
      alignas(64) float highest[kBlockRows];
      std::fill_n(highest, kBlockRows, -std::numeric_limits<float>::infinity());
      for_segments([&](const Bf16Segment& part, const std::uint16_t*, std::int64_t first, std::int64_t) {
        if (first > 0 && HEADWATER_SABOTAGE("cpu.bf16.exact_offset_of_first_segment")) return;
        kernels().raise_to_highest(part, highest);
      });
      attention_.restart(failed, highest);
      (void)attend();
    }
    if (block_.sums) {
      alignas(64) float factor[kBlockRows];
      attention_.factors(attention_.softmax.sum, factor);
      if (HEADWATER_SABOTAGE("cpu.bf16.colsum_skips_last_row")) factor[block_.rows - 1] = 0.0f;
      kernels().column_sums(scratch_.weights.data(), block_.own_keys + block_.set.n, factor, block_.sums);
    }
    return {attention_.softmax.offset, attention_.softmax.sum};
  }

 private:
  [[nodiscard]] const Bf16Table& kernels() const { return arithmetic_.kernels_; }

  /// n keys from the first-th of the chunk, or of the gathered ones.
  [[nodiscard]] KeyRows rows_from(bool gathered, std::int64_t first, std::int64_t n) const {
    const std::int64_t d = arithmetic_.d_padded_;
    std::int64_t from = first;
    if (HEADWATER_SABOTAGE("cpu.bf16.key_offset_in_16_bits")) from = (first * d & 0xFFFF) / d;
    if (!gathered) {
      return arithmetic_.packed_rows(call_.layer, arithmetic_.data_.kv_head(block_.head), chunk_.begin + from,
                                     n, packed_ + first, scratch_);
    }
    const std::uint16_t* values = scratch_.values.data() + first * arithmetic_.dv_padded_;
    if (arithmetic_.in_place(arithmetic_.data_.shape.d_head)) {
      return {nullptr, 0, values, scratch_.key_rows.data() + from};
    }
    return {scratch_.keys.data() + from * d, d, values};
  }

  /// Calls body(segment, values, number of its first key, number of all keys of its kind): keys of the chunk, then gathered
  /// ones, the segments of each in the order of the dense pass, for the same bits (STATE-3).
  template <class Body>
  void for_segments(const Body& body) const {
    for (const bool gathered : {false, true}) {
      std::int64_t n = gathered ? block_.set.n : block_.own_keys;
      if (n > 1 && HEADWATER_SABOTAGE("cpu.bf16.tail_key_dropped")) --n;
      if (n == 0) continue;
      for (std::int64_t first = (n - 1) / kBf16SegmentKeys * kBf16SegmentKeys; first >= 0;
           first -= kBf16SegmentKeys) {
        const std::int64_t some = std::min(kBf16SegmentKeys, n - first);
        const KeyRows rows = rows_from(gathered, first, some);
        Bf16Segment part = arithmetic_.segment(call_, block_.head, rows);
        part.queries = scratch_.packed.data();
        part.n_keys = some;
        if (gathered) {
          part.positions = {block_.row, 0, block_.set.positions + first};
        } else {
          part.positions = {block_.row, chunk_.begin + first, nullptr};
        }
        if (HEADWATER_SABOTAGE("cpu.bf16.one_future_key")) ++part.positions.first_row;
        part.prefetch = block_.prefetch.data();
        part.n_prefetch = std::ssize(block_.prefetch);
        body(part, rows.values, first, n);
      }
    }
  }

  /// All keys, by the offsets that stand. Returns the lanes that need other ones.
  std::uint32_t attend() const {
    for_segments(
        [&](const Bf16Segment& part, const std::uint16_t* values, std::int64_t first, std::int64_t n) {
          // All weights of a pass stay for its column sums.
          std::uint16_t* weights = scratch_.weights.data() + first * kBlockRows;
          kernels().softmax_weights(part, attention_.softmax, weights);
          const bool swapped = part.n_keys > 2 * kKeyTile && HEADWATER_SABOTAGE("cpu.bf16.swapped_tile");
          const bool lost = n >= 768 && first + part.n_keys == n && part.n_keys > kKeyTile &&
                            HEADWATER_SABOTAGE("cpu.bf16.last_tile_of_24");
          attention_.accumulate(weights + (swapped ? kTileWeights : 0),
                                key_tiles(part.n_keys) - (swapped || lost ? 1 : 0), values,
                                arithmetic_.dv_padded_);
        });
    return attention_.finish(arithmetic_.data_.shape.d_value, block_.out);
  }

  const Bf16Arithmetic& arithmetic_;
  const LayerCall& call_;
  const Chunk& chunk_;
  const PassBlock& block_;
  Scratch& scratch_;
  std::int64_t packed_;  ///< where the chunk's packed rows begin
  Bf16Block attention_;
};

BlockResult Bf16Arithmetic::attend(const LayerCall& call, const Window& window, const Chunk& chunk,
                                   const PassBlock& block, int thread) {
  Scratch& scratch = of(thread);
  if (!block.loaded) {
    load_queries(kernels_, call.q, block.row - call.base(), block.rows, block.head, data_.shape.d_head,
                 scratch.packed.data());
  }
  return Pass(*this, call, window, chunk, block, scratch).run();
}

void Bf16Arithmetic::load_lanes(const float* rows, std::int64_t lanes, const RowWidth& width, int thread) {
  Scratch& scratch = of(thread);
  data_.kernels.narrow(rows, lanes * width.whole, DType::bf16, scratch.lanes.data());
  kernels_.pack_queries(scratch.lanes.data(), width.whole * std::int64_t{sizeof(std::uint16_t)}, lanes,
                        width.used, padded(width.used, kernels_.d_multiple), scratch.packed.data());
}

void Bf16Arithmetic::lane_products(std::span<const RowRun> runs, DType /*type*/, const RowWidth& width,
                                   std::int64_t lanes, float* products, int thread) {
  Scratch& scratch = of(thread);
  const std::int64_t d = padded(width.used, kernels_.d_multiple);
  if (d <= width.whole) {
    kernels_.products(scratch.packed.data(), lanes, runs.data(), std::ssize(runs), d, width.whole, products);
    return;
  }
  for (const RowRun& run : runs) {
    for (std::int64_t first = 0; first < run.n; first += kKeyTile) {
      const RowRun tile{scratch.lanes.data(), std::min(kKeyTile, run.n - first)};
      pad_keys(kernels_, elements(run.rows) + first * width.whole, tile.n, width.used, scratch.lanes.data());
      kernels_.products(scratch.packed.data(), lanes, &tile, 1, d, d, products + first * kBlockRows);
    }
    products += run.n * kBlockRows;
  }
}

void Bf16Arithmetic::prepare_context(const LayerCall& call, std::int64_t end) {
  const std::int64_t tiles = key_tiles(end);
  call.data.workers.each(
      data_.shape.n_head_kv * tiles,
      [&](const Workers::Task& task) {
        const std::int64_t first = task.index % tiles * kKeyTile;
        pack_rows(call.layer, task.index / tiles, first, std::min(kKeyTile, end - first), first);
      },
      Workers::Asks::at_start);
}

/// A task of attend_context(). Near its diagonal a row is computed in a block of its head that ends where a tile of keys
/// does, so that every row finds its own key, and thus an anchor, in the first tile that its block computes. Keys that all
/// rows see are multiplied by blocks that the rows of several heads share: lanes know nothing of each other.
class Bf16Arithmetic::Context {
 public:
  Context(const Bf16Arithmetic& arithmetic, const LayerCall& call, std::span<const HeadRows> rows,
          Scratch& scratch)
      : arithmetic_(arithmetic), call_(call), rows_(rows), scratch_(scratch), first_(rows.front().begin) {
    for (const HeadRows& some : rows) {
      lanes_ += some.end - some.begin;
      first_ = std::min(first_, some.begin);
      end_ = std::max(end_, some.end);
    }
  }

  void run(const LseRows& lse) {
    const std::int64_t shared = first_ / kBf16SegmentKeys;  // segments that all rows see
    const std::int64_t segments = (end_ + kBf16SegmentKeys - 1) / kBf16SegmentKeys;
    const bool lost = HEADWATER_SABOTAGE("cpu.bf16.dense_first_segment") ||
                      (end_ > 4096 && HEADWATER_SABOTAGE("cpu.bf16.dense_oldest_segment_beyond_4096"));
    const std::int64_t oldest = lost && segments > 1 ? 1 : 0;
    for_blocks([&](const Block& block, std::int64_t lane) {
      load(block);
      of(block).start();
      for (std::int64_t s = segments; s-- > std::max(shared, oldest);) add_segment(block, s);
      if (block.index == kApart) move(lane, block.rows.end - block.rows.begin, false);
    });
    // Segments outside, from the last; blocks inside, while its rows are in the cache.
    for (std::int64_t s = shared; s-- > oldest;) {
      for (std::int64_t lane = 0; lane < lanes_; lane += kBlockRows) {
        const HeadRows together{rows_.front().head, first_ + lane,
                                first_ + std::min(lane + kBlockRows, lanes_)};
        add_segment({lane / kBlockRows, together}, s);
      }
    }
    for_blocks([&](const Block& block, std::int64_t lane) {
      if (block.index == kApart) move(lane, block.rows.end - block.rows.begin, true);
      finish(block, segments);
      store(block, lse);
    });
  }

 private:
  /// At most kBlockRows rows in the block `index` of the working memory.
  struct Block {
    std::int64_t index;
    HeadRows rows;
  };
  /// The block for rows that share theirs with others.
  static constexpr std::int64_t kApart = kContextBlocks - 1;

  /// Calls body(block, lane of its first row among all) for the rows of each head, up to where tiles of keys end.
  template <class Body>
  void for_blocks(const Body& body) const {
    std::int64_t lane = 0;
    for (const auto& [head, begin, end] : rows_) {
      for (std::int64_t row = begin; row < end;) {
        const std::int64_t next = std::min(row / kBlockRows * kBlockRows + kBlockRows, end);
        const std::int64_t n = next - row;
        const bool alone = lane % kBlockRows == 0 && (n == kBlockRows || lane + n == lanes_);
        body(Block{alone ? lane / kBlockRows : kApart, {head, row, next}}, lane);
        lane += n;
        row = next;
      }
    }
  }

  [[nodiscard]] std::uint16_t* queries(std::int64_t index) const {
    return scratch_.packed.data() + index * kBlockRows * arithmetic_.d_padded_;
  }
  [[nodiscard]] Bf16Block of(const Block& block) const {
    return {arithmetic_.kernels_, block.rows.end - block.rows.begin, binary(call_.sink(block.rows.head)),
            scratch_.softmax.data()[block.index],
            scratch_.transposed.data() + block.index * kBlockRows * arithmetic_.dv_padded_};
  }

  void load(const Block& block) const {
    load_queries(arithmetic_.kernels_, call_.q, block.rows.begin - call_.base(),
                 block.rows.end - block.rows.begin, block.rows.head, arithmetic_.data_.shape.d_head,
                 queries(block.index));
  }

  /// Calls body(segment, packed values) for the keys of segment s that any row of the block sees.
  template <class Body>
  void with_segment(const Block& block, std::int64_t s, const Body& body) const {
    const std::int64_t first = s * kBf16SegmentKeys;
    const std::int64_t n = std::min(first + kBf16SegmentKeys, block.rows.end) - first;
    if (n <= 0) return;
    const KeyRows keys = arithmetic_.packed_rows(call_.layer, arithmetic_.data_.kv_head(block.rows.head),
                                                 first, n, first, scratch_);
    Bf16Segment part = arithmetic_.segment(call_, block.rows.head, keys);
    part.queries = queries(block.index);
    part.n_keys = n;
    part.positions = {block.rows.begin, first, nullptr};
    body(part, keys.values);
  }

  void add_segment(const Block& block, std::int64_t s) const {
    with_segment(block, s, [&](const Bf16Segment& part, const std::uint16_t* values) {
      const Bf16Block attention = of(block);
      arithmetic_.kernels_.softmax_weights(part, attention.softmax, scratch_.weights.data());
      attention.accumulate(scratch_.weights.data(), key_tiles(part.n_keys), values, arithmetic_.dv_padded_);
    });
  }

  /// n lanes from `lane` on among all, between the blocks that share them and the first lanes of kApart.
  void move(std::int64_t lane, std::int64_t n, bool back) const {
    for (std::int64_t done = 0; done < n;) {
      const std::int64_t index = (lane + done) / kBlockRows;
      const std::int64_t at = (lane + done) % kBlockRows;
      const std::int64_t some = std::min(n - done, kBlockRows - at);
      const auto copy = [&](auto* apart, auto* shared, std::int64_t lines) {
        constexpr std::int64_t kPerLane = 4 / sizeof(*apart);
        for (std::int64_t line = 0; line < lines * kBlockRows; line += kBlockRows) {
          auto* in_apart = apart + (line + done) * kPerLane;
          auto* in_shared = shared + (line + at) * kPerLane;
          std::memcpy(back ? in_apart : in_shared, back ? in_shared : in_apart,
                      static_cast<std::size_t>(4 * some));
        }
      };
      const Block shared{index, {rows_.front().head, first_, first_ + kBlockRows}};
      const Block apart{kApart, shared.rows};
      copy(queries(kApart), queries(index), arithmetic_.d_padded_ / 2);
      copy(of(apart).out, of(shared).out, arithmetic_.dv_padded_);
      Bf16Softmax& of_apart = of(apart).softmax;
      Bf16Softmax& of_shared = of(shared).softmax;
      copy(of_apart.offset, of_shared.offset, 1);
      copy(of_apart.sum, of_shared.sum, 1);
      copy(of_apart.rounded, of_shared.rounded, 1);
      of_shared.anchored = of_shared.has_output = true;
      done += some;
    }
  }

  void finish(const Block& block, std::int64_t segments) const {
    const Bf16Block attention = of(block);
    const std::int64_t dv = arithmetic_.data_.shape.d_value;
    const std::uint32_t failed = attention.finish(dv, scratch_.out.data());
    if ((failed & ~std::uint32_t{0} >> (kBlockRows - attention.rows)) == 0) return;
    alignas(64) float highest[kBlockRows];
    std::fill_n(highest, kBlockRows, -std::numeric_limits<float>::infinity());
    for (std::int64_t s = 0; s < segments; ++s) {
      with_segment(block, s, [&](const Bf16Segment& part, const std::uint16_t*) {
        arithmetic_.kernels_.raise_to_highest(part, highest);
      });
    }
    attention.restart(failed, highest);
    for (std::int64_t s = segments; s-- > 0;) add_segment(block, s);
    (void)attention.finish(dv, scratch_.out.data());
  }

  void store(const Block& block, const LseRows& lse) const {
    const auto& [head, begin, end] = block.rows;
    const Bf16Softmax& softmax = scratch_.softmax.data()[block.index];
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t r = row - begin;
      call_.store_row(row, head, scratch_.out.data() + r * arithmetic_.data_.shape.d_value);
      if (!call_.wants_lse()) continue;
      call_.store_lse(lse, row, head,
                      static_cast<float>(std::numbers::ln2 * static_cast<double>(softmax.offset[r]) +
                                         std::log(static_cast<double>(softmax.sum[r]))));
    }
  }

  const Bf16Arithmetic& arithmetic_;
  const LayerCall& call_;
  std::span<const HeadRows> rows_;
  Scratch& scratch_;
  std::int64_t lanes_ = 0;  ///< rows of all heads
  std::int64_t first_;      ///< the earliest position
  std::int64_t end_ = 0;    ///< the position after the latest
};

void Bf16Arithmetic::attend_context(const LayerCall& call, std::span<const HeadRows> rows, const LseRows& lse,
                                    int thread) {
  Context(*this, call, rows, of(thread)).run(lse);
}

void Bf16Arithmetic::load_row(const LayerCall& call, std::int64_t head, std::int64_t position,
                              std::int64_t slot, int thread) {
  if (!kernels_.row_logits) return floats_.load_row(call, head, position, slot, thread);
  HEADWATER_MARK("cpu.decode.paired");
  const std::int64_t d = data_.shape.d_head;
  std::memcpy(of(thread).packed.data() + slot * d, core::row_address(call.q, position - call.base(), head),
              static_cast<std::size_t>(d) * sizeof(std::uint16_t));
}

void Bf16Arithmetic::row_logits(const LayerCall& call, const void* keys, std::int64_t n, std::int64_t rows,
                                float* logits, std::int64_t stride, int thread) {
  if (!kernels_.row_logits) return floats_.row_logits(call, keys, n, rows, logits, stride, thread);
  kernels_.row_logits(of(thread).packed.data(), rows, data_.shape.d_head, elements(keys), n, call.scale(),
                      logits, stride);
}

}  // namespace headwater::cpu
