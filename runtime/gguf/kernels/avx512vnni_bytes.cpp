// Products of many rows in bytes (byte_product.hpp) for AVX-512 with VNNI. A lane is a stored row: four activations are
// broadcast to all of them, and vpdpbusd adds four products to each, exactly.
//
// What an instruction costs decides the rate: beside eight vpdpbusd, and one for the largest element, a run of 32 takes one
// multiplication and one addition for its two scales (one more for a minimum), on the same two ports of Zen 5; conversion,
// shift and sum run beside them. So at most 8 of 11 (of 12) are the products that count.

#include <cstddef>

#include "runtime/gguf/kernels/avx512vnni_units.hpp"
#include "runtime/gguf/kernels/table.hpp"

namespace headwater::runtime {
namespace {

/// Activations are unsigned: this much is added to their signed codes.
constexpr int kOffset = 128;

constexpr int kByteRun = 48;  // bytes of a run of activations

/// A run of unpacked codes: lines of signed bytes, then 16 scales, what kOffset adds to the products with the sign
/// changed, and 16 minima where the type has them.
template <class Unit>
struct UnpackedRun {
  static constexpr int kLines = kRunLines / Unit::kParts;
  static constexpr int kElements = 4 * kLines;
  static constexpr int kScales = kLine * kLines;
  static constexpr int kStarts = kScales + kLine;
  static constexpr int kMinima = kStarts + kLine;
  static constexpr int kBytes = kMinima + (Unit::kMinima ? kLine : 0);
};

template <class Unit>
constexpr std::int64_t unpacked_bytes(std::int64_t n) {
  return n / UnpackedRun<Unit>::kElements * UnpackedRun<Unit>::kBytes;
}

template <class Unit, int Pair>
inline void unpack_pair(const Unit& unit, std::byte* out) {
  using Run = UnpackedRun<Unit>;
  const __m512i zero = _mm512_set1_epi8(static_cast<char>(Unit::Layout::kZero));
  for (int part = 0; part < Unit::kParts; ++part) {
    std::byte* const to[2] = {out + Run::kBytes * part, out + Run::kBytes * (Unit::kParts + part)};
    __m512i sums[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (int line = 0; line < Run::kLines; ++line) {
      const Codes codes = unit.template codes<Pair>(part * Run::kLines + line);
      // Bits below the second run's codes are zero: none moves into the byte beside.
      const __m512i both[2] = {codes.first, _mm512_srli_epi32(codes.second, Unit::Layout::kHighShift)};
      for (int run = 0; run < 2; ++run) {
        const __m512i code = _mm512_sub_epi8(both[run], zero);
        sums[run] = _mm512_dpbusd_epi32(sums[run], _mm512_set1_epi8(static_cast<char>(kOffset)), code);
        _mm512_store_si512(to[run] + kLine * line, code);
      }
    }
    for (int run = 0; run < 2; ++run) {
      _mm512_store_ps(to[run] + Run::kScales, unit.scale(2 * Pair + run, part));
      _mm512_store_si512(to[run] + Run::kStarts, _mm512_sub_epi32(_mm512_setzero_si512(), sums[run]));
      if constexpr (Unit::kMinima)
        _mm512_store_ps(to[run] + Run::kMinima, unit.minimum(2 * Pair + run, part));
    }
  }
}

template <class Unit>
void unpack(const std::byte* group, std::int64_t, std::int64_t n, std::byte* out) {
  constexpr int kElements = Unit::Layout::kElements;
  constexpr std::int64_t kPairBytes = unpacked_bytes<Unit>(kPairCodes);
  for (std::int64_t i = 0; i < n / kElements; ++i, out += unpacked_bytes<Unit>(kElements)) {
    const Unit unit(group, n, i);
    unpack_pair<Unit, 0>(unit, out);
    if constexpr (kElements == kPairs * kPairCodes) {
      unpack_pair<Unit, 1>(unit, out + kPairBytes);
      unpack_pair<Unit, 2>(unit, out + 2 * kPairBytes);
      unpack_pair<Unit, 3>(unit, out + 3 * kPairBytes);
    }
  }
}

// ---- activations --------------------------------------------------------------------------------------------------

/// What stands after the 32 codes of a run: scale, the part of its largest element that a byte has no room for: 128 times
/// `high`, which stands at the element's place in its four, `line` bytes after the first line; and the sum of its values.
struct RunFactors {
  float scale;
  std::uint32_t high;
  std::int32_t line;
  float sum;
};
static_assert(sizeof(RunFactors) == kByteRun - kFixedRun);
constexpr int kHighBits = 7;

/// Thirty-two lanes of two registers, the lowest first.
inline unsigned both(__mmask16 first, __mmask16 second) {
  return static_cast<unsigned>(first) | static_cast<unsigned>(second) << 16;
}

/// The second largest element decides the scale; the largest, which in a model is often many times as large, takes two
/// bytes. Its sign is the scale's, so that `high` is not negative.
inline void round_run(__m512 first, __m512 second, std::byte* out) {
  constexpr float kByte = 127.0F;
  constexpr float kWord = 32639.0F;      // 128 * 254 + 127
  constexpr float kNothing = 0x1p-100F;  // values far below those of activations become zero
  const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
  const __m512i sizes[2] = {_mm512_and_si512(_mm512_castps_si512(first), magnitude),
                            _mm512_and_si512(_mm512_castps_si512(second), magnitude)};
  const unsigned most = _mm512_reduce_max_epu32(_mm512_max_epu32(sizes[0], sizes[1]));
  const __m512i all = _mm512_set1_epi32(static_cast<int>(most));
  const int place =
      __builtin_ctz(both(_mm512_cmpeq_epi32_mask(sizes[0], all), _mm512_cmpeq_epi32_mask(sizes[1], all)));
  const unsigned at = 1U << place;
  const auto low_half = static_cast<__mmask16>(at);
  const auto high_half = static_cast<__mmask16>(at >> 16);
  const unsigned next = _mm512_reduce_max_epu32(
      _mm512_max_epu32(_mm512_maskz_mov_epi32(static_cast<__mmask16>(~low_half), sizes[0]),
                       _mm512_maskz_mov_epi32(static_cast<__mmask16>(~high_half), sizes[1])));
  const auto largest = __builtin_bit_cast(float, most);
  const float by_next = __builtin_bit_cast(float, next) * (1.0F / kByte);
  const float by_largest = largest * (1.0F / kWord);
  const bool finite = most < 0x7F800000;
  const bool some = finite && largest > kNothing;
  const __m512i zero = _mm512_setzero_si512();
  const unsigned negative = both(_mm512_cmplt_epi32_mask(_mm512_castps_si512(first), zero),
                                 _mm512_cmplt_epi32_mask(_mm512_castps_si512(second), zero));
  const unsigned sign = negative >> place << 31;
  const float size = by_next > by_largest ? by_next : by_largest;
  const float inverse_size = some ? 1.0F / size : 0.0F;
  // Without a branch, which would be a guess.
  const auto signed_as = [sign](float x) {
    return __builtin_bit_cast(float, __builtin_bit_cast(unsigned, x) ^ sign);
  };
  const float scale = signed_as(size);
  const __m512 inverse = _mm512_set1_ps(signed_as(inverse_size));
  __m512i words[2] = {_mm512_cvtps_epi32(_mm512_mul_ps(first, inverse)),
                      _mm512_cvtps_epi32(_mm512_mul_ps(second, inverse))};
  const int total = _mm512_reduce_add_epi32(_mm512_add_epi32(words[0], words[1]));
  const int own = some ? _mm_cvtss_si32(_mm_set_ss(largest * inverse_size)) : 0;
  const int high = (own + (1 << (kHighBits - 1))) >> kHighBits;
  const __m512i taken = _mm512_set1_epi32(high << kHighBits);
  words[0] = _mm512_mask_sub_epi32(words[0], low_half, words[0], taken);
  words[1] = _mm512_mask_sub_epi32(words[1], high_half, words[1], taken);
  const __m128i offset = _mm_set1_epi8(static_cast<char>(kOffset));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_add_epi8(_mm512_cvtepi32_epi8(words[0]), offset));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out) + 1, _mm_add_epi8(_mm512_cvtepi32_epi8(words[1]), offset));
  // NaN and infinity: codes are whatever they are, every sum is NaN by the scale.
  const float stored = finite ? (some ? scale : 0.0F) : __builtin_nanf("");
  const RunFactors run = {stored, static_cast<std::uint32_t>(high) << 8 * (place % 4), place / 4 * kLine,
                          stored * static_cast<float>(total)};
  __builtin_memcpy(out + kFixedRun, &run, sizeof run);
}

