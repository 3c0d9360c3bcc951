#include "runtime/model/architecture/architecture.hpp"

namespace headwater::runtime {

/// Qwen3 (Yang et al., 2025): Llama with a norm of every query and key row.
void describe_qwen3(const Keys& /*keys*/, ModelConfig& config) { config.head_norms = HeadNorms::each; }

}  // namespace headwater::runtime
