// HOST-1: the caller's threads in place of the engine's own.

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "conformance/case.hpp"
#include "conformance/session_checks.hpp"

namespace headwater::conformance {
namespace {

using Body = void (*)(void*, std::int64_t);

// A host that runs tasks in one of several ways.
struct Host {
  enum class Way {
    serial,
    reversed,
    threads,
    other_thread,
    loses_first,
    loses_last,
    loses_all,
    repeats_first,
    repeats_last
  };
  Way way = Way::serial;
  std::int64_t calls = 0;
  std::int64_t most = 0;        // the largest n
  std::int64_t wrong_from = 0;  // calls before this one are right in the last five ways
  bool wronged = false;

  static void parallel_for(void* context, std::int64_t n, Body body, void* argument) {
    static_cast<Host*>(context)->run(n, body, argument);
  }

  void run(std::int64_t n, Body body, void* argument) {
    most = std::max(most, n);
    const bool wrong = calls++ >= wrong_from && way >= Way::loses_first;
    wronged = wronged || wrong;
    const auto serial = [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t i = from; i < to; ++i) body(argument, i);
    };
    if (way == Way::reversed) {
      for (std::int64_t i = n; i-- > 0;) body(argument, i);
    } else if (way == Way::threads) {
      std::vector<std::thread> all;
      for (std::int64_t i = 0; i < n; ++i) all.emplace_back([=] { body(argument, i); });
      for (std::thread& thread : all) thread.join();
    } else if (way == Way::other_thread) {
      std::thread([&] { serial(0, n); }).join();
    } else if (!wrong) {
      serial(0, n);
    } else {
      switch (way) {
        case Way::loses_first: serial(1, n); break;
        case Way::loses_last: serial(0, n - 1); break;
        case Way::loses_all: break;
        case Way::repeats_first:
          serial(0, n);
          body(argument, 0);
          break;
        default: serial(0, n); body(argument, n - 1);
      }
    }
  }
};

Problem with_host(Problem problem, Host& host, int threads) {
  problem.options.threads = threads;
  problem.options.parallel_for = Host::parallel_for;
  problem.options.parallel_context = &host;
  return problem;
}

std::int64_t threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

// Any way to run the tasks gives the bits of the engine's own threads.
void same_bits(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::host_threads, "host_threads");
  Random random(context.seed);
  for (const Select rule : rules(engine)) {
    for (int round = 0; round < context.rounds(10); ++round) {
      const bool large = round % 5 == 0 && !context.quick;
      const Problem problem = session_problem(
          random, engine, rule,
          {.max_chunk = large ? 150 : 24, .max_tokens = large ? 1200 : 100, .max_layers = 2, .wide = false});
      const Trace plain = replayed(engine, problem);
      for (const Host::Way way :
           {Host::Way::serial, Host::Way::reversed, Host::Way::threads, Host::Way::other_thread}) {
        for (const int threads : {1, 2, 7}) {
          Host host{.way = way};
          const Problem other = with_host(problem, host, threads);
          require_same(
              plain, run(engine, other),
              fmt::format("threads of the host, way {}; {}", static_cast<int>(way), other.describe()),
              engine.claims().bitwise_threads || threads == problem.options.threads);
          if (host.most > threads) broken(fmt::format("{} tasks for {} threads", host.most, threads), other);
        }
      }
    }
  }
}
const Register kSame{
    {"host_threads.same_bits", {"HOST-1", "NUM-3"}, "session", Lane::determinism, true, same_bits}};

