// Products of many rows in 16 bits (byte_product.hpp) for AVX2: for codes of more than five bits, which bytes do not multiply
// faster (avx2_bytes.cpp), and for matrices of several types. A lane is a stored row, and vpmaddwd adds two exact products
// to it.

#include <immintrin.h>

#include <cstddef>

#include "optimized/tiles/repeat.hpp"
#include "runtime/gguf/kernels/avx2_lanes.hpp"
#include "runtime/gguf/kernels/fixed.hpp"
#include "runtime/gguf/kernels/groups.hpp"
#include "runtime/gguf/kernels/table.hpp"

namespace headwater::runtime {
namespace {

/// Elements that share a scale, unpacked: lines of two signed codes of 16 bits of each row, then 16 scales, and 16 minima where
/// the type has them.
template <class Block>
struct WordPart {
  static constexpr int kElements = Block::kRun;
  static constexpr int kLines = kElements / 2;
  static constexpr int kScales = kLine * kLines;
  static constexpr int kBytes = kScales + kLine * (Block::kMinima ? 2 : 1);
};

template <class Block>
constexpr std::int64_t unpacked_bytes(std::int64_t n) {
  return n / WordPart<Block>::kElements * WordPart<Block>::kBytes;
}

template <class Block>
void unpack(const std::byte* rows, std::int64_t count, std::int64_t n, std::byte* out) {
  using Own = WordPart<Block>;
  unpack_rows<Block, Own>(rows, count, n, out, [](const std::int8_t* codes, std::byte* to) {
    std::int16_t own[Own::kElements];
    for (int i = 0; i < Own::kElements; ++i) own[i] = static_cast<std::int16_t>(int{codes[i]});
    for (int line = 0; line < Own::kLines; ++line) __builtin_memcpy(to + kLine * line, own + 2 * line, 4);
  });
}

/// A run of 32 activations: codes of 16 bits as those of a FixedRow, then these. totals: of the codes of each half, and of
/// all.
struct WordFactors {
  float scale;
  std::int32_t totals[3];
};
constexpr int kCodes = 2 * kFixedRun;  // bytes
constexpr int kRun = 80;
static_assert(kCodes + sizeof(WordFactors) == kRun);

void to_words(const float* x, std::int64_t n, std::byte* out) {
  for (std::int64_t i = 0; i < n; i += kFixedRun, out += kRun) {
    alignas(32) std::int16_t codes[kFixedRun];
    WordFactors run;
    float sum;
    fix_run(x + i, codes, &run.scale, &sum);
    run.totals[0] = run.totals[1] = 0;
    for (int k = 0; k < kFixedRun / 2; ++k) run.totals[0] += codes[k];
    for (int k = kFixedRun / 2; k < kFixedRun; ++k) run.totals[1] += codes[k];
    run.totals[2] = run.totals[0] + run.totals[1];
    __builtin_memcpy(out, codes, sizeof codes);
    __builtin_memcpy(out + kCodes, &run, sizeof run);
  }
}

template <class Block>
struct WordTile {
  static void multiply(const std::byte* unpacked, std::int64_t n, const std::byte* const (&x)[kTileRows],
                       float* const (&out)[kTileRows]) {
    using Own = WordPart<Block>;
    constexpr bool kHalfRuns = Own::kElements < kFixedRun;
    alignas(32) float sums[kTileRows][kHalves][8] = {};
    for (std::int64_t at = 0; at < n; at += Own::kElements, unpacked += Own::kBytes) {
      const std::int64_t run = at / kFixedRun * kRun;
      const std::int64_t inside = at % kFixedRun;
      const std::int64_t factors = run + kCodes;
      const std::int64_t total_at = factors + static_cast<std::int64_t>(offsetof(WordFactors, totals)) +
                                    4 * (kHalfRuns ? inside / Own::kElements : 2);
      __m256i products[kTileRows][kHalves];
      repeat<kTileRows>([&](auto r) { products[r][0] = products[r][1] = _mm256_setzero_si256(); });
      for (int line = 0; line < Own::kLines; ++line) {
        const __m256i first = load(unpacked + kLine * line);
        const __m256i second = load(unpacked + kLine * line + 32);
        repeat<kTileRows>([&](auto r) __attribute__((always_inline)) {
          const __m256i own = four_bytes_each(x[r] + run + 2 * inside + 4 * line);
          products[r][0] = _mm256_add_epi32(products[r][0], _mm256_madd_epi16(first, own));
          products[r][1] = _mm256_add_epi32(products[r][1], _mm256_madd_epi16(second, own));
          keep_in_registers(products[r][0], products[r][1]);
        });
      }
      repeat<kTileRows>([&](auto r) __attribute__((always_inline)) {
        const __m256 scale = float_each(x[r] + factors + offsetof(WordFactors, scale));
        const __m256i total = four_bytes_each(x[r] + total_at);
        repeat<kHalves>([&](auto half) __attribute__((always_inline)) {
          add_scaled<Block>(products[r][half], unpacked + Own::kScales + 32 * half, total, scale,
                            sums[r][half]);
        });
      });
    }
    store_tile(sums, out);
  }
};

template <class Block>
constexpr auto multiply = multiply_in_tiles<WordTile<Block>, unpacked_bytes<Block>>;

}  // namespace

constinit const ByteKernels avx2_word_kernels = {
    kRun,
    2,
    0,
    true,
    to_words,
    nullptr,
    {nullptr, nullptr, nullptr, unpacked_bytes<Q8_0>, unpacked_bytes<Q4_0>, unpacked_bytes<Q4_1>,
     unpacked_bytes<Q5_0>, unpacked_bytes<Q5_1>, unpacked_bytes<Q4K>, unpacked_bytes<Q5K>,
     unpacked_bytes<Q6K>, unpacked_bytes<IQ4_NL>, unpacked_bytes<MXFP4>, unpacked_bytes<Q2K>,
     unpacked_bytes<Q3K>, unpacked_bytes<IQ4_XS>},
    {nullptr, nullptr, nullptr, unpack<Q8_0>, unpack<Q4_0>, unpack<Q4_1>, unpack<Q5_0>, unpack<Q5_1>,
     unpack<Q4K>, unpack<Q5K>, unpack<Q6K>, unpack<IQ4_NL>, unpack<MXFP4>, unpack<Q2K>, unpack<Q3K>,
     unpack<IQ4_XS>},
    {nullptr, nullptr, nullptr, multiply<Q8_0>, multiply<Q4_0>, multiply<Q4_1>, multiply<Q5_0>,
     multiply<Q5_1>, multiply<Q4K>, multiply<Q5K>, multiply<Q6K>, multiply<IQ4_NL>, multiply<MXFP4>,
     multiply<Q2K>, multiply<Q3K>, multiply<IQ4_XS>}};

}  // namespace headwater::runtime
