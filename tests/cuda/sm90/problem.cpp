#include "tests/cuda/sm90/problem.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <random>

#include "core/numbers.hpp"

namespace headwater::cuda::sm90 {

namespace {
constexpr std::uint16_t kNaNElement = 0xFFFF;

/// Elements from one row to the next: 16 bytes, as tensor maps want them; between rows stands NaN.
int pitch(int width) { return (width + 7) / 8 * 8; }

}  // namespace

TensorMap encoded(const TileMap& map) {
  TensorMap to{};
  std::memcpy(to.bytes, &map, sizeof(map));
  return to;
}

IntraProblem::IntraProblem(const Options& options)
    : options_(options), capacity_(options.shape.chunks * options.shape.tokens + kRowsBehind) {
  std::mt19937 random(options.seed);
  std::normal_distribution<float> normal(0.0f, options.spread);
  const auto fill = [&](std::vector<std::uint16_t>& rows, int heads, int width) {
    rows.assign(static_cast<std::size_t>(capacity_) * heads * pitch(width), kNaNElement);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (static_cast<int>(i % pitch(width)) >= width) continue;
      const float sample = normal(random);
      rows[i] = options.bf16 ? core::bf16_from_float(sample) : core::f16_from_float(sample);
    }
  };
  fill(q_, options.shape.heads, options.d);
  fill(k_, options.shape.kv_heads, options.d);
  fill(v_, options.shape.kv_heads, options.dv);
  std::fill(q_.begin() + static_cast<std::ptrdiff_t>(tokens()) * options.shape.heads * pitch(options.d),
            q_.end(), kNaNElement);
  for (int token = tokens(); token < capacity_; ++token) poison(token);
  if (options.sinks) {
    for (int head = 0; head < options.shape.heads; ++head) sinks_.push_back(normal(random) * 4.0f);
  }
  for (int head = 0; head < options.shape.heads && options.slope != 0.0f; ++head) {
    slopes_.push_back(options.slope / static_cast<float>(head + 1) * static_cast<float>(std::numbers::log2e));
  }
}

void IntraProblem::poison(int token) {
  for (int head = 0; head < options_.shape.kv_heads; ++head) {
    const auto row = static_cast<std::ptrdiff_t>(head) * capacity_ + token;
    std::fill_n(k_.begin() + row * pitch(options_.d), options_.d, kNaNElement);
    std::fill_n(v_.begin() + row * pitch(options_.dv), options_.dv, kNaNElement);
  }
}

TileMap IntraProblem::q_map(int rows) const {
  const IntraShape& shape = options_.shape;
  return tile_map({q_.data(), options_.d, shape.tokens, shape.chunks, shape.heads,
                   shape.heads * pitch(options_.d), pitch(options_.d)},
                  rows);
}

TileMap IntraProblem::kv_map(const std::vector<std::uint16_t>& rows, int width, int box) const {
  const IntraShape& shape = options_.shape;
  return tile_map({rows.data(), width, shape.tokens, shape.chunks, shape.kv_heads, pitch(width),
                   static_cast<std::int64_t>(capacity_) * pitch(width)},
                  box);
}

double IntraProblem::scale() const {
  return options_.scale != 0.0f ? options_.scale : 1.0 / std::sqrt(static_cast<double>(options_.d));
}

LogitRule IntraProblem::rule() const {
  const double log2e = std::numbers::log2e;
  const bool capped = options_.cap > 0.0f;
  return {static_cast<float>(capped ? scale() / options_.cap : scale() * log2e),
          static_cast<float>(options_.cap * log2e), slopes_.empty() ? nullptr : slopes_.data(),
          sinks_.empty() ? nullptr : sinks_.data()};
}

double IntraProblem::sink_weight(int head) const {
  return sinks_.empty() ? 0.0 : std::exp2(static_cast<double>(sinks_[head]));
}

double IntraProblem::value(std::uint16_t bits) const {
  return options_.bf16 ? core::float_from_bf16(bits) : core::float_from_f16(bits);
}

double IntraProblem::logit(int head, int query, int key) const {
  const int kv_head = head * options_.shape.kv_heads / options_.shape.heads;
  const std::uint16_t* q =
      &q_[(static_cast<std::size_t>(query) * options_.shape.heads + head) * pitch(options_.d)];
  const std::uint16_t* k = &k_[(static_cast<std::size_t>(kv_head) * capacity_ + key) * pitch(options_.d)];
  double logit = 0.0;
  for (int i = 0; i < options_.d; ++i) logit += value(q[i]) * value(k[i]);
  logit *= scale();
  if (options_.cap > 0.0f) logit = options_.cap * std::tanh(logit / options_.cap);
  if (!slopes_.empty()) logit -= slopes_[head] * std::numbers::ln2 * (query - key);
  return logit;
}

IntraProblem::Row IntraProblem::row(int head, int token) const {
  const int start = token / options_.shape.tokens * options_.shape.tokens;
  const int kv_head = head * options_.shape.kv_heads / options_.shape.heads;
  std::vector<double> weights;
  double sum = sink_weight(head);
  for (int key = start; key <= token; ++key) {
    weights.push_back(std::exp(logit(head, token, key)));
    sum += weights.back();
  }
  const int dv = options_.dv;
  Row row{std::vector<double>(dv), std::vector<double>(dv), std::log(sum)};
  for (int key = start; key <= token; ++key) {
    const std::uint16_t* v = &v_[(static_cast<std::size_t>(kv_head) * capacity_ + key) * pitch(dv)];
    for (int i = 0; i < dv; ++i) {
      row.out[i] += weights[key - start] / sum * value(v[i]);
      row.magnitude[i] += weights[key - start] / sum * std::abs(value(v[i]));
    }
  }
  return row;
}

std::vector<double> IntraProblem::column_sums(int head, int chunk) const {
  const int start = chunk * options_.shape.tokens;
  std::vector<double> sums(options_.shape.tokens);
  for (int query = start; query < start + options_.shape.tokens; ++query) {
    std::vector<double> weights;
    double sum = sink_weight(head);
    for (int key = start; key <= query; ++key) {
      weights.push_back(std::exp(logit(head, query, key)));
      sum += weights.back();
    }
    for (std::size_t key = 0; key < weights.size(); ++key) sums[key] += weights[key] / sum;
  }
  return sums;
}

}  // namespace headwater::cuda::sm90
