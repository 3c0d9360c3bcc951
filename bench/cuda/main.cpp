// headwater-cuda-bench: one layer of the CUDA engine by CUDA events, on standard output as JSON: "milliseconds" {case: median}, "kernels"
// {case: kernel that it is}, "left_out" {case: reason}. 32 heads, 8 key-value heads, 128 elements, BF16, rows of the device;
// bench/cuda/torch_attention.py times the same shapes. "N: pipeline" is the layer as a caller has it, replayed graphs from the
// first to the last event; the stages are the same launches one by one on one stream, each between two events of its own: beside
// others, a launch would be charged for waiting until blocks of theirs have ended. "copy_rate" is what a copy from device memory
// to device memory reads and writes, bytes a second: what bandwidths are held against. HEADWATER_CUDA_SM90 chooses kernels as in
// engine `cuda`.
//
// With --device it prints the device's name and compute capability instead, with --digest {case: digest of outputs, scores
// and memory sets}, for who runs it again and looks for other bits, with --check [CASE] what check.hpp says. Exit status 1: a check
// failed; 3 with one line: no device. It needs no library of the model runtime.
// Built with HEADWATER_CUDA_BENCH_EMULATED it does the same on the emulation, whose times are 0, with few and short cases:
// that the benchmark itself works is tested without a GPU.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/cuda/check.hpp"
#include "core/config.hpp"
#include "core/numbers.hpp"
#include "cuda/cuda_session.hpp"
#ifdef HEADWATER_CUDA_BENCH_EMULATED
#include "cuda/device/emulated_device.hpp"
#else
#include "cuda/device/cuda_device.hpp"
#endif
#include "headwater/engine.hpp"
#include "headwater/error.hpp"

namespace headwater::cuda {
namespace {

constexpr std::int64_t kHeads = 32;
constexpr std::int64_t kHeadsKv = 8;
constexpr std::int64_t kWidth = 128;
struct Case {
  const char* name;
  std::int64_t tokens;
  bool dense;
  std::int64_t decoded;  ///< steps of one token after the prompt; those are timed then
  bool blocks = false;   ///< rule blocks
};
#ifdef HEADWATER_CUDA_BENCH_EMULATED
constexpr int kWarm = 1;
constexpr int kTimed = 1;
constexpr Case kCases[] = {{"sparse 192", 192, false, 0},
                           {"blocks 192", 192, false, 0, true},
                           {"dense 96", 96, true, 0},
                           {"decode 96", 96, true, 2}};
constexpr std::int64_t kChunk = 64;
constexpr const char* kEngine = "cuda-emulated";
constexpr std::int64_t kCopied = 1 << 16;
constexpr CheckSetting kCheck{nullptr, nullptr, nullptr, 4, 2, 400, 150, 24, 40, 1};
/// The chunk and the memory set that people run, and a last chunk of 31 rows: --check CASE large.
constexpr std::optional<CheckSetting> kLarge =
    CheckSetting{nullptr, nullptr, nullptr, 2, 1, 2079, 1024, 200, 312, kSm90LeastChunk};
Entries entries() { return on_host::entries(); }
std::unique_ptr<Device> open_device(std::span<const Kernel> kernels) {
  EmulationOptions options;
  options.compute_capability = 90;
  return open_emulated_device(kernels, options);
}
std::string unavailable_because() { return {}; }
#else
constexpr int kWarm = 2;
constexpr int kTimed = 7;
constexpr Case kCases[] = {{"sparse 16384", 16384, false, 0},       {"sparse 131072", 131072, false, 0},
                           {"blocks 16384", 16384, false, 0, true}, {"blocks 131072", 131072, false, 0, true},
                           {"dense 4096", 4096, true, 0},           {"dense 16384", 16384, true, 0},
                           {"decode 16384", 16384, true, 16}};
constexpr std::int64_t kChunk = 1024;
constexpr const char* kEngine = "cuda";
constexpr std::int64_t kCopied = std::int64_t{1} << 30;
constexpr CheckSetting kCheck{nullptr, nullptr, nullptr,    kHeads,     kHeadsKv,
                              4096,    kChunk,  kChunk / 4, kChunk / 4, kSm90LeastChunk};
constexpr std::optional<CheckSetting> kLarge;
Entries entries() { return on_gpu::entries(); }
std::unique_ptr<Device> open_device(std::span<const Kernel> kernels) {
  return open_cuda_device(kernels, cuda_current_device());
}
std::string unavailable_because() { return cuda_unavailable_because(cuda_current_device()); }
#endif

std::vector<std::uint16_t> random_rows(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> rows(static_cast<std::size_t>(count));
  for (std::uint16_t& element : rows) element = core::bf16_from_float(normal(random));
  return rows;
}

/// Rows that begin at random places of one pool: a gigabyte of normal deviates would take longer than what is measured.
std::vector<std::uint16_t> pooled_rows(std::int64_t rows, unsigned seed) {
  constexpr std::int64_t kPool = std::int64_t{1} << 20;
  const std::vector<std::uint16_t> pool = random_rows(kPool + kWidth, seed);
  std::mt19937 random(seed);
  std::vector<std::uint16_t> drawn(static_cast<std::size_t>(rows * kWidth));
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto begin = static_cast<std::ptrdiff_t>(random() % static_cast<unsigned>(kPool));
    std::copy_n(pool.begin() + begin, kWidth, drawn.begin() + row * kWidth);
  }
  return drawn;
}

/// A session of one layer whose rows are the device's, and those rows.
class Layer {
 public:
  Layer(const Case& what, Launching launching) : dispatch_(entries()), tokens_(what.tokens) {
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
    if (what.blocks) {  // as much memory, as `generate` shares it out
      options.select = Select::blocks;
      options.local = std::max(options.key_block, kChunk / 32);
      options.heavy = kChunk / 2 - options.local;
      options.pinned = options.key_block;
    }
    auto opened = open_device(dispatch_.kernels());
    device_ = opened.get();
    stream_ = device_->stream();
    session_ = std::make_unique<CudaSession>(
        std::move(opened), dispatch_, shape, options, core::resolve(shape, options, 1), launching,
        RowPlace{true, device_->native_handle(stream_)}, sm90_by_environment());
    q_ = upload(tokens_ * kHeads, 1);
    k_ = upload(tokens_ * kHeadsKv, 2);
    v_ = upload(tokens_ * kHeadsKv, 3);
    out_ = device_->allocate(tokens_ * kHeads * kWidth * kElement, "outputs");
    begun_ = device_->event(true);
    ended_ = device_->event(true);
  }

