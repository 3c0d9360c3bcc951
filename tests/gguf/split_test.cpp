// Models in several files.

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "tests/gguf/builder.hpp"

namespace headwater::runtime::testing {
namespace {

using ::testing::HasSubstr;

class Split : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = std::filesystem::path(::testing::TempDir()) / ("headwater-split-" + name);
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    for (int i = 1; i <= 3; ++i) std::filesystem::copy(FIXTURES "/" + file(i), folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static std::string file(int i) { return "split-0000" + std::to_string(i) + "-of-00003.gguf"; }
  [[nodiscard]] std::string path(const std::string& name) const { return (folder_ / name).string(); }
  [[nodiscard]] std::string refusal_of_first() const {
    return refusal([&] { (void)GgufFile::open(path(file(1))); });
  }
  void write(int i, const Builder& builder) const {
    const std::vector<std::byte> bytes = builder.build();
    std::ofstream(path(file(i)), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  static Builder part(std::uint16_t number, std::uint16_t count) {
    Builder b;
    b.add<std::uint16_t>("split.no", kU16, number).add<std::uint16_t>("split.count", kU16, count);
    b.data_bytes = 32;
    return b;
  }

  std::filesystem::path folder_;
};

TEST_F(Split, AllFilesAreOneModel) {
  const GgufFile model = GgufFile::open(path(file(1)));
  ASSERT_EQ(model.tensors().size(), 5U);
  for (int i = 0; i < 5; ++i) {
    const Tensor& tensor = model.tensor("tensor." + std::to_string(i));
    std::vector<float> values(8);
    dequantize_row(tensor.type, tensor.data.data(), 8, values.data());
    EXPECT_THAT(values, ::testing::Each(static_cast<float>(i)));
  }
  EXPECT_EQ(model.integer("t.u32", 0, 9), 7);
  EXPECT_EQ(model.file_bytes(), std::filesystem::file_size(path(file(1))) +
                                    std::filesystem::file_size(path(file(2))) +
                                    std::filesystem::file_size(path(file(3))));
}

TEST_F(Split, OnlyTheFirstFileOpensIt) {
  EXPECT_THAT(refusal([&] { (void)GgufFile::open(path(file(2))); }),
              HasSubstr("is file 2 of a split model; open the first one, "));
  EXPECT_THAT(refusal([&] { (void)GgufFile::open(path(file(2))); }), HasSubstr(file(1)));
}

TEST_F(Split, AMissingFileIsNamed) {
  std::filesystem::remove(path(file(3)));
  EXPECT_THAT(refusal_of_first(), HasSubstr(file(3) + "' cannot be read"));
}

TEST_F(Split, AnotherNameIsRefused) {
  std::filesystem::rename(path(file(1)), path("model.gguf"));
  EXPECT_THAT(refusal([&] { (void)GgufFile::open(path("model.gguf")); }),
              HasSubstr("is file 1 of a model split into 3; its name must end with -00001-of-00003.gguf"));
}

TEST_F(Split, AFileInTheWrongPlace) {
  std::filesystem::copy_file(path(file(3)), path(file(2)), std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(refusal_of_first(), HasSubstr("key 'split.no' is 2; allowed: 1 .. 1"));
  // The first file after itself would never end.
  std::filesystem::copy_file(path(file(1)), path(file(2)), std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(refusal_of_first(), HasSubstr("key 'split.no' is 0; allowed: 1 .. 1"));
}

TEST_F(Split, AFileOfAnotherSplit) {
  write(2, part(1, 4).add_tensor("x", {8}, kF32Tensor, 0));
  EXPECT_THAT(refusal_of_first(), HasSubstr("key 'split.count' is 4; allowed: 3 .. 3"));
}

TEST_F(Split, AFileWithoutSplitKeys) {
  Builder b;
  b.add_tensor("x", {8}, kF32Tensor, 0).data_bytes = 32;
  write(2, b);
  EXPECT_THAT(refusal_of_first(), HasSubstr("key 'split.no' is missing"));
}

TEST_F(Split, ATensorInTwoFiles) {
  write(2, part(1, 3).add_tensor("tensor.0", {8}, kF32Tensor, 0));
  EXPECT_THAT(refusal_of_first(), HasSubstr("tensor 'tensor.0' stands in two files"));
}

TEST_F(Split, FewerTensorsThanPromised) {
  write(2, part(1, 3).add_tensor("x", {8}, kF32Tensor, 0));
  EXPECT_THAT(refusal_of_first(), HasSubstr("key 'split.tensors.count' is 5; allowed: 4 .. 4"));
}

TEST_F(Split, AGapInALaterFile) {
  Builder b = part(1, 3);
  b.data_bytes = 96;
  write(2, b.add_tensor("x", {8}, kF32Tensor, 0).add_tensor("y", {8}, kF32Tensor, 64));
  const auto gap = [&] { return refusal([&] { GgufFile::open(path(file(1))).refuse_gaps(); }); };
  EXPECT_THAT(gap(), HasSubstr("'x' ends at byte 32, but tensor 'y' lies at offset 64; it must lie at 32"));
  SetUp();
  EXPECT_EQ(gap(), "");
  b = part(2, 3);
  b.data_bytes = 64;
  write(3, b.add_tensor("x", {8}, kF32Tensor, 32));
  EXPECT_THAT(gap(), HasSubstr("'x' lies at offset 32 and is the first one; it must lie at 0"));
}

TEST_F(Split, ADamagedSecondFile) {
  std::filesystem::resize_file(path(file(2)), 100);
  EXPECT_THAT(refusal_of_first(), HasSubstr(file(2) + "': "));
}

TEST_F(Split, InMemoryIsOneFileOnly) {
  const std::vector<std::byte> bytes = part(0, 3).add_tensor("x", {8}, kF32Tensor, 0).build();
  EXPECT_THAT(refusal([&] { (void)GgufFile::parse(bytes, "a-00001-of-00003.gguf"); }),
              HasSubstr("is one file of several"));
  const std::vector<std::byte> single = part(0, 1).add_tensor("x", {8}, kF32Tensor, 0).build();
  EXPECT_EQ(refusal([&] { (void)GgufFile::parse(single, "a.gguf"); }), "");
}

}  // namespace
}  // namespace headwater::runtime::testing
