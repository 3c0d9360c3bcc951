// The reader of GGUF files with its n-th allocation refused.

#include <gtest/gtest.h>

#include <string>

#include "headwater/error.hpp"
#include "runtime/gguf/gguf.hpp"
#include "tests/allocation/refuse_each.hpp"

namespace headwater {
namespace {

TEST(RefusedAllocation, GgufOfOneFile) {
  const std::string path = FIXTURES "/types.gguf";
  EXPECT_GT(allocation::refuse_each([&] {
              if (runtime::GgufFile::open(path).tensors().empty())
                throw Error(ErrorCode::internal, "wrong result");
            }),
            5);
}

TEST(RefusedAllocation, GgufInParts) {
  const std::string path = FIXTURES "/split-00001-of-00003.gguf";
  EXPECT_GT(allocation::refuse_each([&] {
              if (runtime::GgufFile::open(path).tensors().empty())
                throw Error(ErrorCode::internal, "wrong result");
            }),
            5);
}

}  // namespace
}  // namespace headwater
