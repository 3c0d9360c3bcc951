// The forward over memory sets and over dense windows: every tail, width, type and layout of rows, against double precision
// and against the bits of other cuts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/numbers.hpp"
#include "cuda/emulation/sm90.hpp"
#include "cuda/kernels/sm90/elements.hpp"
#include "cuda/kernels/sm90/forward.hpp"
#include "tests/cuda/sm90/problem.hpp"

namespace headwater::cuda::sm90 {
namespace {

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

/// Outputs of a caller, poisoned, with room between rows and heads.
class Outputs {
 public:
  Outputs(int heads, int tokens, int dv, DType type, int gap)
      : dv_(dv),
        type_(type),
        row_stride_(static_cast<std::int64_t>(heads) * (dv + gap)),
        head_stride_(dv + gap) {
    data_.assign(static_cast<std::size_t>(tokens * row_stride_) * dtype_size(type) + 16, 0xFF);
    lse_stride_ = tokens;
    lse_.assign(static_cast<std::size_t>(heads) * tokens, kPoison);
  }
  [[nodiscard]] RowOutputs params(bool pairs, int first_row = 0) {
    return {data_.data() + first_row * row_stride_ * static_cast<std::int64_t>(dtype_size(type_)),
            row_stride_,
            head_stride_,
            type_,
            pairs,
            lse_.data() + first_row,
            lse_stride_};
  }
  [[nodiscard]] float out(int head, int token, int column) const {
    float value = 0.0f;
    core::widen(data_.data() + place(head, token, column), type_, 1, &value);
    return value;
  }
  [[nodiscard]] float lse(int head, int token) const {
    return lse_[static_cast<std::size_t>(head * lse_stride_ + token)];
  }
  /// Between the columns of two heads nothing was written.
  [[nodiscard]] bool gap_is_untouched(int head, int token) const {
    const auto begin = data_.begin() + static_cast<std::ptrdiff_t>(place(head, token, dv_));
    const auto end = data_.begin() +
                     static_cast<std::ptrdiff_t>(place(head, token, 0) +
                                                 static_cast<std::size_t>(head_stride_) * dtype_size(type_));
    return std::all_of(begin, end, [](unsigned char byte) { return byte == 0xFF; });
  }
  friend bool operator==(const Outputs& a, const Outputs& b) {
    return a.data_ == b.data_ &&
           std::memcmp(a.lse_.data(), b.lse_.data(), a.lse_.size() * sizeof(float)) == 0;
  }

