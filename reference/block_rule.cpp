#include "reference/block_rule.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

#include "reference/selection.hpp"
#include "reference/softmax.hpp"

namespace headwater::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// SEL-6: infinite values that are equal differ by 0, not by NaN.
double difference(double a, double b) { return a == b ? 0.0 : a - b; }

/// SEL-6: e(p,h,b) - max_{b'} e(p,h,b') of one pool and query head, one searched block after another.
std::vector<double> pool_votes(const LogitRule& rule, const Pool& pool, const Summaries& summaries,
                               std::int64_t key_block, std::span<const std::int32_t> searched) {
  std::vector<double> votes;
  for (const std::int64_t b : searched) {
    const std::int64_t last_key = (b + 1) * key_block - 1;
    votes.push_back(estimate(rule, pool, summaries.mean.row(b), summaries.variance.row(b), last_key));
  }
  const double best = *std::max_element(votes.begin(), votes.end());
  for (double& vote : votes) vote = difference(vote, best);
  return votes;
}

/// SEL-7: the weights of one pool and query head, token after token; 0 instead of NaN.
std::vector<double> pool_weights(const LogitRule& rule, const Pool& pool,
                                 std::span<const std::int32_t> tokens, const Matrix& k) {
  std::vector<double> logits;
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    logits.push_back(logit(rule, pool.query, k.row(static_cast<std::int64_t>(r)), pool.last, tokens[r]));
  }
  const SoftmaxRow softmax = softmax_row(logits, {}, -kInfinity, 0);  // no sink, and no values
  std::vector<double> weights;
  for (const double s : logits) {
    const double w = weight(softmax, s);
    weights.push_back(std::isnan(w) ? 0.0 : w);
  }
  return weights;
}

/// SEL-3: the mean of each column group of a number for every column.
std::vector<double> group_means(std::span<const double> columns) {
  std::vector<double> means;
  for (std::size_t first = 0; first < columns.size(); first += kGroupColumns) {
    const std::span<const double> group =
        columns.subspan(first, std::min<std::size_t>(kGroupColumns, columns.size() - first));
    means.push_back(std::accumulate(group.begin(), group.end(), 0.0) / static_cast<double>(group.size()));
  }
  return means;
}

std::int64_t column_groups(std::int64_t columns) { return (columns + kGroupColumns - 1) / kGroupColumns; }

/// The rows of k at the given positions, in the order given.
Matrix rows_at(const Matrix& k, std::span<const std::int32_t> positions) {
  Matrix rows(static_cast<std::int64_t>(positions.size()), k.columns);
  for (std::size_t r = 0; r < positions.size(); ++r) {
    const std::span<const double> from = k.row(positions[r]);
    std::copy(from.begin(), from.end(), rows.row(static_cast<std::int64_t>(r)).begin());
  }
  return rows;
}

/// 0, 1, ... count - 1.
std::vector<std::int32_t> numbers_below(std::int64_t count) {
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

/// Each entry the larger of the two.
void take_larger(std::vector<double>& votes, const std::vector<double>& others) {
  for (std::size_t entry = 0; entry < votes.size(); ++entry) {
    votes[entry] = std::max(votes[entry], others[entry]);
  }
}

}  // namespace

// SEL-2
std::int64_t aligned_local_begin(std::int64_t begin, std::int64_t local, std::int64_t key_block) {
  const std::int64_t first = std::max<std::int64_t>(0, begin - local);
  const std::int64_t aligned = (first + key_block - 1) / key_block * key_block;
  return std::min(begin, aligned);
}

std::int64_t candidate_blocks(std::int64_t begin, const EffectiveOptions& options) {
  if (options.heavy == 0) return 0;
  return aligned_local_begin(begin, options.local, options.key_block) / options.key_block;
}

// SEL-3
Summaries summarize(const Matrix& k, std::int64_t blocks, std::int64_t key_block) {
  Summaries summaries{Matrix(blocks, k.columns), Matrix(blocks, column_groups(k.columns))};
  const auto keys = static_cast<double>(key_block);
  std::vector<double> spread(static_cast<std::size_t>(k.columns));
  for (std::int64_t b = 0; b < blocks; ++b) {
    for (std::size_t x = 0; x < static_cast<std::size_t>(k.columns); ++x) {
      double sum = 0.0;
      for (std::int64_t j = b * key_block; j < (b + 1) * key_block; ++j) sum += k.row(j)[x];
      const double mean = sum / keys;
      double squares = 0.0;
      for (std::int64_t j = b * key_block; j < (b + 1) * key_block; ++j) {
        squares += (k.row(j)[x] - mean) * (k.row(j)[x] - mean);
      }
      summaries.mean.row(b)[x] = mean;
      spread[x] = squares / keys;
    }
    const std::vector<double> variance = group_means(spread);
    std::copy(variance.begin(), variance.end(), summaries.variance.row(b).begin());
  }
  return summaries;
}

