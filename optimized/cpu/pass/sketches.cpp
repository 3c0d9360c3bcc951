#include "cpu/pass/sketches.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/selection.hpp"
#include "cpu/pass/deal_out.hpp"
#include "cpu/pass/stage_clock.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cpu {

namespace {

constexpr float kNoVote = -std::numeric_limits<float>::infinity();

/// SKE-3
constexpr std::int64_t kColumnChoosers = 256;

/// Tiles of keys that are sketched by a task.
constexpr std::int64_t kTilesOfTask = 16;

std::int64_t most_rows_of_head(const SessionData& data) {
  return std::min(data.options.query_block, data.most_chunk_rows());
}

}  // namespace

SketchesPass::Scratch::Scratch(const SessionData& data, std::int64_t rows, std::int64_t row_blocks)
    : out(core::checked_product(row_blocks, kBlockRows, data.widest.d_value)),
      max(core::checked_product(row_blocks, kBlockRows)),
      sum(max.size()),
      integers(core::checked_product(std::max(rows, kBlockRows), sketch_width(data.widest.d_head))),
      query_bytes(SketchedRows::readable_bytes(rows, sketch_width(data.widest.d_head))),
      factor(rows),
      offset(rows),
      positions(rows),
      block(core::checked_product(rows, kBlockRows)),
      voters(static_cast<std::size_t>(data.shape.n_head / data.shape.n_head_kv)),
      votes(padded(data.shape.capacity, kKeyTile)),
      eligible(data.shape.capacity),
      order_keys(data.shape.capacity),
      fixed(data.set_width()) {}

std::int64_t SketchesPass::Scratch::bytes() const {
  return out.bytes() + max.bytes() + sum.bytes() + integers.bytes() + query_bytes.bytes() + factor.bytes() +
         offset.bytes() + positions.bytes() + block.bytes() + votes.bytes() + eligible.bytes() +
         order_keys.bytes() + fixed.bytes();
}

SketchesPass::SketchesPass(SessionData& data, const SketchTable* integer_kernels)
    : data_(data),
      integer_kernels_(integer_kernels),
      group_(data.shape.n_head / data.shape.n_head_kv),
      rows_(data, data.most_chunk_rows()),
      columns_(static_cast<std::size_t>(data.shape.n_head_kv)),
      known_tiles_(columns_.size()) {
  const EffectiveOptions& options = data.options;
  const std::int64_t heads = data.shape.n_head_kv;
  const std::int64_t sets = core::checked_product(heads, options.query_blocks(data.most_chunk_rows()));
  sets_ = core::Buffer<std::int32_t>(core::checked_product(sets, data.set_width()));
  if (options.heavy > 0) {
    const std::int64_t tiles = key_tiles(data.shape.capacity);
    bool in_floats = false;
    for (std::int64_t layer = 0; layer < data.widest.n_layer; ++layer) in_floats |= !in_integers(layer);
    keys_ = core::Buffer<unsigned char>(
        core::checked_product(heads, tiles, tile_bytes(!in_floats, sketch_width(data.widest.d_head))));
    units_ = core::Buffer<float>(core::checked_product(heads, tiles, kKeyTile));
    votes_ = core::Buffer<float>(core::checked_product(sets, data.shape.capacity));
  }
  const std::int64_t rows = core::checked_product(group_, most_rows_of_head(data));
  const std::int64_t row_blocks =
      core::checked_product(group_, (most_rows_of_head(data) + kBlockRows - 1) / kBlockRows);
  scratch_.reserve(static_cast<std::size_t>(options.threads));
  for (int t = 0; t < options.threads; ++t) scratch_.emplace_back(data, rows, row_blocks);
}

std::int64_t SketchesPass::bytes() const {
  std::int64_t bytes = rows_.bytes() + keys_.bytes() + units_.bytes();
  for (const Scratch& scratch : scratch_) bytes += scratch.bytes();
  return bytes;
}

std::int64_t SketchesPass::set_bytes() const { return sets_.bytes() + votes_.bytes(); }

double SketchesPass::selection_seconds() const {
  double all = 0;
  for (const Scratch& scratch : scratch_) all += scratch.selection_seconds;
  return all / static_cast<double>(data_.options.threads);
}

void SketchesPass::forget() {
  for (Scratch& scratch : scratch_) scratch.selection_seconds = 0;
}

