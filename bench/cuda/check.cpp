#include "bench/cuda/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <span>
#include <vector>

#include "conformance/case.hpp"
#include "conformance/forced.hpp"
#include "conformance/forwarded_session.hpp"
#include "conformance/replay.hpp"
#include "conformance/run.hpp"
#include "core/config.hpp"
#include "core/kv_store.hpp"
#include "cuda/cuda_session.hpp"

namespace headwater::cuda {
namespace {

using conformance::ChunkTrace;
using conformance::Context;
using conformance::LayerTrace;
using conformance::Problem;
using conformance::Trace;
using conformance::Violation;

constexpr const char* kOnSm90 = "sm_90a";
constexpr const char* kPortable = "mma.sync";
constexpr const char* kCpu = "cpu";

/// What is run: the first is the shape that people run most.
struct Row {
  DType type;
  std::int64_t d;
  std::int64_t dv;
  bool sm90_scores;  ///< column sums of memory sets have kernels of sm_90a for these keys
};
constexpr Row kRows[] = {{DType::bf16, 128, 128, true},  {DType::bf16, 64, 64, true},
                         {DType::bf16, 192, 128, false}, {DType::bf16, 256, 256, false},
                         {DType::f16, 128, 128, true},   {DType::f16, 64, 64, true},
                         {DType::f16, 192, 128, false},  {DType::f16, 256, 256, false}};

/// A session whose rows are the device's, behind the interface of one whose rows are the host's: what the kit runs.
class DeviceRows final : public conformance::ForwardedSession {
 public:
  DeviceRows(const CheckSetting& setting, const Problem& problem, bool on_sm90)
      : ForwardedSession(nullptr), problem_(problem) {
    auto opened = setting.open(setting.dispatch->kernels());
    device_ = opened.get();
    stream_ = device_->stream();
    auto session = std::make_unique<CudaSession>(
        std::move(opened), *setting.dispatch, problem.shape, problem.options,
        core::resolve(problem.shape, problem.options, 1), Launching::replayed,
        RowPlace{true, device_->native_handle(stream_)}, Sm90Switch{on_sm90, setting.least_chunk});
    session_ = session.get();
    inner_ = std::move(session);
  }

  [[nodiscard]] std::string paths() const { return session_->paths(); }
  [[nodiscard]] const Counters& counters() const { return device_->counters(); }

  void begin(const Step& step) override {
    session_->begin(step);
    tokens_of_step_ = step.n;
  }
  void attend(std::int64_t layer, const headwater::Rows& q, const headwater::Rows& k,
              const headwater::Rows& v, const MutableRows& out, const LseOutput& lse) override {
    const Shape& s = problem_.shape;
    const auto place = [&](std::vector<unsigned char>& packed, DType type, std::int64_t heads,
                           std::int64_t width) {
      packed.resize(static_cast<std::size_t>(tokens_of_step_ * heads * width) * dtype_size(type));
      void* rows = device_->allocate(static_cast<std::int64_t>(packed.size()), "rows");
      return rows;
    };
    std::vector<unsigned char> packed;
    const auto upload = [&](const headwater::Rows& from, std::int64_t heads, std::int64_t width) {
      void* rows = place(packed, from.type, heads, width);
      each_row(heads, width, from.type,
               [&](std::int64_t t, std::int64_t h, std::size_t at, std::size_t bytes) {
                 std::memcpy(packed.data() + at, core::row_address(from, t, h), bytes);
               });
      device_->copy(stream_, rows, packed.data(), static_cast<std::int64_t>(packed.size()),
                    Direction::host_to_device);
      return headwater::Rows::token_major(rows, from.type, heads, width);
    };
    const headwater::Rows device_q = upload(q, s.n_head, s.d_head);
    const headwater::Rows device_k = upload(k, s.n_head_kv, s.d_head);
    const headwater::Rows device_v = upload(v, s.n_head_kv, s.d_value);
    void* device_out = place(packed, out.type, s.n_head, s.d_value);
    session_->attend(layer, device_q, device_k, device_v,
                     MutableRows::token_major(device_out, out.type, s.n_head, s.d_value), lse);
    device_->copy(stream_, packed.data(), device_out, static_cast<std::int64_t>(packed.size()),
                  Direction::device_to_host);
    device_->synchronize(stream_);
    each_row(s.n_head, s.d_value, out.type,
             [&](std::int64_t t, std::int64_t h, std::size_t at, std::size_t bytes) {
               std::memcpy(core::row_address(out, t, h), packed.data() + at, bytes);
             });
  }

