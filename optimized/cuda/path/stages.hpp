#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "cuda/tuning.hpp"
#include "headwater/options.hpp"

/// Which of two sets of kernels a session takes: those of mma.sync, for every device, or those of sm_90a (adr/0015).
namespace headwater::cuda {

/// Stages that have kernels of sm_90a.
enum class PathStage : std::uint8_t {
  intra,   ///< forward and column sums of the chunks after a session's first one
  score,   ///< column sums of the inter pass
  output,  ///< outputs of the inter pass
  dense,   ///< dense prefill, and with it the intra pass of a session's first chunk, which has its bits
};
inline constexpr int kPathStages = 4;

/// Whether kernels of sm_90a are taken, where a device runs them.
struct Sm90Switch {
  bool on = true;
  std::int64_t least_chunk = kSm90LeastChunk;  ///< shorter chunks go to the kernels of mma.sync
};

/// What decides.
struct PathInputs {
  int compute_capability = 0;
  bool on = false;          ///< the switch
  DType type = DType::f32;  ///< of Q, K and V, where they are of one type
  std::int64_t d = 0;
  std::int64_t dv = 0;
  bool mapped = false;  ///< logits are more than products times a positive factor
  bool slopes = false;  ///< LOGIT-3
  std::int64_t chunk = 0;
  std::int64_t least_chunk = 0;
  std::int64_t set_width = 0;  ///< most entries of a memory set
};

struct StageChoice {
  bool sm90 = false;
  const char* reason = "";  ///< why not; empty where sm90; lives as long as the program
};

[[nodiscard]] StageChoice choice_of(PathStage stage, const PathInputs& inputs);

/// By PathStage.
using StageChoices = std::array<StageChoice, kPathStages>;

/// "intra: sm_90a; score: sm_80 (memory sets have more than 512 entries); output: sm_90a; dense: sm_90a".
/// `refused_queries`, or nullptr: why the last rows of a caller went to the kernels of mma.sync all the same.
[[nodiscard]] std::string text_of(const StageChoices& choices, const char* refused_queries = nullptr);

/// "; kernels of sm_90a: on", or ".. off: why", for rows that have such kernels, with the switch as it stands; never throws.
[[nodiscard]] std::string sm90_text(int compute_capability);

/// As the environment's HEADWATER_CUDA_SM90 says: "off" leaves all to the kernels of mma.sync, "N" gives those of sm_90a
/// chunks of N tokens and more, so that small cases reach them. Errors: invalid_argument for other values than these and the
/// empty one.
[[nodiscard]] Sm90Switch sm90_by_environment();

}  // namespace headwater::cuda
