// A session on kernels of sm_90a: which run, what they ask of the device, and what happens where it has no tensor maps. On the
// emulation of a device of compute capability 9.0.
#include <gmock/gmock.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/config.hpp"
#include "core/numbers.hpp"
#include "cuda/cuda_session.hpp"
#include "cuda/device/emulated_device.hpp"

namespace headwater::cuda {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kHeadsKv = 1;
constexpr std::int64_t kWidth = 64;
constexpr Sm90Switch kAlways{true, 1};
constexpr Sm90Switch kNever{false};
constexpr const char* kAllTaken = "intra: sm_90a; score: sm_90a; output: sm_90a; dense: sm_90a";

const Dispatch& dispatch() {
  static const Dispatch dispatch(on_host::entries());
  return dispatch;
}

EmulationOptions sm90_device() {
  EmulationOptions options;
  options.compute_capability = 90;
  return options;
}

Shape shape_of(DType type) {
  Shape shape;
  shape.kv_type = type;
  shape.n_layer = 1;
  shape.n_head = kHeads;
  shape.n_head_kv = kHeadsKv;
  shape.d_head = kWidth;
  shape.d_value = kWidth;
  shape.capacity = 600;
  return shape;
}

Options options() {
  Options options;
  options.batch = 480;
  options.chunk = 160;
  options.local = 30;
  options.heavy = 40;
  return options;
}

std::unique_ptr<CudaSession> session(const EmulationOptions& emulation, const Sm90Switch& wanted,
                                     DType type = DType::bf16, Launching launching = Launching::replayed) {
  return std::make_unique<CudaSession>(open_emulated_device(dispatch().kernels(), emulation), dispatch(),
                                       shape_of(type), options(), core::resolve(shape_of(type), options(), 1),
                                       launching, RowPlace{}, wanted);
}

std::vector<std::uint16_t> rows(std::int64_t count, std::uint32_t state, DType type = DType::bf16) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(state >> 8) * 0x1p-22f - 2.0f;
  }
  std::vector<std::uint16_t> narrow(values.size());
  core::narrow(values.data(), count, type, narrow.data());
  return narrow;
}

/// Four chunks, the last one short.
constexpr std::int64_t kTokens = 550;

void add_scores(const CudaSession& session, std::vector<std::uint16_t>& out) {
  const ScoreView scores = session.scores(0);
  const auto* bits = static_cast<const std::uint16_t*>(scores.data);
  for (std::int64_t head = 0; head < kHeads; ++head) {
    out.insert(out.end(), bits + head * scores.head_stride, bits + head * scores.head_stride + kTokens);
  }
}

void attend(CudaSession& session, DType type, const void* q, const void* k, const void* v, void* out) {
  session.begin(Step::prefill(kTokens));
  session.attend(0, headwater::Rows::token_major(q, type, kHeads, kWidth),
                 headwater::Rows::token_major(k, type, kHeadsKv, kWidth),
                 headwater::Rows::token_major(v, type, kHeadsKv, kWidth),
                 MutableRows::token_major(out, type, kHeads, kWidth));
  session.end();
}

/// Outputs, then scores.
std::vector<std::uint16_t> run(CudaSession& session, DType type = DType::bf16) {
  const auto q = rows(kTokens * kHeads * kWidth, 1, type);
  const auto k = rows(kTokens * kHeadsKv * kWidth, 2, type);
  const auto v = rows(kTokens * kHeadsKv * kWidth, 3, type);
  std::vector<std::uint16_t> out(q.size());
  attend(session, type, q.data(), k.data(), v.data(), out.data());
  add_scores(session, out);
  return out;
}

/// A caller whose rows are the device's, `offset` elements after an aligned address, and outputs `out_offset`. Those of each run
/// stand elsewhere.
class DeviceCaller {
 public:
  DeviceCaller() {
    auto opened = open_emulated_device(dispatch().kernels(), sm90_device());
    device_ = opened.get();
    stream_ = device_->stream();
    session_ =
        std::make_unique<CudaSession>(std::move(opened), dispatch(), shape_of(DType::bf16), options(),
                                      core::resolve(shape_of(DType::bf16), options(), 1), Launching::replayed,
                                      RowPlace{true, device_->native_handle(stream_)}, kAlways);
  }
  [[nodiscard]] CudaSession& session() { return *session_; }
  [[nodiscard]] const Counters& difference() const { return difference_; }

