// headwater-cuda-bench: kernels of the CUDA engine by CUDA events, one JSON object {case: milliseconds} on standard output.
// 32 heads, 8 key-value heads, 128 elements, BF16; bench/cuda/torch_attention.py times the same shapes. With --device it
// prints the device's name instead, with --digest {case: digest of outputs, scores and memory sets}, for who runs it again
// and looks for other bits. Exit status 3 with one line: no device. It needs no library of the model runtime. Built with
// HEADWATER_CUDA_BENCH_EMULATED it does the same on the emulation, whose times are 0, with few and short cases: that the
// benchmark itself works is tested without a GPU.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.hpp"
#include "core/numbers.hpp"
#include "cuda/cuda_session.hpp"
#ifdef HEADWATER_CUDA_BENCH_EMULATED
#include "cuda/runtime/emulated_device.hpp"
#else
#include "cuda/runtime/cuda_device.hpp"
#endif
#include "headwater/engine.hpp"
#include "headwater/error.hpp"

namespace headwater::cuda {
namespace {

constexpr std::int64_t kHeads = 32;
constexpr std::int64_t kHeadsKv = 8;
constexpr std::int64_t kWidth = 128;
constexpr int kWarm = 1;
constexpr int kTimed = 5;

struct Case {
  const char* name;
  std::int64_t tokens;
  bool dense;
  std::int64_t decoded;  ///< steps of one token behind the prompt; those are timed then
};
#ifdef HEADWATER_CUDA_BENCH_EMULATED
constexpr Case kCases[] = {
    {"sparse 192", 192, false, 0}, {"dense 96", 96, true, 0}, {"decode 96", 96, true, 2}};
constexpr std::int64_t kChunk = 64;
constexpr const char* kEngine = "cuda-emulated";
Entries entries() { return on_host::entries(); }
std::unique_ptr<Device> open_device(std::span<const Kernel> kernels) { return open_emulated_device(kernels); }
std::string unavailable_because() { return {}; }
#else
constexpr Case kCases[] = {{"sparse 16384", 16384, false, 0},
                           {"dense 4096", 4096, true, 0},
                           {"dense 16384", 16384, true, 0},
                           {"decode 16384", 16384, true, 16}};
constexpr std::int64_t kChunk = 1024;
constexpr const char* kEngine = "cuda";
Entries entries() { return on_gpu::entries(); }
std::unique_ptr<Device> open_device(std::span<const Kernel> kernels) { return open_cuda_device(kernels); }
std::string unavailable_because() { return cuda_unavailable_because(); }
#endif

std::vector<std::uint16_t> random_rows(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> rows(static_cast<std::size_t>(count));
  for (std::uint16_t& element : rows) element = core::bf16_from_float(normal(random));
  return rows;
}

struct Tensors {
  explicit Tensors(std::int64_t tokens)
      : q(random_rows(tokens * kHeads * kWidth, 1)),
        k(random_rows(tokens * kHeadsKv * kWidth, 2)),
        v(random_rows(tokens * kHeadsKv * kWidth, 3)),
        out(q.size()) {}
  std::vector<std::uint16_t> q;
  std::vector<std::uint16_t> k;
  std::vector<std::uint16_t> v;
  std::vector<std::uint16_t> out;
};

void attend(Session& session, Tensors& tensors, const Step& step) {
  session.begin(step);
  session.attend(0, headwater::Rows::token_major(tensors.q.data(), DType::bf16, kHeads, kWidth),
                 headwater::Rows::token_major(tensors.k.data(), DType::bf16, kHeadsKv, kWidth),
                 headwater::Rows::token_major(tensors.v.data(), DType::bf16, kHeadsKv, kWidth),
                 MutableRows::token_major(tensors.out.data(), DType::bf16, kHeads, kWidth));
  session.end();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Milliseconds of each kernel and of all of them, in one run of the case; medians of the timed runs. Launched one by one:
/// launches of a graph are not timed singly.
std::map<std::string, double> measure(const Case& what) {
  const Dispatch dispatch(entries());
  Shape shape;
  shape.n_head = kHeads;
  shape.n_head_kv = kHeadsKv;
  shape.d_head = kWidth;
  shape.d_value = kWidth;
  shape.capacity = what.tokens + what.decoded;
  shape.kv_type = DType::bf16;
  Options options;
  options.batch = what.tokens;
  options.chunk = kChunk;
  options.local = kChunk / 4;
  options.heavy = kChunk / 4;
  options.dense = what.dense;
  auto opened = open_device(dispatch.kernels());
  Device& device = *opened;
  CudaSession session(std::move(opened), dispatch, shape, options, core::resolve(shape, options, 1),
                      Launching::one_by_one);
  Tensors tensors(what.tokens);

  std::map<std::string, std::vector<double>> runs;
  for (int run = 0; run < kWarm + kTimed; ++run) {
    session.reset();
    device.profile(what.decoded == 0);
    attend(session, tensors, Step::prefill(what.tokens));
    device.profile(true);
    for (std::int64_t step = 0; step < what.decoded; ++step) attend(session, tensors, Step::decode(1));
    double all = 0;
    for (const KernelTimes& times : device.take_profile()) {
      double sum = 0;
      for (const float one : times.milliseconds) sum += one;
      all += sum;
      if (run >= kWarm) runs[fmt::format("{}: {}", what.name, times.kernel)].push_back(sum);
    }
    if (run >= kWarm) runs[fmt::format("{}: all kernels", what.name)].push_back(all);
  }
  std::map<std::string, double> medians;
  for (auto& [name, values] : runs) medians[name] = median(std::move(values));
  return medians;
}

/// FNV-1a.
void digest(std::uint64_t& hash, const void* data, std::size_t bytes) {
  const auto* byte = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < bytes; ++i) hash = (hash ^ byte[i]) * 0x100000001b3u;
}

/// Of everything that a few chunks, memory sets and a decoded token leave behind, through the public API.
std::string digest_of(DType type) {
  constexpr std::int64_t kTokens = 1000;
  constexpr std::int64_t kQueryHeads = 4;
  constexpr std::int64_t kStoredHeads = 2;
  Shape shape;
  shape.n_head = kQueryHeads;
  shape.n_head_kv = kStoredHeads;
  shape.d_head = shape.d_value = 64;
  shape.capacity = kTokens + 1;
  shape.kv_type = type;
  Options options;
  options.batch = 512;
  options.chunk = 128;
  options.local = options.heavy = 32;
  const std::int64_t columns = kQueryHeads * shape.d_head;
  const std::vector<std::uint16_t> source = random_rows((kTokens + 1) * columns, 4);
  std::vector<float> wide(source.size());
  core::widen(source.data(), DType::bf16, static_cast<std::int64_t>(source.size()), wide.data());
  const void* rows = type == DType::bf16 ? static_cast<const void*>(source.data()) : wide.data();
  std::vector<float> out(static_cast<std::size_t>(kTokens * columns));

  const auto session = engine(kEngine).open(shape, options);
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const Step& step : {Step::prefill(kTokens), Step::decode(1)}) {
    session->begin(step);
    session->attend(0, headwater::Rows::token_major(rows, type, kQueryHeads, shape.d_head),
                    headwater::Rows::token_major(rows, type, kStoredHeads, shape.d_head),
                    headwater::Rows::token_major(rows, type, kStoredHeads, shape.d_head),
                    MutableRows::token_major(out.data(), DType::f32, kQueryHeads, shape.d_head));
    session->end();
    digest(hash, out.data(), static_cast<std::size_t>(step.n * columns) * sizeof(float));
  }
  const ScoreView scores = session->scores(0);
  digest(hash, scores.data,
         static_cast<std::size_t>(kQueryHeads * scores.head_stride) * sizeof(std::uint16_t));
  const MemoryView memory = session->memory(0);
  digest(hash, memory.data,
         static_cast<std::size_t>(kQueryHeads * memory.head_stride) * sizeof(std::int32_t));
  return fmt::format("{:016x}", hash);
}

int main_guarded(std::string_view mode) {
  if (const std::string reason = unavailable_because(); !reason.empty()) {
    fmt::print(stderr, "headwater-cuda-bench: {}\n", reason);
    return 3;
  }
  nlohmann::ordered_json json;
  if (mode == "--device") {
    fmt::print("{}\n", open_device(Dispatch(entries()).kernels())->info().name);
    return 0;
  }
  if (mode == "--digest") {
    for (const DType type : {DType::f32, DType::bf16}) json[dtype_name(type)] = digest_of(type);
    fmt::print("{}\n", json.dump());
    return 0;
  }
  if (!mode.empty() && mode != "--json") {
    fmt::print(stderr, "headwater-cuda-bench: {} is not known; allowed: --json, --device, --digest\n", mode);
    return 2;
  }
  for (const Case& what : kCases) {
    for (const auto& [name, milliseconds] : measure(what)) json[name] = milliseconds;
  }
  fmt::print("{}\n", json.dump());
  return 0;
}

}  // namespace
}  // namespace headwater::cuda

int main(int argc, char** argv) {
  try {
    return headwater::cuda::main_guarded(argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "headwater-cuda-bench: %s\n", error.what());
    return 1;
  }
}
