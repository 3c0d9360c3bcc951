#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/gguf/gguf.hpp"
#include "runtime/model/aligned_buffer.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/model/projection.hpp"

namespace headwater::runtime {

/// One of the feed-forward parts of a layer of which each row takes some.
struct Expert {
  std::unique_ptr<Projection> gate_up;
  std::unique_ptr<Projection> down;
  std::vector<float> gate_up_bias;  ///< of gate_up's columns
  std::vector<float> down_bias;     ///< [width]
};

/// Of a recurrent layer, beside its projections.
struct DeltaWeights {
  std::vector<float> convolution;  ///< [taps][channels], the oldest token first
  std::vector<float> rate;       ///< [value_heads] below 0: decay = exp(rate * ln(1 + exp(step + step_bias)))
  std::vector<float> step_bias;  ///< [value_heads]
  std::vector<float> norm;       ///< [d]: of a head's output
};

/// The weights of one layer; empty where the model has none.
struct LayerWeights {
  std::vector<float> attention_norm;        ///< [width]
  std::vector<float> query_norm;            ///< [d_head], or [heads * d_head] (HeadNorms)
  std::vector<float> key_norm;              ///< [d_head], or [heads_kv * d_head]
  std::vector<float> qkv_bias;              ///< [columns of qkv]
  std::vector<float> output_bias;           ///< [width]
  std::vector<float> attention_after_norm;  ///< [width]: of what attention adds to the residual stream
  std::vector<float> mlp_norm;              ///< [width]
  std::vector<float> mlp_after_norm;        ///< [width]: of what the feed-forward part adds to it
  /// width -> all query rows, all key rows, all value rows, and where attention is gated, those of the gate; of a recurrent
  /// layer: queries, keys and values, the gate of its output, beta and step of each value head.
  std::unique_ptr<Projection> qkv;
  std::unique_ptr<Projection> latent;  ///< width -> latent row, rotated elements of a key; qkv: queries alone
  std::unique_ptr<Projection>
      latent_up;                   ///< latent row -> the other elements of all key rows, all value rows
  std::vector<float> latent_norm;  ///< [latent]
  std::unique_ptr<Projection>
      output;  ///< heads * d_value -> width; of a recurrent layer value_heads * d -> width
  std::unique_ptr<Projection> gate_up;  ///< width -> kGateRows rows of gate, as many of up, and so on
  std::unique_ptr<Projection> down;     ///< feed_forward -> width
  std::unique_ptr<Projection> router;   ///< width -> experts, in F32
  std::vector<Expert> experts;          ///< in place of gate_up and down
  std::vector<float> router_bias;       ///< [experts]
  Expert shared;                        ///< that all rows take beside those
  std::vector<float> shared_gate;       ///< [width]
  std::vector<float> sinks;             ///< [heads]
  DeltaWeights delta;
};

/// The layer that a tensor of this name belongs to, -1 where the name says no number; none where it is of the whole model.
[[nodiscard]] std::optional<std::int64_t> layer_of_tensor(std::string_view name);

/// The part of a model that a process holds: layers [first, end), with layer 0 the embedding, and with the last one final
/// norm and output head. By default all of it.
struct ModelPart {
  /// The end that stands for that of the model.
  static constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
  std::int64_t first = 0;
  std::int64_t end = kAll;
  [[nodiscard]] bool has_embedding() const { return first == 0; }
  [[nodiscard]] bool has_head() const { return end == kAll; }
  [[nodiscard]] bool has_layer(std::int64_t layer) const { return layer >= first && layer < end; }
};

struct ModelOptions {
  Precision precision = Precision::f32;  ///< of projections over many rows
  int threads = 1;
  ModelPart part = {};
};

/// A tensor of F32 that is no file's.
struct MadeTensor {
  Tensor tensor;
  std::vector<float> values;
};

/// A model in memory. Immutable; may be shared by several transformers.
class Model {
 public:
  /// Packs the weights of `file`. Error(invalid_argument) naming key or tensor where the configuration is not supported,
  /// a tensor is missing or has another shape, holds NaN or infinity, or is not known: an unknown tensor would be
  /// ignored, and the results silently wrong.
  [[nodiscard]] static std::shared_ptr<const Model> load(std::shared_ptr<const GgufFile> file,
                                                         const ModelOptions& options);
  /// Refuses what load() refuses, but for values of weights, which are not read.
  static void check(const GgufFile& file);
  /// Bytes that load() will take for packed weights; the file itself stays mapped beside them.
  [[nodiscard]] static std::uint64_t packed_bytes(const GgufFile& file, Precision precision,
                                                  const ModelPart& part = {});
  /// Bytes of the file that load() reads: the whole of it, or the tensors of a part.
  [[nodiscard]] static std::uint64_t file_bytes(const GgufFile& file, const ModelPart& part);

  [[nodiscard]] const GgufFile& file() const { return *file_; }
  [[nodiscard]] const ModelConfig& config() const { return config_; }
  /// Of rows between projections: row_precision() of the options'.
  [[nodiscard]] Precision precision() const { return row_precision(precision_); }
  [[nodiscard]] const ModelPart& part() const { return part_; }
  /// Those of its part, the first one's first; config() is the whole model's.
  [[nodiscard]] const std::vector<LayerWeights>& layers() const { return layers_; }
  [[nodiscard]] const std::vector<float>& final_norm() const { return final_norm_; }
  /// Precondition: its part has it.
  [[nodiscard]] const Projection& head() const { return *head_; }
  /// Bytes of scratch that a thread needs for the largest of all projections.
  [[nodiscard]] std::size_t scratch_bytes() const;
  /// Bytes of weights of its part that decoding one token reads.
  [[nodiscard]] std::int64_t bytes_per_token() const;
  /// Calls action(projection) for each of its part.
  template <typename Action>
  void for_projections(const Action& action) const {
    for (const LayerWeights& layer : layers_) {
      for (const auto* projection : {&layer.qkv, &layer.latent, &layer.latent_up, &layer.output,
                                     &layer.gate_up, &layer.down, &layer.router}) {
        if (*projection) action(**projection);
      }
      for (const Expert& expert : layer.experts) action(*expert.gate_up), action(*expert.down);
      if (layer.shared.down) action(*layer.shared.gate_up), action(*layer.shared.down);
    }
    if (head_) action(*head_);
  }
  /// The embedding of token `id`, `width` floats. Precondition: 0 <= id < vocabulary.
  void embed(std::int32_t id, float* row) const;

 private:
  friend class ModelReader;
  Model() = default;

  std::shared_ptr<const GgufFile> file_;
  ModelConfig config_;
  ModelPart part_;
  Precision precision_ = Precision::f32;
  PanelProducts products_;
  const Tensor* embedding_ = nullptr;
  std::deque<MadeTensor> made_;  // that the file has in another order
  std::vector<LayerWeights> layers_;
  std::vector<float> final_norm_;
  std::unique_ptr<Projection> head_;
  AlignedBuffer packed_;  // of all projections
};

}  // namespace headwater::runtime
