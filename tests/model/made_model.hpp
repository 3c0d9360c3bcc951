#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/model/transformer.hpp"
#include "tests/gguf/builder.hpp"
#include "tests/model/transformer_oracle.hpp"

namespace headwater::runtime::testing {

/// What a model of random weights is made of.
struct MadeSizes {
  /// "qwen2" has biases, "qwen3" norms of queries and keys, "llama" rotates neighbours, "gemma3" has windows in every second
  /// layer, two rotations, norms after what is added, GeGLU; "granite" scales; "olmo2" norms of all heads as one; "qwen3moe" experts; "gpt-oss" these with biases,
  /// sinks, windows and a clamped gate; "cohere2" LayerNorm, a parallel feed-forward part, and windows in every second layer,
  /// of which the others are not rotated; "mistral3" queries that grow with their position;
  /// "qwen2moe" experts, weighted by a softmax over all, and one that all tokens take; "deepseek2" these, latent attention with as
  /// many key heads as query heads, and a dense first layer.
  std::string architecture = "qwen2";
  std::int64_t layers = 1;
  std::int64_t width = 32;
  std::int64_t heads = 2;
  std::int64_t heads_kv = 1;
  std::int64_t d_head = 16;
  std::int64_t feed_forward = 64;
  std::int64_t vocabulary = 300;
  double theta = 1e6;
  std::int64_t d_value = d_head;
  std::string biases = "qkvo";    // of qwen2: queries, keys, values, outputs
  std::int64_t rotated = d_head;  // elements of a query and a key, the first ones
  /// Of the matrices in the order of a file, over and over; a matrix whose rows are no whole blocks is F32.
  std::vector<TensorType> types = {TensorType::f32};
  bool tied = false;         ///< the embedding is the head
  double rope_factor = 1.0;  ///< of linear scaling
  std::int64_t window = 40;  ///< of gemma3, gpt-oss and cohere2; of mistral3 the length by which queries grow
  std::int64_t experts = 5;  ///< of qwen3moe, qwen2moe and gpt-oss, each feed_forward wide
  std::int64_t experts_used = 2;
  std::int64_t latent = 160;  ///< of deepseek2
  std::int64_t shared = 96;   ///< of qwen2moe: the width of the expert that all tokens take
};

/// A model of random weights, made in memory, and the same numbers for the forward pass in double.
class MadeModel {
 public:
  explicit MadeModel(const MadeSizes& sizes);
  [[nodiscard]] const MadeSizes& sizes() const { return sizes_; }
  /// Reads the weights where they are: this object must outlive it.
  [[nodiscard]] std::shared_ptr<const Model> load(Precision precision, const ModelPart& part = {}) const&;
  std::shared_ptr<const Model> load(Precision precision, const ModelPart& part = {}) const&& = delete;
  [[nodiscard]] const TransformerShape& shape() const { return shape_; }
  [[nodiscard]] const TransformerLayer& layer(std::int64_t index) const {
    return layers_[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] const std::vector<double>& embedding() const { return embedding_; }  ///< [vocabulary][width]
  [[nodiscard]] const Matrix& head() const { return head_; }
  [[nodiscard]] const std::vector<double>& final_norm() const { return final_norm_; }
  [[nodiscard]] double logit_scale() const { return logit_scale_; }

 private:
  std::vector<double> add(const std::string& name, std::int64_t columns, std::int64_t rows, float middle,
                          float spread, std::int64_t count = 1);
  std::vector<double> norm(const std::string& name, std::int64_t n) { return add(name, n, 0, 1.0F, 0.1F); }
  void add_expert_biases(const std::string& at, TransformerLayer& layer);
  void add_shared_expert(const std::string& at, TransformerLayer& layer);
  void add_norms(const std::string& at, TransformerLayer& layer);
  void describe_cohere2();
  void describe_deepseek2();
  void add_latent(const std::string& at, TransformerLayer& layer);
  void describe_gemma3();
  void describe_experts();
  void describe_granite();
  void describe_mistral3();
  Matrix matrix(const std::string& name, std::int64_t columns, std::int64_t rows, std::int64_t count = 1);

  MadeSizes sizes_;
  std::mt19937 random_{1};
  Builder builder_;
  std::vector<std::byte> data_;
  std::vector<std::byte> bytes_;
  TransformerShape shape_;
  std::vector<TransformerLayer> layers_;
  std::vector<double> embedding_;
  std::vector<double> final_norm_;
  double logit_scale_ = 1;
  Matrix head_;
  std::size_t matrices_ = 0;  // made so far
};

/// What a transformer had between the stages of its layers, of chosen tokens, against the forward pass of reference/: each
/// stage from the transformer's own inputs to it.
class StageCheck {
 public:
  /// Watches `transformer` until it is destroyed. `tokens`: positions, ascending. `slack`: how far an element may be off beyond
  /// what F32 explains, as a share of the root mean square of its row; for operands of 16 bits.
  StageCheck(const MadeModel& model, Transformer& transformer, std::vector<std::int64_t> tokens,
             double slack = 0);
  ~StageCheck() { transformer_.set_observer({}); }
  StageCheck(const StageCheck&) = delete;
  StageCheck& operator=(const StageCheck&) = delete;

  [[nodiscard]] LayerObserver observer() {
    return [this](const LayerView& view) { take(view); };
  }
  /// Rows of q, k, v and the stages of every chosen token of every layer: heads and feed-forward stay within their
  /// bounds, and a layer begins with what the one before left.
  void expect_stages() const;
  /// The stored keys and values of layer 0 are what it was given, at every position.
  void expect_stored() const;
  /// Attention of these chosen tokens, dense over everything stored up to them, and its output projection (layer 0).
  void expect_dense(const std::vector<std::int64_t>& tokens) const;
  /// Logits of the last step, which began at position `begin`, after the chosen tokens: of all its rows at once, and of one.
  void expect_logits(std::int64_t begin) const;

 private:
  struct Seen {
    std::int64_t token = 0;
    std::vector<float> input, q, k, v, middle, output;
  };
  void take(const LayerView& view);

  const MadeModel& model_;
  Transformer& transformer_;
  std::vector<std::int64_t> tokens_;
  double slack_;
  std::vector<std::vector<Seen>> layers_;
  std::vector<float> keys_, values_;  // of layer 0, all tokens
};

}  // namespace headwater::runtime::testing
