#include "cpu/pass/blocks.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/selection.hpp"
#include "cpu/pass/deal_out.hpp"
#include "cpu/pass/stage_clock.hpp"
#include "cpu/prefetch.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cpu {

namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

constexpr std::int64_t kRegionBlocks = core::BlockSummaries::kRegionBlocks;

/// SEL-12: candidates that are all estimated.
constexpr std::int64_t kFlatBlocks = 2048;

/// SEL-6
std::int64_t kept_blocks(const EffectiveOptions& options) {
  return options.refine * options.heavy / options.key_block;
}

/// SEL-12: G
std::int64_t searched_regions(const EffectiveOptions& options) {
  return std::max<std::int64_t>(16, (kept_blocks(options) + 7) / 8);
}

std::int64_t most_candidates(const SessionData& data) {
  return data.options.heavy > 0 ? data.shape.capacity / data.options.key_block : 0;
}

std::int64_t most_regions(const SessionData& data) {
  const std::int64_t blocks = most_candidates(data);
  return blocks > kFlatBlocks ? blocks / kRegionBlocks : 0;
}

/// Blocks of searched regions, and those of no region.
std::int64_t most_searched(const SessionData& data) {
  return most_regions(data) > 0 ? (searched_regions(data.options) + 1) * kRegionBlocks : 0;
}

/// Most summaries or tokens that are voted on at once.
std::int64_t most_voted(const SessionData& data) {
  return std::max({std::min(most_candidates(data), kFlatBlocks), most_regions(data), most_searched(data),
                   data.options.voted_tokens(data.shape.capacity)});
}

/// Keys of whole blocks that are multiplied at a time: about a tile of them.
std::int64_t keys_at_once(std::int64_t key_block) {
  return std::max<std::int64_t>(1, kKeyTile / key_block) * key_block;
}

/// Collects runs of rows for Arithmetic::lane_products, whose products follow each other.
class RunProducts {
 public:
  RunProducts(Arithmetic& arithmetic, DType type, const RowWidth& width, std::int64_t lanes, float* products,
              int thread)
      : arithmetic_(arithmetic),
        type_(type),
        width_(width),
        lanes_(lanes),
        products_(products),
        thread_(thread) {}

  void add(const void* rows, std::int64_t n) {
    if (n_ == kMost) multiply();
    runs_[n_++] = {rows, n};
    rows_ += n;
  }
  /// Those that were added since.
  void multiply() {
    if (n_ == 0) return;
    arithmetic_.lane_products({runs_, static_cast<std::size_t>(n_)}, type_, width_, lanes_, products_,
                              thread_);
    const bool stays = n_ == kMost && HEADWATER_SABOTAGE("cpu.blocks.products_of_64_runs");
    if (!stays) products_ += rows_ * kBlockRows;
    n_ = 0;
    rows_ = 0;
  }

 private:
  static constexpr std::int64_t kMost = 64;

  Arithmetic& arithmetic_;
  DType type_;
  RowWidth width_;
  std::int64_t lanes_;
  float* products_;  // of the first run
  int thread_;
  std::int64_t n_ = 0;
  std::int64_t rows_ = 0;
  RowRun runs_[kMost];
};

/// Factors and offsets with which no lane has a vote.
void no_lanes(float* factor, float* offset) {
  std::fill_n(factor, kBlockRows, 0.0f);
  std::fill_n(offset, kBlockRows, -kNothing);
}

/// SEL-6 where the largest estimate of a lane is infinite: estimates become differences from it, and it becomes 0.
void settle_infinities(float* lane, std::int64_t n, float& top) {
  if (top - top == 0.0f || HEADWATER_SABOTAGE("cpu.blocks.infinite_estimates_subtracted")) return;
  for (std::int64_t i = 0; i < n; ++i) {
    float& estimate = lane[i * kBlockRows];
    const bool equal = estimate == top || (estimate != estimate && top == kNothing);
    estimate = equal ? 0.0f : kNothing;
  }
  top = 0.0f;
}

/// The keys of n votes, the first `pinned` of them on what is pinned (MEM-7).
void fill_order_keys(const float* votes, std::int64_t n, std::int64_t pinned, std::uint32_t* keys) {
  for (std::int64_t i = 0; i < n; ++i) keys[i] = core::order_key(votes[i]);
  std::fill_n(keys, std::min(pinned, n), core::kPinnedKey);
}

