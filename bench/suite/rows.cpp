// What decoding one token does with the weights: dot products of rows with one row of activations, per stored type and
// instruction set, as a file has them and in groups. The rows lie in a cache, so that the kernel alone decides.

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "bench/suite/suite.hpp"
#include "cli/commands/bench/random_model.hpp"
#include "runtime/gguf/row_groups.hpp"
#include "runtime/gguf/row_kernels.hpp"
#include "runtime/model/aligned_buffer.hpp"

namespace headwater::bench {

namespace {

using runtime::kFixedRun;
using runtime::RowKernels;
using runtime::TensorType;

constexpr std::int64_t kDepth = 2048;
constexpr std::int64_t kRows = 64;

/// Rows of random weights of a type, and a row to multiply them with.
class StoredRows {
 public:
  explicit StoredRows(TensorType type)
      : file_(
            in_memory(RandomModel({"rows", "llama", 1, kDepth, 4, 1, 64, 256, kRows, 1, 1e4, true}, type, 1),
                      "rows", 1)),
        rows_(&file_->tensor("token_embd.weight")) {
    for (std::int64_t i = 0; i < kDepth; ++i) x_.push_back(std::sin(static_cast<float>(i)));
  }
  [[nodiscard]] const std::byte* row(std::int64_t i) const { return rows_->row(i); }
  [[nodiscard]] const std::vector<float>& x() const { return x_; }

 private:
  std::shared_ptr<const runtime::GgufFile> file_;
  const runtime::Tensor* rows_;
  std::vector<float> x_;
};

/// A tenth of a percent of the size of the sum: the bounds are those of the tests.
bool right(const StoredRows& rows, TensorType type, const std::vector<float>& results) {
  std::vector<float> wide(kDepth);
  for (std::int64_t r = 0; r < kRows; ++r) {
    runtime::dequantize_row(type, rows.row(r), kDepth, wide.data());
    double sum = 0.0;
    double size = 0.0;
    for (std::size_t i = 0; i < wide.size(); ++i) {
      const double term = static_cast<double>(wide[i]) * static_cast<double>(rows.x()[i]);
      sum += term;
      size += std::fabs(term);
    }
    if (std::fabs(static_cast<double>(results[static_cast<std::size_t>(r)]) - sum) > 1e-3 * size)
      return false;
  }
  return true;
}

/// multiply() fills results.
template <class Multiply>
void check_and_time(benchmark::State& state, const StoredRows& rows, TensorType type,
                    const std::vector<float>& results, const Multiply& multiply) {
  multiply();
  if (!right(rows, type, results)) {
    state.SkipWithError("a dot product is wrong");
    return;
  }
  for (auto _ : state) {
    multiply();
    benchmark::DoNotOptimize(results.data());
  }
  state.SetBytesProcessed(state.iterations() * kRows * runtime::row_bytes(type, kDepth));
}

void run(benchmark::State& state, const RowKernels& kernels, TensorType type, bool fixed) {
  const StoredRows rows(type);
  const auto index = static_cast<std::size_t>(type);
  std::vector<std::int16_t> codes(kDepth);
  std::vector<float> scales(kDepth / kFixedRun);
  std::vector<float> sums(scales.size());
  kernels.fix(rows.x().data(), kDepth, codes.data(), scales.data(), sums.data());
  runtime::FixedRow row{codes.data(), scales.data(), sums.data(), nullptr};
  const runtime::AlignedBuffer arranged(runtime::arranged_row_bytes(kDepth));
  if (kernels.arrange[index] != nullptr) {
    kernels.arrange[index](row, kDepth, arranged.data());
    row.arranged = arranged.data();
  }
  std::vector<float> results(kRows);
  const auto multiply = [&] {
    for (std::int64_t r = 0; r < kRows; ++r) {
      results[static_cast<std::size_t>(r)] = fixed ? kernels.dot_fixed[index](rows.row(r), kDepth, row)
                                                   : kernels.dot[index](rows.row(r), kDepth, rows.x().data());
    }
  };
  check_and_time(state, rows, type, results, multiply);
}

void run_groups(benchmark::State& state, const RowKernels& kernels, TensorType type) {
  const StoredRows rows(type);
  const auto index = static_cast<std::size_t>(type);
  const std::size_t bytes = runtime::group_bytes(type, kDepth);
  const runtime::AlignedBuffer fixed(runtime::fixed_row_bytes(kDepth));
  const runtime::AlignedBuffer arranged(runtime::arranged_for_groups_bytes(kDepth));
  kernels.groups->arrange[index](runtime::fix_row(rows.x().data(), kDepth, fixed.data()), kDepth,
                                 arranged.data());
  constexpr std::int64_t kGroups = kRows / runtime::kRowsOfGroup;
  const runtime::AlignedBuffer groups(bytes * static_cast<std::size_t>(kGroups));
  for (std::int64_t g = 0; g < kGroups; ++g) {
    runtime::pack_group(type, rows.row(g * runtime::kRowsOfGroup), runtime::kRowsOfGroup, kDepth,
                        groups.data() + static_cast<std::size_t>(g) * bytes);
  }
  std::vector<float> results(kRows);
  const std::byte* const x = arranged.data();
  const auto multiply = [&] {
    for (std::int64_t g = 0; g < kGroups; ++g) {
      kernels.groups->dot[index](groups.data() + static_cast<std::size_t>(g) * bytes, kDepth, &x, 1,
                                 results.data() + g * runtime::kRowsOfGroup, runtime::kRowsOfGroup);
    }
  };
  check_and_time(state, rows, type, results, multiply);
}

}  // namespace

void register_rows() {
  for (const runtime::RowKernelVariant& variant : runtime::row_kernel_variants()) {
    if (!variant.missing().empty()) continue;
    const RowKernels& kernels = *variant.kernels;
    for (const runtime::TensorTypeInfo& info : runtime::tensor_types()) {
      for (const bool fixed : {false, true}) {
        if (fixed && !runtime::is_quantised(info.type)) continue;
        const auto name =
            fmt::format("row/isa:{}/type:{}/x:{}", kernels.isa, info.name, fixed ? "fixed" : "F32");
        benchmark::RegisterBenchmark(name.c_str(), [&kernels, type = info.type, fixed](auto& state) {
          run(state, kernels, type, fixed);
        });
      }
      if (kernels.groups == nullptr || !runtime::is_quantised(info.type)) continue;
      const auto name = fmt::format("row/isa:{}/type:{}/x:groups", kernels.isa, info.name);
      benchmark::RegisterBenchmark(
          name.c_str(), [&kernels, type = info.type](auto& state) { run_groups(state, kernels, type); });
    }
  }
}

}  // namespace headwater::bench
