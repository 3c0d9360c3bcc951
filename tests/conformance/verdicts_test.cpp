// What turns a run into a failure although no case said FAIL: something that must pass and did not run, accuracy that was
// lost, a waiver past its day. The cases here have no body; their results are written out.

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "conformance/case.hpp"
#include "conformance/must_pass.hpp"
#include "conformance/ratchet.hpp"
#include "conformance/runner.hpp"
#include "conformance/waivers.hpp"

namespace headwater::conformance {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// Names that mustpass.txt has patterns for: `none stage.*`, `reference exact.*`, `cpu-portable exact.*`.
const Register kStage{{"stage.written_out", {}, "plan", Lane::exact, false, {}}};
const Register kExact{{"exact.written_out", {}, "out", Lane::exact, true, {}}};

const Case* named(const std::string& name) {
  for (const Case& test : all_cases()) {
    if (test.name == name) return &test;
  }
  return nullptr;
}

Result result_of(const std::string& name, const std::string& engine, Status status) {
  Result result;
  result.test = named(name);
  result.engine = engine;
  result.status = status;
  result.message = "a reason";
  return result;
}

/// What is missing of exact.written_out where the other engines of this machine passed it.
std::vector<std::string> missing_of_exact(std::vector<Result> results) {
  for (const Engine* engine : engines()) {
    const std::string name(engine->name());
    if (engine->unavailable_because().empty() && name != "reference" && name != "cpu-portable") {
      results.push_back(result_of("exact.written_out", name, Status::pass));
    }
  }
  std::vector<std::string> mine;
  for (const std::string& line : missing_passes(results, {named("exact.written_out")})) {
    if (line.find("written_out") != std::string::npos) mine.push_back(line);
  }
  return mine;
}

TEST(MustPass, NothingIsMissingWhereEverythingRan) {
  EXPECT_THAT(missing_of_exact({result_of("exact.written_out", "reference", Status::pass),
                                result_of("exact.written_out", "cpu-portable", Status::pass)}),
              IsEmpty());
}

TEST(MustPass, SkippedIsMissing) {
  const auto missing = missing_of_exact({result_of("exact.written_out", "reference", Status::pass),
                                         result_of("exact.written_out", "cpu-portable", Status::skip)});
  ASSERT_THAT(missing, SizeIs(1));
  EXPECT_EQ(missing.front(), "exact.written_out was skipped on cpu-portable: a reason");
}

TEST(MustPass, NotRunIsMissing) {
  const auto missing = missing_of_exact({result_of("exact.written_out", "cpu-portable", Status::pass)});
  ASSERT_THAT(missing, SizeIs(1));
  EXPECT_EQ(missing.front(), "exact.written_out was not run on reference");
}

TEST(MustPass, EnginesOfThisMachineAreMissingOthersAreNot) {
  const std::vector<std::string> missing = missing_passes({}, {named("exact.written_out")});
  for (const char* name : {"cpu-avx2", "cpu-avx512", "cpu-avx512bf16", "cpu-amx"}) {
    const auto all = engines();
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const Engine* e) { return e->name() == name; });
    ASSERT_NE(found, all.end()) << name;
    EXPECT_EQ(
        std::count(missing.begin(), missing.end(), "exact.written_out was not run on " + std::string(name)),
        (*found)->unavailable_because().empty() ? 1 : 0);
  }
}

TEST(MustPass, APatternStandsForTheEnginesThatRan) {
  const auto missing = missing_of_exact({result_of("exact.written_out", "reference", Status::pass),
                                         result_of("exact.written_out", "cpu-portable", Status::pass),
                                         result_of("exact.written_out", "of-this-machine", Status::skip)});
  ASSERT_THAT(missing, SizeIs(1));
  EXPECT_EQ(missing.front(), "exact.written_out was skipped on of-this-machine: a reason");
}

