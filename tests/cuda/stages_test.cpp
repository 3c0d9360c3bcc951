// The table that chooses between the kernels of mma.sync and those of sm_90a: every obstacle and its reason.
#include <gmock/gmock.h>

#include <cstdlib>
#include <string>

#include "cuda/path/stages.hpp"
#include "headwater/error.hpp"

namespace headwater::cuda {
namespace {

using ::testing::HasSubstr;

/// What all stages have kernels of sm_90a for.
PathInputs target() {
  PathInputs inputs;
  inputs.compute_capability = 90;
  inputs.on = true;
  inputs.type = DType::bf16;
  inputs.d = 128;
  inputs.dv = 128;
  inputs.chunk = 1024;
  inputs.least_chunk = 128;
  inputs.set_width = 512;
  return inputs;
}

constexpr PathStage kStages[kPathStages] = {PathStage::intra, PathStage::score, PathStage::output,
                                            PathStage::dense};

struct Row {
  const char* reason;  ///< part of it
  bool kept_off[kPathStages];
  void (*change)(PathInputs&);
};

constexpr Row kRows[] = {
    {"9.0 only", {true, true, true, true}, [](PathInputs& in) { in.compute_capability = 80; }},
    {"9.0 only", {true, true, true, true}, [](PathInputs& in) { in.compute_capability = 100; }},
    {"HEADWATER_CUDA_SM90", {true, true, true, true}, [](PathInputs& in) { in.on = false; }},
    {"16-bit", {true, true, true, true}, [](PathInputs& in) { in.type = DType::f32; }},
    {"wider than 256", {true, false, true, true}, [](PathInputs& in) { in.d = 264; }},
    {"wider than 128", {false, true, false, false}, [](PathInputs& in) { in.d = 136; }},
    {"wider than 128 and logits",
     {true, false, true, true},
     [](PathInputs& in) {
       in.d = 192;
       in.mapped = true;
     }},
    {"wider than 128 and logits",
     {true, false, true, true},
     [](PathInputs& in) {
       in.dv = 130;
       in.mapped = true;
     }},
    {"values are wider", {true, false, true, true}, [](PathInputs& in) { in.dv = 257; }},
    {"slopes", {false, true, true, false}, [](PathInputs& in) { in.mapped = in.slopes = true; }},
    {"512 entries", {false, true, false, false}, [](PathInputs& in) { in.set_width = 513; }},
    {"short", {true, true, true, false}, [](PathInputs& in) { in.chunk = 127; }},
};

TEST(StageChoices, EveryObstacleKeepsItsStagesOffAndSaysWhy) {
  for (const Row& row : kRows) {
    PathInputs inputs = target();
    row.change(inputs);
    for (int i = 0; i < kPathStages; ++i) {
      const StageChoice choice = choice_of(kStages[i], inputs);
      if (row.kept_off[i]) {
        EXPECT_FALSE(choice.sm90) << row.reason << ", stage " << i;
        EXPECT_THAT(choice.reason, HasSubstr(row.reason));
      } else if (kStages[i] != PathStage::score || inputs.d <= 128) {
        // Wide keys keep the score off by a row of their own.
        EXPECT_TRUE(choice.sm90) << row.reason << ", stage " << i << ": " << choice.reason;
      }
    }
  }
}

TEST(StageChoices, WhatTheKernelsCoverTakesThem) {
  for (const int d : {1, 8, 64, 80, 96, 128, 192, 256}) {
    for (const bool mapped : {false, true}) {
      PathInputs inputs = target();
      inputs.d = d;
      inputs.mapped = mapped;
      for (const PathStage stage : {PathStage::intra, PathStage::output, PathStage::dense}) {
        EXPECT_EQ(choice_of(stage, inputs).sm90, d <= 128 || !mapped) << d;
      }
      EXPECT_EQ(choice_of(PathStage::score, inputs).sm90, d <= 128) << d;
    }
  }
}

/// A first chunk has the bits of dense attention in a session whose chunks are longer, and in one that has none.
TEST(StageChoices, DenseDoesNotDependOnChunksAndSets) {
  PathInputs inputs = target();
  inputs.chunk = 1;
  inputs.set_width = 4096;
  EXPECT_TRUE(choice_of(PathStage::dense, inputs).sm90);
}

TEST(StageChoices, TheDeviceComesBeforeTheSwitchAndTheSwitchBeforeTheRows) {
  PathInputs inputs = target();
  inputs.type = DType::f32;
  inputs.on = false;
  EXPECT_THAT(choice_of(PathStage::intra, inputs).reason, HasSubstr("HEADWATER_CUDA_SM90"));
  inputs.compute_capability = 89;
  EXPECT_THAT(choice_of(PathStage::intra, inputs).reason, HasSubstr("9.0 only"));
}

TEST(StageChoices, TextNamesAllStages) {
  const StageChoices paths{StageChoice{true, ""}, StageChoice{false, "logits have ALiBi slopes"},
                           StageChoice{false, "values are wider than 128"}, StageChoice{true, ""}};
  EXPECT_EQ(
      text_of(paths),
      "intra: sm_90a; score: sm_80 (logits have ALiBi slopes); output: sm_80 (values are wider than 128); "
      "dense: sm_90a");
  EXPECT_THAT(text_of(paths, "why"), HasSubstr("dense: sm_90a; the last queries: sm_80 (why)"));
}

TEST(StageChoices, TheSwitchKnowsOneWordAndALength) {
  const auto with = [](const char* value) {
    ::setenv("HEADWATER_CUDA_SM90", value, 1);
    return sm90_by_environment();
  };
  ::unsetenv("HEADWATER_CUDA_SM90");
  EXPECT_TRUE(sm90_by_environment().on);
  EXPECT_EQ(sm90_by_environment().least_chunk, kSm90LeastChunk);
  EXPECT_TRUE(with("").on);
  EXPECT_EQ(sm90_text(90), "; kernels of sm_90a: on");
  EXPECT_THAT(sm90_text(80), HasSubstr("off: they run on compute capability 9.0 only"));
  EXPECT_TRUE(with("1").on);
  EXPECT_EQ(with("1").least_chunk, 1);
  EXPECT_EQ(with("1048576").least_chunk, 1048576);
  EXPECT_FALSE(with("off").on);
  EXPECT_EQ(sm90_text(90), "; kernels of sm_90a: off: HEADWATER_CUDA_SM90=off");
  for (const char* value :
       {"on", "of", "offx", "OFF", "0", "-1", "1x", " 1", "1048577", "99999999999999999999", ":1"}) {
    try {
      (void)with(value);
      ADD_FAILURE() << "no error for " << value;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), HasSubstr("allowed: off, N for chunks of N = 1 .. 1048576"));
    }
    EXPECT_THAT(sm90_text(90), HasSubstr("off: the environment variable HEADWATER_CUDA_SM90"));
  }
  ::unsetenv("HEADWATER_CUDA_SM90");
}

}  // namespace
}  // namespace headwater::cuda
