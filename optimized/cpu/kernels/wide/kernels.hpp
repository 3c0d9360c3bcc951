#pragma once

/// The float kernels of table.hpp for any vector type with fused multiply-add. Included by one file per ISA that is
/// built with the flags of that ISA; everything sits in an unnamed namespace and nothing of the standard library is
/// used, so that no function compiled for a newer processor can be linked into code that runs on an older one.
///
/// A vector type V has: Reg, kWidth (floats), load, store, load_part, store_part (the first n < kWidth floats), set
/// (broadcast), zero, add, mul, fma (a * b + c), max (the second argument where the first is NaN), what elementary.hpp
/// needs, transpose (of kWidth vectors), add_line_totals (column sums of kWidth lines), load_f16 and load_bf16 (kWidth
/// widened elements), load_bf16_pairs (2 * kWidth: those at even places, those at odd ones), one_f16 and one_bf16,
/// store_f16 and store_bf16 (kWidth elements, rounded as core/numbers.hpp says).

#include "cpu/kernels/table.hpp"
#include "cpu/kernels/wide/elementary.hpp"
#include "tiles/repeat.hpp"

namespace headwater::cpu {
namespace {

inline constexpr std::int64_t kLineFloats = 16;  // of a cache line

constexpr std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

/// Lanes that the wide kernels work on: whole vectors. Lines of a block have kBlockRows floats, so there is room.
template <class V>
constexpr std::int64_t whole_lanes(std::int64_t lanes) {
  return (lanes + V::kWidth - 1) / V::kWidth * V::kWidth;
}

/// Rows, `stride` floats apart, to [vector of lanes][d][kWidth], zeros where there is no row.
template <class V>
void pack_queries(const float* rows, std::int64_t stride, std::int64_t n_rows, std::int64_t d,
                  float* packed) {
  for (std::int64_t first = 0; first < n_rows; first += V::kWidth) {
    for (std::int64_t e = 0; e < d; e += V::kWidth) {
      const auto n = static_cast<int>(least(V::kWidth, d - e));
      typename V::Reg tile[V::kWidth];
      for (int i = 0; i < V::kWidth; ++i) {
        const float* row = rows + (first + i) * stride + e;
        tile[i] = first + i >= n_rows ? V::zero() : n == V::kWidth ? V::load(row) : V::load_part(row, n);
      }
      V::transpose(tile);
      for (int i = 0; i < n; ++i) V::store(packed + first * d + (e + i) * V::kWidth, tile[i]);
    }
  }
}

/// Keys x (Vectors * kWidth) dot products in registers, each accumulated in the order of the row elements.
template <class V, int Keys, int Vectors>
inline void dot_tile(const float* packed, std::int64_t d, const float* keys, float scale, float* block,
                     const float* next) {
  typename V::Reg sums[Keys][Vectors];
  repeat<Keys>([&](auto key) { repeat<Vectors>([&](auto v) { sums[key][v] = V::zero(); }); });
  // x86 addresses a base and one or two strides: three keys share a base, or twelve bases would not fit its registers.
  constexpr int kBases = (Keys + 2) / 3;
  const float* at[kBases];
  repeat<kBases>([&](auto base) {
    at[base] = keys + 3 * base * d;
    asm("" : "+r"(at[base]));
  });
  for (std::int64_t e = 0; e < d; ++e) {
    // The next tile, as a stream. A block of eight keys often is the last of its run.
    if constexpr (Keys > 8) __builtin_prefetch(keys + Keys * d + kLineFloats * e);
    if constexpr (Keys >= kLineFloats * 3 / 4) __builtin_prefetch(next + kLineFloats * e, 0, 2);
    if constexpr (Keys == 8) __builtin_prefetch(next + Keys * e, 0, 2);  // as many rows
    typename V::Reg q[Vectors];
    repeat<Vectors>([&](auto v) { q[v] = V::load(packed + (v * d + e) * V::kWidth); });
    repeat<Keys>([&](auto key) {
      const typename V::Reg k = V::set(at[key / 3][e + key % 3 * d]);
      repeat<Vectors>([&](auto v) { sums[key][v] = V::fma(k, q[v], sums[key][v]); });
    });
  }
  const typename V::Reg factor = V::set(scale);
  repeat<Keys>([&](auto key) {
    repeat<Vectors>(
        [&](auto v) { V::store(block + key * kBlockRows + v * V::kWidth, V::mul(sums[key][v], factor)); });
  });
}

/// Floats of rows to prefetch, n of each.
struct PrefetchLines {
  const float* const* rows;
  std::int64_t n;
};

template <class V, int Vectors>
void dot_lanes(const float* packed, std::int64_t d, const float* keys, std::int64_t n_keys, float scale,
               float* block, const float* next) {
  constexpr int kKeys = V::kAccumulators / Vectors;
  constexpr int kFew = 4;  // enough chains to hide half of the latency in a short rest
  std::int64_t key = 0;
  // Two short tiles keep the multipliers busier than a full one and a rest of single keys.
  for (; key + kKeys <= n_keys && n_keys - key != 2 * kFew; key += kKeys) {
    dot_tile<V, kKeys, Vectors>(packed, d, keys + key * d, scale, block + key * kBlockRows, next + key * d);
  }
  // Key blocks that are multiplied in place (SEL-7) often have eight keys.
  if constexpr (kKeys > 2 * kFew) {
    for (; key + 2 * kFew <= n_keys; key += 2 * kFew) {
      dot_tile<V, 2 * kFew, Vectors>(packed, d, keys + key * d, scale, block + key * kBlockRows,
                                     next + key * d);
    }
  }
  for (; key + kFew <= n_keys; key += kFew) {
    dot_tile<V, kFew, Vectors>(packed, d, keys + key * d, scale, block + key * kBlockRows, next + key * d);
  }
  for (; key < n_keys; ++key) {
    dot_tile<V, 1, Vectors>(packed, d, keys + key * d, scale, block + key * kBlockRows, next + key * d);
  }
}

template <class V>
void dot_products(const float* packed, std::int64_t lanes, std::int64_t d, const float* keys,
                  std::int64_t n_keys, float scale, float* block, const float* next) {
  // Keys are walked once per strip of lanes; a run of them, whole tiles, stays in the first-level cache meanwhile.
  constexpr std::int64_t kRun = 4 * (V::kAccumulators / 2);
  const std::int64_t vectors = whole_lanes<V>(lanes) / V::kWidth;
  for (std::int64_t first = 0; first < n_keys; first += kRun) {
    const std::int64_t n = least(kRun, n_keys - first);
    const float* run = keys + first * d;
    float* lines = block + first * kBlockRows;
    std::int64_t v = 0;
    for (; v + 2 <= vectors; v += 2) {
      dot_lanes<V, 2>(packed + v * d * V::kWidth, d, run, n, scale, lines + v * V::kWidth, next + first * d);
    }
    if (v < vectors)
      dot_lanes<V, 1>(packed + v * d * V::kWidth, d, run, n, scale, lines + v * V::kWidth, next + first * d);
  }
}

/// dot_tile of rows anywhere. Of `ahead`, key rows of the next tile and value rows of this one, some lines are prefetched in
/// each turn: all at once would find no room.
template <class V, int Keys, int Vectors>
inline void dot_row_tile(const float* packed, std::int64_t d, const float* const* keys, float scale,
                         float* block, const PrefetchLines (&ahead)[2]) {
  typename V::Reg sums[Keys][Vectors];
  repeat<Keys>([&](auto key) { repeat<Vectors>([&](auto v) { sums[key][v] = V::zero(); }); });
  const float* at[Keys];
  repeat<Keys>([&](auto key) { at[key] = keys[key]; });
  const std::int64_t part = (d + Keys - 1) / Keys;
  std::int64_t e = 0;
  for (int row = 0; row < Keys; ++row) {
    for (const PrefetchLines& lines : ahead) {
      for (std::int64_t x = 0; x < lines.n; x += kLineFloats) __builtin_prefetch(lines.rows[row] + x, 0, 2);
    }
    for (const std::int64_t end = least(e + part, d); e < end; ++e) {
      typename V::Reg q[Vectors];
      repeat<Vectors>([&](auto v) { q[v] = V::load(packed + (v * d + e) * V::kWidth); });
      repeat<Keys>([&](auto key) {
        const typename V::Reg k = V::set(at[key][e]);
        repeat<Vectors>([&](auto v) { sums[key][v] = V::fma(k, q[v], sums[key][v]); });
      });
    }
  }
  const typename V::Reg factor = V::set(scale);
  repeat<Keys>([&](auto key) {
    repeat<Vectors>(
        [&](auto v) { V::store(block + key * kBlockRows + v * V::kWidth, V::mul(sums[key][v], factor)); });
  });
}

template <class V>
void dot_rows(const float* packed, std::int64_t lanes, std::int64_t d, const float* const* keys,
              std::int64_t n_keys, float scale, float* block, const float* const* values, std::int64_t dv) {
  constexpr int kKeys = V::kAccumulators >= 16 ? 8 : 4;
  const std::int64_t vectors = whole_lanes<V>(lanes) / V::kWidth;
  const auto strips = [&](auto n, std::int64_t key) {
    PrefetchLines ahead[2] = {{keys + key + n, key + 2 * n <= n_keys ? d : 0}, {values + key, dv}};
    for (std::int64_t v = 0; v < vectors; v += 2) {
      const float* queries = packed + v * d * V::kWidth;
      float* lines = block + key * kBlockRows + v * V::kWidth;
      if (v + 2 <= vectors) {
        dot_row_tile<V, n, 2>(queries, d, keys + key, scale, lines, ahead);
      } else {
        dot_row_tile<V, n, 1>(queries, d, keys + key, scale, lines, ahead);
      }
      for (PrefetchLines& lines_of : ahead) lines_of.n = 0;
    }
  };
  std::int64_t key = 0;
  for (; key + kKeys <= n_keys; key += kKeys) strips(Place<kKeys>{}, key);
  for (; key < n_keys; ++key) strips(Place<1>{}, key);
}

template <class V>
void raise_maxima(const float* block, std::int64_t n_keys, float* top) {
  constexpr int kVectors = static_cast<int>(kBlockRows) / V::kWidth;
  typename V::Reg highest[kVectors];
  repeat<kVectors>([&](auto v) { highest[v] = V::load(top + v * V::kWidth); });
  for (std::int64_t key = 0; key < n_keys; ++key) {
    repeat<kVectors>(
        [&](auto v) { highest[v] = V::max(V::load(block + key * kBlockRows + v * V::kWidth), highest[v]); });
  }
  repeat<kVectors>([&](auto v) { V::store(top + v * V::kWidth, highest[v]); });
}

template <class V>
void raise_votes(const float* block, std::int64_t n_keys, const float* factor, const float* offset,
                 float* votes) {
  constexpr int kVectors = static_cast<int>(kBlockRows) / V::kWidth;
  typename V::Reg factors[kVectors];
  typename V::Reg offsets[kVectors];
  repeat<kVectors>([&](auto v) {
    factors[v] = V::load(factor + v * V::kWidth);
    offsets[v] = V::load(offset + v * V::kWidth);
  });
  for (std::int64_t first = 0; first < n_keys; first += V::kWidth) {
    const auto n = static_cast<int>(least(V::kWidth, n_keys - first));
    typename V::Reg lines[V::kWidth];
    for (int i = 0; i < V::kWidth; ++i) {
      const float* line = block + (first + least(i, n - 1)) * kBlockRows;
      typename V::Reg best = V::set(-__builtin_inff());
      repeat<kVectors>([&](auto v) {
        const typename V::Reg x = V::load(line + v * V::kWidth);
        best = V::max(V::sub(V::mul(x, factors[v]), offsets[v]), best);
      });
      lines[i] = best;
    }
    V::transpose(lines);
    typename V::Reg best = V::load_part(votes + first, n);
    for (int i = 0; i < V::kWidth; ++i) best = V::max(lines[i], best);
    V::store_part(votes + first, best, n);
  }
}

/// core::count_at_least, in vectors of the ISA that the file is built for.
inline std::int64_t count_at_least(const std::uint32_t* keys, std::int64_t count, std::uint32_t threshold) {
  std::uint32_t total = 0;
  for (std::int64_t i = 0; i < count; ++i) total += keys[i] >= threshold ? 1u : 0u;
  return total;
}

template <class V>
void cap_and_bias(const LogitMap& map, const BlockPositions& positions, std::int64_t lanes,
                  std::int64_t n_keys, float* block) {
  const typename V::Reg cap = V::set(map.softcap);
  const typename V::Reg slope = V::set(-map.slope);
  const typename V::Reg ramp = V::ramp();
  for (std::int64_t key = 0; key < n_keys; ++key) {
    const std::int64_t position = positions.gathered ? positions.gathered[key] : positions.first_key + key;
    for (std::int64_t lane = 0; lane < lanes; lane += V::kWidth) {
      float* at = block + key * kBlockRows + lane;
      typename V::Reg s = V::load(at);
      if (map.softcap > 0) s = V::mul(cap, hyperbolic_tangent<V>(V::div(s, cap)));
      if (map.slope != 0) {
        const auto distance = static_cast<float>(positions.first_row + lane - position);
        s = V::fma(slope, V::add(V::set(distance), ramp), s);
      }
      V::store(at, s);
    }
  }
}

/// Vectors of lanes side by side over all keys of the segment, every lane's sum in kChains parts by the keys' order.
template <class V, int Vectors>
inline void softmax_lanes(std::int64_t n_keys, float* block, float* max, float* sum, float* rescale) {
  constexpr int kChains = 2;  // with two vectors they hide the latency of max and add
  using Parts = typename V::Reg[kChains][Vectors];
  Parts highest;
  const auto at = [&](std::int64_t key, int v) { return block + key * kBlockRows + v * V::kWidth; };
  const auto each = [](const auto& body) {
    repeat<kChains>([&](auto c) { repeat<Vectors>([&](auto v) { body(c, v); }); });
  };
  const auto raise = [&](std::int64_t key, auto c, auto v) {
    highest[c][v] = V::max(V::load(at(key + c, v)), highest[c][v]);
  };
  each([&](auto c, auto v) { highest[c][v] = V::load(max + v * V::kWidth); });
  std::int64_t key = 0;
  for (; key + kChains <= n_keys; key += kChains) {
    each([&](auto c, auto v) { raise(key, c, v); });
  }
  if (key < n_keys) repeat<Vectors>([&](auto v) { raise(key, Place<0>{}, v); });

  typename V::Reg offset[Vectors];
  typename V::Reg factor[Vectors];
  repeat<Vectors>([&](auto v) {
    const typename V::Reg top = V::max(highest[0][v], highest[1][v]);
    // A lane that saw no key yet has m = -inf; any finite offset keeps its weights at zero instead of NaN.
    offset[v] = V::finite_or_zero(top);
    factor[v] = exp_nonpositive<V>(V::sub(V::load(max + v * V::kWidth), offset[v]));
    V::store(rescale + v * V::kWidth, factor[v]);
    V::store(max + v * V::kWidth, top);
  });

  Parts partial;
  each([&](auto c, auto v) { partial[c][v] = V::zero(); });
  const auto to_weight = [&](std::int64_t first, auto c, auto v) {
    float* logits = at(first + c, v);
    const typename V::Reg weight = exp_nonpositive<V>(V::sub(V::load(logits), offset[v]));
    V::store(logits, weight);
    partial[c][v] = V::add(partial[c][v], weight);
  };
  for (key = 0; key + kChains <= n_keys; key += kChains) {
    each([&](auto c, auto v) { to_weight(key, c, v); });
  }
  if (key < n_keys) repeat<Vectors>([&](auto v) { to_weight(key, Place<0>{}, v); });
  repeat<Vectors>([&](auto v) {
    float* total = sum + v * V::kWidth;
    V::store(total, V::fma(V::load(total), factor[v], V::add(partial[0][v], partial[1][v])));
  });
}

template <class V>
void softmax(std::int64_t lanes, std::int64_t n_keys, float* block, SoftmaxState& state) {
  const auto run = [&](auto vectors, std::int64_t lane) {
    softmax_lanes<V, vectors>(n_keys, block + lane, state.max + lane, state.sum + lane, state.rescale + lane);
  };
  std::int64_t lane = 0;
  for (; lane + 2 * V::kWidth <= lanes; lane += 2 * V::kWidth) run(Place<2>{}, lane);
  for (; lane < lanes; lane += V::kWidth) run(Place<1>{}, lane);
}

/// kRows rows x Vectors * kWidth columns of one run of keys, added to out * rescale, or to nothing where rescale is none.
/// Part: the last vector has `part` columns. Prefetch: the columns after them, into the second-level cache.
template <class V, int Vectors, bool Part, bool Prefetch, class Values>
inline void value_tile(const float* block, std::int64_t n_keys, const Values& values, std::int64_t column,
                       std::int64_t dv, int part, const float* rescale, float* out) {
  typename V::Reg sums[V::kRows][Vectors];
  repeat<V::kRows>([&](auto row) { repeat<Vectors>([&](auto v) { sums[row][v] = V::zero(); }); });
  for (std::int64_t key = 0; key < n_keys; ++key) {
    const float* row = values(key) + column;
    for (int ahead = Vectors; Prefetch && ahead < 2 * Vectors; ahead += kLineFloats / V::kWidth) {
      __builtin_prefetch(row + ahead * V::kWidth, 0, 2);
    }
    typename V::Reg value[Vectors];
    repeat<Vectors>([&](auto v) {
      const float* from = row + v * V::kWidth;
      value[v] = Part && v == Vectors - 1 ? V::load_part(from, part) : V::load(from);
    });
    repeat<V::kRows>([&](auto lane) {
      const typename V::Reg weight = V::set(block[key * kBlockRows + lane]);
      repeat<Vectors>([&](auto v) { sums[lane][v] = V::fma(weight, value[v], sums[lane][v]); });
    });
  }
  repeat<V::kRows>([&](auto row) {
    const typename V::Reg factor = V::set(rescale ? rescale[row] : 0.0f);
    repeat<Vectors>([&](auto v) {
      constexpr bool kPart = Part && v == Vectors - 1;
      float* to = out + row * dv + v * V::kWidth;
      typename V::Reg total = sums[row][v];
      if (rescale) total = V::fma(kPart ? V::load_part(to, part) : V::load(to), factor, total);
      if (kPart) {
        V::store_part(to, total, part);
      } else {
        V::store(to, total);
      }
    });
  });
}

/// Value rows side by side, and anywhere.
struct RowsTogether {
  const float* rows;
  std::int64_t dv;
  const float* operator()(std::int64_t key) const { return rows + key * dv; }
  [[nodiscard]] RowsTogether from(std::int64_t key) const { return {rows + key * dv, dv}; }
};
struct RowsApart {
  const float* const* rows;
  const float* operator()(std::int64_t key) const { return rows[key]; }
  [[nodiscard]] RowsApart from(std::int64_t key) const { return {rows + key}; }
};

/// A run of keys of which lane r sees the first visible + r.
template <class Values>
struct ValueRun {
  const float* weights;
  Values values;
  const float* rescale;  ///< of what is in out; none: nothing is
  std::int64_t n_keys;
  std::int64_t visible;
};

template <class V, int Vectors, bool Part, class Values>
void value_strip(const ValueRun<Values>& run, std::int64_t lanes, std::int64_t column, std::int64_t dv,
                 int part, float* out) {
  const auto tile = [&](auto prefetch, std::int64_t row) {
    const std::int64_t n_keys = least(run.n_keys, run.visible + row + V::kRows - 1);
    value_tile<V, Vectors, Part, prefetch != 0>(run.weights + row, n_keys, run.values, column, dv, part,
                                                run.rescale ? run.rescale + row : nullptr,
                                                out + row * dv + column);
  };
  tile(Place<1>{}, 0);
  for (std::int64_t row = V::kRows; row < lanes; row += V::kRows) tile(Place<0>{}, row);
}

template <class V, class Values>
void accumulate(const float* block, std::int64_t lanes, std::int64_t n_keys, std::int64_t visible,
                const Values& values, std::int64_t dv, const float* rescale, float* out) {
  static_assert(kLaneTile % V::kRows == 0);
  // Bounds the length of a float sum; a strip of the run's value rows stays in the first-level cache.
  constexpr std::int64_t kRun = 128;
  constexpr std::int64_t kMost = 3 * V::kWidth;
  float as_it_is[kBlockRows];
  for (float& factor : as_it_is) factor = 1.0f;
  for (std::int64_t first = 0; first < n_keys; first += kRun) {
    const ValueRun<Values> run{block + first * kBlockRows, values.from(first),
                               first == 0 ? rescale : as_it_is, least(kRun, n_keys - first), visible - first};
    std::int64_t column = 0;
    while (dv - column >= 2 * V::kWidth) {
      const std::int64_t left = dv - column;
      // Two strips of two vectors rather than one of three and one of one.
      if (left >= kMost && left != 4 * V::kWidth) {
        value_strip<V, 3, false>(run, lanes, column, dv, 0, out);
        column += kMost;
      } else {
        value_strip<V, 2, false>(run, lanes, column, dv, 0, out);
        column += 2 * V::kWidth;
      }
    }
    const auto left = static_cast<int>(dv - column);
    if (left > V::kWidth) {
      value_strip<V, 2, true>(run, lanes, column, dv, left - V::kWidth, out);
    } else if (left == V::kWidth) {
      value_strip<V, 1, false>(run, lanes, column, dv, 0, out);
    } else if (left > 0) {
      value_strip<V, 1, true>(run, lanes, column, dv, left, out);
    }
  }
}

template <class V>
void accumulate_values(const float* block, std::int64_t lanes, std::int64_t n_keys, std::int64_t visible,
                       const float* values, std::int64_t dv, const float* rescale, float* out) {
  accumulate<V>(block, lanes, n_keys, visible, RowsTogether{values, dv}, dv, rescale, out);
}

template <class V>
void accumulate_rows(const float* block, std::int64_t lanes, std::int64_t n_keys, const float* const* values,
                     std::int64_t dv, const float* rescale, float* out) {
  accumulate<V>(block, lanes, n_keys, n_keys, RowsApart{values}, dv, rescale, out);
}

/// 16-bit elements to floats, exact.
template <class V, typename V::Reg (*Widen)(const void*), float (*WidenOne)(std::uint16_t)>
void widen_16(const void* from, std::int64_t count, float* to) {
  const auto* bytes = static_cast<const unsigned char*>(from);
  std::int64_t i = 0;
  for (; i + V::kWidth <= count; i += V::kWidth) V::store(to + i, Widen(bytes + 2 * i));
  for (; i < count; ++i) {
    std::uint16_t bits = 0;
    __builtin_memcpy(&bits, bytes + 2 * i, sizeof(bits));
    to[i] = WidenOne(bits);
  }
}

template <class V>
void widen(const void* from, DType type, std::int64_t count, float* to) {
  switch (type) {
    case DType::f32: __builtin_memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float)); break;
    case DType::f16: widen_16<V, V::load_f16, V::one_f16>(from, count, to); break;
    case DType::bf16: widen_16<V, V::load_bf16, V::one_bf16>(from, count, to); break;
  }
}