SketchesPass::Past SketchesPass::past_of(const Chunk& chunk) const {
  const EffectiveOptions& options = data_.options;
  const std::int64_t local = options.local_begin(chunk.begin);
  return {options.query_blocks(length(chunk)), std::min(options.pinned, local),
          options.voted_tokens(chunk.begin), local};
}

std::int64_t SketchesPass::set_number(const LayerCall& call, const Past& past, std::int64_t head_kv,
                                      std::int64_t query_block) const {
  const std::int64_t most = data_.options.query_blocks(data_.most_chunk_rows());
  return head_kv * (call.observer ? past.query_blocks : most) + query_block;
}

void SketchesPass::run(const LayerCall& call) {
  std::fill(known_tiles_.begin(), known_tiles_.end(), 0);
  deal_out(
      call,
      [&](const Window& window, std::int64_t head_kv, int thread) {
        run_head(call, window, head_kv, thread);
      },
      [&](const Window& window) { run_chunk(call, window); });
}

void SketchesPass::run_head(const LayerCall& call, const Window& window, std::int64_t head_kv, int thread) {
  const Chunk& chunk = window.chunks.front();
  const Past past = past_of(chunk);
  call.arithmetic.prepare_chunk(call.layer, window, chunk, head_kv);
  if (past.candidates > 0) {
    if (known_tiles(head_kv) == 0) choose_columns(call, chunk.begin, head_kv);
    sketch_keys(call, past, head_kv, known_tiles(head_kv), key_tiles(past.candidates), thread);
    keep_tiles(past, chunk.begin, head_kv);
  }
  for (std::int64_t block = 0; block < past.query_blocks; ++block) {
    data_.workers.ask_between_tasks();
    run_unit(call, window, past, head_kv, block, thread);
  }
}

void SketchesPass::run_chunk(const LayerCall& call, const Window& window) {
  const Chunk& chunk = window.chunks.front();
  const Past past = past_of(chunk);
  const std::int64_t heads = data_.shape.n_head_kv;
  data_.workers.each(heads, [&](const Workers::Task& task) {
    call.arithmetic.prepare_chunk(call.layer, window, chunk, task.index);
    if (past.candidates > 0 && known_tiles(task.index) == 0) choose_columns(call, chunk.begin, task.index);
  });
  if (past.candidates > 0) {
    const std::int64_t known = known_tiles(0);
    const std::int64_t tiles = key_tiles(past.candidates);
    const std::int64_t parts = (tiles - known + kTilesOfTask - 1) / kTilesOfTask;
    data_.workers.each(heads * parts, [&](const Workers::Task& task) {
      const std::int64_t first = known + task.index % parts * kTilesOfTask;
      sketch_keys(call, past, task.index / parts, first, std::min(first + kTilesOfTask, tiles), task.thread);
    });
    for (std::int64_t head_kv = 0; head_kv < heads; ++head_kv) keep_tiles(past, chunk.begin, head_kv);
  }
  data_.workers.each(heads * past.query_blocks, [&](const Workers::Task& task) {
    run_unit(call, window, past, task.index / past.query_blocks, task.index % past.query_blocks, task.thread);
  });
  report(call, chunk, past);
}

void SketchesPass::keep_tiles(const Past& past, std::int64_t begin, std::int64_t head_kv) {
  const bool same_columns = begin >= kColumnChoosers || HEADWATER_SABOTAGE("cpu.sketches.first_columns_stay");
  const std::int64_t part = HEADWATER_SABOTAGE("cpu.sketches.part_of_a_tile_stays") ? kKeyTile - 1 : 0;
  known_tiles_[static_cast<std::size_t>(head_kv)] = same_columns ? (past.candidates + part) / kKeyTile : 0;
}

