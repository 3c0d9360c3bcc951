#include "runtime/model/architecture/architecture.hpp"

namespace headwater::runtime {

/// Command R7B (Cohere, 2024): LayerNorm without a bias, once for attention and feed-forward part, which both add to the
/// residual stream; of four layers three see a window and are rotated, the last one sees everything and is not; a factor of
/// the logits.
void describe_cohere2(const Keys& keys, ModelConfig& config) {
  config.rope_layout = RopeLayout::adjacent_pairs;
  config.norm = Norm::layer;
  config.parallel = true;
  config.logit_scale = static_cast<float>(keys.positive("logit_scale", 0));
  const std::vector<bool> windowed = keys.read_windows(config, 4);
  for (std::size_t i = 0; i < windowed.size(); ++i) {
    if (!windowed[i]) config.layer_specs[i].rotation = LayerSpec::kNotRotated;
  }
}

}  // namespace headwater::runtime
