#include "tests/model/transformer_oracle.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "reference/rope.hpp"

namespace headwater::runtime::testing {
namespace {

constexpr double kUnit = 0x1p-24;        // round-off of F32
constexpr double kUnderflow = 0x1p-100;  // far below every number here, far above what F32 loses by underflow

/// Relative error of a sum of n terms in F32, in any order: the worst case, or Higham and Mary (2019), theorem 2.4
/// with lambda = 8, which fails less than once in 10^13 sums.
double sum_error(std::size_t n) {
  const auto terms = static_cast<double>(n);
  return std::min(terms, 8.0 * std::sqrt(terms)) * kUnit;
}

double size_of(const Bounded& x) { return std::abs(x.value) + x.error; }

// RMSNorm: y = w x / sqrt(mean(x^2) + epsilon). `shift`: an error that all elements have in common, where these add up to 0:
// their squares grow by the square of it.
BoundedRow rms_norm(std::span<const Bounded> x, std::span<const double> weight, double epsilon,
                    double shift = 0) {
  double squares = 0;
  double squared_errors = 0;
  for (const Bounded& element : x) {
    squares += element.value * element.value;
    squared_errors += element.error * element.error;
  }
  const auto n = static_cast<double>(x.size());
  const double root = std::sqrt(squares / n + epsilon);
  // The root moves by at most |error| / sqrt(n) in the Euclidean norm. Its own roundings: those of the sum, halved by
  // the root, and of a quotient, a sum and the root.
  const double own_error = std::sqrt(squared_errors / n);
  const double shifted = shift * (shift / 2 + own_error) / root;
  const double root_error = own_error + shifted + root * (sum_error(x.size()) / 2 + 3 * kUnit);
  const double smallest = root - root_error;
  BoundedRow y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i].value = weight[i] * x[i].value / root;
    const double moved =
        smallest > 0 ? (x[i].error + shift) / smallest + std::abs(x[i].value) * root_error / (root * smallest)
                     : std::numeric_limits<double>::infinity();
    // A reciprocal and two products.
    y[i].error = (std::abs(weight[i]) * moved) * (1 + 4 * kUnit) + 4 * kUnit * std::abs(y[i].value);
  }
  return y;
}

/// The norm of a residual row. LayerNorm is RMSNorm of what is left of a row without its mean.
BoundedRow row_norm(const TransformerShape& shape, std::span<const Bounded> x,
                    std::span<const double> weight) {
  if (!shape.layer_norm) return rms_norm(x, weight, shape.norm_epsilon);
  // Kernels add in 32 lanes: no element goes through more sums than its lane has elements, and those of the lanes.
  const double sums = static_cast<double>(x.size()) / 32 + 6;
  Bounded mean;
  for (const Bounded& element : x) {
    mean.value += element.value / static_cast<double>(x.size());
    // The sum, and a quotient.
    mean.error += (element.error + (sums + 1) * kUnit * size_of(element)) / static_cast<double>(x.size());
  }
  BoundedRow centred(x.begin(), x.end());
  for (Bounded& element : centred) {
    element.value -= mean.value;
    element.error += kUnit * (size_of(element) + mean.error);
  }
  return rms_norm(centred, weight, shape.norm_epsilon, mean.error);
}

// y = W x (+ b).
BoundedRow product(const Matrix& weights, std::span<const double> bias, std::span<const Bounded> x) {
  BoundedRow y(static_cast<std::size_t>(weights.rows));
  for (std::size_t r = 0; r < y.size(); ++r) {
    const double* const row = weights.values.data() + r * x.size();
    double carried = 0;
    double sizes = 0;
    for (std::size_t k = 0; k < x.size(); ++k) {
      y[r].value += row[k] * x[k].value;
      carried += std::abs(row[k]) * x[k].error;
      sizes += std::abs(row[k]) * size_of(x[k]);
    }
    // A product and a sum of as many terms.
    y[r].error = carried + (sum_error(x.size()) + kUnit) * sizes + kUnderflow;
    if (bias.empty()) continue;
    y[r].value += bias[r];
    y[r].error += kUnit * size_of(y[r]);
  }
  return y;
}

