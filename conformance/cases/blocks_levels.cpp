// Rule `blocks` with more candidates than are all estimated (SEL-12): which of them are searched, judged by the votes that an
// engine reports; and what must hold whatever is searched.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "conformance/forced.hpp"
#include "conformance/formats.hpp"
#include "conformance/replay.hpp"

namespace headwater::conformance {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Key blocks of one token or few: thousands of candidates are then cheap.
struct Sizes {
  DType type = DType::f32;
  std::int64_t group = 1;
  std::int64_t kv = 1;
  std::int64_t d = 16;
  std::int64_t chunk = 32;
  std::int64_t local = 8;
  std::int64_t heavy = 16;
  std::int64_t key_block = 1;
  std::int64_t query_block = 16;
  std::int64_t pool = 4;
  std::int64_t refine = 2;
};

// Two turns; the second begins with so many candidates, the last of them stored by decode steps, and is `length` tokens long.
Problem levels_problem(Random& random, const Sizes& sizes, std::int64_t candidates, std::int64_t length) {
  Problem problem;
  problem.shape.n_head = sizes.group * sizes.kv;
  problem.shape.n_head_kv = sizes.kv;
  problem.shape.d_head = sizes.d;
  problem.shape.d_value = 8;
  Options& options = problem.options;
  options.select = Select::blocks;
  options.chunk = sizes.chunk;
  options.batch = 64 * sizes.chunk;
  options.local = sizes.local;
  options.heavy = sizes.heavy;
  options.key_block = sizes.key_block;
  options.query_block = sizes.query_block;
  options.pool = sizes.pool;
  options.refine = sizes.refine;
  options.clamp = false;
  problem.q_type = problem.k_type = problem.v_type = problem.shape.kv_type = sizes.type;
  const std::int64_t before = candidates * sizes.key_block + sizes.local;
  const std::int64_t decoded = random.integer(1, 12);
  problem.steps = {Step::prefill(before - decoded), Step::decode(decoded), Step::prefill(length)};
  problem.shape.capacity = problem.tokens();
  problem.fill_normal(random);
  return problem;
}

// Keys of every region about a point of their own, near each other or far apart: means tell some regions from others, and
// variances the rest.
void gather_keys(Random& random, Problem& problem) {
  Tensor& k = problem.layers[0].k;
  std::vector<double> centre(static_cast<std::size_t>(k.heads * k.width));
  double spread = 1.0;
  for (std::int64_t t = 0; t < k.n; ++t) {
    if (t % (32 * problem.options.key_block) == 0) {
      for (double& x : centre) x = 0.4 * random.normal();
      spread = random.uniform(0.3, 1.7);
    }
    for (std::int64_t i = 0; i < k.heads * k.width; ++i) {
      float& x = k.row(t, 0)[i];
      x = round_to(k.type, static_cast<float>(spread * x + centre[static_cast<std::size_t>(i)]));
    }
  }
}

// The chunks of the second turn alone: those before it are judged by the other cases.
Part second_turn(const Problem& problem) {
  const std::int64_t begin = problem.tokens() - problem.steps.back().n;
  return {.chunk = [begin](const Chunk& chunk) { return chunk.begin >= begin; }};
}

bool has_levels(const ChunkTrace& chunk) { return chunk.candidate_blocks > 2048; }

// Around the border, with and without candidates behind the last whole region, and with more regions to search than 16.
void levels(Context& context) {
  require_rule_blocks(*context.engine);
  Random random(context.seed);
  struct Round {
    Sizes sizes;
    std::int64_t candidates;
    double softcap = 0.0;
    bool slopes = false;
  };
  const std::vector<Round> rounds{
      {{.group = 4}, 2048},  // all of them; the second chunk has 2080, whole regions
      {{.type = DType::bf16}, 2049, 0.0, true},
      {{.type = DType::f16, .refine = 1}, 2079, 5.0},
      {{.type = DType::bf16, .group = 4, .local = 5, .refine = 16}, 2101},  // G 32
      {{.local = 0, .heavy = 25, .refine = 13}, 2081, 0.0, true},           // G 41, rounded up
      {{.type = DType::bf16, .heavy = 32, .refine = 16}, 2080},             // G 64 of 65
      {{.type = DType::f16, .heavy = 40, .refine = 16}, 2050, 3.0},         // G beyond all
      {{.kv = 2, .local = 3, .heavy = 9, .key_block = 3, .query_block = 8}, 2060, 3.0, true},
  };
  for (const Round& round : rounds) {
    if (context.quick && round.sizes.type == DType::f16) continue;
    Problem problem = levels_problem(random, round.sizes, round.candidates, 55);
    problem.options.softcap = round.softcap;
    for (std::int64_t h = 0; round.slopes && h < problem.shape.n_head; ++h) {
      problem.options.alibi.push_back(static_cast<float>(random.uniform(0.001, 0.02)));
    }
    problem.options.threads = context.threads;
    gather_keys(random, problem);
    require_conforming_in_part(context, problem, second_turn(problem));
  }
}
const Register kLevels{
    {"blocks.levels", {"SEL-5", "SEL-6", "SEL-11", "SEL-12"}, "votes", Lane::bound, true, levels}};

// Small integers, alike in every other key of a region: means and variances of regions are short binary fractions, too. So
// there is one right choice of regions; most of their votes are equal, and the lower number is searched.
void exact_levels(Context& context) {
  require_rule_blocks(*context.engine);
  Random random(context.seed);
  for (int round = 0; round < context.rounds(12); ++round) {
    const std::int64_t block = random.pick(std::vector<std::int64_t>{1, 1, 2});
    const Sizes sizes{
        .type = random.pick(std::vector<DType>{DType::f32, DType::f16, DType::bf16}),
        .group = random.integer(1, 2),
        .kv = random.integer(1, 2),
        .d = random.pick(std::vector<std::int64_t>{1, 2, 4, 8, 9, 12, 16}),  // groups of 2^n columns
        .local = random.integer(0, 9),
        .heavy = block * random.integer(1, 12),
        .key_block = block,
        .refine = random.pick(std::vector<std::int64_t>{1, 2, 16})};
    Problem problem = levels_problem(random, sizes, random.integer(2049, 2200), 36);
    problem.options.scale = random.pick(std::vector<double>{1.0, 0.5, -0.25});
    for (float& x : problem.layers[0].q.values) x = static_cast<float>(random.integer(-1, 1));
    const std::int64_t period = random.integer(1, block);
    Tensor& k = problem.layers[0].k;
    std::vector<int> centre(static_cast<std::size_t>(k.heads * k.width));
    std::vector<int> spread(centre.size());
    for (std::int64_t t = 0; t < k.n; ++t) {
      if (t % (32 * block) == 0) {
        for (int& x : centre) x = static_cast<int>(random.integer(-1, 1));
        for (int& x : spread) x = static_cast<int>(random.integer(0, 1));
      }
      for (std::size_t i = 0; i < centre.size(); ++i) {
        k.row(t, 0)[i] =
            static_cast<float>(t / period % 2 == 0 ? centre[i] + spread[i] : centre[i] - spread[i]);
      }
    }
    const Trace trace = replayed(*context.engine, problem);
    const VoteArithmetic arithmetic = vote_arithmetic_of(*context.engine, sizes.type, sizes.type);
    const EffectiveOptions options = expected_options(problem.shape, problem.options);
    for (const ChunkTrace& chunk : trace.layers[0].chunks) {
      // The last pool of the first turn may be of three rows, whose mean is no binary fraction.
      const bool judged = has_levels(chunk) && second_turn(problem).chunk(chunk.chunk);
      for (std::int64_t set = 0; judged && set < chunk.query_blocks * sizes.kv; ++set) {
        const VoteOracle oracle(arithmetic, problem, 0, chunk, set / chunk.query_blocks);
        const SetVotes wanted = oracle.votes(set % chunk.query_blocks);
        std::vector<Eigen::Index> order(wanted.region_searched.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](Eigen::Index a, Eigen::Index b) {
          return wanted.regions.vote[a] > wanted.regions.vote[b];
        });
        const auto searched = static_cast<std::size_t>(regions_searched(options, chunk.candidate_blocks));
        const std::string where =
            fmt::format("chunk [{}, {}) set {}", chunk.chunk.begin, chunk.chunk.end, set);
        for (std::size_t i = 0; i < order.size(); ++i) {
          if (wanted.region_searched[static_cast<std::size_t>(order[i])] != (i < searched)) {
            broken(fmt::format("{}: region {}, number {} by its vote {:.9g}, is {}searched", where, order[i],
                               i, wanted.regions.vote[order[i]], i < searched ? "not " : ""),
                   problem);
          }
        }
        for (std::size_t i = 0; i < wanted.searched.size(); ++i) {
          const std::int64_t b = wanted.searched[i];
          const float got = chunk.block_votes[static_cast<std::size_t>(set * chunk.candidate_blocks + b)];
          const auto right = static_cast<float>(wanted.blocks.vote[static_cast<Eigen::Index>(i)]);
          if (got != right) {
            broken(fmt::format("{}: block {} has the vote {:.9g}, not {:.9g}", where, b, got, right),
                   problem);
          }
        }
      }
    }
  }
}
const Register kExact{
    {"blocks.levels_exact", {"SEL-5", "SEL-6", "SEL-12"}, "votes", Lane::exact, true, exact_levels}};

