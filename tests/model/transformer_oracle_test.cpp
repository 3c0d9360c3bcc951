// The forward pass around attention and its bounds against both written out a second time, row by row, on shapes that
// the bundled model does not have: biases, no norms, heads of unequal widths, both layouts of the rotation.

#include "tests/model/transformer_oracle.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace headwater::runtime::testing {
namespace {

constexpr double u = 0x1p-24;
constexpr double kTiny = 0x1p-100;

/// Values, and beside them the errors that F32 may make.
struct Row {
  std::vector<double> v, e;
  explicit Row(std::size_t n) : v(n), e(n) {}
  explicit Row(const BoundedRow& row) : Row(row.size()) {
    for (std::size_t i = 0; i < row.size(); ++i) v[i] = row[i].value, e[i] = row[i].error;
  }
  [[nodiscard]] std::size_t size() const { return v.size(); }
  [[nodiscard]] double most(std::size_t i) const { return std::fabs(v[i]) + e[i]; }
};

/// Of a sum of n terms, relative to the sum of their sizes.
double adding(double n) { return (n < 64 ? n : 8 * std::sqrt(n)) * u; }

/// A sum of all and a quotient; a difference.
std::pair<Row, double> without_mean(Row x) {
  const auto n = static_cast<double>(x.size());
  double mean = 0;
  double moved = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    mean += x.v[i] / n;
    moved += (x.e[i] + (n / 32 + 7) * u * x.most(i)) / n;
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    x.v[i] -= mean;
    x.e[i] += u * (x.most(i) + moved);
  }
  return {x, moved};
}

/// `shift`: by how much all elements together may be off, in the direction in which their squares do not change.
Row normed(const Row& x, const std::vector<double>& w, double epsilon, double shift = 0) {
  const auto n = static_cast<double>(x.size());
  double mean = epsilon;
  double moved = 0;
  for (std::size_t i = 0; i < x.size(); ++i) mean += x.v[i] * x.v[i] / n, moved += x.e[i] * x.e[i] / n;
  const double rms = std::sqrt(mean);
  const double rms_error =
      std::sqrt(moved) + shift * (std::sqrt(moved) + 0.5 * shift) / rms + rms * (0.5 * adding(n) + 3 * u);
  Row y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    y.v[i] = w[i] * x.v[i] / rms;
    // |x'/r' - x/r| <= |x' - x| / r' + |x| |r' - r| / (r r'), then a reciprocal and two products.
    const double quotient = (x.e[i] + shift + std::fabs(x.v[i]) * rms_error / rms) / (rms - rms_error);
    y.e[i] = std::fabs(w[i]) * quotient * (1 + 4 * u) + std::fabs(y.v[i]) * 4 * u;
  }
  return y;
}

Row times(const Matrix& m, const std::vector<double>& bias, const Row& x) {
  Row y(static_cast<std::size_t>(m.rows));
  for (std::size_t r = 0; r < y.size(); ++r) {
    for (std::size_t c = 0; c < x.size(); ++c) {
      const double w = m.values[r * x.size() + c];
      y.v[r] += w * x.v[c];
      y.e[r] += std::fabs(w) * (x.e[c] + (adding(static_cast<double>(x.size())) + u) * x.most(c));
    }
    y.e[r] += kTiny;
    if (!bias.empty()) {
      y.v[r] += bias[r];
      y.e[r] += u * y.most(r);
    }
  }
  return y;
}

/// Pair i of the head that begins at `head`, turned by its angle.
void turned(Row& x, std::size_t head, std::size_t i, double position, const TransformerShape& shape) {
  const std::size_t pairs = shape.inverse_frequencies.size();
  const bool halves = shape.layout == RopeLayout::split_halves;
  const std::size_t a = head + (halves ? i : 2 * i);
  const std::size_t b = head + (halves ? i + pairs : 2 * i + 1);
  const double c = shape.magnitude * std::cos(position * shape.inverse_frequencies[i]);
  const double s = shape.magnitude * std::sin(position * shape.inverse_frequencies[i]);
  const Row before = x;
  x.v[a] = c * before.v[a] - s * before.v[b];
  x.v[b] = s * before.v[a] + c * before.v[b];
  const auto error = [&](double of_a, double of_b) {
    return std::fabs(of_a) * (before.e[a] + 3.01 * u * before.most(a)) +
           std::fabs(of_b) * (before.e[b] + 3.01 * u * before.most(b)) + kTiny;
  };
  x.e[a] = error(c, s);
  x.e[b] = error(s, c);
}

Row head_rows(Row rows, const std::vector<double>& norm, double position, const TransformerShape& shape) {
  const auto d = static_cast<std::size_t>(shape.d_head);
  for (std::size_t head = 0; head < rows.size(); head += d) {
    if (!norm.empty()) {
      Row row(d);
      for (std::size_t i = 0; i < d; ++i) row.v[i] = rows.v[head + i], row.e[i] = rows.e[head + i];
      row = normed(row, norm, shape.norm_epsilon);
      for (std::size_t i = 0; i < d; ++i) rows.v[head + i] = row.v[i], rows.e[head + i] = row.e[i];
    }
    for (std::size_t i = 0; i < shape.inverse_frequencies.size(); ++i) turned(rows, head, i, position, shape);
  }
  return rows;
}

