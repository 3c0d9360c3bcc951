#include "conformance/replay.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "conformance/case.hpp"
#include "conformance/formats.hpp"

namespace headwater::conformance {
namespace {

std::int64_t local_start(std::int64_t end, std::int64_t local) { return end > local ? end - local : 0; }

// SPEC 14: while scores are finite Heavy is the best H of *all* tokens before Local.
void require_best_of_all(const std::vector<std::int32_t>& set, const std::vector<float>& scores,
                         std::int64_t end, const EffectiveOptions& options, const std::string& where) {
  if (!std::all_of(scores.begin(), scores.end(), [](float score) { return std::isfinite(score); })) return;
  const std::vector<std::int32_t> best =
      expected_set({}, 0, end, options.local, options.heavy, scores, options.pinned);
  if (set != best) throw Violation(where + ": Heavy is not the best of all tokens before Local (SPEC 14)");
}

void require_set_laws(const std::vector<std::int32_t>& set, std::int64_t end, const EffectiveOptions& options,
                      const std::string& where) {
  const std::int64_t wanted = std::min(options.memory(), end);
  if (static_cast<std::int64_t>(set.size()) != wanted) {
    throw Violation(fmt::format("{}: |set| is {}, not min(M, tokens) = {}", where, set.size(), wanted));
  }
  for (std::size_t i = 0; i < set.size(); ++i) {
    if (set[i] < 0 || set[i] >= end) throw Violation(fmt::format("{}: entry {} is {}", where, i, set[i]));
    if (i > 0 && set[i] <= set[i - 1])
      throw Violation(fmt::format("{}: not ascending at entry {}", where, i));
  }
  const std::int64_t first_local = local_start(end, options.local);
  for (std::int64_t p = first_local; p < end; ++p) {
    if (!std::binary_search(set.begin(), set.end(), static_cast<std::int32_t>(p))) {
      throw Violation(fmt::format("{}: local position {} is missing (MEM-1)", where, p));
    }
  }
}

}  // namespace

EffectiveOptions expected_options(const Shape& shape, const Options& options) {
  EffectiveOptions effective;
  effective.batch = std::max(options.batch, options.chunk);  // CFG-4
  effective.chunk = options.chunk;
  effective.local = options.dense ? 0 : options.local;
  effective.heavy = options.dense ? 0 : options.heavy;
  if (options.clamp && effective.local + effective.heavy >= options.chunk) {  // CFG-3
    effective.local = std::min(effective.local, options.chunk - 1);
    effective.heavy = std::min(effective.heavy, options.chunk - 1 - effective.local);
    if (options.select == Select::blocks)
      effective.heavy = effective.heavy / options.key_block * options.key_block;
  }
  effective.sparse = effective.local + effective.heavy > 0;
  effective.pinned = std::min(options.pinned, effective.heavy);  // CFG-5
  effective.dense_below = options.dense_below;
  effective.dense_layers = options.dense_layers;
  effective.layers = options.layers;
  for (LayerOptions& own : effective.layers) {  // LAYER-1, LOGIT-1
    if (own.d_head == 0) continue;
    const double of_width = std::pow(static_cast<double>(own.d_head), -0.5);
    own.scale = own.scale.value_or(options.scale.value_or(of_width));
  }
  effective.checkpoints =
      effective.sparse && options.select == Select::h2o ? options.checkpoints : 0;  // STATE-10
  effective.kv_owner = options.kv_owner;
  effective.page = options.page;
  effective.kv_bits = options.kv_bits;
  effective.scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(shape.d_head)));
  effective.softcap = options.softcap;
  effective.score_type = options.score_type;
  effective.schedule = options.schedule;
  effective.select = options.select;
  if (options.select == Select::blocks) {
    effective.key_block = options.key_block;
    effective.query_block = options.query_block;
    effective.pool = options.pool;
    effective.refine = options.refine;
  }
  if (options.select == Select::sketches) {
    effective.query_block = options.query_block;
    effective.least_weight = options.least_weight;
  }
  return effective;
}

