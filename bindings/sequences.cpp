// attend_together() of session.hpp: checks, then the engine of the first session.

#include <algorithm>
#include <string>

#include "headwater/session.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater {

namespace {

[[noreturn]] void refuse(std::size_t index, ErrorCode code, const std::string& what) {
  throw Error(code, "calls[" + std::to_string(index) + "]: " + what);
}

}  // namespace

void attend_together(std::span<const SequenceCall> calls) {
  constexpr std::size_t kMostCalls = 4096;
  if (calls.empty() || calls.size() > kMostCalls) {
    throw Error(ErrorCode::invalid_argument, "calls has " + std::to_string(calls.size()) +
                                                 " entries; allowed: 1 .. " + std::to_string(kMostCalls));
  }
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].session == nullptr) {
      refuse(i, ErrorCode::invalid_argument, "session is null; allowed: a session with an open step");
    }
    std::size_t first = 0;
    while (calls[first].session != calls[i].session) ++first;
    if (first < i && !HEADWATER_SABOTAGE("bindings.together.session_twice")) {
      refuse(i, ErrorCode::invalid_argument,
             "session is that of calls[" + std::to_string(first) + "], too; allowed: each session once");
    }
  }
  const std::size_t checked = HEADWATER_SABOTAGE("bindings.together.first_8_checked")
                                  ? std::min<std::size_t>(8, calls.size())
                                  : calls.size();
  for (std::size_t i = 0; i < checked; ++i) {
    try {
      calls[i].session->check_call(calls[i]);
    } catch (const Error& error) {
      refuse(i, error.code(), error.what());
    }
  }
  calls.front().session->attend_group(calls);
}

}  // namespace headwater
