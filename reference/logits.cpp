#include "reference/logits.hpp"

#include <cmath>
#include <cstddef>
#include <vector>

namespace headwater::reference {

LogitRule logit_rule(const Options& options, const EffectiveOptions& effective, std::int64_t layer,
                     std::int64_t query_head) {
  const auto h = static_cast<std::size_t>(query_head);
  const LayerOptions own =
      options.layers.empty() ? LayerOptions{} : options.layers[static_cast<std::size_t>(layer)];
  const std::vector<float> sinks = own.sinks.value_or(options.sinks);
  LogitRule rule;
  rule.window = own.window;
  rule.scale = effective.scale_of(layer);
  rule.softcap = own.softcap.value_or(effective.softcap);
  if (!options.alibi.empty()) rule.slope = options.alibi[h];
  if (!sinks.empty()) rule.sink = sinks[h];
  return rule;
}

// LOGIT-1
std::int64_t key_value_head(std::int64_t query_head, std::int64_t n_head, std::int64_t n_head_kv) {
  return query_head * n_head_kv / n_head;
}

double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0.0;
  for (std::size_t k = 0; k < a.size(); ++k) sum += a[k] * b[k];
  return sum;
}

double logit(const LogitRule& rule, std::span<const double> query, std::span<const double> key,
             std::int64_t i, std::int64_t j) {
  return capped_and_biased(rule, rule.scale * dot(query, key), i, j);  // LOGIT-1
}

double capped_and_biased(const LogitRule& rule, double s, std::int64_t i, std::int64_t j) {
  if (rule.softcap > 0.0) s = rule.softcap * std::tanh(s / rule.softcap);  // LOGIT-2
  s = s - rule.slope * static_cast<double>(i - j);                         // LOGIT-3
  return s;
}

}  // namespace headwater::reference
