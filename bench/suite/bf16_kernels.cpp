// The kernels of BF16 arithmetic at the sizes of a block, compared with their definitions in double first. Bounds: an
// exponential of 3.5e-6 and one rounding of a weight to BF16; sums in F32.

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "bench/suite/suite.hpp"
#include "conformance/formats.hpp"
#include "conformance/random.hpp"
#include "cpu/dispatch.hpp"
#include "cpu/kernels/bf16/table.hpp"

namespace headwater::bench {

namespace {

using cpu::Bf16Table;
using cpu::kBlockRows;
using cpu::kKeyTile;
using cpu::kTileWeights;

constexpr std::int64_t kWidth = 128;
constexpr std::int64_t kKeys = 256;
constexpr double kUnit = 0x1p-24;
constexpr double kWeightUnit = 0x1p-8;
constexpr double kExp = 4e-6;

/// BF16 rows at a line's boundary, and what they stand for.
struct Bf16Rows {
  Bf16Rows(std::int64_t rows, double deviation, std::uint64_t seed)
      : bytes(static_cast<std::size_t>(rows * kWidth) * sizeof(std::uint16_t)) {
    conformance::Random random(seed);
    for (std::int64_t i = 0; i < rows * kWidth; ++i) {
      data()[i] = conformance::bf16_bits(static_cast<float>(deviation * random.normal()));
    }
  }
  [[nodiscard]] std::uint16_t* data() { return reinterpret_cast<std::uint16_t*>(bytes.data()); }
  [[nodiscard]] double at(std::int64_t row, std::int64_t x) const {
    const auto* from = reinterpret_cast<const std::uint16_t*>(bytes.data());
    return static_cast<double>(conformance::bf16_value(from[row * kWidth + x]));
  }
  LineBytes bytes;
};

std::uint16_t* words(LineBytes& bytes) { return reinterpret_cast<std::uint16_t*>(bytes.data()); }
float* floats(LineBytes& bytes) { return reinterpret_cast<float*>(bytes.data()); }

/// A block of queries against 256 keys that all of them see.
struct Bf16Block {
  explicit Bf16Block(const Bf16Table& table)
      : kernels(table),
        queries(kBlockRows, 2.0, 1),
        keys(kKeys, 1.0, 2),
        values(kKeys, 1.0, 3),
        packed(static_cast<std::size_t>(kBlockRows * kWidth) * 2),
        packed_values(static_cast<std::size_t>(kKeys * kWidth) * 2),
        weights(static_cast<std::size_t>(cpu::key_tiles(kKeys) * kTileWeights) * 2),
        out(static_cast<std::size_t>(kWidth * kBlockRows) * sizeof(float)),
        sums(static_cast<std::size_t>(kKeys)) {
    segment.keys = keys.data();
    segment.key_stride = segment.d = kWidth;
    segment.n_keys = kKeys;
    segment.queries = words(packed);
    segment.factor = static_cast<float>(std::log2(std::exp(1.0)) / std::sqrt(static_cast<double>(kWidth)));
    segment.positions.first_row = kKeys;
    std::fill_n(factor, kBlockRows, 0.03125f);
    pack_queries();
    pack_values();
    softmax_weights();
    accumulate();
  }

  void pack_queries() {
    kernels.pack_queries(queries.data(), 2 * kWidth, kBlockRows, kWidth, kWidth, words(packed));
  }
  void pack_values() {
    for (std::int64_t first = 0; first < kKeys; first += kKeyTile) {
      const void* rows[kKeyTile];
      for (std::int64_t i = 0; i < kKeyTile; ++i) rows[i] = values.data() + (first + i) * kWidth;
      kernels.pack_values(rows, kKeyTile, kWidth, kWidth, words(packed_values) + first * kWidth);
    }
  }
  void softmax_weights() {
    std::fill_n(softmax.offset, kBlockRows, -INFINITY);
    std::fill_n(softmax.sum, kBlockRows, 0.0f);
    std::fill_n(softmax.rounded, kBlockRows, 0.0f);
    softmax.anchored = false;
    kernels.softmax_weights(segment, softmax, words(weights));
  }
  void accumulate() {
    kernels.accumulate(words(weights), cpu::key_tiles(kKeys), words(packed_values), kWidth, false,
                       floats(out));
  }
  void column_sums() { kernels.column_sums(words(weights), kKeys, factor, sums.data()); }

  [[nodiscard]] double weight(std::int64_t key, std::int64_t lane) {
    const std::int64_t in_tile = key % kKeyTile;
    return static_cast<double>(conformance::bf16_value(
        words(weights)[key / kKeyTile * kTileWeights + (in_tile / 2 * kBlockRows + lane) * 2 + in_tile % 2]));
  }

