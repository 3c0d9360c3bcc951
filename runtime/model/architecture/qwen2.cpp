#include "runtime/model/architecture/architecture.hpp"

namespace headwater::runtime {

/// Qwen2 (Yang et al., 2024): Llama with biases of queries, keys and values, which are read where a file has them.
void describe_qwen2(const Keys& /*keys*/, ModelConfig& /*config*/) {}

}  // namespace headwater::runtime