/// The positions of the keys of n blocks, one after the other.
void block_positions(const std::int32_t* blocks, std::int64_t n, std::int64_t key_block, std::int32_t* to) {
  for (std::int64_t i = 0; i < n; ++i) {
    std::int64_t first = blocks[i] * key_block;
    if (HEADWATER_SABOTAGE("cpu.blocks.position_in_16_bits")) first &= 0xFFFF;
    for (std::int64_t k = 0; k < key_block; ++k) *to++ = static_cast<std::int32_t>(first + k);
  }
}

std::int64_t pinned_blocks(const EffectiveOptions& options) { return options.pinned / options.key_block; }

}  // namespace

BlocksPass::Scratch::Scratch(const SessionData& data, std::int64_t unit_blocks, std::int64_t unit_pools)
    : pooled(core::checked_product(unit_pools + kBlockRows, data.summary_width())),
      products(core::checked_product(key_tiles(most_voted(data)) + 1, kKeyTile, kBlockRows)),
      keys(core::checked_product(padded(keys_at_once(data.options.key_block), kKeyTile), data.widest.d_head,
                                 static_cast<std::int64_t>(dtype_size(data.kv.type())))),
      order_keys(std::max(most_voted(data), most_candidates(data))),
      region_votes(core::checked_product(unit_blocks, most_regions(data))),
      runs(most_regions(data) > 0 ? searched_regions(data.options) + 1 : 0),
      searched_votes(most_searched(data)),
      kept(std::max(std::min(kept_blocks(data.options), most_candidates(data)),
                    searched_regions(data.options))),
      positions(data.options.voted_tokens(data.shape.capacity)),
      chosen(std::min(data.options.heavy, data.shape.capacity)) {}

std::int64_t BlocksPass::Scratch::bytes() const {
  return pooled.bytes() + products.bytes() + keys.bytes() + order_keys.bytes() + region_votes.bytes() +
         runs.bytes() + searched_votes.bytes() + kept.bytes() + positions.bytes() + chosen.bytes();
}

BlocksPass::BlocksPass(SessionData& data)
    : data_(data), group_(data.shape.n_head / data.shape.n_head_kv), rows_(data, data.most_chunk_rows()) {
  const EffectiveOptions& options = data.options;
  const std::int64_t sets =
      core::checked_product(data.shape.n_head_kv, options.query_blocks(data.most_chunk_rows()));
  sets_ = core::Buffer<std::int32_t>(core::checked_product(sets, data.set_width()));
  if (options.heavy > 0) {
    block_votes_ = core::Buffer<float>(core::checked_product(sets, data.shape.capacity / options.key_block));
    token_votes_ =
        core::Buffer<float>(core::checked_product(sets, options.voted_tokens(data.shape.capacity)));
  }
  scratch_.reserve(static_cast<std::size_t>(options.threads));
  const std::int64_t unit_pools =
      core::checked_product(blocks_per_unit(), group_, pools_per_block(options.pool));
  for (int t = 0; t < options.threads; ++t) scratch_.emplace_back(data, blocks_per_unit(), unit_pools);
}

std::int64_t BlocksPass::bytes() const {
  std::int64_t bytes = rows_.bytes();
  for (const Scratch& scratch : scratch_) bytes += scratch.bytes();
  return bytes;
}

std::int64_t BlocksPass::set_bytes() const {
  return sets_.bytes() + block_votes_.bytes() + token_votes_.bytes();
}

double BlocksPass::selection_seconds() const {
  double all = 0;
  for (const Scratch& scratch : scratch_) all += scratch.selection_seconds;
  return all / static_cast<double>(data_.options.threads);
}

void BlocksPass::forget() {
  for (Scratch& scratch : scratch_) scratch.selection_seconds = 0;
}

BlocksPass::Votes BlocksPass::votes_of(const Chunk& chunk) const {
  const EffectiveOptions& options = data_.options;
  const std::int64_t blocks = options.candidate_blocks(chunk.begin);
  return {options.query_blocks(length(chunk)), blocks, blocks > kFlatBlocks ? blocks / kRegionBlocks : 0,
          options.voted_tokens(chunk.begin), options.memory_count(chunk.begin)};
}

