#include "runtime/model/architecture/architecture.hpp"

namespace headwater::runtime {

/// Llama (Touvron et al., 2023) and models of its form. ggml stores the rows of queries and keys in the order of adjacent
/// pairs.
void describe_llama(const Keys& /*keys*/, ModelConfig& config) {
  config.rope_layout = RopeLayout::adjacent_pairs;
}

}  // namespace headwater::runtime
