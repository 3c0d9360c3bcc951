// attend_together() of session.hpp: checks, then the engine of the first session.

#include <algorithm>
#include <string>
#include <vector>

#include "headwater/session.hpp"

namespace headwater {

namespace {

[[noreturn]] void refuse(std::size_t index, ErrorCode code, const std::string& what) {
  throw Error(code, "calls[" + std::to_string(index) + "]: " + what);
}

}  // namespace

void attend_together(std::span<const SequenceCall> calls) {
  if (calls.empty()) {
    throw Error(ErrorCode::invalid_argument, "calls is empty; allowed: one call or more");
  }
  std::vector<const Session*> sessions;
  sessions.reserve(calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].session == nullptr) {
      refuse(i, ErrorCode::invalid_argument, "session is null; allowed: a session with an open step");
    }
    sessions.push_back(calls[i].session);
  }
  std::ranges::sort(sessions);
  const auto twice = std::ranges::adjacent_find(sessions);
  if (twice != sessions.end()) {
    const auto of_it = [&](const SequenceCall& call) { return call.session == *twice; };
    const auto first = std::ranges::find_if(calls, of_it);
    const auto second = std::find_if(first + 1, calls.end(), of_it);
    refuse(static_cast<std::size_t>(second - calls.begin()), ErrorCode::invalid_argument,
           "session is that of calls[" + std::to_string(first - calls.begin()) +
               "], too; allowed: each session once");
  }
  for (std::size_t i = 0; i < calls.size(); ++i) {
    try {
      calls[i].session->check_call(calls[i]);
    } catch (const Error& error) {
      refuse(i, error.code(), error.what());
    }
  }
  calls.front().session->attend_group(calls);
}

}  // namespace headwater
