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

class CObserver : public ::testing::Test {
 protected:
  CObserver() {
    const headwater_shape shape{.n_layer = 1,
                                .n_head = 1,
                                .n_head_kv = 1,
                                .d_head = 1,
                                .d_value = 1,
                                .capacity = 4,
                                .kv_type = 0,
                                .reserved = 0};
    EXPECT_EQ(headwater_open("reference", &shape, nullptr, &session_), HEADWATER_OK);
  }
  ~CObserver() override { headwater_close(session_); }
  CObserver(const CObserver&) = delete;
  CObserver& operator=(const CObserver&) = delete;

  /// The first token of the session.
  headwater_status attend() {
    EXPECT_EQ(headwater_reset(session_), HEADWATER_OK);
    EXPECT_EQ(headwater_begin_prefill(session_, 1, 0), HEADWATER_OK);
    const float one = 1.0f;
    float result = 0.0f;
    const headwater_rows rows{&one, 1, 1, HEADWATER_F32, 0};
    const headwater_mutable_rows out{&result, 1, 1, HEADWATER_F32, 0};
    return headwater_attend(session_, 0, &rows, &rows, &rows, &out);
  }

  headwater_session* session_ = nullptr;
};

TEST_F(CObserver, ATextOfAnyLengthIsCutToOneThatFits) {
  for (const std::size_t length :
       {kLongestMessage - 1, kLongestMessage, kLongestMessage + 1, 5 * kLongestMessage}) {
    std::string text(length, 'x');
    ASSERT_EQ(headwater_set_observer(session_, throw_text, &text), HEADWATER_OK);
    EXPECT_EQ(attend(), HEADWATER_INTERNAL);
    EXPECT_EQ(std::strlen(headwater_last_error()), std::min(length, kLongestMessage));
    EXPECT_EQ(headwater_end(session_), HEADWATER_WRONG_STATE) << "the step has failed";
    EXPECT_EQ(headwater_reset(session_), HEADWATER_OK);
    EXPECT_STREQ(headwater_last_error(), "");
  }
}

TEST_F(CObserver, AnyAnswerButZeroStops) {
  std::int32_t answer = 0;
  const auto say = [](void* user, const headwater_chunk_record*) {
    return *static_cast<const std::int32_t*>(user);
  };
  ASSERT_EQ(headwater_set_stopping_observer(session_, say, &answer), HEADWATER_OK);
  EXPECT_EQ(attend(), HEADWATER_OK);
  for (const std::int32_t stop : {1, 2, -1, 1 << 16}) {
    answer = stop;
    EXPECT_EQ(attend(), HEADWATER_INTERRUPTED) << stop;
    const std::string said =
        "the observer returned " + std::to_string(stop) + " at layer 0, chunk [0, 1); 0 would go on";
    EXPECT_EQ(headwater_last_error(), said);
    std::int32_t failed = -1;
    EXPECT_EQ(headwater_session_failed(session_, &failed), HEADWATER_OK);
    EXPECT_EQ(failed, 1);
  }
}

}  // namespace
}  // namespace headwater::api_test
