// Files with wrong sizes, offsets and types: each gives one line that names what is wrong.

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "tests/gguf/builder.hpp"

namespace headwater::runtime::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Builder good() {
  Builder b;
  b.add_text("general.architecture", "test").add<std::uint32_t>("a.number", kU32, 7);
  b.add_texts("a.texts", {"x", "y"}).add_array<float>("a.numbers", kF32, {1.0f, 2.0f});
  b.add_tensor("first", {8, 2}, kF32Tensor, 0).add_tensor("second", {8}, kF32Tensor, 64);
  b.data_bytes = 96;
  return b;
}

TEST(HostileGguf, TheGoodFileIsRead) {
  const std::vector<std::byte> bytes = good().build();
  const GgufFile file = GgufFile::parse(bytes, "m.gguf");
  EXPECT_EQ(file.tensors().size(), 2U);
  EXPECT_EQ(file.tensor("first").rows(), 2);
  EXPECT_EQ(file.tensor("second").data.data(), bytes.data() + bytes.size() - 32);
}

TEST(HostileGguf, EveryTruncationIsRefused) {
  const std::vector<std::byte> bytes = good().build();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_THAT(refusal_of(cut), HasSubstr("'m.gguf': ")) << length;
  }
}

// Whatever byte changes: an answer or a refusal, and what is accepted lies inside the file.
TEST(HostileGguf, EveryFlippedByteIsSurvived) {
  const std::vector<std::byte> bytes = good().build();
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const int flip : {0x01, 0x80, 0xFF}) {
      std::vector<std::byte> changed = bytes;
      changed[at] ^= static_cast<std::byte>(flip);
      (void)refusal([&] {
        const GgufFile file = GgufFile::parse(changed, "m.gguf");
        for (const Tensor& tensor : file.tensors()) {
          ASSERT_GE(tensor.data.data(), changed.data());
          ASSERT_LE(tensor.data.data() + tensor.data.size(), changed.data() + changed.size());
        }
      });
    }
  }
}

TEST(HostileGguf, Header) {
  Builder b = good();
  b.magic = "GGML";
  EXPECT_THAT(refusal_of(b.build()), HasSubstr("not a GGUF file"));
  b = good();
  b.version = 1;
  EXPECT_THAT(refusal_of(b.build()), HasSubstr("version 1; supported: 2, 3"));
  b.version = 4;
  EXPECT_THAT(refusal_of(b.build()), HasSubstr("version 4; supported: 2, 3"));
  b.version = 0x03000000;
  EXPECT_THAT(refusal_of(b.build()), HasSubstr("big-endian"));
  b.version = 2;
  EXPECT_EQ(refusal_of(b.build()), "");
  b = good();
  b.tensor_count = std::uint64_t{1} << 60;
  EXPECT_THAT(refusal_of(b.build()), HasSubstr("says 1152921504606846976 tensors"));
  b = good();
  b.entries = ~std::uint64_t{0};
  EXPECT_THAT(refusal_of(b.build()), HasSubstr("says 18446744073709551615 metadata entries"));
}

TEST(HostileGguf, AVocabularyOf2To40) {
  Builder b = good();
  b.metadata.text("tokenizer.ggml.tokens").number<std::uint32_t>(kArray).number<std::uint32_t>(kText);
  b.metadata.number<std::uint64_t>(std::uint64_t{1} << 40);
  ++b.entries;
  EXPECT_THAT(refusal_of(b.build()), AllOf(HasSubstr("'tokenizer.ggml.tokens'"),
                                           HasSubstr("1099511627776 elements of 8 or more bytes")));
}

TEST(HostileGguf, ACountWhoseBytesOverflow) {
  Builder b = good();
  b.metadata.text("k").number<std::uint32_t>(kArray).number<std::uint32_t>(kF64);
  b.metadata.number<std::uint64_t>((std::uint64_t{1} << 61) + 1);  // x 8 = 8 in 64 bits
  ++b.entries;
  EXPECT_THAT(refusal_of(b.build()), HasSubstr("key 'k' says 2305843009213693953 elements"));
}