TEST(MustPass, EnginesAskedForByNameAreHeldToTheirLines) {
  const std::vector<const Case*> chosen{named("exact.written_out"), named("stage.written_out")};
  EXPECT_THAT(missing_passes({}, chosen, {"of-this-machine"}),
              Contains("exact.written_out was not run on of-this-machine"));
  EXPECT_THAT(missing_passes({result_of("exact.written_out", "of-this-machine", Status::pass)}, chosen,
                             {"of-this-machine"}),
              Not(Contains(HasSubstr("written_out"))));
}

TEST(MustPass, AFailureIsToldByItsOwnVerdict) {
  EXPECT_THAT(missing_of_exact({result_of("exact.written_out", "reference", Status::fail),
                                result_of("exact.written_out", "cpu-portable", Status::mistrusted)}),
              IsEmpty());
}

TEST(MustPass, StageCasesRunOnNoEngine) {
  const std::vector<const Case*> chosen{named("stage.written_out")};
  EXPECT_THAT(missing_passes({}, chosen), Contains("stage.written_out was not run on none"));
  EXPECT_THAT(missing_passes({result_of("stage.written_out", "", Status::skip)}, chosen),
              Contains(HasSubstr("stage.written_out was skipped on none")));
  EXPECT_THAT(missing_passes({result_of("stage.written_out", "", Status::pass)}, chosen),
              Not(Contains(HasSubstr("written_out"))));
}

TEST(MustPass, ACaseThatIsGoneFromTheKitIsMissing) {
  EXPECT_THAT(missing_passes({}, {}), Contains("no case is called oracles.*"));
}

class RatchetFile : public ::testing::Test {
 protected:
  RatchetFile() { std::ofstream(path_) << R"({"e/isa": {"bound.a": {"out F32": 0.25, "lse F32": 0}}})"; }
  ~RatchetFile() override { std::remove(path_.c_str()); }
  [[nodiscard]] std::optional<std::string> judge(const StageError& error, const std::string& engine = "e/isa",
                                                 const std::string& name = "bound.a") const {
    return Ratchet::load(path_).judge(engine, name, {error});
  }
  const std::string path_ = ::testing::TempDir() + "headwater-ratchet-" + std::to_string(::getpid());
};

TEST_F(RatchetFile, TwiceTheMarkIsTheLimit) {
  EXPECT_FALSE(judge({"out", "F32", 0.5}));
  EXPECT_THAT(judge({"out", "F32", 0.50001}),
              ::testing::Optional(HasSubstr("more than 2 times the recorded 0.25")));
  EXPECT_TRUE(judge({"out", "F32", std::numeric_limits<double>::quiet_NaN()}));
}

TEST_F(RatchetFile, ExactResultsMayMoveByASixtyFourthOfTheBound) {
  EXPECT_FALSE(judge({"lse", "F32", 1.0 / 64}));
  EXPECT_TRUE(judge({"lse", "F32", 1.01 / 64}));
}

TEST_F(RatchetFile, WhatHasNoMarkFails) {
  EXPECT_THAT(judge({"out", "F32", 0.0}, "other/isa"),
              ::testing::Optional(HasSubstr("no baselines for other/isa")));
  EXPECT_THAT(judge({"out", "F32", 0.0}, "e/isa", "bound.b"),
              ::testing::Optional(HasSubstr("no baseline for")));
  EXPECT_THAT(judge({"out", "F16", 0.0}), ::testing::Optional(HasSubstr("no baseline for e/isa out F16")));
}

TEST_F(RatchetFile, EveryMarkOfACaseIsJudged) {
  const Ratchet baselines = Ratchet::load(path_);
  EXPECT_TRUE(baselines.judge("e/isa", "bound.a", {{"out", "F32", 0.1}, {"lse", "F32", 0.5}}));
}

