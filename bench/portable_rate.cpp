// The rate of an engine against the multiply-add rate of this machine's SSE unit, interleaved in one run.
//
// Usage: headwater-rate [--engine NAME] [--n 4096] [--heads 4] [--d 64] [--rounds 7] [--dense]
// Prints the median of each and their ratio; asserts nothing (these machines are noisy).

#include <emmintrin.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "headwater/headwater.hpp"

namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Flops per second of multiplications and additions on registers alone: x -> x * a + b in 12 chains, enough to
/// hide the latency of both.
double sse_rate() {
  constexpr int kChains = 12;
  constexpr std::int64_t kTurns = 4'000'000;
  __m128 x[kChains];
  for (__m128& value : x) value = _mm_set1_ps(1.0f);
  const __m128 a = _mm_set1_ps(0.5f);
  const __m128 b = _mm_set1_ps(0.5f);
  const double begin = seconds_now();
  for (std::int64_t turn = 0; turn < kTurns; ++turn) {
    for (__m128& value : x) value = _mm_add_ps(_mm_mul_ps(value, a), b);
    for (__m128& value : x) asm volatile("" : "+x"(value));  // the chains are real, none is folded
  }
  const double elapsed = seconds_now() - begin;
  return static_cast<double>(kTurns) * kChains * 8.0 / elapsed;
}

}  // namespace

int main(int argc, char** argv) {
  std::string engine_name = "cpu-portable";
  std::int64_t n = 4096;
  std::int64_t heads = 4;
  std::int64_t d = 64;
  int rounds = 7;
  bool dense = false;
  CLI::App app{"Useful rate of an engine against the SSE multiply-add rate, interleaved, medians"};
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
  const auto session = headwater::engine(engine_name).open(shape, options);

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
  std::vector<double> sse_rates;
  for (int round = 0; round <= rounds; ++round) {  // round 0 warms up
    sse_rates.push_back(sse_rate());
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
  sse_rates.erase(sse_rates.begin());
  engine_rates.erase(engine_rates.begin());
  const double engine_rate = median(engine_rates);
  const double sse = median(sse_rates);
  std::printf("engine %s, N=%lld, %lld heads, d=%lld, F32, one thread, %s, %d rounds interleaved\n",
              engine_name.c_str(), static_cast<long long>(n), static_cast<long long>(heads),
              static_cast<long long>(d), dense ? "dense" : "sparse", rounds);
  std::printf("engine, useful     %8.2f GFLOP/s (4 d per visible pair, column sums not counted)\n",
              engine_rate * 1e-9);
  std::printf("SSE multiply-add   %8.2f GFLOP/s (registers only)\n", sse * 1e-9);
  std::printf("ratio              %8.1f %%\n", 100 * engine_rate / sse);
  return 0;
}