// A run is read before it is written, and takes less room than it had: `out` may be x.

void to_bytes(const float* x, std::int64_t n, std::byte* out) {
  for (std::int64_t i = 0; i < n; i += kFixedRun, out += kByteRun) {
    round_run(_mm512_loadu_ps(x + i), _mm512_loadu_ps(x + i + 16), out);
  }
}

inline __m512 widen_bf16(const std::uint16_t* x) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

void bf16_to_bytes(const std::uint16_t* x, std::int64_t n, std::byte* out) {
  for (std::int64_t i = 0; i < n; i += kFixedRun, out += kByteRun) {
    round_run(widen_bf16(x + i), widen_bf16(x + i + 16), out);
  }
}

// ---- products -----------------------------------------------------------------------------------------------------

/// Rows x and groups of stored rows that one tile multiplies: twelve registers of integers and twelve of sums. A line is
/// loaded once for six rows, four activations once for two groups.
constexpr int kTileRows = 6;
constexpr int kTileGroups = 2;

/// Groups stand `apart` bytes from each other.
template <class Unit, int Groups>
inline void multiply_tile(const std::byte* unpacked, std::int64_t apart, std::int64_t n,
                          const std::byte* const (&x)[kTileRows], float* const (&out)[kTileRows]) {
  using Run = UnpackedRun<Unit>;
  [[maybe_unused]] const __m512i one = _mm512_set1_epi8(1);
  __m512 sums[kTileRows][Groups];
  for (int r = 0; r < kTileRows; ++r) {
    for (int g = 0; g < Groups; ++g) sums[r][g] = _mm512_setzero_ps();
  }
  for (std::int64_t at = 0; at < n; at += Run::kElements, unpacked += Run::kBytes) {
    __m512i products[kTileRows][Groups];
    [[maybe_unused]] __m512i x_sums[kTileRows];  // of the run's codes, in every lane
    const std::int64_t run = at / kFixedRun * kByteRun;
    const std::int64_t codes_at = run + at % kFixedRun;
    const std::int64_t factors = run + kFixedRun;
    __m512i starts[Groups];
    for (int g = 0; g < Groups; ++g) starts[g] = load(unpacked + g * apart + Run::kStarts);
    for (int r = 0; r < kTileRows; ++r) {
      int high, from;
      __builtin_memcpy(&high, x[r] + factors + offsetof(RunFactors, high), sizeof high);
      __builtin_memcpy(&from, x[r] + factors + offsetof(RunFactors, line), sizeof from);
      if constexpr (Unit::kParts > 1) {
        // Of the other part's lines none is this one's, and nothing is added.
        high = from / (kLine * Run::kLines) == at / Run::kElements % Unit::kParts ? high : 0;
        from %= kLine * Run::kLines;
      }
      const __m512i own = _mm512_set1_epi32(high);
      if constexpr (kHalfMinima<Unit>) {
        const __m512i more = _mm512_dpbusd_epi32(_mm512_setzero_si512(), own, one);
        x_sums[r] = _mm512_add_epi32(_mm512_set1_epi32(-kOffset * Run::kElements),
                                     _mm512_slli_epi32(more, kHighBits));
      }
      for (int g = 0; g < Groups; ++g) {
        const __m512i more =
            _mm512_dpbusd_epi32(_mm512_setzero_si512(), own, load(unpacked + g * apart + from));
        products[r][g] = _mm512_add_epi32(starts[g], _mm512_slli_epi32(more, kHighBits));
      }
    }
    for (int line = 0; line < Run::kLines; ++line) {
      __m512i codes[Groups];
      for (int g = 0; g < Groups; ++g) codes[g] = load(unpacked + g * apart + kLine * line);
      for (int r = 0; r < kTileRows; ++r) {
        const __m512i own = four_bytes_each(x[r] + codes_at + 4 * line);
        for (int g = 0; g < Groups; ++g) products[r][g] = _mm512_dpbusd_epi32(products[r][g], own, codes[g]);
        if constexpr (kHalfMinima<Unit>) x_sums[r] = _mm512_dpbusd_epi32(x_sums[r], own, one);
      }
    }
    for (int g = 0; g < Groups; ++g) {
      const std::byte* const own = unpacked + g * apart;
      for (int r = 0; r < kTileRows; ++r) {
        __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(products[r][g]), _mm512_load_ps(own + Run::kScales));
        if constexpr (kHalfMinima<Unit>) {
          scaled =
              _mm512_fnmadd_ps(_mm512_load_ps(own + Run::kMinima), _mm512_cvtepi32_ps(x_sums[r]), scaled);
        }
        sums[r][g] =
            _mm512_fmadd_ps(scaled, float_each(x[r] + factors + offsetof(RunFactors, scale)), sums[r][g]);
      }
      if constexpr (Unit::kMinima && !kHalfMinima<Unit>) {
        const __m512 minima = _mm512_load_ps(own + Run::kMinima);
        for (int r = 0; r < kTileRows; ++r) {
          sums[r][g] =
              _mm512_fnmadd_ps(minima, float_each(x[r] + factors + offsetof(RunFactors, sum)), sums[r][g]);
        }
      }
    }
  }
  for (int r = 0; r < kTileRows; ++r) {
    for (int g = 0; g < Groups; ++g) _mm512_storeu_ps(out[r] + kGroupRows * g, sums[r][g]);
  }
}