std::vector<std::vector<Chunk>> expected_plans(const Problem& problem) {
  const EffectiveOptions options = expected_options(problem.shape, problem.options);
  std::vector<std::vector<Chunk>> plans;
  std::int64_t base = 0;
  bool in_turn = false;
  bool sparse_turn = false;
  for (const Step& step : problem.steps) {
    std::vector<Chunk> plan;
    if (step.kind == Step::Kind::decode) {
      plan.push_back({base, base + step.n, ChunkMode::decode});
      in_turn = false;
    } else {
      if (!in_turn) {
        const std::int64_t turn = step.turn_length != 0 ? step.turn_length : step.n;
        sparse_turn = options.sparse && turn >= options.dense_below && (base == 0 || turn > options.chunk);
        in_turn = true;
      }
      if (!sparse_turn) {
        plan.push_back({base, base + step.n, ChunkMode::dense});
      } else {
        // Token by token: a chunk ends where its batch, its own S tokens, or the call end.
        Chunk open{base, base, ChunkMode::sparse};
        for (std::int64_t t = 0; t < step.n; ++t) {
          open.end = base + t + 1;
          const bool batch_ends = (t + 1) % options.batch == 0;
          if (open.end - open.begin == options.chunk || batch_ends || t + 1 == step.n) {
            plan.push_back(open);
            open.begin = open.end;
          }
        }
      }
    }
    base += step.n;
    plans.push_back(plan);
  }
  return plans;
}

std::vector<Chunk> layer_chunks(const EffectiveOptions& options, std::int64_t layer,
                                const std::vector<Chunk>& plan) {
  const std::vector<std::int64_t>& dense = options.dense_layers;
  const bool named = std::find(dense.begin(), dense.end(), layer) != dense.end() ||
                     (!options.layers.empty() && options.layers[static_cast<std::size_t>(layer)].window > 0);
  if (!named || plan.front().mode != ChunkMode::sparse) return plan;
  return {{plan.front().begin, plan.back().end, ChunkMode::dense}};
}

std::uint32_t score_bits(ScoreType type, float value) {
  return type == ScoreType::bf16 ? bf16_bits(value) : std::bit_cast<std::uint32_t>(value);
}

float score_value(ScoreType type, std::uint32_t bits) {
  return type == ScoreType::bf16 ? bf16_value(static_cast<std::uint16_t>(bits)) : std::bit_cast<float>(bits);
}

std::vector<std::int32_t> expected_set(const std::vector<std::int32_t>& previous, std::int64_t previous_end,
                                       std::int64_t end, std::int64_t local, std::int64_t heavy,
                                       const std::vector<float>& scores, std::int64_t pinned) {
  std::vector<std::int32_t> candidates = previous;
  for (std::int64_t p = previous_end; p < end; ++p) candidates.push_back(static_cast<std::int32_t>(p));
  const std::int64_t first_local = local_start(end, local);
  std::erase_if(candidates, [&](std::int32_t p) { return p >= first_local; });
  const auto kept = std::min<std::int64_t>(heavy, static_cast<std::int64_t>(candidates.size()));
  const auto last = candidates.begin() + kept;
  std::partial_sort(candidates.begin(), last, candidates.end(), [&](std::int32_t a, std::int32_t b) {
    if ((a < pinned) != (b < pinned)) return a < pinned;  // MEM-7
    if (a < pinned) return a < b;
    const float x = scores[static_cast<std::size_t>(a)];
    const float y = scores[static_cast<std::size_t>(b)];
    if (std::isnan(x) != std::isnan(y)) return std::isnan(y);  // NaN ranks below every number
    if (!std::isnan(x) && x != y) return x > y;
    return a < b;
  });
  candidates.erase(last, candidates.end());
  for (std::int64_t p = first_local; p < end; ++p) candidates.push_back(static_cast<std::int32_t>(p));
  std::sort(candidates.begin(), candidates.end());
  return candidates;
}

