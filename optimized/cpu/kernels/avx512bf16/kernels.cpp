// BF16 kernels by vdpbf16ps (AVX-512 F, BW, DQ, VL, BF16). Kernels and their table only: all code here
// is built for such a processor.

#include "cpu/kernels/bf16/kernels.hpp"
#include "cpu/kernels/wide/row_kernels.hpp"

namespace headwater::cpu {

namespace {

inline __m512bh pairs(const std::uint16_t* p) { return (__m512bh)_mm512_loadu_si512(p); }

/// Two neighbouring elements of a row in every lane.
inline __m512bh pair(const std::uint16_t* p) {
  std::int32_t bits = 0;
  __builtin_memcpy(&bits, p, sizeof(bits));
  return (__m512bh)_mm512_set1_epi32(bits);
}

/// The first n < 32 elements, zeros after them.
inline __m512bh pairs_part(const std::uint16_t* p, std::int64_t n) {
  return (__m512bh)_mm512_maskz_loadu_epi16(static_cast<__mmask32>((1u << n) - 1u), p);
}

/// row_logit_tile of wide/row_kernels.hpp in products of pairs.
template <int Rows>
void paired_logit_tile(const std::uint16_t* q, std::int64_t d, const std::uint16_t* keys, std::int64_t n_keys,
                       float scale, float* logits, std::int64_t stride) {
  constexpr int kKeys = Avx512::kWidth / Rows;
  constexpr std::int64_t kElements = 2 * Avx512::kWidth;
  __m512 sums[Avx512::kWidth];
  for (int key = 0; key < kKeys; ++key) {
    const std::uint16_t* at = keys + least(key, n_keys - 1) * d;
    __m512 total[Rows];
    for (__m512& sum : total) sum = Avx512::zero();
    const auto add = [&](std::int64_t e) {
      const __m512bh k = pairs(at + e);
      for (int row = 0; row < Rows; ++row)
        total[row] = _mm512_dpbf16_ps(total[row], pairs(q + row * d + e), k);
    };
    std::int64_t e = 0;
    for (; e + 4 * kElements <= d; e += 4 * kElements) {
      for (std::int64_t i = 0; i < 4; ++i) add(e + i * kElements);
    }
    for (; e + kElements <= d; e += kElements) add(e);
    if (e < d) {
      const __m512bh k = pairs_part(at + e, d - e);
      for (int row = 0; row < Rows; ++row) {
        total[row] = _mm512_dpbf16_ps(total[row], pairs_part(q + row * d + e, d - e), k);
      }
    }
    for (int row = 0; row < Rows; ++row) sums[row * kKeys + key] = total[row];
  }
  store_row_logits<Avx512, Rows>(sums, n_keys, scale, logits, stride);
}

/// The same for rows of 32 * Steps elements, written out: loops of few turns cost as much as their work.
template <int Rows, int Steps>
void short_logit_tile(const std::uint16_t* q, std::int64_t /*d*/, const std::uint16_t* keys,
                      std::int64_t n_keys, float scale, float* logits, std::int64_t stride) {
  constexpr int kKeys = Avx512::kWidth / Rows;
  constexpr int kElements = 2 * Avx512::kWidth;
  __m512 sums[Avx512::kWidth];
  repeat<kKeys>([&](auto key) {
    const std::uint16_t* at = keys + least(key, n_keys - 1) * Steps * kElements;
    repeat<Steps>([&](auto step) {
      const __m512bh k = pairs(at + step * kElements);
      repeat<Rows>([&](auto row) {
        __m512& sum = sums[row * kKeys + key];
        if (step == 0) sum = Avx512::zero();
        sum = _mm512_dpbf16_ps(sum, pairs(q + (row * Steps + step) * kElements), k);
      });
    });
  });
  store_row_logits<Avx512, Rows>(sums, n_keys, scale, logits, stride);
}

void paired_row_logits(const std::uint16_t* q, std::int64_t rows, std::int64_t d, const std::uint16_t* keys,
                       std::int64_t n_keys, float scale, float* logits, std::int64_t stride) {
  const auto by = [&](auto tile) {
    return [=](std::int64_t row, std::int64_t key) {
      tile(q + row * d, d, keys + key * d, n_keys - key, scale, logits + row * stride + key, stride);
    };
  };
  const auto run = [&](auto tile4, auto tile2, auto tile1) {
    for_row_tiles<Avx512>(rows, n_keys, by(tile4), by(tile2), by(tile1));
  };
  switch (d) {
    case 64: run(short_logit_tile<4, 2>, short_logit_tile<2, 2>, short_logit_tile<1, 2>); break;
    case 128: run(short_logit_tile<4, 4>, short_logit_tile<2, 4>, short_logit_tile<1, 4>); break;
    default: run(paired_logit_tile<4>, paired_logit_tile<2>, paired_logit_tile<1>);
  }
}

struct DotProductUnit {
  static constexpr bool kKeysInPlace = true;
  static constexpr bool kPipelined = false;
  static constexpr decltype(Bf16Table::row_logits) kRowLogits = paired_row_logits;
  struct Session {
    Session() {}  // nothing to configure
  };

