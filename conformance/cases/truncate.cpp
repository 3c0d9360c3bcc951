// STATE-9 and STATE-10: a session that gives tokens back has the bits of one that never had them.

#include <algorithm>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "conformance/allocation_counter.hpp"
#include "conformance/case.hpp"
#include "conformance/forced.hpp"
#include "conformance/replay.hpp"
#include "conformance/session_checks.hpp"

namespace headwater::conformance {
namespace {

constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

void require_claimed(Context& context) { require_claim(*context.engine, &Claims::truncate, "truncate"); }

// Every length that STATE-10 forbids is refused, and changes nothing.
void require_refused_lengths(Session& session, const Lengths& lengths, const std::string& what) {
  const auto refuse = [&](std::int64_t n) {
    require_code(code_of([&] { session.truncate(n); }), ErrorCode::invalid_argument,
                 fmt::format("truncate({}) of {} tokens; {}", n, session.tokens(), what));
  };
  const Picture before = picture(session);
  for (std::int64_t n = 0; n <= session.tokens(); ++n) {
    if (!lengths.possible(n)) refuse(n);
  }
  for (const std::int64_t n : {std::int64_t{-1}, kLeast, session.tokens() + 1, kMost}) refuse(n);
  require_same(picture(session), before, "lengths that were refused; " + what);
}

// Takes the steps of a problem and says so to `lengths`.
void take(Session& session, const Problem& problem, Lengths& lengths, const RunStyle& style = {}) {
  for (std::size_t s = 0; s < problem.steps.size(); ++s) {
    (void)run_steps(session, problem, s, s + 1, style);
    lengths.ended(session.chunks());
  }
}

// The first n tokens of a problem, then up to `more` random steps with other rows, in a session without checkpoints.
Problem shortened(Random& random, const Problem& problem, std::int64_t n, int more) {
  Problem other = problem;
  other.options.checkpoints = 0;
  other.steps = first_tokens(problem.steps, n);
  append_steps(random, problem.options, other.steps, problem.shape.capacity - n, more);
  draw_rows_from(random, other, n);
  return other;
}

// `session` was truncated to the first n tokens of `fresh`: what it shows, where it is
// looked at, is what a session shows that was given these alone, and the
// steps of `fresh` after them give its bits. Returns the trace of a whole run, replayed.
Trace require_fresh(const Engine& engine, Session& session, const Problem& fresh, std::int64_t n,
                    const std::string& what, bool looked_at, std::int64_t stride = 1) {
  const std::size_t kept = first_tokens(fresh.steps, n).size();
  if (looked_at) {  // or not: the next step begins from the same state
    const std::unique_ptr<Session> other = engine.open(fresh.shape, fresh.options);
    (void)run_steps(*other, fresh, 0, kept);
    require_same(picture(session, stride), picture(*other, stride), what);
  }
  Trace whole = replayed(engine, fresh);
  const std::size_t steps = fresh.steps.size();
  require_same(trace_of_steps(whole, fresh, kept, steps), run_steps(session, fresh, kept, steps),
               what + "; then " + fresh.describe());
  return whole;
}

// Rows that spoil what they touch.
void spoil_rows_from(Random& random, Problem& problem, std::int64_t first) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> bad{std::numeric_limits<float>::quiet_NaN(), infinity, -infinity, 3e4f};
  for (LayerInput& layer : problem.layers) {
    for (Tensor* tensor : {&layer.q, &layer.k, &layer.v}) {
      for (std::size_t i = static_cast<std::size_t>(first * tensor->heads * tensor->width);
           i < tensor->values.size(); ++i) {
        if (random.chance(0.2)) tensor->values[i] = random.pick(bad);
      }
    }
  }
}

// All lengths, possible and not, of random scripts with several turns, for E = 0, 1, 2, 5, which rule h2o alone reads.
void every_length(Context& context) {
  require_claimed(context);
  const Engine& engine = *context.engine;
  Random random(context.seed);
  for (const Select rule : rules(engine)) {
    for (const std::int64_t kept : {0, 1, 2, 5}) {
      if (rule != Select::h2o && kept != 2) continue;
      for (int round = 0; round < context.rounds(10); ++round) {
        Problem problem = session_problem(random, engine, rule,
                                          {.max_chunk = 8, .max_tokens = 40, .max_layers = 3, .wide = false});
        problem.options.checkpoints = kept;
        for (std::int64_t n = 0; n <= problem.tokens(); ++n) {
          Problem given = problem;
          const bool spoiled = random.chance(0.3);
          if (spoiled) spoil_rows_from(random, given, n);
          const std::unique_ptr<Session> session = engine.open(problem.shape, problem.options);
          Lengths lengths(expected_options(problem.shape, problem.options));
          take(*session, given, lengths);
          const std::string what = fmt::format("truncated to {} tokens, E {}{}; {}", n, kept,
                                               spoiled ? ", NaN after them" : "", problem.describe());
          if (n == 0) require_refused_lengths(*session, lengths, what);
          if (!lengths.possible(n)) continue;
          session->truncate(n);
          lengths.truncated(n);
          const Problem fresh = shortened(random, problem, n, 2);
          const Trace whole = require_fresh(engine, *session, fresh, n, what, random.chance(0.5));
          if (n % 8 == 1) require_forced(context, fresh, whole);
        }
      }
    }
  }
}
const Register kEvery{
    {"truncate.every_length", {"STATE-9", "STATE-10"}, "session", Lane::replay, true, every_length}};

// One long session: steps, truncations and aborted steps in any order, each compared with a session without the detours.
void chains(Context& context) {
  require_claimed(context);
  const Engine& engine = *context.engine;
  Random random(context.seed);
  for (const Select rule : rules(engine)) {
    for (int round = 0; round < context.rounds(24); ++round) {
      Problem problem = session_problem(random, engine, rule,
                                        {.max_chunk = 8, .max_tokens = 60, .max_layers = 2, .wide = false});
      problem.shape.capacity = random.integer(20, 60);
      problem.steps.clear();
      draw_rows_from(random, problem, 0);
      const std::unique_ptr<Session> session = engine.open(problem.shape, problem.options);
      Lengths lengths(expected_options(problem.shape, problem.options));
      std::string done = problem.describe();
      for (int op = 0; op < 40; ++op) {
        const std::int64_t tokens = session->tokens();
        const double dice = random.uniform();
        if (dice < 0.35) {
          const std::int64_t n = random.chance(0.05) ? 0 : random.integer(tokens / 2, tokens);
          done += fmt::format(" t{}", n);
          const bool possible = lengths.possible(n);
          require_code(code_of([&] { session->truncate(n); }),
                       possible ? std::nullopt : std::optional(ErrorCode::invalid_argument), done);
          if (!possible) continue;
          lengths.truncated(n);
          problem.steps = first_tokens(problem.steps, n);
          draw_rows_from(random, problem, n);
        } else {
          const std::size_t before = problem.steps.size();
          append_steps(random, problem.options, problem.steps, problem.shape.capacity - tokens, 1);
          if (problem.steps.size() == before) continue;
          const Step& step = problem.steps.back();
          const bool aborted = engine.claims().abort && dice > 0.8;
          done +=
              fmt::format(" {}{}{}", aborted ? "a" : "", step.kind == Step::Kind::decode ? "d" : "p", step.n);
          if (!aborted) {
            (void)run_steps(*session, problem, before, before + 1);
            lengths.ended(session->chunks());
            continue;
          }
          session->begin(step);
          for (std::int64_t layer = 0; layer < problem.shape.n_layer; ++layer)
            (void)attend_layer(*session, problem, layer, step.n);
          session->abort();
          problem.steps.pop_back();
          draw_rows_from(random, problem, tokens);
        }
        if (random.chance(0.5)) continue;
        const std::unique_ptr<Session> fresh = engine.open(problem.shape, problem.options);
        (void)run(*fresh, problem);
        require_same(picture(*session), picture(*fresh), done);
      }
      require_refused_lengths(*session, lengths, done);
      const std::int64_t end = session->tokens();
      const std::size_t steps = problem.steps.size();
      append_steps(random, problem.options, problem.steps, problem.shape.capacity - end, 2);
      const Trace whole = replayed(engine, problem);
      require_same(trace_of_steps(whole, problem, steps, problem.steps.size()),
                   run_steps(*session, problem, steps, problem.steps.size()), done);
    }
  }
}
const Register kChains{
    {"truncate.chains", {"STATE-9", "STATE-10", "STATE-8"}, "session", Lane::replay, true, chains}};

// In an open step, failed or not, truncate is refused and changes nothing.
void open_step(Context& context) {
  require_claimed(context);
  const Engine& engine = *context.engine;
  Random random(context.seed);
  for (const Select rule : rules(engine)) {
    for (int round = 0; round < context.rounds(10); ++round) {
      const Problem problem = session_problem(
          random, engine, rule, {.max_chunk = 8, .max_tokens = 40, .max_layers = 2, .wide = false});
      const Trace plain = replayed(engine, problem);
      const std::unique_ptr<Session> session = engine.open(problem.shape, problem.options);
      session->truncate(0);
      const auto refuse = [&](const char* when) {
        const bool failed = session->failed();
        for (const std::int64_t n : {std::int64_t{0}, session->tokens(), std::int64_t{-1}})
          require_code(code_of([&] { session->truncate(n); }), ErrorCode::wrong_state, when);
        if (session->failed() != failed) throw Violation(fmt::format("truncate() {} changed failed()", when));
      };
      for (std::size_t s = 0; s < problem.steps.size(); ++s) {
        const std::int64_t first = session->tokens();
        session->begin(problem.steps[s]);
        refuse("in an open step");
        for (std::int64_t layer = 0; layer < problem.shape.n_layer; ++layer) {
          const std::vector<float> out = attend_layer(*session, problem, layer, problem.steps[s].n);
          refuse("after a layer");
          const LayerTrace& wanted = plain.layers[static_cast<std::size_t>(layer)];
          const std::int64_t row = problem.out_row(layer);
          if (!std::equal(out.begin(), out.end(), wanted.out.begin() + first * row))
            throw Violation("a refused truncate() changed outputs; " + problem.describe());
        }
        session->end();
      }
      Picture last = picture(*session);
      session->truncate(session->tokens());  // changes nothing
      require_same(picture(*session), last, "truncate() to all tokens; " + problem.describe());
      if (session->tokens() == problem.shape.capacity) continue;
      session->begin(Step::decode());
      require_code(code_of([&] { session->end(); }), ErrorCode::wrong_state, "end before all layers");
      refuse("in a step that failed");
    }
  }
}
const Register kOpen{{"truncate.open_step", {"STATE-9", "STATE-5"}, "session", Lane::state, true, open_step}};

// E at the boundary, and what a session calls effective: 0 unless it is sparse by rule h2o.
void checkpoints(Context& context) {
  require_claimed(context);
  const Engine& engine = *context.engine;
  const Shape shape{.n_layer = 2, .n_head = 2, .n_head_kv = 1, .d_head = 4, .d_value = 4, .capacity = 16};
  Options options;
  options.chunk = 4;
  options.local = options.heavy = 1;
  options.threads = 1;
  for (const std::int64_t value :
       {kLeast, std::int64_t{-1}, std::int64_t{65537}, std::int64_t{1} << 32, kMost}) {
    options.checkpoints = value;
    require_refused(engine, shape, options, "checkpoints", std::to_string(value));
  }
  for (const std::int64_t value : {0, 1, 65536}) {
    options.checkpoints = value;
    for (const Select rule : rules(engine)) {
      for (const bool dense : {false, true}) {
        options.select = rule;
        options.key_block = 1;
        options.query_block = options.pool = 2;
        options.dense = dense;
        const std::int64_t wanted = rule == Select::h2o && !dense ? value : 0;
        const std::int64_t got = engine.open(shape, options)->options().checkpoints;
        if (got != wanted)
          throw Violation(fmt::format("checkpoints = {} became {}, not {}", value, got, wanted));
      }
    }
  }
}
const Register kCheckpoints{
    {"truncate.checkpoints", {"STATE-10", "CFG-1"}, "config", Lane::state, true, checkpoints}};

// A long session is truncated to every possible length of `wanted` in turn, the longest first, and goes on after each.
// `turn_length`: said when its only turn of prefill calls was opened; 0: not said.
void truncated_in_turn(Context& context, const Problem& problem, std::vector<std::int64_t> wanted,
                       const std::vector<Step>& more, bool forced, std::int64_t turn_length = 0) {
  const Engine& engine = *context.engine;
  Random random(context.seed);
  std::sort(wanted.rbegin(), wanted.rend());
  const std::unique_ptr<Session> session = engine.open(problem.shape, problem.options);
  Lengths lengths(expected_options(problem.shape, problem.options));
  RunStyle bare;
  bare.snapshots = bare.observed = false;
  take(*session, problem, lengths, bare);
  Problem now = problem;
  for (const std::int64_t n : wanted) {
    const std::string what = fmt::format("truncated to {} tokens; {}", n, problem.describe());
    if (!lengths.possible(n)) throw Violation("a length of the case is not possible: " + what);
    session->truncate(n);
    lengths.truncated(n);
    now.steps = first_tokens(problem.steps, n);
    if (session->state() == SessionState::prefilling && turn_length > 0 && engine.claims().abort) {
      session->begin(Step::prefill(1, turn_length));  // refused unless it is the turn's (STATE-3)
      session->abort();
    }
    now.options.checkpoints = 0;
    now.steps.insert(now.steps.end(), more.begin(), more.end());
    draw_rows_from(random, now, n);
    const Trace whole = require_fresh(engine, *session, now, n, what, n != wanted.front(), 61);
    if (forced)
      require_forced_in_part(context, now, whole,
                             {.chunk = [&](const Chunk& chunk) { return chunk.begin >= n; }});
    // Decoded tokens and dense turns, which settle nothing, are given back.
    session->truncate(n);
  }
}

// Sizes that people run: the checkpoints of 2E chunks went round more than once.
void sizes(Context& context) {
  require_claimed(context);
  if (context.quick) throw Skipped("sizes of thousands of tokens run without --quick only");
  Problem problem;
  problem.shape.d_head = problem.shape.d_value = 16;
  problem.shape.kv_type = problem.k_type = problem.v_type = problem.q_type = DType::bf16;
  problem.options.threads = context.threads;
  problem.options.checkpoints = 3;
  problem.steps = {Step::prefill(8192, 9000), Step::prefill(808), Step::decode(3)};
  problem.shape.capacity = 9100;
  Random random(context.seed);
  draw_rows_from(random, problem, 0);
  truncated_in_turn(context, problem, {9001, 8192, 6144}, {Step::decode(2), Step::prefill(70)}, true, 9000);
}
const Register kSizes{{"truncate.sizes", {"STATE-9", "STATE-10"}, "session", Lane::shape, true, sizes}};

// Positions beyond 2^16, under all rules.
void far(Context& context) {
  require_claimed(context);
  if (context.quick) throw Skipped("sizes of thousands of tokens run without --quick only");
  for (const Select rule : rules(*context.engine)) {
    // Every row votes on every token: as many chunks, of a quarter of the tokens. In double arithmetic minutes.
    if (rule == Select::sketches && context.engine->claims().double_arithmetic) continue;
    const std::int64_t part = rule == Select::sketches ? 4 : 1;
    Problem problem;
    problem.shape.d_head = problem.shape.d_value = 8;
    problem.options.select = rule;
    problem.options.chunk = problem.options.batch = 128 / part;
    problem.options.local = problem.options.heavy = 8;
    problem.options.threads = context.threads;
    problem.options.checkpoints = 2;
    problem.steps = {Step::prefill(66100 / part), Step::decode(3)};
    problem.shape.capacity = 66200;
    Random random(context.seed);
    draw_rows_from(random, problem, 0);
    // The end of a chunk whose scores are taken back; inside of a chunk and of a key block.
    const std::int64_t n = rule == Select::h2o ? 66048 : 65536 / part + 3;
    truncated_in_turn(context, problem, {n}, {Step::decode(2)}, false);
  }
}
const Register kFar{{"truncate.far", {"STATE-9"}, "session", Lane::shape, true, far}};

// Sets on each side of 256 entries, more than 64 query heads, more than 256 layers.
void wide(Context& context) {
  require_claimed(context);
  context.require_fast_or_full();
  Random random(context.seed);
  struct Size {
    std::int64_t layers, heads, heads_kv, chunk, local, heavy;
  };
  for (const Size& size : std::vector<Size>{
           {2, 2, 1, 300, 128, 127}, {2, 2, 1, 300, 128, 129}, {1, 130, 2, 16, 4, 6}, {300, 2, 1, 4, 1, 2}}) {
    if (context.quick && size.heavy == 127) continue;
    Problem problem;
    problem.shape.n_layer = size.layers;
    problem.shape.n_head = size.heads;
    problem.shape.n_head_kv = size.heads_kv;
    problem.shape.d_head = problem.shape.d_value = 4;
    const std::int64_t s = size.chunk;
    problem.options.chunk = s;
    problem.options.batch = 2 * s;
    problem.options.local = size.local;
    problem.options.heavy = size.heavy;
    problem.options.threads =
        size.layers == 300 ? 1 : context.threads;  // waking another takes longer than such a call
    problem.options.checkpoints = 2;
    problem.steps = {Step::prefill(3 * s, 5 * s), Step::prefill(2 * s + s / 2), Step::decode(2),
                     Step::prefill(2 * s)};
    problem.shape.capacity = problem.tokens() + 2 * s;
    draw_rows_from(random, problem, 0);
    const std::int64_t turn = 5 * s + s / 2 + 2;  // where the second turn begins
    truncated_in_turn(context, problem, {turn + s, turn - 1}, {Step::decode(1)}, false);
    problem.steps = first_tokens(problem.steps, turn);
    truncated_in_turn(context, problem, {5 * s, 4 * s}, {Step::decode(1)}, false);
  }
}
const Register kWide{{"truncate.wide", {"STATE-9", "STATE-10"}, "session", Lane::replay, true, wide}};

// A session that is full gives tokens back and takes as many again, more than once; every token a chunk.
void full(Context& context) {
  require_claimed(context);
  const Engine& engine = *context.engine;
  Random random(context.seed);
  for (const std::int64_t chunk : {1, 3}) {
    for (const std::int64_t kept : {1, 5, 40, 60}) {
      Problem problem;
      problem.shape.d_head = problem.shape.d_value = 3;
      problem.shape.capacity = 40;
      problem.options.chunk = problem.options.batch = chunk;
      problem.options.local = problem.options.heavy = 2;
      problem.options.clamp = false;
      problem.options.threads = 1;
      problem.options.checkpoints = kept;
      problem.steps = {Step::prefill(39, 50), Step::prefill(1)};
      draw_rows_from(random, problem, 0);
      const std::unique_ptr<Session> session = engine.open(problem.shape, problem.options);
      Lengths lengths(expected_options(problem.shape, problem.options));
      take(*session, problem, lengths);
      for (int round = 0; round < 4; ++round) {
        std::int64_t n = round == 3 ? 0 : 1;
        while (!lengths.possible(n)) ++n;
        if (round == 1 && lengths.possible(n + chunk)) n += chunk;
        session->truncate(n);
        lengths.truncated(n);
        problem.steps = first_tokens(problem.steps, n);
        draw_rows_from(random, problem, n);
        const std::size_t steps = problem.steps.size();
        problem.steps.push_back(Step::prefill(40 - n));
        if (n == 40) problem.steps.pop_back();
        const Trace whole = replayed(engine, problem);
        require_same(trace_of_steps(whole, problem, steps, problem.steps.size()),
                     run_steps(*session, problem, steps, problem.steps.size()),
                     fmt::format("a full session truncated to {}; {}", n, problem.describe()));
        lengths.ended(session->chunks());
        require_code(code_of([&] { session->begin(Step::decode()); }), ErrorCode::capacity_exceeded,
                     "decode when full again");
      }
    }
  }
}
const Register kFull{
    {"truncate.full", {"STATE-9", "STATE-10", "STATE-5"}, "session", Lane::replay, true, full}};

// Neither abort nor truncate takes memory, nor what shows the scores and sets that they put back.
void no_allocation(Context& context) {
  const auto look_at = [](const Session& session) {
    for (std::int64_t layer = 0; layer < session.shape().n_layer; ++layer) {
      (void)session.scores(layer);
      (void)session.memory(layer);
    }
  };
  require_claimed(context);
  require_claim(*context.engine, &Claims::abort, "abort");
  require_claim(*context.engine, &Claims::no_allocation, "no_allocation");
  if (!AllocationWatch::available()) throw Skipped("a sanitizer owns malloc in this build");
  const Engine& engine = *context.engine;
  Random random(context.seed);
  for (const Select rule : rules(engine)) {
    for (int round = 0; round < context.rounds(20); ++round) {
      const Problem problem = session_problem(
          random, engine, rule, {.max_chunk = 12, .max_tokens = 80, .max_layers = 3, .wide = false});
      const std::unique_ptr<Session> session = engine.open(problem.shape, problem.options);
      Lengths lengths(expected_options(problem.shape, problem.options));
      for (std::size_t s = 0; s < problem.steps.size(); ++s) {
        const Step& step = problem.steps[s];
        session->begin(step);
        for (std::int64_t layer = 0; layer < problem.shape.n_layer; ++layer)
          (void)attend_layer(*session, problem, layer, step.n);
        {
          const AllocationWatch watch;
          session->abort();
          look_at(*session);
          if (watch.count() != 0)
            throw Violation(fmt::format("{} allocations in abort(); {}", watch.count(), problem.describe()));
        }
        (void)run_steps(*session, problem, s, s + 1);
        lengths.ended(session->chunks());
      }
      std::int64_t n = session->tokens();
      while (n > 0 && !lengths.possible(--n)) {
      }
      const AllocationWatch watch;
      session->truncate(n);
      look_at(*session);
      if (watch.count() != 0)
        throw Violation(
            fmt::format("{} allocations in truncate({}); {}", watch.count(), n, problem.describe()));
    }
  }
}
const Register kNoAllocation{
    {"truncate.no_allocation", {"NUM-4", "STATE-8", "STATE-9"}, "session", Lane::state, true, no_allocation}};

}  // namespace
}  // namespace headwater::conformance
