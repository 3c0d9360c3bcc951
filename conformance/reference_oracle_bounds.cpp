#include <algorithm>
#include <cmath>
#include <cstddef>

#include "conformance/reference_oracle.hpp"

/// Bookkeeping beside the oracle of reference/ (SPEC 13): how large the terms of a result are, and how wrong its logits may
/// be. No value of the oracle depends on anything here.
namespace headwater::conformance {
namespace {

using reference::LogitRule;
using reference::Matrix;
using reference::SoftmaxRow;

constexpr double kUnitF32 = 0x1p-24;  // unit round-off of F32
/// Roundings of a scaled dot product of d terms beyond d (SPEC 13): the scale to F32, the product with it,
/// two to spare.
constexpr double kExtraRoundings = 4.0;
/// Roundings after the argument of tanh: its result, wrong by 2 units in the last place (4 unit round-offs;
/// glibc's manual on known maximum errors), and the product with t.
constexpr double kTanhRoundings = 5.0;

/// One visible key of one query.
struct Term {
  double logit;
  double error;  // ds_j
  std::span<const double> value;
  std::size_t key;  // index in its pass
  bool from_memory;
};

/// The rows of one head and the keys that each query sees, in both passes.
struct HeadRows {
  const LogitRule& rule;
  const Chunk& chunk;
  std::span<const std::int32_t> memory;
  std::int64_t first_key;
  Matrix q, k, v, memory_k, memory_v;

  /// Keys that the query of row r sees: its own chunk's (or in a dense chunk all) up to itself, then the
  /// memory set.
  [[nodiscard]] std::vector<Term> terms(std::int64_t r) const {
    const std::int64_t i = chunk.begin + r;
    std::vector<Term> seen;
    for (std::int64_t j = first_key; j <= i; ++j) {
      const std::int64_t key = j - first_key;
      seen.push_back(term(r, i, j, k.row(key), v.row(key), static_cast<std::size_t>(key), false));
    }
    for (std::size_t entry = 0; entry < memory.size(); ++entry) {
      const auto key = static_cast<std::int64_t>(entry);
      seen.push_back(term(r, i, memory[entry], memory_k.row(key), memory_v.row(key), entry, true));
    }
    return seen;
  }

 private:
  [[nodiscard]] Term term(std::int64_t r, std::int64_t i, std::int64_t j, std::span<const double> key_row,
                          std::span<const double> value_row, std::size_t key, bool from_memory) const {
    return {reference::logit(rule, q.row(r), key_row, i, j), logit_error(rule, q.row(r), key_row, i, j),
            value_row, key, from_memory};
  }
};

double largest_error(const std::vector<Term>& terms, bool from_memory) {
  double largest = 0.0;
  for (const Term& term : terms) {
    if (term.from_memory == from_memory) largest = std::max(largest, term.error);
  }
  return largest;
}

/// sum_j w_j |v_j|, sum_j w_j ds_j |v_j| and sum_j w_j ds_j of one row, w_j the weights of the final softmax.
void add_output_sizes(const SoftmaxRow& output, const std::vector<Term>& terms, std::int64_t r,
                      OracleBounds& bounds) {
  double mean_error = 0.0;
  for (const Term& term : terms) {
    const double w = reference::weight(output, term.logit);
    mean_error += w * term.error;
    for (std::size_t c = 0; c < term.value.size(); ++c) {
      bounds.output_size.row(r)[c] += w * std::fabs(term.value[c]);
      bounds.output_weighted_ds.row(r)[c] += w * term.error * std::fabs(term.value[c]);
    }
  }
  bounds.output_mean_ds.push_back(mean_error);
}

/// Adds w_ij 2 ds_i to the column of each key; the weights are those of the pass alone (INTRA-2, INTER-2).
void add_column_errors(const SoftmaxRow& pass, const std::vector<Term>& terms, bool from_memory, double error,
                       std::vector<double>& columns) {
  for (const Term& term : terms) {
    if (term.from_memory == from_memory)
      columns[term.key] += reference::weight(pass, term.logit) * 2.0 * error;
  }
}

}  // namespace

double logit_error(const LogitRule& rule, std::span<const double> query, std::span<const double> key,
                   std::int64_t i, std::int64_t j) {
  double size = 0.0;
  for (std::size_t k = 0; k < query.size(); ++k) size += std::fabs(query[k]) * std::fabs(key[k]);
  const double d = static_cast<double>(query.size());
  double s = rule.scale * reference::dot(query, key);
  double error = (d + kExtraRoundings) * kUnitF32 * std::fabs(rule.scale) * size;

  if (rule.softcap > 0.0) {
    // tanh is steepest where |s| is smallest, so the slope is taken at that end of [s - error, s + error].
    const double t = rule.softcap;
    const double nearest_zero = std::max(0.0, std::fabs(s) - error) / t;
    const double slope = 1.0 / (std::cosh(nearest_zero) * std::cosh(nearest_zero));
    const double quotient_error = kUnitF32 * std::fabs(s) * slope;
    const double capped = t * std::tanh(s / t);
    error = slope * error + quotient_error + kTanhRoundings * kUnitF32 * std::fabs(capped);
    s = capped;
  }
  if (rule.slope != 0.0) {
    // The distance and the product are rounded, and so is the difference.
    const double bias = rule.slope * static_cast<double>(i - j);
    error += 2.0 * kUnitF32 * std::fabs(bias) + kUnitF32 * std::fabs(s - bias);
  }
  return error;
}

OracleBounds oracle_bounds(const LayerRows& layer, const LogitRule& rule, const Chunk& chunk,
                           std::int64_t query_head, std::span<const std::int32_t> memory) {
  const OracleHead head = oracle_head(layer, rule, chunk, query_head, memory);
  const bool sparse = chunk.mode == ChunkMode::sparse;
  const std::int64_t g = reference::key_value_head(query_head, layer.n_head, layer.n_head_kv);
  const std::int64_t n = chunk.end - chunk.begin;
  const std::int64_t first_key = sparse ? chunk.begin : 0;
  const HeadRows rows{rule,
                      chunk,
                      memory,
                      first_key,
                      reference::read_rows(layer.q, chunk.begin, chunk.end, query_head, layer.d_head),
                      reference::read_rows(layer.k, first_key, chunk.end, g, layer.d_head),
                      reference::read_rows(layer.v, first_key, chunk.end, g, layer.d_value),
                      reference::gather_rows(layer.k, memory, g, layer.d_head),
                      reference::gather_rows(layer.v, memory, g, layer.d_value)};

  OracleBounds bounds;
  bounds.output_size = Matrix(n, layer.d_value);
  bounds.output_weighted_ds = Matrix(n, layer.d_value);
  bounds.colsum_intra_ds.assign(head.colsum_intra.size(), 0.0);
  bounds.colsum_inter_ds.assign(memory.size(), 0.0);
  for (std::int64_t r = 0; r < n; ++r) {
    const auto query = static_cast<std::size_t>(r);
    const std::vector<Term> terms = rows.terms(r);
    bounds.intra_ds.push_back(largest_error(terms, false));
    bounds.inter_ds.push_back(largest_error(terms, true));
    bounds.output_ds.push_back(std::max(bounds.intra_ds.back(), bounds.inter_ds.back()));
    add_output_sizes(head.output[query], terms, r, bounds);
    if (sparse)
      add_column_errors(head.intra[query], terms, false, bounds.intra_ds.back(), bounds.colsum_intra_ds);
    add_column_errors(head.inter[query], terms, true, bounds.inter_ds.back(), bounds.colsum_inter_ds);
  }
  return bounds;
}

}  // namespace headwater::conformance
