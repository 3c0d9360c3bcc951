#include "tests/reference/definition.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace headwater::reference::test {
namespace {

using Real = long double;

/// Who sees whom, for one query head: the logits as the spec writes them.
struct Head {
  const Inputs& in;
  const Settings& set;
  std::int64_t h;

  [[nodiscard]] Real query(std::int64_t i, std::int64_t x) const {
    return in.q[static_cast<std::size_t>((i * in.n_head + h) * in.d_head + x)];
  }
  [[nodiscard]] Real key(std::int64_t j, std::int64_t x) const {
    const std::int64_t group = in.n_head / in.n_head_kv;
    return in.k[static_cast<std::size_t>((j * in.n_head_kv + h / group) * in.d_head + x)];
  }
  [[nodiscard]] Real product(std::int64_t i, std::int64_t j) const {
    Real sum = 0;
    for (std::int64_t x = 0; x < in.d_head; ++x) sum += query(i, x) * key(j, x);
    return sum;
  }
  [[nodiscard]] Real logit(std::int64_t i, std::int64_t j) const {
    return capped_and_biased(set.scale * product(i, j), i, j);
  }
  [[nodiscard]] Real capped_and_biased(Real s, std::int64_t i, std::int64_t j) const {
    if (set.softcap != 0) s = set.softcap * std::tanh(s / set.softcap);
    if (!set.alibi.empty())
      s -= static_cast<Real>(set.alibi[static_cast<std::size_t>(h)]) * static_cast<Real>(i - j);
    return s;
  }
  [[nodiscard]] Real exponential(std::int64_t i, std::int64_t j) const { return std::exp(logit(i, j)); }
  [[nodiscard]] Real sink() const {
    return set.sinks.empty() ? 0 : std::exp(static_cast<Real>(set.sinks[static_cast<std::size_t>(h)]));
  }
  [[nodiscard]] double value(std::int64_t j, std::int64_t c) const {
    const std::int64_t group = in.n_head / in.n_head_kv;
    return in.v[static_cast<std::size_t>((j * in.n_head_kv + h / group) * in.d_value + c)];
  }
};

/// A score of BF16: the float cut to 8 significant bits by adding and subtracting, in the range that tests
/// use.
float rounded(float x, bool to_bf16) {
  if (!to_bf16 || x == 0.0F) return x;
  const double unit = std::exp2(std::floor(std::log2(static_cast<double>(x))) - 7);
  return static_cast<float>(std::rint(static_cast<double>(x) / unit) * unit);
}

/// Output and log-sum-exp of one query over everything it sees and the sink.
void attend(const Head& head, std::int64_t i, const std::vector<std::int64_t>& seen, Defined& result) {
  Real total = head.sink();
  for (const std::int64_t j : seen) total += head.exponential(i, j);
  const std::int64_t row = i * head.in.n_head + head.h;
  result.lse[static_cast<std::size_t>(row)] = static_cast<double>(std::log(total));
  for (std::int64_t c = 0; c < head.in.d_value; ++c) {
    Real sum = 0;
    for (const std::int64_t j : seen)
      sum += head.exponential(i, j) / total * static_cast<Real>(head.value(j, c));
    result.out[static_cast<std::size_t>(row * head.in.d_value + c)] = static_cast<double>(sum);
  }
}

/// What each head still has: tokens that no selection has dropped so far (MEM-2: they alone can be chosen
/// again).
using Alive = std::vector<bool>;

std::vector<std::int32_t> select(Alive& alive, const float* score, std::int64_t end, const Settings& set) {
  std::vector<std::int32_t> chosen;
  const std::int64_t first_local = end > set.local ? end - set.local : 0;
  for (std::int64_t j = 0; j < end; ++j) {
    std::int64_t better = 0;
    for (std::int64_t other = 0; other < first_local; ++other) {
      if (!alive[static_cast<std::size_t>(other)] || other == j) continue;
      if (other < set.pinned || score[other] > score[j] || (score[other] == score[j] && other < j)) ++better;
    }
    const bool chosen_before_others = j < set.pinned;  // MEM-7, and A <= H
    if (j >= first_local || chosen_before_others ||
        (alive[static_cast<std::size_t>(j)] && better < set.heavy)) {
      chosen.push_back(static_cast<std::int32_t>(j));
    }
  }
  for (std::int64_t j = 0; j < end; ++j) {
    alive[static_cast<std::size_t>(j)] = std::count(chosen.begin(), chosen.end(), j) != 0;
  }
  return chosen;
}

void define_sparse(const Inputs& in, const Settings& set, DefinedChunk& chunk, std::vector<Alive>& alive,
                   Defined& result) {
  for (std::int64_t h = 0; h < in.n_head; ++h) {
    const Head head{in, set, h};
    float* score = result.scores.data() + h * in.n;
    std::vector<std::int32_t> memory;
    if (chunk.begin > 0) memory = select(alive[static_cast<std::size_t>(h)], score, chunk.begin, set);

    std::vector<Real> intra(static_cast<std::size_t>(chunk.end - chunk.begin), 0);
    std::vector<Real> inter(memory.size(), 0);
    for (std::int64_t i = chunk.begin; i < chunk.end; ++i) {
      std::vector<std::int64_t> seen(memory.begin(), memory.end());
      Real own = head.sink();
      for (std::int64_t j = chunk.begin; j <= i; ++j) {
        own += head.exponential(i, j);
        seen.push_back(j);
      }
      for (std::int64_t j = chunk.begin; j <= i; ++j) {
        intra[static_cast<std::size_t>(j - chunk.begin)] += head.exponential(i, j) / own;
      }
      Real far = 0;
      for (const std::int32_t j : memory) far += head.exponential(i, j);
      for (std::size_t e = 0; e < memory.size(); ++e) inter[e] += head.exponential(i, memory[e]) / far;
      attend(head, i, seen, result);
    }
    std::vector<float> colsum_inter;
    for (std::size_t e = 0; e < memory.size(); ++e) {
      colsum_inter.push_back(static_cast<float>(inter[e]));
      score[memory[e]] = rounded(score[memory[e]] + colsum_inter.back(), set.bf16_scores);
    }
    std::vector<float> colsum_intra;
    for (std::int64_t j = chunk.begin; j < chunk.end; ++j) {
      colsum_intra.push_back(static_cast<float>(intra[static_cast<std::size_t>(j - chunk.begin)]));
      score[j] = rounded(colsum_intra.back(), set.bf16_scores);
    }
    chunk.memory.push_back(memory);
    chunk.colsum_inter.push_back(colsum_inter);
    chunk.colsum_intra.push_back(colsum_intra);
  }
}

/// The rows [first, end) of a pool (SEL-4).
struct Rows {
  std::int64_t first, end;
  [[nodiscard]] std::int64_t last() const { return end - 1; }
};

/// The logit of a pool: products are linear in the query, so the mean of theirs is that of its mean.
Real pooled_logit(const Head& head, const Rows& pool, std::int64_t j) {
  Real sum = 0;
  for (std::int64_t i = pool.first; i < pool.end; ++i) sum += head.product(i, j);
  const Real mean = sum / static_cast<Real>(pool.end - pool.first);
  return head.capped_and_biased(head.set.scale * mean, pool.last(), j);
}

/// SEL-5 for `keys` consecutive keys from `first` on, by moments: variances as mean squares less squared means. A region
/// is a block of all of its keys, for its blocks are of equal size.
Real pooled_estimate(const Head& head, const Rows& pool, std::int64_t first, std::int64_t keys) {
  constexpr std::int64_t kColumns = 8;  // of a group, which share a variance
  const auto count = static_cast<Real>(keys);
  Real mean = 0;
  Real spread = 0;
  for (std::int64_t group = 0; group < head.in.d_head; group += kColumns) {
    const std::int64_t end = std::min(group + kColumns, head.in.d_head);
    Real queries = 0;
    Real variance = 0;
    for (std::int64_t x = group; x < end; ++x) {
      Real query = 0;
      for (std::int64_t i = pool.first; i < pool.end; ++i)
        query += head.query(i, x) / static_cast<Real>(pool.end - pool.first);
      Real sum = 0;
      Real squares = 0;
      for (std::int64_t j = first; j < first + keys; ++j) {
        sum += head.key(j, x);
        squares += head.key(j, x) * head.key(j, x);
      }
      mean += query * sum / count;
      queries += query * query;
      variance += (squares / count - sum / count * sum / count) / static_cast<Real>(end - group);
    }
    spread += queries * variance;
  }
  const Real s = head.set.scale;
  return head.capped_and_biased(s * mean + s * s * spread / 2, pool.last(), first + keys - 1);
}

/// Whether fewer than `most` votes come before that of `entry`: larger ones, and equal ones of earlier entries. The
/// first `pinned` entries come before all others (MEM-7).
bool among_best(const std::vector<float>& votes, std::size_t entry, std::int64_t most,
                std::int64_t pinned = 0) {
  const auto first = static_cast<std::size_t>(pinned);
  if (entry < first) return static_cast<std::int64_t>(entry) < most;
  std::int64_t before = 0;
  for (std::size_t other = 0; other < votes.size(); ++other) {
    if (other < first || votes[other] > votes[entry] || (votes[other] == votes[entry] && other < entry)) {
      ++before;
    }
  }
  return before < most;
}

/// SEL-6: votes on the keys [0, keys), [keys, 2 keys), ...; -infinity where `searched` is false.
std::vector<float> define_votes(const std::vector<Head>& heads, const std::vector<Rows>& pools,
                                std::int64_t keys, const std::vector<bool>& searched) {
  constexpr Real kLeast = -std::numeric_limits<Real>::infinity();
  std::vector<Real> largest(searched.size(), kLeast);
  for (const Head& head : heads) {
    for (const Rows& pool : pools) {
      std::vector<Real> estimates(searched.size(), kLeast);
      for (std::size_t b = 0; b < searched.size(); ++b) {
        if (searched[b])
          estimates[b] = pooled_estimate(head, pool, static_cast<std::int64_t>(b) * keys, keys);
      }
      Real best = kLeast;
      for (const Real e : estimates) best = std::max(best, e);
      for (std::size_t b = 0; b < searched.size(); ++b) {
        if (searched[b]) largest[b] = std::max(largest[b], estimates[b] - best);
      }
    }
  }
  return {largest.begin(), largest.end()};
}

/// SEL-12: which of the candidates are searched.
std::vector<bool> define_searched(const std::vector<Head>& heads, const std::vector<Rows>& pools,
                                  std::size_t candidates, const Settings& set) {
  std::vector<bool> searched(candidates, true);
  if (candidates <= 2048) return searched;
  const std::size_t regions = candidates / 32;
  const std::vector<float> votes =
      define_votes(heads, pools, 32 * set.key_block, std::vector<bool>(regions, true));
  std::int64_t most = 16;
  while (8 * set.key_block * most < set.refine * set.heavy) ++most;
  for (std::size_t b = 0; b < 32 * regions; ++b) searched[b] = among_best(votes, b / 32, most);
  return searched;
}

void define_blocks(const Inputs& in, const Settings& set, DefinedChunk& chunk, Defined& result) {
  for (std::int64_t kv_head = 0; kv_head < in.n_head_kv; ++kv_head) {
    for (std::int64_t first = chunk.begin; first < chunk.end; first += set.query_block) {
      const Rows rows{first, std::min(first + set.query_block, chunk.end)};
      chunk.sets.push_back(define_set(in, set, chunk.begin, rows.first, rows.end, kv_head));
      for (std::int64_t h = 0; h < in.n_head; ++h) {
        if (h / (in.n_head / in.n_head_kv) != kv_head) continue;
        for (std::int64_t i = rows.first; i < rows.end; ++i) {
          const std::vector<std::int32_t>& positions = chunk.sets.back().positions;
          std::vector<std::int64_t> seen(positions.begin(), positions.end());
          for (std::int64_t j = chunk.begin; j <= i; ++j) seen.push_back(j);
          attend(Head{in, set, h}, i, seen, result);
        }
      }
    }
  }
}

void define_dense(const Inputs& in, const Settings& set, const DefinedChunk& chunk, Defined& result) {
  for (std::int64_t h = 0; h < in.n_head; ++h) {
    for (std::int64_t i = chunk.begin; i < chunk.end; ++i) {
      std::vector<std::int64_t> seen;
      for (std::int64_t j = 0; j <= i; ++j) seen.push_back(j);
      attend(Head{in, set, h}, i, seen, result);
    }
  }
}

}  // namespace

