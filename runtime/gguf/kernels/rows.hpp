#pragma once

/// The kernels of table.hpp for any vector type; rules for what may stand here: blocks.hpp.
///
/// A vector type V has: Reg, kWidth (floats; a divisor of 16), load, store, set, zero, add, mul, sub, fma (a * b + c,
/// fused where the ISA can), from_codes (kWidth signed bytes), from_f16 and from_bf16 (kWidth widened elements), sum.

#include "runtime/gguf/kernels/blocks.hpp"
#include "runtime/gguf/kernels/fixed.hpp"
#include "runtime/gguf/kernels/table.hpp"

namespace headwater::runtime {
namespace {

inline constexpr int kLargestBlock = 256;
inline constexpr int kMostRuns = 16;
inline constexpr int kChains = 4;  // independent sums of a dot product: they hide the latency of an addition

/// One unpacked block.
template <class Block>
struct Unpacked {
  alignas(64) std::int8_t room[Block::kElements];
  float scales[kMostRuns];
  float minima[kMostRuns];
  const std::int8_t* codes;
  explicit Unpacked(const std::byte* block) : codes(Block::unpack(block, room, scales, minima)) {}
  Unpacked(const Unpacked&) = delete;
  Unpacked& operator=(const Unpacked&) = delete;

  /// Values i .. i + kWidth - 1, rounded after the product and after the difference, like ggml's.
  template <class V>
  typename V::Reg values(int i) const {
    const typename V::Reg scaled = V::mul(V::set(scales[i / Block::kRun]), V::from_codes(codes + i));
    if constexpr (Block::kMinima) return V::sub(scaled, V::set(minima[i / Block::kRun]));
    return scaled;
  }
};

template <class V, class Block>
void widen_blocks(const std::byte* row, std::int64_t n, float* out) {
  for (std::int64_t first = 0; first < n; first += Block::kElements, row += Block::kBytes) {
    const Unpacked<Block> block(row);
    for (int i = 0; i < Block::kElements; i += V::kWidth)
      V::store(out + first + i, block.template values<V>(i));
  }
}

/// The sums of the chains, added up in one fixed order.
template <class V>
float total(const typename V::Reg (&sums)[kChains]) {
  return V::sum(V::add(V::add(sums[0], sums[1]), V::add(sums[2], sums[3])));
}

template <class V, class Block>
float dot_blocks(const std::byte* row, std::int64_t n, const float* x) {
  constexpr int kVectors = Block::kElements / V::kWidth;
  typename V::Reg sums[kChains] = {V::zero(), V::zero(), V::zero(), V::zero()};
  for (std::int64_t first = 0; first < n; first += Block::kElements, row += Block::kBytes) {
    const Unpacked<Block> block(row);
    for (int v = 0; v < kVectors; ++v) {
      typename V::Reg& sum = sums[v % kChains];
      sum = V::fma(block.template values<V>(v * V::kWidth), V::load(x + first + v * V::kWidth), sum);
    }
  }
  return total<V>(sums);
}

/// Elements that stand alone.
struct F32 {
  static constexpr int kBytes = 4;
  template <class V>
  static typename V::Reg many(const std::byte* p) {
    return V::load(reinterpret_cast<const float*>(p));  // V::load takes any address
  }
  static float one(const std::byte* p) {
    float value;
    __builtin_memcpy(&value, p, sizeof value);
    return value;
  }
};
struct F16 {
  static constexpr int kBytes = 2;
  template <class V>
  static typename V::Reg many(const std::byte* p) {
    return V::from_f16(p);
  }
  static float one(const std::byte* p) { return float_of_half(load_u16(p)); }
};
struct BF16 {
  static constexpr int kBytes = 2;
  template <class V>
  static typename V::Reg many(const std::byte* p) {
    return V::from_bf16(p);
  }
  static float one(const std::byte* p) { return float_of_bf16(load_u16(p)); }
};

template <class V, class Element>
void widen_elements(const std::byte* row, std::int64_t n, float* out) {
  std::int64_t i = 0;
  for (; i + V::kWidth <= n; i += V::kWidth)
    V::store(out + i, Element::template many<V>(row + i * Element::kBytes));
  for (; i < n; ++i) out[i] = Element::one(row + i * Element::kBytes);
}

template <class V, class Element>
float dot_elements(const std::byte* row, std::int64_t n, const float* x) {
  constexpr std::int64_t kStep = kChains * V::kWidth;
  typename V::Reg sums[kChains] = {V::zero(), V::zero(), V::zero(), V::zero()};
  std::int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    for (int chain = 0; chain < kChains; ++chain) {
      const std::int64_t at = i + chain * V::kWidth;
      sums[chain] =
          V::fma(Element::template many<V>(row + at * Element::kBytes), V::load(x + at), sums[chain]);
    }
  }
  float rest = 0.0f;
  for (; i < n; ++i) rest += Element::one(row + i * Element::kBytes) * x[i];
  return total<V>(sums) + rest;
}

/// Piece by piece through floats that stay in the first-level cache.
template <void (*Widen)(const std::byte*, std::int64_t, float*), int Elements, int Bytes>
void widen_to_bf16(const std::byte* row, std::int64_t n, std::uint16_t* out) {
  alignas(64) float values[kLargestBlock];
  for (std::int64_t first = 0; first < n; first += kLargestBlock) {
    const std::int64_t count = n - first < kLargestBlock ? n - first : kLargestBlock;
    Widen(row + first / Elements * Bytes, count, values);
    for (std::int64_t i = 0; i < count; ++i) out[first + i] = bf16_of_float(values[i]);
  }
}

template <class V, class Block>
inline constexpr auto widen_blocks_bf16 =
    widen_to_bf16<widen_blocks<V, Block>, Block::kElements, Block::kBytes>;
template <class V, class Element>
inline constexpr auto widen_elements_bf16 = widen_to_bf16<widen_elements<V, Element>, 1, Element::kBytes>;

/// In the order of TensorType.
template <class V>
constexpr RowKernels make_row_kernels(const char* isa) {
  return {isa,
          {widen_elements<V, F32>, widen_elements<V, F16>, widen_elements<V, BF16>, widen_blocks<V, Q8_0>,
           widen_blocks<V, Q4_0>, widen_blocks<V, Q4_1>, widen_blocks<V, Q5_0>, widen_blocks<V, Q5_1>,
           widen_blocks<V, Q4K>, widen_blocks<V, Q5K>, widen_blocks<V, Q6K>, widen_blocks<V, IQ4_NL>,
           widen_blocks<V, MXFP4>, widen_blocks<V, Q2K>, widen_blocks<V, Q3K>, widen_blocks<V, IQ4_XS>},
          {widen_elements_bf16<V, F32>, widen_elements_bf16<V, F16>, widen_elements_bf16<V, BF16>,
           widen_blocks_bf16<V, Q8_0>, widen_blocks_bf16<V, Q4_0>, widen_blocks_bf16<V, Q4_1>,
           widen_blocks_bf16<V, Q5_0>, widen_blocks_bf16<V, Q5_1>, widen_blocks_bf16<V, Q4K>,
           widen_blocks_bf16<V, Q5K>, widen_blocks_bf16<V, Q6K>, widen_blocks_bf16<V, IQ4_NL>,
           widen_blocks_bf16<V, MXFP4>, widen_blocks_bf16<V, Q2K>, widen_blocks_bf16<V, Q3K>,
           widen_blocks_bf16<V, IQ4_XS>},
          {dot_elements<V, F32>, dot_elements<V, F16>, dot_elements<V, BF16>, dot_blocks<V, Q8_0>,
           dot_blocks<V, Q4_0>, dot_blocks<V, Q4_1>, dot_blocks<V, Q5_0>, dot_blocks<V, Q5_1>,
           dot_blocks<V, Q4K>, dot_blocks<V, Q5K>, dot_blocks<V, Q6K>, dot_blocks<V, IQ4_NL>,
           dot_blocks<V, MXFP4>, dot_blocks<V, Q2K>, dot_blocks<V, Q3K>, dot_blocks<V, IQ4_XS>},
          fix_row,
          {},
          {nullptr, nullptr, nullptr, dot_fixed_plain<Q8_0>, dot_fixed_plain<Q4_0>, dot_fixed_plain<Q4_1>,
           dot_fixed_plain<Q5_0>, dot_fixed_plain<Q5_1>, dot_fixed_plain<Q4K>, dot_fixed_plain<Q5K>,
           dot_fixed_plain<Q6K>, dot_fixed_plain<IQ4_NL>, dot_fixed_plain<MXFP4>, dot_fixed_plain<Q2K>,
           dot_fixed_plain<Q3K>, dot_fixed_plain<IQ4_XS>},
          {}};
}

/// A kernel of fixed.hpp for one row x.
template <void (*Dot)(const std::byte*, std::int64_t, const FixedRow*, float*)>
float dot_one(const std::byte* row, std::int64_t n, const FixedRow& x) {
  float dot = 0.0F;
  Dot(row, n, &x, &dot);
  return dot;
}

/// With the integer vectors of W (fixed.hpp).
template <class V, class W>
constexpr RowKernels make_row_kernels_with_integers(const char* isa) {
  constexpr int kFew = kFixedRowsAtOnce;
  RowKernels kernels = make_row_kernels<V>(isa);
  kernels.dot_fixed[3] = dot_one<dot_fixed_blocks<W, Q8_0, 1>>;
  kernels.dot_fixed[4] = dot_one<dot_fixed_blocks<W, Q4_0, 1>>;
  kernels.dot_fixed[5] = dot_one<dot_fixed_blocks<W, Q4_1, 1>>;
  kernels.dot_fixed[6] = dot_one<dot_fixed_blocks<W, Q5_0, 1>>;
  kernels.dot_fixed[7] = dot_one<dot_fixed_blocks<W, Q5_1, 1>>;
  kernels.dot_fixed[8] = dot_one<dot_fixed_q4_k<W, 1>>;
  kernels.dot_fixed[9] = dot_one<dot_fixed_q5_k<W, 1>>;
  kernels.dot_fixed[10] = dot_one<dot_fixed_q6_k<W, 1>>;
  kernels.dot_fixed[11] = dot_one<dot_fixed_blocks<W, IQ4_NL, 1>>;
  kernels.dot_fixed[12] = dot_one<dot_fixed_blocks<W, MXFP4, 1>>;
  kernels.dot_fixed[13] = dot_one<dot_fixed_q2_k<W, 1>>;
  kernels.dot_fixed[14] = dot_one<dot_fixed_q3_k<W, 1>>;
  kernels.dot_fixed[15] = dot_one<dot_fixed_iq4_xs<W, 1>>;
  kernels.dot_fixed_few[3] = dot_fixed_blocks<W, Q8_0, kFew>;
  kernels.dot_fixed_few[4] = dot_fixed_blocks<W, Q4_0, kFew>;
  kernels.dot_fixed_few[5] = dot_fixed_blocks<W, Q4_1, kFew>;
  kernels.dot_fixed_few[6] = dot_fixed_blocks<W, Q5_0, kFew>;
  kernels.dot_fixed_few[7] = dot_fixed_blocks<W, Q5_1, kFew>;
  kernels.dot_fixed_few[8] = dot_fixed_q4_k<W, kFew>;
  kernels.dot_fixed_few[9] = dot_fixed_q5_k<W, kFew>;
  kernels.dot_fixed_few[10] = dot_fixed_q6_k<W, kFew>;
  kernels.dot_fixed_few[11] = dot_fixed_blocks<W, IQ4_NL, kFew>;
  kernels.dot_fixed_few[12] = dot_fixed_blocks<W, MXFP4, kFew>;
  kernels.dot_fixed_few[13] = dot_fixed_q2_k<W, kFew>;
  kernels.dot_fixed_few[14] = dot_fixed_q3_k<W, kFew>;
  kernels.dot_fixed_few[15] = dot_fixed_iq4_xs<W, kFew>;
  return kernels;
}

}  // namespace
}  // namespace headwater::runtime
