// STATE-1..5: the protocol, by a model of it and by hand.

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "conformance/case.hpp"
#include "conformance/formats.hpp"
#include "conformance/run.hpp"
#include "conformance/session_checks.hpp"
#include "headwater/error.hpp"

namespace headwater::conformance {
namespace {

// A small session with its rows: every token has the same ones, chosen by seed.
struct Bench {
  explicit Bench(const Engine& engine, std::int64_t layers = 2, std::int64_t capacity = 40) {
    Random random(7);
    problem.shape.n_layer = layers;
    problem.shape.n_head = 2;
    problem.shape.d_head = 3;
    problem.shape.d_value = 2;
    problem.options.chunk = 4;
    problem.options.batch = 8;
    problem.options.local = 1;
    problem.options.heavy = 1;
    problem.options.threads = 1;
    problem.steps = {Step::prefill(capacity)};
    problem.shape.capacity = capacity;
    problem.fill_normal(random);
    out.resize(static_cast<std::size_t>(capacity * 4));
    session = engine.open(problem.shape, problem.options);
  }
  void attend(std::int64_t layer) {
    const LayerInput& input = problem.layers[0];
    session->attend(layer, Rows::token_major(input.q.values.data(), DType::f32, 2, 3),
                    Rows::token_major(input.k.values.data(), DType::f32, 1, 3),
                    Rows::token_major(input.v.values.data(), DType::f32, 1, 2),
                    MutableRows::token_major(out.data(), DType::f32, 2, 2));
  }
  void step(const Step& what) {
    session->begin(what);
    for (std::int64_t layer = 0; layer < problem.shape.n_layer; ++layer) attend(layer);
    session->end();
  }
  Problem problem;
  std::vector<float> out;
  std::unique_ptr<Session> session;
};

// A model of the protocol of session.hpp and STATE-1..5.
class Model {
 public:
  Model(std::int64_t layers, std::int64_t capacity) : layers_(layers), capacity_(capacity) {}

  std::optional<ErrorCode> begin(const Step& step) {
    if (failed_) return ErrorCode::wrong_state;
    if (open_) {
      failed_ = true;
      return ErrorCode::wrong_state;
    }
    if (step.n < 1) return ErrorCode::invalid_argument;
    const bool prefill = step.kind == Step::Kind::prefill;
    const bool opens = prefill && state != SessionState::prefilling;
    if (step.turn_length < 0) return ErrorCode::invalid_argument;
    if (opens && step.turn_length != 0 && step.turn_length < step.n) return ErrorCode::invalid_argument;
    if (prefill && !opens && step.turn_length != 0 && step.turn_length != turn_)
      return ErrorCode::invalid_argument;
    if (step.n > capacity_ - tokens) return ErrorCode::capacity_exceeded;
    if (opens) turn_ = step.turn_length != 0 ? step.turn_length : step.n;
    state = prefill ? SessionState::prefilling : SessionState::decoding;
    open_ = true;
    n_ = step.n;
    attended_.assign(static_cast<std::size_t>(layers_), false);
    return std::nullopt;
  }
  std::optional<ErrorCode> attend(std::int64_t layer) {
    if (failed_ || !open_) return ErrorCode::wrong_state;
    if (layer < 0 || layer >= layers_) return ErrorCode::invalid_argument;
    if (attended_[static_cast<std::size_t>(layer)]) {
      failed_ = true;
      return ErrorCode::wrong_state;
    }
    attended_[static_cast<std::size_t>(layer)] = true;
    return std::nullopt;
  }
  std::optional<ErrorCode> end() {
    if (failed_ || !open_) return ErrorCode::wrong_state;
    if (std::find(attended_.begin(), attended_.end(), false) != attended_.end()) {
      failed_ = true;
      return ErrorCode::wrong_state;
    }
    tokens += n_;
    open_ = false;
    return std::nullopt;
  }
  void reset() {
    state = SessionState::empty;
    tokens = 0;
    open_ = failed_ = false;
  }
  [[nodiscard]] bool settled() const { return !open_ && !failed_; }
  [[nodiscard]] bool failed() const { return failed_; }

  SessionState state = SessionState::empty;
  std::int64_t tokens = 0;

