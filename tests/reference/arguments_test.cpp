#include "reference/arguments.hpp"

#include <cstdint>
#include <limits>

#include "tests/reference/support.hpp"

/// Clauses: STATE-5.
namespace headwater::reference {
namespace {

using test::expect_error;

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

TEST(Arguments, WhatIsWrongWithAView) {
  const float value = 0.0F;
  EXPECT_NO_THROW(check_rows("q", Rows{&value, DType::bf16, 0, -7}, 10, 3, 4));
  expect_error(ErrorCode::invalid_argument, {"q.data = null", "pointer"}, [&] {
    check_rows("q", Rows{nullptr, DType::f32, 1, 1}, 1, 1, 1);
  });
  expect_error(ErrorCode::invalid_argument, {"v.type = 3", "F32", "F16", "BF16"}, [&] {
    check_rows("v", Rows{&value, static_cast<DType>(3), 1, 1}, 1, 1, 1);
  });
}

TEST(Arguments, ByteOffsetsFit) {
  const float value = 0.0F;
  // 4-byte elements: a third of the (2^63 - 1) / 4 that can be counted, for rows, heads and width each.
  const std::int64_t most = kMax / 4 / 3;
  for (const std::int64_t sign : {1, -1}) {
    EXPECT_NO_THROW(check_rows("k", Rows{&value, DType::f32, sign * (most / 10), 0}, 10, 3, 4));
    expect_error(ErrorCode::invalid_argument, {"k.row_stride = ", "for 10 rows"}, [&] {
      check_rows("k", Rows{&value, DType::f32, sign * (most / 10 + 1), 0}, 10, 3, 4);
    });
    EXPECT_NO_THROW(check_rows("k", Rows{&value, DType::f32, 0, sign * (most / 3)}, 10, 3, 4));
    expect_error(ErrorCode::invalid_argument, {"k.head_stride = ", "for 3 rows"}, [&] {
      check_rows("k", Rows{&value, DType::f32, 0, sign * (most / 3 + 1)}, 10, 3, 4);
    });
  }
  EXPECT_NO_THROW(check_rows("k", Rows{&value, DType::f16, kMax / 2 / 3, 0}, 1, 1, 1));
  EXPECT_NO_THROW(check_rows("k", Rows{&value, DType::f32, 0, 0}, 1, 1, most));
  expect_error(ErrorCode::invalid_argument, {"k.width = "}, [&] {
    check_rows("k", Rows{&value, DType::f32, 0, 0}, 1, 1, most + 1);
  });
}

TEST(Arguments, ReadOnlyIsTheSameView) {
  float value = 0.0F;
  const Rows rows = read_only(MutableRows{&value, DType::f16, 5, 7});
  EXPECT_EQ(rows.data, &value);
  EXPECT_EQ(rows.type, DType::f16);
  EXPECT_EQ(rows.row_stride, 5);
  EXPECT_EQ(rows.head_stride, 7);
}

}  // namespace
}  // namespace headwater::reference
