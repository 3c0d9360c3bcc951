// Each layer of the transformer against the forward pass in double (transformer_oracle.hpp), teacher-forced: the reference gets
// the residual stream that the transformer had before the layer, so that its bound covers one layer and nothing
// is excused by what came before.

#include "tests/model/transformer_oracle.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tests/model/support.hpp"

namespace headwater::runtime::testing {
namespace {

constexpr std::int64_t kTokens = 40;

std::vector<double> values_of(const std::string& name) {
  const Tensor* tensor = bundled_file()->find_tensor(name);
  if (tensor == nullptr) return {};
  const std::int64_t columns = tensor->dims[0];
  std::vector<float> wide(static_cast<std::size_t>(columns * tensor->rows()));
  for (std::int64_t r = 0; r < tensor->rows(); ++r) {
    dequantize_row(tensor->type, tensor->row(r), columns, wide.data() + r * columns);
  }
  return {wide.begin(), wide.end()};
}

Matrix matrix(const std::string& name) {
  const Tensor& tensor = bundled_file()->tensor(name);
  return {tensor.rows(), tensor.dims[0], values_of(name)};
}

TransformerLayer layer_of(std::int64_t index) {
  const std::string at = "blk." + std::to_string(index) + ".";
  TransformerLayer layer;
  layer.attention_norm = values_of(at + "attn_norm.weight");
  layer.query_norm = values_of(at + "attn_q_norm.weight");
  layer.key_norm = values_of(at + "attn_k_norm.weight");
  layer.mlp_norm = values_of(at + "ffn_norm.weight");
  layer.query = matrix(at + "attn_q.weight");
  layer.key = matrix(at + "attn_k.weight");
  layer.value = matrix(at + "attn_v.weight");
  layer.output = matrix(at + "attn_output.weight");
  layer.gate = matrix(at + "ffn_gate.weight");
  layer.up = matrix(at + "ffn_up.weight");
  layer.down = matrix(at + "ffn_down.weight");
  return layer;
}

/// From the file's metadata and the definition of ROPE-1, not from what the runtime made of them.
TransformerShape shape() {
  const GgufFile& file = *bundled_file();
  TransformerShape shape;
  shape.heads = file.integer("qwen3.attention.head_count", 1, 1000);
  shape.heads_kv = file.integer("qwen3.attention.head_count_kv", 1, 1000);
  shape.d_head = shape.d_value = file.integer("qwen3.attention.key_length", 1, 1000);
  shape.norm_epsilon = file.number("qwen3.attention.layer_norm_rms_epsilon");
  const double theta = file.number("qwen3.rope.freq_base");
  for (std::int64_t i = 0; i < shape.d_head / 2; ++i) {
    shape.inverse_frequencies.push_back(
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(shape.d_head)));
  }
  return shape;
}

using Values = std::vector<float>;

/// What the transformer had between the stages of its layers.
struct Recording {
  std::vector<Values> input, middle, output;  // [layer][token][width]
  std::vector<Values> q, k, v;                // [layer][token][heads][d]
  Values logits;                              // of all tokens
};

Values copy_rows(const Rows& rows, std::int64_t heads, std::int64_t width) {
  Values values;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const float* const row =
          static_cast<const float*>(rows.data) + t * rows.row_stride + h * rows.head_stride;
      values.insert(values.end(), row, row + width);
    }
  }
  return values;
}

const Recording& recording() {
  static const Recording result = [] {
    const auto model = bundled(Precision::f32);
    const ModelConfig& config = model->config();
    Recording run;
    Transformer transformer(model, options(kTokens));
    transformer.set_observer([&](const LayerView& view) {
      const Values residual(view.residual, view.residual + kTokens * config.width);
      switch (view.stage) {
        case LayerView::Stage::input: run.input.push_back(residual); break;
        case LayerView::Stage::middle: run.middle.push_back(residual); break;
        case LayerView::Stage::output: run.output.push_back(residual); break;
        case LayerView::Stage::attention:
          run.q.push_back(copy_rows(view.q, config.heads, config.d_head));
          run.k.push_back(copy_rows(view.k, config.heads_kv, config.d_head));
          run.v.push_back(copy_rows(view.v, config.heads_kv, config.d_value));
          break;
      }
    });
    transformer.run(Step::prefill(kTokens), some_ids(kTokens));
    run.logits.resize(static_cast<std::size_t>(kTokens * config.vocabulary));
    transformer.logits(0, kTokens, run.logits);
    return run;
  }();
  return result;
}

std::span<const float> row_of(const Values& values, std::size_t token) {
  const std::size_t width = values.size() / static_cast<std::size_t>(kTokens);
  return std::span(values).subspan(token * width, width);
}

/// Inputs of a stage are what the transformer had: without error.
BoundedRow exact(std::span<const float> values) {
  BoundedRow row;
  for (const float value : values) row.push_back({value, 0.0});
  return row;
}

/// Largest error / bound, and whether the bounds say anything: they must add up to far less than the signals.
struct Judgement {
  double worst = 0;
  double bounds = 0;
  double signals = 0;

