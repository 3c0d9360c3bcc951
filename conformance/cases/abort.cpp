// STATE-8: a step is dropped wherever it stands, and the session is what it was.

#include <algorithm>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "conformance/case.hpp"
#include "conformance/session_checks.hpp"

namespace headwater::conformance {
namespace {

// How a step goes wrong before it is aborted.
enum class Failure { none, layer_twice, early_end, begin_again, observer_throws };

const char* failure_name(Failure failure) {
  switch (failure) {
    case Failure::none: return "no failure";
    case Failure::layer_twice: return "a layer twice";
    case Failure::early_end: return "end before all layers";
    case Failure::begin_again: return "begin in an open step";
    case Failure::observer_throws: return "an observer that throws";
  }
  return "?";
}

// Whether it can happen after so many of the layers.
bool can_happen(Failure failure, std::int64_t attended, std::int64_t layers) {
  if (failure == Failure::layer_twice) return attended > 0;
  if (failure == Failure::early_end || failure == Failure::observer_throws) return attended < layers;
  return true;
}

// Opens a step with the rows of `from`, attends some of its layers, and lets it fail.
void take_half(Session& session, const Problem& from, const Step& step,
               const std::vector<std::int64_t>& layers, std::int64_t attended, Failure failure,
               int at_chunk) {
  session.begin(step);
  for (std::int64_t i = 0; i < attended; ++i)
    (void)attend_layer(session, from, layers[static_cast<std::size_t>(i)], step.n);
  const auto wrong_state = [&](const std::function<void()>& call) {
    require_code(code_of(call), ErrorCode::wrong_state, failure_name(failure));
  };
  switch (failure) {
    case Failure::none: return;
    case Failure::layer_twice:
      wrong_state([&] { (void)attend_layer(session, from, layers.front(), step.n); });
      break;
    case Failure::early_end: wrong_state([&] { session.end(); }); break;
    case Failure::begin_again: wrong_state([&] { session.begin(Step::decode()); }); break;
    case Failure::observer_throws: {
      struct Thrown {};
      const auto chunks = static_cast<int>(session.plan().size());
      int seen = 0;
      session.set_observer([&](const ChunkRecord& record) {
        const bool dense = session.options().dense_layer(record.layer);
        if (seen++ == (dense ? 0 : at_chunk % chunks)) throw Thrown{};
      });
      try {
        (void)attend_layer(session, from, layers[static_cast<std::size_t>(attended)], step.n);
        throw Violation("an observer's exception did not come through");
      } catch (const Thrown&) {
      }
      session.set_observer({});
      break;
    }
  }
  if (!session.failed()) throw Violation(fmt::format("{}: failed() is false", failure_name(failure)));
}

// Every point of every step of random scripts, the same step or another one, with the same rows or others: the session is
// what it was, and the step that follows has the bits of a session without any of that.
void points(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::abort, "abort");
  Random random(context.seed);
  for (const Select rule : rules(engine)) {
    for (int round = 0; round < context.rounds(20); ++round) {
      const Problem problem = session_problem(
          random, engine, rule, {.max_chunk = 12, .max_tokens = 60, .max_layers = 3, .wide = false});
      const std::int64_t layers = problem.shape.n_layer;
      const Trace plain = replayed(engine, problem);
      Problem noise = problem;
      draw_rows_from(random, noise, 0);
      const std::unique_ptr<Session> session = engine.open(problem.shape, problem.options);
      for (std::size_t s = 0; s < problem.steps.size(); ++s) {
        const Picture before = picture(*session);
        for (std::int64_t attended = 0; attended <= layers; ++attended) {
          for (const Failure failure : {Failure::none, Failure::layer_twice, Failure::early_end,
                                        Failure::begin_again, Failure::observer_throws}) {
            if (!can_happen(failure, attended, layers)) continue;
            Step step = problem.steps[s];
            if (random.chance(0.5)) {
              std::vector<Step> steps(problem.steps.begin(),
                                      problem.steps.begin() + static_cast<std::int64_t>(s));
              append_steps(random, problem.options, steps, problem.shape.capacity - session->tokens(), 1);
              step = steps.back();
            }
            std::vector<std::int64_t> order(static_cast<std::size_t>(layers));
            std::iota(order.begin(), order.end(), 0);
            std::rotate(order.begin(), order.begin() + random.integer(0, layers - 1), order.end());
            const bool own = step.n == problem.steps[s].n && random.chance(0.5);
            take_half(*session, own ? problem : noise, step, order, attended, failure,
                      static_cast<int>(random.integer(0, 9)));
            const std::string what =
                fmt::format("aborted at token {}, {} of {} layers attended, {}; {}", session->tokens(),
                            attended, layers, failure_name(failure), problem.describe());
            session->abort();
            // Looked at or not, the next step begins from the same state.
            if (random.chance(0.5)) require_same(picture(*session), before, what);
            require_code(code_of([&] { session->abort(); }), ErrorCode::wrong_state, "abort() after abort()");
          }
        }
        RunStyle style;
        style.observed = random.chance(0.7);
        Trace wanted = trace_of_steps(plain, problem, s, s + 1);
        const Trace got = run_steps(*session, problem, s, s + 1, style);
        if (!style.observed) {
          for (LayerTrace& layer : wanted.layers) layer.chunks.clear();
        }
        require_same(wanted, got, fmt::format("step {} after it was aborted; {}", s, problem.describe()));
        require_code(code_of([&] { session->abort(); }), ErrorCode::wrong_state, "abort() after end()");
      }
      session->reset();
      require_code(code_of([&] { session->abort(); }), ErrorCode::wrong_state, "abort() of an empty session");
    }
  }
}
const Register kPoints{{"abort.points", {"STATE-8", "STATE-5"}, "session", Lane::determinism, true, points}};

// Rows that spoil every score they touch: not one bit of them is left.
void spoiled(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::abort, "abort");
  Random random(context.seed);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Select rule : rules(engine)) {
    for (int round = 0; round < context.rounds(20); ++round) {
      const Problem problem = session_problem(
          random, engine, rule, {.max_chunk = 12, .max_tokens = 60, .max_layers = 2, .wide = false});
      Problem poison = problem;
      draw_rows_from(random, poison, 0);
      for (LayerInput& layer : poison.layers) {
        for (Tensor* tensor : {&layer.q, &layer.k, &layer.v}) {
          for (float& x : tensor->values) {
            if (random.chance(0.3))
              x = random.pick(
                  std::vector<float>{std::numeric_limits<float>::quiet_NaN(), infinity, -infinity, 3e4f});
          }
        }
      }
      const Trace plain = replayed(engine, problem);
      const std::unique_ptr<Session> session = engine.open(problem.shape, problem.options);
      for (std::size_t s = 0; s < problem.steps.size(); ++s) {
        const Step& step = problem.steps[s];
        const Picture before = picture(*session);
        session->begin(step);
        for (std::int64_t layer = 0; layer < problem.shape.n_layer; ++layer)
          (void)attend_layer(*session, poison, layer, step.n);
        session->abort();
        const std::string what = fmt::format("step {} after one of NaN; {}", s, problem.describe());
        if (random.chance(0.5)) require_same(picture(*session), before, what);
        require_same(trace_of_steps(plain, problem, s, s + 1), run_steps(*session, problem, s, s + 1), what);
      }
    }
  }
}
const Register kSpoiled{{"abort.spoiled", {"STATE-8", "NUM-2"}, "session", Lane::determinism, true, spoiled}};

