// Products of many rows in bytes (byte_product.hpp) for AVX2. A lane is a stored row: four activations are broadcast to
// eight of them, and vpmaddubsw adds two products to each half of a lane, in 16 bits, where it saturates. So stored codes
// are unsigned and have at most five bits, and as many lines are added up as fit into 16 bits whatever the codes are: eight of
// four bits, four of five. Of codes of six bits only two would, and rows of 16 bits (avx2_words.cpp) are as fast.

#include <immintrin.h>

#include <cstddef>

#include "optimized/tiles/repeat.hpp"
#include "runtime/gguf/kernels/avx2_lanes.hpp"
#include "runtime/gguf/kernels/groups.hpp"
#include "runtime/gguf/kernels/table.hpp"

namespace headwater::runtime {
namespace {

// ---- stored rows --------------------------------------------------------------------------------------------------

/// The largest code of a type, with kZero of its group added.
template <class Group>
constexpr int kMostCode = 15;
template <>
constexpr int kMostCode<Q5_0Group> = 31;
template <>
constexpr int kMostCode<Q5_1Group> = 31;
template <>
constexpr int kMostCode<Q5KGroup> = 31;
template <>
constexpr int kMostCode<Mxfp4Group> = 31;

/// Elements that share a scale, unpacked: lines of unsigned codes, then 16 scales, and 16 minima where the type has them.
template <class Group>
struct Part {
  using Block = typename Group::Block;
  static constexpr int kElements = Block::kRun;
  static constexpr int kParts = kFixedRun / kElements;  // of a run of activations
  static constexpr int kLines = kElements / 4;
  /// Lines whose products fit into 16 bits.
  static constexpr int kTogether = [] {
    const int most = 2 * 127 * kMostCode<Group>;
    int lines = kLines;
    while (lines * most > 32767) lines /= 2;
    return lines;
  }();
  static constexpr int kScales = kLine * kLines;
  static constexpr int kBytes = kScales + kLine * (Block::kMinima ? 2 : 1);
};

template <class Group>
constexpr std::int64_t unpacked_bytes(std::int64_t n) {
  return n / Part<Group>::kElements * Part<Group>::kBytes;
}

template <class Group>
void unpack(const std::byte* rows, std::int64_t count, std::int64_t n, std::byte* out) {
  using Own = Part<Group>;
  unpack_rows<typename Group::Block, Own>(rows, count, n, out, [](const std::int8_t* codes, std::byte* to) {
    std::int8_t own[Own::kElements];
    for (int i = 0; i < Own::kElements; ++i) own[i] = static_cast<std::int8_t>(codes[i] + Group::kZero);
    for (int line = 0; line < Own::kLines; ++line) __builtin_memcpy(to + kLine * line, own + 4 * line, 4);
  });
}

// ---- activations --------------------------------------------------------------------------------------------------

/// A run of 32 activations: signed codes, then these. 128 times `high` is the part of the largest element that a byte has
/// no room for; it stands at the element's place in its four, `line` bytes after the first line. totals: of the codes
/// of each half, and of all.
struct RunFactors {
  float scale;
  std::uint32_t high;
  std::int32_t line;
  std::int32_t totals[3];
  std::int32_t unused[2];  // two runs are whole cache lines
};
constexpr int kRun = 64;  // bytes
static_assert(kFixedRun + sizeof(RunFactors) == kRun);
constexpr int kHighBits = 7;

inline int largest_of(__m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i eight = _mm256_max_epi32(_mm256_max_epi32(a, b), _mm256_max_epi32(c, d));
  const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xB1)));
}

inline int total_of(__m256i eight) {
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xB1)));
}