std::int64_t BlocksPass::pools_per_block(std::int64_t size) const {
  return (data_.options.query_block + size - 1) / size;
}

std::int64_t BlocksPass::blocks_per_unit() const {
  return std::max<std::int64_t>(1, kBlockRows / (group_ * pools_per_block(data_.options.pool)));
}

std::int64_t BlocksPass::units_of(const Votes& votes) const {
  return (votes.query_blocks + blocks_per_unit() - 1) / blocks_per_unit();
}

BlocksPass::Unit BlocksPass::unit_of(const Votes& votes, std::int64_t head_kv, std::int64_t index) const {
  const std::int64_t first = index * blocks_per_unit();
  return {head_kv, first, std::min(first + blocks_per_unit(), votes.query_blocks)};
}

void BlocksPass::run(const LayerCall& call) {
  deal_out(
      call,
      [&](const Window& window, std::int64_t head_kv, int thread) {
        run_head(call, window, head_kv, thread);
      },
      [&](const Window& window) { run_chunk(call, window); });
}

void BlocksPass::run_head(const LayerCall& call, const Window& window, std::int64_t head_kv, int thread) {
  const Chunk& chunk = window.chunks.front();
  const Votes votes = votes_of(chunk);
  const std::int64_t prepared = HEADWATER_SABOTAGE("cpu.blocks.first_head_prepared_again") ? 0 : head_kv;
  call.arithmetic.prepare_chunk(call.layer, window, chunk, prepared);
  for (std::int64_t unit = 0; unit < units_of(votes); ++unit) {
    data_.workers.ask_between_tasks();
    run_unit(call, window, chunk, votes, unit_of(votes, head_kv, unit), votes.blocks > 0 || unit == 0,
             thread);
  }
}

void BlocksPass::run_chunk(const LayerCall& call, const Window& window) {
  const Chunk& chunk = window.chunks.front();
  const Votes votes = votes_of(chunk);
  const std::int64_t heads = data_.shape.n_head_kv;
  const std::int64_t units = units_of(votes);
  data_.workers.each(heads, [&](const Workers::Task& task) {
    call.arithmetic.prepare_chunk(call.layer, window, chunk, task.index);
  });
  // Consecutive tasks go to one thread, which gathers Local once where it is the whole set.
  data_.workers.each(heads * units, [&](const Workers::Task& task) {
    const std::int64_t unit = task.index % units;
    run_unit(call, window, chunk, votes, unit_of(votes, task.index / units, unit),
             votes.blocks > 0 || unit == 0 || task.first, task.thread);
  });
  report(call, chunk, votes);
}

void BlocksPass::run_unit(const LayerCall& call, const Window& window, const Chunk& chunk, const Votes& votes,
                          const Unit& unit, bool new_set, int thread) {
  if (votes.blocks > 0) {
    const StageClock clock(of(thread).selection_seconds);
    pool_queries(call, chunk, unit, thread);
    if (votes.regions > 0) {
      vote_on_regions(call, chunk, votes, unit, thread);
    } else {
      const Run all{0, votes.blocks};
      vote(
          call, chunk, unit, unit.first, unit.last,
          {data_.summaries.blocks(), data_.options.key_block, {&all, 1}, all.end},
          [&](std::int64_t block) { return block_votes(votes, unit.head_kv, block); }, thread);
    }
  }
  for (std::int64_t block = unit.first; block < unit.last; ++block) {
    choose_set(call, chunk, votes, unit, block, thread);
    const GatheredSet chosen{set(unit.head_kv, block), votes.entries};
    if (chosen.n > 0 && new_set) {
      call.arithmetic.gather(call.layer, unit.head_kv, chosen.positions, chosen.n, thread);
      new_set = votes.blocks > 0;
    }
    const std::int64_t begin = chunk.begin + block * data_.options.query_block;
    const std::int64_t end = std::min(begin + data_.options.query_block, chunk.end);
    for (std::int64_t head = unit.head_kv * group_; head < (unit.head_kv + 1) * group_; ++head) {
      for (std::int64_t row = begin; row < end; row += kBlockRows) {
        const BlockRows rows{head, row, std::min(kBlockRows, end - row)};
        rows_.attend(call, window, chunk, rows, chunk.end, chosen, thread);
      }
    }
  }
}

