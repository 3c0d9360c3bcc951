#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "headwater/rope.hpp"
#include "runtime/gguf/gguf.hpp"
#include "runtime/model/rope_scaling.hpp"

namespace headwater::runtime {

/// What the gate of a feed-forward part goes through before it is multiplied with the other half: x / (1 + exp(-x)); GELU
/// by its approximation with tanh (Hendrycks and Gimpel, 2016); or x / (1 + exp(-1.702 x)) with both halves clamped to 7 and 1
/// added to the other one (gpt-oss).
enum class Gate : std::uint8_t { silu, gelu, clamped };

/// How a row is normed before it is multiplied with the norm's weights: by its root mean square, or by its standard deviation
/// after its mean is taken off (LayerNorm without a bias).
enum class Norm : std::uint8_t { rms, layer };

/// Whether queries and keys pass through an RMSNorm before the rotation: each head's row, or the rows of all heads as one.
enum class HeadNorms : std::uint8_t { none, each, together };

/// What a layer has of its own.
struct LayerSpec {
  static constexpr int kNotRotated = -1;
  std::int64_t window = 0;  ///< keys that a token sees, itself among them; 0: all
  int rotation = 0;         ///< index into ModelConfig::rotations, or kNotRotated
  bool dense = false;       ///< one feed-forward part for all rows, in a model with experts
  bool recurrent = false;   ///< a state of fixed size in place of attention (DeltaShape)
};

/// Layers of the gated delta rule (Yang et al., 2024): for each head a matrix S of d x d, which a token decays and corrects:
/// S = decay S + k (beta (v - k (decay S))), and reads as q S.
struct DeltaShape {
  static constexpr std::int64_t kMostTaps = 16;
  std::int64_t key_heads = 0;    ///< of queries and keys; value head h takes key head h % key_heads
  std::int64_t value_heads = 0;  ///< 0: the model has no such layers
  std::int64_t d = 0;            ///< of a row of queries, keys or values
  std::int64_t taps = 0;         ///< tokens of the convolution that comes before, the newest among them
  /// Of queries, keys and values, which go through the convolution.
  [[nodiscard]] std::int64_t channels() const { return (2 * key_heads + value_heads) * d; }
  /// Of a layer: rows of the convolution, then the matrices.
  [[nodiscard]] std::int64_t state_floats() const { return (taps - 1) * channels() + value_heads * d * d; }
};

/// The shape of a model and the constants of its forward pass.
struct ModelConfig {
  std::string architecture;  ///< a name of architectures()
  std::string name;          ///< general.name; may be empty
  std::int64_t layers = 0;
  std::int64_t width = 0;         ///< of the residual stream
  std::int64_t heads = 0;         ///< Hq
  std::int64_t heads_kv = 0;      ///< Hkv
  std::int64_t d_head = 0;        ///< d, of a query or key row
  std::int64_t d_value = 0;       ///< dv
  std::int64_t feed_forward = 0;  ///< width between the two halves of the MLP, or of an expert
  std::int64_t experts = 0;  ///< feed-forward parts of a layer of which each row takes some; 0: one for all
  std::int64_t experts_used = 0;  ///< by a row
  /// Experts' weights are those of a softmax over all, not over those that a row takes.
  bool weights_of_all = false;
  float expert_scale = 1;  ///< times those weights
  std::int64_t dense_feed_forward =
      0;  ///< width of the feed-forward part of layers that are LayerSpec::dense
  /// Width of the expert that all rows take beside those, 0: there is none; and whether a sigmoid weights it.
  std::int64_t shared_feed_forward = 0;
  bool shared_gate = false;
  std::int64_t vocabulary = 0;
  std::int64_t context = 0;  ///< tokens that the model was made for
  std::int64_t reach = 0;    ///< those that a scaling in place of the file's stretches it to, or `context`
  Norm norm = Norm::rms;     ///< before layers' parts, and the final one
  float norm_epsilon = 0;
  RopeLayout rope_layout = RopeLayout::split_halves;
  std::vector<RopeFrequencies> rotations;  ///< at least one; all of as many pairs
  /// LongRoPE: where a conversation has room for more tokens, layers of rotation 0 take rotation 1; 0: none do.
  std::int64_t long_beyond = 0;
  std::vector<LayerSpec> layer_specs;  ///< one for each layer
  Gate gate = Gate::silu;
  HeadNorms head_norms = HeadNorms::none;
  bool norms_before = true;  ///< a norm of what attention and feed-forward part read
  bool parallel = false;     ///< the feed-forward part reads the normed rows that attention reads
  bool norms_after =
      false;  ///< RMSNorm of what attention and feed-forward part add to the residual stream, too
  float embedding_scale = 1;  ///< times the embedding of a token
  float residual_scale = 1;   ///< times what attention and feed-forward part add to the residual stream
  float logit_scale = 1;      ///< times the logits
  double logit_softcap = 0;   ///< c: logits become c tanh(logit / c); 0: none
  std::optional<double> attention_scale;  ///< none: 1 / sqrt(d)
  double attention_softcap = 0;           ///< of the logits of attention; 0: none
  /// b of Llama 4: a query at position p is multiplied by 1 + b ln(1 + floor(p / temperature_length)); 0: by nothing.
  double temperature_scale = 0;
  std::int64_t temperature_length = 1;

  bool sinks = false;                 ///< every layer has one sink a query head (LOGIT-4)
  bool expert_biases = false;         ///< router and experts have biases
  std::string mlp_norm = "ffn_norm";  ///< the tensor of the norm before the feed-forward part
  /// Width of the row that a layer makes all heads' keys and values of, and their values, after its norm; the rotated
  /// elements come from the residual row, the same for all heads. 0: keys and values come from the residual row.
  std::int64_t latent = 0;
  DeltaShape delta;                  ///< of recurrent layers
  std::int64_t left_out_blocks = 0;  ///< behind the last layer, whose tensors are not read
  bool gated_attention = false;  ///< rows of attention are multiplied by a sigmoid, of a projection as wide
  bool fused_qkv = false;        ///< queries, keys and values stand in one tensor
  bool fused_gate = false;       ///< gate and up stand in one tensor, the gate first

  /// Layers whose tokens see a window alone.
  [[nodiscard]] std::int64_t windowed_layers() const;
  /// Layers that keep no rows.
  [[nodiscard]] std::int64_t recurrent_layers() const;
  /// Of all feed-forward parts.
  [[nodiscard]] std::int64_t widest_feed_forward() const;
};

/// Opens a model with values in place of the file's, whose keys lack the architecture: "rope.scaling.factor". Errors: those
/// of GgufFile::open().
[[nodiscard]] GgufFile open_model_file(const std::string& path, std::span<const Replacement> replacements);

/// Reads the configuration of a model from the file's metadata. Error(invalid_argument) naming the key for an architecture
/// that is not in architectures(), a missing or impossible value, and every feature that would change the results and that
/// the architecture does not have: experts, soft caps, other scalings of the rotary embedding, ...
[[nodiscard]] ModelConfig read_model_config(const GgufFile& file);

}  // namespace headwater::runtime
