// What an independent writer put into a file comes out of it, and getters refuse values of another type.

#include <gmock/gmock.h>

#include <limits>

#include "tests/gguf/builder.hpp"

namespace headwater::runtime::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

GgufFile types() { return GgufFile::open(FIXTURES "/types.gguf"); }

TEST(GgufMetadata, EveryTypeOfValue) {
  const GgufFile file = types();
  EXPECT_EQ(file.version(), 3U);
  EXPECT_EQ(file.text("general.architecture"), "test");
  EXPECT_EQ(file.integer("t.u8", kMin, kMax), 200);
  EXPECT_EQ(file.integer("t.i8", kMin, kMax), -100);
  EXPECT_EQ(file.integer("t.u16", kMin, kMax), 60000);
  EXPECT_EQ(file.integer("t.i16", kMin, kMax), -30000);
  EXPECT_EQ(file.integer("t.u32", kMin, kMax), 4000000000);
  EXPECT_EQ(file.integer("t.i32", kMin, kMax), -2000000000);
  EXPECT_EQ(file.integer("t.u64", kMin, kMax), kMax);
  EXPECT_EQ(file.integer("t.i64", kMin, kMax), kMin);
  EXPECT_EQ(file.number("t.f32"), 0.5);
  EXPECT_EQ(file.number("t.f64"), 1e300);
  EXPECT_EQ(file.number("t.u8"), 200.0);
  EXPECT_TRUE(file.boolean("t.bool"));
  EXPECT_EQ(file.text("t.text"), "na\xc3\xafve \xe2\x96\x81");
  EXPECT_THAT(file.texts("t.texts"), ElementsAre("a", "", "d\xc3\xa9j\xc3\xa0"));
  EXPECT_THAT(file.integers("t.integers"), ElementsAre(1, -2, 3));
  EXPECT_THAT(file.numbers("t.numbers"), ElementsAre(0.25, -4.0));
  EXPECT_EQ(file.array_length("t.texts"), 3U);
  EXPECT_EQ(file.keys().front(), "general.architecture");
  EXPECT_EQ(file.keys().size(), 16U);
}

TEST(GgufMetadata, DefaultsStandInForMissingKeysOnly) {
  const GgufFile file = types();
  EXPECT_EQ(file.integer_or("none", 0, 9, 5), 5);
  EXPECT_EQ(file.integer_or("t.u8", 0, 255, 5), 200);
  EXPECT_EQ(file.number_or("none", 0.75), 0.75);
  EXPECT_EQ(file.number_or("t.f32", 0.75), 0.5);
  EXPECT_TRUE(file.boolean_or("none", true));
  EXPECT_TRUE(file.boolean_or("t.bool", false));
  EXPECT_EQ(file.text_or("none", "x"), "x");
  EXPECT_EQ(file.text_or("general.architecture", "x"), "test");
  EXPECT_THAT(refusal([&] { (void)file.integer_or("t.text", 0, 9, 5); }),
              HasSubstr("'t.text' is of type STRING"));
  EXPECT_THAT(refusal([&] { (void)file.integer_or("t.u8", 0, 9, 5); }),
              HasSubstr("'t.u8' is 200; allowed: 0 .. 9"));
}

TEST(GgufMetadata, RefusalsNameFileKeyAndType) {
  const GgufFile file = types();
  EXPECT_THAT(refusal([&] { (void)file.integer("none", 0, 1); }),
              AllOf(HasSubstr("types.gguf': "), HasSubstr("key 'none' is missing")));
  EXPECT_THAT(refusal([&] { (void)file.integer("t.f32", 0, 1); }),
              HasSubstr("'t.f32' is of type FLOAT32; it must be an integer"));
  EXPECT_THAT(refusal([&] { (void)file.integer("t.bool", 0, 1); }),
              HasSubstr("of type BOOL; it must be an integer"));
  EXPECT_THAT(refusal([&] { (void)file.number("t.text"); }), HasSubstr("must be a number"));
  EXPECT_THAT(refusal([&] { (void)file.boolean("t.u8"); }), HasSubstr("must be BOOL"));
  EXPECT_THAT(refusal([&] { (void)file.text("t.u8"); }), HasSubstr("must be STRING"));
  EXPECT_THAT(refusal([&] { (void)file.texts("t.text"); }),
              HasSubstr("'t.text' is of type STRING; it must be an array"));
  EXPECT_THAT(refusal([&] { (void)file.texts("t.integers"); }),
              HasSubstr("is an array of INT32; it must be an array of STRING"));
  EXPECT_THAT(refusal([&] { (void)file.integers("t.numbers"); }), HasSubstr("must be an array of integers"));
  EXPECT_THAT(refusal([&] { (void)file.numbers("t.texts"); }), HasSubstr("must be an array of numbers"));
  EXPECT_THAT(refusal([&] { (void)file.text("t.texts"); }), HasSubstr("must be a single value"));
}

