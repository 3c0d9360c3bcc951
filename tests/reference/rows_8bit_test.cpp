#include "reference/rows_8bit.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "conformance/state_archive.hpp"
#include "reference/config.hpp"
#include "reference/engine.hpp"
#include "tests/reference/support.hpp"

/// Clause: STATE-13. Scales and integers are worked out by hand.
namespace headwater::reference {
namespace {

using conformance::MemoryArchive;
using test::expect_error;

/// A group as it is stored.
struct Packed {
  int scale = 0;
  std::vector<int> integers;
};

Packed packed(std::vector<double> elements) {
  elements.resize(kGroupElements, 0.0);
  std::array<std::byte, kGroupBytes> group{};
  pack_group(elements, group);
  Packed said{std::to_integer<int>(group[0]) + 256 * std::to_integer<int>(group[1]), {}};
  for (std::size_t i = 2; i < group.size(); ++i)
    said.integers.push_back(std::to_integer<std::int8_t>(group[i]));
  return said;
}

std::vector<double> restored(int scale, const std::vector<int>& integers) {
  std::array<std::byte, kGroupBytes> group{};
  group[0] = static_cast<std::byte>(scale & 0xFF);
  group[1] = static_cast<std::byte>(scale >> 8);
  for (std::size_t i = 0; i < integers.size(); ++i) {
    group[2 + i] = static_cast<std::byte>(static_cast<std::int8_t>(integers[i]));
  }
  std::vector<double> row(kGroupElements);
  restore_group(group, row);
  row.resize(integers.size());
  return row;
}

void expect_packed(const std::vector<double>& elements, int scale, std::vector<int> integers) {
  integers.resize(kGroupElements, 0);
  const Packed got = packed(elements);
  EXPECT_EQ(got.scale, scale);
  EXPECT_EQ(got.integers, integers);
}

TEST(Rows8Bit, STATE_13_Zeros) {
  expect_packed({}, 0, {});
  expect_packed({-0.0, 0.0}, 0, {});
}

TEST(Rows8Bit, STATE_13_NearestIntegersTiesToEven) {
  // The scale is 1.
  expect_packed({127, -127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, 125.5}, 0x3C00,
                {127, -127, 0, 2, 2, 0, -2, -2, 126, 126});
  expect_packed({127, 0.49999997, 0.50000006, -1.4999999, -1.5000001}, 0x3C00, {127, 0, 1, -1, -2});
  // 1/4: exact halves of it.
  expect_packed({-31.75, 0.125, 0.375, 0.625}, 0x3400, {-127, 0, 2, 2});
}

TEST(Rows8Bit, STATE_13_IntegersAreOfTheScaleBeforeItIsRounded) {
  // 128 / 127 = 1.00787..., as F16 1 + 8/1024 = 1.0078125.
  expect_packed({128, 64, 1, -0.5}, 0x3C08, {127, 64, 1, 0});
  // 100 / 127 = 1612.6 / 2048, as F16 1613 / 2048; 50 is 63.5 steps, and 63 of the scale.
  expect_packed({100, 50, -100}, 0x3A4D, {127, 64, -127});
}

TEST(Rows8Bit, STATE_13_ScalesBelowF16) {
  const double least = 0x1p-24;  // of F16
  // Half of it is a tie and goes to 0, and what is above it to the least number.
  expect_packed({127 * least / 2, 127 * least / 4}, 0, {});
  expect_packed({127 * least * 0.75, -127 * least * 0.375}, 1, {127, -64});
  expect_packed({127 * least, least}, 1, {127, 1});
  expect_packed({std::numeric_limits<float>::denorm_min()}, 0, {});
  // A subnormal scale, 3 * 2^-24.
  expect_packed({-127 * 3 * least, 3 * least, 4.5 * least}, 3, {-127, 1, 2});
}

TEST(Rows8Bit, STATE_13_ScalesBeyondF16) {
  expect_packed({127.0 * 65504, -65504}, 0x7BFF, {127, -1});
  // 65520 is the first number that F16 rounds to infinity.
  const auto border = static_cast<float>(127.0 * 65520);
  expect_packed({std::nextafter(border, 0.0F)}, 0x7BFF, {127});
  expect_packed({border, 1}, 0x7E00, {});
  expect_packed({std::numeric_limits<float>::max()}, 0x7E00, {});
}

TEST(Rows8Bit, STATE_13_WhatIsNotFinite) {
  for (const double bad : {test::kNaN, test::kInf, -test::kInf}) {
    expect_packed({bad}, 0x7E00, {});
    expect_packed({1, 2, 3, bad}, 0x7E00, {});
    expect_packed({bad, 1e-30}, 0x7E00, {});
  }
}

TEST(Rows8Bit, STATE_13_AnyBytesAreRestored) {
  EXPECT_EQ(restored(0x3C00, {127, -128, 0, 1}), (std::vector<double>{127, -128, 0, 1}));
  EXPECT_EQ(restored(0xBC00, {127, -128, 1}), (std::vector<double>{-127, 128, -1}));
  EXPECT_EQ(restored(0x0001, {3}), std::vector<double>{3 * 0x1p-24});
  EXPECT_EQ(restored(0x7BFF, {127}), std::vector<double>{127.0 * 65504});
  const std::vector<double> infinite = restored(0x7C00, {1, -2, 0});
  EXPECT_EQ(infinite[0], test::kInf);
  EXPECT_EQ(infinite[1], -test::kInf);
  EXPECT_TRUE(std::isnan(infinite[2]));
  for (const double x : restored(0x7E00, {0, 1, -1})) EXPECT_TRUE(std::isnan(x));
}

// What sessions do with them.

Shape shape_of(DType type) {
  Shape shape;
  shape.n_layer = 2;
  shape.n_head = 2;
  shape.n_head_kv = 2;
  shape.d_head = 64;
  shape.d_value = 32;
  shape.capacity = 24;
  shape.kv_type = type;
  return shape;
}

Options in_8_bits() {
  Options options;
  options.batch = options.chunk = 5;
  options.local = 1;
  options.heavy = 2;
  options.kv_bits = 8;
  return options;
}

/// Rows of a layer, [T][H][width], the same for each call at the same positions.
std::vector<float> rows_of(std::uint64_t seed, std::int64_t first, std::int64_t n, std::int64_t elements) {
  std::vector<float> all;
  for (std::int64_t t = first; t < first + n; ++t) {
    test::Numbers numbers(seed + 100 * static_cast<std::uint64_t>(t));
    const std::vector<float> row = numbers.floats(elements, 3.0F);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

std::vector<float> run(Session& session, const Step& step, std::uint64_t seed = 1) {
  const Shape& s = session.shape();
  const std::int64_t first = session.tokens();
  std::vector<float> all;
  session.begin(step);
  for (std::int64_t layer = 0; layer < s.n_layer; ++layer) {
    const auto at = seed + 10 * static_cast<std::uint64_t>(layer);
    const std::vector<float> q = rows_of(at, first, step.n, s.n_head * s.d_head);
    const std::vector<float> k = rows_of(at + 1, first, step.n, s.n_head_kv * s.d_head);
    const std::vector<float> v = rows_of(at + 2, first, step.n, s.n_head_kv * s.d_value);
    std::vector<float> out(static_cast<std::size_t>(step.n * s.n_head * s.d_value));
    session.attend(layer, Rows::token_major(q.data(), DType::f32, s.n_head, s.d_head),
                   Rows::token_major(k.data(), DType::f32, s.n_head_kv, s.d_head),
                   Rows::token_major(v.data(), DType::f32, s.n_head_kv, s.d_value),
                   MutableRows::token_major(out.data(), DType::f32, s.n_head, s.d_value));
    all.insert(all.end(), out.begin(), out.end());
  }
  session.end();
  return all;
}

/// Ready to be loaded.
std::unique_ptr<MemoryArchive> saved(Session& session) {
  auto archive = std::make_unique<MemoryArchive>();
  session.exchange_state(*archive);
  archive->load();
  return archive;
}

TEST(Rows8Bit, STATE_13_SessionsShowRestoredRowsAndSaveGroups) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    SCOPED_TRACE(dtype_name(type));
    const Shape shape = shape_of(type);
    const auto session = reference_engine().open(shape, in_8_bits());
    (void)run(*session, Step::prefill(7));
    const auto archive = saved(*session);
    const MemoryArchive::Array& keys = archive->arrays.at("key.1");
    EXPECT_EQ(keys.type, StateArchive::Element::u8);
    EXPECT_EQ(keys.dims, (std::vector<std::int64_t>{2, 7, 68}));
    EXPECT_EQ(archive->arrays.at("value.0").dims, (std::vector<std::int64_t>{2, 7, 34}));
    const std::vector<float> given = rows_of(12, 0, 7, 2 * 64);
    for (std::int64_t head = 0; head < 2; ++head) {
      for (std::int64_t t = 0; t < 7; ++t) {
        std::vector<float> row(64);
        session->read_key(1, head, t, row);
        for (std::int64_t first = 0; first < 64; first += kGroupElements) {
          const auto from = given.begin() + (2 * t + head) * 64 + first;
          const std::vector<double> elements(from, from + kGroupElements);
          std::array<std::byte, kGroupBytes> group{};
          pack_group(elements, group);
          const auto at = (head * 7 + t) * 68 + first / kGroupElements * kGroupBytes;
          EXPECT_TRUE(std::equal(group.begin(), group.end(), keys.bytes.begin() + at));
          std::vector<double> wanted(kGroupElements);
          restore_group(group, wanted);
          for (std::int64_t i = 0; i < kGroupElements; ++i) {
            const double x = wanted[static_cast<std::size_t>(i)];
            const double rounded = type == DType::f16    ? from_f16(round_to_f16(x))
                                   : type == DType::bf16 ? from_bf16(round_to_bf16(x))
                                                         : x;
            EXPECT_EQ(row[static_cast<std::size_t>(first + i)], static_cast<float>(rounded));
          }
        }
      }
    }
  }
}

TEST(Rows8Bit, STATE_13_ResultsAreThoseOfTheRestoredRows) {
  const Shape shape = shape_of(DType::f32);
  const auto session = reference_engine().open(shape, in_8_bits());
  const std::vector<float> q = rows_of(1, 0, 9, 128);
  const std::vector<float> k = rows_of(2, 0, 9, 128);
  const std::vector<float> v = rows_of(3, 0, 9, 64);
  const auto take = [&](Session& to, const std::vector<float>& keys, const std::vector<float>& values) {
    std::vector<float> out(9 * 64);
    to.begin(Step::prefill(9));
    for (std::int64_t layer = 0; layer < 2; ++layer) {
      to.attend(layer, Rows::token_major(q.data(), DType::f32, 2, 64),
                Rows::token_major(keys.data(), DType::f32, 2, 64),
                Rows::token_major(values.data(), DType::f32, 2, 32),
                MutableRows::token_major(out.data(), DType::f32, 2, 32));
    }
    to.end();
    return out;
  };
  const std::vector<float> got = take(*session, k, v);
  std::vector<float> keys(k.size());
  std::vector<float> values(v.size());
  for (std::int64_t t = 0; t < 9; ++t) {
    for (std::int64_t head = 0; head < 2; ++head) {
      session->read_key(0, head, t, std::span(keys).subspan(static_cast<std::size_t>(2 * t + head) * 64, 64));
      session->read_value(0, head, t,
                          std::span(values).subspan(static_cast<std::size_t>(2 * t + head) * 32, 32));
    }
  }
  EXPECT_NE(keys, k);
  Options plain = in_8_bits();
  plain.kv_bits = 0;
  EXPECT_EQ(take(*reference_engine().open(shape, plain), keys, values), got);
}

TEST(Rows8Bit, STATE_13_NothingIsPackedTwice) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    SCOPED_TRACE(dtype_name(type));
    const Shape shape = shape_of(type);
    const auto session = reference_engine().open(shape, in_8_bits());
    (void)run(*session, Step::prefill(11));
    (void)run(*session, Step::decode(2));
    const auto before = saved(*session);