TEST(HostileGguf, Metadata) {
  Builder b = good();
  EXPECT_THAT(refusal_of(b.add<std::uint32_t>("a.number", kU32, 8).build()),
              HasSubstr("'a.number' stands in the file twice"));
  b = good();
  EXPECT_THAT(refusal_of(b.add<std::uint32_t>("", kU32, 8).build()),
              HasSubstr("has 0 bytes; allowed: 1 .. 65535"));
  b = good();
  EXPECT_THAT(refusal_of(b.add<std::uint32_t>(std::string(65536, 'k'), kU32, 8).build()),
              HasSubstr("has 65536 bytes"));
  b = good();
  EXPECT_THAT(refusal_of(b.add<std::uint32_t>("k", 13, 8).build()),
              HasSubstr("value type 13; GGUF knows 0 .. 12"));
  b = good();
  EXPECT_THAT(refusal_of(b.add<std::uint8_t>("k", kBool, 2).build()), HasSubstr("boolean of 2"));
  b = good();
  EXPECT_THAT(refusal_of(b.add_array<std::uint8_t>("k", kBool, {0, 1, 7}).build()),
              HasSubstr("boolean of 7"));
  b = good();
  EXPECT_THAT(refusal_of(b.add_array<std::uint8_t>("k", kArray, {0}).build()), HasSubstr("array of arrays"));
  b = good();
  b.metadata.text("k").number<std::uint32_t>(kText).number<std::uint64_t>(~std::uint64_t{0});
  ++b.entries;
  EXPECT_THAT(refusal_of(b.build()), HasSubstr("key 'k' needs 18446744073709551615 bytes"));
}

TEST(HostileGguf, ForeignNamesStayOnOneLine) {
  Builder b = good();
  const std::string message = refusal_of(b.add<std::uint8_t>("a\nb\x1b[2J\xff", kBool, 2).build());
  EXPECT_THAT(message, AllOf(HasSubstr(R"('a\x0ab\x1b[2J\xff')"), Not(HasSubstr("\n"))));
  b = good();
  EXPECT_LT(refusal_of(b.add<std::uint8_t>(std::string(60000, 'k'), kBool, 2).build()).size(), 400U);
}

TEST(HostileGguf, Alignment) {
  Builder b = good();
  EXPECT_THAT(refusal_of(b.add<std::uint32_t>("general.alignment", kU32, 0).build()),
              HasSubstr("is 0; allowed: 1 .."));
  b = good();
  EXPECT_THAT(refusal_of(b.add<std::uint32_t>("general.alignment", kU32, 48).build()),
              HasSubstr("power of two"));
  b = good();
  EXPECT_THAT(refusal_of(b.add<std::uint32_t>("general.alignment", kU32, 1U << 31).build()),
              HasSubstr("allowed"));
  b = good();
  EXPECT_THAT(refusal_of(b.add_text("general.alignment", "32").build()), HasSubstr("must be an integer"));
  b = good();
  b.alignment = 64;  // "second" then lies at a multiple of 64 still
  EXPECT_EQ(refusal_of(b.add<std::uint32_t>("general.alignment", kU32, 64).build()), "");
}

std::string gap_of(const Builder& builder) {
  const std::vector<std::byte> bytes = builder.build();
  return refusal([&] { GgufFile::parse(bytes, "m.gguf").refuse_gaps(); });
}

// A type or a size that is wrong but fits: what it would leave over or share says so.
TEST(HostileGguf, TensorsLieSideBySide) {
  constexpr std::uint32_t kF16Tensor = 1;
  Builder b;
  b.data_bytes = 160;
  b.add_tensor("first", {8, 2}, kF16Tensor, 0).add_tensor("second", {8}, kF32Tensor, 64);
  EXPECT_THAT(
      gap_of(b),
      HasSubstr("tensor 'first' ends at byte 32, but tensor 'second' lies at offset 64; it must lie at 32"));
  b = Builder();
  b.data_bytes = 160;
  b.add_tensor("second", {8}, kF32Tensor, 96).add_tensor("first", {8, 2}, kF32Tensor, 32);
  EXPECT_THAT(gap_of(b),
              HasSubstr("tensor 'first' lies at offset 32 and is the first one; it must lie at 0"));
  b = Builder();
  b.data_bytes = 160;  // not in order, and padding after each: right
  b.add_tensor("second", {9}, kF32Tensor, 32).add_tensor("first", {1}, kF32Tensor, 0);
  b.add_tensor("third", {1}, kF32Tensor, 96);
  EXPECT_EQ(gap_of(b), "");
}

TEST(HostileGguf, SplitKeysOfAWholeFile) {
  Builder b = good();
  EXPECT_EQ(refusal_of(b.add<std::uint16_t>("split.count", kU16, 0)
                           .add<std::uint16_t>("split.no", kU16, 0)
                           .add<std::int32_t>("split.tensors.count", kI32, 2)
                           .build()),
            "");
  b = good();
  EXPECT_THAT(refusal_of(b.add<std::uint16_t>("split.no", kU16, 1).build()),
              HasSubstr("key 'split.no' is 1; allowed: 0 .. 0"));
  b = good();
  EXPECT_THAT(refusal_of(b.add<std::int32_t>("split.tensors.count", kI32, 3).build()),
              HasSubstr("key 'split.tensors.count' is 3; allowed: 2 .. 2"));
  b = good();
  EXPECT_THAT(refusal_of(b.add_text("split.tensors.count", "2").build()),
              HasSubstr("'split.tensors.count' is of type STRING; it must be an integer"));
  b = good();
  EXPECT_THAT(
      refusal_of(
          b.add<std::uint16_t>("split.count", kU16, 2).add<std::uint16_t>("split.no", kU16, 2).build()),
      HasSubstr("key 'split.no' is 2; allowed: 0 .. 1"));
}

