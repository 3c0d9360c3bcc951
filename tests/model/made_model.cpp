#include "tests/model/made_model.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tests/model/quantise.hpp"

namespace headwater::runtime::testing {
namespace {

BoundedRow exact(const std::vector<float>& values) {
  BoundedRow row;
  for (const float value : values) row.push_back({value, 0.0});
  return row;
}

void expect_within(const BoundedRow& wanted, const std::vector<float>& got, double slack,
                   const std::string& what) {
  ASSERT_EQ(wanted.size(), got.size()) << what;
  double squares = 0;
  for (const Bounded& one : wanted) squares += one.value * one.value;
  const double more = slack * std::sqrt(squares / static_cast<double>(wanted.size()));
  double bounds = 0;
  double signals = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(got[i]), wanted[i].value, wanted[i].error + more)
        << what << ", element " << i;
    bounds += wanted[i].error;
    signals += std::fabs(wanted[i].value);
  }
  // Sums of 4096 terms: a worst case is a few per cent of what they add up to.
  EXPECT_LT(bounds, 5e-2 * signals) << what << ": the bound says nothing";
}

std::vector<float> row_of(const Rows& rows, std::int64_t row, std::int64_t heads, std::int64_t width) {
  std::vector<float> values;
  for (std::int64_t h = 0; h < heads; ++h) {
    const float* const from =
        static_cast<const float*>(rows.data) + row * rows.row_stride + h * rows.head_stride;
    values.insert(values.end(), from, from + width);
  }
  return values;
}

MadeSizes possible(MadeSizes sizes) {
  if (sizes.architecture != "deepseek2") return sizes;
  sizes.heads_kv = sizes.heads;
  if (sizes.rotated == sizes.d_head) sizes.rotated = sizes.d_head / 2;
  return sizes;
}

std::vector<double> frequencies(std::int64_t rotated, double theta, double factor) {
  std::vector<double> inverse;
  for (std::int64_t i = 0; i < rotated / 2; ++i) {
    inverse.push_back(std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotated)) / factor);
  }
  return inverse;
}

/// What all architectures have.
TransformerShape shape_of(const MadeSizes& sizes) {
  TransformerShape shape;
  shape.heads = sizes.heads;
  shape.heads_kv = sizes.heads_kv;
  shape.d_head = sizes.d_head;
  shape.d_value = sizes.d_value;
  shape.norm_epsilon = static_cast<double>(1e-6F);
  constexpr const char* kAdjacent[] = {"llama", "granite", "cohere2", "mistral3", "deepseek2"};
  if (std::ranges::find(kAdjacent, sizes.architecture) != std::end(kAdjacent))
    shape.layout = RopeLayout::adjacent_pairs;
  shape.inverse_frequencies = frequencies(sizes.rotated, sizes.theta, sizes.rope_factor);
  return shape;
}

/// Rows [first, first + count) of each `period` of them.
Matrix some_rows(const Matrix& all, std::int64_t period, std::int64_t first, std::int64_t count) {
  Matrix some = {0, all.columns, {}};
  for (std::int64_t r = first; r < all.rows; r += period, some.rows += count) {
    const auto from = all.values.begin() + r * all.columns;
    some.values.insert(some.values.end(), from, from + count * all.columns);
  }
  return some;
}

}  // namespace

