// Every reader of a file or a text with its n-th allocation refused, n = 0, 1, ...: std::bad_alloc or an Error
// out_of_memory, nothing leaked, nothing crashed; and the usual result as soon as nothing is refused.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "cli/commands/atlas/input.hpp"
#include "cli/commands/attend/input.hpp"
#include "cli/support/safetensors.hpp"
#include "cli/support/steps.hpp"
#include "conformance/allocation_counter.hpp"
#include "conformance/ratchet.hpp"
#include "conformance/safetensors.hpp"
#include "conformance/waivers.hpp"
#include "headwater/error.hpp"
#include "runtime/support/mapped_file.hpp"
#include "tests/allocation/refuse_each.hpp"
#include "tests/cli/parser_fixtures.hpp"

namespace headwater {
namespace {

using allocation::refuse_each;
using conformance::AllocationWatch;

class File {
 public:
  explicit File(const std::string& bytes)
      : path_(::testing::TempDir() + "headwater-readers-" + std::to_string(::getpid())) {
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  ~File() { std::remove(path_.c_str()); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

constexpr const char* kHeader =
    R"({"__metadata__":{"engine":"a name that is long enough for an allocation of its own"},)"
    R"("a tensor with a name that is long, too":{"dtype":"F16","shape":[2,3],"data_offsets":[4,16]},)"
    R"("scalar":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})";

std::string tensor_file() {
  const auto bytes = cli::testing::file_of(kHeader, 16);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(RefusedAllocation, SafetensorsOfTheProgram) {
  const auto file = cli::testing::file_of(kHeader, 16);
  const int refused = refuse_each([&] {
    if (cli::parse_safetensors(file).tensors.size() != 2) throw Error(ErrorCode::internal, "wrong result");
  });
  EXPECT_GT(refused, 5);
}

TEST(RefusedAllocation, MappedFile) {
  const File file(tensor_file());
  const std::string long_path = file.path();
  EXPECT_GT(refuse_each([&] { (void)runtime::MappedFile(long_path).bytes(); }), 0);
}

TEST(RefusedAllocation, InputOfAttend) {
  const std::string header =
      R"({"q":{"dtype":"F32","shape":[2,2,1],"data_offsets":[0,16]},)"
      R"("k":{"dtype":"F16","shape":[2,1,1],"data_offsets":[16,20]},)"
      R"("v":{"dtype":"F16","shape":[2,1,1],"data_offsets":[20,24]},)"
      R"("alibi":{"dtype":"F32","shape":[2],"data_offsets":[24,32]},)"
      R"("a tensor that attention does not use":{"dtype":"F32","shape":[1],"data_offsets":[32,36]}})";
  const auto bytes = cli::testing::file_of(header, 36);
  const File file(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  const runtime::MappedFile mapped(file.path());
  const int refused = refuse_each([&] {
    const cli::AttendInput input = cli::read_attend_input(mapped);
    if (input.q.n != 2 || input.alibi.size() != 2 || input.warnings.size() != 1) {
      throw Error(ErrorCode::internal, "wrong result");
    }
  });
  EXPECT_GT(refused, 10);
}

TEST(RefusedAllocation, InputOfAtlas) {
  const std::string header =
      R"({"__metadata__":{"format":"headwater-attend-1","local":"1","heavy":"1","engine":"a long name of an engine"},)"
      R"("chunk_start":{"dtype":"I32","shape":[3],"data_offsets":[0,12]},)"
      R"("memory":{"dtype":"I32","shape":[2,1,2],"data_offsets":[12,28]},)"
      R"("colsum_inter":{"dtype":"F32","shape":[2,1,2],"data_offsets":[28,44]},)"
      R"("scores":{"dtype":"BF16","shape":[1,4],"data_offsets":[44,52]}})";
  auto bytes = cli::testing::file_of(header, 52);
  const std::int32_t values[] = {0, 2, 4, -1, -1, 0, 1};  // chunk_start, memory
  std::memcpy(bytes.data() + bytes.size() - 52, values, sizeof values);
  const File file(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  const runtime::MappedFile mapped(file.path());
  const int refused = refuse_each([&] {
    const cli::AtlasTrace trace = cli::read_atlas_trace(mapped, {});
    if (trace.n != 4 || trace.positions.size() != 2) throw Error(ErrorCode::internal, "wrong result");
  });
  EXPECT_GT(refused, 10);
}

TEST(RefusedAllocation, Steps) {
  const int refused = refuse_each([] {
    const auto steps = cli::parse_steps("p4096,d1,d12,p900:1800,p900,d1,d1,d1,d1");
    if (steps.size() != 9) throw Error(ErrorCode::internal, "wrong result");
    cli::check_steps(steps, 4096 + 1 + 12 + 900 + 900 + 4);
  });
  EXPECT_GT(refused, 2);
}

TEST(RefusedAllocation, SafetensorsOfTheKit) {
  const File file(tensor_file());
  const int refused = refuse_each([&] {
    const conformance::SafetensorsFile tensors(file.path());
    if (read_floats(tensors.tensor("a tensor with a name that is long, too", 2, "F16")).size() != 6 ||
        tensors.metadata("engine").size() < 20) {
      throw Error(ErrorCode::internal, "wrong result");
    }
  });
  EXPECT_GT(refused, 10);
}

TEST(RefusedAllocation, Ratchet) {
  const File file(
      R"({"an engine with a long name/isa": {"bound.plain_f32": {"out F32": 0.25, "lse F32": 0.5}}})");
  const int refused = refuse_each([&] {
    const conformance::Ratchet baselines = conformance::Ratchet::load(file.path());
    if (baselines.judge("an engine with a long name/isa", "bound.plain_f32", {{"out", "F32", 0.3}})) {
      throw Error(ErrorCode::internal, "wrong result");
    }
  });
  EXPECT_GT(refused, 10);
}

TEST(RefusedAllocation, Waivers) {
  const File file(
      R"({"waivers": [{"case": "bound.a_case_with_a_long_name", "engine": "an engine with a long name",)"
      R"( "reason": "a reason that takes more than one line would", "expires": "2999-12-31"}]})");
  const int refused = refuse_each([&] {
    if (conformance::Waivers::load(file.path()).list().size() != 1) {
      throw Error(ErrorCode::internal, "wrong result");
    }
  });
  EXPECT_GT(refused, 10);
}

// Hostile sizes: a reader takes no more memory than the size of the file explains.
TEST(RefusedAllocation, NumbersOfAHeaderTakeNoMemory) {
  const std::string huge = R"({"x":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})";
  const auto bytes = cli::testing::file_of(huge, 16);
  const File file(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  std::int64_t asked = 0;
  bool refused = false;
  {
    const AllocationWatch watch;
    try {
      const conformance::SafetensorsFile tensors(file.path());
    } catch (const Error&) {
      refused = true;
    }
    asked = watch.bytes();
  }
  EXPECT_TRUE(refused);
  EXPECT_LT(asked, 1 << 20);
}

}  // namespace
}  // namespace headwater
