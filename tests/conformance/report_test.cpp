// The reports of a run say what the run was. The engines here only describe themselves.

#include "conformance/report.hpp"

#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conformance/html_report.hpp"
#include "headwater/error.hpp"

namespace headwater::conformance {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using Judged = conformance::Run;  // a test of GoogleTest has a Run() of its own

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class Described final : public Engine {
 public:
  explicit Described(const Claims& claims) : claims_(claims) {}
  [[nodiscard]] std::string_view name() const override { return "described"; }
  [[nodiscard]] std::string_view isa() const override { return "none"; }
  [[nodiscard]] std::string_view description() const override { return "an engine of a report"; }
  [[nodiscard]] std::string unavailable_because() const override { return ""; }
  [[nodiscard]] Claims claims() const override { return claims_; }
  [[nodiscard]] std::unique_ptr<Session> open(const Shape&, const Options&) const override {
    throw Error(ErrorCode::internal, "nobody opens it");
  }

 private:
  Claims claims_;
};

const Case kCase{"bound.written_out", {"INTER-2"}, "out", Lane::bound, true, {}};
const Case kOther{"bound.another", {"INTER-2"}, "out", Lane::bound, true, {}};

Result result_of(const Case& test, Status status, std::vector<double> ratios = {}) {
  Result result;
  result.test = &test;
  result.engine = "described";
  result.status = status;
  result.message = "the <reason>";
  result.reproduce = "repeat --it";
  for (const double ratio : ratios) result.errors.push_back({"out", "F32", ratio});
  return result;
}

struct Claim {
  const char* key;
  bool Claims::*member;
  const char* said;  // in the page
};
constexpr std::array kClaims{
    Claim{"bitwise_threads", &Claims::bitwise_threads, "same bits for every number of threads"},
    Claim{"bitwise_runs", &Claims::bitwise_runs, "same bits in every run"},
    Claim{"bitwise_schedules", &Claims::bitwise_schedules, "same outputs in both schedules"},
    Claim{"no_allocation", &Claims::no_allocation, "no allocation after open"},
    Claim{"double_arithmetic", &Claims::double_arithmetic, "double arithmetic"},
    Claim{"bf16_weights", &Claims::bf16_weights, "weights in BF16"},
    Claim{"f16_weights", &Claims::f16_weights, "weights in F16"}};

TEST(Report, EachClaimIsShownUnderItsOwnName) {
  for (const Claim& made : kClaims) {
    Claims claims;
    claims.*made.member = true;
    const Described engine(claims);
    Judged run;
    run.engines = {&engine};
    const auto document = nlohmann::json::parse(results_json(run));
    const std::string page = results_html(run);
    for (const Claim& claim : kClaims) {
      const bool wanted = &claim == &made;
      EXPECT_EQ(document["engines"][0]["claims"][claim.key], wanted) << made.key << ", " << claim.key;
      EXPECT_EQ(page.find(std::string("&#10003; ") + claim.said) != std::string::npos, wanted) << claim.key;
    }
  }
}

TEST(Report, TheWorstIsTheLargestOfAllCasesAndSaysWhose) {
  Judged run;
  run.results = {result_of(kCase, Status::pass, {0.25, 0.5}), result_of(kOther, Status::pass, {0.375}),
                 result_of(kOther, Status::pass, {0.75})};
  run.results.back().engine = "another";
  const auto worst = worst_of(run, "described");
  ASSERT_EQ(worst.size(), 1U);
  EXPECT_EQ(worst.at("out F32").err_over_bound, 0.5);
  EXPECT_EQ(worst.at("out F32").test, "bound.written_out");
}

TEST(Report, ANaNIsWorseThanEveryNumber) {
  const std::vector<std::vector<double>> orders{{kNaN, 0.5}, {0.5, kNaN}, {0.25, kNaN, 0.5}};
  for (const std::vector<double>& ratios : orders) {
    Judged run;
    const Described engine({});
    run.engines = {&engine};
    run.results = {result_of(kCase, Status::fail, ratios)};
    EXPECT_TRUE(std::isnan(worst_of(run, "described").at("out F32").err_over_bound));
    EXPECT_TRUE(nlohmann::json::parse(results_json(run))["engines"][0]["worst"]["out F32"]["err_over_bound"]
                    .is_null());
    const std::string page = results_html(run);
    const std::string cases = page.substr(page.find("<h2>All cases</h2>"));
    EXPECT_THAT(cases, HasSubstr(">nan<"));
  }
}

TEST(Report, ANaNThatACaseMeasuredStaysInItsRatio) {
  Context context;
  for (const double ratio : {0.25, kNaN, 0.5}) context.measured("out", "F32", ratio);
  for (const double ratio : {0.25, 0.75, 0.5}) context.measured("lse", "F32", ratio);
  ASSERT_EQ(context.errors().size(), 2U);
  EXPECT_TRUE(std::isnan(context.errors()[0].ratio));
  EXPECT_EQ(context.errors()[1].ratio, 0.75);
}

TEST(Report, JUnitCountsWhatFailedAndWhatWasSkipped) {
  Judged run;
  run.results = {result_of(kCase, Status::pass), result_of(kCase, Status::fail),
                 result_of(kOther, Status::mistrusted), result_of(kOther, Status::skip),
                 result_of(kOther, Status::waived)};
  run.results.back().waiver = "borne";
  const std::string text = results_junit(run);
  EXPECT_THAT(text, HasSubstr("<testsuite name=\"described\" tests=\"5\" failures=\"2\" skipped=\"2\">"));
  EXPECT_THAT(text, HasSubstr("<failure type=\"FAIL\" message=\"the &lt;reason&gt;\">repeat --it</failure>"));
  EXPECT_THAT(text, HasSubstr("<failure type=\"MISTRUSTED\""));
  EXPECT_THAT(text, HasSubstr("<skipped message=\"the &lt;reason&gt;\"/>"));
  EXPECT_THAT(text, HasSubstr("<skipped message=\"borne\"/>"));
}

TEST(Report, JUnitShowsWhatFailsBesidesTheCases) {
  Judged run;
  run.results = {result_of(kCase, Status::pass)};
  EXPECT_THAT(results_junit(run), Not(HasSubstr("<failure")));
  run.problems = {"must pass: bound.x was not run on <e>", "waiver of y is unused"};
  std::string text = results_junit(run);
  EXPECT_THAT(text, HasSubstr("<testsuite name=\"(run)\" tests=\"2\" failures=\"2\" skipped=\"0\">"));
  EXPECT_THAT(text, HasSubstr("message=\"must pass: bound.x was not run on &lt;e&gt;\""));
  EXPECT_THAT(text, HasSubstr("message=\"waiver of y is unused\""));
  Judged unloaded;
  unloaded.not_loaded = "no shared object";
  text = results_junit(unloaded);
  EXPECT_THAT(text, HasSubstr("<testsuite name=\"(run)\" tests=\"1\" failures=\"1\" skipped=\"0\">"));
  EXPECT_THAT(text, HasSubstr("message=\"no shared object\""));
}

TEST(Report, TheVerdictIsThatOfTheExitStatus) {
  const auto verdict = [](const Judged& run) {
    const auto document = nlohmann::json::parse(results_json(run));
    EXPECT_THAT(results_html(run), HasSubstr("<title>" + document["verdict"].get<std::string>()));
    EXPECT_EQ(run.failed(), document["verdict"] == "FAIL");
    return run.failed();
  };
  for (const Status status : {Status::pass, Status::fail, Status::skip, Status::mistrusted, Status::waived}) {
    Judged run;
    run.results = {result_of(kCase, Status::pass), result_of(kOther, status)};
    EXPECT_EQ(verdict(run), is_failure(status));
    EXPECT_EQ(nlohmann::json::parse(results_json(run))["totals"][status_name(status)],
              status == Status::pass ? 2 : 1);
  }
  Judged run;
  run.problems = {"expired"};
  EXPECT_TRUE(verdict(run));
  run.problems.clear();
  run.not_loaded = "why";
  EXPECT_TRUE(verdict(run));
}

}  // namespace
}  // namespace headwater::conformance
