// Projections of made-up weights against sums in double, in both precisions and over every stored type.

#include "runtime/model/projection.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>
#include <string_view>
#include <thread>

#include "headwater/detail/processor.hpp"
#include "headwater/error.hpp"
#include "runtime/gguf/byte_product.hpp"
#include "runtime/gguf/row_groups.hpp"
#include "runtime/gguf/row_kernels.hpp"
#include "runtime/model/kernels/kernels.hpp"
#include "tests/gguf/byte_row.hpp"
#include "tests/gguf/element_sizes.hpp"
#include "tests/model/quantise.hpp"
#include "tests/model/software_tiles.hpp"

namespace headwater::runtime {
namespace {

bool onednn_has_avx512() {
  const std::string_view isa = product_isa();
  return isa.starts_with("AVX-512") || isa == "AMX";
}

/// A matrix as a file would hold it, with random blocks.
struct StoredMatrix {
  Tensor tensor;
  std::vector<std::byte> bytes;

  StoredMatrix(TensorType type, std::int64_t columns, std::int64_t rows, unsigned seed) {
    std::mt19937 random(seed);
    const std::int64_t row = row_bytes(type, columns);
    bytes.resize(static_cast<std::size_t>(row * rows));
    std::normal_distribution<float> normal;
    for (std::int64_t at = 0; at < static_cast<std::int64_t>(bytes.size());) {
      std::byte* const to = bytes.data() + at;
      if (type == TensorType::f32) {
        const float value = normal(random);
        std::memcpy(to, &value, 4), at += 4;
      } else if (type == TensorType::q8_0) {
        const std::uint16_t scale = 0x1c00 + random() % 1024;  // F16 in [2^-8, 2^-7)
        std::memcpy(to, &scale, 2);
        for (int i = 2; i < 34; ++i) to[i] = static_cast<std::byte>(random() & 0xff);
        at += 34;
      } else {  // 16-bit numbers of modest size
        const std::uint16_t value =
            type == TensorType::bf16 ? 0x3e00 + random() % 512 : 0x3000 + random() % 4096;
        const auto sign = static_cast<std::uint16_t>(random() % 2 << 15);
        const auto both = static_cast<std::uint16_t>(value | sign);
        std::memcpy(to, &both, 2), at += 2;
      }
    }
    tensor = {"w", type, {columns, rows}, bytes};
  }
};

class Collect final : public TileSink {
 public:
  Collect(std::int64_t rows, std::int64_t columns)
      : columns_(columns), values_(static_cast<std::size_t>(rows * columns), NAN) {}
  void take(const Tile& tile) const override {
    const std::lock_guard lock(mutex_);
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      for (std::int64_t c = 0; c < tile.columns; ++c) {
        float& value = values_[static_cast<std::size_t>((tile.row + r) * columns_ + tile.column + c)];
        EXPECT_TRUE(std::isnan(value)) << "an element came twice";
        value = tile.values[r * tile.stride + c];
      }
    }
  }
  [[nodiscard]] const std::vector<float>& values() const { return values_; }

 private:
  std::int64_t columns_;
  mutable std::mutex mutex_;
  mutable std::vector<float> values_;
};

struct Packed {
  PanelProducts products;
  std::unique_ptr<Projection> projection;
  std::vector<ProjectionScratch> scratch;

  Packed(Precision precision, std::vector<RowRange> rows, int threads,
         const TileKernels* tiles = native_tiles(), const RowKernels& kernels = row_kernels())
      : products(tiles, kernels), scratch(static_cast<std::size_t>(threads)) {
    projection = std::make_unique<Projection>(products, precision, std::move(rows));
    for (auto& one : scratch) one.memory = AlignedBuffer(projection->scratch_bytes());
    projection->pack(threads, scratch);
  }
  /// multiply() for n rows in blocks of a chunk.
  void multiply(void* x, std::int64_t n, int threads, const TileSink& sink, std::int64_t chunk = 1024) {
    std::vector<RowBlock> blocks;
    cut_into_blocks(n, chunk, blocks);
    projection->multiply(x, blocks, threads, scratch, sink);
  }
};

std::vector<float> random_rows(std::int64_t n, std::int64_t depth) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>((n + kRowPadding) * depth), 0.0F);
  for (std::int64_t i = 0; i < n * depth; ++i) x[static_cast<std::size_t>(i)] = normal(random);
  return x;
}

double widen_bf16(std::uint16_t bits) {
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &wide, 4);
  return value;
}