 private:
  std::int64_t layers_;
  std::int64_t capacity_;
  std::int64_t turn_ = 0;
  std::int64_t n_ = 0;
  bool open_ = false;
  bool failed_ = false;
  std::vector<bool> attended_;
};

void protocol(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(60); ++round) {
    const std::int64_t layers = random.integer(1, 3);
    Bench bench(*context.engine, layers, random.integer(5, 40));
    Model model(layers, bench.problem.shape.capacity);
    std::string done;
    for (int op = 0; op < 60; ++op) {
      const double dice = random.uniform();
      if (dice < 0.35) {
        Step step =
            random.chance(0.7) ? Step::prefill(random.integer(1, 9)) : Step::decode(random.integer(1, 2));
        if (random.chance(0.1))
          step.n = random.pick(std::vector<std::int64_t>{0, -1, 41, 1000000, INT64_MAX, INT64_MIN});
        if (step.kind == Step::Kind::prefill && random.chance(0.4)) {
          step.turn_length = random.pick(std::vector<std::int64_t>{step.n, 9, 3, 0, -1, INT64_MAX});
        }
        done +=
            fmt::format(" {}{}:{}", step.kind == Step::Kind::prefill ? "p" : "d", step.n, step.turn_length);
        require_code(code_of([&] { bench.session->begin(step); }), model.begin(step), "begin:" + done);
      } else if (dice < 0.75) {
        const std::int64_t layer = random.chance(0.05)
                                       ? random.pick(std::vector<std::int64_t>{-1, layers, INT64_MIN})
                                       : random.integer(0, layers - 1);
        done += fmt::format(" a{}", layer);
        require_code(code_of([&] { bench.attend(layer); }), model.attend(layer), "attend:" + done);
      } else if (dice < 0.94) {
        done += " e";
        require_code(code_of([&] { bench.session->end(); }), model.end(), "end:" + done);
      } else {
        done += " r";
        bench.session->reset();
        model.reset();
      }
      if (bench.session->tokens() != model.tokens) {
        throw Violation(
            fmt::format("tokens() is {}, not {}, after{}", bench.session->tokens(), model.tokens, done));
      }
      if (bench.session->failed() != model.failed()) {
        throw Violation(fmt::format("failed() is {} after{}", bench.session->failed(), done));
      }
      if (model.settled() && bench.session->state() != model.state) {
        throw Violation(fmt::format("state() is {} after{}", static_cast<int>(bench.session->state()), done));
      }
    }
  }
}
const Register kProtocol{
    {"state.protocol", {"STATE-1", "STATE-2", "STATE-3", "STATE-5"}, "session", Lane::state, true, protocol}};

// A refused call leaves the session as it was: a run with refused calls in between has the bits of one without.
void refused_calls(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(40); ++round) {
    Problem problem =
        random_problem(random, {.max_chunk = 12, .max_tokens = 60, .max_layers = 2, .wide = false});
    const Trace wanted = run(*context.engine, problem);
    const std::unique_ptr<Session> session = context.engine->open(problem.shape, problem.options);
    const Shape& s = problem.shape;
    std::vector<float> none(16);
    const Rows fine = Rows::token_major(none.data(), DType::f32, 1, 1);
    const MutableRows fine_out = MutableRows::token_major(none.data(), DType::f32, 1, 1);
    std::int64_t first = 0;
    LayerTrace got;
    for (const Step& step : problem.steps) {
      const std::int64_t left = s.capacity - first;
      require_code(code_of([&] { session->begin(Step::prefill(left + 1)); }), ErrorCode::capacity_exceeded,
                   "too many tokens");
      require_code(code_of([&] { session->begin(Step::decode(INT64_MAX)); }), ErrorCode::capacity_exceeded,
                   "2^63 - 1 tokens");
      require_code(code_of([&] { session->begin(Step::prefill(0)); }), ErrorCode::invalid_argument,
                   "no tokens");
      require_code(code_of([&] { session->attend(0, fine, fine, fine, fine_out); }), ErrorCode::wrong_state,
                   "no open step");
      require_code(code_of([&] { session->end(); }), ErrorCode::wrong_state, "end without a step");
      session->begin(step);
      for (std::int64_t layer = 0; layer < s.n_layer; ++layer) {
        const LayerInput& input = problem.layers[static_cast<std::size_t>(layer)];
        const Placed q(Placement::token_major, input.q, first, step.n);
        const Placed k(Placement::token_major, input.k, first, step.n);
        const Placed v(Placement::token_major, input.v, first, step.n);
        Placed out(Placement::token_major, problem.out_type, step.n, s.n_head, s.d_value);
        const Rows null{nullptr, DType::f32, 1, 1};
        const MutableRows null_out{nullptr, DType::f32, 1, 1};
        Rows odd = q.rows();
        odd.type = static_cast<DType>(7);
        MutableRows odd_out = out.mutable_rows();
        odd_out.type = static_cast<DType>(3);
        const auto refuse = [&](std::int64_t l, const Rows& a, const Rows& b, const Rows& c,
                                const MutableRows& d) {
          require_code(code_of([&] { session->attend(l, a, b, c, d); }), ErrorCode::invalid_argument,
                       "attend with bad arguments");
        };
        refuse(layer, null, k.rows(), v.rows(), out.mutable_rows());
        refuse(layer, q.rows(), null, v.rows(), out.mutable_rows());
        refuse(layer, q.rows(), k.rows(), null, out.mutable_rows());
        refuse(layer, q.rows(), k.rows(), v.rows(), null_out);
        refuse(layer, odd, k.rows(), v.rows(), out.mutable_rows());
        refuse(layer, q.rows(), odd, v.rows(), out.mutable_rows());
        refuse(layer, q.rows(), k.rows(), odd, out.mutable_rows());
        refuse(layer, q.rows(), k.rows(), v.rows(), odd_out);
        refuse(s.n_layer, q.rows(), k.rows(), v.rows(), out.mutable_rows());
        refuse(-1, q.rows(), k.rows(), v.rows(), out.mutable_rows());
        if (session->failed()) throw Violation("failed() after refused arguments; " + problem.describe());
        session->attend(layer, q.rows(), k.rows(), v.rows(), out.mutable_rows());
        if (layer != 0) continue;
        const std::vector<float> values = out.take();
        got.out.insert(got.out.end(), values.begin(), values.end());
      }
      session->end();
      first += step.n;
    }
    for (std::size_t i = 0; i < got.out.size(); ++i) {
      if (!same_bits(got.out[i], wanted.layers[0].out[i])) {
        throw Violation("refused calls changed the outputs; " + problem.describe());
      }
    }
    for (std::int64_t layer = 0; layer < s.n_layer; ++layer) {
      if (snapshot(*session, layer).scores !=
          wanted.layers[static_cast<std::size_t>(layer)].snapshots.back().scores) {
        throw Violation("refused calls changed scores; " + problem.describe());
      }
    }
  }
}
const Register kRefusedCalls{
    {"state.refused_calls", {"STATE-5"}, "session", Lane::state, true, refused_calls}};