TEST(GgufMetadata, ValuesThatCannotBeUsed) {
  Builder b;
  b.add<float>("nan", kF32, std::numeric_limits<float>::quiet_NaN());
  b.add<double>("inf", kF64, std::numeric_limits<double>::infinity());
  b.add<std::uint64_t>("large", kU64, std::uint64_t{1} << 63);
  b.add_array<float>("nans", kF32, {1.0f, std::numeric_limits<float>::quiet_NaN()});
  const std::vector<std::byte> bytes = b.build();
  const GgufFile file = GgufFile::parse(bytes, "m.gguf");
  EXPECT_THAT(refusal([&] { (void)file.number("nan"); }), HasSubstr("'nan' holds nan; it must be finite"));
  EXPECT_THAT(refusal([&] { (void)file.number("inf"); }), HasSubstr("must be finite"));
  EXPECT_THAT(refusal([&] { (void)file.numbers("nans"); }), HasSubstr("must be finite"));
  EXPECT_THAT(refusal([&] { (void)file.integer("large", kMin, kMax); }),
              HasSubstr("is 9223372036854775808; allowed: below 2^63"));
}

TEST(GgufTensors, FoundByNameWithTheirShape) {
  const GgufFile file = types();
  EXPECT_EQ(file.find_tensor("none"), nullptr);
  EXPECT_THAT(refusal([&] { (void)file.tensor("none"); }), HasSubstr("tensor 'none' is missing"));
  const Tensor& tensor = file.tensor("Q4_K");
  EXPECT_EQ(&tensor, file.find_tensor("Q4_K"));
  EXPECT_EQ(tensor.type, TensorType::q4_k);
  EXPECT_THAT(tensor.dims, ElementsAre(512, 3));
  EXPECT_EQ(tensor.rows(), 3);
  EXPECT_EQ(tensor.data.size(), 3U * 2 * 144);
  EXPECT_EQ(tensor.row(2) - tensor.row(0), 2 * row_bytes(TensorType::q4_k, 512));
  EXPECT_EQ(&file.tensor("Q4_K", std::vector<std::int64_t>{512, 3}), &tensor);
  EXPECT_THAT(refusal([&] {
                (void)file.tensor("Q4_K", std::vector<std::int64_t>{3, 512});
              }),
              HasSubstr("tensor 'Q4_K' is 512 x 3; it must be 3 x 512"));
  EXPECT_THAT(refusal([&] { (void)file.tensor("Q4_K", std::vector<std::int64_t>{512}); }),
              HasSubstr("must be 512"));
}

TEST(GgufTensors, ReleasedPagesComeBack) {
  const GgufFile file = types();
  const Tensor& tensor = file.tensor("F32");
  const std::vector<std::byte> before(tensor.data.begin(), tensor.data.end());
  file.release(tensor);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), tensor.data.begin(), tensor.data.end()));
}

TEST(GgufTensors, AMovedFileKeepsItsViews) {
  GgufFile file = types();
  const Tensor* const tensor = file.find_tensor("F16");
  const GgufFile moved = std::move(file);
  EXPECT_EQ(moved.find_tensor("F16"), tensor);
  EXPECT_EQ(moved.integer("t.u8", 0, 255), 200);
}

}  // namespace
}  // namespace headwater::runtime::testing
