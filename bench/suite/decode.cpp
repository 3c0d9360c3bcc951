// Decode steps against the rate at which this machine reads memory: a step reads every stored K and V row.

#include <benchmark/benchmark.h>

#include <exception>

#include "bench/suite/suite.hpp"
#include "cli/commands/bench/read_rate.hpp"

namespace headwater::bench {

namespace {

constexpr std::int64_t kSteps = 256;  ///< tokens after the context; then the session is filled again
constexpr std::int64_t kChecked = 2;  ///< decode steps under the oracle's eyes

double kv_bytes(const Shape& shape, std::int64_t tokens) {
  return static_cast<double>(tokens * shape.n_head_kv * (shape.d_head + shape.d_value)) *
         static_cast<double>(dtype_size(shape.kv_type));
}

/// Steps and reads of as many bytes take turns, so that what slows the machine slows both.
void run_decode(benchmark::State& state, const LayerCase& layer, std::int64_t context) {
  Prepared* ready = nullptr;
  try {
    ready = &prepared(layer, context, kChecked);
  } catch (const std::exception& error) {
    state.SkipWithError(error.what());
    return;
  }
  const LineBytes rows(static_cast<std::size_t>(kv_bytes(layer.shape, context)));
  double step_seconds = 0.0;
  double reading_seconds = 0.0;
  for (auto _ : state) {
    if (ready->run.session().tokens() == layer.shape.capacity) ready->run.prefill(context);
    const double step = ready->run.decode().wall;
    state.SetIterationTime(step);
    step_seconds += step;
    reading_seconds += read_seconds(rows, layer.options.threads);
  }
  const auto steps = static_cast<double>(state.iterations());
  state.counters["bytes"] = steps * kv_bytes(layer.shape, context) / step_seconds;
  state.counters["read_bytes"] = steps * static_cast<double>(rows.size()) / reading_seconds;
  state.counters["share_of_reading"] = reading_seconds / step_seconds;
}

void add(const std::string& engine, DType type, std::int64_t context, int threads) {
  LayerCase layer = base_case(engine, type);
  layer.shape.n_head = 16;
  layer.shape.n_head_kv = 8;
  layer.shape.capacity = context + kSteps;
  layer.options.threads = threads;
  benchmark::RegisterBenchmark(("decode/context:" + std::to_string(context) + "/" + layer.name()).c_str(),
                               [=](benchmark::State& state) { run_decode(state, layer, context); })
      ->Unit(benchmark::kMillisecond)
      ->UseManualTime();
}

}  // namespace

void register_decode(bool full) {
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const int threads : {1, 2}) {
      for (std::int64_t context = 2048; context <= (full ? 32768 : 8192); context *= 4) {
        add("cpu", type, context, threads);
      }
      if (full) add("cpu", type, 65536, threads);
    }
  }
}

}  // namespace headwater::bench