  /// What run() gives of host rows.
  std::vector<std::uint16_t> run(std::int64_t offset, std::int64_t out_offset = 0) {
    session_->reset();
    const auto* q = upload(rows(kTokens * kHeads * kWidth, 1), offset);
    const auto* k = upload(rows(kTokens * kHeadsKv * kWidth, 2), offset);
    const auto* v = upload(rows(kTokens * kHeadsKv * kWidth, 3), offset);
    std::vector<std::uint16_t> out(kTokens * kHeads * kWidth);
    const auto bytes = (std::ssize(out) + out_offset) * 2;
    auto* result = static_cast<std::uint16_t*>(device_->allocate(bytes, "out")) + out_offset;
    const Counters before = device_->counters();
    attend(*session_, DType::bf16, q, k, v, result);
    const Counters& after = device_->counters();
    difference_ = {after.allocations - before.allocations,
                   after.host_synchronisations - before.host_synchronisations,
                   after.launches - before.launches, after.replays - before.replays};
    device_->copy(stream_, out.data(), result, static_cast<std::int64_t>(out.size()) * 2,
                  Direction::device_to_host);
    add_scores(*session_, out);
    return out;
  }

 private:
  const void* upload(const std::vector<std::uint16_t>& values, std::int64_t offset) {
    const auto bytes = static_cast<std::int64_t>(values.size()) * 2;
    auto* to = static_cast<std::uint16_t*>(device_->allocate(bytes + 2 * offset, "rows")) + offset;
    device_->copy(stream_, to, values.data(), bytes, Direction::host_to_device);
    return to;
  }

  Device* device_ = nullptr;
  Stream stream_{};
  std::unique_ptr<CudaSession> session_;
  Counters difference_;
};

std::vector<std::string> kernels_of(const EmulationOptions& emulation, const Sm90Switch& wanted) {
  const auto made = session(emulation, wanted, DType::bf16, Launching::one_by_one);
  const_cast<Device&>(made->device()).profile(true);
  (void)run(*made);
  std::vector<std::string> names;
  for (const KernelTimes& times : const_cast<Device&>(made->device()).take_profile()) {
    names.push_back(times.kernel);
  }
  return names;
}

TEST(Sm90Session, TakesKernelsOfSm90aWhereDeviceAndSwitchAllowThem) {
  using ::testing::Contains;
  using ::testing::Not;
  EXPECT_EQ(session(sm90_device(), kAlways)->paths(), kAllTaken);
  const std::vector<std::string> taken = kernels_of(sm90_device(), kAlways);
  for (const char* name : {"sm90_causal_forward_bf16_64", "sm90_column_sums_bf16_64", "sm90_score_bf16_64",
                           "score_sums_128", "sm90_memory_forward_bf16_64"}) {
    EXPECT_THAT(taken, Contains(std::string(name)));
  }
  for (const std::string& name : taken) {
    EXPECT_THAT(name, Not(::testing::MatchesRegex("(forward|softmax|column_sums)_.*"))) << "of mma.sync";
  }
  for (const std::string& name : kernels_of(sm90_device(), kNever))
    EXPECT_THAT(name, Not(HasSubstr("sm90"))) << "switch off";
  for (const std::string& name : kernels_of({}, kAlways))
    EXPECT_THAT(name, Not(HasSubstr("sm90"))) << "sm_80";
  EXPECT_THAT(session(sm90_device(), kNever)->paths(), HasSubstr("HEADWATER_CUDA_SM90=off"));
  EXPECT_THAT(session(sm90_device(), kAlways, DType::f32)->paths(), HasSubstr("16-bit"));
}