// ROPE-1, with cosine and sine rounded to F32 first.
void rotate(std::span<Bounded> row, std::int64_t position, const TransformerShape& shape,
            std::span<const double> inverse_frequencies) {
  const std::size_t pairs = inverse_frequencies.size();
  const bool adjacent = shape.layout == RopeLayout::adjacent_pairs;
  for (std::size_t i = 0; i < pairs; ++i) {
    Bounded& x = row[adjacent ? 2 * i : i];
    Bounded& y = row[adjacent ? 2 * i + 1 : i + pairs];
    const double angle = static_cast<double>(position) * inverse_frequencies[i];
    const double c = std::abs(shape.magnitude * std::cos(angle));
    const double s = std::abs(shape.magnitude * std::sin(angle));
    // Rounding of the table, a product, a sum.
    const double roundings = 3.01 * kUnit;
    const double x_error =
        c * x.error + s * y.error + roundings * (c * size_of(x) + s * size_of(y)) + kUnderflow;
    const double y_error =
        s * x.error + c * y.error + roundings * (s * size_of(x) + c * size_of(y)) + kUnderflow;
    std::vector<double> pair = {x.value, y.value};
    const std::vector<double> frequency = {inverse_frequencies[i]};
    reference::rotate_row(pair, position, frequency, shape.magnitude, RopeLayout::adjacent_pairs);
    x = {pair[0], x_error};
    y = {pair[1], y_error};
  }
}

void norm_and_rotate(BoundedRow& rows, std::span<const double> norm, std::int64_t position,
                     const TransformerShape& shape, const TransformerLayer& layer) {
  const auto d = static_cast<std::size_t>(shape.d_head);
  const bool together = norm.size() > d;
  if (together) rows = rms_norm(rows, norm, shape.norm_epsilon);
  for (std::size_t at = 0; at < rows.size(); at += d) {
    const std::span<Bounded> row = std::span(rows).subspan(at, d);
    if (!norm.empty() && !together) {
      const BoundedRow normed = rms_norm(row, norm, shape.norm_epsilon);
      std::copy(normed.begin(), normed.end(), row.begin());
    }
    if (!layer.rotated) continue;
    rotate(row, position, shape,
           layer.inverse_frequencies.empty() ? shape.inverse_frequencies : layer.inverse_frequencies);
  }
}

// LOGIT-1
Bounded logit(std::span<const Bounded> q, std::span<const Bounded> k, double own_scale) {
  const double scale = own_scale > 0 ? own_scale : 1.0 / std::sqrt(static_cast<double>(q.size()));
  double sum = 0;
  double carried = 0;
  double sizes = 0;
  for (std::size_t i = 0; i < q.size(); ++i) {
    sum += q[i].value * k[i].value;
    carried += q[i].error * size_of(k[i]) + std::abs(q[i].value) * k[i].error;
    sizes += size_of(q[i]) * size_of(k[i]);
  }
  // SPEC 13: d products, their sum, the scale rounded and multiplied.
  const auto d = static_cast<double>(q.size());
  return {scale * sum, scale * (carried + (d + 4) * kUnit * sizes)};
}

// INTRA-1 for one query: softmax of the logits, and the mean of the value rows under it. One weight is off by the
// logit's error, 2 u |s - m| in the exponent and 4 u of the exponential, 5 u for each time that the maximum rises; the
// normalisation repeats the worst of that; the two sums and a quotient come on top.
BoundedRow attention(std::span<const Bounded> logits, std::span<const std::span<const Bounded>> values,
                     double sink) {
  double most = sink;  // LOGIT-4: a logit without a value; minus infinity: none
  double least = std::numeric_limits<double>::infinity();
  double records = 0;
  double logit_error = 0;
  for (const Bounded& s : logits) {
    if (s.value > most) records += 1;
    most = std::max(most, s.value);
    least = std::min(least, s.value);
    logit_error = std::max(logit_error, s.error);
  }
  double weights = std::exp(sink - most);
  for (const Bounded& s : logits) weights += std::exp(s.value - most);
  const double spread = most - least + 2 * logit_error;
  const double one_weight = logit_error + (2 * spread + 4 + 5 * (records + 1)) * kUnit;
  const double relative = std::exp(2 * one_weight + 2 * sum_error(logits.size()) + 4 * kUnit) - 1;
  BoundedRow mean(values.front().size());
  for (std::size_t j = 0; j < logits.size(); ++j) {
    const double weight = std::exp(logits[j].value - most) / weights;
    for (std::size_t i = 0; i < mean.size(); ++i) {
      const Bounded& v = values[j][i];
      mean[i].value += weight * v.value;
      mean[i].error += weight * (v.error + relative * size_of(v));
    }
  }
  for (Bounded& element : mean) element.error += kUnit * size_of(element) + kUnderflow;
  return mean;
}

