// Laws of sessions that take steps back (STATE-8, STATE-9, STATE-10); see laws.cpp.

#include <algorithm>

#include "conformance/replay.hpp"
#include "conformance/session_checks.hpp"
#include "fuzz/law_problem.hpp"

namespace headwater::fuzz {
namespace {

/// A problem of several turns under a drawn rule, with room for `room` tokens more.
struct Script {
  Problem problem;
  std::vector<Step> steps;
};

Script draw_script(const Engine& engine, std::int64_t room) {
  Script script{draw(), {}};
  Options& options = script.problem.options;
  options.dense_below = *rc::gen::weightedElement<std::int64_t>({{3, 0}, {1, 6}});
  options.select = *rc::gen::elementOf(conformance::rules(engine));
  if (options.select == Select::blocks) {
    options.key_block = std::min<std::int64_t>(3, options.chunk);
    options.query_block = options.pool = std::min<std::int64_t>(2, options.chunk);
    options.heavy *= options.key_block;
  }
  conformance::Random random(*rc::gen::arbitrary<std::uint64_t>());
  conformance::append_steps(random, options, script.steps, script.problem.n, *rc::gen::inRange(1, 6));
  script.problem.n += room;
  script.problem.shape.capacity = script.problem.n;
  draw_rows(script.problem);
  return script;
}

/// The rows of both: those of `from` up to position n.
void keep_rows(const Problem& from, Problem& to, std::int64_t n) {
  const Shape& s = from.shape;
  std::copy_n(from.q.begin(), n * s.n_head * s.d_head, to.q.begin());
  std::copy_n(from.k.begin(), n * s.n_head_kv * s.d_head, to.k.begin());
  std::copy_n(from.v.begin(), n * s.n_head_kv * s.d_value, to.v.begin());
}

TEST(SessionLaws, STATE_9_TruncatedSessionsHaveTheBitsOfFreshOnes) {
  for_every_engine("what follows a truncation", [](const Engine& engine) {
    if (!engine.claims().truncate) return;
    Script script = draw_script(engine, 12);
    Problem& p = script.problem;
    p.options.checkpoints = *rc::gen::element<std::int64_t>(0, 1, 2, 5);
    const auto session = engine.open(p.shape, p.options);
    conformance::Lengths lengths(conformance::expected_options(p.shape, p.options));
    std::vector<float> out(static_cast<std::size_t>(p.n * p.shape.n_head * p.shape.d_value));
    for (const Step& step : script.steps) {
      take_step(*session, p, step, out);
      lengths.ended(session->chunks());
    }
    std::vector<std::int64_t> possible;
    for (std::int64_t n = 0; n <= session->tokens(); ++n) {
      if (lengths.possible(n)) possible.push_back(n);
    }
    const std::int64_t n = *rc::gen::elementOf(possible);
    session->truncate(n);
    std::vector<Step> steps = conformance::first_tokens(script.steps, n);
    const std::size_t kept = steps.size();
    conformance::Random random(*rc::gen::arbitrary<std::uint64_t>());
    conformance::append_steps(random, p.options, steps, p.n - n, 3);
    Problem fresh = p;
    draw_rows(fresh);
    keep_rows(p, fresh, n);
    const Result wanted = run(engine, fresh, steps);
    for (std::size_t s = kept; s < steps.size(); ++s) take_step(*session, fresh, steps[s], out);
    const std::int64_t row = p.shape.n_head * p.shape.d_value;
    RC_ASSERT(std::equal(out.begin() + n * row, out.begin() + session->tokens() * row,
                         wanted.out.begin() + n * row));
    RC_ASSERT(scores_of(*session) == wanted.scores);
  });
}

TEST(SessionLaws, STATE_8_AbortedStepsLeaveNoTrace) {
  for_every_engine("what follows aborted steps", [](const Engine& engine) {
    if (!engine.claims().abort) return;
    const Script script = draw_script(engine, 0);
    const Problem& p = script.problem;
    const Result wanted = run(engine, p, script.steps);
    Problem other = p;
    draw_rows(other);
    const auto session = engine.open(p.shape, p.options);
    std::vector<float> out(wanted.out.size());
    for (const Step& step : script.steps) {
      for (int aborted = *rc::gen::inRange(0, 3); aborted > 0; --aborted) {
        attend_step(*session, other, step, out);
        session->abort();
      }
      take_step(*session, p, step, out);
    }
    RC_ASSERT(out == wanted.out);
    RC_ASSERT(scores_of(*session) == wanted.scores);
  });
}

}  // namespace
}  // namespace headwater::fuzz
