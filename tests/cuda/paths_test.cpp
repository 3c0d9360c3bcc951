// The table that chooses between the kernels of mma.sync and those of sm_90a: every obstacle and its reason.
#include <gmock/gmock.h>

#include <cstdlib>
#include <string>

#include "cuda/paths.hpp"
#include "headwater/error.hpp"

namespace headwater::cuda {
namespace {

using ::testing::HasSubstr;

/// What both stages have kernels of sm_90a for.
PathInputs target() {
  PathInputs inputs;
  inputs.compute_capability = 90;
  inputs.unproven = true;
  inputs.type = DType::bf16;
  inputs.d = 128;
  inputs.dv = 128;
  inputs.chunk = 1024;
  inputs.least_chunk = 128;
  inputs.set_width = 512;
  return inputs;
}

struct Row {
  const char* reason;  ///< part of it
  bool intra;          ///< whether the stage is kept off
  bool score;
  void (*change)(PathInputs&);
};

constexpr Row kRows[] = {
    {"9.0 only", true, true, [](PathInputs& in) { in.compute_capability = 80; }},
    {"9.0 only", true, true, [](PathInputs& in) { in.compute_capability = 100; }},
    {"HEADWATER_CUDA_SM90", true, true, [](PathInputs& in) { in.unproven = false; }},
    {"16-bit", true, true, [](PathInputs& in) { in.type = DType::f32; }},
    {"wider than 192", true, false, [](PathInputs& in) { in.d = 200; }},
    {"wider than 128", false, true, [](PathInputs& in) { in.d = 136; }},
    {"wider than 128 and logits", true, false,
     [](PathInputs& in) {
       in.d = 192;
       in.mapped = true;
     }},
    {"values are wider", true, false, [](PathInputs& in) { in.dv = 130; }},
    {"slopes", false, true, [](PathInputs& in) { in.mapped = in.slopes = true; }},
    {"512 entries", false, true, [](PathInputs& in) { in.set_width = 513; }},
    {"short", true, true, [](PathInputs& in) { in.chunk = 127; }},
};

TEST(Paths, EveryObstacleKeepsItsStagesOffAndSaysWhy) {
  for (const Row& row : kRows) {
    PathInputs inputs = target();
    row.change(inputs);
    const Path intra = path_of(PathStage::intra, inputs);
    const Path score = path_of(PathStage::score, inputs);
    if (row.intra) {
      EXPECT_FALSE(intra.sm90) << row.reason;
      EXPECT_THAT(intra.reason, HasSubstr(row.reason));
    }
    if (row.score) {
      EXPECT_FALSE(score.sm90) << row.reason;
      EXPECT_THAT(score.reason, HasSubstr(row.reason));
    }
    // A row names all stages it keeps off; wide keys keep the score off by a row of their own.
    if (!row.intra) {
      EXPECT_TRUE(intra.sm90) << row.reason << ": " << intra.reason;
    }
    if (!row.score && inputs.d <= 128) {
      EXPECT_TRUE(score.sm90) << row.reason << ": " << score.reason;
    }
  }
}

TEST(Paths, WhatTheKernelsCoverTakesThem) {
  for (const int d : {1, 8, 64, 80, 96, 128, 192}) {
    for (const bool mapped : {false, true}) {
      PathInputs inputs = target();
      inputs.d = d;
      inputs.mapped = mapped;
      EXPECT_EQ(path_of(PathStage::intra, inputs).sm90, d <= 128 || !mapped) << d;
      EXPECT_EQ(path_of(PathStage::score, inputs).sm90, d <= 128) << d;
    }
  }
}

TEST(Paths, TheDeviceComesBeforeTheSwitchAndTheSwitchBeforeTheRows) {
  PathInputs inputs = target();
  inputs.type = DType::f32;
  inputs.unproven = false;
  EXPECT_THAT(path_of(PathStage::intra, inputs).reason, HasSubstr("HEADWATER_CUDA_SM90"));
  inputs.compute_capability = 89;
  EXPECT_THAT(path_of(PathStage::intra, inputs).reason, HasSubstr("9.0 only"));
}

TEST(Paths, TextNamesBothStages) {
  EXPECT_EQ(text_of({true, ""}, {false, "logits have ALiBi slopes"}),
            "intra: sm_90a; score: sm_80 (logits have ALiBi slopes)");
}

TEST(Paths, TheSwitchKnowsOneWord) {
  ::unsetenv("HEADWATER_CUDA_SM90");
  EXPECT_FALSE(unproven_kernels_allowed());
  ::setenv("HEADWATER_CUDA_SM90", "", 1);
  EXPECT_FALSE(unproven_kernels_allowed());
  ::setenv("HEADWATER_CUDA_SM90", "unproven", 1);
  EXPECT_TRUE(unproven_kernels_allowed());
  EXPECT_EQ(hopper_text(90), "; kernels of sm_90a: on");
  EXPECT_THAT(hopper_text(80), HasSubstr("off: they run on compute capability 9.0 only"));
  ::setenv("HEADWATER_CUDA_SM90", "1", 1);
  EXPECT_THAT(hopper_text(90), HasSubstr("allowed: unproven"));
  try {
    (void)unproven_kernels_allowed();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr("allowed: unproven"));
  }
  ::unsetenv("HEADWATER_CUDA_SM90");
  EXPECT_THAT(hopper_text(90), HasSubstr("off: no device has proven them"));
}

}  // namespace
}  // namespace headwater::cuda
