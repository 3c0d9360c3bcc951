// The rate of an engine against the multiply-add rate of its instruction set on this machine, interleaved in one run.
//
// Usage: headwater-rate [--engine NAME] [--n 4096] [--heads 4] [--d 64] [--rounds 7] [--dense]
// Prints the median of each and their ratio; asserts nothing (these machines are noisy).

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "headwater/headwater.hpp"
#include "peak.hpp"

namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

using Flops = double (*)(std::int64_t);

double rate_of(Flops flops) {
  constexpr std::int64_t kTurns = 4'000'000;
  const double begin = seconds_now();
  const double done = flops(kTurns);
  return done / (seconds_now() - begin);
}

/// The multiply-add loop of the instruction set that an engine uses.
Flops peak_of(std::string_view isa) {
  if (isa == "AVX-512") return headwater::bench::avx512_flops;
  if (isa == "AVX2+FMA") return headwater::bench::avx2_flops;
  return headwater::bench::sse_flops;
}

}  // namespace

int main(int argc, char** argv) {
  std::string engine_name = "cpu-portable";
  std::int64_t n = 4096;
  std::int64_t heads = 4;
  std::int64_t d = 64;
  int rounds = 7;
  bool dense = false;
  CLI::App app{"Useful rate of an engine against the multiply-add rate of its ISA, interleaved, medians"};
  app.add_option("--engine", engine_name);
  app.add_option("--n", n)->check(CLI::Range(1, 1 << 20));
  app.add_option("--heads", heads)->check(CLI::Range(1, 1024));
  app.add_option("--d", d)->check(CLI::Range(1, 1024));
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000));
  app.add_flag("--dense", dense);
  CLI11_PARSE(app, argc, argv);

  headwater::Shape shape;
  shape.n_head = shape.n_head_kv = heads;
  shape.d_head = shape.d_value = d;
  shape.capacity = n;
  headwater::Options options;
  options.dense = dense;
  options.threads = 1;
  const headwater::Engine& engine = headwater::engine(engine_name);
  const Flops peak = peak_of(engine.isa());
  const auto session = engine.open(shape, options);

  std::vector<float> tensors[3];
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (auto& tensor : tensors) {
    tensor.resize(static_cast<std::size_t>(n * heads * d));
    for (float& x : tensor) x = normal(random);
  }
  std::vector<float> out(tensors[0].size());
  const auto rows = [&](const std::vector<float>& tensor) {
    return headwater::Rows::token_major(tensor.data(), headwater::DType::f32, heads, d);
  };

  double pairs = 0;
  std::vector<double> engine_rates;
  std::vector<double> peak_rates;
  for (int round = 0; round <= rounds; ++round) {  // round 0 warms up
    peak_rates.push_back(rate_of(peak));
    session->reset();
    const double begin = seconds_now();
    session->begin(headwater::Step::prefill(n));
    session->attend(0, rows(tensors[0]), rows(tensors[1]), rows(tensors[2]),
                    headwater::MutableRows::token_major(out.data(), headwater::DType::f32, heads, d));
    session->end();
    const double elapsed = seconds_now() - begin;
    pairs = 0;
    for (const headwater::Chunk& chunk : session->plan()) {
      const auto length = static_cast<double>(chunk.end - chunk.begin);
      const std::int64_t earlier = chunk.mode == headwater::ChunkMode::sparse
                                       ? std::min(session->options().memory(), chunk.begin)
                                       : chunk.begin;
      pairs += length * (length + 1) / 2 + length * static_cast<double>(earlier);
    }
    engine_rates.push_back(pairs * static_cast<double>(heads) * 4.0 * static_cast<double>(d) / elapsed);
  }
  peak_rates.erase(peak_rates.begin());
  engine_rates.erase(engine_rates.begin());
  const double engine_rate = median(engine_rates);
  const double peak_rate = median(peak_rates);
  std::printf("engine %s, N=%lld, %lld heads, d=%lld, F32, one thread, %s, %d rounds interleaved\n",
              engine_name.c_str(), static_cast<long long>(n), static_cast<long long>(heads),
              static_cast<long long>(d), dense ? "dense" : "sparse", rounds);
  std::printf("engine, useful     %8.2f GFLOP/s (4 d per visible pair, column sums not counted)\n",
              engine_rate * 1e-9);
  std::printf("multiply-add       %8.2f GFLOP/s (%s, registers only)\n", peak_rate * 1e-9,
              std::string(engine.isa()).c_str());
  std::printf("ratio              %8.1f %%\n", 100 * engine_rate / peak_rate);
  return 0;
}
