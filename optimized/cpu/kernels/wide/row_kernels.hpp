#pragma once

/// The kernels of table.hpp that read stored rows of any type, for any vector type of kernels.hpp, whose rules hold here,
/// too: those of decode steps, and those over the columns of rows.

#include "cpu/kernels/sketches.hpp"
#include "cpu/kernels/wide/kernels.hpp"

namespace headwater::cpu {
namespace {

/// Stored elements, widened on the way: kVectors at a time by load_unit, the rest of a row, in its own order, by load.
template <class V>
struct StoredF32 {
  static constexpr std::int64_t kBytes = 4;
  static constexpr int kVectors = 1;
  static typename V::Reg load(const unsigned char* p) { return V::load(reinterpret_cast<const float*>(p)); }
  static void load_unit(const unsigned char* p, typename V::Reg* to) { *to = load(p); }
};
template <class V>
struct StoredF16 {
  static constexpr std::int64_t kBytes = 2;
  static constexpr int kVectors = 1;
  static typename V::Reg load(const unsigned char* p) { return V::load_f16(p); }
  static void load_unit(const unsigned char* p, typename V::Reg* to) { *to = load(p); }
};
/// The elements at even places, then those at odd ones: a shift and a mask widen them, without a permutation.
template <class V>
struct StoredBf16 {
  static constexpr std::int64_t kBytes = 2;
  static constexpr int kVectors = 2;
  static typename V::Reg load(const unsigned char* p) { return V::load_bf16(p); }
  static void load_unit(const unsigned char* p, typename V::Reg* to) { V::load_bf16_pairs(p, to[0], to[1]); }
};

/// Where element i of a row stands in arranged rows; see KernelTable::arrange_row.
template <class V>
std::int64_t arranged_place(DType type, std::int64_t n, std::int64_t i) {
  constexpr std::int64_t kUnit = 2 * V::kWidth;
  if (type != DType::bf16 || i >= n / kUnit * kUnit) return i;
  return i / kUnit * kUnit + i % 2 * V::kWidth + i % kUnit / 2;
}

template <class V>
void arrange_row(const float* row, DType type, std::int64_t n, float* arranged) {
  for (std::int64_t i = 0; i < n; ++i) arranged[arranged_place<V>(type, n, i)] = row[i];
}

template <class V>
void restore_row(const float* arranged, DType type, std::int64_t n, float* row) {
  for (std::int64_t i = 0; i < n; ++i) row[i] = arranged[arranged_place<V>(type, n, i)];
}

/// The first n < kWidth elements, zeros after them.
template <class V, class E>
inline typename V::Reg load_stored_part(const unsigned char* p, std::int64_t n) {
  unsigned char whole[V::kWidth * E::kBytes] = {};
  __builtin_memcpy(whole, p, static_cast<std::size_t>(n * E::kBytes));
  return E::load(whole);
}

/// Rows x kWidth / Rows dot products, one register each, totalled by one transposing tree; the first n_keys of a row
/// are written.
template <class V, int Rows>
inline void store_row_logits(const typename V::Reg (&sums)[V::kWidth], std::int64_t n_keys, float scale,
                             float* logits, std::int64_t stride) {
  constexpr int kKeys = V::kWidth / Rows;
  double totals[V::kWidth] = {};
  V::add_line_totals(sums, totals);
  float scaled[V::kWidth];
  for (int i = 0; i < V::kWidth; ++i) scaled[i] = static_cast<float>(totals[i]) * scale;
  for (int row = 0; row < Rows; ++row) {
    float* to = logits + row * stride;
    if (n_keys >= kKeys) {  // a copy of known length is a store or two
      __builtin_memcpy(to, scaled + row * kKeys, kKeys * sizeof(float));
    } else {
      __builtin_memcpy(to, scaled + row * kKeys, static_cast<std::size_t>(n_keys) * sizeof(float));
    }
  }
}

/// Rows x Keys = kWidth dot products, totalled by one transposing tree. Key by key, so that memory is read in order:
/// the processor then streams it, which no prefetch by instructions equals (docs/performance.md).
template <class V, class E, int Rows>
inline void row_logit_tile(const float* q, std::int64_t d, const unsigned char* keys, std::int64_t n_keys,
                           float scale, float* logits, std::int64_t stride) {
  constexpr int kKeys = V::kWidth / Rows;
  typename V::Reg sums[V::kWidth];
  for (int key = 0; key < kKeys; ++key) {
    const unsigned char* at = keys + least(key, n_keys - 1) * d * E::kBytes;
    typename V::Reg total[Rows];
    for (typename V::Reg& sum : total) sum = V::zero();
    constexpr std::int64_t kUnit = E::kVectors * V::kWidth;
    const auto add = [&](std::int64_t first) {
      typename V::Reg k[E::kVectors];
      E::load_unit(at + first * E::kBytes, k);
      for (int v = 0; v < E::kVectors; ++v) {
        const float* query = q + first + v * V::kWidth;
        for (int row = 0; row < Rows; ++row) total[row] = V::fma(k[v], V::load(query + row * d), total[row]);
      }
    };
    constexpr std::int64_t kStep = 8 * V::kWidth;  // a loop of few turns costs as much as its work
    std::int64_t e = 0;
    for (; e + kStep <= d; e += kStep) {
      for (std::int64_t unit = 0; unit < kStep; unit += kUnit) add(e + unit);
    }
    for (; e + kUnit <= d; e += kUnit) add(e);
    for (; e + V::kWidth <= d; e += V::kWidth) {
      const typename V::Reg k = E::load(at + e * E::kBytes);
      for (int row = 0; row < Rows; ++row) total[row] = V::fma(k, V::load(q + row * d + e), total[row]);
    }
    if (e < d) {
      const typename V::Reg k = load_stored_part<V, E>(at + e * E::kBytes, d - e);
      for (int row = 0; row < Rows; ++row) {
        total[row] = V::fma(k, V::load_part(q + row * d + e, static_cast<int>(d - e)), total[row]);
      }
    }
    for (int row = 0; row < Rows; ++row) sums[row * kKeys + key] = total[row];
  }
  store_row_logits<V, Rows>(sums, n_keys, scale, logits, stride);
}

/// Calls tile(row, key) for the tiles of kWidth / Rows keys of every row, Rows = 4, 2, 1, run by run of keys.
template <class V, class Tile4, class Tile2, class Tile1>
inline void for_row_tiles(std::int64_t rows, std::int64_t n_keys, const Tile4& four, const Tile2& two,
                          const Tile1& one) {
  constexpr std::int64_t kRun = 16;  // a whole number of tiles; stays in the first-level cache for all rows
  for (std::int64_t first = 0; first < n_keys; first += kRun) {
    const std::int64_t last = least(first + kRun, n_keys);
    const auto tiles = [&](const auto& tile, std::int64_t step, std::int64_t row) {
      for (std::int64_t key = first; key < last; key += step) tile(row, key);
    };
    std::int64_t row = 0;
    for (; row + 4 <= rows; row += 4) tiles(four, V::kWidth / 4, row);
    for (; row + 2 <= rows; row += 2) tiles(two, V::kWidth / 2, row);
    if (row < rows) tiles(one, V::kWidth, row);
  }
}

template <class V, class E>
void row_logits_of(const float* q, std::int64_t rows, std::int64_t d, const void* keys, std::int64_t n_keys,
                   float scale, float* logits, std::int64_t stride) {
  const auto* bytes = static_cast<const unsigned char*>(keys);
  const auto by = [&](auto tile) {
    return [=](std::int64_t row, std::int64_t key) {
      tile(q + row * d, d, bytes + key * d * E::kBytes, n_keys - key, scale, logits + row * stride + key,
           stride);
    };
  };
  for_row_tiles<V>(rows, n_keys, by(row_logit_tile<V, E, 4>), by(row_logit_tile<V, E, 2>),
                   by(row_logit_tile<V, E, 1>));
}

template <class V>
void row_logits(const float* q, std::int64_t rows, std::int64_t d, const void* keys, DType type,
                std::int64_t n_keys, float scale, float* logits, std::int64_t stride) {
  switch (type) {
    case DType::f32: row_logits_of<V, StoredF32<V>>(q, rows, d, keys, n_keys, scale, logits, stride); break;
    case DType::f16: row_logits_of<V, StoredF16<V>>(q, rows, d, keys, n_keys, scale, logits, stride); break;
    case DType::bf16: row_logits_of<V, StoredBf16<V>>(q, rows, d, keys, n_keys, scale, logits, stride); break;
  }
}

template <class V>
float row_weights(float* logits, std::int64_t n, float max) {
  const typename V::Reg offset = V::set(max);
  typename V::Reg sum = V::zero();
  std::int64_t i = 0;
  for (; i + V::kWidth <= n; i += V::kWidth) {
    const typename V::Reg weight = exp_nonpositive<V>(V::sub(V::load(logits + i), offset));
    V::store(logits + i, weight);
    sum = V::add(sum, weight);
  }
  if (i < n) {
    const auto left = static_cast<int>(n - i);
    const typename V::Reg weight = exp_nonpositive<V>(V::sub(V::load_part(logits + i, left), offset));
    V::store_part(logits + i, weight, left);
    sum = V::add(sum, V::load_part(logits + i, left));
  }
  float lanes[V::kWidth];
  V::store(lanes, sum);
  float total = 0;
  for (const float lane : lanes) total += lane;
  return total;
}

/// Rows x Vectors * kWidth columns over a run of keys.
template <class V, class E, int Rows, int Vectors>
inline void row_value_tile(const float* weights, std::int64_t stride, const unsigned char* values,
                           std::int64_t n_keys, std::int64_t dv, float* out) {
  typename V::Reg sums[Rows][Vectors];
  const auto at_out = [&](int row, int v) { return out + row * dv + v * V::kWidth; };
  repeat<Rows>([&](auto row) { repeat<Vectors>([&](auto v) { sums[row][v] = V::load(at_out(row, v)); }); });
  for (std::int64_t key = 0; key < n_keys; ++key) {
    typename V::Reg value[Vectors];
    const unsigned char* at = values + key * dv * E::kBytes;
    if constexpr (Vectors % E::kVectors == 0) {
      repeat<Vectors / E::kVectors>([&](auto unit) {
        constexpr int kFirst = unit * E::kVectors;
        E::load_unit(at + kFirst * V::kWidth * E::kBytes, value + kFirst);
      });
    } else {
      repeat<Vectors>([&](auto v) { value[v] = E::load(at + v * V::kWidth * E::kBytes); });
    }
    repeat<Rows>([&](auto row) {
      const typename V::Reg weight = V::set(weights[row * stride + key]);
      repeat<Vectors>([&](auto v) { sums[row][v] = V::fma(weight, value[v], sums[row][v]); });
    });
  }
  repeat<Rows>([&](auto row) { repeat<Vectors>([&](auto v) { V::store(at_out(row, v), sums[row][v]); }); });
}

template <class V, class E, int Rows>
void row_value_columns(const float* weights, std::int64_t stride, const unsigned char* values,
                       std::int64_t n_keys, std::int64_t dv, float* out) {
  constexpr int kMost = V::kAccumulators / 3 / (Rows > 2 ? 2 : 1);  // whole rows of 128 floats for one or two
  std::int64_t column = 0;
  const auto at = [&](std::int64_t c) { return values + c * E::kBytes; };
  const auto tiles = [&](auto vectors) {
    for (; column + vectors * V::kWidth <= dv; column += vectors * V::kWidth)
      row_value_tile<V, E, Rows, vectors>(weights, stride, at(column), n_keys, dv, out + column);
  };
  // Few sums wait for each other: tiles as wide as the row allows.
  tiles(Place<kMost>{});
  if constexpr (kMost / 2 > E::kVectors) tiles(Place<kMost / 2>{});
  tiles(Place<E::kVectors>{});
  if constexpr (E::kVectors > 1) tiles(Place<1>{});
  if (column == dv) return;
  const auto part = static_cast<int>(dv - column);
  for (int row = 0; row < Rows; ++row) {
    typename V::Reg sum = V::load_part(out + row * dv + column, part);
    for (std::int64_t key = 0; key < n_keys; ++key) {
      sum = V::fma(V::set(weights[row * stride + key]), load_stored_part<V, E>(at(key * dv + column), part),
                   sum);
    }
    V::store_part(out + row * dv + column, sum, part);
  }
}

template <class V, class E>
void row_values_of(const float* weights, std::int64_t stride, std::int64_t rows, const void* values,
                   std::int64_t n_keys, std::int64_t dv, float* out) {
  constexpr std::int64_t kRun = 64;  // its rows stay in the first-level cache for all columns and rows
  for (std::int64_t first = 0; first < n_keys; first += kRun) {
    const auto* from = static_cast<const unsigned char*>(values) + first * dv * E::kBytes;
    const std::int64_t n = least(kRun, n_keys - first);
    const auto run = [&](auto columns, std::int64_t row) {
      columns(weights + row * stride + first, stride, from, n, dv, out + row * dv);
    };
    std::int64_t row = 0;
    for (; row + 4 <= rows; row += 4) run(row_value_columns<V, E, 4>, row);
    switch (rows - row) {
      case 3: run(row_value_columns<V, E, 3>, row); break;
      case 2: run(row_value_columns<V, E, 2>, row); break;
      case 1: run(row_value_columns<V, E, 1>, row); break;
    }
  }
}

template <class V>
void row_values(const float* weights, std::int64_t stride, std::int64_t rows, const void* values, DType type,
                std::int64_t n_keys, std::int64_t dv, float* out) {
  switch (type) {
    case DType::f32: row_values_of<V, StoredF32<V>>(weights, stride, rows, values, n_keys, dv, out); break;
    case DType::f16: row_values_of<V, StoredF16<V>>(weights, stride, rows, values, n_keys, dv, out); break;
    case DType::bf16: row_values_of<V, StoredBf16<V>>(weights, stride, rows, values, n_keys, dv, out); break;
  }
}

template <class V, class E>
void row_sum_of(const unsigned char* rows, std::int64_t stride, std::int64_t n_rows, std::int64_t n,
                float factor, float* to) {
  const typename V::Reg factors = V::set(factor);
  const auto sum_of = [&](auto&& load, std::int64_t x) {
    typename V::Reg sum = V::zero();
    for (std::int64_t r = 0; r < n_rows; ++r) sum = V::add(sum, load(rows + r * stride + x * E::kBytes));
    return V::mul(sum, factors);
  };
  std::int64_t x = 0;
  for (; x + V::kWidth <= n; x += V::kWidth) V::store(to + x, sum_of(E::load, x));
  if (x == n) return;
  const auto part = [&](const unsigned char* p) { return load_stored_part<V, E>(p, n - x); };
  V::store_part(to + x, sum_of(part, x), static_cast<int>(n - x));
}

template <class V>
void row_sum(const void* rows, std::int64_t stride, std::int64_t n_rows, DType type, std::int64_t n,
             float factor, float* to) {
  const auto* from = static_cast<const unsigned char*>(rows);
  switch (type) {
    case DType::f32: row_sum_of<V, StoredF32<V>>(from, stride, n_rows, n, factor, to); break;
    case DType::f16: row_sum_of<V, StoredF16<V>>(from, stride, n_rows, n, factor, to); break;
    case DType::bf16: row_sum_of<V, StoredBf16<V>>(from, stride, n_rows, n, factor, to); break;
  }
}

template <class V, class E>
void spread_of(const void* const* rows, std::int64_t n_rows, std::int64_t n, float* mean, float* squares) {
  using Reg = typename V::Reg;
  const Reg count = V::set(static_cast<float>(n_rows));
  const auto columns = [&](std::int64_t x, const auto& load, const auto& store) {
    const auto at = [&](std::int64_t r) {
      return load(static_cast<const unsigned char*>(rows[r]) + x * E::kBytes);
    };
    Reg sum = V::zero();
    for (std::int64_t r = 0; r < n_rows; ++r) sum = V::add(sum, at(r));
    const Reg middle = V::div(sum, count);
    Reg total = V::zero();
    for (std::int64_t r = 0; r < n_rows; ++r) {
      const Reg difference = V::sub(at(r), middle);
      total = V::add(total, V::mul(difference, difference));
    }
    store(mean + x, middle);
    store(squares + x, total);
  };
  std::int64_t x = 0;
  for (; x + V::kWidth <= n; x += V::kWidth) columns(x, E::load, V::store);
  if (x == n) return;
  const auto part = static_cast<int>(n - x);
  columns(
      x, [&](const unsigned char* p) { return load_stored_part<V, E>(p, part); },
      [&](float* to, Reg value) { V::store_part(to, value, part); });
}

template <class V>
void spread(const void* const* rows, std::int64_t n_rows, DType type, std::int64_t n, float* mean,
            float* squares) {
  switch (type) {
    case DType::f32: spread_of<V, StoredF32<V>>(rows, n_rows, n, mean, squares); break;
    case DType::f16: spread_of<V, StoredF16<V>>(rows, n_rows, n, mean, squares); break;
    case DType::bf16: spread_of<V, StoredBf16<V>>(rows, n_rows, n, mean, squares); break;
  }
}

/// Groups are prefetched so far ahead: the processor's own prefetch begins anew with each run of rows.
inline constexpr std::int64_t kGroupsAhead = 96;

/// Store: a vector of products to kElement bytes each.
template <class V, std::int64_t kElement, class Store>
void restore_groups_to(const unsigned char* packed, std::int64_t groups, unsigned char* elements,
                       const Store& store) {
  for (std::int64_t group = 0; group < groups; ++group, packed += core::kGroupBytes) {
    __builtin_prefetch(packed + kGroupsAhead * core::kGroupBytes);
    std::uint16_t bits = 0;
    __builtin_memcpy(&bits, packed, sizeof bits);
    const typename V::Reg scale = V::set(V::one_f16(bits));
    for (std::int64_t i = 0; i < core::kGroupElements; i += V::kWidth, elements += V::kWidth * kElement) {
      store(elements, V::mul(scale, V::load_i8(packed + sizeof bits + i)));
    }
  }
}

template <class V>
void restore_groups(const void* packed, std::int64_t groups, DType type, void* to) {
  const auto* from = static_cast<const unsigned char*>(packed);
  auto* elements = static_cast<unsigned char*>(to);
  switch (type) {
    case DType::f32:
      restore_groups_to<V, 4>(from, groups, elements, [](unsigned char* p, typename V::Reg x) {
        V::store(reinterpret_cast<float*>(p), x);
      });
      break;
    case DType::f16: restore_groups_to<V, 2>(from, groups, elements, V::store_f16); break;
    case DType::bf16: restore_groups_to<V, 2>(from, groups, elements, V::store_bf16); break;
  }
}

/// The table of a vector type.
template <class V>
constexpr KernelTable wide_kernels(const char* isa, std::int64_t segment_keys,
                                   const core::SelectionLoops& selection) {
  return {
      .isa = isa,
      .segment_keys = segment_keys,
      .widen = widen<V>,
      .widen_rows = widen_rows<V>,
      .narrow = narrow<V>,
      .restore_groups = restore_groups<V>,
      .pack_queries = pack_queries<V>,
      .dot_products = dot_products<V>,
      .dot_rows = dot_rows<V>,
      .cap_and_bias = cap_and_bias<V>,
      .mask_future = portable::mask_future,
      .softmax = softmax<V>,
      .accumulate_values = accumulate_values<V>,
      .accumulate_rows = accumulate_rows<V>,
      .column_sums = column_sums<V>,
      .raise_maxima = raise_maxima<V>,
      .raise_votes = raise_votes<V>,
      .row_sum = row_sum<V>,
      .spread = spread<V>,
      .sketch_rows = sketch_rows<V>,
      .scale_lanes = scale_lanes,
      .raise_lane_votes = raise_lane_votes,
      .selection = selection,
      .blend = blend<V>,
      .scale = scale<V>,
      .arrange_row = arrange_row<V>,
      .restore_row = restore_row<V>,
      .row_logits = row_logits<V>,
      .row_weights = row_weights<V>,
      .row_values = row_values<V>,
  };
}

}  // namespace
}  // namespace headwater::cpu