TEST(Sm90Session, OrderOfThreadsBlocksAndCopiesChangesNoBit) {
  const auto outputs = [](emulation::Order order, Progress progress, int multiprocessors) {
    EmulationOptions options = sm90_device();
    options.order = order;
    options.progress = progress;
    options.multiprocessors = multiprocessors;
    return run(*session(options, kAlways));
  };
  const auto expected = outputs(emulation::Order::ascending, Progress::late, 4);
  EXPECT_EQ(outputs(emulation::Order::descending, Progress::late, 4), expected);
  EXPECT_EQ(outputs(emulation::Order::ascending, Progress::eager, 3), expected);
  EXPECT_EQ(outputs(emulation::Order::descending, Progress::eager, 1), expected);
}

TEST(Sm90Session, ReplayedGraphsHoldTheirKernelsAndGiveTheSameBits) {
  for (const DType type : {DType::bf16, DType::f16}) {
    const auto replayed = run(*session(sm90_device(), kAlways, type), type);
    EXPECT_EQ(replayed, run(*session(sm90_device(), kAlways, type, Launching::one_by_one), type));
    // Other tiles, other order of the sums: not all bits are those of mma.sync.
    EXPECT_NE(replayed, run(*session(sm90_device(), kNever, type), type));
  }
}

/// Outputs and scores of one head over one key/value head, of sets of newest tokens alone: no selection that a rounding
/// could turn.
struct Results {
  std::vector<float> out, scores;
  std::string paths;
};

/// What run_sizes() differs in.
struct Sizes {
  std::int64_t d = kWidth, dv = kWidth;
  std::int64_t heads = 1;
  std::int64_t chunk = 160, tokens = kTokens;
};

Results run_sizes(const Sm90Switch& wanted, DType type, const Sizes& sizes) {
  const auto& [d, dv, heads, chunk, tokens] = sizes;
  Shape shape = shape_of(type);
  shape.n_head = heads;
  shape.d_head = d;
  shape.d_value = dv;
  Options wished = options();
  wished.chunk = chunk;
  wished.heavy = 0;
  CudaSession session(open_emulated_device(dispatch().kernels(), sm90_device()), dispatch(), shape, wished,
                      core::resolve(shape, wished, 1), Launching::replayed, RowPlace{}, wanted);
  const auto q = rows(tokens * heads * d, 1, type);
  const auto k = rows(tokens * d, 2, type);
  const auto v = rows(tokens * dv, 3, type);
  std::vector<std::uint16_t> narrow(static_cast<std::size_t>(tokens * heads * dv));
  session.begin(Step::prefill(tokens));
  session.attend(0, headwater::Rows::token_major(q.data(), type, heads, d),
                 headwater::Rows::token_major(k.data(), type, 1, d),
                 headwater::Rows::token_major(v.data(), type, 1, dv),
                 MutableRows::token_major(narrow.data(), type, heads, dv));
  session.end();
  Results results{std::vector<float>(narrow.size()), std::vector<float>(heads * tokens), session.paths()};
  core::widen(narrow.data(), type, std::ssize(narrow), results.out.data());
  const ScoreView scores = session.scores(0);
  for (std::int64_t head = 0; head < heads; ++head) {
    core::widen(static_cast<const std::uint16_t*>(scores.data) + head * scores.head_stride, DType::bf16,
                tokens, results.scores.data() + head * tokens);
  }
  return results;
}

void expect_agreement(const Results& taken, const Results& other, DType type, const Sizes& sizes) {
  // Both round each weight and the output once; values are below 2.
  const float unit = type == DType::bf16 ? 0x1p-8f : 0x1p-11f;
  for (std::size_t i = 0; i < taken.out.size(); ++i) {
    ASSERT_NEAR(taken.out[i], other.out[i], 4 * unit) << sizes.d << ", element " << i;
  }
  // Column sums of F32, then scores of BF16.
  for (std::size_t i = 0; i < taken.scores.size(); ++i) {
    ASSERT_NEAR(taken.scores[i], other.scores[i], 0x1p-6f * other.scores[i]) << sizes.d << ", score " << i;
  }
}

