// What `attend` says about repeated runs.

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "cli/commands/attend/report.hpp"

namespace headwater::cli {
namespace {

using ::testing::HasSubstr;

AttendReport report_of(std::vector<double> seconds) {
  AttendReport report;
  report.pairs = 10;
  report.pairs_dense = 40;
  report.seconds = std::move(seconds);
  return report;
}

nlohmann::json seconds_of(std::vector<double> seconds) {
  return nlohmann::json::parse(json_text(report_of(std::move(seconds)))).at("seconds");
}

TEST(AttendReport, MinimumAndMedianOfRunsInAnyOrder) {
  EXPECT_EQ(seconds_of({0.5}), nlohmann::json({{"min", 0.5}, {"median", 0.5}, {"repeats", 1}}));
  EXPECT_EQ(seconds_of({4, 1, 2}), nlohmann::json({{"min", 1.0}, {"median", 2.0}, {"repeats", 3}}));
  EXPECT_EQ(seconds_of({4, 1, 8, 2}), nlohmann::json({{"min", 1.0}, {"median", 3.0}, {"repeats", 4}}));
}

TEST(AttendReport, SummaryTellsBestMedianAndShare) {
  const std::string text = summary_text(report_of({4, 1, 8, 2}));
  EXPECT_THAT(text, HasSubstr("time     1 s (best of 4 runs, median 3 s)"));
  EXPECT_THAT(text, HasSubstr("10 of 40 per head, 25.0 % of dense attention"));
}

}  // namespace
}  // namespace headwater::cli