BoundedRow attend(const TransformerShape& shape, const TransformerLayer& layer,
                  std::span<const TransformerHeads> tokens) {
  const std::int64_t group = shape.heads / shape.heads_kv;
  const auto d = static_cast<std::size_t>(shape.d_head);
  const auto dv = static_cast<std::size_t>(shape.d_value);
  BoundedRow out;
  for (std::int64_t h = 0; h < shape.heads; ++h) {
    const auto head = static_cast<std::size_t>(h);
    const auto head_kv = static_cast<std::size_t>(h / group);
    const auto query = std::span(tokens.back().query).subspan(head * d, d);
    BoundedRow logits;
    std::vector<std::span<const Bounded>> values;
    for (const TransformerHeads& token : tokens) {
      logits.push_back(logit(query, std::span(token.key).subspan(head_kv * d, d), shape.attention_scale));
      values.push_back(std::span(token.value).subspan(head_kv * dv, dv));
    }
    const double sink = layer.sinks.empty() ? -std::numeric_limits<double>::infinity() : layer.sinks[head];
    const BoundedRow mean = attention(logits, values, sink);
    out.insert(out.end(), mean.begin(), mean.end());
  }
  return out;
}

/// The three matrices of a feed-forward part, and biases where there are some.
struct Part {
  Matrix gate, up, down;
  std::span<const double> gate_bias, up_bias, down_bias;
};

// SwiGLU (Shazeer, 2020): y = W_down (silu(W_gate x) * W_up x), silu(g) = g / (1 + e^-t), t = g; with GeGLU
// t = 2 sqrt(2 / pi) (g + 0.044715 g^3); Activation::clamped has t = 1.702 g.
BoundedRow mlp(const TransformerShape& shape, const Part& part, std::span<const Bounded> x) {
  const bool clamped = shape.activation == Activation::clamped;
  BoundedRow gate = product(part.gate, part.gate_bias, x);
  BoundedRow up = product(part.up, part.up_bias, x);
  for (std::size_t i = 0; i < gate.size(); ++i) {
    if (clamped) {
      constexpr double kLimit = 7;
      gate[i].value = std::min(gate[i].value, kLimit);
      up[i].value = std::clamp(up[i].value, -kLimit, kLimit) + 1;
      up[i].error += kUnit * size_of(up[i]);
    }
    const double g = gate[i].value;
    const double t = shape.activation == Activation::gelu
                         ? 2 * std::sqrt(2 / std::numbers::pi) * (g + 0.044715 * g * g * g)
                         : (clamped ? 1.702 : 1) * g;
    const double silu = g / (1 + std::exp(-t));
    const double steepest =
        shape.activation == Activation::gelu ? 1.13 : 1.1;  // |silu'| <= 1.0999, |gelu'| <= 1.1290
    // An exponential of 2 ulp whose argument is off by 2 u |t| (with constants, products and a sum by 7), which matters
    // where |t| < 16 (below that silu vanishes, above it is g); a sum, a quotient, a product.
    const double argument = (shape.activation == Activation::silu ? 2 : 7) * 16;
    const double silu_error = steepest * gate[i].error + (7 + argument) * kUnit * std::abs(silu) + kUnderflow;
    const double value = silu * up[i].value;
    gate[i].error = silu_error * size_of(up[i]) + std::abs(silu) * up[i].error + kUnit * std::abs(value);
    gate[i].value = value;
  }
  return product(part.down, part.down_bias, gate);
}

Part part_of(const TransformerLayer& layer) { return {layer.gate, layer.up, layer.down, {}, {}, {}}; }

/// One of `count` matrices that stand one after the other.
Matrix one_of(const Matrix& all, std::size_t index, std::size_t count) {
  const std::size_t size = all.values.size() / count;
  const auto from = all.values.begin() + static_cast<std::ptrdiff_t>(index * size);
  return {all.rows / static_cast<std::int64_t>(count),
          all.columns,
          {from, from + static_cast<std::ptrdiff_t>(size)}};
}