// SEL-4
std::vector<Pool> pools(const Matrix& q, std::int64_t begin, std::int64_t size) {
  std::vector<Pool> result;
  for (std::int64_t first = 0; first < q.rows; first += size) {
    const std::int64_t end = std::min(first + size, q.rows);
    Pool pool;
    pool.query.assign(static_cast<std::size_t>(q.columns), 0.0);
    for (std::int64_t row = first; row < end; ++row) {
      for (std::size_t x = 0; x < pool.query.size(); ++x) pool.query[x] += q.row(row)[x];
    }
    for (double& component : pool.query) component /= static_cast<double>(end - first);
    pool.last = begin + end - 1;
    result.push_back(pool);
  }
  return result;
}

// SEL-5
double estimate(const LogitRule& rule, const Pool& pool, std::span<const double> mean,
                std::span<const double> variance, std::int64_t last_key) {
  double spread = 0.0;
  for (std::size_t x = 0; x < pool.query.size(); ++x) {
    spread += pool.query[x] * pool.query[x] * variance[x / kGroupColumns];
  }
  const double sum = rule.scale * dot(pool.query, mean) + rule.scale * rule.scale / 2.0 * spread;
  const double e = capped_and_biased(rule, sum, pool.last, last_key);
  return std::isnan(e) ? -kInfinity : e;
}

// SEL-6, SEL-12
std::vector<double> block_votes(std::span<const PooledHead> heads, const Summaries& summaries,
                                std::int64_t key_block, std::span<const std::int32_t> searched) {
  std::vector<double> votes(static_cast<std::size_t>(summaries.mean.rows), -kInfinity);
  if (searched.empty()) return votes;
  std::vector<double> largest(searched.size(), -kInfinity);
  for (const PooledHead& head : heads) {
    for (const Pool& pool : head.pools) {
      take_larger(largest, pool_votes(head.rule, pool, summaries, key_block, searched));
    }
  }
  for (std::size_t i = 0; i < searched.size(); ++i) {
    votes[static_cast<std::size_t>(searched[i])] = largest[i];
  }
  return votes;
}

std::vector<double> block_votes(std::span<const PooledHead> heads, const Summaries& summaries,
                                std::int64_t key_block) {
  return block_votes(heads, summaries, key_block, numbers_below(summaries.mean.rows));
}

// SEL-12
Summaries summarize_regions(const Summaries& blocks) {
  const std::int64_t regions = blocks.mean.rows / kRegionBlocks;
  const std::int64_t columns = blocks.mean.columns;
  const auto count = static_cast<double>(kRegionBlocks);
  Summaries summaries{Matrix(regions, columns), Matrix(regions, blocks.variance.columns)};
  std::vector<double> between(static_cast<std::size_t>(columns));
  for (std::int64_t r = 0; r < regions; ++r) {
    const std::int64_t end = (r + 1) * kRegionBlocks;
    for (std::size_t x = 0; x < static_cast<std::size_t>(columns); ++x) {
      double sum = 0.0;
      for (std::int64_t b = r * kRegionBlocks; b < end; ++b) sum += blocks.mean.row(b)[x];
      const double mean = sum / count;
      double squares = 0.0;
      for (std::int64_t b = r * kRegionBlocks; b < end; ++b) {
        const double from_mean = blocks.mean.row(b)[x] - mean;
        squares += from_mean * from_mean;
      }
      summaries.mean.row(r)[x] = mean;
      between[x] = squares / count;
    }
    const std::vector<double> spread = group_means(between);
    for (std::size_t g = 0; g < spread.size(); ++g) {
      double within = 0.0;
      for (std::int64_t b = r * kRegionBlocks; b < end; ++b) within += blocks.variance.row(b)[g];
      summaries.variance.row(r)[g] = within / count + spread[g];
    }
  }
  return summaries;
}

