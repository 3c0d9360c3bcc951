// Projections of a prompt against oneDNN's own product of the same operands in one call (those in bytes against BF16, or F32
// where the processor has no such products): both in every iteration, in an order that turns, on one thread by processor time.
// The `share` is the rate of ours over theirs.

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <dnnl.hpp>
#include <vector>

#include "bench/suite/suite.hpp"
#include "cli/commands/bench/clock.hpp"
#include "cli/commands/bench/random_model.hpp"
#include "cli/support/statistics.hpp"
#include "runtime/gguf/row_groups.hpp"
#include "runtime/model/projection.hpp"

namespace headwater::bench {

namespace {

using runtime::Precision;
using runtime::TensorType;

constexpr std::int64_t kTokens = 1024;  // a chunk

/// Keeps the result, as the residual stream would.
class Keep final : public runtime::TileSink {
 public:
  Keep(float* out, std::int64_t width) : out_(out), width_(width) {}
  void take(const runtime::Tile& tile) const override {
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      std::copy_n(tile.values + r * tile.stride, tile.columns, out_ + (tile.row + r) * width_ + tile.column);
    }
  }

 private:
  float* out_;
  std::int64_t width_;
};

/// One product of oneDNN over all rows, its weights in the layout that it likes best.
class OneProduct {
 public:
  OneProduct(Precision precision, std::int64_t depth, std::int64_t width, std::vector<float>& plain)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    using Memory = dnnl::memory;
    const auto type = precision == Precision::bf16 ? Memory::data_type::bf16 : Memory::data_type::f32;
    const Memory::desc source({kTokens, depth}, type, Memory::format_tag::ab);
    const Memory::desc weights({depth, width}, type, Memory::format_tag::any);
    const Memory::desc result({kTokens, width}, Memory::data_type::f32, Memory::format_tag::ab);
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc description(engine_, source, weights, result);
#else
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(source, weights, result), engine_);
#endif
    product_ = dnnl::matmul(description);
    source_ = Memory(description.src_desc(), engine_);
    result_ = Memory(description.dst_desc(), engine_);
    weights_ = Memory(description.weights_desc(), engine_);
    const Memory stored({{depth, width}, Memory::data_type::f32, Memory::dims{1, depth}}, engine_,
                        plain.data());
    dnnl::reorder(stored, weights_).execute(stream_, const_cast<Memory&>(stored), weights_);
    stream_.wait();
  }
  void set_rows(const void* rows, std::size_t bytes) { std::memcpy(source_.get_data_handle(), rows, bytes); }
  void run() {
    product_.execute(stream_,
                     {{DNNL_ARG_SRC, source_}, {DNNL_ARG_WEIGHTS, weights_}, {DNNL_ARG_DST, result_}});
    stream_.wait();
  }
  [[nodiscard]] const float* result() const { return static_cast<const float*>(result_.get_data_handle()); }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul product_;
  dnnl::memory source_, weights_, result_;
};

struct Shape2 {
  const char* name;
  std::int64_t depth;
  std::int64_t width;
};

