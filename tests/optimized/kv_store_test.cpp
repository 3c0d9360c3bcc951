// Where the rows of a KV store lie. No stride of it is public: callers read rows by position (Session::read_key).

#include <gtest/gtest.h>

#include <cstdint>

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
    KvStore store(shape, 4096, KvOwner::session);
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

}  // namespace
}  // namespace headwater::core