  void take(const BoundedRow& wanted, std::span<const float> got) {
    ASSERT_EQ(wanted.size(), got.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const double difference = std::fabs(static_cast<double>(got[i]) - wanted[i].value);
      // A NaN is worse than any bound.
      worst = difference <= wanted[i].error * 1e6 ? std::max(worst, difference / wanted[i].error) : 1e6;
      bounds += wanted[i].error;
      signals += std::fabs(wanted[i].value);
    }
  }
  void expect_good(const std::string& what) const {
    EXPECT_LE(worst, 1.0) << what;
    EXPECT_LT(bounds, 1e-2 * signals) << what << ": the bound says nothing";
  }
};

struct LayerJudgement {
  Judgement heads, attention, mlp;
};

LayerJudgement judge_layer(const TransformerShape& shape, const TransformerLayer& layer, std::size_t at) {
  const Recording& run = recording();
  LayerJudgement judgement;
  std::vector<TransformerHeads> tokens;
  for (std::size_t t = 0; t < static_cast<std::size_t>(kTokens); ++t) {
    const auto residual = exact(row_of(run.input[at], t));
    const auto heads = transformer_heads(shape, layer, residual, static_cast<std::int64_t>(t));
    judgement.heads.take(heads.query, row_of(run.q[at], t));
    judgement.heads.take(heads.key, row_of(run.k[at], t));
    judgement.heads.take(heads.value, row_of(run.v[at], t));
    tokens.push_back({exact(row_of(run.q[at], t)), exact(row_of(run.k[at], t)), exact(row_of(run.v[at], t))});
    judgement.attention.take(transformer_attention(shape, layer, tokens, residual),
                             row_of(run.middle[at], t));
    judgement.mlp.take(transformer_mlp(shape, layer, exact(row_of(run.middle[at], t)), residual),
                       row_of(run.output[at], t));
  }
  return judgement;
}

TEST(AgainstReference, EveryStageOfEveryLayerStaysWithinItsBound) {
  const auto layers = static_cast<std::size_t>(bundled(Precision::f32)->config().layers);
  ASSERT_EQ(recording().output.size(), layers);
  for (std::size_t l = 0; l < layers; ++l) {
    const LayerJudgement judgement = judge_layer(shape(), layer_of(static_cast<std::int64_t>(l)), l);
    const std::string where = "layer " + std::to_string(l);
    judgement.heads.expect_good(where + ", heads");
    judgement.attention.expect_good(where + ", attention");
    judgement.mlp.expect_good(where + ", mlp");
    if (l == 0) continue;
    EXPECT_EQ(recording().input[l], recording().output[l - 1]) << "between layers " << l;
  }
}

TEST(AgainstReference, EmbeddingsAreTheFilesRows) {
  const auto table = values_of("token_embd.weight");
  const Values& residual = recording().input.front();
  const std::size_t width = residual.size() / static_cast<std::size_t>(kTokens);
  const auto ids = some_ids(kTokens);
  for (std::size_t t = 0; t < ids.size(); ++t) {
    for (std::size_t i = 0; i < width; ++i) {
      ASSERT_EQ(residual[t * width + i], table[static_cast<std::size_t>(ids[t]) * width + i])
          << t << ", " << i;
    }
  }
}

TEST(AgainstReference, LogitsStayWithinTheirBound) {
  const Recording& run = recording();
  const auto norm = values_of("output_norm.weight");
  const Matrix head = matrix("token_embd.weight");  // tied
  Judgement judgement;
  for (std::size_t t = 0; t < static_cast<std::size_t>(kTokens); t += 13) {
    const auto row = exact(row_of(run.output.back(), t));
    judgement.take(transformer_logits(shape(), row, norm, head), row_of(run.logits, t));
  }
  judgement.expect_good("logits");
}

// The check itself: mistakes that someone could make must leave the bound, in their stage.
TEST(AgainstReference, MistakesAreSeen) {
  auto wrong = shape();
  wrong.norm_epsilon = 1e-5;
  EXPECT_GT(judge_layer(wrong, layer_of(0), 0).heads.worst, 1.0) << "epsilon";
  wrong = shape();
  wrong.layout = RopeLayout::adjacent_pairs;
  EXPECT_GT(judge_layer(wrong, layer_of(3), 3).heads.worst, 1.0) << "layout of the rotation";
  wrong = shape();
  wrong.inverse_frequencies[5] *= 1.001;
  EXPECT_GT(judge_layer(wrong, layer_of(3), 3).heads.worst, 1.0) << "a frequency";
  auto layer = layer_of(3);
  layer.query_norm.clear();
  EXPECT_GT(judge_layer(shape(), layer, 3).heads.worst, 1.0) << "no norm of queries";
  layer = layer_of(3);
  std::swap(layer.gate, layer.up);
  EXPECT_GT(judge_layer(shape(), layer, 3).mlp.worst, 1.0) << "gate and up";
  layer = layer_of(3);
  std::swap(layer.output.values[0], layer.output.values[1]);
  EXPECT_GT(judge_layer(shape(), layer, 3).attention.worst, 1.0) << "two weights of 65536";
}

}  // namespace
}  // namespace headwater::runtime::testing
