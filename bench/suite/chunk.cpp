// Attention of one head and chunk after a memory set, as the passes of the session have it, without what happens once a
// row of keys (storing, packing, gathering) or of outputs (fusion, the caller's memory): both passes of every block,
// queries packed, column sums in. Rows and column sums are compared with attention in double first.

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "bench/suite/suite.hpp"
#include "cli/commands/bench/clock.hpp"
#include "cli/commands/bench/peak.hpp"
#include "cli/commands/bench/workload.hpp"
#include "cli/support/statistics.hpp"
#include "conformance/formats.hpp"
#include "conformance/random.hpp"
#include "cpu/arithmetic/bf16_block.hpp"
#include "cpu/arithmetic/float_block.hpp"
#include "cpu/dispatch.hpp"

namespace headwater::bench {

namespace {

using cpu::kBlockRows;

constexpr std::int64_t kChunk = 1024;
constexpr std::int64_t kMemory = 512;
constexpr std::int64_t kPairs = kChunk * (kChunk + 1) / 2 + kChunk * kMemory;

/// Floats at a line's boundary.
struct Floats {
  explicit Floats(std::int64_t n) : count(n), bytes(static_cast<std::size_t>(n) * sizeof(float)) {}
  [[nodiscard]] float* data() { return reinterpret_cast<float*>(bytes.data()); }
  std::int64_t count;
  LineBytes bytes;
};

/// Rows of one head: queries and keys of the chunk, keys of the memory set, and outputs of both passes.
struct Head {
  Head(std::int64_t width, bool rounded) : d(width) {
    conformance::Random random(11);
    const auto fill = [&](Floats& rows, double deviation) {
      for (std::int64_t i = 0; i < rows.count; ++i) {
        auto& value = rows.data()[i];
        value = static_cast<float>(deviation * random.normal());
        if (rounded) value = conformance::bf16_value(conformance::bf16_bits(value));
      }
    };
    fill(queries, 2.0);
    fill(keys, 1.0);
    fill(values, 1.0);
    std::iota(positions.begin(), positions.end(), 0);
  }
  [[nodiscard]] double scale() const { return 1.0 / std::sqrt(static_cast<double>(d)); }
  [[nodiscard]] float* out_of(bool inter, std::int64_t row) {
    return out.data() + (inter ? kChunk + row : row) * d;
  }

  std::int64_t d;
  Floats queries{kChunk * d};
  Floats keys{(kChunk + kMemory) * d};  ///< of the chunk, then of the memory set
  Floats values{(kChunk + kMemory) * d};
  Floats out{2 * kChunk * d};  ///< of the intra pass, then of the inter pass
  std::vector<std::int32_t> positions = std::vector<std::int32_t>(kMemory);
  std::vector<double> sums = std::vector<double>(kChunk + kMemory);
};

/// Whether rows and column sums are those of attention in double to `unit` of their terms' sizes: more than rounding comes
/// to, which the conformance kit bounds, and less than a wrong key, mask or factor.
bool right(Head& head, double unit) {
  const auto dot = [&](const float* a, const float* b) {
    return std::inner_product(a, a + head.d, b, 0.0, std::plus<>(), [](float x, float y) {
      return static_cast<double>(x) * static_cast<double>(y);
    });
  };
  std::vector<double> sums(head.sums.size(), 0.0);
  for (std::int64_t row = 0; row < kChunk; ++row) {
    const float* query = head.queries.data() + row * head.d;
    for (const bool inter : {false, true}) {
      const std::int64_t first = inter ? kChunk : 0;
      const std::int64_t n = inter ? kMemory : row + 1;
      std::vector<double> weights(static_cast<std::size_t>(n));
      double l = 0.0;
      for (std::int64_t key = 0; key < n; ++key) {
        double& weight = weights[static_cast<std::size_t>(key)];
        weight = std::exp(head.scale() * dot(query, head.keys.data() + (first + key) * head.d));
        l += weight;
      }
      for (std::int64_t key = 0; key < n; ++key) {
        sums[static_cast<std::size_t>(first + key)] += weights[static_cast<std::size_t>(key)] / l;
      }
      if (row % 97 != 0) continue;
      for (std::int64_t column = 0; column < head.d; ++column) {
        double expected = 0.0;
        double size = 0.0;
        for (std::int64_t key = 0; key < n; ++key) {
          const double term = weights[static_cast<std::size_t>(key)] / l *
                              static_cast<double>(head.values.data()[(first + key) * head.d + column]);
          expected += term;
          size += std::fabs(term);
        }
        const auto got = static_cast<double>(head.out_of(inter, row)[column]);
        if (!(std::fabs(got - expected) <= unit * size)) return false;
      }
    }
  }
  for (std::size_t key = 0; key < sums.size(); ++key) {
    if (!(std::fabs(head.sums[key] - sums[key]) <= unit * sums[key])) return false;
  }
  return true;
}

/// As FloatArithmetic::attend.
class FloatChunk {
 public:
  static constexpr double kUnit = 2e-5;