// A step that failed half-way can only be followed by reset, after which the session is as if it were new.
void failed_steps(Context& context) {
  const Engine& engine = *context.engine;
  const auto only_reset = [&](Bench& bench, const std::string& how) {
    require_code(code_of([&] { bench.session->begin(Step::decode()); }), ErrorCode::wrong_state,
                 how + ", then begin");
    require_code(code_of([&] { bench.attend(0); }), ErrorCode::wrong_state, how + ", then attend");
    require_code(code_of([&] { bench.session->end(); }), ErrorCode::wrong_state, how + ", then end");
    if (!bench.session->failed()) throw Violation(how + ": failed() is false");
    bench.session->set_observer({});
    bench.session->reset();
    if (bench.session->failed()) throw Violation(how + ": failed() after reset()");
    if (bench.session->tokens() != 0 || bench.session->state() != SessionState::empty)
      throw Violation(how + ": reset() left something");
    bench.step(Step::prefill(9));
    const std::vector<float> out = bench.out;
    Bench fresh(engine);
    fresh.step(Step::prefill(9));
    // Rows after the ninth are what earlier steps of the failed session left in the buffer.
    if (!std::equal(out.begin(), out.begin() + 9 * 4, fresh.out.begin()))
      throw Violation(how + ": reset() does not give a new session's outputs");
  };
  {
    Bench bench(engine);
    bench.session->begin(Step::prefill(5));
    bench.attend(0);
    require_code(code_of([&] { bench.session->end(); }), ErrorCode::wrong_state, "end before all layers");
    only_reset(bench, "end before all layers");
  }
  {
    Bench bench(engine);
    bench.session->begin(Step::prefill(5));
    bench.attend(1);
    require_code(code_of([&] { bench.attend(1); }), ErrorCode::wrong_state, "a layer twice");
    only_reset(bench, "a layer twice");
  }
  {
    Bench bench(engine);
    bench.step(Step::prefill(6));
    bench.session->begin(Step::decode());
    require_code(code_of([&] { bench.session->begin(Step::decode()); }), ErrorCode::wrong_state,
                 "begin in an open step");
    only_reset(bench, "begin in an open step");
  }
  for (const int at : {1, 2, 3}) {  // an observer that throws at the n-th chunk
    Bench bench(engine);
    int calls = 0;
    struct Thrown {};
    bench.session->set_observer([&](const ChunkRecord&) {
      if (++calls == at) throw Thrown{};
    });
    bench.session->begin(Step::prefill(12));
    bool thrown = false;
    try {
      bench.attend(0);
    } catch (const Thrown&) {
      thrown = true;
    }
    if (!thrown) throw Violation("an observer's exception did not come through");
    only_reset(bench, "an observer that throws");
  }
}
const Register kFailed{{"state.failed_steps", {"STATE-5"}, "session", Lane::state, true, failed_steps}};