MadeModel::MadeModel(const MadeSizes& wanted) : sizes_(possible(wanted)) {
  const MadeSizes& sizes = sizes_;
  const std::string a = sizes.architecture + ".";
  builder_.add_text("general.architecture", sizes.architecture);
  const auto number = [&](const char* key, std::int64_t value) {
    builder_.add(a + key, kU32, static_cast<std::uint32_t>(value));
  };
  number("context_length", 1 << 20);
  number("block_count", sizes.layers);
  number("embedding_length", sizes.width);
  number("feed_forward_length", sizes.feed_forward);
  number("attention.head_count", sizes.heads);
  number("attention.head_count_kv", sizes.heads_kv);
  number("attention.key_length", sizes.d_head);
  number("attention.value_length", sizes.d_value);
  if (sizes.rotated != sizes.d_head) number("rope.dimension_count", sizes.rotated);
  const bool cohere = sizes.architecture == "cohere2";
  const bool latent = sizes.architecture == "deepseek2";
  builder_.add(a + (cohere ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon"), kF32,
               1e-6F);
  builder_.add(a + "rope.freq_base", kF32, static_cast<float>(sizes.theta));
  if (sizes.rope_factor != 1.0) {
    builder_.add_text(a + "rope.scaling.type", "linear");
    builder_.add(a + "rope.scaling.factor", kF32, static_cast<float>(sizes.rope_factor));
  }
  shape_ = shape_of(sizes);
  if (sizes.architecture == "gemma3") describe_gemma3();
  if (sizes.architecture == "granite") describe_granite();
  if (cohere) describe_cohere2();
  if (sizes.architecture == "mistral3") describe_mistral3();
  const bool shared = latent || sizes.architecture == "qwen2moe";
  if (latent) describe_deepseek2();
  if (shared || sizes.architecture == "qwen3moe" || sizes.architecture == "gpt-oss") describe_experts();
  embedding_ = add("token_embd.weight", sizes.width, sizes.vocabulary, 0.0F, 1.0F);
  final_norm_ = norm("output_norm.weight", sizes.width);
  head_ = sizes.tied ? Matrix{sizes.vocabulary, sizes.width, embedding_}
                     : matrix("output.weight", sizes.width, sizes.vocabulary);
  for (std::int64_t l = 0; l < sizes.layers; ++l) {
    const std::string at = "blk." + std::to_string(l) + ".";
    TransformerLayer layer;
    add_norms(at, layer);
    const bool oss = sizes.architecture == "gpt-oss";
    if ((oss || cohere || sizes.architecture == "gemma3") && l % 2 == 0) layer.window = sizes.window;
    layer.rotated = !cohere || l % 2 == 0;
    if (sizes.architecture == "gemma3" && l % 2 == 0) {
      layer.inverse_frequencies = frequencies(sizes.rotated, 5000.0, 1);
    }
    if (sizes.architecture == "qwen2" || oss) {
      const auto bias = [&](char of, const char* name, std::int64_t width) {
        if (sizes.biases.find(of) == std::string::npos) return std::vector<double>();
        return add(at + name, width, 0, 0.0F, 0.5F);
      };
      layer.query_bias = bias('q', "attn_q.bias", sizes.heads * sizes.d_head);
      layer.key_bias = bias('k', "attn_k.bias", sizes.heads_kv * sizes.d_head);
      layer.value_bias = bias('v', "attn_v.bias", sizes.heads_kv * sizes.d_value);
      layer.output_bias = bias('o', "attn_output.bias", sizes.width);
    }
    layer.query = matrix(at + "attn_q.weight", sizes.width, sizes.heads * sizes.d_head);
    if (latent) {
      add_latent(at, layer);
    } else {
      layer.key = matrix(at + "attn_k.weight", sizes.width, sizes.heads_kv * sizes.d_head);
      layer.value = matrix(at + "attn_v.weight", sizes.width, sizes.heads_kv * sizes.d_value);
    }
    layer.output = matrix(at + "attn_output.weight", sizes.heads * sizes.d_value, sizes.width);
    const bool experts = oss || (shared && !(latent && l == 0)) || sizes.architecture == "qwen3moe";
    const std::string tail = experts ? "_exps.weight" : ".weight";
    const std::int64_t count = experts ? sizes.experts : 1;
    const std::int64_t wide = experts && latent ? sizes.shared / 2 : sizes.feed_forward;
    if (experts) layer.router = matrix(at + "ffn_gate_inp.weight", sizes.width, count);
    layer.gate = matrix(at + "ffn_gate" + tail, sizes.width, wide, count);
    layer.up = matrix(at + "ffn_up" + tail, sizes.width, wide, count);
    layer.down = matrix(at + "ffn_down" + tail, wide, sizes.width, count);
    if (oss) add_expert_biases(at, layer);
    if (shared && experts) add_shared_expert(at, layer);
    layers_.push_back(std::move(layer));
  }
  builder_.data_bytes = data_.size();
  bytes_ = builder_.build();
  std::copy(data_.begin(), data_.end(), bytes_.end() - static_cast<std::ptrdiff_t>(data_.size()));
  data_ = {};
}

void MadeModel::add_norms(const std::string& at, TransformerLayer& layer) {
  const bool gemma = sizes_.architecture == "gemma3";
  const bool olmo = sizes_.architecture == "olmo2";
  if (!olmo) {
    layer.attention_norm = norm(at + "attn_norm.weight", sizes_.width);
    const bool oss = sizes_.architecture == "gpt-oss";
    if (!shape_.parallel) {
      layer.mlp_norm = norm(at + (oss ? "post_attention_norm.weight" : "ffn_norm.weight"), sizes_.width);
    }
  }
  if (olmo || gemma) {
    layer.attention_after_norm = norm(at + "post_attention_norm.weight", sizes_.width);
    layer.mlp_after_norm = norm(at + "post_ffw_norm.weight", sizes_.width);
  }
  if (olmo || gemma || sizes_.architecture.starts_with("qwen3")) {
    layer.query_norm = norm(at + "attn_q_norm.weight", sizes_.d_head * (olmo ? sizes_.heads : 1));
    layer.key_norm = norm(at + "attn_k_norm.weight", sizes_.d_head * (olmo ? sizes_.heads_kv : 1));
  }
}

void MadeModel::describe_gemma3() {
  builder_.add("gemma3.attention.sliding_window", kU32, static_cast<std::uint32_t>(sizes_.window));
  builder_.add("gemma3.attention.sliding_window_pattern", kU32, 2U);
  builder_.add("gemma3.rope.freq_base_swa", kF32, 5000.0F);
  shape_.activation = Activation::gelu;
}

void MadeModel::describe_experts() {
  const std::string a = sizes_.architecture + ".";
  builder_.add(a + "expert_count", kU32, static_cast<std::uint32_t>(sizes_.experts));
  builder_.add(a + "expert_used_count", kU32, static_cast<std::uint32_t>(sizes_.experts_used));
  shape_.experts_used = sizes_.experts_used;
  shape_.weights_of_all = sizes_.architecture == "qwen2moe" || sizes_.architecture == "deepseek2";
  if (sizes_.architecture == "qwen2moe") {
    builder_.add(a + "expert_shared_feed_forward_length", kU32, static_cast<std::uint32_t>(sizes_.shared));
  }
  if (sizes_.architecture != "gpt-oss") return;
  builder_.add(a + "attention.sliding_window", kU32, static_cast<std::uint32_t>(sizes_.window));
  shape_.activation = Activation::clamped;
}

/// Vectors and matrices of F32, whatever the types of matrices are.
void MadeModel::add_expert_biases(const std::string& at, TransformerLayer& layer) {
  const std::vector<TensorType> types = std::exchange(sizes_.types, {TensorType::f32});
  const std::size_t made = std::exchange(matrices_, 0);
  layer.sinks = add(at + "attn_sinks.weight", sizes_.heads, 0, 0.0F, 1.0F);
  layer.router_bias = add(at + "ffn_gate_inp.bias", sizes_.experts, 0, 0.0F, 0.5F);
  layer.gate_bias = add(at + "ffn_gate_exps.bias", sizes_.feed_forward, sizes_.experts, 0.0F, 0.5F);
  layer.up_bias = add(at + "ffn_up_exps.bias", sizes_.feed_forward, sizes_.experts, 0.0F, 0.5F);
  layer.down_bias = add(at + "ffn_down_exps.bias", sizes_.width, sizes_.experts, 0.0F, 0.5F);
  sizes_.types = types;
  matrices_ = made;
}

void MadeModel::add_shared_expert(const std::string& at, TransformerLayer& layer) {
  layer.shared_gate = matrix(at + "ffn_gate_shexp.weight", sizes_.width, sizes_.shared);
  layer.shared_up = matrix(at + "ffn_up_shexp.weight", sizes_.width, sizes_.shared);
  layer.shared_down = matrix(at + "ffn_down_shexp.weight", sizes_.shared, sizes_.width);
  if (sizes_.architecture == "deepseek2") return;
  const float spread = 2 / std::sqrt(static_cast<float>(sizes_.width));
  layer.shared_weight = {1, sizes_.width,
                         add(at + "ffn_gate_inp_shexp.weight", sizes_.width, 0, 0.0F, spread)};
}

void MadeModel::describe_deepseek2() {
  const auto number = [&](const char* key, std::int64_t value) {
    builder_.add(std::string("deepseek2.") + key, kU32, static_cast<std::uint32_t>(value));
  };
  number("attention.kv_lora_rank", sizes_.latent);
  number("expert_feed_forward_length", sizes_.shared / 2);
  number("expert_shared_count", 2);
  number("leading_dense_block_count", 1);
  builder_.add("deepseek2.expert_weights_scale", kF32, 1.5F);
  shape_.expert_scale = 1.5;
}

/// A file has the rotated elements last.
void MadeModel::add_latent(const std::string& at, TransformerLayer& layer) {
  const std::int64_t plain = sizes_.d_head - sizes_.rotated;
  const std::int64_t head = plain + sizes_.d_value;
  std::vector<double> query;
  for (std::int64_t h = 0; h < sizes_.heads; ++h) {
    const auto first = layer.query.values.begin() + h * sizes_.d_head * sizes_.width;
    query.insert(query.end(), first + plain * sizes_.width, first + sizes_.d_head * sizes_.width);
    query.insert(query.end(), first, first + plain * sizes_.width);
  }
  layer.query.values = std::move(query);
  layer.latent = matrix(at + "attn_kv_a_mqa.weight", sizes_.width, sizes_.latent + sizes_.rotated);
  layer.latent_norm = norm(at + "attn_kv_a_norm.weight", sizes_.latent);
  const Matrix both = matrix(at + "attn_kv_b.weight", sizes_.latent, sizes_.heads * head);
  layer.latent_keys = some_rows(both, head, 0, plain);
  layer.latent_values = some_rows(both, head, plain, sizes_.d_value);
}

void MadeModel::describe_granite() {
  builder_.add("granite.embedding_scale", kF32, 6.0F);
  builder_.add("granite.residual_scale", kF32, 0.25F);
  builder_.add("granite.attention.scale", kF32, 0.125F);
  builder_.add("granite.logit_scale", kF32, 3.0F);
  shape_.residual_scale = 0.25;
  shape_.attention_scale = 0.125;
  logit_scale_ = 1.0 / 3.0;
}

void MadeModel::describe_cohere2() {
  builder_.add("cohere2.attention.sliding_window", kU32, static_cast<std::uint32_t>(sizes_.window));
  builder_.add("cohere2.attention.sliding_window_pattern", kU32, 2U);
  builder_.add("cohere2.logit_scale", kF32, 0.25F);
  shape_.layer_norm = shape_.parallel = true;
  logit_scale_ = 0.25;
}

void MadeModel::describe_mistral3() {
  builder_.add("mistral3.attention.temperature_scale", kF32, 0.5F);
  builder_.add("mistral3.attention.temperature_length", kU32, static_cast<std::uint32_t>(sizes_.window));
  shape_.temperature_scale = 0.5;
  shape_.temperature_length = sizes_.window;
}

/// Uniform in middle +- spread; 0 rows: a vector, in F32.
std::vector<double> MadeModel::add(const std::string& name, std::int64_t columns, std::int64_t rows,
                                   float middle, float spread, std::int64_t count) {
  std::vector<std::uint64_t> dims = {static_cast<std::uint64_t>(columns)};
  if (rows > 0) dims.push_back(static_cast<std::uint64_t>(rows / count));
  if (count > 1) dims.push_back(static_cast<std::uint64_t>(count));
  TensorType type = rows > 0 ? sizes_.types[matrices_++ % sizes_.types.size()] : TensorType::f32;
  if (columns % tensor_type_info(type).block_elements != 0) type = TensorType::f32;
  builder_.add_tensor(name, dims, tensor_type_info(type).ggml_id, data_.size());
  std::vector<double> values;
  std::vector<float> row(static_cast<std::size_t>(columns));
  for (std::int64_t r = 0; r < std::max<std::int64_t>(rows, 1); ++r) {
    for (float& value : row) value = middle + spread * (static_cast<float>(random_() >> 8) * 0x1p-23F - 1.0F);
    const std::size_t at = data_.size();
    append_quantised(type, row, data_);
    dequantize_row(type, data_.data() + at, columns, row.data());
    values.insert(values.end(), row.begin(), row.end());
  }
  data_.resize((data_.size() + 31) / 32 * 32);
  return values;
}

/// Of a size that keeps the rows of a product as large as those of its operand. `count`: matrices of a tensor of three
/// dimensions, one after the other; 1: it has two.
Matrix MadeModel::matrix(const std::string& name, std::int64_t columns, std::int64_t rows,
                         std::int64_t count) {
  return {rows * count, columns,
          add(name, columns, rows * count, 0.0F, std::sqrt(3.0F / static_cast<float>(columns)), count)};
}

std::shared_ptr<const Model> MadeModel::load(Precision precision, const ModelPart& part) const& {
  return Model::load(std::make_shared<const GgufFile>(GgufFile::parse(bytes_, "made.gguf")),
                     {precision, 2, part});
}

StageCheck::StageCheck(const MadeModel& model, Transformer& transformer, std::vector<std::int64_t> tokens,
                       double slack)
    : model_(model),
      transformer_(transformer),
      tokens_(std::move(tokens)),
      slack_(slack),
      layers_(static_cast<std::size_t>(model.sizes().layers)) {
  transformer_.set_observer(observer());
}

void StageCheck::take(const LayerView& view) {
  const MadeSizes& sizes = model_.sizes();
  const std::int64_t begin = transformer_.session().tokens();
  if (view.layer == 0 && view.stage == LayerView::Stage::attention) {
    for (std::int64_t r = 0; r < view.n; ++r) {
      const auto key = row_of(view.k, r, sizes.heads_kv, sizes.d_head);
      const auto value = row_of(view.v, r, sizes.heads_kv, sizes.d_value);
      keys_.insert(keys_.end(), key.begin(), key.end());
      values_.insert(values_.end(), value.begin(), value.end());
    }
  }
  auto& seen = layers_[static_cast<std::size_t>(view.layer)];
  const auto first = std::lower_bound(tokens_.begin(), tokens_.end(), begin);
  for (auto token = first; token != tokens_.end() && *token < begin + view.n; ++token) {
    const std::int64_t row = *token - begin;
    const float* const from = view.residual + row * sizes.width;
    const std::vector<float> residual(from, from + sizes.width);
    if (view.stage == LayerView::Stage::input) seen.push_back({*token, residual, {}, {}, {}, {}, {}});
    Seen& one = *std::find_if(seen.begin(), seen.end(), [&](const Seen& s) { return s.token == *token; });
    if (view.stage == LayerView::Stage::attention) {
      one.q = row_of(view.q, row, sizes.heads, sizes.d_head);
      one.k = row_of(view.k, row, sizes.heads_kv, sizes.d_head);
      one.v = row_of(view.v, row, sizes.heads_kv, sizes.d_value);
    } else if (view.stage == LayerView::Stage::middle) {
      one.middle = residual;
    } else if (view.stage == LayerView::Stage::output) {
      one.output = residual;
    }
  }
}

void StageCheck::expect_stages() const {
  std::size_t ties = 0;  // tokens whose experts hang on a rounding
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const TransformerLayer& layer = model_.layer(static_cast<std::int64_t>(l));
    ASSERT_EQ(layers_[l].size(), tokens_.size());
    for (std::size_t i = 0; i < layers_[l].size(); ++i) {
      const Seen& one = layers_[l][i];
      const std::string at = "layer " + std::to_string(l) + ", token " + std::to_string(one.token);
      const auto heads = transformer_heads(model_.shape(), layer, exact(one.input), one.token);
      expect_within(heads.query, one.q, slack_, at + ", queries");
      expect_within(heads.key, one.k, slack_, at + ", keys");
      expect_within(heads.value, one.v, slack_, at + ", values");
      const BoundedRow wanted = transformer_mlp(model_.shape(), layer, exact(one.middle), exact(one.input));
      if (std::isinf(wanted.front().error)) {
        ++ties;
      } else {
        expect_within(wanted, one.output, slack_, at + ", feed-forward");
      }
      if (l > 0) {
        EXPECT_EQ(one.input, layers_[l - 1][i].output) << at;
      }
      if (::testing::Test::HasFailure()) return;
    }
  }
  EXPECT_LE(10 * ties, layers_.size() * tokens_.size());
}

