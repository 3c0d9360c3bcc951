#include "runtime/model/architecture/architecture.hpp"

namespace headwater::runtime {

/// Granite 3 with experts (IBM, 2024).
void describe_granitemoe(const Keys& keys, ModelConfig& config) {
  describe_granite(keys, config);
  keys.read_experts(config);
}

}  // namespace headwater::runtime