void inspection(Context& context) {
  Bench bench(*context.engine);
  Session& session = *bench.session;
  std::vector<float> key(3);
  std::vector<float> value(2);
  const auto invalid = [&](const std::string& what, const std::function<void()>& call) {
    require_code(code_of(call), ErrorCode::invalid_argument, what);
  };
  for (const std::int64_t layer : {std::int64_t{-1}, std::int64_t{2}, INT64_MAX, INT64_MIN}) {
    invalid("scores", [&] { (void)session.scores(layer); });
    invalid("memory", [&] { (void)session.memory(layer); });
    invalid("read_key", [&] { session.read_key(layer, 0, 0, key); });
    invalid("read_value", [&] { session.read_value(layer, 0, 0, value); });
  }
  invalid("read_key of an empty session", [&] { session.read_key(0, 0, 0, key); });
  bench.step(Step::prefill(6));
  for (const std::int64_t head : {std::int64_t{-1}, std::int64_t{1}, INT64_MAX}) {
    invalid("read_key head", [&] { session.read_key(0, head, 0, key); });
    invalid("read_value head", [&] { session.read_value(0, head, 0, value); });
  }
  for (const std::int64_t position : {std::int64_t{-1}, std::int64_t{6}, INT64_MAX}) {
    invalid("read_key position", [&] { session.read_key(0, 0, position, key); });
    invalid("read_value position", [&] { session.read_value(0, 0, position, value); });
  }
  std::vector<float> two(2);
  std::vector<float> one(1);
  invalid("read_key into too short a row", [&] { session.read_key(0, 0, 5, two); });
  invalid("read_value into too short a row", [&] { session.read_value(0, 0, 5, one); });
  session.read_key(0, 0, 5, key);
  session.read_value(1, 0, 5, value);

  // Rows of the open step show once their layer was attended, and not before.
  session.begin(Step::decode(2));
  if (session.plan().size() != 1 || session.plan()[0].begin != 6 || session.plan()[0].end != 8) {
    throw Violation("plan() of an open decode step");
  }
  invalid("read_key of the open step before its layer", [&] { session.read_key(1, 0, 6, key); });
  invalid("read_value of the open step before its layer", [&] { session.read_value(1, 0, 6, value); });
  bench.attend(1);
  session.read_key(1, 0, 7, key);
  if (!std::equal(key.begin(), key.end(), bench.problem.layers[0].k.row(1, 0)))
    throw Violation("a row of the open step");
  invalid("read_key of the open step after another layer", [&] { session.read_key(0, 0, 6, key); });
  invalid("read_value of the open step after another layer", [&] { session.read_value(0, 0, 7, value); });
  invalid("read_key after the open step", [&] { session.read_key(1, 0, 8, key); });
  bench.attend(0);
  session.end();
  if (session.plan().size() != 1 || session.plan()[0].mode != ChunkMode::decode)
    throw Violation("plan() after the step");
  session.reset();
  invalid("read_key after reset", [&] { session.read_key(0, 0, 0, key); });
}
const Register kInspection{
    {"state.inspection", {"STATE-5", "STATE-6"}, "session", Lane::state, true, inspection}};

// Capacity is exact: the last token fits, one more does not, in every kind of step.
void full_capacity(Context& context) {
  for (const std::int64_t capacity : {1, 4, 5, 17}) {
    Bench bench(*context.engine, 1, capacity);
    bench.step(Step::prefill(capacity));
    require_code(code_of([&] { bench.session->begin(Step::decode()); }), ErrorCode::capacity_exceeded,
                 "decode when full");
    require_code(code_of([&] { bench.session->begin(Step::prefill(1)); }), ErrorCode::capacity_exceeded,
                 "prefill when full");
    if (bench.session->state() != SessionState::prefilling || bench.session->tokens() != capacity) {
      throw Violation("a refused step changed the state");
    }
    bench.session->reset();
    if (capacity < 2) continue;
    bench.step(Step::prefill(capacity - 1));
    require_code(code_of([&] { bench.session->begin(Step::decode(2)); }), ErrorCode::capacity_exceeded,
                 "two tokens, room for one");
    bench.step(Step::decode(1));
  }
}
const Register kFull{{"state.full_capacity", {"STATE-5"}, "session", Lane::state, true, full_capacity}};

}  // namespace
}  // namespace headwater::conformance
