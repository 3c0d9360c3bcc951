#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/gguf/gguf.hpp"
#include "runtime/model/model_config.hpp"

namespace headwater::runtime {

/// The metadata of a model's file by names without the architecture before them. Every value is checked; errors are
/// Error(invalid_argument) naming the key. Remembers which keys were asked for.
class Keys {
 public:
  Keys(const GgufFile& file, std::string_view architecture) : file_(file), prefix_(architecture) {}

  /// The key as the file has it.
  [[nodiscard]] std::string key(std::string_view name) const;
  /// What a message calls it: the key, or where its value was replaced, what said so.
  [[nodiscard]] std::string spoken(std::string_view name) const;
  [[nodiscard]] bool has(std::string_view name) const { return file_.has(key(name)); }
  [[nodiscard]] std::int64_t integer_or(std::string_view name, std::int64_t min, std::int64_t max,
                                        std::int64_t fallback) const;
  [[nodiscard]] std::int64_t integer(std::string_view name, std::int64_t min, std::int64_t max) const;
  [[nodiscard]] bool boolean_or(std::string_view name, bool fallback) const;
  /// Above 0 and finite, as a float, too. Where `fallback` is 0, the key must be there.
  [[nodiscard]] double positive(std::string_view name, double fallback) const;
  /// The same, or 0 where the key is not there.
  [[nodiscard]] double positive_or_none(std::string_view name) const;

  /// What every architecture has: sizes, vocabulary, the rotation of the usual keys, and layers of it.
  void read_common(ModelConfig& config) const;
  /// That of the norm that the model has.
  void read_epsilon(ModelConfig& config) const;
  /// The rotation over the model's rotated dimensions by the base under this key; `scaled`: with the scaling that the file
  /// says (Llama 3's divisors, linear, YaRN, this between `whole_pairs`).
  [[nodiscard]] RopeFrequencies rotation(const ModelConfig& config, std::string_view base, double fallback,
                                         bool scaled, bool whole_pairs = true) const;
  /// What YaRN sharpens attention by, 1 + 0.1 m ln s; 1 where the file does not ask for YaRN.
  [[nodiscard]] double yarn_magnitude(const ModelConfig& config, double multiplier) const;
  /// attention.temperature_scale, and as its length attention.temperature_length, or else the original context.
  void read_temperature(ModelConfig& config) const;
  static constexpr std::int64_t kEveryLayer = 0;
  /// Windows of attention.sliding_window in all layers but every `period`th (kEveryLayer: in all), or as
  /// attention.sliding_window_pattern says: another period, or for each layer whether it has one. Returns for which it says
  /// so, windows that hold the whole context among them.
  std::vector<bool> read_windows(ModelConfig& config, std::int64_t period) const;
  /// Experts in all layers: expert_count, expert_used_count, and their width from expert_feed_forward_length where it is
  /// there. Nothing where the count is 0.
  void read_experts(ModelConfig& config) const;
  /// The width of an expert that all rows take, in a model with experts.
  void read_shared_expert(ModelConfig& config, std::int64_t fallback) const;
  /// Recurrent layers: those that attention.recurrent_layers says, or all but every full_attention_interval'th, 4; their sizes
  /// from ssm.*.
  void read_delta_layers(ModelConfig& config) const;
  /// Blocks behind the last layer that predict further tokens, which are not run: nextn_predict_layers.
  void leave_out_predicting_blocks(ModelConfig& config) const;
  /// LongRoPE: the rotation divided by the tensor rope_factors_short, and a second one by rope_factors_long for
  /// conversations of more tokens than rope.scaling.original_context_length; nothing where the file has neither.
  void read_long_rope(ModelConfig& config) const;
  /// Refuses what would change the results and was not asked for.
  void refuse_unsupported(const ModelConfig& config) const;

 private:
  [[nodiscard]] std::int64_t extent(std::string_view name, std::int64_t most) const {
    return file_.integer(key(name), 1, most);
  }
  void read_sizes(ModelConfig& config) const;
  void read_vocabulary(ModelConfig& config) const;
  [[nodiscard]] std::int64_t rotated(const ModelConfig& config) const;
  void refuse_unknown_scaling() const;
  /// The value under a key of the scaling, for messages.
  [[nodiscard]] std::string scaling_text(std::string_view name) const;
  /// Refuses values in place of the file's that this kind of scaling does not use.
  void refuse_unused_scaling(std::string_view kind) const;
  [[nodiscard]] RopeScaling scaling(const ModelConfig& config) const;
  /// A number > 0 for each pair, or none where the tensor is missing.
  [[nodiscard]] std::vector<float> rope_divisors(const char* tensor, std::int64_t pairs) const;

  const GgufFile& file_;
  std::string prefix_;
  mutable std::set<std::string, std::less<>> asked_;
};

}  // namespace headwater::runtime
