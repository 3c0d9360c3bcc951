// NUM-1, STATE-6: row views of any stride, alignment and type.

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/api/problem.hpp"

namespace headwater::api_test {
namespace {

constexpr std::int64_t kTokens = 21;

class ViewsOf : public EachEngine {
 protected:
  const Shape shape_ = small_shape(kTokens);
};

/// Bits of a float that the 16-bit type holds exactly (no rounding, no subnormal).
std::uint16_t exact_bits(float value, DType type) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (type == DType::bf16) return static_cast<std::uint16_t>(bits >> 16);
  if (value == 0.0f) return 0;
  const std::uint32_t exponent = ((bits >> 23) & 0xFF) - 127 + 15;
  return static_cast<std::uint16_t>((bits >> 31) << 15 | exponent << 10 | ((bits >> 13) & 0x3FF));
}

float widened(std::uint16_t bits, DType type) {
  if (type == DType::bf16) return std::bit_cast<float>(std::uint32_t{bits} << 16);
  const int exponent = (bits >> 10) & 0x1F;
  const int fraction = bits & 0x3FF;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                        : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

/// A tensor of n x heads rows in memory of its own: any type, padded strides, odd addresses, poison between rows.
class Tensor {
 public:
  Tensor(std::int64_t n, std::int64_t heads, std::int64_t width, DType type, bool head_major,
         std::int64_t pad, std::size_t misalign)
      : n_(n), heads_(heads), width_(width), type_(type), misalign_(misalign) {
    const std::int64_t row = width + pad;
    row_stride_ = head_major ? row : heads * row + pad;
    head_stride_ = head_major ? n * row + pad : row;
    const std::int64_t last = (n - 1) * row_stride_ + (heads - 1) * head_stride_ + row;
    bytes_.assign(misalign + static_cast<std::size_t>(last) * dtype_size(type), kPoison);
  }

  void set(std::int64_t t, std::int64_t h, std::int64_t e, float value) {
    if (type_ == DType::f32) {
      std::memcpy(at(t, h, e), &value, sizeof value);
    } else {
      const std::uint16_t bits = exact_bits(value, type_);
      std::memcpy(at(t, h, e), &bits, sizeof bits);
    }
  }
  [[nodiscard]] float get(std::int64_t t, std::int64_t h, std::int64_t e) {
    if (type_ == DType::f32) {
      float value = 0;
      std::memcpy(&value, at(t, h, e), sizeof value);
      return value;
    }
    std::uint16_t bits = 0;
    std::memcpy(&bits, at(t, h, e), sizeof bits);
    return widened(bits, type_);
  }
  [[nodiscard]] Rows rows() { return {bytes_.data() + misalign_, type_, row_stride_, head_stride_}; }
  [[nodiscard]] MutableRows mutable_rows() {
    return {bytes_.data() + misalign_, type_, row_stride_, head_stride_};
  }
  /// Every byte that belongs to no row still holds the poison.
  [[nodiscard]] bool gaps_untouched() {
    std::vector<bool> owned(bytes_.size(), false);
    for (std::int64_t t = 0; t < n_; ++t) {
      for (std::int64_t h = 0; h < heads_; ++h) {
        const auto first = static_cast<std::size_t>(at(t, h, 0) - bytes_.data());
        for (std::size_t b = 0; b < static_cast<std::size_t>(width_) * dtype_size(type_); ++b)
          owned[first + b] = true;
      }
    }
    for (std::size_t b = 0; b < bytes_.size(); ++b) {
      if (!owned[b] && bytes_[b] != kPoison) return false;
    }
    return true;
  }

 private:
  static constexpr unsigned char kPoison = 0xFF;  // NaN in every type
  unsigned char* at(std::int64_t t, std::int64_t h, std::int64_t e) {
    return bytes_.data() + misalign_ +
           static_cast<std::size_t>(t * row_stride_ + h * head_stride_ + e) * dtype_size(type_);
  }
  std::int64_t n_, heads_, width_;
  DType type_;
  std::size_t misalign_;
  std::int64_t row_stride_ = 0, head_stride_ = 0;
  std::vector<unsigned char> bytes_;
};

struct Layout {
  DType q = DType::f32, k = DType::f32, v = DType::f32, out = DType::f32;
  bool head_major = false;
  std::int64_t pad = 0;
  std::size_t misalign = 0;
};

/// Multiples of 1/8 in [-2, 2]: every type holds them exactly.
float exact_value(std::int64_t seed) {
  const std::int64_t mixed = (seed * 2654435761) % 1000003;
  return static_cast<float>(mixed % 33 - 16) / 8.0f;
}

/// One prefill of every layer; outputs widened to F32.
std::vector<float> outputs(const Engine& engine, const Shape& shape, const Layout& layout) {
  const auto tensor = [&](std::int64_t heads, std::int64_t width, DType type, std::int64_t salt) {
    Tensor made(kTokens, heads, width, type, layout.head_major, layout.pad, layout.misalign);
    for (std::int64_t t = 0; t < kTokens; ++t) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t e = 0; e < width; ++e)
          made.set(t, h, e, exact_value(salt + (t * heads + h) * width + e));
      }
    }
    return made;
  };
  Tensor q = tensor(shape.n_head, shape.d_head, layout.q, 1);
  Tensor k = tensor(shape.n_head_kv, shape.d_head, layout.k, 5000);
  Tensor v = tensor(shape.n_head_kv, shape.d_value, layout.v, 9000);
  const auto session = engine.open(shape, small_options());
  session->begin(Step::prefill(kTokens));
  std::vector<float> result;
  for (std::int64_t layer = 0; layer < shape.n_layer; ++layer) {
    Tensor out(kTokens, shape.n_head, shape.d_value, layout.out, layout.head_major, layout.pad,
               layout.misalign);
    session->attend(layer, q.rows(), k.rows(), v.rows(), out.mutable_rows());
    EXPECT_TRUE(out.gaps_untouched());
    for (std::int64_t t = 0; t < kTokens; ++t) {
      for (std::int64_t h = 0; h < shape.n_head; ++h) {
        for (std::int64_t e = 0; e < shape.d_value; ++e) result.push_back(out.get(t, h, e));
      }
    }
  }
  session->end();
  return result;
}