template <class Unit>
void multiply(const std::byte* unpacked, std::int64_t groups, std::int64_t n, const std::byte* x,
              std::int64_t x_stride, std::int64_t rows, float* out, std::int64_t stride) {
  const std::int64_t apart = unpacked_bytes<Unit>(n);
  for (std::int64_t g = 0; g < groups; g += kTileGroups) {
    const std::byte* const codes = unpacked + g * apart;
    for (std::int64_t row = 0; row < rows; row += kTileRows) {
      const std::byte* from[kTileRows];
      float* to[kTileRows];
      for (std::int64_t r = 0; r < kTileRows; ++r) {
        // Where fewer are left the last one is multiplied again, to the same place.
        const std::int64_t own = row + r < rows ? row + r : rows - 1;
        from[r] = x + own * x_stride;
        to[r] = out + own * stride + kGroupRows * g;
      }
      if (groups - g >= kTileGroups) {
        multiply_tile<Unit, kTileGroups>(codes, apart, n, from, to);
      } else {
        multiply_tile<Unit, 1>(codes, apart, n, from, to);
      }
    }
  }
}

}  // namespace

constinit const ByteKernels avx512vnni_byte_kernels = {
    kByteRun,
    1,
    kOffset,
    false,
    to_bytes,
    bf16_to_bytes,
    {nullptr, nullptr, nullptr, unpacked_bytes<Q8_0Unit>, unpacked_bytes<Q4_0Unit>, unpacked_bytes<Q4_1Unit>,
     unpacked_bytes<Q5_0Unit>, unpacked_bytes<Q5_1Unit>, unpacked_bytes<Q4KUnit>, unpacked_bytes<Q5KUnit>,
     unpacked_bytes<Q6KUnit>, unpacked_bytes<Iq4NlUnit>, unpacked_bytes<Mxfp4Unit>, unpacked_bytes<Q2KUnit>,
     unpacked_bytes<Q3KUnit>, unpacked_bytes<Iq4XsUnit>},
    {nullptr, nullptr, nullptr, unpack<Q8_0Unit>, unpack<Q4_0Unit>, unpack<Q4_1Unit>, unpack<Q5_0Unit>,
     unpack<Q5_1Unit>, unpack<Q4KUnit>, unpack<Q5KUnit>, unpack<Q6KUnit>, unpack<Iq4NlUnit>,
     unpack<Mxfp4Unit>, unpack<Q2KUnit>, unpack<Q3KUnit>, unpack<Iq4XsUnit>},
    {nullptr, nullptr, nullptr, multiply<Q8_0Unit>, multiply<Q4_0Unit>, multiply<Q4_1Unit>,
     multiply<Q5_0Unit>, multiply<Q5_1Unit>, multiply<Q4KUnit>, multiply<Q5KUnit>, multiply<Q6KUnit>,
     multiply<Iq4NlUnit>, multiply<Mxfp4Unit>, multiply<Q2KUnit>, multiply<Q3KUnit>, multiply<Iq4XsUnit>}};

}  // namespace headwater::runtime
