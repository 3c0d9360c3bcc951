// Laws of sessions that take steps back (STATE-8, STATE-9, STATE-10), fork (STATE-11), are saved (STATE-12) or
// own no rows (ROWS-1); see laws.cpp.

#include <algorithm>

#include "conformance/replay.hpp"
#include "conformance/session_checks.hpp"
#include "conformance/state_archive.hpp"
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
  draw_rule(engine, options);
  conformance::Random random(*rc::gen::arbitrary<std::uint64_t>());
  conformance::append_steps(random, options, script.steps, script.problem.n, *rc::gen::inRange(1, 6));
  script.problem.n += room;
  script.problem.shape.capacity = script.problem.n;
  if (engine.claims().kv_bits && *rc::gen::inRange(0, 4) == 0) {  // STATE-13
    options.kv_bits = 8;
    script.problem.shape.d_head = script.problem.shape.d_value = 32;
  }
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

TEST(SessionLaws, STATE_11_BothSidesOfAForkGoOnAlone) {
  for_every_engine("what follows a fork", [](const Engine& engine) {
    if (!engine.claims().fork) return;
    const Script script = draw_script(engine, 0);
    const Problem& p = script.problem;
    const std::size_t at = *rc::gen::inRange<std::size_t>(0, script.steps.size() + 1);
    const auto parent = engine.open(p.shape, p.options);
    std::vector<float> out(static_cast<std::size_t>(p.n * p.shape.n_head * p.shape.d_value));
    for (std::size_t s = 0; s < at; ++s) take_step(*parent, p, script.steps[s], out);
    Problem other = p;
    draw_rows(other);
    keep_rows(p, other, parent->tokens());
    const auto fork = parent->fork();
    const auto twin = parent->fork()->fork();  // its parent is gone
    std::vector<float> of_fork = out;
    std::vector<float> of_twin = out;
    for (std::size_t s = at; s < script.steps.size(); ++s) {
      take_step(*fork, other, script.steps[s], of_fork);
      take_step(*parent, p, script.steps[s], out);
    }
    for (std::size_t s = at; s < script.steps.size(); ++s) take_step(*twin, p, script.steps[s], of_twin);
    const Result wanted = run(engine, p, script.steps);
    RC_ASSERT(out == wanted.out);
    RC_ASSERT(scores_of(*parent) == wanted.scores);
    RC_ASSERT(of_twin == wanted.out);
    RC_ASSERT(scores_of(*twin) == wanted.scores);
    const Result otherwise = run(engine, other, script.steps);
    RC_ASSERT(of_fork == otherwise.out);
    RC_ASSERT(scores_of(*fork) == otherwise.scores);
  });
}

/// Saves a session; what it gave, to be loaded.
std::unique_ptr<conformance::MemoryArchive> saved(Session& session) {
  auto archive = std::make_unique<conformance::MemoryArchive>();
  session.exchange_state(*archive);
  archive->load();
  return archive;
}

TEST(SessionLaws, STATE_12_LoadedSessionsGoOnLikeTheSavedOne) {
  for_every_engine("what follows a load", [](const Engine& engine) {
    if (!engine.claims().save) return;
    Script script = draw_script(engine, 0);
    Problem& p = script.problem;
    // Rule blocks: loaded sessions of the CPU engines have no summaries of rows that the caller keeps.
    if (engine.claims().stored_rows && p.options.select == Select::h2o && p.options.kv_bits == 0) {
      p.options.kv_owner = *rc::gen::element(KvOwner::session, KvOwner::caller);
    }
    const std::size_t at = *rc::gen::inRange<std::size_t>(0, script.steps.size() + 1);
    const auto session = engine.open(p.shape, p.options);
    std::vector<float> out(static_cast<std::size_t>(p.n * p.shape.n_head * p.shape.d_value));
    for (std::size_t s = 0; s < at; ++s) take_step(*session, p, script.steps[s], out);
    const auto archive = saved(*session);
    const auto loaded = engine.open(p.shape, p.options);
    loaded->exchange_state(*archive);
    std::vector<float> of_loaded = out;
    for (std::size_t s = at; s < script.steps.size(); ++s) {
      take_step(*loaded, p, script.steps[s], of_loaded);
      take_step(*session, p, script.steps[s], out);
    }
    RC_ASSERT(of_loaded == out);
    RC_ASSERT(scores_of(*loaded) == scores_of(*session));
    // What one engine saved another one loads, and has then.
    for (const Engine* reader : engines()) {
      if (!reader->unavailable_because().empty() || !reader->claims().save) continue;
      if (p.options.kv_owner == KvOwner::caller && !reader->claims().stored_rows) continue;
      if (p.options.kv_bits != 0 && !reader->claims().kv_bits) continue;
      const auto elsewhere = reader->open(p.shape, p.options);
      elsewhere->exchange_state(*archive);
      const auto again = saved(*elsewhere);
      RC_ASSERT(again->lists == archive->lists);
      RC_ASSERT(again->arrays == archive->arrays);
    }
  });
}

TEST(SessionLaws, ROWS_1_RowsOfTheCallerGiveTheBitsOfStoredOnes) {
  for_every_engine("rows of the caller, in pages that move", [](const Engine& engine) {
    if (!engine.claims().stored_rows) return;
    const Script script = draw_script(engine, 0);
    Problem p = script.problem;
    p.options.kv_bits = 0;
    const Result wanted = run(engine, p, script.steps);
    p.options.kv_owner = KvOwner::caller;
    RC_ASSERT(run(engine, p, script.steps).same_bits(wanted));
  });
}

}  // namespace
}  // namespace headwater::fuzz
