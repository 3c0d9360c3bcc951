#pragma once

#include <cstdint>
#include <string>

#include "headwater/rope.hpp"
#include "runtime/gguf/gguf.hpp"
#include "runtime/model/rope_scaling.hpp"

namespace headwater::runtime {

/// The shape of a model and the constants of its forward pass.
struct ModelConfig {
  std::string architecture;  ///< qwen3, qwen2 or llama
  std::string name;          ///< general.name; may be empty
  std::int64_t layers = 0;
  std::int64_t width = 0;         ///< of the residual stream
  std::int64_t heads = 0;         ///< Hq
  std::int64_t heads_kv = 0;      ///< Hkv
  std::int64_t d_head = 0;        ///< d, of a query or key row
  std::int64_t d_value = 0;       ///< dv
  std::int64_t feed_forward = 0;  ///< width between the two halves of the MLP
  std::int64_t vocabulary = 0;
  std::int64_t context = 0;  ///< tokens that the model was made for
  float norm_epsilon = 0;    ///< of RMSNorm
  RopeLayout rope_layout = RopeLayout::split_halves;
  RopeFrequencies rope;
};

/// Reads the configuration of a qwen3, qwen2 or llama model (Llama 2 and 3, Mistral) from the file's metadata.
/// Error(invalid_argument) naming the key for another architecture, a missing or impossible value, and every feature
/// that would change the results and is not supported: sliding windows, experts, soft caps, other scalings of the
/// rotary embedding, ...
[[nodiscard]] ModelConfig read_model_config(const GgufFile& file);

}  // namespace headwater::runtime
