#include <fmt/format.h>
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "bench/plan_metrics/rows.hpp"
#include "cli/commands/bench/read_rate.hpp"
#include "cli/commands/bench/workload.hpp"
#include "core/config.hpp"
#include "core/kv_store.hpp"
#include "core/memory_sets.hpp"
#include "core/score_store.hpp"
#include "cpu/prefetch.hpp"

namespace headwater::bench {
namespace {

constexpr std::int64_t kHeads = 32, kLocal = 256, kHeavy = 256, kChunk = 1024, kTokens = 16384, kWidth = 128;
constexpr double kMilli = 1e3, kMicro = 1e6, kNano = 1e9, kGiga = 1e-9;

/// Results of timed loops are stored here, so that the compiler keeps the loops.
volatile std::uint64_t sink = 0;

std::vector<std::int32_t> random_positions(std::int64_t count, std::int64_t below, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> all(static_cast<std::size_t>(below));
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), random);
  all.resize(static_cast<std::size_t>(count));
  return all;
}

/// Nanoseconds from an entry of a memory set to its key row, each look-up waiting for the one before. All rows of the store
/// are written; the row that an entry names, and the entry itself, are flushed from every cache before each pass.
double lookup_nanoseconds(std::int64_t tokens) {
  const Shape shape{.d_head = kWidth, .d_value = 1, .capacity = tokens, .kv_type = DType::bf16};
  core::KvStore store(shape, core::resolve(shape, {}, 1));
  // The first element of a row is added to the next entry. It is zero, but the processor has to wait for it.
  const std::vector<std::uint16_t> row(kWidth, 0);
  const Rows view{row.data(), DType::bf16, 0, 0};
  store.reserve(0, tokens);
  store.make_room(0, 0, tokens);
  for (std::int64_t t = 0; t < tokens; ++t) store.write(0, 0, t, view, view, 0);
  const auto set = random_positions(kLocal + kHeavy, tokens, 1);
  std::vector<double> passes;
  for (int i = 0; i < 101; ++i) {
    for (const std::int32_t& position : set) {
      _mm_clflush(store.key(0, 0, position));
      _mm_clflush(&position);
    }
    _mm_mfence();
    const double seconds = seconds_of([&] {
      std::size_t entry = 0;
      for (std::size_t step = 0; step < set.size(); ++step) {
        std::uint16_t first = 0;
        std::memcpy(&first, store.key(0, 0, set[entry]), sizeof first);
        entry += first + 1U;
      }
      sink = entry;
    });
    passes.push_back(seconds);
  }
  return median(passes) * kNano / static_cast<double>(set.size());
}

core::ScoreStore random_scores(std::int64_t layers) {
  core::ScoreStore scores(layers, kHeads, kTokens, ScoreType::bf16);
  std::mt19937 random(2);
  std::gamma_distribution<float> sums(1.0F, 1.0F);
  std::vector<float> row(static_cast<std::size_t>(kTokens));
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    for (std::int64_t head = 0; head < kHeads; ++head) {
      for (float& sum : row) sum = sums(random);
      scores.initialise(layer, head, 0, kTokens, row.data());
    }
  }
  return scores;
}

/// Seconds of one new memory set of every head of `layers` layers, as between two chunks of a prefill.
double build_seconds(std::int64_t layers) {
  const core::ScoreStore scores = random_scores(layers);
  core::MemorySets sets(layers, kHeads, kLocal, kHeavy, kTokens);
  std::vector<std::uint32_t> keys(static_cast<std::size_t>(kTokens));
  std::vector<std::int32_t> chosen(static_cast<std::size_t>(sets.width()));
  std::int64_t end = 0;
  return median_seconds(15, [&] {
    end += kChunk;
    if (end > kTokens) {
      sets.reset();
      end = kChunk;
    }
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      for (std::int64_t head = 0; head < kHeads; ++head) {
        sets.build_head(layer, head, end, scores, keys.data(), chosen.data());
      }
      sets.finish(layer, end);
    }
  });
}