// Pinned key blocks in regions that are not searched: their votes are -infinity, and they are kept all the same (SEL-6). The
// keys of the first two regions are alike and 0, so every other region has a higher vote.
void pinned(Context& context) {
  require_rule_blocks(*context.engine);
  require_pinned(*context.engine);
  Random random(context.seed);
  for (int round = 0; round < context.rounds(3); ++round) {
    const std::int64_t block = 1 + round / 2 % 2;
    const Sizes sizes{.type = random.pick(std::vector<DType>{DType::f32, DType::f16, DType::bf16}),
                      .group = random.integer(1, 2),
                      .kv = random.integer(1, 2),
                      .d = random.integer(2, 8),
                      .heavy = 40 * block,
                      .key_block = block,
                      .refine = round % 2 == 0 ? 2 : 1};
    Problem problem = levels_problem(random, sizes, random.integer(2049, 2150), random.integer(33, 60));
    problem.options.pinned = block * random.pick(std::vector<std::int64_t>{1, 40, random.integer(33, 39)});
    problem.options.threads = context.threads;
    Tensor& k = problem.layers[0].k;
    std::fill_n(k.values.begin(), 64 * block * k.heads * k.width, 0.0f);
    const Trace trace = replayed(*context.engine, problem);
    require_forced_in_part(context, problem, trace, second_turn(problem));
    for (const ChunkTrace& chunk : trace.layers[0].chunks) {
      for (std::int64_t set = 0; has_levels(chunk) && set < sizes.kv * chunk.query_blocks; ++set) {
        const auto* votes = chunk.block_votes.data() + set * chunk.candidate_blocks;
        if (!std::all_of(votes, votes + 64, [](float vote) { return vote == kNever; })) {
          broken("a region of zeros is searched", problem);
        }
        const auto* entries = chunk.memory.data() + set * chunk.memory_count;
        for (std::int64_t p = 0; p < problem.options.pinned; ++p) {
          if (entries[p] != p) broken(fmt::format("set {}: pinned token {} is missing", set, p), problem);
        }
      }
    }
    // Without an observer votes need not be kept.
    RunStyle style;
    style.observed = false;
    Trace silent = run(*context.engine, problem, style);
    silent.layers[0].chunks = trace.layers[0].chunks;
    require_same(trace, silent, "with and without an observer; " + problem.describe());
  }
}
const Register kPinned{
    {"blocks.levels_pinned", {"MEM-7", "SEL-6", "SEL-7", "SEL-12"}, "votes", Lane::bound, true, pinned}};

