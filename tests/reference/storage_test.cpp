#include "reference/storage.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "reference/numbers.hpp"
#include "tests/reference/support.hpp"

/// Clauses: STATE-6, SCORE-1, MEM-4.
namespace headwater::reference {
namespace {

Shape shape_of(DType type) {
  Shape shape;
  shape.n_layer = 1;
  shape.n_head = 4;
  shape.n_head_kv = 2;
  shape.d_head = 3;
  shape.d_value = 5;
  shape.capacity = 7;
  shape.kv_type = type;
  return shape;
}

EffectiveOptions options_of(ScoreType type, std::int64_t local, std::int64_t heavy) {
  EffectiveOptions options;
  options.local = local;
  options.heavy = heavy;
  options.score_type = type;
  return options;
}

TEST(Storage, ZeroedBytes) {
  ZeroedBytes bytes(100);
  ASSERT_EQ(bytes.size(), 100U);
  EXPECT_TRUE(std::all_of(bytes.data(), bytes.data() + 100, [](std::byte b) { return b == std::byte{0}; }));
  bytes.data()[99] = std::byte{7};
  const std::byte* before = bytes.data();
  const ZeroedBytes moved(std::move(bytes));
  EXPECT_EQ(moved.data(), before);
  EXPECT_EQ(moved.size(), 100U);
  EXPECT_EQ(moved.data()[99], std::byte{7});
  EXPECT_EQ(bytes.data(), nullptr);  // NOLINT: what a move leaves behind
  EXPECT_EQ(bytes.size(), 0U);
}

TEST(Storage, STATE_6_RowsAreApartAndRoundedOnce) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    SCOPED_TRACE(dtype_name(type));
    LayerStorage storage(shape_of(type), options_of(ScoreType::bf16, 1, 1));
    const double step = type == DType::bf16 ? 0x1p-7 : 0x1p-10;
    for (std::int64_t p = 0; p < 7; ++p) {
      for (std::int64_t g = 0; g < 2; ++g) {
        const double base = static_cast<double>(p * 2 + g);
        write_row(storage.keys(), p, g, std::vector<double>{base, base + 0.25, 1 + step});
        write_row(storage.values(), p, g, std::vector<double>{-base, 0, 1, 2, base});
      }
    }
    const LayerStorage& stored = storage;
    for (std::int64_t p = 0; p < 7; ++p) {
      for (std::int64_t g = 0; g < 2; ++g) {
        const double base = static_cast<double>(p * 2 + g);
        EXPECT_EQ(read_rows(stored.keys(), p, p + 1, g, 3).values,
                  (std::vector<double>{base, base + 0.25, 1 + step}));
        EXPECT_EQ(read_rows(stored.values(), p, p + 1, g, 5).values,
                  (std::vector<double>{-base, 0, 1, 2, base}));
      }
    }
    EXPECT_EQ(stored.keys().type, type);
    EXPECT_EQ(stored.values().type, type);
  }
}

TEST(Storage, SCORE_1_OneScorePerTokenAndHead) {
  for (const ScoreType type : {ScoreType::bf16, ScoreType::f32}) {
    LayerStorage storage(shape_of(DType::f32), options_of(type, 1, 1));
    for (std::int64_t h = 0; h < 4; ++h) {
      for (std::int64_t p = 0; p < 7; ++p) EXPECT_EQ(storage.score(h, p), 0.0F);
    }
    for (std::int64_t h = 0; h < 4; ++h) {
      for (std::int64_t p = 0; p < 7; ++p) storage.set_score(h, p, static_cast<float>(h * 7 + p) / 4);
    }
    for (std::int64_t h = 0; h < 4; ++h) {
      for (std::int64_t p = 0; p < 7; ++p) EXPECT_EQ(storage.score(h, p), static_cast<float>(h * 7 + p) / 4);
    }
    const ScoreView view = storage.score_view();
    EXPECT_EQ(view.type, type);
    EXPECT_EQ(view.head_stride, 7);
    if (type == ScoreType::bf16) {
      EXPECT_EQ(static_cast<const std::uint16_t*>(view.data)[2 * 7 + 6], 0x40A0);  // 5
    } else {
      EXPECT_EQ(static_cast<const float*>(view.data)[2 * 7 + 6], 5.0F);
    }
    storage.clear(7);
    for (std::int64_t h = 0; h < 4; ++h) {
      for (std::int64_t p = 0; p < 7; ++p) EXPECT_EQ(storage.score(h, p), 0.0F);
    }
  }
}

