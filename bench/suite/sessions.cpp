// What a server does to a session of 32 layers with 32768 tokens between its steps. Rows are narrow: nothing here reads
// them.

#include <benchmark/benchmark.h>

#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench/suite/suite.hpp"
#include "headwater/engine.hpp"

namespace headwater::bench {

namespace {

constexpr std::int64_t kTokens = 32768;
constexpr std::int64_t kChunk = 256;

class LongSession {
 public:
  explicit LongSession(Select select)
      : session_(open(select)), rows_(kTokens * shape().n_head * shape().d_head) {
    std::mt19937 bits(1);
    std::normal_distribution<float> normal;
    for (float& x : rows_) x = normal(bits);
    out_.resize(rows_.size());
    step(Step::prefill(kTokens));
  }

  [[nodiscard]] Session& session() { return *session_; }

  /// One layer of the open step of n tokens.
  void attend(std::int64_t layer, std::int64_t n) {
    const Rows rows = Rows::head_major(rows_.data(), DType::f32, n, shape().d_head);
    session_->attend(layer, rows, rows, rows,
                     MutableRows::head_major(out_.data(), DType::f32, n, shape().d_value));
  }

  void step(const Step& step) {
    session_->begin(step);
    for (std::int64_t layer = 0; layer < shape().n_layer; ++layer) attend(layer, step.n);
    session_->end();
  }

 private:
  static std::unique_ptr<Session> open(Select select) {
    Shape shape;
    shape.n_layer = 32;
    shape.n_head = 32;
    shape.n_head_kv = 8;
    shape.d_head = shape.d_value = 8;
    shape.capacity = kTokens + 2 * kChunk;
    Options options;
    options.select = select;
    options.chunk = kChunk;
    options.local = options.heavy = kChunk / 4;
    options.checkpoints = select == Select::h2o ? 2 : 0;
    return engine("cpu").open(shape, options);
  }
  [[nodiscard]] const Shape& shape() const { return session_->shape(); }

  std::unique_ptr<Session> session_;
  std::vector<float> rows_;
  std::vector<float> out_;
};

double seconds_of(const auto& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Takes back a prefill of two chunks, or a step that failed half-way, and puts one layer back.
void run(benchmark::State& state, Select select, bool whole) {
  LongSession on(select);
  Session& session = on.session();
  double layers = 0.0;
  for (auto _ : state) {
    session.begin(Step::prefill(kChunk + 1));
    for (std::int64_t layer = 0; layer < session.shape().n_layer; ++layer) {
      if (whole || layer % 2 == 0) on.attend(layer, kChunk + 1);
    }
    if (whole) {
      session.end();
      state.SetIterationTime(seconds_of([&] { session.truncate(kTokens); }));
    } else {
      state.SetIterationTime(seconds_of([&] { session.abort(); }));
    }
    layers += seconds_of([&] { benchmark::DoNotOptimize(session.memory(0).data); });
  }
  state.counters["layer_put_back_us"] = 1e6 * layers / static_cast<double>(state.iterations());
}

}  // namespace

void register_sessions() {
  for (const Select select : {Select::h2o, Select::blocks}) {
    for (const bool whole : {true, false}) {
      const std::string name = std::string(whole ? "truncate" : "abort") + "/layers:32/n:32768/" +
                               (select == Select::h2o ? "h2o" : "blocks");
      benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { run(state, select, whole); })
          ->Unit(benchmark::kMicrosecond)
          ->UseManualTime()
          ->Iterations(20);
    }
  }
}

}  // namespace headwater::bench