void replay(Context& context) {
  require_rule_blocks(*context.engine);
  Random random(context.seed);
  for (int round = 0; round < context.rounds(5); ++round) {
    const std::int64_t block = random.integer(1, 3);
    const std::int64_t pool = random.integer(1, 5);
    const Sizes sizes{.type = random.pick(std::vector<DType>{DType::f32, DType::f16, DType::bf16}),
                      .group = random.integer(1, 3),
                      .kv = random.integer(1, 2),
                      .d = random.integer(1, 9),
                      .chunk = random.integer(40, 70),
                      .local = random.integer(0, 20),
                      .heavy = block * random.integer(1, 16),
                      .key_block = block,
                      .query_block = pool * random.integer(3, 8),
                      .pool = pool,
                      .refine = random.integer(1, 16)};
    Problem problem = levels_problem(random, sizes, random.integer(1960, 2300), random.integer(1, 150));
    if (random.chance(0.5)) gather_keys(random, problem);
    problem.options.threads = context.threads;
    (void)replayed(*context.engine, problem);
  }
}
const Register kReplay{{"blocks.levels_replay",
                        {"SEL-6", "SEL-7", "SEL-8", "SEL-11", "SEL-12"},
                        "selection",
                        Lane::replay,
                        true,
                        replay}};

