#include "tests/reference/support.hpp"

namespace headwater::reference::test {

std::string error_of(ErrorCode code, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_FALSE(message.empty());
    return message;
  }
  ADD_FAILURE() << "no error was thrown";
  return {};
}

void expect_error(ErrorCode code, const std::vector<std::string>& parts, const std::function<void()>& call) {
  const std::string message = error_of(code, call);
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
  }
}

double Numbers::next() { return static_cast<double>(below(4096) - 2048) / 2048.0; }

std::int64_t Numbers::below(std::int64_t bound) {
  state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
  return static_cast<std::int64_t>((state_ >> 33U) % static_cast<std::uint64_t>(bound));
}

std::vector<float> Numbers::floats(std::int64_t count, float size) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(next()) * size);
  return values;
}

Matrix matrix(const std::vector<std::vector<double>>& rows) {
  Matrix result(static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(rows.at(0).size()));
  result.values.clear();
  for (const std::vector<double>& row : rows) {
    result.values.insert(result.values.end(), row.begin(), row.end());
  }
  return result;
}

Matrix column(const std::vector<double>& values) {
  Matrix result(static_cast<std::int64_t>(values.size()), 1);
  result.values = values;
  return result;
}

void expect_near(std::span<const double> actual, const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], tolerance) << "entry " << i;
  }
}

}  // namespace headwater::reference::test
