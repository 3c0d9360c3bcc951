// Files as large models have them: many parts, vocabularies of 150000 entries, tensors beyond 2^32 bytes.

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <type_traits>

#include "runtime/gguf/split.hpp"
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

/// The metadata of one part of a split model.
Builder split_keys(std::int64_t number, std::int64_t count) {
  Builder b;
  b.add<std::int64_t>("split.no", kI64, number).add<std::int64_t>("split.count", kI64, count);
  return b;
}

// As many files as there can be, and one more.
TEST_F(GgufSizes, NamesOf65535Files) {
  const auto files_of = [](const std::string& name, std::int64_t count) {
    const Builder b = split_keys(0, count);
    Reader reader(b.metadata.bytes(), name);
    return split_files(name, Metadata(reader, b.entries));
  };
  const auto five = [](std::int64_t number) {
    const std::string digits = std::to_string(number);
    return std::string(5 - digits.size(), '0') + digits;
  };
  for (const std::int64_t count : {2, 9, 10, 255, 256, 999, 1000, 9999, 10000, 65535}) {
    const auto files = files_of("a-00001-of-00003/m-00001-of-" + five(count) + ".gguf", count);
    ASSERT_EQ(files.size(), static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(files[static_cast<std::size_t>(i)],
                "a-00001-of-00003/m-" + five(i + 1) + "-of-" + five(count) + ".gguf");
    }
  }
  EXPECT_THAT(refusal([&] { (void)files_of("m-00001-of-65536.gguf", 65536); }),
              ::testing::HasSubstr("'split.count' is 65536; allowed: 0 .. 65535"));
  for (const std::int64_t other : {65534, 65533, 254, 0}) {
    const Builder b = split_keys(other, 65535);
    Reader reader(b.metadata.bytes(), "m");
    const Metadata metadata(reader, b.entries);
    EXPECT_EQ(refusal([&] { check_split_part(metadata, 65534, 65535); }).empty(), other == 65534);
  }
}

// Of the bytes before the tensors' data, which need not lie in the order of their table, in every file; not of the data.
TEST_F(GgufSizes, TheHashIsOfAllHeads) {
  constexpr int kParts = 3;
  const auto write_part = [&](int part, std::uint64_t value, const std::string& name, std::uint8_t data) {
    Builder b = split_keys(part, kParts);
    b.add<std::uint64_t>("value", kU64, value);
    b.add_tensor(fmt::format("{}.{}", name, part), {8}, kF32Tensor, 64);
    b.add_tensor(fmt::format("first.{}", part), {8}, kF32Tensor, 0);
    b.add_tensor(fmt::format("second.{}", part), {8}, kF32Tensor, 32);
    b.data_bytes = 96;
    std::vector<std::byte> bytes = b.build();
    std::fill(bytes.end() - 96, bytes.end(), static_cast<std::byte>(data));
    return write(fmt::format("m-{:05}-of-{:05}.gguf", part + 1, kParts), bytes);
  };
  const std::string first = write_part(0, 1, "t", 0);
  for (int part = 1; part < kParts; ++part) (void)write_part(part, 1, "t", 0);
  const std::uint64_t plain = GgufFile::open(first).head_hash();
  EXPECT_EQ(GgufFile::open(first).head_hash(), plain);
  for (int part = 0; part < kParts; ++part) {
    (void)write_part(part, 1, "t", 0x3F);
    EXPECT_EQ(GgufFile::open(first).head_hash(), plain) << part;
    for (const int bit : {0, 8, 31, 32, 63}) {
      (void)write_part(part, 1 ^ (std::uint64_t{1} << bit), "t", 0x3F);
      EXPECT_NE(GgufFile::open(first).head_hash(), plain) << part << ", " << bit;
    }
    (void)write_part(part, 1, "u", 0x3F);
    EXPECT_NE(GgufFile::open(first).head_hash(), plain) << part;
    (void)write_part(part, 1, "t", 0);
  }
  EXPECT_EQ(GgufFile::open(first).head_hash(), plain);

  // What stands in place of the file's counts, and not who said it.
  const auto replaced = [&](const Replacement& with) {
    GgufFile file = GgufFile::open(first);
    file.replace(with);
    return file.head_hash();
  };
  const std::uint64_t four = replaced({"scale", 4.0F, "--scale"});
  EXPECT_EQ(replaced({"scale", 4.0F, "--inverse"}), four);
  for (const Replacement& other : {Replacement{"scale", 5.0F, "--scale"},
                                   {"scalf", 4.0F, "--scale"},
                                   {"scale", std::int64_t{4}, "--scale"},
                                   {"scale", "4", "--scale"}}) {
    EXPECT_NE(replaced(other), four);
    EXPECT_NE(replaced(other), plain);
  }
  EXPECT_NE(four, plain);
}