void StageCheck::expect_stored() const {
  const Session& session = transformer_.session();
  const MadeSizes& sizes = model_.sizes();
  ASSERT_EQ(static_cast<std::int64_t>(keys_.size()), session.tokens() * sizes.heads_kv * sizes.d_head);
  std::vector<float> key(static_cast<std::size_t>(sizes.d_head));
  std::vector<float> value(static_cast<std::size_t>(sizes.d_value));
  std::int64_t at = 0;
  for (std::int64_t t = 0; t < session.tokens(); ++t) {
    for (std::int64_t h = 0; h < sizes.heads_kv; ++h, ++at) {
      session.read_key(0, h, t, key);
      ASSERT_TRUE(std::equal(key.begin(), key.end(), keys_.begin() + at * sizes.d_head)) << t;
      session.read_value(0, h, t, value);
      ASSERT_TRUE(std::equal(value.begin(), value.end(), values_.begin() + at * sizes.d_value)) << t;
    }
  }
}

void StageCheck::expect_dense(const std::vector<std::int64_t>& tokens) const {
  const MadeSizes& sizes = model_.sizes();
  const auto stored = [&](const std::vector<float>& all, std::int64_t t, std::int64_t d) {
    const std::int64_t width = sizes.heads_kv * d;
    return exact({all.begin() + t * width, all.begin() + (t + 1) * width});
  };
  for (const std::int64_t token : tokens) {
    const auto one =
        std::find_if(layers_[0].begin(), layers_[0].end(), [&](const Seen& s) { return s.token == token; });
    ASSERT_NE(one, layers_[0].end()) << token;
    std::vector<TransformerHeads> all;
    for (std::int64_t t = 0; t <= token; ++t) {
      all.push_back({{}, stored(keys_, t, sizes.d_head), stored(values_, t, sizes.d_value)});
    }
    all.back().query = exact(one->q);
    expect_within(transformer_attention(model_.shape(), model_.layer(0), all, exact(one->input)), one->middle,
                  slack_, "attention of token " + std::to_string(token));
  }
}

void StageCheck::expect_logits(std::int64_t begin) const {
  const std::int64_t vocabulary = model_.sizes().vocabulary;
  const std::int64_t rows = transformer_.session().tokens() - begin;
  std::vector<float> all(static_cast<std::size_t>(rows * vocabulary));
  std::vector<float> one(static_cast<std::size_t>(vocabulary));
  transformer_.logits(0, rows, all);
  for (const Seen& seen : layers_.back()) {
    const std::int64_t row = seen.token - begin;
    if (row < 0) continue;
    const BoundedRow wanted = transformer_logits(model_.shape(), exact(seen.output), model_.final_norm(),
                                                 model_.head(), model_.logit_scale());
    const auto from = all.begin() + row * vocabulary;
    expect_within(wanted, {from, from + vocabulary}, slack_,
                  fmt::format("logits of row {} of {}", row, rows));
    transformer_.logits(row, 1, one);
    expect_within(wanted, one, slack_, fmt::format("logits of row {} alone", row));
  }
}

}  // namespace headwater::runtime::testing
