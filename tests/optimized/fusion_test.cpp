// P7.5: column sums are taken from the weights of the pass that computes the outputs. The kernels of a session are
// wrapped and log their calls: a pass of its own for the scores would compute logits that no output
// reads, or would come back to a block whose queries are gone.

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "core/config.hpp"
#include "core/numbers.hpp"
#include "cpu/cpu_session.hpp"
#include "cpu/dispatch.hpp"

namespace headwater::cpu {
namespace {

enum class Call : std::uint8_t { queries, logits, values, sums };

struct Event {
  Call call;
  const void* weights;
  std::int64_t keys;
};

constexpr int kThreads = 3;
std::array<std::vector<Event>, kThreads> logs;  // one per thread

void note(Call call, const void* weights = nullptr, std::int64_t keys = 0) {
  logs[static_cast<std::size_t>(omp_get_thread_num())].push_back({call, weights, keys});
}

KernelTable logging_kernels() {
  static const KernelTable& own = portable_kernels;
  KernelTable table = own;
  table.pack_queries = [](auto... arguments) {
    note(Call::queries);
    own.pack_queries(arguments...);
  };
  table.dot_products = [](const float* packed, std::int64_t lanes, std::int64_t d, const float* keys,
                          std::int64_t n_keys, float scale, float* block, const float* next) {
    note(Call::logits, block, n_keys);
    own.dot_products(packed, lanes, d, keys, n_keys, scale, block, next);
  };
  table.accumulate_values = [](const float* block, std::int64_t lanes, std::int64_t n_keys,
                               std::int64_t visible, const float* values, std::int64_t dv,
                               const float* rescale, float* out) {
    note(Call::values, block, n_keys);
    own.accumulate_values(block, lanes, n_keys, visible, values, dv, rescale, out);
  };
  table.column_sums = [](const float* block, std::int64_t lanes, std::int64_t n_keys, const float* factor,
                         double* sums) {
    note(Call::sums, block, n_keys);
    own.column_sums(block, lanes, n_keys, factor, sums);
  };
  return table;
}

const Bf16Table* bf16_of_variant = nullptr;

Bf16Table logging_bf16_kernels() {
  Bf16Table table = *bf16_of_variant;
  table.pack_queries = [](auto... arguments) {
    note(Call::queries);
    bf16_of_variant->pack_queries(arguments...);
  };
  table.softmax_weights = [](const Bf16Segment& segment, Bf16Softmax& softmax, std::uint16_t* weights) {
    note(Call::logits, weights, key_tiles(segment.n_keys));
    bf16_of_variant->softmax_weights(segment, softmax, weights);
  };
  table.accumulate = [](const std::uint16_t* weights, std::int64_t tiles, const std::uint16_t* values,
                        std::int64_t dv_padded, bool fresh, float* out) {
    note(Call::values, weights, tiles);
    bf16_of_variant->accumulate(weights, tiles, values, dv_padded, fresh, out);
  };
  table.column_sums = [](const std::uint16_t* weights, std::int64_t n_keys, const float* factor,
                         double* sums) {
    note(Call::sums, weights, key_tiles(n_keys));
    bf16_of_variant->column_sums(weights, n_keys, factor, sums);
  };
  return table;
}

/// What is wrong with the calls of one thread, or "". The weights of a block are computed once, multiplied with the
/// values, and added up before the next block's queries or weights take their place.
std::string fault_of(const std::vector<Event>& log) {
  std::vector<Event> open;  // weights that are not added up yet, in the state Call::logits or Call::values
  bool adding =
      false;  // after the first column sums of a block only column sums may follow, until all are done
  for (std::size_t i = 0; i < log.size(); ++i) {
    const Event& event = log[i];
    const std::string at = " at call " + std::to_string(i);
    const auto same = std::find_if(open.begin(), open.end(), [&](const Event& one) {
      return one.weights == event.weights && one.keys == event.keys;
    });
    switch (event.call) {
      case Call::queries:
        if (!open.empty()) return "new queries before the column sums of the last block" + at;
        break;
      case Call::logits:
        if (adding || same != open.end()) return "weights replaced before they were added up" + at;
        open.push_back(event);
        break;
      case Call::values:
        if (same == open.end() || same->call != Call::logits) return "values of unknown weights" + at;
        same->call = Call::values;
        break;
      case Call::sums:
        if (same == open.end()) return "column sums of unknown weights" + at;
        if (same->call != Call::values) return "logits computed for column sums alone" + at;
        open.erase(same);
        adding = !open.empty();
        break;
    }
  }
  return open.empty() ? "" : "weights that were never added up";
}

/// Runs a prefill of four chunks, the last a short one, and checks the log.
void expect_fused(const KernelTable& kernels, const Bf16Table* bf16, int threads) {
  constexpr std::int64_t kTokens = 700, kWidth = 32;
  const DType type = bf16 ? DType::bf16 : DType::f32;
  const Shape shape{
      .n_head = 4, .n_head_kv = 2, .d_head = kWidth, .d_value = kWidth, .capacity = kTokens, .kv_type = type};
  Options options;
  options.chunk = 200, options.batch = 800, options.local = 40, options.heavy = 50, options.threads = threads;
  const Variant variant{"logging", "", &kernels, bf16, {}, {}};
  CpuSession session(variant, shape, options, core::resolve(shape, options, 1));
  std::vector<float> wide(static_cast<std::size_t>(kTokens * shape.n_head * kWidth));
  for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = static_cast<float>(i * 2654435761U % 256U) / 256.0F;
  std::vector<unsigned char> rows(wide.size() * sizeof(float));
  core::convert_row(wide.data(), DType::f32, static_cast<std::int64_t>(wide.size()), rows.data(), type);
  std::vector<float> out(wide.size());
  for (auto& log : logs) log.clear();
  session.begin(Step::prefill(kTokens));
  session.attend(0, Rows::token_major(rows.data(), type, shape.n_head, kWidth),
                 Rows::token_major(rows.data(), type, shape.n_head_kv, kWidth),
                 Rows::token_major(rows.data(), type, shape.n_head_kv, kWidth),
                 MutableRows::token_major(out.data(), DType::f32, shape.n_head, kWidth), {});
  session.end();
  std::int64_t sums = 0;
  for (const auto& log : logs) {
    EXPECT_EQ(fault_of(log), "");
    sums += std::count_if(log.begin(), log.end(), [](const Event& one) { return one.call == Call::sums; });
  }
  EXPECT_GT(sums, 0);
}

// One thread has whole heads, and both passes of a block follow each other; three share the four heads, in two phases.
TEST(Fusion, P7_5_ColumnSumsAreOfTheWeightsThatMakeTheOutputs) {
  const KernelTable kernels = logging_kernels();
  for (const int threads : {1, kThreads}) expect_fused(kernels, nullptr, threads);
}

TEST(Fusion, P7_5_TheSameInBf16) {
  for (const Variant& variant : variants()) {
    if (!variant.bf16 || !variant.missing().empty()) continue;
    bf16_of_variant = variant.bf16;
    const KernelTable kernels = logging_kernels();
    const Bf16Table bf16 = logging_bf16_kernels();
    for (const int threads : {1, kThreads}) expect_fused(kernels, &bf16, threads);
  }
  if (bf16_of_variant == nullptr) GTEST_SKIP() << "no variant of this processor multiplies BF16 rows";
}

// The check itself: logs of passes that are not fused.
TEST(Fusion, ASecondPassIsSeen) {
  const int a = 0, b = 0;
  const std::vector<Event> fused = {{Call::queries, nullptr, 0}, {Call::logits, &a, 8}, {Call::values, &a, 8},
                                    {Call::logits, &b, 8},       {Call::values, &b, 8}, {Call::sums, &a, 8},
                                    {Call::sums, &b, 8}};
  EXPECT_EQ(fault_of(fused), "");
  std::vector<Event> again = fused;  // logits once more, for the sums
  again.insert(again.begin() + 5, {Call::logits, &a, 8});
  EXPECT_NE(fault_of(again), "");
  std::vector<Event> all_outputs_first = fused;  // sums after the next block's outputs
  all_outputs_first.insert(all_outputs_first.begin() + 5, {Call::queries, nullptr, 0});
  EXPECT_NE(fault_of(all_outputs_first), "");
  EXPECT_NE(fault_of({{Call::queries, nullptr, 0}, {Call::logits, &a, 8}, {Call::sums, &a, 8}}), "");
  EXPECT_NE(fault_of({{Call::queries, nullptr, 0}, {Call::logits, &a, 8}, {Call::values, &a, 8}}), "");
}

}  // namespace
}  // namespace headwater::cpu
