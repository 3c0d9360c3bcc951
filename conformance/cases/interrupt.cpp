// INTR-1: a call that asks whether to stop, and stops.

#include <algorithm>
#include <thread>

#include <fmt/format.h>

#include "conformance/case.hpp"
#include "conformance/session_checks.hpp"

namespace headwater::conformance {
namespace {

// Counts the questions, and answers one of them, counted from 1, with yes; 0: none.
struct Questions {
  std::int64_t asked = 0;
  std::int64_t stop_at = 0;
  bool inside = false;  // a call of attend()
  bool elsewhere = false;
  std::thread::id caller = std::this_thread::get_id();

  bool answer() {
    elsewhere = elsewhere || !inside || std::this_thread::get_id() != caller;
    return ++asked == stop_at;
  }
};

// A call ends soon after the answer to stop: what it began may go on, and may ask so often.
constexpr std::int64_t kMostAfterStop = 8;

// One layer of the open step. Returns the code of its error, and how often it asked.
std::optional<ErrorCode> attend(Session& session, const Problem& problem, std::int64_t layer, std::int64_t n,
                                Questions& questions, std::int64_t stop_at,
                                std::vector<float>* out = nullptr) {
  questions.asked = 0;
  questions.stop_at = stop_at;
  questions.inside = true;
  const std::optional<ErrorCode> code = code_of([&] {
    const std::vector<float> values = attend_layer(session, problem, layer, n);
    if (out != nullptr) *out = values;
  });
  questions.inside = false;
  if (questions.elsewhere) broken("asked on another thread, or outside of attend()", problem);
  return code;
}

// Every layer of every step is stopped at some questions, its step dropped (by abort, or else by reset and the steps before
// it), and then goes through with the bits of a session that nobody stopped.
void stopped(Context& context, const Problem& problem, bool every_question, std::int64_t stride) {
  const Engine& engine = *context.engine;
  const bool aborts = engine.claims().abort;
  const Trace plain = replayed(engine, problem);
  const std::unique_ptr<Session> session = engine.open(problem.shape, problem.options);
  Questions questions;
  std::int64_t chunks_seen = 0;
  const auto watch = [&](Session& watched) {
    watched.set_interrupt([&] { return questions.answer(); });
    watched.set_observer([&](const ChunkRecord&) { ++chunks_seen; });
  };
  watch(*session);
  const auto where = [&](std::int64_t layer) {
    return fmt::format("token {} layer {} question {}", session->tokens(), layer, questions.stop_at);
  };
  for (std::size_t s = 0; s < problem.steps.size(); ++s) {
    const Step& step = problem.steps[s];
    const Picture before = picture(*session, stride);
    const auto drop_step = [&] {
      if (aborts) return session->abort();
      session->reset();
      session->set_interrupt({});
      (void)run_steps(*session, problem, 0, s);
      watch(*session);
    };
    const std::int64_t first = session->tokens();
    const auto attend_before = [&](std::int64_t layer) {  // and require their bits
      for (std::int64_t earlier = 0; earlier < layer; ++earlier) {
        std::vector<float> out;
        require_code(attend(*session, problem, earlier, step.n, questions, 0, &out), std::nullopt,
                     "attend()");
        const auto wanted =
            plain.layers[static_cast<std::size_t>(earlier)].out.begin() + first * problem.out_row(earlier);
        if (!std::equal(out.begin(), out.end(), wanted))
          broken("outputs after a stop, " + where(earlier), problem);
      }
    };
    for (std::int64_t layer = 0; layer < problem.shape.n_layer; ++layer) {
      session->begin(step);
      attend_before(layer);
      require_code(attend(*session, problem, layer, step.n, questions, 0), std::nullopt, "attend()");
      const std::int64_t most = questions.asked;
      const std::int64_t chunks = session->options().dense_layer(layer) ? 1 : std::ssize(session->plan());
      const bool on_caller = session->options().threads == 1 || problem.options.parallel_for != nullptr;
      if (on_caller && most < chunks * problem.shape.n_head_kv) {
        broken(fmt::format("{} questions in {} chunks of {} key/value heads, {}", most, chunks,
                           problem.shape.n_head_kv, where(layer)),
               problem);
      }
      if (most == 0) broken("never asked, " + where(layer), problem);
      drop_step();
      for (std::int64_t k = 1; k <= most; k = every_question ? k + 1 : 2 * k) {
        session->begin(step);
        attend_before(layer);
        chunks_seen = 0;
        const auto code = attend(*session, problem, layer, step.n, questions, k);
        const bool was_asked = questions.asked >= k;  // with threads, how often may vary
        require_code(code, was_asked ? std::optional(ErrorCode::interrupted) : std::nullopt, where(layer));
        if (session->failed() != was_asked) broken("failed() after a stop, " + where(layer), problem);
        if (k == 1 && chunks_seen > 0) broken("the first question came after a chunk", problem);
        if (was_asked && questions.asked > k + kMostAfterStop) {
          broken(fmt::format("{} of {} questions after the answer to stop, {}", questions.asked - k, most,
                             where(layer)),
                 problem);
        }
        drop_step();
        require_same(picture(*session, stride), before, "aborted after a stop, " + where(layer));
      }
    }
    session->begin(step);
    attend_before(problem.shape.n_layer);
    session->end();
  }
  const Snapshot& last = plain.layers[0].snapshots.back();
  const Snapshot got = snapshot(*session, 0);
  if (got.scores != last.scores || got.memory != last.memory) broken("scores or sets after stops", problem);
  if (questions.elsewhere) broken("asked outside of attend()", problem);
}

void every_question(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::interrupt, "interrupt");
  Random random(context.seed);
  for (const Select rule : rules(engine)) {
    for (int round = 0; round < context.rounds(12); ++round) {
      Problem problem = session_problem(random, engine, rule,
                                        {.max_chunk = 8, .max_tokens = 30, .max_layers = 2, .wide = false});
      problem.options.threads = round % 3 == 2 ? 3 : 1;
      stopped(context, problem, true, 1);
    }
  }
}
const Register kEvery{
    {"interrupt.every_question", {"INTR-1", "STATE-8"}, "session", Lane::determinism, true, every_question}};

void sizes(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::interrupt, "interrupt");
  if (context.quick) throw Skipped("sizes of thousands of tokens run without --quick only");
  Random random(context.seed);
  // Its tasks are all on the calling thread: one that goes on after the answer to stop asks again.
  const ParallelFor host = [](void*, std::int64_t n, void (*body)(void*, std::int64_t), void* argument) {
    for (std::int64_t i = 0; i < n; ++i) body(argument, i);
  };
  for (const Select rule : rules(engine)) {
    for (const int threads : {1, context.threads, 4}) {
      Problem problem;
      if (threads == 4 && engine.claims().host_threads) problem.options.parallel_for = host;
      problem.shape.n_head = 6;
      problem.shape.n_head_kv = 3;
      problem.shape.d_head = problem.shape.d_value = 16;
      problem.shape.kv_type = problem.k_type = problem.v_type = problem.q_type = DType::bf16;
      problem.options.select = rule;
      problem.options.chunk = problem.options.batch = 256;
      problem.options.local = problem.options.heavy = 64;
      problem.options.threads = threads;
      problem.options.schedule = threads == 1 ? Schedule::layer_major : Schedule::chunk_major;
      problem.steps = {Step::prefill(1500), Step::decode(2)};
      problem.shape.capacity = problem.tokens();
      problem.fill_normal(random);
      stopped(context, problem, false, 31);
    }
  }
}
const Register kSizes{{"interrupt.sizes", {"INTR-1", "STATE-8"}, "session", Lane::shape, true, sizes}};