 private:
  [[nodiscard]] std::size_t place(int head, int token, int column) const {
    return static_cast<std::size_t>(token * row_stride_ + head * head_stride_ + column) * dtype_size(type_);
  }
  int dv_;
  DType type_;
  std::int64_t row_stride_;
  std::int64_t head_stride_;
  std::int64_t lse_stride_ = 0;
  std::vector<unsigned char> data_;
  std::vector<float> lse_;
};

template <class Kernel>
std::string launch(const typename Kernel::Params& params, Timing timing, int blocks = 3) {
  for (int block = 0; block < blocks; ++block) {
    SoftwareBlock multiprocessor(block, blocks, timing, 7u + static_cast<std::uint32_t>(block));
    if (!multiprocessor.run<SoftwareMachine>(
            [&](SoftwareMachine& machine) { Kernel::run(machine, params); })) {
      return multiprocessor.fault();
    }
  }
  return "";
}

double unit_of(DType type) { return type == DType::f32 ? 0x1p-24 : type == DType::bf16 ? 0x1p-8 : 0x1p-11; }

// ---- memory sets ----------------------------------------------------------------------------------------------

struct MemoryOptions {
  int heads = 2;
  int tokens = 130;
  int count = 200;
  int d = 128;
  int dv = 128;
  float cap = 0.0f;
  float factor = 0.0f;  ///< 0: 1 / sqrt(d)
  DType out = DType::f32;
  int gap = 0;
  bool pairs = true;
  float intra_max = 1.0f;  ///< about where the maxima of the intra pass lie, units of ln 2
};

/// Queries, gathered rows and what an intra pass left; entries after `count` are NaN.
template <class Shape>
class MemoryProblem {
 public:
  explicit MemoryProblem(const MemoryOptions& options) : o_(options), width_(options.count + 9) {
    std::mt19937 random(static_cast<std::uint32_t>(options.count * 131 + options.tokens));
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<std::uint16_t>& rows, int count, int columns) {
      rows.assign(static_cast<std::size_t>(count) * pitch(columns), 0xFFFF);
      for (int row = 0; row < count; ++row) {
        for (int i = 0; i < columns; ++i) rows[place(row, columns, i)] = narrow(normal(random));
      }
    };
    fill(q_, o_.tokens * o_.heads, o_.d);
    fill(k_, o_.heads * width_, o_.d);
    fill(v_, o_.heads * width_, o_.dv);
    for (int head = 0; head < o_.heads; ++head) {
      for (int entry = o_.count; entry < width_; ++entry) {
        std::fill_n(&k_[place(head * width_ + entry, o_.d)], pitch(o_.d), 0xFFFF);
        std::fill_n(&v_[place(head * width_ + entry, o_.dv)], pitch(o_.dv), 0xFFFF);
      }
    }
    const int rows = o_.heads * o_.tokens;
    for (int row = 0; row < rows; ++row) {
      max_.push_back(o_.intra_max + normal(random));
      sum_.push_back(1.0f + std::abs(normal(random)));
      rounded_.push_back(sum_.back() * 1.25f);  // apart, so that one cannot stand for the other
    }
    for (int i = 0; i < rows * o_.dv; ++i) intra_out_.push_back(normal(random));
  }

  std::string run(Outputs& outputs, Timing timing, int blocks = 3) {
    MemoryForwardParams params{};
    params.q = encoded(
        tile_map({q_.data(), o_.d, o_.tokens, 1, o_.heads, o_.heads * pitch(o_.d), pitch(o_.d)}, kTile));
    params.k = encoded(gathered(k_, o_.d));
    params.v = encoded(gathered(v_, o_.dv));
    const double scale = this->scale();
    constexpr double kLog2E = 1.4426950408889634;
    params.rule = {static_cast<float>(o_.cap > 0.0f ? scale / o_.cap : scale * kLog2E),
                   static_cast<float>(o_.cap * kLog2E), nullptr, nullptr};
    params.heads = o_.heads;
    params.tokens = o_.tokens;
    params.count = o_.count;
    params.intra = {max_.data(), sum_.data(), rounded_.data(), intra_out_.data(), o_.tokens};
    params.out = outputs.params(o_.pairs);
    params.dv = o_.dv;
    return launch<MemoryForward<Shape>>(params, timing, blocks);
  }

  void expect_reference(const Outputs& outputs) const {
    // Weights are rounded once and divided by the sum of the rounded ones; the output once more.
    const double bound = (Shape::Element::kBf16 ? 0x1p-8 : 0x1p-10) + unit_of(o_.out) + 1e-5;
    for (int head = 0; head < o_.heads; ++head) {
      for (int token = 0; token < o_.tokens; ++token) {
        std::vector<double> logits(static_cast<std::size_t>(o_.count));
        double own = -std::numeric_limits<double>::infinity();
        for (int entry = 0; entry < o_.count; ++entry)
          own = std::max(own, logits[static_cast<std::size_t>(entry)] = logit(head, token, entry));
        const std::size_t row = static_cast<std::size_t>(head) * o_.tokens + token;
        const double intra = max_[row] * std::log(2.0);
        const double max = std::max(own, intra);
        double sum = sum_[row] * std::exp(intra - max);
        double divisor = rounded_[row] * std::exp(intra - max);
        for (const double x : logits) {
          sum += std::exp(x - max);
          divisor += std::exp(x - max);
        }
        ASSERT_NEAR(outputs.lse(head, token), max + std::log(sum), 1e-4)
            << "head " << head << ", token " << token;
        for (int i = 0; i < o_.dv; ++i) {
          double out = intra_out_[row * o_.dv + i] * std::exp(intra - max);
          double magnitude = std::abs(out);
          for (int entry = 0; entry < o_.count; ++entry) {
            const double term = std::exp(logits[static_cast<std::size_t>(entry)] - max) *
                                widen(v_[place(head * width_ + entry, o_.dv, i)]);
            out += term;
            magnitude += std::abs(term);
          }
          ASSERT_LE(std::abs(outputs.out(head, token, i) - out / divisor), bound * magnitude / divisor)
              << "head " << head << ", token " << token << ", column " << i;
        }
        ASSERT_TRUE(outputs.gap_is_untouched(head, token));
      }
    }
  }

