// What `headwater generate` tells at its end.

#include "cli/commands/generate/report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headwater::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

GenerateReport report() {
  GenerateReport report;
  report.run.prompt_tokens = report.run.done_tokens = 1000;
  report.run.pairs = {200, 400};
  report.run.prefill_seconds = 2;
  report.run.decoded = 30;
  report.run.decode_seconds = 3;
  return report;
}

TEST(GenerateReport, RatesAreOfWhatWasDone) {
  const std::string text = summary_text(report());
  EXPECT_THAT(text, HasSubstr("prefill 500.0 tokens/s, decode 10.0 tokens/s"));
  EXPECT_THAT(text, HasSubstr("50.0 % of dense attention"));
  EXPECT_THAT(text, HasSubstr("to the first token"));
  EXPECT_THAT(text, Not(HasSubstr("ended")));
}

TEST(GenerateReport, AnInterruptedPrefillSaysHowFarItCame) {
  GenerateReport cut = report();
  cut.run.interrupted = true;
  cut.run.done_tokens = 100;
  cut.run.pairs = {};
  cut.run.decoded = 0;
  const std::string text = summary_text(cut);
  EXPECT_THAT(text, HasSubstr("prefill 50.0 tokens/s"));
  EXPECT_THAT(text, HasSubstr("ended    by an interrupt, after about 100 of 1000 tokens of the prompt"));
  EXPECT_THAT(text, Not(HasSubstr("to the first token")));
  EXPECT_THAT(text, Not(HasSubstr("pairs")));
}

TEST(GenerateReport, ASessionIsToldAsAWhole) {
  GenerateReport talk = report();
  SessionTotals totals;
  totals.add(talk.run);
  totals.add(talk.run);
  totals.pairs = {300, 400};
  totals.capacity = 4000;
  talk.session = totals;
  const std::string text = summary_text(talk);
  EXPECT_THAT(text, HasSubstr("turns    2, of 2000 tokens in 4.000 s (500.0 tokens/s)"));
  EXPECT_THAT(text, HasSubstr("75.0 % of dense attention"));
  EXPECT_THAT(text, HasSubstr("(10.0 tokens/s)"));
}

TEST(GenerateReport, DifferencesOfTwoRuns) {
  GenerateRun sparse;
  GenerateRun dense;
  sparse.ids = {1, 2, 3, 4};
  dense.ids = {1, 2, 5, 4};
  sparse.first_logits = {0, 1, 2};
  dense.first_logits = {0, 1, 2.5F};
  sparse.prefill_seconds = 2;
  dense.prefill_seconds = 5;
  const GenerateDifference differs = difference(sparse, dense);
  EXPECT_EQ(differs.equal_tokens, 2);
  EXPECT_EQ(differs.worst_logit, 0.5);
  EXPECT_EQ(differs.times_sooner, 2.5);
  EXPECT_GT(differs.divergence, 0);
  EXPECT_NEAR(difference(dense, dense).divergence, 0, 1e-12);
}

}  // namespace
}  // namespace headwater::cli
