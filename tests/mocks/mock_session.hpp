#pragma once

#include <gmock/gmock.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "headwater/engine.hpp"
#include "headwater/state.hpp"

namespace headwater::mocks {

/// A mock of a session; its caller is tested. A group of calls is made one by one, as by engines without a way of
/// their own.
class MockSession : public Session {
 public:
  MockSession();
  ~MockSession() override;
  std::function<void()> on_destruction;

  MOCK_METHOD(void, begin, (const Step& step), (override));
  MOCK_METHOD(void, attend,
              (std::int64_t layer, const Rows& q, const Rows& k, const Rows& v, const MutableRows& out,
               const LseOutput& lse),
              (override));
  MOCK_METHOD(void, attend_stored,
              (std::int64_t layer, const Rows& q, const StoredRows& rows, const MutableRows& out,
               const LseOutput& lse),
              (override));
  MOCK_METHOD(void, check_call, (const SequenceCall& call), (const, override));
  MOCK_METHOD(void, attend_group, (std::span<const SequenceCall> calls), (override));
  MOCK_METHOD(void, end, (), (override));
  MOCK_METHOD(void, reset, (), (override));
  MOCK_METHOD(void, abort, (), (override));
  MOCK_METHOD(void, truncate, (std::int64_t n), (override));
  MOCK_METHOD(std::unique_ptr<Session>, fork, (), (override));
  MOCK_METHOD(void, exchange_state, (StateArchive & archive), (override));
  MOCK_METHOD(void, set_interrupt, (Interrupt interrupt), (override));
  MOCK_METHOD(SessionState, state, (), (const, override));
  MOCK_METHOD(std::int64_t, tokens, (), (const, override));
  MOCK_METHOD(const Shape&, shape, (), (const, override));
  MOCK_METHOD(const EffectiveOptions&, options, (), (const, override));
  MOCK_METHOD(MemoryBytes, memory_bytes, (), (const, override));
  MOCK_METHOD(std::span<const Chunk>, plan, (), (const, override));
  MOCK_METHOD(std::span<const Chunk>, chunks, (), (const, override));
  MOCK_METHOD(ScoreView, scores, (std::int64_t layer), (const, override));
  MOCK_METHOD(MemoryView, memory, (std::int64_t layer), (const, override));
  MOCK_METHOD(void, read_key,
              (std::int64_t layer, std::int64_t head_kv, std::int64_t position, std::span<float> row),
              (const, override));
  MOCK_METHOD(void, read_value,
              (std::int64_t layer, std::int64_t head_kv, std::int64_t position, std::span<float> row),
              (const, override));
  MOCK_METHOD(void, set_observer, (Observer observer), (override));
  MOCK_METHOD(StageSeconds, stage_seconds, (), (const, override));
  MOCK_METHOD(bool, failed, (), (const, override));
};

class MockEngine : public Engine {
 public:
  MockEngine();
  ~MockEngine() override;
  MOCK_METHOD(std::string_view, name, (), (const, override));
  MOCK_METHOD(std::string_view, isa, (), (const, override));
  MOCK_METHOD(std::string_view, description, (), (const, override));
  MOCK_METHOD(std::string, unavailable_because, (), (const, override));
  MOCK_METHOD(Claims, claims, (), (const, override));
  MOCK_METHOD(std::unique_ptr<Session>, open, (const Shape& shape, const Options& options),
              (const, override));
  MOCK_METHOD(MemoryEstimate, estimate, (const Shape& shape, const Options& options), (const, override));
};

/// What headwater::engines() and headwater::engine() answer in a program that links engine_list.cpp: the linker takes it
/// for bindings/engines.cpp. At most one exists at a time.
class EngineList {
 public:
  EngineList();
  ~EngineList();
  EngineList(const EngineList&) = delete;
  EngineList& operator=(const EngineList&) = delete;

  MOCK_METHOD(std::span<const Engine* const>, engines, ());
  MOCK_METHOD(const Engine&, engine, (std::string_view name));
};

inline auto is_step(Step::Kind kind, std::int64_t n, std::int64_t turn_length) {
  return ::testing::AllOf(::testing::Field("kind", &Step::kind, kind), ::testing::Field("n", &Step::n, n),
                          ::testing::Field("turn_length", &Step::turn_length, turn_length));
}
inline auto prefill(std::int64_t n, std::int64_t turn_length = 0) {
  return is_step(Step::Kind::prefill, n, turn_length);
}
inline auto decode(std::int64_t n = 1) { return is_step(Step::Kind::decode, n, 0); }

/// Rows and MutableRows.
template <class View>
auto is_view(const void* data, DType type, std::int64_t row_stride, std::int64_t head_stride) {
  return ::testing::AllOf(::testing::Field("data", &View::data, data),
                          ::testing::Field("type", &View::type, type),
                          ::testing::Field("row_stride", &View::row_stride, row_stride),
                          ::testing::Field("head_stride", &View::head_stride, head_stride));
}

}  // namespace headwater::mocks
