// An observer of the C ABI that is written in C++ may throw: the call becomes a status and one line, however long the text.

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "headwater/headwater.h"
#include "tests/api/problem.hpp"

namespace headwater::api_test {
namespace {

constexpr std::size_t kLongestMessage =
    1023;  // bindings/c_abi_support.cpp keeps 1024 bytes, the last of them 0

void throw_text(void* text, const headwater_chunk_record*) {
  throw std::runtime_error(*static_cast<const std::string*>(text));
}

TEST(CObserver, ATextOfAnyLengthIsCutToOneThatFits) {
  const headwater_shape shape{.n_layer = 1,
                              .n_head = 1,
                              .n_head_kv = 1,
                              .d_head = 1,
                              .d_value = 1,
                              .capacity = 4,
                              .kv_type = 0,
                              .reserved = 0};
  headwater_session* session = nullptr;
  ASSERT_EQ(headwater_open("reference", &shape, nullptr, &session), HEADWATER_OK);
  for (const std::size_t length :
       {kLongestMessage - 1, kLongestMessage, kLongestMessage + 1, 5 * kLongestMessage}) {
    std::string text(length, 'x');
    ASSERT_EQ(headwater_set_observer(session, throw_text, &text), HEADWATER_OK);
    ASSERT_EQ(headwater_begin_prefill(session, 1, 0), HEADWATER_OK);
    const float one = 1.0f;
    float result = 0.0f;
    const headwater_rows rows{&one, 1, 1, HEADWATER_F32, 0};
    const headwater_mutable_rows out{&result, 1, 1, HEADWATER_F32, 0};
    EXPECT_EQ(headwater_attend(session, 0, &rows, &rows, &rows, &out), HEADWATER_INTERNAL);
    EXPECT_EQ(std::strlen(headwater_last_error()), std::min(length, kLongestMessage));
    EXPECT_EQ(headwater_end(session), HEADWATER_WRONG_STATE) << "the step has failed";
    EXPECT_EQ(headwater_reset(session), HEADWATER_OK);
    EXPECT_STREQ(headwater_last_error(), "");
  }
  headwater_close(session);
}

}  // namespace
}  // namespace headwater::api_test