  void attend(const Step& step) {
    session_->begin(step);
    session_->attend(0, headwater::Rows::token_major(q_, DType::bf16, kHeads, kWidth),
                     headwater::Rows::token_major(k_, DType::bf16, kHeadsKv, kWidth),
                     headwater::Rows::token_major(v_, DType::bf16, kHeadsKv, kWidth),
                     MutableRows::token_major(out_, DType::bf16, kHeads, kWidth));
    session_->end();
  }
  /// What is not timed of a case, from the beginning.
  void prepare(const Case& what) {
    session_->reset();
    if (what.decoded > 0) attend(Step::prefill(what.tokens));
  }
  /// What is.
  void run(const Case& what) {
    if (what.decoded == 0) attend(Step::prefill(what.tokens));
    for (std::int64_t step = 0; step < what.decoded; ++step) attend(Step::decode(1));
  }
  double milliseconds(const Case& what) {
    prepare(what);
    device_->synchronize(stream_);
    device_->record(begun_, stream_);
    run(what);
    device_->record(ended_, stream_);
    device_->synchronize(ended_);
    return device_->milliseconds(begun_, ended_);
  }
  std::vector<KernelTimes> stages(const Case& what) {
    device_->profile(false);
    prepare(what);
    device_->synchronize(stream_);
    device_->profile(true);
    run(what);
    return device_->take_profile();
  }

 private:
  static constexpr std::int64_t kElement = sizeof(std::uint16_t);

  void* upload(std::int64_t rows, unsigned seed) {
    const std::vector<std::uint16_t> source = pooled_rows(rows, seed);
    const std::int64_t bytes = rows * kWidth * kElement;
    void* to = device_->allocate(bytes, "rows");
    device_->copy(stream_, to, source.data(), bytes, Direction::host_to_device);
    device_->synchronize(stream_);
    return to;
  }

