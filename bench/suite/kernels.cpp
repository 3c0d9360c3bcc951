// The kernels of every instruction set at the sizes of a block. Each is compared with its definition in double on the
// same data first; the bounds are the worst case of so many roundings in F32, as in tests/optimized/kernels_test.cpp.

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "bench/suite/suite.hpp"
#include "cli/commands/bench/peak.hpp"
#include "conformance/formats.hpp"
#include "conformance/random.hpp"
#include "cpu/dispatch.hpp"

namespace headwater::bench {

namespace {

using cpu::kBlockRows;
using cpu::KernelTable;

constexpr std::int64_t kWidth = 128;
constexpr double kUnit = 0x1p-24;
constexpr double kExp = 4.0;  ///< an exponential of 2 ulp

std::vector<float> normals(std::int64_t count, std::uint64_t seed) {
  conformance::Random random(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(random.normal());
  return values;
}

/// A block of queries against the keys of one segment, from packing to column sums.
struct Block {
  explicit Block(const KernelTable& table)
      : kernels(table),
        n_keys(std::min<std::int64_t>(table.segment_keys, 256)),
        queries(normals(kBlockRows * kWidth, 1)),
        keys(normals(n_keys * kWidth, 2)),
        values(normals(n_keys * kWidth, 3)),
        packed(static_cast<std::size_t>(kBlockRows * kWidth)),
        logits(static_cast<std::size_t>(n_keys * kBlockRows)),
        weights(logits.size()),
        out(static_cast<std::size_t>(kBlockRows * kWidth)),
        sums(static_cast<std::size_t>(n_keys)) {
    kernels.pack_queries(queries.data(), kWidth, kBlockRows, kWidth, packed.data());
    dot_products();
    restart();
    softmax();
    accumulate();
  }

  void dot_products() {
    kernels.dot_products(packed.data(), kBlockRows, kWidth, keys.data(), n_keys, scale, logits.data(),
                         values.data());
  }
  void restart() {
    std::fill_n(state.max, kBlockRows, -INFINITY);
    std::fill_n(state.sum, kBlockRows, 0.0f);
    std::fill(out.begin(), out.end(), 0.0f);
  }
  void softmax() {
    weights = logits;
    kernels.softmax(kBlockRows, n_keys, weights.data(), state);
  }
  void accumulate() {
    kernels.accumulate_values(weights.data(), kBlockRows, n_keys, n_keys, values.data(), kWidth,
                              state.rescale, out.data());
  }
  void column_sums() { kernels.column_sums(weights.data(), kBlockRows, n_keys, state.sum, sums.data()); }

  const KernelTable& kernels;
  std::int64_t n_keys;
  float scale = 0.08838834764831845f;  // 1 / sqrt(128)
  std::vector<float> queries, keys, values, packed, logits, weights, out;
  std::vector<double> sums;
  cpu::SoftmaxState state{};
};

bool near(double got, double wanted, double bound) { return std::fabs(got - wanted) <= bound; }

bool dot_products_right(const Block& block) {
  for (std::int64_t key = 0; key < block.n_keys; ++key) {
    for (std::int64_t lane = 0; lane < kBlockRows; ++lane) {
      double sum = 0.0;
      double size = 0.0;
      for (std::int64_t e = 0; e < kWidth; ++e) {
        const double product =
            static_cast<double>(block.queries[static_cast<std::size_t>(lane * kWidth + e)]) *
            static_cast<double>(block.keys[static_cast<std::size_t>(key * kWidth + e)]);
        sum += product;
        size += std::fabs(product);
      }
      const auto scale = static_cast<double>(block.scale);
      if (!near(static_cast<double>(block.logits[static_cast<std::size_t>(key * kBlockRows + lane)]),
                scale * sum, scale * static_cast<double>(kWidth + 1) * kUnit * size)) {
        return false;
      }
    }
  }
  return true;
}

bool softmax_right(const Block& block) {
  for (std::int64_t lane = 0; lane < kBlockRows; ++lane) {
    double max = -INFINITY;
    double sum = 0.0;
    const auto at = [&](std::int64_t key) { return static_cast<std::size_t>(key * kBlockRows + lane); };
    for (std::int64_t key = 0; key < block.n_keys; ++key) {
      max = std::max(max, static_cast<double>(block.logits[at(key)]));
    }
    for (std::int64_t key = 0; key < block.n_keys; ++key) {
      const double shift = static_cast<double>(block.logits[at(key)]) - max;
      const double weight = std::exp(shift);
      sum += weight;
      if (!near(static_cast<double>(block.weights[at(key)]), weight,
                weight * kUnit * (kExp + 2.0 * std::fabs(shift)))) {
        return false;
      }
    }
    if (static_cast<double>(block.state.max[lane]) != max) return false;
    const double roundings =
        static_cast<double>(block.n_keys) + kExp + 2.0 * 16.0;  // no shift here exceeds 16
    if (!near(static_cast<double>(block.state.sum[lane]), sum, sum * kUnit * roundings)) return false;
  }
  return true;
}

bool values_right(const Block& block) {
  for (std::int64_t lane = 0; lane < kBlockRows; ++lane) {
    for (std::int64_t c = 0; c < kWidth; ++c) {
      double sum = 0.0;
      double size = 0.0;
      for (std::int64_t key = 0; key < block.n_keys; ++key) {
        const double term =
            static_cast<double>(block.weights[static_cast<std::size_t>(key * kBlockRows + lane)]) *
            static_cast<double>(block.values[static_cast<std::size_t>(key * kWidth + c)]);
        sum += term;
        size += std::fabs(term);
      }
      if (!near(static_cast<double>(block.out[static_cast<std::size_t>(lane * kWidth + c)]), sum,
                static_cast<double>(block.n_keys + 1) * kUnit * size)) {
        return false;
      }
    }
  }
  return true;
}

bool column_sums_right(Block& block) {
  std::fill(block.sums.begin(), block.sums.end(), 0.0);
  block.column_sums();
  for (std::int64_t key = 0; key < block.n_keys; ++key) {
    double sum = 0.0;
    for (std::int64_t lane = 0; lane < kBlockRows; ++lane) {
      sum += static_cast<double>(block.weights[static_cast<std::size_t>(key * kBlockRows + lane)]) *
             static_cast<double>(block.state.sum[lane]);
    }
    if (!near(block.sums[static_cast<std::size_t>(key)], sum,
              sum * kUnit * static_cast<double>(kBlockRows + 1))) {
      return false;
    }
  }
  return true;
}

/// One kernel: what is called, whether it was right, and its flops (0 where they say nothing).
struct Stage {
  const char* name;
  void (*call)(Block&);
  bool (*right)(Block&);
  double (*flops)(const Block&);
};

double matrix_flops(const Block& block) {
  return 2.0 * static_cast<double>(kBlockRows * block.n_keys * kWidth);
}
double sum_flops(const Block& block) { return 2.0 * static_cast<double>(kBlockRows * block.n_keys); }
double no_flops(const Block& /*block*/) { return 0.0; }

constexpr Stage kStages[] = {
    {"pack_queries",
     [](Block& block) {
       block.kernels.pack_queries(block.queries.data(), kWidth, kBlockRows, kWidth, block.packed.data());
     },
     [](Block& block) { return dot_products_right(block); }, no_flops},
    {"dot_products", [](Block& block) { block.dot_products(); },
     [](Block& block) { return dot_products_right(block); }, matrix_flops},
    // The running state settles after the first call; every call after it costs the same.
    {"softmax", [](Block& block) { block.softmax(); }, [](Block& block) { return softmax_right(block); },
     no_flops},
    {"accumulate_values", [](Block& block) { block.accumulate(); },
     [](Block& block) { return values_right(block); }, matrix_flops},
    {"column_sums", [](Block& block) { block.column_sums(); },
     [](Block& block) { return column_sums_right(block); }, sum_flops},
};

void run_stage(benchmark::State& state, const KernelTable& kernels, const Stage& stage) {
  Block block(kernels);
  if (!stage.right(block)) {
    state.SkipWithError("differs from its definition in double");
    return;
  }
  for (auto _ : state) {
    stage.call(block);
    benchmark::ClobberMemory();
  }
  const auto calls = static_cast<double>(state.iterations());
  const auto pairs = static_cast<double>(kBlockRows * block.n_keys);
  state.counters["pairs"] = benchmark::Counter(calls * pairs, benchmark::Counter::kIsRate);
  if (const double flops = stage.flops(block); flops > 0.0) {
    state.counters["flops"] = benchmark::Counter(calls * flops, benchmark::Counter::kIsRate);
  }
}

/// Rows of a memory set to floats, one by one from where they lie among 4096; against the same rows in one piece.
void run_gather(benchmark::State& state, const KernelTable& kernels, DType type, bool gathered) {
  constexpr std::int64_t kTokens = 4096;
  constexpr std::int64_t kRows = 512;
  const auto wide = normals(kTokens * kWidth, 4);
  const auto element = static_cast<std::int64_t>(dtype_size(type));
  LineBytes stored(static_cast<std::size_t>(kTokens * kWidth * element));
  for (std::int64_t i = 0; i < kTokens * kWidth; ++i) {
    conformance::store_element(type, wide[static_cast<std::size_t>(i)], stored.data() + i * element);
  }
  std::vector<std::int64_t> positions;
  conformance::Random random(5);
  for (std::int64_t i = 0; i < kRows; ++i) {
    positions.push_back(gathered ? i * (kTokens / kRows) + random.integer(0, kTokens / kRows - 1) : i);
  }
  std::vector<float> rows(static_cast<std::size_t>(kRows * kWidth));
  const auto copy = [&] {
    if (!gathered) {
      kernels.widen(stored.data(), type, kRows * kWidth, rows.data());
      return;
    }
    for (std::int64_t i = 0; i < kRows; ++i) {
      kernels.widen(stored.data() + positions[static_cast<std::size_t>(i)] * kWidth * element, type, kWidth,
                    rows.data() + i * kWidth);
    }
  };
  copy();
  for (std::int64_t i = 0; i < kRows * kWidth; ++i) {
    const std::int64_t from = positions[static_cast<std::size_t>(i / kWidth)] * kWidth + i % kWidth;
    if (rows[static_cast<std::size_t>(i)] !=
        conformance::load_element(type, stored.data() + from * element)) {
      state.SkipWithError("a row differs from the one that is stored");
      return;
    }
  }
  for (auto _ : state) {
    copy();
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * kRows * kWidth * element);
}

void run_peak(benchmark::State& state, const Arithmetic& arithmetic) {
  constexpr std::int64_t kTurns = 10000;
  double flops = 0.0;
  for (auto _ : state) flops += arithmetic.flops(kTurns);
  state.counters["flops"] = benchmark::Counter(flops, benchmark::Counter::kIsRate);
}

}  // namespace

void register_kernels() {
  for (const Arithmetic& arithmetic : arithmetics()) {
    if (!arithmetic.missing().empty()) continue;
    benchmark::RegisterBenchmark(fmt::format("peak/{}", arithmetic.name).c_str(),
                                 [&](benchmark::State& state) { run_peak(state, arithmetic); });
  }
  std::vector<const KernelTable*> tables;
  for (const cpu::Variant& variant : cpu::variants()) {
    const KernelTable* kernels = variant.kernels;
    if (!variant.missing().empty() || std::find(tables.begin(), tables.end(), kernels) != tables.end())
      continue;
    tables.push_back(kernels);  // engines of 16-bit arithmetic share the table of their F32 rows
    for (const Stage& stage : kStages) {
      benchmark::RegisterBenchmark(fmt::format("kernel/{}/{}/d:128", stage.name, kernels->isa).c_str(),
                                   [=](benchmark::State& state) { run_stage(state, *kernels, stage); });
    }
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
      for (const bool gathered : {false, true}) {
        benchmark::RegisterBenchmark(
            fmt::format("kernel/{}/{}/rows:512/d:128/type:{}", gathered ? "gather" : "copy", kernels->isa,
                        dtype_name(type))
                .c_str(),
            [=](benchmark::State& state) { run_gather(state, *kernels, type, gathered); });
      }
    }
  }
}

}  // namespace headwater::bench