  FloatChunk(const cpu::KernelTable& kernels, std::int64_t d)
      : head(d, false),
        kernels_(kernels),
        packed_(kBlockRows * d),
        weights_(kBlockRows * kChunk),
        maxima_(static_cast<std::size_t>(kBlockRows * kChunk)) {}

  void run() {
    std::fill(head.sums.begin(), head.sums.end(), 0.0);
    const Rows queries{head.queries.data(), DType::f32, head.d, head.d};
    for (std::int64_t row = 0; row < kChunk; row += kBlockRows) {
      cpu::load_queries(kernels_, queries, row, kBlockRows, 0, head.d, nullptr, packed_.data());
      pass(row, false);
      pass(row, true);
    }
  }

  Head head;

 private:
  void pass(std::int64_t row, bool inter) {
    const cpu::FloatBlock block{
        kernels_, static_cast<float>(head.scale()), {}, 0, head.d, head.d, kBlockRows, row, packed_.data(),
        state_,   head.out_of(inter, row)};
    const std::int64_t begin = inter ? kChunk : 0;
    const std::int64_t n_keys = inter ? kMemory : row + kBlockRows;
    const std::int64_t step = kernels_.segment_keys;
    block.start(-std::numeric_limits<float>::infinity());
    for (std::int64_t first = 0; first < n_keys; first += step) {
      const std::int64_t n = std::min(step, n_keys - first);
      const float* keys = head.keys.data() + (begin + first) * head.d;
      const float* values = head.values.data() + (begin + first) * head.d;
      if (inter) {
        block.add_gathered(keys, values, head.positions.data() + first, n,
                           weights_.data() + first * kBlockRows);
      } else {
        block.add_keys(keys, values, first, n, weights_.data() + first * kBlockRows);
      }
      std::copy_n(state_.max, kBlockRows, maxima_.data() + first / step * kBlockRows);
    }
    block.finish();
    for (std::int64_t first = 0; first < n_keys; first += step) {
      block.add_column_sums(weights_.data() + first * kBlockRows, maxima_.data() + first / step * kBlockRows,
                            std::min(step, n_keys - first), head.sums.data() + begin + first);
    }
    block.normalise();
  }

  const cpu::KernelTable& kernels_;
  Floats packed_;
  Floats weights_;
  std::vector<float> maxima_;
  cpu::SoftmaxState state_{};
};

/// As Bf16Arithmetic::attend.
class Bf16Chunk {
 public:
  static constexpr double kUnit = 0x1p-7;

  Bf16Chunk(const cpu::Bf16Table& kernels, std::int64_t d)
      : head(d, true),
        kernels_(kernels),
        queries_(bytes_of(head.queries.count)),
        keys_(bytes_of(head.keys.count)),
        packed_values_(bytes_of(head.values.count)),
        packed_(bytes_of(kBlockRows * d)),
        weights_(bytes_of(kBlockRows * kChunk)),
        out_(kBlockRows * d) {
    LineBytes values(bytes_of(head.values.count));
    narrow(head.queries, words(queries_));
    narrow(head.keys, words(keys_));
    narrow(head.values, words(values));
    cpu::pack_values(
        kernels_, kChunk + kMemory, d, [&](std::int64_t i) { return words(values) + i * d; },
        words(packed_values_));
  }

  void run() {
    std::fill(head.sums.begin(), head.sums.end(), 0.0);
    const Rows queries{words(queries_), DType::bf16, head.d, head.d};
    for (std::int64_t row = 0; row < kChunk; row += kBlockRows) {
      cpu::load_queries(kernels_, queries, row, kBlockRows, 0, head.d, words(packed_));
      pass(row, false);
      pass(row, true);
    }
  }