    const auto fork = session->fork();
    EXPECT_TRUE(saved(*fork)->arrays == before->arrays);
    const auto second = fork->fork();
    EXPECT_TRUE(saved(*second)->arrays == before->arrays);
    const auto loaded = reference_engine().open(shape, in_8_bits());
    loaded->exchange_state(*before);
    EXPECT_TRUE(saved(*loaded)->arrays == before->arrays);

    // Aborted, and truncated to where decode steps began.
    session->begin(Step::decode(3));
    session->abort();
    (void)run(*session, Step::decode(3), 77);
    session->truncate(13);
    EXPECT_TRUE(saved(*session)->arrays == before->arrays);

    const std::vector<float> next = run(*session, Step::decode(2));
    EXPECT_EQ(run(*fork, Step::decode(2)), next);
    EXPECT_EQ(run(*second, Step::decode(2)), next);
    EXPECT_EQ(run(*loaded, Step::decode(2)), next);
    session->reset();
    (void)run(*session, Step::prefill(11));
    (void)run(*session, Step::decode(2));
    EXPECT_TRUE(saved(*session)->arrays == before->arrays);
  }
}

TEST(Rows8Bit, STATE_13_AnyGroupsAreLoaded) {
  const Shape shape = shape_of(DType::bf16);
  const auto session = reference_engine().open(shape, in_8_bits());
  (void)run(*session, Step::prefill(4));
  const auto archive = saved(*session);
  std::vector<std::byte>& bytes = archive->arrays.at("key.0").bytes;
  bytes[0] = std::byte{0x00}, bytes[1] = std::byte{0xFC};  // the first scale is -infinity,
  bytes[2] = std::byte{0}, bytes[3] = std::byte{0x80};     // integers 0 and -128
  const auto loaded = reference_engine().open(shape, in_8_bits());
  loaded->exchange_state(*archive);
  std::vector<float> row(64);
  loaded->read_key(0, 0, 0, row);
  EXPECT_TRUE(std::isnan(row[0]));
  EXPECT_EQ(row[1], test::kInfF);
  EXPECT_TRUE(saved(*loaded)->arrays == archive->arrays);
}

