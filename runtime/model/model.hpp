#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/gguf/gguf.hpp"
#include "runtime/model/aligned_buffer.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/model/projection.hpp"

namespace headwater::runtime {

/// Rows that gate and up take turns in, in LayerWeights::gate_up: a tile then holds both factors of a product.
inline constexpr std::int64_t kGateRows = 32;

/// The weights of one layer; empty vectors where the model has none.
struct LayerWeights {
  std::vector<float> attention_norm;   ///< [width]
  std::vector<float> query_norm;       ///< [d_head]: QK-norm, RMSNorm of every head's row before the rotation
  std::vector<float> key_norm;         ///< [d_head]
  std::vector<float> qkv_bias;         ///< [columns of qkv]
  std::vector<float> output_bias;      ///< [width]
  std::vector<float> mlp_norm;         ///< [width]
  std::unique_ptr<Projection> qkv;     ///< width -> all query rows, all key rows, all value rows
  std::unique_ptr<Projection> output;  ///< heads * d_value -> width
  std::unique_ptr<Projection> gate_up;  ///< width -> kGateRows rows of gate, as many of up, and so on
  std::unique_ptr<Projection> down;     ///< feed_forward -> width
};

struct ModelOptions {
  Precision precision = Precision::f32;  ///< of projections over many rows
  int threads = 1;
};

/// A model in memory. Immutable; may be shared by several transformers.
class Model {
 public:
  /// Packs the weights of `file`. Error(invalid_argument) naming key or tensor where the configuration is not supported,
  /// a tensor is missing or has another shape, holds NaN or infinity, or is not known: an unknown tensor would be
  /// ignored, and the results silently wrong.
  [[nodiscard]] static std::shared_ptr<const Model> load(std::shared_ptr<const GgufFile> file,
                                                         const ModelOptions& options);
  /// Bytes that load() will take for packed weights; the file itself stays mapped beside them.
  [[nodiscard]] static std::uint64_t packed_bytes(const GgufFile& file, Precision precision);

  [[nodiscard]] const GgufFile& file() const { return *file_; }
  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] Precision precision() const { return precision_; }
  [[nodiscard]] const std::vector<LayerWeights>& layers() const { return layers_; }
  [[nodiscard]] const std::vector<float>& final_norm() const { return final_norm_; }
  [[nodiscard]] const Projection& head() const { return *head_; }
  /// Bytes of scratch that a thread needs for the largest of all projections.
  [[nodiscard]] std::size_t scratch_bytes() const;
  /// Bytes of weights that decoding one token reads.
  [[nodiscard]] std::int64_t bytes_per_token() const;
  /// The embedding of token `id`, `width` floats. Precondition: 0 <= id < vocabulary.
  void embed(std::int32_t id, float* row) const;

 private:
  friend class ModelReader;
  Model() = default;

  std::shared_ptr<const GgufFile> file_;
  ModelConfig config_;
  Precision precision_ = Precision::f32;
  PanelProducts products_;
  const Tensor* embedding_ = nullptr;
  std::vector<LayerWeights> layers_;
  std::vector<float> final_norm_;
  std::unique_ptr<Projection> head_;
  AlignedBuffer packed_;  // of all projections
};

}  // namespace headwater::runtime