template <class V>
void widen_rows(const void* const* rows, std::int64_t n_rows, DType type, std::int64_t n, float* to) {
  for (std::int64_t row = 0; row < n_rows; ++row, to += n) {
    if (type != DType::f32) {
      widen<V>(rows[row], type, n, to);
      continue;
    }
    const auto* from = static_cast<const unsigned char*>(rows[row]);
    std::int64_t i = 0;
    for (; i + V::kWidth <= n; i += V::kWidth)
      V::store(to + i, V::load(reinterpret_cast<const float*>(from + i * 4)));
    __builtin_memcpy(to + i, from + i * 4, static_cast<std::size_t>(n - i) * 4);
  }
}

/// Floats to 16-bit elements, each rounded once.
template <class V, void (*Narrow)(void*, typename V::Reg)>
void narrow_16(const float* from, std::int64_t count, void* to) {
  auto* bytes = static_cast<unsigned char*>(to);
  std::int64_t i = 0;
  for (; i + V::kWidth <= count; i += V::kWidth) Narrow(bytes + 2 * i, V::load(from + i));
  if (i == count) return;
  unsigned char whole[2 * V::kWidth];
  Narrow(whole, V::load_part(from + i, static_cast<int>(count - i)));
  __builtin_memcpy(bytes + 2 * i, whole, static_cast<std::size_t>(2 * (count - i)));
}

