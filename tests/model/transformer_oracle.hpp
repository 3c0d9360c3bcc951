#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "headwater/rope.hpp"

/// The forward pass around attention, for transformers of the kind of Llama (Touvron et al., 2023), Qwen, Gemma 3, Granite and
/// OLMo 2: RMSNorm, QK-norm, rotation, causal attention, SwiGLU or GeGLU, residual stream. Plain scalar double. Every number comes with a bound
/// of how far a computation of it in F32 may be off, carried from step to step to all orders; what the format of the
/// stored keys and values adds is a parameter. A layer has three stages, so that a computation can be checked stage by
/// stage from its own inputs: bounds over a whole network would be useless, because worst cases multiply.
namespace headwater::runtime::testing {

/// A value, and by how much an F32 computation may miss it.
struct Bounded {
  double value = 0;
  double error = 0;
};
using BoundedRow = std::vector<Bounded>;

/// [rows][columns], row after row.
struct Matrix {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<double> values;
};

/// The weights of one layer; empty vectors where the model has none.
struct TransformerLayer {
  std::vector<double> attention_norm, query_norm, key_norm, mlp_norm;
  std::vector<double> attention_after_norm, mlp_after_norm;  ///< of what is added to the residual row
  Matrix query, key, value, output, gate, up, down;
  Matrix
      router;  ///< of experts, which stand one after the other in gate, up and down; no rows: there are none
  std::vector<double> query_bias, key_bias, value_bias, output_bias;
  std::vector<double> router_bias, gate_bias, up_bias, down_bias;  ///< of experts
  /// In place of key and value: a latent row and the rotated elements of a key, which all heads have; its norm; of it the other
  /// elements of all heads' keys, and their values.
  Matrix latent, latent_keys, latent_values;
  std::vector<double> latent_norm;
  Matrix shared_gate, shared_up, shared_down;  ///< of the expert that all tokens take; no rows: there is none
  Matrix shared_weight;                        ///< one row: times the sigmoid of its product; none: times 1
  std::vector<double> sinks;                   ///< a logit for each query head
  std::int64_t window = 0;                     ///< tokens that one sees, itself among them; 0: all
  bool rotated = true;
  std::vector<double> inverse_frequencies;  ///< of its own; empty: the shape's
};

/// What a gate goes through: SwiGLU, GeGLU, or gpt-oss's x / (1 + e^(-1.702 x)), both halves clamped to 7 and 1 added to the
/// other one.
enum class Activation : std::uint8_t { silu, gelu, clamped };

struct TransformerShape {
  std::int64_t heads = 1;
  std::int64_t heads_kv = 1;
  std::int64_t d_head = 1;
  std::int64_t d_value = 1;
  double norm_epsilon = 1e-6;
  bool layer_norm = false;  ///< LayerNorm without a bias instead of RMSNorm, of residual rows
  bool parallel = false;    ///< the feed-forward part reads the row before attention, and its norm
  std::vector<double> inverse_frequencies;
  double magnitude = 1.0;
  double attention_scale = 0;  ///< 0: 1 / sqrt(d_head)
  double residual_scale = 1;
  double temperature_scale =
      0;  ///< b: queries of position p times 1 + b ln(1 + floor(p / temperature_length))
  std::int64_t temperature_length = 1;
  Activation activation = Activation::silu;
  std::int64_t experts_used = 0;
  double expert_scale = 1;      ///< times the experts' weights
  bool weights_of_all = false;  ///< a softmax over all experts, not over those that are used
  RopeLayout layout = RopeLayout::split_halves;
  double stored_round_off =
      0;  ///< of the type that keys and values are stored in: 2^-8 BF16, 2^-11 F16, 0 F32
};

/// What attention is given for one token: rows of all heads, [heads][d].
struct TransformerHeads {
  BoundedRow query, key, value;
};

/// Stage 1: queries, keys and values of the token at `position`, normed and rotated, from its residual row.
[[nodiscard]] TransformerHeads transformer_heads(const TransformerShape& shape, const TransformerLayer& layer,
                                                 const BoundedRow& residual, std::int64_t position);

/// Stage 2: the residual row of the last of `tokens` after attention, dense and causal, and its output projection.
/// Keys and values are rounded here as they are stored (STATE-6).
[[nodiscard]] BoundedRow transformer_attention(const TransformerShape& shape, const TransformerLayer& layer,
                                               std::span<const TransformerHeads> tokens,
                                               const BoundedRow& residual);

/// Stage 3: the residual row after the layer. `before`: the row before attention.
[[nodiscard]] BoundedRow transformer_mlp(const TransformerShape& shape, const TransformerLayer& layer,
                                         const BoundedRow& residual, const BoundedRow& before);

/// Logits of one token: the final norm, then the head, then the scale.
[[nodiscard]] BoundedRow transformer_logits(const TransformerShape& shape, const BoundedRow& row,
                                            std::span<const double> norm, const Matrix& head,
                                            double scale = 1);

}  // namespace headwater::runtime::testing