  Head head;

 private:
  static std::uint16_t* words(LineBytes& bytes) { return reinterpret_cast<std::uint16_t*>(bytes.data()); }
  static std::size_t bytes_of(std::int64_t count) { return static_cast<std::size_t>(count) * 2; }
  static void narrow(Floats& from, std::uint16_t* to) {
    std::transform(from.data(), from.data() + from.count, to, conformance::bf16_bits);
  }

  void pass(std::int64_t row, bool inter) {
    const cpu::Bf16Block block{kernels_, kBlockRows, -std::numeric_limits<float>::infinity(), softmax_,
                               out_.data()};
    const std::int64_t begin = inter ? kChunk : 0;
    cpu::Bf16Segment segment;
    segment.queries = words(packed_);
    segment.keys = words(keys_) + begin * head.d;
    segment.key_stride = segment.d = head.d;
    segment.n_keys = inter ? kMemory : row + kBlockRows;
    segment.factor = static_cast<float>(head.scale() / std::log(2.0));
    segment.positions = {row, 0, inter ? head.positions.data() : nullptr};
    block.start();
    kernels_.softmax_weights(segment, softmax_, words(weights_));
    block.accumulate(words(weights_), cpu::key_tiles(segment.n_keys), words(packed_values_) + begin * head.d,
                     head.d);
    if (block.finish(head.d, head.out_of(inter, row)) != 0) std::abort();  // no logits are that far apart
    alignas(64) float factor[kBlockRows];
    block.factors(softmax_.sum, factor);
    kernels_.column_sums(words(weights_), segment.n_keys, factor, head.sums.data() + begin);
  }

  const cpu::Bf16Table& kernels_;
  LineBytes queries_;
  LineBytes keys_;
  LineBytes packed_values_;
  LineBytes packed_;
  LineBytes weights_;
  Floats out_;
  cpu::Bf16Softmax softmax_{};
};

/// of_peak: the chunk and the loop of multiply-adds take turns.
template <class Chunk, class Table>
void run_chunk(benchmark::State& state, const Table& kernels, std::int64_t d, DType type) {
  Chunk chunk(kernels, d);
  chunk.run();
  if (!right(chunk.head, Chunk::kUnit)) {
    state.SkipWithError("differs from attention in double");
    return;
  }
  const Arithmetic& arithmetic = arithmetic_of(kernels.isa, type);
  const double flops = 4.0 * static_cast<double>(kPairs * d);
  std::vector<double> shares;
  for (auto _ : state) {
    const Seconds begin = seconds_now();
    chunk.run();
    const double seconds = (seconds_now() - begin).cpu;
    state.PauseTiming();
    shares.push_back(flops / seconds / peak_rate(arithmetic, 1, 0.002));
    state.ResumeTiming();
  }
  const auto calls = static_cast<double>(state.iterations());
  state.counters["flops"] = benchmark::Counter(calls * flops, benchmark::Counter::kIsRate);
  state.counters["of_peak"] = cli::median(shares);
}

}  // namespace

void register_chunks() {
  const auto add = [](const auto& kernels, DType type, auto run) {
    for (const std::int64_t d : {128, 64}) {
      benchmark::RegisterBenchmark(fmt::format("chunk/{}/type:{}/chunk:{}/memory:{}/d:{}", kernels.isa,
                                               dtype_name(type), kChunk, kMemory, d)
                                       .c_str(),
                                   [=, &kernels](benchmark::State& state) { run(state, kernels, d, type); });
    }
  };
  std::vector<const cpu::KernelTable*> tables;
  for (const cpu::Variant& variant : cpu::variants()) {
    if (!variant.missing().empty()) continue;
    const cpu::KernelTable* kernels = variant.kernels;
    if (std::find(tables.begin(), tables.end(), kernels) == tables.end()) {
      tables.push_back(kernels);  // engines of 16-bit arithmetic share the table of their F32 rows
      add(*kernels, DType::f32, run_chunk<FloatChunk, cpu::KernelTable>);
    }
    if (variant.bf16 == nullptr) continue;
    const cpu::Bf16Table& bf16 = *variant.bf16;
    if (std::string(bf16.isa).find("emulated") != std::string::npos) continue;  // of test builds
    add(bf16, DType::bf16, run_chunk<Bf16Chunk, cpu::Bf16Table>);
  }
}

}  // namespace headwater::bench
