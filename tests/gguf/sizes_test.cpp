// Files as large models have them: many parts, vocabularies of 150000 entries, tensors beyond 2^32 bytes.

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/gguf/builder.hpp"

namespace headwater::runtime::testing {
namespace {

constexpr std::size_t kVocabulary = 151936;  // Qwen's

class GgufSizes : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ =
        std::filesystem::path(::testing::TempDir()) / fmt::format("headwater-sizes-{}-{}", name, ::getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  [[nodiscard]] std::string path(const std::string& name) const { return (folder_ / name).string(); }
  [[nodiscard]] std::string write(const std::string& name, const std::vector<std::byte>& bytes) const {
    std::ofstream(path(name), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return path(name);
  }

  std::filesystem::path folder_;
};

TEST_F(GgufSizes, EveryPartHoldsItsOwnTensors) {
  constexpr int kParts = 200;
  for (int part = 0; part < kParts; ++part) {
    Builder b;
    b.add<std::uint16_t>("split.no", kU16, static_cast<std::uint16_t>(part));
    b.add<std::uint16_t>("split.count", kU16, kParts);
    b.add<std::int32_t>("split.tensors.count", kI32, 2 * kParts);
    std::vector<float> values;
    for (int t = 0; t < 2; ++t) {
      b.add_tensor(fmt::format("part.{}.{}", part, t), {8}, kF32Tensor, values.size() * sizeof(float));
      for (int i = 0; i < 8; ++i) values.push_back(static_cast<float>(100 * part + 10 * t + i));
    }
    b.data_bytes = values.size() * sizeof(float);
    std::vector<std::byte> bytes = b.build();
    std::memcpy(bytes.data() + bytes.size() - b.data_bytes, values.data(), b.data_bytes);
    (void)write(fmt::format("m-{:05}-of-{:05}.gguf", part + 1, kParts), bytes);
  }
  const GgufFile model = GgufFile::open(path(fmt::format("m-00001-of-{:05}.gguf", kParts)));
  ASSERT_EQ(model.tensors().size(), 2U * kParts);
  for (int part = 0; part < kParts; ++part) {
    for (int t = 0; t < 2; ++t) {
      const Tensor& tensor = model.tensor(fmt::format("part.{}.{}", part, t));
      std::vector<float> values(8);
      dequantize_row(tensor.type, tensor.row(0), 8, values.data());
      for (int i = 0; i < 8; ++i) {
        ASSERT_EQ(values[static_cast<std::size_t>(i)], static_cast<float>(100 * part + 10 * t + i))
            << tensor.name;
      }
    }
  }
}

/// Differs from every other entry of an array, also in its lower sixteen bits alone.
template <typename T>
std::vector<T> counted(T factor) {
  std::vector<T> values(kVocabulary);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(factor * static_cast<T>(i));
  return values;
}

TEST_F(GgufSizes, ArraysAsLongAsAVocabulary) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < kVocabulary; ++i) texts.push_back(fmt::format("token {}", i));
  texts[70000] = fmt::format("{:x>70000}end", "");
  const auto kinds = counted<std::int32_t>(-3);
  const auto wide = counted<std::int64_t>(std::int64_t{1} << 33);
  const auto scores = counted<float>(0.5F);
  Builder b;
  for (int i = 0; i < 300; ++i) b.add(fmt::format("key.{}", i), kU32, static_cast<std::uint32_t>(i));
  b.add_texts("texts", texts).add_array("kinds", kI32, kinds).add_array("wide", kI64, wide);
  b.add_array("scores", kF32, scores).add_text("long", fmt::format("{:y>200000}end", ""));
  const std::vector<std::byte> bytes = b.build();
  const GgufFile file = GgufFile::parse(bytes, "m.gguf");
  for (int i = 0; i < 300; ++i) ASSERT_EQ(file.integer(fmt::format("key.{}", i), 0, 1 << 20), i);
  EXPECT_EQ(file.array_length("texts"), kVocabulary);
  const auto read = file.texts("texts");
  ASSERT_TRUE(std::equal(read.begin(), read.end(), texts.begin(), texts.end()));
  const auto read_kinds = file.integers("kinds");
  ASSERT_TRUE(std::equal(read_kinds.begin(), read_kinds.end(), kinds.begin(), kinds.end()));
  EXPECT_EQ(file.integers("wide"), wide);
  const auto read_scores = file.numbers("scores");
  ASSERT_TRUE(std::equal(read_scores.begin(), read_scores.end(), scores.begin(), scores.end()));
  EXPECT_EQ(file.text("long").size(), 200003U);
  EXPECT_TRUE(file.text("long").ends_with("yend"));
}

TEST_F(GgufSizes, AThousandTensors) {
  constexpr std::uint64_t kTensors = 1200;
  Builder b;
  b.data_bytes = kTensors * 64;
  for (std::uint64_t t = 0; t < kTensors; ++t) {
    b.add_tensor(fmt::format("blk.{}.weight", t), {4, 4}, kF32Tensor, t * 64);
  }
  std::vector<std::byte> bytes = b.build();
  for (std::uint64_t i = 0; i < kTensors * 16; ++i) {
    const auto value = static_cast<float>(i);
    std::memcpy(bytes.data() + bytes.size() - b.data_bytes + 4 * i, &value, sizeof value);
  }
  const GgufFile file = GgufFile::parse(bytes, "m.gguf");
  ASSERT_EQ(file.tensors().size(), kTensors);
  for (std::uint64_t t = 0; t < kTensors; ++t) {
    const Tensor& tensor = file.tensor(fmt::format("blk.{}.weight", t));
    float last = 0;
    dequantize_row(tensor.type, tensor.row(3) + 12, 1, &last);
    ASSERT_EQ(last, static_cast<float>(16 * t + 15));
  }
}

// The embedding of a large model. Nearly all of the file is a hole, which takes no disk.
TEST_F(GgufSizes, ATensorBeyondFourGiB) {
  constexpr std::int64_t kWidth = 8192;
  constexpr std::int64_t kRowBytes = kWidth * 4;
  constexpr std::int64_t kBytes = kRowBytes * static_cast<std::int64_t>(kVocabulary);
  Builder b;
  b.add_tensor("token_embd.weight", {kWidth, kVocabulary}, kF32Tensor, 0);
  b.add_tensor("after", {8}, kF32Tensor, kBytes);
  std::vector<std::byte> header = b.build();
  header.resize((header.size() + 31) / 32 * 32);
  const std::string name = write("large.gguf", header);
  const auto data = static_cast<std::int64_t>(header.size());
  const int file = ::open(name.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_GE(file, 0);
  ASSERT_EQ(::ftruncate(file, data + kBytes + 32), 0);
  // Rows at 2^31 and 2^32 bytes, around them, and the ends.
  const std::vector<std::int64_t> rows = {0, 1, 65535, 65536, 131071, 131072, 131073, kVocabulary - 1};
  const auto put = [&](std::int64_t at, float value) {
    ASSERT_EQ(::pwrite(file, &value, sizeof value, data + at), static_cast<ssize_t>(sizeof value));
  };
  for (const std::int64_t row : rows) {
    put(row * kRowBytes, static_cast<float>(row + 1));
    put(row * kRowBytes + kRowBytes - 4, -static_cast<float>(row + 1));
  }
  put(kBytes + 28, 7.0F);
  ::close(file);
  const GgufFile model = GgufFile::open(name);
  EXPECT_EQ(model.file_bytes(), static_cast<std::uint64_t>(data + kBytes + 32));
  const Tensor& tensor = model.tensor("token_embd.weight");
  std::vector<float> values(kWidth);
  for (const std::int64_t row : rows) {
    dequantize_row(tensor.type, tensor.row(row), kWidth, values.data());
    EXPECT_EQ(values.front(), static_cast<float>(row + 1)) << row;
    EXPECT_EQ(values.back(), -static_cast<float>(row + 1)) << row;
  }
  dequantize_row(TensorType::f32, model.tensor("after").row(0), 8, values.data());
  EXPECT_EQ(values[7], 7.0F);
}

}  // namespace
}  // namespace headwater::runtime::testing