  Dispatch dispatch_;
  std::int64_t tokens_;
  Device* device_ = nullptr;
  Stream stream_{};
  std::unique_ptr<CudaSession> session_;
  void* q_ = nullptr;
  void* k_ = nullptr;
  void* v_ = nullptr;
  void* out_ = nullptr;
  Event begun_{};
  Event ended_{};
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Medians of the timed runs of the replayed layer and of its stages, run in turns.
void measure(const Case& what, nlohmann::ordered_json& json) {
  Layer replayed(what, Launching::replayed);
  Layer single(what, Launching::in_turn);
  std::map<std::string, std::vector<double>> runs;
  for (int run = 0; run < kWarm + kTimed; ++run) {
    std::map<std::string, double> times{{"pipeline", replayed.milliseconds(what)}};
    double& all = times["all stages"];
    for (const KernelTimes& stage : single.stages(what)) {
      for (const float one : stage.milliseconds) times[stage.stage] += one, all += one;
      json["kernels"][fmt::format("{}: {}", what.name, stage.stage)] = stage.kernel;
    }
    for (const auto& [name, time] : times) {
      if (run >= kWarm) runs[fmt::format("{}: {}", what.name, name)].push_back(time);
    }
  }
  for (auto& [name, values] : runs) json["milliseconds"][name] = median(std::move(values));
}

/// Bytes a second that a copy inside the device's memory reads and writes; 0 on the emulation, which has no time.
double copy_rate() {
  const auto device = open_device({});
  const Stream stream = device->stream();
  void* const from = device->allocate(kCopied, "source");
  void* const to = device->allocate(kCopied, "target");
  const Event begun = device->event(true);
  const Event ended = device->event(true);
  device->set(stream, from, 1, kCopied);
  std::vector<double> times;
  for (int run = 0; run < kWarm + kTimed; ++run) {
    device->record(begun, stream);
    device->copy(stream, to, from, kCopied, Direction::device_to_device);
    device->record(ended, stream);
    device->synchronize(ended);
    if (run >= kWarm) times.push_back(device->milliseconds(begun, ended));
  }
  const double milliseconds = median(std::move(times));
  constexpr double kMilli = 1e-3;
  return milliseconds > 0.0 ? 2.0 * static_cast<double>(kCopied) / (milliseconds * kMilli) : 0.0;
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
  std::vector<unsigned char> narrowed(source.size() * dtype_size(type));
  core::narrow(wide.data(), static_cast<std::int64_t>(wide.size()), type, narrowed.data());
  const void* rows = narrowed.data();
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

int main_guarded(std::span<char* const> arguments) {
  const std::string_view mode = arguments.empty() ? "" : arguments[0];
  if (const std::string reason = unavailable_because(); !reason.empty()) {
    std::fprintf(stderr, "headwater-cuda-bench: %s\n", reason.c_str());
    return 3;
  }
  nlohmann::ordered_json json;
  if (mode == "--device") {
    const auto device = open_device(Dispatch(entries()).kernels());
    const int capability = device->info().compute_capability;
    fmt::print("{}, compute capability {}.{}\n", device->info().name, capability / 10, capability % 10);
    return 0;
  }
  if (mode == "--digest") {
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) json[dtype_name(type)] = digest_of(type);
    fmt::print("{}\n", json.dump());
    return 0;
  }
  if (mode == "--check") {
    const Dispatch dispatch(entries());
    CheckSetting setting = kCheck;
    if (arguments.size() > 2) {
      const char* const what = arguments[arguments.size() > 3 ? 3 : 2];
      if (!kLarge || arguments.size() > 3 || arguments[2] != std::string_view("large")) {
        std::fprintf(stderr, "headwater-cuda-bench: --check: %s is not known; allowed: %s\n", what,
                     kLarge ? "[CASE [large]]" : "[CASE]");
        return 2;
      }
      setting = *kLarge;
    }
    setting.open = open_device;
    setting.dispatch = &dispatch;
    setting.engine = &engine(kEngine);
    return check(setting, arguments.size() > 1 ? arguments[1] : "") ? 0 : 1;
  }
  if (!mode.empty() && mode != "--json") {
    std::fprintf(
        stderr,
        "headwater-cuda-bench: %s is not known; allowed: --json, --device, --digest, --check [CASE]\n",
        std::string(mode).c_str());
    return 2;
  }
  for (const char* part : {"milliseconds", "kernels", "left_out"})
    json[part] = nlohmann::ordered_json::object();
  json["copy_rate"] = copy_rate();
  for (const Case& what : kCases) {
    try {
      measure(what, json);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::out_of_memory) throw;
      json["left_out"][what.name] = error.what();
    }
  }
  fmt::print("{}\n", json.dump());
  return 0;
}

}  // namespace
}  // namespace headwater::cuda

int main(int argc, char** argv) {
  try {
    return headwater::cuda::main_guarded(
        std::span<char* const>(argv, static_cast<std::size_t>(argc)).subspan(1));
  } catch (const headwater::Error& error) {
    std::fprintf(stderr, "headwater-cuda-bench: %s\n", error.what());
    return error.code() == headwater::ErrorCode::invalid_argument ? 2 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "headwater-cuda-bench: %s\n", error.what());
    return 1;
  }
}
