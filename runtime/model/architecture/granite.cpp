#include "runtime/model/architecture/architecture.hpp"

namespace headwater::runtime {

/// Granite 3 (IBM, 2024), dense: Llama with factors on embeddings, on what layers add, on the logits of attention, and a divisor
/// of the head's.
void describe_granite(const Keys& keys, ModelConfig& config) {
  config.rope_layout = RopeLayout::adjacent_pairs;
  config.embedding_scale = static_cast<float>(keys.positive("embedding_scale", 1));
  config.residual_scale = static_cast<float>(keys.positive("residual_scale", 1));
  config.logit_scale = static_cast<float>(1 / keys.positive("logit_scale", 1));
  if (const double scale = keys.positive_or_none("attention.scale"); scale > 0)
    config.attention_scale = scale;
}

}  // namespace headwater::runtime