void SketchesPass::choose_columns(const LayerCall& call, std::int64_t begin, std::int64_t head_kv) {
  const std::int64_t d = data_.shape.d_head;
  SketchColumns& columns = columns_[static_cast<std::size_t>(head_kv)];
  columns.width = width();
  columns.n = std::min(d, columns.width);
  columns.of = d;
  // The largest so far, and then those with the lower number.
  std::array<double, kMostSketchColumns> sums;
  std::int64_t kept = 0;
  const bool all = HEADWATER_SABOTAGE("cpu.sketches.columns_by_all_keys");
  const std::int64_t keys = all ? begin : std::min(begin, kColumnChoosers);
  constexpr std::int64_t kPiece = 64;  // columns whose sums are formed at a time
  for (std::int64_t first = 0; first < d; first += kPiece) {
    const std::int64_t n = std::min(kPiece, d - first);
    const std::int64_t element = static_cast<std::int64_t>(dtype_size(data_.kv.type()));
    double squares[kPiece] = {};
    float row[kPiece] = {};
    for (std::int64_t j = 0; j < keys; ++j) {
      const auto* key = static_cast<const unsigned char*>(data_.kv.key(call.layer, head_kv, j));
      data_.kernels.widen(key + first * element, data_.kv.type(), n, row);
      for (std::int64_t x = 0; x < kPiece; ++x)
        squares[x] += static_cast<double>(row[x]) * static_cast<double>(row[x]);
    }
    for (std::int64_t x = 0; x < n; ++x) {
      const double sum = std::isnan(squares[x]) ? std::numeric_limits<double>::infinity() : squares[x];
      std::int64_t at = kept;
      while (at > 0 && sums[static_cast<std::size_t>(at - 1)] < sum) --at;
      if (at == columns.n) continue;
      kept = std::min(kept + 1, columns.n);
      for (std::int64_t i = kept - 1; i > at; --i) {
        sums[static_cast<std::size_t>(i)] = sums[static_cast<std::size_t>(i - 1)];
        columns.column[i] = columns.column[i - 1];
      }
      sums[static_cast<std::size_t>(at)] = sum;
      columns.column[at] = static_cast<std::int32_t>(first + x);
    }
  }
  std::sort(columns.column, columns.column + columns.n);
}

void SketchesPass::sketch_keys(const LayerCall& call, const Past& past, std::int64_t head_kv,
                               std::int64_t first, std::int64_t last, int thread) {
  const SketchColumns& columns = columns_[static_cast<std::size_t>(head_kv)];
  const std::int64_t row_bytes = data_.shape.d_head * static_cast<std::int64_t>(dtype_size(data_.kv.type()));
  float* integers = of(thread).integers.data();
  for (std::int64_t tile = first; tile < last; ++tile) {
    const std::int64_t at = tile * kKeyTile;
    const std::int64_t n = std::min(kKeyTile, past.candidates - at);
    float* units = part(units_, head_kv) + at;
    std::fill_n(units, kKeyTile, std::numeric_limits<float>::quiet_NaN());
    data_.kv.for_keys(call.layer, head_kv, past.pinned + at, n,
                      [&](const void* keys, std::int64_t done, std::int64_t some) {
                        data_.kernels.sketch_rows(keys, row_bytes, some, data_.kv.type(), columns,
                                                  integers + done * columns.width, units + done);
                      });
    const bool exact = in_integers(call.layer);
    unsigned char* to = part(keys_, head_kv) + tile * tile_bytes(exact, columns.width);
    if (exact) {
      integer_kernels_->pack(integers, n, columns.width, to);
    } else {
      data_.kernels.pack_queries(integers, columns.width, n, columns.width, reinterpret_cast<float*>(to));
    }
  }
}

std::int64_t SketchesPass::sketch_queries(const LayerCall& call, std::int64_t begin, std::int64_t end,
                                          std::int64_t head_kv, int thread) {
  Scratch& scratch = of(thread);
  const SketchColumns& columns = columns_[static_cast<std::size_t>(head_kv)];
  const std::int64_t stride = call.q.row_stride * static_cast<std::int64_t>(dtype_size(call.q.type));
  const double unit = call.arithmetic.unit();
  std::int64_t n = 0;
  std::int64_t row_block = 0;
  for (std::int64_t g = 0; g < group_; ++g) {
    const std::int64_t head = head_kv * group_ + g;
    Voters& voters = scratch.voters[static_cast<std::size_t>(g)];
    voters = {head, n, n};
    for (std::int64_t row = begin; row < end; row += kBlockRows, ++row_block) {
      const std::int64_t some = std::min(kBlockRows, end - row);
      float* integers = scratch.integers.data() + n * columns.width;
      float units[kBlockRows];
      data_.kernels.sketch_rows(core::row_address(call.q, row - call.base(), head), stride, some, call.q.type,
                                columns, integers, units);
      const std::int64_t first = n;
      for (std::int64_t r = 0; r < some; ++r) {
        const std::int64_t at = row_block * kBlockRows + r;
        const auto own = static_cast<float>(unit * static_cast<double>(scratch.max.data()[at]) +
                                            std::log(static_cast<double>(scratch.sum.data()[at])));
        if (std::isnan(units[r]) || !std::isfinite(own)) continue;
        const bool moves = n - first != r && !HEADWATER_SABOTAGE("cpu.sketches.row_of_one_that_has_no_vote");
        if (moves)
          std::copy_n(integers + r * columns.width, columns.width, integers + (n - first) * columns.width);
        scratch.factor.data()[n] = call.scale() * units[r];
        scratch.offset.data()[n] = own;
        scratch.positions.data()[n] = static_cast<std::int32_t>(row + r);
        ++n;
      }
    }
    voters.end = n;
  }
  return n;
}

