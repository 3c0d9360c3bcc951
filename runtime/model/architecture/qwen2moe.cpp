#include "runtime/model/architecture/architecture.hpp"

namespace headwater::runtime {

/// Qwen1.5 and Qwen2 with experts (Yang et al., 2024): experts whose weights do not add up to 1, and one beside them that all
/// tokens take, each by as much as a gate says.
void describe_qwen2moe(const Keys& keys, ModelConfig& config) {
  const std::int64_t dense = config.feed_forward;
  keys.read_experts(config);
  config.weights_of_all = true;
  config.shared_gate = true;
  keys.read_shared_expert(config, dense);
}

}  // namespace headwater::runtime