// Rule and head sizes of use; more than 16384 tokens before the chunks that are judged.
void real_sizes(Context& context) {
  if (context.quick) throw Skipped("sizes of thousands of tokens run without --quick only");
  require_rule_blocks(*context.engine);
  Random random(context.seed);
  for (const DType type : context.types({DType::f32, DType::bf16})) {
    const Sizes sizes{.type = type,
                      .group = 2,
                      .d = type == DType::f32 ? 72 : 128,
                      .chunk = 512,
                      .local = 64,
                      .heavy = 192,
                      .key_block = 8,
                      .query_block = 32};
    Problem problem = levels_problem(random, sizes, 2100, 700);
    problem.shape.d_value = 64;
    problem.options.threads = context.threads;
    problem.fill_normal(random);
    gather_keys(random, problem);
    require_conforming_in_part(context, problem, second_turn(problem));
  }
}
const Register kRealSizes{
    {"blocks.levels_real_sizes", {"SEL-11", "SEL-12"}, "votes", Lane::shape, true, real_sizes}};

// Some problems with levels in both chunks of the second turn.
Problem problem_for(Random& random, int round, int threads) {
  const Sizes sizes{.type = round % 2 == 0 ? DType::f32 : DType::bf16,
                    .group = random.integer(1, 3),
                    .kv = random.integer(1, 2),
                    .d = random.integer(1, 12),
                    .heavy = 8 * random.integer(1, 4),
                    .refine = random.pick(std::vector<std::int64_t>{1, 2, 16})};
  Problem problem = levels_problem(random, sizes, random.integer(2049, 2150), random.integer(33, 80));
  problem.options.threads = threads;
  gather_keys(random, problem);
  return problem;
}

