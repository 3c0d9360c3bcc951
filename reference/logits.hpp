#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "headwater/options.hpp"

/// Chapter 4 of the spec: logits (LOGIT-1 .. LOGIT-4).
namespace headwater::reference {

/// What turns a query and a key into a logit, for one query head.
struct LogitRule {
  double scale = 1.0;                                      ///< LOGIT-1
  double softcap = 0.0;                                    ///< LOGIT-2: t; 0 is none
  double slope = 0.0;                                      ///< LOGIT-3: a_h; 0 is none
  double sink = -std::numeric_limits<double>::infinity();  ///< LOGIT-4: z_h; -inf is none
  std::int64_t window = 0;                                 ///< MASK-2, in dense attention: w; 0 is none
};

/// The rule of query head h of a layer (LAYER-1); sinks and slopes of a list that is empty are none.
[[nodiscard]] LogitRule logit_rule(const Options& options, const EffectiveOptions& effective,
                                   std::int64_t layer, std::int64_t query_head);

/// LOGIT-1: the key/value head that query head h reads, floor(h * Hkv / Hq).
[[nodiscard]] std::int64_t key_value_head(std::int64_t query_head, std::int64_t n_head,
                                          std::int64_t n_head_kv);

/// sum over k of a_k * b_k, k ascending.
[[nodiscard]] double dot(std::span<const double> a, std::span<const double> b);

/// LOGIT-1, then LOGIT-2, then LOGIT-3: the logit of query i and key j, both global positions, j <= i.
[[nodiscard]] double logit(const LogitRule& rule, std::span<const double> query, std::span<const double> key,
                           std::int64_t i, std::int64_t j);

/// LOGIT-2, then LOGIT-3, of a scaled dot product, or of what stands for one (SEL-5).
[[nodiscard]] double capped_and_biased(const LogitRule& rule, double s, std::int64_t i, std::int64_t j);

}  // namespace headwater::reference
