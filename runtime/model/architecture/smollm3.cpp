#include "runtime/model/architecture/architecture.hpp"

namespace headwater::runtime {

/// SmolLM3 (Bakouch et al., 2025): Llama, of whose layers every fourth is not rotated.
void describe_smollm3(const Keys& /*keys*/, ModelConfig& config) {
  config.rope_layout = RopeLayout::adjacent_pairs;
  constexpr std::size_t kPeriod = 4;
  for (std::size_t i = kPeriod - 1; i < config.layer_specs.size(); i += kPeriod) {
    config.layer_specs[i].rotation = LayerSpec::kNotRotated;
  }
}

}  // namespace headwater::runtime
