#pragma once

#include <gmock/gmock.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "headwater/error.hpp"
#include "optimized/core/config.hpp"
#include "optimized/core/step_machine.hpp"
#include "tests/mocks/mock_session.hpp"

namespace headwater::mocks {

using ::testing::_;

inline std::vector<std::int32_t> ids(std::int64_t n, std::int32_t first = 1) {
  std::vector<std::int32_t> result;
  for (std::int64_t i = 0; i < n; ++i) result.push_back(first + static_cast<std::int32_t>(i % 200));
  return result;
}

/// A session that keeps the engines' own protocol (StepMachine) and computes nothing: outputs are zeros.
class ProtocolSession : public ::testing::NiceMock<MockSession> {
 public:
  ProtocolSession(const Shape& shape, const Options& asked)
      : shape_(shape), options_(core::resolve(shape, asked, 1)), machine_(shape_, options_, true) {
    ON_CALL(*this, begin(_)).WillByDefault([this](const Step& step) { machine_.begin(step); });
    ON_CALL(*this, attend).WillByDefault([this](std::int64_t layer, auto&&...) {
      machine_.enter_layer(layer);
    });
    ON_CALL(*this, check_call(_)).WillByDefault([this](const SequenceCall& call) {
      machine_.require_open("attend()");
      machine_.check_layer(call.layer);
    });
    ON_CALL(*this, end()).WillByDefault([this] { machine_.end(); });
    ON_CALL(*this, reset()).WillByDefault([this] { machine_.reset(); });
    ON_CALL(*this, abort()).WillByDefault([this] { machine_.abort(); });
    ON_CALL(*this, truncate(_)).WillByDefault([this](std::int64_t n) { machine_.truncate(n); });
    ON_CALL(*this, state()).WillByDefault([this] { return machine_.state(); });
    ON_CALL(*this, failed()).WillByDefault([this] { return machine_.failed(); });
    ON_CALL(*this, tokens()).WillByDefault([this] { return machine_.tokens(); });
    ON_CALL(*this, plan()).WillByDefault([this] { return std::span<const Chunk>(machine_.plan()); });
    ON_CALL(*this, shape()).WillByDefault(::testing::ReturnRef(shape_));
    ON_CALL(*this, options()).WillByDefault(::testing::ReturnRef(options_));
  }

  void expect_step(const ::testing::Matcher<const Step&>& step) {
    EXPECT_CALL(*this, begin(step));
    for (std::int64_t layer = 0; layer < shape_.n_layer; ++layer)
      EXPECT_CALL(*this, attend(layer, _, _, _, _, _));
    EXPECT_CALL(*this, end());
  }
  /// What an attend() does that cannot finish.
  auto cannot_finish(ErrorCode code = ErrorCode::internal) {
    return [this, code](std::int64_t layer, auto&&...) {
      machine_.enter_layer(layer);
      machine_.fail();
      throw Error(code, "the device is gone");
    };
  }
  /// A step whose attend() of `failing` cannot finish (STATE-5).
  void expect_step_that_fails(const ::testing::Matcher<const Step&>& step, std::int64_t failing) {
    EXPECT_CALL(*this, begin(step));
    for (std::int64_t layer = 0; layer < failing; ++layer) EXPECT_CALL(*this, attend(layer, _, _, _, _, _));
    EXPECT_CALL(*this, attend(failing, _, _, _, _, _)).WillOnce(cannot_finish());
  }
  /// Checks the expectations so far; from now on any call is allowed.
  void verify() { ::testing::Mock::VerifyAndClearExpectations(static_cast<MockSession*>(this)); }

 private:
  Shape shape_;
  EffectiveOptions options_;
  core::StepMachine machine_;
};

template <class Call>
void expect_error(const Call& call, ErrorCode code, const std::string& text) {
  try {
    call();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_THAT(error.what(), ::testing::HasSubstr(text));
  }
}

}  // namespace headwater::mocks