// The engine uses the host's threads where it has work for more than one, and starts none of its own: in opening, calls and
// closing.
void no_others(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::host_threads, "host_threads");
  Random random(context.seed);
  Problem problem;
  problem.shape.n_layer = 2;
  problem.shape.n_head = 8;
  problem.shape.n_head_kv = 4;
  problem.shape.d_head = problem.shape.d_value = 32;
  problem.options.chunk = 128;
  problem.options.local = problem.options.heavy = 32;
  problem.steps = {Step::prefill(700), Step::decode(1), Step::prefill(300), Step::decode(3)};
  problem.shape.capacity = problem.tokens();
  for (const Select rule : rules(engine)) {
    problem.options.select = rule;
    problem.fill_normal(random);
    Host host;
    // More than any run of this process had, so that a pool of the engine's own would grow.
    const Problem other = with_host(problem, host, 67);
    const std::int64_t before = threads_of_this_process();
    {
      const std::unique_ptr<Session> session = engine.open(other.shape, other.options);
      const std::int64_t opened = threads_of_this_process();
      if (opened > before) broken(fmt::format("open() started {} threads", opened - before), other);
      for (std::size_t s = 0; s < other.steps.size(); ++s) {
        const std::int64_t calls = host.calls;
        (void)run_steps(*session, other, s, s + 1);
        const bool prefill = other.steps[s].kind == Step::Kind::prefill;
        if (prefill && host.calls == calls)
          broken(fmt::format("step {} did not use the host's threads", s), other);
      }
      if (host.most < 2) broken("never more than one task at a time", other);
    }
    const std::int64_t after = threads_of_this_process();
    if (after > before) broken(fmt::format("{} threads were started", after - before), other);
  }
}
const Register kNoOthers{{"host_threads.no_others", {"HOST-1"}, "session", Lane::state, true, no_others}};

// A host that loses or repeats a task: an error that fails the step, wherever it happens, and abort() restores the session.
void faulty_hosts(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::host_threads, "host_threads");
  require_claim(engine, &Claims::abort, "abort");
  Random random(context.seed);
  for (const Select rule : rules(engine)) {
    std::int64_t faults = 0;
    for (int round = 0; round < context.rounds(8); ++round) {
      const bool large = round % 4 == 0 && !context.quick;
      const Problem problem = session_problem(
          random, engine, rule,
          {.max_chunk = large ? 100 : 24, .max_tokens = large ? 300 : 60, .max_layers = 2, .wide = false});
      const Trace plain = replayed(engine, problem);
      Host host;
      const Problem other = with_host(problem, host, large ? 12 : static_cast<int>(random.integer(1, 4)));
      const std::unique_ptr<Session> session = engine.open(other.shape, other.options);
      const bool outputs =
          engine.claims().bitwise_threads || other.options.threads == problem.options.threads;
      for (std::size_t s = 0; s < other.steps.size(); ++s) {
        const Step& step = other.steps[s];
        const Picture before = picture(*session);
        const std::int64_t layer = random.integer(0, other.shape.n_layer - 1);
        for (const Host::Way way : {Host::Way::loses_first, Host::Way::loses_last, Host::Way::loses_all,
                                    Host::Way::repeats_first, Host::Way::repeats_last}) {
          for (const std::int64_t from : {0, 1, 2, 5, 20}) {
            const std::string what = fmt::format("a host of way {} from call {} on, step {}; {}",
                                                 static_cast<int>(way), from, s, other.describe());
            session->begin(step);
            host = {.way = way, .wrong_from = from};
            const auto code = code_of([&] { (void)attend_layer(*session, other, layer, step.n); });
            require_code(code, host.wronged ? std::optional(ErrorCode::internal) : std::nullopt, what);
            if (session->failed() != host.wronged) throw Violation("failed() with " + what);
            faults += host.wronged ? 1 : 0;
            host = {};
            session->abort();
            require_same(picture(*session), before, what);
          }
        }
        require_same(trace_of_steps(plain, problem, s, s + 1), run_steps(*session, other, s, s + 1),
                     fmt::format("step {} after faulty hosts; {}", s, other.describe()), outputs);
      }
    }
    if (faults == 0 && !context.quick) throw Violation("the host was never asked to run a task");
  }
}
const Register kFaulty{
    {"host_threads.faulty_hosts", {"HOST-1", "STATE-8"}, "session", Lane::state, true, faulty_hosts}};

}  // namespace
}  // namespace headwater::conformance
