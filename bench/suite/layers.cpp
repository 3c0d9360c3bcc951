// Whole layers: sparse prefill and dense attention of every engine, and one sweep for each size that a user chooses.

#include <benchmark/benchmark.h>

#include <exception>

#include "bench/suite/suite.hpp"
#include "cli/support/calls.hpp"

namespace headwater::bench {

namespace {

/// Longest context of a dense run: its cost grows with the square.
constexpr std::int64_t kMostDense = 16384;
constexpr std::int64_t kMostDenseQuick = 4096;

void run_layer(benchmark::State& state, const LayerCase& layer) {
  const std::int64_t tokens = layer.shape.capacity;
  Prepared* ready = nullptr;
  try {
    ready = &prepared(layer, tokens, 0);
  } catch (const std::exception& error) {
    state.SkipWithError(error.what());
    return;
  }
  for (auto _ : state) benchmark::DoNotOptimize(ready->run.prefill(tokens).wall);
  const std::vector<cli::StepItem> all{{Step::prefill(tokens), {}}};
  const auto pairs = static_cast<double>(cli::measure(all, ready->run.options()).pairs);
  const auto runs = static_cast<double>(state.iterations());
  state.counters["flops"] =
      benchmark::Counter(runs * useful_flops(layer.shape, pairs), benchmark::Counter::kIsRate);
  state.counters["tokens"] =
      benchmark::Counter(runs * static_cast<double>(tokens), benchmark::Counter::kIsRate);
  state.counters["pairs"] = pairs;
}

void add(const LayerCase& layer) {
  auto* entry = benchmark::RegisterBenchmark(
      ((layer.options.dense ? "layer/dense/" : "layer/sparse/") + layer.name()).c_str(),
      [layer](benchmark::State& state) { run_layer(state, layer); });
  entry->Unit(benchmark::kMillisecond);
  // One thread is timed by its own clock, which other work on the machine does not move; more by the wall's.
  if (layer.options.threads > 1) entry->UseRealTime();
}

void add_both(LayerCase layer) {
  layer.options.dense = false;
  add(layer);
  layer.options.dense = true;
  add(layer);
}

void sweep_engines() {
  for (const std::string& engine : engine_names()) {
    if (engine == "cpu") continue;  // one of the others; the sweeps below are its own
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) add_both(base_case(engine, type));
  }
}

void sweep_tokens(DType type, bool full) {
  for (std::int64_t n = 1024; n <= (full ? 131072 : 32768); n *= 2) {
    LayerCase layer = base_case("cpu", type);
    layer.shape.capacity = n;
    add(layer);
    layer.options.dense = true;
    if (n <= (full ? kMostDense : kMostDenseQuick)) add(layer);
  }
}

void sweep_options(DType type) {
  for (const std::int64_t chunk : {256, 512, 2048}) {
    LayerCase layer = base_case("cpu", type);
    layer.options.chunk = chunk;
    layer.options.local = layer.options.heavy = chunk / 4;
    add(layer);
  }
  for (const std::int64_t memory : {128, 256, 1022}) {
    LayerCase layer = base_case("cpu", type);
    layer.options.local = layer.options.heavy = memory / 2;
    add(layer);
  }
  LayerCase chunk_major = base_case("cpu", type);
  chunk_major.options.schedule = Schedule::chunk_major;
  add(chunk_major);
  LayerCase two_threads = base_case("cpu", type);
  two_threads.options.threads = 2;
  add_both(two_threads);
  two_threads.options.schedule = Schedule::chunk_major;
  add(two_threads);
}

void sweep_shapes(DType type) {
  for (const auto& [heads, heads_kv] : {std::pair<int, int>{1, 1}, {4, 4}, {16, 1}, {16, 8}, {32, 8}}) {
    LayerCase layer = base_case("cpu", type);
    layer.shape.n_head = heads;
    layer.shape.n_head_kv = heads_kv;
    add(layer);
  }
  for (const auto& [d, dv] :
       {std::pair<int, int>{32, 32}, {64, 64}, {80, 80}, {96, 96}, {100, 100}, {192, 128}, {256, 256}}) {
    LayerCase layer = base_case("cpu", type);
    layer.shape.d_head = d;
    layer.shape.d_value = dv;
    add_both(layer);
  }
}

}  // namespace

void register_layers(bool full) {
  sweep_engines();
  for (const DType type : {DType::f32, DType::bf16}) {
    sweep_tokens(type, full);
    sweep_options(type);
    sweep_shapes(type);
  }
}

}  // namespace headwater::bench
