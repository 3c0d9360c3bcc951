// Calls and options that an engine does not claim are refused as `unsupported`, and session and step stay as they were.

#include <atomic>

#include <fmt/format.h>

#include "conformance/case.hpp"
#include "conformance/placed.hpp"
#include "conformance/session_checks.hpp"
#include "conformance/session_files.hpp"

namespace headwater::conformance {
namespace {

// Runs each index itself and counts its calls.
void counted(void* context, std::int64_t n, void (*body)(void*, std::int64_t), void* argument) {
  ++*static_cast<std::atomic<int>*>(context);
  for (std::int64_t i = 0; i < n; ++i) body(argument, i);
}

// What is claimed is tested by the cases of its clause.
void unclaimed(Context& context) {
  const Engine& engine = *context.engine;
  const Claims claims = engine.claims();
  Random random(context.seed);
  for (int round = 0; round < context.rounds(10); ++round) {
    Problem problem =
        random_problem(random, {.max_chunk = 12, .max_tokens = 50, .max_layers = 2, .wide = false});
    const Trace plain = replayed(engine, problem);
    std::atomic<int> calls{0};
    if (!claims.host_threads) {
      problem.options.parallel_for = counted;
      problem.options.parallel_context = &calls;
    }
    const std::unique_ptr<Session> session = engine.open(problem.shape, problem.options);
    const auto refuse = [&](const char* what, const std::function<void()>& call) {
      const Picture before = picture(*session);
      require_code(code_of(call), ErrorCode::unsupported,
                   fmt::format("{} is not claimed; {}", what, problem.describe()));
      require_same(picture(*session), before, fmt::format("after {}; {}", what, problem.describe()));
    };
    const auto refuse_all = [&](bool in_step) {
      if (!claims.abort) refuse("abort()", [&] { session->abort(); });
      for (const std::int64_t n : {std::int64_t{0}, session->tokens()}) {
        if (!claims.truncate) refuse("truncate()", [&] { session->truncate(n); });
      }
      // In an open step these two are wrong_state in any engine (STATE-11, STATE-12).
      if (!claims.fork && !in_step) refuse("fork()", [&] { (void)session->fork(); });
      if (!claims.save && !in_step)
        refuse("save()", [&] { save_session(engine, *session, "/nonexistent/file", ""); });
      if (!claims.stored_rows) refuse("attend_stored()", [&] { session->attend_stored(0, {}, {}, {}); });
      if (!claims.interrupt) refuse("set_interrupt()", [&] { session->set_interrupt([] { return true; }); });
    };
    for (std::size_t s = 0; s < problem.steps.size(); ++s) {
      refuse_all(false);
      if (s + 1 < problem.steps.size()) {
        require_same(trace_of_steps(plain, problem, s, s + 1), run_steps(*session, problem, s, s + 1),
                     "after calls that are not claimed; " + problem.describe());
        continue;
      }
      const Step& step = problem.steps[s];
      const std::int64_t first = session->tokens();
      session->begin(step);
      refuse_all(true);
      if (!claims.rows_alone && step.kind == Step::Kind::decode) {
        const Placed k(Placement::token_major, problem.layers[0].k, first, step.n);
        const Placed v(Placement::token_major, problem.layers[0].v, first, step.n);
        refuse("attend() without queries", [&] { session->attend(0, {}, k.rows(), v.rows(), {}); });
      }
      std::vector<float> sums(static_cast<std::size_t>(step.n * problem.shape.n_head), 7.0f);
      for (std::int64_t layer = 0; layer < problem.shape.n_layer; ++layer) {
        if (!claims.lse) {
          refuse("lse", [&] {
            (void)attend_layer(*session, problem, layer, step.n,
                               LseOutput::token_major(sums.data(), problem.shape.n_head));
          });
          for (const float sum : sums) {
            if (sum != 7.0f) throw Violation("log-sum-exps were written that are not claimed");
          }
        }
        const std::vector<float> out = attend_layer(*session, problem, layer, step.n);
        refuse_all(true);
        const LayerTrace& wanted = plain.layers[static_cast<std::size_t>(layer)];
        const std::int64_t row = problem.out_row(layer);
        if (!std::equal(out.begin(), out.end(), wanted.out.begin() + first * row, wanted.out.end()))
          throw Violation("calls that are not claimed changed outputs; " + problem.describe());
      }
      session->end();
    }
    if (session->tokens() < problem.shape.capacity) {
      session->begin(Step::decode());
      require_code(code_of([&] { session->end(); }), ErrorCode::wrong_state, "end before all layers");
      if (!claims.abort) refuse("abort() of a step that failed", [&] { session->abort(); });
      session->reset();
    }
    if (calls != 0)
      throw Violation(fmt::format("parallel_for is not claimed and was called {} times", calls.load()));
  }
  const Shape shape{.n_layer = 1, .n_head = 2, .n_head_kv = 1, .d_head = 4, .d_value = 4, .capacity = 16};
  const auto refuse_open = [&](bool claimed, const Options& options, const std::string& what) {
    if (claimed) return;
    require_code(code_of([&] { (void)engine.open(shape, options); }), ErrorCode::unsupported,
                 what + " is not claimed");
  };
  for (const std::int64_t value : {1, 65536}) {
    Options options;
    options.checkpoints = value;
    refuse_open(claims.truncate, options, fmt::format("checkpoints = {}", value));
  }
  Options layers;
  layers.layers.resize(1);
  refuse_open(claims.layers, layers, "layers");
  Options of_caller;
  of_caller.kv_owner = KvOwner::caller;
  refuse_open(claims.stored_rows, of_caller, "kv_owner = caller");
  Options in_8_bits;
  in_8_bits.kv_bits = 8;
  if (!claims.kv_bits) {
    Shape wide = shape;
    wide.d_head = wide.d_value = 32;
    require_code(code_of([&] { (void)engine.open(wide, in_8_bits); }), ErrorCode::unsupported,
                 "kv_bits = 8 is not claimed");
  }
  Options allocator;
  allocator.allocator.allocate = [](void*, std::size_t, std::size_t) -> void* {
    throw Violation("the host's allocator is not claimed and was called");
  };
  allocator.allocator.release = [](void*, void*, std::size_t, std::size_t) {};
  refuse_open(claims.host_memory, allocator, "allocator");
  if (!claims.estimate) {
    require_code(code_of([&] { (void)engine.estimate(shape, {}); }), ErrorCode::unsupported,
                 "estimate() is not claimed");
  }
}
const Register kUnclaimed{{"state.unclaimed",
                           {"STATE-8", "STATE-9", "STATE-10", "STATE-11", "STATE-12", "INTR-1", "LSE-1",
                            "HOST-1", "LAYER-1", "ROWS-1", "DEC-2", "NUM-5", "HOST-2", "STATE-13"},
                           "session",
                           Lane::state,
                           true,
                           unclaimed}};

}  // namespace
}  // namespace headwater::conformance