template <class Body>
void BlocksPass::for_lanes(const Chunk& chunk, const Unit& unit, std::int64_t first, std::int64_t last,
                           std::int64_t size, const Body& body) const {
  const std::int64_t query_block = data_.options.query_block;
  // Only the last query block of a chunk may have fewer pools than the others.
  Lanes lanes{size, (first - unit.first) * group_ * pools_per_block(size), 0, {}};
  for (std::int64_t block = first; block < last; ++block) {
    const std::int64_t begin = chunk.begin + block * query_block;
    const std::int64_t end = std::min(begin + query_block, chunk.end);
    for (std::int64_t head = unit.head_kv * group_; head < (unit.head_kv + 1) * group_; ++head) {
      for (std::int64_t row = begin; row < end; row += size) {
        lanes.pools[lanes.n++] = {block, head, row, std::min(row + size, end)};
        if (lanes.n < kBlockRows) continue;
        body(lanes);
        lanes.first += lanes.n;
        lanes.n = 0;
      }
    }
  }
  if (lanes.n > 0) body(lanes);
}

void BlocksPass::pool_query(const LayerCall& call, const Lanes& lanes, std::int64_t lane,
                            float* query) const {
  const std::int64_t d = data_.shape.d_head;
  const std::int64_t row_bytes = d * static_cast<std::int64_t>(dtype_size(call.q.type));
  const Pool& pool = lanes.pools[lane];
  const std::int64_t next = lane + std::max<std::int64_t>(1, kPrefetchedRows / lanes.size);
  if (next < lanes.n) {
    const Pool& ahead = lanes.pools[next];
    for (std::int64_t position = ahead.begin; position < ahead.end; ++position) {
      prefetch(core::row_address(call.q, position - call.base(), ahead.head), row_bytes);
    }
  }
  const std::int64_t rows = pool.end - pool.begin;
  const bool whole = HEADWATER_SABOTAGE("cpu.blocks.last_pool_counted_whole");
  data_.kernels.row_sum(core::row_address(call.q, pool.begin - call.base(), pool.head),
                        call.q.row_stride * static_cast<std::int64_t>(dtype_size(call.q.type)), rows,
                        call.q.type, d, call.scale() / static_cast<float>(whole ? lanes.size : rows), query);
}

void BlocksPass::pool_queries(const LayerCall& call, const Chunk& chunk, const Unit& unit, int thread) {
  const std::int64_t d = data_.shape.d_head;
  const std::int64_t width = data_.summaries.width(call.layer);
  for_lanes(chunk, unit, unit.first, unit.last, data_.options.pool, [&](const Lanes& lanes) {
    for (std::int64_t lane = 0; lane < lanes.n; ++lane) {
      float* query = of(thread).pooled.data() + (lanes.first + lane) * width;
      pool_query(call, lanes, lane, query);
      std::fill(query + d, query + width, 0.0f);
      // The last group first: where it is short, zeros still follow the query.
      constexpr std::int64_t kColumns = core::BlockSummaries::kGroupColumns;
      for (std::int64_t group = core::BlockSummaries::groups(d) - 1; group >= 0; --group) {
        const float* of_group = query + group * kColumns;
        float squares = 0.0f;
        for (std::int64_t x = 0; x < kColumns; ++x) squares += of_group[x] * of_group[x];
        query[d + group] = 0.5f * squares;
      }
    }
  });
}

template <class Position>
void BlocksPass::map(const LayerCall& call, const Lanes& lanes, std::int64_t n, float* products,
                     const Position& position) const {
  const auto softcap = static_cast<float>(data_.options.softcap_of(call.layer));
  if (softcap > 0) {
    data_.kernels.cap_and_bias({softcap, 0.0f}, {}, kBlockRows, n, products);
  }
  if (data_.alibi.empty()) return;
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t lane = 0; lane < lanes.n; ++lane) {
      const Pool& pool = lanes.pools[lane];
      const float slope = data_.alibi[static_cast<std::size_t>(pool.head)];
      products[i * kBlockRows + lane] -= slope * static_cast<float>(pool.end - 1 - position(i));
    }
  }
}