// SEL-12
std::vector<double> region_votes(std::span<const PooledHead> heads, const Summaries& summaries,
                                 std::int64_t key_block) {
  if (summaries.mean.rows <= kMostEstimated) return {};
  return block_votes(heads, summarize_regions(summaries), kRegionBlocks * key_block);
}

// SEL-12
std::vector<std::int32_t> searched_blocks(std::span<const float> votes, std::int64_t blocks,
                                          const EffectiveOptions& options) {
  std::vector<Candidate> regions;
  for (std::size_t r = 0; r < votes.size(); ++r) {
    regions.push_back(Candidate{static_cast<std::int32_t>(r), votes[r]});
  }
  const std::int64_t eighth = 8 * options.key_block;
  const std::int64_t most = std::max(kLeastSearched, (options.refine * options.heavy + eighth - 1) / eighth);
  std::vector<std::int32_t> searched;
  for (const std::int32_t region : select_heavy(regions, most)) {  // MEM-3
    for (std::int64_t b = 0; b < kRegionBlocks; ++b) {
      searched.push_back(static_cast<std::int32_t>(region * kRegionBlocks + b));
    }
  }
  const std::int64_t in_regions = static_cast<std::int64_t>(votes.size()) * kRegionBlocks;
  for (std::int64_t b = in_regions; b < blocks; ++b) searched.push_back(static_cast<std::int32_t>(b));
  return searched;
}

std::vector<std::int32_t> tokens_of_best_blocks(std::span<const float> votes, std::int64_t kept,
                                                std::int64_t key_block, std::int64_t pinned) {
  std::vector<Candidate> blocks;
  for (std::size_t b = 0; b < votes.size(); ++b) {
    const auto block = static_cast<std::int32_t>(b);
    blocks.push_back(Candidate{block, votes[b], block * key_block < pinned});
  }
  std::vector<std::int32_t> tokens;
  for (const std::int32_t block : select_heavy(blocks, kept)) {  // MEM-3
    for (std::int64_t key = 0; key < key_block; ++key) {
      tokens.push_back(static_cast<std::int32_t>(block * key_block + key));
    }
  }
  return tokens;
}

// SEL-7
std::vector<double> token_votes(std::span<const PooledHead> heads, std::span<const std::int32_t> tokens,
                                const Matrix& k) {
  std::vector<double> votes(tokens.size(), 0.0);
  for (const PooledHead& head : heads) {
    for (const Pool& pool : head.half_pools) take_larger(votes, pool_weights(head.rule, pool, tokens, k));
  }
  return votes;
}

std::vector<std::int32_t> best_tokens(std::span<const std::int32_t> tokens, std::span<const float> votes,
                                      std::int64_t heavy, std::int64_t pinned) {
  std::vector<Candidate> candidates;
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    candidates.push_back(Candidate{tokens[r], votes[r], tokens[r] < pinned});
  }
  return select_heavy(candidates, heavy);  // MEM-3
}

// SEL-8
std::vector<std::int32_t> with_local(std::span<const std::int32_t> kept, std::int64_t local_begin,
                                     std::int64_t begin) {
  std::vector<std::int32_t> set(kept.begin(), kept.end());
  for (std::int64_t position = local_begin; position < begin; ++position) {
    set.push_back(static_cast<std::int32_t>(position));
  }
  return set;
}

// SEL-2 .. SEL-8, SEL-12
BlockSet choose_set(std::span<const PooledHead> heads, const Matrix& k, const Summaries& summaries,
                    const EffectiveOptions& options) {
  const std::int64_t begin = k.rows;
  const std::int64_t key_block = options.key_block;
  const std::int64_t blocks = summaries.mean.rows;

  BlockSet set;
  const std::vector<std::int32_t> searched =
      searched_blocks(rounded_once(region_votes(heads, summaries, key_block)), blocks, options);
  set.block_votes = rounded_once(block_votes(heads, summaries, key_block, searched));
  std::vector<std::int32_t> kept = tokens_of_best_blocks(
      set.block_votes, options.refine * options.heavy / key_block, key_block, options.pinned);

  // SEL-7
  if (options.refine > 1 && static_cast<std::int64_t>(kept.size()) > options.heavy) {
    set.token_votes = rounded_once(token_votes(heads, kept, rows_at(k, kept)));
    kept = best_tokens(kept, set.token_votes, options.heavy, options.pinned);
  }
  set.positions = with_local(kept, aligned_local_begin(begin, options.local, key_block), begin);
  return set;
}

}  // namespace headwater::reference
