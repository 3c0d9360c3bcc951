#include "problem.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

#include "core/numbers.hpp"

namespace headwater::cuda::sm90 {

namespace {
constexpr std::uint16_t kNaNElement = 0xFFFF;
}

IntraProblem::IntraProblem(const Options& options)
    : options_(options), capacity_(options.shape.chunks * options.shape.tokens + kRowsBehind) {
  std::mt19937 random(options.seed);
  std::normal_distribution<float> normal(0.0f, options.spread);
  const auto fill = [&](std::vector<std::uint16_t>& rows, std::size_t size) {
    rows.resize(size);
    for (std::uint16_t& x : rows) {
      const float sample = normal(random);
      x = options.bf16 ? core::bf16_from_float(sample) : core::f16_from_float(sample);
    }
  };
  const auto heads = static_cast<std::size_t>(options.shape.heads);
  const auto kv_heads = static_cast<std::size_t>(options.shape.kv_heads);
  fill(q_, static_cast<std::size_t>(capacity_) * heads * kHead);
  fill(k_, static_cast<std::size_t>(capacity_) * kv_heads * kHead);
  fill(v_, static_cast<std::size_t>(capacity_) * kv_heads * kHead);
  std::fill(q_.begin() + static_cast<std::ptrdiff_t>(tokens()) * options.shape.heads * kHead, q_.end(),
            kNaNElement);
  for (int token = tokens(); token < capacity_; ++token) poison(token);
  if (options.sinks) {
    for (int head = 0; head < options.shape.heads; ++head) sinks_.push_back(normal(random) * 4.0f);
  }
}

void IntraProblem::poison(int token) {
  for (int head = 0; head < options_.shape.kv_heads; ++head) {
    const auto first = (static_cast<std::ptrdiff_t>(head) * capacity_ + token) * kHead;
    std::fill_n(k_.begin() + first, kHead, kNaNElement);
    std::fill_n(v_.begin() + first, kHead, kNaNElement);
  }
}

TileMap IntraProblem::q_map(int rows) const {
  const IntraShape& shape = options_.shape;
  return tile_map({q_.data(), kHead, shape.tokens, shape.chunks, shape.heads, shape.heads * kHead, kHead},
                  rows);
}

TileMap IntraProblem::kv_map(const std::vector<std::uint16_t>& rows) const {
  const IntraShape& shape = options_.shape;
  return tile_map({rows.data(), kHead, shape.tokens, shape.chunks, shape.kv_heads, kHead,
                   static_cast<std::int64_t>(capacity_) * kHead},
                  kTile);
}

float IntraProblem::scale2() const {
  return static_cast<float>(std::numbers::log2e / std::sqrt(static_cast<double>(kHead)));
}

double IntraProblem::value(std::uint16_t bits) const {
  return options_.bf16 ? core::float_from_bf16(bits) : core::float_from_f16(bits);
}

double IntraProblem::logit(int head, int query, int key) const {
  const int kv_head = head * options_.shape.kv_heads / options_.shape.heads;
  const std::uint16_t* q = &q_[(static_cast<std::size_t>(query) * options_.shape.heads + head) * kHead];
  const std::uint16_t* k = &k_[(static_cast<std::size_t>(kv_head) * capacity_ + key) * kHead];
  double sum = 0.0;
  for (int i = 0; i < kHead; ++i) sum += value(q[i]) * value(k[i]);
  return sum / std::sqrt(static_cast<double>(kHead));
}

IntraProblem::Row IntraProblem::row(int head, int token) const {
  const int start = token / options_.shape.tokens * options_.shape.tokens;
  const int kv_head = head * options_.shape.kv_heads / options_.shape.heads;
  std::vector<double> weights;
  double sum = sinks_.empty() ? 0.0 : std::exp(static_cast<double>(sinks_[head]));
  for (int key = start; key <= token; ++key) {
    weights.push_back(std::exp(logit(head, token, key)));
    sum += weights.back();
  }
  Row row{std::vector<double>(kHead), std::vector<double>(kHead), std::log(sum)};
  for (int key = start; key <= token; ++key) {
    const std::uint16_t* v = &v_[(static_cast<std::size_t>(kv_head) * capacity_ + key) * kHead];
    for (int i = 0; i < kHead; ++i) {
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
    double sum = sinks_.empty() ? 0.0 : std::exp(static_cast<double>(sinks_[head]));
    for (int key = start; key <= query; ++key) {
      weights.push_back(std::exp(logit(head, query, key)));
      sum += weights.back();
    }
    for (std::size_t key = 0; key < weights.size(); ++key) sums[key] += weights[key] / sum;
  }
  return sums;
}

}  // namespace headwater::cuda::sm90