template <class To>
void BlocksPass::vote(const LayerCall& call, const Chunk& chunk, const Unit& unit, std::int64_t first,
                      std::int64_t last, const Ballot& ballot, const To& to, int thread) {
  Scratch& scratch = of(thread);
  float* products = scratch.products.data();
  const core::BlockSummaries& summaries = data_.summaries;
  const RowWidth width{summaries.columns(call.layer), summaries.width(call.layer)};
  for (std::int64_t block = first; block < last; ++block) std::fill_n(to(block), ballot.n, kNothing);
  for_lanes(chunk, unit, first, last, data_.options.pool, [&](const Lanes& lanes) {
    call.arithmetic.load_lanes(scratch.pooled.data() + lanes.first * width.whole, lanes.n, width, thread);
    RunProducts multiplied(call.arithmetic, summaries.type(), width, lanes.n, products, thread);
    for (const Run& run : ballot.runs) {
      for (std::int64_t i = run.begin; i < run.end;) {
        const std::int64_t some = ballot.summaries.together(call.layer, i, run.end - i);
        multiplied.add(ballot.summaries.row(call.layer, unit.head_kv, i), some);
        i += some;
      }
    }
    multiplied.multiply();
    float* part = products;
    for (const Run& run : ballot.runs) {
      const std::int64_t n = run.end - run.begin;
      map(call, lanes, n, part, [&](std::int64_t i) { return (run.begin + i + 1) * ballot.keys - 1; });
      part += n * kBlockRows;
    }
    float top[kBlockRows];
    std::fill_n(top, kBlockRows, kNothing);
    const bool partly = ballot.n > 256 && HEADWATER_SABOTAGE("cpu.blocks.maxima_of_256_candidates");
    data_.kernels.raise_maxima(products, partly ? 256 : ballot.n, top);
    for (std::int64_t lane = 0; lane < lanes.n; ++lane)
      settle_infinities(products + lane, ballot.n, top[lane]);
    for (std::int64_t lane = 0; lane < lanes.n;) {  // the lanes of one query block after those of another
      const std::int64_t block = lanes.pools[lane].query_block;
      float factor[kBlockRows];
      float offset[kBlockRows];
      no_lanes(factor, offset);
      for (; lane < lanes.n && lanes.pools[lane].query_block == block; ++lane) {
        factor[lane] = 1.0f;
        offset[lane] = top[lane];
      }
      data_.kernels.raise_votes(products, ballot.n, factor, offset, to(block));
    }
  });
}

std::int64_t BlocksPass::select(const Scratch& scratch, std::int64_t n, std::int64_t budget,
                                std::int32_t* chosen) const {
  return core::select_best(scratch.order_keys.data(), n, budget, 32, chosen, data_.kernels.selection);
}

void BlocksPass::vote_on_regions(const LayerCall& call, const Chunk& chunk, const Votes& votes,
                                 const Unit& unit, int thread) {
  const Run all{0, votes.regions};
  vote(
      call, chunk, unit, unit.first, unit.last,
      {data_.summaries.regions(), data_.options.key_block * kRegionBlocks, {&all, 1}, all.end},
      [&](std::int64_t block) {
        return of(thread).region_votes.data() + (block - unit.first) * votes.regions;
      },
      thread);
}