/// A register with one lane that is not zero, for which `lane` - `first` is in it.
inline __m256i only(int lane, int first) {
  return _mm256_cmpeq_epi32(_mm256_set1_epi32(lane - first), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
}

/// The second largest element decides the scale; the largest takes two bytes. Its sign is the scale's, so that `high` is not
/// negative. x is read before anything is written.
inline void round_run(const float* x, std::byte* out) {
  constexpr float kByte = 127.0F;
  constexpr float kWord = 32639.0F;      // 128 * 254 + 127
  constexpr float kNothing = 0x1p-100F;  // values far below those of activations become zero
  const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
  __m256 values[4];
  __m256i sizes[4];
  __m256i at[4];
  unsigned equal = 0;
  for (int i = 0; i < 4; ++i) {
    values[i] = _mm256_loadu_ps(x + 8 * i);
    sizes[i] = _mm256_and_si256(_mm256_castps_si256(values[i]), magnitude);
  }
  const int most = largest_of(sizes[0], sizes[1], sizes[2], sizes[3]);
  for (int i = 0; i < 4; ++i) {
    const __m256i same = _mm256_cmpeq_epi32(sizes[i], _mm256_set1_epi32(most));
    equal |= static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(same))) << (8 * i);
  }
  const int place = __builtin_ctz(equal);
  for (int i = 0; i < 4; ++i) {
    at[i] = only(place, 8 * i);
    sizes[i] = _mm256_andnot_si256(at[i], sizes[i]);
  }
  const int next = largest_of(sizes[0], sizes[1], sizes[2], sizes[3]);
  const auto largest = __builtin_bit_cast(float, most);
  const float by_next = __builtin_bit_cast(float, next) * (1.0F / kByte);
  const float by_largest = largest * (1.0F / kWord);
  const bool finite = most < 0x7F800000;
  const bool some = finite && largest > kNothing;
  const float size = by_next > by_largest ? by_next : by_largest;
  const float inverse_size = some ? 1.0F / size : 0.0F;
  const unsigned sign = __builtin_bit_cast(unsigned, x[place]) & 0x80000000U;
  const auto signed_as = [sign](float value) {
    return __builtin_bit_cast(float, __builtin_bit_cast(unsigned, value) ^ sign);
  };
  const __m256 inverse = _mm256_set1_ps(signed_as(inverse_size));
  __m256i words[4];
  for (int i = 0; i < 4; ++i) words[i] = _mm256_cvtps_epi32(_mm256_mul_ps(values[i], inverse));
  const __m256i halves[2] = {_mm256_add_epi32(words[0], words[1]), _mm256_add_epi32(words[2], words[3])};
  const int own = some ? _mm_cvtss_si32(_mm_set_ss(largest * inverse_size)) : 0;
  const int high = (own + (1 << (kHighBits - 1))) >> kHighBits;
  const __m256i taken = _mm256_set1_epi32(high << kHighBits);
  for (int i = 0; i < 4; ++i) words[i] = _mm256_sub_epi32(words[i], _mm256_and_si256(at[i], taken));
  const __m256i bytes =
      _mm256_packs_epi16(_mm256_packs_epi32(words[0], words[1]), _mm256_packs_epi32(words[2], words[3]));
  // Packing keeps to halves of a register: fours stand as 0 2 4 6, 1 3 5 7.
  const __m256i in_order = _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permutevar8x32_epi32(bytes, in_order));
  // NaN and infinity: codes are whatever they are, every sum is NaN by the scale.
  const float scale = finite ? (some ? signed_as(size) : 0.0F) : __builtin_nanf("");
  const RunFactors run = {
      scale,
      static_cast<std::uint32_t>(high) << 8 * (place % 4),
      place / 4 * kLine,
      {total_of(halves[0]), total_of(halves[1]), total_of(_mm256_add_epi32(halves[0], halves[1]))},
      {}};
  __builtin_memcpy(out + kFixedRun, &run, sizeof run);
}

void to_bytes(const float* x, std::int64_t n, std::byte* out) {
  for (std::int64_t i = 0; i < n; i += kFixedRun, out += kRun) round_run(x + i, out);
}

void bf16_to_bytes(const std::uint16_t* x, std::int64_t n, std::byte* out) {
  for (std::int64_t i = 0; i < n; i += kFixedRun, out += kRun) {
    alignas(32) float wide[kFixedRun];
    for (int k = 0; k < kFixedRun; ++k) wide[k] = float_of_bf16(x[i + k]);
    round_run(wide, out);
  }
}

// ---- products -----------------------------------------------------------------------------------------------------

/// What lines [first, first + count) of a part add to the products of each row, in 16 bits.
template <int Count>
inline void add_lines(const std::byte* lines, const std::byte* const (&x)[kTileRows], std::int64_t at,
                      __m256i (&words)[kTileRows][kHalves]) {
  repeat<kTileRows>([&](auto r) { words[r][0] = words[r][1] = _mm256_setzero_si256(); });
  for (int line = 0; line < Count; ++line) {
    const __m256i first = load(lines + kLine * line);
    const __m256i second = load(lines + kLine * line + 32);
    repeat<kTileRows>([&](auto r) __attribute__((always_inline)) {
      const __m256i own = four_bytes_each(x[r] + at + 4 * line);
      words[r][0] = _mm256_add_epi16(words[r][0], _mm256_maddubs_epi16(first, own));
      words[r][1] = _mm256_add_epi16(words[r][1], _mm256_maddubs_epi16(second, own));
      keep_in_registers(words[r][0], words[r][1]);
    });
  }
}

