#include <algorithm>
#include <cmath>

#include "runtime/model/architecture/architecture.hpp"

namespace headwater::runtime {
namespace {

/// Keys and values of all heads come from one latent row; newer files give the lengths of heads keys of their own.
void read_latent_attention(const Keys& keys, ModelConfig& config) {
  constexpr std::int64_t kMost = 65536;
  config.latent = keys.integer("attention.kv_lora_rank", 1, kMost);
  config.heads_kv = config.heads;
  config.d_head = keys.integer_or("attention.key_length_mla", 1, kMost, config.d_head);
  config.d_value = keys.integer_or("attention.value_length_mla", 1, kMost, config.d_value);
  (void)keys.integer("rope.dimension_count", 2, config.d_head - 1);
  // What is written is a tenth of the multiplier; logits are sharpened by the square of what that makes, and rows are not.
  const double multiplier = 10 * keys.positive_or_none("rope.scaling.yarn_log_multiplier");
  if (multiplier == 0) return;
  const double sharper = keys.yarn_magnitude(config, multiplier);
  config.rotations.front().magnitude /= keys.yarn_magnitude(config, 1);
  config.attention_scale = sharper * sharper / std::sqrt(static_cast<double>(config.d_head));
}

}  // namespace

/// DeepSeek-V2 (DeepSeek-AI, 2024) in its small form, whose queries come from the residual row: latent attention, the first
/// layers dense, experts whose weights do not add up to 1, and some beside them that all tokens take, here one of their width
/// together.
void describe_deepseek2(const Keys& keys, ModelConfig& config) {
  config.rope_layout = RopeLayout::adjacent_pairs;
  read_latent_attention(keys, config);
  config.dense_feed_forward = config.feed_forward;
  keys.read_experts(config);
  const std::int64_t dense = keys.integer_or("leading_dense_block_count", 0, config.layers, 0);
  for (std::int64_t i = 0; i < dense; ++i) config.layer_specs[static_cast<std::size_t>(i)].dense = true;
  if (config.experts == 0) return;
  config.weights_of_all = !keys.boolean_or("expert_weights_norm", false);
  config.expert_scale = static_cast<float>(keys.positive("expert_weights_scale", 1));
  constexpr std::int64_t kMostShared = 64;
  config.shared_feed_forward =
      config.feed_forward * keys.integer_or("expert_shared_count", 0, kMostShared, 0);
  (void)keys.integer_or("expert_group_count", 0, 1, 0);  // one group is none
}

}  // namespace headwater::runtime
