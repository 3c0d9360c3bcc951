// NUM-4 and allocation failure: malloc is watched, and refused at every place in turn.

#include <malloc.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "conformance/allocation_counter.hpp"
#include "conformance/case.hpp"
#include "conformance/placed.hpp"
#include "conformance/run.hpp"
#include "conformance/session_checks.hpp"
#include "headwater/error.hpp"

namespace headwater::conformance {
namespace {

void require_counter() {
  if (!AllocationWatch::available()) throw Skipped("a sanitizer owns malloc in this build");
}

void require_host_memory(const Context& context) {
  if (!context.engine->claims().device_memory) return;
  throw Skipped(
      "what open() takes is a device's memory, which malloc does not see (Claims::device_memory); tests of "
      "the engine "
      "refuse and count it there");
}

// One step on prepared rows; returns the allocations of attend, end and the views.
std::int64_t step_allocations(Session& session, const Problem& problem, const Step& step,
                              std::int64_t first) {
  const LayerInput& input = problem.layers[0];
  const Placed q(Placement::token_major, input.q, first, step.n);
  const Placed k(Placement::token_major, input.k, first, step.n);
  const Placed v(Placement::token_major, input.v, first, step.n);
  Placed out(Placement::token_major, problem.out_type, step.n, problem.shape.n_head, problem.shape.d_value);
  const Rows q_rows = q.rows();
  const Rows k_rows = k.rows();
  const Rows v_rows = v.rows();
  const MutableRows out_rows = out.mutable_rows();
  session.begin(step);  // may take pages
  const AllocationWatch watch;
  for (std::int64_t layer = 0; layer < problem.shape.n_layer; ++layer) {
    session.attend(layer, q_rows, k_rows, v_rows, out_rows);
    (void)session.scores(layer);
    (void)session.memory(layer);
  }
  session.end();
  (void)session.plan();
  return watch.count();
}

using Change = std::function<Problem(Random&, Problem)>;

Problem as_it_is(Random&, Problem problem) { return problem; }

// Pinned tokens, dense layers and dense turns.
Problem with_options(Random& random, Problem problem) {
  problem.options.dense = false;
  problem.options.heavy += 1;
  choose_pinned(random, problem.options);
  choose_dense_below(random, problem);
  if (problem.shape.n_layer == 1) problem.shape.n_layer = 3;  // the rows of layer 0 serve for all
  problem.layers.resize(static_cast<std::size_t>(problem.shape.n_layer), problem.layers[0]);
  choose_dense_layers(random, problem);
  return problem;
}

void none_after_open(Context& context, const Change& change) {
  require_counter();
  if (!context.engine->claims().no_allocation)
    throw Skipped("the engine does not claim it (Claims::no_allocation)");
  Random random(context.seed);
  for (int round = 0; round < context.rounds(60); ++round) {
    Problem problem =
        change(random, random_problem(random, {.max_chunk = 60, .max_tokens = 300, .wide = false}));
    problem.options.threads = static_cast<int>(random.integer(1, 4));
    problem.options.page = random.pick(std::vector<std::int64_t>{256, 4096});
    const std::unique_ptr<Session> session = context.engine->open(problem.shape, problem.options);
    std::int64_t records = 0;
    const bool observed = random.chance(0.5);
    if (observed) session->set_observer([&records](const ChunkRecord&) { ++records; });
    for (int repeat = 0; repeat < 2; ++repeat) {
      std::int64_t first = 0;
      for (const Step& step : problem.steps) {
        const std::int64_t taken = step_allocations(*session, problem, step, first);
        if (taken != 0) {
          throw Violation(
              fmt::format("{} allocations in the step at token {}; {}", taken, first, problem.describe()));
        }
        first += step.n;
      }
      const AllocationWatch watch;
      session->reset();
      if (watch.count() != 0)
        throw Violation(fmt::format("{} allocations in reset(); {}", watch.count(), problem.describe()));
    }
    if (observed && records == 0) throw Violation("the observer was never called");
  }
}
const Register kNone{
    {"allocation.none_after_open", {"NUM-4"}, "session", Lane::state, true, [](Context& context) {
       none_after_open(context, as_it_is);
     }}};
const Register kNoneOfBlocks{
    {"blocks.no_allocation", {"NUM-4", "SEL-9"}, "session", Lane::state, true, [](Context& context) {
       require_rule_blocks(*context.engine);
       none_after_open(context, with_blocks);
     }}};

const Register kNoneOfOptions{{"options.no_allocation",
                               {"NUM-4", "MEM-7", "STATE-7"},
                               "session",
                               Lane::state,
                               true,
                               [](Context& context) {
                                 require_pinned(*context.engine);
                                 none_after_open(context, with_options);
                               }}};

// Capacity steps of one token and of everything: the plan and all scratch were taken for the worst.
void longest_plans(Context& context) {
  require_counter();
  if (!context.engine->claims().no_allocation)
    throw Skipped("the engine does not claim it (Claims::no_allocation)");
  Random random(context.seed);
  for (const std::int64_t s : {1, 2, 3, 7}) {
    for (const std::int64_t batch : {s, s + 1, 2 * s + 1}) {
      Problem problem;
      problem.shape.d_head = problem.shape.d_value = 2;
      problem.options.clamp = false;
      problem.options.chunk = s;
      problem.options.batch = batch;
      problem.options.local = 2;
      problem.options.heavy = 3;
      problem.options.threads = 1;
      problem.steps = {Step::prefill(100)};
      problem.shape.capacity = 100;
      problem.fill_normal(random);
      const std::unique_ptr<Session> session = context.engine->open(problem.shape, problem.options);
      const std::int64_t taken = step_allocations(*session, problem, problem.steps[0], 0);
      if (taken != 0) throw Violation(fmt::format("{} allocations; {}", taken, problem.describe()));
    }
  }
}
const Register kLongest{
    {"allocation.longest_plans", {"NUM-4", "PLAN-1"}, "plan", Lane::state, true, longest_plans}};

// open() with its n-th allocation refused, n = 0, 1, ...: an Error out_of_memory each time, all memory given back, and a
// session that works as soon as nothing is refused.
void open_without_memory(Context& context, const Change& change) {
  require_counter();
  require_host_memory(context);
  Random random(context.seed);
  Problem problem = change(
      random, random_problem(random, {.max_chunk = 20, .max_tokens = 60, .max_layers = 3, .wide = false}));
  problem.options.threads = 2;
  // Both take beforehand what is made once: threads, and what the first error of a thread takes.
  const Trace wanted = run(*context.engine, problem);
  try {
    Shape none = problem.shape;
    none.n_layer = 0;
    (void)context.engine->open(none, problem.options);
  } catch (const Error&) {
  }
  constexpr std::int64_t kMost = 100000;
  std::int64_t refused = 0;
  for (std::int64_t n = 0; n < kMost; ++n) {
    std::unique_ptr<Session> session;
    bool failed_well = false;
    std::string wrong;
    bool was_refused = false;
    std::int64_t leaked = 0;
    {
      const AllocationWatch watch(n);
      try {
        session = context.engine->open(problem.shape, problem.options);
      } catch (const Error& error) {
        failed_well = error.code() == ErrorCode::out_of_memory;
        if (!failed_well) wrong = error.what();
      } catch (const std::exception& error) {
        wrong = error.what();
      }
      was_refused = watch.refused();
      if (failed_well) leaked = watch.live();
    }
    if (leaked != 0) {
      throw Violation(fmt::format("allocation {} refused: {} allocations were not given back", n, leaked));
    }
    if (!was_refused) {
      if (session == nullptr) throw Violation("open() failed although nothing was refused: " + wrong);
      require_same(wanted, run(*session, problem), "after refused allocations");
      if (refused == 0) throw Violation("open() took no memory at all");
      return;
    }
    ++refused;
    if (session == nullptr && !failed_well) {
      throw Violation(fmt::format("allocation {} refused: not an Error out_of_memory but {}", n, wrong));
    }
  }
  throw Violation("open() takes more memory than this case can refuse");
}
const Register kOpenWithout{{"allocation.open_without_memory",
                             {"STATE-5", "NUM-4"},
                             "session",
                             Lane::hostile,
                             true,
                             [](Context& context) { open_without_memory(context, as_it_is); }}};
const Register kOpenBlocksWithout{{"blocks.open_without_memory",
                                   {"STATE-5", "NUM-4"},
                                   "session",
                                   Lane::hostile,
                                   true,
                                   [](Context& context) {
                                     require_rule_blocks(*context.engine);
                                     open_without_memory(context, with_blocks);
                                   }}};

const Register kOpenOptionsWithout{{"options.open_without_memory",
                                    {"STATE-5", "NUM-4", "STATE-7"},
                                    "session",
                                    Lane::hostile,
                                    true,
                                    [](Context& context) {
                                      require_pinned(*context.engine);
                                      open_without_memory(context, with_options);
                                    }}};

// begin() with its n-th allocation refused: an Error out_of_memory, the session as before, and it goes on as if nothing had
// been.
void begin_without_memory(Context& context, const Change& change) {
  require_counter();
  require_host_memory(context);
  Random random(context.seed);
  Problem problem = change(random, random_problem(random, {.max_chunk = 20, .max_layers = 2, .wide = false}));
  problem.options.threads = 2;
  problem.options.page = 256;
  problem.steps = {Step::prefill(250), Step::decode(1), Step::prefill(700), Step::decode(2)};
  problem.shape.capacity = problem.tokens() + 5;
  problem.fill_normal(random);
  const Trace wanted = run(*context.engine, problem);
  for (std::size_t s = 0; s < problem.steps.size(); ++s) {
    for (std::int64_t n = 0;; ++n) {
      const std::unique_ptr<Session> session = context.engine->open(problem.shape, problem.options);
      if (s > 0) (void)run_steps(*session, problem, 0, s);
      const Picture before = picture(*session);
      bool refused = false;
      std::optional<ErrorCode> code;
      {
        const AllocationWatch watch(n);
        try {
          session->begin(problem.steps[s]);
        } catch (const Error& error) {
          code = error.code();
        }
        refused = watch.refused();
      }
      const std::string what =
          fmt::format("begin() of step {} with allocation {} refused; {}", s, n, problem.describe());
      if (refused) {
        require_code(code, ErrorCode::out_of_memory, what);
        require_same(picture(*session), before, "after " + what);
      } else {
        require_code(code, std::nullopt, what);
        session->abort();
      }
      const std::size_t end = problem.steps.size();
      require_same(trace_of_steps(wanted, problem, s, end), run_steps(*session, problem, s, end),
                   "after " + what);
      if (!refused) break;
    }
  }
}
const Register kBeginWithout{{"allocation.begin_without_memory",
                              {"NUM-4", "STATE-5"},
                              "session",
                              Lane::hostile,
                              true,
                              [](Context& context) {
                                require_claim(*context.engine, &Claims::abort, "abort");
                                begin_without_memory(context, as_it_is);
                              }}};
const Register kBeginBlocksWithout{{"blocks.begin_without_memory",
                                    {"NUM-4", "STATE-5", "SEL-3"},
                                    "session",
                                    Lane::hostile,
                                    true,
                                    [](Context& context) {
                                      require_claim(*context.engine, &Claims::abort, "abort");
                                      require_rule_blocks(*context.engine);
                                      begin_without_memory(context, with_blocks);
                                    }}};

// fork() with its n-th allocation refused: an Error out_of_memory, all memory given back, and the session as before.
void fork_without_memory(Context& context) {
  const Engine& engine = *context.engine;
  require_counter();
  require_host_memory(context);
  require_claim(engine, &Claims::fork, "fork");
  Random random(context.seed);
  Problem problem = random_problem(random, {.max_chunk = 20, .max_layers = 2, .wide = false});
  problem.steps = {Step::prefill(50), Step::decode(1)};
  problem.shape.capacity = problem.tokens();
  problem.fill_normal(random);
  const Trace wanted = run(engine, problem);
  const std::unique_ptr<Session> session = engine.open(problem.shape, problem.options);
  (void)run_steps(*session, problem, 0, 1);
  const Picture before = picture(*session);
  try {  // takes what the first error of a thread takes
    session->attend(0, {}, {}, {}, {});
  } catch (const Error&) {
  }
  for (std::int64_t n = 0;; ++n) {
    std::unique_ptr<Session> fork;
    std::optional<ErrorCode> code;
    bool refused = false;
    std::int64_t leaked = 0;
    {
      const AllocationWatch watch(n);
      try {
        fork = session->fork();
      } catch (const Error& error) {
        code = error.code();
      }
      refused = watch.refused();
      leaked = watch.live();
    }
    const std::string what = fmt::format("fork() with allocation {} refused; {}", n, problem.describe());
    require_same(picture(*session), before, what);
    if (!refused) {
      require_code(code, std::nullopt, what);
      require_same(trace_of_steps(wanted, problem, 1, 2), run_steps(*fork, problem, 1, 2), what);
      return;
    }
    require_code(code, ErrorCode::out_of_memory, what);
    if (leaked != 0) throw Violation(fmt::format("{} allocations were not given back; {}", leaked, what));
  }
}
const Register kForkWithout{{"allocation.fork_without_memory",
                             {"STATE-11", "NUM-4"},
                             "session",
                             Lane::hostile,
                             true,
                             fork_without_memory}};

// The sizes that memory_bytes() reports cover what a session must hold, and grow with it.
void memory_bytes(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(30); ++round) {
    Problem problem = random_problem(random, {.max_chunk = 20, .max_tokens = 60, .max_layers = 3});
    const std::unique_ptr<Session> session = context.engine->open(problem.shape, problem.options);
    const Shape& s = problem.shape;
    (void)run(*session, problem);
    const MemoryBytes bytes = session->memory_bytes();
    const std::int64_t row = (s.d_head + s.d_value) * static_cast<std::int64_t>(dtype_size(s.kv_type));
    const std::int64_t kv = s.n_layer * s.n_head_kv * s.capacity * row;
    const std::int64_t most_kv = kv + 64 * row + 4096;  // readable rows after the last, tables
    const std::int64_t score = problem.options.score_type == ScoreType::bf16 ? 2 : 4;
    const std::int64_t scores = s.n_layer * s.n_head * s.capacity * score;
    // A row of zeros may stand for all, where none are formed.
    const bool formed = session->options().sparse && session->options().select == Select::h2o;
    const bool right = bytes.scores == scores || (!formed && bytes.scores == s.capacity * score);
    const std::int64_t sets = s.n_layer * s.n_head * std::min(session->options().memory(), s.capacity) * 4;
    if (bytes.kv < kv || bytes.kv > most_kv || !right || bytes.memory_sets < sets || bytes.workspace < 0 ||
        bytes.total() != bytes.kv + bytes.scores + bytes.memory_sets + bytes.workspace) {
      throw Violation(
          fmt::format("memory_bytes: kv {} (wanted {}), scores {} (wanted {}), sets {} (at least {}); {}",
                      bytes.kv, kv, bytes.scores, scores, bytes.memory_sets, sets, problem.describe()));
    }
  }
}
// The total is what open() and begin() take, apart from small objects: the session, the plan, a warning.
void bytes_are_taken(Context& context, Select select) {
  require_counter();
  require_host_memory(context);
  constexpr std::int64_t kSmallChange = 12 * 1024;
  Random random(context.seed);
  for (const ScoreType type : {ScoreType::bf16, ScoreType::f32}) {
    for (const DType kv : {DType::f32, DType::bf16}) {
      for (const Schedule schedule : {Schedule::layer_major, Schedule::chunk_major}) {
        for (const int threads : {1, 3}) {
          const Shape shape{.n_layer = 2,
                            .n_head = 16,
                            .n_head_kv = 8,
                            .d_head = 40,
                            .d_value = 24,
                            .capacity = 3000,
                            .kv_type = kv};
          Options options;
          options.batch = 1024;
          options.chunk = 512;
          options.local = 200;
          options.heavy = select == Select::blocks ? 200 : 201;
          options.select = select;
          options.score_type = type;
          options.schedule = schedule;
          options.threads = threads;
          (void)context.engine->open(shape, options);  // makes threads and whatever is made once
          const AllocationWatch watch;
          const std::unique_ptr<Session> session = context.engine->open(shape, options);
          session->begin(Step::prefill(shape.capacity));
          const std::int64_t taken = watch.bytes();
          const std::int64_t said = session->memory_bytes().total();
          if (std::abs(taken - said) > kSmallChange) {
            throw Violation(
                fmt::format("memory_bytes() says {}, open() and begin() took {} ({} threads, KV {})", said,
                            taken, threads, dtype_name(kv)));
          }
        }
      }
    }
  }
}
const Register kBytesTaken{
    {"allocation.bytes_are_taken", {"STATE-6", "NUM-4"}, "session", Lane::state, true, [](Context& context) {
       bytes_are_taken(context, Select::h2o);
     }}};
const Register kBlocksBytesTaken{
    {"blocks.bytes_are_taken", {"STATE-6", "NUM-4"}, "session", Lane::state, true, [](Context& context) {
       require_rule_blocks(*context.engine);
       bytes_are_taken(context, Select::blocks);
     }}};

const Register kMemoryBytes{
    {"state.memory_bytes", {"STATE-6", "SCORE-1"}, "session", Lane::state, true, memory_bytes}};

void require_bytes(const MemoryBytes& said, const MemoryBytes& wanted, const std::string& what) {
  if (said.kv == wanted.kv && said.scores == wanted.scores && said.memory_sets == wanted.memory_sets &&
      said.workspace == wanted.workspace)
    return;
  throw Violation(fmt::format(
      "{}: estimate() says kv {}, scores {}, sets {}, workspace {}; memory_bytes() {}, {}, {}, {}", what,
      said.kv, said.scores, said.memory_sets, said.workspace, wanted.kv, wanted.scores, wanted.memory_sets,
      wanted.workspace));
}

// What estimate() says is what memory_bytes() says of a session, once it is open and once it is full, to the byte; and it
// takes no memory for that.
void estimate(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::estimate, "estimate");
  Random random(context.seed);
  for (const Select rule : rules(engine)) {
    for (int round = 0; round < context.rounds(30); ++round) {
      Problem problem =
          session_problem(random, engine, rule, {.max_chunk = 60, .max_tokens = 700, .max_layers = 3});
      if (engine.claims().fork) problem.options.page = random.pick(std::vector<std::int64_t>{256, 512, 4096});
      if (engine.claims().stored_rows && random.chance(0.2)) problem.options.kv_owner = KvOwner::caller;
      const MemoryEstimate said = engine.estimate(problem.shape, problem.options);
      const std::unique_ptr<Session> session = engine.open(problem.shape, problem.options);
      require_bytes(said.opened, session->memory_bytes(), "opened; " + problem.describe());
      if (problem.options.kv_owner == KvOwner::session) {
        (void)run_steps(*session, problem, 0, problem.steps.size());
      }
      if (session->tokens() < problem.shape.capacity) {
        session->begin(Step::decode(problem.shape.capacity - session->tokens()));
      }
      require_bytes(said.full, session->memory_bytes(), "full; " + problem.describe());
    }
  }
}
const Register kEstimate{{"allocation.estimate", {"NUM-5"}, "session", Lane::state, true, estimate}};

