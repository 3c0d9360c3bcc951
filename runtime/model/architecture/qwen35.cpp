#include "runtime/model/architecture/architecture.hpp"

namespace headwater::runtime {

/// Qwen3.5 (Qwen team, 2026), dense, of texts: three of four layers follow the gated delta rule and keep no rows; the others are
/// Qwen3's with rows of attention that are gated, and a quarter of a head's elements rotated.
void describe_qwen35(const Keys& keys, ModelConfig& config) {
  config.head_norms = HeadNorms::each;
  config.gated_attention = true;
  config.mlp_norm = "post_attention_norm";
  keys.leave_out_predicting_blocks(config);
  keys.read_delta_layers(config);
}

}  // namespace headwater::runtime
