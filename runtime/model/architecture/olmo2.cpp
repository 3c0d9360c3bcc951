#include "runtime/model/architecture/architecture.hpp"

namespace headwater::runtime {

/// OLMo 2 (OLMo Team, 2025): norms of what attention and feed-forward part add instead of what they read, and of all queries
/// and all keys of a token.
void describe_olmo2(const Keys& /*keys*/, ModelConfig& config) {
  config.norms_before = false;
  config.norms_after = true;
  config.head_norms = HeadNorms::together;
}

}  // namespace headwater::runtime