DefinedSet define_set(const Inputs& in, const Settings& set, std::int64_t begin, std::int64_t first_row,
                      std::int64_t end, std::int64_t kv_head) {
  std::vector<Head> heads;
  for (std::int64_t h = 0; h < in.n_head; ++h) {
    if (h / (in.n_head / in.n_head_kv) == kv_head) heads.push_back(Head{in, set, h});
  }
  const auto cut = [&](std::int64_t size) {
    std::vector<Rows> pools;
    for (std::int64_t first = first_row; first < end; first += size) {
      pools.push_back({first, std::min(first + size, end)});
    }
    return pools;
  };
  const std::vector<Rows> pools = cut(set.pool);
  const std::vector<Rows> half_pools = cut((set.pool + 1) / 2);
  // Local begins at a multiple of K, or is empty.
  std::int64_t first_local = begin > set.local ? begin - set.local : 0;
  while (first_local < begin && first_local % set.key_block != 0) ++first_local;

  DefinedSet result;
  std::size_t candidates = 0;
  while (set.heavy > 0 && static_cast<std::int64_t>(candidates + 1) * set.key_block <= first_local)
    ++candidates;
  result.block_votes =
      define_votes(heads, pools, set.key_block, define_searched(heads, pools, candidates, set));
  std::vector<std::int32_t> kept;
  for (std::size_t b = 0; b < result.block_votes.size(); ++b) {
    if (!among_best(result.block_votes, b, set.refine * set.heavy / set.key_block,
                    set.pinned / set.key_block)) {
      continue;
    }
    for (std::int64_t key = 0; key < set.key_block; ++key) {
      kept.push_back(static_cast<std::int32_t>(static_cast<std::int64_t>(b) * set.key_block + key));
    }
  }
  const bool second_stage = set.refine > 1 && static_cast<std::int64_t>(kept.size()) > set.heavy;
  for (std::size_t r = 0; second_stage && r < kept.size(); ++r) {
    Real largest = 0;
    for (const Head& head : heads) {
      for (const Rows& pool : half_pools) {
        Real total = 0;
        for (const std::int32_t j : kept) total += std::exp(pooled_logit(head, pool, j));
        largest = std::max(largest, std::exp(pooled_logit(head, pool, kept[r])) / total);
      }
    }
    result.token_votes.push_back(static_cast<float>(largest));
  }
  for (std::size_t r = 0; r < kept.size(); ++r) {
    // Pinned tokens are the first of the kept ones.
    if (second_stage && !among_best(result.token_votes, r, set.heavy, set.pinned)) continue;
    result.positions.push_back(kept[r]);
  }
  for (std::int64_t j = first_local; j < begin; ++j) result.positions.push_back(static_cast<std::int32_t>(j));
  return result;
}