/// K and V rows of 8 heads in BF16, copied to the scratch memory of a head: by positions, as the CPU engine gathers them,
/// or rows as they lie. Each run takes another layer, so that the rows come from memory as in a prefill, where other layers
/// were read in between.
class Gather {
 public:
  Gather() : store_(shape(), core::resolve(shape(), {}, 1)), to_(2 * kRows * kRowBytes) {
    const std::vector<std::uint16_t> row(kWidth, 0x3F80);
    const Rows view{row.data(), DType::bf16, 0, 0};  // one row for all heads
    store_.reserve(0, kTokens);
    for (std::int64_t layer = 0; layer < kLayers; ++layer) store_.make_room(layer, 0, kTokens);
    for (std::int64_t row_at = 0; row_at < kLayers * kKvHeads * kTokens; ++row_at) {
      store_.write(row_at / (kKvHeads * kTokens), row_at / kTokens % kKvHeads, row_at % kTokens, view, view,
                   0);
    }
  }
  void gather(const std::vector<std::vector<std::int32_t>>& sets) {
    layer_ = (layer_ + 1) % kLayers;
    for (std::int64_t h = 0; h < kKvHeads; ++h) {
      std::byte* to = to_.data();
      const std::vector<std::int32_t>& set = sets[static_cast<std::size_t>(h)];
      cpu::for_gathered(store_, layer_, h, set.data(), static_cast<std::int64_t>(set.size()),
                        cpu::Fetch::both, [&](std::int64_t, const cpu::GatheredRows& rows) {
                          for (std::int64_t i = 0; i < rows.n; ++i) {
                            std::memcpy(to, rows.keys[i], kRowBytes);
                            std::memcpy(to + kRowBytes, rows.values[i], kRowBytes);
                            to += 2 * kRowBytes;
                          }
                        });
    }
    sink = static_cast<std::uint64_t>(to_.data()[0]);
  }
  /// Reads the same rows, prefetched alike, and keeps none of them: the difference is the cost of copying.
  void touch(const std::vector<std::vector<std::int32_t>>& sets) {
    std::uint64_t sum = 0;
    layer_ = (layer_ + 1) % kLayers;
    const auto add = [&](const void* row) {
      for (std::size_t line = 0; line < kRowBytes; line += core::kAlignment) {
        std::uint64_t word = 0;
        std::memcpy(&word, static_cast<const std::byte*>(row) + line, sizeof word);
        sum += word;
      }
    };
    for (std::int64_t h = 0; h < kKvHeads; ++h) {
      const std::vector<std::int32_t>& set = sets[static_cast<std::size_t>(h)];
      cpu::for_gathered(store_, layer_, h, set.data(), static_cast<std::int64_t>(set.size()),
                        cpu::Fetch::both, [&](std::int64_t, const cpu::GatheredRows& rows) {
                          for (std::int64_t i = 0; i < rows.n; ++i) {
                            add(rows.keys[i]);
                            add(rows.values[i]);
                          }
                        });
    }
    sink = sum;
  }
  /// The same bytes from contiguous rows.
  void copy() {
    layer_ = (layer_ + 1) % kLayers;
    for (std::int64_t h = 0; h < kKvHeads; ++h) {
      std::byte* to = to_.data();
      std::memcpy(to, store_.key(layer_, h, kChunk), kRows * kRowBytes);
      std::memcpy(to + kRows * kRowBytes, store_.value(layer_, h, kChunk), kRows * kRowBytes);
    }
    sink = static_cast<std::uint64_t>(to_.data()[0]);
  }
  /// A set for each head; `sorted` as the engine keeps them (MEM-4).
  [[nodiscard]] static std::vector<std::vector<std::int32_t>> sets(bool sorted) {
    std::vector<std::vector<std::int32_t>> all;
    for (unsigned h = 0; h < kKvHeads; ++h) {
      all.push_back(random_positions(kRows, kTokens, h));
      if (sorted) std::sort(all.back().begin(), all.back().end());
    }
    return all;
  }
  [[nodiscard]] static double bytes() { return static_cast<double>(2 * kKvHeads * kRows * kRowBytes); }

 private:
  static Shape shape() {
    return {.n_layer = kLayers,
            .n_head = kKvHeads,
            .n_head_kv = kKvHeads,
            .d_head = kWidth,
            .d_value = kWidth,
            .capacity = kTokens,
            .kv_type = DType::bf16};
  }
  static constexpr std::int64_t kLayers = 8, kKvHeads = 8, kRows = kLocal + kHeavy;
  static constexpr std::size_t kRowBytes = kWidth * sizeof(std::uint16_t);
  core::KvStore store_;
  std::vector<std::byte> to_;
  std::int64_t layer_ = 0;
};

}  // namespace

std::string memory_lookup() {
  return fmt::format("{:.0f} ns at 4k tokens, {:.0f} ns at 128k, rows written and flushed from every cache",
                     lookup_nanoseconds(4096), lookup_nanoseconds(131072));
}

std::string memory_set_build() {
  const double one = build_seconds(1) * kMilli;
  const double all = build_seconds(32) * kMilli;
  return fmt::format("{:.3f} ms a layer of 32 heads, {:.1f} ms 32 layers, one thread", one, all);
}

std::string score_update() {
  core::ScoreStore scores = random_scores(1);
  auto set = random_positions(kLocal + kHeavy, kTokens, 3);
  std::sort(set.begin(), set.end());
  const std::vector<float> sums(set.size(), 0.25F);
  constexpr int kCalls = 1000;
  const double seconds = median_seconds(9, [&] {
    for (int i = 0; i < kCalls; ++i) {
      scores.accumulate(0, i % kHeads, set.data(), static_cast<std::int64_t>(set.size()), sums.data());
    }
  });
  const double micro = seconds * kMicro / kCalls;
  return fmt::format("{:.2f} us", micro);
}

std::string gather_bandwidth() {
  Gather gather;
  const auto sorted = Gather::sets(true);
  constexpr std::size_t kPeakBytes = std::size_t{256} << 20;  // far beyond every cache
  LineBytes bytes(kPeakBytes);
  std::memset(bytes.data(), 1, bytes.size());
  const std::vector<double> seconds =
      medians_in_turn(15, {[&] { gather.gather(sorted); }, [&] { (void)read_seconds(bytes, 1); },
                           [&] { gather.touch(sorted); }, [&] { (void)read_seconds(bytes, 1); }});
  const double rate = Gather::bytes() / seconds[0];
  const double peak = static_cast<double>(bytes.size()) / std::min(seconds[1], seconds[3]);
  const double touched = Gather::bytes() / seconds[2];
  return fmt::format(
      "CPU, one thread: {:.1f} GB/s gathered, {:.0f} % of the {:.1f} GB/s that memory is "
      "read at in order; "
      "a loop that only reads these rows reaches {:.1f} GB/s, {:.0f} %",
      rate * kGiga, 100 * rate / peak, peak * kGiga, touched * kGiga, 100 * touched / peak);
}

std::string gather_against_copy() {
  Gather gather;
  const auto sorted = Gather::sets(true);
  const auto unsorted = Gather::sets(false);
  const std::vector<double> seconds = medians_in_turn(
      25, {[&] { gather.copy(); }, [&] { gather.gather(sorted); }, [&] { gather.gather(unsorted); }});
  return fmt::format("{:.0f} % of a contiguous copy; unsorted {:.0f} %", 100 * seconds[0] / seconds[1],
                     100 * seconds[0] / seconds[2]);
}

}  // namespace headwater::bench