 private:
  static int pitch(int width) { return (width + 7) / 8 * 8; }
  static std::size_t place(int row, int columns, int i = 0) {
    return static_cast<std::size_t>(row) * pitch(columns) + i;
  }
  static std::uint16_t narrow(float x) {
    return Shape::Element::kBf16 ? core::bf16_from_float(x) : core::f16_from_float(x);
  }
  static double widen(std::uint16_t bits) {
    return Shape::Element::kBf16 ? core::float_from_bf16(bits) : core::float_from_f16(bits);
  }
  [[nodiscard]] double scale() const {
    return o_.factor != 0.0f ? o_.factor : 1.0 / std::sqrt(static_cast<double>(o_.d));
  }
  [[nodiscard]] TileMap gathered(const std::vector<std::uint16_t>& rows, int columns) const {
    return tile_map({rows.data(), columns, o_.count, 1, o_.heads, pitch(columns),
                     static_cast<std::int64_t>(width_) * pitch(columns)},
                    Shape::kKeys);
  }
  [[nodiscard]] double logit(int head, int token, int entry) const {
    double sum = 0.0;
    for (int i = 0; i < o_.d; ++i) {
      sum += widen(q_[place(token * o_.heads + head, o_.d, i)]) *
             widen(k_[place(head * width_ + entry, o_.d, i)]);
    }
    sum *= scale();
    return o_.cap > 0.0f ? o_.cap * std::tanh(sum / o_.cap) : sum;
  }

  MemoryOptions o_;
  int width_;
  std::vector<std::uint16_t> q_, k_, v_;
  std::vector<float> max_, sum_, rounded_, intra_out_;
};

template <class Shape>
void expect_memory(const MemoryOptions& options) {
  MemoryProblem<Shape> problem(options);
  for (const Timing timing : {Timing::kEarly, Timing::kLate}) {
    SCOPED_TRACE("tokens " + std::to_string(options.tokens) + ", entries " + std::to_string(options.count) +
                 ", d " + std::to_string(options.d));
    Outputs outputs(options.heads, options.tokens, options.dv, options.out, options.gap);
    ASSERT_EQ(problem.run(outputs, timing), "");
    problem.expect_reference(outputs);
  }
}

using PlainBf16 = KernelShape<Bf16, 128, 128, false>;
using PlainF16 = KernelShape<F16, 128, 128, false>;
using Narrow = KernelShape<Bf16, 64, 64, false>;

TEST(Sm90MemoryForward, IsTheReferenceForEveryTailOfEntriesAndQueries) {
  for (const int count : {1, 8, 127, 128, 129, 520})
    expect_memory<Narrow>({.tokens = 70, .count = count, .d = 64, .dv = 64});
  for (const int tokens : {1, 64, 65, 129, 300})
    expect_memory<Narrow>({.tokens = tokens, .count = 140, .d = 64, .dv = 64});
  expect_memory<PlainBf16>({.tokens = 130, .count = 512});
  expect_memory<PlainF16>({.heads = 3, .tokens = 70, .count = 300});
}

TEST(Sm90MemoryForward, IsTheReferenceForEveryWidthAndRule) {
  expect_memory<KernelShape<Bf16, 192, 128, false>>({.tokens = 70, .count = 260, .d = 192});
  expect_memory<PlainBf16>({.tokens = 40, .count = 150, .d = 80, .dv = 96});
  for (const int count : {1, 63, 64, 65, 128, 300}) {
    expect_memory<KernelShape<Bf16, 256, 256, false>>({.tokens = 130, .count = count, .d = 256, .dv = 256});
  }
  expect_memory<KernelShape<F16, 256, 256, false>>(
      {.tokens = 70, .count = 150, .d = 200, .dv = 133, .pairs = false});
  expect_memory<KernelShape<Bf16, 128, 128, true>>({.tokens = 70, .count = 150, .cap = 3.0f});
  expect_memory<KernelShape<F16, 64, 64, true>>(
      {.tokens = 70, .count = 150, .d = 40, .dv = 24, .factor = -0.2f});
}

TEST(Sm90MemoryForward, WritesEveryTypeAndLayoutOfOutputs) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    expect_memory<Narrow>({.tokens = 40, .count = 30, .d = 64, .dv = 64, .out = type, .gap = 2});
    expect_memory<Narrow>(
        {.tokens = 40, .count = 30, .d = 16, .dv = 7, .out = type, .gap = 3, .pairs = false});
  }
}

