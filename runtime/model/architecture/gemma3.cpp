#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/model/architecture/architecture.hpp"

namespace headwater::runtime {

/// Gemma 3 (Gemma Team, 2025): of six layers five see a window and are rotated by angles of a base of their own, the last
/// one sees everything; norms before and after both parts of a layer and of queries and keys; a gate of GELU; embeddings
/// times the root of their width. ggml keeps the norms' weights with the 1 that Gemma adds to them.
void describe_gemma3(const Keys& keys, ModelConfig& config) {
  config.head_norms = HeadNorms::each;
  config.norms_after = true;
  config.gate = Gate::gelu;
  config.embedding_scale = std::sqrt(static_cast<float>(config.width));
  config.logit_softcap = keys.positive_or_none("final_logit_softcapping");
  // The largest, of 27 billion weights, divides by the root of width / heads, and no key says so.
  constexpr std::int64_t kLayersOf27B = 62;
  if (config.layers == kLayersOf27B) {
    config.attention_scale = std::sqrt(static_cast<double>(config.heads) / static_cast<double>(config.width));
  }
  const std::vector<bool> windowed = keys.read_windows(config, 6);
  if (std::ranges::find(windowed, true) == windowed.end()) return;
  constexpr double kBaseOfWindows = 10000.0;
  config.rotations.push_back(keys.rotation(config, "rope.freq_base_swa", kBaseOfWindows, false));
  for (std::size_t i = 0; i < windowed.size(); ++i) config.layer_specs[i].rotation = windowed[i] ? 1 : 0;
}

}  // namespace headwater::runtime