TEST(HostileGguf, DataBeginWhereTheAlignmentSays) {
  for (const std::uint32_t alignment : {8U, 32U, 128U, 4096U}) {
    Builder b;
    b.alignment = alignment;
    b.data_bytes = 4;
    b.add<std::uint32_t>("general.alignment", kU32, alignment).add_tensor("only", {1}, kF32Tensor, 0);
    std::vector<std::byte> bytes = b.build();
    bytes.back() = std::byte{0x40};  // 2.0F
    const GgufFile file = GgufFile::parse(bytes, "m.gguf");
    float value = 0.0F;
    std::memcpy(&value, file.tensor("only").data.data(), sizeof value);
    EXPECT_EQ(value, 2.0F) << alignment;
  }
}

std::string tensor_refusal(const std::vector<std::uint64_t>& dims, std::uint32_t type, std::uint64_t offset) {
  Builder b = good();
  return refusal_of(b.add_tensor("third", dims, type, offset).build());
}

TEST(HostileGguf, Dimensions) {
  EXPECT_THAT(tensor_refusal({}, kF32Tensor, 96), HasSubstr("'third' has 0 dimensions; allowed: 1 .. 4"));
  EXPECT_THAT(tensor_refusal({1, 1, 1, 1, 1}, kF32Tensor, 96), HasSubstr("has 5 dimensions"));
  EXPECT_THAT(tensor_refusal({4, 0}, kF32Tensor, 96), HasSubstr("dimension 1 is 0"));
  EXPECT_THAT(tensor_refusal({~std::uint64_t{0}}, kF32Tensor, 96),
              HasSubstr("dimension 0 is 18446744073709551615"));
  const std::uint64_t big = std::uint64_t{1} << 32;
  EXPECT_THAT(tensor_refusal({big, big}, kF32Tensor, 96), HasSubstr("4294967296 x 4294967296 overflow"));
  EXPECT_THAT(tensor_refusal({big, big, big, big}, kF32Tensor, 96), HasSubstr("overflow"));
  EXPECT_THAT(tensor_refusal({std::uint64_t{1} << 62}, kF32Tensor, 96), HasSubstr("overflow"));
  EXPECT_THAT(tensor_refusal({33}, 8, 96),
              HasSubstr("rows of 33 elements; of type Q8_0 a row must be a multiple of 32"));
  EXPECT_THAT(tensor_refusal({128, 2}, 14, 96), HasSubstr("of type Q6_K a row must be a multiple of 256"));
  EXPECT_THAT(tensor_refusal({288}, 10, 96), HasSubstr("of type Q2_K a row must be a multiple of 256"));
  EXPECT_THAT(tensor_refusal({255}, 11, 96), HasSubstr("of type Q3_K a row must be a multiple of 256"));
  EXPECT_THAT(tensor_refusal({32, 8}, 23, 96), HasSubstr("of type IQ4_XS a row must be a multiple of 256"));
  // Bytes of a row: 84, 110 and 136 for 256 elements.
  EXPECT_THAT(tensor_refusal({512, 3}, 10, 96), HasSubstr("takes 504 bytes at offset 96"));
  EXPECT_THAT(tensor_refusal({512, 3}, 11, 96), HasSubstr("takes 660 bytes at offset 96"));
  EXPECT_THAT(tensor_refusal({512, 3}, 23, 96), HasSubstr("takes 816 bytes at offset 96"));
}

TEST(HostileGguf, TypesThatAreNotReadAreNamed) {
  EXPECT_THAT(tensor_refusal({256}, 15, 96),
              HasSubstr("tensor 'third' is of type Q8_K; supported: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, "
                        "Q5_1, Q4_K, Q5_K, Q6_K, IQ4_NL, MXFP4, Q2_K, Q3_K, IQ4_XS"));
  EXPECT_THAT(tensor_refusal({256}, 16, 96), HasSubstr("type IQ2_XXS"));
  EXPECT_THAT(tensor_refusal({256}, 22, 96), HasSubstr("type IQ2_S"));
  EXPECT_THAT(tensor_refusal({256}, 4, 96), HasSubstr("type number 4"));
  EXPECT_THAT(tensor_refusal({256}, 0xFFFFFFFF, 96), HasSubstr("type number 4294967295"));
}