// An interrupt that never stops changes no bit; it survives reset() and can be switched off; its exception comes through.
void going_on(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::interrupt, "interrupt");
  Random random(context.seed);
  for (const Select rule : rules(engine)) {
    for (int round = 0; round < context.rounds(20); ++round) {
      const bool large = round % 5 == 0 && !context.quick;
      const Problem problem = session_problem(
          random, engine, rule,
          {.max_chunk = large ? 150 : 24, .max_tokens = large ? 500 : 100, .max_layers = 2, .wide = false});
      const Trace plain = replayed(engine, problem);
      const std::unique_ptr<Session> session = engine.open(problem.shape, problem.options);
      std::int64_t asked = 0;
      session->set_interrupt([&] {
        ++asked;
        return false;
      });
      for (int again = 0; again < 2; ++again) {
        asked = 0;
        require_same(plain, run(*session, problem), "an interrupt that says no; " + problem.describe());
        if (asked == 0) broken("an interrupt was never asked", problem);
        session->reset();
      }
      struct Thrown {};
      session->set_interrupt([]() -> bool { throw Thrown{}; });
      session->begin(problem.steps[0]);
      try {
        (void)attend_layer(*session, problem, 0, problem.steps[0].n);
        broken("an interrupt's exception did not come through", problem);
      } catch (const Thrown&) {
      }
      if (!session->failed()) broken("failed() after an interrupt's exception", problem);
      session->reset();
      session->set_interrupt({});
      asked = 0;
      require_same(plain, run(*session, problem), "an interrupt that is switched off; " + problem.describe());
      if (asked != 0) broken("an interrupt was asked that is switched off", problem);
    }
  }
}
const Register kGoingOn{
    {"interrupt.going_on", {"INTR-1", "NUM-3"}, "session", Lane::determinism, true, going_on}};

}  // namespace
}  // namespace headwater::conformance
