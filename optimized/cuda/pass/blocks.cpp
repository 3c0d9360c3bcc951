#include "cuda/pass/blocks.hpp"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "headwater/testing/sabotage.hpp"

namespace headwater::cuda {

namespace {

using Step = WindowLaunches::BlockStep;

constexpr std::int64_t kLeastRegions = 16;  // SEL-12

static_assert(sizeof(std::int32_t) == kFloat);

/// Arithmetic of votes: of BF16 where queries and stored rows are BF16, else of F32 (docs/verification.md).
DType vote_unit(const Window& window) { return window.unit == DType::bf16 ? DType::bf16 : DType::f32; }

std::int64_t element_size(DType type) { return static_cast<std::int64_t>(dtype_size(type)); }

}  // namespace

BlocksPass::BlocksPass(SessionData& data) : data_(data), stores_{data} {
  const Shape& shape = data.shape;
  const EffectiveOptions& options = data.options;
  const std::int64_t key_block = options.key_block;
  most_blocks_ = options.heavy > 0 ? shape.capacity / key_block : 0;
  most_regions_ = most_blocks_ > kFlatBlocks ? most_blocks_ / kRegionBlocks : 0;
  const std::int64_t most_kept = options.refine * options.heavy / key_block;
  searched_ = std::min(most_regions_, std::max(kLeastRegions, pieces(most_kept, 8)));
  kept_ = std::min(most_kept, most_blocks_);
  tokens_ = options.voted_tokens(shape.capacity);
  half_ = pieces(options.pool, 2);
  if (HEADWATER_SABOTAGE("cuda.blocks.whole_pools_vote_on_tokens")) half_ = options.pool;
  const std::int64_t chunk = data.longest_chunk();
  most_sets_ =
      core::checked_product(pieces(data.window_rows, chunk), options.query_blocks(chunk), shape.n_head_kv);
  summary_type_ = shape.kv_type == DType::f32 ? DType::f32 : DType::bf16;
  summary_width_ = padded_width(shape.d_head + column_groups(static_cast<int>(shape.d_head)), summary_type_);
  half_width_ = padded_width(shape.d_head, DType::bf16);

  using Account = SessionData::Account;
  const std::int64_t row_bytes = core::checked_product(summary_width_, element_size(summary_type_));
  const std::int64_t all_heads = core::checked_product(shape.n_layer, shape.n_head_kv);
  blocks_ = data.take<unsigned char>(core::checked_product(all_heads, most_blocks_, row_bytes),
                                     "summaries of blocks", Account::memory_sets);
  regions_ =
      data.take<unsigned char>(core::checked_product(all_heads, most_blocks_ / kRegionBlocks, row_bytes),
                               "summaries of regions", Account::memory_sets);
  sets_ = data.take<std::int32_t>(core::checked_product(most_sets_, data.set_width), "sets",
                                  Account::memory_sets);
  stores_.take_states(data);
  if (most_blocks_ == 0) return;
  pooled_ = data.take<unsigned char>(
      core::checked_product(most_sets_, pooled_rows(options.pool), summary_width_, kFloat), "pooled queries");
  region_votes_ = data.take<float>(core::checked_product(most_sets_, most_regions_), "votes on regions");
  block_votes_ = data.take<float>(core::checked_product(most_sets_, most_blocks_), "votes on blocks");
  listed_ = data.take<std::int32_t>(core::checked_product(most_sets_, searched_), "searched regions");
  kept_blocks_ = data.take<std::int32_t>(core::checked_product(most_sets_, kept_), "kept blocks");
  if (tokens_ == 0) return;
  halves_ = data.take<unsigned char>(
      core::checked_product(most_sets_, pooled_rows(half_), half_width_, kFloat), "queries of half pools");
  token_votes_ = data.take<float>(core::checked_product(most_sets_, tokens_), "votes on tokens");
}

StoredRows BlocksPass::summaries(const unsigned char* all, std::int64_t rows, std::int64_t layer) const {
  const std::int64_t head = rows * summary_width_;
  return {all + layer * data_.shape.n_head_kv * head * element_size(summary_type_), head, summary_type_,
          static_cast<int>(summary_width_)};
}

void BlocksPass::summarise(const Window& window) {
  if (most_blocks_ == 0 || data_.options.dense_layer(window.layer)) return;
  const std::int64_t key_block = data_.options.key_block;
  const std::int64_t begin =
      HEADWATER_SABOTAGE("cuda.summaries.block_of_two_windows") ? window.begin + key_block - 1 : window.begin;
  const std::int64_t first = begin / key_block;
  const std::int64_t last = window.end / key_block;
  if (first >= last) return;
  SummariseParams params{};
  const StoredRows of_blocks = blocks(window.layer);
  const StoredRows of_regions = regions(window.layer);
  params.keys = data_.keys(window.layer);
  params.blocks = const_cast<void*>(of_blocks.data.raw());
  params.regions = const_cast<void*>(of_regions.data.raw());
  params.blocks_stride = of_blocks.head_stride;
  params.regions_stride = of_regions.head_stride;
  params.type = summary_type_;
  params.width = static_cast<int>(summary_width_);
  params.d = static_cast<int>(data_.shape.d_head);
  params.heads_kv = static_cast<int>(data_.shape.n_head_kv);
  params.key_block = static_cast<int>(key_block);
  params.first = static_cast<int>(first);
  params.last = static_cast<int>(last);
  const std::int64_t regions = pieces(last, kRegionBlocks) - first / kRegionBlocks;
  window.launches.launch(window.launches.summaries(), data_.dispatch.only(Stage::summarise),
                         grid(regions * data_.shape.n_head_kv, 1, 1), params);
}

/// Those of the chunks that have a memory set.
QueryBlocks BlocksPass::query_blocks(const Window& window, std::span<const Chunk> chunks) const {
  const EffectiveOptions& options = data_.options;
  const std::int64_t first = chunks.front().begin > 0 ? 0 : 1;
  const std::int64_t longest = data_.longest_chunk();
  QueryBlocks at{};
  at.base = window.begin;
  at.begin = chunks.front().begin > 0 ? window.begin : std::min(window.end, chunks.front().end);
  at.end = window.end;
  at.chunk = longest;
  at.local = options.local;
  at.heavy = options.heavy;
  at.most_kept = options.refine * options.heavy / options.key_block;
  at.most_regions = searched_;
  at.key_block = static_cast<int>(options.key_block);
  at.rows = static_cast<int>(std::min(options.query_block, longest));
  at.per_chunk = static_cast<int>(options.query_blocks(longest));
  at.count = static_cast<int>((std::ssize(chunks) - first) * at.per_chunk);
  at.refines = options.refine > 1;
  return at;
}

void BlocksPass::run(const Window& window, std::span<const Chunk> chunks) {
  WindowLaunches& launches = window.launches;
  const auto count = static_cast<std::int64_t>(chunks.size());
  window.path.intra_groups(window, stores_, count);
  const QueryBlocks at = query_blocks(window, chunks);
  if (at.count > 0) choose_sets(window, at);
  launches.join_intra(count - 1);
  if (at.count > 0) window.path.chosen_output(window, stores_, at, {sets_, data_.set_width});
  if (window.observed()) report(window, chunks, at);
}

void BlocksPass::choose_sets(const Window& window, const QueryBlocks& at) {
  const std::int64_t blocks = data_.options.candidate_blocks(window.end - 1);
  const std::int64_t tokens = data_.options.voted_tokens(window.end - 1);
  const std::int64_t regions = blocks > kFlatBlocks ? blocks / kRegionBlocks : 0;
  if (blocks > 0) {
    pool(window, at);
    if (regions > 0) {
      vote(window, at, VoteKind::regions, Step::region_votes);
      choose(window, at, VoteKind::regions, Step::regions, regions);
    }
    vote(window, at, VoteKind::blocks, Step::block_votes);
    choose(window, at, VoteKind::blocks, Step::blocks, blocks);
    if (tokens > 0) vote(window, at, VoteKind::tokens, Step::token_votes);
  }
  choose(window, at, VoteKind::tokens, Step::sets, tokens);
}

void BlocksPass::pool(const Window& window, const QueryBlocks& at) {
  PoolParams params{};
  params.at = at;
  params.q = window.q;
  params.d = static_cast<int>(data_.shape.d_head);
  params.group = static_cast<int>(data_.group);
  params.pool = static_cast<int>(data_.options.pool);
  params.half = static_cast<int>(half_);
  params.scale = static_cast<float>(data_.options.scale);
  params.type = vote_unit(window);
  params.pooled = pooled_;
  params.halves = halves_;
  params.stride = pooled_rows(data_.options.pool) * summary_width_;
  params.half_stride = pooled_rows(half_) * half_width_;
  params.width = static_cast<int>(summary_width_);
  params.half_width = static_cast<int>(half_width_);
  window.launches.launch(window.launches.block_step(Step::pools), data_.dispatch.only(Stage::pool_queries),
                         grid(at.count * data_.shape.n_head_kv, 1, 1), params);
}

void BlocksPass::vote(const Window& window, const QueryBlocks& at, VoteKind kind, Step step) const {
  const DType unit = vote_unit(window);
  VoteParams params{};
  params.at = at;
  params.kind = kind;
  params.group = static_cast<int>(data_.group);
  const std::int64_t d = data_.shape.d_head;
  if (kind == VoteKind::tokens) {
    params.queries = {halves_, pooled_rows(half_) * half_width_, unit, static_cast<int>(half_width_)};
    params.keys = data_.keys(window.layer);
    params.rule = data_.rule;
    params.rule.sinks = nullptr;
    params.columns = static_cast<int>(d);
    params.pool = static_cast<int>(half_);
    params.listed = kept_blocks_;
    params.listed_stride = kept_;
    params.votes = token_votes_;
    params.votes_stride = tokens_;
  } else {
    const bool regional = kind == VoteKind::regions;
    params.queries = {pooled_, pooled_rows(data_.options.pool) * summary_width_, unit,
                      static_cast<int>(summary_width_)};
    params.keys = regional ? regions(window.layer) : blocks(window.layer);
    params.rule = data_.vote_rule;
    params.columns = static_cast<int>(d + column_groups(static_cast<int>(d)));
    params.pool = static_cast<int>(data_.options.pool);
    params.listed = listed_;
    params.listed_stride = searched_;
    params.votes = regional ? region_votes_ : block_votes_;
    params.votes_stride = regional ? most_regions_ : most_blocks_;
  }
  window.launches.launch(window.launches.block_step(step), data_.dispatch.votes(unit),
                         grid(at.count * data_.shape.n_head_kv, 1, 1), params);
}

/// `most`: candidates of any set.
void BlocksPass::choose(const Window& window, const QueryBlocks& at, VoteKind kind, Step step,
                        std::int64_t most) const {
  ChooseParams params{};
  params.at = at;
  params.kind = kind;
  const std::int64_t pinned = HEADWATER_SABOTAGE("cuda.blocks.pins_nothing") ? 0 : data_.options.pinned;
  if (kind == VoteKind::regions) {
    params.votes = region_votes_;
    params.votes_stride = most_regions_;
    params.chosen = listed_;
    params.chosen_stride = searched_;
  } else if (kind == VoteKind::blocks) {
    params.votes = block_votes_;
    params.votes_stride = most_blocks_;
    params.chosen = kept_blocks_;
    params.chosen_stride = kept_;
    params.pinned = pinned / data_.options.key_block;
  } else {
    params.votes = token_votes_;
    params.votes_stride = tokens_;
    params.listed = kept_blocks_;
    params.listed_stride = kept_;
    params.chosen = sets_;
    params.chosen_stride = data_.set_width;
    params.pinned = pinned;
  }
  window.launches.launch(window.launches.block_step(step), data_.dispatch.select(Stage::choose, most),
                         grid(at.count * data_.shape.n_head_kv, 1, 1), params);
}

/// Copies in host memory, made only while somebody observes.
void BlocksPass::report(const Window& window, std::span<const Chunk> chunks, const QueryBlocks& at) {
  Device& device = *data_.device;
  const std::int64_t heads = data_.shape.n_head_kv;
  const std::int64_t window_bytes = data_.window_rows * kFloat;
  std::int64_t first = 0;  // query block of the chunk
  for (const Chunk& chunk : chunks) {
    const bool has_memory = chunk.begin > 0;
    ChunkRecord record;
    record.layer = window.layer;
    record.chunk = chunk;
    record.query_blocks = data_.options.query_blocks(chunk.end - chunk.begin);
    record.candidate_blocks = data_.options.candidate_blocks(chunk.begin);
    record.voted_tokens = data_.options.voted_tokens(chunk.begin);
    record.memory_count = data_.options.memory_count(chunk.begin);
    record.memory_stride = data_.set_width;
    record.row_stride = data_.window_rows;
    // The first n numbers of each of the chunk's sets, side by side; without memory nothing has been written.
    const auto numbers_of = [&](const auto* from, std::int64_t stride, std::int64_t n) {
      std::vector<std::remove_cvref_t<decltype(*from)>> rows(
          static_cast<std::size_t>(heads * record.query_blocks * n));
      for (std::int64_t head = 0; head < heads && has_memory && n > 0; ++head) {
        device.copy_rows(data_.stream, {rows.data() + head * record.query_blocks * n, n * kFloat},
                         {from + (head * at.count + first) * stride, stride * kFloat}, n * kFloat,
                         record.query_blocks, Direction::device_to_host);
      }
      return rows;
    };
    auto sets = numbers_of(sets_, data_.set_width, data_.set_width);
    if (!has_memory) std::fill(sets.begin(), sets.end(), -1);
    const auto block_votes = numbers_of(block_votes_, most_blocks_, record.candidate_blocks);
    const auto token_votes = numbers_of(token_votes_, tokens_, record.voted_tokens);
    float* lse = data_.shown_lse.data();
    device.copy_rows(data_.stream, {lse, window_bytes},
                     {data_.lse + (chunk.begin - window.begin), window_bytes},
                     (chunk.end - chunk.begin) * kFloat, data_.shape.n_head, Direction::device_to_host);
    device.synchronize(data_.stream);
    record.memory = sets.data();
    record.block_votes = block_votes.empty() ? nullptr : block_votes.data();
    record.token_votes = token_votes.empty() ? nullptr : token_votes.data();
    record.lse = lse;
    window.observer(record);
    if (has_memory) first += at.per_chunk;
  }
}

}  // namespace headwater::cuda