std::int64_t blocks_local_begin(const EffectiveOptions& options, std::int64_t begin) {
  // Counted up: the first multiple of K that is not before the window.
  std::int64_t first = 0;
  const std::int64_t window = local_start(begin, options.local);
  if (window > 0) first = (window - 1) / options.key_block * options.key_block + options.key_block;
  return first > begin ? begin : first;
}

std::int64_t blocks_candidates(const EffectiveOptions& options, std::int64_t begin) {
  return options.heavy == 0 ? 0 : blocks_local_begin(options, begin) / options.key_block;
}

namespace {

// Numbers of the `count` highest votes, ascending. Order: the numbers below `pinned` first (MEM-7), then higher vote first,
// equal votes: lower number first (MEM-3).
std::vector<std::int64_t> highest(std::span<const float> votes, std::int64_t count, std::int64_t pinned) {
  std::vector<std::int64_t> order;
  for (std::size_t i = 0; i < votes.size(); ++i) order.push_back(static_cast<std::int64_t>(i));
  const auto first = [&](std::int64_t a, std::int64_t b) {
    if (a < pinned || b < pinned) return a < b;
    const float x = votes[static_cast<std::size_t>(a)];
    const float y = votes[static_cast<std::size_t>(b)];
    if (x == y || (std::isnan(x) && std::isnan(y))) return a < b;
    return x > y || std::isnan(y);
  };
  count = std::min(count, static_cast<std::int64_t>(order.size()));
  std::nth_element(order.begin(), order.begin() + count, order.end(), first);
  order.resize(static_cast<std::size_t>(count));
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace

std::int64_t regions_searched(const EffectiveOptions& options, std::int64_t candidates) {
  if (candidates <= 2048) return 0;
  const std::int64_t wanted =
      (options.refine * options.heavy + 8 * options.key_block - 1) / (8 * options.key_block);
  return std::min(std::max<std::int64_t>(16, wanted), candidates / 32);
}

std::vector<bool> searched_regions(std::span<const float> block_votes) {
  std::vector<bool> searched;
  if (block_votes.size() <= 2048) return searched;
  for (std::size_t r = 0; 32 * (r + 1) <= block_votes.size(); ++r) {
    const std::span<const float> region = block_votes.subspan(32 * r, 32);
    searched.push_back(std::any_of(region.begin(), region.end(), [](float vote) {
      return vote > -std::numeric_limits<float>::infinity();
    }));
  }
  return searched;
}

std::vector<std::int32_t> kept_tokens(const EffectiveOptions& options, std::int64_t begin,
                                      std::span<const float> block_votes) {
  if (static_cast<std::int64_t>(block_votes.size()) != blocks_candidates(options, begin)) {
    throw Violation(
        fmt::format("SEL-2: {} block votes, not {}", block_votes.size(), blocks_candidates(options, begin)));
  }
  std::vector<std::int32_t> tokens;
  for (const std::int64_t block : highest(block_votes, options.refine * (options.heavy / options.key_block),
                                          options.pinned / options.key_block)) {
    for (std::int64_t i = 0; i < options.key_block; ++i) {
      tokens.push_back(static_cast<std::int32_t>(block * options.key_block + i));
    }
  }
  return tokens;
}

std::vector<std::int32_t> expected_block_set(const EffectiveOptions& options, std::int64_t begin,
                                             std::span<const float> block_votes,
                                             std::span<const float> token_votes) {
  std::vector<std::int32_t> set = kept_tokens(options, begin, block_votes);
  if (options.refine > 1 && static_cast<std::int64_t>(set.size()) > options.heavy) {
    if (token_votes.size() != set.size()) {
      throw Violation(fmt::format("SEL-7: {} token votes, not {}", token_votes.size(), set.size()));
    }
    std::vector<std::int32_t> chosen;
    // Kept are the blocks of all pinned tokens, and those are the first.
    for (const std::int64_t token : highest(token_votes, options.heavy, options.pinned)) {
      chosen.push_back(set[static_cast<std::size_t>(token)]);
    }
    set = chosen;
  } else if (!token_votes.empty()) {
    throw Violation(fmt::format("SEL-7: {} token votes without a second stage", token_votes.size()));
  }
  for (std::int64_t p = blocks_local_begin(options, begin); p < begin; ++p) {
    set.push_back(static_cast<std::int32_t>(p));
  }
  return set;
}

SketchedPast sketched_past(const EffectiveOptions& options, std::int64_t begin) {
  SketchedPast past;
  for (std::int64_t p = 0; p < begin; ++p) {
    const auto position = static_cast<std::int32_t>(p);
    if (p < options.pinned || p >= local_start(begin, options.local)) {
      past.fixed.push_back(position);
    } else if (options.heavy > 0) {
      past.candidates.push_back(position);
    }
  }
  return past;
}

std::vector<std::int32_t> expected_sketch_set(const EffectiveOptions& options, std::int64_t begin,
                                              std::span<const float> votes) {
  const SketchedPast past = sketched_past(options, begin);
  std::vector<std::int32_t> set = past.fixed;
  const auto least = static_cast<float>(std::log(options.least_weight));
  // Where a token below the least is among the highest, so are all that are not.
  for (const std::int64_t i : highest(votes, std::max<std::int64_t>(0, options.heavy - options.pinned), 0)) {
    const auto at = static_cast<std::size_t>(i);
    if (votes[at] >= least) set.push_back(past.candidates[at]);
  }
  std::sort(set.begin(), set.end());
  return set;
}

namespace {

// A size as the kit and EffectiveOptions count it.
void require_count(const std::string& where, const char* what, std::int64_t got, std::int64_t wanted,
                   std::int64_t helper) {
  if (got == wanted && helper == wanted) return;
  throw Violation(
      fmt::format("{}: {} is {}, EffectiveOptions says {}, replay {}", where, what, got, helper, wanted));
}

}  // namespace

Replay::Replay(const EffectiveOptions& options, std::int64_t heads, std::int64_t heads_kv)
    : options_(options), heads_(static_cast<std::size_t>(heads)), heads_kv_(heads_kv) {}

void Replay::take_blocks(const ChunkTrace& chunk, const std::string& where) const {
  const std::int64_t begin = chunk.chunk.begin;
  const std::int64_t local = begin - blocks_local_begin(options_, begin);
  const std::int64_t candidates = blocks_candidates(options_, begin);
  const std::int64_t heavy = std::min(options_.heavy, candidates * options_.key_block);
  const std::int64_t kept = std::min(options_.refine * options_.heavy, candidates * options_.key_block);
  const auto count = [&](const char* what, std::int64_t got, std::int64_t wanted, std::int64_t helper) {
    require_count(where, what, got, wanted, helper);
  };
  count("memory_count (SEL-8)", chunk.memory_count, local + heavy, options_.memory_count(begin));
  count("query_blocks (SEL-4)", chunk.query_blocks,
        (chunk.length() + options_.query_block - 1) / options_.query_block,
        options_.query_blocks(chunk.length()));
  count("candidate_blocks (SEL-2)", chunk.candidate_blocks, candidates, options_.candidate_blocks(begin));
  count("voted_tokens (SEL-7)", chunk.voted_tokens, options_.refine > 1 && kept > options_.heavy ? kept : 0,
        options_.voted_tokens(begin));
  const std::int64_t sets = heads_kv_ * chunk.query_blocks;
  for (std::int64_t s = 0; s < sets; ++s) {
    const std::string at =
        fmt::format("{} head {} query block {}", where, s / chunk.query_blocks, s % chunk.query_blocks);
    const std::span<const float> block_votes(chunk.block_votes.data() + s * candidates,
                                             static_cast<std::size_t>(candidates));
    const std::span<const float> token_votes(chunk.token_votes.data() + s * chunk.voted_tokens,
                                             static_cast<std::size_t>(chunk.voted_tokens));
    for (const float vote : block_votes) {
      if (!(vote <= 0.0f)) throw Violation(fmt::format("{}: SEL-6: a block vote is {}", at, vote));
    }
    // The block with a row's largest estimate has the vote 0.
    if (candidates > 0 && *std::max_element(block_votes.begin(), block_votes.end()) != 0.0f) {
      throw Violation(fmt::format("{}: SEL-6: no block vote is 0", at));
    }
    const std::vector<bool> searched = searched_regions(block_votes);
    if (std::count(searched.begin(), searched.end(), true) > regions_searched(options_, candidates)) {
      throw Violation(fmt::format("{}: SEL-12: more than {} regions are searched", at,
                                  regions_searched(options_, candidates)));
    }
    for (const float vote : token_votes) {
      if (!(vote >= 0.0f)) throw Violation(fmt::format("{}: SEL-7: a token vote is {}", at, vote));
    }
    const auto* first = chunk.memory.data() + s * chunk.memory_count;
    const std::vector<std::int32_t> got(first, first + chunk.memory_count);
    const std::vector<std::int32_t> wanted = expected_block_set(options_, begin, block_votes, token_votes);
    if (got != wanted) {
      throw Violation(fmt::format("{}: SEL-11: set [{}], replay gives [{}]", at, fmt::join(got, " "),
                                  fmt::join(wanted, " ")));
    }
    for (std::size_t i = 0; i < got.size(); ++i) {  // SEL-8, whatever the votes were
      if (got[i] < 0 || got[i] >= begin || (i > 0 && got[i] <= got[i - 1])) {
        throw Violation(fmt::format("{}: SEL-8: entry {} is {}", at, i, got[i]));
      }
    }
    for (std::int64_t i = 0; i < local; ++i) {
      const auto entry = static_cast<std::size_t>(heavy + i);
      if (got[entry] != begin - local + i) {
        throw Violation(fmt::format("{}: SEL-2: Local is not the end of the set", at));
      }
    }
  }
}

void Replay::take_sketches(const ChunkTrace& chunk, const std::string& where) const {
  const std::int64_t begin = chunk.chunk.begin;
  const SketchedPast past = sketched_past(options_, begin);
  const std::int64_t n = std::ssize(past.candidates);
  require_count(where, "memory_count (SKE-8)", chunk.memory_count,
                std::ssize(past.fixed) + std::min(n, options_.heavy - options_.pinned),
                options_.memory_count(begin));
  require_count(where, "query_blocks (SKE-2)", chunk.query_blocks,
                (chunk.length() + options_.query_block - 1) / options_.query_block,
                options_.query_blocks(chunk.length()));
  require_count(where, "candidate_blocks (SKE-2)", chunk.candidate_blocks, 0,
                options_.candidate_blocks(begin));
  require_count(where, "voted_tokens (SKE-2)", chunk.voted_tokens, n, options_.voted_tokens(begin));
  for (std::int64_t s = 0; s < heads_kv_ * chunk.query_blocks; ++s) {
    const std::string at =
        fmt::format("{} head {} query block {}", where, s / chunk.query_blocks, s % chunk.query_blocks);
    const std::span<const float> votes(chunk.token_votes.data() + s * n, static_cast<std::size_t>(n));
    if (std::any_of(votes.begin(), votes.end(), [](float vote) { return std::isnan(vote); })) {
      throw Violation(at + ": SKE-6: a vote is NaN");
    }
    const std::span<const std::int32_t> got = chunk.entries(s);
    const std::vector<std::int32_t> wanted = expected_sketch_set(options_, begin, votes);
    if (!std::equal(got.begin(), got.end(), wanted.begin(), wanted.end())) {
      throw Violation(fmt::format("{}: SKE-9: set [{}], replay gives [{}]", at, fmt::join(got, " "),
                                  fmt::join(wanted, " ")));
    }
  }
}

void Replay::take(const ChunkTrace& chunk, const std::string& where) {
  const ScoreType type = options_.score_type;
  const bool sparse = chunk.chunk.mode == ChunkMode::sparse;
  if (options_.select != Select::h2o) {
    if (sparse) {
      options_.select == Select::blocks ? take_blocks(chunk, where) : take_sketches(chunk, where);
    } else if (chunk.memory_count != 0) {
      throw Violation(where + " reads a memory set");
    }
    for (Head& head : heads_)
      head.scores.resize(head.scores.size() + static_cast<std::size_t>(chunk.length()));
    return;  // SEL-9: scores stay 0, memory() shows no set
  }
  const bool reads = sparse && chunk.chunk.begin > 0;
  if (!reads && chunk.memory_count != 0) throw Violation(where + " reads a memory set");
  const auto count = static_cast<std::size_t>(chunk.memory_count);
  const auto length = static_cast<std::size_t>(chunk.length());
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    Head& head = heads_[h];
    const std::string at = fmt::format("{} head {}", where, h);
    if (reads) {  // MEM-5: built when the chunk starts, from all tokens before it
      head.set = expected_set(head.set, set_end_, chunk.chunk.begin, options_.local, options_.heavy,
                              head.scores, options_.pinned);
      const auto* first = chunk.memory.data() + h * count;
      const std::vector<std::int32_t> got(first, first + count);
      if (got != head.set) {
        throw Violation(fmt::format("{}: memory set [{}], replay gives [{}]", at, fmt::join(got, " "),
                                    fmt::join(head.set, " ")));
      }
      require_set_laws(got, chunk.chunk.begin, options_, at);
      require_best_of_all(got, head.scores, chunk.chunk.begin, options_, at);
      for (std::size_t i = 0; i < count; ++i) {  // SCORE-3: once per chunk, the sum in F32
        float& score = head.scores[static_cast<std::size_t>(got[i])];
        const float before = score;
        const float sum = score + chunk.colsum_inter[h * count + i];
        score = score_value(type, score_bits(type, sum));
        if (std::isfinite(score) && score < before) {
          throw Violation(fmt::format("{}: the score of {} falls (SCORE-5)", at, got[i]));
        }
      }
    }
    for (std::size_t t = 0; t < length; ++t) {  // SCORE-2 in sparse chunks, else 0
      const float sum = sparse ? chunk.colsum_intra[h * length + t] : 0.0f;
      head.scores.push_back(score_value(type, score_bits(type, sum)));
    }
  }
  if (reads) set_end_ = chunk.chunk.begin;
}

void Replay::require_scores(const std::vector<std::uint32_t>& bits, const std::string& where) const {
  const ScoreType type = options_.score_type;
  std::size_t at = 0;
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    for (std::size_t p = 0; p < heads_[h].scores.size(); ++p, ++at) {
      const std::uint32_t wanted = score_bits(type, heads_[h].scores[p]);
      if (at < bits.size() && bits[at] == wanted) continue;
      // F32 scores may hold any NaN.
      if (at < bits.size() && type == ScoreType::f32 && std::isnan(score_value(type, wanted)) &&
          std::isnan(score_value(type, bits[at]))) {
        continue;
      }
      throw Violation(fmt::format("{}: score of head {} position {} is {:#x}, replay gives {:#x}", where, h,
                                  p, at < bits.size() ? bits[at] : 0u, wanted));
    }
  }
  if (at != bits.size()) throw Violation(fmt::format("{}: {} scores, replay has {}", where, bits.size(), at));
}