std::span<const double> one_of(const std::vector<double>& all, std::size_t index, std::size_t count) {
  return std::span(all).subspan(index * (all.size() / count), all.size() / count);
}

/// The experts of the highest logits (Shazeer et al., 2017), weighted by the softmax over those, or over all. Which these are must not
/// hang on a rounding.
BoundedRow mix(const TransformerShape& shape, const TransformerLayer& layer, std::span<const Bounded> x) {
  const BoundedRow logits = product(layer.router, layer.router_bias, x);
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return logits[a].value > logits[b].value; });
  const auto used = static_cast<std::size_t>(shape.experts_used);
  BoundedRow sum(static_cast<std::size_t>(layer.down.rows) / logits.size());
  if (used < logits.size() && logits[order[used - 1]].value - logits[order[used - 1]].error <=
                                  logits[order[used]].value + logits[order[used]].error) {
    for (Bounded& one : sum) one.error = std::numeric_limits<double>::infinity();
    return sum;
  }
  double total = 0;
  double spread = 0;
  double logit_error = 0;
  const std::size_t summed = shape.weights_of_all ? logits.size() : used;
  for (std::size_t i = 0; i < summed; ++i) {
    total += std::exp(logits[order[i]].value - logits[order[0]].value);
    spread = std::max(spread, logits[order[0]].value - logits[order[i]].value);
    logit_error = std::max(logit_error, logits[order[i]].error);
  }
  // An exponential of 4 u whose argument is off by the logits' errors and 2 u of itself, twice; the sum and a quotient.
  const double relative =
      std::exp(2 * (2 * logit_error + (2 * spread + 4) * kUnit) + (static_cast<double>(summed) + 3) * kUnit) -
      1;
  for (std::size_t i = 0; i < used; ++i) {
    const std::size_t e = order[i];
    const double weight = shape.expert_scale * std::exp(logits[e].value - logits[order[0]].value) / total;
    const std::size_t n = logits.size();
    const BoundedRow own =
        mlp(shape,
            {one_of(layer.gate, e, n), one_of(layer.up, e, n), one_of(layer.down, e, n),
             one_of(layer.gate_bias, e, n), one_of(layer.up_bias, e, n), one_of(layer.down_bias, e, n)},
            x);
    for (std::size_t c = 0; c < sum.size(); ++c) {
      sum[c].value += weight * own[c].value;
      // A product with the scaled weight, and a sum for each expert.
      sum[c].error +=
          weight * (own[c].error + (relative + (static_cast<double>(used) + 3) * kUnit) * size_of(own[c]));
    }
  }
  return sum;
}

/// Adds the expert that all tokens take: w mlp(x), w = 1 / (1 + e^-t), t a product with x.
void add_shared(const TransformerShape& shape, const TransformerLayer& layer, std::span<const Bounded> x,
                BoundedRow& sum) {
  Bounded weight = {1, 0};
  if (layer.shared_weight.rows > 0) {
    const Bounded t = product(layer.shared_weight, {}, x).front();
    weight.value = 1 / (1 + std::exp(-t.value));
    // It is nowhere steeper than 1/4. An exponential of 4 u, a sum, a quotient.
    weight.error = t.error / 4 + 6 * kUnit * weight.value;
  }
  const BoundedRow own = mlp(shape, {layer.shared_gate, layer.shared_up, layer.shared_down, {}, {}, {}}, x);
  for (std::size_t c = 0; c < sum.size(); ++c) {
    sum[c].value += weight.value * own[c].value;
    // A product with the weight, and a sum.
    sum[c].error += weight.value * own[c].error + weight.error * size_of(own[c]);
    sum[c].error += kUnit * (weight.value * size_of(own[c]) + size_of(sum[c]));
  }
}

/// Keys and values of a latent row: of each key first the elements that are rotated, which all heads have.
void expand_latent(const TransformerShape& shape, const TransformerLayer& layer, std::span<const Bounded> x,
                   TransformerHeads& heads) {
  const BoundedRow all = product(layer.latent, {}, x);
  const std::size_t width = layer.latent_norm.size();
  const BoundedRow latent = rms_norm(std::span(all).first(width), layer.latent_norm, shape.norm_epsilon);
  const BoundedRow keys = product(layer.latent_keys, {}, latent);
  heads.value = product(layer.latent_values, {}, latent);
  const auto plain = static_cast<std::ptrdiff_t>(keys.size()) / static_cast<std::ptrdiff_t>(shape.heads_kv);
  for (auto from = keys.begin(); from != keys.end(); from += plain) {
    heads.key.insert(heads.key.end(), all.begin() + static_cast<std::ptrdiff_t>(width), all.end());
    heads.key.insert(heads.key.end(), from, from + plain);
  }
}