TEST(HostileGguf, Places) {
  EXPECT_THAT(tensor_refusal({8}, kF32Tensor, 100), HasSubstr("offset 100; it must be a multiple of 32"));
  EXPECT_THAT(tensor_refusal({8}, kF32Tensor, 96),
              HasSubstr("takes 32 bytes at offset 96, but the data has 96"));
  EXPECT_THAT(tensor_refusal({8}, kF32Tensor, ~std::uint64_t{31}),
              HasSubstr("at offset 18446744073709551584"));
  EXPECT_THAT(tensor_refusal({8}, kF32Tensor, 64), HasSubstr("'second' and tensor 'third' overlap"));
  EXPECT_THAT(tensor_refusal({8}, kF32Tensor, 32), HasSubstr("'first' and tensor 'third' overlap"));
}

TEST(HostileGguf, Names) {
  Builder b = good();
  EXPECT_THAT(refusal_of(b.add_tensor("first", {8}, kF32Tensor, 96).build()),
              HasSubstr("'first' stands in the file twice"));
  b = good();
  EXPECT_THAT(refusal_of(b.add_tensor("", {8}, kF32Tensor, 96).build()), HasSubstr("a name of 0 bytes"));
  b = good();
  EXPECT_THAT(refusal_of(b.add_tensor(std::string(65, 'n'), {8}, kF32Tensor, 96).build()),
              HasSubstr("a name of 65 bytes"));
}

// The largest of what is allowed, and a file that ends with its last value.
TEST(HostileGguf, LimitsThemselvesAreAllowed) {
  Builder b = good();
  b.data_bytes += 32;
  EXPECT_EQ(refusal_of(b.add_tensor(std::string(64, 'n'), {2, 2, 2, 1}, kF32Tensor, 96).build()), "");
  b = good();
  EXPECT_EQ(refusal_of(b.add<std::uint32_t>(std::string(65535, 'k'), kU32, 8).build()), "");
  b = Builder();
  EXPECT_EQ(refusal_of(b.add<std::uint8_t>("a", kBool, 1).add<std::uint8_t>("b", kU8, 255).build()), "");
  EXPECT_EQ(refusal_of(b.add_array<std::uint8_t>("c", kU8, {1, 2, 3, 4, 5}).build()), "");
  EXPECT_EQ(refusal_of(b.add_array<double>("d", kF64, {1.0, 2.0}).build()), "");
  EXPECT_EQ(refusal_of(b.add_texts("e", {"", ""}).build()), "");
  b = Builder();
  b.alignment = 1 << 20;
  b.data_bytes = 4;
  b.add_tensor("only", {1}, kF32Tensor, 0);
  EXPECT_EQ(refusal_of(b.add<std::uint32_t>("general.alignment", kU32, 1U << 20).build()), "");
  b = good();
  EXPECT_THAT(refusal_of(b.add<std::uint32_t>("general.alignment", kU32, 1U << 21).build()),
              HasSubstr("'general.alignment' is 2097152; allowed: 1 .. 1048576"));
  // 2^63 - 1 is a size like any other, but no file holds it.
  EXPECT_THAT(tensor_refusal({(std::uint64_t{1} << 63) - 1}, kF32Tensor, 96), HasSubstr("overflow 63 bits"));
}

// Random changes: several bytes at once, and 64-bit fields with huge values.
TEST(HostileGguf, RandomDamageIsSurvived) {
  const std::vector<std::byte> bytes = good().build();
  std::mt19937_64 random(7);
  for (int run = 0; run < 20000; ++run) {
    std::vector<std::byte> changed = bytes;
    for (std::uint64_t n = random() % 4; n <= 3; ++n) {
      const std::uint64_t value = random() >> (random() % 64);
      std::memcpy(changed.data() + random() % (bytes.size() - 8), &value, 1 + random() % 8);
    }
    (void)refusal_of(changed);
  }
}

TEST(HostileGguf, PathsThatAreNoFile) {
  const std::filesystem::path folder = ::testing::TempDir();
  EXPECT_THAT(refusal([&] { (void)GgufFile::open(folder.string()); }), HasSubstr("is not a regular file"));
  EXPECT_THAT(refusal([&] { (void)GgufFile::open((folder / "nowhere.gguf").string()); }),
              HasSubstr("nowhere.gguf' cannot be read: No such file"));
  EXPECT_THAT(refusal([] { (void)GgufFile::open("/dev/null"); }), HasSubstr("is not a regular file"));
  const std::string empty = (folder / "headwater-empty.gguf").string();
  std::ofstream(empty).close();
  EXPECT_THAT(refusal([&] { (void)GgufFile::open(empty); }), HasSubstr("is empty"));
  std::filesystem::remove(empty);
}

}  // namespace
}  // namespace headwater::runtime::testing