  /// Rows keys x kBlockRows lanes in registers: 12 keys take 24 of 32 registers.
  template <int Keys, int Halves>
  static void dot_tile(const std::uint16_t* queries, std::int64_t d, const std::uint16_t* keys,
                       std::int64_t stride, const std::uint16_t* next, float* logits) {
    __m512 sums[Keys][Halves];
    repeat<Keys>([&](auto key) { repeat<Halves>([&](auto half) { sums[key][half] = Avx512::zero(); }); });
    // Three keys share a base; see dot_tile of wide/kernels.hpp.
    constexpr int kBases = (Keys + 2) / 3;
    const std::uint16_t* at[kBases];
    repeat<kBases>([&](auto base) {
      at[base] = keys + 3 * base * stride;
      asm("" : "+r"(at[base]));
    });
    for (std::int64_t e = 0; e < d; e += 2) {
      __builtin_prefetch(next + Keys * e);  // as many rows
      __m512bh q[Halves];
      repeat<Halves>([&](auto half) { q[half] = pairs(queries + e * kBlockRows + 32 * half); });
      repeat<Keys>([&](auto key) {
        const __m512bh k = pair(at[key / 3] + e + key % 3 * stride);
        repeat<Halves>([&](auto half) { sums[key][half] = _mm512_dpbf16_ps(sums[key][half], q[half], k); });
      });
    }
    repeat<Keys>([&](auto key) {
      repeat<Halves>(
          [&](auto half) { Avx512::store(logits + key * kBlockRows + 16 * half, sums[key][half]); });
    });
  }

  /// dot_tile of key rows anywhere. Rows of `next`, unless it is null, are prefetched one in each turn.
  template <int Keys, int Halves>
  static void dot_row_tile(const std::uint16_t* queries, std::int64_t d, const std::uint16_t* const* keys,
                           const std::uint16_t* const* next, float* logits) {
    constexpr std::int64_t kLine = 32;  // elements of a cache line
    __m512 sums[Keys][Halves];
    repeat<Keys>([&](auto key) { repeat<Halves>([&](auto half) { sums[key][half] = Avx512::zero(); }); });
    const std::uint16_t* at[Keys];
    repeat<Keys>([&](auto key) { at[key] = keys[key]; });
    const std::int64_t part = (d / 2 + Keys - 1) / Keys * 2;
    std::int64_t e = 0;
    for (int row = 0; row < Keys; ++row) {
      for (std::int64_t x = 0; next && x < d; x += kLine) __builtin_prefetch(next[row] + x, 0, 2);
      for (const std::int64_t end = least(e + part, d); e < end; e += 2) {
        __m512bh q[Halves];
        repeat<Halves>([&](auto half) { q[half] = pairs(queries + e * kBlockRows + 32 * half); });
        repeat<Keys>([&](auto key) {
          const __m512bh k = pair(at[key] + e);
          repeat<Halves>([&](auto half) { sums[key][half] = _mm512_dpbf16_ps(sums[key][half], q[half], k); });
        });
      }
    }
    repeat<Keys>([&](auto key) {
      repeat<Halves>(
          [&](auto half) { Avx512::store(logits + key * kBlockRows + 16 * half, sums[key][half]); });
    });
  }