std::vector<DefinedChunk> define_chunks(const Settings& set, const std::vector<Step>& steps) {
  std::vector<DefinedChunk> chunks;
  std::int64_t base = 0;
  bool in_turn = false;
  bool sparse_turn = false;
  for (const Step& step : steps) {
    ChunkMode mode = ChunkMode::decode;
    if (step.kind == Step::Kind::prefill) {
      const std::int64_t length = step.turn_length != 0 ? step.turn_length : step.n;
      const bool long_enough = length >= set.dense_below && (base == 0 || length > set.chunk);
      if (!in_turn) sparse_turn = set.local + set.heavy > 0 && long_enough;
      mode = sparse_turn && !set.dense_layer ? ChunkMode::sparse : ChunkMode::dense;
    }
    in_turn = step.kind == Step::Kind::prefill;
    for (std::int64_t t = 0; t < step.n; ++t) {
      const bool opens_chunk = t == 0 || (mode == ChunkMode::sparse && t % set.batch % set.chunk == 0);
      if (opens_chunk) chunks.push_back(DefinedChunk{base + t, base + t, mode, {}, {}, {}, {}});
      ++chunks.back().end;
    }
    base += step.n;
  }
  return chunks;
}

Defined define(const Inputs& in, const Settings& set, const std::vector<Step>& steps) {
  Defined result;
  result.out.assign(static_cast<std::size_t>(in.n * in.n_head * in.d_value), 0);
  result.lse.assign(static_cast<std::size_t>(in.n * in.n_head), 0);
  result.scores.assign(static_cast<std::size_t>(in.n_head * in.n), 0);
  std::vector<Alive> alive(static_cast<std::size_t>(in.n_head), Alive(static_cast<std::size_t>(in.n), true));
  result.chunks = define_chunks(set, steps);
  for (DefinedChunk& chunk : result.chunks) {
    if (chunk.mode == ChunkMode::sparse && set.blocks) {
      define_blocks(in, set, chunk, result);
    } else if (chunk.mode == ChunkMode::sparse) {
      define_sparse(in, set, chunk, alive, result);
    } else {
      define_dense(in, set, chunk, result);
    }
  }
  return result;
}

}  // namespace headwater::reference::test
