#pragma once

#include <gmock/gmock.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "bindings/c_abi_support.hpp"
#include "tests/mocks/mock_session.hpp"

/// Handles of the C ABI whose sessions are mocks, and what the tests give to its functions.
namespace headwater::mocks {

struct Close {
  void operator()(headwater_session* handle) const { headwater_close(handle); }
};
using Handle = std::unique_ptr<headwater_session, Close>;

/// The handle as headwater_open() makes it, and its session.
template <template <class> class Mood>
struct Opened {
  Opened() {
    auto owned = std::make_unique<Mood<MockSession>>();
    session = owned.get();
    handle.reset(new headwater_session{std::move(owned)});
  }
  headwater_session* get() const { return handle.get(); }
  MockSession* session = nullptr;
  Handle handle;
};

inline std::array<float, 8> memory_of_rows{};
inline constexpr headwater_rows kQ{memory_of_rows.data(), 11, 12, HEADWATER_F32, 0};
inline constexpr headwater_rows kK{memory_of_rows.data() + 1, 21, 22, HEADWATER_F16, 0};
inline constexpr headwater_rows kV{memory_of_rows.data() + 2, 31, 32, HEADWATER_BF16, 0};
inline constexpr headwater_mutable_rows kOut{memory_of_rows.data() + 3, 41, 42, HEADWATER_F16, 0};
inline constexpr headwater_lse_output kLse{memory_of_rows.data() + 4, 51, 52};

inline headwater_shape some_shape() { return {2, 6, 3, 40, 50, 700, HEADWATER_BF16, 0}; }

inline headwater_options default_options() {
  headwater_options options;
  EXPECT_EQ(headwater_options_init(&options, sizeof options), HEADWATER_OK);
  return options;
}

/// A call failed with this status and text.
inline void expect_refused(headwater_status actual, const ::testing::Matcher<std::string>& text,
                           headwater_status status = HEADWATER_INVALID_ARGUMENT) {
  EXPECT_EQ(actual, status) << headwater_last_error();
  EXPECT_THAT(std::string(headwater_last_error()), text);
}

/// A call that is to make a session fails with this status and text, and leaves no handle.
inline void expect_no_session(const std::function<headwater_status(headwater_session**)>& call,
                              headwater_status status, const ::testing::Matcher<std::string>& text) {
  headwater_session other{nullptr};
  headwater_session* handle = &other;
  expect_refused(call(&handle), text, status);
  EXPECT_EQ(handle, nullptr);
}

}  // namespace headwater::mocks