  const Bf16Table& kernels;
  Bf16Rows queries, keys, values;
  LineBytes packed, packed_values, weights, out;
  std::vector<double> sums;
  alignas(64) float factor[kBlockRows];
  cpu::Bf16Segment segment;
  cpu::Bf16Softmax softmax{};
};

bool weights_right(Bf16Block& block) {
  for (std::int64_t lane = 0; lane < kBlockRows; ++lane) {
    double sum = 0.0;
    double sum_error = 0.0;
    for (std::int64_t key = 0; key < kKeys; ++key) {
      double product = 0.0;
      double size = 0.0;
      for (std::int64_t x = 0; x < kWidth; ++x) {
        const double term = block.queries.at(lane, x) * block.keys.at(key, x);
        product += term;
        size += std::fabs(term);
      }
      const auto factor = static_cast<double>(block.segment.factor);
      const double shift = factor * product - static_cast<double>(block.softmax.offset[lane]);
      const double wanted = std::exp2(shift);
      const double error =
          kExp + (static_cast<double>(kWidth + 4) * size * factor + std::fabs(shift)) * kUnit;
      if (!(std::fabs(block.weight(key, lane) - wanted) <= wanted * (error + kWeightUnit))) return false;
      sum += wanted;
      sum_error += wanted * error;
    }
    const double bound = sum_error + sum * kUnit * static_cast<double>(kKeys);
    if (!(std::fabs(static_cast<double>(block.softmax.sum[lane]) - sum) <= bound)) return false;
  }
  return true;
}

/// Of the weights as they are: they were judged above.
bool accumulation_right(Bf16Block& block) {
  for (std::int64_t lane = 0; lane < kBlockRows; ++lane) {
    for (std::int64_t x = 0; x < kWidth; ++x) {
      double sum = 0.0;
      double size = 0.0;
      for (std::int64_t key = 0; key < kKeys; ++key) {
        const double term = block.weight(key, lane) * block.values.at(key, x);
        sum += term;
        size += std::fabs(term);
      }
      const auto got = static_cast<double>(floats(block.out)[x * kBlockRows + lane]);
      if (!(std::fabs(got - sum) <= size * kUnit * static_cast<double>(kKeys + 1))) return false;
    }
  }
  return true;
}

bool column_sums_right(Bf16Block& block) {
  std::fill(block.sums.begin(), block.sums.end(), 0.0);
  block.column_sums();
  for (std::int64_t key = 0; key < kKeys; ++key) {
    double sum = 0.0;
    for (std::int64_t lane = 0; lane < kBlockRows; ++lane) {
      sum += block.weight(key, lane) * static_cast<double>(block.factor[lane]);
    }
    if (!(std::fabs(block.sums[static_cast<std::size_t>(key)] - sum) <= sum * kUnit * (kBlockRows + 1)))
      return false;
  }
  return true;
}

struct Stage {
  const char* name;
  void (*call)(Bf16Block&);
  bool (*right)(Bf16Block&);
  double flops;
};

constexpr double kProductFlops = 2.0 * static_cast<double>(kBlockRows * kKeys * kWidth);

constexpr Stage kStages[] = {
    {"pack_queries", [](Bf16Block& block) { block.pack_queries(); }, weights_right, 0.0},
    {"pack_values", [](Bf16Block& block) { block.pack_values(); }, accumulation_right, 0.0},
    {"softmax_weights", [](Bf16Block& block) { block.softmax_weights(); }, weights_right, kProductFlops},
    {"accumulate_values", [](Bf16Block& block) { block.accumulate(); }, accumulation_right, kProductFlops},
    {"column_sums", [](Bf16Block& block) { block.column_sums(); }, column_sums_right, 0.0},
};

void run_stage(benchmark::State& state, const Bf16Table& kernels, const Stage& stage) {
  Bf16Block block(kernels);
  if (!stage.right(block)) {
    state.SkipWithError("differs from its definition in double");
    return;
  }
  for (auto _ : state) {
    stage.call(block);
    benchmark::ClobberMemory();
  }
  const auto calls = static_cast<double>(state.iterations());
  state.counters["pairs"] =
      benchmark::Counter(calls * static_cast<double>(kBlockRows * kKeys), benchmark::Counter::kIsRate);
  if (stage.flops > 0.0) {
    state.counters["flops"] = benchmark::Counter(calls * stage.flops, benchmark::Counter::kIsRate);
  }
}

}  // namespace

void register_bf16_kernels() {
  for (const cpu::Variant& variant : cpu::variants()) {
    if (variant.bf16 == nullptr || !variant.missing().empty()) continue;
    const Bf16Table* kernels = variant.bf16;
    if (std::string(kernels->isa).find("emulated") != std::string::npos) continue;  // of test builds
    for (const Stage& stage : kStages) {
      benchmark::RegisterBenchmark(fmt::format("bf16/{}/{}/d:128", stage.name, kernels->isa).c_str(),
                                   [=](benchmark::State& state) { run_stage(state, *kernels, stage); });
    }
  }
}

}  // namespace headwater::bench
