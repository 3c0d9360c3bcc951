#include "runtime/model/architecture/architecture.hpp"

namespace headwater::runtime {

/// Qwen3.5 (Qwen team, 2026), dense, of texts: three of four layers follow the gated delta rule and keep no rows; the others are
/// Qwen3's with rows of attention that are gated, and a quarter of a head's elements rotated.
void describe_qwen35(const Keys& keys, ModelConfig& config) {
  config.head_norms = HeadNorms::each;
  config.gated_attention = true;
  config.mlp_norm = "post_attention_norm";
  // A gate is as long as the query row that it follows, and as the value row that it multiplies.
  config.d_value = keys.integer_or("attention.value_length", config.d_head, config.d_head, config.d_head);
  keys.leave_out_predicting_blocks(config);
  keys.read_delta_layers(config);
}

}  // namespace headwater::runtime