TEST_P(ViewsOf, StridesAndAlignmentDoNotMatter) {
  const auto expected = outputs(engine(), shape_, {});
  for (const bool head_major : {false, true}) {
    for (const std::int64_t pad : {0, 3}) {
      for (const std::size_t misalign : {0, 1, 2}) {
        Layout layout;
        layout.head_major = head_major;
        layout.pad = pad;
        layout.misalign = misalign;
        EXPECT_TRUE(outputs(engine(), shape_, layout) == expected)
            << "head_major " << head_major << " pad " << pad << " misalign " << misalign;
      }
    }
  }
}

// NUM-1: values that every type holds give the same bits, whatever carried them.
TEST_P(ViewsOf, InputTypesMix) {
  const auto expected = outputs(engine(), shape_, {});
  const DType types[] = {DType::f32, DType::f16, DType::bf16};
  for (const DType q : types) {
    for (const DType k : types) {
      for (const DType v : types) {
        Layout layout;
        layout.q = q;
        layout.k = k;
        layout.v = v;
        layout.misalign = 1;
        EXPECT_TRUE(outputs(engine(), shape_, layout) == expected)
            << dtype_name(q) << " " << dtype_name(k) << " " << dtype_name(v);
      }
    }
  }
}

// NUM-1: an output of 16 bits is the F32 output, rounded once.
TEST_P(ViewsOf, OutputTypes) {
  const auto expected = outputs(engine(), shape_, {});
  for (const DType type : {DType::f16, DType::bf16}) {
    Layout layout;
    layout.out = type;
    const auto rounded = outputs(engine(), shape_, layout);
    const double half_ulp = type == DType::f16 ? 0x1p-11 : 0x1p-8;
    ASSERT_EQ(rounded.size(), expected.size());
    std::size_t inexact = 0;
    for (std::size_t i = 0; i < rounded.size(); ++i) {
      const double exact = expected[i];
      // Below 2^-14 an F16 is subnormal: steps of 2^-24.
      const double bound =
          type == DType::f16 ? std::max(half_ulp * std::fabs(exact), 0x1p-25) : half_ulp * std::fabs(exact);
      ASSERT_LE(std::fabs(static_cast<double>(rounded[i]) - exact), bound);
      inexact += rounded[i] != expected[i] ? 1 : 0;
    }
    EXPECT_GT(inexact, rounded.size() / 2);  // it was rounded at all
  }
}

// STATE-6: rows are rounded once, when stored, to the KV type.
TEST_P(ViewsOf, StoredRowsAreRoundedToTheKvType) {
  struct Case {
    DType type;
    float value, stored;
  };
  const Case cases[] = {
      {DType::f32, 1.0f + 0x1p-23f, 1.0f + 0x1p-23f},
      {DType::f16, 1.0f + 0x1p-11f, 1.0f},                 // a tie, to even
      {DType::f16, 1.0f + 0x1.8p-10f, 1.0f + 0x1p-9f},     // a tie, to even, upwards
      {DType::f16, 1.0f + 0x1.004p-11f, 1.0f + 0x1p-10f},  // just above a tie
      {DType::f16, 0x1p-24f, 0x1p-24f},                    // the smallest subnormal
      {DType::f16, 65504.0f, 65504.0f},
      {DType::bf16, 1.0f + 0x1p-8f, 1.0f},
      {DType::bf16, 1.0f + 0x1.8p-7f, 1.0f + 0x1p-6f},
      {DType::bf16, 1.0f + 0x1.01p-8f, 1.0f + 0x1p-7f},
      {DType::bf16, 0x1p-133f, 0x1p-133f},  // the smallest subnormal
  };
  for (const Case& c : cases) {
    Shape shape = shape_;
    shape.kv_type = c.type;
    const auto session = engine().open(shape, small_options());
    LayerInput input = random_input(shape, 1, 3);
    input.k.assign(input.k.size(), c.value);
    input.v.assign(input.v.size(), -c.value);
    (void)run_step(*session, Step::decode(), input, 0);
    std::vector<float> key(static_cast<std::size_t>(shape.d_head));
    std::vector<float> value(static_cast<std::size_t>(shape.d_value));
    session->read_key(1, 1, 0, key);
    session->read_value(0, 0, 0, value);
    SCOPED_TRACE(std::string(dtype_name(c.type)) + " " + std::to_string(c.value));
    for (const float element : key) EXPECT_EQ(element, c.stored);
    for (const float element : value) EXPECT_EQ(element, -c.stored);
  }
}

// STATE-6: every pass reads the stored rows. A value that rounding changes shows in the output.
TEST_P(ViewsOf, AttentionReadsTheStoredRows) {
  Shape shape = shape_;
  shape.kv_type = DType::bf16;
  LayerInput input = random_input(shape, kTokens, 4);
  input.v.assign(input.v.size(), 1.0f + 0x1p-8f);  // stored as 1
  for (const Step& step : {Step::prefill(kTokens), Step::decode(kTokens)}) {
    const auto session = engine().open(shape, small_options());
    for (const float o : run_step(*session, step, input, 0)) EXPECT_NEAR(o, 1.0f, 1e-5f);
  }
}

HEADWATER_EACH_ENGINE(ViewsOf);

}  // namespace
}  // namespace headwater::api_test