/// Elements of these rows and columns against a sum in double over the operands as they are multiplied. Bound: a product and
/// a sum of depth terms in F32, (depth + 1) u sum |x w|, and one rounding of a widened weight to BF16 where that is what is
/// multiplied. `fixed`: the bound of dot_rows_fixed().
void expect_elements(const std::vector<float>& got, const std::vector<float>& x,
                     const std::vector<std::int64_t>& rows, const std::vector<std::int64_t>& columns,
                     const Tensor& tensor, Precision precision, bool fixed) {
  const std::int64_t depth = tensor.dims[0];
  const std::int64_t width = tensor.dims[1];
  std::vector<float> row(static_cast<std::size_t>(depth));
  std::vector<std::uint16_t> rounded(row.size());
  for (const std::int64_t c : columns) {
    dequantize_row(tensor.type, tensor.row(c), depth, row.data());
    const auto elements =
        fixed ? testing::sizes_of(tensor.type, tensor.row(c), depth) : std::vector<double>();
    if (precision == Precision::bf16) {
      kernels().to_bf16(row.data(), depth, rounded.data());
      for (std::size_t k = 0; k < row.size(); ++k) row[k] = static_cast<float>(widen_bf16(rounded[k]));
    }
    for (const std::int64_t r : rows) {
      double sum = 0;
      double sizes = 0;
      double fixed_bound = 0;
      for (std::int64_t k = 0; k < depth; ++k) {
        const double term = static_cast<double>(x[static_cast<std::size_t>(r * depth + k)]) *
                            static_cast<double>(row[static_cast<std::size_t>(k)]);
        sum += term;
        sizes += std::fabs(term);
        if (!fixed) continue;
        const auto run = x.begin() + (r * depth + k) / kFixedRun * kFixedRun;
        const float most = std::fabs(*std::max_element(
            run, run + kFixedRun, [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
        fixed_bound += elements[static_cast<std::size_t>(k)] * static_cast<double>(most) *
                       (0x1p-16 + (static_cast<double>(depth) / 16 + 8) * 0x1p-24);
      }
      const double bound = fixed ? fixed_bound : (static_cast<double>(depth) + 2) * 0x1p-24 * sizes;
      ASSERT_NEAR(got[static_cast<std::size_t>(r * width + c)], sum, bound)
          << "row " << r << ", column " << c;
    }
  }
}

/// Rows as a product in bytes reads them: what each element is rounded to.
std::vector<float> rounded_to_bytes(const ByteKernels& bytes, const std::vector<float>& x,
                                    std::int64_t depth) {
  std::vector<float> rounded(x.size());
  std::vector<std::byte> row(byte_row_bytes(bytes, depth));
  for (std::int64_t first = 0; first < static_cast<std::int64_t>(x.size()); first += depth) {
    to_byte_row(bytes, x.data() + first, depth, row.data());
    for (std::int64_t k = 0; k < depth; ++k) {
      rounded[static_cast<std::size_t>(first + k)] = testing::byte_row_element(bytes, row.data(), k);
    }
  }
  return rounded;
}

/// x as multiply() takes it for a precision, and what it then stands for.
struct Operand {
  std::vector<float> values;
  std::vector<std::uint16_t> narrow;

  Operand(const std::vector<float>& x, Precision precision) : values(x), narrow(x.size()) {
    if (precision != Precision::bf16) return;
    kernels().to_bf16(x.data(), static_cast<std::int64_t>(x.size()), narrow.data());
    for (std::size_t i = 0; i < x.size(); ++i) values[i] = static_cast<float>(widen_bf16(narrow[i]));
  }
  /// A copy, which may be overwritten.
  [[nodiscard]] AlignedBuffer copy(Precision precision) const {
    const auto element = static_cast<std::size_t>(precision_bytes(precision));
    AlignedBuffer rows(values.size() * element);
    const void* const from =
        precision == Precision::bf16 ? static_cast<const void*>(narrow.data()) : values.data();
    std::memcpy(rows.data(), from, rows.size());
    return rows;
  }
};

std::vector<std::int64_t> up_to(std::int64_t n) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

void expect_products(const std::vector<float>& got, const std::vector<float>& x, std::int64_t n,
                     const Tensor& tensor, Precision precision, bool fixed = false) {
  expect_elements(got, x, up_to(n), up_to(tensor.dims[1]), tensor, precision, fixed);
}

constexpr TensorType kTypes[] = {TensorType::f32, TensorType::f16, TensorType::bf16, TensorType::q8_0};

TEST(Projection, MultipliesManyRows) {
  // Rows: blocks of every height and a ragged end; columns: a whole panel and a ragged one.
  constexpr std::int64_t kWidth = 300;
  constexpr std::int64_t kRows = 256 + 64 + 16 + 5;
  struct Case {
    TensorType type;
    std::int64_t depth;
  };
  std::vector<Case> cases = {{TensorType::q8_0, 128}};  // in groups of rows, where a depth of 96 is not
  for (const TensorType type : kTypes) cases.push_back({type, 96});
  for (const auto& [type, depth] : cases) {
    for (const Precision precision : {Precision::f32, Precision::bf16}) {
      if (precision == Precision::bf16 && native_precision() != precision) continue;
      SCOPED_TRACE(std::string(tensor_type_info(type).name) + " " + precision_name(precision));
      const StoredMatrix matrix(type, depth, kWidth, 3);
      Packed packed(precision, {{&matrix.tensor, 0, kWidth}}, 3);
      const Operand x(random_rows(kRows, depth), precision);
      const Collect sink(kRows, kWidth);
      packed.multiply(x.copy(precision).data(), kRows, 3, sink);
      expect_products(sink.values(), x.values, kRows, matrix.tensor, precision);
    }
  }
}

// Tiles in software, so that what stands around the tile unit is tested everywhere. Depths on both sides of a part, widths of a
// pair of tiles, a strip and a panel, rows of a tile and a strip, in chunks that are no multiple of a tile.
TEST(Projection, MultipliesInTiles) {
  if (!detail::missing_feature(detail::kAvx2).empty()) GTEST_SKIP() << "the tile unit in software needs AVX2";
  struct Case {
    TensorType type;
    std::int64_t depth, width, rows, chunk;
  };
  const Case cases[] = {{TensorType::f16, 32, 1, 1, 1024},          {TensorType::f32, 64, 16, 15, 1024},
                        {TensorType::q8_0, 64, 17, 16, 1024},       {TensorType::q8_0, 576, 32, 17, 1024},
                        {TensorType::q8_0, 608, 33, 31, 1024},      {TensorType::bf16, 1152, 48, 33, 1024},
                        {TensorType::f16, 1184, 128, 32, 1024},     {TensorType::q8_0, 96, 129, 49, 1024},
                        {TensorType::q8_0, 128, 256, 85, 1024},     {TensorType::f16, 32, 257, 341, 1024},
                        {TensorType::q8_0, 64, 300, 250, 100},      {TensorType::f16, 1024, 20, 33, 1024},
                        {TensorType::f16, 1056, 20, 33, 1024},      {TensorType::f16, 14336, 20, 18, 1024},
                        {TensorType::q8_0, 64, 20, 4096 + 50, 1024}};
  for (const auto& [type, depth, width, rows, chunk] : cases) {
    SCOPED_TRACE(fmt::format("{} {} x {}, {} rows", tensor_type_info(type).name, depth, width, rows));
    const StoredMatrix matrix(type, depth, width, 3);
    const Operand x(random_rows(rows, depth), Precision::bf16);
    std::vector<std::vector<float>> results;
    for (const TileKernels* const tiles : {&testing::software_tiles, native_tiles()}) {
      if (tiles == nullptr) continue;
      Packed packed(Precision::bf16, {{&matrix.tensor, 0, width}}, 3, tiles);
      const Collect sink(rows, width);
      packed.multiply(x.copy(Precision::bf16).data(), rows, 3, sink, chunk);
      results.push_back(sink.values());
    }
    expect_products(results.front(), x.values, rows, matrix.tensor, Precision::bf16);
    EXPECT_EQ(results.front(), results.back()) << "the processor's tiles have other bits";
  }
}

TEST(Projection, MultipliesOneRowWithWeightsAsStored) {
  constexpr std::int64_t kDepth = 256;
  constexpr std::int64_t kWidth = 130;
  for (const TensorType type : kTypes) {
    SCOPED_TRACE(tensor_type_info(type).name);
    const StoredMatrix matrix(type, kDepth, kWidth, 4);
    Packed packed(Precision::f32, {{&matrix.tensor, 0, kWidth}}, 2);
    const auto x = random_rows(1, kDepth);
    const Collect sink(1, kWidth);
    packed.projection->multiply_few(x.data(), 1, 2, packed.scratch, sink);
    expect_products(sink.values(), x, 1, matrix.tensor, Precision::f32, is_quantised(type));
  }
}

TEST(Projection, PutsRangesOfSeveralMatricesSideBySide) {
  constexpr std::int64_t kDepth = 64;
  const StoredMatrix a(TensorType::f16, kDepth, 70, 5);
  const StoredMatrix b(TensorType::q8_0, kDepth, 40, 6);
  const std::vector<RowRange> ranges = {{&a.tensor, 10, 50}, {&b.tensor, 3, 30}, {&a.tensor, 60, 10}};
  Packed packed(Precision::f32, ranges, 2);
  ASSERT_EQ(packed.projection->width(), 90);
  EXPECT_EQ(packed.projection->packed_bytes(), 0U) << "a quantised part keeps the projection as stored";
  const auto x = random_rows(1, kDepth);
  const Collect sink(1, 90);
  packed.projection->multiply_few(x.data(), 1, 1, packed.scratch, sink);
  std::vector<float> row(kDepth);
  std::size_t column = 0;
  for (const RowRange& range : ranges) {
    for (std::int64_t r = range.first; r < range.first + range.count; ++r, ++column) {
      dequantize_row(range.tensor->type, range.tensor->row(r), kDepth, row.data());
      double sum = 0;
      for (std::size_t k = 0; k < row.size(); ++k)
        sum += static_cast<double>(row[k]) * static_cast<double>(x[k]);
      ASSERT_NEAR(sink.values()[column], sum, 1e-3) << column;
    }
  }
}

/// A matrix of the size of a model's. Its rows are pieces of one run of random blocks, which makes them for the price of a
/// copy; rows that are a power of two apart differ.
struct LargeMatrix {
  Tensor tensor;
  std::vector<std::byte> bytes;

  LargeMatrix(TensorType type, std::int64_t columns, std::int64_t rows) {
    constexpr std::int64_t kPlaces = 997;
    const std::int64_t block = std::max<std::int64_t>(tensor_type_info(type).block_elements, 8);
    const std::int64_t pool_columns = columns + (kPlaces - 1) * block;
    std::vector<std::byte> pool;
    if (is_quantised(type)) {
      std::mt19937 random(9);
      std::normal_distribution<float> normal;
      std::vector<float> values(static_cast<std::size_t>(pool_columns));
      for (float& value : values) value = normal(random);
      testing::append_quantised(type, values, pool);
    } else {
      pool = StoredMatrix(type, pool_columns, 1, 9).bytes;
    }
    const std::int64_t row = row_bytes(type, columns);
    bytes.resize(static_cast<std::size_t>(row * rows));
    for (std::int64_t r = 0; r < rows; ++r) {
      std::memcpy(bytes.data() + r * row, pool.data() + row_bytes(type, r * 613 % kPlaces * block),
                  static_cast<std::size_t>(row));
    }
    tensor = {"w", type, {columns, rows}, bytes};
  }
};

/// The first and the last of every 64, and some between.
std::vector<std::int64_t> borders(std::int64_t n) {
  std::vector<std::int64_t> some;
  for (std::int64_t i = 0; i < n; ++i) {
    if (i % 64 == 0 || i % 64 == 63 || i % 97 == 5 || i == n - 1) some.push_back(i);
  }
  return some;
}

// Matrices of Qwen and Llama models: more panels and groups than a small case has, offsets beyond 2^16 bytes, and a head
// of more than 2^16 columns. One row, and blocks of many.
TEST(Projection, OfTheSizesOfModels) {
  struct Case {
    TensorType type;
    std::int64_t depth, width, rows;
  };
  const Case cases[] = {{TensorType::f16, 896, 4864, 85},       {TensorType::q8_0, 4864, 896, 85},
                        {TensorType::f32, 2048, 1024, 21},      {TensorType::bf16, 64, 151936, 21},
                        {TensorType::q8_0, 64, 151931, 21},     {TensorType::q4_k, 2048, 11008, 21},
                        {TensorType::q6_k, 14336, 1030, 21},    {TensorType::q4_0, 896, 4867, 21},
                        {TensorType::q5_k, 4096, 1024, 21},     {TensorType::q8_0, 64, 300, 4096 + 335},
                        {TensorType::f16, 64, 70, 65536 + 335}, {TensorType::q8_0, 64, 20, 65536 + 335},
                        {TensorType::q4_0, 4896, 96, 21},       {TensorType::f16, 14336, 260, 21},
                        {TensorType::f16, 53248, 70, 21},       {TensorType::q8_0, 53248, 70, 21},
                        {TensorType::q4_1, 576, 1536, 85},      {TensorType::q5_0, 1536, 579, 21},
                        {TensorType::q5_1, 4896, 96, 21},       {TensorType::q2_k, 4864, 579, 21},
                        {TensorType::q3_k, 14336, 260, 21},     {TensorType::iq4_xs, 2048, 1030, 21}};
  for (const auto& [type, depth, width, rows] : cases) {
    const LargeMatrix matrix(type, depth, width);
    const auto x = random_rows(rows, depth);
    const auto columns = borders(width);
    const std::vector<std::int64_t> some_rows =
        rows < 100 ? std::vector<std::int64_t>{0, 15, rows - 1} : borders(rows);
    for (const Precision precision : {Precision::f32, Precision::bf16}) {
      if (precision == Precision::bf16 && native_precision() != precision) continue;
      SCOPED_TRACE(std::string(tensor_type_info(type).name) + " " + std::to_string(depth) + " to " +
                   std::to_string(width) + " " + precision_name(precision));
      Packed packed(precision, {{&matrix.tensor, 0, width}}, 2);
      if (precision == Precision::f32) {
        const Collect one(1, width);
        packed.projection->multiply_few(x.data(), 1, 2, packed.scratch, one);
        expect_elements(one.values(), x, {0}, columns, matrix.tensor, precision, is_quantised(type));
      }
      const Operand operand(x, precision);
      const Collect many(rows, width);
      packed.multiply(operand.copy(precision).data(), rows, 2, many);
      expect_elements(many.values(), operand.values, some_rows, columns, matrix.tensor, precision, false);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

/// Products in integers by the kernels of each ISA.
class InBytes : public ::testing::TestWithParam<const RowKernelVariant*> {
 protected:
  void SetUp() override {
    const std::string missing = GetParam()->missing();
    if (!missing.empty()) GTEST_SKIP() << "no " << missing;
  }
  [[nodiscard]] static const RowKernels& kernels() { return *GetParam()->kernels; }
};

std::vector<const RowKernelVariant*> variants_with_bytes() {
  std::vector<const RowKernelVariant*> all;
  for (const RowKernelVariant& one : row_kernel_variants()) {
    if (one.kernels->bytes != nullptr) all.push_back(&one);
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Projection, InBytes, ::testing::ValuesIn(variants_with_bytes()));

// Quantised matrices of models, several types beside each other, widths that end inside a group and behind one more; rows
// behind 2^16. The bound is that of the scales' arithmetic.
TEST_P(InBytes, OfTheSizesOfModels) {
  struct Case {
    TensorType type;
    std::int64_t depth, width, rows;
  };
  const Precision row_type = row_precision(Precision::int8);
  for (const auto& [type, depth, width, rows] :
       {Case{TensorType::q8_0, 4864, 896, 85}, Case{TensorType::q8_0, 64, 151931, 21},
        Case{TensorType::q4_k, 2048, 11008, 21}, Case{TensorType::q6_k, 14336, 1030, 21},
        Case{TensorType::q4_0, 896, 4867, 21}, Case{TensorType::q5_k, 4096, 1024, 21},
        Case{TensorType::q8_0, 64, 300, 4096 + 335}, Case{TensorType::q8_0, 64, 20, 65536 + 335},
        Case{TensorType::q4_1, 576, 1536, 85}, Case{TensorType::q5_0, 1536, 579, 21},
        Case{TensorType::q5_1, 4928, 96, 21}, Case{TensorType::q8_0, 53248, 70, 21},
        Case{TensorType::q2_k, 4864, 579, 21}, Case{TensorType::q3_k, 14336, 260, 21},
        Case{TensorType::iq4_xs, 2048, 1030, 21}}) {
    SCOPED_TRACE(fmt::format("{} {} to {}", tensor_type_info(type).name, depth, width));
    const LargeMatrix matrix(type, depth, width);
    Packed packed(Precision::int8, {{&matrix.tensor, 0, width}}, 2, native_tiles(), kernels());
    // Most of it of a type with scales for every sixteen: only where the processor has no BF16.
    const bool slow = type == TensorType::q6_k || type == TensorType::q2_k || type == TensorType::q3_k;
    const bool by_bytes = kernels().bytes->unpack[static_cast<std::size_t>(type)] != nullptr;
    ASSERT_EQ(packed.projection->in_bytes(), row_type == Precision::f32 || (by_bytes && !slow));
    if (!packed.projection->in_bytes()) continue;
    const ByteKernels& own = *packed.projection->byte_kernels();
    ASSERT_EQ(&own, by_bytes ? kernels().bytes : kernels().words);
    EXPECT_EQ(packed.projection->reads_file(), own.unpacks_rows);
    const Operand x(random_rows(rows, depth), row_type);
    const Collect got(rows, width);
    packed.multiply(x.copy(row_type).data(), rows, 2, got);
    const std::vector<std::int64_t> some =
        rows < 100 ? std::vector<std::int64_t>{0, 5, 6, 15, rows - 1} : borders(rows);
    expect_elements(got.values(), rounded_to_bytes(own, x.values, depth), some, borders(width), matrix.tensor,
                    Precision::f32, false);
    if (::testing::Test::HasFailure()) return;
  }
}

// Types in turn, as gate and up have them, 32 columns each, and an odd number of groups of each: a tile never takes two types.
TEST_P(InBytes, WithSeveralTypes) {
  constexpr std::int64_t kDepth = 512;
  constexpr std::int64_t kRows = 64 + 16 + 7;
  const Precision row_type = row_precision(Precision::int8);
  const Operand x(random_rows(kRows, kDepth), row_type);
  constexpr TensorType kWide[] = {TensorType::q6_k, TensorType::q4_k, TensorType::q8_0, TensorType::q5_1,
                                  TensorType::iq4_xs};
  constexpr TensorType kNarrow[] = {TensorType::q2_k, TensorType::q4_k, TensorType::mxfp4, TensorType::q5_1,
                                    TensorType::q4_0};
  for (int round = 0; round < 6; ++round) {
    const std::int64_t count = 16 * (round / 2 + 1);
    const auto& types = round % 2 == 0 ? kWide : kNarrow;
    const LargeMatrix matrices[] = {{types[0], kDepth, 2 * count},
                                    {types[1], kDepth, 2 * count},
                                    {types[2], kDepth, 2 * count},
                                    {types[3], kDepth, 2 * count},
                                    {types[4], kDepth, 2 * count}};
    std::vector<RowRange> ranges;
    // Of 16 columns, a panel has as many parts as it can.
    for (const std::int64_t first : {std::int64_t{0}, count, std::int64_t{0}, count}) {
      for (const LargeMatrix& matrix : matrices) ranges.push_back({&matrix.tensor, first, count});
    }
    const std::int64_t width = 20 * count;
    Packed packed(Precision::int8, ranges, 3, native_tiles(), kernels());
    // Rows in 16 bits are rounded from F32 alone.
    const bool by_bytes = &types == &kNarrow || kernels().words == nullptr;
    ASSERT_EQ(packed.projection->in_bytes(), by_bytes || row_type == Precision::f32);
    if (!packed.projection->in_bytes()) continue;
    const auto rounded = rounded_to_bytes(*packed.projection->byte_kernels(), x.values, kDepth);
    const Collect got(kRows, width);
    packed.multiply(x.copy(row_type).data(), kRows, 3, got);
    const Collect alone(kRows, width);
    packed.multiply(x.copy(row_type).data(), kRows, 1, alone);
    EXPECT_TRUE(alone.values() == got.values()) << "by one thread and by three";
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const Tensor& tensor = *ranges[i].tensor;
      SCOPED_TRACE(fmt::format("{} from row {}", tensor_type_info(tensor.type).name, ranges[i].first));
      for (const std::int64_t row : {std::int64_t{0}, std::int64_t{63}, kRows - 1}) {
        std::vector<float> columns(static_cast<std::size_t>(2 * count));
        std::copy_n(got.values().begin() + row * width + static_cast<std::int64_t>(i) * count, count,
                    columns.begin() + ranges[i].first);
        std::vector<std::int64_t> own = up_to(count);
        for (std::int64_t& column : own) column += ranges[i].first;
        const std::vector<float> same(rounded.begin() + row * kDepth, rounded.begin() + (row + 1) * kDepth);
        expect_elements(columns, same, {0}, own, tensor, Precision::f32, false);
      }
    }
  }
}

// Matrices that are not quantised or have no groups (unless rows are unpacked as they are), and those of which one begins inside
// a group, are multiplied as without.
TEST(Projection, InBytesOnlyWhatTheKernelsTake) {
  const StoredMatrix plain(TensorType::f16, 128, 48, 3);
  const StoredMatrix no_groups(TensorType::q8_0, 96, 48, 4);
  const StoredMatrix inside(TensorType::q8_0, 128, 48, 5);
  const Precision row_type = row_precision(Precision::int8);
  for (const StoredMatrix* matrix : {&plain, &no_groups, &inside}) {
    const std::int64_t depth = matrix->tensor.dims[0];
    const std::int64_t first = matrix == &inside ? 8 : 48;
    const Operand x(random_rows(40, depth), row_type);
    std::vector<float> bits[2];
    for (const Precision precision : {Precision::int8, row_type}) {
      std::vector<RowRange> ranges = {{&matrix->tensor, 0, first}};
      if (first < 48) ranges.push_back({&matrix->tensor, first, 48 - first});
      Packed packed(precision, ranges, 2);
      const bool taken =
          matrix == &no_groups && precision == Precision::int8 && row_kernels().words != nullptr;
      EXPECT_EQ(packed.projection->in_bytes(), taken);
      const Collect got(40, 48);
      packed.multiply(x.copy(row_type).data(), 40, 2, got);
      bits[precision == Precision::int8 ? 0 : 1] = taken ? std::vector<float>() : got.values();
    }
    EXPECT_TRUE(bits[0].empty() || bits[0] == bits[1]);
  }
}

/// Zeros that take no memory until they are written.
class EmptyPages {
 public:
  explicit EmptyPages(std::size_t bytes) : bytes_(bytes) {
    void* const at =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return;
    (void)::madvise(at, bytes, MADV_HUGEPAGE);  // faster to read
    data_ = static_cast<std::byte*>(at);
  }
  ~EmptyPages() {
    if (data_ != nullptr) (void)::munmap(data_, bytes_);
  }
  EmptyPages(const EmptyPages&) = delete;
  EmptyPages& operator=(const EmptyPages&) = delete;
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  std::size_t bytes_;
  std::byte* data_ = nullptr;
};

// All rows are zeros but for those of the last panel or group, which is packed by itself.
TEST(Projection, PackedBeyondFourGiB) {
  struct Case {
    TensorType type;
    std::int64_t depth, last, rows;
  };
  for (const auto& [type, depth, last, rows] :
       {Case{TensorType::f32, 4096, 256, 1025 * 256}, Case{TensorType::q8_0, 65536, 16, 3900 * 16}}) {
    SCOPED_TRACE(tensor_type_info(type).name);
    if (is_quantised(type) && !packs_in_groups(type, depth)) continue;
    const LargeMatrix matrix(type, depth, last);
    const Tensor nearly_empty = {"w", type, {depth, rows}, {}};
    PanelProducts products;
    Projection one(products, Precision::f32, {{&matrix.tensor, 0, last}});
    Projection all(products, Precision::f32, {{&nearly_empty, 0, rows}});
    ASSERT_GT(all.packed_bytes() - one.packed_bytes(), (std::size_t{1} << 32) - 1);
    std::vector<ProjectionScratch> scratch(2);
    for (auto& memory : scratch)
      memory.memory = AlignedBuffer(std::max(one.scratch_bytes(), all.scratch_bytes()));
    const EmptyPages pages(all.packed_bytes());
    if (pages.data() == nullptr) GTEST_SKIP() << "no 4 GiB of addresses";
    all.place(pages.data());
    one.place(pages.data() + all.packed_bytes() - one.packed_bytes());
    one.pack(2, scratch);
    auto x = random_rows(1, depth);
    const std::vector<RowBlock> block = {{0, kBlockHeights.back(), 1}};
    const Collect wanted(1, last);
    const Collect got(1, rows);
    if (is_quantised(type)) {
      one.multiply_few(x.data(), 1, 2, scratch, wanted);
      all.multiply_few(x.data(), 1, 2, scratch, got);
    } else {
      one.multiply(x.data(), block, 2, scratch, wanted);
      all.multiply(x.data(), block, 2, scratch, got);
    }
    const auto end = got.values().end() - last;
    EXPECT_TRUE(std::equal(wanted.values().begin(), wanted.values().end(), end));
    EXPECT_TRUE(std::all_of(got.values().begin(), end, [](float value) { return value == 0; }));
  }
}

std::string refusal_of(const Tensor& tensor) {
  try {
    Packed packed(Precision::f32, {{&tensor, 0, tensor.dims[1]}}, 2);
    return "accepted";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(Projection, NamesTheTensorThatHoldsNaN) {
  StoredMatrix matrix(TensorType::f16, 64, 20, 8);
  const std::uint16_t nan = 0x7e00;
  std::memcpy(matrix.bytes.data() + (7 * 64 + 9) * 2, &nan, 2);
  EXPECT_EQ(refusal_of(matrix.tensor), "tensor 'w': row 7 holds NaN or infinity; allowed: finite weights");
}

TEST(Projection, NamesTheQuantisedTensorThatHoldsNaN) {
  for (const std::int64_t depth : {96, 128}) {
    for (const std::int64_t row : {17, 65536, 151935}) {
      LargeMatrix matrix(TensorType::q8_0, depth, 151936);
      const std::uint16_t infinity = 0xfc00;
      std::memcpy(matrix.bytes.data() + row * row_bytes(TensorType::q8_0, depth) + 34, &infinity, 2);
      EXPECT_EQ(refusal_of(matrix.tensor),
                fmt::format("tensor 'w': row {} holds NaN or infinity; allowed: finite weights", row));
    }
  }
}

// Ranges of rows begin anywhere in their matrices; in the projection they begin at multiples of sixteen, or stay as stored.
TEST(Projection, GroupsTakeRangesOfSeveralMatrices) {
  constexpr std::int64_t kDepth = 192;
  const StoredMatrix a(TensorType::q8_0, kDepth, 70, 5);
  const StoredMatrix b(TensorType::q8_0, kDepth, 40, 6);
  const auto x = random_rows(1, kDepth);
  for (const std::int64_t first_count : {48, 50}) {
    const std::vector<RowRange> ranges = {
        {&a.tensor, 10, first_count}, {&b.tensor, 3, 32}, {&a.tensor, 2, 7}};
    const std::int64_t width = first_count + 39;
    Packed packed(Precision::f32, ranges, 2);
    const bool grouped = first_count % 16 == 0 && packs_in_groups(TensorType::q8_0, kDepth);
    EXPECT_EQ(packed.projection->packed_bytes(), grouped ? 6 * group_bytes(TensorType::q8_0, kDepth) : 0);
    // Groups that go straight into oneDNN's layout make the file's rows needless.
    if (grouped && onednn_has_avx512()) {
      EXPECT_FALSE(packed.projection->reads_file());
    }
    const Collect one(1, width);
    packed.projection->multiply_few(x.data(), 1, 2, packed.scratch, one);
    std::vector<float> padded(static_cast<std::size_t>((1 + kRowPadding) * kDepth));
    std::copy(x.begin(), x.begin() + kDepth, padded.begin());
    const std::vector<RowBlock> block = {{0, kBlockHeights.back(), 1}};
    const Collect many(1, width);
    packed.projection->multiply(padded.data(), block, 2, packed.scratch, many);
    std::vector<float> row(kDepth);
    std::size_t column = 0;
    for (const RowRange& range : ranges) {
      for (std::int64_t r = range.first; r < range.first + range.count; ++r, ++column) {
        dequantize_row(range.tensor->type, range.tensor->row(r), kDepth, row.data());
        double sum = 0;
        for (std::size_t k = 0; k < row.size(); ++k)
          sum += static_cast<double>(row[k]) * static_cast<double>(x[k]);
        ASSERT_NEAR(one.values()[column], sum, 1e-3) << column;
        ASSERT_NEAR(many.values()[column], sum, 1e-4) << column;
      }
    }
  }
}

/// multiply_few() of 1 .. kFewRows rows: each has the bits that it has alone.
void expect_rows_as_alone(Packed& packed) {
  constexpr std::int64_t kMost = Projection::kFewRows;
  const std::int64_t depth = packed.projection->depth();
  const std::int64_t width = packed.projection->width();
  const auto x = random_rows(kMost, depth);
  std::vector<float> alone;
  for (std::int64_t row = 0; row < kMost; ++row) {
    const Collect one(1, width);
    packed.projection->multiply_few(x.data() + row * depth, 1, 1, packed.scratch, one);
    alone.insert(alone.end(), one.values().begin(), one.values().end());
  }
  for (std::int64_t rows = 1; rows <= kMost; ++rows) {
    const Collect together(rows, width);
    packed.projection->multiply_few(x.data(), rows, 2, packed.scratch, together);
    const auto bytes = static_cast<std::size_t>(width) * sizeof(float);
    for (std::int64_t row = 0; row < rows; ++row) {
      ASSERT_EQ(std::memcmp(together.values().data() + row * width, alone.data() + row * width, bytes), 0)
          << "row " << row << " of " << rows;
    }
  }
}

// Widths end inside a slice and inside a group, and on each side of a slice; the widest ones have tasks of several slices,
// the last of them not full, and of most slices; depths lie on each side of a strip's bytes; every count of rows, so also
// on each side of those that a kernel takes at once.
TEST(Projection, EachOfFewRowsHasTheBitsThatItHasAlone) {
  for (const TensorType type : kTypes) {
    for (const auto& [depth, width] : {std::pair{std::int64_t{256}, std::int64_t{130}},
                                       {768, 63},
                                       {512, 64},
                                       {512, 65},
                                       {256, 2 * 17 * 64 + 1},
                                       {256, 2 * 4 * 9 * 64 + 64},
                                       {4096, 200}}) {
      SCOPED_TRACE(fmt::format("{} {} x {}", tensor_type_info(type).name, depth, width));
      const LargeMatrix matrix(type, depth, width);
      Packed packed(Precision::f32, {{&matrix.tensor, 0, width}}, 2);
      expect_rows_as_alone(packed);
    }
  }
}

// A row is arranged for each type from the same fixed-point row: one arrangement leaves the row, the others and those of
// other rows whole. A strip holds many rows of the one depth, and few of the other.
TEST(Projection, RowsForSeveralQuantisedTypes) {
  constexpr std::int64_t kRows = 21;
  for (const std::int64_t depth : {512, 4864}) {
    auto x = random_rows(kRows, depth);
    for (const std::int64_t count : {48, 50}) {  // in groups of rows, and as stored
      const LargeMatrix matrices[] = {{TensorType::q6_k, depth, count},   {TensorType::q4_k, depth, count},
                                      {TensorType::q5_k, depth, count},   {TensorType::q4_0, depth, count},
                                      {TensorType::q8_0, depth, count},   {TensorType::q4_1, depth, count},
                                      {TensorType::q5_0, depth, count},   {TensorType::q5_1, depth, count},
                                      {TensorType::q2_k, depth, count},   {TensorType::q3_k, depth, count},
                                      {TensorType::iq4_xs, depth, count}, {TensorType::f32, depth, count}};
      for (const std::size_t types : {2U, 11U, 12U}) {
        SCOPED_TRACE(fmt::format("{} types of {} rows of {}", types, count, depth));
        std::vector<RowRange> ranges;
        for (std::size_t i = 0; i < types; ++i) ranges.push_back({&matrices[i].tensor, 0, count});
        const std::int64_t width = count * static_cast<std::int64_t>(types);
        Packed packed(Precision::f32, ranges, 2);
        const Collect one(1, width);
        packed.projection->multiply_few(x.data(), 1, 2, packed.scratch, one);
        std::vector<RowBlock> blocks;
        cut_into_blocks(kRows, 1024, blocks);
        const Collect many(kRows, width);
        packed.projection->multiply(x.data(), blocks, 2, packed.scratch, many);
        for (std::size_t i = 0; i < types; ++i) {
          const Tensor& tensor = matrices[i].tensor;
          SCOPED_TRACE(tensor_type_info(tensor.type).name);
          const auto columns_of = [&](const Collect& all, std::int64_t row) {
            const auto from = all.values().begin() + row * width + static_cast<std::int64_t>(i) * count;
            return std::vector<float>(from, from + count);
          };
          expect_elements(columns_of(one, 0), x, {0}, up_to(count), tensor, Precision::f32,
                          is_quantised(tensor.type));
          for (const std::int64_t row : {std::int64_t{0}, kRows - 1}) {
            const std::vector<float> same(x.begin() + row * depth, x.begin() + (row + 1) * depth);
            expect_elements(columns_of(many, row), same, {0}, up_to(count), tensor, Precision::f32, false);
          }
        }
        expect_rows_as_alone(packed);
      }
    }
  }
}

TEST(RowBlocks, CoverEveryRowOnceAndStartAnewAtEachSegment) {
  for (const std::int64_t segment : {1, 15, 16, 100, 256, 1000, 1024}) {
    for (const std::int64_t n : {1, 2, 16, 63, 64, 65, 335, 1000, 2049}) {
      std::vector<RowBlock> blocks;
      cut_into_blocks(n, segment, blocks);
      EXPECT_LE(blocks.size(), most_blocks(n, segment)) << n << " in " << segment;
      std::int64_t next = 0;
      for (const RowBlock& block : blocks) {
        ASSERT_EQ(block.first, next);
        ASSERT_GE(block.valid, 1);
        ASSERT_LE(block.valid, block.height);
        ASSERT_LE(block.height - block.valid, kRowPadding);
        ASSERT_EQ(block.first / segment, (block.first + block.valid - 1) / segment) << "crosses a segment";
        next += block.valid;
      }
      EXPECT_EQ(next, n);
    }
  }
}

// A prompt cut at a multiple of the segment is multiplied in the same blocks.
TEST(RowBlocks, DoNotDependOnCutsAtSegments) {
  std::vector<RowBlock> whole;
  cut_into_blocks(2500, 1000, whole);
  std::vector<RowBlock> parts;
  cut_into_blocks(1000, 1000, parts);
  const std::size_t first = parts.size();
  cut_into_blocks(1500, 1000, parts);
  for (std::size_t i = first; i < parts.size(); ++i) parts[i].first += 1000;
  ASSERT_EQ(whole.size(), parts.size());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(whole[i].first, parts[i].first);
    EXPECT_EQ(whole[i].height, parts[i].height);
  }
}

TEST(PanelProduct, WhatOneDnnRefusesIsAnErrorWithItsSizes) {
  try {
    const PanelProduct product(Precision::f32, -3, 4);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::internal);
    EXPECT_EQ(std::string(error.what()).find("oneDNN refuses a F32 product of depth -3 and width 4: "), 0U)
        << error.what();
  }
}

// What is packed a few rows at a time is what oneDNN's own reorder makes of the whole panel, in every byte.
TEST(PanelProduct, RowsPackedOneStripAfterTheOtherAreThePanel) {
  std::mt19937 random(11);
  int packed_by_rows = 0;
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    if (precision == Precision::bf16 && native_precision() != precision) continue;
    const auto element = static_cast<std::size_t>(precision_bytes(precision));
    for (const auto& [depth, width] : {std::pair<std::int64_t, std::int64_t>{64, 256},
                                       {1024, 256},
                                       {896, 32},
                                       {256, 100},
                                       {96, 1},
                                       {33, 64},
                                       {1000, 70}}) {
      const PanelProduct product(precision, depth, width);
      if (!product.packs_rows()) continue;
      ++packed_by_rows;
      std::vector<std::byte> plain(static_cast<std::size_t>(depth * width) * element);
      for (std::byte& byte : plain) byte = static_cast<std::byte>(random() & 0x3f);  // small normal numbers
      const AlignedBuffer whole(product.packed_bytes()), strips(product.packed_bytes());
      const AlignedBuffer scratch(product.scratch_bytes());
      std::fill_n(whole.data(), whole.size(), std::byte{0x11});
      std::fill_n(strips.data(), strips.size(), std::byte{0x22});
      product.pack(plain.data(), whole.data(), scratch.data());
      for (std::int64_t first = 0; first < width;) {
        const std::int64_t count = std::min<std::int64_t>(width - first, 1 + random() % 90);
        product.pack_rows(plain.data() + static_cast<std::size_t>(first * depth) * element, first, count,
                          strips.data());
        first += count;
      }
      EXPECT_EQ(std::memcmp(whole.data(), strips.data(), whole.size()), 0)
          << precision_name(precision) << ", depth " << depth << ", width " << width;
    }
  }
  // Otherwise oneDNN packs all, slower; below AVX-512 its layout is one that only it knows.
  if (onednn_has_avx512()) {
    EXPECT_GT(packed_by_rows, 0);
  }
}

/// What handlers saw of the thread that they interrupted.
struct Interrupted {
  std::uintptr_t stack = 0;
  std::uintptr_t stack_end = 0;
  std::atomic<int> handlers = 0;
  std::atomic<int> off_the_stack = 0;
} interrupted;

extern "C" void look_at_the_stack_pointer(int, siginfo_t*, void* context) {
  const auto at =
      static_cast<std::uintptr_t>(static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_RSP]);
  if (at < interrupted.stack || at >= interrupted.stack_end) ++interrupted.off_the_stack;
  ++interrupted.handlers;
}

void find_the_stack() {
  pthread_attr_t attributes;
  void* lowest = nullptr;
  std::size_t bytes = 0;
  ASSERT_EQ(pthread_getattr_np(pthread_self(), &attributes), 0);
  ASSERT_EQ(pthread_attr_getstack(&attributes, &lowest, &bytes), 0);
  pthread_attr_destroy(&attributes);
  interrupted.stack = reinterpret_cast<std::uintptr_t>(lowest);
  interrupted.stack_end = interrupted.stack + bytes;
}

/// Products and packs until enough handlers have run; for 5 s at most, where tools make threads take turns.
void multiply_while_interrupted() {
  constexpr int kHandlers = 500;
  constexpr std::int64_t kDepth = 1024, kWidth = 64;
  const std::int64_t height = kBlockHeights.back();
  const PanelProduct product(Precision::f32, kDepth, kWidth);
  const std::vector<float> plain(static_cast<std::size_t>(kWidth * kDepth), 1.0F);
  const std::vector<float> x(static_cast<std::size_t>(height * kDepth), 1.0F);
  std::vector<float> out(static_cast<std::size_t>(height * kWidth));
  const AlignedBuffer packed(product.packed_bytes()), scratch(product.scratch_bytes());
  const auto latest = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  do {
    product.pack(plain.data(), packed.data(), scratch.data());
    for (int i = 0; i < 10; ++i)
      product.multiply(height, x.data(), packed.data(), out.data(), scratch.data());
  } while (interrupted.handlers < kHandlers && std::chrono::steady_clock::now() < latest);
  EXPECT_EQ(out.back(), static_cast<float>(kDepth));
}

// oneDNN's code for AVX2 has the stack pointer in a buffer on the heap, where the frame of a handler, Python's of Ctrl-C for
// one, damages what lies in front of the buffer. Here handlers have a stack of their own, so that they only see it.
TEST(PanelProduct, HandlersFindTheStackPointerOnTheStack) {
  interrupted.handlers = interrupted.off_the_stack = 0;
  struct sigaction handler {};
  struct sigaction before {};
  handler.sa_sigaction = look_at_the_stack_pointer;
  handler.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  ASSERT_EQ(::sigaction(SIGUSR1, &handler, &before), 0);
  std::atomic<bool> ready = false;
  std::atomic<bool> done = false;
  std::thread worker([&] {
    std::vector<std::byte> memory(64 * 1024);
    stack_t own{};
    own.ss_sp = memory.data();
    own.ss_size = memory.size();
    stack_t none{};
    EXPECT_EQ(::sigaltstack(&own, &none), 0);
    find_the_stack();
    ready = true;
    multiply_while_interrupted();
    done = true;
    while (ready) std::this_thread::yield();  // no more signals come
    EXPECT_EQ(::sigaltstack(&none, nullptr), 0);
  });
  while (!ready) std::this_thread::yield();
  while (!done) {
    EXPECT_EQ(pthread_kill(worker.native_handle(), SIGUSR1), 0);
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  ready = false;
  worker.join();
  EXPECT_EQ(::sigaction(SIGUSR1, &before, nullptr), 0);
  EXPECT_GT(interrupted.handlers, 0);
  EXPECT_EQ(interrupted.off_the_stack, 0);
}

}  // namespace
}  // namespace headwater::runtime
