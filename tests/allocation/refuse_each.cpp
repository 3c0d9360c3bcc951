#include "tests/allocation/refuse_each.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <new>

#include "conformance/allocation_counter.hpp"
#include "headwater/error.hpp"

namespace headwater::allocation {

int refuse_each(const std::function<void()>& read) {
  read();  // makes what is made once: locales, what the first exception of a thread takes
  try {
    throw Error(ErrorCode::internal, "a first exception");
  } catch (const Error&) {
  }
  constexpr int kMost = 20000;
  for (int n = 0; n < kMost; ++n) {
    bool failed_well = false;
    bool finished = false;
    bool refused = false;
    std::int64_t live = 0;
    {
      const conformance::AllocationWatch watch(n);
      try {
        read();
        finished = true;
      } catch (const std::bad_alloc&) {
        failed_well = true;
      } catch (const Error& error) {
        failed_well = error.code() == ErrorCode::out_of_memory;
      } catch (...) {
      }
      refused = watch.refused();
      live = watch.live();
    }
    EXPECT_EQ(live, 0) << "allocation " << n << " refused: not given back";
    if (!refused) {
      EXPECT_TRUE(finished) << "failed although nothing was refused";
      return n;
    }
    // Some allocations only make things faster, like a stream's buffer: then the reader may go on.
    EXPECT_TRUE(failed_well || finished)
        << "allocation " << n << " refused: another error than out of memory";
    if (::testing::Test::HasFailure()) return n;
  }
  ADD_FAILURE() << "takes more memory than this test can refuse";
  return kMost;
}

}  // namespace headwater::allocation