void determinism(Context& context) {
  require_rule_blocks(*context.engine);
  const Claims& claims = context.engine->claims();
  Random random(context.seed);
  for (int round = 0; round < context.rounds(2); ++round) {
    const Problem problem = problem_for(random, round, 1);
    const Trace plain = run(*context.engine, problem);
    Problem other = problem;
    for (const int count : {2, 3, 7}) {
      other.options.threads = count;
      if (claims.bitwise_threads) {
        require_same(plain, run(*context.engine, other), "threads 1 and " + std::to_string(count));
      }
    }
    other = problem;
    other.options.schedule = Schedule::chunk_major;
    require_same(plain, run(*context.engine, other), "layer-major and chunk-major", claims.bitwise_schedules);
    other = problem;
    other.shape.capacity += random.integer(1, 3000);
    require_same(plain, run(*context.engine, other), "tight and roomy capacity");
    const std::unique_ptr<Session> session = context.engine->open(problem.shape, problem.options);
    Problem earlier = problem;
    earlier.steps = {Step::prefill(random.integer(1, problem.shape.capacity))};
    earlier.fill_normal(random);
    (void)run(*session, earlier);
    session->reset();
    require_same(plain, run(*session, problem), "a run after reset");
    // Calls that cut the second turn between its chunks (PLAN-2).
    other = problem;
    const std::int64_t n = other.steps.back().n;
    const std::int64_t s = other.options.chunk;
    other.steps.back() = Step::prefill(s, n);
    other.steps.push_back(Step::prefill(n - s));
    require_same(plain, run(*context.engine, other), "one call and several");
  }
}
const Register kDeterminism{{"blocks.levels_determinism",
                             {"NUM-3", "SCHED-2", "PLAN-2", "SEL-12"},
                             "session",
                             Lane::determinism,
                             true,
                             determinism}};

// Whether one query block of a chunk has the same votes and sets in both traces, all key/value heads.
bool same_sets(const ChunkTrace& a, const ChunkTrace& b, std::int64_t block) {
  const auto same_part = [&](const auto& x, const auto& y, std::int64_t width) {
    const std::int64_t sets = width == 0 ? 0 : static_cast<std::int64_t>(x.size()) / width;
    for (std::int64_t s = block; s < sets; s += a.query_blocks) {
      if (!std::equal(x.begin() + s * width, x.begin() + (s + 1) * width, y.begin() + s * width))
        return false;
    }
    return true;
  };
  return same_part(a.memory, b.memory, a.memory_count) &&
         same_part(a.block_votes, b.block_votes, a.candidate_blocks) &&
         same_part(a.token_votes, b.token_votes, a.voted_tokens);
}

// Changing a token of a chunk with levels changes neither outputs nor votes nor sets of the query blocks before its own; of
// those behind it in the chunk no votes and no sets: the regions of a query block are its own.
void causality(Context& context) {
  require_rule_blocks(*context.engine);
  Random random(context.seed);
  for (int round = 0; round < context.rounds(4); ++round) {
    const Problem problem = problem_for(random, round, context.threads);
    const std::int64_t n = problem.tokens();
    const std::int64_t j = random.integer(n - problem.steps.back().n, n - 1);
    Problem changed = problem;
    for (Tensor* tensor : {&changed.layers[0].q, &changed.layers[0].k, &changed.layers[0].v}) {
      for (std::int64_t i = 0; i < tensor->heads * tensor->width; ++i) {
        tensor->row(j, 0)[i] = round_to(tensor->type, static_cast<float>(4.0 * random.normal()));
      }
    }
    const LayerTrace a = run(*context.engine, problem).layers[0];
    const LayerTrace b = run(*context.engine, changed).layers[0];
    const std::int64_t row = problem.shape.n_head * problem.shape.d_value;
    for (std::size_t c = 0; c < a.chunks.size(); ++c) {
      const ChunkTrace& x = a.chunks[c];
      if (x.chunk.begin > j) continue;  // later chunks see the token as a candidate
      const bool holds = j < x.chunk.end;
      const std::int64_t own = holds && x.query_blocks > 0 ? (j - x.chunk.begin) / x.query_block : -1;
      for (std::int64_t block = 0; block < x.query_blocks; ++block) {
        if (block != own && !same_sets(x, b.chunks[c], block)) {
          broken(fmt::format("changing token {} changed the sets of query block {} of chunk {}", j, block, c),
                 problem);
        }
      }
      const std::int64_t safe = own >= 0 ? x.chunk.begin + own * x.query_block : holds ? j : x.chunk.end;
      if (!std::equal(a.out.begin() + x.chunk.begin * row, a.out.begin() + safe * row,
                      b.out.begin() + x.chunk.begin * row)) {
        broken(fmt::format("changing token {} changed outputs before its query block", j), problem);
      }
      if (own >= 0 && same_sets(x, b.chunks[c], own)) {
        broken(fmt::format("another query at token {} changed no vote of its query block", j), problem);
      }
    }
  }
}
const Register kCausality{
    {"blocks.levels_causality", {"SEL-9", "SEL-10", "SEL-12", "MASK-1"}, "mask", Lane::law, true, causality}};

