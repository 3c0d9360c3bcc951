#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "headwater/headwater.hpp"

namespace headwater::api_test {

/// Every engine that this machine can run, `cpu` under the name that it stands for; a parameterised test is made for each.
std::vector<const Engine*> runnable_engines();

/// "cpu_portable" for cpu-portable: what GoogleTest allows in a name.
std::string test_name(const testing::TestParamInfo<const Engine*>& info);

/// Base of the tests that run for every engine.
class EachEngine : public testing::TestWithParam<const Engine*> {
 protected:
  [[nodiscard]] const Engine& engine() const { return *GetParam(); }
};

#define HEADWATER_EACH_ENGINE(suite)                                                              \
  INSTANTIATE_TEST_SUITE_P(, suite, testing::ValuesIn(::headwater::api_test::runnable_engines()), \
                           ::headwater::api_test::test_name)

/// 2 layers, 4 query heads on 2 key/value heads, rows of 8 and 6: odd enough that a swapped size shows.
Shape small_shape(std::int64_t capacity);

/// S = 8, B = 16, L = 3, H = 2, two threads.
Options small_options();

/// Random rows in [-1, 1), token-major, for n tokens of one layer.
struct LayerInput {
  std::vector<float> q, k, v;
};
LayerInput random_input(const Shape& shape, std::int64_t n, std::uint64_t seed);

/// The rows of tokens [first, ...) of a token-major tensor.
Rows rows_from(const std::vector<float>& tensor, std::int64_t first, std::int64_t heads, std::int64_t width);

/// begin, attend every layer with the same input, end; returns the outputs of all layers, token-major.
std::vector<float> run_step(Session& session, const Step& step, const LayerInput& input, std::int64_t first);

/// The bits of a whole session's results: outputs, scores and the last memory sets.
struct Results {
  std::vector<float> out;
  std::vector<unsigned char> scores;
  std::vector<std::int32_t> memory;
  bool operator==(const Results&) const = default;
};
void append_contents(const Session& session, Results& results);

/// Calls f, which must throw an Error of that code whose one-line message contains all parts.
template <class F>
void expect_error(F&& f, ErrorCode code, const std::vector<std::string>& parts) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    for (const std::string& part : parts) EXPECT_THAT(error.what(), testing::HasSubstr(part));
    EXPECT_THAT(error.what(), testing::Not(testing::HasSubstr("\n")));
    return;
  }
  ADD_FAILURE() << "no error; expected one that names " << (parts.empty() ? "" : parts.front());
}

}  // namespace headwater::api_test
