// Where the rows of a KV store lie. No stride of it is public: callers read rows by position (Session::read_key).

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

#include "core/config.hpp"
#include "core/kv_store.hpp"

namespace headwater::core {
namespace {

TEST(KvStore, P1_1_RowsLieLayerByLayerHeadByHeadWithoutGaps) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    const Shape shape{.n_layer = 3,
                      .n_head = 4,
                      .n_head_kv = 2,
                      .d_head = 24,
                      .d_value = 10,
                      .capacity = 70,
                      .kv_type = type};
    KvStore store(shape, resolve(shape, {}, 1));
    EXPECT_EQ(store.bytes(), 0) << "pages are taken as tokens come";
    store.reserve(0, 70);
    const auto element = static_cast<std::int64_t>(dtype_size(type));
    const auto* const keys = static_cast<const unsigned char*>(store.key(0, 0, 0));
    const auto* const values = static_cast<const unsigned char*>(store.value(0, 0, 0));
    for (std::int64_t layer = 0; layer < 3; ++layer) {
      for (std::int64_t head = 0; head < 2; ++head) {
        for (std::int64_t position = 0; position < 70; ++position) {
          const std::int64_t row = (layer * 2 + head) * 70 + position;
          EXPECT_EQ(store.key(layer, head, position), keys + row * 24 * element);
          EXPECT_EQ(store.value(layer, head, position), values + row * 10 * element);
        }
      }
    }
    EXPECT_GE(store.bytes(), 3 * 2 * 70 * (24 + 10) * element);
  }
}

// Layers of two widths, the rows of each as dense as those of a store of its layers alone; beyond a page, and shared with a
// fork.
TEST(KvStore, LAYER_1_RowsOfLayersOfSeveralWidthsAreKept) {
  const Shape shape{.n_layer = 4, .n_head = 2, .n_head_kv = 2, .d_head = 24, .d_value = 10, .capacity = 5000};
  EffectiveOptions options = resolve(shape, {}, 1);
  options.layers = {{.d_head = 7}, {}, {.d_value = 3}, {.d_head = 7}};
  KvStore store(shape, options);
  const std::int64_t keys[] = {7, 24, 24, 7};
  const std::int64_t values[] = {10, 10, 3, 10};
  const auto key = [](std::int64_t layer, std::int64_t head, std::int64_t position, std::int64_t x) {
    return static_cast<float>(((layer * 2 + head) * 5000 + position) * 24 + x);
  };
  store.reserve(0, 5000);
  for (std::int64_t layer = 0; layer < 4; ++layer) {
    ASSERT_EQ(store.d_head(layer), keys[layer]);
    ASSERT_EQ(store.d_value(layer), values[layer]);
    store.make_room(layer, 0, 5000);
    for (std::int64_t position = 0; position < 5000; ++position) {
      float row[2][24];
      for (std::int64_t head = 0; head < 2; ++head) {
        for (std::int64_t x = 0; x < 24; ++x) row[head][x] = key(layer, head, position, x);
      }
      const Rows rows{row, DType::f32, 48, 24};
      for (std::int64_t head = 0; head < 2; ++head) store.write(layer, head, position, rows, rows, 0);
    }
  }
  KvStore fork = store.fork(4500);
  const std::int64_t elements = 2 * 5000 * ((7 + 24 + 24 + 7) + (10 + 10 + 3 + 10));
  EXPECT_GE(store.bytes(), elements * 4);
  EXPECT_LT(store.bytes(), elements * 4 + 100000) << "rows are as wide as they are";
  std::int64_t wrong = 0;
  for (const auto& [kept, tokens] : {std::pair{&store, 5000}, std::pair{&fork, 4500}}) {
    for (std::int64_t layer = 0; layer < 4; ++layer) {
      EXPECT_EQ(kept->keys_together(layer, 4000, 1000), 96) << "to the end of the page";
      for (std::int64_t head = 0; head < 2; ++head) {
        for (std::int64_t position = 0; position < tokens; ++position) {
          const auto* k = static_cast<const float*>(kept->key(layer, head, position));
          const auto* v = static_cast<const float*>(kept->value(layer, head, position));
          for (std::int64_t x = 0; x < keys[layer]; ++x) wrong += k[x] != key(layer, head, position, x);
          for (std::int64_t x = 0; x < values[layer]; ++x) wrong += v[x] != key(layer, head, position, x);
        }
      }
    }
  }
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace headwater::core
