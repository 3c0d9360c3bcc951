#include "runtime/model/architecture/architecture.hpp"

namespace headwater::runtime {

/// Phi-3 and Phi-4 (Abdin et al., 2024): queries, keys and values in one tensor, gate and up in another, a window in all
/// layers of the short ones; LongRoPE (Ding et al., 2024) in the long ones: two rotations, of which the room of a
/// conversation decides.
void describe_phi3(const Keys& keys, ModelConfig& config) {
  config.fused_qkv = true;
  config.fused_gate = true;
  keys.read_windows(config, Keys::kEveryLayer);
  keys.read_long_rope(config);
}

}  // namespace headwater::runtime