void SketchesPass::vote(const LayerCall& call, const Past& past, std::int64_t head_kv, std::int64_t rows,
                        float* votes, int thread) {
  Scratch& scratch = of(thread);
  std::int64_t tiles = key_tiles(past.candidates);
  std::fill_n(votes, tiles * kKeyTile, kNoVote);
  if (HEADWATER_SABOTAGE("cpu.sketches.candidates_beyond_4096")) tiles = std::min<std::int64_t>(tiles, 128);
  const float* units = part(units_, head_kv);
  const unsigned char* keys = part(keys_, head_kv);
  if (in_integers(call.layer)) {
    integer_kernels_->pack_rows(scratch.integers.data(), rows * width(), scratch.query_bytes.data());
    integer_kernels_->raise_votes(
        {rows, width(), scratch.query_bytes.data(), scratch.factor.data(), scratch.offset.data()}, keys,
        units, tiles, votes);
    return;
  }
  static_assert(kKeyTile == kBlockRows);  // a tile of keys is in the lanes
  float* block = scratch.block.data();
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    const float* unit = units + tile * kKeyTile;
    float* to = votes + tile * kKeyTile;
    const std::int64_t lanes = padded(std::min(kKeyTile, past.candidates - tile * kKeyTile), kLaneTile);
    const auto* packed = reinterpret_cast<const float*>(keys + tile * tile_bytes(false, width()));
    data_.kernels.dot_products(packed, lanes, width(), scratch.integers.data(), rows, 1.0f, block,
                               scratch.integers.data());
    for (const Voters& voters : scratch.voters) {
      const std::int64_t n = voters.end - voters.begin;
      float* own = block + voters.begin * kBlockRows;
      const float* factor = scratch.factor.data() + voters.begin;
      LogitMap map = call.logit_map(voters.head);
      if (map.softcap > 0 || map.slope != 0) {
        data_.kernels.scale_lanes(own, n, factor, unit);
        factor = nullptr;
        // Keys are in the lanes: the distance from a key to a row has the other sign.
        if (!HEADWATER_SABOTAGE("cpu.sketches.slope_of_the_other_sign")) map.slope = -map.slope;
        const BlockPositions positions{past.pinned + tile * kKeyTile, 0,
                                       scratch.positions.data() + voters.begin};
        data_.kernels.cap_and_bias(map, positions, kBlockRows, n, own);
      }
      data_.kernels.raise_lane_votes(own, n, factor, unit, scratch.offset.data() + voters.begin, to);
    }
    for (std::int64_t lane = 0; lane < kBlockRows; ++lane) {  // a cap may have made a number of a NaN
      if (std::isnan(unit[lane])) to[lane] = kNoVote;
    }
  }
}

std::int64_t SketchesPass::choose(const Past& past, const float* votes, std::int32_t* chosen, int thread) {
  const core::SelectionLoops& loops = data_.kernels.selection;
  Scratch& scratch = of(thread);
  std::int32_t* eligible = scratch.eligible.data();
  const std::int64_t missing = HEADWATER_SABOTAGE("cpu.sketches.one_short") ? 1 : 0;
  const std::int64_t budget = std::max<std::int64_t>(0, data_.options.heavy - data_.options.pinned - missing);
  std::int64_t n =
      loops.collect_scores(votes, past.candidates, static_cast<float>(std::log(data_.options.least_weight)),
                           eligible, scratch.order_keys.data());
  if (n > budget) {
    n = core::select_best(scratch.order_keys.data(), n, budget, 32, chosen, loops);
    for (std::int64_t i = 0; i < n; ++i) chosen[i] = eligible[chosen[i]];
  } else {
    std::copy_n(eligible, n, chosen);
  }
  for (std::int64_t i = 0; i < n; ++i) chosen[i] += static_cast<std::int32_t>(past.pinned);
  return n;
}

