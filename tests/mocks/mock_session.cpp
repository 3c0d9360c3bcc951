// Constructors and destructors of the mocks, which are most of what a file that includes them takes to compile.

#include "tests/mocks/mock_session.hpp"

#include "tests/mocks/mock_table.hpp"

namespace headwater::mocks {

MockSession::MockSession() {
  ON_CALL(*this, attend_group).WillByDefault([this](std::span<const SequenceCall> calls) {
    Session::attend_group(calls);
  });
}

MockSession::~MockSession() {
  if (on_destruction) on_destruction();
}

MockEngine::MockEngine() = default;
MockEngine::~MockEngine() = default;

MockTable::MockTable() { current_ = this; }
MockTable::~MockTable() { current_ = nullptr; }

}  // namespace headwater::mocks