template <class Group>
struct ByteTile {
  static void multiply(const std::byte* unpacked, std::int64_t n, const std::byte* const (&x)[kTileRows],
                       float* const (&out)[kTileRows]) {
    using Own = Part<Group>;
    using Block = typename Group::Block;
    constexpr int kStretches = Own::kLines / Own::kTogether;
    const __m256i one = _mm256_set1_epi16(1);
    alignas(32) float sums[kTileRows][kHalves][8] = {};
    for (std::int64_t at = 0; at < n; at += Own::kElements, unpacked += Own::kBytes) {
      const std::int64_t run = at / kFixedRun * kRun;
      const std::int64_t factors = run + kFixedRun;
      const int part = Own::kParts == 1 ? 0 : static_cast<int>(at / Own::kElements % Own::kParts);
      const std::int64_t codes_at = run + part * Own::kElements;
      const std::int64_t total_at = factors + static_cast<std::int64_t>(offsetof(RunFactors, totals)) +
                                    4 * (Own::kParts == 1 ? 2 : part);
      __m256i words[kTileRows][kHalves];
      alignas(32) __m256i products[kTileRows][kHalves];  // of all stretches but the last
      for (int stretch = 0; stretch < kStretches; ++stretch) {
        const int line = stretch * Own::kTogether;
        add_lines<Own::kTogether>(unpacked + kLine * line, x, codes_at + 4 * line, words);
        if (stretch == kStretches - 1) break;
        repeat<kTileRows>([&](auto r) __attribute__((always_inline)) {
          repeat<kHalves>([&](auto half) __attribute__((always_inline)) {
            const __m256i own = _mm256_madd_epi16(words[r][half], one);
            products[r][half] = stretch == 0 ? own : _mm256_add_epi32(products[r][half], own);
          });
        });
      }
      repeat<kTileRows>([&](auto r) __attribute__((always_inline)) {
        std::int32_t from;
        __builtin_memcpy(&from, x[r] + factors + offsetof(RunFactors, line), sizeof from);
        __m256i high = four_bytes_each(x[r] + factors + offsetof(RunFactors, high));
        if constexpr (Own::kParts > 1) {
          // Of the other part's lines none is this one's, and nothing is added.
          const int apart = from - part * kLine * Own::kLines;
          const bool here = static_cast<unsigned>(apart) < kLine * Own::kLines;
          high = _mm256_and_si256(high, _mm256_set1_epi32(here ? -1 : 0));
          from = here ? apart : 0;
        }
        const __m256 scale = float_each(x[r] + factors + offsetof(RunFactors, scale));
        const __m256i total = four_bytes_each(x[r] + total_at);
        repeat<kHalves>([&](auto half) __attribute__((always_inline)) {
          // A code is not negative as a signed byte either, so `high` may have eight bits.
          const __m256i largest =
              _mm256_madd_epi16(_mm256_maddubs_epi16(high, load(unpacked + from + 32 * half)),
                                _mm256_set1_epi16(1 << kHighBits));
          __m256i sum = _mm256_madd_epi16(words[r][half], one);
          if constexpr (kStretches > 1) sum = _mm256_add_epi32(sum, products[r][half]);
          sum = _mm256_add_epi32(sum, largest);
          if constexpr (Group::kZero != 0) {
            sum = _mm256_sub_epi32(sum, _mm256_slli_epi32(total, __builtin_ctz(Group::kZero)));
          }
          add_scaled<Block>(sum, unpacked + Own::kScales + 32 * half, total, scale, sums[r][half]);
        });
      });
    }
    store_tile(sums, out);
  }
};

template <class Group>
constexpr auto multiply = multiply_in_tiles<ByteTile<Group>, unpacked_bytes<Group>>;

}  // namespace

constinit const ByteKernels avx2_byte_kernels = {
    kRun,
    1,
    0,
    true,
    to_bytes,
    bf16_to_bytes,
    {nullptr, nullptr, nullptr, nullptr, unpacked_bytes<Q4_0Group>, unpacked_bytes<Q4_1Group>,
     unpacked_bytes<Q5_0Group>, unpacked_bytes<Q5_1Group>, unpacked_bytes<Q4KGroup>, unpacked_bytes<Q5KGroup>,
     nullptr, nullptr, unpacked_bytes<Mxfp4Group>, unpacked_bytes<Q2KGroup>, unpacked_bytes<Q3KGroup>,
     nullptr},
    {nullptr, nullptr, nullptr, nullptr, unpack<Q4_0Group>, unpack<Q4_1Group>, unpack<Q5_0Group>,
     unpack<Q5_1Group>, unpack<Q4KGroup>, unpack<Q5KGroup>, nullptr, nullptr, unpack<Mxfp4Group>,
     unpack<Q2KGroup>, unpack<Q3KGroup>, nullptr},
    {nullptr, nullptr, nullptr, nullptr, multiply<Q4_0Group>, multiply<Q4_1Group>, multiply<Q5_0Group>,
     multiply<Q5_1Group>, multiply<Q4KGroup>, multiply<Q5KGroup>, nullptr, nullptr, multiply<Mxfp4Group>,
     multiply<Q2KGroup>, multiply<Q3KGroup>, nullptr}};

}  // namespace headwater::runtime
