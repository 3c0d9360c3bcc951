#include "cuda/path/stages.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "headwater/error.hpp"

namespace headwater::cuda {

namespace {

constexpr int kSm90 = 90;
constexpr std::int64_t kWidestKey = 256;
constexpr std::int64_t kWidestMappedKey = 128;
constexpr std::int64_t kWidestScoreKey = 128;
constexpr std::int64_t kWidestValue = 256;
constexpr std::int64_t kWidestMappedValue = 128;
constexpr std::int64_t kMemoryKeys = 512;

constexpr unsigned only(PathStage stage) { return 1u << static_cast<unsigned>(stage); }
constexpr unsigned kIntra = only(PathStage::intra);
constexpr unsigned kScore = only(PathStage::score);
constexpr unsigned kOutput = only(PathStage::output);
constexpr unsigned kDense = only(PathStage::dense);
constexpr unsigned kForwards = kIntra | kOutput | kDense;
constexpr unsigned kAll = kForwards | kScore;

/// What keeps stages off the kernels of sm_90a; the first that holds is the reason.
struct Obstacle {
  unsigned stages;
  bool (*holds)(const PathInputs&);
  const char* reason;
};

/// None that depends on the chunk keeps dense prefill off: a session without chunks has the bits of a first chunk.
constexpr Obstacle kObstacles[] = {
    {kAll, [](const PathInputs& in) { return in.compute_capability != kSm90; },
     "they run on compute capability 9.0 only"},
    {kAll, [](const PathInputs& in) { return !in.on; }, "HEADWATER_CUDA_SM90=off"},
    {kAll, [](const PathInputs& in) { return in.type == DType::f32; }, "rows are not of one 16-bit type"},
    {kForwards, [](const PathInputs& in) { return in.d > kWidestKey; }, "keys are wider than 256"},
    {kForwards,
     [](const PathInputs& in) {
       return in.mapped && (in.d > kWidestMappedKey || in.dv > kWidestMappedValue);
     },
     "rows are wider than 128 and logits have a cap, slopes or a factor that is not positive"},
    {kForwards, [](const PathInputs& in) { return in.dv > kWidestValue; }, "values are wider than 256"},
    {kScore, [](const PathInputs& in) { return in.d > kWidestScoreKey; }, "keys are wider than 128"},
    {kScore | kOutput, [](const PathInputs& in) { return in.slopes; }, "logits have ALiBi slopes"},
    {kScore, [](const PathInputs& in) { return in.set_width > kMemoryKeys; },
     "memory sets have more than 512 entries"},
    {kIntra | kScore | kOutput, [](const PathInputs& in) { return in.chunk < in.least_chunk; },
     "chunks are short"},
};

}  // namespace

StageChoice choice_of(PathStage stage, const PathInputs& inputs) {
  for (const Obstacle& obstacle : kObstacles) {
    if ((obstacle.stages & only(stage)) != 0 && obstacle.holds(inputs)) return {false, obstacle.reason};
  }
  return {true};
}

std::string text_of(const StageChoices& choices, const char* refused_queries) {
  constexpr const char* kNames[kPathStages] = {"intra", "; score", "; output", "; dense"};
  std::string text;
  for (std::size_t stage = 0; stage < choices.size(); ++stage) {
    const StageChoice& choice = choices[stage];
    text += kNames[stage];
    text += choice.sm90 ? ": sm_90a" : std::string(": sm_80 (") + choice.reason + ")";
  }
  if (refused_queries != nullptr) text += std::string("; the last queries: sm_80 (") + refused_queries + ")";
  return text;
}

std::string sm90_text(int compute_capability) {
  PathInputs inputs;
  inputs.compute_capability = compute_capability;
  inputs.type = DType::bf16;
  try {
    inputs.on = sm90_by_environment().on;
  } catch (const Error& error) {
    return std::string("; kernels of sm_90a: off: ") + error.what();
  }
  const StageChoice choice = choice_of(PathStage::intra, inputs);
  return choice.sm90 ? "; kernels of sm_90a: on" : std::string("; kernels of sm_90a: off: ") + choice.reason;
}

Sm90Switch sm90_by_environment() {
  constexpr std::int64_t kMostTokens = 1 << 20;
  const char* variable = std::getenv("HEADWATER_CUDA_SM90");
  const std::string_view value = variable == nullptr ? "" : variable;
  Sm90Switch chosen;
  if (value.empty()) return chosen;
  chosen.on = value != "off";
  if (!chosen.on) return chosen;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), chosen.least_chunk);
  const bool whole = error == std::errc() && end == value.data() + value.size();
  if (whole && chosen.least_chunk >= 1 && chosen.least_chunk <= kMostTokens) return chosen;
  throw Error(ErrorCode::invalid_argument,
              "the environment variable HEADWATER_CUDA_SM90 has a value that is not allowed; allowed: "
              "off, N for chunks of N = 1 .. 1048576 tokens and more, or nothing");
}

}  // namespace headwater::cuda