Row plus(Row x, const Row& change) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    x.v[i] += change.v[i];
    x.e[i] += change.e[i];
    x.e[i] += u * x.most(i);
  }
  return x;
}

/// One query head over all tokens, its keys and values stored with a rounding of `stored`.
Row mean_of(const Row& q, std::size_t q_at, std::vector<Row> keys, std::size_t k_at, std::vector<Row> values,
            std::size_t v_at, std::size_t d, std::size_t dv, double stored) {
  const std::size_t n = keys.size();
  std::vector<double> s(n);
  double worst = 0;
  for (std::size_t t = 0; t < n; ++t) {
    double sizes = 0;
    double carried = 0;
    for (std::size_t i = 0; i < d; ++i) {
      const double key = keys[t].v[k_at + i];
      const double key_error = keys[t].e[k_at + i] + stored * keys[t].most(k_at + i);
      s[t] += q.v[q_at + i] * key;
      carried += q.e[q_at + i] * (std::fabs(key) + key_error) + std::fabs(q.v[q_at + i]) * key_error;
      sizes += q.most(q_at + i) * (std::fabs(key) + key_error);
    }
    const double root = std::sqrt(static_cast<double>(d));
    s[t] /= root;
    worst = std::max(worst, (carried + static_cast<double>(d + 4) * u * sizes) / root);
  }
  double rises = 0;
  double top = -std::numeric_limits<double>::infinity();
  for (const double x : s) rises += x > top, top = std::max(top, x);
  const double bottom = *std::min_element(s.begin(), s.end());
  const double exponent = worst + (2 * (top - bottom + 2 * worst) + 4 + 5 * (rises + 1)) * u;
  const double relative = std::expm1(2 * exponent + 2 * adding(static_cast<double>(n)) + 4 * u);
  double sum = 0;
  for (const double x : s) sum += std::exp(x - top);
  Row out(dv);
  for (std::size_t i = 0; i < dv; ++i) {
    for (std::size_t t = 0; t < n; ++t) {
      const double w = std::exp(s[t] - top) / sum;
      const double value = values[t].v[v_at + i];
      const double error = values[t].e[v_at + i] + stored * values[t].most(v_at + i);
      out.v[i] += w * value;
      out.e[i] += w * (error + relative * (std::fabs(value) + error));
    }
    out.e[i] += u * out.most(i) + kTiny;
  }
  return out;
}

class TransformerReference : public ::testing::TestWithParam<RopeLayout> {
 protected:
  [[nodiscard]] double draw() { return std::uniform_real_distribution<double>(-1.0, 1.0)(random_); }
  std::vector<double> numbers(std::int64_t n) {
    std::vector<double> all(static_cast<std::size_t>(n));
    for (double& x : all) x = draw();
    return all;
  }
  Matrix matrix(std::int64_t rows, std::int64_t columns) { return {rows, columns, numbers(rows * columns)}; }
  BoundedRow row(std::int64_t n) {
    BoundedRow x(static_cast<std::size_t>(n));
    for (Bounded& element : x) element = {draw(), 1e-5 * std::fabs(draw())};
    return x;
  }
  TransformerShape shape() const {
    TransformerShape shape;
    shape.heads = 4;
    shape.heads_kv = 2;
    shape.d_head = 6;
    shape.d_value = 3;
    shape.norm_epsilon = 0.01;
    shape.inverse_frequencies = {1.0, 0.3};  // a last pair stays
    shape.magnitude = 1.25;
    shape.layout = GetParam();
    shape.stored_round_off = 0x1p-9;
    return shape;
  }
  TransformerLayer layer(std::int64_t width) {
    TransformerLayer l;
    l.attention_norm = numbers(width);
    l.mlp_norm = numbers(width);
    l.query = matrix(24, width);
    l.key = matrix(12, width);
    l.value = matrix(6, width);
    l.output = matrix(width, 12);
    l.gate = matrix(7, width);
    l.up = matrix(7, width);
    l.down = matrix(width, 7);
    return l;
  }
  static void expect_same(const BoundedRow& got, const Row& want) {
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i].value, want.v[i], 1e-13 * (1 + std::fabs(want.v[i]))) << i;
      EXPECT_NEAR(got[i].error, want.e[i], 1e-9 * want.e[i]) << i;  // far below the smallest of its terms
      EXPECT_GT(got[i].error, 0.0);
    }
  }
  void expect_heads(const TransformerLayer& l, std::int64_t width, std::int64_t position) {
    const BoundedRow residual = row(width);
    const TransformerHeads got = transformer_heads(shape(), l, residual, position);
    const Row x = normed(Row(residual), l.attention_norm, shape().norm_epsilon);
    const auto at = static_cast<double>(position);
    expect_same(got.query, head_rows(times(l.query, l.query_bias, x), l.query_norm, at, shape()));
    expect_same(got.key, head_rows(times(l.key, l.key_bias, x), l.key_norm, at, shape()));
    expect_same(got.value, times(l.value, l.value_bias, x));
  }

  std::mt19937_64 random_{7};
};