// What bad rows do is defined. A region with a NaN or an infinity has no estimate: it is not searched while there are enough
// others; where all regions are like that, and for a pool with a NaN query, all votes are equal and the first are searched.
void bad_keys(Context& context) {
  require_rule_blocks(*context.engine);
  Random random(context.seed);
  enum Kind { one_region, every_region, behind_regions, one_query };
  for (int round = 0; round < context.rounds(8); ++round) {
    const auto kind = static_cast<Kind>(round % 4);
    const std::int64_t block = random.integer(1, 2);
    const Sizes sizes{.type = random.pick(std::vector<DType>{DType::f32, DType::f16, DType::bf16}),
                      .group = 2,
                      .kv = 2,
                      .d = random.integer(1, 12),
                      .chunk = 64,
                      .heavy = 8 * block,
                      .key_block = block,
                      .query_block = 32,
                      .refine = random.integer(1, 2)};
    const std::int64_t candidates = random.integer(2049, 2150);
    Problem problem = levels_problem(random, sizes, candidates, 100);
    problem.options.threads = context.threads;
    LayerInput& input = problem.layers[0];
    const std::int64_t bad_head = random.integer(0, 1);
    std::vector<bool> bad(static_cast<std::size_t>(candidates + 200));
    const auto spoil = [&](std::int64_t b) {
      input.k.row(b * block + random.integer(0, block - 1), bad_head)[random.integer(0, sizes.d - 1)] =
          random.pick(std::vector<float>{std::numeric_limits<float>::quiet_NaN(),
                                         std::numeric_limits<float>::infinity(), kNever});
      bad[static_cast<std::size_t>(b)] = true;
    };
    const std::int64_t regions = candidates / 32;
    const std::int64_t n = problem.tokens();
    const std::int64_t query = random.integer(n - 100, n - 1);
    const std::int64_t query_head = random.integer(0, 3);
    if (kind == one_region) spoil(random.integer(0, 32 * regions - 1));
    // Of every region, also of those that the second turn fills.
    for (std::int64_t r = 0; kind == every_region && r < regions + 2; ++r)
      spoil(32 * r + random.integer(0, 31));
    if (kind == behind_regions) spoil(random.integer(std::min(32 * regions, candidates - 1), candidates - 1));
    if (kind == one_query) input.q.row(query, query_head)[0] = std::numeric_limits<float>::quiet_NaN();
    const Trace trace = replayed(*context.engine, problem);
    for (const ChunkTrace& chunk : trace.layers[0].chunks) {
      for (std::int64_t set = 0; has_levels(chunk) && set < 2 * chunk.query_blocks; ++set) {
        const std::int64_t head_kv = set / chunk.query_blocks;
        const std::int64_t first = chunk.chunk.begin + set % chunk.query_blocks * sizes.query_block;
        const bool blind = kind == one_query && query_head / 2 == head_kv && query >= first &&
                           query < first + sizes.query_block;
        const auto is_bad = [&](std::int64_t b) {
          return head_kv == bad_head && bad[static_cast<std::size_t>(b)];
        };
        const std::span<const float> votes(chunk.block_votes.data() + set * chunk.candidate_blocks,
                                           static_cast<std::size_t>(chunk.candidate_blocks));
        const std::string where =
            fmt::format("chunk [{}, {}) set {}", chunk.chunk.begin, chunk.chunk.end, set);
        const std::vector<bool> searched = searched_regions(votes);
        std::int64_t count = 0;
        bool all_bad = true;
        std::vector<bool> bad_region;
        for (std::int64_t r = 0; r < static_cast<std::int64_t>(searched.size()); ++r) {
          bool none = true;
          for (std::int64_t b = 32 * r; b < 32 * (r + 1); ++b) none = none && !is_bad(b);
          bad_region.push_back(!none);
          all_bad = all_bad && !none;
        }
        for (std::size_t r = 0; r < searched.size(); ++r) {
          count += searched[r] ? 1 : 0;
          const bool wrong = blind || all_bad ? searched[r] != (r < 16) : searched[r] && bad_region[r];
          if (wrong) {
            broken(fmt::format("{}: region {} is {}searched", where, r, searched[r] ? "" : "not "), problem);
          }
        }
        if (count != 16) broken(fmt::format("{}: {} regions are searched, not 16", where, count), problem);
        for (std::int64_t b = 0; b < chunk.candidate_blocks; ++b) {
          const auto region = static_cast<std::size_t>(b / 32);
          const float vote = votes[static_cast<std::size_t>(b)];
          const bool none = (region < searched.size() && !searched[region]) || (!blind && is_bad(b));
          const bool right = none ? vote == kNever : blind ? vote == 0.0f : std::isfinite(vote);
          if (!right) broken(fmt::format("{}: block {} has the vote {}", where, b, vote), problem);
        }
      }
    }
  }
}
const Register kBadKeys{{"blocks.levels_bad_keys",
                         {"SEL-5", "SEL-6", "SEL-12", "NUM-2"},
                         "votes",
                         Lane::hostile,
                         true,
                         bad_keys}};