std::vector<std::int32_t> Replay::sets() const {
  std::vector<std::int32_t> all;
  for (const Head& head : heads_) all.insert(all.end(), head.set.begin(), head.set.end());
  return all;
}

namespace {

// Queries and keys of a layer, and what else forms estimates, are such that every estimate is finite in F32 (SEL-5).
bool ordinary(const Problem& problem, std::int64_t layer) {
  constexpr float kLargest = 0x1p15f;  // below the largest F16: stored keys are finite, too
  const auto small = [](const std::vector<float>& values) {
    return std::all_of(values.begin(), values.end(), [](float x) { return std::fabs(x) <= kLargest; });
  };
  const LayerInput& input = problem.layers[static_cast<std::size_t>(layer)];
  return small(input.q.values) && small(input.k.values) && small(problem.options.alibi) &&
         std::fabs(problem.options.scale.value_or(1.0)) <= 16.0;
}

// SEL-12 with such numbers: every searched candidate has a vote that is not -infinity, and enough are searched.
void require_searched(const EffectiveOptions& options, const ChunkTrace& chunk, std::int64_t heads_kv,
                      const std::string& where) {
  const std::int64_t n = chunk.candidate_blocks;
  const std::int64_t wanted = regions_searched(options, n);
  for (std::int64_t s = 0; s < heads_kv * chunk.query_blocks && n > 0; ++s) {
    const std::span<const float> votes(chunk.block_votes.data() + s * n, static_cast<std::size_t>(n));
    const std::vector<bool> searched = searched_regions(votes);
    const std::int64_t count = std::count(searched.begin(), searched.end(), true);
    if (count < wanted) {
      throw Violation(fmt::format("{} set {}: {} of {} regions are searched, not {} (SEL-12)", where, s,
                                  count, searched.size(), wanted));
    }
    for (std::int64_t b = 0; b < n; ++b) {
      const auto region = static_cast<std::size_t>(b / 32);
      if (region < searched.size() && !searched[region]) continue;
      if (votes[static_cast<std::size_t>(b)] > -std::numeric_limits<float>::infinity()) continue;
      throw Violation(
          fmt::format("{} set {}: candidate {} of {} has no vote (SEL-6, SEL-12)", where, s, b, n));
    }
  }
}

}  // namespace

