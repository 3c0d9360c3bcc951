// ROPE-1..4: the public rotation, the reference's, and 80-bit arithmetic.

#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "conformance/case.hpp"
#include "conformance/formats.hpp"
#include "conformance/placed.hpp"
#include "conformance/random.hpp"
#include "headwater/error.hpp"
#include "headwater/rope.hpp"
#include "reference/rope.hpp"

namespace headwater::conformance {
namespace {

struct Rotation {
  std::int64_t first = 0;
  std::vector<double> frequencies;
  double magnitude = 1.0;
  RopeLayout layout = RopeLayout::adjacent_pairs;
};

using Rotate = void (*)(const MutableRows&, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                        std::span<const double>, double, RopeLayout);

// A strided copy of the rows in memory of their type, gaps filled with canaries.
struct Buffer {
  explicit Buffer(const Tensor& tensor)
      : tensor_(tensor), head_stride(tensor.width + 2), row_stride(head_stride * tensor.heads + 3) {
    bytes.assign(static_cast<std::size_t>(row_stride * tensor.n + 8) * dtype_size(tensor.type),
                 std::byte{0x5a});
    for (std::int64_t t = 0; t < tensor.n; ++t) {
      for (std::int64_t h = 0; h < tensor.heads; ++h) {
        for (std::int64_t x = 0; x < tensor.width; ++x)
          store_element(tensor.type, tensor.row(t, h)[x], at(t, h, x));
      }
    }
    before = bytes;
  }
  std::byte* at(std::int64_t t, std::int64_t h, std::int64_t x) {
    return bytes.data() +
           static_cast<std::size_t>(t * row_stride + h * head_stride + x) * dtype_size(tensor_.type);
  }
  [[nodiscard]] MutableRows rows() { return {bytes.data(), tensor_.type, row_stride, head_stride}; }