// More elements than a byte counts, the least and the largest among them.
template <typename T>
void expect_array(std::uint32_t type, const char* name, bool integers, bool numbers) {
  std::vector<T> values;
  for (int i = 0; i < 700; ++i) {
    const double turn = std::sin(i);
    values.push_back(static_cast<T>(std::is_signed_v<T> ? 120 * turn : 120 * std::fabs(turn)));
  }
  if constexpr (std::is_same_v<T, std::uint64_t>) {
    values[300] = std::numeric_limits<std::int64_t>::max();
  } else if (type != kBool) {
    values[300] = std::numeric_limits<T>::max();
    values[301] = std::numeric_limits<T>::lowest();
  } else {
    for (T& value : values) value = value > 60 ? 1 : 0;
  }
  Builder b;
  const std::vector<std::byte> bytes = b.add_array("a", type, values).add(name, type, values[300]).build();
  const GgufFile file = GgufFile::parse(bytes, "m.gguf");
  EXPECT_EQ(file.array_length("a"), values.size()) << name;
  const auto expect_same = [&](const auto& got) {
    ASSERT_EQ(got.size(), values.size()) << name;
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(got[i], static_cast<std::remove_cvref_t<decltype(got[i])>>(values[i])) << name << ", " << i;
    }
  };
  const auto expect_refused = [&](const std::string& got) {
    EXPECT_THAT(got,
                ::testing::HasSubstr(fmt::format("'a' is an array of {}; it must be an array of", name)));
  };
  if (integers) {
    expect_same(file.integers("a"));
  } else {
    expect_refused(refusal([&] { (void)file.integers("a"); }));
  }
  if (numbers) {
    expect_same(file.numbers("a"));
  } else {
    expect_refused(refusal([&] { (void)file.numbers("a"); }));
  }
  expect_refused(refusal([&] { (void)file.texts("a"); }));
  EXPECT_THAT(refusal([&] { (void)file.text(name); }),
              ::testing::HasSubstr(fmt::format("is of type {}; it must be STRING", name)));
}

TEST_F(GgufSizes, ArraysOfEveryType) {
  expect_array<std::uint8_t>(kU8, "UINT8", true, true);
  expect_array<std::int8_t>(kI8, "INT8", true, true);
  expect_array<std::uint16_t>(kU16, "UINT16", true, true);
  expect_array<std::int16_t>(kI16, "INT16", true, true);
  expect_array<std::uint32_t>(kU32, "UINT32", true, true);
  expect_array<std::int32_t>(kI32, "INT32", true, true);
  expect_array<std::uint64_t>(kU64, "UINT64", true, true);
  expect_array<std::int64_t>(kI64, "INT64", true, true);
  expect_array<float>(kF32, "FLOAT32", false, true);
  expect_array<double>(kF64, "FLOAT64", false, true);
  expect_array<std::uint8_t>(kBool, "BOOL", false, false);
}

// Rows are all dimensions but the first, in their order; of each type, which says how long a row is.
TEST_F(GgufSizes, RowsOfThreeAndFourDimensions) {
  for (const TensorTypeInfo& info : tensor_types()) {
    const auto width = static_cast<std::uint64_t>(std::max<std::int64_t>(info.block_elements, 2));
    for (const std::vector<std::uint64_t>& dims :
         {std::vector<std::uint64_t>{width, 3, 5}, {width, 2, 3, 7}, {width, 1, 1, 70001}, {width}}) {
      std::uint64_t rows = 1;
      for (std::size_t i = 1; i < dims.size(); ++i) rows *= dims[i];
      const std::int64_t row = row_bytes(info.type, static_cast<std::int64_t>(width));
      Builder b;
      b.add_tensor("t", dims, info.ggml_id, 0);
      b.data_bytes = rows * static_cast<std::uint64_t>(row);
      const std::vector<std::byte> bytes = b.build();
      const GgufFile file = GgufFile::parse(bytes, "m.gguf");
      const Tensor& tensor = file.tensor("t");
      ASSERT_EQ(tensor.rows(), static_cast<std::int64_t>(rows)) << info.name;
      for (std::int64_t i = 0; i < tensor.rows(); i += 1 + tensor.rows() / 50) {
        ASSERT_EQ(tensor.row(i) - tensor.data.data(), i * row) << info.name;
      }
      EXPECT_EQ(tensor.row(tensor.rows() - 1) + row, tensor.data.data() + tensor.data.size()) << info.name;
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
