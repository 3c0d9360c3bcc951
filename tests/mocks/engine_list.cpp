#include "headwater/error.hpp"
#include "tests/mocks/mock_session.hpp"

namespace headwater {
namespace mocks {
namespace {

EngineList* current = nullptr;

}  // namespace

EngineList::EngineList() { current = this; }
EngineList::~EngineList() { current = nullptr; }

}  // namespace mocks

std::span<const Engine* const> engines() {
  if (mocks::current == nullptr) return {};
  return mocks::current->engines();
}

const Engine& engine(std::string_view name) {
  if (mocks::current == nullptr) throw Error(ErrorCode::engine_unavailable, "the test has no engines");
  return mocks::current->engine(name);
}

}  // namespace headwater