  const Tensor& tensor_;
  std::int64_t head_stride;
  std::int64_t row_stride;
  std::vector<std::byte> bytes;
  std::vector<std::byte> before;
};

void require_rotated(const char* who, Rotate rotate_rows, const Tensor& tensor, const Rotation& rotation) {
  Buffer buffer(tensor);
  const auto pairs = static_cast<std::int64_t>(rotation.frequencies.size());
  rotate_rows(buffer.rows(), tensor.n, tensor.heads, tensor.width, rotation.first, rotation.frequencies,
              rotation.magnitude, rotation.layout);
  const bool adjacent = rotation.layout == RopeLayout::adjacent_pairs;
  for (std::int64_t t = 0; t < tensor.n; ++t) {
    for (std::int64_t h = 0; h < tensor.heads; ++h) {
      const float* row = tensor.row(t, h);
      std::vector<long double> wanted(row, row + tensor.width);
      std::vector<long double> size(wanted.size(), 0.0L);
      for (std::int64_t i = 0; i < pairs; ++i) {
        const auto a = static_cast<std::size_t>(adjacent ? 2 * i : i);
        const auto b = static_cast<std::size_t>(adjacent ? 2 * i + 1 : i + pairs);
        // The frequency is a double; its product with the position is exact in 80 bits up to 2^11 and nearly so beyond.
        const long double angle = static_cast<long double>(rotation.first + t) *
                                  static_cast<long double>(rotation.frequencies[static_cast<std::size_t>(i)]);
        const long double c = std::cos(angle) * rotation.magnitude;
        const long double s = std::sin(angle) * rotation.magnitude;
        wanted[a] = row[a] * c - row[b] * s;
        wanted[b] = row[a] * s + row[b] * c;
        // ROPE-3: an angle may be off by 1e-6 rad for positions below 2^20; double arithmetic does far better.
        const long double angle_error = std::fabs(angle) * 0x1p-52L;
        size[a] = size[b] = (std::fabs(row[a]) + std::fabs(row[b])) * std::fabs(rotation.magnitude) *
                            (0x1p-50L + angle_error);
      }
      for (std::size_t x = 0; x < wanted.size(); ++x) {
        const float got = load_element(tensor.type, buffer.at(t, h, static_cast<std::int64_t>(x)));
        const auto target = static_cast<double>(wanted[x]);
        // One rounding to the type, to nearest.
        const double bound = unit_roundoff(tensor.type) * (std::fabs(target) + static_cast<double>(size[x])) +
                             static_cast<double>(size[x]) + smallest(tensor.type) / 2;
        const bool rotated = x < static_cast<std::size_t>(2 * pairs);
        if (rotated ? !(std::fabs(got - target) <= bound) : got != row[x]) {
          throw Violation(fmt::format("{}: position {} head {} element {} of {} is {:.9g}, not {:.9g}", who,
                                      rotation.first + t, h, x, tensor.width, got, target));
        }
      }
    }
  }
  // Everything between the rows keeps its bytes.
  for (std::int64_t t = 0; t < tensor.n; ++t) {
    for (std::int64_t h = 0; h < tensor.heads; ++h) {
      for (std::int64_t x = 2 * pairs; x < tensor.width; ++x)
        store_element(tensor.type, tensor.row(t, h)[x], buffer.at(t, h, x));
      for (std::int64_t x = 0; x < 2 * pairs; ++x)
        store_element(tensor.type, tensor.row(t, h)[x], buffer.at(t, h, x));
    }
  }
  if (buffer.bytes != buffer.before)
    throw Violation(fmt::format("{}: bytes between the rows were written", who));
}

void rotation(Context& context) {
  Random random(context.seed);
  for (int round = 0; round < context.rounds(600); ++round) {
    const std::int64_t pairs = random.integer(0, 9);
    Tensor tensor(random.pick(std::vector<DType>{DType::f32, DType::f16, DType::bf16}), random.integer(0, 6),
                  random.integer(1, 3), std::max<std::int64_t>(1, 2 * pairs + random.integer(0, 4)));
    for (float& x : tensor.values) x = round_to(tensor.type, static_cast<float>(2.0 * random.normal()));
    Rotation rotation;
    rotation.first = random.chance(0.5) ? random.integer(0, 100) : random.integer(0, (1 << 20) - 8);
    const double theta = random.pick(std::vector<double>{10000.0, 100000.0, 1.5});
    if (pairs > 0) rotation.frequencies = rope_inverse_frequencies(2 * pairs, theta);
    rotation.magnitude = random.chance(0.6) ? 1.0 : random.uniform(-2.0, 2.0);
    rotation.layout = random.chance(0.5) ? RopeLayout::adjacent_pairs : RopeLayout::split_halves;
    require_rotated("rotate", rotate, tensor, rotation);
    require_rotated("reference", reference::rotate_rows, tensor, rotation);
  }
}
const Register kRotation{
    {"rope.rotation", {"ROPE-1", "ROPE-3", "ROPE-4"}, "rope", Lane::bound, false, rotation}};

void frequencies(Context&) {
  for (const double theta : {10000.0, 100000.0, 2.0, 1.0, 0.5}) {
    for (const std::int64_t r : {2, 4, 6, 64, 128, 130}) {
      const std::vector<double> a = rope_inverse_frequencies(r, theta);
      const std::vector<double> b = reference::inverse_frequencies(r, theta);
      if (static_cast<std::int64_t>(a.size()) != r / 2 || a.size() != b.size())
        throw Violation("number of frequencies");
      for (std::size_t i = 0; i < a.size(); ++i) {
        const long double exponent = -2.0L * static_cast<long double>(i) / static_cast<long double>(r);
        const auto wanted = static_cast<double>(std::pow(static_cast<long double>(theta), exponent));
        // pow of a rounded exponent: an ulp for pow, and |ln theta| half ulps of the exponent.
        const double bound = wanted * 0x1p-52 * (1.0 + std::fabs(std::log(theta)));
        if (!(std::fabs(a[i] - wanted) <= bound) || !(std::fabs(b[i] - wanted) <= bound)) {
          throw Violation(fmt::format("frequency {} of {} is {:.17g} and {:.17g}, not {:.17g}", i, r, a[i],
                                      b[i], wanted));
        }
      }
    }
  }
}
const Register kFrequencies{
    {"rope.frequencies", {"ROPE-1", "ROPE-4"}, "rope", Lane::bound, false, frequencies}};

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

// Norms of pairs stay, and q(p).k(p') depends on p - p' only; positions cut at any chunk border are global (ROPE-2).
void relative_positions(Context& context) {
  Random random(context.seed);
  constexpr std::int64_t kWidth = 16;
  const std::vector<double> frequency = rope_inverse_frequencies(kWidth, 10000.0);
  for (int round = 0; round < context.rounds(200); ++round) {
    const RopeLayout layout = random.chance(0.5) ? RopeLayout::adjacent_pairs : RopeLayout::split_halves;
    std::vector<float> q(kWidth);
    std::vector<float> k(kWidth);
    for (float& x : q) x = static_cast<float>(random.normal());
    for (float& x : k) x = static_cast<float>(random.normal());
    const auto turned = [&](std::vector<float> row, std::int64_t position) {
      rotate(MutableRows::token_major(row.data(), DType::f32, 1, kWidth), 1, 1, kWidth, position, frequency,
             1.0, layout);
      return row;
    };
    const std::int64_t distance = random.integer(0, 5000);
    const std::int64_t p = random.integer(0, 900000);
    const std::int64_t other = random.integer(0, 900000);
    const double a = dot(turned(q, p + distance), turned(k, p));
    const double b = dot(turned(q, other + distance), turned(k, other));
    // Every rotated element is rounded once to F32: 2 u per product, on both sides.
    const double bound = 4.0 * 0x1p-24 * std::sqrt(dot(q, q) * dot(k, k)) * 2.0;
    if (!(std::fabs(a - b) <= bound)) {
      throw Violation(
          fmt::format("q.k at distance {} is {:.9g} at {} and {:.9g} at {}", distance, a, p, b, other));
    }
    const std::vector<float> far = turned(q, p);
    if (!(std::fabs(dot(far, far) - dot(q, q)) <= 4.0 * 0x1p-24 * dot(q, q)))
      throw Violation("a rotation changed a norm");
    // Two calls that cut the rows give the bits of one.
    std::vector<float> both;
    both.insert(both.end(), q.begin(), q.end());
    both.insert(both.end(), k.begin(), k.end());
    rotate(MutableRows::token_major(both.data(), DType::f32, 1, kWidth), 2, 1, kWidth, p, frequency, 1.0,
           layout);
    std::vector<float> apart = turned(q, p);
    const std::vector<float> second = turned(k, p + 1);
    apart.insert(apart.end(), second.begin(), second.end());
    if (both != apart) throw Violation("rows rotated in two calls differ from one call");
  }
}
const Register kRelative{
    {"rope.relative_positions", {"ROPE-2", "ROPE-3"}, "rope", Lane::law, false, relative_positions}};

void refused(Context&) {
  std::vector<float> row(8, 1.0f);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto refuse = [&](const char* what, const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      if (error.code() == ErrorCode::invalid_argument) return;
    }
    throw Violation(fmt::format("rotation accepted {}", what));
  };
  const std::vector<double> good{1.0, 0.5};
  const std::vector<double> bad{1.0, nan};
  const std::vector<double> five(5, 1.0);
  struct Twin {
    std::vector<double> (*frequencies)(std::int64_t, double);
    Rotate rotate;
  };
  for (const Twin& twin : {Twin{rope_inverse_frequencies, rotate},
                           Twin{reference::inverse_frequencies, reference::rotate_rows}}) {
    for (const std::int64_t r : {std::int64_t{-2}, std::int64_t{0}, std::int64_t{1}, std::int64_t{3},
                                 std::int64_t{65538}, INT64_MAX}) {
      refuse("a bad r", [&] { (void)twin.frequencies(r, 1e4); });
    }
    for (const double theta : {0.0, -1.0, nan, HUGE_VAL})
      refuse("a bad theta", [&] { (void)twin.frequencies(4, theta); });
    if (twin.frequencies(65536, 1e4).size() != 32768) throw Violation("r = 65536 is allowed");
    const auto call = [&](void* data, DType type, std::int64_t n, std::int64_t heads, std::int64_t width,
                          std::int64_t first, const std::vector<double>& frequencies, double magnitude,
                          RopeLayout layout) {
      twin.rotate({data, type, 8, 8}, n, heads, width, first, frequencies, magnitude, layout);
    };
    const RopeLayout fine = RopeLayout::adjacent_pairs;
    const DType f32 = DType::f32;
    refuse("null rows", [&] { call(nullptr, f32, 1, 1, 8, 0, good, 1.0, fine); });
    refuse("an unknown type", [&] { call(row.data(), static_cast<DType>(3), 1, 1, 8, 0, good, 1.0, fine); });
    refuse("n = -1", [&] { call(row.data(), f32, -1, 1, 8, 0, good, 1.0, fine); });
    refuse("no heads", [&] { call(row.data(), f32, 1, 0, 8, 0, good, 1.0, fine); });
    refuse("a negative position", [&] { call(row.data(), f32, 1, 1, 8, -1, good, 1.0, fine); });
    refuse("position 2^31", [&] { call(row.data(), f32, 1, 1, 8, std::int64_t{1} << 31, good, 1.0, fine); });
    refuse("rows up to 2^31",
           [&] { call(row.data(), f32, 2, 1, 8, (std::int64_t{1} << 31) - 1, good, 1.0, fine); });
    refuse("too many frequencies", [&] { call(row.data(), f32, 1, 1, 8, 0, five, 1.0, fine); });
    refuse("a NaN frequency", [&] { call(row.data(), f32, 1, 1, 8, 0, bad, 1.0, fine); });
    refuse("an infinite magnitude", [&] { call(row.data(), f32, 1, 1, 8, 0, good, HUGE_VAL, fine); });
    refuse("an unknown layout",
           [&] { call(row.data(), f32, 1, 1, 8, 0, good, 1.0, static_cast<RopeLayout>(2)); });
    for (const float x : row) {
      if (x != 1.0f) throw Violation("a refused rotation wrote to its rows");
    }
    call(row.data(), f32, 1, 1, 8, (std::int64_t{1} << 31) - 1, good, 1.0, fine);
    std::fill(row.begin(), row.end(), 1.0f);
    call(row.data(), f32, 0, 1, 8, 0, good, 1.0, fine);  // no rows
    for (const float x : row) {
      if (x != 1.0f) throw Violation("a rotation of no rows wrote something");
    }
  }
}
const Register kRefused{{"rope.refused", {"ROPE-1", "ROPE-4"}, "rope", Lane::hostile, false, refused}};

}  // namespace
}  // namespace headwater::conformance