std::int64_t BlocksPass::search_regions(const LayerCall& call, const Chunk& chunk, const Votes& votes,
                                        const Unit& unit, std::int64_t query_block, int thread) {
  Scratch& scratch = of(thread);
  std::int32_t* kept = scratch.kept.data();
  const float* region_votes = scratch.region_votes.data() + (query_block - unit.first) * votes.regions;
  fill_order_keys(region_votes, votes.regions, 0, scratch.order_keys.data());
  const std::int64_t regions = select(scratch, votes.regions, searched_regions(data_.options), kept);
  Run* runs = scratch.runs.data();
  for (std::int64_t i = 0; i < regions; ++i)
    runs[i] = {kept[i] * kRegionBlocks, (kept[i] + 1) * kRegionBlocks};
  runs[regions] = {votes.regions * kRegionBlocks, votes.blocks};
  const std::int64_t n = regions * kRegionBlocks + runs[regions].end - runs[regions].begin;
  float* searched = scratch.searched_votes.data();
  vote(
      call, chunk, unit, query_block, query_block + 1,
      {data_.summaries.blocks(), data_.options.key_block, {runs, static_cast<std::size_t>(regions + 1)}, n},
      [&](std::int64_t) { return searched; }, thread);

  fill_order_keys(searched, n, 0, scratch.order_keys.data());
  const std::int64_t blocks = select(scratch, n, kept_blocks(data_.options), kept);
  // Where blocks are pinned, or some with the vote -infinity kept, those that are not searched compete with them.
  const bool all_compete =
      (pinned_blocks(data_.options) > 0 && !HEADWATER_SABOTAGE("cpu.blocks.pinned_where_searched")) ||
      std::any_of(kept, kept + blocks, [&](std::int32_t i) { return searched[i] == kNothing; });
  if (call.observer || all_compete) {
    float* all = block_votes(votes, unit.head_kv, query_block);
    std::fill_n(all, votes.blocks, kNothing);
    for (std::int64_t i = 0; i <= regions; ++i) {
      std::copy_n(searched + i * kRegionBlocks, runs[i].end - runs[i].begin, all + runs[i].begin);
    }
    if (all_compete) {
      fill_order_keys(all, votes.blocks, pinned_blocks(data_.options), scratch.order_keys.data());
      return select(scratch, votes.blocks, kept_blocks(data_.options), kept);
    }
  }
  for (std::int64_t i = 0; i < blocks; ++i) {
    kept[i] = static_cast<std::int32_t>(runs[kept[i] / kRegionBlocks].begin + kept[i] % kRegionBlocks);
  }
  return blocks;
}

// SEL-6 to SEL-8
void BlocksPass::choose_set(const LayerCall& call, const Chunk& chunk, const Votes& votes, const Unit& unit,
                            std::int64_t query_block, int thread) {
  Scratch& scratch = of(thread);
  const StageClock clock(scratch.selection_seconds);
  const EffectiveOptions& options = data_.options;
  const std::int64_t key_block = options.key_block;
  std::int32_t* entries = set(unit.head_kv, query_block);
  std::int64_t count = 0;
  if (votes.blocks > 0) {
    std::int64_t kept = 0;
    if (votes.regions > 0) {
      kept = search_regions(call, chunk, votes, unit, query_block, thread);
    } else {
      fill_order_keys(block_votes(votes, unit.head_kv, query_block), votes.blocks, pinned_blocks(options),
                      scratch.order_keys.data());
      kept = select(scratch, votes.blocks, kept_blocks(options), scratch.kept.data());
    }
    if (votes.tokens > 0) {
      std::int32_t* positions = scratch.positions.data();
      block_positions(scratch.kept.data(), kept, key_block, positions);
      vote_on_tokens(call, chunk, votes, unit, query_block, thread);
      // Pinned blocks are kept, and the first of all: so are their tokens.
      const std::int64_t pinned = HEADWATER_SABOTAGE("cpu.blocks.pinned_in_first_stage") ? 0 : options.pinned;
      fill_order_keys(token_votes(votes, unit.head_kv, query_block), votes.tokens, pinned,
                      scratch.order_keys.data());
      count = select(scratch, votes.tokens, options.heavy, scratch.chosen.data());
      for (std::int64_t i = 0; i < count; ++i) entries[i] = positions[scratch.chosen.data()[i]];
    } else {
      count = kept * key_block;
      block_positions(scratch.kept.data(), kept, key_block, entries);
    }
  }
  for (std::int64_t p = options.local_begin(chunk.begin); p < chunk.begin; ++p) {
    entries[count++] = static_cast<std::int32_t>(p);
  }
  std::fill(entries + count, entries + data_.set_width(), -1);
}