// Sizes that people run, on several threads: a second turn of many chunks is dropped after its last layer.
void sizes(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::abort, "abort");
  if (context.quick) throw Skipped("sizes of thousands of tokens run without --quick only");
  Random random(context.seed);
  for (const Select rule : rules(engine)) {
    Problem problem;
    problem.shape.n_layer = 2;
    problem.shape.n_head = 2;
    problem.shape.d_head = problem.shape.d_value = 16;
    problem.shape.kv_type = problem.k_type = problem.v_type = problem.q_type = DType::bf16;
    problem.options.chunk = 512;
    problem.options.batch = 1024;
    problem.options.select = rule;
    problem.options.local = 128;
    problem.options.heavy = 136;
    problem.options.threads = context.threads;
    problem.options.checkpoints = engine.claims().truncate ? 2 : 0;
    problem.steps = {Step::prefill(2100), Step::decode(3), Step::prefill(3000), Step::decode(1)};
    problem.shape.capacity = problem.tokens();
    problem.fill_normal(random);
    const Trace plain = replayed(engine, problem);
    const std::unique_ptr<Session> session = engine.open(problem.shape, problem.options);
    Problem noise = problem;
    draw_rows_from(random, noise, 0);
    for (std::size_t s = 0; s < problem.steps.size(); ++s) {
      const Picture before = picture(*session, 97);
      for (const std::int64_t attended : {1, 2}) {
        take_half(*session, noise, problem.steps[s], {1, 0}, attended,
                  attended == 1 ? Failure::observer_throws : Failure::none, 3);
        session->abort();
        require_same(picture(*session, 97), before,
                     fmt::format("aborted step {}; {}", s, problem.describe()));
      }
      require_same(trace_of_steps(plain, problem, s, s + 1), run_steps(*session, problem, s, s + 1),
                   fmt::format("step {} after it was aborted; {}", s, problem.describe()));
    }
  }
}
const Register kSizes{{"abort.sizes", {"STATE-8"}, "session", Lane::shape, true, sizes}};

}  // namespace
}  // namespace headwater::conformance