TEST_P(TransformerReference, HeadsWithoutNormsAndBiases) { expect_heads(layer(5), 5, 3); }

TEST_P(TransformerReference, HeadsWithNormsAndBiases) {
  TransformerLayer l = layer(5);
  l.query_norm = numbers(6);
  l.key_norm = numbers(6);
  l.query_bias = numbers(24);
  l.key_bias = numbers(12);
  l.value_bias = numbers(6);
  expect_heads(l, 5, 0);
  expect_heads(l, 5, 11);
}

// Where sums are long, their bound is that of random roundings.
TEST_P(TransformerReference, HeadsOfALongRow) { expect_heads(layer(100), 100, 2); }

TEST_P(TransformerReference, Attention) {
  for (const std::int64_t n : {1, 5, 90}) {
    TransformerLayer l = layer(5);
    if (n == 5) l.output_bias = numbers(5);
    std::vector<TransformerHeads> tokens;
    std::vector<Row> keys;
    std::vector<Row> values;
    for (std::int64_t t = 0; t < n; ++t) {
      tokens.push_back({row(24), row(12), row(6)});
      keys.emplace_back(tokens.back().key);
      values.emplace_back(tokens.back().value);
    }
    const Row query(tokens.back().query);
    Row all(12);
    for (std::size_t h = 0; h < 4; ++h) {
      const std::size_t kv = h / 2;
      const Row mean = mean_of(query, 6 * h, keys, 6 * kv, values, 3 * kv, 6, 3, shape().stored_round_off);
      for (std::size_t i = 0; i < 3; ++i) all.v[3 * h + i] = mean.v[i], all.e[3 * h + i] = mean.e[i];
    }
    const BoundedRow residual = row(5);
    expect_same(transformer_attention(shape(), l, tokens, residual),
                plus(Row(residual), times(l.output, l.output_bias, all)));
  }
}

TEST_P(TransformerReference, GatedProduct) {
  const TransformerLayer l = layer(5);
  const BoundedRow residual = row(5);
  const Row x = normed(Row(residual), l.mlp_norm, shape().norm_epsilon);
  Row inner = times(l.gate, {}, x);
  const Row up = times(l.up, {}, x);
  for (std::size_t i = 0; i < inner.size(); ++i) {
    const double silu = inner.v[i] / (1 + std::exp(-inner.v[i]));
    // |silu'| is 1.1 at most; 32 u of the exponent, an exponential of 2 ulp, a sum, a quotient, a product: 39 u.
    const double silu_error = 1.1 * inner.e[i] + 39 * u * std::fabs(silu) + kTiny;
    inner.v[i] = silu * up.v[i];
    inner.e[i] = silu_error * up.most(i) + std::fabs(silu) * up.e[i] + u * std::fabs(inner.v[i]);
  }
  const BoundedRow before = row(5);
  expect_same(transformer_mlp(shape(), l, residual, before), plus(Row(residual), times(l.down, {}, inner)));
  // Beside attention: what it reads is the row before that, by attention's norm.
  TransformerShape parallel = shape();
  parallel.parallel = true;
  TransformerLayer other = l;
  other.attention_norm = l.mlp_norm;
  other.mlp_norm = {};
  const BoundedRow got = transformer_mlp(parallel, other, before, residual);
  expect_same(got, plus(Row(before), times(l.down, {}, inner)));
}

TEST_P(TransformerReference, Logits) {
  const BoundedRow last = row(8);
  const std::vector<double> norm = numbers(8);
  const Matrix head = matrix(11, 8);
  TransformerShape own = shape();
  own.norm_epsilon = 0.5;
  expect_same(transformer_logits(own, last, norm, head), times(head, {}, normed(Row(last), norm, 0.5)));
  own.layer_norm = true;
  const auto centred = without_mean(Row(last));
  expect_same(transformer_logits(own, last, norm, head),
              times(head, {}, normed(centred.first, norm, 0.5, centred.second)));
}

TEST_P(TransformerReference, ARowThatMayBeZeroHasNoBound) {
  const std::vector<double> norm = {1.0, 1.0};
  const BoundedRow row = {{0.5, 2.0}, {0.5, 2.0}};
  TransformerShape own = shape();
  own.norm_epsilon = 0;
  for (const Bounded& logit : transformer_logits(own, row, norm, {1, 2, {1.0, 1.0}})) {
    EXPECT_TRUE(std::isinf(logit.error));
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, TransformerReference,
                         ::testing::Values(RopeLayout::split_halves, RopeLayout::adjacent_pairs));

}  // namespace
}  // namespace headwater::runtime::testing