void require_replay(const Problem& problem, const Trace& trace) {
  const EffectiveOptions options = expected_options(problem.shape, problem.options);
  const std::vector<std::vector<Chunk>> plans = expected_plans(problem);
  if (trace.plans.size() != plans.size()) throw Violation("PLAN: wrong number of steps");
  for (std::size_t s = 0; s < plans.size(); ++s) {
    const auto same = [](const Chunk& a, const Chunk& b) {
      return a.begin == b.begin && a.end == b.end && a.mode == b.mode;
    };
    if (!std::equal(plans[s].begin(), plans[s].end(), trace.plans[s].begin(), trace.plans[s].end(), same)) {
      std::string text;
      for (const Chunk& chunk : trace.plans[s]) {
        text += fmt::format(" [{}, {}) mode {}", chunk.begin, chunk.end, static_cast<int>(chunk.mode));
      }
      throw Violation(fmt::format("PLAN-1: step {} was cut into{}", s, text));
    }
  }

  for (std::size_t l = 0; l < trace.layers.size(); ++l) {
    const LayerTrace& said = trace.layers[l];
    const bool finite = ordinary(problem, static_cast<std::int64_t>(l));
    if (said.snapshots.size() != plans.size()) throw Violation("replay needs a snapshot after every step");
    Replay replay(options, problem.shape.n_head, problem.shape.n_head_kv);
    std::size_t next = 0;
    for (std::size_t s = 0; s < plans.size(); ++s) {
      for (const Chunk& planned : layer_chunks(options, static_cast<std::int64_t>(l), plans[s])) {
        const std::string where = fmt::format("layer {} chunk [{}, {})", l, planned.begin, planned.end);
        if (next == said.chunks.size()) throw Violation(where + " was never reported");
        const ChunkTrace& chunk = said.chunks[next++];
        if (chunk.chunk.begin != planned.begin || chunk.chunk.end != planned.end ||
            chunk.chunk.mode != planned.mode) {
          throw Violation(fmt::format("{}: reported as [{}, {}) mode {}", where, chunk.chunk.begin,
                                      chunk.chunk.end, static_cast<int>(chunk.chunk.mode)));
        }
        replay.take(chunk, where);
        if (finite) require_searched(options, chunk, problem.shape.n_head_kv, where);
      }
      const std::string where = fmt::format("layer {} after step {}", l, s);
      replay.require_scores(said.snapshots[s].scores, where);
      if (said.snapshots[s].memory != replay.sets()) {
        throw Violation(where + ": memory() is not the set that was built last");
      }
    }
    if (next != said.chunks.size())
      throw Violation(fmt::format("layer {}: more chunks reported than planned", l));
  }
}

}  // namespace headwater::conformance