  template <int Halves>
  static void dot_rows(const Bf16Segment& segment, std::int64_t first, std::int64_t n, float* logits) {
    const std::uint16_t* const* rows = segment.rows + first;
    const auto run = [&](auto tile, std::int64_t key) {
      tile(segment.queries, segment.d, rows + key, first > 0 ? rows + key - kKeyTile : nullptr,
           logits + key * kBlockRows);
    };
    std::int64_t key = 0;
    for (; key + 8 <= n; key += 8) run(dot_row_tile<8, Halves>, key);
    for (; key < n; ++key) run(dot_row_tile<1, Halves>, key);
  }

  template <int Halves>
  static void dot(const Bf16Segment& segment, std::int64_t first, std::int64_t n, float* logits) {
    if (segment.rows) {
      dot_rows<Halves>(segment, first, n, logits);
      return;
    }
    const std::uint16_t* keys = segment.key_tile(first);
    // Tiles are computed from the last.
    const std::uint16_t* next = first > 0      ? segment.key_tile(first - kKeyTile)
                                : segment.next ? segment.next
                                               : keys - kKeyTile * segment.key_stride;
    const auto run = [&](auto tile, std::int64_t from) {
      tile(segment.queries, segment.d, keys + from * segment.key_stride, segment.key_stride,
           next + from * segment.key_stride, logits + from * kBlockRows);
    };
    std::int64_t key = 0;
    for (; key + 12 <= n; key += 12) run(dot_tile<12, Halves>, key);
    for (; key + 8 <= n; key += 8) run(dot_tile<8, Halves>, key);
    for (; key + 4 <= n; key += 4) run(dot_tile<4, Halves>, key);
    for (; key < n; ++key) run(dot_tile<1, Halves>, key);
  }

  template <int Columns>
  static void value_tile(const std::uint16_t* weights, std::int64_t tiles, const std::uint16_t* values,
                         std::int64_t dv, bool fresh, float* out) {
    __m512 sums[Columns][kHalves];
    const auto at = [&](int column, int half) { return out + column * kBlockRows + half * Avx512::kWidth; };
    const auto each = [](const auto& body) {
      repeat<Columns>([&](auto c) { repeat<kHalves>([&](auto half) { body(c, half); }); });
    };
    if (fresh) {
      each([&](auto c, auto half) { sums[c][half] = Avx512::zero(); });
    } else {
      each([&](auto c, auto half) { sums[c][half] = Avx512::load(at(c, half)); });
    }
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      for (std::int64_t key = 0; key < kKeyTile; key += 2) {
        const __m512bh w0 = pairs(weights + key * kBlockRows);
        const __m512bh w1 = pairs(weights + key * kBlockRows + 32);
        repeat<Columns>([&](auto c) {
          const __m512bh v = pair(values + c * kKeyTile + key);
          sums[c][0] = _mm512_dpbf16_ps(sums[c][0], w0, v);
          sums[c][1] = _mm512_dpbf16_ps(sums[c][1], w1, v);
        });
      }
      weights += kTileWeights;
      values += dv * kKeyTile;
    }
    each([&](auto c, auto half) { Avx512::store(at(c, half), sums[c][half]); });
  }

  static void accumulate(const std::uint16_t* weights, std::int64_t tiles, const std::uint16_t* values,
                         std::int64_t dv, bool fresh, float* out) {
    const auto run = [&](auto tile, std::int64_t column) {
      tile(weights, tiles, values + column * kKeyTile, dv, fresh, out + column * kBlockRows);
    };
    std::int64_t column = 0;
    for (; column + 12 <= dv; column += 12) run(value_tile<12>, column);
    for (; column + 8 <= dv; column += 8) run(value_tile<8>, column);
    for (; column + 4 <= dv; column += 4) run(value_tile<4>, column);
    for (; column < dv; ++column) run(value_tile<1>, column);
  }
};

}  // namespace

constinit const Bf16Table avx512bf16_kernels = bf16_kernels<DotProductUnit>("AVX512_BF16", 2, 1, 8);

}  // namespace headwater::cpu
