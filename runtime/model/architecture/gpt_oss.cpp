#include "runtime/model/architecture/architecture.hpp"

namespace headwater::runtime {

/// gpt-oss (OpenAI, 2025): experts and their router with biases, a clamped gate, a sink for every query head, a window in the
/// first of two layers. YaRN between parts of pairs, as its own code has it; llama.cpp takes whole ones.
void describe_gpt_oss(const Keys& keys, ModelConfig& config) {
  constexpr double kBase = 150000.0;
  config.rotations = {keys.rotation(config, "rope.freq_base", kBase, true, false)};
  config.gate = Gate::clamped;
  config.sinks = true;
  config.mlp_norm = "post_attention_norm";
  keys.read_windows(config, 2);
  keys.read_experts(config);
  config.expert_biases = config.experts > 0;
}

}  // namespace headwater::runtime
