#include "runtime/model/architecture/architecture.hpp"

namespace headwater::runtime {

/// GLM-4 (Zeng et al., 2024) of 2025: norms before and after both parts of a layer, gate and up in one tensor, part of a head
/// rotated, biases of queries, keys and values where a file has them.
void describe_glm4(const Keys& /*keys*/, ModelConfig& config) {
  config.rope_layout = RopeLayout::adjacent_pairs;
  config.norms_after = true;
  config.fused_gate = true;
}

}  // namespace headwater::runtime
