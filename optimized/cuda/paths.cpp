#include "cuda/paths.hpp"

#include <cstdlib>
#include <string_view>

#include "headwater/error.hpp"

namespace headwater::cuda {

namespace {

constexpr int kHopper = 90;
constexpr std::int64_t kWidestKey = 192;
constexpr std::int64_t kWidestMappedKey = 128;
constexpr std::int64_t kWidestScoreKey = 128;
constexpr std::int64_t kWidestValue = 128;
constexpr std::int64_t kMemoryKeys = 512;

/// What keeps a stage off the kernels of sm_90a; the first that holds is the reason.
struct Obstacle {
  bool intra;
  bool score;
  bool (*holds)(const PathInputs&);
  const char* reason;
};

constexpr Obstacle kObstacles[] = {
    {true, true, [](const PathInputs& in) { return in.compute_capability != kHopper; },
     "they run on compute capability 9.0 only"},
    {true, true, [](const PathInputs& in) { return !in.unproven; },
     "no device has proven them; HEADWATER_CUDA_SM90=unproven switches them on"},
    {true, true, [](const PathInputs& in) { return in.type == DType::f32; },
     "rows are not of one 16-bit type"},
    {true, false, [](const PathInputs& in) { return in.d > kWidestKey; }, "keys are wider than 192"},
    {true, false, [](const PathInputs& in) { return in.mapped && in.d > kWidestMappedKey; },
     "keys are wider than 128 and logits have a cap, slopes or a factor that is not positive"},
    {true, false, [](const PathInputs& in) { return in.dv > kWidestValue; }, "values are wider than 128"},
    {false, true, [](const PathInputs& in) { return in.d > kWidestScoreKey; }, "keys are wider than 128"},
    {false, true, [](const PathInputs& in) { return in.slopes; }, "logits have ALiBi slopes"},
    {false, true, [](const PathInputs& in) { return in.set_width > kMemoryKeys; },
     "memory sets have more than 512 entries"},
    {true, true, [](const PathInputs& in) { return in.chunk < in.least_chunk; }, "chunks are short"},
};

}  // namespace

Path path_of(PathStage stage, const PathInputs& inputs) {
  for (const Obstacle& obstacle : kObstacles) {
    if (!(stage == PathStage::intra ? obstacle.intra : obstacle.score)) continue;
    if (obstacle.holds(inputs)) return {false, obstacle.reason};
  }
  return {true, {}};
}

std::string text_of(const Path& intra, const Path& score, const char* refused_queries) {
  const auto one = [](const Path& path) {
    return path.sm90 ? std::string("sm_90a") : "sm_80 (" + path.reason + ")";
  };
  std::string text = "intra: " + one(intra) + "; score: " + one(score);
  if (refused_queries != nullptr) text += std::string("; the last queries: sm_80 (") + refused_queries + ")";
  return text;
}

std::string hopper_text(int compute_capability) {
  PathInputs inputs;
  inputs.compute_capability = compute_capability;
  inputs.type = DType::bf16;
  try {
    inputs.unproven = unproven_kernels_allowed();
  } catch (const Error& error) {
    return std::string("; kernels of sm_90a: off: ") + error.what();
  }
  const Path path = path_of(PathStage::intra, inputs);
  return path.sm90 ? "; kernels of sm_90a: on" : "; kernels of sm_90a: off: " + path.reason;
}

bool unproven_kernels_allowed() {
  const char* value = std::getenv("HEADWATER_CUDA_SM90");
  if (value == nullptr || *value == '\0') return false;
  if (std::string_view(value) == "unproven") return true;
  throw Error(ErrorCode::invalid_argument,
              "the environment variable HEADWATER_CUDA_SM90 has a value that is not "
              "allowed; allowed: unproven, or nothing");
}

}  // namespace headwater::cuda