template <class V>
void narrow(const float* from, std::int64_t count, DType type, void* to) {
  switch (type) {
    case DType::f32: __builtin_memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float)); break;
    case DType::f16: narrow_16<V, V::store_f16>(from, count, to); break;
    case DType::bf16: narrow_16<V, V::store_bf16>(from, count, to); break;
  }
}

template <class V>
void column_sums(const float* block, std::int64_t lanes, std::int64_t n_keys, const float* factor,
                 double* sums) {
  constexpr std::int64_t kLines = V::kWidth;
  const std::int64_t vectors = whole_lanes<V>(lanes) / V::kWidth;
  const auto line_sum = [&](std::int64_t key) {
    const float* line = block + key * kBlockRows;
    typename V::Reg total = V::mul(V::load(line), V::load(factor));
    for (std::int64_t v = 1; v < vectors; ++v) {
      total = V::fma(V::load(line + v * V::kWidth), V::load(factor + v * V::kWidth), total);
    }
    return total;
  };
  std::int64_t key = 0;
  for (; key + kLines <= n_keys; key += kLines) {
    typename V::Reg lines[kLines];
    repeat<kLines>([&](auto i) { lines[i] = line_sum(key + i); });
    V::add_line_totals(lines, sums + key);
  }
  if (key < n_keys) {
    typename V::Reg lines[kLines];
    for (int i = 0; i < kLines; ++i) lines[i] = key + i < n_keys ? line_sum(key + i) : V::zero();
    double tail[kLines] = {};
    V::add_line_totals(lines, tail);
    for (int i = 0; key + i < n_keys; ++i) sums[key + i] += tail[i];
  }
}

template <class V>
void scale(const float* a, float weight, std::int64_t n, float* to) {
  const typename V::Reg w = V::set(weight);
  std::int64_t i = 0;
  for (; i + V::kWidth <= n; i += V::kWidth) V::store(to + i, V::mul(V::load(a + i), w));
  if (i == n) return;
  const auto part = static_cast<int>(n - i);
  V::store_part(to + i, V::mul(V::load_part(a + i, part), w), part);
}

template <class V>
void blend(const float* a, float a_weight, const float* b, float b_weight, std::int64_t n, float* to) {
  const typename V::Reg wa = V::set(a_weight);
  const typename V::Reg wb = V::set(b_weight);
  std::int64_t i = 0;
  for (; i + V::kWidth <= n; i += V::kWidth) {
    V::store(to + i, V::fma(V::load(a + i), wa, V::mul(V::load(b + i), wb)));
  }
  if (i == n) return;
  const auto part = static_cast<int>(n - i);
  V::store_part(to + i, V::fma(V::load_part(a + i, part), wa, V::mul(V::load_part(b + i, part), wb)), part);
}

}  // namespace
}  // namespace headwater::cpu
