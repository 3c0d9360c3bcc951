#include "fuzz/ops.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <sstream>
#include <vector>

#include "fuzz/byte_source.hpp"
#include "headwater/headwater.hpp"

namespace headwater::fuzz {

namespace {

struct Problem {
  Shape shape;
  Options options;
};

Problem draw_problem(ByteSource& source) {
  Problem problem;
  Shape& shape = problem.shape;
  shape.n_layer = source.range(1, 2);
  shape.n_head_kv = source.range(1, 2);
  shape.n_head = shape.n_head_kv * source.range(1, 2);
  shape.d_head = source.range(1, 9);
  shape.d_value = source.range(1, 9);
  shape.capacity = source.range(1, 80);
  shape.kv_type = static_cast<DType>(source.range(0, 2));
  Options& options = problem.options;
  options.batch = source.range(1, 40);
  options.chunk = source.range(1, 24);
  options.local = source.range(0, 10);
  options.heavy = source.range(0, 10);
  options.clamp = source.flag();
  options.dense = source.range(0, 9) == 0;
  options.score_type = static_cast<ScoreType>(source.range(0, 1));
  options.schedule = static_cast<Schedule>(source.range(0, 1));
  options.threads = static_cast<int>(source.range(1, 2));
  if (source.flag()) options.softcap = 2.0;
  if (source.flag()) options.sinks.assign(static_cast<std::size_t>(shape.n_head), 0.5f);
  if (source.flag()) options.alibi.assign(static_cast<std::size_t>(shape.n_head), 0.125f);
  return problem;
}

/// Pseudo-random numbers of a sixteenth's grain: exact in every element type.
std::vector<float> draw_rows(ByteSource& source, std::int64_t count) {
  std::uint32_t state = 0x9E3779B9u + source.byte();
  std::vector<float> rows(static_cast<std::size_t>(count));
  for (float& value : rows) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int>(state >> 24) - 128) / 64.0f;
  }
  return rows;
}

/// What one engine did.
struct Run {
  const Engine* engine = nullptr;
  std::unique_ptr<Session> session;
  std::vector<std::int32_t> sets;  // every set that was read, in order
  std::vector<float> out;
  int code = 0;  // of the last call: 0 or an ErrorCode

  template <typename Call>
  void call(Call&& body) {
    code = 0;
    try {
      body(*session);
    } catch (const Error& error) {
      code = static_cast<int>(error.code());
    }
  }
};

class Differential {
 public:
  explicit Differential(ByteSource source) : source_(source) {}

  std::string run() {
    const Problem problem = draw_problem(source_);
    shape_ = problem.shape;
    for (const Engine* engine : engines()) {
      if (!engine->unavailable_because().empty()) continue;
      runs_.emplace_back();
      runs_.back().engine = engine;
      runs_.back().session = engine->open(problem.shape, problem.options);
    }
    for (Run& run : runs_) {
      run.session->set_observer([&run, this](const ChunkRecord& record) {
        for (std::int64_t head = 0; head < shape_.n_head; ++head) {
          const std::int32_t* set = record.memory + head * record.memory_stride;
          run.sets.insert(run.sets.end(), set, set + record.memory_count);
        }
      });
    }
    constexpr int kMostCalls = 24;
    for (int call = 0; call < kMostCalls && !source_.empty() && problem_.empty(); ++call) one_call();
    return problem_;
  }

 private:
  template <typename Body>
  int all(const char* what, Body&& body) {
    for (Run& run : runs_) run.call(body);
    for (const Run& run : runs_) {
      const Session& a = *runs_[0].session;
      const Session& b = *run.session;
      const bool plans = std::equal(a.plan().begin(), a.plan().end(), b.plan().begin(), b.plan().end(),
                                    [](const Chunk& x, const Chunk& y) {
                                      return x.begin == y.begin && x.end == y.end && x.mode == y.mode;
                                    });
      if (run.code == runs_[0].code && a.state() == b.state() && a.tokens() == b.tokens() && plans) continue;
      std::ostringstream text;
      text << what << ": " << runs_[0].engine->name() << " gives code " << runs_[0].code << ", state "
           << static_cast<int>(a.state()) << ", tokens " << a.tokens() << ", " << a.plan().size()
           << " chunks; " << run.engine->name() << " code " << run.code << ", state "
           << static_cast<int>(b.state()) << ", tokens " << b.tokens() << ", " << b.plan().size()
           << " chunks";
      problem_ = text.str();
    }
    return runs_[0].code;
  }

