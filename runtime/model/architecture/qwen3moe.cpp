#include "runtime/model/architecture/architecture.hpp"

namespace headwater::runtime {

/// Qwen3 with experts (Yang et al., 2025): Qwen3 in whose layers each token takes some of many feed-forward parts.
void describe_qwen3moe(const Keys& keys, ModelConfig& config) {
  describe_qwen3(keys, config);
  keys.read_experts(config);
}

}  // namespace headwater::runtime