std::int64_t heap_in_use() {
  const struct mallinfo2 info = ::mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

// Opening and closing many sessions leaves nothing behind (P6.2): less than the smallest block of malloc for each.
void many_sessions(Context& context) {
  Random random(context.seed);
  const Problem problem = random_problem(random, {.max_chunk = 10, .max_tokens = 40, .wide = false});
  const Trace first = run(*context.engine, problem);
  // Enough that caches of the heap do not look like a loss; an emulated device takes its time.
  const int sessions = context.engine->claims().device_memory ? 40 : 400;
  constexpr std::int64_t kSmallestBlock = 32;
  const auto grown = [&] {
    const std::int64_t before = heap_in_use();
    for (int i = 0; i < sessions; ++i)
      require_same(first, run(*context.engine, problem), "session after session");
    return heap_in_use() - before;
  };
  // What is made once and the heap's own caches show in some rounds, what is lost in every one.
  const std::int64_t least = std::min({grown(), grown(), grown()});
  if (least >= kSmallestBlock * sessions) {
    throw Violation(
        fmt::format("{} sessions left {} bytes of the heap behind; {}", sessions, least, problem.describe()));
  }
}
const Register kMany{
    {"determinism.many_sessions", {"NUM-3"}, "session", Lane::determinism, true, many_sessions}};

}  // namespace
}  // namespace headwater::conformance
