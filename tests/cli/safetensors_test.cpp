// The safetensors reader and the layout of what is written. The cases of whole files are in test_bad_files.py; here
// are those that need the parser alone: every truncation, every flipped bit, and what was written is read again.

#include "cli/support/safetensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "cli/support/output_layout.hpp"
#include "tests/cli/parser_fixtures.hpp"

namespace headwater::cli::testing {
namespace {

using ::testing::HasSubstr;

const char* const kHeader =
    R"({"__metadata__":{"a":"b"},"q":{"dtype":"F16","shape":[2,3],"data_offsets":[4,16]},)"
    R"("s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"z":{"dtype":"U8","shape":[0,9],"data_offsets":[4,4]}})";
constexpr std::size_t kDataBytes = 16;

TEST(Safetensors, ReadsTypesShapesAndPlaces) {
  const auto file = file_of(kHeader, kDataBytes);
  const auto header = parse_safetensors(file);
  ASSERT_EQ(header.tensors.size(), 3U);
  const TensorInfo& q = header.tensors.at("q");
  EXPECT_EQ(q.type, TensorType::f16);
  EXPECT_EQ(q.shape, (std::vector<std::uint64_t>{2, 3}));
  EXPECT_EQ(q.end, file.size());
  EXPECT_EQ(q.begin, file.size() - 12);
  EXPECT_TRUE(header.tensors.at("s").shape.empty());
  EXPECT_EQ(header.tensors.at("z").begin, header.tensors.at("z").end);
  EXPECT_EQ(header.metadata.at("a"), "b");
}

TEST(Safetensors, RefusesWhatDoesNotFit) {
  struct Unfit {
    const char* header;
    std::size_t data_bytes;
    const char* says;
  };
  constexpr Unfit kUnfit[] = {
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
       6, "'b': data_offsets [2, 6] overlap"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
       5, "leave a hole of 1 byte"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 3, "has 3 bytes of data"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,3]}})", 3, "takes 4 bytes"},
      {R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "'dtype' appears twice"},
      {R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, "'a' has no dtype"},
  };
  for (const Unfit& unfit : kUnfit) {
    EXPECT_THAT(refusal([&] { (void)parse_safetensors(file_of(unfit.header, unfit.data_bytes)); }),
                HasSubstr(unfit.says));
  }
}

TEST(Safetensors, SpacesAfterTheHeaderAreLegal) {
  EXPECT_NO_THROW((void)parse_safetensors(file_of(std::string(kHeader) + "    ", kDataBytes)));
}

TEST(Safetensors, KnowsEveryType) {
  for (const auto& info : tensor_types()) {
    const std::uint64_t bytes = 4 * info.bits / 8;
    const std::string header = R"({"x":{"dtype":")" + std::string(info.name) +
                               R"(","shape":[4],"data_offsets":[0,)" + std::to_string(bytes) + "]}}";
    EXPECT_EQ(parse_safetensors(file_of(header, bytes)).tensors.at("x").type, info.type);
    EXPECT_EQ(&tensor_type_info(info.type), &info) << info.name;
  }
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const auto file = file_of(kHeader, kDataBytes);
  for (std::size_t size = 0; size < file.size(); ++size) {
    // A copy of exactly this size: a sanitizer sees every byte read after it.
    const std::vector<std::byte> cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_NE(refusal([&] { (void)parse_safetensors(cut); }), "") << size;
  }
}

TEST(Safetensors, NoFlippedBitReachesOutsideTheFile) {
  const auto file = file_of(kHeader, kDataBytes);
  for (std::size_t bit = 0; bit < 8 * (file.size() - kDataBytes); ++bit) {
    auto flipped = file;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    try {
      const SafetensorsHeader header = parse_safetensors(flipped);
      for (const auto& [name, tensor] : header.tensors) {
        EXPECT_LE(tensor.begin, tensor.end) << name;
        EXPECT_LE(tensor.end, flipped.size()) << name;
      }
    } catch (const Failure& failure) {
      EXPECT_STRNE(failure.what(), "");
    }
  }
}

TEST(Safetensors, MessagesAreBounded) {
  const std::string name(1'000'000, 'n');
  const auto message = refusal([&] { (void)parse_safetensors(file_of("{\"" + name + "\":1}", 0)); });
  EXPECT_THAT(message, HasSubstr("nnn..."));
  EXPECT_LT(message.size(), 1000U);
}

TEST(Safetensors, SizesThatOverflowBesideAZeroAreEmpty) {
  const char* const header =
      R"({"x":{"dtype":"F32","shape":[9223372036854775808,8,0],"data_offsets":[0,0]}})";
  EXPECT_NO_THROW((void)parse_safetensors(file_of(header, 0)));
}

TEST(OutputLayout, IsReadBackAsItWasAdded) {
  OutputLayout layout;
  layout.add_metadata("key", "a \"quoted\"\nvalue");
  layout.add("out", TensorType::f32, {2, 3});
  layout.add("memory", TensorType::i32, {2, 0});
  layout.add("scores", TensorType::bf16, {3});
  layout.close();
  EXPECT_EQ(layout.header().size() % 8, 0U);
  EXPECT_EQ(layout.offset("out") % 4, 0U);

  std::vector<std::byte> file(layout.file_bytes());
  std::memcpy(file.data(), layout.header().data(), layout.header().size());
  const auto header = parse_safetensors(file);
  EXPECT_EQ(header.metadata.at("key"), "a \"quoted\"\nvalue");
  EXPECT_EQ(header.tensors.size(), 3U);
  for (const auto& [name, tensor] : header.tensors) EXPECT_EQ(tensor.begin, layout.offset(name)) << name;
  EXPECT_EQ(header.tensors.at("scores").end, file.size());
}

// Outputs of 64 heads of 256 over 131072 tokens, and their trace.
TEST(OutputLayout, TensorsBeyondFourGiB) {
  constexpr std::uint64_t kTokens = 131072, kOut = kTokens * 64 * 256 * 4, kMemory = 256 * 64 * 65536ULL * 4;
  OutputLayout layout;
  layout.add("out", TensorType::f32, {kTokens, 64, 256});
  layout.add("memory", TensorType::i32, {256, 64, 65536});
  layout.add("scores", TensorType::bf16, {64, kTokens});
  layout.close();
  const std::uint64_t begin = layout.header().size();
  EXPECT_EQ(layout.offset("out"), begin);
  EXPECT_EQ(layout.offset("memory"), begin + kOut);
  EXPECT_EQ(layout.offset("scores"), begin + kOut + kMemory);
  EXPECT_EQ(layout.file_bytes(), begin + kOut + kMemory + 64 * kTokens * 2);
  EXPECT_THAT(layout.header(),
              HasSubstr("[" + std::to_string(kOut) + "," + std::to_string(kOut + kMemory) + "]"));
}

TEST(OutputLayout, RefusesSizesThatOverflow) {
  OutputLayout layout;
  const auto add = [&](const std::vector<std::uint64_t>& shape) {
    return refusal([&] { layout.add("memory", TensorType::i32, shape); });
  };
  EXPECT_THAT(add({1ULL << 40, 1ULL << 40}), HasSubstr("memory"));
  EXPECT_THAT(add({1ULL << 61}), HasSubstr("memory"));
  EXPECT_EQ(add({1ULL << 59}), "");
  EXPECT_THAT(add({1ULL << 60}), HasSubstr("memory"));
}

}  // namespace
}  // namespace headwater::cli::testing
