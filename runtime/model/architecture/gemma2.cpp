#include <cmath>

#include "runtime/model/architecture/architecture.hpp"

namespace headwater::runtime {

/// Gemma 2 (Gemma Team, 2024): of two layers the first sees a window; soft caps of the logits of attention and of the head;
/// norms before and after both parts of a layer; a gate of GELU; embeddings times the root of their width. ggml keeps the
/// norms' weights with the 1 that Gemma adds to them.
void describe_gemma2(const Keys& keys, ModelConfig& config) {
  config.norms_after = true;
  config.gate = Gate::gelu;
  config.embedding_scale = std::sqrt(static_cast<float>(config.width));
  config.attention_softcap = keys.positive("attn_logit_softcapping", 50);
  config.logit_softcap = keys.positive("final_logit_softcapping", 30);
  // The largest, of 27 billion weights, divides by the root of width / heads, and no key says so.
  constexpr std::int64_t kLayersOf27B = 46;
  if (config.layers == kLayersOf27B) {
    config.attention_scale = std::sqrt(static_cast<double>(config.heads) / static_cast<double>(config.width));
  }
  keys.read_windows(config, 2);
}

}  // namespace headwater::runtime
