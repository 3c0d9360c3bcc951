#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace headwater::runtime {

/// How a model stretches its rotary embedding over more tokens than it was trained on.
struct RopeScaling {
  enum class Kind : std::uint8_t { none, linear, yarn };
  Kind kind = Kind::none;
  double factor = 1.0;                ///< s: how many times the original context, >= 1
  std::int64_t original_context = 0;  ///< YaRN: tokens that the model was trained on, >= 1
  double beta_fast = 32.0;  ///< YaRN: pairs that turn more often than this in the original context stay
  double beta_slow = 1.0;   ///< YaRN: pairs that turn less often are interpolated
  /// YaRN: whether the pairs between which frequencies are blended are whole ones, as in the paper's own code.
  bool whole_pairs = true;
  double attention_factor = 1.0;  ///< multiplies the magnitude
};

/// What headwater::rotate takes (ROPE-4).
struct RopeFrequencies {
  std::vector<double> inverse;
  double magnitude = 1.0;
  double base = 0;      ///< theta
  RopeScaling scaling;  ///< in which these are
};

/// The inverse frequencies of r rotated dimensions at base theta after `divisors` (empty, or r/2 values of the tensor
/// rope_freqs.weight, by which Llama 3 slows its slow pairs down) and `scaling`:
/// linear, w / s (Chen et al., 2023, "Extending context window by positional interpolation");
/// YaRN, a blend of w / s and w by how often a pair turns, magnitude 1 + 0.1 ln s (Peng et al., 2023, section 3.2-3.4);
/// every magnitude, 1 without YaRN, times the attention factor.
[[nodiscard]] RopeFrequencies rope_frequencies(std::int64_t r, double theta, std::span<const float> divisors,
                                               const RopeScaling& scaling);

}  // namespace headwater::runtime
