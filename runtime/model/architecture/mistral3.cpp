#include "runtime/model/architecture/architecture.hpp"

namespace headwater::runtime {

/// Ministral 3 (Mistral AI, 2025) and later Mistrals of the form of Llama: queries grow with their position as in Llama 4, and
/// of YaRN's magnitude a part is taken back.
void describe_mistral3(const Keys& keys, ModelConfig& config) {
  describe_llama(keys, config);
  config.rotations.front().magnitude /=
      keys.yarn_magnitude(config, keys.positive_or_none("rope.scaling.yarn_log_multiplier"));
  keys.read_temperature(config);
}

}  // namespace headwater::runtime
