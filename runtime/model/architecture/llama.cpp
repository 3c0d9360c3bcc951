#include "runtime/model/architecture/architecture.hpp"

namespace headwater::runtime {

/// Llama (Touvron et al., 2023) and models of its form, with experts (Mixtral: Jiang et al., 2024) where a file names them.
/// ggml stores the rows of queries and keys in the order of adjacent
/// pairs.
void describe_llama(const Keys& keys, ModelConfig& config) {
  config.rope_layout = RopeLayout::adjacent_pairs;
  if (keys.has("expert_count")) keys.read_experts(config);
}

}  // namespace headwater::runtime