void SketchesPass::run_unit(const LayerCall& call, const Window& window, const Past& past,
                            std::int64_t head_kv, std::int64_t query_block, int thread) {
  Scratch& scratch = of(thread);
  const Chunk& chunk = window.chunks.front();
  const std::int64_t dv = data_.shape.d_value;
  const std::int64_t begin = chunk.begin + query_block * data_.options.query_block;
  const std::int64_t end = std::min(begin + data_.options.query_block, chunk.end);
  const std::int64_t number = set_number(call, past, head_kv, query_block);
  std::int32_t* entries = sets_.data() + number * data_.set_width();
  std::int32_t* fixed = scratch.fixed.data();
  GatheredSet first{fixed, 0};
  for (std::int64_t p = 0; p < past.pinned; ++p) fixed[first.n++] = static_cast<std::int32_t>(p);
  for (std::int64_t p = past.local; p < chunk.begin; ++p) fixed[first.n++] = static_cast<std::int32_t>(p);
  if (first.n > 0) call.arithmetic.gather(call.layer, head_kv, fixed, first.n, thread);

  // Calls body(rows, their outputs, maxima and sums) for blocks of rows, head after head.
  const auto for_rows = [&](const auto& body) {
    std::int64_t row_block = 0;
    for (std::int64_t head = head_kv * group_; head < (head_kv + 1) * group_; ++head) {
      for (std::int64_t row = begin; row < end; row += kBlockRows, ++row_block) {
        body(BlockRows{head, row, std::min(kBlockRows, end - row)},
             scratch.out.data() + row_block * kBlockRows * dv, scratch.max.data() + row_block * kBlockRows,
             scratch.sum.data() + row_block * kBlockRows);
      }
    }
  };
  for_rows([&](const BlockRows& rows, float* out, float* max, float* sum) {
    const BlockResult result = rows_.intra(call, window, chunk, rows, first, nullptr, out, thread);
    std::copy_n(result.max, kBlockRows, max);
    std::copy_n(result.sum, kBlockRows, sum);
  });

  std::copy_n(fixed, past.pinned, entries);
  GatheredSet chosen{entries + past.pinned, 0};
  if (past.candidates > 0) {
    const StageClock clock(scratch.selection_seconds);
    std::int64_t rows = sketch_queries(call, begin, end, head_kv, thread);
    if (HEADWATER_SABOTAGE("cpu.sketches.votes_of_64_rows")) rows = std::min<std::int64_t>(rows, 64);
    vote(call, past, head_kv, rows, scratch.votes.data(), thread);
    chosen.n = choose(past, scratch.votes.data(), entries + past.pinned, thread);
    if (call.observer) {
      std::copy_n(scratch.votes.data(), past.candidates, votes_.data() + number * past.candidates);
    }
  }
  std::int32_t* local =
      std::copy_n(fixed + past.pinned, chunk.begin - past.local, entries + past.pinned + chosen.n);
  std::fill(local, entries + data_.set_width(), -1);

  if (chosen.n > 0) call.arithmetic.gather(call.layer, head_kv, chosen.positions, chosen.n, thread);
  for_rows([&](const BlockRows& rows, float* out, float* max, float* sum) {
    if (chosen.n > 0) {
      rows_.join(call, chunk, rows, {max, sum}, out,
                 rows_.inter(call, window, chunk, rows, chosen, false, nullptr, thread), thread);
    } else {
      rows_.write(call, chunk, rows, {max, sum}, out);
    }
  });
}

void SketchesPass::report(const LayerCall& call, const Chunk& chunk, const Past& past) {
  if (!call.observer) return;
  ChunkRecord record;
  record.layer = call.layer;
  record.chunk = chunk;
  record.memory_count = data_.options.memory_count(chunk.begin);
  record.memory_stride = data_.set_width();
  record.memory = sets_.data();
  record.row_stride = data_.most_chunk_rows();
  record.lse = rows_.lse();
  record.query_blocks = past.query_blocks;
  record.voted_tokens = past.candidates;
  record.token_votes = past.candidates > 0 ? votes_.data() : nullptr;
  call.observer(record);
}

}  // namespace headwater::cpu