TEST(Storage, SCORE_1_ClearsEveryHeadAsFarAsItMust) {
  for (const ScoreType type : {ScoreType::bf16, ScoreType::f32}) {
    LayerStorage storage(shape_of(DType::f32), options_of(type, 1, 1));
    for (std::int64_t h = 0; h < 4; ++h) {
      for (std::int64_t p = 0; p < 7; ++p) storage.set_score(h, p, 3.0F);
    }
    storage.clear(5);
    for (std::int64_t h = 0; h < 4; ++h) {
      for (std::int64_t p = 0; p < 5; ++p) EXPECT_EQ(storage.score(h, p), 0.0F);
    }
  }
}

TEST(Storage, MEM_4_MemorySets) {
  LayerStorage storage(shape_of(DType::f32), options_of(ScoreType::bf16, 2, 1));
  MemoryView view = storage.memory_view();
  EXPECT_EQ(view.width, 3);
  EXPECT_EQ(view.head_stride, 3);
  EXPECT_EQ(view.count, 0);
  for (std::int64_t e = 0; e < 12; ++e) EXPECT_EQ(view.data[e], -1);

  storage.memory(2)[0] = 4;
  storage.memory(2)[1] = 6;
  storage.memory_count = 2;
  storage.memory_end = 7;
  view = storage.memory_view();
  EXPECT_EQ(view.count, 2);
  EXPECT_EQ(view.data[2 * 3 + 1], 6);
  const LayerStorage& stored = storage;
  EXPECT_EQ(stored.memory_set(2).size(), 2U);
  EXPECT_EQ(stored.memory_set(2)[0], 4);
  EXPECT_EQ(stored.memory(2).size(), 3U);
  EXPECT_EQ(stored.memory(2)[2], -1);
  EXPECT_EQ(stored.memory_set(3)[0], -1);

  storage.clear(7);
  EXPECT_EQ(storage.memory_count, 0);
  EXPECT_EQ(storage.memory_end, 0);
  EXPECT_EQ(storage.memory_view().data[2 * 3 + 1], -1);
}

TEST(Storage, MEM_4_NoWiderThanTheCapacity) {
  EXPECT_EQ(LayerStorage(shape_of(DType::f32), options_of(ScoreType::bf16, 4, 2)).memory_view().width, 6);
  EXPECT_EQ(LayerStorage(shape_of(DType::f32), options_of(ScoreType::bf16, 4, 4)).memory_view().width, 7);
  EXPECT_EQ(
      LayerStorage(shape_of(DType::f32), options_of(ScoreType::bf16, 0, 2147483647)).memory_view().width, 7);
  EXPECT_EQ(LayerStorage(shape_of(DType::f32), options_of(ScoreType::bf16, 0, 0)).memory_view().width, 0);
}

TEST(Storage, BytesAreThoseOfTheArrays) {
  const MemoryBytes f32 = LayerStorage(shape_of(DType::f32), options_of(ScoreType::f32, 2, 1)).bytes();
  EXPECT_EQ(f32.kv, 7 * 2 * (3 + 5) * 4);
  EXPECT_EQ(f32.scores, 4 * 7 * 4);
  EXPECT_EQ(f32.memory_sets, 4 * 3 * 4);
  const MemoryBytes b16 = LayerStorage(shape_of(DType::bf16), options_of(ScoreType::bf16, 2, 1)).bytes();
  EXPECT_EQ(b16.kv, 7 * 2 * (3 + 5) * 2);
  EXPECT_EQ(b16.scores, 4 * 7 * 2);
}

}  // namespace
}  // namespace headwater::reference