/// What a part of a layer adds, normed if it has a norm for that, and scaled.
void add(const TransformerShape& shape, BoundedRow& residual, BoundedRow change,
         std::span<const double> after_norm) {
  if (!after_norm.empty()) change = rms_norm(change, after_norm, shape.norm_epsilon);
  for (std::size_t i = 0; i < residual.size(); ++i) {
    residual[i].value += shape.residual_scale * change[i].value;
    residual[i].error += shape.residual_scale * change[i].error;
    if (shape.residual_scale != 1) residual[i].error += kUnit * shape.residual_scale * size_of(change[i]);
    residual[i].error += kUnit * size_of(residual[i]);
  }
}

}  // namespace

TransformerHeads transformer_heads(const TransformerShape& shape, const TransformerLayer& layer,
                                   const BoundedRow& residual, std::int64_t position) {
  const BoundedRow x =
      layer.attention_norm.empty() ? residual : row_norm(shape, residual, layer.attention_norm);
  TransformerHeads heads;
  heads.query = product(layer.query, layer.query_bias, x);
  if (layer.latent.rows > 0) {
    expand_latent(shape, layer, x, heads);
  } else {
    heads.key = product(layer.key, layer.key_bias, x);
    heads.value = product(layer.value, layer.value_bias, x);
  }
  norm_and_rotate(heads.query, layer.query_norm, position, shape, layer);
  norm_and_rotate(heads.key, layer.key_norm, position, shape, layer);
  const double lengths =
      std::floor(static_cast<double>(position) / static_cast<double>(shape.temperature_length));
  const double factor = 1 + shape.temperature_scale * std::log(1 + lengths);
  if (factor != 1) {  // rounded to F32, and multiplied
    for (Bounded& q : heads.query) q = {factor * q.value, factor * (q.error + 2.01 * kUnit * size_of(q))};
  }
  return heads;
}

BoundedRow transformer_attention(const TransformerShape& shape, const TransformerLayer& layer,
                                 std::span<const TransformerHeads> tokens, const BoundedRow& residual) {
  const std::size_t hidden =
      layer.window > 0 ? tokens.size() - std::min(tokens.size(), static_cast<std::size_t>(layer.window)) : 0;
  std::vector<TransformerHeads> stored(tokens.begin() + static_cast<std::ptrdiff_t>(hidden), tokens.end());
  for (TransformerHeads& token : stored) {
    for (Bounded& x : token.key) x.error += shape.stored_round_off * size_of(x);
    for (Bounded& x : token.value) x.error += shape.stored_round_off * size_of(x);
  }
  BoundedRow result = residual;
  add(shape, result, product(layer.output, layer.output_bias, attend(shape, layer, stored)),
      layer.attention_after_norm);
  return result;
}

BoundedRow transformer_mlp(const TransformerShape& shape, const TransformerLayer& layer,
                           const BoundedRow& residual, const BoundedRow& before) {
  BoundedRow result = residual;
  const std::vector<double>& norm = shape.parallel ? layer.attention_norm : layer.mlp_norm;
  const BoundedRow& read = shape.parallel ? before : residual;
  const BoundedRow x = norm.empty() ? read : row_norm(shape, read, norm);
  BoundedRow change = layer.router.rows > 0 ? mix(shape, layer, x) : mlp(shape, part_of(layer), x);
  if (layer.shared_down.rows > 0) add_shared(shape, layer, x, change);
  add(shape, result, change, layer.mlp_after_norm);
  return result;
}

BoundedRow transformer_logits(const TransformerShape& shape, const BoundedRow& row,
                              std::span<const double> norm, const Matrix& head, double scale) {
  BoundedRow logits = product(head, {}, row_norm(shape, row, norm));
  if (scale == 1) return logits;
  for (Bounded& one : logits) {  // the scale rounded to F32, and multiplied
    one = {scale * one.value, scale * (one.error + 2 * kUnit * size_of(one))};
  }
  return logits;
}

}  // namespace headwater::runtime::testing