// SEL-7
void BlocksPass::vote_on_tokens(const LayerCall& call, const Chunk& chunk, const Votes& votes,
                                const Unit& unit, std::int64_t query_block, int thread) {
  Scratch& scratch = of(thread);
  const std::int64_t head_kv = unit.head_kv;
  float* products = scratch.products.data();
  float* queries = scratch.pooled.data() + scratch.pooled.size() - kBlockRows * data_.summary_width();
  float* token_vote = token_votes(votes, head_kv, query_block);
  const std::int64_t key_block = data_.options.key_block;
  const std::int64_t d = data_.shape.d_head;
  const std::int64_t key_bytes = d * static_cast<std::int64_t>(dtype_size(data_.kv.type()));
  const std::int64_t block_bytes = key_block * key_bytes;
  const std::int64_t at_once = keys_at_once(key_block);
  const std::int32_t* kept = scratch.kept.data();
  const std::int64_t blocks = votes.tokens / key_block;
  // The caller's rows may lie apart, at odd addresses, and end where no whole tile can be read.
  const bool in_place = key_block >= call.arithmetic.least_rows() && data_.kv.owner() == KvOwner::session;
  std::fill_n(token_vote, votes.tokens, 0.0f);
  std::int64_t batches = 0;
  const std::int64_t half = HEADWATER_SABOTAGE("cpu.blocks.whole_pools_vote_on_tokens")
                                ? data_.options.pool
                                : (data_.options.pool + 1) / 2;
  for_lanes(chunk, unit, query_block, query_block + 1, half, [&](const Lanes& lanes) {
    if (batches++ > 0 && HEADWATER_SABOTAGE("cpu.blocks.lanes_beyond_32")) return;
    for (std::int64_t lane = 0; lane < lanes.n; ++lane) {
      pool_query(call, lanes, lane, queries + lane * d);
    }
    const RowWidth width{d, d};
    call.arithmetic.load_lanes(queries, lanes.n, width, thread);
    RunProducts multiplied(call.arithmetic, data_.kv.type(), width, lanes.n, products, thread);
    for (std::int64_t number = 0; in_place && number < blocks; ++number) {
      data_.kv.for_keys(
          call.layer, head_kv, kept[number] * key_block, key_block,
          [&](const void* keys, std::int64_t, std::int64_t some) { multiplied.add(keys, some); });
    }
    for (std::int64_t first = 0; !in_place && first < votes.tokens; first += at_once) {
      const std::int64_t n = std::min(at_once, votes.tokens - first);
      for (std::int64_t block = 0; block < n / key_block; ++block) {
        const std::int64_t number = first / key_block + block;
        data_.kv.for_keys(call.layer, head_kv, kept[number] * key_block, key_block,
                          [&](const void* keys, std::int64_t at, std::int64_t some) {
                            std::memcpy(scratch.keys.data() + block * block_bytes + at * key_bytes, keys,
                                        static_cast<std::size_t>(some * key_bytes));
                          });
        const std::int64_t next = number + at_once / key_block;
        if (next < blocks) prefetch(data_.kv.key(call.layer, head_kv, kept[next] * key_block), block_bytes);
      }
      multiplied.add(scratch.keys.data(), n);
      multiplied.multiply();
    }
    if (in_place) multiplied.multiply();
    map(call, lanes, votes.tokens, products, [&](std::int64_t i) { return scratch.positions.data()[i]; });
    SoftmaxState state;
    std::fill_n(state.max, kBlockRows, kNothing);
    std::fill_n(state.sum, kBlockRows, 0.0f);
    data_.kernels.softmax(padded(lanes.n, kLaneTile), votes.tokens, products, state);
    float factor[kBlockRows];
    float offset[kBlockRows];
    no_lanes(factor, offset);
    for (std::int64_t lane = 0; lane < lanes.n; ++lane) {
      factor[lane] = 1.0f / state.sum[lane];
      offset[lane] = 0.0f;
    }
    data_.kernels.raise_votes(products, votes.tokens, factor, offset, token_vote);
  });
}

void BlocksPass::report(const LayerCall& call, const Chunk& chunk, const Votes& votes) {
  if (!call.observer) return;
  ChunkRecord record;
  record.layer = call.layer;
  record.chunk = chunk;
  record.memory_count = votes.entries;
  record.memory_stride = data_.set_width();
  record.memory = pack(sets_, votes.query_blocks * data_.set_width());
  record.row_stride = data_.most_chunk_rows();
  record.lse = rows_.lse();
  record.query_blocks = votes.query_blocks;
  record.candidate_blocks = votes.blocks;
  record.block_votes = votes.blocks > 0 ? pack(block_votes_, votes.query_blocks * votes.blocks) : nullptr;
  record.voted_tokens = votes.tokens;
  record.token_votes = votes.tokens > 0 ? pack(token_votes_, votes.query_blocks * votes.tokens) : nullptr;
  call.observer(record);
}

}  // namespace headwater::cpu
