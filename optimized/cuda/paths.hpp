#pragma once

#include <cstdint>
#include <string>

#include "headwater/options.hpp"

/// Which of two sets of kernels a session takes: those of mma.sync, for every device, or those of sm_90a (adr/0015).
namespace headwater::cuda {

/// Stages of a sparse layer that have kernels of sm_90a. The intra pass is the forward and its column sums.
enum class PathStage : std::uint8_t { intra, score };

/// What decides.
struct PathInputs {
  int compute_capability = 0;
  bool unproven = false;    ///< the switch
  DType type = DType::f32;  ///< of Q, K and V, where they are of one type
  std::int64_t d = 0;
  std::int64_t dv = 0;
  bool mapped = false;  ///< logits are more than products times a positive factor
  bool slopes = false;  ///< LOGIT-3
  std::int64_t chunk = 0;
  std::int64_t least_chunk = 0;
  std::int64_t set_width = 0;  ///< most entries of a memory set
};

struct Path {
  bool sm90 = false;
  std::string reason;  ///< why not; empty where sm90
};

[[nodiscard]] Path path_of(PathStage stage, const PathInputs& inputs);

/// "intra: sm_90a; score: sm_80 (memory sets have more than 512 entries)". `refused_queries`, or nullptr: why the last rows of
/// a caller went to the kernels of mma.sync all the same.
[[nodiscard]] std::string text_of(const Path& intra, const Path& score,
                                  const char* refused_queries = nullptr);

/// "; kernels of sm_90a: on", or ".. off: why", for rows that have such kernels, with the switch as it stands; never throws.
[[nodiscard]] std::string hopper_text(int compute_capability);

/// Whether the environment's HEADWATER_CUDA_SM90 switches kernels of sm_90a on, which no device has proven yet. Errors:
/// invalid_argument for values other than "unproven" and the empty one.
[[nodiscard]] bool unproven_kernels_allowed();

}  // namespace headwater::cuda