TEST_F(RatchetFile, RecordedMarksReplaceThoseOfTheirCaseAlone) {
  Ratchet baselines = Ratchet::load(path_);
  baselines.record("e/isa", "bound.b", {{"out", "F32", 0.125}});
  baselines.record("e/isa", "bound.a", {{"out", "F32", 0.0625}});
  baselines.save(path_);
  EXPECT_FALSE(judge({"out", "F32", 0.125}));
  EXPECT_TRUE(judge({"out", "F32", 0.126}));
  EXPECT_TRUE(judge({"lse", "F32", 0.0})) << "a stage that the case no longer has kept its baseline";
  EXPECT_FALSE(judge({"out", "F32", 0.25}, "e/isa", "bound.b"));
}

/// An engine without baselines; what it computes does not matter.
class NewProcessor : public Engine {
 public:
  explicit NewProcessor(std::string_view isa) : isa_(isa) {}
  [[nodiscard]] std::string_view name() const override { return "e"; }
  [[nodiscard]] std::string_view isa() const override { return isa_; }
  [[nodiscard]] std::string_view description() const override { return "nothing"; }
  [[nodiscard]] std::string unavailable_because() const override { return ""; }
  [[nodiscard]] Claims claims() const override { return {}; }
  [[nodiscard]] std::unique_ptr<Session> open(const Shape&, const Options&) const override { return nullptr; }

 private:
  std::string_view isa_;
};

// One stage that RatchetFile has a baseline for in bound.a, and one that it has none for.
const Register kMarked{
    {"bound.a", {}, "out", Lane::bound, true, [](Context& context) { context.measured("out", "F32", 0.1); }}};
const Register kUnmarked{
    {"bound.b", {}, "out", Lane::bound, true, [](Context& context) { context.measured("out", "F32", 0.1); }}};

class ProcessorWithoutMarks : public RatchetFile {
 protected:
  [[nodiscard]] Result run(const Engine& engine, const std::string& name, bool ratchet_file,
                           std::uint64_t seed = kDefaultSeed) const {
    Settings settings;
    settings.seed = seed;
    settings.ratchet = &baselines_;
    if (ratchet_file) settings.ratchet_file = "";
    return run_case(*named(name), &engine, settings);
  }
  [[nodiscard]] std::vector<std::string> said(bool ratchet_file, std::uint64_t seed = kDefaultSeed) const {
    Settings settings;
    settings.seed = seed;
    settings.ratchet = &baselines_;
    if (ratchet_file) settings.ratchet_file = "";
    return not_compared({&known_, &unknown_}, settings);
  }
  const Ratchet baselines_ = Ratchet::load(path_);
  const NewProcessor known_{"isa"};
  const NewProcessor unknown_{"another isa"};
};

TEST_F(ProcessorWithoutMarks, IsSaidOnceAndNotAFailure) {
  EXPECT_EQ(run(unknown_, "bound.a", false).status, Status::pass);
  EXPECT_EQ(run(unknown_, "bound.b", false).status, Status::pass);
  EXPECT_THAT(said(false), ::testing::ElementsAre(HasSubstr("no baselines are recorded for e/another isa")));
}

TEST_F(ProcessorWithoutMarks, FailsWhereMarksAreAskedFor) {
  const Result result = run(unknown_, "bound.a", true);
  EXPECT_EQ(result.status, Status::fail);
  EXPECT_THAT(result.message, HasSubstr("no baselines for e/another isa"));
  EXPECT_THAT(said(true), IsEmpty());
}

TEST_F(ProcessorWithoutMarks, AnEngineThatHasMarksFailsWhereOneIsMissing) {
  EXPECT_EQ(run(known_, "bound.a", false).status, Status::pass);
  EXPECT_EQ(run(known_, "bound.b", false).status, Status::fail);
}

TEST_F(ProcessorWithoutMarks, OtherSeedsHaveNoMarks) {
  EXPECT_EQ(run(unknown_, "bound.a", true, 7).status, Status::pass);
  EXPECT_THAT(said(false, 7), IsEmpty());
}