 private:
  template <class Action>
  void each_row(std::int64_t heads, std::int64_t width, DType type, const Action& action) const {
    const std::size_t bytes = static_cast<std::size_t>(width) * dtype_size(type);
    std::size_t at = 0;
    for (std::int64_t t = 0; t < tokens_of_step_; ++t) {
      for (std::int64_t h = 0; h < heads; ++h, at += bytes) action(t, h, at, bytes);
    }
  }

  const Problem& problem_;
  Device* device_ = nullptr;
  Stream stream_{};
  CudaSession* session_ = nullptr;  // inner_ itself
  std::int64_t tokens_of_step_ = 0;
};

Problem problem_of(const CheckSetting& setting, const Row& row) {
  Problem problem;
  problem.shape.n_head = setting.heads;
  problem.shape.n_head_kv = setting.heads_kv;
  problem.shape.d_head = row.d;
  problem.shape.d_value = row.dv;
  problem.shape.capacity = setting.tokens;
  problem.shape.kv_type = row.type;
  problem.q_type = problem.k_type = problem.v_type = problem.out_type = row.type;
  problem.options.batch = setting.tokens;
  problem.options.chunk = setting.chunk;
  problem.options.local = setting.local;
  problem.options.heavy = setting.heavy;
  problem.steps = {Step::prefill(setting.tokens)};
  conformance::Random random(static_cast<std::uint64_t>(row.d + row.dv) * 2 +
                             (row.type == DType::f16 ? 1 : 0));
  problem.fill_normal(random);
  return problem;
}

/// Replayed graphs, and the same launches one by one for an observer: they must have the same bits.
Trace run_on_device(const CheckSetting& setting, const Row& row, const Problem& problem, bool on_sm90) {
  const auto run = [&](bool observed) {
    DeviceRows session(setting, problem, on_sm90);
    conformance::RunStyle style;
    style.observed = observed;
    Trace trace = conformance::run(session, problem, style);
    const std::string paths = session.paths();
    // Where scores have none, that is the one stage that says sm_80.
    const bool all = paths.find("sm_80") == std::string::npos;
    const bool but_scores = paths.find(
                                "intra: sm_90a; score: sm_80 (keys are wider than 128); output: sm_90a; "
                                "dense: sm_90a") == 0 &&
                            paths.find("last queries") == std::string::npos;
    if (on_sm90 && !(row.sm90_scores ? all : but_scores)) {
      throw Violation("the session did not take the kernels of sm_90a: " + paths);
    }
    if (!on_sm90 && paths.find(": sm_90a") != std::string::npos) {
      throw Violation("the session took kernels of sm_90a: " + paths);
    }
    if ((session.counters().replays > 0) == observed)
      throw Violation("graphs were not used as they should be");
    return trace;
  };
  const Trace replayed = run(false);
  Trace observed = run(true);
  Trace plain = observed;
  for (LayerTrace& layer : plain.layers) layer.chunks.clear();
  conformance::require_same(replayed, plain, "replayed graphs against single launches");
  return observed;
}

/// Test builds: HEADWATER_CHECK_SPOILED names the run whose last output of the last head is made wrong.
void spoil([[maybe_unused]] const char* name, [[maybe_unused]] Trace& trace) {
#ifdef HEADWATER_TESTING
  const char* spoiled = std::getenv("HEADWATER_CHECK_SPOILED");
  if (spoiled != nullptr && std::strcmp(spoiled, name) == 0) trace.layers[0].out.back() += 1.0f;
#endif
}

/// One query head of a problem and of its run, as a problem of one head.
Problem one_head(const Problem& problem, std::int64_t head) {
  const std::int64_t group = problem.shape.n_head / problem.shape.n_head_kv;
  Problem one = problem;
  one.shape.n_head = one.shape.n_head_kv = 1;
  one.layers.clear();
  one.make_tensors();
  const auto take = [](const conformance::Tensor& from, std::int64_t which, conformance::Tensor& to) {
    for (std::int64_t t = 0; t < from.n; ++t) std::copy_n(from.row(t, which), from.width, to.row(t, 0));
  };
  take(problem.layers[0].q, head, one.layers[0].q);
  take(problem.layers[0].k, head / group, one.layers[0].k);
  take(problem.layers[0].v, head / group, one.layers[0].v);
  return one;
}

Trace one_head(const Trace& trace, const Shape& shape, std::int64_t head) {
  Trace one;
  one.plans = trace.plans;
  LayerTrace& layer = one.layers.emplace_back();
  const LayerTrace& all = trace.layers[0];
  const auto width = static_cast<std::size_t>(shape.d_value);
  for (std::size_t row = static_cast<std::size_t>(head) * width; row < all.out.size();
       row += static_cast<std::size_t>(shape.n_head) * width) {
    layer.out.insert(layer.out.end(), all.out.begin() + static_cast<std::ptrdiff_t>(row),
                     all.out.begin() + static_cast<std::ptrdiff_t>(row + width));
  }
  for (const ChunkTrace& from : all.chunks) {
    ChunkTrace& chunk = layer.chunks.emplace_back();
    chunk.chunk = from.chunk;
    chunk.memory_count = from.memory_count;
    const auto take = [&](const auto& values, std::int64_t count, auto& to) {
      to.assign(values.begin() + head * count, values.begin() + (head + 1) * count);
    };
    take(from.memory, from.memory_count, chunk.memory);
    take(from.colsum_inter, from.memory_count, chunk.colsum_inter);
    take(from.colsum_intra, from.length(), chunk.colsum_intra);
    take(from.lse, from.length(), chunk.lse);
  }
  return one;
}

/// By stage: the worst error of all heads over its bound.
using Worst = std::map<std::string, double>;

/// Every head against double. Throws Violation of the first head that is wrong.
Worst judge(const Engine& engine, const Problem& problem, const Trace& trace) {
  conformance::require_replay(problem, trace);
  const auto heads = static_cast<int>(problem.shape.n_head);
  std::vector<std::string> wrong(static_cast<std::size_t>(heads));
  Worst worst;
#pragma omp parallel for schedule(dynamic)
  for (int head = 0; head < heads; ++head) {
    Context context;
    context.engine = &engine;
    std::string what;
    try {
      conformance::require_forced(context, one_head(problem, head), one_head(trace, problem.shape, head));
      if (!context.mistrusted().empty()) what = "the bounds are as large as the signals";
    } catch (const std::exception& error) {
      what = error.what();
    }
#pragma omp critical(headwater_cuda_check)
    {
      if (!what.empty()) wrong[static_cast<std::size_t>(head)] = fmt::format("head {}: {}", head, what);
      for (const conformance::StageError& mark : context.errors()) {
        worst[mark.stage] = std::max(worst[mark.stage], mark.ratio);
      }
    }
  }
  for (const std::string& what : wrong) {
    if (!what.empty()) throw Violation(what);
  }
  return worst;
}

/// Of two runs that were both held against double: how far their outputs are apart where they read the same memory sets.
struct Difference {
  double most = 0.0;
  std::int64_t same_sets = 0;  // of `sets` heads of chunks
  std::int64_t sets = 0;
};

Difference between(const Problem& problem, const Trace& a, const Trace& b) {
  Difference difference;
  const LayerTrace& x = a.layers[0];
  const LayerTrace& y = b.layers[0];
  const std::int64_t heads = problem.shape.n_head;
  const std::int64_t width = problem.shape.d_value;
  for (std::size_t c = 0; c < x.chunks.size(); ++c) {
    const ChunkTrace& chunk = x.chunks[c];
    for (std::int64_t head = 0; head < heads; ++head) {
      const auto first = chunk.memory.begin() + head * chunk.memory_count;
      ++difference.sets;
      if (!std::equal(first, first + chunk.memory_count,
                      y.chunks[c].memory.begin() + head * chunk.memory_count)) {
        continue;
      }
      ++difference.same_sets;
      for (std::int64_t t = chunk.chunk.begin; t < chunk.chunk.end; ++t) {
        const auto row = static_cast<std::size_t>((t * heads + head) * width);
        for (std::size_t i = row; i < row + static_cast<std::size_t>(width); ++i) {
          difference.most = std::max(
              difference.most, std::fabs(static_cast<double>(x.out[i]) - static_cast<double>(y.out[i])));
        }
      }
    }
  }
  return difference;
}

/// The line after PASS. Throws Violation, or Error of a device.
std::string verdict(const CheckSetting& setting, const Row& row, bool has_sm90) {
  const Problem problem = problem_of(setting, row);
  const Engine& cpu = engine(kCpu);
  std::vector<std::pair<const char*, Trace>> traces;
  std::string text;
  const auto add = [&](const char* name, const Engine& claims, const auto& run) {
    try {
      traces.emplace_back(name, run());
      spoil(name, traces.back().second);
      text += fmt::format("{}{}", text.empty() ? "" : "; ", name);
      for (const auto& [stage, ratio] : judge(claims, problem, traces.back().second)) {
        text += fmt::format(" {} {:.2g}", stage, ratio);
      }
    } catch (const std::exception& error) {
      throw Violation(fmt::format("{}: {}", name, error.what()));
    }
  };
  if (has_sm90) add(kOnSm90, *setting.engine, [&] { return run_on_device(setting, row, problem, true); });
  add(kPortable, *setting.engine, [&] { return run_on_device(setting, row, problem, false); });
  add(kCpu, cpu, [&] { return conformance::run(cpu, problem); });
  for (std::size_t other = 1; other < traces.size(); ++other) {
    const Difference difference = between(problem, traces[0].second, traces[other].second);
    const std::string pair = fmt::format("{} and {}", traces[0].first, traces[other].first);
    // Kernels that add up in different orders: the same bits everywhere would be one run, looked at twice.
    if (difference.most == 0.0)
      throw Violation(pair + ": the same bits in every output that can be compared");
    text += fmt::format("; {}: {:.2g} apart where sets are the same, {} of {}", pair, difference.most,
                        difference.same_sets, difference.sets);
  }
  return text;
}

}  // namespace

bool check(const CheckSetting& setting, const std::string& only) {
  const auto device = setting.open(setting.dispatch->kernels());
  constexpr int kSm90 = 90;
  const int capability = device->info().compute_capability;
  const bool has_sm90 = capability == kSm90;
  fmt::print(
      "{}: {} over {} heads, S {}, M {}, N {}; largest error of every head over its bound against double{}\n",
      device->info().name, setting.heads, setting.heads_kv, setting.chunk, setting.local + setting.heavy,
      setting.tokens, has_sm90 ? "" : "; no kernels of sm_90a: they need compute capability 9.0");
  bool all = true;
  bool any = false;
  for (const Row& row : kRows) {
    const std::string name = fmt::format("{} {}/{}", dtype_name(row.type), row.d, row.dv);
    if (!only.empty() && only != name) continue;
    any = true;
    try {
      fmt::print("PASS {}: {}\n", name, verdict(setting, row, has_sm90));
    } catch (const std::exception& error) {
      all = false;
      fmt::print("FAIL {}: {}\n", name, error.what());
    }
    std::fflush(stdout);
  }
  if (!any)
    throw Error(ErrorCode::invalid_argument,
                "--check " + only + " is not known; allowed: as its lines name them");
  return all;
}

}  // namespace headwater::cuda
