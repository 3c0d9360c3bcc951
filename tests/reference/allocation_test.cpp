#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "reference/engine.hpp"
#include "tests/reference/support.hpp"

/// What happens when memory runs out, at the first allocation, the second, ... of a call.

namespace {

/// Allocations of this thread that still succeed; negative: all of them.
thread_local long allocations_left = -1;

void* allocate(std::size_t size) {
  if (allocations_left == 0) {
    allocations_left = -1;  // what handles the error may allocate
    throw std::bad_alloc();
  }
  if (allocations_left > 0) --allocations_left;
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) { return allocate(size); }
void* operator new[](std::size_t size) { return allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

/// Clauses: STATE-5, STATE-8.
namespace headwater::reference {
namespace {

/// Calls `call` with the n-th allocation failing, n = 0, 1, ..., until it needs no more than n; `after` looks
/// at every failure. Returns the number of failures.
int fail_each_allocation(const std::function<void()>& call, const std::function<void()>& after) {
  for (int n = 0;; ++n) {
    allocations_left = n;
    try {
      call();
      allocations_left = -1;
      return n;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::out_of_memory) << error.what();
      EXPECT_EQ(allocations_left, -1) << "an error without a failed allocation: " << error.what();
    }
    allocations_left = -1;
    after();
    if (testing::Test::HasFailure()) return n;
  }
}

Shape two_heads() {
  Shape shape;
  shape.n_layer = 3;
  shape.n_head = 2;
  shape.d_head = 2;
  shape.d_value = 2;
  shape.capacity = 40;
  return shape;
}

Options chunks_of_4() {
  Options options;
  options.batch = 10;  // with a warning, which takes memory too
  options.chunk = 4;
  options.local = 1;
  options.heavy = 2;
  options.sinks = {1.0F, 2.0F};
  return options;
}

TEST(Allocation, OpenFailsWhole) {
  const Shape shape = two_heads();
  const Options options = chunks_of_4();
  std::unique_ptr<Session> session;
  const int failures = fail_each_allocation([&] { session = reference_engine().open(shape, options); },
                                            [&] { EXPECT_EQ(session, nullptr); });
  EXPECT_GT(failures, 5);
  EXPECT_NE(session, nullptr);
}

TEST(Allocation, STATE_5_BeginChangesNothing) {
  const std::unique_ptr<Session> session = reference_engine().open(two_heads(), chunks_of_4());
  const int failures = fail_each_allocation([&] { session->begin(Step::prefill(23)); },
                                            [&] {
                                              EXPECT_EQ(session->state(), SessionState::empty);
                                              EXPECT_TRUE(session->plan().empty());
                                              EXPECT_TRUE(session->chunks().empty());
                                            });
  EXPECT_GT(failures, 1);
  EXPECT_EQ(session->plan().size(), 7U);
}

TEST(Allocation, STATE_5_AttendFailsTheStep) {
  for (const bool dense : {false, true}) {
    Options options = chunks_of_4();
    options.dense = dense;
    options.checkpoints = 2;
    const std::unique_ptr<Session> session = reference_engine().open(two_heads(), options);
    test::Numbers numbers(1);
    const std::vector<float> rows = numbers.floats(9 * 4);
    std::vector<float> out(9 * 4);
    const Rows q = Rows::token_major(rows.data(), DType::f32, 2, 2);
    const Rows kv = Rows::token_major(rows.data(), DType::f32, 1, 2);
    const MutableRows o = MutableRows::token_major(out.data(), DType::f32, 2, 2);
    session->begin(Step::prefill(9));
    const int failures = fail_each_allocation(
        [&] { session->attend(0, q, kv, kv, o); },
        [&] {
          test::expect_error(ErrorCode::wrong_state, {"abort()", "reset()"}, [&] { session->end(); });
          session->abort();
          session->begin(Step::prefill(9));
        });
    EXPECT_GT(failures, 10);
  }
}

}  // namespace
}  // namespace headwater::reference