TEST(RatchetName, IsThatOfTheEngineThatCpuStandsFor) {
  const std::string name = ratchet_name(engine("cpu"));
  EXPECT_THAT(name, ::testing::StartsWith("cpu-"));
  EXPECT_TRUE(Ratchet::built_in().has(name));
  EXPECT_EQ(ratchet_name(engine("cpu-portable")), "cpu-portable/x86-64-v2");
  EXPECT_TRUE(Ratchet::built_in().has("cpu-amx/AMX-BF16"));
}

TEST(WaiverOfAFailure, HoldsOnItsLastDayAndNotAfterIt) {
  const std::string path = ::testing::TempDir() + "headwater-waivers-" + std::to_string(::getpid());
  std::ofstream(path) << R"({"waivers": [{"case": "exact.written_out", "engine": "e", "reason": "why",)"
                      << R"( "expires": "2027-01-31"}]})";
  const Waivers waivers = Waivers::load(path);
  std::remove(path.c_str());
  for (const char* const day : {"2026-12-31", "2027-01-31"}) {
    std::vector<Result> results{result_of("exact.written_out", "e", Status::fail)};
    EXPECT_THAT(waivers.apply(results, day), IsEmpty()) << day;
    EXPECT_EQ(results.front().status, Status::waived) << day;
    EXPECT_EQ(results.front().waiver, "why (until 2027-01-31)");
  }
  std::vector<Result> others{result_of("exact.written_out", "another", Status::fail)};
  EXPECT_THAT(waivers.apply(others, "2027-01-31"), IsEmpty());
  EXPECT_EQ(others.front().status, Status::fail);
  std::vector<Result> results{result_of("exact.written_out", "e", Status::fail)};
  EXPECT_THAT(waivers.apply(results, "2027-02-01"), Contains(HasSubstr("expired on 2027-01-31")));
  EXPECT_EQ(results.front().status, Status::fail);
}

TEST(WaiverOfAFailure, BearsWhatIsMistrustedToo) {
  const std::string path = ::testing::TempDir() + "headwater-waivers-" + std::to_string(::getpid());
  std::ofstream(path) << R"({"waivers": [{"case": "exact.*", "engine": "*", "reason": "why",)"
                      << R"( "expires": "2027-01-31"}]})";
  const Waivers waivers = Waivers::load(path);
  std::remove(path.c_str());
  std::vector<Result> results{result_of("exact.written_out", "e", Status::mistrusted),
                              result_of("stage.written_out", "", Status::fail)};
  EXPECT_THAT(waivers.apply(results, "2026-01-01"), IsEmpty());
  EXPECT_EQ(results[0].status, Status::waived);
  EXPECT_EQ(results[1].status, Status::fail);
}

// A bound as large as what it bounds shows nothing and must not count as a check, even where other stages and types
// of the case have good bounds.
TEST(Mistrusted, WhereTheBoundsAddUpToTheSignals) {
  const auto status_of = [](double bound, double signal, bool fails) {
    const Case test{"bound.written_out", {}, "out", Lane::bound, false, [=](Context& context) {
                      context.measured("lse", "F32", 0.5, 0.5, 100.0);
                      context.measured("out", "F32", 0.5, 0.5 * bound, 0.25 * signal);
                      context.measured("out", "F32", 0.5, 0.5 * bound, 0.75 * signal);
                      context.measured("out", "BF16", 0.5, 0.5, 100.0);
                      if (fails) throw Violation("wrong");
                    }};
    return run_case(test, nullptr, Settings{}).status;
  };
  EXPECT_EQ(status_of(0.0, 0.0, false), Status::pass) << "exact";
  EXPECT_EQ(status_of(0.99, 1.0, false), Status::pass);
  EXPECT_EQ(status_of(1.0, 1.0, false), Status::mistrusted);
  EXPECT_EQ(status_of(2.0, 1.0, false), Status::mistrusted);
  EXPECT_EQ(status_of(2.0, 1.0, true), Status::fail) << "wrong is worse than not shown";
  EXPECT_TRUE(is_failure(Status::mistrusted));
}

}  // namespace
}  // namespace headwater::conformance
