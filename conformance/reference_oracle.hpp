#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "headwater/session.hpp"
#include "reference/logits.hpp"
#include "reference/numbers.hpp"
#include "reference/softmax.hpp"

/// The teacher-forced oracle of SPEC 13, made of the stages of reference/: one chunk of one query head under a memory
/// set that is given.
namespace headwater::conformance {

/// The rows of one layer: in all three, row p is the token at global position p. k and v are the stored rows
/// (STATE-6), that is, already rounded to the KV type; q is read in its own type.
struct LayerRows {
  Rows q;
  Rows k;
  Rows v;
  std::int64_t n_head = 1;
  std::int64_t n_head_kv = 1;
  std::int64_t d_head = 1;
  std::int64_t d_value = 1;
};

/// What is right for one query head and one chunk of n queries, nothing rounded.
struct OracleHead {
  std::vector<reference::SoftmaxRow> intra;   ///< n; sparse chunks: the intra pass, else the dense softmax
  std::vector<reference::SoftmaxRow> inter;   ///< n; neutral where there is no memory
  std::vector<reference::SoftmaxRow> output;  ///< n; the fused rows: o is the attention output (FUSE-2)
  std::vector<double> lse;                    ///< n; m + ln l of `output` (FUSE-1)
  std::vector<double> colsum_intra;           ///< n in a sparse chunk, else empty (INTRA-2)
  std::vector<double> colsum_inter;           ///< |memory| (INTER-2)
};

/// Sizes beside the values of OracleHead, from which SPEC 13 derives its bounds. ds_j is a bound of the
/// rounding error of logit j when it is computed in F32 (logit_error()).
///
/// To first order in the roundings, with c and u as in SPEC 13:
///   |o - o*|           <= c u output_size + 2 output_ds output_size          (the bound of SPEC 13)
///   |o - o*|           <= c u output_size + output_weighted_ds
///                           + output_mean_ds output_size                     (tighter: each key has its own
///                           ds_j)
///   |lse - lse*|       <= output_mean_ds + c u (1 + |lse|)
///   |colsum - colsum*| <= c u colsum + colsum_..._ds
struct OracleBounds {
  reference::Matrix output_size;         ///< [n][dv] sum_j w_j |v_j|
  reference::Matrix output_weighted_ds;  ///< [n][dv] sum_j w_j ds_j |v_j|
  std::vector<double> output_ds;         ///< n; max_j ds_j over all visible keys
  std::vector<double> output_mean_ds;    ///< n; sum_j w_j ds_j
  std::vector<double> intra_ds;          ///< n; max_j ds_j over the keys of the intra pass
  std::vector<double> inter_ds;          ///< n; max_j ds_j over the memory set
  std::vector<double> colsum_intra_ds;   ///< per key: sum_i w_ij 2 ds_i, ds_i = intra_ds[i]
  std::vector<double> colsum_inter_ds;   ///< per key: sum_i w_ij 2 ds_i, ds_i = inter_ds[i]
};

/// LOGIT, MASK, INTRA, INTER and FUSE for one chunk. `memory`: the valid positions that this head read,
/// ascending, all below chunk.begin; empty for chunks without memory and for dense and decode chunks. Errors:
/// invalid_argument (empty or negative chunk; a head or a memory position out of range).
[[nodiscard]] OracleHead oracle_head(const LayerRows& layer, const reference::LogitRule& rule,
                                     const Chunk& chunk, std::int64_t query_head,
                                     std::span<const std::int32_t> memory);

/// The bookkeeping beside it, for the same arguments.
[[nodiscard]] OracleBounds oracle_bounds(const LayerRows& layer, const reference::LogitRule& rule,
                                         const Chunk& chunk, std::int64_t query_head,
                                         std::span<const std::int32_t> memory);

/// ds of SPEC 13 for one query and key: (d + 4) 2^-24 |scale| sum |q_k||k_k|, times the slope of the cap,
/// plus the roundings of the cap and of the bias.
[[nodiscard]] double logit_error(const reference::LogitRule& rule, std::span<const double> query,
                                 std::span<const double> key, std::int64_t i, std::int64_t j);

}  // namespace headwater::conformance