TEST(Rows8Bit, STATE_13_BytesOfGroupsAndOfRestoredRows) {
  const Shape shape = shape_of(DType::bf16);
  const std::int64_t rows = 2 * 24 * 2;  // layers, tokens, heads
  EXPECT_EQ(reference_engine().open(shape, in_8_bits())->memory_bytes().kv, rows * 96 * 2 + rows * 3 * 34);
}

TEST(Rows8Bit, STATE_13_WhatIsRefused) {
  const Shape shape = shape_of(DType::f32);
  const auto refuse = [](const Shape& of, const Options& options, const std::vector<std::string>& parts) {
    expect_error(ErrorCode::invalid_argument, parts, [&] { (void)resolve(of, options); });
  };
  Options options = in_8_bits();
  EXPECT_EQ(resolve(shape, options).kv_bits, 8);
  for (const std::int64_t bits : {-8, 1, 4, 7, 9, 16}) {
    options.kv_bits = bits;
    refuse(shape, options, {"kv_bits = " + std::to_string(bits), "8"});
  }
  options.kv_bits = 8;
  for (const std::int64_t width : {1, 31, 33, 48}) {
    const std::string said = std::to_string(width);
    Shape other = shape;
    other.d_head = width;
    refuse(other, options, {"d_head = " + said, "multiple of 32", "kv_bits"});
    other.d_head = 64;
    other.d_value = width;
    refuse(other, options, {"d_value = " + said, "multiple of 32", "kv_bits"});
    options.kv_bits = 0;
    EXPECT_EQ(resolve(other, options).kv_bits, 0);
    options.kv_bits = 8;
    options.layers.assign(2, {});
    options.layers[1].d_head = width;
    refuse(shape, options, {"layers[1].d_head = " + said, "multiple of 32", "kv_bits"});
    options.layers[1] = {.d_value = width};
    refuse(shape, options, {"layers[1].d_value = " + said, "multiple of 32", "kv_bits"});
    options.layers.clear();
  }
  options.layers.assign(2, {});
  options.layers[0].d_head = 32;
  EXPECT_NO_THROW((void)resolve(shape, options));
  options.kv_owner = KvOwner::caller;
  refuse(shape, options, {"kv_owner = 1 (caller)", "0 (session)", "kv_bits is 8"});
}

}  // namespace
}  // namespace headwater::reference