// Region summaries of the oracle against the law of total variance: mean and variance of a region are those of all its keys.
void regions_by_keys(Context& context) {
  Random random(context.seed);
  const VoteArithmetic exact{0x1p-53, 4 * 0x1p-53, 0x1p-1020, 0x1p-53, 0.0};
  for (int round = 0; round < context.rounds(20); ++round) {
    const std::int64_t d = random.integer(1, 9);
    const std::int64_t block = random.integer(1, 6);
    const std::int64_t regions = random.integer(1, 4);
    const std::int64_t rest = random.integer(0, 32 * block - 1);
    const Eigen::MatrixXd keys = Eigen::MatrixXd::NullaryExpr(
        32 * block * regions + rest, d, [&] { return 3.0 + random.normal() * random.uniform(0.0, 2.0); });
    const Summaries got = region_summaries(summaries_of(keys, block, exact), exact);
    const Summaries wanted = summaries_of(keys, 32 * block, exact);
    const auto near = [&](const char* what, const Eigen::MatrixXd& a, const Eigen::MatrixXd& error,
                          const Eigen::MatrixXd& b) {
      if (a.rows() == regions && b.rows() == regions &&
          ((a - b).array().abs() <= 2.0 * error.array()).all() && (error.array() < 1e-12).all())
        return;
      throw Violation(fmt::format("{} of regions of {} keys differ by {:.3g}", what, 32 * block,
                                  a.rows() == b.rows() ? (a - b).cwiseAbs().maxCoeff() : -1.0));
    };
    near("means", got.mean, got.mean_error, wanted.mean);
    near("variances", got.variance, got.variance_error, wanted.variance);
  }
}
const Register kByKeys{{"oracles.regions", {"SEL-12"}, "oracle", Lane::law, false, regions_by_keys}};

}  // namespace
}  // namespace headwater::conformance