TEST(Sm90Session, EveryWidthAgreesWithTheOtherKernels) {
  for (const DType type : {DType::bf16, DType::f16}) {
    for (const Sizes& sizes :
         {Sizes{80, 80}, Sizes{96, 96}, Sizes{128, 128}, Sizes{192, 128}, Sizes{256, 256}}) {
      const Results taken = run_sizes(kAlways, type, sizes);
      ASSERT_EQ(taken.paths, sizes.d > 128
                                 ? "intra: sm_90a; score: sm_80 (keys are wider than 128); output: sm_90a; "
                                   "dense: sm_90a"
                                 : kAllTaken);
      expect_agreement(taken, run_sizes({}, type, sizes), type, sizes);
    }
  }
}

/// 34 heads on 132 multiprocessors: two runs of query blocks in a chunk of 256 tokens, three in one of 160.
TEST(Sm90Session, AShorterChunkMayHaveMorePartialColumnSums) {
  const Sizes sizes{.heads = 34, .chunk = 256, .tokens = 256 + 160};
  const Results taken = run_sizes(kAlways, DType::bf16, sizes);
  ASSERT_EQ(taken.paths, kAllTaken);
  expect_agreement(taken, run_sizes({}, DType::bf16, sizes), DType::bf16, sizes);
}

TEST(Sm90Session, TensorMapsFollowTheCallersRowsFromReplayToReplay) {
  const auto expected = run(*session(sm90_device(), kAlways));
  DeviceCaller caller;
  for (int step = 0; step < 2; ++step) {
    EXPECT_EQ(caller.run(8 * step), expected) << "16-byte boundaries";
    EXPECT_EQ(caller.difference().allocations, 0);
    EXPECT_EQ(caller.difference().host_synchronisations, 0);
    EXPECT_EQ(caller.difference().launches, 0) << "a window is one graph";
    EXPECT_EQ(caller.difference().replays, 2);
  }
}

TEST(Sm90Session, RowsThatNoTensorMapTakesGoToTheOtherKernelsWhileTheyLast) {
  DeviceCaller caller;
  EXPECT_EQ(caller.run(1), run(*session(sm90_device(), kNever)));
  EXPECT_THAT(caller.session().paths(), HasSubstr("the last queries: sm_80 (rows do not begin"));
  EXPECT_EQ(caller.run(0), run(*session(sm90_device(), kAlways)));
  EXPECT_EQ(caller.session().paths(), kAllTaken);
}

TEST(Sm90Session, OutputsMayBeginAtAnyElement) {
  const auto expected = run(*session(sm90_device(), kAlways));
  DeviceCaller caller;
  for (const std::int64_t offset : {0, 1, 2, 3}) EXPECT_EQ(caller.run(0, offset), expected) << offset;
  EXPECT_EQ(caller.session().paths(), kAllTaken);
}

TEST(Sm90Session, TakesNothingFromTheDeviceAfterOpen) {
  const auto made = session(sm90_device(), kAlways);
  const std::int64_t before = made->device().counters().allocations;
  (void)run(*made);
  made->reset();
  (void)run(*made);
  EXPECT_EQ(made->device().counters().allocations, before);
}

/// A driver before CUDA 12.0: the other kernels' results, bit by bit, and the reason.
TEST(Sm90Session, WithoutTensorMapsTheOtherKernelsRun) {
  EmulationOptions options = sm90_device();
  options.tensor_maps = false;
  const auto made = session(options, kAlways);
  EXPECT_EQ(run(*made), run(*session(sm90_device(), kNever)));
  EXPECT_THAT(
      made->paths(),
      HasSubstr("intra: sm_80 (the driver has no cuTensorMapEncodeTiled); score: sm_80 (the driver has no "
                "cuTensorMapEncodeTiled); output: sm_80 (the driver has no cuTensorMapEncodeTiled); dense: "
                "sm_80 (the driver"));
}

}  // namespace
}  // namespace headwater::cuda