void run(benchmark::State& state, const Shape2& shape, TensorType type, Precision precision) {
  omp_set_num_threads(1);
  const ModelShape one{"p", "llama", 1, shape.depth, 4, 1, 64, 256, shape.width, 1, 1e4, true};
  const auto file = in_memory(RandomModel(one, type, 1), "projection", 1);
  const runtime::Tensor& weights = file->tensor("token_embd.weight");
  runtime::PanelProducts products;
  runtime::Projection projection(products, precision, {{&weights, 0, shape.width}});
  std::vector<runtime::ProjectionScratch> scratch(1);
  scratch[0].memory = runtime::AlignedBuffer(projection.scratch_bytes());
  projection.pack(1, scratch);

  const auto depth = static_cast<std::size_t>(shape.depth);
  std::vector<float> plain(static_cast<std::size_t>(shape.width) * depth);
  for (std::int64_t r = 0; r < shape.width; ++r) {
    runtime::dequantize_row(type, weights.row(r), shape.depth,
                            plain.data() + static_cast<std::size_t>(r) * depth);
  }
  const Precision row_type = runtime::row_precision(precision);
  const auto element = static_cast<std::size_t>(runtime::precision_bytes(row_type));
  const runtime::AlignedBuffer rows(static_cast<std::size_t>(kTokens) * depth * element);
  for (std::size_t i = 0; i < static_cast<std::size_t>(kTokens) * depth; ++i) {
    const float value = std::sin(static_cast<float>(i % 1009));
    const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value) + 0x8000;
    const auto narrow = static_cast<std::uint16_t>(bits >> 16);
    if (row_type == Precision::bf16) {
      std::memcpy(rows.data() + 2 * i, &narrow, sizeof narrow);
    } else {
      rows.floats()[i] = value;
    }
  }
  std::vector<float> out(static_cast<std::size_t>(kTokens * shape.width));
  const Keep sink(out.data(), shape.width);
  std::vector<runtime::RowBlock> blocks;
  runtime::cut_into_blocks(kTokens, kTokens, blocks);
  OneProduct theirs(row_type, shape.depth, shape.width, plain);
  theirs.set_rows(rows.data(), rows.size());
  const runtime::AlignedBuffer given(rows.size());  // a product in bytes leaves other rows

  const auto timed = [](const auto& action) {
    const Seconds begin = seconds_now();
    action();
    return (seconds_now() - begin).cpu;
  };
  const auto run_ours = [&] { projection.multiply(given.data(), blocks, 1, scratch, sink); };
  const auto run_theirs = [&] { theirs.run(); };
  const auto prepare = [&] { std::memcpy(given.data(), rows.data(), rows.size()); };
  prepare();
  run_ours();
  run_theirs();
  const float most = precision == Precision::int8 ? 1e-2F : 1e-3F;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (std::fabs(out[i] - theirs.result()[i]) > most * std::sqrt(static_cast<float>(shape.depth))) {
      state.SkipWithError("the products differ");
      return;
    }
  }
  std::vector<double> shares, rates;
  const double flops = 2.0 * static_cast<double>(kTokens * shape.depth * shape.width);
  bool turn = false;
  for (auto _ : state) {
    prepare();
    const double first = turn ? timed(run_theirs) : timed(run_ours);
    const double second = turn ? timed(run_ours) : timed(run_theirs);
    const double own = turn ? second : first;
    const double other = turn ? first : second;
    turn = !turn;
    state.SetIterationTime(own);
    shares.push_back(other / own);
    rates.push_back(flops / other);
  }
  state.counters["onednn_GFLOPs"] = cli::median(rates) * 1e-9;
  state.counters["GFLOPs"] = flops * static_cast<double>(state.iterations()) * 1e-9;
  state.counters["GFLOPs"].flags = benchmark::Counter::kIsRate;
  state.counters["share"] = cli::median(shares);
}

}  // namespace

void register_projections() {
  // Qwen3-0.6B's four, and SmolLM2-135M's widest.
  static constexpr Shape2 kShapes[] = {{"qkv", 1024, 4096},
                                       {"output", 2048, 1024},
                                       {"gate_up", 1024, 6144},
                                       {"down", 3072, 1024},
                                       {"smollm2_gate_up", 576, 3072}};
  for (const Precision precision : {Precision::f32, Precision::bf16, Precision::int8}) {
    if (!runtime::missing_for(precision).empty()) continue;
    for (const TensorType type :
         {TensorType::f16, TensorType::q8_0, TensorType::q4_1, TensorType::q4_k, TensorType::q6_k}) {
      if (precision == Precision::int8 && type == TensorType::f16) continue;
      for (const Shape2& shape : kShapes) {
        if (shape.depth % 256 != 0 && !runtime::packs_in_groups(type, shape.depth)) continue;
        const auto name =
            fmt::format("projection/{}/{}x{}/weights:{}/operands:{}", shape.name, shape.depth, shape.width,
                        runtime::tensor_type_info(type).name, runtime::precision_name(precision));
        benchmark::RegisterBenchmark(
            name.c_str(), [&shape, type, precision](auto& state) { run(state, shape, type, precision); })
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
}

}  // namespace headwater::bench