TEST(Sm90MemoryForward, EitherPassMayHaveTheLargerMaximum) {
  for (const float max : {-200.0f, -20.0f, 20.0f, 200.0f}) {
    expect_memory<Narrow>({.tokens = 40, .count = 30, .d = 64, .dv = 64, .intra_max = max});
  }
}

TEST(Sm90MemoryForward, SameBitsWhateverTheTimingAndTheNumberOfBlocks) {
  const MemoryOptions options{.heads = 3, .tokens = 300, .count = 300, .d = 64, .dv = 64};
  MemoryProblem<Narrow> problem(options);
  Outputs expected(3, 300, 64, DType::f32, 0);
  ASSERT_EQ(problem.run(expected, Timing::kEarly, 1), "");
  for (const int blocks : {2, 5, 9}) {
    Outputs again(3, 300, 64, DType::f32, 0);
    ASSERT_EQ(problem.run(again, Timing::kLate, blocks), "");
    EXPECT_TRUE(expected == again);
  }
}

// ---- dense windows --------------------------------------------------------------------------------------------

/// Tokens [begin, end) of a problem of one chunk as a dense window, or (`chunk`) the whole as a session's first chunk.
template <class Shape>
std::string run_window(const IntraProblem& problem, int begin, int end, Outputs& outputs, Timing timing) {
  const IntraShape& whole = problem.options().shape;
  CausalForwardParams params{};
  TileMap q = problem.q_map(kTile);
  q.base = static_cast<const unsigned char*>(q.base) + begin * q.strides[0];
  q.sizes[1] = end - begin;
  TileMap k = problem.k_map(Shape::kKeys);
  TileMap v = problem.v_map(Shape::kKeys);
  k.sizes[1] = v.sizes[1] = end;
  params.q = encoded(q);
  params.k = encoded(k);
  params.v = encoded(v);
  params.shape = {whole.heads, whole.kv_heads, 1, end, begin};
  params.rule = problem.rule();
  params.out = outputs.params(true, begin);
  params.dv = problem.options().dv;
  return launch<CausalForward<Shape>>(params, timing);
}

template <class Shape>
Outputs first_chunk(const IntraProblem& problem, std::string& fault) {
  const IntraShape& shape = problem.options().shape;
  Outputs outputs(shape.heads, shape.tokens, problem.options().dv, DType::f32, 0);
  std::vector<float> lse2(static_cast<std::size_t>(shape.heads) * shape.padded_tokens());
  std::vector<float> state(static_cast<std::size_t>(shape.heads) * shape.tokens * (3 + problem.options().dv));
  CausalForwardParams params{encoded(problem.q_map(kTile)),
                             encoded(problem.k_map(Shape::kKeys)),
                             encoded(problem.v_map(Shape::kKeys)),
                             shape,
                             problem.rule(),
                             {},
                             0,
                             0,
                             outputs.params(true),
                             problem.options().dv,
                             lse2.data()};
  const std::size_t rows = static_cast<std::size_t>(shape.heads) * shape.tokens;
  params.state = {state.data(), state.data() + rows, state.data() + 2 * rows, state.data() + 3 * rows,
                  shape.tokens};
  fault = launch<CausalForward<Shape>>(params, Timing::kLate);
  // Nobody waits for these rows: no state of theirs is kept.
  EXPECT_TRUE(std::all_of(state.begin(), state.end(), [](float x) { return x == 0.0f; }));
  return outputs;
}