  void one_call() {
    switch (source_.range(0, 9)) {
      case 0: all("reset", [](Session& session) { session.reset(); }); break;
      case 1: bad_call(); break;
      case 2:
      case 3: step(Step::decode(source_.range(1, 3))); break;
      default: {
        const std::int64_t n = source_.range(1, 50);
        step(Step::prefill(n, source_.flag() ? 0 : n + source_.range(0, 30)));
      }
    }
  }

  void bad_call() {
    switch (source_.range(0, 4)) {
      case 0: all("end", [](Session& session) { session.end(); }); break;
      case 1: {
        const Step step = Step::prefill(source_.wide());
        if (step.n >= 1 && step.n <= shape_.capacity) break;  // might be legal
        all("huge prefill", [&](Session& session) { session.begin(step); });
        break;
      }
      case 2: all("empty decode", [](Session& session) { session.begin(Step::decode(0)); }); break;
      case 3: attend(source_.range(-1, 3)); break;
      default: all("null rows", [](Session& session) { session.attend(0, {}, {}, {}, {}); }); break;
    }
  }

  void step(const Step& step) {
    if (all("begin", [&](Session& session) { session.begin(step); }) != 0) return;
    n_ = step.n;
    const bool skip_layer = source_.range(0, 15) == 0;
    for (std::int64_t layer = shape_.n_layer - 1; layer >= (skip_layer ? 1 : 0); --layer) attend(layer);
    all("end", [](Session& session) { session.end(); });
  }

  void attend(std::int64_t layer) {
    const std::int64_t n = std::max<std::int64_t>(n_, 1);
    const auto q = draw_rows(source_, n * shape_.n_head * shape_.d_head);
    const auto k = draw_rows(source_, n * shape_.n_head_kv * shape_.d_head);
    const auto v = draw_rows(source_, n * shape_.n_head_kv * shape_.d_value);
    for (Run& run : runs_) run.out.assign(static_cast<std::size_t>(n * shape_.n_head * shape_.d_value), NAN);
    std::size_t turn = 0;
    const int code = all("attend", [&](Session& session) {
      session.attend(
          layer, Rows::token_major(q.data(), DType::f32, shape_.n_head, shape_.d_head),
          Rows::token_major(k.data(), DType::f32, shape_.n_head_kv, shape_.d_head),
          Rows::token_major(v.data(), DType::f32, shape_.n_head_kv, shape_.d_value),
          MutableRows::token_major(runs_[turn++].out.data(), DType::f32, shape_.n_head, shape_.d_value));
    });
    if (code == 0) compare_outputs();
  }

  void compare_outputs() {
    for (const Run& run : runs_) {
      if (run.sets != runs_[0].sets) {
        // A tie in rounded scores may fall the other way in another arithmetic; from then on the runs differ by
        // right. Equal sizes are still demanded (MEM-3).
        if (run.sets.size() != runs_[0].sets.size()) problem_ = "memory sets of different sizes";
        continue;
      }
      for (std::size_t i = 0; i < run.out.size(); ++i) {
        // Inputs are at most 2 in size and rows at most 9 wide: float arithmetic errs by far less.
        constexpr float kFar = 1e-3f;
        if (std::fabs(run.out[i] - runs_[0].out[i]) <= kFar) continue;
        std::ostringstream text;
        text << "output " << i << ": " << runs_[0].engine->name() << ' ' << runs_[0].out[i] << ", "
             << run.engine->name() << ' ' << run.out[i];
        problem_ = text.str();
        return;
      }
    }
  }

  ByteSource source_;
  Shape shape_;
  std::vector<Run> runs_;
  std::int64_t n_ = 0;
  std::string problem_;
};

}  // namespace

std::string run_ops(std::span<const std::uint8_t> bytes) { return Differential(ByteSource(bytes)).run(); }

}  // namespace headwater::fuzz