template <class Shape>
void expect_dense(IntraProblem::Options options, const std::vector<int>& cuts) {
  const IntraProblem problem(options);
  const int tokens = options.shape.tokens;
  Outputs whole(options.shape.heads, tokens, options.dv, DType::f32, 0);
  ASSERT_EQ(run_window<Shape>(problem, 0, tokens, whole, Timing::kEarly), "");
  for (int head = 0; head < options.shape.heads; ++head) {
    for (int token = 0; token < tokens; ++token) {
      const IntraProblem::Row row = problem.row(head, token);
      ASSERT_NEAR(whole.lse(head, token), row.lse, 1e-4);
      for (int i = 0; i < options.dv; ++i) {
        ASSERT_LE(std::abs(whole.out(head, token, i) - row.out[i]),
                  ((options.bf16 ? 0x1p-8 : 0x1p-10) + 1e-5) * row.magnitude[i])
            << "head " << head << ", token " << token << ", column " << i;
      }
    }
  }
  Outputs windows(options.shape.heads, tokens, options.dv, DType::f32, 0);
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    ASSERT_EQ(run_window<Shape>(problem, cuts[i], cuts[i + 1], windows, Timing::kLate), "");
  }
  EXPECT_TRUE(whole == windows) << "a window's rows have the bits of the whole";
  std::string fault;
  const Outputs chunk = first_chunk<Shape>(problem, fault);
  ASSERT_EQ(fault, "");
  EXPECT_TRUE(whole == chunk) << "so has a session's first chunk";
}

TEST(Sm90DenseForward, WindowsAndAFirstChunkHaveTheBitsOfTheWhole) {
  expect_dense<Narrow>({.shape = {2, 1, 1, 400}, .sinks = true, .d = 64, .dv = 64},
                       {0, 128, 129, 255, 300, 400});
  expect_dense<Narrow>({.shape = {1, 1, 1, 300}, .d = 40, .dv = 30}, {0, 1, 60, 130, 300});
  expect_dense<PlainF16>({.shape = {2, 2, 1, 260}, .bf16 = false, .spread = 2.0f}, {0, 200, 260});
  expect_dense<KernelShape<Bf16, 256, 256, false>>(
      {.shape = {2, 1, 1, 330}, .sinks = true, .d = 256, .dv = 256}, {0, 64, 129, 200, 330});
  expect_dense<KernelShape<Bf16, 64, 64, true>>(
      {.shape = {2, 1, 1, 300}, .d = 64, .dv = 64, .cap = 5.0f, .slope = 0.1f}, {0, 131, 300});
}

/// Rows of a window that later tokens of other windows cannot reach: whatever stands there now.
TEST(Sm90DenseForward, StorageBehindAWindowReachesNothing) {
  const IntraShape shape{2, 1, 1, 300};
  IntraProblem problem({.shape = shape, .d = 64, .dv = 64});
  Outputs before(2, 300, 64, DType::f32, 0);
  Outputs after(2, 300, 64, DType::f32, 0);
  ASSERT_EQ(run_window<Narrow>(problem, 100, 170, before, Timing::kEarly), "");
  for (int token = 170; token < 300; ++token) problem.poison(token);
  ASSERT_EQ(run_window<Narrow>(problem, 100, 170, after, Timing::kLate), "");
  EXPECT_TRUE(before == after);
  EXPECT_FALSE(std::isnan(after.out(1, 169, 63)));
  EXPECT_TRUE(std::isnan(after.out(1, 170, 0))) << "nobody's row";
}

}  // namespace
}  // namespace headwater::cuda::sm90
